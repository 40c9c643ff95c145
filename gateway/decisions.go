package gateway

import (
	"context"
	"crypto/tls"
	"iter"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/decision"
	"github.com/seed-a29ca62a/cortex/front"
)

// newOthers returns the registry of the targets that are not in the configuration, nil where there are none.
func (g *Gateway) newOthers(f *config.File) *cortex.Registry {
	if f.Decisions == nil || !f.Decisions.Create {
		return nil
	}
	return cortex.NewRegistry(func(string) cortex.Config {
		var c cortex.Config
		if d := g.state.Load().file.Decisions; d != nil {
			c = d.Template
		}
		c.Logger, c.Now = g.logger, g.options.Now
		return c
	}, f.Decisions.MaxTargets)
}

// engine is that of a target of the configuration in force, or nil.
func (g *Gateway) engine(target string) *cortex.Engine {
	if t := g.state.Load().byName[target]; t != nil {
		return t.Engine
	}
	return nil
}

// engines are those of the targets of the configuration in force.
func (g *Gateway) engines() iter.Seq[*cortex.Engine] {
	return func(yield func(*cortex.Engine) bool) {
		for _, t := range g.Targets() {
			if !yield(t.Engine) {
				return
			}
		}
	}
}

// otherEngines are those that were made for the decision service, without those that a target of the configuration has taken the place of.
func (g *Gateway) otherEngines() iter.Seq[*cortex.Engine] {
	return func(yield func(*cortex.Engine) bool) {
		if g.others == nil {
			return
		}
		s := g.state.Load()
		g.others.All(func(e *cortex.Engine) bool { return s.byName[e.Name()] != nil || yield(e) })
	}
}

// decisions is the port of the decision service.
type decisions struct {
	port    net.Listener
	service http.Handler
	server  *http.Server
	stop    chan struct{} // closed when streams are to end
	once    sync.Once
}

// newDecisions makes the port of a server.
func newDecisions(s *Server, c *config.Decisions, port net.Listener) *decisions {
	d := &decisions{port: bounded(port, decisionConnections()), stop: make(chan struct{})}
	d.service = decision.New(decision.Config{Known: s.gateway.engine, All: s.gateway.engines, Others: s.gateway.others,
		Token: bearer(&s.secrets.decisionsBearer), MaxTokens: c.MaxTokens, MaxWatches: c.MaxWatches, Stop: d.stop, Log: s.log, Now: s.gateway.now})
	d.server = decision.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.draining.Load() {
			w.Header().Set("Connection", "close") // as serveHTTP says it
		}
		d.service.ServeHTTP(w, r)
	}), s.secrets.decisionsTLS())
	d.server.ErrorLog = log.New(faultWriter{s.log}, "", 0)
	return d
}

func (d *decisions) serve(l net.Listener) error {
	if d.server.TLSConfig != nil {
		return d.server.ServeTLS(l, "", "")
	}
	return d.server.Serve(l)
}

// shutdown lets requests end, and streams at once.
func (d *decisions) shutdown(ctx context.Context) error {
	d.once.Do(func() { close(d.stop) })
	return d.server.Shutdown(ctx)
}

// Close cuts what is there.
func (d *decisions) Close() error {
	d.once.Do(func() { close(d.stop) })
	err := d.server.Close()
	d.port.Close() // which the server knows only once it serves
	return err
}

// status is what the admin port shows.
func (d *decisions) status(g *Gateway) *admin.Decisions {
	a := new(admin.Decisions)
	a.Stats, _ = decision.StatsOf(d.service)
	if g.others != nil {
		a.Targets = g.others.Len()
		a.Evicted, a.Overflowed = g.others.Counts()
	}
	return a
}

// mostDecisionConnections bounds the connections to the decision service: programs keep one or a few.
const mostDecisionConnections = 1024

// decisionConnections is how many there may be. It leaves the gateway most of the file descriptors.
func decisionConnections() int {
	if n, ok := front.DescriptorLimit(); ok {
		return int(min(mostDecisionConnections, max(n/8, 1)))
	}
	return mostDecisionConnections
}

// bounded closes at once what is accepted while there are that many connections.
func bounded(l net.Listener, most int) net.Listener {
	return &boundedListener{Listener: l, most: int64(most)}
}

type boundedListener struct {
	net.Listener
	most int64
	open atomic.Int64
}

func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &boundedConn{Conn: c, listener: l}, nil
		}
		l.open.Add(-1)
		c.Close()
	}
}

type boundedConn struct {
	net.Conn
	listener *boundedListener
	once     sync.Once
}

func (c *boundedConn) Close() error {
	c.once.Do(func() { c.listener.open.Add(-1) })
	return c.Conn.Close()
}

// decisionsTLS is nil where the port is one of plain text.
func (s *secrets) decisionsTLS() *tls.Config { return current(&s.decisions) }
