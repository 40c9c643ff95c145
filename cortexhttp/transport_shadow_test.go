package cortexhttp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

func withShadow(c *TransportConfig, _ *http.Server) { shadowed(c) }

// What the engine would do about an answer is told, and not done.
func TestShadowTellsWhatWouldBeDone(t *testing.T) {
	for _, c := range []struct {
		name         string
		method, body string
		status       int
		change       func(*TransportConfig, *http.Server)
		engine       func(*cortex.Config)
		want         Report
	}{
		{"good", "GET", "", 200, overHTTP1, nil, Report{}},
		{"the request's fault", "GET", "", 404, overHTTP1, nil, Report{}},
		{"a retry", "GET", "", 503, overHTTP1, nil, Report{WouldRetry: true}},
		{"a retry with a body", "PUT", "hello", 503, overHTTP1, nil, Report{WouldRetry: true}},
		{"a body too large", "PUT", "hello", 503, func(c *TransportConfig, _ *http.Server) { c.MaxReplayBytes = 4 }, nil,
			Report{WouldReason: cortex.ReasonNotRetryable, ReplaySkipped: ReplayBodyTooLarge}},
		{"a body for which there would be no memory", "PUT", "hello", 503, newPurse(0).use, nil, Report{WouldRetry: true}}, // it is not asked
		{"not to be repeated", "POST", "hello", 503, overHTTP1, nil, Report{WouldReason: cortex.ReasonNotRetryable}},
		{"no retries", "GET", "", 503, overHTTP1, noRetries, Report{WouldReason: cortex.ReasonMaxRetries}},
	} {
		synctest.Test(t, func(t *testing.T) {
			if c.engine == nil {
				c.engine = func(*cortex.Config) {}
			}
			var seen []string
			w := newWorld(t, clientEngine(t, c.engine), func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				seen = append(seen, r.Header.Get(HeaderAttempt)+" "+string(b))
				w.WriteHeader(c.status)
				io.WriteString(w, "the answer")
			}, c.change, withShadow)
			var rep Report
			resp, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), c.method, c.body))
			if status, body := finish(t, resp, err); status != c.status || body != "the answer" {
				t.Errorf("%s: %d %q", c.name, status, body)
			}
			if (rep.WouldDelay > 0) != c.want.WouldRetry {
				t.Errorf("%s: tried again after %v", c.name, rep.WouldDelay)
			}
			c.want.Shadow, c.want.Attempts, rep.WouldDelay = true, 1, 0
			if rep != c.want {
				t.Errorf("%s:\n got %+v\nwant %+v", c.name, rep, c.want)
			}
			if len(seen) != 1 || seen[0] != "0;retries=0 "+c.body {
				t.Errorf("%s: sent %q", c.name, seen)
			}
		})
	}
}

// What would have been spent is spent: without it, the budget would never be seen to run out.
func TestShadowChargesTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t, func(c *cortex.Config) { c.Budget.Capacity = 10 }), statusSequence(503), withShadow)
		var last Report
		retries := 0
		for n := 0; n < 10_000 && last.WouldReason == cortex.ReasonNone; n++ {
			last = Report{}
			resp, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &last), "GET", ""))
			finish(t, resp, err)
			if last.WouldRetry {
				retries++
			}
		}
		if retries == 0 || last.WouldReason != cortex.ReasonBudget {
			t.Errorf("%d retries, %+v", retries, last)
		}
		if s := w.engine.Stats(); int(s.Attempts) != retries+1 {
			t.Errorf("%+v", s)
		}
	})
}

// The error is that of the base, not one of the guard's.
func TestShadowReturnsTheErrorOfTheBase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), answerOK, withShadow)
		w.net.refuse.Store(1)
		var rep Report
		_, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), "POST", "x"))
		if _, ok := errors.AsType[*cortex.CallError](err); ok || !errors.Is(err, errRefused) {
			t.Errorf("%v", err)
		}
		if !rep.ConnectFailed || !rep.WouldRetry || rep.Attempts != 1 {
			t.Errorf("%+v", rep)
		}
		ctx, cancel := context.WithCancel(WithReport(t.Context(), &rep))
		cancel()
		if _, err := w.transport.RoundTrip(request(t, ctx, "GET", "")); !errors.Is(err, context.Canceled) || rep.Reason != cortex.ReasonCancelled {
			t.Errorf("%v, %+v", err, rep)
		}
	})
}

// Behind an open circuit all calls are made, and the engine learns of none but its probes.
func TestShadowPassesWhatWouldBeRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ill atomic.Bool
		ill.Store(true)
		w := newWorld(t, clientEngine(t, withCircuit, noRetries), func(w http.ResponseWriter, r *http.Request) {
			if ill.Load() {
				w.WriteHeader(500)
			}
		}, withShadow)
		refused := 0
		send := func() Report {
			var rep Report
			resp, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), "GET", ""))
			if status, _ := finish(t, resp, err); (status == 500) != ill.Load() || rep.Attempts != 1 || !rep.Shadow || rep.Rejection != nil || rep.Reason != cortex.ReasonNone {
				t.Fatalf("%d, %+v", status, rep)
			}
			if rep.WouldRefuse != nil {
				refused++
				if rep.WouldRefuse.Reason != cortex.ReasonCircuitOpen || rep.WouldReason != cortex.ReasonNone || rep.WouldRetry {
					t.Fatalf("%+v", rep)
				}
			}
			time.Sleep(10 * time.Millisecond)
			return rep
		}
		for range 2000 {
			send()
		}
		s := w.engine.Stats()
		if p := w.engine.Pressure(); p.Circuit == breaker.Closed || p.InFlight != 0 {
			t.Errorf("%+v", p)
		}
		if refused < 1000 || s.Calls != 2000 || int(s.Attempts) != 2000-refused || s.Failures != s.Attempts {
			t.Errorf("%d refused, %+v", refused, s)
		}
		if n := len(w.results()); n != 2000 {
			t.Errorf("told of %d attempts", n)
		}
		ill.Store(false)
		for n := 0; w.engine.Pressure().Circuit != breaker.Closed; n++ {
			if send(); n > 100_000 {
				t.Fatal("the circuit does not close")
			}
		}
	})
}

// An attempt over its time goes on, and is one that timed out from that moment on.
func TestShadowCutsNothing(t *testing.T) {
	for proto, set := range protocols {
		for _, body := range []string{"", "hello"} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Second)), func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					time.Sleep(10 * time.Second)
					io.WriteString(w, "at last")
				}, set, withShadow)
				time.AfterFunc(time.Second+time.Millisecond, func() {
					if s := w.engine.Stats(); s.Timeouts != 1 || w.engine.Pressure().InFlight != 0 {
						t.Errorf("%s: %+v", proto, s)
					}
				})
				var rep Report
				resp, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), "PUT", body))
				if status, got := finish(t, resp, err); status != 200 || got != "at last" {
					t.Errorf("%s: %d %q", proto, status, got)
				}
				if !rep.WouldCut || !rep.WouldRetry || rep.TimedOut {
					t.Errorf("%s: %+v", proto, rep)
				}
				w.wantOutcomes(cortex.TimedOut)
				if s := w.engine.Stats(); s.Timeouts != 1 || s.Successes+s.Failures != 0 {
					t.Errorf("%s: %+v", proto, s)
				}
			})
		}
	}
}

// Nor is an upload, where the target takes nothing of it, or the caller does not come to its end before the engine's deadline.
func TestShadowCutsNoUpload(t *testing.T) {
	for name, c := range map[string]struct {
		pause  time.Duration // of the caller's, in the middle
		sloth  time.Duration // of the target's
		engine func(*cortex.Config)
		want   cortex.Outcome
		reason cortex.Reason
	}{
		"slow target":             {0, time.Minute, attemptsCutAfter(time.Second), cortex.TimedOut, cortex.ReasonNone},
		"slow caller":             {time.Minute, 0, attemptsCutAfter(time.Second), cortex.Success, cortex.ReasonNone},
		"slow caller, a deadline": {time.Minute, 0, func(c *cortex.Config) { c.Deadline = 10 * time.Second }, cortex.Neutral, cortex.ReasonDeadline},
	} {
		for proto, set := range protocols {
			synctest.Test(t, func(t *testing.T) {
				const size = 20 << 20 // more than anything between takes
				got := int64(0)
				w := newWorld(t, clientEngine(t, c.engine), func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(c.sloth)
					got, _ = io.Copy(io.Discard, r.Body)
				}, set, withShadow, func(cfg *TransportConfig, _ *http.Server) {
					cfg.RetryNonIdempotent = func(*http.Request) bool { return true }
				})
				pr, pw := io.Pipe()
				go func() {
					block := make([]byte, 1<<20)
					for range 10 {
						pw.Write(block)
					}
					time.Sleep(c.pause)
					for range 10 {
						pw.Write(block)
					}
					pw.Close()
				}()
				var rep Report
				resp, err := w.transport.RoundTrip(uploadRequest(t, WithReport(t.Context(), &rep), pr, -1))
				if status, _ := finish(t, resp, err); status != 200 || got != size {
					t.Errorf("%s, %s: %d, %d bytes arrived", name, proto, status, got)
				}
				w.wantOutcomes(c.want)
				if rep.WouldCut != (c.want != cortex.Success) || c.reason != cortex.ReasonNone && rep.WouldReason != c.reason {
					t.Errorf("%s, %s: %+v", name, proto, rep)
				}
				if s := w.engine.Stats(); w.engine.Pressure().InFlight != 0 || s.Timeouts > 0 != (c.want == cortex.TimedOut) {
					t.Errorf("%s, %s: %+v", name, proto, s)
				}
			})
		}
	}
}

// Where the error comes after the time was up, its own kind is what the caller gets.
func TestShadowErrorAfterTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Second)), func(http.ResponseWriter, *http.Request) {
			time.Sleep(2 * time.Second)
			panic(http.ErrAbortHandler)
		}, withShadow)
		var rep Report
		_, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), "GET", ""))
		if !errors.Is(err, io.EOF) || rep.TimedOut || !rep.WouldCut || !rep.WouldRetry {
			t.Errorf("%v, %+v", err, rep)
		}
		w.wantOutcomes(cortex.TimedOut)
	})
}

// With part of the calls watched, the others are guarded.
func TestShadowByRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), statusSequence(503), func(c *TransportConfig, _ *http.Server) {
			c.Shadow = func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/watched") }
		})
		for path, attempts := range map[string]int{"/watched/": 1, "/": 4} {
			var rep Report
			req := request(t, WithReport(t.Context(), &rep), "GET", "")
			req.URL.Path = path
			resp, err := w.transport.RoundTrip(req)
			finish(t, resp, err)
			if rep.Attempts != attempts || rep.Shadow != (attempts == 1) {
				t.Errorf("%s: %+v", path, rep)
			}
		}
	})
}

// unsentError is how a base says that nothing was written.
type unsentError struct{ error }

func (unsentError) RequestUnsent() bool { return true }
func (e unsentError) Unwrap() error     { return e.error }

// A base that knows that nothing was sent lets every request be sent again, whatever its other errors mean.
func TestUnsentRequestIsRetriedForEveryMethod(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    error
		reused bool
		traced bool // the base asked for a connection, and got one
		again  bool
		want   cortex.Outcome
	}{
		{"on a new connection", unsentError{io.ErrUnexpectedEOF}, false, true, true, cortex.Failed},
		{"on a stale one", unsentError{io.ErrUnexpectedEOF}, true, true, true, cortex.Neutral},
		{"wrapped", &net.OpError{Op: "write", Err: unsentError{io.ErrUnexpectedEOF}}, true, true, true, cortex.Neutral},
		{"no connection", unsentError{io.ErrUnexpectedEOF}, false, false, true, cortex.Failed},
		{"sent", io.ErrUnexpectedEOF, true, true, false, cortex.Failed},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), answerOK, func(cfg *TransportConfig, _ *http.Server) {
				base, n := cfg.Base, 0
				cfg.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
					if n++; n > 1 {
						return base.RoundTrip(r)
					}
					if trace := traceOf(r); c.traced {
						trace.GetConn("target:80")
						trace.GotConn(gotConn(c.reused))
					}
					r.Body.Close()
					return nil, c.err
				})
			})
			var rep Report
			resp, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), "POST", "x"))
			if c.again {
				if status, _ := finish(t, resp, err); status != 200 || rep.Attempts != 2 {
					t.Errorf("%s: %d, %+v", c.name, status, rep)
				}
				w.wantOutcomes(c.want, cortex.Success)
				return
			}
			if err == nil || rep.Attempts != 1 {
				t.Errorf("%s: %v, %+v", c.name, err, rep)
			}
			w.wantOutcomes(c.want)
		})
	}
}

// What is wrong with a request is wrong with it the next time, though nothing of it was sent.
func TestRequestAtFaultIsNotRepeated(t *testing.T) {
	eachHTTP1(t, func(t *testing.T, set func(*TransportConfig, *http.Server)) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), answerOK, set)
			var rep Report
			req := request(t, WithReport(t.Context(), &rep), "GET", "")
			req.Header.Set("X-Bad", "a\nb")
			if _, err := w.transport.RoundTrip(req); err == nil || rep.Attempts != 1 || rep.ConnectFailed || rep.Reason != cortex.ReasonNotRetryable {
				t.Errorf("%v, %+v", err, rep)
			}
			w.wantOutcomes(cortex.Neutral)
		})
	})
}

func traceOf(r *http.Request) *httptrace.ClientTrace {
	return httptrace.ContextClientTrace(r.Context())
}

func gotConn(reused bool) httptrace.GotConnInfo { return httptrace.GotConnInfo{Reused: reused} }
