package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httputil"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/balance"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// A Target is one guarded downstream of a gateway.
type Target struct {
	Name   string
	Engine *cortex.Engine

	config  *config.Target
	pool    *balance.Pool
	base    *bases
	logger  *slog.Logger
	guarded *cortexhttp.Transport
	traffic *traffic
	view    view

	checks  atomic.Int64 // health checks that pass unguarded
	calls   atomic.Int64 // of clients, under way
	retired atomic.Bool  // no new calls come
}

// newTarget makes the target of a configuration, or returns the one of that name before if it is the same. Nothing of it works before
// start.
func (g *Gateway) newTarget(c *config.Target, before *Target) (*Target, error) {
	if before != nil && reflect.DeepEqual(before.config, c) {
		return before, before.base.check()
	}
	t := &Target{Name: c.Name, config: c, traffic: new(traffic), logger: g.logger}
	if before != nil {
		t.traffic = before.traffic
	}
	if before != nil && reflect.DeepEqual(before.config.Engine, c.Engine) {
		t.Engine = before.Engine
	} else {
		ec := c.Engine
		ec.Name, ec.Logger, ec.Now = c.Name, g.logger, g.options.Now
		var err error
		if t.Engine, err = cortex.New(ec); err != nil {
			return nil, err
		}
		if before != nil { // what an operator has ordered holds until it is taken back
			t.Engine.Force(before.Engine.Pressure().Forcing)
		}
	}
	var err error
	var base *bases
	if before != nil {
		base = before.base
	}
	if t.base, err = newBases(c, g.options.Dial, base); err != nil {
		return nil, err
	}
	if t.pool, err = t.newPool(g); err != nil {
		return nil, err
	}
	tc := cortexhttp.TransportConfig{Engine: t.Engine, Base: t.base, Priority: priorityOf, Report: reportOf, Prepare: prepare,
		OnAttempt: attempted, Excuse: t.excuse, OwnsRequest: true, MaxReplayBytes: c.ReplayLimit, Memory: g.memory, Shadow: inShadow, Stranger: byStranger}
	if c.ReplayLimit == 0 {
		tc.MaxReplayBytes = -1
	}
	if c.NonIdempotent {
		tc.RetryNonIdempotent = func(*http.Request) bool { return true }
	}
	if t.guarded, err = cortexhttp.NewTransport(tc); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Target) newPool(g *Gateway) (*balance.Pool, error) {
	b := t.config.Balance
	c := balance.Config{
		SlowStart: b.SlowStart, Resolve: b.Resolve, Lookup: g.options.Lookup, Now: g.options.Now,
		Rand:  func() float64 { return float64(g.random()>>11) / (1 << 53) },
		Eject: balance.Eject(b.Eject), OnEvent: t.happened,
	}
	for _, e := range t.config.Endpoints {
		c.Endpoints = append(c.Endpoints, balance.Endpoint{URL: e.URL, Weight: e.Weight})
	}
	if k := b.Check; k != nil {
		c.Check = &balance.Check{Of: k.Path, Interval: k.Interval, Timeout: k.Timeout, Healthy: k.Healthy, Unhealthy: k.Unhealthy}
		c.Probe = t.probe
	}
	return balance.New(c)
}

// probe is an active check of an endpoint.
func (t *Target) probe(ctx context.Context, m *balance.Member) error {
	x := &exchange{Context: ctx, target: t, member: m}
	r, err := http.NewRequestWithContext(x, http.MethodGet, "http://endpoint"+t.config.Balance.Check.Path, nil)
	if err != nil {
		return err
	}
	u := *m.URL()
	if r.URL.Host = u.Host; u.Scheme == "https" { // h2c is http for the transport
		r.URL.Scheme = u.Scheme
	}
	r.Host = m.Endpoint().Host
	r.Header["User-Agent"] = []string{"cortex-check"}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}

// inherit takes over what is known of the endpoints that stay. With another identity of the gateway's, or other authorities, they are others.
func (t *Target) inherit(before *Target) {
	if t.config.Transport.TLS == before.config.Transport.TLS {
		t.pool.Inherit(before.pool)
	}
}

// start begins the work behind the target.
func (t *Target) start() { t.pool.Start(context.Background()) }

// hold and release stand around a call of a client.
func (t *Target) hold() { t.calls.Add(1) }

func (t *Target) release() {
	if t.calls.Add(-1) == 0 && t.retired.Load() {
		t.closeIdle() // what the last call has left
	}
}

// closeIdle closes idle connections, also those that are only just becoming idle: on HTTP/2 that is a little later than the end of the
// last answer, and nobody asks net/http's transport any more.
func (t *Target) closeIdle() {
	t.base.CloseIdleConnections()
	if t.base.h2c != nil || t.base.secure != nil {
		time.AfterFunc(time.Second, t.base.CloseIdleConnections)
	}
}

// retire ends the work behind the target. Calls under way go on; the connections that they leave are closed after the last of them, but
// for those of transports that an heir, which may be nil, goes on with.
func (t *Target) retire(heir *Target) {
	if heir != nil {
		t.base.heir.Store(heir.base)
	} else {
		t.base.over.Store(true)
	}
	t.retired.Store(true)
	t.pool.Close()
	t.closeIdle()
}

// prepare sends an attempt to an endpoint.
func prepare(r *http.Request, _ int) (*http.Request, error) {
	x := exchangeOf(r.Context())
	direct(r, x.begin())
	x.stampGRPC(r.Header)
	return r, nil
}

// attempted is told how it went.
func attempted(a cortexhttp.AttemptResult) {
	exchangeOf(a.Request.Context()).done(a.Outcome, a.Latency)
}

// excuse reports whether a failed attempt was its endpoint's own illness and says nothing of the target.
func (t *Target) excuse(r *http.Request) bool { return t.pool.Blames(exchangeOf(r.Context()).member) }

// direct points a request at an endpoint, below its base path.
func direct(r *http.Request, m *balance.Member) {
	u := m.URL()
	if u.Path == "" || u.Path == "/" {
		r.URL.Scheme, r.URL.Host = u.Scheme, u.Host
	} else {
		host := r.Host
		p := httputil.ProxyRequest{Out: r}
		p.SetURL(u)
		r.Host = host
	}
	switch u.Scheme {
	case "h2c": // for the transport it is http
		r.URL.Scheme = "http"
	case "https":
		r.Host = m.Endpoint().Host
	}
}

// endpoints are the URLs that the configuration gives.
func (t *Target) endpoints() []string {
	urls := make([]string, len(t.config.Endpoints))
	for i, e := range t.config.Endpoints {
		urls[i] = e.URL.String()
	}
	return urls
}

// view is the target's pressure as told to trusted peers and in the access log. It is made anew a few times a second and not for
// every answer.
type view struct {
	due   atomic.Int64
	value atomic.Pointer[seen]
}

type seen struct {
	header []string
	cps    float64
}

const viewAge = 100 * time.Millisecond

func (t *Target) seen(now time.Duration) *seen {
	due := t.view.due.Load()
	v := t.view.value.Load()
	if v == nil || int64(now) >= due && t.view.due.CompareAndSwap(due, int64(now+viewAge)) {
		p := t.Engine.Pressure()
		v = &seen{[]string{cortexhttp.FormatPressure(p)}, p.CPS}
		t.view.value.Store(v)
	}
	return v
}

func (t *Target) pressureHeader(now time.Duration) []string { return t.seen(now).header }

func (t *Target) cps(now time.Duration) float64 { return t.seen(now).cps }

// members are the target's endpoints as they are, for the admin port.
func (t *Target) members() []admin.Endpoint {
	all := t.pool.Snapshot()
	es := make([]admin.Endpoint, len(all))
	for i, m := range all {
		e := admin.Endpoint{URL: m.Endpoint.String(), Weight: int(math.Round(m.Weight)), InFlight: m.InFlight, Attempts: m.Ended(),
			Failures: m.Failed + m.TimedOut, Ejections: m.Ejections}
		if m.URL.Host != m.Endpoint.Host {
			e.Address = m.URL.Host
		}
		switch {
		case m.State == balance.StateEjected:
			e.State = admin.EndpointEjected
		case m.State == balance.StateCheckedOut:
			e.State = admin.EndpointCheckedOut
		case m.Share < 1:
			e.State = admin.EndpointSlow
		}
		es[i] = e
	}
	return es
}

// happened tells the log of what changes among the endpoints.
func (t *Target) happened(e balance.Event) {
	attrs := []any{"target", t.Name}
	level := slog.LevelInfo
	if e.Member != nil {
		attrs = append(attrs, "endpoint", e.Member.Endpoint().String(), "address", e.Member.URL().Host)
	} else {
		attrs = append(attrs, "endpoint", e.Endpoint.String())
	}
	switch e.Kind {
	case balance.Ejected:
		level, attrs = slog.LevelWarn, append(attrs, "for", e.For)
	case balance.CheckedOut, balance.LookupFailed:
		level, attrs = slog.LevelWarn, append(attrs, "error", e.Err)
	case balance.Removed:
		t.base.CloseIdleConnections() // nobody will ask for those to it; the others are made again
	}
	t.logger.Log(context.Background(), level, "endpoint "+e.Kind.String(), attrs...)
}
