package h1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve runs a server that gives each connection, counted from 1, to f, and closes it when f returns.
func serve(t testing.TB, f func(n int, c net.Conn, r *bufio.Reader)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		open = nil
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for n := 1; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if open == nil {
				mu.Unlock()
				c.Close()
				return
			}
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				defer func() {
					c.Close()
					mu.Lock()
					delete(open, c)
					mu.Unlock()
				}()
				f(n, c, bufio.NewReader(c))
			})
		}
	})
	return l.Addr().String()
}

// readHead reads up to the empty line.
func readHead(r *bufio.Reader) (string, error) {
	var s strings.Builder
	for {
		line, err := r.ReadString('\n')
		s.WriteString(line)
		if err != nil || line == "\r\n" {
			return s.String(), err
		}
	}
}

// answering is a handler for serve that answers each request without a body with the same bytes.
func answering(answer string) func(int, net.Conn, *bufio.Reader) {
	return func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readHead(r); err != nil {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	}
}

func newTransport(t testing.TB, cfg Config) *Transport {
	t.Helper()
	tr, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func newRequest(t testing.TB, method, addr string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// fetch is a whole exchange.
func fetch(t testing.TB, rt http.RoundTripper, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp, string(b)
}

func (t *Transport) idleCount() int {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	n := 0
	for _, list := range t.pool.hosts {
		n += len(list)
	}
	return n
}

// eventually polls: what is waited for happens in the kernel or on another goroutine.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("it did not come to this: %s", what)
}

func descriptors(t testing.TB) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd here")
	}
	return len(d)
}

// leaks reports, at the end of the test, goroutines and descriptors that were not there when it was called.
func leaks(t testing.TB) {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	t.Cleanup(func() {
		eventually(t, "goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines })
		eventually(t, "descriptors as before", func() bool { return descriptors(t) <= files })
	})
}

// counted is a body that tells how it was treated.
type counted struct {
	io.Reader
	mu           sync.Mutex
	reads, close int
}

func (b *counted) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.reads++
	b.mu.Unlock()
	return b.Reader.Read(p)
}

func (b *counted) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close++
	if c, ok := b.Reader.(io.Closer); ok {
		c.Close()
	}
	return nil
}

func (b *counted) count() (reads, closes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reads, b.close
}
