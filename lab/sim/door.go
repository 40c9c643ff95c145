package sim

import (
	"errors"

	"github.com/seed-a29ca62a/cortex"
)

// A Door is a guard at the target's own door: it sees every client's attempts, and the work that goes on after a client has left.
type Door interface {
	// Enter asks for an attempt; ReasonNone lets it in.
	Enter(a *Attempt, p *cortex.Permit) cortex.Reason
	// Gone is told that the client of an attempt that is still under way waits no longer.
	Gone(a *Attempt, p *cortex.Permit)
	// Leave is told when the target is done with it.
	Leave(a *Attempt, p *cortex.Permit, o cortex.Outcome)
	// Shed is the fraction that it sheds now; its answers carry it.
	Shed() float64
}

type door struct {
	w *World
	g Door
}

func newDoor(w *World, g Guard) (*door, error) {
	d, ok := g.(Door)
	if !ok {
		return nil, errors.New("the guard at the door must be an engine")
	}
	return &door{w, d}, nil
}

// admit lets an attempt in or answers it without any work.
func (d *door) admit(a *Attempt) bool {
	r := d.g.Enter(a, &a.door)
	if r == cortex.ReasonNone {
		return true
	}
	a.fail = Failure{} // as cortexhttp.ClassOf has it
	if r == cortex.ReasonShed {
		a.fail = Failure{Outcome: cortex.Throttled, Retryable: true}
	}
	d.w.after(refusal, event{kind: evRefused, what: a})
	return false
}

// gone is the end of a client's patience, which its deadline header has told.
func (d *door) gone(a *Attempt) { d.g.Gone(a, &a.door) }

func (d *door) done(a *Attempt, o cortex.Outcome) {
	d.g.Leave(a, &a.door, o)
	d.report(a)
}

// report is the pressure in an answer's header.
func (d *door) report(a *Attempt) {
	if a.over || a.Call == nil || d.w.guards == nil {
		return
	}
	if o, ok := d.w.guard(a.Call).(RemoteObserver); ok {
		o.ObserveRemote(d.g.Shed())
	}
}

// refused brings the door's refusal to the client.
func (d *door) refused(a *Attempt) {
	d.report(a)
	d.w.answered(a, a.fail)
	d.w.release(a)
}
