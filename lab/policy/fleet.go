package policy

import (
	"context"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// Door makes the guard at the target's door: an engine that sees all the load and cuts nothing. How long its callers wait it is
// told with every call, as by a deadline header.
func Door() sim.Maker {
	make := Engine(func(c *cortex.Config) { c.DisableTimeout = true })
	return func(env sim.Env) (sim.Guard, error) {
		g, err := make(env)
		if err != nil {
			return nil, err
		}
		return &doorGuard{engineGuard: g.(*engineGuard), said: -1}, nil
	}
}

type doorGuard struct {
	*engineGuard
	said time.Duration // when shed was read
	shed float64
}

// reportAge is how long a reported pressure is used again, as by the product's middleware.
const reportAge = 10 * time.Millisecond

// Enter asks for an attempt.
func (g *doorGuard) Enter(a *sim.Attempt, p *cortex.Permit) cortex.Reason {
	g.e.ObserveDeadline(a.Due - g.env.Now())
	var err error
	*p, err = g.e.Admit(context.Background(), a.Call.Priority)
	return reason(err)
}

// Gone records that the client's time is over; the work goes on.
func (g *doorGuard) Gone(_ *sim.Attempt, p *cortex.Permit) { p.Abandoned(context.DeadlineExceeded) }

// Leave records what came of the work.
func (g *doorGuard) Leave(_ *sim.Attempt, p *cortex.Permit, o cortex.Outcome) { p.Record(o) }

// Shed is the share that it sheds.
func (g *doorGuard) Shed() float64 {
	if now := g.env.Now(); g.said < 0 || now-g.said >= reportAge {
		g.said, g.shed = now, g.e.Pressure().Shed
	}
	return g.shed
}

// TakeReport and ObserveFleet share what the guard saw.
func (g *engineGuard) TakeReport() cortex.FleetReport  { return g.e.TakeReport() }
func (g *engineGuard) ObserveFleet(v cortex.FleetView) { g.e.ObserveFleet(v) }
