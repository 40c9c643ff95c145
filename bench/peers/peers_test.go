package main

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// shortened is a scenario whose fault is 5 s long, from 5 s on, in a run of 20 s.
func shortened(t *testing.T, name string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	s.Duration = 20 * time.Second
	for i := range s.Faults {
		s.Faults[i].From, s.Faults[i].To = 5*time.Second, 10*time.Second
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

func simulated(t *testing.T, s *scenario.Scenario, name string, seed uint64) sim.Result {
	t.Helper()
	p, err := policy.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	w, err := sim.New(sim.Options{Scenario: s, Seed: seed, Guard: p.Make})
	if err != nil {
		t.Fatal(err)
	}
	return w.Run()
}

// skipped are subjects that cannot be tested in this build, and why.
var skipped = map[string]string{}

// A bubble that leaves a goroutine behind panics, which fails the test; only hystrix-go may. In S10 the target hints when to come again,
// which reaches every library in the way it documents. (failsafe-go's WithJitterFactor shortened hints, too.)
func TestEveryPeerEndsAndLeavesNothing(t *testing.T) {
	for _, name := range []string{"S1", "S10"} {
		s := shortened(t, name)
		want := simulated(t, s, "none", 1).Calls
		for _, sub := range subjects {
			t.Run(name+"/"+sub.name, func(t *testing.T) {
				if why := skipped[sub.name]; why != "" {
					t.Skip(why)
				}
				t.Parallel()
				early := 0
				watched := sub
				watched.start = hintWatch(sub, &early)
				r, err := run(t, watched, env{scenario: s, seed: 1})
				if err != nil {
					t.Fatal(err)
				}
				if early > 0 {
					t.Errorf("%d attempts before their hint", early)
				}
				if r.Calls != want {
					t.Errorf("%d calls, but %d in the simulator", r.Calls, want)
				}
				if !(r.Goodput > 0.2 && r.Goodput < 1) {
					t.Errorf("goodput %.3f", r.Goodput)
				}
				if most := float64(s.Client.MaxRetries + 1); !(r.Amplification > 0.1 && r.Amplification <= most) {
					t.Errorf("amplification %.2f, want at most %.0f", r.Amplification, most)
				}
			})
		}
	}
}

// Without a guard nothing is drawn and nothing decided: the bubble and the simulator are the same experiment, call for call.
func TestBubbleIsTheSimulatorsExperiment(t *testing.T) {
	for _, name := range []string{"S1", "S2", "S4", "S10"} {
		s := shortened(t, name)
		want := simulated(t, s, "none", 7)
		got, err := run(t, unguarded, env{scenario: s, seed: 7})
		if err != nil {
			t.Fatal(err)
		}
		if got.Calls != want.Calls || got.Attempts != want.Attempts || got.Goodput != want.Goodput || got.Wasted != want.Wasted || got.P99 != want.P99 {
			t.Errorf("%s: %d calls, %d attempts, goodput %v, wasted %v, p99 %v\nsimulator: %d, %d, %v, %v, %v", name, got.Calls, got.Attempts,
				got.Goodput, got.Wasted, got.P99, want.Calls, want.Attempts, want.Goodput, want.Wasted, want.P99)
		}
	}
}

func TestDoAgreesWithTheSimulatedEngine(t *testing.T) {
	for _, name := range []string{"S1", "S2"} {
		s, err := scenario.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := simulated(t, s, "cortex-adaptive", 1)
			got, err := run(t, cortexDo, env{scenario: s, seed: 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("goodput %.4f and %.4f, by priority %.3f and %.3f, amplification %.4f and %.4f", got.Goodput, want.Goodput, got.GoodByPriority,
				want.GoodByPriority, got.Amplification, want.Amplification)
			if d := math.Abs(got.Goodput - want.Goodput); d > 0.01 {
				t.Errorf("goodput %.4f, in the simulator %.4f", got.Goodput, want.Goodput)
			}
			if d := math.Abs(got.Amplification - want.Amplification); d > 0.02 {
				t.Errorf("amplification %.4f, in the simulator %.4f", got.Amplification, want.Amplification)
			}
		})
	}
}

func TestCommandLine(t *testing.T) {
	for _, bad := range []string{"-seeds 0", "-seeds x", "-format xml", "-subject nobody", "-scenario S99", "more"} {
		if _, err := parse(strings.Fields(bad), io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	var said bytes.Buffer
	c, err := parse(strings.Fields("-scenario all -seeds 1 -subject aegis,gobreaker"), &said)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.subjects) != 2 || len(c.scenarios) != 11 || !strings.Contains(said.String(), "S12 is left out: 3 tiers") {
		t.Errorf("%d subjects, %d scenarios, said %q", len(c.subjects), len(c.scenarios), said.String())
	}
}

func TestTable(t *testing.T) {
	c, err := parse(strings.Fields("-seeds 2 -subject gobreaker -settings -format md"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c.scenarios = []*scenario.Scenario{shortened(t, "S5")}
	var out bytes.Buffer
	if err := c.do(t, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| gobreaker", "oracle", "mean of 2 seeds", "more than 5 consecutive failures", "https://"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestPriorities(t *testing.T) {
	last := failsafePriority(10)
	for p := cortex.Priority(9); p >= 0; p-- {
		if now := failsafePriority(p); now > last {
			t.Errorf("priority %d is above %d's", p, p+1)
		} else {
			last = now
		}
	}
}
