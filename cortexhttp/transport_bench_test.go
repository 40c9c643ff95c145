package cortexhttp

import (
	"io"
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

// BenchmarkTransportWire compares a guarded call with a bare one, both over loopback to a server in this process.
func BenchmarkTransportWire(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write(make([]byte, 1024)) }))
	defer srv.Close()
	e, err := cortex.New(cortex.Config{})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"bare", "guarded"} {
		b.Run(name, func(b *testing.B) {
			base := &http.Transport{MaxIdleConnsPerHost: 64}
			var rt http.RoundTripper = base
			if name == "guarded" {
				if rt, err = NewTransport(TransportConfig{Engine: e, Base: base}); err != nil {
					b.Fatal(err)
				}
			}
			defer base.CloseIdleConnections()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := rt.RoundTrip(get(b, srv.URL))
					if err != nil {
						b.Error(err)
						return
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		})
	}
}
