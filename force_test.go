package cortex_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/fallback"
)

func TestForcedOpenRefusesEverythingForAsLongAsItStands(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		for name, before := range map[string]func(e *cortex.Engine, clock *timeline){
			"closed": func(e *cortex.Engine, clock *timeline) { attempts(t, e, clock, 50, ms, cortex.Success) },
			"open": func(e *cortex.Engine, clock *timeline) {
				for e.Pressure().Circuit == breaker.Closed {
					attempts(t, e, clock, 1, ms, cortex.Failed)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				e, clock := virtual(t, c)
				before(e, clock)
				if was := e.Force(breaker.ForcedOpen); was != breaker.Automatic {
					t.Errorf("was %v", was)
				}
				for range 3000 { // 10 ms apart, then hours
					r := refusal(t, e, 9)
					if r.Reason != cortex.ReasonCircuitOpen || !errors.Is(r, cortex.ErrOpen) || !r.Forced || r.RetryAfter < time.Second {
						t.Fatalf("at %v: %+v", clock.now(), r)
					}
					if _, err := e.AdmitRetry(bg, 9, 1); !errors.Is(err, cortex.ErrOpen) {
						t.Fatalf("a retry: %v", err)
					}
					clock.advance(10 * ms)
				}
				for range 100 {
					clock.advance(time.Hour)
					refusal(t, e, 9)
				}
				p := e.Pressure()
				if p.Circuit != breaker.Open || p.Forcing != breaker.ForcedOpen || p.NextProbe != 0 || p.Signals.C != 1 || p.InFlight != 0 {
					t.Errorf("%+v", p)
				}
				if d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 9}); d.Retry ||
					d.Reason != cortex.ReasonCircuitOpen {
					t.Errorf("a retry is decided: %+v", d)
				}
			})
		}
	})
}

// A permit from before, a probe above all, must not close what an operator has opened.
func TestForcedOpenOutlivesProbesInFlight(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock, due := opened(t, c)
		clock.set(due)
		probe := admit(t, e, 9)
		e.Force(breaker.ForcedOpen)
		if probe.Record(cortex.Success) {
			t.Error("the probe counted")
		}
		refusal(t, e, 9)
		if p := e.Pressure(); p.Circuit != breaker.Open || p.InFlight != 0 {
			t.Errorf("%+v", p)
		}
	})
}

func TestAutomaticAfterForcedOpenProbesAtOnce(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock := virtual(t, c)
		attempts(t, e, clock, 50, ms, cortex.Success)
		generation := e.Pressure().Generation
		e.Force(breaker.ForcedOpen)
		clock.advance(time.Hour)
		refusal(t, e, 9)
		if was := e.Force(breaker.Automatic); was != breaker.ForcedOpen {
			t.Errorf("was %v", was)
		}
		if p := e.Pressure(); p.Circuit == breaker.Closed || p.NextProbe != 0 || p.Forcing != breaker.Automatic || p.Generation != generation+2 {
			t.Errorf("%+v", p)
		}
		probe := admit(t, e, 9)
		if r := refusal(t, e, 9); r.Forced || r.Circuit != breaker.HalfOpen {
			t.Errorf("a second call beside the probe: %+v", r)
		}
		clock.advance(ms)
		probe.Record(cortex.Success)
		if p := e.Pressure(); p.Circuit != breaker.Closed {
			t.Errorf("%+v", p)
		}
		attempts(t, e, clock, 5, 5*ms, cortex.Success)

		e.Force(breaker.ForcedOpen)
		e.Force(breaker.Automatic)
		clock.advance(ms)
		admit(t, e, 9).Record(cortex.Failed)
		if p := e.Pressure(); p.Circuit != breaker.Open || p.NextProbe == 0 {
			t.Errorf("after a probe that failed: %+v", p)
		}
	})
}

func TestForcedClosedNeverOpens(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock := virtual(t, c)
		attempts(t, e, clock, 20, ms, cortex.Success)
		generation := e.Pressure().Generation
		e.Force(breaker.ForcedClosed)
		for i := range 2000 {
			p, err := e.Admit(bg, 9)
			if err != nil && (errors.Is(err, cortex.ErrOpen) || c.Profile == cortex.Article && !errors.Is(err, cortex.ErrShed)) {
				t.Fatalf("attempt %d: %v", i, err)
			}
			clock.advance(5 * ms)
			if err == nil {
				p.Record([]cortex.Outcome{cortex.Failed, cortex.TimedOut}[i%2])
			}
			d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 3})
			if d.Reason == cortex.ReasonCircuitOpen || d.Reason == cortex.ReasonCircuitEmergency {
				t.Fatalf("attempt %d: %+v", i, d)
			}
		}
		p := e.Pressure()
		if p.Circuit != breaker.Closed || p.Generation != generation || p.Forcing != breaker.ForcedClosed {
			t.Errorf("%+v", p)
		}
		if p.Signals.F < 0.9 {
			t.Errorf("F is %v: the signals go on", p.Signals.F)
		}

		// What was seen meanwhile does not open it either.
		e.Force(breaker.Automatic)
		if p := e.Pressure(); p.Circuit != breaker.Closed || p.Generation != generation+1 || p.Signals.F != 0 {
			t.Errorf("automatic again: %+v", p)
		}
		admit(t, e, 9).Record(cortex.Success)
		clock.advance(2 * ms)
		admit(t, e, 9).Record(cortex.Success)
		for e.Pressure().Circuit == breaker.Closed { // nor is it deaf now
			if clock.advance(5 * ms); clock.now() > time.Hour {
				t.Fatal("it does not open any more")
			}
			if p, err := e.Admit(bg, 9); err == nil {
				p.Record(cortex.Failed)
			}
		}
	})
}

func TestForcedClosedStillSheds(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		c.Queue = func() (float64, float64) { return 1, 1 }
		c.Breaker = noTrip
		e, clock := virtual(t, c)
		e.Force(breaker.ForcedClosed)
		shed := 0
		for range 4000 {
			if p, err := e.Admit(bg, 0); err == nil {
				clock.advance(ms)
				p.Record(cortex.Success)
			} else if errors.Is(err, cortex.ErrShed) {
				shed++
			}
			clock.advance(ms)
		}
		if shed == 0 {
			t.Error("nothing was shed in 4,000 calls")
		}
	})
}

func TestForcedClosedClosesAnOpenCircuit(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock, _ := opened(t, c)
		refusal(t, e, 9)
		e.Force(breaker.ForcedClosed)
		if p := e.Pressure(); p.Circuit != breaker.Closed {
			t.Fatalf("%+v", p)
		}
		clock.advance(ms)
		admit(t, e, 9).Record(cortex.Success)
	})
}

// Setting a healthy target free is not the end of an outage: nothing ramps up from a quarter.
func TestAutomaticAfterForcedClosedKeepsTheLimit(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	warm(t, e, clock, 20*time.Second)
	before := e.Pressure().Limit
	e.Force(breaker.ForcedClosed)
	warm(t, e, clock, 5*time.Second)
	e.Force(breaker.Automatic)
	warm(t, e, clock, 100*ms)
	if after := e.Pressure().Limit; after < before*0.8 {
		t.Errorf("limit %v, before %v", after, before)
	}
}

func TestOrdersAreTold(t *testing.T) {
	var changes []cortex.StateChange
	e, clock := virtual(t, cortex.Config{Name: "stock", OnStateChange: func(s cortex.StateChange) { changes = append(changes, s) }})
	for _, f := range []breaker.Forcing{breaker.ForcedClosed, breaker.ForcedClosed, breaker.ForcedOpen, 77, breaker.Automatic, breaker.Automatic} {
		clock.advance(ms)
		e.Force(f)
	}
	clock.advance(ms)
	admit(t, e, 5).Record(cortex.Success)
	want := []cortex.StateChange{
		{From: breaker.Closed, To: breaker.Closed, Forcing: breaker.ForcedClosed},
		{From: breaker.Closed, To: breaker.Open, Forcing: breaker.ForcedOpen},
		{From: breaker.Open, To: breaker.Open, Forcing: breaker.Automatic},
		{From: breaker.Open, To: breaker.HalfOpen},
		{From: breaker.HalfOpen, To: breaker.Closed},
	}
	if len(changes) != len(want) {
		t.Fatalf("%+v", changes)
	}
	for i, w := range want {
		if c := changes[i]; c.Target != "stock" || c.From != w.From || c.To != w.To || c.Forcing != w.Forcing {
			t.Errorf("change %d: %+v, want %+v", i, c, w)
		}
	}
	if s := e.Stats(); s.Orders != 3 {
		t.Errorf("%d orders", s.Orders)
	}
	e.Force(breaker.ForcedOpen)
	if msg := refusal(t, e, 5).Error(); !strings.Contains(msg, "circuit open (forced)") {
		t.Error(msg)
	}
}

func TestForcedOpenIsServedByFallbacks(t *testing.T) {
	e, _ := virtual(t, cortex.Config{})
	e.Force(breaker.ForcedOpen)
	ladder := fallback.Ladder[string]{fallback.Static("a static answer")}
	got, err := cortex.DoOr(bg, e, ladder, func(context.Context) (string, error) {
		t.Error("the target was called")
		return "", nil
	})
	if err != nil || got.Value != "a static answer" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A retry that was decided before the order is refused after it, and its token given back.
func TestForcedOpenRefusesDecidedRetries(t *testing.T) {
	e, _ := virtual(t, cortex.Config{})
	tokens := e.Pressure().Tokens
	calls := 0
	_, err := cortex.Do(bg, e, func(context.Context) (int, error) {
		calls++
		e.Force(breaker.ForcedOpen)
		return 0, errBoom
	})
	var failed *cortex.CallError
	if !errors.As(err, &failed) || !errors.Is(err, cortex.ErrOpen) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if left := e.Pressure().Tokens; left < tokens {
		t.Errorf("%v tokens left of %v", left, tokens)
	}
}

func TestForcedRefusalsDoNotAllocate(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		e, clock := virtual(t, c)
		attempts(t, e, clock, 50, ms, cortex.Success)
		e.Force(breaker.ForcedOpen)
		refusal(t, e, 5)
		if n := testing.AllocsPerRun(500, func() { _, _ = e.Admit(bg, 5) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		// Each 100 ms one new refusal is made for all.
		clock.advance(time.Hour)
		refusal(t, e, 5)
		if n := testing.AllocsPerRun(500, func() { _, _ = e.Admit(bg, 5) }); n != 0 {
			t.Errorf("%v allocations an hour later", n)
		}
		if n := e.Stats().Rejected(cortex.ReasonCircuitOpen); n < 1000 {
			t.Errorf("%d refusals counted", n)
		}
		e.Force(breaker.ForcedClosed)
		if n := testing.AllocsPerRun(500, func() {
			p, _ := e.Admit(bg, 5)
			clock.advance(300 * time.Microsecond)
			p.Record(cortex.Success)
		}); n != 0 {
			t.Errorf("%v allocations an attempt while forced closed", n)
		}
	})
}

// No attempt is admitted once Force has returned, whatever credit the stripes held.
func TestForcedOpenHoldsAgainstConcurrentCalls(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		c.Rand = rand.NewPCG(1, 2)
		c.Stripes = 4
		e := mustNew(t, c)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if p, err := e.Admit(bg, 5); err == nil {
						p.Record(cortex.Success)
					}
				}
			})
		}
		for range 200 {
			e.Force(breaker.ForcedOpen)
			before := e.Stats().Attempts
			for range 50 {
				refusal(t, e, 9)
			}
			e.Pressure()
			if after := e.Stats().Attempts; after != before {
				t.Errorf("%d attempts were admitted by a circuit that was forced open", after-before)
				break
			}
			e.Force(breaker.ForcedClosed)
			e.Force(breaker.Automatic)
		}
		close(stop)
		wg.Wait()
	})
}

func TestRegistryKeepsForcedCircuits(t *testing.T) {
	for _, f := range []breaker.Forcing{breaker.ForcedOpen, breaker.ForcedClosed} {
		r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 2)
		forced, err := r.Engine("forced")
		if err != nil {
			t.Fatal(err)
		}
		forced.Force(f)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			if _, err := r.Engine(name); err != nil {
				t.Fatal(err)
			}
		}
		if again, _ := r.Engine("forced"); again != forced {
			t.Errorf("%v: the order was forgotten with its engine", f)
		}
	}
}

// A guard that is forced does as it is told whatever its fleet does, and does not lead the fleet.
func TestForcedGuardInAFleet(t *testing.T) {
	t.Run("forced open stays so and opens nobody", func(t *testing.T) {
		c := newCrowd(t, 2) // one of two is half: as many as would open a fleet
		c.warm(t)
		c.all[0].Force(breaker.ForcedOpen)
		for range 20 {
			p := admit(t, c.all[1], 5)
			refusal(t, c.all[0], 5)
			c.advance(20 * ms)
			p.Record(cortex.Success)
			c.advance(interval)
			if sum := c.meet(-1); sum.Epoch != 0 || sum.Open != 0 {
				t.Fatalf("the fleet follows: %+v", sum)
			}
		}
		if n := c.states(); n != 1 {
			t.Fatalf("%d open, want the one", n)
		}
		c.all[0].Force(breaker.Automatic) // the others know that the target is well
		if n := c.states(); n != 0 {
			t.Errorf("%d open, want none", n)
		}
		if sum := c.meet(-1); sum.Epoch != 0 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("forced open outlives the probe of another", func(t *testing.T) {
		c := newCrowd(t, 8)
		c.open(t)
		c.all[0].Force(breaker.ForcedOpen)
		c.advance(5 * time.Second / 10)
		c.meet(3)
		c.advance(interval)
		for range 100 { // it does not take the place of a prober that is not heard of
			c.advance(interval)
			refusal(t, c.all[0], 9)
		}
		c.meet(3)
		p := admit(t, c.all[3], 9)
		c.advance(20 * ms)
		p.Record(cortex.Success)
		c.meet(-1)
		c.advance(interval)
		if sum := c.meet(-1); sum.Epoch != 2 || c.states() != 1 || c.all[0].Pressure().Circuit != breaker.Open {
			t.Errorf("epoch %d, %d open", sum.Epoch, c.states())
		}
	})
	t.Run("forced closed stays so and closes nobody", func(t *testing.T) {
		c := newCrowd(t, 8)
		c.warm(t)
		c.all[0].Force(breaker.ForcedClosed)
		for range 12 {
			for _, e := range c.all {
				p := admit(t, e, 5)
				c.advance(5 * ms)
				p.Record(cortex.Failed)
			}
		}
		c.meet(-1)
		c.meet(-1)
		if n := c.states(); n != 7 {
			t.Fatalf("%d open, want the other 7", n)
		}
		attempts(t, c.all[0], c.timeline, 20, ms, cortex.Success)
		sum := c.meet(-1)
		if sum.Epoch != 1 || sum.Success != 0 || c.states() != 7 {
			t.Fatalf("epoch %d, %d successes, %d open", sum.Epoch, sum.Success, c.states())
		}
		c.all[0].Force(breaker.Automatic) // to where the others are
		if n := c.states(); n != 8 {
			t.Errorf("%d open, want all", n)
		}
		if sum := c.meet(-1); sum.Epoch != 1 {
			t.Errorf("epoch %d", sum.Epoch)
		}
	})
	t.Run("closing an open guard by order closes only it", func(t *testing.T) {
		c := newCrowd(t, 8)
		c.open(t)
		c.all[0].Force(breaker.ForcedClosed)
		for range 3 {
			c.advance(interval)
			if sum := c.meet(-1); sum.Epoch != 1 || c.states() != 7 {
				t.Fatalf("epoch %d, %d open", sum.Epoch, c.states())
			}
		}
	})
}

// An operator takes a target out of service and gives it back.
func ExampleEngine_Force() {
	e, err := cortex.New(cortex.Config{Name: "payments"})
	if err != nil {
		fmt.Println(err)
		return
	}
	e.Force(breaker.ForcedOpen)
	_, err = e.Admit(context.Background(), 9)
	fmt.Println(errors.Is(err, cortex.ErrOpen), e.Pressure().Circuit)

	fmt.Println("before:", e.Force(breaker.Automatic))
	probe, err := e.Admit(context.Background(), 9) // due at once
	if err != nil {
		fmt.Println(err)
		return
	}
	defer probe.Release()
	probe.Record(cortex.Success)
	fmt.Println(e.Pressure().Circuit)
	// Output:
	// true open
	// before: open
	// closed
}
