package cortex

import (
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// Observe takes in an attempt that was made without asking and is over: its priority, its number (0 is the original), its outcome,
// and how long it took. It is for callers that make their calls themselves and tell of them afterwards; those that can ask first
// should ([Engine.Admit]), for only an attempt that was admitted is seen while it is under way: there is no queue pressure without.
//
// While the circuit is open the attempt is taken for a probe where one is due, and says nothing where none is. Observe reports
// whether the outcome counted.
func (e *Engine) Observe(p Priority, attempt int, o Outcome, latency time.Duration) bool {
	now := e.now()
	prio := e.clampPriority(p)
	latency = min(max(0, latency), e.cfg.PermitLife) // what took longer would have been written off
	e.gauge.poll(e, now)
	i := uint8(0)
	if len(e.stripes) > 1 {
		i = e.stripe()
	}
	s := &e.stripes[i]
	e.mu.Lock()
	e.advance(now)
	probe, open := e.observedProbe(now)
	s.mu.Lock()
	if attempt == 0 {
		s.offered[prio]++
	}
	if open {
		s.stale++
		s.mu.Unlock()
		e.unlock()
		return false
	}
	s.attempts++
	s.done += latency // it was in flight for so long, all of it before now
	permit := Permit{e: e, start: now - latency, latency: latency, gen: s.gen, epoch: s.epoch, stripe: i, probe: probe, state: left | answered}
	s.mu.Unlock()
	e.unlock()
	return permit.Record(o)
}

// observedProbe is the probe that an attempt made without asking stands for; open reports that the circuit lets none through. e.mu is
// held.
func (e *Engine) observedProbe(now time.Duration) (probe breaker.Probe, open bool) {
	if e.circuit(now) == breaker.Closed {
		return breaker.Probe{}, false
	}
	lease := time.Duration(0)
	if e.cfg.Profile == Adaptive {
		if f := e.inFleet(); f != nil {
			if !f.mayProbe(now) {
				return breaker.Probe{}, true
			}
			f.tried = now
		}
		lease = e.probeLease()
	}
	probe, ok := e.breaker.TryProbe(now, lease)
	if ok {
		e.announce(now)
	}
	return probe, !ok
}

// RecordTook is [Permit.Record] with the latency as the caller measured it, for a report that comes some time after the attempt
// ended. It is cut to [0, the time since the admission].
func (p *Permit) RecordTook(o Outcome, latency time.Duration) bool {
	if p.e == nil {
		return false
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	if p.state&^left == 0 {
		if p.state == 0 {
			p.leave(s, now) // in flight until now: what was counted so cannot be taken back
		}
		p.state |= answered
		p.latency = min(max(0, latency), max(0, now-p.start))
	}
	s.mu.Unlock()
	return p.Record(o)
}
