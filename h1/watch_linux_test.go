package h1

import (
	"bufio"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// busyConn is a connection to whose reader this process does not come before it is let.
type busyConn struct {
	*net.TCPConn
	let <-chan struct{}
}

func (c *busyConn) Read(p []byte) (int, error) {
	<-c.let
	return c.TCPConn.Read(p)
}

// arrivals are what a transport tells.
type arrivals struct {
	mu   sync.Mutex
	told []bool
}

func (a *arrivals) tell(_ context.Context, here bool) {
	a.mu.Lock()
	a.told = append(a.told, here)
	a.mu.Unlock()
}

func (a *arrivals) list() []bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]bool(nil), a.told...)
}

// await looks until so many things were told.
func (a *arrivals) await(tr *Transport, n int) []bool {
	for len(a.list()) < n {
		tr.Look()
		runtime.Gosched()
	}
	return a.list()
}

func busyTransport(t *testing.T) (tr *Transport, a *arrivals, let chan struct{}) {
	if theWatch() == nil {
		t.Skip("no epoll")
	}
	a, let = new(arrivals), make(chan struct{})
	tr = newTransport(t, Config{OnArrival: a.tell, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &busyConn{c.(*net.TCPConn), let}, nil
	}})
	return tr, a, let
}

func TestAnAnswerIsKnownOfBeforeItIsRead(t *testing.T) {
	tr, a, let := busyTransport(t)
	send := make(chan string)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readHead(r); err != nil {
				return
			}
			for s := range send {
				if s == "" {
					break
				}
				io.WriteString(c, s)
			}
		}
	})
	for range 2 { // on the same connection
		before := len(a.list())
		done := make(chan *http.Response)
		go func() {
			resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil))
			if err != nil {
				t.Error(err)
			}
			done <- resp
		}()
		send <- "HTTP/1.1 103 Early Hints\r\n\r\n" // it is read: the request is there
		if got := a.await(tr, before+1); !got[before] {
			t.Fatal(got)
		}
		let <- struct{}{} // it was not the answer
		if got := a.await(tr, before+2); got[before+1] {
			t.Fatal(got)
		}
		tr.Look()
		if n := len(a.list()); n != before+2 {
			t.Fatalf("%v: nothing more has arrived", a.list())
		}
		send <- okAnswer
		if got := a.await(tr, before+3); !got[before+2] {
			t.Fatal(got)
		}
		let <- struct{}{}
		resp := <-done
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		send <- ""
		for range 10 { // what was read is not there any more
			tr.Look()
		}
		if n := len(a.list()); n != before+3 {
			t.Fatal(a.list())
		}
	}
}

func TestConnectionsThatAreClosedAreWatchedNoLonger(t *testing.T) {
	tr, _, let := busyTransport(t)
	close(let)
	w := theWatch()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.conns)
	}
	before := count()
	for _, answer := range []string{okAnswer, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "HTTP/1.1 200"} {
		addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
			readHead(r)
			io.WriteString(c, answer)
		})
		if resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil)); err == nil {
			io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		tr.CloseIdleConnections()
	}
	if n := count(); n != before {
		t.Errorf("%d are watched, %d before", n, before)
	}
}

func TestAnUpgradedConnectionIsWatchedNoLonger(t *testing.T) {
	tr, _, let := busyTransport(t)
	close(let)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		readHead(r)
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
		io.Copy(io.Discard, r)
	})
	w := theWatch()
	req := newRequest(t, "GET", addr, nil)
	req.Header.Set("Connection", "upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if c.addr == addr {
			t.Error("it is")
		}
	}
}

// The end of a kept connection was told as the arrival of the answer that the request waited for on the next one, if the one was found while
// the other was made.
func TestTheEndOfAConnectionIsNoAnswerOnTheNext(t *testing.T) {
	a := new(arrivals)
	x := &exchange{req: newRequest(t, "GET", "a.test:80", nil)}
	x.t = newTransport(t, Config{OnArrival: a.tell, Dial: func(context.Context, string, string) (net.Conn, error) {
		x.found(x.c) // of the connection before
		c, _ := net.Pipe()
		return c, nil
	}})
	before := &conn{}
	x.c = before
	if err := x.obtain(true); err != nil || x.arrived.Load() {
		t.Errorf("found while the next was made: %v, told %v", err, a.list())
	}
	x.found(before)
	if x.arrived.Load() {
		t.Errorf("found when the next was there: told %v", a.list())
	}
	if got := a.list(); len(got) != 4 || got[3] {
		t.Errorf("told %v", got)
	}
}

// A function of the caller's that panicked once ended what is told, for the whole process.
func TestWhoIsToldOfArrivalsMayPanic(t *testing.T) {
	var n atomic.Int64
	tr, _, let := busyTransport(t)
	tr.cfg.OnArrival = func(context.Context, bool) {
		if n.Add(1) == 1 {
			panic("listener")
		}
	}
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readHead(r); err != nil {
				return
			}
			io.WriteString(c, okAnswer)
		}
	})
	for i := range int64(2) {
		done := make(chan error)
		go func() {
			resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
			}
			done <- err
		}()
		for n.Load() == i {
			func() {
				defer func() { recover() }()
				tr.Look()
			}()
			runtime.Gosched()
		}
		let <- struct{}{}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// waitingFor is the connection to addr on which an answer lies in the kernel, unread.
func waitingFor(addr string) *conn {
	w := theWatch()
	for {
		w.mu.Lock()
		for _, c := range w.conns {
			if c.addr == addr && c.waiting.Load() != nil && c.stale() {
				w.mu.Unlock()
				return c
			}
		}
		w.mu.Unlock()
		runtime.Gosched()
	}
}

// lazy begins a request whose answer is not read before it is let, and returns when it is in the kernel.
func lazy(t *testing.T, tr *Transport) (*conn, <-chan error) {
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		readHead(r)
		io.WriteString(c, okAnswer)
		io.Copy(io.Discard, r)
	})
	done := make(chan error, 1)
	go func() {
		resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil))
		if err == nil {
			_, err = io.ReadAll(resp.Body)
		}
		done <- err
	}()
	return waitingFor(addr), done
}

// Nobody has to ask: requests look as they take a connection, and as they give it back.
func TestArrivalsAreFoundInPassing(t *testing.T) {
	w := theWatch()
	if w == nil {
		t.Skip("no epoll")
	}
	t.Cleanup(func() {
		w.until.Store(0)
		w.due.Store(0)
	})
	for _, atEnd := range []bool{false, true} {
		tr, a, let := busyTransport(t)
		_, done := lazy(t, tr)
		var late, early int64 = math.MaxInt64, 0
		if atEnd {
			late, early = early, late
		}
		other := newTransport(t, Config{OnArrival: func(context.Context, bool) {}})
		addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
			readHead(r)
			w.due.Store(late)
			io.WriteString(c, okAnswer)
			io.Copy(io.Discard, r)
		})
		w.until.Store(math.MaxInt64)
		w.due.Store(early)
		resp, err := other.RoundTrip(newRequest(t, "GET", addr, nil))
		if err != nil {
			t.Fatal(err)
		}
		io.ReadAll(resp.Body)
		if got := a.list(); len(got) != 1 || !got[0] {
			t.Errorf("at the end: %v: told %v", atEnd, got)
		}
		let <- struct{}{}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestWhenArrivalsAreLookedFor(t *testing.T) {
	var p pace
	at := func(d time.Duration) time.Time { return origin.Add(time.Hour + d) }
	look := func(d time.Duration, want bool) {
		t.Helper()
		if p.now(at(d)) != want {
			t.Errorf("at %v: %v", d, !want)
		}
	}
	p.took(at(0), at(watchFrom-1))
	look(watchFrom, false) // answers are fast
	p.took(at(0), at(watchFrom))
	look(watchFrom, true)
	look(watchFrom+watchGap-1, false)
	look(watchFrom+watchGap, true)
	look(watchFrom+watchFor-1, true)
	look(watchFrom+watchFor, false)

	w := theWatch()
	if w == nil {
		t.Skip("no epoll")
	}
	t.Cleanup(func() { w.until.Store(0) })
	w.until.Store(0)
	tr := newTransport(t, Config{OnArrival: func(context.Context, bool) {}})
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		readHead(r)
		time.Sleep(2 * watchFrom)
		io.WriteString(c, okAnswer)
		io.Copy(io.Discard, r)
	})
	resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil))
	if err != nil {
		t.Fatal(err)
	}
	io.ReadAll(resp.Body)
	if w.until.Load() == 0 {
		t.Error("a slow answer had nobody look")
	}
}

// What was there for the exchange before is not told to the one that has taken the connection while it was looked.
func TestArrivalsOfTheExchangeBeforeAreNotTold(t *testing.T) {
	tr, a, let := busyTransport(t)
	c, done := lazy(t, tr)
	c.waiting.Load().since.Store(math.MaxInt64)
	tr.Look()
	if got := a.list(); len(got) > 0 {
		t.Errorf("told %v", got)
	}
	let <- struct{}{}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The exchange's own goroutine was faster to say that it was not the answer than the one that looked, to say that it was.
func TestWhatIsToldLastIsTrue(t *testing.T) {
	a := new(arrivals)
	x := &exchange{req: newRequest(t, "GET", "a.test:80", nil)}
	x.t = newTransport(t, Config{OnArrival: func(ctx context.Context, here bool) {
		if here {
			x.arrive(false)
		}
		a.tell(ctx, here)
	}})
	if x.found(nil); x.arrived.Load() || a.list()[len(a.list())-1] {
		t.Errorf("told %v", a.list())
	}
}
