package cortex_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// What the engine feeds the law with: the law by itself is tested in package limit.

// paced runs a healthy target one call at a time: so many a second, of that length each.
func paced(tb testing.TB, e *cortex.Engine, c *timeline, length, every, took time.Duration) {
	tb.Helper()
	for range length / every {
		p := admit(tb, e, 5)
		c.advance(took)
		p.Record(cortex.Success)
		c.advance(every - took)
	}
}

// Fast errors of whatever length are no queue and no part of the baseline.
func TestErrorsAreNoQueueOfTheEngine(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Timeout: timeout.Config{Min: time.Second, Bootstrap: time.Second, Max: time.Second}})
	for range 300 {
		a := admit(t, e, 5)
		b := admit(t, e, 5)
		clock.advance(20 * ms)
		a.Record(cortex.Success)
		clock.advance(80 * ms)
		if b.Record(cortex.Failed); e.Pressure().Circuit != breaker.Closed {
			t.Fatal("opened at one error of two")
		}
		clock.advance(ms)
	}
	if p := e.Pressure(); p.BaselineSojourn < 18*ms || p.BaselineSojourn > 22*ms {
		t.Errorf("baseline %v of 20 ms answers beside errors of 100 ms", p.BaselineSojourn)
	}
}

// A trip most of whose failures were timeouts halves the floor under the limit; one on fast errors does not. 50 a second of 20 ms:
// N0 = 1, floor 2 + 3 + 5 = 10, which is above what Little's law asks for.
func TestSlowTripHalvesTheFloor(t *testing.T) {
	for o, want := range map[cortex.Outcome]float64{cortex.Failed: 10, cortex.TimedOut: 5} {
		e, clock := virtual(t, cortex.Config{Limit: limit.Config{Off: limit.SlowStart},
			Timeout: timeout.Config{Min: 60 * ms, Bootstrap: 60 * ms, Max: 60 * ms}})
		paced(t, e, clock, 20*time.Second, 20*ms, 19*ms)
		if p := e.Pressure(); math.Abs(p.Limit-10) > 0.5 {
			t.Fatalf("limit %v before the fault", p.Limit)
		}
		for range 64 {
			if p, err := e.Admit(bg, 9); err == nil {
				clock.advance(ms)
				p.Record(o)
			}
		}
		clock.advance(ms)
		if p := e.Pressure(); p.Circuit != breaker.Open || math.Abs(p.Limit-want) > 0.5 {
			t.Errorf("%v: %v, limit %v, want %v", o, p.Circuit, p.Limit, want)
		}
	}
}

// How much time callers have is learned from their contexts: it bounds the queue that the limit allows.
func TestCallersDeadlinesBoundTheQueue(t *testing.T) {
	limitFor := func(left time.Duration, c cortex.Config) float64 {
		e, clock := virtual(t, c)
		ctx := context.Background()
		if left > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, left)
			defer cancel()
		}
		for range 1000 {
			p, err := e.Admit(ctx, 5)
			if err != nil {
				t.Fatal(err)
			}
			clock.advance(10 * ms)
			p.Record(cortex.Success)
		}
		return e.Pressure().Limit
	}
	c := cortex.Config{Timeout: timeout.Config{Min: 10 * time.Second, Bootstrap: 10 * time.Second, Max: 10 * time.Second}}
	long, short := limitFor(0, c), limitFor(5*time.Second, c)
	c.Deadline = 5 * time.Second
	own := limitFor(0, c)
	if short > 0.6*long || short < 0.4*long || math.Abs(own-short) > 0.1*short {
		t.Errorf("limit %v without deadlines, %v with 5 s, %v with Config.Deadline of 5 s", long, short, own)
	}
}

// A probe holds its slot for min(T, max(0.1 s, B99)).
func TestProbeLease(t *testing.T) {
	for _, c := range []struct {
		name   string
		config cortex.Config
		warm   time.Duration // of each answer; 0: cold
		want   time.Duration
	}{
		{"cold", cortex.Config{}, 0, 100 * ms},
		{"timeout below", cortex.Config{Timeout: timeout.Config{Min: 40 * ms, Bootstrap: 40 * ms, Max: 40 * ms}}, 0, 40 * ms},
		{"slow target", cortex.Config{Timeout: timeout.Config{Min: time.Second, Bootstrap: time.Second, Max: time.Second}}, 300 * ms, 300 * ms},
		{"no timeout", cortex.Config{DisableTimeout: true}, 0, 100 * ms},
	} {
		e, clock := virtual(t, c.config)
		if c.warm > 0 {
			paced(t, e, clock, 60*time.Second, c.warm, c.warm)
		}
		for range 64 {
			if p, err := e.Admit(bg, 9); err == nil {
				clock.advance(ms)
				p.Record(cortex.Failed)
			}
		}
		clock.advance(e.Pressure().NextProbe)
		admit(t, e, 9)
		held := time.Duration(0)
		for e.Pressure().Circuit == breaker.HalfOpen && held < time.Minute {
			clock.advance(ms)
			held += ms
		}
		if held < c.want-c.want/8 || held > c.want+c.want/8+2*ms {
			t.Errorf("%s: the slot was held for %v, want %v", c.name, held, c.want)
		}
	}
}

// The numbers of a refusal are at most 100 ms old, though it is shared.
func TestRefusalsAreFresh(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		c.Breaker.OpenFor = time.Minute
		e, clock, _ := opened(t, c)
		last := time.Duration(math.MaxInt64)
		for range 50 {
			r := refusal(t, e, 5)
			if left := e.Pressure().NextProbe; r.RetryAfter < left || r.RetryAfter > left+100*ms {
				t.Fatalf("try again in %v, the next probe is due in %v", r.RetryAfter, left)
			}
			if r.RetryAfter > last {
				t.Fatalf("try again in %v, after %v", r.RetryAfter, last)
			}
			last = r.RetryAfter
			clock.advance(70 * ms)
		}
	})
}

// No traffic, no pressure: the score decays with time and not only with the next call. Looking at it is enough, and not needed.
func TestPressureFadesInSilence(t *testing.T) {
	for _, look := range []bool{true, false} {
		e, clock := virtual(t, cortex.Config{Limit: limit.Config{Off: limit.Circuit}})
		warm(t, e, clock, 3*time.Second)
		for range 100 {
			p, err := e.Admit(bg, 9)
			clock.advance(10 * ms)
			if err == nil {
				p.Record(cortex.TimedOut)
				e.Decide(failed(cortex.TimedOut, 9))
			}
		}
		hot := e.Pressure()
		if hot.Signals.F < 0.5 || hot.Signals.B < 0.3 || hot.State == cortex.Healthy {
			t.Fatalf("%+v", hot)
		}
		for range 65 {
			clock.advance(time.Second)
			if !look {
				continue
			}
			// It need not fall at every step: the window that still holds enough may be a longer one.
			if p := e.Pressure(); p.CPS > hot.CPS+0.01 {
				t.Fatalf("cps rises from %v to %v in silence", hot.CPS, p.CPS)
			}
		}
		if p := e.Pressure(); p.CPS != 0 || p.Samples != 0 || p.Shed != 0 || p.State != cortex.Healthy {
			t.Errorf("looked at %v: %+v", look, p)
		}
	}
}

// Re-armed below 0.50: the evidence that tripped once must have gone before it trips again. It matters where a generation does not
// start with fresh evidence.
func TestEvidenceTripIsArmedAgainBelowOneHalf(t *testing.T) {
	fill := 0.9
	e, clock := virtual(t, cortex.Config{Weights: cortex.Weights{Q: 0.8, C: 0.2}, Limit: limit.Config{Off: limit.Integral | limit.GenerationReset},
		Queue: func() (float64, float64) { return fill, 1 }})
	open := func() bool { return e.Pressure().Circuit != breaker.Closed }
	step := func(f float64) {
		fill = f
		clock.advance(20 * ms)
		e.Pressure()
		if p, err := e.Admit(bg, 9); err == nil {
			p.Release()
		}
	}
	step(0.9)
	if !open() {
		t.Fatal("not tripped")
	}
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 9).Record(cortex.Success)
	if open() {
		t.Fatal("not closed")
	}
	for _, c := range []struct {
		fill float64
		trip bool
	}{{0.9, false}, {0.6, false}, {1, false}, {0.5, false}, {0.95, false}, {0.49, false}, {0.95, true}} {
		step(c.fill)
		if open() != c.trip {
			t.Fatalf("at a fill of %v: open %v", c.fill, open())
		}
	}
}

// The law reckons with more than the usual timeout, for what waits in a queue is given more time, but not with all of the extended
// one; and with a second where attempts are not cut. 500 a second of 20 ms: limit = 2·500·τ*, τ* = W0 + 0.35·(Te − B99).
func TestTimeoutOfTheLaw(t *testing.T) {
	for name, c := range map[string]cortex.Config{"adaptive": {}, "disabled": {DisableTimeout: true}} {
		e, clock := virtual(t, c)
		warm(t, e, clock, 30*time.Second)
		p := e.Pressure()
		limitAt := func(te time.Duration) float64 {
			return 2 * 500 * (p.BaselineSojourn + (te-p.BaselineP99)*35/100).Seconds()
		}
		least, most := 1.1*limitAt(p.Timeout), limitAt(4*p.Timeout)
		if c.DisableTimeout {
			least, most = 0.9*limitAt(time.Second), 1.1*limitAt(time.Second)
		}
		if p.Limit < least || p.Limit > most || math.Abs(p.Capacity-500) > 25 {
			t.Errorf("%s: limit %v, want %v to %v: %+v", name, p.Limit, least, most, p)
		}
		// The bucket holds up to one second's worth of the capacity: 10 at the start and a tenth of 15,000 successes.
		if p.Tokens < 450 || p.Tokens > 525 {
			t.Errorf("%s: %v tokens", name, p.Tokens)
		}
	}
}

// The baseline is not learned while the score is 0.30 or more, nor while the circuit is not closed.
func TestEngineLearnsNothingInTrouble(t *testing.T) {
	for _, trouble := range []bool{false, true} {
		e, clock := virtual(t, cortex.Config{Weights: cortex.Weights{F: 0.8, C: 0.2}, Limit: limit.Config{Off: limit.Circuit},
			Timeout: timeout.Config{Min: time.Second, Bootstrap: time.Second, Max: time.Second}})
		paced(t, e, clock, 60*time.Second, 20*ms, 20*ms)
		before := e.Pressure().BaselineSojourn
		for range 1000 {
			p := admit(t, e, 9)
			clock.advance(30 * ms)
			p.Record(cortex.Success)
			if trouble { // every second call fails at once: F = 0.5, cps = 0.4
				admit(t, e, 9).Record(cortex.Failed)
			}
		}
		after := e.Pressure().BaselineSojourn
		if moved := after > before+before/50; moved == trouble {
			t.Errorf("trouble %v: the baseline went from %v to %v", trouble, before, after)
		}
	}
	e, clock := virtual(t, cortex.Config{})
	warm(t, e, clock, 10*time.Second)
	before := e.Pressure().BaselineInFlight
	for range 64 {
		if p, err := e.Admit(bg, 9); err == nil {
			clock.advance(ms)
			p.Record(cortex.Failed)
		}
	}
	for range 1200 { // two minutes of outage: in the second one nothing but the circuit's own state speaks
		clock.advance(100 * ms)
		if p, err := e.Admit(bg, 9); err == nil {
			p.Record(cortex.Failed)
		}
	}
	if p := e.Pressure(); p.Circuit != breaker.Open || p.CPS >= 0.3 || p.BaselineInFlight < 0.95*before {
		t.Errorf("%v in flight when healthy before the outage, %v after: %+v", before, p.BaselineInFlight, p)
	}
}

func TestOldOutcomesAreNotFreshEvidence(t *testing.T) {
	for _, profile := range []cortex.Profile{cortex.Adaptive, cortex.Article} {
		for _, o := range []cortex.Outcome{cortex.Failed, cortex.TimedOut} {
			e, clock := virtual(t, cortex.Config{Profile: profile, Breaker: breaker.Config{Threshold: 0.999}, Limit: limit.Config{Off: limit.Circuit}})
			var flight []*cortex.Permit
			for range 19 {
				flight = append(flight, admit(t, e, 5))
			}
			clock.advance(100 * ms)
			for _, p := range flight {
				p.Record(o)
			}
			clock.advance(time.Hour) // nobody calls
			if p := e.Pressure(); p.CPS != 0 || p.Signals.F != 0 {
				t.Errorf("%v, %v: an hour after the last failure F = %v, L = %v, cps %v", profile, o, p.Signals.F, p.Signals.L, p.CPS)
			}
		}
	}
}

func TestOldSuccessesDoNotDiluteFreshFailures(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	var flight []*cortex.Permit
	for range 19 {
		flight = append(flight, admit(t, e, 5))
	}
	clock.advance(100 * ms)
	for _, p := range flight {
		p.Record(cortex.Success)
	}
	clock.advance(time.Hour)
	attempts(t, e, clock, 10, 10*ms, cortex.Failed)
	if f := e.Pressure().Signals.F; f != 1 {
		t.Errorf("ten failures of ten in the last hour, and F = %v", f)
	}
}

// A guard at the target's door stayed shut after a hang of 5 s: the ramp began at two in flight, and the attempts that hung, whose clients
// had gone, were more than that until the last of them returned.
func TestAbandonedAttemptsDoNotTakeTheRampsRoom(t *testing.T) {
	e, clock := virtual(t, cortex.Config{DisableTimeout: true})
	attempts(t, e, clock, 3000, 5*ms, cortex.Success)
	var hang []*cortex.Permit
	for range 12 {
		p := admit(t, e, 9)
		clock.advance(ms)
		hang = append(hang, p)
	}
	clock.advance(time.Second)
	for _, p := range hang {
		p.Abandoned(context.DeadlineExceeded)
	}
	for range 100 {
		if p, err := e.Admit(bg, 9); err == nil {
			clock.advance(ms)
			p.Record(cortex.Failed)
		}
	}
	if p := e.Pressure(); p.Circuit == breaker.Closed {
		t.Fatalf("%+v", p)
	}
	for e.Pressure().Circuit != breaker.Closed {
		clock.advance(100 * ms)
		if p, err := e.Admit(bg, 9); err == nil {
			p.Record(cortex.Success)
		}
	}
	p := e.Pressure()
	if p.InFlight != len(hang) || p.Limit < float64(p.InFlight) {
		t.Errorf("%d in flight, limit %v", p.InFlight, p.Limit)
	}
	if q, err := e.Admit(bg, 9); err != nil {
		t.Errorf("shut: %v", err)
	} else {
		q.Release()
	}
	for _, p := range hang {
		p.Release()
	}
	if p := e.Pressure(); p.InFlight != 0 {
		t.Errorf("%d in flight at the end", p.InFlight)
	}
}
