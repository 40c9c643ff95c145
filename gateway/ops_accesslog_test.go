package gateway

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// Each field of the access log is true, for each end that a call can have, and nothing secret is in it.
func TestAccessLogTellsTheTruth(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/retried":
				if strings.HasPrefix(r.Header.Get("Cortex-Attempt"), "0") {
					w.WriteHeader(503)
					return
				}
			case "/slow", "/gone":
				hang(w, r)
				return
			case "/break":
				w.Header().Set("Content-Length", "100")
				io.WriteString(w, "part")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			case "/drip":
				for r.Context().Err() == nil {
					if _, err := w.Write(make([]byte, 1000)); err != nil {
						return
					}
					w.(http.Flusher).Flush()
					time.Sleep(time.Second)
				}
				return
			}
			b, _ := io.ReadAll(r.Body)
			time.Sleep(100 * time.Millisecond)
			if r.URL.Path == "/missing" {
				w.WriteHeader(404)
			}
			w.(http.Flusher).Flush()
			time.Sleep(100 * time.Millisecond)
			w.Write(append(b, "answer"...))
		}))
		w.serve("ill.test:80", status(500))
		var ticks atomic.Int64
		began := time.Now()
		path := filepath.Join(t.TempDir(), "access.log")
		o := w.operate("access_log: {path: "+path+`}
targets:
  up: {endpoints: ['http://up.test'], balance: {resolve: 0s}, retry: {base_delay: 10ms}, timeout: {max: 2s}}
  ill: {endpoints: ['http://ill.test'], balance: {resolve: 0s}, retry: {max_retries: 0}}
  dead: {endpoints: ['http://dead.test'], balance: {resolve: 0s}, retry: {max_retries: 0}}
  shut: {endpoints: ['http://up.test'], balance: {resolve: 0s}}
routes:
  - {path: /, target: up, priority: {header: X-Priority, default: 3}}
  - {path: /fallback, target: ill, fallback: {static: {status: 202, body: instead}}}
  - {path: /shadow, target: ill, shadow: true}
  - {path: /dead, target: dead}
  - {path: /refused, target: shut}
  - {path: /only, target: up, methods: [GET]}
`, func(o *Options) { // a clock that never stands still
			o.Now = func() time.Duration { return time.Since(began) + time.Duration(ticks.Add(1))*time.Microsecond }
		})
		for _, target := range o.s.gateway.Targets() {
			if target.Name == "shut" {
				target.Engine.Force(breaker.ForcedOpen)
			}
		}
		c := w.client(trusted)
		const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		send := func(method, path, body string) answer {
			return w.do(c, method, "http://user:secret1@gateway.test:80"+path+"?token=secret2", body, "X-Priority", "7", "Traceparent", trace,
				"Authorization", "Bearer secret3", "Cookie", "session=secret4", "X-Request-Id", "id-of-"+method)
		}
		// A client that goes away after a while.
		leave := func(path string) {
			c := w.client(trusted)
			c.Timeout = 1500 * time.Millisecond
			w.get(c, "http://gateway.test:80"+path+"?token=secret2")
		}
		post := send("POST", "/good%3Ftoken=secret5", "body!")
		problems := map[string]answer{}
		for _, p := range []string{"/retried", "/missing", "/fallback", "/shadow", "/dead", "/refused"} {
			problems[p] = send("GET", p, "")
		}
		send("POST", "/break", "")
		problems["/slow"] = send("POST", "/slow", "") // times out, and is not tried again
		send("DELETE", "/only/x", "")
		leave("/gone")
		leave("/drip")
		o.reload(strings.Replace(o.yaml, "  - {path: /, target: up, priority: {header: X-Priority, default: 3}}\n", "", 1))
		problems["/nowhere"] = w.get(c, "http://gateway.test:80/nowhere?token=secret2")
		time.Sleep(3 * time.Second)
		o.s.Close()

		if post.status != 200 || post.body != "body!answer" {
			t.Fatalf("%+v", post)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "secret") || strings.Contains(string(text), "token") {
			t.Errorf("what is secret is in the log:\n%s", text)
		}
		byPath := map[string]map[string]any{}
		for _, l := range logLines(t, path) {
			p := l["path"].(string)
			if byPath[p] != nil {
				t.Errorf("two lines for %s", p)
			}
			byPath[p] = l
		}
		type fields = map[string]any
		up := func(more fields) fields {
			f := fields{"route": "/", "target": "up", "endpoint": "up.test", "priority": 7.0, "attempts": 1.0, "status": 200.0,
				"reason": nil, "fallback": nil, "shadow": nil, "error": nil, "bytes_in": 0.0, "bytes_out": 6.0, "method": "GET"}
			for k, v := range more {
				f[k] = v
			}
			return f
		}
		for p, want := range map[string]fields{
			"/good": up(fields{"method": "POST", "bytes_in": 5.0, "bytes_out": 11.0, "request_id": "id-of-POST", "trace_id": trace[3:35],
				"client": trusted + ":40000", "protocol": "HTTP/1.1", "host": "gateway.test:80"}),
			"/retried": up(fields{"attempts": 2.0}),
			"/missing": up(fields{"status": 404.0}),
			"/break":   up(fields{"error": "answer broke off", "bytes_out": 4.0, "method": "POST"}),
			"/slow":    up(fields{"status": 504.0, "bytes_out": nil, "error": "timeout", "reason": "NOT_RETRYABLE", "method": "POST"}),
			"/gone":    up(fields{"status": 499.0, "priority": 3.0, "error": "client gone", "bytes_out": 0.0, "attempts": 2.0, "reason": "CANCELLED"}),
			"/drip":    up(fields{"error": "client gone", "priority": 3.0, "bytes_out": 2000.0}),
			"/only/x":  up(fields{"method": "DELETE"}),
			"/fallback": {"route": "/fallback", "target": "ill", "endpoint": "ill.test", "status": 202.0, "fallback": "static", "attempts": 1.0,
				"bytes_out": 7.0, "reason": "MAX_RETRIES_EXCEEDED", "error": nil},
			"/shadow": {"route": "/shadow", "target": "ill", "status": 500.0, "attempts": 1.0, "reason": nil, "fallback": nil, "error": nil, "bytes_out": 21.0},
			"/dead":   {"route": "/dead", "target": "dead", "endpoint": "dead.test", "status": 502.0, "attempts": 1.0, "error": "connect"},
			"/refused": {"route": "/refused", "target": "shut", "endpoint": nil, "status": 503.0, "attempts": 0.0, "reason": "CIRCUIT_OPEN", "error": nil,
				"upstream_ms": nil},
			"/nowhere": {"route": nil, "target": nil, "status": 404.0, "attempts": nil, "priority": nil, "error": "no call", "client": trusted + ":40000",
				"method": "GET", "host": "gateway.test:80"},
		} {
			l := byPath[p]
			if l == nil {
				t.Errorf("%s: no line", p)
				continue
			}
			delete(byPath, p)
			if a, ok := problems[p]; ok {
				want["bytes_out"] = float64(len(a.body))
			}
			if l["request_id"] == nil && p != "/nowhere" {
				t.Errorf("%s: no request_id", p)
			}
			if d, u := l["duration_ms"].(float64), l["upstream_ms"]; p == "/good" && (d < 200 || d > 210 || u.(float64) < 100 || u.(float64) > 105) {
				t.Errorf("%s: duration %v, upstream %v", p, d, u)
			}
			for k, v := range want {
				if l[k] != v {
					t.Errorf("%s: %s is %v, want %v", p, k, l[k], v)
				}
			}
		}
		for p, l := range byPath {
			t.Errorf("a line too many, %s: %v", p, l)
		}
	})
}

// A log that is moved away is opened anew with the next reload, and no line is lost.
func TestAccessLogIsRotated(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		dir := t.TempDir()
		path, moved := filepath.Join(dir, "access.log"), filepath.Join(dir, "access.log.1")
		o := w.operate("access_log: {path: "+path+"}\n"+one("limit: {min: 100}", ""), nil)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				c := w.client(stranger)
				for j := range 100 {
					w.get(c, fmt.Sprintf("http://gateway.test:80/%d/%d", i, j))
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		time.Sleep(505 * time.Millisecond)
		if err := os.Rename(path, moved); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if err := o.s.Reload(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		o.s.Close()
		old, now := logLines(t, moved), logLines(t, path)
		if len(old)+len(now) != 500 || len(old) < 150 || len(now) < 150 {
			t.Errorf("%d lines in the old file, %d in the new one", len(old), len(now))
		}
	})
}

// A reload whose access log could not be opened anew put the configuration in force and said that the one before stays; and one whose
// configuration could not be used left the log with the file that was moved away.
func TestReloadReopensTheLogAndIsWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		dir := filepath.Join(t.TempDir(), "log")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path, moved := filepath.Join(dir, "access.log"), filepath.Join(dir, "access.log.1")
		log := "access_log: {path: " + path + "}\n"
		good := log + one("", "")
		other := log + "name: other\n" + one("", "")
		o := w.operate(good, nil)
		var heard []error
		o.s.OnReload(func(err error) { heard = append(heard, err) })
		c := w.client(stranger)
		w.get(c, "http://gateway.test:80/1")
		time.Sleep(time.Second)
		if err := os.Rename(path, moved); err != nil {
			t.Fatal(err)
		}
		o.set("relaod: {}\n" + good)
		if err := o.s.Reload(); err == nil || !strings.Contains(err.Error(), "relaod") || strings.Contains(err.Error(), "access_log") {
			t.Fatalf("reload: %v", err)
		}
		w.get(c, "http://gateway.test:80/2")
		time.Sleep(time.Second)
		if old, now := logLines(t, moved), logLines(t, path); len(old) != 1 || len(now) != 1 {
			t.Errorf("%d lines in the old file, %d in the new one", len(old), len(now))
		}

		if err := os.Rename(dir, dir+".gone"); err != nil {
			t.Fatal(err)
		}
		before := o.s.gateway.state.Load()
		for _, yaml := range []string{other, "relaod: {}\n" + good} {
			o.set(yaml)
			err := o.s.Reload()
			if err == nil || strings.Count(err.Error(), "access_log") != 1 || strings.Contains(err.Error(), "relaod") != strings.HasPrefix(yaml, "relaod") {
				t.Errorf("reload without a directory for the log: %v", err)
			}
			if o.s.gateway.state.Load() != before {
				t.Error("half a reload: another configuration is in force")
			}
		}
		if len(heard) != 3 || heard[2] == nil {
			t.Errorf("OnReload heard %q", heard)
		}
		// One that logs elsewhere, or nowhere, does not need the directory.
		o.reload("name: other\n" + one("", ""))
		if heard[3] != nil || o.s.gateway.state.Load() == before {
			t.Errorf("a configuration without a log: %v", heard[3])
		}
	})
}
