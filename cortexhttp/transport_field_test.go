package cortexhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
)

// F17: dashboards that aborted their queries opened the breaker against a healthy database.
func TestCallersCancellationIsNotAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t, withCircuit, noRetries), func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-r.Context().Done():
			}
		})
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			var rep Report
			if _, err := w.client.Do(request(t, WithReport(ctx, &rep), "GET", "")); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if rep.Reason != cortex.ReasonCancelled || rep.Attempts != 1 {
				t.Fatalf("%+v", rep)
			}
		}
		// A driver that says it in words of its own.
		text, err := NewTransport(TransportConfig{Engine: w.engine, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, errors.New("operation was aborted")
		})})
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Millisecond, cancel)
			text.RoundTrip(request(t, ctx, "GET", ""))
		}
		if s := w.engine.Stats(); s.Neutral != 200 || s.Failures+s.Timeouts != 0 || w.engine.Pressure().Circuit != breaker.Closed {
			t.Errorf("%+v, circuit %v", s, w.engine.Pressure().Circuit)
		}
	})
}

// F17, the control group: the guard's own timeout is a failure, whatever the base makes of it.
func TestOwnTimeoutIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t, withCircuit, noRetries), func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		open := 0
		for range 100 {
			var rep Report
			_, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "GET", ""))
			switch {
			case errors.Is(err, cortex.ErrOpen):
				open++
			case !errors.Is(err, context.DeadlineExceeded) || !rep.TimedOut || rep.ConnectFailed:
				t.Fatalf("%v %+v", err, rep)
			}
		}
		if s := w.engine.Stats(); s.Timeouts == 0 || s.Neutral != 0 || open == 0 {
			t.Errorf("%+v, %d refused", s, open)
		}
	})
}

// F18: stale metadata made 404s until all backends were marked down.
func TestClientFaultsDoNotTrip(t *testing.T) {
	status := 0
	for _, c := range []struct {
		statuses []int
		opens    bool
	}{{[]int{400, 401, 404, 409, 422, 429, 408, 425, 501}, false}, {[]int{500}, true}, {[]int{502}, true}, {[]int{503}, true}, {[]int{504}, true}} {
		e := clientEngine(t, withCircuit, noRetries)
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		opened := false
		for _, status = range c.statuses {
			for range 200 {
				_, err := tr.RoundTrip(request(t, WithPriority(t.Context(), 10), "GET", ""))
				opened = opened || errors.Is(err, cortex.ErrOpen)
			}
		}
		if opened != c.opens || e.Stats().Failures+e.Stats().Timeouts > 0 != c.opens {
			t.Errorf("%v: opened %v, %+v", c.statuses, opened, e.Stats())
		}
	}
}

// opened returns an engine whose circuit is open.
func opened(t *testing.T) *cortex.Engine {
	t.Helper()
	e := clientEngine(t, withCircuit, func(c *cortex.Config) {
		c.Profile, c.Now = cortex.Article, func() time.Duration { return time.Hour }
	})
	for range 10_000 {
		p, err := e.Admit(t.Context(), 10)
		if errors.Is(err, cortex.ErrOpen) {
			return e
		}
		p.Record(cortex.Failed)
	}
	t.Fatal("the circuit does not open")
	return nil
}

// F20: the open circuit looked like an unavailable target, and the retry layer slept and tried again.
func TestOpenCircuitIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below, err := NewTransport(TransportConfig{Engine: opened(t), Base: roundTripper(func(*http.Request) (*http.Response, error) {
			t.Error("the operation was called")
			return nil, io.EOF
		})})
		if err != nil {
			t.Fatal(err)
		}
		above, err := NewTransport(TransportConfig{Engine: clientEngine(t), Base: below})
		if err != nil {
			t.Fatal(err)
		}
		var rep Report
		began := time.Now()
		_, err = above.RoundTrip(request(t, WithReport(t.Context(), &rep), "GET", ""))
		if !errors.Is(err, cortex.ErrOpen) || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// F20, over the wire: our own gateway's 503 is not the target's.
func TestOpenCircuitOfAGuardBelowIsNotRetried(t *testing.T) {
	guard := guardHandler(t, HandlerConfig{Engine: opened(t)}, func(http.ResponseWriter, *http.Request) { t.Error("called") })
	e := clientEngine(t, withCircuit)
	var statuses []int
	tr, err := NewTransport(TransportConfig{Engine: e, OnAttempt: func(r AttemptResult) { statuses = append(statuses, r.Status) },
		Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			rec := httptest.NewRecorder()
			guard.ServeHTTP(rec, r)
			return rec.Result(), nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	var rep Report
	resp, err := tr.RoundTrip(request(t, WithReport(t.Context(), &rep), "GET", ""))
	if status, _ := finish(t, resp, err); status != 503 || rep.Attempts != 1 || rep.Reason != cortex.ReasonNotRetryable {
		t.Errorf("status %d, %+v", status, rep)
	}
	if s := e.Stats(); s.Failures != 0 || s.Neutral != 1 || len(statuses) != 1 {
		t.Errorf("%+v", s)
	}
}

// F21: a stream was booked as a success when it opened; a target that always truncates looked healthy.
func TestTruncatedBodyIsAFailureAndNotRetried(t *testing.T) {
	for name, cut := range map[string]func(*net.TCPConn){
		"reset": func(c *net.TCPConn) { c.SetLinger(0) },
		"end":   func(*net.TCPConn) {},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var requests atomic.Int32
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			w.Header().Set("Content-Length", "1000")
			w.Write(make([]byte, 10))
			w.(http.Flusher).Flush()
			c, _, _ := w.(http.Hijacker).Hijack()
			cut(c.(*net.TCPConn))
			c.Close()
		}))
		srv.Listener.Close()
		srv.Listener = ln
		srv.Start()
		e := clientEngine(t, withCircuit)
		tr, err := NewTransport(TransportConfig{Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		broken := 0
		for range 20 {
			resp, err := tr.RoundTrip(get(t, srv.URL))
			if err != nil {
				t.Fatal(name, err)
			}
			if _, err := io.ReadAll(resp.Body); err != nil {
				broken++
			}
			resp.Body.Close()
		}
		if s := e.Stats(); s.Failures != 20 || s.Successes != 0 || broken != 20 || requests.Load() != 20 {
			t.Errorf("%s: %+v, %d broken, %d requests", name, s, broken, requests.Load())
		}
		open := false
		for range 100 {
			resp, err := tr.RoundTrip(get(t, srv.URL))
			if open = errors.Is(err, cortex.ErrOpen); open {
				break
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if !open {
			t.Errorf("%s: the circuit stays closed", name)
		}
		tr.CloseIdleConnections()
		srv.Close()
	}
}

func get(t testing.TB, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// F34: waited five minutes for a retry planned in ten, and claimed that the context had ended.
func TestNoWaitForARetryThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, base := range map[string]roundTripper{
			"answer": func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"10"}}, Body: http.NoBody}, nil
			},
			"error": func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		} {
			e := clientEngine(t, func(c *cortex.Config) { c.Backoff = backoff.Config{Law: backoff.Exponential, Base: 10 * time.Second} })
			tr, err := NewTransport(TransportConfig{Engine: e, Base: base})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			var rep Report
			began := time.Now()
			resp, err := tr.RoundTrip(request(t, WithReport(ctx, &rep), "GET", ""))
			if time.Since(began) > 0 || ctx.Err() != nil || rep.Attempts != 1 || rep.Reason != cortex.ReasonDeadline {
				t.Errorf("%s: after %v, context %v, %+v", name, time.Since(began), ctx.Err(), rep)
			}
			if name == "answer" && (err != nil || resp.StatusCode != 503) {
				t.Errorf("%s: %v, %v", name, resp, err)
			}
			if name == "error" && (!errors.Is(err, io.ErrUnexpectedEOF) || !errors.Is(err, cortex.ErrDeadline) || errors.Is(err, context.DeadlineExceeded)) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
	})
}

// F35: five seconds in all became five hours.
func TestOverallLimitEndsTheRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := clientEngine(t, func(c *cortex.Config) { c.Deadline, c.MaxRetries = 5*time.Second, 1000 })
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			select {
			case <-time.After(100 * time.Millisecond):
				return nil, io.ErrUnexpectedEOF
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		})})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = tr.RoundTrip(request(t, t.Context(), "GET", ""))
		if took := time.Since(began); took > 5*time.Second || took < time.Second || !errors.Is(err, cortex.ErrDeadline) {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// F35: a timeout around it all leaves no attempt behind, in flight or to come.
func TestOuterTimeoutLeavesNothingRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var starts atomic.Int32
		w := newWorld(t, clientEngine(t, attemptsCutAfter(5*time.Second)), func(w http.ResponseWriter, r *http.Request) {
			starts.Add(1)
			select {
			case <-time.After(time.Second):
				w.WriteHeader(500)
			case <-r.Context().Done():
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := w.client.Do(request(t, ctx, "GET", ""))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(5 * time.Second)
		if n := starts.Load(); n != 1 {
			t.Errorf("%d starts", n)
		}
	})
}

// The caller leaves while the next attempt is waited for: that one is not made, and its token is given back.
func TestCancellationWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int32
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			w.Header().Set("Retry-After", "20")
			w.WriteHeader(503)
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the user left")
		time.AfterFunc(time.Second, func() { cancel(left) })
		before := w.engine.Pressure().Tokens
		var rep Report
		_, err := w.client.Do(request(t, WithReport(ctx, &rep), "GET", ""))
		status, _ := errors.AsType[*StatusError](err)
		if !errors.Is(err, left) || status == nil || status.StatusCode != 503 || rep.Reason != cortex.ReasonCancelled {
			t.Errorf("%v, %+v", err, rep)
		}
		time.Sleep(time.Minute)
		if n := requests.Load(); n != 1 || w.engine.Pressure().Tokens < before {
			t.Errorf("%d requests, tokens %v of %v", n, w.engine.Pressure().Tokens, before)
		}
	})
}

// The circuit opens while a retry waits: the refusal is wrapped, and so is what the attempt had come to.
func TestCircuitOpensWhileARetryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := clientEngine(t, withCircuit, func(c *cortex.Config) { c.Profile = cortex.Article })
		for range 100 {
			p, _ := e.Admit(t.Context(), 10)
			p.Record(cortex.Success)
		}
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(500*time.Millisecond, func() {
			for range 1000 {
				if p, err := e.Admit(t.Context(), 10); err == nil {
					p.Record(cortex.Failed)
				}
			}
		})
		var rep Report
		_, err = tr.RoundTrip(request(t, WithReport(WithPriority(t.Context(), 10), &rep), "GET", ""))
		call, _ := errors.AsType[*cortex.CallError](err)
		status, _ := errors.AsType[*StatusError](err)
		if call == nil || call.Attempts != 1 || status == nil || !errors.Is(err, cortex.ErrOpen) || rep.Rejection == nil || rep.Attempts != 1 {
			t.Errorf("%v, %+v", err, rep)
		}
	})
}

// F39: a server parked its client for hours.
func TestHintIsCappedByTheMaximumDelay(t *testing.T) {
	for _, hint := range []string{"3600", "9999999999", "9999999999999999999999999", "Thu, 01 Jan 2099 00:00:00 GMT"} {
		synctest.Test(t, func(t *testing.T) {
			e := clientEngine(t, func(c *cortex.Config) { c.Backoff.Max = 10 * time.Second })
			w := newWorld(t, e, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", hint)
				if a, _, _ := ParseAttempt(r.Header.Get(HeaderAttempt)); a == 0 {
					w.WriteHeader(429)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			began := time.Now()
			resp, err := w.client.Do(request(t, ctx, "GET", ""))
			if status, _ := finish(t, resp, err); status != 200 || time.Since(began) != 10*time.Second {
				t.Errorf("%s: status %d after %v", hint, status, time.Since(began))
			}
		})
	}
}

// F69: three layers of three tries each sent 27 calls to a system that was just recovering.
func TestNestedLayersDoNotMultiply(t *testing.T) {
	// In one process: the mark is in the context, and what comes back is not tried again.
	for _, kind := range []string{"answer", "error", "refused dial"} {
		synctest.Test(t, func(t *testing.T) {
			var bottom atomic.Int32
			var rt http.RoundTripper = roundTripper(func(r *http.Request) (*http.Response, error) {
				bottom.Add(1)
				switch kind {
				case "answer":
					return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}, nil
				case "error":
					return nil, io.ErrUnexpectedEOF
				}
				return nil, &net.OpError{Op: "dial", Err: errRefused}
			})
			for range 3 {
				tr, err := NewTransport(TransportConfig{Engine: clientEngine(t, func(c *cortex.Config) { c.MaxRetries = 2 }), Base: rt})
				if err != nil {
					t.Fatal(err)
				}
				rt = tr
			}
			for _, method := range []string{"GET", "POST"} {
				bottom.Store(0)
				rt.RoundTrip(request(t, t.Context(), method, ""))
				want := int32(3)
				if method == "POST" && kind != "refused dial" {
					want = 1
				}
				if n := bottom.Load(); n != want {
					t.Errorf("%s, %s: %d calls at the bottom, want %d", kind, method, n, want)
				}
			}
		})
	}
	// A function under Do inside a transport, and a transport inside of that.
	synctest.Test(t, func(t *testing.T) {
		bottom := 0
		inner, err := NewTransport(TransportConfig{Engine: clientEngine(t), Base: roundTripper(func(*http.Request) (*http.Response, error) {
			bottom++
			return nil, io.ErrUnexpectedEOF
		})})
		if err != nil {
			t.Fatal(err)
		}
		middle := clientEngine(t)
		outer, err := NewTransport(TransportConfig{Engine: clientEngine(t), Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			return cortex.Do(r.Context(), middle, func(ctx context.Context) (*http.Response, error) { return inner.RoundTrip(r.WithContext(ctx)) })
		})})
		if err != nil {
			t.Fatal(err)
		}
		outer.RoundTrip(request(t, t.Context(), "GET", ""))
		if bottom > 4 {
			t.Errorf("%d calls at the bottom", bottom)
		}
	})
}

// F69, over the wire: three services, each guarded on both sides.
func TestNestedServicesDoNotMultiply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bottom atomic.Int32
		var marks []string
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			bottom.Add(1)
			marks = append(marks, r.Header.Get(HeaderAttempt))
			w.WriteHeader(503)
		})
		for range 2 {
			next := newWorld(t, clientEngine(t, func(c *cortex.Config) { c.MaxRetries = 2 }), handler)
			guard := guardHandler(t, HandlerConfig{Engine: clientEngine(t)}, func(w http.ResponseWriter, r *http.Request) {
				resp, err := next.client.Do(request(t, r.Context(), r.Method, ""))
				status, _ := finish(t, resp, err)
				w.WriteHeader(status)
			})
			handler = guard.ServeHTTP
		}
		top := newWorld(t, clientEngine(t, func(c *cortex.Config) { c.MaxRetries = 2 }), handler)
		var rep Report
		resp, err := top.client.Do(request(t, WithReport(t.Context(), &rep), "GET", ""))
		if status, _ := finish(t, resp, err); status != 503 || bottom.Load() != 3 || rep.Attempts != 3 {
			t.Errorf("status %d, %d calls at the bottom, %+v", status, bottom.Load(), rep)
		}
		if len(marks) != 3 || marks[0] != "0;retries=2" || marks[2] != "2;retries=2" {
			t.Errorf("marks at the bottom: %q", marks)
		}
	})
}

// F88: registries keyed by what users send grew for ever.
func TestManyHostsShareABoundedRegistry(t *testing.T) {
	reg := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 50)
	tr, err := NewTransport(TransportConfig{
		Select: func(r *http.Request) (*cortex.Engine, error) { return reg.Engine(r.URL.Host) },
		Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		req := request(t, t.Context(), "GET", "")
		req.URL.Host = fmt.Sprintf("host-%d.example", i)
		if _, err := tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
	}
	if n := reg.Len(); n > 50 {
		t.Errorf("%d engines", n)
	}
}
