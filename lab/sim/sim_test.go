package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

func named(t testing.TB, name string) sim.Maker {
	t.Helper()
	p, err := policy.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return p.Make
}

func world(t testing.TB, o sim.Options) *sim.World {
	t.Helper()
	w, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// brief is a built-in scenario with its times cut to a quarter, and a day to two hours.
func brief(t testing.TB, s *scenario.Scenario) *scenario.Scenario {
	t.Helper()
	cut := func(d *time.Duration) { *d = (*d / 4).Truncate(100 * time.Millisecond) }
	if s.Duration > time.Hour {
		s.Duration, s.Faults[0].To = 2*time.Hour, 2*time.Hour
		return s
	}
	cut(&s.Duration)
	for i := range s.Faults {
		cut(&s.Faults[i].From)
		cut(&s.Faults[i].To)
		cut(&s.Faults[i].Onset)
	}
	for i := range s.Arrivals.Steps {
		cut(&s.Arrivals.Steps[i].From)
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// Every measure of every scenario is what watching the guards gives; calls end once and in time; and nothing is used after its end: a run
// that never uses an object again is the same run.
func TestMeasuresAgreeWithTheRecord(t *testing.T) {
	for _, s := range append(scenario.Builtin(), scenario.Extra()...) {
		if s = brief(t, s); raced && s.Name != "S1" && s.Name != "S12" {
			continue
		}
		for _, name := range []string{"exponential-jitter", "hystrix", "cortex-adaptive"} {
			t.Run(s.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				r := newRecord(t, s)
				w := world(t, sim.Options{Scenario: s, Seed: 3, Guard: r.watch(named(t, name))})
				w.Poison()
				got := w.Run()
				r.check(got)
				if calls, attempts, held := w.Alive(); calls != 0 || attempts != held {
					t.Errorf("%d calls and %d attempts are left at the end, the target has %d", calls, attempts, held)
				}
				again := world(t, sim.Options{Scenario: s, Seed: 3, Guard: named(t, name)}).Run()
				if a, b := fmt.Sprint(got), fmt.Sprint(again); a != b {
					t.Errorf("with objects that are used again:\n%v\nwithout:\n%v", b, a)
				}
			})
		}
	}
}
