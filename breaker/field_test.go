package breaker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Regression tests for what went wrong in other breakers, in both laws where both are concerned.

const (
	ms = time.Millisecond
	s1 = time.Second
)

// profiles calls test with each law, opened at 0 by the owner, and the first instant at which a probe is due.
func profiles(t *testing.T, c Config, test func(t *testing.T, b *Breaker, due time.Duration)) {
	t.Helper()
	for name, article := range map[string]bool{"adaptive": false, "article": true} {
		t.Run(name, func(t *testing.T) {
			c := c
			c.Article = article
			b := mustNew(t, c)
			if !b.Trip(0, 0) {
				t.Fatal("Trip of a closed circuit was no transition")
			}
			test(t, b, b.NextProbe(0))
		})
	}
}

func probe(t *testing.T, b *Breaker, now time.Duration) Probe {
	t.Helper()
	p, ok := b.TryProbe(now, 0)
	if !ok {
		t.Fatalf("at %v: no probe admitted; %v, next in %v", now, b.State(now), b.NextProbe(now))
	}
	return p
}

func refused(t *testing.T, b *Breaker, now time.Duration) {
	t.Helper()
	if p, ok := b.TryProbe(now, 0); ok {
		t.Fatalf("at %v: probe %d admitted, want none", now, p.ID)
	}
}

func done(t *testing.T, b *Breaker, now time.Duration, p Probe, r ProbeResult, used, transition bool) {
	t.Helper()
	if u, tr := b.ProbeDone(now, p, r, ms, 0); u != used || tr != transition {
		t.Fatalf("at %v: ProbeDone(%d, %d) = used %v, transition %v; want %v, %v", now, p.ID, r, u, tr, used, transition)
	}
}

func state(t *testing.T, b *Breaker, now time.Duration, want State) {
	t.Helper()
	if got := b.State(now); got != want {
		t.Fatalf("at %v: %v, want %v", now, got, want)
	}
}

// F10: (a) an ignored error and (c) a cancelled caller are neutral, (b) a 404 is what its owner classifies it as: neutral or
// healthy. In each case the slot comes back and the next healthy call closes.
func TestProbeWithoutVerdictGivesItsSlotBack(t *testing.T) {
	for name, r := range map[string]ProbeResult{"released": ProbeReleased, "zero value": 0, "unknown value": 99} {
		t.Run(name, func(t *testing.T) {
			profiles(t, Config{}, func(t *testing.T, b *Breaker, due time.Duration) {
				for i := range 3 { // however often
					now := due + time.Duration(i)*ms
					p := probe(t, b, now)
					refused(t, b, now)
					done(t, b, now+ms, p, r, true, false)
				}
				p := probe(t, b, due+3*ms)
				done(t, b, due+4*ms, p, ProbeSucceeded, true, true)
				state(t, b, due+4*ms, Closed)
			})
		})
	}
	t.Run("healthy", func(t *testing.T) {
		profiles(t, Config{}, func(t *testing.T, b *Breaker, due time.Duration) {
			done(t, b, due+ms, probe(t, b, due), ProbeSucceeded, true, true)
			state(t, b, due+ms, Closed)
		})
	})
}

// F11: a probe hangs for ever; its slot comes back after its lease, the default one here: 30 s for the article, 1 s else.
func TestProbeThatNeverReturnsDoesNotHoldTheCircuit(t *testing.T) {
	t.Run("article", func(t *testing.T) {
		b := mustNew(t, Config{Article: true})
		b.Trip(0, 0)
		hung := probe(t, b, 30*s1)
		refused(t, b, 60*s1)
		gen := b.Generation()
		fresh := probe(t, b, 60*s1+1)
		refused(t, b, 61*s1)
		done(t, b, 62*s1, hung, ProbeSucceeded, false, false) // discarded
		state(t, b, 62*s1, HalfOpen)
		refused(t, b, 62*s1)
		done(t, b, 63*s1, fresh, ProbeSucceeded, true, true)
		if b.Generation() != gen+1 {
			t.Errorf("generation %d after the probe, %d before", b.Generation(), gen)
		}
	})
	t.Run("adaptive", func(t *testing.T) {
		b := mustNew(t, Config{})
		b.Trip(0, 0)
		probe(t, b, 100*ms)
		refused(t, b, 1100*ms)
		state(t, b, 1100*ms, HalfOpen)
		state(t, b, 1100*ms+1, Open)
		refused(t, b, 1100*ms+1)
		refused(t, b, 2100*ms-1) // three times its latency, at most 1 s, after the lease
		done(t, b, 2100*ms, probe(t, b, 2100*ms), ProbeSucceeded, true, true)
	})
}

// F11, where the adaptive law differs on purpose: what answers late is alive, so a late success closes; but only in its own
// generation, and once.
func TestLateSuccessClosesInItsGenerationOnly(t *testing.T) {
	opened := func() (*Breaker, Probe) {
		b := mustNew(t, Config{})
		b.Trip(0, 0)
		p, ok := b.TryProbe(100*ms, 50*ms)
		if !ok {
			t.Fatal("no probe")
		}
		return b, p
	}
	t.Run("success", func(t *testing.T) {
		b, p := opened()
		state(t, b, 300*ms, Open)
		done(t, b, 300*ms, p, ProbeSucceeded, true, true)
		state(t, b, 300*ms, Closed)
		done(t, b, 301*ms, p, ProbeSucceeded, false, false)
	})
	t.Run("nobody looked in between", func(t *testing.T) {
		b, p := opened()
		done(t, b, 300*ms, p, ProbeSucceeded, true, true)
	})
	t.Run("throttled", func(t *testing.T) {
		b, p := opened()
		done(t, b, 300*ms, p, ProbeThrottled, true, true)
	})
	t.Run("failure", func(t *testing.T) {
		b, p := opened()
		next := b.NextProbe(200 * ms)
		done(t, b, 200*ms, p, ProbeFailed, false, false)
		done(t, b, 200*ms, p, ProbeSucceeded, false, false) // it has reported
		if got := b.NextProbe(200 * ms); got != next {
			t.Errorf("next probe in %v after the late failure, %v before", got, next)
		}
	})
	t.Run("after later probes failed", func(t *testing.T) {
		b, p := opened()
		now := 100 * ms
		for range 20 {
			now += 51*ms + 1
			now += b.NextProbe(now)
			q, _ := b.TryProbe(now, 50*ms)
			now += ms
			done(t, b, now, q, ProbeFailed, true, false)
		}
		done(t, b, now, p, ProbeSucceeded, true, true)
	})
	t.Run("older generation", func(t *testing.T) {
		b, p := opened()
		b.Close(200 * ms)
		b.Trip(200*ms, 0)
		done(t, b, 201*ms, p, ProbeSucceeded, false, false)
		state(t, b, 201*ms, Open)
		q := probe(t, b, 300*ms)
		done(t, b, 301*ms, p, ProbeSucceeded, false, false)
		state(t, b, 301*ms, HalfOpen)
		done(t, b, 302*ms, q, ProbeSucceeded, true, true)
	})
	t.Run("forgotten after 64 more", func(t *testing.T) {
		b, p := opened()
		now := 100 * ms
		for range 64 {
			now += 51*ms + 1
			now += b.NextProbe(now)
			if _, ok := b.TryProbe(now, 50*ms); !ok {
				t.Fatalf("no probe at %v", now)
			}
		}
		done(t, b, now, p, ProbeSucceeded, false, false)
	})
}

// F13: 200 callers at one instant, then late releases from the period before.
func TestNeverMoreProbesInFlightThanSlots(t *testing.T) {
	for _, slots := range []int{1, 3} {
		profiles(t, Config{MaxProbes: slots, ProbesToClose: slots}, func(t *testing.T, b *Breaker, due time.Duration) {
			rush := func(now time.Duration) (admitted []Probe) {
				for range 200 {
					if p, ok := b.TryProbe(now, 0); ok {
						admitted = append(admitted, p)
					}
				}
				if len(admitted) != slots {
					t.Fatalf("%d probes admitted of 200 callers at %v, want %d", len(admitted), now, slots)
				}
				return admitted
			}
			old := rush(due)
			b.Close(due)
			b.Trip(due, 0)
			now := due + b.NextProbe(due)
			fresh := rush(now)
			for _, p := range old {
				done(t, b, now, p, ProbeReleased, false, false)
			}
			refused(t, b, now)
			// A release within the period makes room for one more, not for two.
			done(t, b, now, fresh[0], ProbeReleased, true, false)
			done(t, b, now, fresh[0], ProbeReleased, false, false)
			fresh[0] = probe(t, b, now)
			refused(t, b, now)
			for i, p := range fresh {
				done(t, b, now, p, ProbeSucceeded, true, i == slots-1)
			}
			state(t, b, now, Closed)
		})
	}
}

// F13, sequential: the article's round admits its probes once per ProbeEvery, however fast they come back.
func TestArticleAdmitsOneProbePerInterval(t *testing.T) {
	b := mustNew(t, Config{Article: true, ProbesToClose: 4})
	b.Trip(0, 0)
	refused(t, b, 30*s1-1)
	for i := range 4 {
		now := 30*s1 + time.Duration(i)*5*s1
		p := probe(t, b, now)
		done(t, b, now+ms, p, ProbeSucceeded, true, i == 3)
		if i < 3 {
			refused(t, b, now+ms)
			refused(t, b, now+5*s1-1)
		}
	}
}

// F14: call A starts while closed and comes back while P is out as a probe. Only P decides.
func TestResultOfAnOlderStateDecidesNothing(t *testing.T) {
	for _, late := range []ProbeResult{ProbeSucceeded, ProbeFailed, ProbeTimedOut} {
		profiles(t, Config{}, func(t *testing.T, b *Breaker, due time.Duration) {
			p := probe(t, b, due)
			gen := b.Generation()
			// A has no probe. A failure of it might reach Failure, too, if its owner does not compare generations.
			done(t, b, due, Probe{}, late, false, false)
			done(t, b, due, Probe{ID: p.ID + 1}, late, false, false)
			done(t, b, due, Probe{ID: math.MaxUint64}, late, false, false)
			if b.Failure(due, true, 0, 0) {
				t.Error("a failure from before asks to trip")
			}
			state(t, b, due, HalfOpen)
			if b.Generation() != gen {
				t.Fatal("the stale result started a generation")
			}
			if late == ProbeSucceeded {
				done(t, b, due+ms, p, ProbeFailed, true, b.cfg.Article)
				state(t, b, due+ms, Open)
			} else {
				done(t, b, due+ms, p, ProbeSucceeded, true, true)
				state(t, b, due+ms, Closed)
			}
		})
	}
}

// F14: what failed before the circuit opened is no evidence after it closed.
func TestEvidenceDoesNotOutliveItsGeneration(t *testing.T) {
	b := mustNew(t, Config{})
	for range 12 {
		b.Failure(0, true, 0, 0)
	}
	b.Trip(0, 0)
	for range 64 { // stragglers
		if b.Failure(50*ms, true, 0, 0) {
			t.Fatal("a failure asks to trip an open circuit")
		}
	}
	done(t, b, 101*ms, probe(t, b, 100*ms), ProbeSucceeded, true, true)
	for i := 1; i <= 12; i++ {
		if got := b.Failure(102*ms, true, 0, 0); got != (i == 12) {
			t.Fatalf("failure %d of the new generation: trip %v", i, got)
		}
	}
}

// F24: neither one failure nor a handful opens a cold circuit.
func TestFewFailuresOfAColdCircuitDoNotOpenIt(t *testing.T) {
	for _, tc := range []struct {
		timedOut bool
		opensAt  int
	}{{true, 12}, {false, 43}} {
		b := mustNew(t, Config{})
		for i := 1; i <= tc.opensAt; i++ {
			if got := b.Failure(time.Duration(i)*ms, tc.timedOut, 0, 0); got != (i == tc.opensAt) {
				t.Errorf("timeouts %v: trip %v at straight failure %d, want at %d", tc.timedOut, got, i, tc.opensAt)
			}
		}
	}
	for _, timedOut := range []bool{false, true} { // 3 failed, 3 well
		b := mustNew(t, Config{})
		for i := range uint64(3) {
			if b.Failure(time.Duration(i)*300*ms, timedOut, i, i) {
				t.Error("3 of 6 opened it")
			}
		}
	}
	if b := mustNew(t, Config{Article: true}); !b.MeanTrips(1, 0) {
		t.Error("the article's rule must trip on a single failure: that is what it says")
	}
}

// F24: 60 % of fast errors want retries, not an open circuit; a full outage after a healthy hour is still seen.
func TestOutageIsToldFromManyErrors(t *testing.T) {
	b := mustNew(t, Config{})
	var successes uint64
	for i := range 3000 {
		now := time.Duration(i) * ms
		if i%5 < 2 {
			successes++
			continue
		}
		if b.Failure(now, false, successes, successes) {
			t.Fatalf("opened at call %d of 60 %% errors", i)
		}
	}
	n := 1
	for ; !b.Failure(3*s1, false, successes, successes); n++ {
		if n > 64 {
			t.Fatal("closed after 64 straight failures")
		}
	}
	// With the three before them 43 in a row, which at 40 % successes are no chance any more.
	if n != 40 {
		t.Errorf("opened after %d straight failures behind 60 %% errors", n)
	}
}

// A target that answers one call in ten fails 43 times in a row every few seconds by chance: a circuit that opened for that would flap,
// and shut out the tenth, of which three retries make a third. The outage that follows is still seen.
func TestNineErrorsInTenAreNotAnOutage(t *testing.T) {
	for seed := range uint64(10) {
		b := mustNew(t, Config{})
		r := rand.New(rand.NewPCG(seed, 1))
		successes := uint64(100)
		trips := 0
		for i := range 40_000 {
			now := time.Duration(i) * ms
			if r.Float64() < 0.1 {
				successes++
			} else if b.Failure(now, false, successes, successes) {
				trips++
				b.Trip(now, 400)
				b.Close(now)
			}
		}
		if trips > 3 {
			t.Errorf("seed %d: opened %d times in 40,000 calls", seed, trips)
		}
		n := 1
		for ; !b.Failure(40*s1, false, successes, successes); n++ {
		}
		if n > 107 {
			t.Errorf("seed %d: opened after %d failures in a row", seed, n)
		}
	}
}

// F27: errors far apart do not add up, and slow ones within the minute are not lost.
func TestSparseErrors(t *testing.T) {
	for _, tc := range []struct {
		every time.Duration
		opens int // at which failure; 0 for never
	}{
		{24 * time.Hour, 0},
		{15 * s1, 0},   // 5 in a minute
		{5455 * ms, 0}, // 11 intervals are just above 60 s
		{5454 * ms, 12},
		{s1, 12},
	} {
		b := mustNew(t, Config{})
		opened := 0
		for i := 1; i <= 500 && opened == 0; i++ {
			if b.Failure(time.Duration(i)*tc.every, true, 0, 0) {
				opened = i
			}
		}
		if opened != tc.opens {
			t.Errorf("one timeout every %v: opened at failure %d, want %d", tc.every, opened, tc.opens)
		}
	}
}

// F31: the time jumps, in either direction and for good; timers keep running on what passes.
func TestClockJumpsDoNotFreezeTheCircuit(t *testing.T) {
	for name, jump := range map[string]time.Duration{
		"8 h back": -8 * time.Hour, "8 h ahead": 8 * time.Hour, "half a second back": -500 * ms,
		"to the end": math.MaxInt64 - 100*s1, "to the beginning": math.MinInt64 + 100*s1,
	} {
		t.Run(name, func(t *testing.T) {
			b := mustNew(t, Config{Article: true})
			b.Trip(0, 0)
			state(t, b, 5*s1, Open)
			moved := 5*s1 + jump
			b.State(moved)
			if jump > 0 { // time has passed, for all that can be told
				state(t, b, moved, HalfOpen)
				b.Close(moved)
				b.Trip(moved, 0)
				state(t, b, moved+30*s1-1, Open)
				state(t, b, moved+30*s1, HalfOpen)
				return
			}
			limit := 25 * s1
			if -jump < backlash {
				limit -= jump // held until the axis is back where it was
			}
			state(t, b, moved+limit-1, Open)
			state(t, b, moved+limit, HalfOpen)
		})
	}
	t.Run("there and back, for ever", func(t *testing.T) {
		b := mustNew(t, Config{})
		for range 200_000 { // far beyond 2⁶³ ns of steps
			b.State(math.MaxInt64)
			b.State(math.MinInt64)
		}
		b.Trip(0, 0)
		refused(t, b, 100*ms-1)
		done(t, b, 100*ms, probe(t, b, 100*ms), ProbeSucceeded, true, true)
	})
}

// A target whose every answer is a stream: the first one is the probe and does not end for hours.
func TestProbeThatStreamsBeyondItsLeaseCloses(t *testing.T) {
	for _, article := range []bool{false, true} {
		b, err := New(Config{Article: article})
		if err != nil {
			t.Fatal(err)
		}
		b.Trip(0, 0)
		now := time.Minute
		p, ok := b.TryProbe(now, time.Second)
		if !ok {
			t.Fatal("no probe was admitted")
		}
		b.Answered(p)
		if st := b.State(now + time.Second); st != HalfOpen {
			t.Errorf("article %v: %v before the lease ran out, want half-open", article, st)
		}
		if st := b.State(now + time.Second + 1); st != Closed {
			t.Errorf("article %v: %v after the lease ran out, want closed", article, st)
		}
		if used, _ := b.ProbeDone(now+time.Hour, p, ProbeFailed, time.Second, 0); used {
			t.Errorf("article %v: the end of the stream counted in the generation after it", article)
		}
	}
	// An answer that breaks off within the lease is a failure like any other.
	b, _ := New(Config{})
	b.Trip(0, 0)
	p, _ := b.TryProbe(time.Minute, time.Second)
	b.Answered(p)
	if used, _ := b.ProbeDone(time.Minute+10*time.Millisecond, p, ProbeFailed, 10*time.Millisecond, 0); !used {
		t.Error("the failure was ignored")
	}
	if st := b.State(time.Minute + 20*time.Millisecond); st != Open {
		t.Errorf("%v, want open", st)
	}
}
