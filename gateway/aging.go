package gateway

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// aging is the standard transport with an age. That closes no connection for being old, and one of HTTP/2 has requests all the time on a
// busy target: it would go for ever to where the DNS pointed once. So requests go over to another transport, and what goes on at the one
// before ends there. The first of them goes alone and the others follow when it has been answered, or else all of them would make
// connections at once.
type aging struct {
	make     func(dialer) *http.Transport
	dial     dialer
	age      time.Duration // 0 = any
	patience time.Duration // with the first request to a new transport
	current  atomic.Pointer[era]
}

// An era is a transport in its time.
type era struct {
	*http.Transport
	born time.Duration // since origin
	next atomic.Pointer[era]
	open atomic.Int64 // connections
}

func newAging(age, patience time.Duration, dial dialer, standard func(dialer) *http.Transport) *aging {
	a := &aging{make: standard, dial: dial, age: age, patience: patience}
	a.current.Store(a.begin())
	return a
}

func (a *aging) begin() *era {
	e := &era{born: monotonic()}
	e.Transport = a.make(func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := a.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		e.open.Add(1)
		return &eraConn{Conn: nc, era: e}, nil
	})
	return e
}

func (a *aging) RoundTrip(r *http.Request) (*http.Response, error) {
	e := a.current.Load()
	if a.age <= 0 || monotonic()-e.born < a.age {
		return e.RoundTrip(r)
	}
	n := e.next.Load()
	if n == nil {
		if n = a.begin(); e.next.CompareAndSwap(nil, n) {
			res, err := n.RoundTrip(r)
			if err == nil {
				a.relieve(e, n)
			}
			return res, err
		}
		n = e.next.Load()
	}
	if monotonic()-n.born < a.patience {
		return e.RoundTrip(r)
	}
	a.relieve(e, n) // the first is long under way, or it failed: there may be nothing else to go to
	return n.RoundTrip(r)
}

func (a *aging) relieve(e, n *era) {
	if a.current.CompareAndSwap(e, n) {
		// Not at once: who took e a moment ago would find its connection closed, and make one for a single request.
		time.AfterFunc(time.Second, func() { e.settle(time.Second) })
	}
}

// settle closes the connections of a transport that has no more new requests, as they become idle.
func (e *era) settle(wait time.Duration) {
	e.CloseIdleConnections()
	if e.open.Load() > 0 {
		time.AfterFunc(wait, func() { e.settle(min(2*wait, time.Minute)) })
	}
}

// CloseIdleConnections closes those of the transport that requests go to, and of the next.
func (a *aging) CloseIdleConnections() {
	e := a.current.Load()
	e.CloseIdleConnections()
	if n := e.next.Load(); n != nil {
		n.CloseIdleConnections()
	}
}

type eraConn struct {
	net.Conn
	era  *era
	once sync.Once
}

func (c *eraConn) Close() error {
	c.once.Do(func() { c.era.open.Add(-1) })
	return c.Conn.Close()
}
