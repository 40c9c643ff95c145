package cortexhttp

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/seed-a29ca62a/cortex"
)

// A fallback from a gateway below, a 202 while its own circuit was open, was booked as a success of the target.
func TestFallbackFromBelowIsNoSuccess(t *testing.T) {
	for _, c := range []struct {
		status                       int
		fallback, reason, kind, grpc string
		want                         cortex.Outcome
	}{
		{status: 202, fallback: "static", want: cortex.Neutral},
		{status: 200, fallback: "cache;age=12", reason: "MAX_RETRIES_EXCEEDED", want: cortex.Neutral},
		{status: 202, fallback: "static", reason: "CIRCUIT_OPEN", want: cortex.Neutral},
		{status: 202, fallback: "static", reason: "CIRCUIT_OPEN_EMERGENCY", want: cortex.Neutral},
		{status: 302, fallback: "static", reason: cortex.ReasonShed.String(), want: cortex.Throttled},
		{status: 200, fallback: "static", kind: "application/grpc", grpc: "0", want: cortex.Neutral},
		{status: 200, fallback: "static", kind: "application/grpc", want: cortex.Neutral},
		{status: 200, reason: "CIRCUIT_OPEN", want: cortex.Success}, // no fallback: the target's
		{status: 404, fallback: "static", want: cortex.Neutral},
	} {
		write := func(w http.ResponseWriter, _ *http.Request) {
			for key, v := range map[string]string{HeaderFallback: c.fallback, HeaderReason: c.reason, "Content-Type": c.kind, "Grpc-Status": c.grpc} {
				if v != "" {
					w.Header().Set(key, v)
				}
			}
			w.WriteHeader(c.status)
			w.Write([]byte("pending"))
		}
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), write)
			var rep Report
			resp, err := w.transport.RoundTrip(request(t, WithReport(t.Context(), &rep), "GET", ""))
			if status, body := finish(t, resp, err); status != c.status || body != "pending" || rep.Reason != cortex.ReasonNone {
				t.Errorf("%+v: %d %q, %+v", c, status, body, rep)
			}
			w.wantOutcomes(c.want)
			if s := w.engine.Stats(); s.Successes > 0 && c.want != cortex.Success {
				t.Errorf("%+v: %+v", c, s)
			}
		})
		if c.fallback == "" {
			continue
		}
		e := clientEngine(t)
		h, err := NewHandler(HandlerConfig{Engine: e}, http.HandlerFunc(write))
		if err != nil {
			t.Fatal(err)
		}
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if s := e.Stats(); s.Neutral != 1 || s.Successes != 0 {
			t.Errorf("handler, %+v: %+v", c, s)
		}
	}
}

// A target could keep the circuit in front of it closed by writing a guard's reason on its own 503s.
func TestDistrustedTargetCannotExcuseItsFailures(t *testing.T) {
	for _, distrust := range []bool{false, true} {
		for _, reason := range []string{"CIRCUIT_OPEN", "CIRCUIT_OPEN_EMERGENCY", cortex.ReasonShed.String()} {
			synctest.Test(t, func(t *testing.T) {
				e := clientEngine(t, noRetries, func(c *cortex.Config) { c.DistrustRemote = distrust })
				status := 503
				w := newWorld(t, e, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set(HeaderReason, reason)
					if status < 400 {
						w.Header().Set(HeaderFallback, "static")
					}
					w.WriteHeader(status)
				})
				want := []cortex.Outcome{cortex.Neutral, cortex.Neutral}
				if reason == cortex.ReasonShed.String() {
					want = []cortex.Outcome{cortex.Throttled, cortex.Throttled}
				}
				if distrust {
					want = []cortex.Outcome{cortex.Failed, cortex.Neutral}
				}
				for _, status = range []int{503, 202} {
					resp, err := w.transport.RoundTrip(request(t, t.Context(), "GET", ""))
					finish(t, resp, err)
				}
				w.wantOutcomes(want...)
			})
		}
	}
}
