package gateway

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/fallback"
)

// A Target is one guarded downstream of a gateway.
type Target struct {
	Name      string
	Engine    *cortex.Engine
	Endpoints []string // URLs

	endpoints []*url.URL
	turn      atomic.Uint32
	base      *http.Transport
	proxy     *httputil.ReverseProxy
	unguarded *httputil.ReverseProxy // for health checks
	caches    []*fallback.Cache[*stored]
	traffic   traffic
	view      view
}

func newTarget(c *config.Target, g *Gateway, o Options) (*Target, error) {
	ec := c.Engine
	ec.Name, ec.Logger, ec.Now = c.Name, g.log, o.Now
	e, err := cortex.New(ec)
	if err != nil {
		return nil, err
	}
	t := &Target{Name: c.Name, Engine: e, base: newBase(c.Transport, o)}
	for _, e := range c.Endpoints {
		t.endpoints = append(t.endpoints, e.URL)
		t.Endpoints = append(t.Endpoints, e.URL.String())
	}
	tc := cortexhttp.TransportConfig{Engine: e, Base: t.base, Priority: priorityOf, Report: reportOf, Prepare: t.prepare,
		OwnsRequest: true, MaxReplayBytes: c.ReplayLimit}
	if c.ReplayLimit == 0 {
		tc.MaxReplayBytes = -1
	}
	if c.NonIdempotent {
		tc.RetryNonIdempotent = func(*http.Request) bool { return true }
	}
	guarded, err := cortexhttp.NewTransport(tc)
	if err != nil {
		return nil, err
	}
	// What goes wrong with single calls is counted. At the level at which one looks for it, it is told too.
	faults := slog.NewLogLogger(g.log.Handler(), slog.LevelDebug)
	t.proxy = &httputil.ReverseProxy{Transport: guarded, Rewrite: rewrite, ModifyResponse: passOn, ErrorHandler: failed,
		BufferPool: buffers{}, ErrorLog: faults}
	t.unguarded = &httputil.ReverseProxy{Transport: t.base, BufferPool: buffers{}, ErrorLog: faults,
		Rewrite: func(p *httputil.ProxyRequest) {
			forward(p, false)
			direct(p.Out, t.endpoints[t.next()])
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			problem(w, r, http.StatusBadGateway, "The target does not answer health checks.")
		}}
	return t, nil
}

func newBase(c config.Transport, o Options) *http.Transport {
	dial := o.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: c.DialTimeout}).DialContext
	}
	return &http.Transport{ // no proxy of the environment: a gateway goes where its configuration says
		DialContext:           dial,
		ForceAttemptHTTP2:     true, // to https endpoints that offer it
		DisableCompression:    true, // answers pass as they are
		MaxIdleConnsPerHost:   c.MaxIdlePerHost,
		IdleConnTimeout:       c.IdleTimeout,
		TLSHandshakeTimeout:   c.DialTimeout,
		ExpectContinueTimeout: time.Second,
	}
}

// next is the endpoint whose turn it is.
func (t *Target) next() uint32 {
	if len(t.endpoints) == 1 {
		return 0
	}
	return t.turn.Add(1) % uint32(len(t.endpoints))
}

// prepare sends an attempt to an endpoint: the first of a call to the one whose turn it is, every retry to the one after the
// endpoint that has just failed.
func (t *Target) prepare(r *http.Request, attempt int) (*http.Request, error) {
	x := exchangeOf(r.Context())
	if attempt == 0 {
		x.endpoint = t.next()
	} else {
		x.endpoint = (x.endpoint + 1) % uint32(len(t.endpoints))
	}
	direct(r, t.endpoints[x.endpoint])
	return r, nil
}

// direct points a request at an endpoint, below its base path.
func direct(r *http.Request, endpoint *url.URL) {
	if endpoint.Path == "" || endpoint.Path == "/" {
		r.URL.Scheme, r.URL.Host = endpoint.Scheme, endpoint.Host
	} else {
		host := r.Host
		p := httputil.ProxyRequest{Out: r}
		p.SetURL(endpoint)
		r.Host = host
	}
	if endpoint.Scheme == "https" {
		r.Host = ""
	}
}

// buffers is the pool of buffers that answers are copied through.
type buffers struct{}

const bufferSize = 32 << 10

var pool = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (buffers) Get() []byte  { return pool.Get().(*[bufferSize]byte)[:] }
func (buffers) Put(b []byte) { pool.Put((*[bufferSize]byte)(b)) }

// view is the target's pressure as told to trusted peers. It is made anew a few times a second and not for every answer.
type view struct {
	due   atomic.Int64
	value atomic.Pointer[[]string]
}

const viewAge = 100 * time.Millisecond

func (t *Target) pressureHeader(now time.Duration) []string {
	due := t.view.due.Load()
	v := t.view.value.Load()
	if v == nil || int64(now) >= due && t.view.due.CompareAndSwap(due, int64(now+viewAge)) {
		v = &[]string{cortexhttp.FormatPressure(t.Engine.Pressure())}
		t.view.value.Store(v)
	}
	return *v
}
