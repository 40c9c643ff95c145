package sim

// Poison keeps this run from using calls and attempts again that are free: a use after the end has a pointer to nothing.
func (w *World) Poison() { w.alive = &alive{} }

// Alive is how many calls and attempts of a poisoned run are not free, and how many of the attempts the target still has.
func (w *World) Alive() (calls, attempts, held int) {
	held = len(w.target.serving) + w.target.n - w.target.holes
	for _, e := range w.events {
		if e.kind == evAnswer || e.kind == evRefused {
			held++
		}
	}
	return w.alive.calls, w.alive.attempts, held
}

// Target is what the target has at hand: attempts in service and in the queue, and the workers it has now.
func (w *World) Target() (serving, waiting, workers int) {
	return len(w.target.serving), w.target.n - w.target.holes, w.target.workers
}

// Burst is what a throttle lets through at once.
var Burst = burst

// Rig is the suite's rig with a change, validated.
var Rig = valid
