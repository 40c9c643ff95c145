package breaker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// posterior is P(θ > x | Beta(1+f, 1+s)) by Simpson's rule on θ^f (1−θ)^s: nothing in common with the binomial sum.
func posterior(x float64, f, s int) float64 {
	density := func(t float64) float64 { return math.Pow(t, float64(f)) * math.Pow(1-t, float64(s)) }
	integral := func(a, b float64) float64 {
		const panels = 240
		h := (b - a) / panels
		sum := density(a) + density(b)
		for i := 1; i < panels; i++ {
			sum += density(a+float64(i)*h) * float64(2+2*(i%2))
		}
		return sum * h / 3
	}
	above, below := integral(x, 1), integral(0, x)
	return above / (above + below)
}

func TestPosteriorKnownNumbers(t *testing.T) {
	if got := posterior(0.5, 4, 0); math.Abs(got-0.96875) > 1e-9 {
		t.Fatalf("the oracle itself: P(θ > 0.5) after 4 straight failures = %v, want 0.96875", got)
	}
	for _, tc := range []struct {
		theta, confidence float64
		straight          int
	}{
		{0.9, 0.99, 43},
		{0.7, 0.99, 12},
		{0.5, 0.96875, 4}, // exactly: 1 − 2⁻⁵
		{0.5, 0.96876, 5},
		{0.5, 0.95, 4},
		{0.5, 0.75, 1},
	} {
		l := leastFailures(tc.theta, tc.confidence)
		if got := l.fewest(); got != tc.straight {
			t.Errorf("straight failures for P(θ > %v) ≥ %v: %d, want %d", tc.theta, tc.confidence, got, tc.straight)
		}
		for n := 0; n < tc.straight; n++ {
			if l[n] != never {
				t.Errorf("P(θ > %v) ≥ %v: %d outcomes trip at %d failures, want never", tc.theta, tc.confidence, n, l[n])
			}
		}
	}
}

func TestLeastFailuresAgainstIntegration(t *testing.T) {
	for _, tc := range []struct{ theta, confidence float64 }{{0.9, 0.99}, {0.7, 0.99}, {0.5, 0.95}, {0.93, 0.99}, {0.05, 0.5}, {0.3, 0.999}} {
		l := leastFailures(tc.theta, tc.confidence)
		for n := 1; n <= span; n++ {
			for f := 1; f <= n; f++ {
				p := posterior(tc.theta, f, n-f)
				if math.Abs(p-tc.confidence) < 1e-6 {
					continue // the integral cannot tell
				}
				if got, want := f >= int(l[n]), p >= tc.confidence; got != want {
					t.Errorf("θ %v, confidence %v, %d of %d: trips %v, want %v (P = %v)", tc.theta, tc.confidence, f, n, got, want, p)
				}
			}
		}
	}
}

// outcomes is the naive model of the evidence: every outcome of the generation, as it came.
type outcomes []outcome

type outcome struct {
	at               time.Duration
	failed, timedOut bool
}

func (o outcomes) successes(now, age time.Duration) (n uint64) {
	for _, x := range o {
		if !x.failed && now-x.at <= age {
			n++
		}
	}
	return n
}

func (o outcomes) evidence(now time.Duration) (f, timeouts, s int) {
	for _, x := range o[max(0, len(o)-64):] {
		switch {
		case now-x.at > 60*time.Second:
		case !x.failed:
			s++
		case x.timedOut:
			timeouts++
			fallthrough
		default:
			f++
		}
	}
	return f, timeouts, s
}

func fewest(theta, confidence float64) int {
	l := leastFailures(theta, confidence)
	return l.fewest()
}

// run is the number of failures in a row at the end, and whether a target that answers the share of calls that this one did before them
// makes as many by chance; longest bounds that.
func (o outcomes) run(longest int) (n int, ordinary bool) {
	for n < len(o) && o[len(o)-1-n].failed {
		n++
	}
	before := o[:len(o)-n]
	now := o[len(before)].at
	f, all := 0, 0
	for _, x := range before[max(0, len(before)-64):] {
		if x.failed && now-x.at <= 60*time.Second {
			f++
		}
	}
	all = int(before.successes(now, math.MaxInt64))
	s := min(all, 64-f)
	if f < 8 || s > f {
		return n, false
	}
	// In 255ths, as it is kept.
	share := math.Floor(255*(float64(s)-math.Sqrt(float64(s))+0.5)/float64(f+s+1)) / 255
	return n, n < longest && math.Pow(1-share, float64(n)) > 1e-4
}

func TestFailureAgainstTheListOfOutcomes(t *testing.T) {
	type key struct {
		theta float64
		f, s  int
	}
	memo := map[key]float64{}
	prob := func(theta float64, f, s int) float64 {
		k := key{theta, f, s}
		p, ok := memo[k]
		if !ok {
			p = posterior(theta, f, s)
			memo[k] = p
		}
		return p
	}
	var trips, slowTrips, stays, byChance int
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := Config{}
		if seed%3 == 1 {
			c = Config{ThetaFast: 0.6, ThetaSlow: 0.4, Confidence: 0.9}
		}
		b := mustNew(t, c)
		c = b.cfg
		var o outcomes
		now := time.Duration(r.Int64N(int64(time.Hour))) - 30*time.Minute
		failing, timingOut, mean := 0.5, 0.5, 0.1
		for step := range 2000 {
			if r.IntN(50) == 0 { // another phase of the target's life
				failing = []float64{0, 0.02, 0.3, 0.6, 0.85, 0.95, 1}[r.IntN(7)]
				timingOut = []float64{0, 0.4, 0.5, 0.6, 1}[r.IntN(5)]
				mean = []float64{0.001, 0.1, 1, 5}[r.IntN(4)]
			}
			now += time.Duration(r.ExpFloat64() * mean * 1e9)
			if r.IntN(200) == 0 {
				now += time.Duration(r.Int64N(int64(2 * time.Minute)))
			}
			seen := now
			if r.IntN(20) == 0 {
				seen -= time.Duration(r.Int64N(int64(time.Second))) // read before the lock was taken
			}
			if r.Float64() >= failing {
				o = append(o, outcome{at: now})
				continue
			}
			// The breaker's clock advances in its own calls only.
			b.State(now)
			timedOut := r.Float64() < timingOut
			o = append(o, outcome{at: now, failed: true, timedOut: timedOut})
			got := b.Failure(seen, timedOut, o.successes(now, math.MaxInt64), o.successes(now, 60*time.Second))

			f, timeouts, s := o.evidence(now)
			slow := 2*timeouts >= f
			theta := c.ThetaFast
			if slow {
				theta = c.ThetaSlow
			}
			n, ordinary := o.run(fewest(theta, c.Confidence) * 5 / 2)
			straight := min(n, f)
			want := (prob(theta, f, s) >= c.Confidence || prob(theta, straight, 0) >= c.Confidence) && !ordinary
			if got != want {
				t.Fatalf("seed %d step %d: Failure = %v, want %v (f %d, timeouts %d, s %d, %d in a row, ordinary %v)", seed, step, got, want, f, timeouts, s,
					n, ordinary)
			}
			if ordinary {
				byChance++
			}
			if !got {
				stays++
				continue
			}
			trips++
			if r.IntN(3) == 0 {
				continue // the owner may leave it closed: the next failure says so again
			}
			b.Trip(now, 1)
			if b.SlowTrip() != slow {
				t.Fatalf("seed %d step %d: SlowTrip = %v, want %v (f %d, timeouts %d)", seed, step, b.SlowTrip(), slow, f, timeouts)
			}
			if slow {
				slowTrips++
			}
			b.Close(now)
			o = nil
		}
	}
	if trips < 500 || slowTrips < 50 || stays < 5000 || byChance < 1000 {
		t.Errorf("%d trips (%d slow), %d failures without, %d in an ordinary run: too few to prove anything", trips, slowTrips, stays, byChance)
	}
}

// A counter that fell back would make failures that lie far apart look consecutive, and open a healthy circuit.
func TestSuccessCounterThatFallsIsNotEvidenceOfAnOutage(t *testing.T) {
	for _, first := range []uint64{math.MaxUint64, 1 << 40, 500} {
		b := mustNew(t, Config{})
		b.Failure(0, true, first, first)
		for i := range uint64(200) { // one failure in a hundred calls
			if b.Failure(time.Duration(i)*time.Second, true, 100*i, 6000) {
				t.Fatalf("counter fell from %d: opened at 1 %% failures", first)
			}
		}
	}
}

func TestSuccessCounterReadBeforeTheLockIsHeld(t *testing.T) {
	b := mustNew(t, Config{})
	for i := range uint64(11) {
		if b.Failure(0, true, 1000-i%2, 0) {
			t.Fatalf("opened after %d timeouts", i+1)
		}
	}
	if !b.Failure(0, true, 999, 0) {
		t.Error("closed after 12 straight timeouts")
	}
}

func TestEvidenceIsAMinuteOldAtMost(t *testing.T) {
	for age, want := range map[time.Duration]bool{60 * time.Second: true, 60*time.Second + 1: false} {
		b := mustNew(t, Config{})
		b.Failure(0, true, 0, 0)
		got := false
		for range 11 {
			got = b.Failure(age, true, 0, 0)
		}
		if got != want {
			t.Errorf("11 timeouts and one %v before: trip %v, want %v", age, got, want)
		}
	}
}

// The owner's window may still hold successes of the generation before.
func TestSuccessesOfAnOlderGenerationAreNoEvidence(t *testing.T) {
	b := mustNew(t, Config{})
	got := false
	for range 12 {
		got = b.Failure(0, true, 0, 1000)
	}
	if !got {
		t.Error("closed after 12 straight timeouts since the generation began")
	}
}

// A counter of a whole day: only what is within the minute counts.
func TestSuccessesOfLongAgoAreNoEvidence(t *testing.T) {
	b := mustNew(t, Config{})
	got := false
	for range 12 {
		got = b.Failure(0, true, 1e6, 0)
	}
	if !got {
		t.Error("closed after 12 straight timeouts, an hour after the last success")
	}
}

func TestArticleIgnoresTheAdaptiveRule(t *testing.T) {
	b := mustNew(t, Config{Article: true})
	for range 100 {
		if b.Failure(0, true, 0, 0) {
			t.Fatal("tripped")
		}
	}
}

func TestMeanTrips(t *testing.T) {
	for _, tc := range []struct {
		threshold float64
		f, s      uint64
		want      bool
	}{
		{0, 0, 0, false}, // 1/2 does not exceed 1/2
		{0, 1, 0, true},  // 2/3: the article's trap, kept to the letter
		{0, 1, 1, false},
		{0, 2, 1, true},
		{0, 19, 20, false},
		{0, 50, 50, false},
		{0, 51, 50, true},
		{0.9, 1, 0, false},
		{0.9, 8, 0, false}, // 9/10
		{0.9, 9, 0, true},
		{0.1, 0, 8, false}, // 1/10
		{0.1, 0, 7, true},
		{0, math.MaxUint64, math.MaxUint64, false},
		{0, math.MaxUint64, 0, true},
		{0, 0, math.MaxUint64, false},
	} {
		b := mustNew(t, Config{Article: true, Threshold: tc.threshold})
		if got := b.MeanTrips(tc.f, tc.s); got != tc.want {
			t.Errorf("threshold %v: MeanTrips(%d, %d) = %v, want %v", tc.threshold, tc.f, tc.s, got, tc.want)
		}
	}
}
