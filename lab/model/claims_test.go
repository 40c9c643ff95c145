package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/explain"
)

func TestAmplificationOfTheClaim(t *testing.T) {
	for f, want := range map[float64]float64{0.1: 1.111, 0.3: 1.417, 0.5: 1.875, 1: 4} {
		near(t, fmt.Sprint("A at ", f), amplification(f, 3), want, 5e-4)
		if f < 1 {
			near(t, "the quotient", amplification(f, 3), (1-math.Pow(f, 4))/(1-f), 1e-12)
		}
	}
	near(t, "safe with 10 %", safeUtilisation(withBudget(1, 3, 0.1)), 0.909, 5e-4)
	near(t, "safe with 20 %", safeUtilisation(withBudget(1, 3, 0.2)), 0.833, 5e-4)
	for _, c := range []struct {
		f    float64
		r    int
		want Verdict
	}{{1, 3, HoldsOnlyIf}, {0.3, 3, False}, {0.5, 0, Holds}, {0, 3, False}} {
		r, err := Amplification(AmplificationInput{Retries: c.r, FailureRate: c.f})
		if err != nil || r.Verdict != c.want {
			t.Errorf("%+v: %v %v", c, r.Verdict, err)
		}
	}
}

// A retry loop, drawn: the formula counts what it does.
func TestAmplificationIsWhatARetryLoopDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const calls = 200_000
	attempts := 0
	for range calls {
		for a := 0; a <= 3; a++ {
			attempts++
			if rng.Float64() >= 0.3 {
				break
			}
		}
	}
	near(t, "attempts per call", float64(attempts)/calls, amplification(0.3, 3), 0.006)
}

func TestJitterOfTheClaim(t *testing.T) {
	for _, c := range []struct{ w, s, want, tolerance float64 }{
		{1, 6, 0.833, 5e-4}, {0.1, 0.2, 0.5, 1e-12}, {0.2, 0.2, 0, 1e-12}, {0.1, 1, 0.9, 1e-12}, {0.2, 1, 0.8, 1e-12}, {3, 0, 0, 0},
	} {
		near(t, fmt.Sprintf("w %v s %v", c.w, c.s), 1-peakShare(c.w, c.s), c.want, c.tolerance)
	}
	for _, c := range []struct {
		in   JitterInput
		want Verdict
	}{
		{JitterInput{Timer: time.Second, Jitter: 0.2, Law: "one-sided", Bins: []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}}, False},
		{JitterInput{Timer: time.Second, Law: "full", Bins: []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}}, Holds},
		{JitterInput{Timer: time.Second, Law: "equal", Bins: []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}}, HoldsOnlyIf},
		{JitterInput{Timer: 30 * time.Second, Jitter: 0.1, Law: "two-sided", Bins: []time.Duration{time.Second}}, Holds},
		{JitterInput{Timer: time.Second, Law: "one-sided", Bins: []time.Duration{time.Second}}, False},
	} {
		c.in.Clients, c.in.Runs = 10, 2
		if r, err := Jitter(c.in); err != nil || r.Verdict != c.want {
			t.Errorf("%+v: %v %v", c.in, r.Verdict, err)
		}
	}
}

// The exact peak against every way to put n calls into the bins, and against drawn herds.
func TestExpectedPeak(t *testing.T) {
	for _, c := range []struct {
		n    int
		w, s float64
	}{{1, 1, 3}, {2, 1, 2}, {5, 1, 3}, {6, 1, 2.5}, {4, 0.3, 1}, {3, 2, 1}} {
		bins := int(math.Ceil(c.s/c.w - 1e-9))
		p := make([]float64, bins)
		for i := range p {
			p[i] = min(c.w, c.s-float64(i)*c.w) / c.s
		}
		want, ways := 0.0, int(math.Pow(float64(bins), float64(c.n)))
		for way := range ways {
			counts, weight, top := make([]int, bins), 1.0, 0
			for rest, i := way, 0; i < c.n; rest, i = rest/bins, i+1 {
				counts[rest%bins]++
				weight *= p[rest%bins]
				top = max(top, counts[rest%bins])
			}
			want += weight * float64(top)
		}
		near(t, fmt.Sprintf("%+v", c), expectedPeak(c.n, c.w, c.s), want, 1e-9)
	}
	in := DefaultJitter()
	mean, stderr := peaks(in, 6)
	for i, b := range in.Bins {
		near(t, fmt.Sprint("drawn, bin ", b), mean[i], expectedPeak(in.Clients, b.Seconds(), 6)/float64(in.Clients), 4*stderr[i]+1e-12)
	}
}

func TestTimeoutOfTheClaim(t *testing.T) {
	near(t, "exponential", missExponential(2, 1e-3), 1e-6, 1e-12)
	for sigma, want := range map[float64]float64{0.5: 3.8e-6, 1: 7.7e-5, 1.5: 1.9e-4} {
		near(t, fmt.Sprint("lognormal ", sigma), missLognormal(2, 1e-3, sigma), want, want*0.02)
	}
	for alpha, want := range map[float64]float64{1.5: 3.5e-4, 2: 2.5e-4} {
		near(t, fmt.Sprint("Pareto ", alpha), missPareto(2, 1e-3, alpha), want, want*0.02)
	}
	near(t, "z of p99.9", normalQuantile(1e-3), 3.0902, 5e-5)
	near(t, "σ", lognormalLimit(2, 1e-3, 1e-4), 1.10, 5e-3)
	near(t, "α", paretoLimit(2, 1e-3, 1e-4), 3.32, 5e-3)
	near(t, "at the limit of σ", missLognormal(2, 1e-3, lognormalLimit(2, 1e-3, 1e-4)), 1e-4, 1e-12)
	near(t, "at the limit of α", missPareto(2, 1e-3, paretoLimit(2, 1e-3, 1e-4)), 1e-4, 1e-12)
	r, err := Timeout(DefaultTimeout())
	if err != nil || r.Verdict != HoldsOnlyIf || !strings.Contains(r.Because, "σ = 1.10") || !strings.Contains(r.Because, "α = 3.32") || !strings.Contains(r.Notes[0], "10000") {
		t.Errorf("%v %v %v", r.Because, r.Notes, err)
	}
	in := DefaultTimeout()
	in.Lognormal, in.Pareto = []float64{0.5}, nil
	if r, _ := Timeout(in); r.Verdict != Holds {
		t.Errorf("light tails: %v", r.Verdict)
	}
	in.K = 1
	if r, _ := Timeout(in); r.Verdict != False {
		t.Errorf("k = 1: %v", r.Verdict)
	}
}

// The two samples enclose the true quantile as often as is said, and no closer pair does.
func TestOrderStatistics(t *testing.T) {
	for _, n := range []int{10, 1000, 3000, 5000, 10_000} {
		lo, hi := orderStatistics(n, 0.999)
		if below := binomialLower(n, 0.999, lo-1); below > 0.025 {
			t.Errorf("n = %d: the true quantile is below the sample %d with probability %v", n, lo, below)
		}
		if above := binomialTail(n, 0.999, hi); above > 0.025 {
			t.Errorf("n = %d: above the sample %d with probability %v", n, hi, above)
		}
		if lo < n && binomialLower(n, 0.999, lo) <= 0.025 || hi > 1 && binomialTail(n, 0.999, hi-1) <= 0.025 {
			t.Errorf("n = %d: %d to %d is wider than it need be", n, lo, hi)
		}
	}
	if _, hi := orderStatistics(3600, 0.999); hi != 3601 {
		t.Error("3600 samples have an upper end for p99.9") // 0.999^n > 2.5 % up to 3687
	}
	if _, hi := orderStatistics(3700, 0.999); hi != 3700 {
		t.Error("3700 samples have none")
	}
}

func TestThresholdOfTheClaim(t *testing.T) {
	in := DefaultThreshold()
	healthy := pmfAt(20, in.Healthy)
	full := in.compare("full", pmfAt(20, in.Full), healthy, in.Prior)
	near(t, "full F1", full.bestQ.f1, 1, 1e-3)
	near(t, "full plateau from", full.plateau[0], 0.20, 1e-9)
	near(t, "full plateau to", full.plateau[1], 0.55, 1e-9)
	uniform := in.compare("uniform", pmfUniform(20, 0.1, 1), healthy, in.Prior)
	near(t, "uniform best", uniform.best, 0.20, 1e-9)
	near(t, "uniform F1", uniform.bestQ.f1, 0.94, 5e-3)
	near(t, "uniform F1 at 0.5", uniform.half.f1, 0.69, 5e-3)
	partial := in.compare("partial", pmfBeta(20, 0.3*17, 0.7*17), healthy, in.Prior)
	near(t, "partial best", partial.best, 0.15, 1e-9)
	near(t, "partial F1", partial.bestQ.f1, 0.91, 5e-3)
	near(t, "partial F1 at 0.5", partial.half.f1, 0.14, 5e-3)
	symmetric := in.compare("symmetric", pmfAt(20, 0.8), pmfAt(20, 0.2), 0.5)
	near(t, "symmetric best", symmetric.best, 0.5, 1e-9)
	for _, v := range []verdictOn{full, uniform, partial, symmetric} {
		// Of the calibrated probability the best threshold is half the best F1: between the outcomes that trip and those that do
		// not. The best F1 over all rules is that of bestK.
		best := judge(v.outcomes, v.health, v.prior, in.bestK(v.outcomes, v.health, v.prior)).f1
		if !(v.below <= best/2+1e-9 && best/2 <= v.above+1e-9) || best/2 > 0.5 {
			t.Errorf("%s: half of %v is not between %v and %v", v.name, best, v.below, v.above)
		}
	}
	r, err := Threshold(in)
	if err != nil || r.Verdict != HoldsOnlyIf || !strings.Contains(r.Because, "full or symmetric") {
		t.Errorf("%v %v %v", r.Verdict, r.Because, err)
	}
	for mix, want := range map[string]Verdict{"full=1": Holds, "partial=1": HoldsOnlyIf} {
		in.Mix = mix
		if r, err := Threshold(in); err != nil || r.Verdict != want {
			t.Errorf("%s: %v %v", mix, r.Verdict, err)
		}
	}
}

func TestDistributionsOfFailures(t *testing.T) {
	for _, n := range []int{1, 7, 20, 300} {
		for name, pmf := range map[string][]float64{"at": pmfAt(n, 0.3), "uniform": pmfUniform(n, 0.1, 1), "narrow": pmfUniform(n, 0.2, 0.25), "point": pmfUniform(n, 0.2, 0.2),
			"beta": pmfBeta(n, 0.3*17, 0.7*17), "none": pmfAt(n, 0), "every": pmfAt(n, 1)} {
			sum := 0.0
			for _, p := range pmf {
				sum += p
			}
			near(t, fmt.Sprintf("%s of %d", name, n), sum, 1, 1e-9)
		}
		// Against the integral over the failure rate, by the midpoint rule.
		const steps = 4000
		uniform, beta := pmfUniform(n, 0.1, 1), pmfBeta(n, 3, 7)
		for _, k := range []int{0, n / 3, n} {
			u, b, weight := 0.0, 0.0, 0.0
			for i := range steps {
				x := (float64(i) + 0.5) / steps
				w := x * x * math.Pow(1-x, 6)
				weight += w
				b += w * binomialPMF(n, x, k)
				y := 0.1 + 0.9*x
				u += binomialPMF(n, y, k) / steps
			}
			near(t, fmt.Sprintf("uniform %d of %d", k, n), uniform[k], u, 1e-5)
			near(t, fmt.Sprintf("beta %d of %d", k, n), beta[k], b/weight, 1e-5)
		}
	}
}

func TestRuleIsTheBreakers(t *testing.T) {
	for _, c := range []struct {
		rule string
		n    int
		t    float64
		want int
	}{{"posterior", 20, 0.5, 11}, {"posterior", 20, 0.2, 4}, {"posterior", 20, 0.15, 3}, {"share", 20, 0.5, 10}, {"share", 20, 0.15, 3}, {"share", 10, 0.3, 3}, {"posterior", 1, 0.9, 2}} {
		if got := failuresFor(c.rule, c.n, c.t); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestBreakerOfTheClaim(t *testing.T) {
	near(t, "one failure", posteriorMean(1, 0), 2.0/3, 1e-12)
	near(t, "ever at 1 %", everTrips(0.01), 0.010, 5e-4)
	near(t, "ever at 5 %", everTrips(0.05), 0.053, 5e-4)
	near(t, "P(θ > 0.5) after 4", posteriorAbove(4, 0, 0.5), 0.969, 5e-4)
	for p := 0.0; p < 0.4; p += 0.05 {
		near(t, fmt.Sprint("walk at ", p), tripsWithin(p, 2000), everTrips(p), 1e-3)
		near(t, "its first step", tripsWithin(p, 1), p, 1e-12)
	}
	if fast, slow := straightFailures(false), straightFailures(true); fast != 43 || slow != 12 {
		t.Errorf("%d fast errors and %d timeouts in a row, want 43 and 12", fast, slow)
	}
	for _, c := range []struct {
		n     int
		theta float64
	}{{43, 0.9}, {12, 0.7}} {
		if posteriorAbove(c.n, 0, c.theta) < 0.99 || posteriorAbove(c.n-1, 0, c.theta) >= 0.99 {
			t.Errorf("%+v is not where the posterior passes 0.99", c)
		}
	}
	r, err := Breaker(DefaultBreaker())
	if err != nil || r.Verdict != Holds || !strings.Contains(r.Because, "trap") || !strings.Contains(strings.Join(r.Notes, " "), "bench/") {
		t.Errorf("%v %v %v", r.Verdict, r.Because, err)
	}
	in := DefaultBreaker()
	in.Successes = 10
	if r, _ := Breaker(in); r.Verdict != False {
		t.Errorf("after ten successes: %v", r.Verdict)
	}
	in.CheckClosed, in.CheckProbing = 200, 100
	if r, _ := Breaker(in); len(r.Tables) != 4 || r.Tables[3].Rows[0][3] != 250.0 {
		t.Errorf("measured: %+v", r.Tables)
	}
}

// The posterior against the integral of its density.
func TestPosterior(t *testing.T) {
	for _, c := range []struct {
		f, s int
		x    float64
	}{{0, 0, 0.3}, {4, 0, 0.5}, {3, 9, 0.4}, {30, 34, 0.5}} {
		const steps = 200_000
		all, above := 0.0, 0.0
		for i := range steps {
			y := (float64(i) + 0.5) / steps
			d := math.Exp(float64(c.f)*math.Log(y) + float64(c.s)*math.Log1p(-y))
			all += d
			if y > c.x {
				above += d
			}
		}
		near(t, fmt.Sprintf("%+v", c), posteriorAbove(c.f, c.s, c.x), above/all, 1e-5)
	}
	for _, n := range []int{1, 10, 100_000} {
		for _, k := range []int{0, 1, n / 2, n, n + 1} {
			near(t, fmt.Sprintf("both tails of %d at %d", n, k), binomialTail(n, 0.3, k)+binomialLower(n, 0.3, k-1), 1, 1e-9)
		}
	}
}

// The article's breaker, walked: it trips as often as the walk says.
func TestWalkIsTheBreakers(t *testing.T) {
	b, err := breaker.New(breaker.Config{Article: true})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 7))
	const walks, p = 20_000, 0.2
	tripped := 0
	for range walks {
		for f, s := uint64(0), uint64(0); f+s < 100; {
			if rng.Float64() < p {
				f++
			} else {
				s++
			}
			if b.MeanTrips(f, s) {
				tripped++
				break
			}
		}
	}
	near(t, "tripped", float64(tripped)/walks, tripsWithin(p, 100), 0.01)
}

func TestLittlesLawOfTheClaim(t *testing.T) {
	in := DefaultLittlesLaw()
	near(t, "E[S]", meanService(5, 0.05, 0.01), 0.0995, 1e-12)
	r, err := LittlesLaw(in)
	if err != nil || r.Verdict != HoldsOnlyIf || !strings.Contains(r.Because, "1005 calls/s") || !strings.Contains(r.Claim, "20 calls/s") {
		t.Errorf("%v %v %v", r.Verdict, r.Because, err)
	}
	in.SlowShare = 1
	if r, _ := LittlesLaw(in); r.Verdict != Holds {
		t.Errorf("every call slow: %v", r.Verdict)
	}
}

func TestFloorOfTheClaim(t *testing.T) {
	near(t, "delay at 0.70", delayFactor(0.7), 8, 1e-6)
	for _, c := range []struct {
		cps         float64
		levels, out int
	}{{0.72, 10, 7}, {0.72, 5, 3}, {0.7, 10, 7}, {0.8, 10, 8}, {1, 10, 10}, {0.58, 50, 29}, {0, 10, 0}} {
		if got := floorOf(c.cps, c.levels); got != c.out {
			t.Errorf("%+v: %d", c, got)
		}
	}
	r, err := Floor(DefaultFloor())
	if err != nil || r.Verdict != False || !strings.Contains(r.Because, "⌊7.2⌋ = 7") || !strings.Contains(r.Because, "⌊3.6⌋ = 3") {
		t.Errorf("%v %v %v", r.Verdict, r.Because, err)
	}
	in := DefaultFloor()
	in.Levels = []int{5}
	if r, _ := Floor(in); r.Verdict != Holds {
		t.Errorf("5 levels: %v", r.Verdict)
	}
}

// The floor and the stretched delay are the engine's, at every pressure.
func TestFloorIsTheEngines(t *testing.T) {
	for _, levels := range []int{1, 5, 10, 31} {
		for i := range 101 {
			in := explain.Defaults()
			in.Profile, in.Levels, in.Priority = cortex.Article, levels, levels
			in.FailureRate, in.Burn = float64(i)/100, float64(i)/200
			in.P99, in.Baseline, in.Queue, in.QueueCapacity = time.Second+time.Duration(i)*10*time.Millisecond, time.Second, float64(i), 100
			x, err := explain.Explain(in)
			if err != nil {
				t.Fatal(err)
			}
			if got := floorOf(x.CPS, levels); got != x.Floor {
				t.Errorf("CPS %v of %d levels: floor %d, the engine's is %d", x.CPS, levels, got, x.Floor)
			}
			if want := x.Decision.DelayMaxMS / 500; x.Decision.Retry && math.Abs(delayFactor(x.CPS)-want) > 1e-6 {
				t.Errorf("CPS %v: %v times as long, the engine says %v", x.CPS, delayFactor(x.CPS), want)
			}
		}
	}
}
