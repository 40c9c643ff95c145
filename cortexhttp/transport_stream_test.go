package cortexhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/h1"
)

// overHTTP2 makes a world speak HTTP/2, without TLS.
func overHTTP2(c *TransportConfig, s *http.Server) {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	s.Protocols = p
	c.Base.(*http.Transport).Protocols = p
}

func overHTTP1(*TransportConfig, *http.Server) {}

// ownHTTP1 is our own transport as a base.
type ownHTTP1 struct{ *h1.Transport }

func (ownHTTP1) HTTP1() bool { return true }

// overOwnHTTP1 makes a world's client use it.
func overOwnHTTP1(c *TransportConfig, s *http.Server) {
	std := c.Base.(*http.Transport)
	own, err := h1.New(h1.Config{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return std.DialContext(ctx, network, address) // which a test may change
	}})
	if err != nil {
		panic(err)
	}
	c.Base = ownHTTP1{own}
}

var protocols = map[string]func(*TransportConfig, *http.Server){"HTTP/1": overHTTP1, "HTTP/2": overHTTP2, "own HTTP/1": overOwnHTTP1}

// eachHTTP1 runs a test over both transports for HTTP/1.
func eachHTTP1(t *testing.T, f func(t *testing.T, set func(*TransportConfig, *http.Server))) {
	t.Run("net/http", func(t *testing.T) { f(t, overHTTP1) })
	t.Run("own", func(t *testing.T) { f(t, overOwnHTTP1) })
}

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

// F51: the retry wrapper could not be upgraded through, or wrote after it.
func TestUpgradeThroughAProxy(t *testing.T) { eachHTTP1(t, testUpgradeThroughAProxy) }

func testUpgradeThroughAProxy(t *testing.T, set func(*TransportConfig, *http.Server)) {
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
		}, set)
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
func TestClientGoesAway(t *testing.T) { eachHTTP1(t, testClientGoesAway) }

func testClientGoesAway(t *testing.T, set func(*TransportConfig, *http.Server)) {
	synctest.Test(t, func(t *testing.T) { // while the target hangs
		var requests, ended atomic.Int32
		w := newWorld(t, clientEngine(t, attemptsCutAfter(5*time.Second), func(c *cortex.Config) { c.MaxRetries = 4 }), func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			<-r.Context().Done()
			ended.Add(1)
		}, set)
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
		}, set)
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
		{"broken off before the first message", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/grpc")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, true, "message", "0", []cortex.Outcome{cortex.Failed, cortex.Success}},
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
