package cortex_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

// The hot paths allocate nothing: in a storm, the guard must not be a load of its own.
func TestHotPathsDoNotAllocate(t *testing.T) {
	ctx := context.Background()
	none := func(t *testing.T, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(500, f); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	call := func(e *cortex.Engine, clock *timeline, o cortex.Outcome) {
		p, err := e.Admit(ctx, 5)
		clock.advance(300 * time.Microsecond) // every fourth finds a tick due
		if err == nil {
			p.Record(o)
		}
	}
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		t.Run("admit and succeed", func(t *testing.T) {
			e, clock := virtual(t, c)
			none(t, func() { call(e, clock, cortex.Success) })
			none(t, func() {
				p, _ := e.Admit(ctx, 5)
				clock.advance(time.Millisecond)
				p.Answered()
				p.Done(nil)
				p.Release()
			})
		})
		t.Run("admit and fail", func(t *testing.T) {
			c := c
			c.Breaker = breaker.Config{Threshold: 0.9999, ThetaFast: 0.93, ThetaSlow: 0.93}
			e, clock := virtual(t, c)
			i := 0
			none(t, func() {
				i++
				o := cortex.Success
				if i%3 == 0 {
					o = []cortex.Outcome{cortex.Failed, cortex.TimedOut, cortex.Throttled, cortex.Neutral}[i/3%4]
				}
				call(e, clock, o)
			})
			if s := e.Pressure().Circuit; s != breaker.Closed {
				t.Error(s)
			}
		})
		t.Run("refused by the open circuit", func(t *testing.T) {
			e, clock, _ := opened(t, c)
			refusal(t, e, 5)
			none(t, func() { _, _ = e.Admit(ctx, 5) })
			if c.Profile == cortex.Article {
				clock.advance(25 * time.Second)
				refusal(t, e, 5)
				none(t, func() { _, _ = e.Admit(ctx, 5) })
			}
			if n := e.Stats().Rejected(cortex.ReasonCircuitOpen); n < 500 {
				t.Errorf("%d refusals", n)
			}
		})
		t.Run("refused by shedding", func(t *testing.T) {
			c := c
			c.Queue = func() (float64, float64) { return 1, 1 }
			e, clock := virtual(t, c)
			for range 4000 { // adaptive: until the integral has risen
				if p, err := e.Admit(ctx, 0); err == nil {
					clock.advance(ms)
					p.Record(cortex.Success)
				}
				clock.advance(ms)
			}
			before := e.Stats().Rejected(cortex.ReasonShed)
			none(t, func() {
				if p, err := e.Admit(ctx, 0); err == nil {
					p.Release()
				}
			})
			if n := e.Stats().Rejected(cortex.ReasonShed) - before; n < 400 {
				t.Errorf("%d of 500 were shed", n)
			}
		})
		t.Run("looking", func(t *testing.T) {
			e, clock := virtual(t, c)
			attempts(t, e, clock, 50, ms, cortex.Success)
			none(t, func() { clock.advance(ms / 2); e.Pressure() })
			none(t, func() { e.Stats() })
			none(t, func() { e.ObserveRemote(0.25) })
			none(t, func() {
				e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 5})
			})
		})
	})
}

func TestRefusalsBetweenHungProbesDoNotAllocate(t *testing.T) {
	var changes []cortex.StateChange
	e, clock := virtual(t, cortex.Config{OnStateChange: func(s cortex.StateChange) { changes = append(changes, s) }})
	attempts(t, e, clock, 43, 5*ms, cortex.Failed)
	refusal(t, e, 5)
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 5) // never returns
	for e.Pressure().Circuit == breaker.HalfOpen {
		clock.advance(10 * ms)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = e.Admit(bg, 5) }); n > 0 {
		t.Errorf("%v allocations a refusal", n)
	}
	if n := len(changes); n == 0 || changes[n-1].To != breaker.Open {
		t.Errorf("the circuit is open, the last change told is %+v", changes)
	}
}
