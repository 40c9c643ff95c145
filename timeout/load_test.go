package timeout

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/window"
)

// hang is the latency of an attempt that no timeout here outlasts.
const hang = time.Hour

// load drives a Timeout with calls of random latency, each cut off at the timeout in force.
type load struct {
	*Timeout
	now time.Duration
	rng *rand.Rand
}

func newLoad(t testing.TB, c Config) *load {
	return &load{Timeout: mustNew(t, c), rng: rand.New(rand.NewPCG(1, 2))}
}

func (l *load) exp(mean time.Duration) func() time.Duration {
	return func() time.Duration { return time.Duration(l.rng.ExpFloat64() * float64(mean)) }
}

// mixed is slow with probability p, else a draw of mostly.
func (l *load) mixed(p float64, slow time.Duration, mostly func() time.Duration) func() time.Duration {
	return func() time.Duration {
		if l.rng.Float64() < p {
			return slow
		}
		return mostly()
	}
}

// near allows for an estimate that was still due when the last value was read.
func near(a, b time.Duration) bool { return (a - b).Abs() <= b/200 }

func constant(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// run returns the share of calls that timed out.
func (l *load) run(d time.Duration, perSecond float64, latency func() time.Duration) float64 {
	end := l.now + d
	var n, late float64
	for ; l.now < end; l.now += time.Duration(l.rng.ExpFloat64() / perSecond * float64(time.Second)) {
		n++
		if limit, x := l.Refresh(l.now), latency(); x > limit {
			late++
			l.ObserveTimeouts(l.now, 1)
		} else {
			l.Observe(l.now, window.Bucket(x), 1)
		}
	}
	return late / n
}

func TestOutageFreezesThenGrowsSlowlyAndRecovers(t *testing.T) {
	for _, rate := range []float64{1, 10, 400} {
		l := newLoad(t, Config{})
		l.run(200*time.Second, rate, l.exp(20*ms))
		before := l.Refresh(l.now)
		if before < 150*ms || before > 400*ms {
			t.Fatalf("%v/s: %v for a mean of 20 ms", rate, before)
		}
		l.run(9*time.Second, rate, constant(hang))
		if got := l.Refresh(l.now); !near(got, before) {
			t.Errorf("%v/s: %v after 9 s of outage, want it frozen at %v", rate, got, before)
		}
		l.run(31*time.Second, rate, constant(hang))
		if got := l.Refresh(l.now); got <= before || got > before*4 {
			t.Errorf("%v/s: %v after 40 s of outage, want at most three or four steps of ×1.5 from %v", rate, got, before)
		}
		l.run(70*time.Second, rate, l.exp(20*ms))
		if got := l.Refresh(l.now); got < before*8/10 || got > before*13/10 {
			t.Errorf("%v/s: %v once successes were back for 70 s, want about %v", rate, got, before)
		}
	}
}

// With the circuit open only probes reach the target: the freeze ends within seconds of the first successes.
func TestRecoveryIsFastAfterAnOutageSeenByProbes(t *testing.T) {
	l := newLoad(t, Config{})
	l.run(60*time.Second, 400, l.exp(20*ms))
	before := l.Refresh(l.now)
	l.run(40*time.Second, 1, constant(hang))
	if got := l.Refresh(l.now); got <= before {
		t.Errorf("%v in the outage, want growth from %v", got, before)
	}
	l.run(5*time.Second, 400, l.exp(20*ms))
	// Not quite the old value: the first ten probes among thousands of successes were below the freeze and count.
	if got := l.Refresh(l.now); got > before*3/2 {
		t.Errorf("%v 5 s after the outage, want about %v", got, before)
	}
}

// The first timeouts of an outage come while their share is still below 1 %. As samples they would double the timeout.
func TestOnsetOfAnOutageLeavesNoTrace(t *testing.T) {
	l := newLoad(t, Config{})
	l.run(60*time.Second, 400, l.exp(20*ms))
	before := l.Refresh(l.now)
	for range 30 { // 30 of 4,000 attempts of the last 10 s, over 3 s
		l.ObserveTimeouts(l.now, 1)
		l.now += 100 * ms
		if got := l.Refresh(l.now); !near(got, before) {
			t.Fatalf("the onset moved %v to %v", before, got)
		}
	}
	l.ObserveTimeouts(l.now, 2000)
	l.run(2*time.Minute, 400, l.exp(20*ms))
	if got := l.Refresh(l.now); got < before*8/10 || got > before*12/10 {
		t.Errorf("%v after the outage, want about %v", got, before)
	}
}

// A fifth of the calls hang for ten minutes: survivors must not pull the value down, timeouts not drive it up.
func TestPartialHangFreezes(t *testing.T) {
	l := newLoad(t, Config{})
	l.run(60*time.Second, 400, l.exp(20*ms))
	before := l.Refresh(l.now)
	for range 60 {
		l.run(10*time.Second, 400, l.mixed(0.2, hang, l.exp(20*ms)))
		if got := l.Refresh(l.now); !near(got, before) {
			t.Fatalf("%v at %v, want it frozen at %v", got, l.now, before)
		}
	}
}

// Healthy, but slower than the bootstrap value: the guard itself would be the outage if the value could not grow.
func TestSlowTargetOutgrowsTheBootstrapValue(t *testing.T) {
	for _, rate := range []float64{1, 10, 400} {
		l := newLoad(t, Config{})
		for _, c := range []struct {
			name    string
			latency func() time.Duration
		}{
			{"all at 1.8 s", constant(1800 * ms)},
			{"a quarter above 1 s", func() time.Duration { return 500*ms + time.Duration(l.rng.Int64N(int64(700*ms))) }},
			{"mean of 800 ms", l.exp(800 * ms)},
		} {
			l.Timeout, l.now = mustNew(t, Config{}), 0
			first := l.run(20*time.Second, rate, c.latency)
			l.run(200*time.Second, rate, c.latency)
			if last := l.run(100*time.Second, rate, c.latency); last > 0.01 {
				t.Errorf("%s, %v/s: %.1f %% still time out at %v (%.1f %% at first)", c.name, rate, 100*last, l.Current(), 100*first)
			}
		}
	}
	// The same after the fact: learned fast, then slow for good.
	l := newLoad(t, Config{})
	l.run(60*time.Second, 400, l.exp(10*ms))
	l.run(100*time.Second, 400, l.exp(200*ms))
	if late := l.run(60*time.Second, 400, l.exp(200*ms)); late > 0.01 {
		t.Errorf("%.1f %% time out at %v for a mean of 200 ms", 100*late, l.Current())
	}
}

// A few calls in a thousand are slow and cut off: that is below the freeze, and they count until the timeout lets them live.
func TestRareSlowCallsCountAsSamples(t *testing.T) {
	l := newLoad(t, Config{})
	slow := l.mixed(0.005, 1200*ms, l.exp(10*ms))
	l.run(time.Second, 400, slow)
	if got := l.Refresh(l.now); got > 500*ms {
		t.Fatalf("%v after the first second, the test wants it too short", got)
	}
	// It must not double with every refresh either.
	last := l.Current()
	for range 200 {
		l.run(time.Second, 400, slow)
		got := l.Refresh(l.now)
		if got > last*5/2 {
			t.Fatalf("from %v to %v within 1 s", last, got)
		}
		last = got
	}
	if last < 1200*ms || last > 3*time.Second {
		t.Errorf("%v, want room for the calls of 1.2 s", last)
	}
}
