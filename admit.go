package cortex

import (
	"context"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

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
		e.lockTaken(s)
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
	s := &e.stripes[stripe]
	e.mu.Lock()
	entered := e.advanceFor(now, s)
	e.observeDeadline(left)
	var probe breaker.Probe
	if !entered {
		reason, p := e.admission(now, prio)
		if reason != ReasonNone {
			r := e.reject(now, reason, prio)
			e.unlock()
			e.refused(r)
			return Permit{}, r
		}
		probe = p
		s.mu.Lock()
		s.enter(now)
		s.credit-- // below 0 if need be: what leaves gives one back
		owes := s.credit < 0
		s.mu.Unlock()
		if owes {
			e.borrow(s)
		}
	}
	gen, epoch := s.gen, s.epoch // written under both locks
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
	f := e.inFleet()
	if st == breaker.Closed && f == nil && e.evidenceTrips() {
		e.armed = false
		e.trip(now)
		if !e.critical(prio) {
			return ReasonCircuitEmergency, breaker.Probe{}
		}
		return ReasonNone, breaker.Probe{}
	}
	if st != breaker.Closed { // probes pass by pressure and shedding
		if e.fleet == nil || e.fleet.mayProbe(now) {
			if p, ok := e.breaker.TryProbe(now, e.probeLease()); ok {
				if f != nil {
					f.tried = now
				}
				e.announce(now)
				return ReasonNone, p
			}
		}
		return ReasonCircuitOpen, breaker.Probe{}
	}
	if p := e.refuseProbability(prio, e.countInFlight()); p > 0 && e.random() < p {
		return ReasonShed, breaker.Probe{}
	}
	return ReasonNone, breaker.Probe{}
}

func (e *Engine) articleAdmission(now time.Duration, prio int) (Reason, breaker.Probe) {
	st := e.circuit(now)
	if st == breaker.Open {
		return ReasonCircuitOpen, breaker.Probe{}
	}
	cps := e.weights.cps(e.signalsAt(st))
	if cps >= emergency && !e.neverOpens {
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
	_, b99 := e.baseline()
	lease := max(100*time.Millisecond, b99)
	if e.cfg.DisableTimeout {
		return lease
	}
	return min(time.Duration(e.timeoutNow.Load()), lease)
}

// ObserveDeadline tells how much time a caller has left, for those whose contexts do not say it: a protocol that carries it in another
// way, or a clock of one's own. Not positive says nothing. [Engine.Admit] learns it from the deadlines of contexts by itself.
func (e *Engine) ObserveDeadline(left time.Duration) {
	e.mu.Lock()
	e.observeDeadline(left)
	e.unlock()
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
	if e.neverOpens {
		return
	}
	if e.breaker.Trip(now, e.offeredRate()) {
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
	if f := e.fleet; f != nil && st != breaker.Closed {
		wait = max(wait, f.probeIn(now))
	}
	switch {
	case e.forcing() == breaker.ForcedOpen:
		e.refuseUntil.Store(math.MaxInt64)
	case st == breaker.Closed || wait <= 0:
		e.refuseUntil.Store(0)
	default:
		e.refuseUntil.Store(int64(now + wait))
	}
	if gen := e.breaker.Generation(); gen != e.gen {
		e.gen = gen
		e.stats.Transitions++
		e.newGeneration(now, st)
		if f := e.fleet; f != nil && st == breaker.Closed && f.epoch&1 == 1 && e.forcing() == breaker.Automatic { // by this guard's own probe
			f.turn()
			f.lease.until = now // the right was for this outage
		}
		if f := e.fleet; f != nil && f.wake != nil {
			f.wake()
		}
	}
	if st == e.state && e.forcing() == e.told {
		return
	}
	sig := e.signalsAt(st)
	e.event.push(StateChange{Target: e.cfg.Name, From: e.state, To: st, Forcing: e.forcing(), Generation: e.gen,
		CPS: e.cfg.Weights.CPS(sig), Evidence: e.cfg.Weights.Evidence(sig), Signals: sig})
	e.state, e.told = st, e.forcing()
}

// newGeneration starts with fresh evidence: what was admitted before still leaves the count of attempts in flight but
// touches no statistic. The article knows no generations.
func (e *Engine) newGeneration(now time.Duration, st breaker.State) {
	fresh := e.cfg.Profile == Adaptive && !e.off(limit.GenerationReset)
	orphans := int64(0)
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		s.credit, s.until = 0, 0
		orphans += max(0, min(s.orphans, s.inFlight))
		if fresh {
			s.gen = e.gen
			e.stats.Successes += s.success
			s.success = 0
			s.latencies.clear()
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
	e.armed = true
	if e.state == breaker.Closed {
		return // an operator set it free: there was no outage to recover from
	}
	e.limiter.Restart(float64(orphans))
	e.bucket.AtLeast(1)
}
