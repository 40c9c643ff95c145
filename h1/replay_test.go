package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// traced counts what the hooks tell.
type traced struct{ get, got, reused, headers, request int }

func (c *traced) on(req *http.Request) *http.Request {
	return req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { c.get++ },
		GotConn: func(i httptrace.GotConnInfo) {
			c.got++
			if i.Reused {
				c.reused++
			}
		},
		WroteHeaders: func() { c.headers++ },
		WroteRequest: func(httptrace.WroteRequestInfo) { c.request++ },
	}))
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	leaks(t)
	var conns atomic.Int32
	addr := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
		conns.Store(int32(n))
		answering(okAnswer)(n, c, r)
	})
	tr := newTransport(t, Config{})
	for i := range 10 {
		var c traced
		fetch(t, tr, c.on(newRequest(t, "GET", addr, nil)))
		if want := (traced{1, 1, min(i, 1), 1, 1}); c != want {
			t.Fatalf("request %d: %+v, want %+v", i, c, want)
		}
	}
	if n := conns.Load(); n != 1 {
		t.Fatalf("%d connections", n)
	}
	tr.CloseIdleConnections()
	if n := tr.idleCount(); n != 0 {
		t.Fatalf("%d idle", n)
	}
	fetch(t, tr, newRequest(t, "GET", addr, nil))
	if n := conns.Load(); n != 2 || tr.idleCount() != 1 {
		t.Fatalf("%d connections, %d idle", n, tr.idleCount())
	}
}

func TestIdleConnectionsAreBounded(t *testing.T) {
	leaks(t)
	gate := make(chan struct{})
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		readHead(r)
		<-gate
		io.WriteString(c, okAnswer)
		r.ReadByte()
	})
	for most, want := range map[int]int{3: 3, -1: 0} {
		tr := newTransport(t, Config{MaxIdlePerHost: most})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() { fetch(t, tr, newRequest(t, "GET", addr, nil)) })
		}
		for range 8 {
			gate <- struct{}{}
		}
		wg.Wait()
		if n := tr.idleCount(); n != want {
			t.Errorf("%d idle, want %d", n, want)
		}
	}
}

// CloseIdleConnections reaches those in use as soon as they are idle.
func TestConnectionsInUseAreClosedLater(t *testing.T) {
	leaks(t)
	tr := newTransport(t, Config{})
	addr := serve(t, answering(okAnswer))
	resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil))
	if err != nil {
		t.Fatal(err)
	}
	tr.CloseIdleConnections()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "ok" {
		t.Fatalf("%q, %v", b, err)
	}
	if n := tr.idleCount(); n != 0 {
		t.Fatalf("%d idle", n)
	}
}

// What is found out of an idle connection before it is used costs nothing, not even the look of a replay.
func TestDeadIdleConnectionIsNotUsed(t *testing.T) {
	for name, last := range map[string]string{
		"closed":      "",
		"unsolicited": "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			leaks(t)
			said := make(chan struct{}, 1)
			addr := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
				if n > 1 {
					answering(okAnswer)(n, c, r)
					return
				}
				readHead(r)
				io.WriteString(c, okAnswer)
				if last != "" {
					time.Sleep(10 * time.Millisecond) // not in one packet
					io.WriteString(c, last)
				}
				c.(*net.TCPConn).CloseWrite()
				said <- struct{}{}
				r.ReadByte()
			})
			tr := newTransport(t, Config{})
			fetch(t, tr, newRequest(t, "GET", addr, nil))
			<-said
			eventually(t, "the end is here", func() bool {
				for _, c := range tr.pool.hosts[addr] {
					if !c.stale() {
						return false
					}
				}
				return true
			})
			var c traced
			req := newRequest(t, "POST", addr, nil)
			if resp, _ := fetch(t, tr, c.on(req)); resp.StatusCode != 200 {
				t.Fatal(resp.Status)
			}
			if want := (traced{1, 1, 0, 1, 1}); c != want {
				t.Fatalf("%+v, want %+v", c, want)
			}
		})
	}
}

// F48, F50: the server closes the connection when the request is there. Only what does no harm is sent again.
func TestConnectionThatDiesUnderARequest(t *testing.T) {
	refusal := errors.New("refused")
	plain := func(s string) func(*http.Request) {
		return func(r *http.Request) {
			r.Body, r.ContentLength, r.GetBody = io.NopCloser(strings.NewReader(s)), int64(len(s)), nil
		}
	}
	again := func(s string) func(*http.Request) {
		return func(r *http.Request) {
			plain(s)(r)
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
		}
	}
	refuse := func(s string) func(*http.Request) {
		return func(r *http.Request) {
			plain(s)(r)
			r.GetBody = func() (io.ReadCloser, error) { return nil, refusal }
		}
	}
	key := func(f func(*http.Request)) func(*http.Request) {
		return func(r *http.Request) {
			if f != nil {
				f(r)
			}
			r.Header.Set("Idempotency-Key", "1")
		}
	}
	large := strings.Repeat("x", 100_000)
	for _, c := range []struct {
		name, method string
		set          func(*http.Request)
		again        bool
		err          error
	}{
		{"get", "GET", nil, true, nil}, {"head", "HEAD", nil, true, nil}, {"options", "OPTIONS", nil, true, nil},
		{"post", "POST", nil, false, nil}, {"put", "PUT", nil, false, nil}, {"delete", "DELETE", nil, false, nil},
		{"body", "POST", plain("a"), false, nil}, {"body again", "POST", again("a"), false, nil},
		{"get body", "GET", plain("a"), false, nil}, {"get body again", "GET", again("a"), true, nil},
		{"key", "POST", key(nil), true, nil}, {"key body", "POST", key(plain("a")), false, nil},
		{"key body again", "POST", key(again("a")), true, nil}, {"key large again", "POST", key(again(large)), true, nil},
		{"key refused", "POST", key(refuse("a")), false, refusal}, {"key large refused", "POST", key(refuse(large)), false, refusal},
		{"refused", "POST", refuse("a"), false, nil}, {"large again", "POST", again(large), false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			leaks(t)
			var seen atomic.Int32
			addr := serve(t, func(n int, conn net.Conn, r *bufio.Reader) {
				for i := 0; ; i++ {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					io.Copy(io.Discard, req.Body)
					if req.Header.Get("First") == "" {
						seen.Add(1)
					}
					if n == 1 && i == 1 {
						return
					}
					answer := okAnswer
					if req.Method == "HEAD" {
						answer = strings.TrimSuffix(answer, "ok")
					}
					io.WriteString(conn, answer)
				}
			})
			tr := newTransport(t, Config{})
			first := newRequest(t, "GET", addr, nil)
			first.Header.Set("First", "1")
			fetch(t, tr, first)
			var hooks traced
			req := hooks.on(newRequest(t, c.method, addr, nil))
			if c.set != nil {
				c.set(req)
			}
			resp, err := tr.RoundTrip(req)
			if c.again {
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if seen.Load() != 2 || hooks.got != 2 || hooks.get != 2 || hooks.reused != 1 {
					t.Errorf("seen %d, %+v", seen.Load(), hooks)
				}
				return
			}
			e, ok := errors.AsType[*Error](err)
			if !ok || !e.Stale() || !e.Reused || e.RequestUnsent() || e.Op != OpRead && e.Op != OpWrite || hooks.got != 1 {
				t.Errorf("%v, %+v", err, hooks)
			}
			if c.err != nil && !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if seen.Load() != 1 {
				t.Errorf("seen %d times", seen.Load())
			}
		})
	}
}

// A connection that fails at its first request is no stale one.
func TestFreshConnectionThatDies(t *testing.T) {
	leaks(t)
	var conns atomic.Int32
	addr := serve(t, func(n int, c net.Conn, r *bufio.Reader) { conns.Add(1); readHead(r) })
	var hooks traced
	_, err := newTransport(t, Config{}).RoundTrip(hooks.on(newRequest(t, "GET", addr, nil)))
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Stale() || e.Reused || e.RequestUnsent() || e.Op != OpRead || !errors.Is(err, io.EOF) || hooks.got != 1 || conns.Load() != 1 {
		t.Fatalf("%v, %+v", err, hooks)
	}
}

// brittle is a connection that takes some bytes and no more.
type brittle struct {
	net.Conn
	left *atomic.Int64
}

var errBrittle = errors.New("brittle")

func (b brittle) Write(p []byte) (int, error) {
	if left := b.left.Load(); int64(len(p)) > left {
		n, _ := b.Conn.Write(p[:left])
		b.left.Store(0)
		return n, errBrittle
	}
	b.left.Add(-int64(len(p)))
	return b.Conn.Write(p)
}

// It is known for certain whether a byte was sent.
func TestRequestUnsent(t *testing.T) {
	leaks(t)
	var seen atomic.Int32
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			seen.Add(1)
			io.WriteString(c, okAnswer)
		}
	})
	var left atomic.Int64
	tr := newTransport(t, Config{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return brittle{c, &left}, nil
	}})
	for _, size := range []int{0, 10, 100_000} {
		for _, n := range []int64{0, 1, 50, 5_000} {
			if n == 5000 && size < 5000 {
				continue
			}
			left.Store(n)
			var hooks traced
			req := hooks.on(newRequest(t, "POST", addr, bytes.NewReader(make([]byte, size))))
			req.GetBody = nil
			_, err := tr.RoundTrip(req)
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Op != OpWrite || !errors.Is(err, errBrittle) || e.RequestUnsent() != (n == 0) || (hooks.headers == 0) != (n == 0) {
				t.Errorf("%d bytes of %d sent: %v, %+v", n, size, err, hooks)
			}
		}
		// A kept connection of which nothing is taken is replaced, even for a POST.
		left.Store(1 << 30)
		fetch(t, tr, newRequest(t, "GET", addr, nil))
		before := seen.Load()
		left.Store(0)
		req := newRequest(t, "POST", addr, bytes.NewReader(make([]byte, size)))
		req.GetBody = nil
		var hooks traced
		trace := httptrace.ContextClientTrace(hooks.on(req).Context())
		got := trace.GotConn
		trace.GotConn = func(i httptrace.GotConnInfo) {
			if got(i); hooks.got == 2 {
				left.Store(1 << 30)
			}
		}
		fetch(t, tr, req.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
		if n := seen.Load() - before; n != 1 || hooks.got != 2 {
			t.Errorf("%d bytes: seen %d times, %+v", size, n, hooks)
		}
		tr.CloseIdleConnections()
	}
}

func TestNoConnection(t *testing.T) {
	leaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	body := &counted{Reader: strings.NewReader("a")}
	req := newRequest(t, "POST", addr, body)
	req.ContentLength = 1
	var hooks traced
	_, err = newTransport(t, Config{}).RoundTrip(hooks.on(req))
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Op != OpDial || !e.RequestUnsent() || e.Addr != addr || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatal(err)
	}
	if o, ok := errors.AsType[*net.OpError](err); !ok || o.Op != "dial" {
		t.Fatal(err)
	}
	if r, c := body.count(); r != 0 || c != 1 || hooks.get != 1 || hooks.got != 0 {
		t.Fatalf("read %d, closed %d, %+v", r, c, hooks)
	}
	_, err = newTransport(t, Config{Dial: func(context.Context, string, string) (net.Conn, error) { return nil, nil }}).
		RoundTrip(newRequest(t, "GET", addr, nil))
	if !errors.Is(err, errNoConn) {
		t.Fatal(err)
	}
}

// F50: a server that closes idle connections whenever it likes. No GET fails, no POST is there twice.
func TestServerThatClosesIdleConnections(t *testing.T) {
	leaks(t)
	var mu sync.Mutex
	seen := map[string]int{}
	addr := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
		for {
			c.SetReadDeadline(time.Now().Add(time.Duration(rand.IntN(1500)) * time.Microsecond))
			if _, err := r.Peek(1); err != nil {
				return
			}
			c.SetReadDeadline(time.Time{})
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			mu.Lock()
			seen[req.Header.Get("Id")]++
			mu.Unlock()
			io.WriteString(c, okAnswer)
		}
	})
	tr := newTransport(t, Config{})
	var wg sync.WaitGroup
	var failed atomic.Int32
	for w := range 4 {
		wg.Go(func() {
			for i := range 150 {
				id := fmt.Sprint(w, "-", i)
				method, body := "GET", io.Reader(nil)
				if i%2 == 1 {
					method, body = "POST", strings.NewReader("order")
				}
				req := newRequest(t, method, addr, body)
				req.Header.Set("Id", id)
				resp, err := tr.RoundTrip(req)
				if err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				mu.Lock()
				n := seen[id]
				mu.Unlock()
				switch e, _ := errors.AsType[*Error](err); {
				case err == nil && method == "POST" && n != 1:
					t.Errorf("%s: seen %d times", id, n)
				case err == nil:
				case method == "GET":
					// The one replay goes over a fresh connection, which this server may close at once.
					if e.Reused {
						t.Errorf("%s: %v", id, err)
					}
				default:
					failed.Add(1)
					if n > 1 || e.RequestUnsent() && n > 0 {
						t.Errorf("%s: seen %d times, %v", id, n, err)
					}
				}
				time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
			}
		})
	}
	wg.Wait()
	t.Logf("POST that met a dying connection: %d", failed.Load())
}
