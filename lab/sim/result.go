package sim

import (
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// Result is what one run measured; the suite's page defines the measures. Shares are in [0,1].
type Result struct {
	Calls           int
	Goodput         float64
	GoodByPriority  []float64 // in the scenario's order, from the highest
	OfferedByClass  []int
	Attempts        int     // that reached the downstream
	Amplification   float64 // attempts a call offered
	InFault         float64 // attempts a call offered, within the incidents
	Recovered       bool    // false: never; true where there was nothing to recover from, or no time or no call to show it by
	TTR             time.Duration
	Outage          bool // there was a full one
	Detected        bool
	TTD             time.Duration
	Wasted          float64       // server-seconds on attempts whose client had gone
	P99             time.Duration // of the calls served
	FalseRejections float64       // share of the calls offered while the downstream was healthy
	RefusedHealthy  int           // the same as a count
	Inversions      int
	Overshoot       float64
	Transitions     float64 // a guard
	AdmittedCV      float64
	BeforeHint      int // retries sooner than the target's hint
	Rejections      map[cortex.Reason]int
}

// Result ends the run and sums it up. Of one that was stopped it is what was measured until then.
func (w *World) Result() Result {
	m := &w.meter
	if w.stopped {
		m.close(w.now)
	} else {
		m.close(w.scenario.Duration + w.scenario.Deadline + time.Second + bin) // the last second may not be a whole one
	}
	r := Result{Attempts: m.attempts, Wasted: w.target.wasted, P99: m.latency.quantile(0.99), RefusedHealthy: m.falseRejections,
		Inversions: m.inversions, Overshoot: m.peak, BeforeHint: m.beforeHint, Rejections: map[cortex.Reason]int{}}
	good := 0
	for _, c := range m.total {
		r.Calls += c.offered
		good += c.good
		r.OfferedByClass = append(r.OfferedByClass, c.offered)
		r.GoodByPriority = append(r.GoodByPriority, share(c.good, c.offered))
	}
	r.Goodput = share(good, r.Calls)
	r.Amplification = share(m.attempts, r.Calls)
	r.InFault = share(m.attemptsInFault, m.offeredInFault)
	r.FalseRejections = share(m.falseRejections, m.healthyOffered)
	r.Recovered = m.recovered >= 0 || m.offeredAfter == 0 || m.last+steadyBins*bin > w.scenario.Duration
	r.TTR = max(0, m.recovered)
	r.Outage = m.outage.To > 0
	r.Detected, r.TTD = m.detected >= 0, max(0, m.detected)
	for k, n := range m.rejections {
		if n > 0 {
			r.Rejections[cortex.Reason(k)] = n
		}
	}
	if m.seconds1 > 1 {
		mean := m.sum1 / m.seconds1
		if v := m.sq1/m.seconds1 - mean*mean; mean > 0 && v > 0 {
			r.AdmittedCV = math.Sqrt(v) / mean
		}
	}
	guards := 0
	for _, tier := range w.guards {
		for _, g := range tier {
			guards++
			if s, ok := g.(Switch); ok {
				r.Transitions += float64(s.Transitions())
			}
		}
	}
	if guards > 0 {
		r.Transitions /= float64(guards)
	}
	return r
}

func share(n, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}
