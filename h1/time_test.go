package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes counts the connections of a dial.
type pipes struct {
	made, open atomic.Int32
}

type countedPipe struct {
	net.Conn
	p    *pipes
	once atomic.Bool
}

func (c *countedPipe) Close() error {
	if !c.once.Swap(true) {
		c.p.open.Add(-1)
	}
	return c.Conn.Close()
}

func (p *pipes) dial(f func(c net.Conn, r *bufio.Reader)) func(context.Context, string, string) (net.Conn, error) {
	dial := pipeDial(f)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		p.made.Add(1)
		p.open.Add(1)
		return &countedPipe{Conn: c, p: p}, err
	}
}

func pipeServer(c net.Conn, r *bufio.Reader) { answering(okAnswer)(0, c, r) }

func bubbled(t *testing.T, ctx context.Context) *http.Request {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://a/", nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestIdleTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		tr := newTransport(t, Config{IdleTimeout: 10 * time.Second, Dial: p.dial(pipeServer)})
		fetch(t, tr, bubbled(t, t.Context()))
		for range 5 { // in use, it does not grow idle
			time.Sleep(9 * time.Second)
			fetch(t, tr, bubbled(t, t.Context()))
		}
		if p.made.Load() != 1 {
			t.Fatalf("%d made", p.made.Load())
		}
		// Two more, so that they are idle from different times on.
		a, _ := tr.RoundTrip(bubbled(t, t.Context()))
		b, _ := tr.RoundTrip(bubbled(t, t.Context()))
		c, _ := tr.RoundTrip(bubbled(t, t.Context()))
		for _, r := range []*http.Response{a, b, c} {
			io.ReadAll(r.Body)
			time.Sleep(time.Second)
		}
		for i, want := range []int32{3, 2, 1, 0} { // 3 s since the first
			time.Sleep(time.Second * []time.Duration{6, 1, 1, 1}[i])
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if n := p.open.Load(); n != want || tr.idleCount() != int(want) {
				t.Fatalf("%d: %d open, %d idle, want %d", i, n, tr.idleCount(), want)
			}
		}
		if !tr.pool.armed.IsZero() {
			t.Fatal("the timer is set though nothing is idle")
		}
		fetch(t, tr, bubbled(t, t.Context()))
		tr.CloseIdleConnections()
		if p.open.Load() != 0 || !tr.pool.armed.IsZero() {
			t.Fatal("something is left")
		}
	})
}

func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		tr := newTransport(t, Config{MaxAge: 10 * time.Second, Dial: p.dial(pipeServer)})
		for i := range 25 {
			fetch(t, tr, bubbled(t, t.Context()))
			if want := int32(i/10 + 1); p.made.Load() != want {
				t.Fatalf("%d s: %d made, want %d", i, p.made.Load(), want)
			}
			time.Sleep(time.Second)
		}
		resp, err := tr.RoundTrip(bubbled(t, t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // what is under way is not cut
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "ok" {
			t.Fatal(err)
		}
		if p.open.Load() != 0 {
			t.Fatal("an old connection was kept")
		}
	})
}

func TestNoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		tr := newTransport(t, Config{IdleTimeout: -1, MaxAge: -1, Dial: p.dial(pipeServer)})
		fetch(t, tr, bubbled(t, t.Context()))
		time.Sleep(1000 * time.Hour)
		fetch(t, tr, bubbled(t, t.Context()))
		if p.made.Load() != 1 {
			t.Fatal("not kept")
		}
	})
}

// F53a and the like: the context ends the exchange wherever it is, at once, and with its cause.
func TestContextEnds(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		name   string
		server func(c net.Conn, r *bufio.Reader) // nil: no connection is made
		unsent bool
		body   bool // the header is there
	}{
		{"dial", nil, true, false},
		{"no answer", func(c net.Conn, r *bufio.Reader) { io.Copy(io.Discard, r) }, false, false},
		{"half an answer", func(c net.Conn, r *bufio.Reader) {
			readHead(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			io.Copy(io.Discard, r)
		}, false, false},
		{"interim", func(c net.Conn, r *bufio.Reader) {
			readHead(r)
			io.WriteString(c, "HTTP/1.1 102 Processing\r\n\r\n")
			io.Copy(io.Discard, r)
		}, false, false},
		{"not taken", func(c net.Conn, r *bufio.Reader) { time.Sleep(time.Hour) }, true, false},
		{"body", func(c net.Conn, r *bufio.Reader) {
			readHead(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
			io.Copy(io.Discard, r)
		}, false, true},
		{"chunks", func(c net.Conn, r *bufio.Reader) {
			readHead(r)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
			io.Copy(io.Discard, r)
		}, false, true},
	} {
		for _, deadline := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var p pipes
					cfg := Config{DialTimeout: -1, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
						<-ctx.Done()
						return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
					}}
					if c.server != nil {
						cfg.Dial = p.dial(c.server)
					}
					tr := newTransport(t, cfg)
					ctx, cancel := context.WithCancelCause(t.Context())
					want := cause
					if deadline {
						var stop context.CancelFunc
						ctx, stop = context.WithTimeout(ctx, time.Second)
						defer stop()
						want = context.DeadlineExceeded
					} else {
						time.AfterFunc(time.Second, func() { cancel(cause) })
					}
					defer cancel(nil)
					began := time.Now()
					resp, err := tr.RoundTrip(bubbled(t, ctx))
					if c.body {
						if err != nil {
							t.Fatal(err)
						}
						var b []byte
						b, err = io.ReadAll(resp.Body)
						if string(b) != "half" || err != want {
							t.Errorf("%q, %v", b, err)
						}
						if _, err := resp.Body.Read(b); err != want {
							t.Error(err)
						}
						resp.Body.Close()
					} else if e, ok := errors.AsType[*Error](err); !ok || e.RequestUnsent() != c.unsent || e.Stale() {
						t.Error(err)
					} else if e.Timeout() != deadline {
						t.Errorf("Timeout() of %v", err)
					}
					if took := time.Since(began); took != time.Second || !errors.Is(err, want) {
						t.Errorf("after %v: %v", took, err)
					}
					synctest.Wait()
					if p.open.Load() != 0 || tr.idleCount() != 0 {
						t.Errorf("%d open, %d idle", p.open.Load(), tr.idleCount())
					}
					time.Sleep(2 * time.Hour) // until the server has ended
				})
			})
		}
	}
}

// A context that has ended before the request is sent keeps it from being sent.
func TestContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		tr := newTransport(t, Config{Dial: p.dial(pipeServer)})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		body := &counted{Reader: strings.NewReader("a")}
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://a/", body)
		_, err := tr.RoundTrip(req)
		if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, context.Canceled) || !e.RequestUnsent() || p.made.Load() != 0 {
			t.Fatal(err)
		}
		if r, c := body.count(); r != 0 || c != 1 {
			t.Fatal(r, c)
		}
	})
}

// F37: the context ends when the body was read, and then has no power over the connection.
func TestContextEndsAfterTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		tr := newTransport(t, Config{MaxAge: -1, Dial: p.dial(pipeServer)})
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			resp, err := tr.RoundTrip(bubbled(t, ctx))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute) // longer than any timeout
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "ok" {
				t.Fatal(err)
			}
			cancel()
			synctest.Wait()
			resp.Body.Close()
		}
		if p.made.Load() != 1 || tr.idleCount() != 1 {
			t.Fatalf("%d made, %d idle", p.made.Load(), tr.idleCount())
		}
	})
}

func TestDialTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTransport(t, Config{Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: context.Cause(ctx)}
		}})
		began := time.Now()
		_, err := tr.RoundTrip(bubbled(t, t.Context()))
		if e, ok := errors.AsType[*Error](err); !ok || e.Op != OpDial || !e.Timeout() || time.Since(began) != DefaultDialTimeout {
			t.Fatal(err)
		}
	})
}

// A server that sends its answer and no end to the upload holds the connection for 50 ms more.
func TestUploadThatOutlastsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pipes
		tr := newTransport(t, Config{Dial: p.dial(func(c net.Conn, r *bufio.Reader) {
			readHead(r)
			io.WriteString(c, okAnswer)
			time.Sleep(time.Hour)
		})})
		req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://a/", io.LimitReader(neverending{}, 1<<30))
		fetch(t, tr, req)
		time.Sleep(lateSender - 1)
		synctest.Wait()
		if p.open.Load() != 1 {
			t.Fatal("closed too early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if p.open.Load() != 0 || tr.idleCount() != 0 {
			t.Fatal("left open")
		}
		time.Sleep(2 * time.Hour) // until the server has ended
	})
}

type neverending struct{}

func (neverending) Read(p []byte) (int, error) { return len(p), nil }
