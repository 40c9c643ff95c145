package cortexhttp

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
)

// An endpoint's own illness is neutral for the target's engine, and retried all the same; the excuse is asked after OnAttempt, and
// for failures alone.
func TestExcusedFailuresAreNeutralAndRetried(t *testing.T) {
	e, err := cortex.New(cortex.Config{Name: "t", Backoff: backoff.Config{Base: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	calls := 0
	tr, err := NewTransport(TransportConfig{
		Engine: e,
		Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			calls++
			switch calls {
			case 1:
				return nil, errors.New("ill")
			case 2:
				return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}),
		Prepare:   func(r *http.Request, _ int) (*http.Request, error) { return r, nil },
		OnAttempt: func(a AttemptResult) { order = append(order, a.Outcome.String()) },
		Excuse: func(r *http.Request) bool {
			order = append(order, "excuse")
			return calls == 1
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest("GET", "http://x.test/", nil)
	res, err := tr.RoundTrip(r)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	res.Body.Close()
	if s := e.Stats(); s.Neutral != 1 || s.Failures != 1 || s.Successes != 1 || e.Pressure().InFlight != 0 {
		t.Errorf("%+v", s)
	}
	if got, want := strings.Join(order, " "), "failure excuse failure excuse success"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
