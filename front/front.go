// Package front is the port that clients reach: its protocols, TLS, and what a client may take of it.
//
//	s := front.New(front.Config{Handler: h, Limits: front.Limits{H2C: true, ConnectionsPerClient: 1000, …}})
//	l, err := front.Listen("0.0.0.0:8080")
//	…
//	err = s.Serve(l) // until Shutdown or Close
//
// It is net/http's server with what that leaves to others: connections are limited, altogether and for each client; a client that
// sends its header too slowly, takes its answer too slowly or cancels streams as fast as it opens them is cut; and each of these
// is answered where there is an answer, and counted.
//
// # What a client gets
//
//   - 400: its method is no token, its host none, or its length on HTTP/2 not a number; and whatever net/http refuses itself.
//   - 408: its header was not there within ReadHeaderTimeout (HTTP/1 without TLS; otherwise the connection is closed). A connection
//     that is idle is closed without a word.
//   - 414: the target of its request is longer than MaxURLBytes.
//   - 429 and Retry-After: it has more than ConnectionsPerClient connections. The connection is closed after the answer. Above
//     twice the number connections are reset as they come, which costs no TLS handshake. Or it has as many requests of HTTP/2
//     under way, over all of its connections; then other requests go on.
//   - 503 and Retry-After: all clients together have MaxConnections requests of HTTP/2 under way.
//   - 431: its header has more than MaxHeaderFields lines, or is larger than MaxHeaderBytes. The latter is net/http's own answer,
//     which does not pass through Problem; without TLS it becomes a 414 where the header is not past its first line.
//   - 505: it speaks HTTP/2 where there is none.
//
// On HTTP/1 the connection is closed after each of these; of an HTTP/2 connection, but for 429, the other streams go on.
//
// # Two lengths
//
// After a request that may say its length both by Content-Length and by a transfer coding the connection is closed, as RFC 9112, 6.1
// demands: it may be a part of another one to whoever is in front. Over TLS that is every request of HTTP/1 with a coding.
//
// # Slow readers
//
// A connection that takes no byte of what there is to write for WriteTimeout is reset, within a quarter of it more. An HTTP/2
// stream whose window stays shut as long for the next 32 KiB is reset alone. Time in which there is nothing to write does not
// count: streams may be silent for hours. It is the same for connections that were hijacked (WebSocket and the like), on which
// no other deadline is left.
//
// # HTTP/2
//
// net/http's server itself bounds a header block, CONTINUATION frames included, closes a connection whose control frames (PING,
// SETTINGS, RST_STREAM) pile up unread, and gives a client 10 s for its preface and 2 s more for its SETTINGS. A connection from
// which nothing came for 15 s is asked if it is there, and closed if it does not say so in 15 s more. This is also what ends a header block that is dribbled in: nobody
// can answer a PING in the middle of one.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a [Server] is made of.
type Config struct {
	Handler http.Handler // of all requests, "OPTIONS *" too; required
	TLS     *tls.Config  // nil = plain text; ALPN follows Limits.HTTP2, whatever its NextProtos are
	Limits

	// BaseContext is what the contexts of all requests come from; nil = context.Background.
	BaseContext context.Context

	// ErrorLog gets what net/http's server has to say, and errors of accept, of those at most one line in 10 s; nil = the log package's.
	ErrorLog *log.Logger

	// Problem writes the answers of this package; headers may be set already. nil = one line of plain text.
	Problem func(w http.ResponseWriter, r *http.Request, status int, detail string)
}

// Limits can be changed while the server runs, by [Server.SetLimits]. What is marked "new connections" holds for those only that
// are made after the change.
type Limits struct {
	HTTP2      bool // over TLS, beside HTTP/1.1; new connections
	H2C        bool // without TLS by prior knowledge, beside HTTP/1.1; new connections
	MaxStreams int  // of an HTTP/2 connection, at a time; 0 = 250; new connections

	MaxConnections       int // at a time, hijacked ones too; 0 = no limit. Further ones wait in the kernel's queue
	ConnectionsPerClient int // at a time, of an IPv4 address or an IPv6 /64; 0 = no limit
	// Both bound the streams of HTTP/2 that are being answered, too, as each does the work of a connection of HTTP/1: those of all
	// clients together, and those of one client over all of its connections.

	ReadHeaderTimeout time.Duration // for the whole header of a request, and the TLS handshake; 0 = none; new connections
	IdleTimeout       time.Duration // between requests; 0 = none; new connections
	WriteTimeout      time.Duration // without a byte taken while there is something to write; 0 = none

	MaxHeaderBytes  int // of a request's header; net/http adds up to 4 KiB; 0 = 1 MiB; new connections
	MaxHeaderFields int // lines of a request's header; 0 = no limit
	MaxURLBytes     int // of a request's target; 0 = no limit
}

const (
	defaultStreams = 250

	// pingAfter is how long nothing may come on an HTTP/2 connection before it is asked if it is there, pingTimeout how long it may
	// take to say so. Together they bound how long a half-open connection, or half a header, is kept.
	pingAfter   = 15 * time.Second
	pingTimeout = 15 * time.Second

	// What a connection may have sent of bodies that nobody has read yet; a quarter for one stream, so that one that is not read
	// does not stop the others.
	receiveConn   = 1 << 20
	receiveStream = 256 << 10

	// receiveFrame is the largest frame: net/http keeps a buffer of the largest one that came, for as long as the connection lives.
	receiveFrame = 16 << 10
)

// A Server serves a handler on listeners. Its methods are safe for concurrent use.
type Server struct {
	config Config
	limits atomic.Pointer[Limits]
	stats  counters

	mu          sync.Mutex
	room        sync.Cond // there may be room for a connection, or we are closing
	closing     bool
	stop        chan struct{} // closed with closing
	listeners   map[*net.Listener]struct{}
	accepting   int // slots that loops in accept have for the connections to come
	open        int
	clients     map[netip.Addr]*peer
	streaming   atomic.Int64 // streams of HTTP/2 that are being answered
	current     *generation
	generations map[*generation]struct{} // the current one, and old ones that have connections
}

// A generation is a server of net/http, whose settings cannot be changed, and the connections that are made under them.
type generation struct {
	http   *http.Server
	tls    *tls.Config
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}

	// Guarded by Server.mu.
	live    int
	started bool
	retired bool
}

// New returns a server. It panics without a handler.
func New(c Config) *Server {
	if c.Handler == nil {
		panic("front: Config.Handler is nil")
	}
	if c.BaseContext == nil {
		c.BaseContext = context.Background()
	}
	if c.Problem == nil {
		c.Problem = func(w http.ResponseWriter, _ *http.Request, status int, detail string) { http.Error(w, detail, status) }
	}
	s := &Server{config: c, stop: make(chan struct{}), listeners: map[*net.Listener]struct{}{}, clients: map[netip.Addr]*peer{},
		generations: map[*generation]struct{}{}}
	s.room.L = &s.mu
	l := c.Limits
	s.limits.Store(&l)
	s.begin(&l)
	return s
}

// keepAlive finds clients that are gone without a word, in a minute: net's own would take two and a half.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

// Listen opens a TCP port for [Server.Serve], with TCP's keep-alive such that clients that are gone without a word are found
// out in a minute.
func Listen(address string) (net.Listener, error) {
	c := net.ListenConfig{KeepAliveConfig: keepAlive}
	return c.Listen(context.Background(), "tcp", address)
}

// begin makes a new generation the current one. s.mu is held, but in New.
func (s *Server) begin(l *Limits) {
	if g := s.current; g != nil {
		g.retired = true
		g.Close()
		if g.live == 0 {
			delete(s.generations, g)
		}
	}
	g := &generation{conns: make(chan net.Conn), closed: make(chan struct{})}
	streams := l.MaxStreams
	if streams <= 0 {
		streams = defaultStreams
	}
	g.http = &http.Server{
		Handler:           http.HandlerFunc(s.serveHTTP),
		ErrorLog:          s.config.ErrorLog,
		BaseContext:       func(net.Listener) context.Context { return s.config.BaseContext },
		ConnContext:       connContext,
		ConnState:         connState,
		ReadHeaderTimeout: l.ReadHeaderTimeout,
		IdleTimeout:       l.IdleTimeout,
		MaxHeaderBytes:    l.MaxHeaderBytes,
		Protocols:         new(http.Protocols),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          streams,
			MaxReadFrameSize:              receiveFrame,
			MaxReceiveBufferPerConnection: receiveConn,
			MaxReceiveBufferPerStream:     receiveStream,
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingTimeout,
			CountError:                    s.stats.http2Error,
		},
		DisableGeneralOptionsHandler: true,
	}
	g.http.Protocols.SetHTTP1(true)
	if s.config.TLS != nil {
		g.http.Protocols.SetHTTP2(l.HTTP2)
		g.tls = withALPN(s.config.TLS, l.HTTP2)
	} else {
		g.http.Protocols.SetUnencryptedHTTP2(l.H2C)
	}
	s.current = g
	s.generations[g] = struct{}{}
}

// Accept makes a generation the listener of its server.
func (g *generation) Accept() (net.Conn, error) {
	select {
	case c := <-g.conns:
		return c, nil
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept. The connections that there are live on.
func (g *generation) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

// Addr is of no use: a generation has the connections of all listeners.
func (g *generation) Addr() net.Addr { return &net.TCPAddr{} }

// SetLimits changes the limits. Connections that there are stay, also those that would be too many by now.
func (s *Server) SetLimits(l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.limits.Swap(&l)
	s.room.Broadcast()
	if !s.closing && (old.HTTP2 != l.HTTP2 || old.H2C != l.H2C || old.MaxStreams != l.MaxStreams ||
		old.ReadHeaderTimeout != l.ReadHeaderTimeout || old.IdleTimeout != l.IdleTimeout || old.MaxHeaderBytes != l.MaxHeaderBytes) {
		s.begin(&l)
	}
}

// Serve takes connections from a listener until Shutdown or Close, whereupon it returns [http.ErrServerClosed], or until the
// listener fails for good. It closes the listener. It may be called for several listeners; the limits are for all of them together.
func (s *Server) Serve(l net.Listener) error {
	once := &onceListener{Listener: l}
	l = once
	defer l.Close()
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return http.ErrServerClosed
	}
	s.listeners[&l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, &l)
	}()
	for {
		c, err := s.accept(l)
		if err != nil {
			return err
		}
		s.hand(c)
	}
}

// hand gives a connection to the current generation.
func (s *Server) hand(c *conn) {
	for {
		s.mu.Lock()
		g := s.current
		if s.closing {
			s.mu.Unlock()
			c.Close()
			return
		}
		g.live++
		c.generation = g
		if !g.started {
			g.started = true
			go g.http.Serve(g) // until g is closed: by begin, or by net/http's own Shutdown and Close
		}
		s.mu.Unlock()
		var nc net.Conn = c
		if g.tls != nil {
			c.encrypted = true
			nc = tls.Server(c, g.tls)
		}
		select {
		case g.conns <- nc:
			return
		case <-g.closed:
			s.mu.Lock()
			s.leave(c)
			s.mu.Unlock()
		}
	}
}

// leave takes a connection from its generation. s.mu is held.
func (s *Server) leave(c *conn) {
	g := c.generation
	if g == nil {
		return
	}
	c.generation = nil
	g.live--
	if g.retired && g.live == 0 {
		delete(s.generations, g)
	}
}

// end closes the listeners and returns the servers to be shut down.
func (s *Server) end() ([]*http.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.closing = true
		close(s.stop)
		s.room.Broadcast()
	}
	var errs []error
	for l := range s.listeners {
		errs = append(errs, (*l).Close())
	}
	all := make([]*http.Server, 0, len(s.generations))
	for g := range s.generations {
		all = append(all, g.http)
	}
	return all, errors.Join(errs...)
}

// Shutdown closes the listeners and the idle connections, and waits for the requests in flight; HTTP/2 clients are told to go
// away. Hijacked connections are the caller's to end. The error is the context's if that ended first.
func (s *Server) Shutdown(ctx context.Context) error {
	all, err := s.end()
	errs := make(chan error, len(all))
	for _, h := range all {
		go func() { errs <- h.Shutdown(ctx) }()
	}
	for range all {
		err = errors.Join(err, <-errs)
	}
	return err
}

// Close closes the listeners and all connections that were not hijacked.
func (s *Server) Close() error {
	all, err := s.end()
	for _, h := range all {
		err = errors.Join(err, h.Close())
	}
	return err
}

// onceListener can be closed twice.
type onceListener struct {
	net.Listener
	once sync.Once
	err  error
}

func (l *onceListener) Close() error {
	l.once.Do(func() { l.err = l.Listener.Close() })
	return l.err
}

// withALPN returns a configuration that offers the protocols there are, also where another one is chosen by the client's hello.
func withALPN(c *tls.Config, http2 bool) *tls.Config {
	protocols := ALPN(http2)
	c = c.Clone()
	c.NextProtos = protocols
	if choose := c.GetConfigForClient; choose != nil {
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			chosen, err := choose(hello)
			if err != nil || chosen == nil || slices.Equal(chosen.NextProtos, protocols) {
				return chosen, err
			}
			chosen = chosen.Clone()
			chosen.NextProtos = protocols
			return chosen, nil
		}
	}
	return c
}

// ALPN is what a TLS configuration offers in NextProtos.
func ALPN(http2 bool) []string {
	if http2 {
		return []string{"h2", "http/1.1"}
	}
	return []string{"http/1.1"}
}
