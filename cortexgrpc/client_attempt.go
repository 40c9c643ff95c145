package cortexgrpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// attempt is one attempt at a call.
type attempt struct {
	permit cortex.Permit
	client *Client
	outer  *attempt // at the same call, by a client above; nil: none
	call   patience
	method string
	engine *cortex.Engine
	set    *settings
	rule   func(method string, st *status.Status, trailer metadata.MD) (cortex.Class, bool)

	ctx    context.Context
	cancel context.CancelFunc
	given  time.Duration // by the engine; 0 = no timeout

	// What gRPC did, by the stats handler.
	seen   atomic.Bool  // there is one
	sent   atomic.Int32 // times it was put on a connection
	header atomic.Bool  // the answer has begun
	told   atomic.Bool  // a trailer came: the status is the target's
	stream bool         // a header ends the timeout

	trailer metadata.MD // by gRPC, before finish

	mu       sync.Mutex
	timer    *time.Timer // nil: nothing is to cut it
	timeout  time.Duration
	cut      bool // by its timeout
	answered bool // no timeout any more
	over     bool // nothing changes any more
	hidden   int  // times that gRPC sent it again by itself, counted

	once sync.Once     // of finish
	last chan struct{} // of a stream: closed when err and v are known
	err  error
	v    verdict
}

// patience is the caller's context, which ends with its deadline at the latest. A server that was told of the deadline ends the stream at it
// too, and may be heard of a moment before the context's own timer is.
type patience struct {
	context.Context
	over atomic.Bool
}

func (p *patience) Err() error {
	err := p.Context.Err()
	if err == nil && p.over.Load() {
		return context.DeadlineExceeded
	}
	return err
}

// met takes in the error of an attempt.
func (p *patience) met(err error) {
	if d, ok := p.Deadline(); ok {
		if left := time.Until(d); left <= 0 || left <= timeoutSlack && status.Code(err) == codes.DeadlineExceeded {
			p.over.Store(true)
		}
	}
}

// verdict is what became of an attempt.
type verdict struct {
	class     cortex.Class
	untouched bool // nothing of the call was processed, for sure
	forbidden bool // the target says not to try again
}

// start makes the attempt's context and has it cut in time.
func (a *attempt) start(l *call) {
	a.given = a.permit.Timeout()
	if o, _ := l.ctx.Value(attemptKey{}).(*attempt); o != nil && o.method == a.method {
		a.outer = o
	}
	ctx := l.ctx
	if l.retries > 0 {
		ctx = cortex.WithRetryMark(ctx, cortex.RetryMark{Attempt: l.attempt, Retries: l.retries})
	}
	ctx = metadata.NewOutgoingContext(&attemptContext{ctx, a}, l.outgoing())
	a.ctx, a.cancel = context.WithCancel(ctx)
	a.arm(l.limit(a.given))
}

// arm has the attempt cut after d.
func (a *attempt) arm(d time.Duration) {
	if d <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.answered || a.over || a.cut {
		return
	}
	a.timeout = d
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.expire)
		return
	}
	a.timer.Reset(d)
}

// disarm stops the timeout for the time being.
func (a *attempt) disarm() {
	a.mu.Lock()
	if a.timer != nil {
		a.timer.Stop()
		a.timeout = 0
	}
	a.mu.Unlock()
}

func (a *attempt) expire() {
	a.mu.Lock()
	if a.answered || a.over || a.timeout == 0 {
		a.mu.Unlock()
		return
	}
	a.cut = true
	a.mu.Unlock()
	a.cancel()
}

// headerCame is told that the answer has begun, and is more than a trailer.
func (a *attempt) headerCame() {
	a.header.Store(true)
	if a.stream {
		a.begun()
	}
}

// begun tells that the answer has begun: from here on nothing but its caller ends the stream.
func (a *attempt) begun() {
	a.mu.Lock()
	first := !a.answered && !a.over && !a.cut
	if first {
		a.answered = true
		if a.timer != nil {
			a.timer.Stop()
		}
	}
	a.mu.Unlock()
	if first {
		a.permit.Answered()
		a.bookHidden()
	}
}

// bookHidden charges what gRPC sent again by itself, and returns how often that was.
func (a *attempt) bookHidden() int {
	a.mu.Lock()
	n := max(int(a.sent.Load())-1, 0)
	due := n - a.hidden
	a.hidden = n
	a.mu.Unlock()
	for range due {
		a.engine.CountRetry()
	}
	return n
}

// finish records what the attempt ended with, the first time; nil is a success. When it returns, err and v are known.
func (a *attempt) finish(err error) {
	a.once.Do(func() {
		if a.last != nil {
			defer a.cancel()
			defer close(a.last)
		}
		a.settle(err)
	})
}

// done is closed when finish has run; it is there for streams.
func (a *attempt) done() <-chan struct{} { return a.last }

func (a *attempt) settle(err error) {
	defer a.permit.Release() // whatever a rule of the user's does
	cut, answered := a.end()
	a.err = err
	a.bookHidden()
	if v, ok := single(a.trailer, MetadataPressure); ok {
		if r, ok := cortexhttp.ParsePressure(v); ok {
			a.engine.ObserveRemote(r.Shed)
		}
	}
	if err != nil {
		a.call.met(err)
	}
	switch {
	case err == nil:
		a.v.class = cortex.Class{Outcome: cortex.Success}
	case a.call.Err() != nil: // whoever ended it decides, not what the error says
		if !answered { // the permit knows if the caller waited long enough for that to speak against the target
			a.permit.Done(a.call.Err())
		}
		return
	case cut && !a.told.Load():
		a.err = &attemptTimeout{a.timeout}
		a.v = verdict{class: cortex.Class{Outcome: cortex.TimedOut, Retryable: true}, untouched: a.unsent()}
	default:
		a.v = a.judge(err)
	}
	a.permit.Record(a.v.class.Outcome)
}

// end stops the timeout for good.
func (a *attempt) end() (cut, answered bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	if a.timer != nil {
		a.timer.Stop()
	}
	return a.cut, a.answered
}

func (a *attempt) unsent() bool { return a.seen.Load() && a.sent.Load() == 0 }

// judge makes a verdict of an error that came by itself.
func (a *attempt) judge(err error) verdict {
	if _, ok := errors.AsType[*cortex.Rejection](err); ok { // of a guard in an interceptor below
		return verdict{class: a.set.classify(err)}
	}
	_, _, never := pushback(a.trailer)
	v := verdict{forbidden: never || forbidsRetry(a.trailer)}
	if e, ok := errors.AsType[*cortex.CallError](err); ok && e.Reason != cortex.ReasonRetriedAbove {
		v.forbidden = true // retries were made there
	}
	st, ok := status.FromError(err)
	if !ok {
		v.class = a.set.classify(err)
		return v
	}
	if a.rule != nil {
		if v.class, ok = a.rule(a.method, st, a.trailer); ok {
			v.untouched = a.unsent()
			return v
		}
	}
	if !a.told.Load() && len(a.trailer) == 0 {
		if v.class, v.untouched, ok = ownClass(st, a.sent.Load() > 0, a.seen.Load()); ok {
			return v
		}
	}
	v.class = classOf(st, a.trailer, !a.set.distrust)
	if v.class.Outcome == cortex.TimedOut && a.permit.Hurried() { // it was told of a deadline that no target could keep
		v.class.Outcome = cortex.Neutral
	}
	return v
}

// close frees what an attempt holds, also where something panicked.
func (a *attempt) close() {
	a.once.Do(func() {
		if a.last != nil {
			defer close(a.last)
		}
		a.end()
		a.err = errAbandoned
	})
	a.permit.Release()
	if a.cancel != nil {
		a.cancel()
	}
}

var errAbandoned = errors.New("cortexgrpc: the attempt ended in a panic")

// attemptTimeout is the error of an attempt that had no answer in time.
type attemptTimeout struct{ after time.Duration }

func (e *attemptTimeout) Error() string {
	return fmt.Sprintf("cortexgrpc: no answer within the attempt timeout of %v", e.after)
}

func (e *attemptTimeout) GRPCStatus() *status.Status {
	return status.New(codes.DeadlineExceeded, e.Error())
}

// Timeout and Is make it a timeout for those who look for one the ways of package net.
func (e *attemptTimeout) Timeout() bool { return true }

func (e *attemptTimeout) Is(target error) bool { return target == context.DeadlineExceeded }
