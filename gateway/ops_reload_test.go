package gateway

import (
	"crypto/tls"
	"errors"
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

// pairOf is the configuration of two targets behind /a and /b, with more lines for each.
func pairOf(top, a, b, routeA string) string {
	target := func(name, lines string) string {
		return "  " + name + ":\n    endpoints: [http://" + name + ".test:80]\n    balance: {resolve: 0s}\n" + indent(4, lines)
	}
	return top + "targets:\n" + target("a", a) + target("b", b) +
		"routes:\n  - path: /a\n    target: a\n" + indent(4, routeA) + "  - path: /b\n    target: b\n"
}

// F89: what has not changed stays, with all that it has learned; and what has changed says what it keeps.
func TestReloadKeepsWhatHasNotChanged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ill atomic.Bool
		w.serve("a.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a") }))
		w.serve("b.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if ill.Load() {
				w.WriteHeader(500)
			}
		}))
		const cached = "fallback: {cache: {}}"
		o := w.operate(pairOf("", "", "", cached), nil)
		g, c := o.s.Gateway(), w.client(stranger)
		for range 50 {
			w.get(c, "http://gateway.test:80/a")
			w.get(c, "http://gateway.test:80/b")
		}
		ill.Store(true)
		openCircuit(t, w, c, "http://gateway.test:80/b")
		a, b := g.Targets()[0], g.Targets()[1]
		same := func(what string) {
			t.Helper()
			dials := w.dials.Load()
			n := g.Targets()
			if n[0] != a || n[0].Engine != a.Engine {
				t.Errorf("%s: target a is another", what)
			}
			if x := w.get(c, "http://gateway.test:80/a"); x.status != 200 || w.dials.Load() != dials {
				t.Errorf("%s: %d, %d connections made", what, x.status, w.dials.Load()-dials)
			}
			if g.trafficOf(n[0]).CacheEntries != 1 {
				t.Errorf("%s: the cached answer is gone", what)
			}
		}
		open := func(what string, want bool) {
			t.Helper()
			if got := g.Targets()[1].Engine.Pressure().Circuit == breaker.Open; got != want {
				t.Errorf("%s: circuit of b open: %v", what, got)
			}
		}
		o.reload(pairOf("", "", "", cached))
		same("the same file")
		open("the same file", true)

		answers, attempts := g.trafficOf(b).Answers, b.Engine.Stats().Attempts
		for what, lines := range map[string]string{
			"replay limit": "retry: {replay_limit: 1KiB}", "transport": "transport: {max_idle_per_host: 3}", "balance": "balance: {slow_start: 3s, resolve: 0s}",
		} {
			yaml := pairOf("", "", lines, cached)
			if what == "balance" {
				yaml = strings.Replace(yaml, "    balance: {resolve: 0s}\n    balance: {slow", "    balance: {slow", 1)
			}
			o.reload(yaml)
			same(what)
			open(what, true)
			if n := g.Targets()[1]; n == b || n.Engine != b.Engine {
				t.Errorf("%s: target b is the same %v, its engine is another %v", what, n == b, n.Engine != b.Engine)
			}
		}
		o.reload(strings.Replace(pairOf("", "", "", cached), "[http://b.test:80]", "[http://b.test:80, http://b2.test:80]", 1))
		open("endpoints", true)
		if n := g.Targets()[1]; g.trafficOf(n).Answers != answers || n.Engine.Stats().Attempts != attempts {
			t.Errorf("counters of b: %v, then %v; attempts %d, then %d", answers, g.trafficOf(n).Answers, attempts, n.Engine.Stats().Attempts)
		}

		// A new engine begins anew: with a closed circuit, but for an operator's order.
		o.reload(pairOf("", "", "timeout: {max: 7s}", cached))
		same("timeout of b")
		open("timeout", false)
		g.Targets()[1].Engine.Force(breaker.ForcedOpen)
		o.reload(pairOf("", "", "timeout: {max: 8s}", cached))
		if f := g.Targets()[1].Engine.Pressure().Forcing; f != breaker.ForcedOpen {
			t.Errorf("the forced circuit is %v after a change of the engine", f)
		}
		if x := w.get(c, "http://gateway.test:80/b"); x.status != 503 {
			t.Errorf("behind a circuit that is forced open: %+v", x)
		}
		if tr := g.trafficOf(g.Targets()[1]).Answers; tr[5] != answers[5]+1 {
			t.Errorf("answers of b %v, were %v", tr, answers)
		}

		// Another cache is a new one; what the old one held is given back.
		o.reload(pairOf("", "", "", "fallback: {cache: {max_entries: 7}}"))
		if n := g.memory.Used(); n != 0 || g.trafficOf(g.Targets()[0]).CacheEntries != 0 {
			t.Errorf("%d bytes of a cache that is gone", n)
		}
	})
}

func TestReloadChangesRoutes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, name := range []string{"a", "b"} {
			w.serve(name+".test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }))
		}
		o := w.operate(pairOf("", "", "", ""), nil)
		c := w.client(stranger)
		if x := w.get(c, "http://gateway.test:80/c"); x.status != 404 {
			t.Fatalf("no such route: %+v", x)
		}
		o.reload(strings.Replace(pairOf("", "", "", "methods: [GET]"), "path: /b", "path: /c", 1))
		for path, want := range map[string]int{"/a": 200, "/b": 404, "/c": 200} {
			if x := w.get(c, "http://gateway.test:80"+path); x.status != want {
				t.Errorf("%s: %d", path, x.status)
			}
		}
		if x := w.do(c, "POST", "http://gateway.test:80/a", "x"); x.status != 405 {
			t.Errorf("a method that is not the route's any more: %d", x.status)
		}
	})
}

// F09, F89: what cannot be used changes nothing, and the error says why.
func TestReloadThatCannotBe(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("a.test:80", status(200))
		w.serve("b.test:80", status(200))
		dir := t.TempDir()
		file := func(name, text string) string {
			p := filepath.Join(dir, name)
			if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return p
		}
		token := file("token", strings.Repeat("0123456789abcdef", 4))
		good := pairOf("", "", "", "")
		o := w.operate(good, nil)
		c := w.client(stranger)
		before := o.s.gateway.state.Load()
		var failed int
		for _, k := range []struct{ name, yaml, says string }{
			{"typo", "lisen: 127.0.0.1:1\n" + good, "cortex.yaml:1:1: lisen"},
			{"typo in a block", pairOf("", "", "retry: {max_retry: 3}", ""), "max_retry"},
			{"typo in a list", pairOf("", "", "", "methdos: [GET]"), "methdos"},
			{"not YAML", "{{{", "cortex.yaml"},
			{"no target", strings.Replace(good, "target: b", "target: c", 1), "c"},
			{"listen", "listen: 127.0.0.1:1\n" + good, "listen"},
			{"tls", "tls: {cert: " + file("c.pem", "x") + ", key: " + file("k.pem", "x") + "}\n" + good, "tls"},
			{"admin.listen", "admin: {listen: '127.0.0.1:9'}\n" + good, "admin.listen"},
			{"admin.enabled", "admin: {enabled: false}\n" + good, "admin.enabled"},
			{"admin.token_file", "admin: {token_file: " + token + "}\n" + good, "token_file"},
			{"log.format", "log: {format: json}\n" + good, "log.format"},
			{"upstream's CA", strings.Replace(pairOf("", "", "transport: {tls: {ca: "+dir+"/none.pem}}", ""), "http://b.test", "https://b.test", 1), "none.pem"},
			{"descriptors", "server: {max_connections: 1000000}\n" + good, "max_connections"},
			{"access log", "access_log: {path: " + dir + "/none/access.log}\n" + good, "access_log"},
		} {
			o.set(k.yaml)
			err := o.s.Reload()
			failed++
			if err == nil || !strings.Contains(err.Error(), k.says) {
				t.Errorf("%s: %v, want something about %s", k.name, err, k.says)
				continue
			}
			if o.s.gateway.state.Load() != before {
				t.Errorf("%s: another state is in force", k.name)
			}
			restart := k.name == "listen" || k.name == "tls" || strings.HasPrefix(k.name, "admin.") || k.name == "log.format"
			if errors.Is(err, ErrRestart) != restart {
				t.Errorf("%s: needs a restart: %v", k.name, err)
			}
			if x := w.get(c, "http://gateway.test:80/a"); x.status != 200 {
				t.Errorf("%s: then %+v", k.name, x)
			}
			r := decode(t, o.admin("GET", "/api/v1/server", "").body)["reloads"].(map[string]any)
			if r["failed"] != float64(failed) || !strings.Contains(fmt.Sprint(r["problems"]), k.says) {
				t.Errorf("%s: the admin port says %v", k.name, r)
			}
			if v := o.metric(`reloads_total{result="failed"}`); v != fmt.Sprint(failed) {
				t.Errorf("%s: cortex_guard_reloads_total says %q", k.name, v)
			}
			if v := o.metric("last_reload_ok"); v != "0" {
				t.Errorf("%s: cortex_guard_last_reload_ok %q", k.name, v)
			}
		}
		if text := o.log.String(); strings.Count(text, "level=ERROR") != failed || !strings.Contains(text, "the configuration in force stays") {
			t.Errorf("the log of %d reloads that failed:\n%s", failed, text)
		}
		o.reload(good)
		if o.metric("last_reload_ok") != "1" || o.metric(`reloads_total{result="ok"}`) != "1" {
			t.Error("a good reload is not counted")
		}
		if o.s.gateway.Targets()[0] != before.targets[0] {
			t.Error("target a is another")
		}
	})
}

// F89: a panic in what makes a part of the new configuration is an error like others.
func TestPanicInReloadKillsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("a.test:80", status(200))
		w.serve("b.test:80", status(200))
		var boom atomic.Bool
		began := time.Now()
		o := w.operate(pairOf("", "", "", ""), func(o *Options) {
			o.Now = func() time.Duration {
				if boom.Load() {
					panic("boom in an initialiser")
				}
				return time.Since(began)
			}
		})
		o.set(pairOf("", "", "timeout: {max: 7s}", ""))
		o.load = func() { boom.Store(true) }
		err := o.s.Reload()
		boom.Store(false)
		if err == nil || !strings.Contains(err.Error(), "boom in an initialiser") {
			t.Errorf("reload: %v", err)
		}
		o.load = func() { panic("boom in the parser") }
		if err := o.s.Reload(); err == nil || !strings.Contains(err.Error(), "boom in the parser") {
			t.Errorf("reload: %v", err)
		}
		o.load = nil
		if v := o.metric(`reloads_total{result="failed"}`); v != "2" {
			t.Errorf("%s reloads have failed", v)
		}
		if x := w.get(w.client(stranger), "http://gateway.test:80/b"); x.status != 200 {
			t.Errorf("then %+v", x)
		}
		o.reload(pairOf("", "", "timeout: {max: 7s}", ""))
	})
}

// What is removed ends: its checks, lookups and connections, those also that a call under way at the swap leaves behind.
func TestRemovedTargetEnds(t *testing.T) {
	for _, scheme := range []string{"http", "h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				goOn := make(chan struct{})
				var checks atomic.Int64
				w.serve("a.test:80", status(200))
				w.serveAs(scheme, "b.test:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch r.URL.Path {
					case "/check":
						checks.Add(1)
					case "/b/slow":
						<-goOn
						io.WriteString(w, "whole")
					}
				}), a)
				transport := ""
				if scheme == "https" {
					transport = "transport: {tls: {ca: " + a.file + "}}\n"
				}
				transport += "timeout: {enabled: false}"
				both := strings.Replace(pairOf("", "", transport, ""), "http://b.test:80", scheme+"://b.test:443", 1)
				both = strings.ReplaceAll(both, "resolve: 0s", "resolve: 5s, check: {path: /check, interval: 1s, timeout: 1s}")
				alone := both[:strings.Index(both, "  b:")] + both[strings.Index(both, "routes:"):strings.Index(both, "  - path: /b")]
				o := w.operate(both, nil)
				c := w.client(stranger)
				for range 3 {
					if x := w.get(c, "http://gateway.test:80/b"); x.status != 200 {
						t.Fatalf("%+v", x)
					}
				}
				time.Sleep(3 * time.Second)
				if checks.Load() < 2 {
					t.Fatalf("%d checks", checks.Load())
				}
				slow := make(chan answer)
				go func() { slow <- w.get(w.client(stranger), "http://gateway.test:80/b/slow") }()
				time.Sleep(10 * time.Millisecond)
				o.reload(alone)
				seen := checks.Load()
				time.Sleep(time.Minute)
				if n := checks.Load(); n != seen {
					t.Errorf("%d checks of a target that is gone", n-seen)
				}
				if x := w.get(c, "http://gateway.test:80/b"); x.status != 404 {
					t.Errorf("the route that is gone: %d", x.status)
				}
				if n := o.conns.to("b.test:443"); n != 1 {
					t.Errorf("%d connections to a target that is gone, with one call under way", n)
				}
				close(goOn)
				if x := <-slow; x.status != 200 || x.body != "whole" {
					t.Errorf("the call under way: %+v", x)
				}
				time.Sleep(2 * time.Second)
				if n := o.conns.to("b.test:443"); n != 0 {
					t.Errorf("%d connections to a target that is gone", n)
				}
			})
		})
	}
}

// The same for a target that has changed: what it was made of goes.
func TestChangedTargetLeavesNoConnections(t *testing.T) {
	for _, scheme := range []string{"http", "h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				w.serve("a.test:80", status(200))
				goOn := make(chan struct{})
				w.serveAs(scheme, "b.test:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/b/slow" {
						<-goOn
					}
				}), a)
				lines := func(n int) string {
					tls := ""
					if scheme == "https" {
						tls = ", tls: {ca: " + a.file + "}"
					}
					lines := fmt.Sprintf("timeout: {enabled: false}\ntransport: {max_idle_per_host: %d%s}", n, tls)
					return strings.Replace(pairOf("", "", lines, ""), "http://b.test:80", scheme+"://b.test:443", 1)
				}
				o := w.operate(lines(1), nil)
				var slow sync.WaitGroup
				for i := range 20 {
					slow.Go(func() {
						if x := w.get(w.client(stranger), "http://gateway.test:80/b/slow"); x.status != 200 {
							t.Errorf("under way: %+v", x)
						}
					})
					time.Sleep(time.Millisecond)
					o.reload(lines(2 + i))
				}
				close(goOn)
				slow.Wait()
				w.get(w.client(stranger), "http://gateway.test:80/b")
				time.Sleep(2 * time.Second)
				if n := o.conns.to("b.test:443"); n != 1 {
					t.Errorf("%d connections are open", n)
				}
			})
		})
	}
}

// A reload that comes when all is over begins nothing.
func TestReloadAfterCloseBeginsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("a.test:80", status(200))
		w.serve("b.test:80", status(200))
		o := w.operate(pairOf("", "", "", ""), nil)
		o.stop()
		if err := <-o.done; err != nil {
			t.Fatal(err)
		}
		o.set(strings.ReplaceAll(pairOf("", "", "timeout: {max: 7s}", ""), "resolve: 0s", "resolve: 1s"))
		if err := o.s.Reload(); err == nil {
			t.Error("a server that is closed was reloaded")
		}
		// The bubble fails if lookups have begun.
	})
}

func TestReloadWhileDraining(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		goOn := make(chan struct{})
		w.serve("a.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-goOn
			io.WriteString(w, "whole")
		}))
		w.serve("b.test:80", status(200))
		o := w.operate(draining+pairOf("", "timeout: {enabled: false}", "", ""), nil)
		slow := make(chan answer)
		go func() { slow <- w.get(w.client(stranger), "http://gateway.test:80/a") }()
		time.Sleep(time.Millisecond)
		o.stop()
		time.Sleep(time.Second)
		changed := draining + "server: {max_streams: 7, idle_timeout: 3s}\n" + pairOf("", "timeout: {enabled: false}", "timeout: {max: 7s}", "")
		o.reload(changed) // in the delay: new calls come
		if x := w.get(w.client(stranger), "http://gateway.test:80/b"); x.status != 200 {
			t.Errorf("in the delay: %+v", x)
		}
		time.Sleep(5 * time.Second)
		o.reload(strings.Replace(changed, "7s}", "8s}", 1)) // the ports are closed, calls end
		close(goOn)
		if x := <-slow; x.status != 200 || x.body != "whole" {
			t.Errorf("the call under way: %+v", x)
		}
		if err := <-o.done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestReloadChangesLimitsMemoryLevelAndLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("a.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
		w.serve("b.test:80", status(200))
		dir := t.TempDir()
		logTo := func(name string) string { return "access_log: {path: " + filepath.Join(dir, name) + "}\n" }
		o := w.operate(logTo("one")+pairOf("", "", "", ""), nil)
		c := w.client(stranger)
		w.get(c, "http://gateway.test:80/a")
		o.reload(logTo("two") + "memory: {limit: 3MiB}\nlog: {level: warn}\nserver: {max_body_bytes: 10B, max_url_bytes: 128B}\n" + pairOf("", "", "", ""))
		for k, want := range map[string]int{"/a": 200, "/a/" + strings.Repeat("x", 200): 414} {
			if x := w.get(c, "http://gateway.test:80"+k); x.status != want {
				t.Errorf("%.10s: %d, want %d", k, x.status, want)
			}
		}
		if x := w.do(c, "POST", "http://gateway.test:80/a", "more than ten bytes"); x.status != 413 {
			t.Errorf("a long body: %d", x.status)
		}
		if o.level.Level().String() != "WARN" || o.s.gateway.memory.Limit() != 3<<20 {
			t.Errorf("level %v, memory %d", o.level.Level(), o.s.gateway.memory.Limit())
		}
		// What an operator has set stays through a reload in which the file says nothing new.
		o.admin("PUT", "/api/v1/log", `{"level":"error"}`)
		if err := o.s.Reload(); err != nil {
			t.Fatal(err)
		}
		if o.level.Level().String() != "ERROR" {
			t.Errorf("level %v", o.level.Level())
		}
		o.reload(pairOf("", "", "", "")) // no access log any more
		w.get(c, "http://gateway.test:80/a")
		for name, want := range map[string]int{"one": 1, "two": 3} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if n := strings.Count(string(b), "\n"); err != nil || n != want {
				t.Errorf("%s: %d lines, want %d; %v\n%s", name, n, want, err, b)
			}
		}
	})
}

// The admin port's token is that of the file as it is since the last reload; that of the file before opens no more.
func TestReloadChangesToken(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("a.test:80", status(200))
		w.serve("b.test:80", status(200))
		path := filepath.Join(t.TempDir(), "token")
		write := func(token string) {
			if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		one, two := strings.Repeat("one0123456789abc", 3), strings.Repeat("two0123456789abc", 3)
		write(one)
		o := w.operate("admin: {token_file: "+path+"}\n"+pairOf("", "", "", ""), nil)
		ask := func(token string) int {
			if token == "" {
				return o.admin("GET", "/api/v1/server", "").status
			}
			return o.admin("GET", "/api/v1/server", "", "Authorization", "Bearer "+token).status
		}
		check := func(what string, none, first, second int) {
			t.Helper()
			if a, b, c := ask(""), ask(one), ask(two); a != none || b != first || c != second {
				t.Errorf("%s: without %d, the first %d, the second %d", what, a, b, c)
			}
		}
		check("at the start", 401, 200, 401)
		write(two)
		if a := o.admin("POST", "/api/v1/reload", "", "Authorization", "Bearer "+one); a.status != 200 {
			t.Fatalf("%+v", a)
		}
		check("after the change", 401, 401, 200)
		write("short")
		if a := o.admin("POST", "/api/v1/reload", "", "Authorization", "Bearer "+two); a.status != 422 || strings.Contains(a.body, two) {
			t.Errorf("%+v", a)
		}
		check("after a token that cannot be", 401, 401, 200)
		if text := o.log.String(); strings.Contains(text, one) || strings.Contains(text, two) {
			t.Errorf("the token is in the log: %s", text)
		}
	})
}

// New handshakes see the new certificate, connections that there are live on.
func TestReloadChangesCertificate(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("a.test:80", status(200))
		w.serve("b.test:80", status(200))
		a := newOpsAuthority(t)
		cert, key, first := a.issue("gateway", "gateway.test")
		o := w.operate("tls: {cert: "+cert+", key: "+key+"}\n"+pairOf("", "", "", ""), nil)
		client := func() *http.Client {
			tr := &http.Transport{DialContext: w.dialFrom(stranger), TLSClientConfig: &tls.Config{RootCAs: a.pool()}, ForceAttemptHTTP2: true}
			t.Cleanup(tr.CloseIdleConnections)
			return &http.Client{Transport: tr}
		}
		serial := func(c *http.Client) int64 {
			t.Helper()
			res, err := c.Get("https://gateway.test:80/a")
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode != 200 || res.ProtoMajor != 2 {
				t.Errorf("%s %s", res.Proto, res.Status)
			}
			return res.TLS.PeerCertificates[0].SerialNumber.Int64()
		}
		old := client()
		if n := serial(old); n != first {
			t.Fatalf("certificate %d, want %d", n, first)
		}
		_, _, second := a.issue("gateway", "gateway.test")
		if err := o.s.Reload(); err != nil {
			t.Fatal(err)
		}
		dials := w.dials.Load()
		if n := serial(old); n != first || w.dials.Load() != dials {
			t.Errorf("the old connection: certificate %d, another connection was made: %v", n, w.dials.Load() != dials)
		}
		if n := serial(client()); n != second {
			t.Errorf("a new connection: certificate %d, want %d", n, second)
		}
		if err := os.WriteFile(key, []byte("no key"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := o.s.Reload(); err == nil || !strings.Contains(err.Error(), "gateway.key") {
			t.Errorf("a key that cannot be read: %v", err)
		}
		if n := serial(client()); n != second {
			t.Errorf("after a reload that failed: certificate %d, want %d", n, second)
		}
	})
}

// Certificates for targets are taken up with the rest or not at all: a reload that fails at another target leaves them as they were.
func TestReloadOfTargetsCertificatesIsWhole(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		old, next := newOpsAuthority(t), newOpsAuthority(t)
		dir := t.TempDir()
		copyTo := func(name, from string) {
			b, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		copyTo("a.pem", old.file)
		copyTo("b.pem", old.file)
		w.serveTLS("a.test:443", status(200), old.pair("a.test", "a.test"))
		w.serveTLS("b.test:443", status(200), old.pair("b.test", "b.test"))
		yaml := pairOf("", "transport: {tls: {ca: "+dir+"/a.pem}, max_age: 1s}", "transport: {tls: {ca: "+dir+"/b.pem}}", "")
		o := w.operate(strings.NewReplacer("http://a.test:80", "https://a.test", "http://b.test:80", "https://b.test").Replace(yaml), nil)
		ask := func() int {
			time.Sleep(2 * time.Second) // a new connection
			return w.get(w.client(stranger), "http://gateway.test:80/a").status
		}
		if code := ask(); code != 200 {
			t.Fatalf("at the start %d", code)
		}
		copyTo("a.pem", next.file) // which has not issued the certificate of a
		if err := os.WriteFile(filepath.Join(dir, "b.pem"), []byte("nothing"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := o.s.Reload(); err == nil || !strings.Contains(err.Error(), "b.pem") {
			t.Errorf("reload: %v", err)
		}
		if code := ask(); code != 200 {
			t.Errorf("after a reload that failed: %d", code)
		}
		copyTo("b.pem", old.file)
		if err := o.s.Reload(); err != nil {
			t.Fatal(err)
		}
		if code := ask(); code < 500 { // which of them hangs on how pipes go on after an alert
			t.Errorf("with another authority: %d", code)
		}
		copyTo("a.pem", old.file)
		if err := o.s.Reload(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if code := ask(); code != 200 {
			t.Errorf("with the authority of before: %d", code)
		}
	})
}
