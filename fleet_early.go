package cortex

// FleetOutcomes are what the attempts of a fleet came to so far in an interval that has not ended: evidence for the circuit, which cannot wait
// until all have reported.
type FleetOutcomes struct {
	Epoch uint64 // of the circuit; outcomes of another one say nothing
	Open  uint64 // guards whose circuit is not closed

	Success, Failure, Patient uint64 // as in a [FleetReport]
}

// ObserveOutcomes takes in outcomes of the fleet, this guard's included, before the view that covers them: what came since it was last told. The
// circuit opens on them by the rule of [Engine.ObserveFleet], which is then to be told in FleetView.Told what was told before; nothing else learns
// from them. A newer epoch is followed at once. It has no effect where the guard is alone.
func (e *Engine) ObserveOutcomes(o FleetOutcomes) {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	f := e.inFleet()
	if f == nil || o.Epoch < f.epoch || o.Epoch-f.epoch > 1<<32 {
		return
	}
	e.advance(now)
	v := FleetView{Span: f.interval, FleetReport: FleetReport{Epoch: o.Epoch, Guards: f.guards, Open: o.Open, Success: o.Success,
		Failure: o.Failure, Timeout: o.Patient, Patient: o.Patient}}
	f.adopt(e, &v, now)
	f.decide(e, &v, now)
}

// deduct takes out of a view what was told before, for the circuit's rule.
func (v *FleetView) deduct() {
	v.Success -= min(v.Success, v.Told.Success)
	v.Failure -= min(v.Failure, v.Told.Failure)
	v.Patient -= min(v.Patient, v.Told.Patient)
}

// WatchFleet sets what is called when there is something that the fleet should hear of before the next interval: failures that begin, and a
// transition of the circuit. It is called often while they last, with a lock of the engine held: it must return at once, and must not call the engine.
// nil ends it.
func (e *Engine) WatchFleet(wake func()) {
	e.mu.Lock()
	defer e.unlock()
	if e.fleet != nil {
		e.fleet.wake = wake
	}
}

const alarming = 16 // successes to a failure, at which failures have begun

// alarm wakes whoever carries the reports, where failures begin. e.mu is held.
func (e *Engine) alarm() {
	f := e.fleet
	if f == nil || f.wake == nil {
		return
	}
	bad := f.out.Failure + f.out.Timeout + e.pending.Failure + e.pending.Timeout
	if alarming*bad >= f.out.Success+e.pending.Success {
		f.wake()
	}
}
