package cortex_test

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

func TestPermitIsUsedOnce(t *testing.T) {
	ends := map[string]func(*cortex.Permit) bool{
		"Done(nil)": func(p *cortex.Permit) bool { return p.Done(nil) },
		"Done(err)": func(p *cortex.Permit) bool { return p.Done(errBoom) },
		"Record":    func(p *cortex.Permit) bool { return p.Record(cortex.TimedOut) },
		"Release":   func(p *cortex.Permit) bool { p.Release(); return false },
	}
	for first, end := range ends {
		for second, again := range ends {
			e, clock := virtual(t, cortex.Config{})
			p := admit(t, e, 5)
			clock.advance(10 * ms)
			if used := end(p); used != (first != "Release") {
				t.Errorf("%s: counted %v", first, used)
			}
			before := e.Stats()
			clock.advance(10 * ms)
			if again(p) {
				t.Errorf("%s after %s counts", second, first)
			}
			p.Answered()
			if after := e.Stats(); after != before {
				t.Errorf("%s after %s: %+v, then %+v", second, first, before, after)
			}
			if n := e.Pressure().InFlight; n != 0 {
				t.Errorf("%s after %s: %d in flight", second, first, n)
			}
		}
	}
}

// One of many goroutines that end a permit at once gets to; what is in flight goes down by one.
func TestPermitIsUsedOnceByConcurrentCallers(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	var want, counted atomic.Int64
	for range 200 {
		p := admit(t, e, 5)
		keep := admit(t, e, 5)
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range 8 {
			wg.Go(func() {
				<-start
				used := false
				switch i % 4 {
				case 0:
					used = p.Done(nil)
				case 1:
					used = p.Record(cortex.Success)
				case 2:
					p.Answered()
				case 3:
					used = p.Done(errBoom)
				}
				if used {
					counted.Add(1)
				}
			})
		}
		clock.advance(ms)
		close(start)
		wg.Wait()
		want.Add(1)
		if n := e.Pressure().InFlight; n != 1 {
			t.Fatalf("%d in flight beside a permit that is over, want 1", n)
		}
		keep.Record(cortex.Success)
	}
	if counted.Load() != want.Load() {
		t.Errorf("%d of %d permits counted", counted.Load(), want.Load())
	}
	if s := e.Stats(); s.Successes+s.Failures != 400 || s.Attempts != 400 {
		t.Errorf("%+v", s)
	}
}

// A nil context has nothing to say.
func TestNilContextIsAllowed(t *testing.T) {
	var none context.Context
	e, clock := virtual(t, cortex.Config{})
	for _, err := range []error{nil, errBoom, context.Canceled} {
		p, refused := e.Admit(none, 5)
		if refused != nil {
			t.Fatal(refused)
		}
		clock.advance(ms)
		p.Done(err)
	}
	if s := e.Stats(); s.Successes != 1 || s.Failures != 1 || s.Neutral != 1 {
		t.Errorf("%+v", s)
	}
}

func TestZeroPermitDoesNothing(t *testing.T) {
	var p cortex.Permit
	p.Answered()
	p.Release()
	if p.Done(nil) || p.Done(errBoom) || p.Record(cortex.Success) {
		t.Error("the zero permit counts")
	}
	if d := p.Timeout(); d != 0 {
		t.Errorf("its timeout is %v", d)
	}
	// What comes with a refusal is a zero permit.
	e, _, _ := opened(t, cortex.Config{})
	refused, err := e.Admit(bg, 5)
	if err == nil {
		t.Fatal("admitted")
	}
	before := e.Stats()
	refused.Record(cortex.Success)
	if after := e.Stats(); after != before {
		t.Errorf("%+v, then %+v", before, after)
	}
}

// Neutral results, and outcomes that there are none of, touch nothing but their own count.
func TestNeutralResultsTouchNothing(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock := virtual(t, c)
		attempts(t, e, clock, 20, 10*ms, cortex.Success)
		clock.advance(ms)
		before := e.Pressure()
		for i := range 500 {
			attempts(t, e, clock, 1, ms, []cortex.Outcome{cortex.Neutral, 77, math.MaxUint8}[i%3])
		}
		after := e.Pressure()
		if after.Signals != before.Signals || after.Samples != before.Samples || after.Tokens < before.Tokens-1e-9 || after.P99 != before.P99 {
			t.Errorf("%+v, then %+v", before, after)
		}
		if s := e.Stats(); s.Neutral != 500 || s.Attempts != 520 || s.Successes != 20 {
			t.Errorf("%+v", s)
		}
	})
}

// The attempt of a caller that never returns is written off between one and two permit lives later; its late result counts for
// nothing in flight.
func TestLeakedPermitsAreWrittenOff(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		c.PermitLife = 10 * time.Second
		e, clock := virtual(t, c)
		clock.advance(3 * time.Second)
		var leaked []*cortex.Permit
		for range 5 {
			leaked = append(leaked, admit(t, e, 9))
		}
		started := clock.now()
		var gone time.Duration
		for gone = 0; gone < 60*time.Second; gone += 500 * ms {
			clock.set(started + gone)
			if e.Pressure().InFlight == 0 {
				break
			}
		}
		if gone < 10*time.Second || gone > 20*time.Second {
			t.Errorf("written off after %v", gone)
		}
		if n := e.Stats().Lost; n != 5 {
			t.Errorf("%d lost", n)
		}
		for _, p := range leaked {
			p.Release()
		}
		p := e.Pressure()
		if p.InFlight != 0 || p.Signals.Q != 0 {
			t.Errorf("after the late results: %+v", p)
		}
		q := admit(t, e, 9)
		if n := e.Pressure().InFlight; n != 1 {
			t.Errorf("%d in flight", n)
		}
		q.Release()
	})
}

// Answered fixes the latency at the head of a streamed answer and takes the attempt out of the number in flight; what becomes of
// the rest still decides.
func TestAnsweredFixesTheLatency(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for range 60 {
		p := admit(t, e, 5)
		clock.advance(10 * ms)
		p.Answered()
		p.Answered()
		if n := e.Pressure().InFlight; n != 0 {
			t.Fatalf("%d in flight after the head", n)
		}
		clock.advance(time.Second) // the body
		if !p.Record(cortex.Success) {
			t.Error("not counted")
		}
	}
	clock.advance(20 * ms)
	if p := e.Pressure(); p.P99 < 9*ms || p.P99 > 12*ms || p.BaselineInFlight > 0.1 || p.BaselineSojourn > 20*ms {
		t.Errorf("bodies count as latency: %+v", p)
	}
	p := admit(t, e, 5)
	clock.advance(10 * ms)
	p.Answered()
	clock.advance(time.Second)
	p.Record(cortex.Failed) // reset in mid-body
	if s := e.Stats(); s.Failures != 1 || s.Successes != 60 {
		t.Errorf("%+v", s)
	}
}

// A probe that has answered is no probe that hangs: where it still streams when its lease ends, the circuit closes, and how the
// stream ends is of an older generation.
func TestAnsweredProbeIsNoHungProbe(t *testing.T) {
	for _, end := range []cortex.Outcome{cortex.Success, cortex.Failed} {
		e, clock, due := opened(t, cortex.Config{})
		clock.set(due)
		p := admit(t, e, 5)
		clock.advance(10 * ms)
		p.Answered()
		if s := e.Pressure(); s.Circuit != breaker.HalfOpen || s.InFlight != 0 {
			t.Errorf("%v, %d in flight while the answer streams", s.Circuit, s.InFlight)
		}
		clock.advance(time.Second)
		if s := e.Pressure().Circuit; s != breaker.Closed {
			t.Errorf("%v at the end of the lease", s)
		}
		clock.advance(30 * time.Second)
		if p.Record(end) {
			t.Errorf("%v: used", end)
		}
		if s := e.Pressure(); s.Circuit != breaker.Closed || s.Signals.F != 0 {
			t.Errorf("%v: %+v", end, s)
		}
	}
}

// A panic or Goexit in the operation leaves nothing behind, and is no verdict on the target.
func TestPanicAndGoexitFreeThePermit(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("user code") }, "Goexit": runtime.Goexit} {
		e := mustNew(t, cortex.Config{})
		done := make(chan any, 1)
		go func() {
			defer func() { done <- recover() }()
			_, _ = cortex.Do(t.Context(), e, func(context.Context) (int, error) { leave(); return 0, nil })
		}()
		if r := <-done; (r != nil) != (name == "panic") {
			t.Errorf("%s: recovered %v", name, r)
		}
		if p, s := e.Pressure(), e.Stats(); p.InFlight != 0 || s.Neutral != 1 || s.Attempts != 1 {
			t.Errorf("%s: %d in flight, %+v", name, p.InFlight, s)
		}
	}
	// A probe, too: its slot is free again.
	e, clock, due := opened(t, cortex.Config{})
	clock.set(due)
	func() {
		defer func() { _ = recover() }()
		_, _ = cortex.Do(t.Context(), e, func(context.Context) (int, error) { panic("user code") })
	}()
	admit(t, e, 5).Record(cortex.Success)
	if s := e.Pressure().Circuit; s != breaker.Closed {
		t.Errorf("%v", s)
	}
}

// The target's own guard may hold back lower priorities here, within trust; without further reports that fades in seconds.
func TestRemotePressureIsBoundedAndFades(t *testing.T) {
	for _, c := range []struct {
		config cortex.Config
		report float64
		want   float64 // the share held back at once
	}{
		{cortex.Config{}, 1, 0.5}, {cortex.Config{RemoteTrust: 0.2}, 1, 0.2}, {cortex.Config{RemoteTrust: 1}, 0.4, 0.4},
		{cortex.Config{DistrustRemote: true}, 1, 0}, {cortex.Config{}, 0, 0}, {cortex.Config{}, math.NaN(), 0}, {cortex.Config{}, -1, 0},
		{cortex.Config{}, 1.01, 0}, {cortex.Config{}, math.Inf(1), 0},
	} {
		e, clock := virtual(t, c.config)
		warm(t, e, clock, 3*time.Second)
		clock.advance(10 * ms)
		if s := e.Pressure().Shed; s != 0 {
			t.Fatalf("shed %v before any report", s)
		}
		e.ObserveRemote(c.report)
		clock.advance(ms)
		if s := e.Pressure().Shed; math.Abs(s-c.want) > 0.002 {
			t.Errorf("%+v, a report of %v: shed %v, want %v", c.config.RemoteTrust, c.report, s, c.want)
		}
		last := 1.0
		for range 70 {
			clock.advance(100 * ms)
			s := e.Pressure().Shed
			if s > last {
				t.Fatalf("shed rises to %v from %v", s, last)
			}
			last = s
		}
		if last != 0 {
			t.Errorf("7 s after a report of %v: shed %v", c.report, last)
		}
		if n := e.Stats().BadInput; (n == 1) != !(c.report >= 0 && c.report <= 1) {
			t.Errorf("a report of %v: %d bad inputs", c.report, n)
		}
	}
}

// Lowest first: a report of one half, trusted whole, sheds the lower half of an even mix and nobody above.
func TestRemotePressureShedsLowestFirst(t *testing.T) {
	e, clock := virtual(t, cortex.Config{RemoteTrust: 1})
	warm(t, e, clock, 3*time.Second)
	clock.advance(30 * time.Second) // the mix of before is forgotten
	refused := map[cortex.Priority]int{}
	for i := range 8000 {
		if i > 2000 {
			e.ObserveRemote(0.5)
		}
		prio := cortex.Priority(1 + 2*(i%4)) // 1, 3, 5, 7
		p, err := e.Admit(bg, prio)
		clock.advance(2 * ms)
		if err == nil {
			p.Record(cortex.Success)
		} else if i >= 4000 {
			refused[prio]++
		}
	}
	if refused[1] < 990 || refused[3] < 900 || refused[5] > 100 || refused[7] != 0 {
		t.Errorf("refused of 1000 each: %v", refused)
	}
}

// The time an attempt is given: the adaptive timeout at rest, the extended one for a probe and where there is a queue.
func TestTimeoutOfAnAttempt(t *testing.T) {
	given := func(e *cortex.Engine) time.Duration {
		p := admit(t, e, 9)
		defer p.Release()
		return p.Timeout()
	}
	e, clock := virtual(t, cortex.Config{})
	if d := given(e); d != time.Second {
		t.Errorf("cold: %v", d)
	}
	warm(t, e, clock, 5*time.Second)
	clock.advance(200 * ms)
	usual := given(e)
	if usual < 50*ms || usual > 60*ms || e.Pressure().Timeout != usual { // 2 × 20 ms, and never below the minimum of 50 ms
		t.Errorf("warm: %v, %v in the snapshot", usual, e.Pressure().Timeout)
	}
	for n := e.Pressure().Limit; float64(e.Pressure().InFlight) < 0.4*n; {
		admit(t, e, 9)
	}
	clock.advance(2 * ms)
	e.Pressure()
	if d := given(e); d < time.Second || d > 5*time.Second {
		t.Errorf("with a queue: %v", d)
	}
	if p, err := e.Admit(bg, 9); err == nil {
		clock.advance(300 * ms)
		if !p.Record(cortex.Success) { // slower than usual, in an attempt that had the time
			t.Error("not counted")
		}
	}

	e, clock, due := opened(t, cortex.Config{Timeout: timeout.Config{Min: 100 * ms, Bootstrap: 100 * ms}})
	clock.set(due)
	if d := given(e); d != 800*ms {
		t.Errorf("probe: %v, want eight times the usual", d)
	}
	e, _ = virtual(t, cortex.Config{DisableTimeout: true})
	if d := given(e); d != 0 || e.Pressure().Timeout != 0 {
		t.Errorf("disabled: %v", d)
	}
}

// Timeouts that the caller's own limits make are no reason to give attempts less or more time.
func TestCallersLimitsDoNotMoveTheTimeout(t *testing.T) {
	e, clock := virtual(t, cortex.Config{Limit: limit.Config{Off: limit.Circuit}})
	warm(t, e, clock, 5*time.Second)
	clock.advance(200 * ms)
	before := e.Pressure().Timeout
	for range 3000 { // a minute of them
		p := admit(t, e, 9)
		p.Timeout()
		clock.advance(10 * ms)
		p.Record(cortex.TimedOut)
		clock.advance(10 * ms)
	}
	if after := e.Pressure().Timeout; after != before {
		t.Errorf("%v, then %v", before, after)
	}
}

// A request body that a slow client uploads for a minute is neither the target's latency nor its queue.
func TestPausedAttemptIsNeitherQueueNorLatency(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	p := admit(t, e, 5)
	p.Pause()
	p.Pause()
	clock.advance(time.Minute)
	if n := e.Pressure().InFlight; n != 0 {
		t.Errorf("%d in flight while the only attempt is paused", n)
	}
	p.Resume()
	p.Resume()
	if n := e.Pressure().InFlight; n != 1 {
		t.Errorf("%d in flight after the attempt went on", n)
	}
	clock.advance(20 * ms)
	if !p.Record(cortex.Success) {
		t.Error("the success did not count")
	}
	p.Resume()
	clock.advance(20 * ms)
	now := e.Pressure()
	if now.InFlight != 0 || now.P99 < 18*ms || now.P99 > 23*ms {
		t.Errorf("%d in flight, P99 %v; want 0 and 20 ms", now.InFlight, now.P99)
	}
	for name, end := range map[string]func(*cortex.Permit){
		"released":        func(p *cortex.Permit) { p.Release() },
		"answered":        func(p *cortex.Permit) { p.Answered(); p.Resume(); p.Record(cortex.Success) },
		"failed":          func(p *cortex.Permit) { p.Done(errBoom) },
		"resumed, failed": func(p *cortex.Permit) { p.Resume(); p.Done(errBoom) },
	} {
		p := admit(t, e, 5)
		p.Pause()
		clock.advance(10 * ms)
		end(p)
		if n := e.Pressure().InFlight; n != 0 {
			t.Errorf("%s while paused: %d in flight", name, n)
		}
	}
}

// The other way round than Answered: what came of it is known, but it is still in flight.
func TestAbandonedCountsAtOnceAndStaysInFlight(t *testing.T) {
	e, c := virtual(t, cortex.Config{})
	expect := func(what string, inFlight int, timeouts, successes uint64) {
		t.Helper()
		c.advance(time.Millisecond)
		if s := e.Stats(); s.Timeouts != timeouts || s.Successes != successes || e.Pressure().InFlight != inFlight {
			t.Errorf("%s: %d in flight, %d timeouts, %d successes, want %d, %d, %d", what, e.Pressure().InFlight, s.Timeouts, s.Successes, inFlight, timeouts, successes)
		}
	}
	p, err := e.Admit(context.Background(), 5)
	if err != nil {
		t.Fatal(err)
	}
	c.advance(time.Second)
	if !p.Abandoned(context.DeadlineExceeded) {
		t.Error("the timeout did not count")
	}
	expect("abandoned", 1, 1, 0)
	if p.Abandoned(context.DeadlineExceeded) {
		t.Error("counted twice")
	}
	if p.Record(cortex.Success) {
		t.Error("work that nobody waited for counted as a success")
	}
	expect("done", 0, 1, 0)
	p.Release()
	if p.Abandoned(context.DeadlineExceeded) {
		t.Error("counted after its end")
	}
	expect("released", 0, 1, 0)

	p, _ = e.Admit(context.Background(), 5)
	if !p.Record(cortex.Success) || p.Abandoned(context.DeadlineExceeded) {
		t.Error("an attempt that is over cannot be abandoned")
	}
	expect("success", 0, 1, 1)
	if new(cortex.Permit).Abandoned(context.DeadlineExceeded) {
		t.Error("the zero permit counted")
	}

	// Its own context says who ended it: a caller that left, and not for being late, speaks against nobody.
	ctx, cancel := context.WithCancel(context.Background())
	p, _ = e.Admit(ctx, 5)
	cancel()
	p.Abandoned(ctx.Err())
	expect("cancelled", 1, 1, 1)
	p.Release()
	expect("cancelled and released", 0, 1, 1)
	if s := e.Stats(); s.Neutral != 1 {
		t.Errorf("%d neutral, want 1", s.Neutral)
	}
}

// A probe that is abandoned has failed, and frees the slot for the next one though its work goes on.
func TestAbandonedProbeHasFailed(t *testing.T) {
	e, c, due := opened(t, cortex.Config{})
	c.advance(due)
	p, err := e.Admit(context.Background(), 5)
	if err != nil {
		t.Fatal(err)
	}
	c.advance(20 * time.Millisecond)
	p.Abandoned(context.DeadlineExceeded)
	c.advance(2 * time.Second)
	q, err := e.Admit(context.Background(), 5)
	if err != nil {
		t.Fatalf("no second probe: %v", err)
	}
	p.Record(cortex.Success)
	if e.Pressure().Circuit == breaker.Closed {
		t.Error("what came back to nobody closed the circuit")
	}
	q.Record(cortex.Success)
	if e.Pressure().Circuit != breaker.Closed {
		t.Error("the second probe's success did not close")
	}
}

// A deadline passes while the handler returns. What is recorded of the one must not be read from what the other writes.
func TestAbandonedWhileItEnds(t *testing.T) {
	e, c := virtual(t, cortex.Config{})
	for range 200 {
		p, err := e.Admit(context.Background(), 5)
		if err != nil { // the circuit, meanwhile
			c.advance(time.Second)
			continue
		}
		c.advance(3 * time.Second)
		var wg sync.WaitGroup
		var counted atomic.Int64
		count := func(used bool) {
			if used {
				counted.Add(1)
			}
		}
		start := make(chan struct{})
		wg.Go(func() { <-start; count(p.Abandoned(context.DeadlineExceeded)) })
		wg.Go(func() { <-start; p.Pause(); p.Resume() })
		wg.Go(func() { <-start; p.Answered() })
		wg.Go(func() { <-start; count(p.Record(cortex.Success)) })
		close(start)
		wg.Wait()
		if n := counted.Load(); n > 1 {
			t.Fatalf("%d outcomes of one attempt counted", n)
		}
		c.advance(time.Millisecond)
		if n := e.Pressure().InFlight; n != 0 {
			t.Fatalf("%d in flight", n)
		}
	}
}

// What a target says of time that ran out, to a caller who left it less than it usually takes, is not its doing.
func TestHurriedIsWhoLeavesTooLittleTime(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for range 200 { // usually 10 ms
		p := admit(t, e, 5)
		clock.advance(10 * ms)
		p.Done(nil)
	}
	for _, c := range []struct {
		left time.Duration // 0 = no deadline
		want bool
	}{{0, false}, {time.Hour, false}, {5 * ms, true}, {time.Nanosecond, true}} {
		ctx := t.Context()
		if c.left > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.left)
			defer cancel()
		}
		p, err := e.Admit(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Hurried(); got != c.want {
			t.Errorf("%v left: %v", c.left, got)
		}
		p.Release()
	}
	if new(cortex.Permit).Hurried() {
		t.Error("the zero Permit is hurried")
	}
}
