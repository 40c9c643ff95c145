package cortexgrpc_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// F69 across protocols: HTTP, then gRPC, then HTTP, each of which would retry three times; mark, priority and deadline get through.
func TestMarksCrossProtocols(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bottom atomic.Int64
		transport := func(name string, base http.RoundTripper) http.RoundTripper {
			tr, err := cortexhttp.NewTransport(cortexhttp.TransportConfig{Engine: engine(t, cortex.Config{Name: name}), Base: base,
				SendPriority: true})
			if err != nil {
				t.Fatal(err)
			}
			return tr
		}
		last := transport("last", roundTripper(func(r *http.Request) (*http.Response, error) {
			bottom.Add(1)
			if p := r.Header.Get("X-Priority"); p != "8" {
				t.Errorf("priority %q at the bottom", p)
			}
			if r.Header.Get("Cortex-Attempt") == "" {
				t.Error("no mark at the bottom")
			}
			w := httptest.NewRecorder()
			w.WriteHeader(http.StatusServiceUnavailable)
			return w.Result(), nil
		}))
		s := &service{unary: func(ctx context.Context, n int64) (int64, error) {
			r, err := http.NewRequestWithContext(ctx, "GET", "http://bottom/", nil)
			if err != nil {
				return 0, err
			}
			resp, err := last.RoundTrip(r)
			if err != nil {
				return 0, err
			}
			return n, status.Error(codes.Unavailable, resp.Status)
		}}
		cc := client(t, engine(t, cortex.Config{Name: "middle"}),
			serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: engine(t, cortex.Config{}), TrustPeer: trusting})...),
			func(c *cortexgrpc.ClientConfig) { c.SendPriority = true })
		handler, err := cortexhttp.NewHandler(cortexhttp.HandlerConfig{Engine: engine(t, cortex.Config{})},
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := call(cortexgrpc.WithPriority(r.Context(), 8), cc, methodGet, 1); err != nil {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
		if err != nil {
			t.Fatal(err)
		}
		first := transport("first", roundTripper(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			r.RemoteAddr = "127.0.0.1:1"
			handler.ServeHTTP(w, r)
			return w.Result(), nil
		}))
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://first/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := first.RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%v, %v", resp, err)
		}
		if n := bottom.Load(); n != 4 {
			t.Errorf("%d calls at the bottom", n)
		}
	})
}

// Do is a layer like any other: it retries, the client within it does not.
func TestDoAroundAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) { return 0, unavailable() }}
		cc := client(t, engine(t, cortex.Config{Name: "inner"}), serve(t, s))
		_, err := cortex.Do(t.Context(), engine(t, cortex.Config{Name: "outer"}), func(ctx context.Context) (int64, error) {
			return call(ctx, cc, methodGet, 1)
		})
		if !errors.Is(err, cortex.ErrExhausted) || status.Code(err) != codes.Unavailable || s.calls.Load() != 4 {
			t.Errorf("%v, %d calls", err, s.calls.Load())
		}
	})
}
