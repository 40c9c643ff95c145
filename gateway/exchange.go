package gateway

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// statusClientGone is what is noted of a call whose client did not wait; nobody receives it.
const statusClientGone = 499

// exchange is one request on its way through the gateway. It is the context of the call, so that the hooks of the reverse
// proxy and of the transport find it, and the body of the answer, so that it sees how the target's ends.
type exchange struct {
	context.Context // of the client's request, with its deadline
	gateway         *Gateway
	route           *route
	target          *Target
	in              *http.Request // as it came in
	arrived         time.Duration
	priority        cortex.Priority
	trusted         bool
	endpoint        uint32 // of the attempt under way
	report          cortexhttp.Report
	retriedAbove    bool // the layer above has retries left

	status   int
	upgraded bool
	broken   bool // the target's answer broke off

	answer   *http.Response // the target's, being passed on
	body     io.ReadCloser  // of it
	keep     bool           // it is to become the last good answer
	public   bool           // for everybody
	copied   []byte
	reserved int64 // of the gateway's copying

	upload *upload // the client's request body; nil = none
}

type exchangeKey struct{}

// Value makes the exchange findable in its own context and those derived from it.
func (x *exchange) Value(key any) any {
	if _, ok := key.(exchangeKey); ok {
		return x
	}
	return x.Context.Value(key)
}

func exchangeOf(ctx context.Context) *exchange { return ctx.Value(exchangeKey{}).(*exchange) }

// callContext is the context of the call at the target.
func (x *exchange) callContext() context.Context {
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

// Read reads the target's answer for the reverse proxy.
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
		x.route.fallback.put(storeKey(x.in), x.answer.Header, x.copied, x.public)
	}
	return n, err
}

// Close closes the target's answer.
func (x *exchange) Close() error { return x.body.Close() }

// maxCopying bounds the bytes of answers that are being copied at a time, over all routes: so many slow clients with long
// answers would otherwise be a way to fill the memory. An answer beyond it is passed on without being kept.
const maxCopying = 32 << 20

func (x *exchange) reserve(n int64) bool {
	if x.gateway.copying.Add(n) > maxCopying {
		x.gateway.copying.Add(-n)
		return false
	}
	x.reserved += n
	return true
}

// finish counts what became of the call. whole is false where the answer was aborted.
func (x *exchange) finish(whole bool) {
	t := &x.target.traffic
	x.gateway.copying.Add(-x.reserved)
	if x.upgraded {
		x.gateway.upgraded.done()
	}
	switch {
	case x.status == statusClientGone || (x.broken || !whole) && x.gone():
		t.clientAborts.Add(1)
	case x.broken:
		t.brokenAnswers.Add(1)
	case !whole: // the answer was there, the client was not
		t.clientAborts.Add(1)
	}
	t.answers[min(max(x.status/100, 0), len(t.answers)-1)].Add(1)
	if s := x.report.ReplaySkipped; int(s) < len(t.replaysSkipped) {
		t.replaysSkipped[s].Add(1)
	}
	t.observe(x.gateway.now() - x.arrived)
}
