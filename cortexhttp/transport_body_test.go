package cortexhttp

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

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
func TestExpectContinue(t *testing.T) { eachHTTP1(t, testExpectContinue) }

func testExpectContinue(t *testing.T, set func(*TransportConfig, *http.Server)) {
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
			w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Minute)), c.handler, set)
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
