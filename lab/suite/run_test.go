package suite_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// short are scenarios of every kind, a few seconds each.
func short(t testing.TB) []*scenario.Scenario {
	t.Helper()
	second := func(from, to time.Duration, f scenario.Fault) []scenario.Fault {
		f.From, f.To = from*time.Second, to*time.Second
		return []scenario.Fault{f}
	}
	var list []*scenario.Scenario
	for i, change := range []func(*scenario.Scenario){
		func(s *scenario.Scenario) { s.Faults = second(2, 5, scenario.Fault{Kind: scenario.Hang}) },
		func(s *scenario.Scenario) {
			s.Faults = second(2, 5, scenario.Fault{Kind: scenario.Throttle, Limit: 200, RetryAfter: time.Second})
		},
		func(s *scenario.Scenario) {
			s.Faults, s.Arrivals.Steps, s.Callers = second(2, 5, scenario.Fault{Kind: scenario.Error, Probability: 1}), nil, scenario.Callers{Count: 300, Think: time.Second}
		},
		func(s *scenario.Scenario) {
			s.Faults, s.Hops, s.Mark = second(2, 5, scenario.Fault{Kind: scenario.Error, Probability: 0.7}), 3, true
		},
		func(s *scenario.Scenario) {
			s.Faults, s.Arrivals, s.Client.Timeout = second(2, 5, scenario.Fault{Kind: scenario.Slow, Factor: 3}), scenario.Arrivals{Trace: []float64{300, 500, 400, 500, 400, 300, 1, 500}}, 0
		},
	} {
		s := scenario.Rig()
		s.Name, s.Duration = fmt.Sprint("short-", i), 9*time.Second
		change(s)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	return list
}

// The same scenarios and seed give the same bytes, however many processors there are and however many runs go on at a time.
func TestRowsAreTheSameOnAnyMachine(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, o := range []suite.Options{
		{Policies: suite.Policies(), Seeds: 2, Seed: 7},
		{Policies: []string{"cortex-adaptive", "hystrix"}, Seeds: 2, Instances: 4},
		{Policies: []string{"cortex-adaptive"}, Seeds: 2, Instances: 4, Share: "250ms"},
		{Policies: []string{"cortex-adaptive"}, Seeds: 2, Instances: 4, Share: "door"},
	} {
		o.Scenarios = short(t)
		if raced {
			o.Scenarios = o.Scenarios[:1]
		}
		if o.Share == "door" || o.Share == "250ms" { // of one tier
			o.Scenarios = slices.DeleteFunc(o.Scenarios, func(s *scenario.Scenario) bool { return s.Hops > 1 })
		}
		var first []byte
		for i, processors := range []int{1, 2, 8} {
			runtime.GOMAXPROCS(processors)
			o.Parallel = [...]int{1, 7, 2}[i]
			rows, err := suite.Run(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			if want := len(o.Scenarios) * len(o.Policies); len(rows) != want {
				t.Fatalf("%d rows, want %d", len(rows), want)
			}
			for k, r := range rows {
				if r.Scenario != o.Scenarios[k/len(o.Policies)].Name || r.Policy != o.Policies[k%len(o.Policies)] {
					t.Errorf("row %d is %s under %s", k, r.Scenario, r.Policy)
				}
			}
			b, err := json.Marshal(rows)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = b
			} else if string(b) != string(first) {
				t.Errorf("%d guards, shared %q: on %d processors, %d runs at a time:\n%s\non one:\n%s", o.Instances, o.Share, processors, o.Parallel, b, first)
			}
		}
	}
}

// Another seed is another run, and the first seed's arrivals are the same under every policy.
func TestSeedsCountUp(t *testing.T) {
	list := short(t)[:1]
	rows := func(o suite.Options) []suite.Row {
		o.Scenarios = list
		r, err := suite.Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	one := rows(suite.Options{Policies: []string{"none", "exponential", "cortex-adaptive"}, Seeds: 1, Seed: 1})
	if one[0].Offered != one[1].Offered || one[1].Offered != one[2].Offered {
		t.Errorf("%v, %v and %v calls of the same seed", one[0].Offered, one[1].Offered, one[2].Offered)
	}
	two := rows(suite.Options{Policies: []string{"none"}, Seeds: 1, Seed: 2})
	both := rows(suite.Options{Policies: []string{"none"}, Seeds: 2, Seed: 1})
	if one[0].Goodput == two[0].Goodput {
		t.Error("two seeds, one run")
	}
	if mean := (one[0].Goodput + two[0].Goodput) / 2; math.Abs(both[0].Goodput-mean) > 1e-12 || both[0].Seeds != 2 {
		t.Errorf("mean %v of %d seeds, want %v", both[0].Goodput, both[0].Seeds, mean)
	}
	if sd := math.Abs(one[0].Goodput-two[0].Goodput) / math.Sqrt2; math.Abs(both[0].GoodputSD-sd) > 1e-12 {
		t.Errorf("standard deviation %v, want %v", both[0].GoodputSD, sd)
	}
}

// Interrupted, a run gives what is done.
func TestAnInterruptedRunGivesWhatIsDone(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	list := short(t)
	last := 0
	rows, err := suite.Run(ctx, suite.Options{Scenarios: list, Policies: []string{"none", "cortex-adaptive"}, Seeds: 3, Parallel: 1, Progress: func(done, total int) {
		if total != 3*2*len(list) || done != last+1 {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		if last = done; done == 7 {
			stop()
		}
	}})
	if !errors.Is(err, context.Canceled) || last != 7 {
		t.Errorf("%v, after %d", err, last)
	}
	got := []int{}
	for _, r := range rows {
		got = append(got, r.Seeds)
	}
	if !slices.Equal(got, []int{3, 3, 1}) {
		t.Errorf("rows of %v seeds", got)
	}
	if rows, err := suite.Run(ctx, suite.Options{Scenarios: list, Policies: []string{"none"}}); len(rows) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v of a context that had ended", rows, err)
	}
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	good := suite.Options{Scenarios: short(t)[:1], Policies: []string{"none"}, Seeds: 1}
	for _, c := range []struct {
		option string
		change func(*suite.Options)
	}{
		{"scenario", func(o *suite.Options) { o.Scenarios = nil }},
		{"policy", func(o *suite.Options) { o.Policies = nil }},
		{"policy", func(o *suite.Options) { o.Policies = []string{"none", "hope"} }},
		{"seeds", func(o *suite.Options) { o.Seeds = -1 }},
		{"seeds", func(o *suite.Options) { o.Seeds = 10_001 }},
		{"instances", func(o *suite.Options) { o.Instances = -1 }},
		{"instances", func(o *suite.Options) { o.Instances = suite.MaxInstances + 1 }},
		{"share", func(o *suite.Options) { o.Share = "everything" }},
		{"share", func(o *suite.Options) { o.Share = "1ms" }},
		{"share", func(o *suite.Options) { o.Share = "-250ms" }},
	} {
		o := good
		c.change(&o)
		_, err := suite.Run(context.Background(), o)
		var oe *suite.OptionError
		if !errors.As(err, &oe) || oe.Option != c.option {
			t.Errorf("%s: %v", c.option, err)
		}
	}
	if _, err := suite.Run(context.Background(), good); err != nil {
		t.Error(err)
	}
}

// A row says of runs what it says it says.
func TestSummarize(t *testing.T) {
	s := scenario.Rig()
	s.Faults = []scenario.Fault{{From: 20 * time.Second, To: 60 * time.Second, Kind: scenario.Hang}}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	oracle, _ := s.Oracle()
	a := sim.Result{Calls: 100, Goodput: 0.6, GoodByPriority: []float64{0.9, 0.8, 0.7, 0.1}, Amplification: 1, InFault: 0.1, Recovered: true, TTR: time.Second,
		Outage: true, Detected: true, TTD: 2 * time.Second, Wasted: 3, P99: 40 * time.Millisecond, FalseRejections: 0.01, Inversions: 4, Overshoot: 1, Transitions: 6,
		Rejections: map[cortex.Reason]int{cortex.ReasonShed: 10}}
	b := a
	b.Calls, b.Goodput, b.TTR, b.TTD, b.Rejections = 200, 0.5, 3*time.Second, 4*time.Second, map[cortex.Reason]int{cortex.ReasonBudget: 3}
	r := suite.Summarize(s, "p", []sim.Result{a, b})
	if r.Offered != 150 || math.Abs(r.Goodput-0.55) > 1e-12 || math.Abs(r.Efficiency-0.55/oracle) > 1e-12 || math.Abs(r.EfficiencyWorst-0.5/oracle) > 1e-12 ||
		*r.TTR != 2 || *r.TTD != 3 || r.Transitions != 6 || r.TransitionsPerMinute != 3 || r.P99ServedMS != 40 || math.Abs(r.GoodputByPriority["2"]-0.1) > 1e-12 ||
		r.Rejections["SHED_LOW_PRIORITY"] != 5 || r.Rejections["BUDGET_EXHAUSTED"] != 1.5 {
		t.Errorf("%+v", r)
	}
	b.Recovered, b.Detected = false, false
	if r := suite.Summarize(s, "p", []sim.Result{a, b}); r.TTR != nil || r.NeverRecovered != 1 || r.TTD != nil {
		t.Errorf("one of two seeds never recovered: %+v", r)
	}
	a.Outage, a.Detected = false, false
	if r := suite.Summarize(s, "p", []sim.Result{a}); r.TTD != nil || r.GoodputSD != 0 {
		t.Errorf("%+v", r)
	}
	s.Arrivals.Steps[0].Rate = 0
	r = suite.Summarize(s, "p", []sim.Result{{Recovered: true, GoodByPriority: make([]float64, 4)}})
	if _, err := json.Marshal(r); err != nil || r.Efficiency != 0 || r.EfficiencyWorst != 0 {
		t.Errorf("of no call at all: %v, %+v", err, r)
	}
}

// A timeline covers its run; what became of the calls in it is what became of them in the run.
func TestWatch(t *testing.T) {
	for _, s := range short(t) {
		w, err := suite.Watch(context.Background(), s, "cortex-adaptive", suite.Options{Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(w.Samples); n != 480 || w.Samples[n-1].At > s.Duration || w.Samples[n-1].At < s.Duration*99/100 {
			t.Fatalf("%s: %d samples, the last at %v", s.Name, n, w.Samples[n-1].At)
		}
		calls, good, inService := 0.0, 0.0, false
		for _, x := range w.Samples {
			for i, n := range x.Calls {
				calls += n
				if n > 0 {
					good += n * x.Goodput[i]
				}
			}
			inService = inService || x.Flight > 0 && x.Limit > 0 && x.Circuit != ""
		}
		one := run(t, s, 3, nil)
		if math.Abs(calls-float64(one.Calls)) > 0.5 || good > 1.05*calls || good < 0.1*calls || !inService {
			t.Errorf("%s: %v calls of %d in the samples, %v answered", s.Name, calls, one.Calls, good)
		}
	}
	if _, err := suite.Watch(context.Background(), short(t)[0], "hope", suite.Options{}); err == nil {
		t.Error("a timeline of a policy that is not there")
	}
}

// counted is a context that ends when it is asked for the nth time.
type counted struct {
	context.Context
	n int
}

func (c *counted) Err() error {
	if c.n--; c.n <= 0 {
		return context.Canceled
	}
	return nil
}

// The run of a plot may be of a day: it ends with its context, in the middle.
func TestWatchEndsWithItsContext(t *testing.T) {
	ctx := &counted{context.Background(), 3}
	if w, err := suite.Watch(ctx, short(t)[0], "none", suite.Options{Seed: 1}); w != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%v with a timeline: %v", err, w != nil)
	}
}
