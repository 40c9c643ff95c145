package cortex

import (
	"context"
	"sync/atomic"
	"time"
)

// attemptContext ends with its attempt: when the timeout has passed, when the parent ends, when the attempt is over. What
// that costs, a timer and a channel, is paid by the first call that asks for Done; many attempts never do.
type attemptContext struct {
	parent context.Context
	mark   RetryMark
	marked bool
	end    time.Duration // of the timeout, on the clock of monotonic

	full atomic.Pointer[fullContext] // nil until needed; ended when it never was
}

type fullContext struct {
	context.Context
	cancel context.CancelFunc
}

// newAttemptContext is cut timeout after the permit was given. Contexts live in the process's own time, also where an
// engine's clock is injected.
func newAttemptContext(parent context.Context, p *Permit, mark RetryMark, marked bool, timeout time.Duration) *attemptContext {
	var start time.Duration
	if p.e.processClock {
		start = p.e.origin + p.start // saves a reading
	} else {
		start = monotonic()
	}
	return &attemptContext{parent: parent, mark: mark, marked: marked, end: start + timeout}
}

func (c *attemptContext) Deadline() (time.Time, bool) {
	end := origin.Add(c.end)
	if d, ok := c.parent.Deadline(); ok && d.Before(end) {
		return d, true
	}
	return end, true
}

func (c *attemptContext) Done() <-chan struct{} { return c.make().Done() }

func (c *attemptContext) Err() error {
	if f := c.full.Load(); f != nil {
		return f.Err()
	}
	if c.parent.Err() == nil && monotonic() < c.end {
		return nil
	}
	return c.make().Err() // so that Done and Err tell the same
}

// Value of the key by which package context finds a parent to cancel with is that of the full context: a child made after
// Done needs no goroutine.
func (c *attemptContext) Value(key any) any {
	if _, ok := key.(markKey); ok && c.marked {
		return c.mark
	}
	if f := c.full.Load(); f != nil && f != ended {
		return f.Value(key)
	}
	return c.parent.Value(key)
}

func (c *attemptContext) make() *fullContext {
	if f := c.full.Load(); f != nil {
		return f
	}
	f := new(fullContext)
	f.Context, f.cancel = context.WithDeadline(c.parent, origin.Add(c.end))
	if !c.full.CompareAndSwap(nil, f) {
		f.cancel()
		return c.full.Load()
	}
	return f
}

// finish ends it with its attempt.
func (c *attemptContext) finish() {
	if !c.full.CompareAndSwap(nil, ended) {
		c.full.Load().cancel()
	}
}

// ended stands for the full context of an attempt that was over before it needed one.
var ended = func() *fullContext {
	f := new(fullContext)
	f.Context, f.cancel = context.WithCancel(context.Background())
	f.cancel()
	return f
}()
