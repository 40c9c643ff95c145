package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/h1"
)

// isHealthCheck reports whether a request passes unguarded. The path alone would make it a way around the guard for work of any
// kind: such a check reads, but for those of gRPC.
func isHealthCheck(r *http.Request) bool {
	if len(r.Header["Upgrade"]) > 0 {
		return false // it may become a connection
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return (r.Body == nil || r.Body == http.NoBody) && cortexhttp.IsHealthCheck(r)
	case http.MethodPost:
		return strings.HasPrefix(r.URL.Path, "/grpc.") && cortexhttp.IsHealthCheck(r)
	}
	return false
}

// maxChecks bounds the unguarded checks of a target at a time. Those that balancers make are few; beyond it a check is a call like any
// other, so that nobody gets around the guard by calling everything one.
const maxChecks = 100

// check passes a health check on unguarded, and reports whether it did. Refusing these would take a process out of service, or have it
// restarted, because it is protected (F65).
func (x *exchange) check() bool {
	t := x.target
	if t.checks.Add(1) > maxChecks {
		t.checks.Add(-1)
		return false
	}
	defer t.release()
	defer t.checks.Add(-1)
	defer x.done(cortex.Neutral, 0)
	x.unguarded = true
	whole := false
	defer func() { x.log(x.since(), x.status == statusClientGone || !whole && (x.gone() || !x.broken)) }()
	defer x.hintsOver()
	res, err := x.ask(x.outgoing())
	x.hintsOver()
	x.upstream = x.since()
	if err != nil {
		x.unchecked(err)
		whole = true
		return true
	}
	defer res.Body.Close()
	hopByHop(res.Header)
	x.answer, x.body, x.status = res, res.Body, res.StatusCode
	if res.Body != http.NoBody {
		res.Body = x
	}
	x.pass(res)
	whole = true
	return true
}

// maxAsked bounds the endpoints that one health check is sent to.
const maxAsked = 4

// ask sends a health check to an endpoint, and to another where there was no connection to that: nothing else takes a dead one out while
// there are only checks, and the target is not down for it.
func (x *exchange) ask(out *http.Request) (res *http.Response, err error) {
	for range maxAsked {
		m := x.begin()
		if slices.Contains(x.tried, m) {
			break
		}
		r, u := out.WithContext(out.Context()), *out.URL
		r.URL = &u
		var body *unread
		if out.Body != nil && out.Body != http.NoBody { // those of gRPC have one
			body = &unread{ReadCloser: out.Body}
			r.Body = body
		}
		direct(r, m)
		res, err = x.target.base.RoundTrip(r)
		if err == nil || !unconnected(err) || x.gone() || body.begun() {
			break
		}
	}
	return res, err
}

// unread is the body of an attempt, which others may have where nothing was read of it: transports close it also where there was no connection.
type unread struct {
	io.ReadCloser
	mu           sync.Mutex
	read, closed bool
}

func (u *unread) Read(p []byte) (int, error) {
	u.mu.Lock()
	if u.closed && !u.read {
		u.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	u.read = true
	u.mu.Unlock()
	return u.ReadCloser.Read(p)
}

// Close ends a Read that is under way.
func (u *unread) Close() error {
	u.mu.Lock()
	u.closed = true
	read := u.read
	u.mu.Unlock()
	if !read {
		return nil
	}
	return u.ReadCloser.Close()
}

// begun reports whether some of it may have been read. No body is none.
func (u *unread) begun() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.read
}

// unconnected reports whether an error says that there was no connection to an endpoint.
func unconnected(err error) bool {
	if e, ok := errors.AsType[*h1.Error](err); ok {
		return e.Op == h1.OpDial
	}
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

// unchecked answers a health check that the target does not answer, be it the client's fault or its own.
func (x *exchange) unchecked(err error) {
	x.faults("health check failed", err)
	late := x.upload.late()
	if x.gone() && !late && !x.upload.wrong() {
		x.status = statusClientGone
		x.w.WriteHeader(x.status)
		return
	}
	_, faulty := cortexhttp.RequestFault(err)
	p, kind := cortexhttp.Problem{Status: http.StatusBadGateway, Detail: "The target does not answer health checks."}, "destination_unavailable"
	switch {
	case late:
		p.Status, p.Detail, kind = http.StatusRequestTimeout, "The rest of the request's body did not come in time.", "http_request_error"
		hangUp(x.w, x.in)
		x.gateway.lateBodies.Add(1)
	case x.upload.failed() || faulty:
		if p, kind = x.problem(err); x.upload.tooLong() {
			x.gateway.longBodies.Add(1)
		}
	}
	x.proxyStatus(x.w.Header(), kind, 0, "")
	x.status = p.Status
	writeProblem(x.w, x.in, p)
}
