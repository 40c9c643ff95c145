package gateway

import (
	"io"
	"net/http"
	"testing"
)

// F65: health checks of the target pass by an open circuit and are counted nowhere; the admin port has its own.
func TestHealthChecksAreNotGuarded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/healthz" {
				io.WriteString(w, "alive")
				return
			}
			w.WriteHeader(500)
		}))
		g := w.gateway(one("", ""))
		c := w.client(stranger)
		openCircuit(t, w, c, "http://gateway.test:80/work")
		before := g.Targets()[0].Engine.Stats()
		for range 10 {
			if a := w.get(c, "http://gateway.test:80/healthz"); a.status != 200 || a.body != "alive" {
				t.Errorf("health check: %+v", a)
			}
		}
		if a := w.get(c, "http://gateway.test:80/healthz/../work"); a.status != 503 {
			t.Errorf("a way around the guard: %+v", a)
		}
		after := g.Targets()[0].Engine.Stats()
		if n := after.Calls - before.Calls; n > 1 {
			t.Errorf("health checks were counted: %d calls more", n)
		}
	})
}

// The path of a health check was a way around the guard for any request: a POST of whatever length reached a target whose circuit
// was open.
func TestWorkDoesNotPassAsHealthCheck(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/work" {
				w.WriteHeader(500)
			}
		}))
		w.gateway(one("", ""))
		c := w.client(stranger)
		openCircuit(t, w, c, "http://gateway.test:80/work")
		const grpc = "/grpc.health.v1.Health/Check"
		for _, x := range []struct {
			method, path, body string
			want               int
		}{
			{"GET", "/healthz", "", 200}, {"HEAD", "/readyz", "", 200}, {"POST", grpc, "x", 200},
			{"GET", "/healthz", "x", 503}, {"POST", "/healthz", "", 503}, {"PUT", "/health", "x", 503}, {"DELETE", "/livez", "", 503},
			{"POST", "/readyz", "x", 503}, {"PUT", grpc, "x", 503}, {"BREW", "/healthz", "", 503},
		} {
			if a := w.do(c, x.method, "http://gateway.test:80"+x.path, x.body); a.status != x.want {
				t.Errorf("%s %s with body %q: %d, want %d", x.method, x.path, x.body, a.status, x.want)
			}
		}
	})
}
