package suite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/parallel"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// MaxInstances bounds a fleet.
const MaxInstances = 10_000

// An OptionError says which option cannot be used and what would be right.
type OptionError struct {
	Option string
	Value  any
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s: %v: want %s", e.Option, e.Value, e.Want)
}

// Policies are the names of the policies, in the order of tables.
func Policies() []string {
	var names []string
	for _, p := range policy.All() {
		names = append(names, p.Name)
	}
	return names
}

// plan is one scenario under one policy.
type plan struct {
	s     *scenario.Scenario
	p     policy.Policy
	seeds int
	runs  []sim.Result
	done  []bool
}

// Validate is the error that [Run] would begin with, an [OptionError], or nil.
func (o *Options) Validate() error {
	_, err := o.check()
	return err
}

func (o *Options) check() ([]plan, error) {
	if len(o.Scenarios) == 0 {
		return nil, &OptionError{"scenario", "none", "at least one"}
	}
	if len(o.Policies) == 0 {
		return nil, &OptionError{"policy", "none", strings.Join(Policies(), ", ") + ", or all"}
	}
	if o.Seeds < 0 || o.Seeds > 10_000 {
		return nil, &OptionError{"seeds", o.Seeds, "from 1 to 10000"}
	}
	if o.Instances < 0 || o.Instances > MaxInstances {
		return nil, &OptionError{"instances", o.Instances, fmt.Sprintf("from 1 to %d", MaxInstances)}
	}
	if _, _, err := parseShare(o.Share); err != nil {
		return nil, err
	}
	var plans []plan
	for _, s := range o.Scenarios {
		for _, name := range o.Policies {
			p, err := policy.Find(name)
			if err != nil {
				return nil, &OptionError{"policy", name, strings.Join(Policies(), ", ") + ", or all"}
			}
			n := o.Seeds
			if n == 0 {
				n = s.Seeds
			}
			plans = append(plans, plan{s: s, p: p, seeds: n, runs: make([]sim.Result, n), done: make([]bool, n)})
		}
	}
	return plans, nil
}

// parseShare says what guards of a fleet know of each other: nothing, or what they tell each other with a delay, or what a guard at
// the target's door tells them.
func parseShare(text string) (delay time.Duration, door bool, err error) {
	switch text {
	case "", "none":
		return 0, false, nil
	case "door":
		return 0, true, nil
	}
	delay, err = time.ParseDuration(text)
	if err != nil || delay < 10*time.Millisecond || delay > time.Minute {
		return 0, false, &OptionError{"share", text, "none, door, or the delay of shared counts from 10ms to 1m, such as 250ms"}
	}
	return delay, false, nil
}

// options of one run.
func (o *Options) options(s *scenario.Scenario, p policy.Policy, seed uint64) sim.Options {
	so := sim.Options{Scenario: s, Seed: seed, Guard: p.Make, Instances: o.Instances}
	delay, door, _ := parseShare(o.Share) // checked
	so.Exchange = delay
	if door {
		so.Door = policy.Door()
	}
	return so
}

// Run runs everything. Rows come by scenario, then policy; they are the same whatever Parallel is. When ctx ends it returns what is
// done, with as many seeds as there are, and the context's error. Other errors are of the options.
func Run(ctx context.Context, o Options) ([]Row, error) {
	plans, err := o.check()
	if err != nil {
		return nil, err
	}
	total := 0
	for _, p := range plans {
		total += p.seeds
	}
	err = parallel.Each(ctx, total, o.Parallel, o.Progress, func(i int) error {
		p, seed := job(plans, i)
		so := o.options(p.s, p.p, o.Seed+uint64(seed))
		so.Stop = func() bool { return ctx.Err() != nil }
		w, err := sim.New(so)
		if err != nil {
			return fmt.Errorf("scenario %s, policy %s: %w", p.s.Name, p.p.Name, err)
		}
		r := w.Run()
		if err := ctx.Err(); err != nil {
			return err // it may have been cut short
		}
		p.runs[seed], p.done[seed] = r, true
		return nil
	})
	if err != nil && !errors.Is(err, ctx.Err()) {
		return nil, err
	}
	var rows []Row
	for i := range plans {
		if r, ok := plans[i].row(&o); ok {
			rows = append(rows, r)
		}
	}
	return rows, err
}

// job is the plan and the seed of the ith run.
func job(plans []plan, i int) (*plan, int) {
	k := 0
	for ; i >= plans[k].seeds; k++ {
		i -= plans[k].seeds
	}
	return &plans[k], i
}

// row sums up the runs that are done.
func (p *plan) row(o *Options) (Row, bool) {
	var runs []sim.Result
	for i, ok := range p.done {
		if ok {
			runs = append(runs, p.runs[i])
		}
	}
	if len(runs) == 0 {
		return Row{}, false
	}
	r := Summarize(p.s, p.p.Name, runs)
	if o.Instances > 1 || o.Share == "door" {
		r.Instances, r.Share = max(1, o.Instances), o.Share
		if r.Share == "" {
			r.Share = "none"
		}
	}
	return r, true
}

// Summarize makes a row of runs of the same scenario under the same policy.
func Summarize(s *scenario.Scenario, policy string, runs []sim.Result) Row {
	r := Row{Scenario: s.Name, Policy: policy, Seeds: len(runs), GoodputByPriority: map[string]float64{}, OracleByPriority: map[string]float64{},
		Rejections: map[string]float64{}, EfficiencyWorst: math.Inf(1)}
	var by []float64
	r.Oracle, by = s.Oracle()
	n := float64(len(runs))
	var ttr, ttd, square float64
	detected, outages := 0, 0
	for _, x := range runs {
		r.Offered += float64(x.Calls) / n
		r.Goodput += x.Goodput / n
		for i, g := range x.GoodByPriority {
			r.GoodputByPriority[priority(s, i)] += g / n
		}
		if r.Oracle > 0 {
			r.EfficiencyWorst = min(r.EfficiencyWorst, x.Goodput/r.Oracle)
		}
		r.Amplification += x.Amplification / n
		r.AmplificationInFault += x.InFault / n
		if x.Recovered {
			ttr += x.TTR.Seconds() / n
		} else {
			r.NeverRecovered++
		}
		if x.Outage {
			outages++
			if x.Detected {
				detected++
				ttd += x.TTD.Seconds() / n
			}
		}
		r.WastedServerS += x.Wasted / n
		r.P99ServedMS += x.P99.Seconds() * 1e3 / n
		r.FalseRejections += x.FalseRejections / n
		r.Inversions += float64(x.Inversions) / n
		r.Overshoot += x.Overshoot / n
		r.Transitions += x.Transitions / n
		r.AdmittedCV += x.AdmittedCV / n
		for k, v := range x.Rejections {
			r.Rejections[k.String()] += float64(v) / n
		}
	}
	for _, x := range runs {
		square += (x.Goodput - r.Goodput) * (x.Goodput - r.Goodput)
	}
	if n > 1 {
		r.GoodputSD = math.Sqrt(square / (n - 1))
	}
	for i, g := range by {
		r.OracleByPriority[priority(s, i)] = g
	}
	if r.Oracle > 0 {
		r.Efficiency = r.Goodput / r.Oracle
	} else {
		r.EfficiencyWorst = 0
	}
	r.TransitionsPerMinute = r.Transitions / s.Duration.Minutes()
	if r.NeverRecovered == 0 {
		r.TTR = &ttr
	}
	if outages > 0 && detected == outages {
		r.TTD = &ttd
	}
	return r
}

func priority(s *scenario.Scenario, class int) string {
	return strconv.Itoa(int(s.Priorities[class].Priority))
}
