package cortexhttp

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/seed-a29ca62a/cortex"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// BenchmarkTransportStub is what the guard itself costs a call: the base answers at once.
func BenchmarkTransportStub(b *testing.B) {
	e, err := cortex.New(cortex.Config{})
	if err != nil {
		b.Fatal(err)
	}
	t, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	})})
	if err != nil {
		b.Fatal(err)
	}
	req := httptest.NewRequest("GET", "http://target/", nil)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "bench")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := t.RoundTrip(req); err != nil {
			b.Fatal(err)
		}
	}
}
