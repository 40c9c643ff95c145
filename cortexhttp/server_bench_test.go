package cortexhttp

import (
	"net/http"
	"net/url"
	"testing"

	"github.com/seed-a29ca62a/cortex"
)

// nullWriter is the cheapest ResponseWriter there is, with the methods of HTTP/2's.
type nullWriter struct{ header http.Header }

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *nullWriter) WriteHeader(int)             {}
func (w *nullWriter) Flush()                      {}

func BenchmarkHandler(b *testing.B) {
	engine, err := cortex.New(cortex.Config{})
	if err != nil {
		b.Fatal(err)
	}
	body := []byte("ok")
	h, err := NewHandler(HandlerConfig{Engine: engine}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(body) }))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := &nullWriter{header: http.Header{}}
		r := &http.Request{Method: "GET", URL: &url.URL{Path: "/pay"}, Header: http.Header{}, RemoteAddr: "192.0.2.1:1234"}
		for pb.Next() {
			h.ServeHTTP(w, r)
		}
	})
}

func BenchmarkHandlerRefuses(b *testing.B) {
	engine, err := cortex.New(overloaded)
	if err != nil {
		b.Fatal(err)
	}
	h, err := NewHandler(HandlerConfig{Engine: engine}, http.NotFoundHandler())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		w := &nullWriter{header: http.Header{}}
		r := &http.Request{Method: "GET", URL: &url.URL{Path: "/pay"}, Header: http.Header{}, RemoteAddr: "192.0.2.1:1234"}
		for pb.Next() {
			h.ServeHTTP(w, r)
		}
	})
	if n := engine.Stats().Attempts; n > 0 {
		b.Fatalf("%d requests admitted", n)
	}
}
