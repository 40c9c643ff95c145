package gateway

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
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

// A body over the limit on the path of a gRPC health check was answered as if the target did not answer checks: 502. And no health check
// had a line in the access log.
func TestHealthChecksHaveLimitsAndLines(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/livez" {
				w.Header().Set("Content-Length", "100")
				io.WriteString(w, "part")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			b, _ := io.ReadAll(r.Body)
			io.WriteString(w, "alive"+string(b))
		}))
		path := filepath.Join(t.TempDir(), "access.log")
		o := w.operate("server: {max_body_bytes: 100B, body_timeout: 5s}\naccess_log: {path: "+path+`}
targets: {up: {endpoints: ['http://up.test:80']}, dead: {endpoints: ['http://dead.test:80'], balance: {resolve: 0s}}}
routes:
  - {path: /, target: up}
  - {path: /health, target: dead}
`, nil)
		c := w.client(stranger)
		const grpc = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
		paths := map[int]string{413: "/grpc.health.v1.Health/Check", 408: "/grpc.health.v1.Health/Watch", 400: "/grpc.health.v1.Health/List"}
		if a := w.get(c, "http://gateway.test:80/healthz"); a.status != 200 || a.body != "alive" {
			t.Errorf("%+v", a)
		}
		if a := w.get(c, "http://gateway.test:80/health"); a.status != 502 {
			t.Errorf("dead: %+v", a)
		}
		if a := w.get(c, "http://gateway.test:80/livez"); a.err == nil {
			t.Errorf("an answer that broke off is whole: %+v", a)
		}
		if a := w.do(c, "POST", "http://gateway.test:80"+grpc, "abc"); a.status != 200 || a.body != "aliveabc" {
			t.Errorf("%+v", a)
		}
		for body, want := range map[string]int{"65\r\n" + strings.Repeat("x", 101) + "\r\n0\r\n\r\n": 413, "5\r\nab": 408, "zz\r\n": 400} {
			k, br := w.raw("POST " + paths[want] + " HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != want {
				t.Errorf("body %.10q: %d, want %d", body, res.StatusCode, want)
			}
			k.Close()
		}
		o.s.Close()
		got := make(map[string]map[string]any)
		for _, l := range logLines(t, path) {
			got[l["path"].(string)] = l
			if l["priority"] != nil || l["attempts"] != nil || l["cps"] != nil || l["request_id"] == nil || l["route"] == nil {
				t.Errorf("a line of a health check: %v", l)
			}
		}
		for path, want := range map[string]map[string]any{
			"/healthz": {"status": 200.0, "bytes_out": 5.0, "target": "up", "error": nil},
			"/health":  {"status": 502.0, "target": "dead", "error": "no answer"},
			"/livez":   {"status": 200.0, "bytes_out": 4.0, "error": "answer broke off"},
			grpc:       {"status": 200.0, "bytes_in": 3.0, "bytes_out": 8.0, "endpoint": "up.test:80"},
			paths[413]: {"status": 413.0, "error": "request body"},
			paths[408]: {"status": 408.0},
			paths[400]: {"status": 400.0, "error": "request body"},
		} {
			for k, v := range want {
				if got[path][k] != v {
					t.Errorf("%s: %s is %v, want %v", path, k, got[path][k], v)
				}
			}
		}
	})
}

// Of the health checks of a target with a dead endpoint every second one failed for as long as there was nothing but checks, so that a balancer
// in front took the gateway out.
func TestHealthChecksPassByADeadEndpoint(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		inWorld(t, func(t *testing.T, w *world) {
			var seen []recorded
			var mu sync.Mutex
			h := record(&seen, &mu, status(200))
			if scheme == "h2c" {
				w.serveH2C("up.test:80", 1<<20, h)
			} else {
				w.serve("up.test:80", h)
			}
			dead := strings.ReplaceAll("[x://none.test:80/base, x://up.test:80/base]", "x:", scheme+":")
			g := w.gateway(`
targets:
  up: {endpoints: ` + dead + `, balance: {resolve: 0s}}
  gone: {endpoints: ['http://none.test:80', 'http://never.test:80'], balance: {resolve: 0s}}
routes:
  - {path: /, target: up}
  - {path: /livez, target: gone}
`)
			c := w.client(stranger)
			for i := range 40 {
				if a := w.get(c, "http://gateway.test:80/healthz"); a.status != 200 {
					t.Fatalf("%s: check %d: %+v", scheme, i, a)
				}
			}
			for _, s := range seen {
				if s.uri != "/base/healthz" || s.host != "gateway.test:80" {
					t.Errorf("%s: the target saw %s of %s", scheme, s.uri, s.host)
				}
			}
			if len(seen) != 40 {
				t.Errorf("%s: %d checks at the target", scheme, len(seen))
			}
			before := w.dials.Load()
			if a := w.get(c, "http://gateway.test:80/livez"); a.status != 502 || w.dials.Load()-before != 2 {
				t.Errorf("%s: all are dead: %+v, %d tries", scheme, a, w.dials.Load()-before)
			}
			for _, tg := range g.Targets() {
				if s := tg.Engine.Stats(); s.Calls+s.Attempts != 0 || tg.Engine.Pressure().InFlight != 0 {
					t.Errorf("%s: %s: health checks were counted: %+v", scheme, tg.Name, s)
				}
				for _, m := range tg.members() {
					if m.InFlight != 0 {
						t.Errorf("%s: %+v", scheme, m)
					}
				}
			}
		})
	}
}

// Those of gRPC have a body, and of them every second one failed on.
func TestHealthChecksOfGRPCPassByADeadEndpoint(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const message = "\x00\x00\x00\x00\x00"
		var seen []recorded
		var mu sync.Mutex
		w.serveH2C("up.test:80", 1<<20, record(&seen, &mu, status(200)))
		g := w.gatewayAt("plain.test:80", `
targets:
  up: {endpoints: ['h2c://none.test:80', 'h2c://up.test:80'], balance: {resolve: 0s}}
  gone: {endpoints: ['h2c://none.test:80', 'h2c://never.test:80'], balance: {resolve: 0s}}
routes:
  - {path: /, target: up}
  - {path: /grpc.health.v1.Health/Watch, target: gone}
`)
		w.serveBoth("both.test:80", g)
		c := w.h2client(stranger)
		check := func(method string) answer {
			return w.do(c, "POST", "http://both.test:80/grpc.health.v1.Health/"+method, message, "Content-Type", "application/grpc", "Te", "trailers")
		}
		for i := range 40 {
			if a := check("Check"); a.status != 200 || a.header.Get("Grpc-Status") != "" {
				t.Fatalf("check %d: %+v: %v", i, a, a.err)
			}
		}
		if len(seen) != 40 {
			t.Errorf("%d checks at the target", len(seen))
		}
		for _, s := range seen {
			if s.body != message {
				t.Errorf("the target saw %q", s.body)
			}
		}
		before := w.dials.Load()
		if a := check("Watch"); a.header.Get("Grpc-Status") != "14" || w.dials.Load()-before != 2 {
			t.Errorf("all are dead: %+v, %d tries", a, w.dials.Load()-before)
		}
		for _, tg := range g.Targets() {
			for _, m := range tg.members() {
				if m.InFlight != 0 {
					t.Errorf("%+v", m)
				}
			}
		}
	})
}
