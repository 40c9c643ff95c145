// Package gateway is CORTEX as a reverse proxy: routes, endpoints and the way of one request through them.
//
//	f, err := config.Load("cortex.yaml")
//	…
//	s, err := gateway.Listen(f, gateway.Options{Logger: logger})
//	…
//	err = s.Run(ctx) // until ctx ends, then an orderly stop
//
// A route gives a request its target and its priority; the target's engine admits it or refuses it; a [cortexhttp.Transport]
// makes the attempts, each at the better of two of the target's endpoints. Where the call is refused or fails for good the client gets
// the route's fallback (the last good answer, else a static one), else a clear error: 503 with the reason where the guard refused it,
// 504 where the target was too slow, 502 where there was no connection or it broke, and the target's own last answer where retries ran out.
// A route in shadow mode decides and records all that, and does none of it.
//
// What clients see of the gateway in an answer is Cortex-Attempts (attempts made at the target), Cortex-Reason (why the guard
// refused it or did not try again), Cortex-Retry: no (retries were made here, the layer above should make none),
// Cortex-Fallback (it is not the target's answer), X-Request-Id, and Proxy-Status (RFC 9209) where the call failed; Cortex-Reason, -Retry and
// -Fallback pass from a gateway below, too, the first and the last unless its target is not believed (remote.trust: 0). Trusted peers get
// Cortex-Pressure, the gateway's own view of the target in place of what the target may have said of itself, and those that send
// Cortex-Explain: 1 the decision in numbers.
//
// What targets see: the client's Host (an https endpoint gets its own, for which its certificate and virtual hosts are made),
// path and query exactly as the client sent them, below the endpoint's base path, X-Forwarded-For, -Host and -Proto, Forwarded (RFC 7239),
// Via, X-Request-Id. What a client wrote into those is kept only if it is a trusted peer of the route (priority.trust), but for Via, by which the
// gateway knows a request that has been here before; of other clients the priority
// header and every Cortex- header but Cortex-Attempt are taken away: that one can only take retries from its sender.
//
// Health checks ([cortexhttp.IsHealthCheck], by GET or HEAD and without a body, those of gRPC by POST) pass to the target
// unguarded, uncounted and without a timeout, a bounded number at a time. The idle time of kept-alive connections
// (transport.idle_timeout) should be shorter than the target's own, or a request that is not idempotent can meet a connection
// that the target is just closing.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/accesslog"
	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/quota"
)

// Options are what a gateway needs beside its configuration. The zero value is ready to use.
type Options struct {
	Logger *slog.Logger // nil = quiet

	// Level is the level of Logger, if it can be changed: by a reload and on the admin port. nil = it cannot.
	Level *slog.LevelVar

	// Load reads the configuration anew, for a reload; nil: there is none.
	Load func() (*config.File, error)

	// Dial makes connections to endpoints; nil: TCP, within transport.dial_timeout.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Lookup finds the addresses of an endpoint's host; nil: that of [net.DefaultResolver].
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// Now is the clock of the engines and the caches: time since any fixed moment, monotonic; nil = the process's.
	Now func() time.Duration

	// Random is where names of requests come from; nil = the process's source. It must be safe for concurrent use.
	Random func() uint64
}

// A Gateway serves the routes of a configuration. It is safe for concurrent use.
type Gateway struct {
	options  Options
	logger   *slog.Logger
	now      func() time.Duration
	random   func() uint64
	mark     string // of this gateway among all others, in Via
	memory   *quota.Quota
	upgraded tally
	cutting  atomic.Bool                      // it is the gateway that ends its connections
	access   atomic.Pointer[accesslog.Logger] // nil = none

	lateBodies, longBodies atomic.Uint64 // calls answered 408 and 413

	others *cortex.Registry // engines of targets that are not in the configuration; nil = there are none
	fleet  *fleet

	state     atomic.Pointer[state]
	reloading sync.Mutex
	closed    bool // guarded by reloading
}

// New returns the gateway of a configuration. It opens no port and makes no connection of its own but for the checks and lookups of endpoints
// that the configuration asks for. The error names the target or route
// that cannot be used.
func New(f *config.File, o Options) (*Gateway, error) {
	g := newGateway(f, o)
	s, err := g.build(f, nil)
	if err != nil {
		return nil, err
	}
	if g.fleet, err = newFleet(f.Cluster, o.Now, g.logger); err != nil {
		s.discard(nil)
		return nil, err
	}
	if err := g.openAccessLog(f.AccessLog); err != nil {
		s.discard(nil)
		g.fleet.close()
		return nil, err
	}
	s.start(nil)
	g.state.Store(s)
	g.others = g.newOthers(f)
	g.share()
	if g.fleet != nil && g.others != nil {
		g.fleet.watch(g.share)
	}
	return g, nil
}

// newGateway is a gateway without a state.
func newGateway(f *config.File, o Options) *Gateway {
	g := &Gateway{options: o, logger: o.Logger, now: o.Now, random: o.Random, memory: quota.New(f.Memory.Limit)}
	if g.logger == nil {
		g.logger = slog.New(slog.DiscardHandler)
	}
	if g.now == nil {
		g.now = monotonic
	}
	if g.random == nil {
		g.random = rand.Uint64
	}
	var mark [12]byte
	hex(mark[:], g.random())
	g.mark = string(mark[:])
	return g
}

var origin = time.Now()

func monotonic() time.Duration { return time.Since(origin) }

// Reload puts another configuration in the place of the one in force. What has not changed stays as it is: a target with all that
// it has learned, its connections, a route's cached answers. A target that has changed keeps its engine as long as nothing of the engine's
// own has changed; what is known of its endpoints, but with another transport.tls; and connections, but with another transport. Requests
// under way go on as they began. Where the configuration cannot be used, which the error says, everything stays.
func (g *Gateway) Reload(f *config.File) (err error) {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	defer g.recovered(&err)
	if g.closed {
		return errClosed
	}
	before := g.state.Load()
	s, err := g.build(f, before)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(f.AccessLog, before.file.AccessLog) {
		if err := g.openAccessLog(f.AccessLog); err != nil {
			s.discard(before)
			return err
		}
	}
	s.inherit(before)
	g.memory.SetLimit(f.Memory.Limit)
	g.state.Store(s)
	s.start(before)
	g.share()
	g.fleet.remind(f.Cluster)
	return nil
}

// recovered makes a panic in a reload its error: a fault in there must not take down what works.
func (g *Gateway) recovered(err *error) {
	if p := recover(); p != nil {
		g.logger.Error("panic in reload", "panic", p, "stack", string(debug.Stack()))
		*err = fmt.Errorf("gateway: reload: panic: %v", p)
	}
}

var errClosed = errors.New("gateway: it is closed")

// Targets are the targets of the configuration, in its order.
func (g *Gateway) Targets() []*Target { return g.state.Load().targets }

// Close ends checks and lookups of endpoints, leaves the fleet, closes idle connections to them, and writes out the access log. Requests in flight go on.
func (g *Gateway) Close() {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.closed = true
	for _, t := range g.state.Load().targets {
		t.retire(nil)
	}
	g.fleet.close()
	if l := g.access.Swap(nil); l != nil {
		l.Close()
	}
}

// ServeHTTP answers a request by its route. It panics with [http.ErrAbortHandler], which net/http's server takes for an order
// to abort the transfer, where the target broke off in the middle of an answer: its client must not take it for whole.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := g.state.Load()
	body := s.newUpload(w, r)
	defer body.end()
	if r.Method == "PRI" { // the preface of HTTP/2, where the server does not speak it; no target should see it
		w.Header().Set("Connection", "close")
		g.problem(s, w, r, http.StatusHTTPVersionNotSupported, "http_request_error", "This port speaks HTTP/1.1.")
		return
	}
	if r.Method == http.MethodConnect {
		g.problem(s, w, r, http.StatusNotImplemented, "http_request_error", "This is a reverse proxy, it makes no tunnels.")
		return
	}
	if g.looped(r.Header) {
		w.Header().Set(cortexhttp.HeaderRetry, "no") // or every gateway of the loop tries again
		g.problem(s, w, r, http.StatusLoopDetected, "proxy_loop_detected", "This request has been here before: a route leads back to this gateway.")
		return
	}
	route := s.table.find(r.Method, r.URL.Path)
	if route == nil {
		if methods := s.table.allowed(r.URL.Path); len(methods) > 0 {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			g.problem(s, w, r, http.StatusMethodNotAllowed, "http_request_denied", "No route takes this method for this path.")
			return
		}
		g.problem(s, w, r, http.StatusNotFound, "destination_not_found", "No route has this path.")
		return
	}
	if countsHops(r) && g.lastHop(s, w, r) {
		return
	}
	if limit := s.server.MaxBodyBytes; limit > 0 && r.ContentLength > limit && body.limited() {
		hangUp(w, r)
		g.longBodies.Add(1)
		g.problem(s, w, r, http.StatusRequestEntityTooLarge, "http_request_error", fmt.Sprintf("The body of the request is longer than %d bytes.", limit))
		return
	}
	patience, limited, malformed := takeGRPCTimeout(r.Header)
	if malformed {
		g.problem(s, w, r, http.StatusBadRequest, "http_request_error", "The value of grpc-timeout is malformed.")
		return
	}
	x := &exchange{Context: r.Context(), gateway: g, state: s, route: route, target: route.target, in: r, arrived: g.now(), upload: body, w: w}
	x.target.hold()
	x.trusted = route.priority.trusts(r)
	x.id = x.requestID()
	if isHealthCheck(r) && x.check() {
		return
	}
	x.priority = route.priority.standard
	if x.trusted {
		x.priority = route.priority.of(r.Header)
		if d, ok := cortexhttp.CallerTimeout(r.Header); ok {
			defer x.limit(d)()
			limited = limited && patience < d
		}
		if v := r.Header[cortexhttp.HeaderExplain]; len(v) == 1 && v[0] == "1" {
			x.explain = true
		}
	}
	if limited {
		x.strange = true
		defer x.limit(patience)()
	}
	whole := false
	defer func() { x.finish(whole) }()
	x.forward(route.target.guarded)
	whole = true
}

// problem answers a request that becomes no call.
func (g *Gateway) problem(s *state, w http.ResponseWriter, r *http.Request, status int, kind, detail string) {
	w.Header().Set("Proxy-Status", s.name+"; error="+kind)
	w.Header().Set(headerRequestID, g.newID())
	writeProblem(w, r, cortexhttp.Problem{Status: status, Detail: detail})
	g.logRefused(w.Header(), r, status)
}

// priorityOf is the priority of the call that an outgoing request belongs to.
func priorityOf(r *http.Request) cortex.Priority { return exchangeOf(r.Context()).priority }

// reportOf is where the transport tells what it did for that call.
func reportOf(r *http.Request) *cortexhttp.Report { return &exchangeOf(r.Context()).report }

// inShadow reports whether that call is only watched.
func inShadow(r *http.Request) bool { return exchangeOf(r.Context()).route.shadow }

// adminTargets is the view of the targets for the admin port.
func (g *Gateway) adminTargets() []admin.Target {
	targets := g.Targets()
	_, shared := g.fleet.status()
	ts := make([]admin.Target, len(targets))
	for i, t := range targets {
		ts[i] = admin.Target{Name: t.Name, Engine: t.Engine, Endpoints: t.endpoints(), Members: t.members,
			Traffic: func() admin.Traffic { return g.trafficOf(t) }, Fleet: shared[t.Name]}
	}
	for _, e := range slices.SortedFunc(g.otherEngines(), func(a, b *cortex.Engine) int { return strings.Compare(a.Name(), b.Name()) }) {
		ts = append(ts, admin.Target{Name: e.Name(), Engine: e, Made: true, Fleet: shared[e.Name()]})
	}
	return ts
}
