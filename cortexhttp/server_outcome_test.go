package cortexhttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

func TestOutcomeByStatus(t *testing.T) {
	for want, statuses := range map[cortex.Outcome][]int{
		cortex.Success:   {200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 422, 501, 505},
		cortex.Failed:    {500, 502, 503, 507, 511, 599},
		cortex.TimedOut:  {504},
		cortex.Throttled: {429},
		cortex.Neutral:   {408, 499},
	} {
		for _, status := range statuses {
			e := serverEngine(t, cortex.Config{})
			ask(guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }), "GET", "/", stranger)
			s := cortex.Stats{Calls: 1, Attempts: 1}
			*map[cortex.Outcome]*uint64{cortex.Success: &s.Successes, cortex.Failed: &s.Failures, cortex.TimedOut: &s.Timeouts,
				cortex.Throttled: &s.Throttled, cortex.Neutral: &s.Neutral}[want] = 1
			if wantStats(t, e, s); t.Failed() {
				t.Fatalf("status %d is not counted as %v", status, want)
			}
		}
	}
}

func TestOutcomeIsTheUsersToSay(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	h := guardHandler(t, HandlerConfig{Engine: e, Outcome: func(status int) cortex.Outcome {
		if status == 404 {
			return cortex.Failed
		}
		return cortex.Success
	}}, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/a": 404, "/b": 500}[r.URL.Path])
	})
	ask(h, "GET", "/a", stranger)
	ask(h, "GET", "/b", stranger)
	wantStats(t, e, cortex.Stats{Calls: 2, Attempts: 2, Failures: 1, Successes: 1})
}

// What goes on until somebody leaves is judged when it begins, anything else at its end.
func TestEndlessAnswersAreJudgedByTheirBeginning(t *testing.T) {
	for _, c := range []struct {
		method, contentType string
		status              int
		endless             bool
	}{
		{"GET", "text/event-stream", 200, true},
		{"GET", "TEXT/EVENT-STREAM;charset=utf-8", 200, true},
		{"GET", "", http.StatusSwitchingProtocols, true},
		{"CONNECT", "", 200, true},
		{"CONNECT", "", 403, false},
		{"GET", "", 200, false},
		{"GET", "text/event", 200, false},
		{"GET", "text/plain", 200, false},
	} {
		e := serverEngine(t, cortex.Config{})
		h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
			if c.contentType != "" {
				w.Header().Set("Content-Type", c.contentType)
			}
			w.WriteHeader(c.status)
			if n := e.Pressure().InFlight; (n == 0) != c.endless {
				t.Errorf("%+v: %d in flight after the header", c, n)
			}
			panic(http.ErrAbortHandler)
		})
		func() {
			defer func() { recover() }()
			r := httptest.NewRequest("GET", "/", nil)
			r.Method = c.method
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		want := cortex.Stats{Calls: 1, Attempts: 1, Failures: 1}
		if c.endless {
			want.Failures, want.Successes = 0, 1
		}
		if wantStats(t, e, want); t.Failed() {
			t.Fatalf("%+v", c)
		}
	}
}

// F20: the refusal of a guard below is not a failure of this process.
func TestAnswerOfAGuardBelowIsNeutral(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
		WriteRejection(w, r, &cortex.Rejection{Target: "ledger", Reason: cortex.ReasonCircuitOpen, RetryAfter: time.Second})
	})
	for range 100 {
		if w := ask(h, "GET", "/", stranger); w.Code != 503 || w.Header().Get(HeaderReason) != "CIRCUIT_OPEN" {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
	}
	wantStats(t, e, cortex.Stats{Calls: 100, Attempts: 100, Neutral: 100})
}

func TestPanicPassesThroughAndCounts(t *testing.T) {
	boom := errors.New("boom")
	for _, value := range []any{boom, "text", http.ErrAbortHandler} {
		e := serverEngine(t, cortex.Config{})
		h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "PUT" {
				w.Write([]byte("a part")) // 200 so far
			}
			panic(value)
		})
		for _, method := range []string{"GET", "PUT"} {
			func() {
				defer func() {
					if got := recover(); got != value {
						t.Errorf("panic value %v came out as %v", value, got)
					}
				}()
				ask(h, method, "/", stranger)
				t.Error("the panic was swallowed")
			}()
		}
		wantStats(t, e, cortex.Stats{Calls: 2, Attempts: 2, Failures: 2})
	}
}

// The stack of a panic starts where it was raised: no recover and no new panic in between.
func TestPanicKeepsItsStack(t *testing.T) {
	h := guardHandler(t, HandlerConfig{Engine: serverEngine(t, cortex.Config{})}, func(http.ResponseWriter, *http.Request) { culprit() })
	defer func() {
		recover()
		stack := make([]byte, 1<<16)
		if stack = stack[:runtime.Stack(stack, false)]; !strings.Contains(string(stack), "culprit") || strings.Contains(string(stack), "[recovered]") {
			t.Errorf("stack:\n%s", stack)
		}
	}()
	ask(h, "GET", "/", stranger)
}

func culprit() { panic("here") }

func TestGoexitFreesThePermit(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	h := guardHandler(t, HandlerConfig{Engine: e}, func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		ask(h, "GET", "/", stranger)
	}()
	<-done
	wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Failures: 1})
}

func TestPanicOfAHookFreesThePermit(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	bad := true
	fail := func() {
		if bad {
			panic("hook")
		}
	}
	for _, c := range []HandlerConfig{
		{Outcome: func(int) cortex.Outcome { fail(); return cortex.Success }},
		{Priority: func(*http.Request) cortex.Priority { fail(); return 5 }},
		{Exempt: func(*http.Request) bool { fail(); return false }},
	} {
		c.Engine = e
		h := guardHandler(t, c, answerOK)
		func() {
			defer func() { recover() }()
			ask(h, "GET", "/", stranger)
			t.Error("the panic was swallowed")
		}()
	}
	testClock.advance(time.Millisecond)
	if n := e.Pressure().InFlight; n != 0 {
		t.Errorf("%d left in flight", n)
	}
}

// Deadlines of callers: who set it and how long it was say whether its end is a failure.
func TestExpiredDeadlineCountsOnlyIfBelievedAndLongEnough(t *testing.T) {
	for _, c := range []struct {
		name string
		peer string
		wait string
		want cortex.Stats
	}{
		// Without a baseline the measure is the attempt timeout, 1 s.
		{"trusted, long", neighbour, "3000", cortex.Stats{Calls: 1, Attempts: 1, Timeouts: 1}},
		{"trusted, too short for any work", neighbour, "1", cortex.Stats{Calls: 1, Attempts: 1, Neutral: 1}},
		{"stranger, long", stranger, "3000", cortex.Stats{Calls: 1, Attempts: 1, Neutral: 1}},
		{"stranger, short", stranger, "1", cortex.Stats{Calls: 1, Attempts: 1, Neutral: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				e := serverEngine(t, cortex.Config{Now: func() time.Duration { return time.Since(start) }})
				var cause error
				h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					cause = context.Cause(r.Context())
					w.WriteHeader(500)
				})
				ask(h, "GET", "/", c.peer, HeaderTimeout+": "+c.wait)
				if ms, _ := strconv.Atoi(c.wait); time.Since(start) != time.Duration(ms)*time.Millisecond {
					t.Errorf("ended after %v", time.Since(start))
				}
				if !errors.Is(cause, context.DeadlineExceeded) || !strings.Contains(cause.Error(), HeaderTimeout) {
					t.Errorf("cause: %v", cause)
				}
				time.Sleep(time.Millisecond) // virtual: engines collect what happened once in that time
				wantStats(t, e, c.want)
			})
		})
	}
}

// A handler that hangs and does not mind its context: the circuit opens when its callers have gone, not when it returns, and until
// then the requests hold this process.
func TestCallersThatLeaveCountBeforeTheirHandlersReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		e := serverEngine(t, cortex.Config{Now: func() time.Duration { return time.Since(start) }})
		release := make(chan struct{})
		h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) { <-release })
		const n = 12
		for range n {
			go ask(h, "GET", "/", neighbour, HeaderTimeout+": 2000")
		}
		time.Sleep(2001 * time.Millisecond)
		synctest.Wait()
		if p := e.Pressure(); p.Circuit != breaker.Open || p.InFlight != n {
			t.Errorf("circuit %v with %d in flight, want open with %d", p.Circuit, p.InFlight, n)
		}
		if s := e.Stats(); s.Timeouts != n {
			t.Errorf("%d timeouts, want %d", s.Timeouts, n)
		}
		close(release)
		synctest.Wait()
		time.Sleep(time.Millisecond)
		wantStats(t, e, cortex.Stats{Calls: n, Attempts: n, Timeouts: n, Transitions: 1})
	})
}

// fileWriter is a writer with all that HTTP/1's offers, without a connection.
type fileWriter struct {
	httptest.ResponseRecorder
	http.Hijacker
	from int
}

func (w *fileWriter) ReadFrom(src io.Reader) (int64, error) {
	w.from++
	return io.Copy(struct{ io.Writer }{&w.ResponseRecorder}, src)
}

// plainWriter hides what a writer offers besides writing, as middleware does; unwrapper shows it to http.ResponseController.
type plainWriter struct{ http.ResponseWriter }

type unwrapper struct{ plainWriter }

func (u unwrapper) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func TestWriterOffersWhatTheServersOffers(t *testing.T) {
	for _, c := range []struct {
		name                string
		w                   func(*fileWriter) http.ResponseWriter
		flush, hijack, from bool
	}{
		{"HTTP/1", func(w *fileWriter) http.ResponseWriter { return w }, true, true, true},
		{"HTTP/2", func(w *fileWriter) http.ResponseWriter { return &w.ResponseRecorder }, true, false, false},
		{"hidden", func(w *fileWriter) http.ResponseWriter { return plainWriter{w} }, false, false, false},
		{"wrapped", func(w *fileWriter) http.ResponseWriter { return unwrapper{plainWriter{w}} }, true, true, true},
	} {
		e := serverEngine(t, cortex.Config{})
		f := &fileWriter{ResponseRecorder: *httptest.NewRecorder()}
		h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
			_, flush := w.(http.Flusher)
			_, hijack := w.(http.Hijacker)
			_, from := w.(io.ReaderFrom)
			if flush != c.flush || hijack != c.hijack || from != c.from {
				t.Errorf("%s: offers Flush %v, Hijack %v, ReadFrom %v", c.name, flush, hijack, from)
			}
			if err := http.NewResponseController(w).Flush(); (err == nil) != c.flush {
				t.Errorf("%s: flush: %v", c.name, err)
			}
			if n, err := io.Copy(w, struct{ io.Reader }{strings.NewReader("a file")}); n != 6 || err != nil {
				t.Errorf("%s: %d, %v", c.name, n, err)
			}
			if n, err := io.WriteString(w, "!"); n != 1 || err != nil {
				t.Errorf("%s: %d, %v", c.name, n, err)
			}
		})
		h.ServeHTTP(c.w(f), httptest.NewRequest("GET", "/", nil))
		if got := f.Body.String(); got != "a file!" {
			t.Errorf("%s: body %q", c.name, got)
		}
		if want := c.name == "HTTP/1"; (f.from == 1) != want {
			t.Errorf("%s: %d times from reader to socket", c.name, f.from)
		}
		wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1})
	}
}

// A handler that cannot take the connection over answers as usual, and is judged by that.
func TestFailedHijackIsNoAnswer(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("hijack: %v", err)
		}
		w.WriteHeader(500)
	})
	h.ServeHTTP(&fileWriter{ResponseRecorder: *httptest.NewRecorder(), Hijacker: noHijack{}}, httptest.NewRequest("GET", "/", nil))
	wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Failures: 1})
}

type noHijack struct{}

func (noHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }
