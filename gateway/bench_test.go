package gateway

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// The pair of benchmarks that says what the guard costs on a proxied request: 64 connections, answers of 1 KiB, the same
// transport settings. Client, proxy and upstream share the machine.

const benchConnections = 64

func BenchmarkGateway(b *testing.B) {
	upstream := benchUpstream(b)
	f, err := config.Upstream(upstream, "", "")
	if err != nil {
		b.Fatal(err)
	}
	g, err := New(f, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	benchProxy(b, g)
}

func BenchmarkBareProxy(b *testing.B) {
	u, err := url.Parse(benchUpstream(b))
	if err != nil {
		b.Fatal(err)
	}
	f, err := config.Upstream(u.String(), "", "")
	if err != nil {
		b.Fatal(err)
	}
	base := newStandard(f.Targets[0].Transport, new(net.Dialer).DialContext)
	defer base.CloseIdleConnections()
	benchProxy(b, &httputil.ReverseProxy{Transport: base, BufferPool: bufferPool{}, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(u)
		p.SetXForwarded()
	}})
}

type bufferPool struct{}

func (bufferPool) Get() []byte  { return pool.Get().(*[bufferSize]byte)[:] }
func (bufferPool) Put(b []byte) { pool.Put((*[bufferSize]byte)(b)) }

func benchUpstream(b *testing.B) string {
	body := make([]byte, 1024)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }))
	b.Cleanup(s.Close)
	return s.URL
}

func benchProxy(b *testing.B, h http.Handler) {
	front := httptest.NewServer(h)
	defer front.Close()
	addr := front.Listener.Addr().String()
	conns := make(chan net.Conn, benchConnections)
	for range benchConnections {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		conns <- c
	}
	request := []byte("GET /things/17 HTTP/1.1\r\nHost: gateway\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n")
	var bad atomic.Int64
	one := func(c net.Conn, buf []byte) {
		if _, err := c.Write(request); err != nil {
			b.Error(err)
			return
		}
		for got := 0; got < 1024; { // header and body: more than that
			n, err := c.Read(buf[got:])
			if err != nil {
				b.Error(err)
				return
			}
			got += n
			if !bytes.HasPrefix(buf, []byte("HTTP/1.1 200 ")) { // a refusal is short: waiting for more would be for ever
				bad.Add(1)
				return
			}
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := processorTime(b)
	work := make(chan struct{}, 1024)
	var wg sync.WaitGroup
	for range benchConnections {
		wg.Go(func() {
			c, buf := <-conns, make([]byte, 8192)
			for range work {
				one(c, buf)
			}
		})
	}
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	b.StopTimer()
	if n := bad.Load(); n > 0 {
		b.Errorf("%d of %d answers are not the target's", n, b.N)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op") // of client, proxy and upstream
}

// processorTime is what the process has used so far; on a busy machine it says more than the clock.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
