package sim_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// A queue watches a run's target: what time integrals of its occupancy say.
type queue struct {
	busy, waiting float64 // means over the run
	sojourn       float64 // mean time in the system by Little's law from the occupancy, in seconds
	measured      float64 // mean time in the system of the attempts
	result        sim.Result
}

// open runs an open system whose clients wait for ever, and measures it.
func open(t testing.TB, seed uint64, rate float64, d scenario.Downstream, length time.Duration) queue {
	t.Helper()
	s := sim.Rig(t, func(s *scenario.Scenario) {
		s.Duration, s.Deadline, s.Client.Timeout, s.Client.MaxRetries = length, time.Minute, time.Minute, 0
		s.Arrivals.Steps[0].Rate, s.Downstream = rate, d
	})
	l := &latencies{}
	w := world(t, sim.Options{Scenario: s, Seed: seed, Guard: func(env sim.Env) (sim.Guard, error) {
		g, err := named(t, "none")(env)
		return &timed{g, l, env}, err
	}})
	var busy, waiting float64
	for {
		at, ok := w.Next()
		if !ok {
			break
		}
		serving, queued, _ := w.Target()
		dt := (at - w.Now()).Seconds()
		busy += float64(serving) * dt
		waiting += float64(queued) * dt
		w.Step()
	}
	r := w.Result()
	if r.Goodput != 1 {
		t.Fatalf("goodput %v of a system that loses nothing", r.Goodput)
	}
	T := length.Seconds()
	return queue{busy / T, waiting / T, (busy + waiting) / float64(r.Calls), l.sum / float64(l.n), r}
}

type latencies struct {
	sum float64
	n   int
}

type timed struct {
	sim.Guard
	l   *latencies
	env sim.Env
}

func (g *timed) Done(a *sim.Attempt, o cortex.Outcome) {
	g.l.sum += (g.env.Now() - a.Start).Seconds()
	g.l.n++
	g.Guard.Done(a, o)
}

// sample is the mean of values with the half width of its confidence interval at five standard errors.
func sample(values []float64) (mean, half float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		half += (v - mean) * (v - mean)
	}
	return mean, 5 * math.Sqrt(half/(n-1)/n)
}

// within checks that a theory's value lies in the confidence interval of values, and that the interval says something.
func within(t *testing.T, what string, values []float64, want, precision float64) {
	t.Helper()
	mean, half := sample(values)
	t.Logf("%s: %.5g ± %.2g, theory %.5g", what, mean, half, want)
	if math.Abs(mean-want) > half+1e-12 {
		t.Errorf("%s: %v ± %v, theory says %v", what, mean, half, want)
	}
	if want > 0 && half > precision*want {
		t.Errorf("%s: ± %v of %v proves nothing", what, half, want)
	}
}

// erlangC is the probability to wait in M/M/c with an offered load of a erlangs.
func erlangC(c int, a float64) float64 {
	b := 1.0
	for k := 1; k <= c; k++ {
		b = a * b / (float64(k) + a*b)
	}
	rho := a / float64(c)
	return b / (1 - rho*(1-b))
}

// M/M/c: the mean time in the system is 1/μ + C(c,a)/(cμ − λ) by Erlang's formula, the workers are busy for λ/μ of them; and Little's law
// holds in every run to the last digit.
func TestTheQueueIsErlangs(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	for _, c := range []struct {
		workers int
		rho     float64
	}{{1, 0.5}, {1, 0.8}, {4, 0.7}, {14, 0.6}, {14, 0.85}} {
		t.Run(fmt.Sprintf("%d workers at %v", c.workers, c.rho), func(t *testing.T) {
			const mu = 50.0
			lambda := c.rho * mu * float64(c.workers)
			a := lambda / mu
			var sojourns, busy, waiting []float64
			for seed := range uint64(10) {
				q := open(t, seed, lambda, scenario.Downstream{Workers: c.workers, Queue: scenario.MaxQueue,
					Service: scenario.Service{Distribution: scenario.Exponential, Mean: 20 * time.Millisecond}}, time.Duration(40_000/lambda*1e9))
				if math.Abs(q.sojourn/q.measured-1) > 1e-6 {
					t.Errorf("Little's law: %v from the occupancy, %v measured", q.sojourn, q.measured)
				}
				sojourns, busy, waiting = append(sojourns, q.measured), append(busy, q.busy), append(waiting, q.waiting)
			}
			wait := erlangC(c.workers, a) / (mu*float64(c.workers) - lambda)
			within(t, "sojourn", sojourns, 1/mu+wait, 0.12)
			within(t, "busy workers", busy, a, 0.03)
			within(t, "queue", waiting, lambda*wait, 0.5)
		})
	}
}

// M/G/1: the mean wait is λ·E[S²]/(2(1 − ρ)), Pollaczek–Khinchine.
func TestTheQueueIsPollaczeksAndKhinchines(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	const mean, rho = 0.020, 0.5
	for _, c := range []struct {
		service scenario.Service
		second  float64 // E[S²]/E[S]²
	}{
		{scenario.Service{Distribution: scenario.Fixed}, 1},
		{scenario.Service{Distribution: scenario.Exponential}, 2},
		{scenario.Service{Distribution: scenario.Lognormal, Sigma: 0.8}, math.Exp(0.64)},
		{scenario.Service{Distribution: scenario.Pareto, Alpha: 5}, 16.0 / 15}, // (α−1)²/(α(α−2))
	} {
		t.Run(c.service.Distribution.String(), func(t *testing.T) {
			c.service.Mean = 20 * time.Millisecond
			var sojourns []float64
			for seed := range uint64(10) {
				q := open(t, seed, rho/mean, scenario.Downstream{Workers: 1, Queue: scenario.MaxQueue, Service: c.service}, 1500*time.Second)
				sojourns = append(sojourns, q.measured)
			}
			within(t, "sojourn", sojourns, mean+rho/mean*c.second*mean*mean/(2*(1-rho)), 0.05)
		})
	}
}

// Where attempts fail with f whatever the load, r retries make (1 − f^(r+1))/(1 − f) attempts of a call and answer 1 − f^(r+1) of them.
func TestAmplificationIsTheFormulas(t *testing.T) {
	if raced {
		t.Skip("numbers")
	}
	for _, f := range []float64{0.1, 0.3, 0.5, 0.8, 1} {
		for _, r := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("f = %v, r = %d", f, r), func(t *testing.T) {
				s := sim.Rig(t, func(s *scenario.Scenario) {
					s.Deadline, s.Client.Timeout, s.Client.MaxRetries, s.Duration = time.Hour, time.Hour, r, 20*time.Second
					s.Arrivals.Steps[0].Rate, s.Client.BaseDelay = 1000, time.Millisecond
					s.Downstream.Workers = 1000 // no queue
					s.Faults = []scenario.Fault{{To: time.Hour, Kind: scenario.Error, Probability: f}}
				})
				var amplification, goodput []float64
				for seed := range uint64(8) {
					x := world(t, sim.Options{Scenario: s, Seed: seed, Guard: named(t, "exponential-jitter")}).Run()
					amplification, goodput = append(amplification, x.Amplification), append(goodput, x.Goodput)
				}
				n := float64(r + 1)
				want := n
				if f < 1 {
					want = (1 - math.Pow(f, n)) / (1 - f)
				}
				within(t, "amplification", amplification, want, 0.02)
				within(t, "goodput", goodput, 1-math.Pow(f, n), 0.04)
			})
		}
	}
}

// A throttle lets its limit through and its burst, no more and no less, whatever comes.
func TestAThrottlePassesItsLimit(t *testing.T) {
	for _, limit := range []float64{0.5, 3, 300} {
		for _, process := range []scenario.Process{scenario.Poisson, scenario.Constant} {
			s := sim.Rig(t, func(s *scenario.Scenario) {
				s.Client.MaxRetries, s.Arrivals.Process = 0, process
				s.Faults = []scenario.Fault{{From: 20 * time.Second, To: 50 * time.Second, Kind: scenario.Throttle, Limit: limit},
					{From: 50 * time.Second, To: 60 * time.Second, Kind: scenario.Throttle, Limit: limit / 2}}
			})
			r := world(t, sim.Options{Scenario: s, Seed: 1, Guard: named(t, "none")}).Run()
			calm, in := arrivalsOf(t, s, 1) // what comes in the calm is all answered
			passed := r.Goodput*float64(r.Calls) - float64(calm)
			want := 30*limit + sim.Burst(limit) + 10*limit/2 + sim.Burst(limit/2)
			if passed > want+1e-6 || passed < 0.995*want-3 {
				t.Errorf("%v/s, %v: %v of %d calls passed, want %v", limit, process, passed, in, want)
			}
		}
	}
}

// arrivalsOf counts the calls outside and inside a scenario's incidents.
func arrivalsOf(t testing.TB, s *scenario.Scenario, seed uint64) (outside, inside int) {
	r := newRecord(t, s)
	world(t, sim.Options{Scenario: s, Seed: seed, Guard: r.watch(named(t, "none"))}).Run()
	for _, c := range r.calls {
		in := false
		for _, i := range s.Incidents() {
			in = in || c.start >= i.From && c.start < i.To
		}
		if in {
			inside++
		} else {
			outside++
		}
	}
	return outside, inside
}
