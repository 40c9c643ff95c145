package cortex

import (
	"context"
	"errors"
	"time"

	"github.com/seed-a29ca62a/cortex/fallback"
)

// A CallOption changes one call of [Do].
type CallOption struct {
	kind  optionKind
	value int64
}

type optionKind uint8

const (
	optionPriority optionKind = iota + 1
	optionRetries
	optionTimeout
)

// WithPriority sets the call's priority; without it a call has Config.Levels/2 (5).
func WithPriority(p Priority) CallOption { return CallOption{optionPriority, int64(p)} }

// WithRetries sets how many retries this call may have, instead of Config.MaxRetries; 0 means none, as for a call that must
// not be repeated.
func WithRetries(n int) CallOption { return CallOption{optionRetries, int64(max(0, n))} }

// WithTimeout cuts each attempt of this call after d instead of the adaptive timeout; d ≤ 0 leaves attempts uncut.
func WithTimeout(d time.Duration) CallOption { return CallOption{optionTimeout, int64(max(0, d))} }

// call is the state of one guarded call.
type call struct {
	priority Priority
	attempt  int
	retries  int           // -1 = the engine's
	timeout  time.Duration // -1 = adaptive
	above    bool          // a layer above retries
	start    time.Duration // engine time, taken where Config.Deadline needs it
	class    Class
	decision Decision // that led to this attempt
	lastErr  error
	refusal  *Rejection // of the attempt, by this engine
}

func newCall(ctx context.Context, e *Engine, opts []CallOption) call {
	c := call{priority: Priority(e.cfg.Levels / 2), retries: -1, timeout: -1}
	for _, o := range opts {
		switch o.kind {
		case optionPriority:
			c.priority = Priority(o.value)
		case optionRetries:
			c.retries = int(o.value)
		case optionTimeout:
			c.timeout = time.Duration(o.value)
		}
	}
	_, c.above = RetryMarkFrom(ctx)
	if e.cfg.Deadline > 0 {
		c.start = e.now()
	}
	return c
}

// Do makes a call under the guard: admission, the attempt under its timeout, the five checks on its failure, the wait, the
// next attempt. It returns op's value, or
//
//   - a [*Rejection] when the call was refused before any attempt,
//   - a [*CallError] that wraps op's error when it failed for good.
//
// op must heed its context, which ends with the attempt. It runs on the caller's goroutine, a panic in it passes through and
// leaves nothing behind. Below a layer that retries already ([WithRetryMark]) Do makes one attempt.
func Do[T any](ctx context.Context, e *Engine, op func(context.Context) (T, error), opts ...CallOption) (T, error) {
	c := newCall(ctx, e, opts)
	for {
		v, err := attempt(ctx, e, op, &c)
		if err == nil {
			return v, nil
		}
		if err = e.next(ctx, &c, err); err != nil {
			var zero T
			return zero, err
		}
	}
}

// DoOr is [Do] with a ladder of fallbacks: when the call is refused or fails for good, the first rung that has an answer
// gives it, marked by its Source. A fallback never counts as a success of the target. Without an answer the error is Do's.
func DoOr[T any](ctx context.Context, e *Engine, ladder fallback.Ladder[T], op func(context.Context) (T, error),
	opts ...CallOption) (fallback.Result[T], error) {
	v, err := Do(ctx, e, op, opts...)
	if err == nil {
		return fallback.Result[T]{Value: v}, nil
	}
	if r, ok := ladder.Answer(ctx, err); ok {
		return r, nil
	}
	return fallback.Result[T]{}, err
}

// attempt makes one attempt; its error is op's own or a *Rejection of this engine.
func attempt[T any](ctx context.Context, e *Engine, op func(context.Context) (T, error), c *call) (v T, err error) {
	permit, err := e.AdmitRetry(ctx, c.priority, c.attempt)
	if err != nil {
		c.refusal = err.(*Rejection)
		return v, err
	}
	var mark RetryMark
	if c.mayRetry(e) {
		mark = RetryMark{Attempt: c.attempt, Retries: c.mostRetries(e)}
	}
	var actx context.Context
	var cut *attemptContext // actx, if the attempt has a timeout
	switch d := c.attemptTimeout(ctx, e, &permit); {
	case d > 0:
		cut = newAttemptContext(ctx, &permit, mark, c.mayRetry(e), d)
		actx = cut
	case c.mayRetry(e):
		actx = &markedContext{ctx, mark}
	default:
		actx = ctx
	}
	recorded := false
	defer func() {
		if cut != nil {
			cut.finish()
		}
		if !recorded { // a panic or Goexit; Release would read the clock and take the lock once more
			permit.Release()
		}
	}()
	v, err = op(actx)
	if err == nil {
		recorded = true
		permit.Record(Success)
		return v, nil
	}
	if ctx.Err() == nil && actx.Err() != nil { // our own timeout ended it, whatever the error says
		c.class = Class{Outcome: TimedOut, Retryable: true}
	} else {
		c.class = e.classify(ctx, err, e.now()-permit.start)
	}
	recorded = true
	permit.Record(c.class.Outcome)
	return v, err
}

// markedContext is the context of an attempt under a layer that retries; cheaper than context.WithValue.
type markedContext struct {
	context.Context
	mark RetryMark
}

func (c *markedContext) Value(key any) any {
	if _, ok := key.(markKey); ok {
		return c.mark
	}
	return c.Context.Value(key)
}

func (c *call) mayRetry(e *Engine) bool { return !c.above && c.mostRetries(e) > 0 }

func (c *call) mostRetries(e *Engine) int {
	if c.retries >= 0 && !e.cfg.DisableRetries {
		return c.retries
	}
	return e.cfg.MaxRetries
}

func (c *call) attemptTimeout(ctx context.Context, e *Engine, p *Permit) time.Duration {
	d := c.timeout
	if d < 0 {
		d = p.Timeout()
	}
	if e.cfg.Deadline > 0 {
		if left := e.deadlineOf(ctx, e.now()-c.start); left != 0 && (d <= 0 || left < d) {
			d = max(left, 1)
		}
	}
	return d
}

// next decides on a failed attempt and waits for the next one; a non-nil error is the call's.
func (e *Engine) next(ctx context.Context, c *call, err error) error {
	if r := c.refusal; r != nil { // ours, not one that op returned
		if c.attempt == 0 {
			return r
		}
		e.Refund(c.decision)
		return &CallError{Target: e.cfg.Name, Attempts: c.attempt, Reason: r.Reason, Err: c.lastErr, Refusal: r}
	}
	c.lastErr = err
	fail := &CallError{Target: e.cfg.Name, Attempts: c.attempt + 1, Err: err}
	if ctx.Err() != nil {
		return fail.gaveUp(ctx)
	}
	f := Failure{Err: err, Class: c.class, Priority: c.priority, Attempt: c.attempt, RetriedAbove: c.above, Previous: c.decision.Delay}
	if c.retries >= 0 {
		f.MaxRetries, f.NoRetries = c.retries, c.retries == 0
	}
	if e.cfg.Deadline > 0 {
		f.Deadline = e.deadlineOf(ctx, e.now()-c.start)
	} else {
		f.Deadline = e.deadlineOf(ctx, 0)
	}
	d := e.Decide(f)
	if !d.Retry {
		fail.Reason = d.Reason
		return fail
	}
	if !wait(ctx, d.Delay) {
		e.Refund(d)
		return fail.gaveUp(ctx)
	}
	c.decision = d
	c.attempt++
	return nil
}

// gaveUp completes the error of a call whose caller gave up.
func (c *CallError) gaveUp(ctx context.Context) error {
	c.Cause = context.Cause(ctx)
	c.Reason = ReasonCancelled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.Reason = ReasonDeadline
	}
	return c
}

// wait reports whether d passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
