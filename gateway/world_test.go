package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// A world is a network in memory with a gateway in it, for a synctest bubble: the whole of net/http runs on virtual time, so
// that timeouts, silences and storms take none and do not depend on the machine. The bubble itself fails the test if a
// goroutine is left at its end.
type world struct {
	t *testing.T

	mu        sync.Mutex
	listeners map[string]*listener
	open      atomic.Int64 // connections, both ends counted as one
	dials     atomic.Int64
}

// inWorld runs a test in a world of its own.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, listeners: map[string]*listener{}}
		test(t, w)
	})
}

type listener struct {
	world  *world
	addr   address
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

func (w *world) listen(addr string) *listener {
	l := &listener{world: w, addr: address(addr), conns: make(chan net.Conn), closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners[addr] != nil {
		w.t.Fatalf("%s is in use", addr)
	}
	w.listeners[addr] = l
	return l
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.world.mu.Lock()
		delete(l.world.listeners, string(l.addr))
		l.world.mu.Unlock()
	})
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// conn is one end of a connection, with the addresses that a net.Pipe lacks.
type conn struct {
	net.Conn
	local, remote address
	closed        sync.Once
	world         *world
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Close() error {
	c.closed.Do(func() { c.world.open.Add(-1) })
	return c.Conn.Close()
}

// dialFrom returns a dialer of the host with that address.
func (w *world) dialFrom(host string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		w.dials.Add(1)
		w.mu.Lock()
		l := w.listeners[addr]
		w.mu.Unlock()
		refused := &net.OpError{Op: "dial", Net: "tcp", Addr: address(addr), Err: syscall.ECONNREFUSED}
		if l == nil {
			return nil, refused
		}
		here, there := net.Pipe()
		local := address(host + ":40000")
		w.open.Add(2)
		a := &conn{Conn: here, local: local, remote: address(addr), world: w}
		b := &conn{Conn: there, local: address(addr), remote: local, world: w}
		select {
		case l.conns <- b:
			return a, nil
		case <-l.closed:
			a.Close()
			b.Close()
			return nil, refused
		case <-ctx.Done():
			a.Close()
			b.Close()
			return nil, ctx.Err()
		}
	}
}

// serve serves a handler at an address until the test ends, or the server is closed.
func (w *world) serve(addr string, h http.Handler) *http.Server {
	s := &http.Server{Handler: h}
	w.serveBy(addr, s)
	return s
}

func (w *world) serveBy(addr string, s *http.Server) {
	l := w.listen(addr)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			w.t.Error(err)
		}
	}()
	w.t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// gateway serves a gateway with that configuration at gateway.test:80.
func (w *world) gateway(yaml string) *Gateway {
	w.t.Helper()
	return w.gatewayAt("gateway.test:80", yaml)
}

func (w *world) gatewayAt(addr, yaml string) *Gateway {
	w.t.Helper()
	f, err := config.Parse("test.yaml", []byte(yaml))
	if err != nil {
		w.t.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(addr)
	g, err := New(f, Options{Dial: w.dialFrom(host), Lookup: noAddress})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(g.Close) // after the server, which is closed first
	w.serve(addr, g)
	return g
}

// noAddress is the lookup of a world whose hosts are known by their names alone.
func noAddress(_ context.Context, host string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// trusted and stranger are the addresses of two clients.
const (
	trusted  = "127.0.0.1"
	stranger = "192.0.2.1"
)

// client is a client at that address; it follows no redirects and asks for no compression.
func (w *world) client(host string) *http.Client {
	tr := &http.Transport{DialContext: w.dialFrom(host), DisableCompression: true}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// answer is a response read to its end.
type answer struct {
	status int
	header http.Header
	body   string
	err    error // of the transfer
	took   time.Duration
}

func (w *world) get(c *http.Client, url string, header ...string) answer {
	w.t.Helper()
	return w.do(c, "GET", url, "", header...)
}

func (w *world) do(c *http.Client, method, url, body string, header ...string) answer {
	w.t.Helper()
	var b io.Reader
	if body != "" {
		b = strings.NewReader(body)
	}
	r, err := http.NewRequest(method, url, b)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	return send(c, r)
}

func send(c *http.Client, r *http.Request) answer {
	began := time.Now()
	res, err := c.Do(r)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return answer{status: res.StatusCode, header: res.Header, body: string(text), err: err, took: time.Since(began)}
}

// one is the configuration of a gateway in front of up.test:80, with more lines for its target and its route.
func one(target, route string) string {
	return "targets:\n  up:\n    endpoints: [http://up.test:80]\n" + indent(4, target) +
		"routes:\n  - path: /\n    target: up\n" + indent(4, route)
}

func indent(n int, lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		if strings.TrimSpace(line) != "" {
			b.WriteString(strings.Repeat(" ", n) + strings.TrimRight(line, "\n") + "\n")
		}
	}
	return b.String()
}

// status answers every request with a status and its text.
func status(code int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		io.WriteString(w, http.StatusText(code))
	})
}

// counter counts the requests of a handler.
type counter struct {
	n    atomic.Int64
	next http.Handler
}

func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.n.Add(1)
	c.next.ServeHTTP(w, r)
}

// sequence answers with one handler after the other, the last of them for ever.
func sequence(hs ...http.Handler) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := min(int(n.Add(1)), len(hs)) - 1
		hs[i].ServeHTTP(w, r)
	})
}

// hang answers nothing until its client goes away.
var hang = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body) // the server sees that a client has gone only when the body is read
	<-r.Context().Done()
})
