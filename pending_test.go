package cortex_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/limit"
)

// B1
func TestRefusalsBetweenHungProbesDoNotAllocate(t *testing.T) {
	var changes []cortex.StateChange
	e, clock := virtual(t, cortex.Config{OnStateChange: func(s cortex.StateChange) { changes = append(changes, s) }})
	attempts(t, e, clock, 43, 5*ms, cortex.Failed)
	refusal(t, e, 5)
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 5) // never returns
	for e.Pressure().Circuit == breaker.HalfOpen {
		clock.advance(10 * ms)
	}
	if n := testing.AllocsPerRun(100, func() { e.Admit(nil, 5) }); n > 0 {
		t.Errorf("%v allocations a refusal", n)
	}
	if n := len(changes); n == 0 || changes[n-1].To != breaker.Open {
		t.Errorf("the circuit is open, the last change told is %+v", changes)
	}
}

// B2
func TestArticleAnnouncesHalfOpen(t *testing.T) {
	var seen []breaker.State
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, OnStateChange: func(s cortex.StateChange) { seen = append(seen, s.To) }})
	attempts(t, e, clock, 1, ms, cortex.Failed)
	clock.advance(120 * time.Second)
	p := admit(t, e, 10)
	n := testing.AllocsPerRun(100, func() { e.Admit(nil, 10) })
	if n > 0 {
		t.Errorf("%v allocations a refusal while half-open", n)
	}
	p.Record(cortex.Success)
	if len(seen) != 3 || seen[1] != breaker.HalfOpen {
		t.Errorf("states told: %v", seen)
	}
}

// B3
func TestClockSetBackDoesNotFreezeTheEngine(t *testing.T) {
	for _, profile := range []cortex.Profile{cortex.Adaptive, cortex.Article} {
		for _, jump := range []time.Duration{-8 * time.Hour, 8 * time.Hour} {
			e, clock := virtual(t, cortex.Config{Profile: profile})
			clock.advance(time.Hour)
			attempts(t, e, clock, map[cortex.Profile]int{cortex.Adaptive: 43, cortex.Article: 1}[profile], ms/2, cortex.Failed)
			refusal(t, e, 5)
			clock.advance(5 * ms)
			refusal(t, e, 5)
			clock.advance(jump)
			var p cortex.Permit
			err := errors.New("not asked")
			for range 100 {
				if p, err = e.Admit(nil, 10); err == nil {
					break
				}
				clock.advance(time.Second)
			}
			if err != nil {
				t.Errorf("%v, clock moved by %v: still refused 100 s later: %v", profile, jump, err)
				continue
			}
			if !p.Record(cortex.Success) {
				t.Error("the probe did not count")
			}
			if s := e.Pressure().Circuit; s != breaker.Closed {
				t.Errorf("%v", s)
			}
			clock.advance(100 * time.Second)
			if f := e.Pressure().Signals.F; f != 0 {
				t.Errorf("%v, clock moved by %v: F = %v after 100 s without traffic", profile, jump, f)
			}
		}
	}
}

// B4
func TestStatsAreAsOfNow(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	e.Pressure()
	clock.advance(10 * ms)
	e.Pressure() // the tick
	for range 5 {
		admit(t, e, 5).Record(cortex.Success)
	}
	if s := e.Stats(); s.Calls != 5 || s.Attempts != 5 || s.Successes != 5 {
		t.Errorf("%+v", s)
	}
}

// B5
func TestStatsAreASnapshot(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	attempts(t, e, clock, 43, ms, cortex.Failed)
	before := e.Stats()
	refusal(t, e, 5)
	if n := before.Rejected(cortex.ReasonCircuitOpen); n != 0 {
		t.Errorf("stats taken before the refusal count %d", n)
	}
}

// B6
func TestNothingButThrottledAnswersShed(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	shed := 0.0
	for range 1000 {
		if p, err := e.Admit(nil, 5); err == nil {
			clock.advance(5 * ms)
			p.Record(cortex.Throttled)
		} else {
			clock.advance(5 * ms)
		}
		shed = max(shed, e.Pressure().Shed)
	}
	if shed == 0 {
		t.Error("every answer for 5 s was a 429 and nothing was ever shed")
	}
}

// B7
func TestPanickingGaugeIsNoReading(t *testing.T) {
	broken := false
	e, clock := virtual(t, cortex.Config{Queue: func() (float64, float64) {
		if broken {
			panic("pool closed")
		}
		return 10, 10
	}})
	warm2(t, e, clock)
	if q := e.Pressure().Signals.Q; q != 1 {
		t.Fatal(q)
	}
	broken = true
	clock.advance(20 * ms)
	e.Pressure()
	clock.advance(20 * ms)
	if q := e.Pressure().Signals.Q; q != 0 {
		t.Errorf("Q stays at %v of a gauge that panics", q)
	}
}

func warm2(t *testing.T, e *cortex.Engine, c *timeline) {
	for range 10 {
		e.Pressure()
		c.advance(20 * ms)
	}
}

// B8
func TestEvidenceOfCircuitOnlyWeights(t *testing.T) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
	}()
	cortex.Weights{C: 1}.Evidence(cortex.Signals{F: 1})
	cortex.Situation{Weights: cortex.Weights{C: 1}, Retryable: true, MaxRetries: 3}.Decide(func() float64 { return 0 })
}

// B9
func TestNegativeTimeoutLeavesAttemptsUncut(t *testing.T) {
	e := mustNew(t, cortex.Config{})
	for _, d := range []time.Duration{0, -1, -time.Second} {
		cortex.Do(t.Context(), e, func(ctx context.Context) (int, error) {
			if _, ok := ctx.Deadline(); ok {
				t.Errorf("WithTimeout(%v) cut the attempt", d)
			}
			return 0, nil
		}, cortex.WithTimeout(d))
	}
}

// B10
func TestTenSuccessesPayForARetry(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, Budget: budget.Config{Capacity: 1, MinPerSecond: -1}})
	fail := cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 10}
	if d := e.Decide(fail); !d.Retry {
		t.Fatal(d.Reason)
	}
	for range 10 {
		attempts(t, e, clock, 1, 5*ms, cortex.Success)
		e.Pressure()
	}
	clock.advance(5 * ms)
	if d := e.Decide(fail); !d.Retry {
		t.Errorf("%v: %v tokens after 10 successes at 0.1", d.Reason, d.Tokens)
	}
}

// B11
func TestCheckThreeActsOnlyWhenReached(t *testing.T) {
	for _, f := range []cortex.Failure{{RetriedAbove: true}, {DoNotRetry: true}} {
		e, clock := virtual(t, cortex.Config{})
		for range 20 {
			admit(t, e, 10)
		}
		clock.advance(1200 * ms)
		f.Class = cortex.Class{Outcome: cortex.TimedOut, Retryable: true}
		if p := e.Pressure(); p.Evidence < 0.8 {
			t.Fatalf("evidence %v", p.Evidence)
		}
		d := e.Decide(f)
		if c := e.Pressure().Circuit; c != breaker.Closed {
			t.Errorf("%v: check 3 was %v, and the circuit is %v", d.Reason, d.Checks[2], c)
		}
	}
}

// B12
func TestRetryRefusedAtAdmissionIsRefunded(t *testing.T) {
	e := mustNew(t, cortex.Config{Budget: budget.Config{MinPerSecond: -1}})
	before := e.Pressure().Tokens
	boom := errors.New("boom")
	_, err := cortex.Do(t.Context(), e, func(context.Context) (int, error) {
		for range 43 { // others fail meanwhile; the circuit opens as this one waits
			if p, err := e.Admit(nil, 5); err == nil {
				p.Record(cortex.Failed)
			}
		}
		return 0, boom
	})
	if !errors.Is(err, cortex.ErrOpen) || !errors.Is(err, boom) {
		t.Fatal(err)
	}
	if after := e.Pressure().Tokens; math.Abs(after-before) > 1e-9 {
		t.Errorf("%v tokens before, %v after a retry that was never sent", before, after)
	}
}

// B13
func TestCallerThatGivesUpFindsItsOwnReason(t *testing.T) {
	e := mustNew(t, cortex.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	boom := errors.New("boom")
	_, err := cortex.Do(ctx, e, func(context.Context) (int, error) {
		cancel()
		return 0, boom
	})
	if !errors.Is(err, boom) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v: is the operation's error %v, is the caller's %v", err, errors.Is(err, boom), errors.Is(err, context.Canceled))
	}
}

// B14
func TestFullRegistryDoesNotBuildEnginesToThrowAway(t *testing.T) {
	built := 0
	r := cortex.NewRegistry(func(string) cortex.Config { built++; return cortex.Config{} }, 2)
	for _, n := range []string{"a", "b"} {
		e, _ := r.Engine(n)
		admit(t, e, 5)
	}
	e, _ := r.Engine("c")
	if e.Name() == "c" {
		t.Error("the engine that all further targets share bears the name of the first of them")
	}
	n := built
	for range 1000 {
		r.Engine("c")
	}
	if built-n > 10 {
		t.Errorf("%d engines built for 1000 calls to one target without room", built-n)
	}
}

// B16
func TestSwitchedOffCircuitRefusesNoRetry(t *testing.T) {
	full := func() (float64, float64) { return 0.7, 1 }
	e, clock := virtual(t, cortex.Config{Queue: full, Limit: limit.Config{Off: limit.Circuit}})
	for range 18 {
		admit(t, e, 5)
	}
	clock.advance(1200 * ms)
	if p := e.Pressure(); p.Evidence < 0.7 {
		t.Fatalf("evidence %v", p.Evidence)
	}
	for range 2 {
		admit(t, e, 5)
	}
	d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.TimedOut, Retryable: true}, Priority: 5})
	t.Log(d)
	if d.Reason == cortex.ReasonCircuitEmergency {
		t.Error(d.Reason)
	}
}

// B19
func TestHintAloneIsNoClass(t *testing.T) {
	e, _ := virtual(t, cortex.Config{})
	d := e.Decide(cortex.Failure{Err: errors.New("boom"), Class: cortex.Class{RetryAfter: time.Second}})
	if !d.Retry || d.DelayMin != time.Second {
		t.Errorf("%+v", d)
	}
}

// B22
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

// B23
func TestSlowTimeoutsOpenTheCircuit(t *testing.T) {
	for _, every := range []time.Duration{500 * ms, 1100 * ms, 1500 * ms, 2 * time.Second, 3 * time.Second, 5 * time.Second} {
		e, clock := virtual(t, cortex.Config{})
		n := 0
		for e.Pressure().Circuit == breaker.Closed && n < 100 {
			n++
			attempts(t, e, clock, 1, every, cortex.TimedOut)
		}
		if n == 100 {
			t.Errorf("still closed after %d timeouts in a row, one every %v", n, every)
		}
	}
}

// B21
// A decision on numbers that are none still has numbers in it: JSON has no NaN.
func TestDecisionOnNonsenseIsStillJSON(t *testing.T) {
	nan := math.NaN()
	d := cortex.Situation{Profile: cortex.Article, Signals: cortex.Signals{F: nan, L: math.Inf(1), Q: -3, B: 17}, Priority: 5, MaxRetries: 3,
		Retryable: true, Tokens: 10, Price: 1}.Decide(func() float64 { return 0 })
	if _, err := json.Marshal(d.Signals); err != nil {
		t.Error(err)
	}
	if !d.Retry || d.CPS != 0.15 {
		t.Errorf("%+v", d)
	}
	for _, s := range []cortex.Situation{{Tokens: nan, Price: 1}, {Tokens: 1, Price: nan}} {
		s.Retryable, s.MaxRetries = true, 3
		if d := s.Decide(func() float64 { return 0 }); d.Reason != cortex.ReasonBudget {
			t.Errorf("tokens %v at a price of %v: %v", s.Tokens, s.Price, d.Reason)
		}
	}
}
