package cortexhttp

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/limit"
)

// A deadline of the caller's that passed was CANCELLED here and DEADLINE in Do and NewHandler, and no errors.Is found it.
func TestExpiredDeadlineIsNoCancellation(t *testing.T) {
	why := errors.New("the user has waited enough")
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	refuse := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(503)
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		late   bool
		want   cortex.Reason
	}{
		{"deadline under way", hang, true, cortex.ReasonDeadline},
		{"cancelled under way", hang, false, cortex.ReasonCancelled},
		{"cancelled while waiting", refuse, false, cortex.ReasonCancelled},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t), c.answer)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.late {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeoutCause(ctx, 100*time.Millisecond, why)
				defer stop()
			} else {
				time.AfterFunc(100*time.Millisecond, func() { cancel(why) })
			}
			var rep Report
			_, err := w.client.Do(request(t, WithReport(ctx, &rep), "GET", ""))
			ce, ok := errors.AsType[*cortex.CallError](err)
			if !ok || ce.Reason != c.want || rep.Reason != c.want || errors.Is(err, cortex.ErrDeadline) != c.late || !errors.Is(err, why) {
				t.Errorf("%s: %v, %+v", c.name, err, rep)
			}
			_, err = w.client.Do(request(t, WithReport(ctx, &rep), "GET", ""))
			if !errors.Is(err, why) || rep.Reason != c.want || rep.Attempts != 0 {
				t.Errorf("%s, and another call: %v, %+v", c.name, err, rep)
			}
		})
	}
}

// A retry that was charged and then not made, because the circuit opened in between or there was nowhere to send it, cost a
// token for nothing.
func TestRetryThatIsNotMadeIsRefunded(t *testing.T) {
	for _, name := range []string{"refused", "prepare", "prepare panics"} {
		synctest.Test(t, func(t *testing.T) {
			var e *cortex.Engine
			open := func() {
				for range 1000 {
					if p, err := e.Admit(t.Context(), 10); err == nil {
						p.Record(cortex.Failed)
					}
				}
			}
			e = clientEngine(t, func(c *cortex.Config) {
				c.Limit = limit.Config{}
				c.Budget.Capacity = 1000
				c.Budget.MinPerSecond = 1e-9
			})
			before := e.Pressure().Tokens
			w := newWorld(t, e, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(503)
			}, func(c *TransportConfig, _ *http.Server) {
				c.Prepare = func(r *http.Request, attempt int) (*http.Request, error) {
					switch {
					case attempt == 0 || name == "refused":
						return r, nil
					case name == "prepare panics":
						panic(http.ErrAbortHandler)
					}
					return nil, errors.New("no endpoint")
				}
			})
			charge := make(chan float64, 1)
			time.AfterFunc(500*time.Millisecond, func() {
				charge <- before - e.Pressure().Tokens
				if name == "refused" {
					open()
				}
			})
			func() {
				defer func() { recover() }()
				resp, err := w.transport.RoundTrip(request(t, t.Context(), "GET", ""))
				if err == nil {
					resp.Body.Close()
					t.Errorf("%s: no error", name)
				}
			}()
			if charged, after := <-charge, e.Pressure().Tokens; charged < 0.01 || after < before-0.001 {
				t.Errorf("%s: %v tokens, charged %v, %v left", name, before, charged, after)
			}
		})
	}
}
