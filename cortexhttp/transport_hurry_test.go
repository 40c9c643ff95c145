package cortexhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// An answer that says that time ran out counted against the target, whatever time its caller had left it. It does where that was enough
// and the caller is trusted, or where the attempt had all the time that its guard gives it.
func TestAnswersForShortDeadlinesAreNeutral(t *testing.T) {
	answer := func(status int, header ...string) roundTripper {
		return func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Millisecond)
			h := http.Header{}
			for i := 0; i < len(header); i += 2 {
				h.Set(header[i], header[i+1])
			}
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(""))}, nil
		}
	}
	grpc := answer(200, "Content-Type", "application/grpc", "Grpc-Status", "4")
	broken := roundTripper(func(r *http.Request) (*http.Response, error) {
		d, _ := r.Context().Deadline()
		time.Sleep(time.Until(d) - time.Millisecond)
		return nil, errors.New("stream error: stream ID 1; CANCEL; received from peer")
	})
	const none, slow = cortex.Neutral, cortex.TimedOut
	for _, c := range []struct {
		name     string
		base     roundTripper
		deadline time.Duration
		stranger bool
		want     cortex.Outcome
	}{
		{"504, short", answer(504), 5 * time.Millisecond, false, none},
		{"504, enough", answer(504), time.Second, false, slow},
		{"504, none", answer(504), 0, false, slow},
		{"504, a stranger's short one", answer(504), 5 * time.Millisecond, true, none},
		{"504, a stranger's just shorter than the timeout", answer(504), 900 * time.Millisecond, true, none},
		{"504, a stranger's long one", answer(504), time.Hour, true, slow},
		{"gRPC, short", grpc, 5 * time.Millisecond, false, none},
		{"gRPC, enough", grpc, time.Second, false, slow},
		{"gRPC, a stranger's just shorter than the timeout", grpc, 900 * time.Millisecond, true, none},
		{"gRPC, a stranger's long one", grpc, time.Hour, true, slow},
		{"broken, short", broken, 5 * time.Millisecond, false, none},
		{"broken, enough", broken, 900 * time.Millisecond, false, slow},
		{"broken, a stranger's", broken, 900 * time.Millisecond, true, none},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base := c.base
				warm := true
				var told []cortex.Outcome
				e := clientEngine(t)
				tr, err := NewTransport(TransportConfig{Engine: e, Stranger: func(*http.Request) bool { return c.stranger },
					OnAttempt: func(a AttemptResult) { told = append(told, a.Outcome) },
					Base: roundTripper(func(r *http.Request) (*http.Response, error) {
						if warm {
							time.Sleep(100 * time.Millisecond)
							return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
						}
						return base(r)
					})})
				if err != nil {
					t.Fatal(err)
				}
				call := func(ctx context.Context) {
					if res, err := tr.RoundTrip(request(t, ctx, "POST", "")); err == nil {
						io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				}
				for range 3 {
					call(t.Context())
				}
				warm, told = false, nil
				ctx := t.Context()
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				call(ctx)
				st := e.Stats()
				if got := st.Timeouts == 1; got != (c.want == slow) || st.Failures > 0 || len(told) != 1 || told[0] != c.want {
					t.Errorf("%+v, %v", st, told)
				}
			})
		})
	}
}
