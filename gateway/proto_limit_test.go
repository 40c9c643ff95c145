package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bodies counts what a target got: whole requests and aborted ones.
type bodies struct{ begun, whole, aborted atomic.Int64 }

func (b *bodies) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.begun.Add(1)
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		b.aborted.Add(1)
		panic(http.ErrAbortHandler)
	}
	b.whole.Add(1)
	fmt.Fprint(w, n)
}

// inProtocols runs a test in worlds with a server, for each protocol of the client and the target.
func inProtocols(t *testing.T, yaml string, handler func() http.Handler, test func(t *testing.T, w *world, s *Server, c *http.Client, h http.Handler)) {
	for _, client := range []string{"http/1.1", "h2c"} {
		for _, up := range []string{"http", "h2c"} {
			t.Run(client+" to "+up, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					h := handler()
					c := w.client(stranger)
					if client == "h2c" {
						c = w.h2Client(stranger)
					}
					yaml := yaml
					if up == "h2c" {
						w.h2Serve("up.test:80", h)
						yaml = strings.Replace(yaml, "http://up", "h2c://up", 1)
					} else {
						w.serve("up.test:80", h)
					}
					s, stop, done := w.server(yaml)
					test(t, w, s, c, h)
					c.CloseIdleConnections()
					stop()
					if err := <-done; err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

func TestLongBodiesAreRefused(t *testing.T) {
	const limit = 10 << 10
	inProtocols(t, "server: {max_body_bytes: 10KiB}\n"+one(retrying, "fallback: {static: {status: 202}}"), func() http.Handler { return new(bodies) },
		func(t *testing.T, w *world, s *Server, c *http.Client, h http.Handler) {
			b := h.(*bodies)
			for _, q := range []struct {
				size   int
				known  bool
				status int
			}{{limit, true, 200}, {limit, false, 200}, {limit + 1, true, 413}, {limit + 1, false, 413}, {100 * limit, true, 413}, {100 * limit, false, 413}} {
				begun, whole := b.begun.Load(), b.whole.Load()
				r, _ := http.NewRequest("PUT", "http://gateway.test:80/", io.LimitReader(zeros{}, int64(q.size)))
				if q.known {
					r.ContentLength = int64(q.size)
				}
				a := send(c, r)
				// A client that sends more than can be taken may find its connection closed before it has read the answer.
				if a.status != q.status && !(a.err != nil && q.size > 2*limit && q.status == 413) {
					t.Errorf("%+v: %d %q, %v", q, a.status, a.body, a.err)
				}
				synctest.Wait()
				whole, begun = b.whole.Load()-whole, b.begun.Load()-begun
				switch {
				case q.status == 200 && (whole != 1 || a.body != fmt.Sprint(q.size)):
					t.Errorf("%+v: %d whole, %q", q, whole, a.body)
				case q.status == 413 && whole != 0:
					t.Errorf("%+v: the target took it for whole", q)
				case q.status == 413 && q.known && begun != 0:
					t.Errorf("%+v: it reached the target", q)
				}
				if a.status == 413 {
					if kind := proxyStatusOf(t, a.header); kind != "http_request_error" || a.header.Get("Cortex-Fallback") != "" {
						t.Errorf("%+v: %v", q, a.header)
					}
				}
			}
			tg := s.Gateway().Targets()[0]
			if st := tg.Engine.Stats(); st.Failures+st.Timeouts+st.Retries != 0 {
				t.Errorf("a client's fault is the target's: %+v", st)
			}
		})
}

// A refused body is no reason to have the client's other streams make a connection of their own.
func TestLongBodyLeavesTheConnectionOfHTTP2(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", new(bodies))
		_, stop, done := w.server("server: {max_body_bytes: 10KiB, body_timeout: 2s}\n" + one("", ""))
		c := w.h2Client(stranger)
		var dials atomic.Int64
		dial := w.dialFrom(stranger)
		c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, addr)
		}
		w.get(c, "http://gateway.test:80/")
		for _, known := range []bool{true, false} {
			r, _ := http.NewRequest("PUT", "http://gateway.test:80/", io.LimitReader(zeros{}, 20<<10))
			if known {
				r.ContentLength = 20 << 10
			}
			if a := send(c, r); a.status != 413 || a.header.Get("Connection") != "" {
				t.Errorf("%+v", a)
			}
			time.Sleep(3 * time.Second)
		}
		pr, pw := io.Pipe()
		r, _ := http.NewRequest("PUT", "http://gateway.test:80/", pr)
		if a := send(c, r); a.status != 408 || a.took != 2*time.Second {
			t.Errorf("stalled: %+v", a)
		}
		pw.Close()
		time.Sleep(time.Second)
		w.get(c, "http://gateway.test:80/")
		if n := dials.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
		c.CloseIdleConnections()
		stop()
		<-done
	})
}

// A client that sends too little gets 408 and holds nothing; those beside it, on the same connection too, do not notice.
func TestDrippingAndStalledBodies(t *testing.T) {
	inProtocols(t, "server: {body_timeout: 5s, min_body_rate: 100B}\n"+one("timeout: {enabled: false}", ""), func() http.Handler { return new(bodies) },
		func(t *testing.T, w *world, s *Server, c *http.Client, h http.Handler) {
			b := h.(*bodies)
			for _, q := range []struct {
				name          string
				every         time.Duration
				piece         int // bytes
				pieces        int
				status        int
				least, atMost time.Duration
			}{
				{"stalled at once", time.Hour, 0, 1, 408, 5 * time.Second, 5 * time.Second},
				{"drip", time.Second, 1, 1000, 408, 5 * time.Second, 6 * time.Second},
				{"slow enough to be cut late", time.Second, 50, 1000, 408, 9 * time.Second, 11 * time.Second}, // 5 s + t/2 = t
				{"just fast enough", time.Second, 101, 60, 200, 60 * time.Second, 61 * time.Second},
				{"in bursts", 4 * time.Second, 1000, 10, 200, 40 * time.Second, 41 * time.Second},
			} {
				pr, pw := io.Pipe()
				r, _ := http.NewRequest("PUT", "http://gateway.test:80/", pr)
				fed := make(chan struct{})
				go func() {
					defer close(fed)
					defer pw.Close()
					for range q.pieces {
						if q.piece > 0 {
							if _, err := pw.Write(make([]byte, q.piece)); err != nil {
								return
							}
						}
						if q.every == time.Hour {
							<-w.t.Context().Done()
							return
						}
						time.Sleep(q.every)
					}
				}()
				whole := b.whole.Load()
				beside := make(chan answer, 1)
				go func() {
					time.Sleep(4 * time.Second)
					beside <- w.do(c, "PUT", "http://gateway.test:80/", "quick")
				}()
				a := send(c, r)
				pr.Close()
				if a.status != q.status || a.took < q.least || a.took > q.atMost {
					t.Errorf("%s: %d after %v, %v", q.name, a.status, a.took, a.err)
				}
				if o := <-beside; o.status != 200 || o.took > time.Millisecond {
					t.Errorf("%s: beside it: %+v", q.name, o)
				}
				synctest.Wait()
				n := int64(1) // the other
				if q.status == 200 {
					n++
				}
				if got := b.whole.Load() - whole; got != n {
					t.Errorf("%s: %d whole bodies, want %d", q.name, got, n)
				}
				tg := s.Gateway().Targets()[0]
				eventuallyIdle(t, tg)
			}
			if st := s.Gateway().Targets()[0].Engine.Stats(); st.Failures+st.Timeouts != 0 {
				t.Errorf("%+v", st)
			}
		})
}

func eventuallyIdle(t *testing.T, tg *Target) {
	t.Helper()
	time.Sleep(6 * time.Second) // virtual: net/http's server reads what is left, for as long as is bearable
	synctest.Wait()
	if n := tg.calls.Load(); n != 0 || tg.Engine.Pressure().InFlight != 0 {
		t.Fatalf("%d calls, %d attempts in flight", n, tg.Engine.Pressure().InFlight)
	}
}

// A client of HTTP/1.0 gets an answer that it can read: no chunks, no hints, the end by the end of the connection where there is no length.
func TestClientsOfHTTP10(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Proto != "HTTP/1.1" || r.Host == "" {
				panic(r.Proto)
			}
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("Link", "</a.css>")
			w.WriteHeader(103)
			if r.URL.Path == "/stream" {
				w.Header().Set("Trailer", "X-Trailer")
				for range 3 {
					w.Write(b)
					http.NewResponseController(w).Flush()
				}
				w.Header().Set("X-Trailer", "1")
				return
			}
			w.Write(b)
		}))
		w.server(one("", ""))
		for _, q := range []struct{ request, body, connection string }{
			{"POST /stream HTTP/1.0\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "abcabcabc", ""},
			{"POST / HTTP/1.0\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "abc", ""},
			{"POST /stream HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", "abcabcabc", ""},
			{"POST / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc", "abc", "keep-alive"},
			{"GET /stream HTTP/1.0\r\nHost: h\r\n\r\n", "", ""},
		} {
			c, br := w.raw(q.request)
			line, _ := br.ReadString('\n')
			if !strings.HasPrefix(line, "HTTP/1.") || !strings.Contains(line, " 200 ") {
				t.Errorf("%q: %q", q.request, line)
			}
			res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader(line), br)), nil)
			if err != nil {
				t.Fatal(err)
			}
			if q.connection == "keep-alive" && res.ContentLength < 0 {
				t.Errorf("%q: no length", q.request)
			}
			if q.connection == "" {
				b, err := io.ReadAll(res.Body)
				if string(b) != q.body || err != nil || len(res.TransferEncoding) > 0 || res.Header.Get("X-Trailer") != "" || res.Header.Get("Link") != "</a.css>" {
					t.Errorf("%q: %q, %v, %+v", q.request, b, err, res)
				}
			} else {
				b := make([]byte, len(q.body))
				if _, err := io.ReadFull(res.Body, b); string(b) != q.body || err != nil || !strings.EqualFold(res.Header.Get("Connection"), q.connection) {
					t.Errorf("%q: %q, %v, %+v", q.request, b, err, res)
				}
				c.Close()
			}
		}
	})
}
