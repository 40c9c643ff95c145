package cortexhttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

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
				w.transport.CloseIdleConnections()
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
	eachHTTP1(t, testHangingDialIsRetriedForEveryMethod)
}

func testHangingDialIsRetriedForEveryMethod(t *testing.T, set func(*TransportConfig, *http.Server)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), answerOK, set)
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
	eachHTTP1(t, testStaleConnectionHealsForIdempotentRequests)
}

func testStaleConnectionHealsForIdempotentRequests(t *testing.T, set func(*TransportConfig, *http.Server)) {
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
		cfg := TransportConfig{Engine: e, Base: http.DefaultTransport.(*http.Transport).Clone()}
		set(&cfg, nil)
		tr, err := NewTransport(cfg)
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

// F50: where nothing was written, a POST heals as well. net/http says so only to those who let it have the body again; our own
// transport has a small one at hand.
func TestNothingWrittenIsRetriedForEveryMethod(t *testing.T) {
	eachHTTP1(t, testNothingWrittenIsRetriedForEveryMethod)
}

func testNothingWrittenIsRetriedForEveryMethod(t *testing.T, set func(*TransportConfig, *http.Server)) {
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
				}, set)
				_, atHand := w.transport.base.(ownHTTP1)
				w.base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := w.net.dial(ctx, network, addr)
					return &deafConn{Conn: conn}, err
				}
				for i := range 2 {
					synctest.Wait() // until the connection is idle
					var rep Report
					req := request(t, WithReport(t.Context(), &rep), c.method, c.body)
					if c.again {
						req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(c.body)), nil }
					}
					resp, err := w.transport.RoundTrip(req)
					if err != nil && !retries && c.body != "" && !c.again && !atHand && i == 1 {
						continue // nobody has the body any more
					}
					if status, _ := finish(t, resp, err); status != 200 || rep.Attempts != i+1 {
						t.Errorf("%+v, retries %v, request %d: status %d, %+v", c, retries, i, status, rep)
					}
					if byItself := !retries && (c.again || atHand) || c.body == ""; i == 1 && byItself != (rep.Hidden > 0) {
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
