package cortex

import (
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

// Force obeys an operator's order to the circuit and returns the one that was in force before. It takes effect before Force
// returns, and stands until the next order; it does not expire.
//
//   - [breaker.ForcedOpen]: every call and every retry is refused with [ReasonCircuitOpen], without any probe. Attempts in flight go
//     on; their results count no more.
//   - [breaker.ForcedClosed]: the circuit closes if need be, and nothing opens it: no outcome, no pressure, no fleet. Limit, shedding,
//     retry budget and timeouts go on.
//   - [breaker.Automatic]: a new generation begins with fresh evidence. After ForcedOpen the circuit is open and due for a probe at
//     once; after ForcedClosed it is closed. A guard in a fleet does what the fleet's circuit does instead.
//
// The order is this guard's alone: others of its fleet do not follow it, and are not told of its circuit. Config.OnStateChange hears of
// every order that changes something. An order that is in force already, or unknown, changes nothing.
func (e *Engine) Force(f breaker.Forcing) (was breaker.Forcing) {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	was = e.forcing()
	if f == was || f > breaker.ForcedClosed {
		return was
	}
	e.advance(now)
	e.stats.Orders++
	rate := e.offeredRate()
	e.neverOpens = f == breaker.ForcedClosed || e.off(limit.Circuit)
	if f == breaker.Automatic {
		open := e.opensWhenFree(was)
		if open && was == breaker.ForcedClosed {
			e.breaker.Force(now, breaker.ForcedOpen, rate) // so that a probe is due
		}
		e.breaker.Force(now, f, rate)
		if !open {
			e.breaker.Close(now)
		}
		if e.cfg.Profile == Article { // whose generations keep the evidence
			e.rolling.Reset(now)
			e.sig = signals{}
		}
	} else {
		e.breaker.Force(now, f, rate)
	}
	for p := range e.rejections[ReasonCircuitOpen] { // they tell of what was
		e.rejections[ReasonCircuitOpen][p].Store(nil)
	}
	e.announce(now)
	return was
}

// forcing is the operator's order in force. e.mu is held, as for all below.
func (e *Engine) forcing() breaker.Forcing { return e.breaker.Forced() }

// opensWhenFree reports whether the circuit is open once the order that stands ends.
func (e *Engine) opensWhenFree(was breaker.Forcing) bool {
	if f := e.fleet; f != nil && (f.active || f.epoch&1 == 1) {
		return f.epoch&1 == 1 // where all others are
	}
	return was == breaker.ForcedOpen && !e.off(limit.Circuit)
}

// forced takes out of a report what would mislead the fleet of a guard that does not act by the law.
func (r *FleetReport) forced(f breaker.Forcing) {
	r.Open, r.Probing = 0, 0 // an operator's word is no evidence against the target
	if f == breaker.ForcedOpen {
		clear(r.Offered[:]) // nothing of it is asked of the target
	}
	if r.Epoch&1 == 1 { // in an open circuit outcomes would be taken for those of probes
		r.forget()
		r.Area = 0
	}
}
