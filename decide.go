package cortex

import (
	"context"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

// CheckResult is what one of the five checks said.
type CheckResult uint8

// Results of a check.
const (
	NotReached CheckResult = iota // an earlier check refused
	Passed
	Refused
)

func (r CheckResult) String() string {
	switch r {
	case Passed:
		return "passed"
	case Refused:
		return "refused"
	}
	return "not reached"
}

// Situation is everything the five checks look at. [Engine.Decide] fills it from what the engine knows; on its own it works
// out a decision on given numbers.
type Situation struct {
	Profile    Profile
	Weights    Weights // zero = DefaultWeights
	Levels     int     // zero = DefaultLevels
	Signals    Signals // C is taken from Circuit
	Circuit    breaker.State
	Forcing    breaker.Forcing // an operator's order to the circuit
	Armed      bool            // adaptive: the evidence trip is armed
	Priority   Priority
	Attempt    int // the attempt that failed; 0 is the original
	MaxRetries int // 0 = none

	Retryable    bool
	RetriedAbove bool // a layer above retries already
	DoNotRetry   bool // the server said so

	// Adaptive shedding: Floor is the lowest priority not shed whole, RefuseProbability the chance that this one is shed. The
	// article's floor is computed from the score.
	Floor             Priority
	RefuseProbability float64

	Tokens float64 // in the budget, for this priority: adaptive, the last part of a large one is kept for critical calls
	Price  float64 // of this retry, in tokens

	Backoff    backoff.Config // normalized
	Previous   time.Duration  // the delay before the attempt that failed
	RetryAfter time.Duration  // the server's hint, a lower bound
	Remaining  time.Duration  // until the caller's deadline; 0 = no deadline, negative = passed
	Cost       time.Duration  // what the retry itself needs of it
}

// Decision is what the five checks made of a failed attempt, with the numbers they saw.
type Decision struct {
	Retry              bool
	Reason             Reason        // why not; ReasonNone when Retry
	Delay              time.Duration // before the next attempt; drawn from DelayMin to DelayMax
	DelayMin, DelayMax time.Duration

	CPS, Evidence float64
	Signals       Signals
	State         State
	Circuit       breaker.State
	Floor         Priority
	Emergency     bool // the pressure forces the circuit open
	Tokens, Price float64
	Checks        [5]CheckResult
}

// Decide runs the five checks in their order. draw is uniform in [0,1); it is asked for the shed lottery and for the delay.
func (s Situation) Decide(draw func() float64) Decision {
	if s.Weights == (Weights{}) {
		s.Weights = DefaultWeights
	}
	if s.Levels == 0 {
		s.Levels = DefaultLevels
	}
	g := &s.Signals
	*g = Signals{F: unit(g.F), L: unit(g.L), Q: unit(g.Q), B: unit(g.B), C: s.Circuit.Pressure()}
	cps, evidence := s.Weights.cps(s.Signals), s.Weights.evidence(s.Signals)
	d := Decision{CPS: float64(cps) / one, Evidence: float64(evidence) / one, Signals: s.Signals, State: stateOf(cps),
		Circuit: s.Circuit, Floor: s.Floor, Tokens: s.Tokens, Price: s.Price}
	critical := int(s.Priority) >= s.Levels-1
	if s.Profile == Article {
		d.Floor = Priority(floorOf(cps, s.Levels))
		s.RefuseProbability = 0
		if s.Priority < d.Floor {
			s.RefuseProbability = 1
		}
		d.Emergency = cps >= emergency && s.Circuit != breaker.Open
	} else {
		d.Emergency = evidence >= emergency && s.Circuit == breaker.Closed && s.Armed
	}
	d.Emergency = d.Emergency && s.Forcing == breaker.Automatic

	checks := [5]func() Reason{
		func() Reason { // 1: is it worth trying again at all?
			switch {
			case !s.Retryable:
				return ReasonNotRetryable
			case s.DoNotRetry:
				return ReasonDoNotRetry
			case s.RetriedAbove:
				return ReasonRetriedAbove
			}
			return ReasonNone
		},
		func() Reason { // 2: how often was it tried?
			if s.Attempt >= s.MaxRetries {
				return ReasonMaxRetries
			}
			return ReasonNone
		},
		func() Reason { // 3: is the circuit open, or does pressure open it now?
			switch {
			case s.Circuit == breaker.Open:
				return ReasonCircuitOpen
			case d.Emergency && !critical:
				return ReasonCircuitEmergency
			}
			return ReasonNone
		},
		func() Reason { // 4: who goes first, and is there a token?
			if p := s.RefuseProbability; p >= 1 || p > 0 && draw() < p {
				return ReasonShed
			}
			if !(s.Tokens >= s.Price*(1-1e-9)) { // ten successes at 0.1 pay for one retry
				return ReasonBudget
			}
			return ReasonNone
		},
		func() Reason { return s.delay(&d, draw) }, // 5: when, and is there time?
	}
	for i, check := range checks {
		if d.Reason = check(); d.Reason != ReasonNone {
			d.Checks[i] = Refused
			return d
		}
		d.Checks[i] = Passed
	}
	d.Retry = true
	return d
}

func (s *Situation) delay(d *Decision, draw func() float64) Reason {
	in := backoff.Input{Attempt: s.Attempt, CPS: d.CPS, Previous: s.Previous, Hint: s.RetryAfter}
	left := time.Duration(math.MaxInt64)
	if s.Remaining != 0 {
		left = max(0, s.Remaining) - max(0, s.Cost)
		if left <= 0 {
			return ReasonDeadline
		}
		if s.Profile == Adaptive { // the upper end is cut so that the retry can still finish
			in.Limit = left
		}
	}
	d.DelayMin, d.DelayMax = s.Backoff.Bounds(in)
	if d.DelayMin > left {
		return ReasonDeadline
	}
	d.Delay = s.Backoff.Delay(in, draw)
	if d.Delay > left {
		return ReasonDeadline
	}
	return ReasonNone
}

// Failure is a failed attempt, for [Engine.Decide].
type Failure struct {
	// Err is classified by Config.Classify unless Class has an outcome or is retryable.
	Err   error
	Class Class

	Priority Priority
	Attempt  int // 0 is the original

	MaxRetries   int           // 0 = the engine's; see NoRetries
	NoRetries    bool          // this call is not to be retried
	RetriedAbove bool          // a layer above retries already; Do sets it from the context
	DoNotRetry   bool          // the server said so
	Previous     time.Duration // the delay before the attempt that failed
	Deadline     time.Duration // time left until the caller's deadline; 0 = no deadline, negative = passed
}

// Decide runs the five checks on a failed attempt and charges the budget if it is to be retried. The caller waits for
// Decision.Delay and asks [Engine.AdmitRetry]; a decided retry that is then not asked for is worth a [Engine.Refund].
func (e *Engine) Decide(f Failure) Decision {
	now := e.now()
	if f.Class.Outcome == Neutral && !f.Class.Retryable && f.Err != nil {
		hint := f.Class.RetryAfter
		f.Class = e.cfg.Classify(f.Err)
		f.Class.RetryAfter = max(f.Class.RetryAfter, hint)
	}
	e.gauge.poll(e, now)
	e.mu.Lock()
	e.advance(now)
	d := e.situation(&f, now).Decide(e.random)
	if d.Emergency && d.Checks[2] != NotReached { // check 3 forces the circuit open, whoever asks
		e.armed = false
		e.trip(now)
	}
	if d.Retry {
		e.bucket.Spend(now, d.Price)
		e.stats.Retries++
	} else {
		e.refusedBy[d.Reason].Add(1)
	}
	e.unlock()
	if e.cfg.OnDecision != nil {
		e.tell(DecisionEvent{Target: e.cfg.Name, Priority: Priority(e.clampPriority(f.Priority)), Attempt: f.Attempt, Decision: d})
	}
	return d
}

// Refund gives back what a decided retry was charged, when it will not be made: its caller gave up while it waited.
func (e *Engine) Refund(d Decision) {
	if !d.Retry {
		return
	}
	e.mu.Lock()
	e.bucket.Refund(e.now(), d.Price)
	e.unlock()
}

// CountRetry books a retry that was made without asking, by a layer below that replays on its own: it is charged as far as
// there are tokens.
func (e *Engine) CountRetry() {
	now := e.now()
	e.mu.Lock()
	e.advance(now)
	e.stats.Retries++
	if price := e.situation(&Failure{}, now).Price; !e.bucket.Spend(now, price) {
		e.bucket.Spend(now, e.bucket.Tokens())
	}
	e.unlock()
}

func (e *Engine) maxRetries(f *Failure) int {
	switch {
	case f.NoRetries || e.cfg.DisableRetries:
		return 0
	case f.MaxRetries > 0:
		return f.MaxRetries
	}
	return e.cfg.MaxRetries
}

func (e *Engine) situation(f *Failure, now time.Duration) Situation {
	prio := e.clampPriority(f.Priority)
	st := e.circuit(now)
	s := Situation{Profile: e.cfg.Profile, Weights: e.cfg.Weights, Levels: e.cfg.Levels, Signals: e.signalsAt(st), Circuit: st,
		Forcing: e.forcing(), Armed: e.armed && !e.off(limit.EvidenceTrip) && !e.neverOpens && e.inFleet() == nil, Priority: Priority(prio), Attempt: f.Attempt, MaxRetries: e.maxRetries(f),
		Retryable: f.Class.Retryable, RetriedAbove: f.RetriedAbove, DoNotRetry: f.DoNotRetry,
		Tokens: e.bucket.Tokens(), Price: 1, Backoff: e.cfg.Backoff, Previous: f.Previous, RetryAfter: f.Class.RetryAfter,
		Remaining: f.Deadline}
	if e.cfg.Profile == Article {
		return s
	}
	n := e.countInFlight()
	q := e.queuePressure(n)
	s.Signals.Q = unit(max(q, e.gauge.value()))
	s.Floor = Priority(e.law().Floor(e.shedFraction(n, false)))
	s.RefuseProbability = e.refuseProbability(prio, n)
	s.Price = e.price(q)
	if !e.critical(prio) {
		s.Tokens = max(0, s.Tokens-e.bucket.Kept(e.law().CriticalShare()))
	}
	w0, b99 := e.baseline()
	s.Cost = max(b99, callCost*w0)
	return s
}

// price of a retry in tokens at queue pressure q. The latency signal must show in the P99 of enough samples, too: that of the few
// successes among many errors is noise, and one second of full price can empty the budget that retries against errors live on.
func (e *Engine) price(q float64) float64 {
	l := e.sig.l
	if f := e.inFleet(); f != nil {
		return f.law.Law().Price(l, q, e.sig.slow)
	}
	if l > 0 && e.sig.stalled == 0 {
		_, base, _, _ := e.limiter.Baseline()
		p99, _ := e.rolling.Quantile(e.rolling.ShortestLatencies(baselineMin), 0.99)
		l = min(l, LatencyDeviation(float64(p99), float64(base)))
	}
	return e.limiter.Price(l, q, e.sig.slow)
}

// deadlineOf is the time left for a call: its context's, else what Config.Deadline leaves after what has passed.
func (e *Engine) deadlineOf(ctx context.Context, passed time.Duration) time.Duration {
	left, ok := remaining(ctx)
	if e.cfg.Deadline > 0 {
		own := e.cfg.Deadline - passed
		if !ok || own < left {
			left, ok = own, true
		}
	}
	switch {
	case !ok:
		return 0
	case left == 0:
		return -1
	}
	return left
}
