package cortexhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// RoundTrip makes one call; see [Transport].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c := call{t: t, req: req, ctx: req.Context(), engine: t.cfg.Engine, set: t.setting, next: req.Body}
	if t.cfg.Report != nil {
		c.report = t.cfg.Report(req)
	} else {
		c.report = reportFrom(c.ctx)
	}
	if c.report != nil {
		*c.report = Report{}
	}
	defer c.finish()
	if c.ctx.Err() != nil {
		c.gaveUp()
		return nil, context.Cause(c.ctx)
	}
	if c.engine == nil {
		var err error
		if c.engine, err = t.cfg.Select(req); err != nil {
			return nil, fmt.Errorf("cortexhttp: select: %w", err)
		}
		if c.engine == nil {
			return t.base.RoundTrip(c.takeRequest())
		}
		c.set = settingsOf(c.engine)
	}
	c.begin()
	known := c.known()
	for {
		a := &attempt{call: c.ctx, number: c.attempt, shadow: c.shadow, stranger: c.stranger}
		var err error
		if a.permit, err = c.engine.AdmitRetry(known, c.priority, c.attempt); err != nil {
			if !c.shadow {
				return nil, c.refused(err)
			}
			a.free, c.free = true, true
			c.wouldRefuse(err)
		}
		v := a.run(&c)
		if c.shadow {
			c.watched(a, &v)
			return v.resp, v.err
		}
		if v.good() {
			return v.resp, nil
		}
		c.failed = a
		again := c.again(a, &v)
		c.failed = nil
		if again {
			continue
		}
		if v.resp != nil {
			return v.resp, nil
		}
		if c.made == 0 {
			return nil, v.err
		}
		return nil, &cortex.CallError{Target: c.engine.Name(), Attempts: c.made, Reason: c.reason, Err: v.err, Cause: c.cause}
	}
}

// call is the state of one call through the transport.
type call struct {
	t        *Transport
	req      *http.Request
	ctx      context.Context
	engine   *cortex.Engine
	set      settings
	report   *Report
	priority cortex.Priority
	started  time.Time // where the engine has a Deadline
	url      url.URL   // as it came in, where the original attempt may have changed it

	repeatable bool // the request may be sent again whatever became of it
	above      bool // a layer above retries
	stranger   bool // the deadline is that of somebody who is not trusted
	shadow     bool // it is made whatever the engine says, once
	free       bool // and the engine has refused it
	mark       cortex.RetryMark
	retries    int // that this layer may make after any failure

	body *source       // of a request with a body and without GetBody
	next io.ReadCloser // body of the next attempt, until it is handed over

	attempt int      // that is under way; 0 is the original, hidden replays count
	made    int      // attempts at the target, hidden replays count
	failed  *attempt // that is being decided on
	lastErr error
	charged cortex.Decision // for the attempt that is due, until it is made
	delay   time.Duration   // before it
	reason  cortex.Reason   // why there is no further attempt
	cause   error           // why the caller gave up
}

func (c *call) begin() {
	cfg := &c.t.cfg
	if cfg.Priority != nil {
		c.priority = cfg.Priority(c.req)
	} else if p, ok := c.ctx.Value(priorityKey{}).(cortex.Priority); ok {
		c.priority = p
	} else {
		c.priority = cortex.Priority(c.set.levels / 2)
	}
	c.mark, c.above = cortex.RetryMarkFrom(c.ctx)
	c.repeatable = idempotent(c.req) || cfg.RetryNonIdempotent != nil && cfg.RetryNonIdempotent(c.req)
	if _, ok := c.ctx.Deadline(); ok {
		c.stranger = cfg.Stranger != nil && cfg.Stranger(c.req)
	}
	c.shadow = cfg.Shadow != nil && cfg.Shadow(c.req)
	if c.report != nil {
		c.report.Shadow = c.shadow
	}
	if c.repeatable && !c.above && !c.shadow {
		c.retries = c.set.retries
	}
	if c.set.deadline > 0 {
		c.started = processTime()
	}
	if !hasBody(c.req) || c.req.GetBody != nil {
		return
	}
	keep, length := c.t.keep, c.req.ContentLength
	if c.above || c.set.retries == 0 || c.shadow {
		keep = 0 // nothing will be sent again
	}
	if length == 0 {
		length = -1
	}
	if length > keep {
		c.retries = 0 // but for connections that are not made
	}
	c.body = newSource(c.req.Body, length, keep, c.t.cfg.Memory)
	c.next, _ = c.body.open(0)
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// idempotent reports whether the request may be sent twice with the effect of once. An Idempotency-Key whose value is an
// empty slice is not sent: it is how net/http lets a program say so.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	for _, key := range [...]string{"Idempotency-Key", "X-Idempotency-Key"} {
		if v, ok := r.Header[key]; ok && (len(v) == 0 || v[0] != "") {
			return true
		}
	}
	return false
}

// term is when a call must be over.
type term struct {
	ctx      context.Context
	deadline time.Duration // the engine's, since started; 0 = none
	started  time.Time
}

func (c *call) term() term { return term{c.ctx, c.set.deadline, c.started} }

// left is the time until then; 0 = no deadline, negative = passed.
func (t term) left() time.Duration {
	left, ok := untilDeadline(t.ctx)
	if !ok && t.deadline > 0 {
		left, ok = t.deadline-since(t.started), true
	}
	if ok && left == 0 {
		left = -1
	}
	return left
}

// limit is how long something may take that is given d, 0 for any time; 0 where nothing but the context is to end it.
func (t term) limit(d time.Duration) time.Duration {
	if t.deadline > 0 {
		if left := t.left(); left != 0 && (d <= 0 || left < d) {
			d = max(left, 1)
		}
	}
	if left, ok := untilDeadline(t.ctx); d <= 0 || ok && left < d {
		return 0
	}
	return d
}

// again decides on a failed attempt and waits for the next one.
func (c *call) again(a *attempt, v *verdict) bool {
	if c.ctx.Err() != nil {
		return c.gaveUp()
	}
	if v.late {
		return c.end(cortex.ReasonDeadline)
	}
	d, skip := c.decide(v)
	if d.Retry {
		if skip = c.reopen(); skip != ReplayNotSkipped {
			c.engine.Refund(d)
			d.Retry, d.Reason = false, cortex.ReasonNotRetryable
		}
	}
	if !d.Retry {
		if c.report != nil {
			c.report.ReplaySkipped = skip
		}
		return c.end(d.Reason)
	}
	c.lastErr, c.charged, c.delay = v.failure(), d, d.Delay
	wait := d.Delay
	if v.resp != nil {
		began := processTime()
		a.discard()
		v.resp = nil
		wait -= since(began)
	}
	if !sleep(c.ctx, wait) {
		v.err = c.lastErr
		return c.gaveUp()
	}
	c.attempt++
	return true
}

// decide asks the engine about a failed attempt, where its request may be sent again at all. A retry that it lets is charged.
func (c *call) decide(v *verdict) (d cortex.Decision, skip ReplaySkip) {
	f := cortex.Failure{Err: v.failure(), Class: v.class, Priority: c.priority, Attempt: c.attempt, RetriedAbove: c.above,
		DoNotRetry: v.forbidden, Previous: c.delay, Deadline: c.term().left()}
	if f.Class.Retryable = v.class.Retryable && (c.repeatable || v.untouched); f.Class.Retryable && c.body != nil {
		if c.shadow {
			skip = c.body.skipFor(c.t.keep)
		} else {
			skip = c.body.replayable(replayWait)
		}
		f.Class.Retryable = skip == ReplayNotSkipped
	}
	d = cortex.Decision{Reason: cortex.ReasonNotRetryable}
	if f.Class.Retryable || f.Class.Outcome != cortex.Neutral { // which Decide would take for none given
		d = c.engine.Decide(f)
	}
	return d, skip
}

// reopen gets the body for another attempt.
func (c *call) reopen() (skip ReplaySkip) {
	switch {
	case c.body != nil:
		var body io.ReadCloser
		if body, skip = c.body.open(replayWait); skip == ReplayNotSkipped {
			c.next = body
		}
	case !hasBody(c.req):
		c.next = c.req.Body
	default:
		body, err := c.req.GetBody()
		if err != nil {
			return ReplayBodyFailed
		}
		c.next = body
	}
	return skip
}

// takeRequest hands over the request as it is.
func (c *call) takeRequest() *http.Request {
	c.next = nil
	return c.req
}

// takeBody hands over the body of the attempt that is about to be sent; the base transport closes it.
func (c *call) takeBody() io.ReadCloser {
	body := c.next
	c.next = nil
	return body
}

// finish closes what was not handed over, as RoundTrip must, and gives back what was charged for a retry that was not made.
func (c *call) finish() {
	if c.charged.Retry {
		c.engine.Refund(c.charged)
	}
	if c.failed != nil { // a panic while it was decided on
		c.failed.drop()
	}
	if c.body != nil {
		c.body.finish()
	}
	if c.next != nil {
		c.next.Close()
	}
}

// end says why there is no further attempt; it returns false.
func (c *call) end(r cortex.Reason) bool {
	c.reason = r
	if c.report != nil {
		c.report.Reason = r
	}
	return false
}

// gaveUp is end for a call whose caller does not wait any longer.
func (c *call) gaveUp() bool {
	c.cause = context.Cause(c.ctx)
	if errors.Is(c.ctx.Err(), context.DeadlineExceeded) {
		return c.end(cortex.ReasonDeadline)
	}
	return c.end(cortex.ReasonCancelled)
}

// refused is the error of a call whose original attempt or retry the engine refused.
func (c *call) refused(err error) error {
	r := err.(*cortex.Rejection)
	c.end(r.Reason)
	if c.report != nil {
		c.report.Rejection = r
	}
	if c.made == 0 {
		return r
	}
	return &cortex.CallError{Target: c.engine.Name(), Attempts: c.made, Reason: r.Reason, Err: c.lastErr, Refusal: r}
}

// bookHidden counts replays that the base transport made by itself, and charges them.
func (c *call) bookHidden(n int) {
	for range n {
		if !c.free {
			c.engine.CountRetry()
		}
		c.attempt++
		c.made++
	}
	if c.report != nil {
		c.report.Hidden += n
	}
}
