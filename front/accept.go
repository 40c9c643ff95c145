package front

import (
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// Errors of accept that pass (no file descriptor, no memory) are waited out from acceptWait, doubling, up to acceptWaitMax: long
// enough not to spin, short enough to be back at once. They are logged once in logEvery.
const (
	acceptWait    = 5 * time.Millisecond
	acceptWaitMax = time.Second
	logEvery      = 10 * time.Second
)

// accept takes the next connection that is to be served.
func (s *Server) accept(l net.Listener) (*conn, error) {
	wait, failed, logged := acceptWait, 0, time.Time{}
	for {
		if !s.reserve() {
			return nil, http.ErrServerClosed
		}
		nc, err := l.Accept()
		if err == nil {
			if c := s.admit(nc); c != nil {
				return c, nil
			}
			wait = acceptWait
			continue
		}
		s.mu.Lock()
		s.accepting--
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return nil, http.ErrServerClosed
		}
		if t, ok := err.(interface{ Temporary() bool }); !ok || !t.Temporary() {
			return nil, err
		}
		s.stats.acceptErrors.Add(1)
		failed++
		if now := time.Now(); now.Sub(logged) >= logEvery {
			s.logf("front: accept: %v (%d times); trying again", err, failed)
			logged, failed = now, 0
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.stop:
			t.Stop()
		}
		wait = min(2*wait, acceptWaitMax)
	}
}

func (s *Server) logf(format string, args ...any) {
	if s.config.ErrorLog != nil {
		s.config.ErrorLog.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}

// reserve waits until there is room for one more connection, and takes it. It reports false if there will be none any more.
func (s *Server) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	waited := false
	for {
		if s.closing {
			return false
		}
		most := s.limits.Load().MaxConnections
		if most <= 0 || s.open+s.accepting < most {
			s.accepting++
			return true
		}
		if !waited {
			waited = true
			s.stats.full.Add(1)
		}
		s.room.Wait()
	}
}

// admit makes a reserved place the connection's, or gives it back and closes the connection, in which case it returns nil.
func (s *Server) admit(nc net.Conn) *conn {
	addr := clientOf(nc.RemoteAddr())
	most := s.limits.Load().ConnectionsPerClient
	s.mu.Lock()
	s.accepting--
	var of *peer // nil for what has no address
	n := 0
	if addr.IsValid() {
		if of = s.clients[addr]; of != nil {
			n = of.conns
		}
	}
	limited := most > 0 && addr.IsValid()
	if limited && n >= 2*most {
		s.mu.Unlock()
		s.stats.clientReset.Add(1)
		reset(nc)
		return nil
	}
	if addr.IsValid() {
		if of == nil {
			of = &peer{addr: addr}
			s.clients[addr] = of
		}
		of.conns++
	}
	s.open++
	s.mu.Unlock()
	c := &conn{Conn: nc, server: s, client: of, over: limited && n >= most}
	s.stats.accepted.Add(1)
	return c
}

// gone gives back what a connection had.
func (s *Server) gone(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if of := c.client; of != nil {
		if of.conns--; of.conns == 0 {
			delete(s.clients, of.addr)
		}
	}
	s.leave(c)
	s.room.Signal()
}

// peer is a client that has connections.
type peer struct {
	addr      netip.Addr
	conns     int          // guarded by Server.mu
	streaming atomic.Int64 // streams of HTTP/2 that are being answered
}

// clientOf is what stands for a client: its IPv4 address, or the /64 that its IPv6 address is of, since anyone with one has all of
// it. It is the zero Addr for what has no address, which is not limited.
func clientOf(a net.Addr) netip.Addr {
	var ip netip.Addr
	switch a := a.(type) {
	case nil:
		return ip
	case *net.TCPAddr:
		ip = a.AddrPort().Addr()
	default:
		p, err := netip.ParseAddrPort(a.String())
		if err != nil {
			return ip
		}
		ip = p.Addr()
	}
	ip = ip.Unmap()
	if ip.Is6() {
		p, _ := ip.Prefix(64) // without the zone
		ip = p.Addr()
	}
	return ip
}

// reset closes a connection at once: nothing is sent any more, and the kernel keeps nothing of it.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(sec int) error }); ok {
		l.SetLinger(0)
	}
	c.Close()
}
