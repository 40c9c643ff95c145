package cortexgrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// call is the state of one call. Nobody but its goroutine uses it; for a stream, whoever holds its lock.
type call struct {
	c        *Client
	ctx      context.Context // the caller's
	method   string
	engine   *cortex.Engine // nil: it passes unguarded
	set      settings
	priority cortex.Priority
	started  time.Time // where the engine has a Deadline

	repeatable bool // it may be made again whatever became of it
	above      bool // a layer above retries
	mark       cortex.RetryMark
	retries    int // that this layer may make after any failure

	attempt int // that is under way; 0 is the original, hidden retries count
	made    int // attempts at the target, hidden retries count
	lastErr error
	charged cortex.Decision // for the attempt that is due, until it is made
	delay   time.Duration   // before it
}

func (c *Client) begin(ctx context.Context, method string) (*call, error) {
	l := &call{c: c, ctx: ctx, method: method, engine: c.cfg.Engine, set: c.setting}
	if c.cfg.Exempt(method) {
		l.engine = nil
		return l, nil
	}
	if l.engine == nil {
		var err error
		if l.engine, err = c.cfg.Select(ctx, method); err != nil {
			return nil, fmt.Errorf("cortexgrpc: select: %w", err)
		}
		if l.engine == nil {
			return l, nil
		}
		l.set = settingsOf(l.engine)
	}
	if c.cfg.Priority != nil {
		l.priority = c.cfg.Priority(ctx, method)
	} else if p, ok := PriorityFrom(ctx); ok {
		l.priority = p
	} else {
		l.priority = cortex.Priority(l.set.levels / 2)
	}
	l.mark, l.above = cortex.RetryMarkFrom(ctx)
	if l.repeatable = c.cfg.Repeatable(method); l.repeatable && !l.above {
		l.retries = l.set.retries
	}
	if l.set.deadline > 0 {
		l.started = time.Now()
	}
	return l, nil
}

// admit asks for the attempt that is due. The error is the call's.
func (l *call) admit() (*attempt, error) {
	if l.made == 0 && l.ctx.Err() != nil {
		return nil, status.FromContextError(l.ctx.Err()).Err()
	}
	a := &attempt{client: l.c, method: l.method, engine: l.engine, set: &l.set, rule: l.c.cfg.Outcome}
	a.call.Context = l.ctx
	var err error
	if a.permit, err = l.engine.AdmitRetry(&a.call, l.priority, l.attempt); err != nil {
		return nil, l.refused(err.(*cortex.Rejection))
	}
	l.charged = cortex.Decision{}
	l.made++
	return a, nil
}

// finish gives back what was charged for a retry that was not made.
func (l *call) finish() {
	if l.charged.Retry {
		l.engine.Refund(l.charged)
		l.charged = cortex.Decision{}
	}
}

// outgoing is the metadata that goes with an attempt: the caller's, and what this guard tells the next one.
func (l *call) outgoing() metadata.MD {
	md, there := metadata.FromOutgoingContext(l.ctx) // a copy
	if !there {
		md = make(metadata.MD, 4)
	}
	if l.c.cfg.DisableMark {
		delete(md, MetadataAttempt)
		delete(md, MetadataTimeout)
	} else {
		if v := l.markValue(md); v != "" {
			md[MetadataAttempt] = []string{v}
		}
		if d, ok := l.ctx.Deadline(); ok {
			md[MetadataTimeout] = []string{strconv.FormatInt(max(time.Until(d).Milliseconds(), 1), 10)}
		} else {
			delete(md, MetadataTimeout) // of an incoming call whose metadata were handed on
		}
	}
	if l.c.cfg.SendPriority {
		md[MetadataPriority] = []string{strconv.Itoa(min(max(int(l.priority), 0), l.set.levels))}
	}
	if l.attempt > 0 {
		md[metadataPrevious] = []string{strconv.Itoa(l.attempt)}
	} else {
		delete(md, metadataPrevious)
	}
	return md
}

// markValue is what this layer is going to do about a failure, or the layer above; "" leaves what stands there already.
func (l *call) markValue(md metadata.MD) string {
	switch {
	case l.above && l.mark.Retries > 0:
		return cortexhttp.FormatAttempt(l.mark.Attempt, l.mark.Retries)
	case l.above:
		// How many the layer above may make is known only where it stands in the metadata. Else it matters that there are some.
		if v, ok := single(md, MetadataAttempt); ok {
			if _, retries, ok := cortexhttp.ParseAttempt(v); ok && retries > 0 {
				return ""
			}
		}
		return cortexhttp.FormatAttempt(l.mark.Attempt, max(l.set.retries, 1))
	}
	return cortexhttp.FormatAttempt(l.attempt, l.retries)
}

// left is the time until the call must be over; 0 = no deadline, negative = passed.
func (l *call) left() time.Duration {
	left := time.Duration(0)
	if d, ok := l.ctx.Deadline(); ok {
		left = time.Until(d)
	} else if l.set.deadline > 0 {
		left = l.set.deadline - time.Since(l.started)
	} else {
		return 0
	}
	if left == 0 {
		left = -1
	}
	return left
}

// limit is how long an attempt may take that the engine gives d, 0 for any time; 0 where nothing but the context is to end it.
func (l *call) limit(d time.Duration) time.Duration {
	if at, ok := l.ctx.Deadline(); ok {
		if d <= 0 || time.Until(at) < d {
			return 0
		}
		return d
	}
	if l.set.deadline > 0 {
		if left := max(l.left(), 1); d <= 0 || left < d {
			return left
		}
	}
	return d
}

// again decides on a failed attempt and waits for the next one; the error is the call's. whole says that all that was sent can be
// sent again, and nothing of the answer has reached the caller.
func (l *call) again(a *attempt, whole bool) error {
	n := a.bookHidden()
	l.attempt += n
	l.made += n
	l.lastErr = a.err
	if err := a.call.Err(); err != nil {
		return l.gaveUp(err)
	}
	v := &a.v
	f := cortex.Failure{Err: a.err, Class: v.class, Priority: l.priority, Attempt: l.attempt, RetriedAbove: l.above,
		DoNotRetry: v.forbidden, Previous: l.delay, Deadline: l.left()}
	f.Class.Retryable = v.class.Retryable && (l.repeatable || v.untouched) && whole
	if !f.Class.Retryable && f.Class.Outcome == cortex.Neutral { // an answer, not a failure; which Decide would take for none given
		return l.failed(cortex.ReasonNotRetryable, v.class.Retryable)
	}
	d := l.engine.Decide(f)
	if !d.Retry {
		return l.failed(d.Reason, true)
	}
	l.charged, l.delay = d, d.Delay
	if !sleep(l.ctx, d.Delay) {
		return l.gaveUp(l.ctx.Err())
	}
	l.attempt++
	return nil
}

func (l *call) failed(r cortex.Reason, wrap bool) error {
	if !wrap {
		return l.lastErr
	}
	return &callError{&cortex.CallError{Target: l.engine.Name(), Attempts: l.made, Reason: r, Err: l.lastErr}}
}

// gaveUp is the error of a call whose caller waits no longer, as its context says in ended.
func (l *call) gaveUp(ended error) error {
	e := &cortex.CallError{Target: l.engine.Name(), Attempts: l.made, Reason: cortex.ReasonCancelled, Err: l.lastErr,
		Cause: cmp.Or(context.Cause(l.ctx), ended)}
	if errors.Is(ended, context.DeadlineExceeded) {
		e.Reason = cortex.ReasonDeadline
	}
	return &callError{e}
}

// refused is the error of a call whose original attempt or retry the engine refused.
func (l *call) refused(rej *cortex.Rejection) error {
	if l.made == 0 {
		return &refusalError{rej: rej}
	}
	return &callError{&cortex.CallError{Target: l.engine.Name(), Attempts: l.made, Reason: rej.Reason, Err: l.lastErr, Refusal: rej}}
}

// callError is a *cortex.CallError with the status of its last attempt.
type callError struct{ call *cortex.CallError }

func (e *callError) Error() string { return e.call.Error() }
func (e *callError) Unwrap() error { return e.call }

func (e *callError) GRPCStatus() *status.Status {
	if e.call.Cause != nil { // the caller left, perhaps during a wait
		return status.New(status.FromContextError(causeKind(e.call)).Code(), e.call.Error())
	}
	st, ok := status.FromError(e.call.Err)
	if !ok {
		return status.New(codes.Unknown, e.call.Error())
	}
	return st
}

// causeKind is the context's own error behind a cause that may be of the caller's making.
func causeKind(e *cortex.CallError) error {
	if e.Reason == cortex.ReasonDeadline {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
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
