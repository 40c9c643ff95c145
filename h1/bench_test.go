//go:build unix

package h1

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echoServer is a server that costs nearly nothing: it answers each request that ends in an empty line with the same bytes.
func echoServer(tb testing.TB, size int) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	answer := []byte("HTTP/1.1 200 OK\r\nServer: test\r\nContent-Type: text/plain; charset=utf-8\r\nDate: Mon, 30 Nov 2026 12:00:00 GMT\r\n" +
		"Content-Length: " + strconv.Itoa(size) + "\r\n\r\n" + strings.Repeat("x", size))
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 4096)
				for n := 0; ; {
					m, err := c.Read(b[n:])
					if err != nil {
						return
					}
					if n += m; n < 4 || string(b[n-4:n]) != "\r\n\r\n" {
						continue
					}
					n = 0
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

func get(tb testing.TB, rt http.RoundTripper, url string, buf []byte) {
	req, _ := http.NewRequestWithContext(tb.Context(), "GET", url, nil)
	req.Header["User-Agent"] = []string{"bench"}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		tb.Error(err)
		return
	}
	for err == nil {
		_, err = resp.Body.Read(buf)
	}
	if err != io.EOF {
		tb.Error(err)
	}
	resp.Body.Close()
}

// cpu is the processor's time that the process took. It says more than the clock where a machine is shared.
func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBare is what the kernel and the server take of the others: one write, and reads until the answer is there.
func BenchmarkBare(b *testing.B) {
	c := bare(b, echoServer(b, 1024))
	began := cpu(b)
	for b.Loop() {
		c()
	}
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
}

func bare(tb testing.TB, url string) func() {
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	request := []byte("GET / HTTP/1.1\r\nHost: 127.0.0.1:12345\r\nUser-Agent: bench\r\n\r\n")
	buf := make([]byte, 32<<10)
	return func() {
		c.Write(request)
		for n := 0; n < 1024; {
			m, err := c.Read(buf)
			if err != nil {
				tb.Fatal(err)
			}
			n += m
		}
	}
}

func BenchmarkGet(b *testing.B) {
	url := echoServer(b, 1024)
	std := &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true}
	defer std.CloseIdleConnections()
	own, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer own.CloseIdleConnections()
	for _, c := range []struct {
		name string
		rt   http.RoundTripper
	}{{"std", std}, {"h1", own}} {
		b.Run(c.name+"/sequential", func(b *testing.B) {
			b.ReportAllocs()
			buf := make([]byte, 32<<10)
			for b.Loop() {
				get(b, c.rt, url, buf)
			}
		})
		b.Run(c.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				buf := make([]byte, 32<<10)
				for pb.Next() {
					get(b, c.rt, url, buf)
				}
			})
		})
	}
}

// BenchmarkRatio measures processor time, in turns. x-of-std has the server and the kernel in it, which cost the same with
// both; own-x-of-std is without them.
func BenchmarkRatio(b *testing.B) {
	url := echoServer(b, 1024)
	std := &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true}
	defer std.CloseIdleConnections()
	own, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer own.CloseIdleConnections()
	for _, workers := range []int{1, 64} {
		b.Run(strconv.Itoa(workers), func(b *testing.B) {
			parties := [3]func() func(){
				func() func() { buf := make([]byte, 32<<10); return func() { get(b, std, url, buf) } },
				func() func() { buf := make([]byte, 32<<10); return func() { get(b, own, url, buf) } },
				func() func() { return bare(b, url) },
			}
			var took [3]time.Duration
			for b.Loop() {
				for i, party := range parties {
					var wg sync.WaitGroup
					calls := make([]func(), workers)
					for w := range calls {
						calls[w] = party()
						calls[w]() // with the dial
					}
					began := cpu(b)
					for _, call := range calls {
						wg.Go(func() {
							for range 6400 / workers {
								call()
							}
						})
					}
					wg.Wait()
					took[i] += cpu(b) - began
				}
			}
			b.ReportMetric(float64(took[0])/float64(took[1]), "x-of-std")
			b.ReportMetric(float64(took[0]-took[2])/float64(took[1]-took[2]), "own-x-of-std")
		})
	}
}

// The connection's and the transport's own; the request's, the context's hook and the response's maps are among them.
func TestAllocations(t *testing.T) {
	url := echoServer(t, 1024)
	tr := newTransport(t, Config{})
	buf := make([]byte, 4096)
	get(t, tr, url, buf)
	if n := testing.AllocsPerRun(200, func() { get(t, tr, url, buf) }); n > 20 {
		t.Errorf("%v allocations for a request and its response", n)
	}
}
