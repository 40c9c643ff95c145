package cortex_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
)

// signs are what the checks said, in their order: P passed, R refused, - not reached.
func signs(checks [5]cortex.CheckResult) string {
	var b strings.Builder
	for _, c := range checks {
		b.WriteByte("-PR"[c])
	}
	return b.String()
}

// The laws of DESIGN 3 to the letter. Every number on the right was worked out by hand with the weights 0.30, 0.20, 0.15, 0.15
// and 0.20: none is computed by the code under test. A row starts from priority 5, attempt 0 of at most 3 retries, 10 tokens,
// no deadline, base 500 ms, maximum 30 s, a draw of one half; change says what is different.
func TestArticleDecisionsWorkedOutByHand(t *testing.T) {
	const (
		closed = breaker.Closed
		half   = breaker.HalfOpen
		open   = breaker.Open
		never  = time.Duration(0)
		s      = time.Second
	)
	type sit = cortex.Situation
	prio := func(p cortex.Priority) func(*sit) { return func(s *sit) { s.Priority = p } }
	at := func(attempt, limit int) func(*sit) {
		return func(s *sit) { s.Attempt, s.MaxRetries = attempt, limit }
	}
	tier := func(p cortex.Priority) func(*sit) { return func(s *sit) { s.Priority, s.Levels = p, 5 } }
	tokens := func(n float64) func(*sit) { return func(s *sit) { s.Tokens = n } }
	left := func(d time.Duration) func(*sit) { return func(s *sit) { s.Remaining = d } }
	hint := func(d, left time.Duration) func(*sit) {
		return func(s *sit) { s.RetryAfter, s.Remaining = d, left }
	}
	same := func(*sit) {}
	for _, c := range []struct {
		name       string
		f, l, q, b float64
		circuit    breaker.State
		change     func(*sit)

		cps, evidence float64
		floor         cortex.Priority
		state         cortex.State
		checks        string
		reason        string
		lo, hi        time.Duration // of the delay, where check 5 was reached
	}{
		// Nothing is wrong: 500 ms × 2^attempt × (1 + 0).
		{"healthy, original", 0, 0, 0, 0, closed, same, 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 500 * ms},
		{"healthy, first retry failed", 0, 0, 0, 0, closed, at(1, 3), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 1 * s},
		{"healthy, second retry failed", 0, 0, 0, 0, closed, at(2, 3), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 2 * s},
		{"healthy, lowest priority", 0, 0, 0, 0, closed, prio(0), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 500 * ms},

		// Check 1.
		{"not retryable", 0, 0, 0, 0, closed, func(s *sit) { s.Retryable = false }, 0, 0, 0, cortex.Healthy, "R----", "NOT_RETRYABLE", 0, 0},
		{"not retryable, though everything else refuses too", 1, 1, 1, 1, open,
			func(s *sit) { s.Retryable, s.Attempt, s.Tokens, s.Remaining = false, 9, 0, -1 },
			1, 1, 10, cortex.Emergency, "R----", "NOT_RETRYABLE", 0, 0},
		{"the server said not to", 0, 0, 0, 0, closed, func(s *sit) { s.DoNotRetry = true }, 0, 0, 0, cortex.Healthy, "R----", "DO_NOT_RETRY", 0, 0},
		{"a layer above retries", 0, 0, 0, 0, closed, func(s *sit) { s.RetriedAbove = true }, 0, 0, 0, cortex.Healthy, "R----", "RETRIED_ABOVE", 0, 0},

		// Check 2: attempt >= max_retries.
		{"attempt 3 of 3", 0, 0, 0, 0, closed, at(3, 3), 0, 0, 0, cortex.Healthy, "PR---", "MAX_RETRIES_EXCEEDED", 0, 0},
		{"attempt 4 of 3", 0, 0, 0, 0, closed, at(4, 3), 0, 0, 0, cortex.Healthy, "PR---", "MAX_RETRIES_EXCEEDED", 0, 0},
		{"no retries", 0, 0, 0, 0, closed, at(0, 0), 0, 0, 0, cortex.Healthy, "PR---", "MAX_RETRIES_EXCEEDED", 0, 0},
		{"one retry", 0, 0, 0, 0, closed, at(0, 1), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 500 * ms},
		{"check 2 comes before check 3", 0, 0, 0, 0, open, at(3, 3), .2, 0, 2, cortex.Healthy, "PR---", "MAX_RETRIES_EXCEEDED", 0, 0},

		// The state of the circuit alone: 0.20 × C.
		{"open", 0, 0, 0, 0, open, same, .2, 0, 2, cortex.Healthy, "PPR--", "CIRCUIT_OPEN", 0, 0},
		{"open, critical 9", 0, 0, 0, 0, open, prio(9), .2, 0, 2, cortex.Healthy, "PPR--", "CIRCUIT_OPEN", 0, 0},
		{"open, critical 10, all signals 1", 1, 1, 1, 1, open, prio(10), 1, 1, 10, cortex.Emergency, "PPR--", "CIRCUIT_OPEN", 0, 0},
		{"half-open, priority 0", 0, 0, 0, 0, half, prio(0), .1, 0, 1, cortex.Healthy, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"half-open, priority 1", 0, 0, 0, 0, half, prio(1), .1, 0, 1, cortex.Healthy, "PPPPP", "", 0, 1 * s},

		// The edges of the states, of the floor and of check 3.
		// 0.3×0.9997 = 0.29991: 0.2999. Floor ⌊2.999⌋; 500 ms × 3.999. Evidence 0.29991/0.8 = 0.37489.
		{"0.2999, priority 2", .9997, 0, 0, 0, closed, prio(2), .2999, .3749, 2, cortex.Healthy, "PPPPP", "", 0, 1999500 * time.Microsecond},
		{"0.2999, priority 1", .9997, 0, 0, 0, closed, prio(1), .2999, .3749, 2, cortex.Healthy, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.30, priority 2", 1, 0, 0, 0, closed, prio(2), .3, .375, 3, cortex.Elevated, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.30, priority 3", 1, 0, 0, 0, closed, prio(3), .3, .375, 3, cortex.Elevated, "PPPPP", "", 0, 2 * s},
		{"0.50, priority 4", 1, 1, 0, 0, closed, prio(4), .5, .625, 5, cortex.Elevated, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.50, priority 5", 1, 1, 0, 0, closed, prio(5), .5, .625, 5, cortex.Elevated, "PPPPP", "", 0, 3 * s},
		{"0.50, priority 5, second retry failed", 1, 1, 0, 0, closed, at(2, 3), .5, .625, 5, cortex.Elevated, "PPPPP", "", 0, 12 * s},
		// 0.5 + 0.15×0.666 = 0.5999. Evidence 0.749875.
		{"0.5999, priority 5", 1, 1, .666, 0, closed, same, .5999, .7499, 5, cortex.Elevated, "PPPPP", "", 0, 3499500 * time.Microsecond},
		// 0.3 + 0.2×0.75 + 0.15 = 0.60.
		{"0.60, priority 5", 1, .75, 1, 0, closed, same, .6, .75, 6, cortex.Pressured, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.60, priority 6", 1, .75, 1, 0, closed, prio(6), .6, .75, 6, cortex.Pressured, "PPPPP", "", 0, 3500 * ms},
		// 0.65 + 0.15×0.9994 = 0.79991: the emergency is not reached. Evidence 0.9998875.
		{"0.7999, priority 6", 1, 1, 1, .9994, closed, prio(6), .7999, .9999, 7, cortex.Pressured, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.7999, priority 7", 1, 1, 1, .9994, closed, prio(7), .7999, .9999, 7, cortex.Pressured, "PPPPP", "", 0, 4499500 * time.Microsecond},
		// In floats 0.30+0.20+0.15+0.15 is 0.8, and 0.15+0.15+0.20+0.30 is 0.7999999999999999: floor 7 and no emergency.
		{"0.80, priority 8", 1, 1, 1, 1, closed, prio(8), .8, 1, 8, cortex.Emergency, "PPR--", "CIRCUIT_OPEN_EMERGENCY", 0, 0},
		{"0.80, priority 0", 1, 1, 1, 1, closed, prio(0), .8, 1, 8, cortex.Emergency, "PPR--", "CIRCUIT_OPEN_EMERGENCY", 0, 0},
		{"0.80, critical 9", 1, 1, 1, 1, closed, prio(9), .8, 1, 8, cortex.Emergency, "PPPPP", "", 0, 4500 * ms},
		{"0.80, critical 10", 1, 1, 1, 1, closed, prio(10), .8, 1, 8, cortex.Emergency, "PPPPP", "", 0, 4500 * ms},
		{"0.80, critical 10, no token", 1, 1, 1, 1, closed, func(s *sit) { s.Priority, s.Tokens = 10, 0 }, .8, 1, 8, cortex.Emergency,
			"PPPR-", "BUDGET_EXHAUSTED", 0, 0},
		// 0.65 + 0.15/3 + 0.1 = 0.80, with a third that no float holds. Evidence 0.7/0.8.
		{"half-open 0.80, priority 8", 1, 1, 1, 1.0 / 3, half, prio(8), .8, .875, 8, cortex.Emergency, "PPR--", "CIRCUIT_OPEN_EMERGENCY", 0, 0},
		{"half-open 0.80, critical 9", 1, 1, 1, 1.0 / 3, half, prio(9), .8, .875, 8, cortex.Emergency, "PPPPP", "", 0, 4500 * ms},
		{"half-open 0.90, priority 8", 1, 1, 1, 1, half, prio(8), .9, 1, 9, cortex.Emergency, "PPR--", "CIRCUIT_OPEN_EMERGENCY", 0, 0},
		{"half-open 0.90, critical 9", 1, 1, 1, 1, half, prio(9), .9, 1, 9, cortex.Emergency, "PPPPP", "", 0, 5 * s},
		{"half-open 0.90, critical 10", 1, 1, 1, 1, half, prio(10), .9, 1, 9, cortex.Emergency, "PPPPP", "", 0, 5 * s},

		// Levels. 0.3×0.9 + 0.2×0.75 + 0.15 + 0.15 = 0.72. Five levels: floor ⌊3.6⌋; ten: ⌊7.2⌋. 500 ms × 8.2.
		{"0.72, tier 1 of 5 levels", .9, .75, 1, 1, closed, tier(1), .72, .9, 3, cortex.Pressured, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.72, tier 2 of 5 levels", .9, .75, 1, 1, closed, tier(2), .72, .9, 3, cortex.Pressured, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.72, tier 3 of 5 levels", .9, .75, 1, 1, closed, tier(3), .72, .9, 3, cortex.Pressured, "PPPPP", "", 0, 4100 * ms},
		{"0.72, tier 4 of 5 levels: the money", .9, .75, 1, 1, closed, tier(4), .72, .9, 3, cortex.Pressured, "PPPPP", "", 0, 4100 * ms},
		{"0.72, priority 6 of 10", .9, .75, 1, 1, closed, prio(6), .72, .9, 7, cortex.Pressured, "PPPR-", "SHED_LOW_PRIORITY", 0, 0},
		{"0.72, priority 7 of 10", .9, .75, 1, 1, closed, prio(7), .72, .9, 7, cortex.Pressured, "PPPPP", "", 0, 4100 * ms},
		{"0.80, tier 3 of 5 levels", 1, 1, 1, 1, closed, tier(3), .8, 1, 4, cortex.Emergency, "PPR--", "CIRCUIT_OPEN_EMERGENCY", 0, 0},
		{"0.80, tier 4 of 5 levels is critical", 1, 1, 1, 1, closed, tier(4), .8, 1, 4, cortex.Emergency, "PPPPP", "", 0, 4500 * ms},
		{"one level: everything is critical", 1, 1, 1, 1, closed, func(s *sit) { s.Priority, s.Levels = 0, 1 }, .8, 1, 0, cortex.Emergency,
			"PPPPP", "", 0, 4500 * ms},

		// Check 4, the budget: a retry costs one token, and the priority comes before it.
		{"one token", 0, 0, 0, 0, closed, tokens(1), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 500 * ms},
		{"less than a token", 0, 0, 0, 0, closed, tokens(.99), 0, 0, 0, cortex.Healthy, "PPPR-", "BUDGET_EXHAUSTED", 0, 0},
		{"no token", 0, 0, 0, 0, closed, tokens(0), 0, 0, 0, cortex.Healthy, "PPPR-", "BUDGET_EXHAUSTED", 0, 0},
		{"no token and below the floor", 1, 0, 0, 0, closed, func(s *sit) { s.Priority, s.Tokens = 2, 0 }, .3, .375, 3, cortex.Elevated,
			"PPPR-", "SHED_LOW_PRIORITY", 0, 0},

		// Check 5: the deadline. The draw of one half makes 250 ms of 500.
		{"passed", 0, 0, 0, 0, closed, left(-1), 0, 0, 0, cortex.Healthy, "PPPPR", "DEADLINE", never, never},
		{"249 ms left", 0, 0, 0, 0, closed, left(249 * ms), 0, 0, 0, cortex.Healthy, "PPPPR", "DEADLINE", 0, 500 * ms},
		{"250 ms left", 0, 0, 0, 0, closed, left(250 * ms), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 500 * ms},
		{"no token and no time", 0, 0, 0, 0, closed, func(s *sit) { s.Tokens, s.Remaining = 0, -1 }, 0, 0, 0, cortex.Healthy,
			"PPPR-", "BUDGET_EXHAUSTED", 0, 0},
		// The hint is a lower bound, spread by at most a fifth of it: 2 s + min(0.4 s, 0.5 s).
		{"hint of 2 s", 0, 0, 0, 0, closed, hint(2*s, 0), 0, 0, 0, cortex.Healthy, "PPPPP", "", 2 * s, 2400 * ms},
		{"hint within the law's range", 1, 1, 0, 0, closed, hint(1*s, 0), .5, .625, 5, cortex.Elevated, "PPPPP", "", 1 * s, 3 * s},
		{"hint that does not fit", 0, 0, 0, 0, closed, hint(2*s, 1*s), 0, 0, 0, cortex.Healthy, "PPPPR", "DEADLINE", 2 * s, 2400 * ms},
		{"hint beyond the maximum", 0, 0, 0, 0, closed, hint(time.Hour, 0), 0, 0, 0, cortex.Healthy, "PPPPP", "", 30 * s, 30 * s},
		// The maximum is applied last: 0.5 s × 64 = 32 s.
		{"attempt 6", 0, 0, 0, 0, closed, at(6, 10), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 30 * s},
		{"attempt 5 under pressure", 1, 0, 0, 0, closed, at(5, 10), .3, .375, 3, cortex.Elevated, "PPPPP", "", 0, 30 * s},
		{"attempt 1000", 0, 0, 0, 0, closed, at(1000, math.MaxInt), 0, 0, 0, cortex.Healthy, "PPPPP", "", 0, 30 * s},
		{"maximum of 1 s", 1, 0, 0, 0, closed, func(c *sit) { c.Backoff.Max = s }, .3, .375, 3, cortex.Elevated, "PPPPP", "", 0, 1 * s},

		// What is not a number says nothing; what is out of range is cut.
		{"nonsense", math.NaN(), math.Inf(1), -1, 2, closed, same, .15, .1875, 1, cortex.Healthy, "PPPPP", "", 0, 1250 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := sit{Profile: cortex.Article, Signals: cortex.Signals{F: c.f, L: c.l, Q: c.q, B: c.b, C: .77 /* taken from Circuit */}, Circuit: c.circuit,
				Priority: 5, MaxRetries: 3, Retryable: true, Tokens: 10, Price: 1,
				Backoff: backoff.Config{Base: 500 * ms, Max: 30 * s}}
			c.change(&in)
			d := in.Decide(func() float64 { return 0.5 })
			if d.CPS != c.cps || d.Evidence != c.evidence || d.State != c.state {
				t.Errorf("cps %v evidence %v %v, want %v, %v, %v", d.CPS, d.Evidence, d.State, c.cps, c.evidence, c.state)
			}
			if d.Floor != c.floor {
				t.Errorf("floor %d, want %d", d.Floor, c.floor)
			}
			if got := signs(d.Checks); got != c.checks {
				t.Errorf("checks %s, want %s", got, c.checks)
			}
			if d.Reason.String() != c.reason || d.Retry != (c.reason == "") {
				t.Errorf("retry %v, reason %q, want %q", d.Retry, d.Reason, c.reason)
			}
			if d.DelayMin != c.lo || d.DelayMax != c.hi {
				t.Errorf("delay from %v to %v, want %v to %v", d.DelayMin, d.DelayMax, c.lo, c.hi)
			}
			if d.Retry && d.Delay != c.lo+(c.hi-c.lo)/2 {
				t.Errorf("delay %v, want the middle of %v to %v", d.Delay, c.lo, c.hi)
			}
			if d.Circuit != c.circuit || d.Signals.C != map[breaker.State]float64{closed: 0, half: .5, open: 1}[c.circuit] {
				t.Errorf("circuit %v, C %v", d.Circuit, d.Signals.C)
			}
			if want := c.cps >= .8 && c.circuit != open; d.Emergency != want {
				t.Errorf("emergency %v, want %v", d.Emergency, want)
			}
		})
	}
}

// near allows for what a histogram makes of equal latencies: P50 and P99 lie in one bucket, which adds up to 0.04·0.20.
func near(got, want float64) bool { return got >= want && got <= want+0.009 }

// The circuit on a timeline, with the article's numbers: one failure in an empty window is a posterior mean of 2/3; open 30 s;
// half-open the floor is ⌊10·(0.3·F + 0.2·0.5)⌋ = 4.
func TestArticleCircuitInVirtualTime(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article})
	clock.advance(time.Minute)
	p := admit(t, e, 0)
	clock.advance(10 * ms)
	p.Record(cortex.Failed)
	failed := clock.now()
	check := func(after time.Duration, prio cortex.Priority, want cortex.Reason) *cortex.Permit {
		t.Helper()
		clock.set(failed + after)
		permit, err := e.Admit(bg, prio)
		got := cortex.ReasonNone
		if err != nil {
			got = err.(*cortex.Rejection).Reason
		}
		if got != want {
			t.Fatalf("%v after the failure, priority %d: %q, want %q", after, prio, got, want)
		}
		return &permit
	}
	check(0, 5, cortex.ReasonCircuitOpen)
	check(0, 10, cortex.ReasonCircuitOpen) // critical calls do not pass an open circuit
	check(30*time.Second-1, 10, cortex.ReasonCircuitOpen)
	if p := e.Pressure(); p.Circuit != breaker.Open || !near(p.CPS, 0.5) || p.Floor != 5 || p.State != cortex.Elevated {
		t.Errorf("open: %+v", p)
	}
	check(30*time.Second, 3, cortex.ReasonShed)
	if p := e.Pressure(); p.Circuit != breaker.HalfOpen || !near(p.CPS, 0.4) || p.Floor != 4 {
		t.Errorf("half-open: %+v", p)
	}
	probe := check(30*time.Second, 4, cortex.ReasonNone)
	check(30*time.Second, 10, cortex.ReasonCircuitOpen) // one probe
	check(30*time.Second+10*ms, 3, cortex.ReasonShed)   // check 4 comes first
	if !probe.Record(cortex.Failed) {
		t.Error("the probe's result was not used")
	}
	// Its failure opens again and restarts the timer.
	check(30*time.Second+10*ms, 10, cortex.ReasonCircuitOpen)
	check(60*time.Second+10*ms-1, 10, cortex.ReasonCircuitOpen)
	probe = check(60*time.Second+10*ms, 10, cortex.ReasonNone)
	clock.advance(10 * ms)
	probe.Record(cortex.Success)
	// Closed; the two old failures and the success in the window make a floor of ⌊10·0.3·2/3⌋ = 2.
	clock.advance(10 * ms)
	if p := e.Pressure(); p.Circuit != breaker.Closed || !near(p.CPS, 0.2) || p.Floor != 2 {
		t.Errorf("closed: %+v", p)
	}
	check(61*time.Second, 1, cortex.ReasonShed)
	check(61*time.Second, 2, cortex.ReasonNone).Release()
	// No traffic, no pressure: the window of 60 s (64 at most) forgets.
	clock.set(failed + 61*time.Second + 65*time.Second)
	if p := e.Pressure(); p.CPS != 0 || p.Floor != 0 {
		t.Errorf("after a minute's silence: %+v", p)
	}
	if n := e.Stats().Transitions; n != 3 { // open, open again, closed
		t.Errorf("%d transitions", n)
	}
}

// Half-open admits one probe per 5 s, however fast they come back.
func TestArticleProbesEveryFiveSeconds(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, Breaker: breaker.Config{ProbesToClose: 4}})
	admit(t, e, 5).Record(cortex.Failed)
	for i := range 4 {
		clock.set(30*time.Second + time.Duration(i)*5*time.Second)
		p := admit(t, e, 10)
		clock.advance(10 * ms)
		p.Record(cortex.Success)
		if i == 3 {
			break
		}
		for range 100 {
			if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
				t.Fatal(r)
			}
			clock.advance(49 * ms)
		}
	}
	if s := e.Pressure().Circuit; s != breaker.Closed {
		t.Errorf("%v after 4 successful probes", s)
	}
}

// DESIGN 4, faults 3 and 4 of the literal laws: while the circuit is open the successes of before the fault leave the window
// first, so F rises while nothing happens, and the floor keeps ordinary calls from probing. That the engine reproduces it is
// what the profile is for.
func TestArticleFloorRisesWhileOpenAndKeepsOrdinaryCallsOut(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, Queue: func() (float64, float64) { return 100, 100 }})
	attempts(t, e, clock, 20, 10*ms, cortex.Success)
	clock.advance(10 * ms)
	e.Pressure()
	clock.set(10 * time.Second)
	for range 21 { // the 21st makes the mean (21+1)/(41+2) > 1/2
		if c := e.Pressure().Circuit; c != breaker.Closed {
			t.Fatal(c)
		}
		attempts(t, e, clock, 1, 10*ms, cortex.Failed)
	}
	// F = 21/41, Q = 1, C = 0.5: 0.1537 + 0.15 + 0.1 = 0.4037.
	clock.advance(30 * time.Second)
	if p := e.Pressure(); !near(p.CPS, 0.4037) || p.Floor != 4 || p.Circuit != breaker.HalfOpen {
		t.Errorf("%+v", p)
	}
	if r := refusal(t, e, 3); r.Reason != cortex.ReasonShed || r.Floor != 4 {
		t.Error(r)
	}
	// The successes are gone, the failures are not: 0.3 + 0.15 + 0.1.
	clock.set(66 * time.Second)
	if p := e.Pressure(); !near(p.CPS, 0.55) || p.Floor != 5 {
		t.Errorf("%+v", p)
	}
	if r := refusal(t, e, 4); r.Reason != cortex.ReasonShed || r.Floor != 5 {
		t.Error(r)
	}
	admit(t, e, 5).Release()
}

// Check 3 for first attempts. The weights make F alone reach 0.80; the posterior is kept from tripping first.
func emergencyEngine(t *testing.T) (*cortex.Engine, *timeline) {
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, Weights: cortex.Weights{F: 0.8, C: 0.2},
		Breaker: breaker.Config{Threshold: 0.99}})
	attempts(t, e, clock, 1, 5*ms, cortex.Failed)
	clock.advance(5 * ms)
	return e, clock
}

func TestArticleEmergencyForcesTheCircuitOpen(t *testing.T) {
	e, clock := emergencyEngine(t)
	if p := e.Pressure(); p.CPS != 0.8 || p.State != cortex.Emergency || p.Circuit != breaker.Closed {
		t.Fatalf("%+v", p)
	}
	if r := refusal(t, e, 8); r.Reason != cortex.ReasonCircuitEmergency {
		t.Error(r)
	}
	if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
		t.Error(r)
	}
	opened := clock.now()
	clock.set(opened + 30*time.Second - 1)
	if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
		t.Error(r)
	}
	// Half-open with the failure still in the window: 0.8 + 0.1. Any ordinary call opens it again and restarts the timer.
	clock.set(opened + 31*time.Second)
	if p := e.Pressure(); p.CPS != 0.9 || p.Circuit != breaker.HalfOpen {
		t.Fatalf("%+v", p)
	}
	if r := refusal(t, e, 8); r.Reason != cortex.ReasonCircuitEmergency {
		t.Error(r)
	}
	clock.set(opened + 61*time.Second - 1)
	if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
		t.Error(r)
	}
	clock.set(opened + 61*time.Second)
	if p := e.Pressure(); p.Circuit != breaker.HalfOpen {
		t.Errorf("%+v", p)
	}
}

func TestArticleEmergencyLetsCriticalCallsPassOnce(t *testing.T) {
	for _, prio := range []cortex.Priority{9, 10} {
		e, clock := emergencyEngine(t)
		admit(t, e, prio).Release() // closed: it passes, and the circuit opens
		if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
			t.Error(r)
		}
		clock.advance(30 * time.Second)
		admit(t, e, prio).Release() // half-open: the same
		if r := refusal(t, e, 10); r.Reason != cortex.ReasonCircuitOpen {
			t.Error(r)
		}
	}
}

func TestArticleEmergencyOfAFailedAttempt(t *testing.T) {
	failed := func(p cortex.Priority) cortex.Failure {
		return cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: p}
	}
	e, _ := emergencyEngine(t)
	if d := e.Decide(failed(8)); d.Reason != cortex.ReasonCircuitEmergency || !d.Emergency || d.Circuit != breaker.Closed {
		t.Errorf("%+v", d)
	}
	if d := e.Decide(failed(10)); d.Reason != cortex.ReasonCircuitOpen {
		t.Errorf("%+v", d)
	}
	e, _ = emergencyEngine(t)
	if d := e.Decide(failed(10)); !d.Retry || !d.Emergency || d.DelayMax != 4500*ms {
		t.Errorf("%+v", d)
	}
	if s := e.Pressure().Circuit; s != breaker.Open {
		t.Errorf("circuit %v", s)
	}
}

// B of DESIGN 3.1: of the tokens there were to spend over the last 10 s, the share that was spent.
func TestArticleBudgetBurn(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, Budget: budget.Config{MinPerSecond: -1}})
	fail := cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 10}
	for i := range 10 {
		d := e.Decide(fail)
		if !d.Retry || d.Price != 1 || d.Tokens != float64(10-i) {
			t.Fatalf("retry %d: %+v", i, d)
		}
		clock.advance(10 * ms)
		if b := e.Pressure().Signals.B; math.Abs(b-float64(i+1)/10) > 1e-9 {
			t.Errorf("B = %v after %d of 10 tokens", b, i+1)
		}
	}
	if d := e.Decide(fail); d.Reason != cortex.ReasonBudget {
		t.Errorf("%+v", d)
	}
	clock.advance(10 * time.Second)
	if b := e.Pressure().Signals.B; b != 0 {
		t.Errorf("B = %v after 10 s without a retry", b)
	}
}
