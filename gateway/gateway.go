// Package gateway is CORTEX as a reverse proxy: routes, endpoints and the way of one request through them.
//
//	f, err := config.Load("cortex.yaml")
//	…
//	s, err := gateway.Listen(f, gateway.Options{Logger: logger})
//	…
//	err = s.Run(ctx) // until ctx ends, then an orderly stop
//
// A route gives a request its target and its priority; the target's engine admits it or refuses it; a [cortexhttp.Transport]
// makes the attempts, each at the next of the target's endpoints. Where the call is refused or fails for good the client gets
// the route's fallback (the last good answer, else a static one), else a clear error: 503 with the reason where the guard refused it,
// 504 where the target was too slow, 502 where there was no connection or it broke, and the target's own last answer where retries ran out.
//
// What clients see of the gateway in an answer is Cortex-Attempts (attempts made at the target), Cortex-Reason (why the guard
// refused it or did not try again), Cortex-Retry: no (retries were made here, the layer above should make none) and
// Cortex-Fallback (it is not the target's answer); the last three pass from a gateway below, too. Trusted peers get
// Cortex-Pressure, the gateway's own view of the target in place of what the target may have said of itself.
//
// What targets see: the client's Host (an https endpoint gets its own, for which its certificate and virtual hosts are made),
// path and query exactly as the client sent them, below the endpoint's base path, and X-Forwarded-For, -Host and -Proto. What
// a client wrote into those is kept only if it is a trusted peer of the route (priority.trust); of other clients the priority
// header and every Cortex- header but Cortex-Attempt are taken away: that one can only take retries from its sender.
//
// Health checks ([cortexhttp.IsHealthCheck], by GET or HEAD and without a body, those of gRPC by POST) pass to the target
// unguarded, uncounted and without a timeout. The idle time of kept-alive connections
// (transport.idle_timeout) should be shorter than the target's own, or a request that is not idempotent can meet a connection
// that the target is just closing.
package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// Options are what a gateway needs beside its configuration. The zero value is ready to use.
type Options struct {
	Logger *slog.Logger // nil = quiet

	// Dial makes connections to endpoints; nil: TCP, within transport.dial_timeout.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Now is the clock of the engines and the caches: time since any fixed moment, monotonic; nil = the process's.
	Now func() time.Duration
}

// A Gateway serves the routes of a configuration. It is safe for concurrent use.
type Gateway struct {
	log      *slog.Logger
	now      func() time.Duration
	table    *table
	targets  []*Target
	upgraded tally
	copying  atomic.Int64  // bytes of answers that may become last good ones
	patience time.Duration // with clients that send nothing of a body
}

// New returns the gateway of a configuration. It opens no port and makes no connection. The error names the target or route
// that cannot be used.
func New(f *config.File, o Options) (*Gateway, error) {
	g := &Gateway{log: o.Logger, now: o.Now, patience: f.Server.BodyTimeout}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.now == nil {
		g.now = monotonic
	}
	byName := make(map[string]*Target, len(f.Targets))
	for i := range f.Targets {
		t, err := newTarget(&f.Targets[i], g, o)
		if err != nil {
			return nil, fmt.Errorf("gateway: target %s: %w", f.Targets[i].Name, err)
		}
		g.targets = append(g.targets, t)
		byName[t.Name] = t
	}
	routes := make([]*route, 0, len(f.Routes))
	for _, c := range f.Routes {
		t := byName[c.Target]
		if t == nil {
			return nil, fmt.Errorf("gateway: route %s: there is no target %q", c.Path, c.Target)
		}
		l, err := newLadder(c.Fallback, o.Now)
		if err != nil {
			return nil, fmt.Errorf("gateway: route %s: fallback: %w", c.Path, err)
		}
		if l.cache != nil {
			t.caches = append(t.caches, l.cache)
		}
		routes = append(routes, &route{path: c.Path, target: t, methods: c.Methods, fallback: l,
			priority: newPriorityRule(c.Priority, t.Engine.Config().Levels)})
	}
	g.table = newTable(routes)
	return g, nil
}

var origin = time.Now()

func monotonic() time.Duration { return time.Since(origin) }

// Targets are the targets of the configuration, in its order.
func (g *Gateway) Targets() []*Target { return g.targets }

// Close closes the idle connections to endpoints. Requests in flight go on.
func (g *Gateway) Close() {
	for _, t := range g.targets {
		t.base.CloseIdleConnections()
	}
}

// ServeHTTP answers a request by its route. It panics with [http.ErrAbortHandler], which net/http's server takes for an order
// to abort the transfer, where the target broke off in the middle of an answer: its client must not take it for whole.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := g.newUpload(w, r)
	defer body.end()
	if r.Method == "PRI" { // net/http's server hands on the preface of HTTP/2, which it does not speak here; no target should see it
		w.Header().Set("Connection", "close")
		problem(w, r, http.StatusHTTPVersionNotSupported, "This port speaks HTTP/1.1.")
		return
	}
	if r.Method == http.MethodConnect {
		problem(w, r, http.StatusNotImplemented, "This is a reverse proxy, it makes no tunnels.")
		return
	}
	route := g.table.find(r.Method, r.URL.Path)
	if route == nil {
		if methods := g.table.allowed(r.URL.Path); len(methods) > 0 {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			problem(w, r, http.StatusMethodNotAllowed, "No route takes this method for this path.")
			return
		}
		problem(w, r, http.StatusNotFound, "No route has this path.")
		return
	}
	if isHealthCheck(r) {
		// Refusing these would take a process out of service, or have it restarted, because it is protected (F65).
		check := *r
		if body != nil {
			check.Body = body
		}
		route.target.unguarded.ServeHTTP(w, &check)
		return
	}
	x := &exchange{Context: r.Context(), gateway: g, route: route, target: route.target, in: r, arrived: g.now(), upload: body}
	x.trusted = route.priority.trusts(r)
	x.priority = route.priority.standard
	if x.trusted {
		x.priority = route.priority.of(r.Header)
		if d, ok := cortexhttp.CallerTimeout(r.Header); ok {
			ctx, cancel := context.WithTimeout(x.Context, d)
			defer cancel()
			x.Context = ctx
		}
	}
	whole := false
	defer func() { x.finish(whole) }()
	call := r.WithContext(x.callContext())
	if body != nil {
		call.Body = body
	}
	route.target.proxy.ServeHTTP(w, call)
	whole = true
}

// isHealthCheck reports whether a request passes unguarded. The path alone would make it a way around the guard for work of any
// kind: such a check reads, but for those of gRPC.
func isHealthCheck(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return (r.Body == nil || r.Body == http.NoBody) && cortexhttp.IsHealthCheck(r)
	case http.MethodPost:
		return strings.HasPrefix(r.URL.Path, "/grpc.") && cortexhttp.IsHealthCheck(r)
	}
	return false
}

func problem(w http.ResponseWriter, r *http.Request, status int, detail string) {
	cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: status, Detail: detail})
}

// adminTargets is the view of the targets for the admin port.
func (g *Gateway) adminTargets() []admin.Target {
	ts := make([]admin.Target, len(g.targets))
	for i, t := range g.targets {
		ts[i] = admin.Target{Name: t.Name, Engine: t.Engine, Endpoints: t.Endpoints, Traffic: t.trafficNow}
	}
	return ts
}

// priorityOf is the priority of the call that an outgoing request belongs to.
func priorityOf(r *http.Request) cortex.Priority { return exchangeOf(r.Context()).priority }

// reportOf is where the transport tells what it did for that call.
func reportOf(r *http.Request) *cortexhttp.Report { return &exchangeOf(r.Context()).report }
