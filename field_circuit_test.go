package cortex_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// The field cases that concern the engine as a whole, in virtual time. Those of one part are in that part's package.

var errBoom = errors.New("boom")

// opened is an engine whose circuit has just opened, by fast failures; due is when the first probe may go.
func opened(t *testing.T, c cortex.Config) (e *cortex.Engine, clock *timeline, due time.Duration) {
	t.Helper()
	e, clock = virtual(t, c)
	n := 43 // P(θ > 0.9 | Beta(44, 1)) = 1 − 0.9^44 ≥ 0.99
	if c.Profile == cortex.Article {
		n = 1
	}
	attempts(t, e, clock, n, ms, cortex.Failed)
	p := e.Pressure()
	if p.Circuit != breaker.Open || p.NextProbe <= 0 {
		t.Fatalf("after %d failures: %+v", n, p)
	}
	return e, clock, clock.now() + p.NextProbe
}

func bothProfiles(t *testing.T, f func(t *testing.T, c cortex.Config)) {
	for _, p := range []cortex.Profile{cortex.Adaptive, cortex.Article} {
		t.Run(p.String(), func(t *testing.T) { f(t, cortex.Config{Profile: p}) })
	}
}

// F10: a probe without a verdict gives its slot back, however it ends.
func TestProbeWithoutVerdictFreesItsSlot(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		for name, end := range map[string]func(p *cortex.Permit, cancel func()) bool{
			"ignored error": func(p *cortex.Permit, _ func()) bool { return p.Done(cortex.WithClass(errBoom, cortex.Class{})) },
			"client fault":  func(p *cortex.Permit, _ func()) bool { return p.Done(fmt.Errorf("404: %w", cortex.Permanent(errBoom))) },
			"caller gone": func(p *cortex.Permit, cancel func()) bool {
				cancel()
				return p.Done(errors.New("driver: query aborted"))
			},
			"released":    func(p *cortex.Permit, _ func()) bool { p.Release(); return true },
			"our refusal": func(p *cortex.Permit, _ func()) bool { return p.Done(&cortex.Rejection{}) },
		} {
			e, clock, due := opened(t, c)
			clock.set(due)
			ctx, cancel := context.WithCancel(t.Context())
			probe, err := e.Admit(ctx, 9)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			refusal(t, e, 9)
			clock.advance(10 * ms)
			if !end(&probe, cancel) {
				t.Errorf("%s: the outcome was not used", name)
			}
			if got := e.Pressure().Circuit; got == breaker.Closed {
				t.Errorf("%s closed the circuit", name)
			}
			admit(t, e, 9).Record(cortex.Success)
			if got := e.Pressure().Circuit; got != breaker.Closed {
				t.Errorf("%s: %v after the next probe's success", name, got)
			}
			s := e.Stats()
			if s.Neutral != 1 || s.Successes != 1 {
				t.Errorf("%s: %+v", name, s)
			}
			cancel()
		}
	})
}

// F11: recovery does not depend on user code returning. The article's lease is the 30 s of the open circuit, the adaptive one's
// the time an answer may take.
func TestProbeThatNeverReturnsDoesNotKeepTheCircuit(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock, due := opened(t, c)
		clock.set(due)
		hung := admit(t, e, 9)
		lease := 30*time.Second + 5*time.Second
		if c.Profile == cortex.Adaptive {
			lease = 100*ms + 1200*ms
		}
		var fresh *cortex.Permit
		for fresh == nil && clock.now() <= due+lease {
			clock.advance(50 * ms)
			if p, err := e.Admit(bg, 9); err == nil {
				fresh = &p
			}
		}
		if fresh == nil {
			t.Fatalf("no other probe within %v", lease)
		}
		// When the first one comes back at last, with bad news, nothing changes.
		if hung.Record(cortex.Failed) {
			t.Error("the result of the probe that hung was used")
		}
		refusal(t, e, 9)
		if !fresh.Record(cortex.Success) || e.Pressure().Circuit != breaker.Closed {
			t.Errorf("%+v", e.Pressure())
		}
		if n := e.Pressure().InFlight; n != 0 {
			t.Errorf("%d in flight", n)
		}
	})
}

// F13: 200 callers at one instant, of which three may probe.
func TestProbesAreNeverMoreThanTheirSlots(t *testing.T) {
	for _, slots := range []int{1, 3} {
		bothProfiles(t, func(t *testing.T, c cortex.Config) {
			c.Breaker = breaker.Config{MaxProbes: slots, ProbesToClose: slots}
			e, clock, due := opened(t, c)
			rush := func() (admitted []*cortex.Permit) {
				var mu sync.Mutex
				var wg sync.WaitGroup
				for range 200 {
					wg.Go(func() {
						if p, err := e.Admit(bg, 9); err == nil {
							mu.Lock()
							admitted = append(admitted, &p)
							mu.Unlock()
						} else if !errors.Is(err, cortex.ErrOpen) {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if len(admitted) != slots {
					t.Fatalf("%d probes of 200 callers, want %d", len(admitted), slots)
				}
				return admitted
			}
			clock.set(due)
			old := rush()
			// The round is over: all leases have run out. Late releases of it must not make room in the next one.
			clock.advance(65 * time.Second)
			fresh := rush()
			for _, p := range old {
				p.Release()
			}
			refusal(t, e, 9)
			for _, p := range fresh {
				p.Record(cortex.Success)
			}
			if got := e.Pressure().Circuit; got != breaker.Closed {
				t.Errorf("%v", got)
			}
		})
	}
}

// F14: A starts while the circuit is closed and comes back while P is out as a probe. Only P decides, and the two-step caller of
// A is told that its result was not used.
func TestResultOfAnOlderGenerationDecidesNothing(t *testing.T) {
	for _, late := range []cortex.Outcome{cortex.Success, cortex.Failed, cortex.TimedOut} {
		for _, verdict := range []cortex.Outcome{cortex.Failed, cortex.Success} {
			opens := 0
			e, clock := virtual(t, cortex.Config{OnStateChange: func(s cortex.StateChange) {
				if s.From == breaker.Closed && s.To == breaker.Open {
					opens++
				}
			}})
			a := admit(t, e, 5)
			attempts(t, e, clock, 43, ms, cortex.Failed)
			b := admitStale(e) // stragglers of every kind while it is open
			clock.advance(e.Pressure().NextProbe)
			p := admit(t, e, 5)
			if got := e.Pressure().Circuit; got != breaker.HalfOpen {
				t.Fatal(got)
			}
			before := e.Stats()
			gen := e.Pressure().Generation
			if a.Record(late) {
				t.Errorf("%v: the result of the older generation was used", late)
			}
			after := e.Stats()
			if after.Stale != before.Stale+1 {
				t.Errorf("%v: %d stale results counted", late, after.Stale-before.Stale)
			}
			after.Stale = before.Stale
			if after != before {
				t.Errorf("%v: counters went from %+v to %+v", late, before, after)
			}
			if got := e.Pressure(); got.Circuit != breaker.HalfOpen || got.Generation != gen {
				t.Errorf("%v: %v, generation %d after %d", late, got.Circuit, got.Generation, gen)
			}
			if !p.Record(verdict) {
				t.Error("the probe's result was not used")
			}
			want := breaker.Open
			if verdict == cortex.Success {
				want = breaker.Closed
			}
			if got := e.Pressure().Circuit; got != want {
				t.Errorf("late %v, probe %v: %v", late, verdict, got)
			}
			if b != nil {
				t.Error("an open circuit admitted a call")
			}
			if opens != 1 {
				t.Errorf("opened told %d times", opens)
			}
		}
	}
}

func admitStale(e *cortex.Engine) *cortex.Permit {
	if p, err := e.Admit(bg, 10); err == nil {
		return &p
	}
	return nil
}

// F14, the article: it knows no generations, but a late result moves no state either.
func TestLateResultMovesNoStateInTheArticle(t *testing.T) {
	for _, late := range []cortex.Outcome{cortex.Success, cortex.Failed} {
		e, clock := virtual(t, cortex.Config{Profile: cortex.Article})
		a := admit(t, e, 5)
		attempts(t, e, clock, 1, ms, cortex.Failed)
		clock.advance(10 * time.Second)
		a.Record(late)
		if p := e.Pressure(); p.Circuit != breaker.Open || p.NextProbe != 20*time.Second {
			t.Errorf("%v while open: %v, next probe in %v", late, p.Circuit, p.NextProbe)
		}
	}
}

// F17: who ended the call decides, not what the error says.
func TestCallersCancellationIsNeutral(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for i := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		p, err := e.Admit(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		clock.advance(ms)
		cancel()
		err = fmt.Errorf("query: %w", context.Canceled)
		if i >= 100 {
			err = errors.New("pq: canceling statement due to user request")
		}
		if !p.Done(err) {
			t.Error("not counted")
		}
		clock.advance(ms)
	}
	s, p := e.Stats(), e.Pressure()
	if s.Neutral != 200 || s.Failures+s.Timeouts+s.Successes != 0 || p.Circuit != breaker.Closed || p.Signals.F != 0 || p.Samples != 0 {
		t.Errorf("%+v %+v", s, p)
	}
	// A caller's own deadline speaks against the target only where the target had the time it usually needs.
	for _, c := range []struct {
		took time.Duration
		want cortex.Outcome
	}{{ms, cortex.Neutral}, {2 * time.Second, cortex.TimedOut}} {
		before := e.Stats()
		ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		p, err := e.Admit(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		clock.advance(c.took)
		p.Done(errors.New("i/o"))
		cancel()
		s := e.Stats()
		got := cortex.Neutral
		if s.Timeouts > before.Timeouts {
			got = cortex.TimedOut
		}
		if got != c.want || s.Failures != before.Failures {
			t.Errorf("deadline after %v: %v, want %v", c.took, got, c.want)
		}
	}
}

// F18: answers that prove the target alive do not speak against it, whatever their share.
func TestClientFaultsDoNotOpenTheCircuit(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock := virtual(t, c)
		for _, fault := range []string{"400", "401", "404", "409", "422", "NotFound", "InvalidArgument", "AlreadyExists", "Unimplemented"} {
			for range 200 {
				p := admit(t, e, 5)
				clock.advance(ms)
				p.Done(fmt.Errorf("client: %w", cortex.Permanent(errors.New(fault))))
			}
		}
		if p := e.Pressure(); p.Circuit != breaker.Closed || p.CPS != 0 {
			t.Errorf("%+v", p)
		}
		if s := e.Stats(); s.Neutral != 1800 || s.Failures != 0 || s.Transitions != 0 {
			t.Errorf("%+v", s)
		}
		for range 43 {
			if p, err := e.Admit(bg, 5); err == nil {
				clock.advance(ms)
				p.Done(errors.New("503"))
			}
		}
		if p := e.Pressure(); p.Circuit != breaker.Open {
			t.Errorf("after 43 of the target's own errors: %+v", p)
		}
	})
}

// F18: what counts is the owner's rule, through the whole wrap chain.
func TestOwnClassification(t *testing.T) {
	busy := errors.New("busy")
	e, clock := virtual(t, cortex.Config{Classify: func(err error) cortex.Class {
		if errors.Is(err, busy) {
			return cortex.Class{Outcome: cortex.Throttled, Retryable: true, RetryAfter: 3 * time.Second}
		}
		return cortex.Classify(err)
	}})
	for _, err := range []error{nil, fmt.Errorf("x: %w", busy), errBoom, cortex.Permanent(errBoom), context.DeadlineExceeded, context.Canceled} {
		p := admit(t, e, 5)
		clock.advance(ms)
		p.Done(err)
	}
	s := e.Stats()
	if s.Successes != 1 || s.Throttled != 1 || s.Failures != 1 || s.Neutral != 2 || s.Timeouts != 1 {
		t.Errorf("%+v", s)
	}
	d := e.Decide(cortex.Failure{Err: fmt.Errorf("x: %w", busy)})
	if !d.Retry || d.DelayMin != 3*time.Second {
		t.Errorf("%+v", d)
	}
}

// F19: our own refusals are no failures: they are counted apart, and the circuit closes with the first probe after the fault.
func TestRefusalsDoNotKeepTheCircuitOpen(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	refused, failed := uint64(0), uint64(0)
	healthyAgain := time.Duration(-1)
	for range 65_000 { // 1,000 a second, each of 1 ms
		now := clock.now()
		p, err := e.Admit(bg, 5)
		clock.advance(ms)
		switch {
		case err != nil:
			refused++
		case now < 60*time.Second:
			failed++
			p.Record(cortex.Failed)
		default:
			p.Record(cortex.Success)
			if healthyAgain < 0 {
				healthyAgain = now - 60*time.Second
			}
		}
	}
	s := e.Stats()
	if s.Failures != failed || s.Rejected(cortex.ReasonCircuitOpen)+s.Rejected(cortex.ReasonShed) != refused || s.Calls != 65_000 {
		t.Errorf("%d failed and %d refused: %+v", failed, refused, s)
	}
	if healthyAgain < 0 || healthyAgain > 1200*ms { // the longest gap between probes
		t.Errorf("first success %v after the fault", healthyAgain)
	}
	if failed > 43+600 { // probes: at most 1 % of the traffic
		t.Errorf("%d attempts reached the target in the outage", failed)
	}
	if p := e.Pressure(); p.Signals.F != 0 || p.Circuit != breaker.Closed || p.CPS >= 0.3 {
		t.Errorf("%+v", p)
	}
}

// F24: a ratio without a denominator is noise.
func TestFewFailuresOfAColdEngine(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for i := 1; i <= 43; i++ {
		attempts(t, e, clock, 1, 20*ms, cortex.Failed)
		clock.advance(ms)
		p := e.Pressure()
		if want := breaker.Closed; i < 43 && p.Circuit != want {
			t.Fatalf("%v after %d failures", p.Circuit, i)
		}
		if want := math.Min(float64(i)/10, 1); math.Abs(p.Signals.F-want) > 1e-9 {
			t.Errorf("F = %v after %d of %d, want %v", p.Signals.F, i, i, want)
		}
		if i == 1 && p.State != cortex.Healthy {
			t.Errorf("%v after one failure", p.State)
		}
	}
	if p := e.Pressure(); p.Circuit != breaker.Open {
		t.Errorf("%v after 43 straight failures", p.Circuit)
	}
	// After a restart: three failures and three successes within two seconds.
	e, clock = virtual(t, cortex.Config{})
	for i := range 6 {
		attempts(t, e, clock, 1, 300*ms, []cortex.Outcome{cortex.Failed, cortex.Success}[i%2])
	}
	if n := rejected(e); n != 0 {
		t.Errorf("%d calls refused", n)
	}
}

func rejected(e *cortex.Engine) (n uint64) {
	s := e.Stats()
	for _, r := range cortex.Reasons() {
		n += s.Rejected(r)
	}
	return n
}

// F25: the failure ratio does not depend on the phase against the clock. 1,000 a second for 10 s, of which the last 900 fail.
func TestFailureRatioDoesNotDependOnThePhase(t *testing.T) {
	for _, offset := range []time.Duration{0, 300 * ms, 9900 * ms} {
		e, clock := virtual(t, cortex.Config{Profile: cortex.Article})
		clock.advance(offset)
		for i := range 10_000 {
			o := cortex.Success
			if i >= 9100 {
				o = cortex.Failed
			}
			p := admit(t, e, 9)
			clock.advance(ms)
			p.Record(o)
		}
		clock.advance(ms)
		p := e.Pressure()
		if math.Abs(p.Signals.F-0.09) > 1e-9 || p.Circuit != breaker.Closed {
			t.Errorf("offset %v: F = %v, %v", offset, p.Signals.F, p.Circuit)
		}
	}
}

// F27: failures far apart are no outage, however many; in a minute they are.
func TestSparseFailuresDoNotAddUp(t *testing.T) {
	for _, o := range []cortex.Outcome{cortex.Failed, cortex.TimedOut} {
		for _, c := range []struct {
			every  time.Duration
			opened bool
		}{{24 * time.Hour, false}, {15 * time.Second, false}, {1200 * ms, true}} {
			e, clock := virtual(t, cortex.Config{})
			for range 200 {
				p, err := e.Admit(bg, 5)
				if err != nil {
					break
				}
				clock.advance(20 * ms)
				p.Record(o)
				clock.advance(c.every - 20*ms)
			}
			if got := e.Stats().Transitions > 0; got != c.opened {
				t.Errorf("%v, one every %v: opened %v", o, c.every, got)
			}
		}
	}
}

// F29: calls that hang raise the score when they are older than the timeout that should have ended them, before they return.
func TestHungCallsAreSeenBeforeTheyReturn(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Timeout: timeout.Config{Bootstrap: 2 * time.Second}})
	for range 20 {
		admit(t, e, 9)
	}
	at := func(when time.Duration) cortex.Pressure {
		clock.set(when)
		return e.Pressure()
	}
	calm := at(time.Second)
	if calm.Signals.F != 0 || calm.Signals.L != 0 {
		t.Errorf("at 1 s: %+v", calm)
	}
	late := at(2100 * ms)
	if !(late.CPS > calm.CPS) || late.Signals.F != 1 || late.Signals.L != 1 {
		t.Errorf("at 2.1 s: cps %v after %v, %+v", late.CPS, calm.CPS, late.Signals)
	}
	clock.set(3 * time.Second)
	r := refusal(t, e, 1)
	if !errors.Is(r, cortex.ErrRejected) || r.CPS < 0.6 {
		t.Error(r)
	}
}

// F31: durations are taken from what passes, not from what the clock says.
func TestClockSetBackOrAheadFreezesNothing(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		for _, jump := range []time.Duration{-8 * time.Hour, 8 * time.Hour, -30 * time.Minute, math.MinInt64 / 2} {
			readings := 0.0
			c.Queue = func() (float64, float64) { readings++; return 0, 10 }
			e, clock, _ := opened(t, c)
			refusal(t, e, 9)
			clock.advance(5 * ms)
			refusal(t, e, 9)
			clock.advance(jump)
			var waited time.Duration
			for ; waited < 40*time.Second; waited += 50 * ms {
				if p, err := e.Admit(bg, 9); err == nil {
					clock.advance(ms)
					p.Record(cortex.Success)
					break
				}
				clock.advance(50 * ms)
			}
			want := 30 * time.Second
			if c.Profile == cortex.Adaptive {
				want = 150 * ms
			}
			if waited > want {
				t.Errorf("clock moved by %v: the probe was admitted after %v", jump, waited)
			}
			if got := e.Pressure().Circuit; got != breaker.Closed {
				t.Errorf("clock moved by %v: %v", jump, got)
			}
			before := readings
			clock.advance(100 * time.Second)
			p := e.Pressure()
			if p.CPS != 0 || p.InFlight != 0 {
				t.Errorf("clock moved by %v: %+v after 100 s of silence", jump, p)
			}
			if readings == before {
				t.Errorf("clock moved by %v: the gauge is not read any more", jump)
			}
		}
	})
}

func TestSlowTimeoutsOpenTheCircuit(t *testing.T) {
	for _, every := range []time.Duration{500 * ms, 1100 * ms, 1500 * ms, 2 * time.Second, 3 * time.Second, 5 * time.Second} {
		e, clock := virtual(t, cortex.Config{})
		n := 0
		for e.Pressure().Circuit == breaker.Closed && n < 100 {
			n++
			attempts(t, e, clock, 1, every, cortex.TimedOut)
		}
		if n == 100 {
			t.Errorf("still closed after %d timeouts in a row, one every %v", n, every)
		}
	}
}

// A caller that makes one call at a time and waits in between is slow enough that each of its calls after the circuit opened is a
// probe; the timeouts before it came seconds apart, and must add up all the same.
func TestTrickleOfHungCallsOpensTheCircuit(t *testing.T) {
	for _, pause := range []time.Duration{0, 500 * ms, time.Second, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			e := mustNew(t, cortex.Config{DisableRetries: true, Timeout: timeout.Config{Max: 2 * time.Second}})
			n := 0
			for ; n < 100 && e.Pressure().Circuit == breaker.Closed; n++ {
				_, err := cortex.Do(t.Context(), e, func(ctx context.Context) (int, error) {
					<-ctx.Done()
					return 0, ctx.Err()
				})
				if err == nil {
					t.Fatal("a hung call succeeded")
				}
				time.Sleep(pause)
			}
			if n > 20 {
				t.Errorf("pause %v: open after %d hung calls in a row", pause, n)
			}
		})
	}
}
