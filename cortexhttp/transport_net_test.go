package cortexhttp

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// clientEngine is an engine whose budget and circuit do not get into the way of a test, unless it says so.
func clientEngine(t testing.TB, change ...func(*cortex.Config)) *cortex.Engine {
	t.Helper()
	c := cortex.Config{Name: "target", Rand: rand.NewPCG(1, 2), Backoff: backoff.Config{Base: time.Millisecond},
		Budget: budget.Config{Capacity: 1e6}, Limit: limit.Config{Off: limit.Circuit}}
	for _, f := range change {
		f(&c)
	}
	e, err := cortex.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func noRetries(c *cortex.Config)   { c.DisableRetries = true }
func withCircuit(c *cortex.Config) { c.Limit.Off = 0 }
func attemptsCutAfter(d time.Duration) func(*cortex.Config) {
	return func(c *cortex.Config) { c.Timeout = timeout.Config{Min: d, Max: d, Bootstrap: d} }
}

// pipeNet is a network of one listener in memory. It knows its connections.
type pipeNet struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	dials  atomic.Int32
	open   atomic.Int32
	most   atomic.Int32 // open at once
	refuse atomic.Int32 // dials to be refused
}

func newPipeNet() *pipeNet {
	return &pipeNet{conns: make(chan net.Conn), closed: make(chan struct{})}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe:80" }

func (p *pipeNet) Addr() net.Addr { return pipeAddr{} }

func (p *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeNet) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

var errRefused = errors.New("connection refused")

func (p *pipeNet) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if p.refuse.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errRefused}
	}
	client, server := net.Pipe()
	select {
	case p.conns <- server:
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Net: network, Err: errRefused}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	p.dials.Add(1)
	n := p.open.Add(1)
	for m := p.most.Load(); n > m && !p.most.CompareAndSwap(m, n); m = p.most.Load() {
	}
	return &pipeConn{Conn: client, net: p}, nil
}

type pipeConn struct {
	net.Conn
	net  *pipeNet
	once sync.Once
}

func (c *pipeConn) Close() error {
	c.once.Do(func() { c.net.open.Add(-1) })
	return c.Conn.Close()
}

// world is a server in memory with a guarded client; made inside a synctest bubble, which checks in the end that nobody is
// left.
type world struct {
	t         *testing.T
	net       *pipeNet
	engine    *cortex.Engine
	base      *http.Transport
	transport *Transport
	client    *http.Client
	mu        sync.Mutex
	seen      []AttemptResult
}

func newWorld(t *testing.T, engine *cortex.Engine, h http.HandlerFunc, change ...func(*TransportConfig, *http.Server)) *world {
	t.Helper()
	w := &world{t: t, net: newPipeNet(), engine: engine}
	w.base = &http.Transport{DialContext: w.net.dial, DisableCompression: true}
	cfg := TransportConfig{Engine: engine, Base: w.base, OnAttempt: func(r AttemptResult) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen = append(w.seen, r)
	}}
	srv := &http.Server{Handler: h}
	for _, f := range change {
		f(&cfg, srv)
	}
	var err error
	if w.transport, err = NewTransport(cfg); err != nil {
		t.Fatal(err)
	}
	w.client = &http.Client{Transport: w.transport}
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(w.net)
	}()
	t.Cleanup(func() {
		w.transport.CloseIdleConnections()
		srv.Close()
		<-done
	})
	return w
}

// results are the attempts that are over.
func (w *world) results() []AttemptResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]AttemptResult(nil), w.seen...)
}

func (w *world) wantOutcomes(want ...cortex.Outcome) {
	w.t.Helper()
	var got []cortex.Outcome
	for _, r := range w.results() {
		got = append(got, r.Outcome)
	}
	if len(got) != len(want) {
		w.t.Errorf("outcomes %v, want %v", got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			w.t.Errorf("outcomes %v, want %v", got, want)
			return
		}
	}
}

// request makes one whose body, if any, has neither a length nor GetBody.
func request(t testing.TB, ctx context.Context, method, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = struct{ io.Reader }{strings.NewReader(body)}
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://target/", r)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// finish reads a response to its end.
func finish(t testing.TB, resp *http.Response, err error) (status int, body string) {
	t.Helper()
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	return resp.StatusCode, string(b)
}

// statusSequence answers those statuses one after the other, and the last for ever.
func statusSequence(statuses ...int) http.HandlerFunc {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) {
		i := min(int(n.Add(1)), len(statuses)) - 1
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(statuses[i])
	}
}
