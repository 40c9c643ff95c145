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
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/config"
)

// A Server is a gateway on its port, with the admin port beside it.
//
//	s, err := gateway.Listen(file, options)
//	if err != nil { … }
//	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
//	defer stop()
//	err = s.Run(ctx)
type Server struct {
	gateway *Gateway
	drain   config.Drain
	log     *slog.Logger

	front, admin         *http.Server
	frontPort, adminPort net.Listener // adminPort is nil where there is no admin port
	cut                  context.CancelFunc
	draining             atomic.Bool
}

// Listen makes the gateway of a configuration and opens its ports. The error names the port that could not be opened or what
// of the configuration cannot be used. Run or Close the server.
func Listen(f *config.File, o Options) (*Server, error) {
	front, err := listen("listen", f.Listen)
	if err != nil {
		return nil, err
	}
	var adminPort net.Listener
	if f.Admin.Enabled {
		if adminPort, err = listen("admin.listen", f.Admin.Listen); err != nil {
			front.Close()
			return nil, err
		}
	}
	s, err := newServer(f, o, front, adminPort)
	if err != nil {
		front.Close()
		if adminPort != nil {
			adminPort.Close()
		}
		return nil, err
	}
	return s, nil
}

// newServer makes a server on ports that are open.
func newServer(f *config.File, o Options, front, adminPort net.Listener) (*Server, error) {
	g, err := New(f, o)
	if err != nil {
		return nil, err
	}
	ctx, cut := context.WithCancel(context.Background())
	s := &Server{gateway: g, drain: f.Drain, log: g.log, frontPort: front, adminPort: adminPort, cut: cut}
	faults := log.New(faultWriter{s.log}, "", 0)
	s.front = &http.Server{
		Handler:           g,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          faults,
		ReadHeaderTimeout: f.Server.ReadHeaderTimeout,
		IdleTimeout:       f.Server.IdleTimeout,
		MaxHeaderBytes:    int(f.Server.MaxHeaderBytes),

		DisableGeneralOptionsHandler: true, // "OPTIONS *" is the target's to answer
	}
	s.admin = &http.Server{
		Handler:           admin.New(g.adminTargets, s.Ready),
		ErrorLog:          faults,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	return s, nil
}

// faultWriter takes what net/http's server has to say. A panic is a fault of the program. All else is wrong with a
// connection and the client's affair; at the level at which one looks for it, it is there.
type faultWriter struct{ log *slog.Logger }

func (f faultWriter) Write(line []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.HasPrefix(line, []byte("http: panic serving")) {
		level = slog.LevelError
	}
	f.log.Log(context.Background(), level, string(bytes.TrimSpace(line)))
	return len(line), nil
}

func listen(key, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("gateway: %s: %w", key, err)
	}
	return l, nil
}

// Addr is the address that clients reach the gateway at, with the port that the system chose where the configuration had 0.
func (s *Server) Addr() net.Addr { return s.frontPort.Addr() }

// AdminAddr is the address of the admin port, nil where it is disabled.
func (s *Server) AdminAddr() net.Addr {
	if s.adminPort == nil {
		return nil
	}
	return s.adminPort.Addr()
}

// Gateway is the gateway that is served.
func (s *Server) Gateway() *Gateway { return s.gateway }

// Ready reports whether the server takes traffic: from when it listens until it is told to stop.
func (s *Server) Ready() bool { return !s.draining.Load() }

// Run serves until ctx ends and then stops in an order that loses nothing: it says on the admin port that it is not ready any
// more but goes on accepting for as long as drain.delay, so that balancers look away; it stops accepting and lets the requests
// in flight, upgraded connections too, end within drain.timeout; it cuts what is left; last goes the admin port. The error is
// nil after an orderly stop, [ErrCut] if something was cut, else why a port failed. Run may be called once.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 2)
	go func() { failed <- serve(s.front, s.frontPort, "gateway") }()
	ports := 1
	s.log.Info("listening", "address", s.Addr().String())
	if s.adminPort != nil {
		ports++
		go func() { failed <- serve(s.admin, s.adminPort, "admin port") }()
		s.log.Info("admin port", "address", s.AdminAddr().String())
	}
	var err error
	select {
	case <-ctx.Done():
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

func serve(h *http.Server, l net.Listener, what string) error {
	if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("gateway: %s: %w", what, err)
	}
	return nil
}

// ErrCut is what Run returns when requests were still in flight at the end of drain.timeout and were cut off.
var ErrCut = errors.New("gateway: requests were cut off at the end of drain.timeout")

// stop is the orderly stop, up to where nothing is in flight any more.
func (s *Server) stop(failed <-chan error, ports *int) error {
	s.draining.Store(true)
	s.log.Info("draining", "delay", s.drain.Delay, "timeout", s.drain.Timeout)
	if s.drain.Delay > 0 {
		t := time.NewTimer(s.drain.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case err := <-failed:
			*ports--
			return err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.drain.Timeout)
	defer cancel()
	err := s.front.Shutdown(ctx)
	if err == nil {
		err = s.gateway.upgraded.wait(ctx) // Shutdown knows nothing of them
	}
	if err != nil {
		s.log.Warn("drain timeout: requests are cut off", "timeout", s.drain.Timeout)
		return ErrCut
	}
	s.log.Info("drained")
	return nil
}

// Close stops at once and cuts what is in flight.
func (s *Server) Close() {
	s.draining.Store(true)
	s.cut() // ends upgraded connections too, which the server does not know of
	for _, c := range []io.Closer{s.front, s.admin, s.frontPort, s.adminPort} {
		if c != nil {
			c.Close()
		}
	}
	s.gateway.Close()
}
