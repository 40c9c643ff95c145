package demo

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// memory is a network of pipes, so that the whole demonstration runs in virtual time.
type memory struct {
	mu    sync.Mutex
	ports map[string]*listener
}

type listener struct {
	address string
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *listener) Addr() net.Addr { return addr(l.address) }

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

// end is one end of a pipe that has the address of a socket on loopback.
type end struct{ net.Conn }

func (end) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (m *memory) listen() (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &listener{address: "127.0.0.1:" + strconv.Itoa(20_000+len(m.ports)), conns: make(chan net.Conn), closed: make(chan struct{})}
	m.ports[l.address] = l
	return l, nil
}

func (m *memory) dial(ctx context.Context, _, address string) (net.Conn, error) {
	m.mu.Lock()
	l := m.ports[address]
	m.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens at " + address)
	}
	client, server := net.Pipe()
	select {
	case l.conns <- end{server}:
		return end{client}, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestDemo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{ports: map[string]*listener{}}
		var out bytes.Buffer
		start := time.Now()
		r, err := Run(t.Context(), Options{Out: &out, net: network{m.listen, m.dial}})
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < 25*time.Second || d > 40*time.Second {
			t.Errorf("it took %v", d)
		}
		g, p := r.Guarded, r.Plain
		if g.Calls != p.Calls || g.Calls < 2900 {
			t.Errorf("%d and %d calls", g.Calls, p.Calls)
		}
		if g.Goodput < 0.55 || g.Goodput < 2*p.Goodput {
			t.Errorf("goodput %.3f with the guard, %.3f without", g.Goodput, p.Goodput)
		}
		if g.Attempts*3 > p.Attempts {
			t.Errorf("%d attempts with the guard, %d without", g.Attempts, p.Attempts)
		}
		if g.ByPriority[9] < 0.70 || g.ByPriority[9] < g.ByPriority[2] {
			t.Errorf("by priority: %v", g.ByPriority)
		}
		if len(g.Recovery) != 2 || g.Recovery[0] < 0 || g.Recovery[0] > 2*time.Second || g.Recovery[1] < 0 || g.Recovery[1] > 2*time.Second {
			t.Errorf("recovery %v", g.Recovery)
		}
		text := out.String()
		for _, want := range []string{"HANG", "SLOW ×4", "open", "answered in time", "attempts at the upstream", "never"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in the output", want)
			}
		}
		if strings.Contains(text, "\x1b") {
			t.Error("colours or cursor moves where there is no terminal")
		}
	})
}

func TestDemoEndsEarlyWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{ports: map[string]*listener{}}
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		var out bytes.Buffer
		r, err := Run(ctx, Options{Out: &out, Terminal: true, net: network{m.listen, m.dial}})
		if err != nil {
			t.Fatal(err)
		}
		if r.Guarded.Calls < 200 || r.Guarded.Calls > 260 {
			t.Errorf("%d calls in 2.5 s", r.Guarded.Calls)
		}
		if !strings.Contains(out.String(), "\x1b[2K") || !strings.Contains(out.String(), "answered in time") {
			t.Error("no live table, or no summary")
		}
	})
}
