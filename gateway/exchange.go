package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/balance"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// statusClientGone is what is noted of a call whose client did not wait; nobody receives it.
const statusClientGone = 499

// exchange is one request on its way through the gateway. It is the context of the call, so that the hooks of the
// transport find it, and the body of the answer, so that it sees how the target's ends.
type exchange struct {
	context.Context // of the client's request, with its deadline
	gateway         *Gateway
	state           *state
	route           *route
	target          *Target
	in              *http.Request // as it came in, but for its header
	w               http.ResponseWriter
	arrived         time.Duration
	id              string // X-Request-Id
	fields          [fieldCount]string
	trace           httptrace.ClientTrace
	url             url.URL // of the attempt under way

	priority     cortex.Priority
	trusted      bool
	explain      bool // the decision is to be told
	strange      bool // the deadline is that of somebody who is not trusted
	retriedAbove bool // the layer above has retries left
	unguarded    bool // it is a health check
	expects      bool // the client waits for a 100 before it sends its body
	member       *balance.Member
	tried        []*balance.Member // before it
	begun        atomic.Bool       // an attempt is under way there
	report       cortexhttp.Report

	hints hints

	status       int
	upstream     time.Duration // until the answer began
	sent         int64         // bytes of the body of the answer, or of a tunnel to the client
	received     int64         // bytes of a tunnel from the client
	upgraded     bool
	broken       bool   // the target's answer broke off
	lapsed       bool   // the caller's deadline ended it, which the answer says
	fallbackKind string // empty = the answer is the target's

	answer   *http.Response // the target's, being passed on
	body     io.ReadCloser  // of it
	keep     bool           // it is to become the last good answer
	public   bool           // for everybody
	copied   []byte
	reserved int64 // of the gateway's copying

	upload *upload // the client's request body; nil = none
}

type exchangeKey struct{}

// Value makes the exchange, and its trace hooks, findable in its own context and those derived from it.
func (x *exchange) Value(key any) any {
	switch key {
	case exchangeKey{}:
		return x
	case traceKey:
		return &x.trace
	}
	return x.Context.Value(key)
}

// traceKey is what httptrace looks for in contexts. It is not exported, but its owner asks any context for it.
var traceKey = func() any {
	c := &askedContext{Context: context.Background()}
	httptrace.ContextClientTrace(c)
	return c.key
}()

// askedContext remembers what it was asked for.
type askedContext struct {
	context.Context
	key any
}

func (c *askedContext) Value(key any) any {
	c.key = key
	return nil
}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// callContext is the context of the call at the target.
func (x *exchange) callContext() context.Context {
	x.trace.Got1xxResponse = x.hint
	var ctx context.Context = x
	if v := x.in.Header[cortexhttp.HeaderAttempt]; len(v) == 1 {
		if attempt, retries, ok := cortexhttp.ParseAttempt(v[0]); ok && retries > 0 {
			x.retriedAbove = attempt < retries
			ctx = cortex.WithRetryMark(ctx, cortex.RetryMark{Attempt: attempt})
		}
	}
	return ctx
}

// gone reports whether there is nobody any more to answer.
func (x *exchange) gone() bool { return x.in.Context().Err() != nil }

// Read reads the target's answer.
func (x *exchange) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	if x.keep && n > 0 {
		more := int64(len(x.copied)+n) - x.reserved
		if x.keep = len(x.copied)+n <= maxStored && (more <= 0 || x.reserve(more)); x.keep {
			x.copied = append(x.copied, p[:n]...)
		} else {
			x.copied = nil
		}
	}
	switch {
	case err == nil:
	case err != io.EOF:
		x.broken, x.keep = true, false
	case x.keep && len(x.answer.Trailer) == 0:
		x.keep = false
		x.gateway.memory.Release(x.reserved) // what is kept of it is the cache's to reserve
		x.reserved = 0
		x.route.fallback.put(storeKey(x.in), x.answer.Header, x.copied, x.public)
	}
	return n, err
}

// Close closes the target's answer.
func (x *exchange) Close() error { return x.body.Close() }

// reserve takes of the gateway's memory what is copied of an answer that may become the last good one: so many slow clients
// with long answers would otherwise be a way to fill it. An answer for which there is none is passed on without being kept.
func (x *exchange) reserve(n int64) bool {
	if !x.gateway.memory.Reserve(n) {
		return false
	}
	x.reserved += n
	return true
}

// begin picks the endpoint of the attempt that is about to be made: one where this call has not failed yet, as long as there is one.
func (x *exchange) begin() *balance.Member {
	x.done(cortex.Neutral, 0) // should the last one not have been told of
	if x.member != nil {
		x.tried = append(x.tried, x.member)
	}
	x.member = x.target.pool.Pick(x.tried...)
	x.member.Begin()
	x.begun.Store(true)
	return x.member
}

// done tells the endpoint of the attempt's end.
func (x *exchange) done(o cortex.Outcome, latency time.Duration) {
	if x.begun.Swap(false) {
		x.member.End(balanced[o], latency)
	}
}

// balanced are the outcomes as the balance knows them.
var balanced = [...]balance.Outcome{
	cortex.Neutral: balance.Neutral, cortex.Success: balance.Success, cortex.Failed: balance.Failed, cortex.TimedOut: balance.TimedOut, cortex.Throttled: balance.Throttled,
}

// finish counts what became of the call. whole is false where the answer was aborted.
func (x *exchange) finish(whole bool) {
	x.hintsOver() // also where a panic has led here: nobody may write when the handler is over
	t := x.target.traffic
	x.done(cortex.Neutral, 0)
	x.gateway.memory.Release(x.reserved)
	if x.upgraded {
		x.gateway.upgraded.done()
	}
	gone := false
	switch {
	case x.status == statusClientGone || (x.broken || !whole) && x.gone():
		gone = true
	case x.broken:
		t.brokenAnswers.Add(1)
	case !whole: // the answer was there, the client was not
		gone = true
	}
	if gone && !x.gateway.cutting.Load() {
		t.clientAborts.Add(1)
	}
	t.answers[min(max(x.status/100, 0), len(t.answers)-1)].Add(1)
	if s := x.report.ReplaySkipped; int(s) < len(t.replaysSkipped) {
		t.replaysSkipped[s].Add(1)
	}
	t.watched(&x.report)
	took := x.since()
	t.observe(took)
	x.log(took, gone)
	x.target.release()
}
