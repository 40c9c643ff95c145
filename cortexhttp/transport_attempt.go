package cortexhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

const (
	// drainBytes of a dropped answer are read, so that its connection can be used again; the rest is not worth it.
	drainBytes = 4 << 10
	// drainTime is how long that may take.
	drainTime = 50 * time.Millisecond
)

var errAbandoned = errors.New("cortexhttp: the attempt ended in a panic")

var errNoResponse = errors.New("cortexhttp: TransportConfig.Base returned neither a response nor an error")

// attempt is one attempt, and the body of its response.
type attempt struct {
	permit cortex.Permit
	call   context.Context // the caller's
	ctx    attemptContext
	number int
	fields fields

	cancel  context.CancelCauseFunc
	timeout time.Duration // 0 = none
	due     time.Time     // when it is over
	ends    time.Time     // when the call is, by its engine's deadline; zero: never
	slot    int           // of the cutter; 0 = none
	upload  *upload       // of a body that is not there yet, else nil; it then sets the timeout

	// What the base transport did, by its trace hooks: asked for a connection, got one, wrote a whole header section.
	trace             httptrace.ClientTrace
	outer             *httptrace.ClientTrace // the caller's
	asked, got, wrote atomic.Int32
	reused            atomic.Bool // the last connection had been used before
	plain             bool        // over HTTP/1, for sure

	resp    *http.Response
	body    io.ReadCloser // of resp
	first   [1]byte       // of it, read ahead
	ahead   int           // bytes in first
	stop    error         // what reading ahead ended with
	grpc    bool          // the outcome is in the trailer
	outcome cortex.Outcome
	settled bool        // run came to its end: the outcome is recorded, or will be at the end of the body
	over    atomic.Bool // the outcome is recorded

	shadow bool // it is not cut
	free   bool // and has no permit

	arrived arrival

	stranger bool        // the call's deadline is a stranger's
	rushed   atomic.Bool // and nearer than the attempt's timeout
	lapsed   bool        // it would have been cut

	tell   func(AttemptResult)
	excuse func(*http.Request) bool
	began  time.Time
	result AttemptResult
}

// verdict is what became of an attempt.
type verdict struct {
	resp      *http.Response
	err       error
	class     cortex.Class
	untouched bool // nothing of the request was processed, for sure
	forbidden bool // the target says not to try again
	late      bool // the call's deadline has passed
}

// failure is the error of an attempt that failed.
func (v *verdict) failure() error {
	if v.err == nil && v.resp != nil {
		return &StatusError{v.resp.StatusCode}
	}
	return v.err
}

// good reports whether the response is the call's whatever the checks say.
func (v *verdict) good() bool {
	if v.resp == nil || v.class.Retryable {
		return false
	}
	switch v.class.Outcome {
	case cortex.Success:
		return true
	case cortex.Throttled:
		return isFallback(v.resp)
	case cortex.Neutral: // but a guard's refusal is no answer, unless it gave one in the target's stead
		_, open := guardRefusal(v.resp.Header)
		return !open || v.resp.StatusCode != http.StatusServiceUnavailable || isFallback(v.resp)
	}
	return false
}

func (a *attempt) run(c *call) verdict {
	defer a.abandon(c)
	req, err := a.request(c)
	if err != nil {
		return verdict{err: err}
	}
	a.arm(c)
	c.made++
	c.charged = cortex.Decision{}
	resp, err := c.t.base.RoundTrip(req)
	if err == nil && resp == nil {
		err = errNoResponse
	}
	if err == nil {
		a.resp, a.body = resp, resp.Body
	}
	if a.tell != nil {
		a.result.Latency = a.latency()
	}
	if n := int(a.got.Load()) - 1; n > 0 {
		a.result.Hidden = n
		c.bookHidden(n)
	}
	var v verdict
	if err == nil {
		v = a.answered(c)
	} else {
		v = a.failed(c, err, !a.disarm(c))
	}
	if c.report != nil {
		c.report.Attempts = c.made
		c.report.TimedOut = v.resp == nil && v.class.Outcome == cortex.TimedOut && !a.lapsed
		c.report.ConnectFailed = v.resp == nil && a.unconnected(err)
	}
	a.settled = true
	return v
}

// request is what is sent.
func (a *attempt) request(c *call) (*http.Request, error) {
	a.hooks(!c.repeatable)
	ctx := &a.ctx
	ctx.of, ctx.trace, ctx.marked, ctx.mark = a, &a.trace, c.retries > 0, cortex.RetryMark{Attempt: c.attempt, Retries: c.retries}
	ctx.Context, a.cancel = context.WithCancelCause(c.ctx)

	prepare := c.t.cfg.Prepare
	req, own := c.draft(ctx)
	req.Header = c.stamp(a, req.Header, own && req.Header != nil)
	if prepare != nil {
		var err error
		if req, err = prepare(req, c.attempt); err != nil {
			return nil, err
		}
	}
	a.tellOf(c, req)
	a.plain = c.t.http1 && req.URL != nil && req.URL.Scheme == "http"
	if !hasBody(c.req) {
		return req, nil
	}
	req.Body = c.takeBody()
	if r, ok := req.Body.(*bodyReader); ok {
		a.startUpload(c, r)
	}
	if c.t.std && c.set.retries > 0 && !c.above && !c.shadow {
		// The base is not to send the body again by itself: that is for the engine to decide. Where the protocol is HTTP/1 for
		// sure, its asking for the body says that it found nothing written; HTTP/2 asks after more than that, and gives a
		// better error when it cannot.
		req.GetBody = nil
		if a.plain {
			req.GetBody = refuseRewind
		}
	}
	return req, nil
}

// tellOf has OnAttempt told of the attempt that is about to send req.
func (a *attempt) tellOf(c *call, req *http.Request) {
	a.tell, a.excuse = c.t.cfg.OnAttempt, c.t.cfg.Excuse
	if a.tell == nil && a.excuse == nil {
		return
	}
	a.began = processTime()
	a.result.Attempt, a.result.Request = a.number, req
	if req != nil && req.URL != nil {
		a.result.Host = req.URL.Host
	}
}

// draft is a copy of the call's request for the attempt that is under way, and whether its header may be written to.
func (c *call) draft(ctx context.Context) (req *http.Request, own bool) {
	prepare, owns := c.t.cfg.Prepare != nil, c.t.cfg.OwnsRequest
	if c.made == 0 && owns || !prepare {
		if prepare && c.req.URL != nil {
			c.url = *c.req.URL
		}
		return c.req.WithContext(ctx), c.made == 0 && owns
	}
	req = c.req.Clone(ctx)
	req.Trailer = c.req.Trailer // filled in while the body is read
	if owns && req.URL != nil {
		*req.URL = c.url // the base may still be reading the one of the original
	}
	return req, true
}

// arm starts the timeout, unless the caller's own deadline is nearer.
func (a *attempt) arm(c *call) {
	if a.free {
		return
	}
	d := a.permit.Timeout()
	a.grant(d)
	if c.set.deadline > 0 {
		if _, own := c.ctx.Deadline(); !own { // which stands in its place
			a.ends = c.started.Add(c.set.deadline)
		}
	}
	if a.upload != nil {
		a.upload.connect(d)
		return
	}
	if d = c.term().limit(d); d > 0 {
		a.timeout = d
		c.t.cut.add(a, d)
	}
}

func (a *attempt) expire() {
	if a.upload != nil {
		a.upload.expire()
		return
	}
	if a.shadow {
		a.lapse()
		return
	}
	a.cancel(&attemptTimeout{after: a.timeout})
}

// disarm stops the timeout and reports whether it has not cut the attempt. From then on only the caller ends it.
func (a *attempt) disarm(c *call) bool {
	inTime := false
	if a.upload != nil {
		inTime = a.upload.end()
	} else {
		inTime = a.timeout == 0 || c.t.cut.remove(a)
	}
	if a.shadow && !inTime {
		a.lapsed, inTime = true, true
	}
	return inTime
}

// answered judges a response by its header.
func (a *attempt) answered(c *call) verdict {
	resp := a.resp
	upgraded := resp.StatusCode == http.StatusSwitchingProtocols
	if v, ok := single(resp.Header, HeaderPressure); ok && !a.free {
		if r, ok := ParsePressure(v); ok {
			c.engine.ObserveRemote(r.Shed)
		}
	}
	var class cortex.Class
	known := false
	if rule := c.t.cfg.Outcome; rule != nil && !upgraded {
		if class, known = rule(resp); known && class.Retryable && class.RetryAfter == 0 {
			class = withRetryAfter(class, resp.Header, c.t.cfg.Now())
		}
		a.body = resp.Body // the rule may have read some of it
	}
	if !known {
		class = classOf(resp, c.t.cfg.Now, !c.set.distrust)
		if class.Outcome == cortex.TimedOut && a.hurried() {
			class.Outcome = cortex.Neutral
		}
		_, told := single(resp.Header, "Grpc-Status")
		a.grpc = !told && isGRPC(resp) && !isFallback(resp)
	}
	if !a.disarm(c) { // the timeout was as fast, and has cut off what was to follow
		if a.body != nil {
			a.body.Close()
		}
		return a.failed(c, &attemptTimeout{after: a.timeout}, true)
	}
	a.result.Status = resp.StatusCode
	if a.lapsed {
		class = cortex.Class{Outcome: a.lapseOutcome(), Retryable: true}
	}
	v := verdict{resp: resp, class: class, forbidden: forbidsRetry(resp.Header)}
	if v.good() {
		a.permit.Answered() // the rest of the answer is no latency
	}
	if a.grpc && c.retries > c.attempt && (c.body == nil || c.body.replayableWhole()) {
		if trailer, ok := a.lookAhead(); ok {
			if trailer.Outcome == cortex.TimedOut && a.hurried() {
				trailer.Outcome = cortex.Neutral
			}
			v.class, a.grpc = trailer, false
		}
	}
	a.outcome = v.class.Outcome
	if !v.good() {
		a.conclude(a.outcome, nil)
	}
	switch {
	case upgraded:
		// The connection is the caller's now, and the body stays what it is, something to write to. net/http's transport
		// minds the context no longer; of another the context ends with the caller's.
		a.conclude(a.outcome, nil)
		if c.t.std {
			a.cancel(nil)
		}
	case bodyless(c.req.Method, resp):
		a.conclude(a.outcome, nil)
		a.cancel(nil)
		if resp.Body == nil {
			resp.Body = http.NoBody
		}
	default:
		resp.Body = a
	}
	return v
}

// lookAhead waits for the first byte of a gRPC answer, which may have none: the status in its trailer then decides, or that
// it broke off, and a retry is possible as nothing has reached the caller. It is for requests that have been sent whole; an
// exchange where the target waits for more would stand still.
func (a *attempt) lookAhead() (c cortex.Class, ok bool) {
	for a.ahead == 0 && a.stop == nil {
		a.ahead, a.stop = a.body.Read(a.first[:])
	}
	switch {
	case a.ahead > 0 || a.call.Err() != nil:
		return c, false
	case a.stop != io.EOF && a.deadlineEnded():
		return c, false
	case a.stop != io.EOF:
		return cortex.Class{Outcome: cortex.Failed, Retryable: true}, true
	}
	return grpcClass(a.resp.Trailer, false)
}

// failed judges an attempt that gave no response; expired says that the attempt's timeout ended it.
func (a *attempt) failed(c *call, err error, expired bool) verdict {
	v := verdict{err: err}
	defer a.cancel(nil)
	if !expired && !a.unconnected(err) && a.deadlineEnded() || a.call.Err() != nil { // whoever ended it decides, not the text of the error
		if a.upload.unsent() { // what was waited for is the caller's own
			v.err = context.Cause(a.call) // that of the body may come from our closing it
			a.conclude(cortex.Neutral, v.err)
			return v
		}
		if errors.Is(a.call.Err(), context.DeadlineExceeded) {
			v.class.Outcome = cortex.TimedOut
		}
		if !a.over.Swap(true) {
			o := v.class.Outcome
			if a.hurried() { // nor does it speak against the endpoint
				o = cortex.Neutral
			}
			a.permit.Done(err) // which knows if the caller waited long enough for that to speak against the target
			a.report(o, err)
		}
		return v
	}
	if expired {
		v.err = &attemptTimeout{after: a.timeout}
		v.class = cortex.Class{Outcome: cortex.TimedOut, Retryable: true}
		v.untouched = a.unconnected(err) || unsent(err)
	} else {
		v.class, v.untouched, v.forbidden = a.classify(c, err)
		if a.lapsed {
			v.class = cortex.Class{Outcome: a.lapseOutcome(), Retryable: true}
		}
	}
	a.upload.excuse(&v, expired)
	a.conclude(v.class.Outcome, v.err)
	return v
}

// conclude records the outcome, once.
func (a *attempt) conclude(o cortex.Outcome, err error) {
	if a.over.Swap(true) {
		return
	}
	if a.excuse == nil || o != cortex.Failed && o != cortex.TimedOut {
		a.permit.Record(o)
		a.report(o, err)
		return
	}
	counts := o
	defer func() { a.permit.Record(counts) }() // also where a function of the caller's panics
	a.report(o, err)                           // first: whoever excuses may have to know of it
	if a.excuse(a.result.Request) {
		counts = cortex.Neutral
	}
}

func (a *attempt) report(o cortex.Outcome, err error) {
	if a.tell != nil {
		a.result.Outcome, a.result.Err = o, err
		a.tell(a.result)
	}
}

// abandon frees what an attempt holds that did not come to its end: nothing was sent, or something panicked.
func (a *attempt) abandon(c *call) {
	if a.settled {
		return
	}
	defer a.drop()
	if c.body != nil {
		c.body.cutOff()
	}
	a.disarm(c)
	a.conclude(cortex.Neutral, errAbandoned)
}

// drop lets go of the answer, which nobody gets.
func (a *attempt) drop() {
	if a.body != nil {
		a.body.Close()
	}
	if a.cancel != nil {
		a.cancel(nil)
	}
}

// discard drops the response of an attempt that is to be followed by another. A little is read, so that the connection is free
// for that one, but neither an endless body nor a slow one is waited for.
func (a *attempt) discard() {
	defer a.cancel(nil)
	if a.body == nil {
		return
	}
	if a.stop != nil || a.resp.ContentLength > drainBytes || a.body == http.NoBody {
		a.body.Close()
		return
	}
	slow := time.AfterFunc(drainTime, func() {
		a.cancel(nil)
		a.body.Close()
	})
	io.CopyN(io.Discard, a.body, drainBytes)
	if slow.Stop() {
		a.body.Close()
	}
}

// Read and Close make the attempt its response's body. They may be called at the same time, as those of net/http's.

func (a *attempt) Read(p []byte) (n int, err error) {
	switch {
	case a.ahead > 0 && len(p) > 0:
		p[0], a.ahead = a.first[0], 0
		return 1, nil
	case a.stop != nil:
		err = a.stop
	default:
		n, err = a.body.Read(p)
	}
	if err != nil {
		a.ended(err)
		a.cancel(nil)
	}
	return n, err
}

func (a *attempt) Close() error {
	a.ended(nil) // first: closing makes a Read under way fail
	err := a.body.Close()
	a.cancel(nil)
	return err
}

// ended records the outcome of an answer whose body ended with err; nil: its caller closed it.
func (a *attempt) ended(err error) {
	o := a.outcome
	switch {
	case err == io.EOF:
		err = nil
		if a.grpc {
			o = a.streamOutcome()
		}
	case a.call.Err() != nil, err != nil && a.deadlineEnded():
		o = cortex.Neutral
	case err != nil:
		o = cortex.Failed
	}
	a.conclude(o, err)
}
