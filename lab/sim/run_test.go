package sim_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// A day's run keeps no more than an hour's.
func TestMemoryDoesNotGrowWithTheRun(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	heap := func(name string, length time.Duration) int64 {
		s := sim.Rig(t, func(s *scenario.Scenario) {
			s.Duration, s.Arrivals.Process, s.Arrivals.Steps[0].Rate = length, scenario.Constant, 5
			for at := time.Minute; at < length; at += time.Hour { // as many faults an hour in both
				s.Faults = append(s.Faults, scenario.Fault{From: at, To: at + 20*time.Second, Kind: scenario.Hang})
			}
		})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		w := world(t, sim.Options{Scenario: s, Seed: 1, Guard: named(t, name)})
		r := w.Run()
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(w)
		if want := int(length.Seconds()) * 5; r.Calls != want {
			t.Fatalf("%d calls, want %d", r.Calls, want)
		}
		return int64(after.HeapAlloc) - int64(before.HeapAlloc)
	}
	for _, name := range []string{"none", "exponential-jitter", "cortex-adaptive"} {
		heap(name, time.Hour) // what is allocated once
		hour, day := heap(name, time.Hour), heap(name, 24*time.Hour)
		if day > hour+64<<10 {
			t.Errorf("%s: %d kB after an hour, %d kB after a day", name, hour>>10, day>>10)
		}
	}
}

// draw makes a small scenario of numbers.
func draw(r *rand.Rand) *scenario.Scenario {
	between := func(a, b time.Duration) time.Duration {
		return a + time.Duration(r.Float64()*float64(b-a)).Round(time.Millisecond)
	}
	pick := func(d ...time.Duration) time.Duration { return d[r.IntN(len(d))] }
	s := &scenario.Scenario{Name: "random", Duration: between(time.Second, 9*time.Second), Deadline: pick(time.Millisecond, 50*time.Millisecond, 99*time.Millisecond,
		time.Second, 3*time.Second), Hops: 1 + r.IntN(3), Mark: r.IntN(2) == 0}
	s.Client = scenario.Client{Timeout: pick(0, time.Millisecond, 40*time.Millisecond, time.Second, time.Hour), MaxRetries: r.IntN(4),
		BaseDelay: pick(time.Millisecond, 100*time.Millisecond, time.Minute)}
	s.Downstream = scenario.Downstream{Workers: 1 + r.IntN(20), Queue: pick1(r, 1, 5, 2000), Cancels: r.IntN(2) == 0}
	s.Downstream.Service = scenario.Service{Distribution: scenario.Distribution(r.IntN(4)), Mean: pick(time.Microsecond, 5*time.Millisecond, 80*time.Millisecond), Sigma: 0.1 + 2*r.Float64(),
		Alpha: 1.1 + 3*r.Float64()}
	rate := pick1(r, 0.0, 0.5, 20, 60)
	switch r.IntN(4) {
	case 0:
		s.Callers = scenario.Callers{Count: 1 + r.IntN(20), Think: pick(50*time.Millisecond, time.Second)}
	case 1:
		for range 1 + r.IntN(15) {
			s.Arrivals.Trace = append(s.Arrivals.Trace, float64(r.IntN(1+int(rate))))
		}
		s.Arrivals.Scale = pick1(r, 1.0, 0.3, 2)
	default:
		s.Arrivals.Steps = []scenario.Step{{From: pick(0, time.Second), Rate: rate}, {From: between(2*time.Second, 5*time.Second), Rate: pick1(r, 0.0, 10, 100)}}
	}
	s.Arrivals.Process = scenario.Process(r.IntN(2))
	for range 1 + r.IntN(3) {
		s.Priorities = append(s.Priorities, scenario.Share{Priority: cortex.Priority(len(s.Priorities)*3 + r.IntN(3)), Share: 0.1 + r.Float64()})
	}
	for k := range 6 { // kinds overlap, faults of a kind do not
		at := pick(0, between(0, 8*time.Second))
		for range r.IntN(3) {
			f := scenario.Fault{From: at, To: at + between(time.Millisecond, 6*time.Second), Kind: scenario.Kind(k), Latency: pick(0, time.Millisecond, 30*time.Second),
				Factor: pick1(r, 1.0, 3, 1e6), Fraction: pick1(r, 0, 0.5, 1), Probability: pick1(r, 0.05, 0.5, 1), Limit: pick1(r, 0.5, 50, 1e6),
				RetryAfter: pick(0, 100*time.Millisecond, time.Hour)}
			if f.Kind == scenario.Slow && r.IntN(2) == 0 {
				f.Onset = f.To - f.From
			}
			s.Faults = append(s.Faults, f)
			at = f.To + pick(0, time.Second)
		}
	}
	return s
}

func pick1[T any](r *rand.Rand, v ...T) T { return v[r.IntN(len(v))] }

// Whatever the scenario: the run ends after a bounded number of events, every call ends once, nothing is used after its end, and every
// measure is what the record of the run says.
func FuzzRun(f *testing.F) {
	for seed := range uint64(80) {
		f.Add(seed)
	}
	policies := []string{"none", "exponential", "hystrix", "token-bucket", "cortex-adaptive", "cortex-adaptive"}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := draw(r)
		name := policies[r.IntN(len(policies))]
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		o := sim.Options{Scenario: s, Seed: seed, Guard: named(t, name), Instances: pick1(r, 1, 1, 3)}
		fleet := name == "cortex-adaptive" && r.IntN(2) == 0
		if fleet { // a record would hide what the guards tell each other
			o.Exchange = pick1(r, 0, 10*time.Millisecond, 250*time.Millisecond)
			if o.Exchange == 0 {
				o.Door = policy.Door()
			}
		}
		watched, rec := o, newRecord(t, s)
		if !fleet {
			watched.Guard = rec.watch(o.Guard)
		}
		w := world(t, watched)
		w.Poison()
		bound := 200 + 20*float64(s.Callers.Count+1)*s.Duration.Seconds()*20 + 4*s.Offered() + 1000 // calls, well above
		for range s.Hops {
			bound *= float64(s.Client.MaxRetries + 2)
		}
		last := time.Duration(0)
		for n := 0.0; ; n++ {
			at, ok := w.Next()
			if !ok {
				break
			}
			if at < last || n > 5*bound {
				t.Fatalf("event %v at %v, after %v", n, at, last)
			}
			last = at
			w.Step()
			if serving, waiting, workers := w.Target(); waiting > s.Downstream.Queue || waiting > 0 && serving < workers {
				t.Fatalf("%d of %d workers busy, %d attempts wait", serving, workers, waiting)
			}
		}
		got := w.Run()
		if !fleet {
			rec.check(got)
		}
		calls, attempts, held := w.Alive()
		if calls != 0 || attempts != held {
			t.Errorf("%d calls and %d attempts are left at the end, the target has %d", calls, attempts, held)
		}
		again := world(t, o).Run()
		if a, b := fmt.Sprint(got), fmt.Sprint(again); a != b {
			t.Errorf("with objects that are used again:\n%v\nwithout:\n%v", b, a)
		}
		if t.Failed() {
			t.Logf("%s, %d guards, door %v, exchange %v: %+v", name, o.Instances, o.Door != nil, o.Exchange, *s)
		}
	})
}
