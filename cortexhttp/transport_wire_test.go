package cortexhttp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// overHTTP2 makes a world speak HTTP/2, without TLS.
func overHTTP2(c *TransportConfig, s *http.Server) {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	s.Protocols = p
	c.Base.(*http.Transport).Protocols = p
}

func overHTTP1(*TransportConfig, *http.Server) {}

var protocols = map[string]func(*TransportConfig, *http.Server){"HTTP/1": overHTTP1, "HTTP/2": overHTTP2}

// F37: reading the body failed with 'context canceled', depending on how much was buffered already.
func TestTimeoutEndsAtTheHeaders(t *testing.T) {
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) {
			chunk := bytes.Repeat([]byte("x"), 16<<10)
			w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Second)), func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				for range 16 {
					time.Sleep(200 * time.Millisecond)
					w.Write(chunk)
				}
			}, set)
			for range 20 {
				resp, err := w.client.Get("http://target/")
				if _, body := finish(t, resp, err); len(body) != 256<<10 {
					t.Fatalf("%s: %d bytes", proto, len(body))
				}
			}
			s := w.engine.Stats()
			if s.Successes != 20 || s.Failures+s.Timeouts != 0 {
				t.Errorf("%s: %+v", proto, s)
			}
			for _, r := range w.results() {
				if r.Latency > 10*time.Millisecond {
					t.Errorf("%s: the length of the answer was taken for latency: %v", proto, r.Latency)
				}
			}
		})
	}
}

// F37, the other half: once the body is over, nothing holds on to the call's context.
func TestContextIsReleasedWithTheBody(t *testing.T) {
	for name, end := range map[string]func(*http.Response){
		"read":   func(r *http.Response) { io.Copy(io.Discard, r.Body) },
		"closed": func(r *http.Response) { r.Body.Close() },
	} {
		for _, status := range []int{200, 404, 503} {
			var sent context.Context
			tr, err := NewTransport(TransportConfig{Engine: clientEngine(t, noRetries), Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				sent = r.Context()
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("abc"))}, nil
			})})
			if err != nil {
				t.Fatal(err)
			}
			resp, err := tr.RoundTrip(request(t, t.Context(), "GET", ""))
			if err != nil || sent.Err() != nil {
				t.Fatalf("%s %d: %v, context %v", name, status, err, sent.Err())
			}
			if end(resp); sent.Err() == nil {
				t.Errorf("%s %d: the context lives on", name, status)
			}
		}
	}
}

// F43, F45: the second attempt went out empty, short, or with a part of the body.
func TestBodyIsReplayedWholeOrNotAtAll(t *testing.T) {
	const limit = 16384
	for proto, set := range protocols {
		for _, size := range []int{0, 1, 4096, 8193, 16383, 16384, 16385, 90_000} {
			for kind, make := range map[string]func([]byte) io.Reader{
				"bytes.Reader": func(b []byte) io.Reader { return bytes.NewReader(b) },
				"io.Reader":    func(b []byte) io.Reader { return struct{ io.Reader }{bytes.NewReader(b)} },
				"pipe": func(b []byte) io.Reader {
					pr, pw := io.Pipe()
					go func() {
						pw.Write(b)
						pw.Close()
					}()
					return pr
				},
			} {
				synctest.Test(t, func(t *testing.T) {
					name := fmt.Sprintf("%s, %d bytes from %s", proto, size, kind)
					data := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
					type got struct {
						sum    [32]byte
						length int64
					}
					var bodies []got
					w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
						b, err := io.ReadAll(r.Body)
						if err != nil {
							t.Errorf("%s: %v", name, err)
						}
						bodies = append(bodies, got{sha256.Sum256(b), int64(len(b))})
						if len(bodies) == 1 {
							w.Header().Set("Connection", "close")
							w.WriteHeader(503)
						}
					}, set, func(c *TransportConfig, _ *http.Server) { c.MaxReplayBytes = limit })
					var rep Report
					req, err := http.NewRequestWithContext(WithReport(t.Context(), &rep), "PUT", "http://target/", make(data))
					if err != nil {
						t.Fatal(err)
					}
					resp, err := w.client.Do(req)
					status, _ := finish(t, resp, err)
					want := got{sha256.Sum256(data), int64(size)}
					attempts := 2
					if size > limit && kind != "bytes.Reader" {
						attempts = 1
						if status != 503 || rep.ReplaySkipped != ReplayBodyTooLarge || rep.Reason != cortex.ReasonNotRetryable {
							t.Errorf("%s: status %d, %+v", name, status, rep)
						}
					} else if status != 200 || rep.ReplaySkipped != ReplayNotSkipped {
						t.Errorf("%s: status %d, %+v", name, status, rep)
					}
					if len(bodies) != attempts {
						t.Errorf("%s: %d attempts, want %d", name, len(bodies), attempts)
					}
					for i, b := range bodies {
						if b != want {
							t.Errorf("%s: attempt %d got %d bytes, or others", name, i, b.length)
						}
					}
				})
			}
		}
	}
}

func TestNoBufferingOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), statusSequence(503, 200), func(c *TransportConfig, _ *http.Server) { c.MaxReplayBytes = -1 })
		var rep Report
		resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "PUT", "x"))
		if status, _ := finish(t, resp, err); status != 503 || rep.ReplaySkipped != ReplayBodyTooLarge {
			t.Errorf("status %d, %+v", status, rep)
		}
	})
}

// F47: uploads and downloads were buffered whole where retries were on. The first byte has to arrive before the last is made.
func TestStreamsAreNotHeldBack(t *testing.T) {
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) {
			const block, blocks = 64 << 10, 256
			arrived := make(chan int, blocks)
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
				buf := make([]byte, block)
				for i := range blocks {
					if _, err := io.ReadFull(r.Body, buf); err != nil {
						t.Error(err)
						return
					}
					arrived <- i
				}
				for range blocks {
					w.Write(buf)
				}
			}, set)
			pr, pw := io.Pipe()
			go func() {
				data := make([]byte, block)
				for i := range blocks {
					pw.Write(data)
					if got := <-arrived; got != i { // nothing more is made before this is there
						t.Errorf("%s: block %d arrived after block %d was sent", proto, got, i)
					}
				}
				pw.Close()
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			req, err := http.NewRequestWithContext(t.Context(), "PUT", "http://target/", pr)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := w.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			runtime.ReadMemStats(&after)
			if n != block*blocks || err != nil {
				t.Errorf("%s: %d bytes, %v", proto, n, err)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > block*blocks { // in all; keeping one of the streams takes twice that
				t.Errorf("%s: %d bytes allocated for a stream of 2 × %d", proto, grown, block*blocks)
			}
		})
	}
}

// F48: a request that the target had accepted was sent again: double orders.
func TestOnlyWhatIsSafeIsRepeated(t *testing.T) {
	const key = "Idempotency-Key"
	for proto, set := range protocols {
		for _, c := range []struct {
			method string
			header http.Header
			optIn  bool
			body   bool
			again  bool
		}{
			{"GET", nil, false, false, true}, {"HEAD", nil, false, false, true}, {"OPTIONS", nil, false, false, true},
			{"TRACE", nil, false, false, true}, {"PUT", nil, false, true, true}, {"DELETE", nil, false, false, true},
			{"POST", nil, false, true, false}, {"POST", nil, false, false, false}, {"PATCH", nil, false, true, false},
			{"PROPFIND", nil, false, false, false}, {"get", nil, false, false, false},
			{"POST", http.Header{key: {"1"}}, false, true, true}, {"PATCH", http.Header{"X-Idempotency-Key": {"1"}}, false, true, true},
			{"POST", http.Header{key: {}}, false, true, true}, {"POST", http.Header{key: {""}}, false, true, false},
			{"POST", nil, true, true, true},
		} {
			for fault, handler := range map[string]http.HandlerFunc{
				"slow": func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					<-r.Context().Done()
				},
				"503": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) },
				"429": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(429) },
			} {
				synctest.Test(t, func(t *testing.T) {
					var count atomic.Int32
					w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
						if count.Add(1) == 1 {
							handler(w, r)
						}
					}, set, func(cfg *TransportConfig, _ *http.Server) {
						cfg.RetryNonIdempotent = func(*http.Request) bool { return c.optIn }
					})
					body := ""
					if c.body {
						body = "order"
					}
					var rep Report
					req := request(t, WithReport(t.Context(), &rep), c.method, body)
					req.Header = c.header.Clone()
					if req.Header == nil {
						req.Header = http.Header{}
					}
					resp, err := w.client.Do(req)
					if err == nil {
						finish(t, resp, err)
					}
					want := int32(1)
					if c.again {
						want = 2
					}
					if n := count.Load(); n != want || int(n) != rep.Attempts {
						t.Errorf("%s, %s %v, opted in %v, %s: sent %d times, want %d; %+v", proto, c.method, c.header, c.optIn, fault, n, want, rep)
					}
					if !c.again && fault == "slow" && (err == nil || !rep.TimedOut || rep.ConnectFailed) {
						t.Errorf("%s, %s: %v, %+v", proto, c.method, err, rep)
					}
				})
			}
		}
	}
}

// F48: a connection that was never made is safe for every method, with the body untouched.
func TestRefusedConnectionIsRetriedForEveryMethod(t *testing.T) {
	for proto, set := range protocols {
		for _, method := range []string{"GET", "POST", "PATCH"} {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					got = append(got, string(b))
				}, set)
				w.net.refuse.Store(2)
				var rep Report
				resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), method, "the whole body"))
				if status, _ := finish(t, resp, err); status != 200 || rep.Attempts != 3 || rep.ConnectFailed {
					t.Errorf("%s %s: status %d, %+v", proto, method, status, rep)
				}
				if len(got) != 1 || got[0] != "the whole body" {
					t.Errorf("%s %s: %q", proto, method, got)
				}
				w.net.refuse.Store(100)
				w.base.CloseIdleConnections()
				synctest.Wait()
				_, err = w.client.Do(request(t, WithReport(t.Context(), &rep), method, "x"))
				if !errors.Is(err, errRefused) || !errors.Is(err, cortex.ErrExhausted) || !rep.ConnectFailed || rep.TimedOut || rep.Attempts != 4 {
					t.Errorf("%s %s: %v, %+v", proto, method, err, rep)
				}
			})
		}
	}
}

// A dial that hangs is cut like everything before the headers; nothing was sent either.
func TestHangingDialIsRetriedForEveryMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), answerOK)
		var dials atomic.Int32
		w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials.Add(1) == 1 {
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
				return nil, errRefused
			}
			return w.net.dial(ctx, network, addr)
		}
		var rep Report
		resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "POST", "x"))
		if status, _ := finish(t, resp, err); status != 200 || rep.Attempts != 2 {
			t.Errorf("status %d, %+v", status, rep)
		}
		w.wantOutcomes(cortex.TimedOut, cortex.Success)
		time.Sleep(time.Minute) // the dial ends
	})
}

// staleServer answers one request on each connection, and closes it the moment the second arrives: what every keep-alive
// client meets at a server that is just closing an idle connection.
func staleServer(t *testing.T) (base string, served *atomic.Int32) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served = new(atomic.Int32)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				br := bufio.NewReader(c)
				req, err := http.ReadRequest(br)
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				served.Add(1)
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				br.Peek(1)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return "http://" + ln.Addr().String(), served
}

// F50: a kept-alive connection closed by the server must not surface for a GET, nor send a POST twice. F: the replays that
// net/http makes by itself are seen, and paid for.
func TestStaleConnectionHealsForIdempotentRequests(t *testing.T) {
	base, served := staleServer(t)
	for _, c := range []struct {
		method, body string
		retries      bool
		hidden       bool // net/http mends it by itself
	}{
		{"GET", "", true, true}, {"GET", "", false, true}, {"HEAD", "", false, true}, {"PUT", "x", true, false}, {"DELETE", "", true, false},
		{"POST", "x", true, false}, {"POST", "", true, false},
	} {
		e := clientEngine(t)
		if !c.retries {
			e = clientEngine(t, noRetries)
		}
		tr, err := NewTransport(TransportConfig{Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		served.Store(0)
		good, hidden, attempts := 0, 0, 0
		for range 30 {
			var rep Report
			req := request(t, WithReport(t.Context(), &rep), c.method, c.body)
			req.URL = get(t, base).URL
			resp, err := tr.RoundTrip(req)
			if err == nil {
				finish(t, resp, err)
				good++
			}
			hidden += rep.Hidden
			attempts += rep.Attempts
		}
		if c.method == "POST" {
			if int(served.Load()) != good { // no duplicates, and no success that was none
				t.Errorf("%+v: %d served, %d good", c, served.Load(), good)
			}
		} else if good != 30 || served.Load() != 30 {
			t.Errorf("%+v: %d good, %d served", c, good, served.Load())
		}
		if c.hidden != (hidden > 0) {
			t.Errorf("%+v: %d hidden replays", c, hidden)
		}
		if s := e.Stats(); c.hidden && (attempts != 30+hidden || c.retries && int(s.Retries) != hidden || s.Failures != 0) {
			t.Errorf("%+v: %d attempts, %d hidden, %+v", c, attempts, hidden, s)
		}
		tr.CloseIdleConnections()
	}
}

// deafConn takes one request, and no byte of the next: what a client finds that was kept waiting by its own scheduler.
type deafConn struct {
	net.Conn
	answered atomic.Bool
}

func (c *deafConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.answered.Store(n > 0 || c.answered.Load())
	return n, err
}

func (c *deafConn) Write(p []byte) (int, error) {
	if c.answered.Load() {
		c.Conn.Close()
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

// F50: where nothing was written, a POST heals as well. net/http says so only to those who let it have the body again.
func TestNothingWrittenIsRetriedForEveryMethod(t *testing.T) {
	for _, c := range []struct {
		method, body string // the body as a reader, or as one that can be had again
		again        bool
	}{{"POST", "x", false}, {"POST", "x", true}, {"POST", "", false}, {"PUT", "x", false}, {"GET", "x", true}, {"GET", "", false}} {
		for _, retries := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				var bodies []string
				e := clientEngine(t)
				if !retries {
					e = clientEngine(t, noRetries)
				}
				w := newWorld(t, e, func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					bodies = append(bodies, string(b))
				})
				w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := w.net.dial(ctx, network, addr)
					return &deafConn{Conn: conn}, err
				}
				for i := range 2 {
					var rep Report
					req := request(t, WithReport(t.Context(), &rep), c.method, c.body)
					if c.again {
						req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(c.body)), nil }
					}
					resp, err := w.transport.RoundTrip(req)
					if err != nil && !retries && c.body != "" && !c.again && i == 1 {
						continue // nobody has the body any more
					}
					if status, _ := finish(t, resp, err); status != 200 || rep.Attempts != i+1 {
						t.Errorf("%+v, retries %v, request %d: status %d, %+v", c, retries, i, status, rep)
					}
					if byItself := !retries && c.again || c.body == ""; i == 1 && byItself != (rep.Hidden > 0) {
						t.Errorf("%+v, retries %v: %+v", c, retries, rep)
					}
				}
				for _, b := range bodies {
					if b != c.body {
						t.Errorf("%+v: %q", c, bodies)
					}
				}
				if s := e.Stats(); s.Failures != 0 && retries {
					t.Errorf("%+v: %+v", c, s)
				}
			})
		}
	}
}

// F51: the retry wrapper could not be upgraded through, or wrote after it.
func TestUpgradeThroughAProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int32
		w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Second)), func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			io.CopyN(c, rw, 15)
		})
		w.net.refuse.Store(1)
		front := newWorld(t, clientEngine(t), proxyTo(w).ServeHTTP)
		c, err := front.net.dial(t.Context(), "tcp", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go io.WriteString(c, "GET / HTTP/1.1\r\nHost: target\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		br := bufio.NewReader(c)
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatal(resp, err)
		}
		for i := range 3 {
			if i == 2 {
				time.Sleep(30 * time.Second) // silence is no slow call
			}
			io.WriteString(c, "hello")
			got := make([]byte, 5)
			if _, err := io.ReadFull(br, got); err != nil || string(got) != "hello" {
				t.Fatalf("message %d: %q, %v", i, got, err)
			}
		}
		if _, err := br.ReadByte(); err == nil {
			t.Error("the target's end does not arrive")
		}
		synctest.Wait()
		w.wantOutcomes(cortex.Failed, cortex.Success)
		if s := w.engine.Stats(); requests.Load() != 1 || s.Successes != 1 || w.engine.Pressure().InFlight != 0 {
			t.Errorf("%d requests, %+v", requests.Load(), s)
		}
	})
}

func proxyTo(w *world) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{Transport: w.transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: "target"})
	}}
}

// F52: events lost their header, the tail went missing, and a timeout meant for connecting killed quiet streams.
func TestEventStreamPasses(t *testing.T) {
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Second)), func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range 5 {
					io.WriteString(w, "data: 1\n\n")
					w.(http.Flusher).Flush()
					time.Sleep(200 * time.Millisecond)
				}
				time.Sleep(30 * time.Second)
				io.WriteString(w, "data: 2\n\n")
				w.(http.Flusher).Flush()
				io.WriteString(w, "7 bytes")
			}, set)
			front := newWorld(t, clientEngine(t), proxyTo(w).ServeHTTP)
			began := time.Now()
			resp, err := front.client.Get("http://front/")
			if err != nil {
				t.Fatal(err)
			}
			if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
				t.Errorf("%s: %q", proto, got)
			}
			for i := range 5 {
				event := make([]byte, 9)
				if _, err := io.ReadFull(resp.Body, event); err != nil {
					t.Fatal(proto, err)
				}
				if late := time.Since(began) - time.Duration(i)*200*time.Millisecond; late > 100*time.Millisecond {
					t.Errorf("%s: event %d is %v late", proto, i, late)
				}
			}
			if _, rest := finish(t, resp, nil); rest != "data: 2\n\n7 bytes" {
				t.Errorf("%s: %q", proto, rest)
			}
			w.wantOutcomes(cortex.Success)
		})
	}
}

// F53: attempts went on for 20 minutes after the client had left.
func TestClientGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // while the target hangs
		var requests, ended atomic.Int32
		w := newWorld(t, clientEngine(t, attemptsCutAfter(5*time.Second), func(c *cortex.Config) { c.MaxRetries = 4 }), func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			<-r.Context().Done()
			ended.Add(1)
		})
		front := newWorld(t, clientEngine(t, noRetries), proxyTo(w).ServeHTTP)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := front.client.Do(request(t, ctx, "GET", "")); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if requests.Load() != 1 || ended.Load() != 1 {
			t.Errorf("%d requests, %d ended", requests.Load(), ended.Load())
		}
		time.Sleep(time.Minute)
		if requests.Load() != 1 {
			t.Errorf("%d requests later on", requests.Load())
		}
		w.wantOutcomes(cortex.Neutral)
	})
	synctest.Test(t, func(t *testing.T) { // in the middle of a download
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			block := make([]byte, 32<<10)
			for r.Context().Err() == nil {
				w.Write(block)
			}
		})
		front := newWorld(t, clientEngine(t, noRetries), proxyTo(w).ServeHTTP)
		resp, err := front.client.Get("http://front/")
		if err != nil {
			t.Fatal(err)
		}
		io.CopyN(io.Discard, resp.Body, 100<<10)
		resp.Body.Close()
		synctest.Wait()
		if s := w.engine.Stats(); s.Failures+s.Timeouts != 0 || len(w.results()) != 1 {
			t.Errorf("%+v, %+v", s, w.results())
		}
	})
	synctest.Test(t, func(t *testing.T) { // the target breaks off: not a clean end
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, "10 bytes..")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})
		front := newWorld(t, clientEngine(t, noRetries), proxyTo(w).ServeHTTP)
		resp, err := front.client.Get("http://front/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("a clean end")
		}
		resp.Body.Close()
		synctest.Wait()
		if s := w.engine.Stats(); s.Failures != 1 {
			t.Errorf("%+v", s)
		}
		w.wantOutcomes(cortex.Failed)
	})
}

// F54: trailers were dropped, and a gRPC status in them was not seen.
func TestTrailersOfAnswersPassAndSpeak(t *testing.T) {
	grpc := func(status string, messages int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/grpc")
			w.(http.Flusher).Flush()
			for range messages {
				io.WriteString(w, "message")
			}
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", status)
		}
	}
	for _, c := range []struct {
		name    string
		first   http.HandlerFunc
		optIn   bool
		body    string
		status  string
		outcome []cortex.Outcome
	}{
		{"good", grpc("0", 1), true, "message", "0", []cortex.Outcome{cortex.Success}},
		{"unavailable before the first message", grpc("14", 0), true, "message", "0", []cortex.Outcome{cortex.Failed, cortex.Success}},
		{"the same, not opted in", grpc("14", 0), false, "", "14", []cortex.Outcome{cortex.Failed}},
		{"unavailable after a message", grpc("14", 1), true, "message", "14", []cortex.Outcome{cortex.Failed}},
		{"not found", grpc("5", 0), true, "", "5", []cortex.Outcome{cortex.Neutral}},
		{"no status", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.(http.Flusher).Flush()
		}, true, "", "", []cortex.Outcome{cortex.Failed}},
		{"resource exhausted", grpc("8", 2), false, "messagemessage", "8", []cortex.Outcome{cortex.Throttled}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var n atomic.Int32
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) == 1 {
					c.first(w, r)
					return
				}
				grpc("0", 1)(w, r)
			}, overHTTP2, func(cfg *TransportConfig, _ *http.Server) {
				cfg.RetryNonIdempotent = func(*http.Request) bool { return c.optIn }
			})
			resp, err := w.client.Do(request(t, t.Context(), "POST", "message"))
			_, body := finish(t, resp, err)
			if got := resp.Trailer.Get("Grpc-Status"); got != c.status || c.status == c.body && body != c.body {
				t.Errorf("%s: trailer %q, body %q", c.name, got, body)
			}
			if c.outcome[0] != cortex.Failed && body != c.body {
				t.Errorf("%s: body %q", c.name, body)
			}
			synctest.Wait()
			w.wantOutcomes(c.outcome...)
		})
	}
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) { // announced or not, and an answer without a body of its own
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				io.WriteString(w, "body")
				w.Header().Set("X-Sum", "4")
				w.Header().Set(http.TrailerPrefix+"X-More", "yes")
			}, set)
			resp, err := w.client.Get("http://target/")
			if _, body := finish(t, resp, err); body != "body" || resp.Trailer.Get("X-Sum") != "4" || resp.Trailer.Get("X-More") != "yes" {
				t.Errorf("%s: %q, %v", proto, body, resp.Trailer)
			}
		})
	}
}

// An exchange where the target has its say first must not stand still while somebody looks ahead.
func TestTalkInBothDirectionsIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc")
			w.(http.Flusher).Flush()
			b, _ := io.ReadAll(r.Body)
			w.Write(b)
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		}, overHTTP2, func(c *TransportConfig, _ *http.Server) {
			c.RetryNonIdempotent = func(*http.Request) bool { return true }
		})
		pr, pw := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://target/", pr)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			io.WriteString(pw, "hello")
			pw.Close()
		}()
		if _, body := finish(t, resp, err); body != "hello" {
			t.Errorf("%q", body)
		}
		w.wantOutcomes(cortex.Success)
	})
}

// Trailers of the request, which are filled in while its body is read.
func TestRequestTrailersPass(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				io.WriteString(w, r.Trailer.Get("X-Sum"))
			}, func(c *TransportConfig, _ *http.Server) {
				if prepared {
					c.Prepare = func(r *http.Request, _ int) (*http.Request, error) { return r, nil }
				}
			})
			req := request(t, t.Context(), "PUT", "body")
			req.Trailer = http.Header{"X-Sum": nil}
			req.Body = &atEnd{ReadCloser: req.Body, f: func() { req.Trailer.Set("X-Sum", "4") }}
			resp, err := w.client.Do(req)
			if _, body := finish(t, resp, err); body != "4" {
				t.Errorf("prepared %v: trailer %q", prepared, body)
			}
		})
	}
}

type atEnd struct {
	io.ReadCloser
	f func()
}

func (a *atEnd) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF {
		a.f()
	}
	return n, err
}

// F56: the proxy hung, uploaded for nothing, or read the body after its handler had ended.
func TestExpectContinue(t *testing.T) {
	const size = 1 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	for name, c := range map[string]struct {
		handler  http.HandlerFunc
		status   int
		attempts int
	}{
		"refused at once": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(401) }, 401, 1},
		"taken": {func(w http.ResponseWriter, r *http.Request) {
			if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
				w.WriteHeader(500)
			}
		}, 200, 1},
		"503 unread, then taken": {func(w http.ResponseWriter, r *http.Request) {
			if a, _, _ := ParseAttempt(r.Header.Get(HeaderAttempt)); a == 0 {
				w.Header().Set("Connection", "close")
				w.WriteHeader(503)
				return
			}
			if n, err := io.Copy(io.Discard, r.Body); n != size || err != nil {
				w.WriteHeader(500)
			}
		}, 200, 2},
		"503 read, and too large": {func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.WriteHeader(503)
		}, 503, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Minute)), c.handler)
			w.base.ExpectContinueTimeout = 10 * time.Second
			front := newWorld(t, clientEngine(t, noRetries, attemptsCutAfter(time.Minute)), proxyTo(w).ServeHTTP)
			front.base.ExpectContinueTimeout = 10 * time.Second
			for range 20 {
				var sent atomic.Int64
				req := request(t, t.Context(), "PUT", "x")
				req.Body = io.NopCloser(&countReader{bytes.NewReader(data), &sent})
				req.ContentLength = size
				req.Header.Set("Expect", "100-continue")
				began := time.Now()
				before := len(w.results())
				resp, err := front.client.Do(req)
				status, _ := finish(t, resp, err)
				synctest.Wait()
				if status != c.status || len(w.results())-before != c.attempts || time.Since(began) > time.Second {
					t.Fatalf("%s: status %d, %d attempts, %v", name, status, len(w.results())-before, time.Since(began))
				}
				if c.status == 401 && sent.Load() > 0 {
					t.Fatalf("%s: uploaded %d bytes", name, sent.Load())
				}
			}
		})
	}
}

type countReader struct {
	io.Reader
	n *atomic.Int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// An early answer to an upload that goes on: the answer is passed on, the upload is not disturbed, nothing is read twice.
func TestEarlyAnswerToASlowUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Minute)), func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).EnableFullDuplex()
			first := make([]byte, 6)
			io.ReadFull(r.Body, first)
			time.Sleep(time.Second) // the client waits for more
			w.WriteHeader(503)
			w.(http.Flusher).Flush()
			b, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "got %q, %v", append(first, b...), err)
		})
		pr, pw := io.Pipe()
		go func() {
			io.WriteString(pw, "first ")
			time.Sleep(10 * time.Second)
			io.WriteString(pw, "second")
			pw.Close()
		}()
		var rep Report
		req, err := http.NewRequestWithContext(WithReport(t.Context(), &rep), "PUT", "http://target/", pr)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := w.client.Do(req)
		if status, body := finish(t, resp, err); status != 503 || body != `got "first second", <nil>` || rep.ReplaySkipped != ReplayBodyInUse {
			t.Errorf("%d %q, %+v", status, body, rep)
		}
	})
}

// F59: each dropped answer pinned its connection; with one of them the next attempt blocked for ever.
func TestDroppedAnswersFreeTheirConnection(t *testing.T) {
	for name, body := range map[string]func(w io.Writer, r *http.Request){
		"empty": func(io.Writer, *http.Request) {},
		"1 KiB": func(w io.Writer, _ *http.Request) { w.Write(make([]byte, 1024)) },
		"chunks": func(w io.Writer, _ *http.Request) {
			for range 4 {
				w.Write(make([]byte, 100))
				w.(http.Flusher).Flush()
			}
		},
		"endless": func(w io.Writer, r *http.Request) {
			for r.Context().Err() == nil {
				w.Write(make([]byte, 1024))
			}
		},
		"stalled": func(w io.Writer, r *http.Request) {
			w.Write(make([]byte, 10))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
				if a, _, _ := ParseAttempt(r.Header.Get(HeaderAttempt)); a < 2 {
					w.WriteHeader(503)
					body(w, r)
					return
				}
				io.WriteString(w, "ok")
			})
			w.base.MaxConnsPerHost = 1
			for range 200 {
				var rep Report
				resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "GET", ""))
				if status, body := finish(t, resp, err); status != 200 || body != "ok" || rep.Attempts != 3 {
					t.Fatalf("%s: %d %q %+v", name, status, body, rep)
				}
			}
			if most, dials := w.net.most.Load(), w.net.dials.Load(); most > 1 || dials > 1 && name != "endless" && name != "stalled" {
				t.Errorf("%s: %d connections at once, %d in all", name, most, dials)
			}
		})
	}
}

// F59: closed once, drained a little and no more, whatever the base is.
func TestDroppedAnswersAreClosedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []*endlessBody
		tr, err := NewTransport(TransportConfig{Engine: clientEngine(t), Base: roundTripper(func(*http.Request) (*http.Response, error) {
			b := &endlessBody{}
			bodies = append(bodies, b)
			return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: -1, Body: b}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(request(t, t.Context(), "GET", ""))
		if err != nil || len(bodies) != 4 {
			t.Fatal(len(bodies), err)
		}
		for i, b := range bodies {
			if want := min(1, 3-i); b.closes != want || b.read > drainBytes {
				t.Errorf("attempt %d: closed %d times, %d bytes read", i, b.closes, b.read)
			}
		}
		resp.Body.Close()
		if b := bodies[3]; b.closes != 1 || b.read != 0 {
			t.Errorf("the last: closed %d times, %d bytes read", b.closes, b.read)
		}
	})
}

type endlessBody struct{ read, closes int }

func (b *endlessBody) Read(p []byte) (int, error) {
	b.read += len(p)
	return len(p), nil
}

func (b *endlessBody) Close() error {
	b.closes++
	return nil
}

// Answers without a body are over at their header, and those that the caller closes early are judged by their status.
func TestOutcomeOfAnswersWithoutAnEnd(t *testing.T) {
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/204":
					w.WriteHeader(204)
				case "/304":
					w.WriteHeader(304)
				case "/hints":
					w.Header().Set("Link", "</style.css>; rel=preload")
					w.WriteHeader(103)
					w.WriteHeader(204)
				default:
					for r.Method == "GET" && r.Context().Err() == nil {
						w.Write(make([]byte, 100<<10))
					}
				}
			}, set)
			n := uint64(0)
			for _, c := range []struct{ method, path string }{{"GET", "/204"}, {"GET", "/304"}, {"GET", "/hints"}, {"HEAD", "/"}} {
				req := request(t, t.Context(), c.method, "")
				req.URL.Path = c.path
				if _, err := w.transport.RoundTrip(req); err != nil { // nobody closes the body
					t.Fatal(err)
				}
				if n++; w.engine.Stats().Successes != n {
					t.Errorf("%s %s %s: %+v", proto, c.method, c.path, w.engine.Stats())
				}
			}
			resp, err := w.client.Get("http://target/")
			if err != nil {
				t.Fatal(err)
			}
			if s := w.engine.Stats(); s.Successes != n || w.engine.Pressure().InFlight != 0 {
				t.Errorf("%s: a success before the end of the body, or in flight after the header: %+v", proto, s)
			}
			resp.Body.Close()
			resp.Body.Close()
			if _, err := resp.Body.Read(make([]byte, 1)); err == nil {
				t.Error("reads on")
			}
			if s := w.engine.Stats(); s.Successes != n+1 || s.Failures != 0 {
				t.Errorf("%s: %+v", proto, s)
			}
			// The caller's context ends in the middle: neutral.
			ctx, cancel := context.WithCancel(t.Context())
			if resp, err = w.client.Do(request(t, ctx, "GET", "")); err != nil {
				t.Fatal(err)
			}
			cancel()
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if s := w.engine.Stats(); s.Successes != n+1 || s.Failures != 0 || s.Neutral != 1 {
				t.Errorf("%s: %+v", proto, s)
			}
		})
	}
}

// A body may be closed by one goroutine while another reads it; that is no failure of the target.
func TestBodyClosedWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		resp, err := w.client.Get("http://target/")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			_, err := resp.Body.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		resp.Body.Close()
		if err := <-done; err == nil {
			t.Error("read something")
		}
		if s := w.engine.Stats(); s.Failures != 0 || s.Successes != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// The caller's own body breaks: the target has no part in it, and the same body will not do better.
func TestBrokenRequestBodyIsNeutral(t *testing.T) {
	broken := errors.New("disk on fire")
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, set)
			var rep Report
			req := request(t, WithReport(t.Context(), &rep), "PUT", "x")
			req.Body = io.NopCloser(io.MultiReader(strings.NewReader("start"), errReader{broken}))
			_, err := w.client.Do(req)
			if err == nil || rep.Attempts != 1 || w.engine.Stats().Failures != 0 {
				t.Errorf("%s: %v, %+v, %+v", proto, err, rep, w.engine.Stats())
			}
			if proto == "HTTP/2" { // sends it as it is
				return
			}
			short := request(t, WithReport(t.Context(), &rep), "PUT", "short")
			short.ContentLength = 10
			_, err = w.client.Do(short)
			if err == nil || rep.Attempts != 1 || w.engine.Stats().Failures != 0 {
				t.Errorf("%s, short: %v, %+v, %+v", proto, err, rep, w.engine.Stats())
			}
		})
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// GetBody fails when it is needed: the answer that was there is kept.
func TestGetBodyFails(t *testing.T) {
	srv := httptest.NewServer(statusSequence(503))
	defer srv.Close()
	e := clientEngine(t)
	tr, err := NewTransport(TransportConfig{Engine: e})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	tokens := e.Pressure().Tokens
	var rep Report
	req, err := http.NewRequestWithContext(WithReport(t.Context(), &rep), "PUT", srv.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
	resp, err := tr.RoundTrip(req)
	if status, _ := finish(t, resp, err); status != 503 || rep.ReplaySkipped != ReplayBodyFailed || rep.Reason != cortex.ReasonNotRetryable {
		t.Errorf("status %d, %+v", status, rep)
	}
	if got := e.Pressure().Tokens; got < tokens {
		t.Errorf("tokens %v of %v", got, tokens)
	}
}
