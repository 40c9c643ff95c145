package suite_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// fleetScenarios are those that fleets are judged by.
var fleetScenarios = []string{"S1", "S2", "S3", "S5", "S6", "S8"}

func runFleet(t *testing.T, n int, share string, policies []string, names ...string) []suite.Row {
	t.Helper()
	o := suite.Options{Policies: policies, Seeds: 1, Seed: 1, Instances: n, Share: share}
	for _, name := range names {
		s, err := scenario.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		o.Scenarios = append(o.Scenarios, s)
	}
	rows, err := suite.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// A fleet comes to this share of the oracle: in the mean, and in every scenario. docs/fleets.md has what it really comes to.
func TestFleetsKeepTheirPromises(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	for _, c := range []struct {
		n           int
		share       string
		mean, least float64
	}{
		{4, "none", 0.99, 0.98},
		{16, "none", 0.99, 0.97},
		{64, "none", 0.96, 0.93},
		{4, "250ms", 0.985, 0.97},
		{64, "250ms", 0.985, 0.95},
		{16, "door", 0.99, 0.98},
		{256, "door", 0.99, 0.98},
	} {
		t.Run(fmt.Sprintf("%d/%s", c.n, c.share), func(t *testing.T) {
			t.Parallel()
			sum := 0.0
			for _, r := range runFleet(t, c.n, c.share, []string{"cortex-adaptive"}, fleetScenarios...) {
				sum += r.Efficiency
				if r.Efficiency < c.least {
					t.Errorf("%s: efficiency %.4f, want %.3f", r.Scenario, r.Efficiency, c.least)
				}
				if r.NeverRecovered > 0 || r.Overshoot > 1.1 || r.FalseRejections > 0.002 {
					t.Errorf("%s: never recovered %d, overshoot %.2f, false rejections %.4f", r.Scenario, r.NeverRecovered, r.Overshoot, r.FalseRejections)
				}
			}
			if mean := sum / float64(len(fleetScenarios)); mean < c.mean {
				t.Errorf("mean efficiency %.4f, want %.3f", mean, c.mean)
			}
		})
	}
}

// Guards that know nothing of each other are not worse than what people have without them.
func TestFleetsWithoutSharingAreNotWorseThanOthers(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	for _, n := range []int{16, 256} {
		best, own := map[string]float64{}, map[string]float64{}
		for _, r := range runFleet(t, n, "none", []string{"none", "hystrix", "token-bucket", "cortex-adaptive"}, fleetScenarios...) {
			if r.Policy == "cortex-adaptive" {
				own[r.Scenario] = r.Efficiency
			} else {
				best[r.Scenario] = math.Max(best[r.Scenario], r.Efficiency)
			}
		}
		for _, s := range fleetScenarios {
			if own[s] < best[s]-0.01 { // a blackout costs those nothing who never close
				t.Errorf("%d guards, %s: efficiency %.4f, the best other one has %.4f", n, s, own[s], best[s])
			}
		}
	}
}

// A thousand clients that come back at once to a fleet whose guards all close at once.
func TestFleetHasNoHerdOnRecovery(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	for _, share := range []string{"250ms", "door"} {
		for _, r := range runFleet(t, 64, share, []string{"cortex-adaptive"}, "S11", "S11-hang") {
			if r.Overshoot > 1.1 || r.Efficiency < 0.96 || r.NeverRecovered > 0 {
				t.Errorf("%s, %s: overshoot %.2f, efficiency %.4f", r.Scenario, share, r.Overshoot, r.Efficiency)
			}
		}
	}
}

// In a trickle nobody is refused, however few calls a guard sees.
func TestFleetsRefuseNobodyInATrickle(t *testing.T) {
	for _, share := range []string{"none", "250ms", "door"} {
		for _, r := range runFleet(t, 4, share, []string{"cortex-adaptive"}, "two-a-second") {
			if r.FalseRejections > 0 || r.Efficiency < 0.999 {
				t.Errorf("%s: false rejections %.5f, efficiency %.4f", share, r.FalseRejections, r.Efficiency)
			}
		}
	}
}

// In a blackout a fleet that shares sends one probe at a time, and not one for each guard.
func TestAFleetThatSharesProbesOnce(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	s := scenario.Rig()
	s.Duration = 60 * time.Second
	s.Faults = []scenario.Fault{{From: 10 * time.Second, To: 50 * time.Second, Kind: scenario.Error, Probability: 1, Latency: 5 * time.Millisecond}}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	attempts := func(share time.Duration) int {
		w, err := sim.New(sim.Options{Scenario: s, Seed: 1, Guard: policy.Engine(nil), Instances: 64, Exchange: share})
		if err != nil {
			t.Fatal(err)
		}
		return w.Run().Attempts
	}
	healthy := int(20 * 416.7)
	alone, together := attempts(0)-healthy, attempts(250*time.Millisecond)-healthy
	if together > alone/2 {
		t.Errorf("%d attempts in the outage where guards share, %d where they do not", together, alone)
	}
}
