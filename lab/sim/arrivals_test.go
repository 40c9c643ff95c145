package sim

import (
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// valid is the suite's rig with a change, validated.
func valid(t testing.TB, change func(*scenario.Scenario)) *scenario.Scenario {
	t.Helper()
	s := scenario.Rig()
	change(s)
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// perSecond counts the arrivals of a run.
func perSecond(t testing.TB, s *scenario.Scenario, seed uint64) []int {
	t.Helper()
	var a arrivals
	a.init(s, seed)
	n := make([]int, int((s.Duration+time.Second-1)/time.Second))
	last := time.Duration(0)
	for ; !a.over; a.step() {
		if a.next < last || a.next >= s.Duration {
			t.Fatalf("an arrival at %v, after one at %v, of %v", a.next, last, s.Duration)
		}
		last = a.next
		n[last/time.Second]++
	}
	return n
}

// Counts of a second have the mean of the rate in force and, as those of a Poisson process must, a variance that equals it.
func TestArrivalsArePoisson(t *testing.T) {
	steps := []scenario.Step{{From: 0, Rate: 100}, {From: 1000 * time.Second, Rate: 3}, {From: 2000 * time.Second}, {From: 3000 * time.Second, Rate: 40}}
	s := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals.Steps, s.Arrivals.Scale = 4000*time.Second, steps, 2
	})
	n := perSecond(t, s, 5)
	for i, st := range steps {
		part := n[i*1000 : (i+1)*1000]
		sum, square := 0.0, 0.0
		for _, k := range part {
			sum += float64(k)
			square += float64(k) * float64(k)
		}
		mean, rate := sum/1000, 2*st.Rate
		if math.Abs(mean-rate) > 4*math.Sqrt(rate/1000) {
			t.Errorf("%v a second from %v on, want %v", mean, st.From, rate)
		}
		if rate == 0 {
			continue
		}
		if d := (square/1000 - mean*mean) / mean; math.Abs(d-1) > 4*math.Sqrt(2.0/1000) {
			t.Errorf("index of dispersion %.3f from %v on, want 1", d, st.From)
		}
	}
	short := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals.Steps = 4000*time.Second, nil
		for i := range 40_000 { // most calls come in another step than they were drawn in
			s.Arrivals.Steps = append(s.Arrivals.Steps, scenario.Step{From: time.Duration(i) * 100 * time.Millisecond, Rate: float64(1 + i%2)})
		}
	})
	total := 0
	for _, k := range perSecond(t, short, 6) {
		total += k
	}
	if math.Abs(float64(total)-6000) > 4*math.Sqrt(6000) {
		t.Errorf("%d calls in steps of 100 ms, want 6000", total)
	}
	if sum := s.Offered(); sum != 286000 {
		t.Errorf("%v calls expected, want 286000", sum)
	}
}

// A constant process keeps its distances, over a change of the rate too.
func TestConstantArrivalsKeepTheirDistance(t *testing.T) {
	s := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals.Process = 40*time.Second, scenario.Constant
		s.Arrivals.Steps = []scenario.Step{{From: 0, Rate: 4}, {From: 10 * time.Second, Rate: 0}, {From: 20 * time.Second, Rate: 1}, {From: 30 * time.Second, Rate: 1000}}
	})
	n := perSecond(t, s, 1)
	for i, k := range n {
		if want := [...]int{4, 0, 1, 1000}[i/10]; k < want-1 || k > want+1 {
			t.Errorf("second %d: %d arrivals, want %d", i, k, want)
		}
	}
	s = valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals.Process = 20*time.Second, scenario.Constant
		s.Arrivals.Steps = []scenario.Step{{From: 0, Rate: 1}, {From: 10250 * time.Millisecond, Rate: 2}} // the last at 9.5 s, 3/4 of the next by then
	})
	var a arrivals
	for a.init(s, 1); a.next < 10*time.Second; {
		a.step()
	}
	if want := 10375 * time.Millisecond; a.next != want {
		t.Errorf("the first call after the change at %v, want %v", a.next, want)
	}
	slow := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals.Process, s.Arrivals.Steps = time.Hour, scenario.Constant, []scenario.Step{{From: 0, Rate: 1.0 / 3}}
	})
	total := 0
	for _, k := range perSecond(t, slow, 1) {
		total += k
	}
	if total != 1200 {
		t.Errorf("%d calls in an hour at one every 3 s", total)
	}
}

// A trace comes with exactly its counts, wherever in the second; scaled, it comes with them in the mean.
func TestATraceIsReplayedToTheCall(t *testing.T) {
	trace := []float64{5, 0, 1, 1000, 0, 0, 7, 3}
	for _, process := range []scenario.Process{scenario.Poisson, scenario.Constant} {
		for _, length := range []time.Duration{3 * time.Second, 8 * time.Second, 12 * time.Second} {
			s := valid(t, func(s *scenario.Scenario) {
				s.Duration, s.Arrivals = length, scenario.Arrivals{Trace: trace, Process: process}
			})
			for i, k := range perSecond(t, s, 9) {
				want := 0
				if i < len(trace) {
					want = int(trace[i])
				}
				if k != want {
					t.Errorf("%v, %v: second %d has %d calls, want %d", process, length, i, k, want)
				}
			}
		}
	}
	many := make([]float64, 10_000)
	for i := range many {
		many[i] = 3
	}
	s := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals = 10_000*time.Second, scenario.Arrivals{Trace: many, Scale: 0.75}
	})
	total := 0
	for _, k := range perSecond(t, s, 2) {
		if k < 2 || k > 3 {
			t.Fatalf("%d calls in a second of 2.25", k)
		}
		total += k
	}
	if math.Abs(float64(total)-22_500) > 4*math.Sqrt(10_000*0.25*0.75) {
		t.Errorf("%d calls, want 22500", total)
	}
}

// Priorities come in their shares.
func TestPrioritiesComeInTheirShares(t *testing.T) {
	s := valid(t, func(*scenario.Scenario) {})
	var a arrivals
	a.init(s, 1)
	const n = 100_000
	count := make([]int, len(s.Priorities))
	for range n {
		p, class := a.priority()
		if s.Priorities[class].Priority != p {
			t.Fatalf("priority %d is class %d", p, class)
		}
		count[class]++
	}
	for i, p := range s.Priorities {
		if share := float64(count[i]) / n; math.Abs(share-p.Share) > 4*math.Sqrt(p.Share/n) {
			t.Errorf("priority %d has %v of the calls, want %v", p.Priority, share, p.Share)
		}
	}
}

// Service times have their mean and their shape: the share above twice the mean is the distribution's.
func TestServiceTimesHaveTheirMean(t *testing.T) {
	for _, c := range []struct {
		service   scenario.Service
		sd, above float64
	}{
		{scenario.Service{Distribution: scenario.Lognormal, Sigma: 0.8}, math.Sqrt(math.Exp(0.64) - 1), 1 - phi((math.Ln2+0.32)/0.8)},
		{scenario.Service{Distribution: scenario.Lognormal, Sigma: 0.3}, math.Sqrt(math.Exp(0.09) - 1), 1 - phi((math.Ln2+0.045)/0.3)},
		{scenario.Service{Distribution: scenario.Exponential}, 1, math.Exp(-2)},
		{scenario.Service{Distribution: scenario.Fixed}, 0, 0},
		{scenario.Service{Distribution: scenario.Pareto, Alpha: 3.5}, math.Sqrt(1 / (3.5 * 1.5)), math.Pow(2.5/3.5/2, 3.5)},
		{scenario.Service{Distribution: scenario.Pareto, Alpha: 2.2}, math.Sqrt(1 / (2.2 * 0.2)), math.Pow(1.2/2.2/2, 2.2)},
	} {
		c.service.Mean = 20 * time.Millisecond
		s := valid(t, func(s *scenario.Scenario) { s.Downstream.Service = c.service })
		target := newTarget(&World{scenario: s}, s, 3)
		const n = 400_000
		sum, above := 0.0, 0
		for range n {
			v := target.time().Seconds() / 0.020
			sum += v
			if v > 2 {
				above++
			}
		}
		if mean := sum / n; math.Abs(mean-1) > 4*c.sd/math.Sqrt(n)+1e-6 {
			t.Errorf("%+v: mean %v of the configured one", c.service, mean)
		}
		if share := float64(above) / n; math.Abs(share-c.above) > 4*math.Sqrt(c.above/n) {
			t.Errorf("%+v: %v are above twice the mean, want %v", c.service, share, c.above)
		}
	}
}

func phi(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
