package cortexhttp

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// Behind a proxy the original is sent with the header and the URL that came in. A retry must not get a base path twice, nor
// lose what only attempt 0 could see, and a base that is still busy with the original must find nobody writing to it.
func TestOwnedRequestIsSentAsItIsAndRetriedFromItsOwnURL(t *testing.T) {
	for _, prepared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := TransportConfig{Engine: clientEngine(t), SendPriority: true, OwnsRequest: true}
			var sent []*http.Request
			var busy sync.WaitGroup
			cfg.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				sent = append(sent, r)
				busy.Go(func() { // until long after the answer
					for range 1000 {
						time.Sleep(time.Millisecond)
						_ = r.URL.String() + r.Host + r.Header.Get("Accept")
					}
				})
				return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}, nil
			})
			want := "http://target/things?q=1"
			if prepared {
				want = "http://endpoint-%d/base/things?q=1"
				cfg.Prepare = func(r *http.Request, n int) (*http.Request, error) {
					r.URL.Host, r.URL.Path, r.Host = fmt.Sprint("endpoint-", n), "/base"+r.URL.Path, ""
					r.Header.Set("Endpoint", r.URL.Host)
					return r, nil
				}
			}
			tr, err := NewTransport(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			req := httptest.NewRequestWithContext(ctx, "GET", "http://target/things?q=1", nil)
			req.Header.Set("Accept", "text/plain")
			if _, err := tr.RoundTrip(req); err != nil {
				t.Fatal(err)
			}
			busy.Wait()
			if len(sent) != 4 {
				t.Fatalf("%d attempts", len(sent))
			}
			if req.Host != "target" || req.Context() != ctx {
				t.Errorf("prepared %v: more than header and URL was changed", prepared)
			}
			req.Header.Set("Shared", "yes")
			for i, r := range sent {
				url := want
				if prepared {
					url = fmt.Sprintf(want, i)
					if r.Host != "" || r.Header.Get("Endpoint") != r.URL.Host {
						t.Errorf("attempt %d: host %q, %q", i, r.Host, r.Header.Get("Endpoint"))
					}
				}
				if r.URL.String() != url || r.Header.Get("Accept") != "text/plain" {
					t.Errorf("prepared %v: attempt %d to %s, %v", prepared, i, r.URL, r.Header)
				}
				if got := r.Header.Get(HeaderAttempt); got != fmt.Sprintf("%d;retries=3", i) {
					t.Errorf("attempt %d says %q", i, got)
				}
				if left, p := r.Header.Get(HeaderTimeout), r.Header.Get(HeaderPriority); left < "3500000" || left > "3600000" || p != "5" {
					t.Errorf("attempt %d: time left %q, priority %q", i, left, p)
				}
				if shared := r.Header.Get("Shared") != ""; shared != (i == 0) {
					t.Errorf("attempt %d has the caller's own header: %v", i, shared)
				}
			}
		})
	}
}

// A request without a header, or even without a URL, is no reason to panic.
func TestOwnedRequestMayBeBare(t *testing.T) {
	for _, prepare := range []func(*http.Request, int) (*http.Request, error){nil,
		func(r *http.Request, _ int) (*http.Request, error) { return r, nil }} {
		n := 0
		tr, err := NewTransport(TransportConfig{Engine: clientEngine(t), OwnsRequest: true, Prepare: prepare,
			Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				if n++; !strings.HasPrefix(r.Header.Get(HeaderAttempt), fmt.Sprint(n-1)) {
					t.Errorf("attempt %d: %v", n-1, r.Header)
				}
				return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}, nil
			})})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			if _, err := tr.RoundTrip(&http.Request{}); err != nil || n != 4 {
				t.Errorf("%v after %d attempts", err, n)
			}
		})
	}
}

func TestReportIsTheConfigurationsBeforeTheContexts(t *testing.T) {
	answer := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 400, Header: http.Header{}, Body: http.NoBody}, nil
	})
	var own, other Report
	for _, to := range []*Report{&own, nil} {
		own, other = Report{Hidden: 7, Reason: cortex.ReasonBudget}, Report{Hidden: 7}
		tr, err := NewTransport(TransportConfig{Engine: clientEngine(t), Base: answer, Report: func(*http.Request) *Report { return to }})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tr.RoundTrip(request(t, WithReport(t.Context(), &other), "GET", "")); err != nil {
			t.Fatal(err)
		}
		if to != nil && (own.Attempts != 1 || own.Hidden != 0) || to == nil && own.Hidden != 7 || other != (Report{Hidden: 7}) {
			t.Errorf("%+v, %+v", own, other)
		}
	}
}
