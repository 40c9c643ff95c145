package cortex

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/window"
)

// A Permit is the right to make one attempt. It is used once: by [Permit.Done] or [Permit.Record] with the outcome, or by
// [Permit.Release] without one; whatever comes later changes nothing. Defer Release right after a successful admission, so
// that a panic, Goexit or early return frees it. A Permit must not be copied after first use; its methods, but for
// [Permit.Timeout], may be called from several goroutines, and do nothing on the zero Permit.
type Permit struct {
	_       noCopy
	e       *Engine
	ctx     context.Context
	start   time.Duration
	latency time.Duration // fixed by Answered
	probe   breaker.Probe // the zero Probe: none
	gen     uint32
	epoch   uint32
	given   uint32 // by Timeout, in units of 1<<givenShift ns
	stripe  uint8
	soft    bool // given less than the extended timeout
	// Guarded by the stripe's lock, like start, epoch and latency once the attempt is under way.
	state uint8
	// 64 bytes: the compiler copies a struct whose size is no multiple of 16 in overlapping halves, which stalls the next read.
}

const givenShift = 10

// States of a permit, together.
const (
	left     = 1 << iota // not in flight: paused, answered or over
	answered             // the latency is fixed
	done
)

func (p *Permit) isProbe() bool { return p.probe.ID != 0 }

type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Admit asks for one attempt at the target, the original of a call. The error is a [*Rejection] and nothing else; the call
// must not be made then. ctx is the attempt's: its end before the answer tells an attempt that its caller gave up from one
// that failed. It does not block and does not allocate.
func (e *Engine) Admit(ctx context.Context, p Priority) (Permit, error) {
	return e.AdmitRetry(ctx, p, 0)
}

// AdmitRetry is [Engine.Admit] for the attempt of that number; 0 is the original. A retry was decided by [Engine.Decide],
// which charged the budget; it is admitted again because the circuit may have opened while it waited.
func (e *Engine) AdmitRetry(ctx context.Context, p Priority, attempt int) (permit Permit, err error) {
	now := e.now()
	prio := e.clampPriority(p)
	i := uint8(0)
	if len(e.stripes) > 1 {
		i = e.stripe()
	}
	if int64(now) < e.refuseUntil.Load() {
		if r := e.rejections[ReasonCircuitOpen][prio].Load(); r != nil && now-r.at < rejectionAge {
			if attempt == 0 {
				e.stripes[i].refused[prio].Add(1)
			} else {
				e.refusedBy[ReasonCircuitOpen].Add(1)
			}
			if e.cfg.OnDecision != nil {
				e.refused(&r.Rejection)
			}
			err = &r.Rejection
			return
		}
	}
	s := &e.stripes[i]
	if !s.mu.TryLock() {
		s.lockTaken()
	}
	if attempt == 0 {
		s.offered[prio]++
	}
	if s.credit > 0 && now < s.until {
		s.credit--
		s.enter(now)
		permit.e, permit.ctx, permit.start, permit.gen, permit.epoch, permit.stripe = e, ctx, now, s.gen, s.epoch, i
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	return e.admitSlowly(ctx, now, prio, i, attempt)
}

// admitSlowly decides with the whole law: the estimators are due, or there is something to refuse.
func (e *Engine) admitSlowly(ctx context.Context, now time.Duration, prio int, stripe uint8, attempt int) (Permit, error) {
	e.gauge.poll(e, now)
	var left time.Duration
	if attempt == 0 && ctx != nil {
		left, _ = remaining(ctx)
	}
	e.mu.Lock()
	e.advance(now)
	e.observeDeadline(left)
	reason, probe := e.admission(now, prio)
	if reason != ReasonNone {
		r := e.reject(now, reason, prio)
		e.unlock()
		e.refused(r)
		return Permit{}, r
	}
	s := &e.stripes[stripe]
	s.mu.Lock()
	s.enter(now)
	s.credit-- // below 0 if need be: what leaves gives one back
	owes := s.credit < 0
	gen, epoch := s.gen, s.epoch
	s.mu.Unlock()
	if owes {
		e.borrow(s)
	}
	e.unlock()
	return Permit{e: e, ctx: ctx, start: now, gen: gen, epoch: epoch, stripe: stripe, probe: probe}, nil
}

// borrow takes the credit that a stripe owes from another that has some: what was shared out is all there is. Where none has
// any left, there is no credit before the next tick, for what leaves in one place must first pay what another owes. e.mu is held.
func (e *Engine) borrow(s *stripe) {
	for i := range e.stripes {
		o := &e.stripes[i]
		o.mu.Lock()
		has := o.credit > 0
		if has {
			o.credit--
		}
		o.mu.Unlock()
		if has {
			s.mu.Lock()
			s.credit++
			s.mu.Unlock()
			return
		}
	}
	for i := range e.stripes {
		o := &e.stripes[i]
		o.mu.Lock()
		o.until = 0
		o.mu.Unlock()
	}
}

// admission is checks 3 and 4 for an attempt about to be made. e.mu is held.
func (e *Engine) admission(now time.Duration, prio int) (Reason, breaker.Probe) {
	if e.cfg.Profile == Article {
		return e.articleAdmission(now, prio)
	}
	st := e.circuit(now)
	if st == breaker.Closed && e.evidenceTrips() {
		e.armed = false
		e.trip(now)
		if !e.critical(prio) {
			return ReasonCircuitEmergency, breaker.Probe{}
		}
		return ReasonNone, breaker.Probe{}
	}
	if st != breaker.Closed { // probes pass by pressure and shedding
		if p, ok := e.breaker.TryProbe(now, e.probeLease()); ok {
			e.announce(now)
			return ReasonNone, p
		}
		return ReasonCircuitOpen, breaker.Probe{}
	}
	shed := e.limiter.ShedFraction(e.limiter.Q(e.countInFlight()), e.critical(prio))
	if p := e.limiter.RefuseProbability(prio, shed); p > 0 && e.random() < p {
		return ReasonShed, breaker.Probe{}
	}
	return ReasonNone, breaker.Probe{}
}

func (e *Engine) articleAdmission(now time.Duration, prio int) (Reason, breaker.Probe) {
	st := e.circuit(now)
	if st == breaker.Open {
		return ReasonCircuitOpen, breaker.Probe{}
	}
	cps := e.cfg.Weights.cps(e.signalsAt(st))
	if cps >= emergency && !e.closedOnly {
		e.trip(now)
		if !e.critical(prio) {
			return ReasonCircuitEmergency, breaker.Probe{}
		}
	}
	if prio < floorOf(cps, e.cfg.Levels) {
		return ReasonShed, breaker.Probe{}
	}
	if st == breaker.HalfOpen && cps < emergency {
		p, ok := e.breaker.TryProbe(now, 0)
		if !ok {
			return ReasonCircuitOpen, breaker.Probe{}
		}
		return ReasonNone, p
	}
	return ReasonNone, breaker.Probe{}
}

// probeLease is how long a probe may hold its slot: min(T, max(0.1 s, B99)).
func (e *Engine) probeLease() time.Duration {
	if e.off(limit.ProbeLease) {
		return time.Hour
	}
	_, b99, _, _ := e.limiter.Baseline()
	lease := max(100*time.Millisecond, b99)
	if e.cfg.DisableTimeout {
		return lease
	}
	return min(time.Duration(e.timeoutNow.Load()), lease)
}

// observeDeadline learns how much time callers have, from a sample of them.
func (e *Engine) observeDeadline(left time.Duration) {
	if left <= 0 {
		return
	}
	if e.deadline == 0 {
		e.deadline = left.Seconds()
		return
	}
	e.deadline += 0.05 * (left.Seconds() - e.deadline)
}

func (e *Engine) countInFlight() (n int64) {
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		n += s.inFlight
		s.mu.Unlock()
	}
	return n
}

// trip opens the circuit. e.mu is held.
func (e *Engine) trip(now time.Duration) {
	if e.closedOnly {
		return
	}
	rate := e.limiter.OfferedRate()
	if e.breaker.Trip(now, rate) {
		e.limiter.Tripped(e.breaker.SlowTrip())
	}
	e.announce(now)
}

// circuit is the state of the circuit, followed where a lease that ran out has changed it. e.mu is held.
func (e *Engine) circuit(now time.Duration) breaker.State {
	st := e.breaker.State(now)
	if st != e.state {
		e.announce(now)
	}
	return st
}

// announce follows a transition of the circuit: a new generation where the state changed in substance, credit withdrawn or
// given, the fast refusal armed, listeners told. e.mu is held.
func (e *Engine) announce(now time.Duration) {
	st := e.breaker.State(now)
	wait := e.breaker.NextProbe(now)
	if st == breaker.Closed || wait <= 0 {
		e.refuseUntil.Store(0)
	} else {
		e.refuseUntil.Store(int64(now + wait))
	}
	if gen := e.breaker.Generation(); gen != e.gen {
		e.gen = gen
		e.stats.Transitions++
		e.newGeneration(now, st)
	}
	if st == e.state {
		return
	}
	sig := e.signalsAt(st)
	e.event.push(StateChange{Target: e.cfg.Name, From: e.state, To: st, Generation: e.gen, CPS: e.cfg.Weights.CPS(sig),
		Evidence: e.cfg.Weights.Evidence(sig), Signals: sig})
	e.state = st
}

// newGeneration starts with fresh evidence: what was admitted before still leaves the count of attempts in flight but
// touches no statistic. The article knows no generations.
func (e *Engine) newGeneration(now time.Duration, st breaker.State) {
	fresh := e.cfg.Profile == Adaptive && !e.off(limit.GenerationReset)
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		s.credit, s.until = 0, 0
		if fresh {
			s.gen = e.gen
			e.stats.Successes += s.success
			s.success = 0
			for b := s.lo; b <= s.hi; b++ {
				s.latency[b] = 0
			}
			s.lo, s.hi = len(s.latency), -1
		}
		s.mu.Unlock()
	}
	if !fresh {
		return
	}
	e.success = 0
	e.silence = silence{since: now}
	e.pending.Success, e.pending.Failure, e.pending.Timeout, e.pending.Throttled = 0, 0, 0, 0
	e.errorArea = 0
	if st != breaker.Closed {
		return
	}
	e.rolling.Reset(now)
	e.sig = signals{}
	e.limiter.Restart()
	e.bucket.AtLeast(1)
	e.armed = true
}

// Timeout is the time this attempt should be given; 0 where Config.DisableTimeout is set. It is the adaptive timeout while
// all is well. Where there is a queue or others have just been cut, and for a probe, it is longer: a target that has become slow would otherwise be cut
// into doing nothing but work that nobody waits for any more, and only an attempt with more time can tell it from one that
// hangs. The in-flight limit bounds what that costs in a hang. Ask before the attempt starts.
func (p *Permit) Timeout() time.Duration {
	e := p.e
	if e == nil || e.cfg.DisableTimeout {
		return 0
	}
	given := e.timeoutNow.Load()
	if x := e.extended.Load(); x > given && (p.isProbe() || e.strained.Load()) {
		given = x
	} else {
		p.soft = x > given
	}
	p.given = uint32(min(given>>givenShift, math.MaxUint32))
	return time.Duration(given)
}

// Answered tells that the target has answered and only the rest of the answer is to come (response headers were read): the
// attempt's latency is fixed and it is no longer in flight, while its outcome is still open. It serves answers that stream:
// their length is no latency and their number no queue. Do not call it for an answer that is a failure already: record that.
func (p *Permit) Answered() {
	if p.e == nil {
		return
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	first := p.state&answered == 0 && p.state&done == 0
	if first {
		p.state |= answered
		if p.state&left == 0 {
			p.leave(s, now)
		}
	}
	s.mu.Unlock()
	if first && p.isProbe() {
		p.e.mu.Lock()
		p.e.breaker.Answered(p.probe)
		p.e.unlock()
	}
}

// Pause takes the attempt out of those in flight until [Permit.Resume]: what happens meanwhile is not the target's doing, such as
// the upload of a request body by a slow client. It does nothing on an attempt that was answered or is over.
func (p *Permit) Pause() {
	if p.e == nil {
		return
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	if p.state&left == 0 && p.state&done == 0 {
		p.leave(s, now)
	}
	s.mu.Unlock()
}

// Resume puts a paused attempt back in flight. Its latency counts from here.
func (p *Permit) Resume() {
	if p.e == nil {
		return
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	goesOn := p.state&(left|answered|done) == left
	if goesOn {
		p.state &^= left
		p.start, p.epoch, p.latency = now, s.epoch, 0
		s.credit--
		s.reenter(now)
	}
	owes := goesOn && s.credit < 0
	s.mu.Unlock()
	if owes {
		p.e.mu.Lock()
		p.e.borrow(s)
		p.e.unlock()
	}
}

// leave fixes the latency and takes the attempt out of those in flight; the stripe's lock is held.
func (p *Permit) leave(s *stripe, now time.Duration) {
	p.latency = max(0, now-p.start)
	s.leave(p.start, p.epoch, max(now, p.start))
	p.state |= left
}

// Done ends the attempt with its error, classified by Config.Classify; nil is a success. An attempt whose context had been
// cancelled is neutral: its caller gave up. It reports whether the outcome counted: false for a permit that was used before
// and for a result of an older generation of the circuit.
func (p *Permit) Done(err error) bool {
	if p.e == nil {
		return false
	}
	if err == nil {
		return p.Record(Success)
	}
	return p.Record(p.e.classify(p.ctx, err, p.took()).Outcome)
}

// took is how long the attempt has been under way.
func (p *Permit) took() time.Duration {
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.state&left != 0 {
		return p.latency
	}
	return p.e.now() - p.start
}

// Release frees a permit that has no outcome; after Done or Record it does nothing.
func (p *Permit) Release() { p.Record(Neutral) }

// Record ends the attempt with an outcome; see [Permit.Done] for what it reports.
func (p *Permit) Record(o Outcome) bool {
	e := p.e
	if e == nil {
		return false
	}
	now := e.now()
	s := &e.stripes[p.stripe]
	s.mu.Lock()
	if p.state&done != 0 {
		s.mu.Unlock()
		return false
	}
	p.state |= done
	if p.state&left == 0 {
		p.leave(s, now)
	}
	if !p.isProbe() && p.gen != s.gen {
		s.stale++
		s.mu.Unlock()
		return false
	}
	if o == Success && !p.isProbe() && (int64(p.latency) <= e.timeoutNow.Load() || e.cfg.DisableTimeout) {
		s.observe(now, p.latency)
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	return e.record(p, o, now)
}

// record is the part of Record that is not a plain success.
func (e *Engine) record(p *Permit, o Outcome, now time.Duration) bool {
	e.mu.Lock()
	defer e.unlock()
	if !p.isProbe() && p.gen != e.gen && e.cfg.Profile == Adaptive && !e.off(limit.GenerationReset) {
		e.stats.Stale++ // the circuit changed between the two locks
		return false
	}
	if p.isProbe() {
		if used := e.probeDone(p, o, now); !used {
			e.stats.Stale++
			return false
		}
	}
	switch o {
	case Success:
		e.stats.Successes++
		if e.timeout.Late(now, p.latency) {
			e.refreshTimeout(now)
		}
	case Failed:
		e.stats.Failures++
	case TimedOut:
		e.stats.Timeouts++
	case Throttled:
		e.stats.Throttled++
	default:
		e.stats.Neutral++
	}
	if !p.isProbe() || e.cfg.Profile == Article {
		e.count(o, p, now)
	}
	return true
}

// count takes an outcome other than a plain success into the statistics and trips the circuit if it must. e.mu is held.
func (e *Engine) count(o Outcome, p *Permit, now time.Duration) {
	latency := p.latency
	article := e.cfg.Profile == Article
	e.rolling.Advance(now)
	switch o {
	case Success:
		e.pending.Success++
		e.success++
		e.silence = silence{since: now}
		e.rolling.Add(now, window.Counts{Success: 1})
		e.rolling.AddLatency(now, bucketOf(latency), 1)
		e.learnTimeout(now, bucketOf(latency), 1)
	case Failed:
		e.pending.Failure++
		e.rolling.Add(now, window.Counts{Failure: 1})
		e.errorArea += latency
		if article { // the article's window holds the latency of every attempt: fast failures pull its P99 down
			e.rolling.AddLatency(now, bucketOf(latency), 1)
		}
	case TimedOut:
		e.pending.Timeout++
		e.rolling.Add(now, window.Counts{Timeout: 1})
		if cut := p.given > 0 || latency >= e.timeout.Current(); cut && latency >= time.Duration(p.given)<<givenShift {
			e.timeout.ObserveTimeouts(now, 1) // else it was the caller's own limit, which says nothing of ours
		}
		e.rolling.AddLatency(now, bucketOf(latency), 1)
	case Throttled:
		e.pending.Throttled++
		e.rolling.Add(now, window.Counts{Throttled: 1})
		e.errorArea += latency
		return
	default:
		return
	}
	if o == Success || e.circuit(now) != breaker.Closed || e.closedOnly {
		return
	}
	e.gatherSuccesses(false)
	c := e.rolling.Counts(spanAll)
	if article {
		if e.breaker.MeanTrips(c.Failures(), c.Success) {
			e.trip(now)
		}
		return
	}
	if o == TimedOut {
		e.silence.timedOut(now)
		if p.soft && p.latency >= time.Duration(p.given)<<givenShift {
			return // only an attempt that was given more time can tell a target that hangs from a slow one
		}
		e.silence.patient++
	}
	trips := e.breaker.Failure(now, o == TimedOut, e.success, c.Success)
	if trips || e.silence.patient >= straightTimeouts && now-e.silence.since >= e.timeout.Extended() {
		e.trip(now)
	}
}

// silence is what happened since the last success.
type silence struct {
	since    time.Duration
	last     time.Duration // the newest timeout
	timeouts int
	patient  int // of attempts with the extended timeout
}

// timedOut counts a timeout. Those far from each other do not add up: a dozen have to come within a minute, as for the circuit.
func (s *silence) timedOut(now time.Duration) {
	const horizon = time.Minute
	if now-s.last > horizon {
		s.timeouts = 0
	}
	if now-s.last > horizon/straightTimeouts {
		s.patient = 0
	}
	s.last = now
	s.timeouts++
}

// straightTimeouts without a success between them are enough by the circuit's rule, P(θ > 0.7 | 12 failures) ≥ 0.99, where
// nothing came back for as long as the most patient attempt waits: the successes among the last 64 outcomes are from before.
const straightTimeouts = 12

// probeDone gives a probe's outcome to the circuit; it enters no window of the adaptive profile.
func (e *Engine) probeDone(p *Permit, o Outcome, now time.Duration) bool {
	r := breaker.ProbeReleased
	switch o {
	case Success:
		r = breaker.ProbeSucceeded
	case Failed:
		r = breaker.ProbeFailed
	case TimedOut:
		r = breaker.ProbeTimedOut
	case Throttled:
		r = breaker.ProbeThrottled
	}
	used, _ := e.breaker.ProbeDone(now, p.probe, r, p.latency, e.limiter.OfferedRate())
	e.announce(now)
	return used
}

// classify decides what the error of an attempt says. Who ended the attempt decides, not the text of the error: drivers do
// not always wrap the context's.
func (e *Engine) classify(ctx context.Context, err error, took time.Duration) Class {
	if ctx != nil && ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && took >= e.longWait() {
			return Class{Outcome: TimedOut}
		}
		return Class{Outcome: Neutral}
	}
	return e.cfg.Classify(err)
}

// longWait is how long an attempt must have been under way for its caller's own deadline to speak against the target.
func (e *Engine) longWait() time.Duration {
	e.mu.Lock()
	_, b99, _, _ := e.limiter.Baseline()
	e.mu.Unlock()
	if b99 > 0 {
		return b99
	}
	return min(e.cfg.Timeout.Bootstrap, time.Duration(e.timeoutNow.Load()))
}
