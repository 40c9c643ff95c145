package breaker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

func TestStateWordsAndPressure(t *testing.T) {
	for _, tc := range []struct {
		s    State
		word string
		c    float64
	}{{Closed, "closed", 0}, {HalfOpen, "half-open", 0.5}, {Open, "open", 1}, {7, "State(7)", 1}} {
		if tc.s.String() != tc.word || tc.s.Pressure() != tc.c {
			t.Errorf("%d: %q, %v; want %q, %v", tc.s, tc.s.String(), tc.s.Pressure(), tc.word, tc.c)
		}
	}
}

func TestForcingWords(t *testing.T) {
	for f, word := range map[Forcing]string{Automatic: "auto", ForcedOpen: "open", ForcedClosed: "closed", 9: "Forcing(9)"} {
		text, err := f.MarshalText()
		if f.String() != word || string(text) != word || err != nil {
			t.Errorf("%d: %q, %q, %v; want %q", f, f.String(), text, err, word)
		}
	}
}

// step is one line of a state table: what is done at an instant, what it answers, and how things stand afterwards.
type step struct {
	at    time.Duration
	do    string // "", trip, probe, ok, fail, timeout, throttled, release, close, reset, force open, force closed, automatic
	yes   bool   // the answer: transition, admitted
	state State
	gen   uint32
	next  time.Duration
}

func run(t *testing.T, c Config, lease, latency time.Duration, steps []step) {
	t.Helper()
	b := mustNew(t, c)
	var p Probe
	results := map[string]ProbeResult{
		"ok": ProbeSucceeded, "fail": ProbeFailed, "timeout": ProbeTimedOut, "throttled": ProbeThrottled, "release": ProbeReleased,
	}
	for i, s := range steps {
		yes := false
		switch s.do {
		case "":
		case "trip":
			yes = b.Trip(s.at, 0)
		case "probe":
			var q Probe
			if q, yes = b.TryProbe(s.at, lease); yes {
				p = q
			}
		case "close":
			yes = b.Close(s.at)
		case "force open":
			yes = b.Force(s.at, ForcedOpen, 0)
		case "force closed":
			yes = b.Force(s.at, ForcedClosed, 0)
		case "automatic":
			yes = b.Force(s.at, Automatic, 0)
		case "reset":
			yes = b.Reset(s.at)
		default:
			r, known := results[s.do]
			if !known {
				t.Fatalf("no such step: %q", s.do)
			}
			_, yes = b.ProbeDone(s.at, p, r, latency, 0)
		}
		if st, next := b.State(s.at), b.NextProbe(s.at); yes != s.yes || st != s.state || b.Generation() != s.gen || next != s.next {
			t.Fatalf("step %d, %q at %v: %v, then %v, generation %d, next probe in %v; want %v, %v, %d, %v",
				i, s.do, s.at, yes, st, b.Generation(), next, s.yes, s.state, s.gen, s.next)
		}
	}
}

func TestArticleStates(t *testing.T) {
	run(t, Config{Article: true}, 2*s1, ms, []step{
		{0, "", false, Closed, 0, 0},
		{0, "probe", false, Closed, 0, 0},
		{0, "ok", false, Closed, 0, 0},
		{s1, "trip", true, Open, 1, 30 * s1},
		{s1, "probe", false, Open, 1, 30 * s1},
		{11 * s1, "trip", false, Open, 1, 30 * s1}, // restarts the timer
		{41*s1 - 1, "probe", false, Open, 1, 1},
		{41 * s1, "", false, HalfOpen, 1, 0},
		{42 * s1, "probe", true, HalfOpen, 1, 5 * s1},
		{43 * s1, "probe", false, HalfOpen, 1, 4 * s1},
		{43 * s1, "fail", true, Open, 2, 30 * s1}, // opens again, timer restarted
		{73 * s1, "probe", true, HalfOpen, 2, 5 * s1},
		{74 * s1, "timeout", true, Open, 3, 30 * s1},
		{104 * s1, "probe", true, HalfOpen, 3, 5 * s1},
		{104 * s1, "release", false, HalfOpen, 3, 0},
		{105 * s1, "probe", true, HalfOpen, 3, 4 * s1}, // in its place, same round
		{105 * s1, "trip", true, Open, 4, 30 * s1},     // half-open to open, the probe's result is void
		{106 * s1, "ok", false, Open, 4, 29 * s1},
		{135 * s1, "probe", true, HalfOpen, 4, 5 * s1},
		{140 * s1, "probe", true, HalfOpen, 4, 5 * s1}, // the lease of the first has run out
		{141 * s1, "throttled", true, Closed, 5, 0},
		{142 * s1, "close", false, Closed, 5, 0},
		{143 * s1, "trip", true, Open, 6, 30 * s1},
		{144 * s1, "close", true, Closed, 7, 0},
		{145 * s1, "trip", true, Open, 8, 30 * s1},
		{146 * s1, "reset", true, Closed, 9, 0},
		{147 * s1, "reset", false, Closed, 10, 0},
	})
}

func TestArticleProbeOutlivesTheInterval(t *testing.T) {
	run(t, Config{Article: true}, 20*s1, ms, []step{
		{0, "trip", true, Open, 1, 30 * s1},
		{30 * s1, "probe", true, HalfOpen, 1, 20*s1 + 1},
		{40 * s1, "probe", false, HalfOpen, 1, 10*s1 + 1},
		{50*s1 + 1, "probe", true, HalfOpen, 1, 20*s1 + 1},
	})
}

func TestAdaptiveStates(t *testing.T) {
	run(t, Config{}, 200*ms, 10*ms, []step{
		{0, "", false, Closed, 0, 0},
		{0, "probe", false, Closed, 0, 0},
		{s1, "trip", true, Open, 1, 100 * ms},
		{s1 + 50*ms, "trip", false, Open, 1, 50 * ms}, // never extends a timer
		{s1 + 99*ms, "probe", false, Open, 1, ms},
		{s1 + 100*ms, "", false, Open, 1, 0},
		{s1 + 100*ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{s1 + 100*ms, "trip", false, HalfOpen, 1, 200*ms + 1},
		{s1 + 110*ms, "fail", false, Open, 1, 100 * ms}, // back to open in the same generation
		{s1 + 210*ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{s1 + 250*ms, "timeout", false, Open, 1, 150 * ms},
		{s1 + 400*ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{s1 + 410*ms, "release", false, Open, 1, 0},
		{s1 + 410*ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{s1 + 610*ms + 1, "", false, Open, 1, 600*ms - 1}, // lease run out at 610 ms: three times its latency
		{s1 + 1210*ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{s1 + 1220*ms, "throttled", true, Closed, 2, 0},
		{2500 * ms, "trip", true, Open, 3, 100 * ms}, // the gap starts over
		{2600 * ms, "probe", true, HalfOpen, 3, 200*ms + 1},
		{2610 * ms, "ok", true, Closed, 4, 0},
	})
}

func TestAdaptiveStreakToClose(t *testing.T) {
	run(t, Config{ProbesToClose: 2}, 200*ms, 10*ms, []step{
		{0, "trip", true, Open, 1, 100 * ms},
		{100 * ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{110 * ms, "timeout", false, Open, 1, 150 * ms},
		{260 * ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{270 * ms, "ok", false, Open, 1, 100 * ms}, // first of two; the gap is the first one again
		{370 * ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{380 * ms, "fail", false, Open, 1, 100 * ms}, // in a row, or not at all
		{480 * ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{490 * ms, "ok", false, Open, 1, 100 * ms},
		{590 * ms, "probe", true, HalfOpen, 1, 200*ms + 1},
		{600 * ms, "ok", true, Closed, 2, 0},
		{700 * ms, "trip", true, Open, 3, 100 * ms},
		{800 * ms, "probe", true, HalfOpen, 3, 200*ms + 1},
		{810 * ms, "ok", false, Open, 3, 100 * ms}, // the streak before is over
	})
}

// What one round may still admit is void when the circuit opens again.
func TestArticleRoundEndsWithAFailure(t *testing.T) {
	run(t, Config{Article: true, MaxProbes: 3}, s1, ms, []step{
		{0, "trip", true, Open, 1, 30 * s1},
		{30 * s1, "probe", true, HalfOpen, 1, 0},
		{30 * s1, "fail", true, Open, 2, 30 * s1},
		{31 * s1, "probe", false, Open, 2, 29 * s1},
	})
}

func TestHungProbeBreaksTheStreak(t *testing.T) {
	run(t, Config{Article: true, ProbesToClose: 2}, s1, ms, []step{
		{0, "trip", true, Open, 1, 30 * s1},
		{30 * s1, "probe", true, HalfOpen, 1, 5 * s1},
		{30 * s1, "ok", false, HalfOpen, 1, 5 * s1},
		{35 * s1, "probe", true, HalfOpen, 1, 5 * s1}, // hangs
		{40 * s1, "probe", true, HalfOpen, 1, 5 * s1},
		{40 * s1, "ok", false, HalfOpen, 1, 5 * s1},
		{45 * s1, "probe", true, HalfOpen, 1, 5 * s1},
		{45 * s1, "ok", true, Closed, 2, 0},
	})
}

func TestFirstGap(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    Config
		rand float64
		rate float64
		want time.Duration
	}{
		{"rate unknown", Config{}, 0.5, 0, 100 * ms},
		{"rate NaN", Config{}, 0.5, math.NaN(), 100 * ms},
		{"rate infinite", Config{}, 0.5, math.Inf(1), 100 * ms},
		{"rate negative", Config{}, 0.5, -5, 100 * ms},
		{"1 % of 5,000/s is less than the gap", Config{}, 0.5, 5000, 100 * ms},
		{"1 % of 500/s", Config{}, 0.5, 500, 200 * ms},
		{"1 % of 50/s is rarer than gmax", Config{}, 0.5, 50, s1},
		{"next to no rate", Config{}, 0.5, math.SmallestNonzeroFloat64, s1},
		{"10 % of 50/s", Config{ProbeShare: 0.1}, 0.5, 50, 200 * ms},
		{"jitter low", Config{}, 0, 0, 80 * ms},
		{"jitter high", Config{}, 1, 0, 120 * ms},
		{"jitter NaN", Config{}, math.NaN(), 0, 100 * ms},
		{"jitter out of range", Config{}, -3, 0, 100 * ms},
		{"OpenFor beyond ProbeEvery is kept", Config{OpenFor: 30 * s1, ProbeEvery: 5 * s1}, 0.5, 50, 30 * s1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.c.Rand = func() float64 { return tc.rand }
			b := mustNew(t, tc.c)
			b.Trip(0, tc.rate)
			if got := b.NextProbe(0); got != tc.want {
				t.Errorf("first probe after %v, want %v", got, tc.want)
			}
		})
	}
}

func TestGapAfterFailedProbes(t *testing.T) {
	for _, tc := range []struct {
		name    string
		c       Config
		r       ProbeResult
		latency time.Duration
		rate    float64
		want    []time.Duration
	}{
		{"errors do not widen it", Config{}, ProbeFailed, ms, 0, []time.Duration{100 * ms, 100 * ms, 100 * ms}},
		{"timeouts do, up to gmax", Config{}, ProbeTimedOut, ms, 0, []time.Duration{
			150 * ms, 225 * ms, 337500 * time.Microsecond, 506250 * time.Microsecond, 759375 * time.Microsecond, s1, s1}},
		{"slow errors: three times their latency", Config{}, ProbeFailed, 200 * ms, 0, []time.Duration{600 * ms, 600 * ms}},
		{"slower than gmax", Config{}, ProbeFailed, 1 << 62, 0, []time.Duration{s1, s1}},
		{"negative latency", Config{}, ProbeFailed, math.MinInt64, 0, []time.Duration{100 * ms}},
		{"share of the traffic, as it was when the circuit opened", Config{}, ProbeFailed, ms, 250, []time.Duration{100 * ms, 100 * ms}},
		{"no rate", Config{}, ProbeFailed, ms, math.NaN(), []time.Duration{100 * ms}},
		{"OpenFor beyond ProbeEvery is the first gap only", Config{OpenFor: 30 * s1, ProbeEvery: 5 * s1}, ProbeFailed, ms, 0, []time.Duration{5 * s1, 5 * s1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := mustNew(t, tc.c)
			b.Trip(0, 5000) // since when the rate has changed
			var now time.Duration
			for i, want := range tc.want {
				now += b.NextProbe(now)
				p, ok := b.TryProbe(now, s1)
				if !ok {
					t.Fatalf("probe %d not admitted when due", i)
				}
				b.ProbeDone(now, p, tc.r, tc.latency, tc.rate)
				if got := b.NextProbe(now); got != want {
					t.Fatalf("gap %d: %v, want %v", i, got, want)
				}
			}
		})
	}
}

// Three tiers before a target in an outage: the circuits of the upper ones let next to nothing through, and by that traffic the lowest
// would have probed once a second, and nobody above could have found out before it did. What it remembers fades: an outage that
// lasts into the night is probed by the night's traffic.
func TestTrafficHeldBackAboveDoesNotThinProbesOut(t *testing.T) {
	b := mustNew(t, Config{})
	b.Trip(0, 250)
	for _, c := range []struct{ after, want time.Duration }{
		{s1, 400 * ms}, {time.Minute, 800 * ms}, {2 * time.Minute, s1}, {time.Hour, s1},
	} {
		b.NextProbe(c.after)
		p, ok := b.TryProbe(c.after, s1)
		if !ok {
			t.Fatalf("no probe after %v", c.after)
		}
		b.ProbeDone(c.after, p, ProbeFailed, ms, 4)
		if got := b.NextProbe(c.after); (got - c.want).Abs() > 10*ms {
			t.Errorf("gap %v after %v, want %v", got, c.after, c.want)
		}
	}
	p, _ := b.TryProbe(2*time.Hour, s1)
	b.ProbeDone(2*time.Hour, p, ProbeFailed, ms, 500)
	if got := b.NextProbe(2 * time.Hour); got != 200*ms {
		t.Errorf("gap %v with more traffic than ever, want 200ms", got)
	}
}

// Of 1,000 calls a second in a full outage at most 1 % are probes, whatever the jitter draws.
func TestProbesAreASmallShareOfTheTraffic(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	b := mustNew(t, Config{Rand: r.Float64, OpenFor: ms})
	b.Trip(0, 1000)
	probes := 0
	const calls = 60_000
	for i := range calls {
		now := time.Duration(i) * ms
		if p, ok := b.TryProbe(now, 0); ok {
			probes++
			b.ProbeDone(now, p, ProbeFailed, 0, 1000)
		}
	}
	if share := float64(probes) / calls; share > 0.0105 || share < 0.009 {
		t.Errorf("%d probes, %.2f %% of the calls; want 1 %%", probes, 100*share)
	}
}

func TestLeaseIsBounded(t *testing.T) {
	for _, tc := range []struct {
		article     bool
		lease, want time.Duration
	}{
		{false, 0, s1}, {false, -1, s1}, {false, math.MinInt64, s1}, {true, 0, 30 * s1}, {true, -1, 30 * s1},
		{false, 50 * ms, 50 * ms}, {false, 1, 1}, {true, 5 * time.Minute, 5 * time.Minute},
		{false, math.MaxInt64, 10 * time.Minute}, {true, math.MaxInt64, 10 * time.Minute},
	} {
		b := mustNew(t, Config{Article: tc.article})
		b.Trip(0, 0)
		now := b.NextProbe(0)
		if _, ok := b.TryProbe(now, tc.lease); !ok {
			t.Fatal("no probe")
		}
		if n := len(b.slots); n != 1 || b.slots[0].lease != tc.want {
			t.Errorf("lease %v became %v, want %v", tc.lease, b.slots[0].lease, tc.want)
		}
		b.State(now + tc.want)
		if len(b.slots) != 1 {
			t.Errorf("lease %v: over at %v, not after it", tc.lease, tc.want)
		}
		b.State(now + tc.want + 1)
		if len(b.slots) != 0 {
			t.Errorf("lease %v: still there after %v", tc.lease, tc.want)
		}
	}
}

// When leases run out must not depend on when somebody looks.
func TestExpiryDoesNotDependOnWhenItIsNoticed(t *testing.T) {
	next := func(looks ...time.Duration) time.Duration {
		b := mustNew(t, Config{MaxProbes: 3})
		b.Trip(0, 0)
		for i := range 3 {
			b.TryProbe(100*ms, time.Duration(30-10*i)*ms)
		}
		for _, l := range looks {
			b.State(l)
		}
		return b.NextProbe(200*ms) + 200*ms
	}
	want := next(111*ms, 121*ms, 131*ms)
	if got := next(); got != want {
		t.Errorf("next probe at %v when nobody looked, %v when somebody did", got, want)
	}
}

func TestSlowTrip(t *testing.T) {
	for _, tc := range []struct {
		name             string
		timeouts, errors int
		wait             time.Duration // until an evidence trip
		want             bool
	}{
		{"no failure", 0, 0, 0, false},
		{"all", 5, 0, 60 * s1, true},
		{"half", 5, 5, 0, true},
		{"less than half", 4, 5, 0, false},
		{"all old", 5, 0, 61 * s1, false},
	} {
		b := mustNew(t, Config{})
		for range tc.timeouts {
			b.Failure(0, true, 0, 0)
		}
		for range tc.errors {
			b.Failure(0, false, 0, 0)
		}
		if b.SlowTrip() {
			t.Errorf("%s: slow before any trip", tc.name)
		}
		b.Trip(tc.wait, 0)
		if b.SlowTrip() != tc.want {
			t.Errorf("%s: SlowTrip = %v, want %v", tc.name, b.SlowTrip(), tc.want)
		}
		if b.Reset(tc.wait); b.SlowTrip() {
			t.Errorf("%s: still slow after Reset", tc.name)
		}
	}
}

func TestBreakerIsSmallAndDoesNotAllocate(t *testing.T) {
	const most = 2560
	if size := unsafe.Sizeof(Breaker{}) + unsafe.Sizeof(slot{}); size > most {
		t.Errorf("a Breaker with one slot takes %d bytes, want at most %d", size, most)
	}
	b := mustNew(t, Config{MaxProbes: 4})
	var now time.Duration
	allocs := testing.AllocsPerRun(100, func() {
		for i := range 64 {
			b.Failure(now, i%2 == 0, 0, 0)
		}
		b.Trip(now, 100)
		for range 5 {
			now += s1
			p, _ := b.TryProbe(now, ms)
			b.State(now)
			b.ProbeDone(now, p, ProbeFailed, ms, 100)
		}
		b.Close(now)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want none", allocs)
	}
}

func TestForcedArticle(t *testing.T) {
	run(t, Config{Article: true}, 2*s1, ms, []step{
		{0, "automatic", false, Closed, 0, 0},
		{s1, "force closed", false, Closed, 0, 0},
		{s1, "trip", false, Closed, 0, 0},
		{2 * s1, "automatic", true, Closed, 1, 0}, // fresh evidence
		{3 * s1, "trip", true, Open, 2, 30 * s1},
		{33 * s1, "probe", true, HalfOpen, 2, 5 * s1},
		{34 * s1, "force open", true, Open, 3, 0},
		{34 * s1, "force open", false, Open, 3, 0},
		{35 * s1, "ok", false, Open, 3, 0}, // the probe is void
		{99 * s1, "trip", false, Open, 3, 0},
		{99 * s1, "probe", false, Open, 3, 0}, // however long
		{99 * s1, "close", false, Open, 3, 0},
		{100 * s1, "automatic", true, HalfOpen, 4, 0}, // due at once
		{100 * s1, "probe", true, HalfOpen, 4, 5 * s1},
		{101 * s1, "fail", true, Open, 5, 30 * s1},
		{102 * s1, "force closed", true, Closed, 6, 0},
		{103 * s1, "force open", true, Open, 7, 0},
		{104 * s1, "reset", true, Closed, 8, 0},
		{105 * s1, "trip", true, Open, 9, 30 * s1},
	})
}

func TestForcedAdaptive(t *testing.T) {
	run(t, Config{}, 200*ms, 10*ms, []step{
		{s1, "force open", true, Open, 1, 0},
		{48 * 3600 * s1, "probe", false, Open, 1, 0},
		{48 * 3600 * s1, "automatic", true, Open, 2, 0},
		{48 * 3600 * s1, "probe", true, HalfOpen, 2, 200*ms + 1},
		{48*3600*s1 + 10*ms, "fail", false, Open, 2, 100 * ms}, // the shortest gap follows
		{48*3600*s1 + 110*ms, "probe", true, HalfOpen, 2, 200*ms + 1},
		{48*3600*s1 + 120*ms, "force closed", true, Closed, 3, 0},
		{48*3600*s1 + 130*ms, "ok", false, Closed, 3, 0},
		{48*3600*s1 + 130*ms, "trip", false, Closed, 3, 0},
		{48*3600*s1 + 140*ms, "force open", true, Open, 4, 0},
		{48*3600*s1 + 150*ms, "automatic", true, Open, 5, 0},
		{48*3600*s1 + 150*ms, "probe", true, HalfOpen, 5, 200*ms + 1},
		{48*3600*s1 + 160*ms, "ok", true, Closed, 6, 0},
	})
}

func TestForcedClosedGathersNoEvidence(t *testing.T) {
	b := mustNew(t, Config{})
	b.Force(0, ForcedClosed, 0)
	for i := range 200 {
		if b.Failure(time.Duration(i)*ms, false, 0, 0) {
			t.Fatal("asked to trip")
		}
	}
	b.Force(200*ms, Automatic, 0)
	if b.Failure(201*ms, false, 0, 0) {
		t.Error("tripped on one failure: what was seen while it was forced counted")
	}
}
