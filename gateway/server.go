package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/front"
)

// A Server is a gateway on its port, with the admin port and that of the decision service beside it.
//
//	s, err := gateway.Listen(file, options)
//	if err != nil { … }
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
//	defer stop()
//	err = s.Run(ctx)
type Server struct {
	gateway *Gateway
	options Options
	log     *slog.Logger

	front                *front.Server
	admin                *http.Server
	frontPort, adminPort net.Listener // nil where there is none of the kind
	decisions            *decisions   // nil where there is none
	secrets              *secrets
	cut                  context.CancelFunc
	draining             atomic.Bool
	drained              chan struct{} // closed when the server is asked to stop by other means than the context of Run
	drainOnce            sync.Once
	hurried              chan struct{} // closed when the drain is to wait no longer
	hurryOnce            sync.Once
	onDrain              func()      // nil = nothing
	onReload             func(error) // nil = nothing

	reloading sync.Mutex
	reloads   atomic.Pointer[admin.Reloads]
}

// Listen makes the gateway of a configuration and opens its ports. The error names the port that could not be opened or what
// of the configuration cannot be used. Run or Close the server.
func Listen(f *config.File, o Options) (*Server, error) {
	var ports []net.Listener
	open := func(key string, listen func() (net.Listener, error)) (net.Listener, error) {
		l, err := listen()
		if err != nil {
			return nil, fmt.Errorf("gateway: %s: %w", key, err)
		}
		ports = append(ports, l)
		return l, nil
	}
	s, err := func() (s *Server, err error) {
		var frontPort, adminPort, decisionsPort net.Listener
		if len(f.Targets) > 0 {
			if frontPort, err = open("listen", func() (net.Listener, error) { return front.Listen(f.Listen) }); err != nil {
				return nil, err
			}
		}
		if f.Admin.Enabled {
			if adminPort, err = open("admin.listen", func() (net.Listener, error) { return net.Listen("tcp", f.Admin.Listen) }); err != nil {
				return nil, err
			}
		}
		if f.Decisions != nil {
			if decisionsPort, err = open("decisions.listen", func() (net.Listener, error) { return net.Listen("tcp", f.Decisions.Listen) }); err != nil {
				return nil, err
			}
		}
		if s, err = newServer(f, o, frontPort, adminPort); err == nil && decisionsPort != nil {
			s.decisions = newDecisions(s, f.Decisions, decisionsPort)
		}
		return s, err
	}()
	if err != nil {
		for _, l := range ports {
			l.Close()
		}
		return nil, err
	}
	return s, nil
}

// newServer makes a server on ports that are open, as yet without the decision service.
func newServer(f *config.File, o Options, frontPort, adminPort net.Listener) (*Server, error) {
	limits, err := limitsOf(f)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	secrets, err := newSecrets(f, o.Logger)
	if err != nil {
		return nil, err
	}
	g, err := New(f, o)
	if err != nil {
		return nil, err
	}
	ctx, cut := context.WithCancel(context.Background())
	s := &Server{gateway: g, options: o, log: o.Logger, frontPort: frontPort, adminPort: adminPort, secrets: secrets, cut: cut,
		drained: make(chan struct{}), hurried: make(chan struct{})}
	s.reloads.Store(new(admin.Reloads))
	faults := log.New(faultWriter{s.log}, "", 0)
	s.front = front.New(front.Config{Handler: http.HandlerFunc(s.serveHTTP), TLS: secrets.frontTLS(), Limits: limits, BaseContext: ctx, ErrorLog: faults,
		Problem: g.refused})
	s.admin = &http.Server{
		Handler: admin.New(admin.Config{Targets: g.adminTargets, Ready: s.Ready, Server: s.status, Token: secrets.token(), Log: s.log,
			Control: s.control()}),
		ErrorLog:          faults,
		TLSConfig:         secrets.adminTLS(),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	return s, nil
}

// serveHTTP has the gateway answer. In the delay before a stop answers say that their connection ends (on HTTP/2 that makes a GOAWAY): the
// next request then goes elsewhere, and does not meet a connection that is just being closed.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	s.gateway.ServeHTTP(w, r)
}

// mostConnections is how many there may be unless the configuration says more: with 20 to 30 KiB for each they take 2 GiB.
const mostConnections = 65_536

// limitsOf are the limits of a configuration. The error says that there are too few file descriptors for them.
func limitsOf(f *config.File) (front.Limits, error) {
	c := f.Server
	l := front.Limits{HTTP2: c.HTTP2, H2C: c.H2C, MaxStreams: c.MaxStreams, MaxConnections: c.MaxConnections,
		ConnectionsPerClient: c.ConnectionsPerClient, ReadHeaderTimeout: c.ReadHeaderTimeout, IdleTimeout: c.IdleTimeout,
		WriteTimeout: c.WriteTimeout, MaxHeaderBytes: int(c.MaxHeaderBytes), MaxHeaderFields: c.MaxHeaderFields, MaxURLBytes: int(c.MaxURLBytes)}
	others := 0
	if f.Decisions != nil {
		others = decisionConnections()
	}
	if l.MaxConnections > 0 {
		if err := front.CheckDescriptors(l.MaxConnections, others); err != nil {
			return l, fmt.Errorf("gateway: server.max_connections: %w", err)
		}
		return l, nil
	}
	l.MaxConnections = mostConnections
	if n, ok := front.DescriptorLimit(); ok {
		l.MaxConnections = min(l.MaxConnections, front.MaxConnectionsFor(n, others))
	}
	return l, nil
}

// control is what the admin port can do.
func (s *Server) control() admin.Control {
	c := admin.Control{Drain: s.Drain, ConfigYAML: func() ([]byte, error) { return s.gateway.state.Load().file.Effective() }}
	if s.options.Load != nil {
		c.Reload = func(context.Context) error { return s.Reload() }
	}
	if level := s.options.Level; level != nil {
		c.Level, c.SetLevel = level.Level, level.Set
	}
	return c
}

// refused answers what the port refuses before it is a request for the gateway.
func (g *Gateway) refused(w http.ResponseWriter, r *http.Request, status int, detail string) {
	g.problem(g.state.Load(), w, r, status, "http_request_error", detail)
}

// faultWriter takes what net/http's server has to say. A panic is a fault of the program. All else is wrong with a
// connection and the client's affair; at the level at which one looks for it, it is there.
type faultWriter struct{ log *slog.Logger }

func (f faultWriter) Write(line []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.HasPrefix(line, []byte("http: panic serving")) || bytes.HasPrefix(line, []byte("http2: panic serving")) {
		level = slog.LevelError
	}
	f.log.Log(context.Background(), level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// Check reports what of a configuration cannot be used beyond what [config.Parse] can tell: files that it names, file descriptors. It
// opens no port.
func Check(f *config.File) error {
	_, err := limitsOf(f)
	if _, failed := newSecrets(f, slog.New(slog.DiscardHandler)); failed != nil {
		err = errors.Join(err, failed)
	}
	err = errors.Join(err, checkCluster(f.Cluster), checkAccessLog(f.AccessLog))
	g := newGateway(f, Options{})
	s, failed := g.build(f, nil)
	if failed != nil {
		return errors.Join(err, failed)
	}
	s.discard(nil)
	return err
}

// Addr is the address that clients reach the gateway at, with the port that the system chose where the configuration had 0; nil where
// there is the decision service alone.
func (s *Server) Addr() net.Addr { return addrOf(s.frontPort) }

// AdminAddr is the address of the admin port, nil where it is disabled.
func (s *Server) AdminAddr() net.Addr { return addrOf(s.adminPort) }

// DecisionsAddr is the address of the decision service, nil where there is none.
func (s *Server) DecisionsAddr() net.Addr {
	if s.decisions == nil {
		return nil
	}
	return addrOf(s.decisions.port)
}

func addrOf(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// Gateway is the gateway that is served.
func (s *Server) Gateway() *Gateway { return s.gateway }

// Ready reports whether the server takes traffic: from when it listens until it is told to stop.
func (s *Server) Ready() bool { return !s.draining.Load() }

// Drain has Run stop as it does at the end of its context. It returns at once.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.drained) }) }

// Hurry ends the drain at once, one that is under way or one to come, and cuts what is in flight: what a second SIGTERM means to who sends it.
func (s *Server) Hurry() { s.hurryOnce.Do(func() { close(s.hurried) }) }

// Run serves until ctx ends, or Drain, and then stops in an order that loses nothing: it says on the admin port that it is not ready any
// more but goes on accepting for as long as drain.delay, so that balancers look away, and ends kept connections with their next
// answer; it stops accepting and lets the requests in flight, upgraded connections too, end within drain.timeout; it cuts what is
// left; last goes the admin port. The decision service goes as the gateway does. [Server.Hurry] cuts both waits short. The error is nil after
// an orderly stop, [ErrCut] if something was cut, else why a port failed. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 3)
	ports := 0
	begin := func(h func(net.Listener) error, l net.Listener, what, log string) {
		ports++
		go func() { failed <- serve(h, l, what) }()
		s.log.Info(log, "address", l.Addr().String())
	}
	if s.frontPort != nil {
		begin(s.front.Serve, s.frontPort, "gateway", "listening")
	}
	if s.adminPort != nil {
		h := s.admin.Serve
		if s.admin.TLSConfig != nil {
			h = func(l net.Listener) error { return s.admin.ServeTLS(l, "", "") }
		}
		begin(h, s.adminPort, "admin port", "admin port")
	}
	if d := s.decisions; d != nil {
		begin(d.serve, d.port, "decisions port", "decisions port")
	}
	var err error
	select {
	case <-ctx.Done():
		err = s.stop(failed, &ports)
	case <-s.drained:
		err = s.stop(failed, &ports)
	case err = <-failed:
		ports--
		s.draining.Store(true)
	}
	s.Close()
	for range ports {
		err = errors.Join(err, <-failed)
	}
	return err
}

func serve(h func(net.Listener) error, l net.Listener, what string) error {
	if err := h(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("gateway: %s: %w", what, err)
	}
	return nil
}

// ErrCut is what Run returns when requests were still in flight at the end of drain.timeout, or at [Server.Hurry], and were cut off.
var ErrCut = errors.New("gateway: requests were cut off at the end of the drain")

// stop is the orderly stop, up to where nothing is in flight any more.
func (s *Server) stop(failed <-chan error, ports *int) error {
	drain := s.gateway.state.Load().file.Drain
	s.draining.Store(true)
	if s.onDrain != nil {
		s.onDrain()
	}
	s.log.Info("draining", "delay", drain.Delay, "timeout", drain.Timeout)
	if drain.Delay > 0 {
		t := time.NewTimer(drain.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-s.hurried:
		case err := <-failed:
			*ports--
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), drain.Timeout)
	defer cancel()
	go func() {
		select {
		case <-s.hurried:
			cancel()
		case <-ctx.Done():
		}
	}()
	asked := make(chan error, 1)
	go func() {
		if s.decisions == nil {
			asked <- nil
		} else {
			asked <- s.decisions.shutdown(ctx)
		}
	}()
	err := s.front.Shutdown(ctx)
	if err == nil {
		err = s.gateway.upgraded.wait(ctx) // Shutdown knows nothing of them
	}
	if err = errors.Join(err, <-asked); err != nil {
		select {
		case <-s.hurried:
			s.log.Warn("told to stop once more: requests are cut off")
		default:
			s.log.Warn("drain timeout: requests are cut off", "timeout", drain.Timeout)
		}
		return ErrCut
	}
	s.log.Info("drained")
	return nil
}

// Close stops at once and cuts what is in flight.
func (s *Server) Close() {
	s.draining.Store(true)
	s.gateway.cutting.Store(true)
	for _, c := range []io.Closer{s.front, s.admin, s.frontPort, s.adminPort} {
		if c != nil {
			c.Close()
		}
	}
	if s.decisions != nil {
		s.decisions.Close()
	}
	// After the connections, or clients would be told in an answer that it was they who went. It ends upgraded ones too, which the server
	// does not know of.
	s.cut()
	s.gateway.Close()
}

// Reload reads the configuration anew, by Options.Load, and puts it in force; see [Gateway.Reload]. Certificates and the admin port's
// token are read anew too. Where anything cannot be used, the configuration in force stays as it is, and whole. The file of the access log
// is opened anew in any case: it was moved away by someone who does not ask what becomes of the configuration.
func (s *Server) Reload() error {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	err := s.reload()
	r := *s.reloads.Load()
	r.Last, r.Problems = time.Now(), nil
	if err != nil {
		r.Failed++
		r.Problems = problems(err)
		s.log.Error("reload: the configuration in force stays", "error", err)
	} else {
		r.OK++
		s.log.Info("reloaded")
	}
	s.reloads.Store(&r)
	if s.onReload != nil {
		s.onReload(err)
	}
	return err
}

func (s *Server) reload() error {
	stale := s.gateway.ReopenLog()
	err := s.reconfigure(stale)
	if err != nil && err != stale {
		err = errors.Join(err, stale)
	}
	return err
}

// reconfigure puts what Options.Load reads in force, or nothing of it. stale is why the access log in force could not be opened anew; with
// a configuration that has another one it does not matter.
func (s *Server) reconfigure(stale error) (err error) {
	defer s.gateway.recovered(&err)
	now := s.gateway.state.Load().file
	next := now
	if s.options.Load != nil {
		if next, err = s.options.Load(); err != nil {
			return err
		}
	}
	if err := fixed(now, next); err != nil {
		return err
	}
	limits, err := limitsOf(next)
	if err != nil {
		return err
	}
	commit, err := s.secrets.load(next)
	if err != nil {
		return err
	}
	if stale != nil && reflect.DeepEqual(now.AccessLog, next.AccessLog) {
		return stale
	}
	if err := s.gateway.fleet.check(); err != nil {
		return err
	}
	if err := s.gateway.Reload(next); err != nil { // the last that can fail
		return err
	}
	commit()
	s.front.SetLimits(limits)
	if s.options.Level != nil && now.Log.Level != next.Log.Level { // else what an operator has set stays
		s.options.Level.Set(next.Log.Level)
	}
	return nil
}

// Watched are the files that the configuration in force names, and the time between looks at them whether they have changed; 0 = they are
// not watched.
func (s *Server) Watched() (every time.Duration, paths []string) {
	f := s.gateway.state.Load().file
	if f.Reload.Watch {
		every = f.Reload.Interval
	}
	return every, f.Paths()
}

// OnDrain has a function called when Run begins to stop. It is to be set before Run.
func (s *Server) OnDrain(f func()) { s.onDrain = f }

// OnReload has a function called at the end of every reload, whoever asked for it, with its error. No other reload begins before it
// returns. It is to be set before Run.
func (s *Server) OnReload(f func(error)) { s.onReload = f }

// problems are the lines of an error.
func problems(err error) []string {
	var lines []string
	for line := range bytes.Lines([]byte(err.Error())) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines = append(lines, string(line))
		}
	}
	return lines
}

// status is what the admin port shows of the server.
func (s *Server) status() admin.Server {
	f := s.front.Stats()
	g := s.gateway
	a := admin.Server{
		Reloads: *s.reloads.Load(),
		Connections: admin.Connections{Open: s.front.Connections(),
			Refused: []admin.Count{{Cause: "client_limit", N: f.ClientReset}, {Cause: "http2", N: f.NoHTTP2}, {Cause: "accept_error", N: f.AcceptErrors}},
			Cut: []admin.Count{{Cause: "slow_header", N: f.SlowHeaders}, {Cause: "slow_reader", N: f.SlowReaders}, {Cause: "slow_stream", N: f.SlowStreams},
				{Cause: "rapid_reset", N: f.RapidResets}, {Cause: "lost_ping", N: f.LostPings}, {Cause: "http2_error", N: f.HTTP2Errors}}},
		Memory: admin.Memory{Used: g.memory.Used(), Limit: g.memory.Limit()},
	}
	for i, status := range admin.LimitStatuses {
		switch status {
		case http.StatusRequestTimeout:
			a.LimitAnswers[i] = f.SlowHeaders + g.lateBodies.Load()
		case http.StatusRequestEntityTooLarge:
			a.LimitAnswers[i] = g.longBodies.Load()
		case http.StatusRequestURITooLong:
			a.LimitAnswers[i] = f.URL414
		case http.StatusTooManyRequests:
			a.LimitAnswers[i] = f.Client429
		case http.StatusRequestHeaderFieldsTooLarge:
			a.LimitAnswers[i] = f.Header431
		}
	}
	if l := g.access.Load(); l != nil {
		n := l.Stats()
		a.AccessLogDropped = n.Dropped + n.Failed
	}
	a.Fleet, _ = g.fleet.status()
	if s.decisions != nil {
		a.Decisions = s.decisions.status(g)
	}
	return a
}
