package suite

import (
	"context"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// samples of a timeline.
const samples = 480

// Watch makes one run of its own for a plot: looking at an engine advances it, so this is not one of the runs that are measured. A
// run that is cut short because ctx ended is no timeline: it returns the context's error.
func Watch(ctx context.Context, s *scenario.Scenario, name string, o Options) (*Timeline, error) {
	o.Scenarios, o.Policies = []*scenario.Scenario{s}, []string{name}
	if _, err := o.check(); err != nil {
		return nil, err
	}
	p, _ := policy.Find(name)
	t := &Timeline{Scenario: s.Name, Policy: p.Name, Incidents: s.Incidents()}
	for _, c := range s.Priorities {
		t.Priorities = append(t.Priorities, int(c.Priority))
	}
	so := o.options(s, p, o.Seed)
	so.Stop = func() bool { return ctx.Err() != nil }
	so.Samples = samples
	length := s.Duration.Seconds() / samples
	so.Observe = func(w *sim.World) {
		x := w.Sample()
		at := TimeSample{At: w.Now(), Offered: float64(x.Offered) / length, Attempts: float64(x.Attempts) / length}
		if g, ok := w.Guards(0)[0].(sim.Snapshotter); ok {
			p := g.Pressure()
			at.CPS, at.Evidence, at.Shed, at.Limit, at.Flight = p.CPS, p.Evidence, p.Shed, p.Limit, float64(p.InFlight)
			at.F, at.L, at.Q, at.B, at.C = p.Signals.F, p.Signals.L, p.Signals.Q, p.Signals.B, p.Signals.C
			at.Circuit = p.Circuit.String()
		}
		t.Samples = append(t.Samples, at)
	}
	w, err := sim.New(so)
	if err != nil {
		return nil, err
	}
	w.Run()
	if err := ctx.Err(); err != nil {
		return nil, err // it may have been cut short
	}
	for i, cohort := range w.Cohorts() {
		if i == len(t.Samples) {
			break
		}
		at := &t.Samples[i]
		for _, c := range cohort {
			at.Calls, at.Goodput = append(at.Calls, float64(c.Offered)), append(at.Goodput, float64(c.Good)/float64(c.Offered))
		}
	}
	return t, nil
}
