package model

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/parallel"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// settle is how long a run is healthy before the trigger, watch how long its goodput is measured at the end.
const (
	settle = 15 * time.Second
	watch  = 5 * time.Second
)

// cascadeScenario is the chain's system in the simulator: exponential service, and a hang in which every attempt that begins takes as
// long as the hang. Calls have time for all their attempts.
func (in *CascadeInput) scenario(utilisation float64) (*scenario.Scenario, error) {
	from := max(settle, 2*watch)
	end := (from + in.Hang + in.Horizon).Truncate(time.Second) + time.Second // of the run
	from = end - in.Horizon - in.Hang
	patience := time.Duration(in.Retries+1) * in.Timeout
	for k := range in.Retries {
		patience += in.BaseDelay << k
	}
	s := &scenario.Scenario{
		Name: "cascade", Duration: end, Deadline: max(3*time.Second, patience+time.Second),
		Arrivals: scenario.Arrivals{Steps: []scenario.Step{{Rate: utilisation * float64(in.Servers) / in.Service.Seconds()}}},
		Client:   scenario.Client{Timeout: in.Timeout, MaxRetries: in.Retries, BaseDelay: in.BaseDelay},
		Downstream: scenario.Downstream{Workers: in.Servers, Queue: in.Queue,
			Service: scenario.Service{Distribution: scenario.Exponential, Mean: in.Service}},
		Faults: []scenario.Fault{{From: from, To: from + in.Hang, Kind: scenario.Hang, Latency: in.Hang}},
	}
	return s, s.Validate()
}

// GoodputAtEnd makes a run and returns the calls answered ÷ offered in the last seconds of it; a run without calls there is as good as 1.
func GoodputAtEnd(s *scenario.Scenario, guard sim.Maker, seed uint64, last time.Duration, stop func() bool) (float64, error) {
	seconds := int(math.Ceil(s.Duration.Seconds()))
	from := s.Duration - last
	var offered, good int
	w, err := sim.New(sim.Options{Scenario: s, Seed: seed, Guard: guard, Samples: seconds, Stop: stop, Observe: func(w *sim.World) {
		if w.Now() <= from {
			return
		}
		x := w.Sample()
		offered += x.Offered
		for _, c := range x.ByClass {
			good += c.Good
		}
	}})
	if err != nil {
		return 0, err
	}
	w.Run()
	if offered == 0 {
		return 1, nil
	}
	return float64(good) / float64(offered), nil
}

// simulate makes runs of the simulator and counts those that are collapsed at the horizon.
func (in *CascadeInput) simulate(ctx context.Context, name string, utilisation float64, runs int) (int, error) {
	p, err := policy.Find(name)
	if err != nil {
		return 0, err
	}
	s, err := in.scenario(utilisation)
	if err != nil {
		return 0, err
	}
	var collapsed atomic.Int64
	err = parallel.Each(ctx, runs, 0, nil, func(i int) error {
		g, err := GoodputAtEnd(s, p.Make, in.Seed+uint64(i), watch, func() bool { return ctx.Err() != nil })
		if err == nil && g < 0.5 {
			collapsed.Add(1)
		}
		return err
	})
	return int(collapsed.Load()), err
}
