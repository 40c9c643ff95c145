package cortex_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
)

// failed is an attempt that a retry can mend.
func failed(o cortex.Outcome, p cortex.Priority) cortex.Failure {
	return cortex.Failure{Class: cortex.Class{Outcome: o, Retryable: true}, Priority: p}
}

// The adaptive profile has the same checks and reasons; floor, price and shedding come from the law, and the circuit is tripped on
// the evidence, only while closed and armed, by a call that reaches check 3.
func TestAdaptiveDecisions(t *testing.T) {
	type sit = cortex.Situation
	for _, c := range []struct {
		name   string
		change func(*sit)
		checks string
		reason cortex.Reason
		hi     time.Duration
	}{
		{"calm", func(*sit) {}, "PPPPP", cortex.ReasonNone, 500 * ms},
		{"not retryable", func(s *sit) { s.Retryable = false }, "R----", cortex.ReasonNotRetryable, 0},
		{"no more retries", func(s *sit) { s.Attempt = 3 }, "PR---", cortex.ReasonMaxRetries, 0},
		{"open", func(s *sit) { s.Circuit = breaker.Open; s.Priority = 10 }, "PPR--", cortex.ReasonCircuitOpen, 0},
		{"all signals 1, armed", func(s *sit) { s.Signals = full }, "PPR--", cortex.ReasonCircuitEmergency, 0},
		{"all signals 1, armed, critical", func(s *sit) { s.Signals, s.Priority = full, 9 }, "PPPPP", cortex.ReasonNone, 4500 * ms},
		{"all signals 1, not armed", func(s *sit) { s.Signals, s.Armed = full, false }, "PPPPP", cortex.ReasonNone, 4500 * ms},
		{"all signals 1, half-open", func(s *sit) { s.Signals, s.Circuit = full, breaker.HalfOpen }, "PPPPP", cortex.ReasonNone, 5 * time.Second},
		{"shed whole", func(s *sit) { s.RefuseProbability = 1 }, "PPPR-", cortex.ReasonShed, 0},
		{"shed by lot: out", func(s *sit) { s.RefuseProbability = 0.51 }, "PPPR-", cortex.ReasonShed, 0},
		{"shed by lot: in", func(s *sit) { s.RefuseProbability = 0.5 }, "PPPPP", cortex.ReasonNone, 500 * ms},
		{"a score without shedding sheds nobody", func(s *sit) { s.Signals.F, s.Priority = 1, 0 }, "PPPPP", cortex.ReasonNone, 2 * time.Second},
		{"cheap", func(s *sit) { s.Tokens, s.Price = 0.02, 0.02 }, "PPPPP", cortex.ReasonNone, 500 * ms},
		{"too dear", func(s *sit) { s.Tokens, s.Price = 0.5, 1 }, "PPPR-", cortex.ReasonBudget, 0},
		// What the retry itself needs is kept free.
		{"cut to what fits", func(s *sit) { s.Remaining, s.Cost = 300*ms, 100*ms }, "PPPPP", cortex.ReasonNone, 200 * ms},
		{"no time to finish", func(s *sit) { s.Remaining, s.Cost = 100*ms, 100*ms }, "PPPPR", cortex.ReasonDeadline, 0},
		{"hint and time to finish", func(s *sit) { s.RetryAfter, s.Remaining, s.Cost = 250*ms, 300*ms, 100*ms }, "PPPPR", cortex.ReasonDeadline, 250 * ms},
	} {
		in := sit{Armed: true, Priority: 5, MaxRetries: 3, Retryable: true, Tokens: 10, Price: 1, Backoff: backoff.Config{Base: 500 * ms, Max: 30 * time.Second}}
		c.change(&in)
		d := in.Decide(func() float64 { return 0.5 })
		if signs(d.Checks) != c.checks || d.Reason != c.reason || d.Retry != (c.reason == cortex.ReasonNone) || d.DelayMax != c.hi {
			t.Errorf("%s: %s, %q, delay from %v to %v; want %s, %q, %v", c.name, signs(d.Checks), d.Reason, d.DelayMin, d.DelayMax, c.checks, c.reason, c.hi)
		}
		if d.Retry && (d.Delay < d.DelayMin || d.Delay > d.DelayMax) {
			t.Errorf("%s: a delay of %v from %v to %v", c.name, d.Delay, d.DelayMin, d.DelayMax)
		}
	}
}

var full = cortex.Signals{F: 1, L: 1, Q: 1, B: 1}

// A zero Situation is decided on, not crashed on: it is what a library user starts from.
func TestZeroSituation(t *testing.T) {
	for _, p := range []cortex.Profile{cortex.Adaptive, cortex.Article, 99} {
		if d := (cortex.Situation{Profile: p}).Decide(func() float64 { return 0 }); d.Reason != cortex.ReasonNotRetryable {
			t.Errorf("%v: %+v", p, d)
		}
		d := cortex.Situation{Profile: p, Retryable: true, MaxRetries: 1, Weights: cortex.Weights{C: 1}, Levels: -3, Priority: math.MinInt,
			Circuit: 77, Attempt: math.MinInt, Previous: -1, RetryAfter: -1}.Decide(func() float64 { return 0 })
		if d.Delay < 0 || d.CPS < 0 || d.CPS > 1 {
			t.Errorf("%v: %+v", p, d)
		}
	}
}

// The budget is charged once for a decided retry, not for a refused one, and a refund gives it back.
func TestDecideChargesAndRefunds(t *testing.T) {
	e, _ := virtual(t, cortex.Config{Profile: cortex.Article, Budget: budget.Config{MinPerSecond: -1}})
	tokens := func() float64 { return e.Pressure().Tokens }
	d := e.Decide(failed(cortex.Failed, 5))
	if d.Floor != e.Pressure().Floor || d.CPS != e.Pressure().CPS {
		t.Errorf("floor %d and cps %v, %+v", d.Floor, d.CPS, e.Pressure())
	}
	if !d.Retry || tokens() != 9 {
		t.Fatalf("%+v, then %v tokens", d, tokens())
	}
	e.Refund(d)
	if tokens() != 10 {
		t.Errorf("%v tokens after the refund", tokens())
	}
	no := e.Decide(cortex.Failure{Err: cortex.Permanent(errBoom)})
	e.Refund(no)
	if no.Retry || tokens() != 10 {
		t.Errorf("%+v, then %v tokens", no, tokens())
	}
	if s := e.Stats(); s.Retries != 1 || s.Rejected(cortex.ReasonNotRetryable) != 1 {
		t.Errorf("%+v", s)
	}
	if n := e.Stats().Rejected(200); n != 0 {
		t.Error(n)
	}
}

func TestDecideHeedsTheCallsOwnLimits(t *testing.T) {
	e, _ := virtual(t, cortex.Config{MaxRetries: 2})
	if d := e.Decide(failed(cortex.Failed, 0)); d.Floor != 0 {
		t.Errorf("floor %d at rest", d.Floor)
	}
	for _, c := range []struct {
		f    cortex.Failure
		want cortex.Reason
	}{
		{cortex.Failure{Attempt: 1}, cortex.ReasonNone}, {cortex.Failure{Attempt: 2}, cortex.ReasonMaxRetries},
		{cortex.Failure{Attempt: 4, MaxRetries: 5}, cortex.ReasonNone}, {cortex.Failure{Attempt: 1, MaxRetries: 1}, cortex.ReasonMaxRetries},
		{cortex.Failure{NoRetries: true, MaxRetries: 5}, cortex.ReasonMaxRetries}, {cortex.Failure{MaxRetries: -1, Attempt: 2}, cortex.ReasonMaxRetries},
		{cortex.Failure{Attempt: -7}, cortex.ReasonNone}, {cortex.Failure{RetriedAbove: true}, cortex.ReasonRetriedAbove},
		{cortex.Failure{DoNotRetry: true}, cortex.ReasonDoNotRetry}, {cortex.Failure{Deadline: -1}, cortex.ReasonDeadline},
		{cortex.Failure{Deadline: math.MinInt64}, cortex.ReasonDeadline}, {cortex.Failure{Priority: math.MaxInt}, cortex.ReasonNone},
		{cortex.Failure{Priority: math.MinInt}, cortex.ReasonNone},
	} {
		c.f.Err = errBoom
		if d := e.Decide(c.f); d.Reason != c.want || d.Retry != (c.want == cortex.ReasonNone) {
			t.Errorf("%+v: %q, want %q", c.f, d.Reason, c.want)
		}
	}
	if d := e.Decide(cortex.Failure{}); d.Reason != cortex.ReasonNotRetryable {
		t.Errorf("no error at all: %+v", d)
	}
}

// Classification of an error finds its class through any wrapping.
func TestClassify(t *testing.T) {
	hinted := cortex.Class{Outcome: cortex.Throttled, Retryable: true, RetryAfter: time.Second}
	for _, c := range []struct {
		err  error
		want cortex.Class
	}{
		{nil, cortex.Class{Outcome: cortex.Success}},
		{errBoom, cortex.Class{Outcome: cortex.Failed, Retryable: true}},
		{cortex.Permanent(errBoom), cortex.Class{}},
		{errors.Join(errors.New("a"), cortex.WithClass(errBoom, hinted)), hinted},
		{&cortex.Rejection{}, cortex.Class{}},
		{&cortex.CallError{Err: errBoom}, cortex.Class{Outcome: cortex.Failed, Retryable: true}},
		{&cortex.CallError{Err: errBoom, Refusal: &cortex.Rejection{}}, cortex.Class{}},
		{&cortex.CallError{Err: cortex.Permanent(errBoom)}, cortex.Class{}},
		{timeoutError(true), cortex.Class{Outcome: cortex.TimedOut, Retryable: true}},
		{timeoutError(false), cortex.Class{Outcome: cortex.Failed, Retryable: true}},
	} {
		if got := cortex.Classify(c.err); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.err, got, c.want)
		}
	}
	if cortex.WithClass(nil, hinted) != nil || cortex.Permanent(nil) != nil {
		t.Error("nil is an error now")
	}
	if err := cortex.Permanent(errBoom); !errors.Is(err, errBoom) || err.Error() != "boom" {
		t.Error(err)
	}
}

type timeoutError bool

func (e timeoutError) Error() string { return "i/o" }
func (e timeoutError) Timeout() bool { return bool(e) }

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

func TestCheckThreeActsOnlyWhenReached(t *testing.T) {
	for _, f := range []cortex.Failure{{RetriedAbove: true}, {DoNotRetry: true}} {
		e, clock := virtual(t, cortex.Config{})
		fill(t, e, 10)
		clock.advance(2 * time.Second)
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

func TestHintAloneIsNoClass(t *testing.T) {
	e, _ := virtual(t, cortex.Config{})
	d := e.Decide(cortex.Failure{Err: errors.New("boom"), Class: cortex.Class{RetryAfter: time.Second}})
	if !d.Retry || d.DelayMin != time.Second {
		t.Errorf("%+v", d)
	}
}

func TestDeadlineLongPast(t *testing.T) {
	d := cortex.Situation{Retryable: true, MaxRetries: 3, Tokens: 1, Remaining: math.MinInt64, Cost: time.Second}.Decide(func() float64 { return 0.5 })
	if d.Reason != cortex.ReasonDeadline {
		t.Errorf("%+v", d)
	}
}

// Service slower by queueing and 30 % errors at once: the retries of all priorities, at full price, left none for the few that matter most.
func TestLastTokensAreForCriticalCalls(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for i := range 20_000 { // 400 a second: a capacity of some 400 tokens, full
		p := admit(t, e, cortex.Priority(i%10))
		clock.advance(2500 * time.Microsecond)
		p.Record(cortex.Success)
	}
	full := e.Pressure().Tokens
	if full < 300 {
		t.Fatalf("%v tokens", full)
	}
	spend := func(p cortex.Priority) (d cortex.Decision) {
		for range 100_000 {
			if d = e.Decide(failed(cortex.Failed, p)); !d.Retry {
				break
			}
		}
		return d
	}
	if d := spend(5); d.Reason != cortex.ReasonBudget {
		t.Fatalf("%+v", d)
	}
	left := e.Pressure().Tokens
	if left < 0.15*full || left > 0.25*full {
		t.Errorf("%v of %v tokens are left by priority 5", left, full)
	}
	if d := spend(9); d.Reason != cortex.ReasonBudget || e.Pressure().Tokens > 1 {
		t.Errorf("priority 9 leaves %v: %+v", e.Pressure().Tokens, d)
	}
}
