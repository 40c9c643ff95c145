package cortexhttp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// Attempts with all kinds of timeouts, some of which are over before: those left are cut at their moment, the others never.
func TestCutterCutsAtTheMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		var c cutter
		type entry struct {
			a     *attempt
			due   time.Time
			taken bool
			cut   atomic.Int64
		}
		var entries []*entry
		for range 2000 {
			switch rng.IntN(3) {
			case 0:
				time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			case 1:
				if len(entries) > 0 {
					e := entries[rng.IntN(len(entries))]
					if was := e.taken; c.remove(e.a) {
						if was || !time.Now().Before(e.due) && e.cut.Load() != 0 {
							t.Fatal("taken back twice, or after it was cut")
						}
						e.taken = true
					}
				}
			default:
				d := time.Duration(1+rng.IntN(1000)) * time.Millisecond
				e := &entry{a: &attempt{timeout: d}, due: time.Now().Add(d)}
				e.a.cancel = func(cause error) {
					if _, ok := errors.AsType[*attemptTimeout](cause); !ok {
						t.Error(cause)
					}
					e.cut.Store(time.Now().UnixNano())
				}
				c.add(e.a, d)
				entries = append(entries, e)
			}
		}
		time.Sleep(2 * time.Second)
		for i, e := range entries {
			want := e.due.UnixNano()
			if e.taken {
				want = 0
			}
			if got := e.cut.Load(); got != want {
				t.Errorf("attempt %d of %d, taken back %v: cut at %d, want %d", i, len(entries), e.taken, got, want)
			}
		}
		if len(c.due) != 0 {
			t.Errorf("%d left", len(c.due))
		}
	})
}

// The attempt's context answers for httptrace and for the core, and the caller's own hooks are called as well, once.
func TestAttemptContextCarriesTraceAndMark(t *testing.T) {
	if traceKey == nil || markKey == nil {
		t.Fatal("the keys were not asked for")
	}
	calls := map[string]int{}
	outer := &httptrace.ClientTrace{
		GetConn:              func(string) { calls["GetConn"]++ },
		GotConn:              func(httptrace.GotConnInfo) { calls["GotConn"]++ },
		WroteHeaders:         func() { calls["WroteHeaders"]++ },
		GotFirstResponseByte: func() { calls["GotFirstResponseByte"]++ },
	}
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clientEngine(t), answerOK, func(c *TransportConfig, _ *http.Server) {
			base := c.Base
			c.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				if m, ok := cortex.RetryMarkFrom(r.Context()); ok != (r.Method == "GET") || m.Attempt != 0 {
					t.Errorf("%s: mark %v, %v", r.Method, m, ok)
				}
				if r.Context().Value(key{}) != "mine" {
					t.Error("the caller's values are gone")
				}
				return base.RoundTrip(r)
			})
		})
		ctx := httptrace.WithClientTrace(context.WithValue(t.Context(), key{}, "mine"), outer)
		for _, method := range []string{"GET", "POST"} {
			resp, err := w.transport.RoundTrip(request(t, ctx, method, ""))
			finish(t, resp, err)
		}
		synctest.Wait()
		for name, n := range map[string]int{"GetConn": 2, "GotConn": 2, "WroteHeaders": 2, "GotFirstResponseByte": 2} {
			if calls[name] != n {
				t.Errorf("%s called %d times, want %d", name, calls[name], n)
			}
		}
	})
}

// What a good first attempt costs on top of the base: a few allocations, whatever the traffic.
func TestTransportAllocatesLittle(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage allocates")
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}
	tr, err := NewTransport(TransportConfig{Engine: clientEngine(t), Base: roundTripper(func(*http.Request) (*http.Response, error) { return resp, nil })})
	if err != nil {
		t.Fatal(err)
	}
	req := request(t, t.Context(), "GET", "")
	req.Header.Set("Accept", "text/plain")
	if n := testing.AllocsPerRun(100, func() { tr.RoundTrip(req) }); n > 9 {
		t.Errorf("%v allocations", n)
	}
}
