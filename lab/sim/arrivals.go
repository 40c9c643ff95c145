package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// arrivals are the calls of an open system, one at a time.
type arrivals struct {
	s    *scenario.Scenario
	next time.Duration
	over bool

	times, classes *rand.Rand
	cumulative     []float64 // of the shares

	piece int           // of a step function: in force
	until time.Duration // its end
	gap   float64       // constant: what is left of the distance to the next call, in calls
	left  int           // trace: calls still to come in this second
}

func (a *arrivals) init(s *scenario.Scenario, seed uint64) {
	a.s = s
	a.times = rand.New(rand.NewPCG(seed, streamArrivals))
	a.classes = rand.New(rand.NewPCG(seed, streamPriorities))
	sum := 0.0
	for _, p := range s.Priorities {
		sum += p.Share
		a.cumulative = append(a.cumulative, sum)
	}
	a.piece, a.gap = -1, 0.5
	if s.Callers.Count > 0 {
		a.over = true
		return
	}
	a.step()
}

// priority draws the class of the call that arrives.
func (a *arrivals) priority() (cortex.Priority, int) {
	u := a.classes.Float64()
	i := 0
	for i < len(a.cumulative)-1 && u >= a.cumulative[i] {
		i++
	}
	return a.s.Priorities[i].Priority, i
}

// step moves on to the next arrival.
func (a *arrivals) step() {
	if len(a.s.Arrivals.Trace) > 0 {
		a.stepTrace()
	} else {
		a.stepRate()
	}
	if a.next >= a.s.Duration {
		a.over = true
	}
}

// stepRate draws from a rate that is constant in pieces: what is left of the distance at the end of a piece goes on in the next, which
// for a Poisson process is exact.
func (a *arrivals) stepRate() {
	steps := a.s.Arrivals.Steps
	if a.s.Arrivals.Process == scenario.Constant {
		if a.piece >= 0 && a.gap == 0 {
			a.gap = 1
		}
	} else {
		a.gap = a.times.ExpFloat64()
	}
	for {
		rate := 0.0
		end := time.Duration(math.MaxInt64)
		if a.piece >= 0 {
			rate = steps[a.piece].Rate * a.s.Arrivals.Scale
		}
		if a.piece+1 < len(steps) {
			end = steps[a.piece+1].From
		}
		if rate > 0 {
			d := a.gap / rate * 1e9
			if d < float64(end-a.next) {
				a.next += time.Duration(d)
				a.gap = 0
				return
			}
			a.gap -= rate * (end - a.next).Seconds()
		}
		if end == math.MaxInt64 {
			a.next = math.MaxInt64
			return
		}
		a.next = end
		a.piece++
	}
}

// stepTrace spreads the count of each second over it: at random, or evenly. A count that scaling makes fractional is rounded at random.
func (a *arrivals) stepTrace() {
	trace := a.s.Arrivals.Trace
	for a.left == 0 {
		a.piece++
		if a.piece >= len(trace) {
			a.next = math.MaxInt64
			return
		}
		n := trace[a.piece] * a.s.Arrivals.Scale
		a.left = int(n)
		if a.times.Float64() < n-math.Floor(n) {
			a.left++
		}
		a.next = time.Duration(a.piece) * time.Second
		a.until = a.next + time.Second
		if a.s.Arrivals.Process == scenario.Constant && a.left > 0 {
			a.next += time.Second / time.Duration(2*a.left)
			a.gap = float64(time.Second) / float64(a.left)
			a.left--
			return
		}
	}
	if a.s.Arrivals.Process == scenario.Constant {
		a.next += time.Duration(a.gap)
	} else { // the least of what is left, each uniform over the rest of the second
		u := 1 - math.Pow(1-a.times.Float64(), 1/float64(a.left))
		a.next += time.Duration(float64(a.until-a.next) * u)
	}
	a.left--
}
