package h1

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
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

// BenchmarkBare is what the kernel and the server take of the others: one write, and reads until the answer is there.
func BenchmarkBare(b *testing.B) {
	c, err := net.Dial("tcp", strings.TrimPrefix(echoServer(b, 1024), "http://"))
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	request := []byte("GET / HTTP/1.1\r\nHost: 127.0.0.1:12345\r\nUser-Agent: bench\r\n\r\n")
	buf := make([]byte, 32<<10)
	for b.Loop() {
		c.Write(request)
		for n := 0; n < 1024; {
			m, err := c.Read(buf)
			if err != nil {
				b.Fatal(err)
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

// BenchmarkRatio measures both in turns, so that a busy machine is busy for both. The server is in the same process and costs
// the same with both.
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
			var took [2]time.Duration
			for b.Loop() {
				for i, rt := range []http.RoundTripper{std, own} {
					began := time.Now()
					var wg sync.WaitGroup
					for range workers {
						wg.Go(func() {
							buf := make([]byte, 32<<10)
							for range 1280 / workers {
								get(b, rt, url, buf)
							}
						})
					}
					wg.Wait()
					took[i] += time.Since(began)
				}
			}
			b.ReportMetric(float64(took[0])/float64(took[1]), "x-of-std")
		})
	}
}
