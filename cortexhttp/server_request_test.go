package cortexhttp

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

func TestDeadlineOfTheCallerReachesTheHandler(t *testing.T) {
	for _, c := range []struct {
		name   string
		lines  []string
		own    time.Duration // the deadline of the request's context; 0 = none
		limit  time.Duration
		want   time.Duration // 0 = none
		status int
	}{
		{"none", nil, 0, 0, 0, 200},
		{"from anybody", []string{"250"}, 0, 0, 250 * time.Millisecond, 200},
		{"bounded", []string{"3600000"}, 0, 0, time.Minute, 200},
		{"bounded by its owner", []string{"3600000"}, 0, 5 * time.Second, 5 * time.Second, 200},
		{"bound longer than that", []string{"3600000"}, 0, 2 * time.Hour, time.Hour, 200},
		{"an earlier one stays", []string{"5000"}, time.Second, 0, time.Second, 200},
		{"shortens", []string{"5000"}, time.Minute, 0, 5 * time.Second, 200},
		{"beyond 64 bits", []string{"18446744073709551617"}, 0, 0, time.Minute, 200}, // 1 ms if it wraps
		{"beyond 32 bits", []string{"4294967297"}, 0, math.MaxInt64, math.MaxInt32 * time.Millisecond, 200},
		{"would overflow nanoseconds", []string{"9223372036855"}, 0, 0, time.Minute, 200},
		{"junk", []string{"soon"}, 0, 0, 0, 200},
		{"with a unit", []string{"250ms"}, 0, 0, 0, 200},
		{"a float", []string{"0.5"}, 0, 0, 0, 200},
		{"empty", []string{""}, 0, 0, 0, 200},
		{"a sign alone", []string{"-"}, 0, 0, 0, 200},
		{"two lines", []string{"250", "250"}, 0, 0, 0, 200},
		{"passed", []string{"0"}, 0, 0, 0, 504},
		{"long passed", []string{"-20"}, 0, 0, 0, 504},
		{"long passed, beyond 64 bits", []string{"-18446744073709551617"}, 0, 0, 0, 504},
		{"passed in the context", nil, -time.Second, 0, 0, 504},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := serverEngine(t, cortex.Config{})
				ran := false
				h := guardHandler(t, HandlerConfig{Engine: e, MaxTimeout: c.limit}, func(w http.ResponseWriter, r *http.Request) {
					ran = true
					d, ok := r.Context().Deadline()
					if ok != (c.want != 0) || ok && time.Until(d) != c.want {
						t.Errorf("deadline in %v, %v; want in %v", time.Until(d), ok, c.want)
					}
				})
				r := httptest.NewRequest("GET", "/", nil)
				r.Header[HeaderTimeout] = c.lines
				if c.own != 0 {
					ctx, cancel := context.WithTimeout(t.Context(), c.own)
					defer cancel()
					r = r.WithContext(ctx)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != c.status || ran != (c.status == 200) {
					t.Errorf("answered %d, handler ran: %v", w.Code, ran)
				}
				if c.status == 504 {
					if got := w.Header(); got.Get(HeaderReason) != "DEADLINE" || got.Get("Retry-After") != "" || got.Get(HeaderPressure) == "" {
						t.Errorf("header %v", got)
					}
					if !strings.Contains(w.Body.String(), ProblemTypes+"deadline") {
						t.Errorf("body %s", w.Body)
					}
					testClock.advance(time.Millisecond)
					wantStats(t, e, cortex.Stats{})
				}
			})
		})
	}
}

func TestNoWorkForACallerThatLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	e := serverEngine(t, cortex.Config{})
	guardHandler(t, HandlerConfig{Engine: e}, mustNotRun(t)).ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if w.Code != 503 || w.Header().Get(HeaderReason) != "CANCELLED" {
		t.Errorf("answered %d, %v", w.Code, w.Header())
	}
	wantStats(t, e, cortex.Stats{})
}

// What a stranger says of its deadlines must not teach the engine: it would shed for time that nobody lacks.
func TestForgedDeadlinesTeachNothing(t *testing.T) {
	limitUnder := func(peer string) (limit float64) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			e := serverEngine(t, cortex.Config{Now: func() time.Duration { return time.Since(start) }})
			h := guardHandler(t, HandlerConfig{Engine: e}, func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) })
			for range 2000 {
				ask(h, "GET", "/", peer, HeaderTimeout+": 2") // enough, barely
			}
			limit = e.Pressure().Limit
		})
		return limit
	}
	forged, believed := limitUnder(stranger), limitUnder(neighbour)
	if !(forged > 1.5*believed) {
		t.Errorf("limit %v under forged deadlines of 2 ms, %v under believed ones", forged, believed)
	}
}

// F69: only one layer retries: below one that may, calls made for the request are not retried.
func TestRetryMarkReachesTheHandler(t *testing.T) {
	for _, c := range []struct {
		lines   []string
		marked  bool
		attempt int
	}{
		{[]string{"0;retries=3"}, true, 0},
		{[]string{"2;retries=3"}, true, 2},
		{[]string{"5;retries=3"}, true, 5},
		{[]string{"0;retries=0"}, false, 0},
		{[]string{"1"}, false, 0},
		{nil, false, 0},
		{[]string{"1;retries=3", "1;retries=3"}, false, 0},
		{[]string{"1;retries=99999999999999999999"}, false, 0},
		{[]string{"18446744073709551617;retries=3"}, false, 0},
		{[]string{"yes"}, false, 0},
	} {
		e := serverEngine(t, cortex.Config{})
		below := serverEngine(t, cortex.Config{Name: "below"})
		attempts := 0
		h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
			m, ok := cortex.RetryMarkFrom(r.Context())
			if ok != c.marked || m.Attempt != c.attempt {
				t.Errorf("%q: mark %+v, %v", c.lines, m, ok)
			}
			if c.marked {
				cortex.Do(r.Context(), below, func(context.Context) (int, error) { attempts++; return 0, errors.New("down") })
			}
		})
		r := httptest.NewRequest("GET", "/", nil) // from a stranger
		r.Header[HeaderAttempt] = c.lines
		h.ServeHTTP(httptest.NewRecorder(), r)
		if c.marked && attempts != 1 {
			t.Errorf("%q: %d attempts below, want 1", c.lines, attempts)
		}
	}
}

func TestRequestIsNotCopiedWithoutNeed(t *testing.T) {
	r := httptest.NewRequest("GET", "/", nil)
	h := guardHandler(t, HandlerConfig{Engine: serverEngine(t, cortex.Config{})}, func(_ http.ResponseWriter, got *http.Request) {
		if got != r {
			t.Error("the handler got a copy of the request")
		}
	})
	h.ServeHTTP(httptest.NewRecorder(), r)
}

func FuzzRequestFields(f *testing.F) {
	f.Add("10", "250", "0;retries=3", "127.0.0.1:80")
	f.Add("-1", "0", "", "[::1%eth0]:1")
	f.Add("99999999999999999999", "99999999999999999999", "1;retries=99999999999999999999", "@")
	f.Add("\x00", "1e9", ";;", "")
	e := serverEngine(f, cortex.Config{})
	var seen *http.Request
	h := guardHandler(f, HandlerConfig{Engine: e}, func(_ http.ResponseWriter, r *http.Request) { seen = r })
	f.Fuzz(func(t *testing.T, priority, timeout, attempt, peer string) {
		if p, _ := ParsePriority(priority, 10); p < 0 || p > 10 {
			t.Fatalf("priority %d of %q", p, priority)
		}
		if d, ok := CallerTimeout(http.Header{HeaderTimeout: {timeout}}); d < 0 || d > math.MaxInt32*time.Millisecond || !ok && d != 0 {
			t.Fatalf("timeout %v, %v of %q", d, ok, timeout)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = peer
		r.Header = http.Header{HeaderPriority: {priority}, HeaderTimeout: {timeout}, HeaderAttempt: {attempt}}
		seen = nil
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case 200:
			if d, ok := seen.Context().Deadline(); ok && time.Until(d) > time.Minute {
				t.Fatalf("deadline in %v of %q", time.Until(d), timeout)
			}
		case 504:
			if seen != nil {
				t.Fatal("refused and run")
			}
		default:
			t.Fatalf("answered %d", w.Code)
		}
		testClock.advance(time.Millisecond)
		if n := e.Pressure().InFlight; n != 0 {
			t.Fatalf("%d left in flight", n)
		}
	})
}
