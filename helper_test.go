package cortex_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

const ms = time.Millisecond

var bg = context.Background()

// A timeline is an engine's clock in virtual time.
type timeline struct{ at atomic.Int64 }

func (c *timeline) now() time.Duration      { return time.Duration(c.at.Load()) }
func (c *timeline) advance(d time.Duration) { c.at.Add(int64(d)) }
func (c *timeline) set(at time.Duration)    { c.at.Store(int64(at)) }

// virtual is an engine on a timeline of its own, with a fixed seed where the test brings none.
func virtual(tb testing.TB, c cortex.Config) (*cortex.Engine, *timeline) {
	tb.Helper()
	clock := &timeline{}
	c.Now = clock.now
	if c.Rand == nil {
		c.Rand = rand.NewPCG(1, 2)
	}
	return mustNew(tb, c), clock
}

// admit makes one attempt that must be admitted.
func admit(tb testing.TB, e *cortex.Engine, p cortex.Priority) *cortex.Permit {
	tb.Helper()
	permit, err := e.Admit(bg, p)
	if err != nil {
		tb.Fatalf("priority %d: %v", p, err)
	}
	return &permit
}

// refusal asks for one attempt that must be refused.
func refusal(tb testing.TB, e *cortex.Engine, p cortex.Priority) *cortex.Rejection {
	tb.Helper()
	permit, err := e.Admit(bg, p)
	if err == nil {
		permit.Release()
		tb.Fatalf("priority %d was admitted", p)
	}
	r, ok := err.(*cortex.Rejection)
	if !ok {
		tb.Fatalf("the refusal is a %T", err)
	}
	return r
}

// attempts makes n attempts one after the other, each of that length and with that outcome.
func attempts(tb testing.TB, e *cortex.Engine, c *timeline, n int, took time.Duration, o cortex.Outcome) {
	tb.Helper()
	for range n {
		p := admit(tb, e, 5)
		c.advance(took)
		p.Record(o)
	}
}

// fill puts as many attempts in flight as the limit of the moment allows.
func fill(tb testing.TB, e *cortex.Engine, p cortex.Priority) {
	tb.Helper()
	for q := e.Pressure(); q.InFlight < int(q.Limit); q = e.Pressure() {
		admit(tb, e, p)
	}
}

// warm runs a healthy target of 20 ms answers, ten at a time and 500 a second, for that long.
func warm(tb testing.TB, e *cortex.Engine, c *timeline, length time.Duration) {
	tb.Helper()
	var flight []*cortex.Permit
	for range length / (2 * ms) {
		flight = append(flight, admit(tb, e, 5))
		c.advance(2 * ms)
		if len(flight) == 10 {
			flight[0].Record(cortex.Success)
			flight = flight[1:]
		}
	}
	for _, p := range flight {
		c.advance(2 * ms)
		p.Record(cortex.Success)
	}
}

// noTrip keeps the article's posterior from opening the circuit.
var noTrip = breaker.Config{Threshold: 0.9999}
