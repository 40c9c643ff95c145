package cortex_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/limit"
)

// F66 (a): retries are charged when they are decided on, so a thousand callers cannot all wait on one token's strength. A token
// buys one retry where failures look like load, 50 where they do not.
func TestBudgetIsChargedBeforeTheWait(t *testing.T) {
	for _, c := range []struct {
		name    string
		config  cortex.Config
		outcome cortex.Outcome
		most    int
	}{
		{"article", cortex.Config{Profile: cortex.Article}, cortex.Failed, 10},
		{"adaptive, timeouts", cortex.Config{}, cortex.TimedOut, 10},
		{"adaptive, fast failures", cortex.Config{}, cortex.Failed, 500},
		{"adaptive, price switched off", cortex.Config{Limit: limit.Config{Off: limit.LoadPrice}}, cortex.Failed, 10},
	} {
		c.config.Breaker.Threshold = 0.9999
		e, clock := virtual(t, c.config)
		if c.outcome == cortex.TimedOut { // so that the share of timeouts is known
			attempts(t, e, clock, 1, 1500*ms, cortex.TimedOut)
		}
		var granted atomic.Int64
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: c.outcome, Retryable: true}, Priority: 9})
				if d.Retry {
					granted.Add(1)
				} else if d.Reason != cortex.ReasonBudget {
					t.Errorf("%s: %v", c.name, d.Reason)
				}
			})
		}
		wg.Wait()
		if n := int(granted.Load()); n < 3 || n > c.most {
			t.Errorf("%s: %d retries granted at one instant, want 3 to %d", c.name, n, c.most)
		}
		if p := e.Pressure(); p.Tokens < 0 {
			t.Errorf("%s: %v tokens", c.name, p.Tokens)
		}
	}
}

// F66 (b): a lone call may retry, for ever.
func TestLoneCallMayAlwaysRetry(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for i := range 600 { // one a second, failing once
		attempts(t, e, clock, 1, 20*ms, cortex.Failed)
		d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 5})
		if !d.Retry {
			t.Fatalf("second %d: %+v", i, d)
		}
		p, err := e.AdmitRetry(bg, 5, 1)
		if err != nil {
			t.Fatal(err)
		}
		clock.advance(20 * ms)
		p.Record(cortex.Success)
		clock.advance(960 * ms)
	}
	// Even where nothing ever succeeds and a retry costs a whole token, income of 0.2 a second pays for one every five.
	e, clock = virtual(t, cortex.Config{Profile: cortex.Article, Breaker: breaker.Config{Threshold: 0.9999}})
	granted := 0
	for range 600 {
		if d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 9}); d.Retry {
			granted++
		}
		clock.advance(time.Second)
	}
	if granted < 120 || granted > 132 { // 10 at the start, 2 of them within the reserve
		t.Errorf("%d retries in 600 s", granted)
	}
}

// F66 (c): a device goes offline with six calls in flight: the floor lets them retry.
func TestOfflineDeviceMayRetry(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	warm(t, e, clock, 3*time.Second)
	var flight []*cortex.Permit
	for range 6 {
		flight = append(flight, admit(t, e, 5))
	}
	clock.advance(20 * ms)
	for _, p := range flight {
		p.Record(cortex.Failed)
		if d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 5}); !d.Retry {
			t.Errorf("%+v", d)
		}
	}
}

// F70: a gauge that makes no sense is no reading: it raises nothing, is counted, and the next good one counts again.
func TestGaugeThatMakesNoSense(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		for _, bad := range [][2]float64{{0, 0}, {5, 0}, {nan, 10}, {5, nan}, {inf, 10}, {inf, inf}, {-inf, 10}, {-1, 10}, {1, -10}, {-1, -10},
			{math.MaxFloat64, math.SmallestNonzeroFloat64}} {
			reading := [2]float64{1, 2}
			c.Queue = func() (float64, float64) { return reading[0], reading[1] }
			e, clock := virtual(t, c)
			q := func() float64 {
				clock.advance(20 * ms)
				return e.Pressure().Signals.Q
			}
			if got := q(); got != 0.5 {
				t.Fatalf("Q = %v, want 0.5", got)
			}
			reading = bad
			before := e.Stats().BadInput
			if got := q(); got != 0 {
				t.Errorf("%v: Q = %v", bad, got)
			}
			if p := e.Pressure(); p.CPS != 0 || math.IsNaN(p.Shed) || p.Floor != 0 {
				t.Errorf("%v: %+v", bad, p)
			}
			admit(t, e, 0).Record(cortex.Success)
			if n := e.Stats().BadInput; n <= before {
				t.Errorf("%v: %d bad readings counted", bad, n-before)
			}
			reading = [2]float64{3, 4}
			if got := q(); got != 0.75 {
				t.Errorf("after %v: Q = %v, want 0.75", bad, got)
			}
		}
	})
}

// F70: a gauge that panics, too; it must not keep its last reading.
func TestGaugeThatPanics(t *testing.T) {
	broken := false
	e, clock := virtual(t, cortex.Config{Queue: func() (float64, float64) {
		if broken {
			panic("pool is closed")
		}
		return 3, 4
	}})
	clock.advance(20 * ms)
	if q := e.Pressure().Signals.Q; q != 0.75 {
		t.Fatal(q)
	}
	broken = true
	clock.advance(20 * ms)
	if q := e.Pressure().Signals.Q; q != 0 {
		t.Errorf("Q = %v from a gauge that panics", q)
	}
	broken = false
	clock.advance(20 * ms)
	if q := e.Pressure().Signals.Q; q != 0.75 {
		t.Errorf("Q = %v after it came back", q)
	}
	if n := e.Stats().BadInput; n != 1 {
		t.Errorf("%d bad readings", n)
	}
}

// The gauge is the greater of the user's and the engine's own, is read at most every 10 ms, and sheds above 80 %.
func TestGaugeSheds(t *testing.T) {
	fill, reads := 0.5, 0
	e, clock := virtual(t, cortex.Config{Queue: func() (float64, float64) { reads++; return fill, 1 }})
	warm(t, e, clock, 3*time.Second)
	if n := int(clock.now()/(10*ms)) + 2; reads > n {
		t.Errorf("%d readings in %v", reads, clock.now())
	}
	if n := rejected(e); n != 0 {
		t.Errorf("%d refused at half the fill", n)
	}
	fill = 3 // an overfull queue is a full one
	refused := 0
	for range 2000 {
		if p, err := e.Admit(bg, 5); err == nil {
			clock.advance(2 * ms)
			p.Record(cortex.Success)
		} else if refused++; !errors.Is(err, cortex.ErrShed) {
			t.Fatal(err)
		} else {
			clock.advance(2 * ms)
		}
	}
	if refused < 200 {
		t.Errorf("%d of 2000 refused with the queue full", refused)
	}
}

// F72 (c): when all calls are of the highest priority, shedding still works, and is fair among equals.
func TestShedsFairlyAmongEqualPriorities(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	type running struct {
		p   *cortex.Permit
		end time.Duration
	}
	var queue []running
	var refusedBy [4]int
	free := time.Duration(0)
	call := func(overload bool, caller int) {
		now := clock.now()
		for len(queue) > 0 && queue[0].end <= now {
			queue[0].p.Record(cortex.Success)
			queue = queue[1:]
		}
		permit, err := e.Admit(bg, 10)
		switch {
		case err == nil:
			free = max(free, now) + ms
			queue = append(queue, running{&permit, free})
		case !overload || !errors.Is(err, cortex.ErrShed):
			t.Fatalf("overload %v: %v", overload, err)
		default:
			refusedBy[caller]++
		}
	}
	for range 2500 { // 500 a second at a target that serves 1,000, one at a time
		call(false, 0)
		clock.advance(2 * ms)
	}
	for i := range 20_000 { // then 2,000 a second
		call(true, i%4)
		clock.advance(500 * time.Microsecond)
	}
	for caller, n := range refusedBy {
		if n < 2000 || n > 3000 {
			t.Errorf("caller %d was refused %d of 5000 times, half is fair", caller, n)
		}
	}
}

// F69: three layers in one process, each with three tries, and the bottom always failing.
func TestNestedLayersDoNotMultiply(t *testing.T) {
	layers := func(c cortex.Config) (top, mid, low *cortex.Engine) {
		c.MaxRetries = 2
		c.Backoff.Base = 1
		return mustNew(t, c), mustNew(t, c), mustNew(t, c)
	}
	call := func(ctx context.Context, top, mid, low *cortex.Engine, bottom func() error, opts ...cortex.CallOption) error {
		_, err := cortex.Do(ctx, top, func(ctx context.Context) (int, error) {
			return cortex.Do(ctx, mid, func(ctx context.Context) (int, error) {
				return cortex.Do(ctx, low, func(ctx context.Context) (int, error) { return 0, bottom() })
			})
		}, opts...)
		return err
	}
	top, mid, low := layers(cortex.Config{})
	n := 0
	err := call(t.Context(), top, mid, low, func() error { n++; return errBoom })
	if n != 3 {
		t.Errorf("%d calls at the bottom, want the 3 tries of the outermost layer", n)
	}
	if !errors.Is(err, errBoom) {
		t.Error(err)
	}
	var ce *cortex.CallError
	if !errors.As(err, &ce) || ce.Attempts != 3 || ce.Reason != cortex.ReasonMaxRetries || !errors.Is(err, cortex.ErrExhausted) {
		t.Errorf("%+v", ce)
	}

	// The layer that is told not to retry leaves it to the next.
	top, mid, low = layers(cortex.Config{})
	n = 0
	_ = call(t.Context(), top, mid, low, func() error { n++; return errBoom }, cortex.WithRetries(0))
	if n != 3 {
		t.Errorf("%d calls at the bottom with retries in the middle only", n)
	}

	// What the bottom says is beyond mending is not retried by anybody.
	top, mid, low = layers(cortex.Config{})
	n = 0
	err = call(t.Context(), top, mid, low, func() error {
		n++
		return cortex.WithClass(errBoom, cortex.Class{Outcome: cortex.Failed})
	})
	if n != 1 || !errors.Is(err, errBoom) {
		t.Errorf("%d calls, %v", n, err)
	}

	// A thousand calls: the budget and the circuit hold them together.
	top, mid, low = layers(cortex.Config{Budget: budget.Config{MinPerSecond: -1}, Limit: limit.Config{Off: limit.LoadPrice}})
	n = 0
	for range 1000 {
		_ = call(t.Context(), top, mid, low, func() error { n++; return errBoom })
	}
	if n > 1200 {
		t.Errorf("%d calls at the bottom of 1,000", n)
	}
}

// F88: a storm of random callers, outcomes and jumps of time leaves no attempt behind and no number that is none.
func TestRandomUseLeavesNothingBehind(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 9))
		c := cortex.Config{Profile: cortex.Profile(seed % 2), Rand: rand.NewPCG(seed, 1), PermitLife: time.Minute}
		if seed%4 >= 2 {
			c.ShedSignal = cortex.ShedByPressure
		}
		e, clock := virtual(t, c)
		var flight []*cortex.Permit
		for range 2000 {
			switch r.IntN(8) {
			case 0, 1, 2:
				if p, err := e.Admit(bg, cortex.Priority(r.IntN(14)-2)); err == nil {
					flight = append(flight, &p)
				}
			case 3, 4:
				if len(flight) > 0 {
					i := r.IntN(len(flight))
					flight[i].Record(cortex.Outcome(r.IntN(7)))
					flight = append(flight[:i], flight[i+1:]...)
				}
			case 5:
				clock.advance([]time.Duration{0, 1, ms, 20 * ms, time.Second, 20 * time.Second, -ms, -time.Second}[r.IntN(8)])
			case 6:
				e.ObserveRemote([]float64{0, 0.5, 1, math.NaN(), -1, 2}[r.IntN(6)])
			case 7:
				d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.TimedOut, Retryable: true}, Attempt: r.IntN(5) - 1,
					Priority: cortex.Priority(r.IntN(14) - 2), Deadline: time.Duration(r.IntN(3)-1) * time.Second})
				if d.Delay < 0 || d.Delay > 30*time.Second {
					t.Fatalf("%+v", d)
				}
			}
			sane(t, e.Pressure())
		}
		for _, p := range flight {
			p.Release()
		}
		if n := e.Pressure().InFlight; n != 0 {
			t.Fatalf("seed %d: %d in flight", seed, n)
		}
		clock.advance(3 * time.Minute)
		p := e.Pressure()
		sane(t, p)
		if p.Signals.F != 0 || p.Signals.L != 0 || p.Signals.Q != 0 || p.Signals.B != 0 || p.Shed != 0 {
			t.Fatalf("seed %d: %+v after minutes of silence", seed, p)
		}
	}
}

func sane(t *testing.T, p cortex.Pressure) {
	t.Helper()
	for name, v := range map[string]float64{"cps": p.CPS, "evidence": p.Evidence, "F": p.Signals.F, "L": p.Signals.L, "Q": p.Signals.Q,
		"B": p.Signals.B, "C": p.Signals.C, "shed": p.Shed, "price": p.Price} {
		if !(v >= 0 && v <= 1) {
			t.Fatalf("%s = %v: %+v", name, v, p)
		}
	}
	if !(p.Limit >= 1) || math.IsInf(p.Limit, 0) || !(p.Capacity >= 0) || math.IsInf(p.Capacity, 0) || !(p.Tokens >= 0) || p.InFlight < 0 ||
		p.NextProbe < 0 || p.Timeout < 0 || p.Floor < 0 || p.Floor > 10 {
		t.Fatalf("%+v", p)
	}
}

// A target has a guard of its own and, behind it, a quota of 100 calls a second. As long as the guard said what it shed, nothing, no 429 was
// put down to the quota, and the target was sent everything. Those of a guard that sheds are the guard's.
func TestThrottledByAQuotaBehindAGuardThatShedsNothing(t *testing.T) {
	for _, c := range []struct {
		report   float64
		lo, hi   int // sent in 10 s
		distrust bool
	}{
		{0, 1_000, 1_250, false},
		{0.1, 2_700, 3_000, false}, // half of it is believed
		{0.1, 1_000, 1_250, true},
	} {
		e, clock := virtual(t, cortex.Config{DistrustRemote: c.distrust})
		tokens, sent := 0.0, 0
		for i := range 300 * 30 {
			clock.advance(time.Second / 300)
			tokens = min(tokens+100.0/300, 10)
			p, err := e.Admit(bg, 5)
			if err != nil {
				continue
			}
			if i >= 300*20 {
				sent++
			}
			e.ObserveRemote(c.report)
			if tokens < 1 {
				p.Record(cortex.Throttled)
			} else {
				tokens--
				p.Record(cortex.Success)
			}
		}
		if sent < c.lo || sent > c.hi {
			t.Errorf("a report of %v: %d sent in 10 s, want %d to %d", c.report, sent, c.lo, c.hi)
		}
	}
}

// Half of a target's endpoints hang, the others answer as ever. The first timeouts made the attempts patient, eight times as long as usual, those
// that hung filled the limit, and of the half that could be answered a fourteenth still was. What waits beside answers as fast as
// usual gets no longer timeout. A bound that the user set holds all the same.
func TestHalfOfTheAttemptsHang(t *testing.T) {
	for _, most := range []int{0, 50} {
		r := rand.New(rand.NewPCG(1, 1))
		e, clock := virtual(t, cortex.Config{Limit: limit.Config{Max: most}})
		type attempt struct {
			p   *cortex.Permit
			end time.Duration
			o   cortex.Outcome
		}
		var under []attempt
		peak, ok := 0, 0
		for next := time.Duration(0); clock.now() < 40*time.Second; {
			clock.advance(ms)
			now := clock.now()
			under = slices.DeleteFunc(under, func(a attempt) bool {
				if now < a.end {
					return false
				}
				if a.p.Record(a.o); a.o == cortex.Success && now > 20*time.Second {
					ok++
				}
				return true
			})
			for ; next <= now; next += time.Duration(r.ExpFloat64() * float64(time.Second/300)) {
				p, err := e.Admit(bg, 5)
				if err != nil {
					continue
				}
				a := attempt{&p, now + 30*ms + time.Duration(r.ExpFloat64()*float64(20*ms)), cortex.Success}
				if timeout := p.Timeout(); now > 10*time.Second && r.IntN(2) == 0 {
					a.end, a.o = now+timeout, cortex.TimedOut
				}
				under = append(under, a)
			}
			peak = max(peak, len(under))
		}
		if most == 0 && ok < 2_800 {
			t.Errorf("%d successes in 20 s, of 3,000 that could be", ok)
		}
		if most > 0 && (peak > most+most/4 || ok < 500) {
			t.Errorf("%d in flight, of %d that may be; %d successes", peak, most, ok)
		}
	}
}
