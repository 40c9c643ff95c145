package suite_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// A promise of the adaptive law on one scenario. Zero means no promise, unless it says otherwise.
type promise struct {
	efficiency  float64 // least, of the oracle
	top, second float64 // least goodput of priorities 9 and 7
	inFault     float64 // most attempts a call offered within the incident
	overshoot   float64 // most
	ttr         float64 // most, in seconds; zero = 1
	restless    bool    // may switch its circuit more than six times a minute
}

// What the adaptive profile, as it comes, makes of the suite. These are goals that were set for ten seeds; two are enough to see a law
// that has broken. Everywhere: recovery within a second in every seed, at most 0.1 % refused while the target is healthy (none at a
// trickle), no retry before its hint.
var promises = map[string]promise{
	"S1":           {efficiency: 0.99, inFault: 0.02},
	"S2":           {efficiency: 0.99, top: 0.999, second: 0.985}, // the goal for priority 7 is 0.99
	"S3":           {efficiency: 0.99, top: 0.999, second: 0.99},
	"S4":           {efficiency: 0.99},
	"S5":           {efficiency: 0.99, inFault: 0.02},
	"S6":           {efficiency: 0.99, inFault: 0.06}, // five seconds of which the first tenths are the detection
	"S7":           {efficiency: 0.99, inFault: 0.06, restless: true},
	"S8":           {efficiency: 0.99, top: 0.999, second: 0.99},
	"S9":           {efficiency: 0.999},
	"S10":          {efficiency: 0.99, top: 0.998},
	"S11":          {efficiency: 0.98, inFault: 0.02, overshoot: 1.1},
	"S12":          {efficiency: 0.98, inFault: 0.1},
	"S12-unmarked": {efficiency: 0.98, inFault: 4, ttr: 1.2}, // three tiers' circuits to close, one after the other
	"S1-50":        {efficiency: 0.98, inFault: 0.05},
	"S5-50":        {efficiency: 0.98, inFault: 0.05},
	"S11-hang":     {efficiency: 0.98, inFault: 0.02, overshoot: 1.1},
	"two-a-second": {efficiency: 0.999},
}

func TestAdaptiveLawKeepsItsPromises(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	var list []*scenario.Scenario
	for _, s := range append(scenario.Builtin(), scenario.Extra()...) {
		if _, ok := promises[s.Name]; ok {
			list = append(list, s)
		}
	}
	if len(list) != len(promises) {
		t.Fatalf("%d of %d scenarios are there", len(list), len(promises))
	}
	rows, err := suite.Run(context.Background(), suite.Options{Scenarios: list, Policies: []string{"cortex-adaptive"}, Seeds: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		t.Run(r.Scenario, func(t *testing.T) {
			p := promises[r.Scenario]
			ttr := math.Inf(1)
			if r.TTR != nil {
				ttr = *r.TTR
			}
			t.Logf("%s: efficiency %.4f (9: %.4f, 7: %.4f), %.4f attempts a call in the fault, recovered after %.2f s, %.4f %% refused while healthy, overshoot %.3f, %.1f transitions a minute",
				r.Scenario, r.Efficiency, r.GoodputByPriority["9"], r.GoodputByPriority["7"], r.AmplificationInFault, ttr, 100*r.FalseRejections, r.Overshoot, r.TransitionsPerMinute)
			if r.Efficiency < p.efficiency {
				t.Errorf("efficiency %.4f, want %v", r.Efficiency, p.efficiency)
			}
			if g := r.GoodputByPriority["9"]; g < p.top {
				t.Errorf("priority 9 has %.4f, want %v", g, p.top)
			}
			if g := r.GoodputByPriority["7"]; g < p.second {
				t.Errorf("priority 7 has %.4f, want %v", g, p.second)
			}
			if p.inFault > 0 && r.AmplificationInFault > p.inFault {
				t.Errorf("%.4f attempts a call within the incident, want at most %v", r.AmplificationInFault, p.inFault)
			}
			if p.overshoot > 0 && r.Overshoot > p.overshoot {
				t.Errorf("overshoot %.3f, want at most %v", r.Overshoot, p.overshoot)
			}
			if p.ttr == 0 {
				p.ttr = 1
			}
			if r.NeverRecovered > 0 || ttr > p.ttr {
				t.Errorf("recovered after %v s, never in %d seeds", ttr, r.NeverRecovered)
			}
			calm := 0.001
			if r.Scenario == "S9" || r.Scenario == "two-a-second" {
				calm = 0
			}
			if r.FalseRejections > calm {
				t.Errorf("%.4f %% refused while the target was healthy", 100*r.FalseRejections)
			}
			if !p.restless && r.TransitionsPerMinute > 6 {
				t.Errorf("%.1f transitions a minute", r.TransitionsPerMinute)
			}
		})
	}
}

func run(t testing.TB, s *scenario.Scenario, seed uint64, change func(*sim.Options)) sim.Result {
	t.Helper()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	o := sim.Options{Scenario: s, Seed: seed, Guard: policy.Engine(nil)}
	if change != nil {
		change(&o)
	}
	w, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return w.Run()
}

// No retry is sooner than the target's hint, under whatever load.
func TestHintsAreKept(t *testing.T) {
	for _, limit := range []float64{50, 300, 400} {
		s := scenario.Rig()
		s.Faults = []scenario.Fault{{From: 20 * time.Second, To: 60 * time.Second, Kind: scenario.Throttle, Limit: limit, RetryAfter: time.Second}}
		if r := run(t, s, 1, nil); r.BeforeHint > 0 {
			t.Errorf("at %v/s: %d retries before their hint", limit, r.BeforeHint)
		}
	}
}

// With the adaptive timeout, 2 × p99.9 of a service that takes much the same time for every call is less than four times its
// usual latency: a guard that cut there would take a slow target for a dead one, and keep it busy with work that nobody waits
// for. The extended timeout under strain, and the late success that raises it, must tell the two apart at every rate.
func TestASlowTargetIsNotTakenForADeadOne(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	for _, c := range []struct {
		rate    float64
		workers int
		factor  float64 // 0 = every attempt hangs 10 s
		least   float64 // of the fault's goodput against its oracle
		inFault float64 // most attempts a call offered
	}{
		{300, 10, 4, 0.92, 0}, {300, 10, 0, 0, 0.02},
		{2000, 70, 4, 0.92, 0}, {2000, 70, 0, 0, 0.015},
		{20, 2, 4, 0.8, 0}, {5, 2, 4, 0.95, 0}, {5, 2, 0, 0, 0.5}, {300, 10, 8, 0.7, 0},
	} {
		t.Run(fmt.Sprintf("%v calls a second, service × %v", c.rate, c.factor), func(t *testing.T) {
			for seed := range uint64(2) {
				s := scenario.Rig()
				s.Duration, s.Client.Timeout = 80*time.Second, 0
				s.Arrivals.Steps[0].Rate = c.rate
				s.Downstream.Workers = c.workers
				s.Downstream.Service = scenario.Service{Distribution: scenario.Lognormal, Mean: 28 * time.Millisecond, Sigma: 0.15}
				f := scenario.Fault{From: 40 * time.Second, To: 60 * time.Second, Kind: scenario.Slow, Factor: c.factor}
				if c.factor == 0 {
					f.Kind, f.Latency = scenario.Hang, 10*time.Second
				}
				s.Faults = []scenario.Fault{f}
				var w *sim.World
				r := run(t, s, seed, func(o *sim.Options) {
					o.Samples, o.Observe = 80, func(x *sim.World) { w = x }
				})
				good, offered := 0.0, 0.0
				for _, second := range w.Cohorts()[40:60] {
					for _, k := range second {
						good += float64(k.Good)
						offered += float64(k.Offered)
					}
				}
				t.Logf("seed %d: %.3f of the fault's calls answered, priority 9 %.4f, %.4f attempts a call in the fault, recovered after %v", seed,
					good/offered, r.GoodByPriority[0], r.InFault, r.TTR)
				if c.factor > 0 {
					oracle := min(offered, s.Capacity(f.From)*20)
					if good < c.least*oracle {
						t.Errorf("seed %d: %.0f calls answered in the fault, %.3f of the oracle's", seed, good, good/oracle)
					}
					top := 0.99
					if c.factor > 4 { // docs/law.md, "What remains weak"
						top = 0.95
					}
					if g := r.GoodByPriority[0]; g < top {
						t.Errorf("seed %d: priority 9 has %.4f", seed, g)
					}
				}
				if c.inFault > 0 && r.InFault > c.inFault {
					t.Errorf("seed %d: %.4f attempts a call in the fault", seed, r.InFault)
				}
				if !r.Recovered || r.TTR > 2*time.Second {
					t.Errorf("seed %d: recovered %v, after %v", seed, r.Recovered, r.TTR)
				}
			}
		})
	}
}
