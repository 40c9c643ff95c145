package cortex_test

import (
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

// Each ingredient of the adaptive law that lives in the engine, switched off, has its effect and no other than its own. Those of
// the limiter by itself are tested there.
func TestIngredientsSwitchedOff(t *testing.T) {
	engine := func(t *testing.T, off limit.Ingredients) (*cortex.Engine, *timeline) {
		return virtual(t, cortex.Config{Limit: limit.Config{Off: off}})
	}
	// hang puts as many attempts in flight as may be, for longer than any should: evidence of 0.81.
	hang := func(t *testing.T, e *cortex.Engine, clock *timeline) {
		fill(t, e, 9)
		clock.advance(2 * time.Second)
		if ev := e.Pressure().Evidence; ev < 0.8 {
			t.Fatalf("evidence %v", ev)
		}
	}
	both := func(name string, i limit.Ingredients, f func(t *testing.T, off limit.Ingredients)) {
		t.Run(name+"/on", func(t *testing.T) { f(t, 0) })
		t.Run(name+"/off", func(t *testing.T) { f(t, i) })
	}
	both("Circuit", limit.Circuit, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		for range 200 {
			if p, err := e.Admit(bg, 9); err == nil {
				clock.advance(ms)
				p.Record(cortex.Failed)
			}
		}
		s := e.Stats()
		if (e.Pressure().Circuit == breaker.Open) != (off == 0) || (s.Transitions == 0) != (off != 0) || (s.Rejected(cortex.ReasonCircuitOpen) == 0) != (off != 0) {
			t.Errorf("%v: %+v", e.Pressure().Circuit, s)
		}
	})
	both("Circuit, by evidence", limit.Circuit, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		hang(t, e, clock)
		d := e.Decide(failed(cortex.TimedOut, 5))
		if (d.Reason == cortex.ReasonCircuitEmergency) != (off == 0) || (e.Pressure().Circuit == breaker.Open) != (off == 0) {
			t.Errorf("%+v, %v", d, e.Pressure().Circuit)
		}
	})
	both("EvidenceTrip", limit.EvidenceTrip, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		hang(t, e, clock)
		want := cortex.ReasonCircuitEmergency
		if off != 0 {
			want = cortex.ReasonShed
		}
		for range 20 { // shed by lot
			if p, err := e.Admit(bg, 0); err == nil {
				p.Release()
			} else if r := err.(*cortex.Rejection).Reason; r != want && r != cortex.ReasonCircuitOpen {
				t.Errorf("%v, want %v", r, want)
			} else if want == cortex.ReasonShed && r == cortex.ReasonCircuitOpen {
				t.Error("the circuit is open")
			}
		}
		// By outcomes it opens either way.
		clock.advance(time.Minute)
		e, clock = engine(t, off)
		attempts(t, e, clock, 43, ms, cortex.Failed)
		if s := e.Pressure().Circuit; s != breaker.Open {
			t.Error(s)
		}
	})
	both("GenerationReset", limit.GenerationReset, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		old := admit(t, e, 5)
		attempts(t, e, clock, 43, ms, cortex.Failed)
		if counted := old.Record(cortex.Failed); counted != (off != 0) {
			t.Errorf("a result of the older generation counts: %v", counted)
		}
		clock.advance(e.Pressure().NextProbe)
		admit(t, e, 5).Record(cortex.Success)
		p := e.Pressure()
		if p.Circuit != breaker.Closed || (p.Signals.F > 0.9) != (off != 0) {
			t.Errorf("%v with F = %v", p.Circuit, p.Signals.F)
		}
	})
	both("ProbeLease", limit.ProbeLease, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		attempts(t, e, clock, 43, ms, cortex.Failed)
		clock.advance(e.Pressure().NextProbe)
		admit(t, e, 5) // hangs
		clock.advance(10 * time.Second)
		p, err := e.Admit(bg, 5)
		if (err == nil) != (off == 0) {
			t.Errorf("10 s after a probe that hangs: %v", err)
		}
		p.Release()
	})
	both("ShortWindows", limit.ShortWindows, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		for range 50 {
			attempts(t, e, clock, 1, 10*ms, cortex.Success)
			attempts(t, e, clock, 1, 10*ms, cortex.Failed)
		}
		clock.advance(8 * time.Second)
		attempts(t, e, clock, 100, 5*ms, cortex.Success)
		clock.advance(5 * ms)
		p := e.Pressure()
		if want := map[bool]float64{true: 0, false: 0.25}[off == 0]; p.Signals.F != want {
			t.Errorf("F = %v over %v, want %v", p.Signals.F, p.Window, want)
		}
	})
	both("SlowStart", limit.SlowStart, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		attempts(t, e, clock, 43, ms, cortex.Failed)
		clock.advance(e.Pressure().NextProbe)
		admit(t, e, 5).Record(cortex.Success)
		if p := e.Pressure(); p.Circuit != breaker.Closed || (p.Limit == 2) != (off == 0) {
			t.Errorf("%v with a limit of %v", p.Circuit, p.Limit)
		}
	})
	both("LoadPrice", limit.LoadPrice, func(t *testing.T, off limit.Ingredients) {
		e, _ := engine(t, off)
		want := map[bool]float64{true: 0.02, false: 1}[off == 0]
		if d := e.Decide(failed(cortex.Failed, 5)); d.Price != want || e.Pressure().Price != want {
			t.Errorf("a retry costs %v and %v, want %v", d.Price, e.Pressure().Price, want)
		}
	})
	both("AdaptiveLimit", limit.AdaptiveLimit, func(t *testing.T, off limit.Ingredients) {
		e, clock := engine(t, off)
		refused := 0
		for range 500 {
			if _, err := e.Admit(bg, 5); err != nil {
				refused++
			}
			clock.advance(10 * ms)
		}
		if q := e.Pressure().Signals.Q; (q == 0) != (off != 0) || (refused == 0) != (off != 0) {
			t.Errorf("Q = %v, %d of 500 refused", q, refused)
		}
	})
}

// Every answer is a 429: the target is alive and asks for less. That sheds, and opens nothing.
func TestNothingButThrottledAnswersSheds(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	shed := 0.0
	for range 1000 {
		p, err := e.Admit(bg, 5)
		clock.advance(5 * ms)
		if err == nil {
			p.Record(cortex.Throttled)
		}
		shed = max(shed, e.Pressure().Shed)
	}
	p, s := e.Pressure(), e.Stats()
	if shed < 0.9 || p.Circuit != breaker.Closed || s.Transitions != 0 || p.Signals.F != 0 {
		t.Errorf("shed at most %v: %+v", shed, p)
	}
	if s.Rejected(cortex.ReasonShed) < 500 || s.Throttled < 10 {
		t.Errorf("%+v", s)
	}
}

// The evidence trip opens a closed circuit at 0.80, whoever asks, and lets the critical call that found it pass; a fresh generation
// is armed again.
func TestEvidenceTrip(t *testing.T) {
	fill := 0.0
	e, clock := virtual(t, cortex.Config{Weights: cortex.Weights{Q: 0.8, C: 0.2}, Limit: limit.Config{Off: limit.Integral},
		Queue: func() (float64, float64) { return fill, 1 }})
	set := func(f float64) {
		fill = f
		clock.advance(20 * ms)
		e.Pressure()
	}
	set(0.79)
	admit(t, e, 5).Release()
	set(0.8)
	if r := refusal(t, e, 8); r.Reason != cortex.ReasonCircuitEmergency || r.Evidence < 0.8 {
		t.Fatal(r)
	}
	if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
		t.Fatal(r)
	}
	for range 20 { // never extending a timer
		clock.advance(2 * ms)
		before := e.Pressure().NextProbe
		refusal(t, e, 5)
		if after := e.Pressure().NextProbe; after != before {
			t.Fatalf("the next probe moved from %v to %v", before, after)
		}
	}
	set(0.4)
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 0).Record(cortex.Success)
	if p := e.Pressure(); p.Circuit != breaker.Closed {
		t.Fatal(p.Circuit)
	}
	set(0.9)
	admit(t, e, 9).Release()
	if p := e.Pressure(); p.Circuit != breaker.Open {
		t.Errorf("%v after a critical call found evidence of %v", p.Circuit, p.Evidence)
	}
}
