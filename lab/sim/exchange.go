package sim

import (
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// A Sharer is a guard that tells others what it saw, and acts on what all have seen.
type Sharer interface {
	TakeReport() cortex.FleetReport
	ObserveFleet(cortex.FleetView)
}

// exchange is the place where the guards of a tier meet. Every interval each leaves a report there and is given the sum of those that
// were left an interval ago: what a guard acts on is from one to two intervals old, which is the worst that a shared store with one
// round trip an interval does.
type exchange struct {
	guards []Sharer
	rand   *rand.Rand
	ready  bool // there is a sum
	sum    cortex.FleetReport
	open   []int // guards whose circuit was not closed
	prober int   // -1: none
}

// exchange lets the guards of every tier tell each other what they saw.
func (w *World) exchange() {
	if w.exchanges == nil {
		for tier := range w.guards {
			x := &exchange{rand: rand.New(rand.NewPCG(w.opt.Seed, streamExchange+uint64(tier))), prober: -1}
			for _, g := range w.guards[tier] {
				if s, ok := g.(Sharer); ok {
					x.guards = append(x.guards, s)
				}
			}
			w.exchanges = append(w.exchanges, x)
		}
	}
	for _, x := range w.exchanges {
		x.meet(w.opt.Exchange)
	}
}

func (x *exchange) meet(interval time.Duration) {
	if x.ready {
		v := cortex.FleetView{FleetReport: x.sum, Span: interval, Age: interval}
		for i, g := range x.guards {
			v.Prober = i == x.prober
			g.ObserveFleet(v)
		}
	}
	x.ready = true
	x.sum = cortex.FleetReport{}
	x.open = x.open[:0]
	probing := false
	for i, g := range x.guards {
		r := g.TakeReport()
		x.sum.Add(&r)
		if r.Open > 0 {
			x.open = append(x.open, i)
		}
		probing = probing || i == x.prober && r.Probing > 0
	}
	switch {
	case probing: // the right to probe stays where it is used
	case len(x.open) == 0:
		x.prober = -1
	default:
		x.prober = x.open[x.rand.IntN(len(x.open))]
	}
}
