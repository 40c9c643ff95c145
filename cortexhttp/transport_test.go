package cortexhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

func TestNewTransportNamesTheField(t *testing.T) {
	e := clientEngine(t)
	pick := func(*http.Request) (*cortex.Engine, error) { return e, nil }
	for field, cfg := range map[string]TransportConfig{
		"TransportConfig.Engine": {},
		"TransportConfig.Select": {Engine: e, Select: pick},
	} {
		_, err := NewTransport(cfg)
		if ce, ok := errors.AsType[*cortex.ConfigError](err); !ok || ce.Field != field {
			t.Errorf("%v, want it to name %s", err, field)
		}
	}
	for _, cfg := range []TransportConfig{{Engine: e}, {Select: pick}} {
		tr, err := NewTransport(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if tr.base == http.DefaultTransport {
			t.Error("the default transport is shared")
		}
	}
}

func TestTransportPassesAGoodAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Method", r.Method)
			w.Write(append([]byte("you said "), body...))
		})
		var rep Report
		req := request(t, WithReport(t.Context(), &rep), "POST", "hello")
		resp, err := w.client.Do(req)
		if status, body := finish(t, resp, err); status != 200 || body != "you said hello" {
			t.Errorf("%d %q", status, body)
		}
		if rep != (Report{Attempts: 1}) {
			t.Errorf("report %+v", rep)
		}
		w.wantOutcomes(cortex.Success)
		if r := w.results()[0]; r.Host != "target" || r.Status != 200 || r.Err != nil || r.Attempt != 0 {
			t.Errorf("%+v", r)
		}
		if s := w.engine.Stats(); s.Successes != 1 || s.Attempts != 1 || s.Calls != 1 {
			t.Errorf("%+v", s)
		}
		if n := w.engine.Pressure().InFlight; n != 0 {
			t.Errorf("%d in flight", n)
		}
	})
}

// What the guard tells the next one is written to a copy: RoundTrip must not change the request, and callers share headers.
func TestTransportLeavesTheRequestAlone(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		cfg := TransportConfig{Engine: clientEngine(t), SendPriority: true}
		var sent []http.Header
		cfg.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
			sent = append(sent, r.Header)
			return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}, nil
		})
		if prepared {
			cfg.Prepare = func(r *http.Request, n int) (*http.Request, error) {
				r.URL.Host = fmt.Sprint("endpoint-", n)
				r.Header.Add("Accept", "more")
				r.Header["Accept"][0] = "other"
				return r, nil
			}
		}
		tr, err := NewTransport(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req := request(t, ctx, "GET", "")
		values := make([]string, 1, 8) // room that an append would write to
		values[0] = "text/plain"
		req.Header["Accept"] = values
		before, url := maps.Clone(req.Header), *req.URL
		if _, err := tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		if len(sent) != 4 {
			t.Fatalf("%d attempts", len(sent))
		}
		if !maps.EqualFunc(req.Header, before, slices.Equal) || req.Header["Accept"][0] != "text/plain" || values[:2][1] != "" || *req.URL != url {
			t.Errorf("prepared %v: header %v, URL %v", prepared, req.Header, req.URL)
		}
		for i, h := range sent {
			if got, want := h.Get(HeaderAttempt), fmt.Sprintf("%d;retries=3", i); got != want {
				t.Errorf("attempt %d says %q", i, got)
			}
			if got := h.Get(HeaderTimeout); got < "3500000" || got > "3600000" {
				t.Errorf("attempt %d: time left %q", i, got)
			}
			if got := h.Get(HeaderPriority); got != "5" {
				t.Errorf("attempt %d: priority %q", i, got)
			}
		}
	}
}

func TestTransportPriority(t *testing.T) {
	for _, c := range []struct {
		name string
		rule func(*http.Request) cortex.Priority
		ctx  context.Context
		want string
	}{
		{"none", nil, t.Context(), "5"},
		{"context", nil, WithPriority(t.Context(), 9), "9"},
		{"rule", func(*http.Request) cortex.Priority { return 2 }, WithPriority(t.Context(), 9), "2"},
		{"too high", nil, WithPriority(t.Context(), 99), "10"},
		{"too low", nil, WithPriority(t.Context(), -99), "0"},
	} {
		var got string
		tr, err := NewTransport(TransportConfig{Engine: clientEngine(t), Priority: c.rule, SendPriority: true,
			Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				got = r.Header.Get(HeaderPriority)
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(request(t, c.ctx, "GET", "")); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestTransportRefuses(t *testing.T) {
	e := serverEngine(t, overloaded) // sheds below 7
	tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(*http.Request) (*http.Response, error) {
		t.Error("sent all the same")
		return nil, errors.New("no")
	})})
	if err != nil {
		t.Fatal(err)
	}
	var rep Report
	body := &countedBody{Reader: strings.NewReader("x")}
	for _, getBody := range []func() (io.ReadCloser, error){nil, func() (io.ReadCloser, error) { return nil, errors.New("no") }} {
		body.closes = 0
		req := request(t, WithReport(t.Context(), &rep), "POST", "x")
		req.Body, req.GetBody = body, getBody
		_, err = tr.RoundTrip(req)
		if !errors.Is(err, cortex.ErrShed) || !errors.Is(err, cortex.ErrRejected) {
			t.Errorf("%v", err)
		}
		if rep.Attempts != 0 || rep.Reason != cortex.ReasonShed || rep.Rejection == nil {
			t.Errorf("%+v", rep)
		}
		if n := body.closed(); n != 1 {
			t.Errorf("body closed %d times", n)
		}
	}
	_, err = (&http.Client{Transport: tr}).Do(request(t, t.Context(), "GET", ""))
	if !errors.Is(err, cortex.ErrShed) { // through *url.Error
		t.Errorf("%v", err)
	}
}

func TestTransportClosesTheBodyOfARequestThatItDoesNotSend(t *testing.T) {
	broken := errors.New("no such target")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	e := clientEngine(t)
	for name, c := range map[string]struct {
		cfg TransportConfig
		ctx context.Context
		err error
	}{
		"select":    {TransportConfig{Select: func(*http.Request) (*cortex.Engine, error) { return nil, broken }}, t.Context(), broken},
		"cancelled": {TransportConfig{Engine: e}, over, context.Canceled},
		"prepare":   {TransportConfig{Engine: e, Prepare: func(*http.Request, int) (*http.Request, error) { return nil, broken }}, t.Context(), broken},
	} {
		tr, err := NewTransport(c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		body := &countedBody{Reader: strings.NewReader("x")}
		req := request(t, c.ctx, "PUT", "x")
		req.Body = body
		if _, err := tr.RoundTrip(req); !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if n := body.closed(); n != 1 {
			t.Errorf("%s: body closed %d times", name, n)
		}
	}
	if n := e.Pressure().InFlight; n != 0 {
		t.Errorf("%d in flight", n)
	}
}

func TestTransportWithoutAnEngineForTheRequestPassesIt(t *testing.T) {
	tr, err := NewTransport(TransportConfig{Select: func(*http.Request) (*cortex.Engine, error) { return nil, nil },
		Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			b, _ := io.ReadAll(r.Body)
			if string(b) != "x" || r.Header.Get(HeaderAttempt) != "" {
				t.Errorf("%q %v", b, r.Header)
			}
			return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := tr.RoundTrip(request(t, t.Context(), "PUT", "x")); err != nil || resp.StatusCode != 503 {
		t.Error(resp, err)
	}
}

// A panic in a hook or in the base passes through; the permit is free, and the body and the timer are gone.
func TestTransportFreesThePermitOnPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := clientEngine(t)
		answer := roundTripper(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		})
		for name, cfg := range map[string]TransportConfig{
			"base":    {Base: roundTripper(func(*http.Request) (*http.Response, error) { panic("base") })},
			"outcome": {Base: answer, Outcome: func(*http.Response) (cortex.Class, bool) { panic("outcome") }},
			"prepare": {Base: answer, Prepare: func(*http.Request, int) (*http.Request, error) { panic("prepare") }},
			"tell":    {Base: answer, OnAttempt: func(AttemptResult) { panic("tell") }},
			"retry":   {Base: answer, RetryNonIdempotent: func(*http.Request) bool { panic("retry") }},
		} {
			cfg.Engine = e
			tr, err := NewTransport(cfg)
			if err != nil {
				t.Fatal(err)
			}
			body := &countedBody{Reader: strings.NewReader("x")}
			req := request(t, t.Context(), "POST", "x")
			req.Body = body
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s: the panic was swallowed", name)
					}
				}()
				tr.RoundTrip(req)
			}()
			if n := e.Pressure().InFlight; n != 0 {
				t.Errorf("%s: %d in flight", name, n)
			}
			if n := body.closed(); n != 1 && name != "base" && name != "outcome" && name != "tell" { // else the base's to close
				t.Errorf("%s: body closed %d times", name, n)
			}
		}
	})
}

func TestTransportRetriesUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), statusSequence(503, 500, 502, 200))
		var rep Report
		resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "PUT", "body"))
		if status, _ := finish(t, resp, err); status != 200 {
			t.Errorf("status %d", status)
		}
		if rep != (Report{Attempts: 4}) {
			t.Errorf("%+v", rep)
		}
		w.wantOutcomes(cortex.Failed, cortex.Failed, cortex.Failed, cortex.Success)
	})
}

// The upstream's own last answer is the answer when retries run out.
func TestTransportReturnsTheLastResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Attempt", r.Header.Get(HeaderAttempt))
			w.WriteHeader(503)
			io.WriteString(w, "sorry")
		})
		var rep Report
		resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "GET", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Get("X-Attempt"); got != "3;retries=3" {
			t.Errorf("answer of attempt %q", got)
		}
		if status, body := finish(t, resp, err); status != 503 || body != "sorry" {
			t.Errorf("%d %q", status, body)
		}
		if rep != (Report{Attempts: 4, Reason: cortex.ReasonMaxRetries}) {
			t.Errorf("%+v", rep)
		}
		if s := w.engine.Stats(); s.Failures != 4 || s.Retries != 3 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTransportObeysDoNotRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(HeaderRetry, "no")
			w.WriteHeader(503)
		})
		var rep Report
		resp, err := w.client.Do(request(t, WithReport(t.Context(), &rep), "GET", ""))
		finish(t, resp, err)
		if rep.Attempts != 1 || rep.Reason != cortex.ReasonDoNotRetry {
			t.Errorf("%+v", rep)
		}
	})
}

// The rule may look at a part of the body, if it puts it back; F18: a 200 that says failure counts as one.
func TestTransportOutcomeRuleMayReadTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "2")
			if n.Add(1) == 1 {
				io.WriteString(w, `{"error":131056} and more`)
				return
			}
			io.WriteString(w, `{"ok":1} and more`)
		}, func(c *TransportConfig, _ *http.Server) {
			c.Outcome = func(r *http.Response) (cortex.Class, bool) {
				start := make([]byte, 8)
				n, _ := io.ReadFull(r.Body, start)
				r.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(strings.NewReader(string(start[:n])), r.Body), r.Body}
				return cortex.Class{Outcome: cortex.Throttled, Retryable: true}, string(start) == `{"error"`
			}
		})
		began := time.Now()
		resp, err := w.client.Get("http://target/")
		if status, body := finish(t, resp, err); status != 200 || body != `{"ok":1} and more` {
			t.Errorf("%d %q", status, body)
		}
		if took := time.Since(began); took < 2*time.Second {
			t.Errorf("the hint was passed over: %v", took)
		}
		w.wantOutcomes(cortex.Throttled, cortex.Success)
		if s := w.engine.Stats(); s.Throttled != 1 || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The base may close a body late, an answer may come without a body: a base that is not net/http's gets by.
func TestTransportOnABaseOfItsOwnKind(t *testing.T) {
	e := clientEngine(t)
	calls := 0
	tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		calls++
		switch calls {
		case 1:
			return nil, nil
		case 2:
			return nil, io.ErrUnexpectedEOF
		}
		return &http.Response{StatusCode: 200}, nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(request(t, t.Context(), "GET", ""))
	if err != nil || resp.Body == nil || calls != 3 {
		t.Fatalf("%v, %d calls, %v", resp, calls, err)
	}
	// Of such a base nobody knows if it has sent a POST.
	calls = 1
	var rep Report
	_, err = tr.RoundTrip(request(t, WithReport(t.Context(), &rep), "POST", "x"))
	if !errors.Is(err, io.ErrUnexpectedEOF) || calls != 2 || rep.Reason != cortex.ReasonNotRetryable || rep.ConnectFailed {
		t.Errorf("%v, %d calls, %+v", err, calls, rep)
	}
}

// An invalid request is the caller's fault: nothing was sent, nothing is counted, nothing is tried again.
func TestTransportRequestAtFaultIsNeutral(t *testing.T) {
	e := clientEngine(t)
	tr, err := NewTransport(TransportConfig{Engine: e})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*http.Request){
		"no host": func(r *http.Request) { r.URL = &url.URL{Scheme: "http"} },
		"no URL":  func(r *http.Request) { r.URL = nil },
		"scheme":  func(r *http.Request) { r.URL.Scheme = "gopher" },
		"method":  func(r *http.Request) { r.Method = "GE T" },
		"header":  func(r *http.Request) { r.Header["X"] = []string{"a\nb"} },
	} {
		var rep Report
		req := request(t, WithReport(t.Context(), &rep), "GET", "")
		change(req)
		_, err := tr.RoundTrip(req)
		if err == nil || rep.Attempts != 1 || rep.Reason != cortex.ReasonNotRetryable {
			t.Errorf("%s: %v %+v", name, err, rep)
		}
	}
	if s := e.Stats(); s.Failures != 0 || s.Neutral != 5 {
		t.Errorf("%+v", s)
	}
}

// What the target says of its own pressure holds back low priorities here, if it is well formed.
func TestTransportFollowsTheTargetsPressure(t *testing.T) {
	for value, follows := range map[string]bool{"0.4000;q=0.5000;shed=0.8000;state=ELEVATED": true, "0.4;q=0.5;shed=NaN;state=ELEVATED": false,
		"0.4000;q=0.5000;shed=8;state=ELEVATED": false, "junk": false} {
		var clock handClock
		e := clientEngine(t, func(c *cortex.Config) { c.Now = clock.now })
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(*http.Request) (*http.Response, error) {
			clock.advance(5 * time.Millisecond)
			return &http.Response{StatusCode: 200, Header: http.Header{HeaderPressure: {value}}, Body: http.NoBody}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		shed := 0
		for i := range 1000 {
			if _, err := tr.RoundTrip(request(t, WithPriority(t.Context(), cortex.Priority(i%10)), "GET", "")); errors.Is(err, cortex.ErrShed) {
				shed++
				clock.advance(time.Millisecond)
			}
		}
		if (shed > 0) != follows || e.Stats().BadInput != 0 {
			t.Errorf("%q: %d shed, %+v", value, shed, e.Stats())
		}
	}
}

// The mark of the layer above goes on unchanged; this layer does not claim retries of its own below it.
func TestTransportPassesOnTheMarkFromAbove(t *testing.T) {
	for _, c := range []struct {
		name   string
		mark   *cortex.RetryMark
		header string // in the request already
		e      *cortex.Engine
		method string
		off    bool
		want   string
	}{
		{"none", nil, "", clientEngine(t), "GET", false, "0;retries=3"},
		{"none, and a forged field", nil, "7;retries=9", clientEngine(t), "GET", false, "0;retries=3"},
		{"none, no retries", nil, "", clientEngine(t, noRetries), "GET", false, "0;retries=0"},
		{"none, not to be repeated", nil, "", clientEngine(t), "POST", false, "0;retries=0"},
		{"none, other retries", nil, "", clientEngine(t, func(c *cortex.Config) { c.MaxRetries = 7 }), "GET", false, "0;retries=7"},
		{"whole", &cortex.RetryMark{Attempt: 1, Retries: 2}, "", clientEngine(t), "GET", false, "1;retries=2"},
		{"its retries in the field", &cortex.RetryMark{Attempt: 1}, "1;retries=2", clientEngine(t), "GET", false, "1;retries=2"},
		{"its retries unknown", &cortex.RetryMark{Attempt: 1}, "junk", clientEngine(t), "GET", false, "1;retries=3"},
		{"its retries unknown, no own", &cortex.RetryMark{Attempt: 1}, "", clientEngine(t, noRetries), "GET", false, "1;retries=1"},
		{"not to be sent", &cortex.RetryMark{Attempt: 1, Retries: 2}, "", clientEngine(t), "GET", true, ""},
	} {
		var sent http.Header
		tr, err := NewTransport(TransportConfig{Engine: c.e, DisableMark: c.off, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			if sent == nil {
				sent = r.Header
			}
			return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		if c.mark != nil {
			ctx = cortex.WithRetryMark(ctx, *c.mark)
		}
		var rep Report
		req := request(t, WithReport(ctx, &rep), c.method, "")
		if c.header != "" {
			req.Header.Set(HeaderAttempt, c.header)
		}
		if _, err := tr.RoundTrip(req); err != nil {
			t.Fatal(err)
		}
		if got := sent.Get(HeaderAttempt); got != c.want || (sent.Get(HeaderTimeout) == "") != c.off {
			t.Errorf("%s: %q, want %q; time left %q", c.name, got, c.want, sent.Get(HeaderTimeout))
		}
		if c.mark != nil && (rep.Attempts != 1 || rep.Reason != cortex.ReasonRetriedAbove) {
			t.Errorf("%s: %+v", c.name, rep)
		}
		cancel()
	}
}

// An answer that comes as the time runs out is cut off in what follows its header: it is a timeout, and not passed on.
func TestAnswerAtTheLastMomentIsATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := &countedBody{Reader: strings.NewReader("x")}
		e := clientEngine(t, noRetries)
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: body}, nil
		})})
		if err != nil {
			t.Fatal(err)
		}
		var rep Report
		_, err = tr.RoundTrip(request(t, WithReport(t.Context(), &rep), "GET", ""))
		if !errors.Is(err, context.DeadlineExceeded) || !rep.TimedOut || e.Stats().Timeouts != 1 || body.closed() != 1 {
			t.Errorf("%v, %+v, closed %d times", err, rep, body.closed())
		}
	})
}

// Those who look for a timeout the way of package net find one, also through http.Client.
func TestAttemptTimeoutIsATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t, noRetries), func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		_, err := w.client.Get("http://target/")
		if ue, ok := errors.AsType[*url.Error](err); !ok || !ue.Timeout() {
			t.Errorf("%v", err)
		}
		const want = `Get "http://target/": cortex: target: cortexhttp: no response headers within the attempt timeout of 1s ` +
			"(1 attempt, no further: MAX_RETRIES_EXCEEDED)"
		if err.Error() != want {
			t.Errorf("%v", err)
		}
		if c := cortex.Classify(err); c.Outcome != cortex.TimedOut {
			t.Errorf("%+v", c)
		}
	})
}

// A connection that was closed while idle says nothing of the target, however often that happens.
func TestConnectionClosedWhileIdleIsNeutral(t *testing.T) {
	e := clientEngine(t)
	tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(*http.Request) (*http.Response, error) {
		return nil, errors.New(closedIdle)
	})})
	if err != nil {
		t.Fatal(err)
	}
	for method, attempts := range map[string]int{"PUT": 4, "POST": 1} {
		var rep Report
		tr.RoundTrip(request(t, WithReport(t.Context(), &rep), method, "x"))
		if rep.Attempts != attempts || e.Stats().Failures != 0 {
			t.Errorf("%s: %+v, %+v", method, rep, e.Stats())
		}
	}
}

func TestReplaySkipNames(t *testing.T) {
	for s, want := range map[ReplaySkip]string{ReplayNotSkipped: "", ReplayBodyTooLarge: "BODY_TOO_LARGE", ReplayBodyInUse: "BODY_IN_USE",
		ReplayBodyFailed: "BODY_FAILED", 9: "ReplaySkip(9)"} {
		if b, err := s.MarshalText(); string(b) != want || err != nil {
			t.Errorf("%d: %q, %v", uint8(s), b, err)
		}
	}
}
