package timeout

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/window"
)

const ms = time.Millisecond

func mustNew(t testing.TB, c Config) *Timeout {
	t.Helper()
	tm, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return tm
}

// F36: one lucky sample set the timeout to its floor and killed legitimate work; rounding could give 0.
func TestFewSamplesAndTimeoutsNeverShrinkTheTimeout(t *testing.T) {
	tm := mustNew(t, Config{Min: 10 * ms, Max: time.Minute, Bootstrap: time.Minute, MinSamples: 3})
	now := time.Duration(0)
	step := func() time.Duration {
		now += 100 * ms
		return tm.Refresh(now)
	}
	for n := range 3 {
		if got := step(); got != time.Minute {
			t.Fatalf("after %d samples: %v, want the bootstrap value", n, got)
		}
		if n < 2 {
			tm.Observe(now, window.Bucket(50*ms), 1)
		}
	}
	tm.Observe(now, window.Bucket(200*time.Microsecond), 1000)
	if got := step(); got < 10*ms || got > 120*ms {
		t.Fatalf("after 1000 samples of 0.2 ms and two of 50 ms: %v", got)
	}

	// Without the two it is the floor: twice 0.2 ms rounds to nothing a service could live with.
	tm = mustNew(t, Config{Min: 10 * ms, Max: time.Minute, Bootstrap: time.Minute, MinSamples: 3})
	tm.Observe(now, window.Bucket(200*time.Microsecond), 1000)
	if got := step(); got != 10*ms {
		t.Fatalf("after 1000 samples of 0.2 ms: %v, want the floor", got)
	}
	last := tm.Current()
	for range 3000 { // 5 minutes of nothing but timeouts
		tm.ObserveTimeouts(now, 1)
		got := step()
		if got < last {
			t.Fatalf("timeouts alone shrank %v to %v", last, got)
		}
		last = got
	}
	if last <= 10*ms || last > time.Minute {
		t.Errorf("after 5 minutes of timeouts: %v, want more than the floor", last)
	}
}

func TestBootstrapUntilMinSamples(t *testing.T) {
	for _, n := range []int{1, 100, 5000} {
		tm := mustNew(t, Config{MinSamples: n})
		for i := range n {
			if got := tm.Refresh(time.Duration(i) * 200 * ms); got != time.Second {
				t.Fatalf("MinSamples %d: %v after %d", n, got, i)
			}
			tm.Observe(time.Duration(i)*200*ms, window.Bucket(100*ms), 1)
		}
		if got := tm.Refresh(time.Duration(n) * 200 * ms); got < 200*ms || got > 230*ms {
			t.Errorf("MinSamples %d: %v with enough samples of 100 ms", n, got)
		}
	}
}

func TestGrowthStopsAtMax(t *testing.T) {
	for _, limit := range []time.Duration{time.Second, 5 * time.Second, math.MaxInt64} {
		tm := mustNew(t, Config{Max: limit})
		last := tm.Current()
		for s := range 1000 {
			now := time.Duration(s) * time.Second
			tm.ObserveTimeouts(now, math.MaxUint64)
			got := tm.Refresh(now)
			if got < last || got > limit {
				t.Fatalf("Max %v: from %v to %v", limit, last, got)
			}
			last = got
		}
		if last != limit {
			t.Errorf("%v after 1000 s of timeouts, want Max %v", last, limit)
		}
	}
}

func TestGrowthNeedsEvidence(t *testing.T) {
	// A burst, then silence: the timeouts span no 10 s.
	tm := mustNew(t, Config{})
	tm.ObserveTimeouts(0, 100)
	for s := range 100 {
		if got := tm.Refresh(time.Duration(s) * time.Second); got != time.Second {
			t.Fatalf("%v at %d s after one burst", got, s)
		}
	}
	// Two lone ones: no more than a coincidence.
	tm = mustNew(t, Config{})
	tm.ObserveTimeouts(0, 1)
	tm.ObserveTimeouts(time.Minute, 1)
	if got := tm.Refresh(2 * time.Minute); got != time.Second {
		t.Errorf("%v after two lone timeouts", got)
	}
	// A third one makes it a step, and only one.
	tm.ObserveTimeouts(3*time.Minute, 1)
	if got := tm.Refresh(3 * time.Minute); got != 1500*ms {
		t.Errorf("%v after the third timeout, want 1.5 s", got)
	}
	if got := tm.Refresh(time.Hour); got != 1500*ms {
		t.Errorf("%v an hour later", got)
	}
}

// Successes close to the timeout are the edge of a distribution only if there are enough of them.
func TestFewSuccessesDoNotMakeTheTimeoutGrow(t *testing.T) {
	for _, c := range []struct {
		successes uint64
		latency   time.Duration
		want      time.Duration
	}{
		{20, 900 * ms, time.Second},
		{200, 900 * ms, 1500 * ms},
		{200, 400 * ms, time.Second},
	} {
		tm := mustNew(t, Config{})
		for s := range 11 {
			now := time.Duration(s) * time.Second
			tm.ObserveTimeouts(now, max(1, c.successes/50)) // more than 1 %, less than half
			tm.Observe(now, window.Bucket(c.latency), c.successes/10)
			tm.Refresh(now)
		}
		if got := tm.Current(); got != c.want {
			t.Errorf("%d successes at %v beside timeouts: %v, want %v", c.successes, c.latency, got, c.want)
		}
	}
}

// A timeout of the bootstrap value says that a call took longer than that, also when the value has become shorter since.
func TestTimeoutsCountAtTheValueThatWasInForce(t *testing.T) {
	tm := mustNew(t, Config{})
	tm.Observe(0, window.Bucket(50*ms), 5000)
	tm.ObserveTimeouts(0, 10)
	if got := tm.Refresh(0); got > 115*ms {
		t.Fatalf("%v for calls of 50 ms, want the timeouts to wait", got)
	}
	tm.ObserveTimeouts(time.Second, 1)
	if got := tm.Refresh(9 * time.Second); got > 115*ms {
		t.Fatalf("%v after 9 s, want the timeouts to wait", got)
	}
	if got := tm.Refresh(10 * time.Second); got < 1900*ms || got > 2250*ms {
		t.Errorf("%v after 10 s, want 2 × 1 s", got)
	}
}

// In thin traffic the last attempts count, whenever they were: fading must not change their share, nor raise their weight.
func TestShareOfTimeoutsInThinTraffic(t *testing.T) {
	tm := mustNew(t, Config{})
	for i, c := range []struct{ ok, late, want float64 }{
		{0, 1, 1}, {1, 0, 1. / 2}, {3, 0, 1. / 5}, {0, 5, 6. / 10}, {0, 0, 6. / 10},
	} {
		now := time.Duration(i) * time.Hour
		tm.Observe(now, 90, uint64(c.ok))
		tm.ObserveTimeouts(now, uint64(c.late))
		if got := tm.share(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("step %d: share %v, want %v", i, got, c.want)
		}
	}
}

// Silence must not un-learn: the histogram fades no further than to what a p99.9 needs.
func TestIdleTimeChangesNothing(t *testing.T) {
	for _, n := range []uint64{100, 1000, 1_000_000} {
		tm := mustNew(t, Config{})
		tm.Observe(0, window.Bucket(100*ms), n)
		want := tm.Refresh(time.Second)
		for _, at := range []time.Duration{time.Minute, time.Hour, 1000 * time.Hour, math.MaxInt64} {
			if got := tm.Refresh(at); got != want {
				t.Errorf("%d samples: %v at %v, want %v", n, got, at, want)
			}
			if got := tm.Samples(); got < min(n, 999) {
				t.Errorf("%d samples: %d left at %v", n, got, at)
			}
		}
	}
}

func TestSamplesFade(t *testing.T) {
	tm := mustNew(t, Config{})
	tm.Observe(0, 90, 1_000_000)
	if got := tm.Samples(); got != 1_000_000 {
		t.Errorf("%d samples, want a million", got)
	}
	for s := range 60 {
		tm.Refresh(time.Duration(s+1) * time.Second)
	}
	if got := tm.Samples(); got < 367_000 || got > 369_000 {
		t.Errorf("%d samples of a million after one time constant, want 1/e", got)
	}
	tm.Observe(time.Minute, 90, math.MaxUint64)
	tm.Observe(time.Minute, 90, math.MaxUint64)
	if got := tm.Samples(); got != math.MaxUint64 {
		t.Errorf("Samples does not saturate: %d", got)
	}
}

func TestLatenciesAboveTheScaleDoNotShrink(t *testing.T) {
	tm := mustNew(t, Config{Max: time.Hour, Bootstrap: 25 * time.Minute})
	tm.Observe(0, window.Bucket(20*time.Minute), 1000)
	if got := tm.Refresh(time.Second); got != 25*time.Minute {
		t.Errorf("%v for calls of 20 minutes, want the bootstrap value kept", got)
	}
	tm.Observe(time.Second, window.Bucket(10*time.Second), 10_000_000)
	if got := tm.Refresh(2 * time.Second); got < 20*time.Second || got > 23*time.Second {
		t.Errorf("%v for calls of 10 s", got)
	}
}

func TestBadInput(t *testing.T) {
	tm := mustNew(t, Config{MinSamples: 1})
	tm.Observe(math.MinInt64, -1, 1)
	tm.Observe(-5, window.Buckets+9, 0)
	tm.ObserveTimeouts(math.MinInt64, 0)
	if got := tm.Refresh(math.MinInt64); got != time.Second {
		t.Errorf("%v before time 0, want the bootstrap value", got)
	}
	if got := tm.Refresh(0); got != 50*ms {
		t.Errorf("%v with one sample of 0, want the floor", got)
	}
	tm.Observe(time.Second, math.MaxInt, 1_000_000)
	if got := tm.Refresh(time.Second); got != 5*time.Second {
		t.Errorf("%v with samples above the scale, want the ceiling", got)
	}
}

// F31: with the time set back nothing fades and nothing stops.
func TestTimeSetBackIsNoTimePassing(t *testing.T) {
	tm := mustNew(t, Config{})
	start := 10 * time.Hour
	tm.Observe(start, window.Bucket(100*ms), 10_000)
	want := tm.Refresh(start)
	n := tm.Samples()
	for i := range 100 {
		tm.Observe(start-8*time.Hour, window.Bucket(100*ms), 1)
		if i%20 == 0 { // too few to matter for a p99.9
			tm.ObserveTimeouts(start-8*time.Hour, 1)
		}
		if got := tm.Refresh(start - 8*time.Hour); got != want {
			t.Fatalf("%v, want %v", got, want)
		}
	}
	if got := tm.Samples(); got != n+100 {
		t.Errorf("%d samples, want %d", got, n+100)
	}
	if got := tm.Refresh(start + 8*time.Hour); got < want*9/10 || got > want*11/10 {
		t.Errorf("%v set forward again, want about %v", got, want)
	}
}

func TestRefreshIsDueEvery100ms(t *testing.T) {
	tm := mustNew(t, Config{MinSamples: 1})
	tm.Refresh(time.Second)
	tm.Observe(time.Second, window.Bucket(10*ms), 100)
	for _, at := range []time.Duration{0, time.Second, 1099 * ms} {
		if got := tm.Refresh(at); got != time.Second {
			t.Errorf("%v at %v: not due yet", got, at)
		}
	}
	if got := tm.Refresh(1100 * ms); got != 50*ms {
		t.Errorf("%v when due", got)
	}
}

// exact is the p99.9 of sorted samples by counting from above, as a range: ranks within slack of the target count as well.
func exact(sorted []time.Duration, slack float64) (lo, hi time.Duration) {
	rest := float64(len(sorted)) * (1 - quantile)
	at := func(x float64) int { return max(0, len(sorted)-max(1, int(math.Ceil(x)))) }
	lo, _ = window.Bounds(window.Bucket(sorted[at(rest*(1+slack)+1e-9)]))
	_, hi = window.Bounds(window.Bucket(sorted[at(rest*(1-slack)-1e-9)]))
	return lo, hi
}

func TestEstimateAgainstSortedSamples(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := 1 + 9*rng.Float64()
		tm := mustNew(t, Config{Min: 1, Max: math.MaxInt64, Bootstrap: time.Second, MinSamples: 1, Multiplier: m})
		samples := make([]time.Duration, 1+rng.IntN(20_000))
		spread := 3 * rng.Float64()
		for i := range samples {
			samples[i] = time.Duration(float64(5*ms) * math.Exp(spread*rng.NormFloat64()))
			samples[i] = min(samples[i], time.Minute) // the scale's last bucket has rules of its own
			tm.Observe(0, window.Bucket(samples[i]), 1)
		}
		slices.Sort(samples)
		lo, hi := exact(samples, 0)
		got := float64(tm.Refresh(0))
		if got < m*float64(lo)-1 || got > m*float64(hi)+1 {
			t.Errorf("seed %d: %v from %d samples, want %.2f × [%v, %v]", seed, time.Duration(got), len(samples), m, lo, hi)
		}
	}
}

// The same with fading: every sample has a weight of e^(-age/60 s).
func TestFadingEstimateAgainstWeightedSamples(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 4))
		tm := mustNew(t, Config{Min: 1, Max: time.Hour})
		type sample struct {
			at time.Duration
			d  time.Duration
			n  uint64
		}
		var all []sample
		for i := range 1500 {
			at := time.Duration(i) * 100 * ms
			mean := float64(20*ms) * (1 + 9*float64(i/500%2)) // slow from 50 s to 100 s
			for range 5 {
				s := sample{at, time.Duration(mean * rng.ExpFloat64()), 1 + rng.Uint64N(20)}
				all = append(all, s)
				tm.Observe(at, window.Bucket(s.d), s.n)
			}
			got := tm.Refresh(at)
			if i < 200 || i%50 != 0 {
				continue
			}
			var weight [window.Buckets]float64
			total := 0.0
			for _, s := range all {
				w := float64(s.n) * math.Exp(-(at-s.at).Seconds()/60)
				weight[window.Bucket(s.d)] += w
				total += w
			}
			from := func(rest float64) int {
				b := window.Buckets - 1
				for ; b > 0 && weight[b] < rest; b-- {
					rest -= weight[b]
				}
				return b
			}
			// 5 % of slack: the first 1,000 samples do not fade until more have come.
			lo, _ := window.Bounds(from(total * 0.001 * 1.05))
			_, hi := window.Bounds(from(total * 0.001 * 0.95))
			if got < 2*lo || got > 2*hi {
				t.Fatalf("seed %d at %v: %v, want 2 × [%v, %v]", seed, at, got, lo, hi)
			}
		}
	}
}

// Whatever happens: the value stays within its bounds, only a success makes it shrink, and frozen it grows by half at most,
// at most every 10 s.
func TestInvariantsUnderRandomUse(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		c := Config{
			Min:        time.Duration(1 + rng.Int64N(int64(100*ms))),
			MinSamples: 1 + rng.IntN(200),
			Multiplier: 1 + 9*rng.Float64(),
		}
		c.Bootstrap = c.Min + time.Duration(rng.Int64N(int64(time.Second)))
		c.Max = c.Bootstrap + time.Duration(rng.Int64N(int64(10*time.Second)))
		tm := mustNew(t, c)
		now, scale := time.Duration(0), time.Duration(1)<<(20+seed%16)
		last, lastStep := tm.Current(), time.Duration(math.MinInt64/2)
		success := false
		for range 3000 {
			now += time.Duration(rng.Int64N(int64(scale)))
			if rng.UintN(50) == 0 {
				now -= time.Duration(rng.Int64N(int64(20 * scale)))
			}
			n := rng.Uint64N(4)
			if rng.UintN(20) == 0 {
				n = rng.Uint64() >> rng.UintN(64)
			}
			switch rng.UintN(3) {
			case 0:
				tm.Observe(now, rng.IntN(window.Buckets+2)-1, n)
				success = success || n > 0
			case 1:
				if rng.UintN(1+uint(seed%40)) == 0 {
					tm.ObserveTimeouts(now, n)
				}
			}
			got := tm.Refresh(now)
			switch {
			case got != tm.Current():
				t.Fatalf("seed %d: Refresh = %v, Current = %v", seed, got, tm.Current())
			case got < c.Min || got > c.Max:
				t.Fatalf("seed %d: %v is not in [%v, %v]", seed, got, c.Min, c.Max)
			case got < last && !success:
				t.Fatalf("seed %d: from %v to %v without a success", seed, last, got)
			case tm.frozen && got != last:
				if got != min(time.Duration(1.5*float64(last)), c.Max) {
					t.Fatalf("seed %d: frozen, but from %v to %v", seed, last, got)
				}
				if tm.now-lastStep < 10*time.Second {
					t.Fatalf("seed %d: two steps within %v", seed, tm.now-lastStep)
				}
				lastStep = tm.now
			}
			if got != last && !tm.frozen {
				success = false
			}
			if math.IsNaN(tm.total) || math.IsInf(tm.total, 0) || tm.total < 0 {
				t.Fatalf("seed %d: total = %v", seed, tm.total)
			}
			last = got
		}
	}
}

func TestNoAllocation(t *testing.T) {
	tm := mustNew(t, Config{})
	now := time.Duration(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 30 * ms
		tm.Observe(now, 90, 5)
		tm.ObserveTimeouts(now, 1)
		tm.Refresh(now)
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	b.ReportAllocs()
	tm := mustNew(b, Config{})
	for i := range b.N {
		tm.Observe(time.Duration(i)*time.Microsecond, 60+i%40, 1)
	}
}

func BenchmarkRefreshNotDue(b *testing.B) {
	b.ReportAllocs()
	tm := mustNew(b, Config{})
	tm.Refresh(0)
	for b.Loop() {
		tm.Refresh(ms)
	}
}

// Every round fades the histogram and makes an estimate.
func BenchmarkRefreshDue(b *testing.B) {
	b.ReportAllocs()
	tm := mustNew(b, Config{})
	tm.Observe(0, 90, 1_000_000_000)
	for i := range b.N {
		now := time.Duration(i) * refreshEvery
		tm.Observe(now, 60+i%40, 1000)
		tm.Refresh(now)
	}
}

// A target that takes longer than the bootstrap timeout: until there was an estimate, a success beyond it changes what is usual, and
// not for a moment only. Once the value is known, it does not.
func TestBootstrapValueIsNoKnowledge(t *testing.T) {
	x, err := New(Config{Min: 50 * time.Millisecond, Max: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	late := func(now time.Duration) {
		x.ObserveTimeouts(now, 5)
		if !x.Late(now, x.Current()+100*time.Millisecond) {
			t.Fatalf("at %v: not late beside five timeouts", now)
		}
	}
	late(time.Second)
	if x.Usual() != x.Current() || x.Usual() != 5*time.Second {
		t.Errorf("usual %v, current %v", x.Usual(), x.Current())
	}
	now := time.Second
	for range 2000 {
		now += 50 * time.Millisecond
		x.Observe(now, window.Bucket(100*time.Millisecond), 1)
		x.Refresh(now)
	}
	usual := x.Usual()
	if usual > time.Second {
		t.Fatalf("usual %v after 2,000 answers of 100 ms", usual)
	}
	late(now)
	if x.Usual() != usual || x.Current() <= usual {
		t.Errorf("usual %v, current %v; it was %v", x.Usual(), x.Current(), usual)
	}
}
