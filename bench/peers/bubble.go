package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// bubble drives a simulated world by the clock of a synctest bubble. Libraries sleep and set timers as they always do; the clock goes
// forward only when everybody waits. The world is where the target, its queue and the meters are: one goroutine waits for its next
// event, calls come in between.
type bubble struct {
	mu     sync.Mutex
	w      *sim.World
	origin time.Time
	next   time.Duration // that the driver waits for
	calls  int           // under way
	wake   chan struct{}

	client client
	ctx    context.Context
}

// failure is an attempt's end at the target, as an error.
type failure struct{ sim.Failure }

func (f *failure) Error() string { return "target: " + f.Outcome.String() }

// run makes one run of a subject. The world and the subject live and end in a bubble of their own.
func run(t *testing.T, sub subject, e env) (result sim.Result, err error) {
	finished := false
	defer func() {
		p := recover()
		if p != nil && !(finished && sub.leaks) { // at its end a bubble panics about goroutines that will never run again
			panic(p)
		}
	}()
	synctest.Test(t, func(*testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		b := &bubble{origin: time.Now(), wake: make(chan struct{}, 1), ctx: ctx}
		if b.w, err = sim.New(sim.Options{Scenario: e.scenario, Seed: e.seed, Begin: b.begin}); err != nil {
			return
		}
		if b.client, err = sub.start(ctx, e); err != nil {
			return
		}
		b.drive()
		result = b.w.Result()
		if b.client.transitions != nil {
			result.Transitions = float64(b.client.transitions())
		}
		finished = true
	})
	return result, err
}

// drive lets things happen when they are due, until nothing will any more.
func (b *bubble) drive() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		b.mu.Lock()
		at, ok := b.w.Next()
		for now := b.now(); ok && at <= now; at, ok = b.w.Next() {
			b.w.Step()
		}
		if !ok {
			at = 1<<63 - 1
			if b.calls == 0 {
				b.mu.Unlock()
				return
			}
		}
		b.next = at
		b.mu.Unlock()
		if ok {
			timer.Reset(at - b.now())
		} else {
			timer.Stop() // only a call that waits to try again can bring something new
		}
		select {
		case <-timer.C:
		case <-b.wake:
		}
	}
}

func (b *bubble) now() time.Duration { return time.Since(b.origin) }

// enter brings the world to the bubble's time; leave wakes the driver if something new is due before what it waits for.
func (b *bubble) enter() {
	b.mu.Lock()
	b.w.Advance(b.now())
}

func (b *bubble) leave() {
	at, ok := b.w.Next()
	early := ok && at < b.next || b.calls == 0
	b.mu.Unlock()
	if early {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// begin is told of a call by the world, which is locked.
func (b *bubble) begin(c *sim.Call) {
	b.calls++
	go b.call(c)
}

func (b *bubble) call(c *sim.Call) {
	ctx, cancel := context.WithDeadline(b.ctx, b.origin.Add(c.Deadline))
	defer cancel()
	sent := 0
	err := b.client.do(ctx, c.Priority, func(ctx context.Context) error {
		sent++
		return b.attempt(ctx, c)
	})
	b.enter()
	if reason, refused := b.client.refused(err); refused {
		b.w.Refused(c, sent > 0, reason)
	}
	b.w.Finish(c, err == nil)
	b.calls--
	b.leave()
}

// attempt is the function that a library guards: it reaches the target, and heeds its context.
func (b *bubble) attempt(ctx context.Context, c *sim.Call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	end := make(chan sim.Failure, 1)
	over := false
	b.enter()
	a := b.w.Send(c, 0, func(f sim.Failure) {
		over = true
		end <- f
	})
	b.leave()
	select {
	case f := <-end:
		return outcome(f)
	case <-ctx.Done():
	}
	b.enter()
	defer b.leave()
	if over { // in the same moment: the attempt is not ours any more
		return outcome(<-end)
	}
	b.w.Abandon(a)
	return ctx.Err()
}

func outcome(f sim.Failure) error {
	switch f.Outcome {
	case cortex.Success:
		return nil
	case cortex.TimedOut:
		return context.DeadlineExceeded
	}
	return &failure{f}
}

// hint is the target's Retry-After in an error; 0 = none.
func hint(err error) time.Duration {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.RetryAfter
	}
	return 0
}

// unfit says why a scenario cannot be run with libraries; "" = it can.
func unfit(s *scenario.Scenario) string {
	switch {
	case s.Hops > 1:
		return fmt.Sprintf("%d tiers: no library here carries a retry mark from one tier to the next", s.Hops)
	case s.Client.Timeout == 0:
		return "an adaptive timeout of attempts: no library here but ours has one"
	}
	return ""
}
