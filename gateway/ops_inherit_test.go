package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// endpointsOf is the configuration of one target with three endpoints, and more lines for it.
func endpointsOf(endpoints, lines string) string {
	return "targets:\n  up:\n    endpoints: [" + endpoints + "]\n    budget: {capacity: 1000}\n" + indent(4, lines) +
		"routes:\n  - {path: /, target: up}\n"
}

// A reload that changed any key of a target put its ill endpoints back into the load, and made all connections anew.
func TestReloadKeepsEndpoints(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ill [3]atomic.Bool
		for i := range 3 {
			w.serve(fmt.Sprintf("e%d.test:80", i), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if ill[i].Load() {
					w.WriteHeader(500)
				}
			}))
		}
		const all = "http://e0.test:80, http://e1.test:80, http://e2.test:80"
		const balanced = "balance: {resolve: 0s, slow_start: 1m, eject: {base_time: 10m, max_time: 20m}}\n"
		o := w.operate(endpointsOf(all, balanced), nil)
		g, c := o.s.Gateway(), w.client(stranger)
		ill[1].Store(true)
		drive(w, g, c, 100, 5*time.Second)
		const ejected = "map[e0.test:80:up e1.test:80:ejected e2.test:80:up]"
		known := func(what, want string) {
			t.Helper()
			if s := strings.ReplaceAll(fmt.Sprint(states(g)), "http://", ""); s != want {
				t.Errorf("%s: %s, want %s", what, s, want)
			}
		}
		known("before", ejected)
		const series = `endpoint_attempts_total{target="up",endpoint="http://e1.test:80",address=""}`
		attempts := o.metric(series)
		for _, q := range []struct {
			what, yaml string
			dials      int64
		}{
			{"retries", endpointsOf(all, balanced+"retry: {max_retries: 1}\n"), 0},
			{"timeouts", endpointsOf(all, balanced+"timeout: {max: 7s}\n"), 0},
			{"checks", endpointsOf(all, strings.Replace(balanced, "resolve", "check: {path: /}, resolve", 1)), 0},
			{"order and weight", endpointsOf("http://e2.test:80, {url: http://e1.test:80, weight: 3}, http://e0.test:80", balanced), 0},
			{"transport", endpointsOf(all, balanced+"transport: {max_idle_per_host: 3}\n"), 2}, // its connections are made anew
		} {
			dials := w.dials.Load()
			o.reload(q.yaml)
			known(q.what, ejected)
			drive(w, g, c, 50, time.Second)
			known(q.what, ejected)
			if n := w.dials.Load() - dials; n > q.dials {
				t.Errorf("%s: %d connections were made anew", q.what, n)
			}
		}
		if n := o.metric(series); n != attempts || n == "" {
			t.Errorf("attempts of the ejected one: %s, then %s", attempts, n)
		}
		o.reload(endpointsOf("http://e1.test:80, http://e2.test:80, http://e3.test:80", balanced))
		known("one goes and one comes", "map[e1.test:80:ejected e2.test:80:up e3.test:80:slow-start]")
		o.reload(endpointsOf(all, strings.Replace(balanced, "eject: {", "eject: {enabled: false, ", 1)))
		known("no ejection", "map[e0.test:80:slow-start e1.test:80:slow-start e2.test:80:up]")
	})
}

// What was learned of a target stays where something beside it changes, its own lines too where they mean the same.
func TestReloadOfRoutesKeepsTargets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		o := w.operate(one("timeout: {max: 7s}", ""), nil)
		before := o.s.Gateway().Targets()[0]
		for what, yaml := range map[string]string{
			"fallback":           one("timeout: {max: 7s}", "fallback: {static: {status: 200, body: x}}"),
			"priority":           one("timeout: {max: 7s}", "priority: {header: X-Tier, default: 3}"),
			"shadow":             one("timeout: {max: 7s}", "shadow: true"),
			"lines move":         "# one\n\n# two\n" + one("timeout: {max: 7000ms, enabled: true}", ""),
			"the server":         "server: {max_streams: 7}\nname: other\n" + one("timeout: {max: 7s}", ""),
			"another target":     strings.Replace(one("timeout: {max: 7s}", ""), "targets:\n", "targets:\n  a: {endpoints: [http://a.test:80]}\n", 1),
			"the target's place": "routes:\n  - {path: /, target: up}\ntargets:\n  up:\n    timeout: {max: 7s}\n    endpoints: [http://up.test:80]\n",
		} {
			o.reload(yaml)
			ts := o.s.Gateway().Targets()
			if after := ts[len(ts)-1]; after != before || after.Engine != before.Engine {
				t.Errorf("%s: the target is another one", what)
			}
		}
	})
}

// Transports are shared by a target and what it was before: neither closes what the other uses, and the last of them leaves nothing.
func TestReloadKeepsConnections(t *testing.T) {
	for _, scheme := range []string{"http", "h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				goOn := make(chan struct{})
				w.serveAs(scheme, "b.test:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/slow" {
						<-goOn
					}
				}), a)
				lines := func(idle int, more string) string {
					tls := ""
					if scheme == "https" {
						tls = ", tls: {ca: " + a.file + "}"
					}
					return endpointsOf(scheme+"://b.test:443", fmt.Sprintf("timeout: {enabled: false}\ntransport: {max_idle_per_host: %d%s}\n", idle, tls)+more)
				}
				o := w.operate(lines(20, "balance: {resolve: 0s}"), nil)
				var slow sync.WaitGroup
				for i := range 10 {
					slow.Go(func() {
						if x := w.get(w.client(stranger), "http://gateway.test:80/slow"); x.status != 200 {
							t.Errorf("under way: %+v", x)
						}
					})
					time.Sleep(time.Millisecond)
					o.reload(lines(20, fmt.Sprintf("balance: {resolve: 0s}\nretry: {max_retries: %d}", i)))
				}
				calls := o.s.Gateway().Targets()[0].calls.Load()
				close(goOn)
				slow.Wait()
				time.Sleep(2 * time.Second)
				want := 1
				if scheme == "http" {
					want = 10 // each of them can be used again
				}
				if n := o.conns.to("b.test:443"); n != want || calls != 0 {
					t.Errorf("%d connections are open, want %d; %d calls in the last target", n, want, calls)
				}
				before := w.dials.Load()
				w.get(w.client(stranger), "http://gateway.test:80/")
				if n := w.dials.Load() - before; n != 1 { // the client's
					t.Errorf("%d connections were made", n)
				}
				// A change that does not come into force takes nothing away, and one of the transport leaves none of the old.
				o.set(lines(20, "balance: {resolve: 0s}\nretry: {max_retries: 8}") + "access_log: {path: /nowhere/x}\n")
				if o.s.Reload() == nil {
					t.Error("a log in no directory")
				}
				if n := o.conns.to("b.test:443"); n != want {
					t.Errorf("%d connections are open after what was refused, want %d", n, want)
				}
				o.reload(lines(7, "balance: {resolve: 0s}"))
				time.Sleep(2 * time.Second)
				if n := o.conns.to("b.test:443"); n != 0 {
					t.Errorf("%d connections of the old transport are open", n)
				}
			})
		})
	}
}

// A call that outlived its target's successor left a connection to a target that was not there any more.
func TestReloadThatRemovesATargetLeavesNoConnection(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serveAs("h2c", "up.test:80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(5 * time.Second) }), nil)
		w.serve("other.test:80", status(200))
		const slow = "timeout: {enabled: false}\nbalance: {resolve: 0s}\n"
		o := w.operate(endpointsOf("h2c://up.test:80", slow), nil)
		c := w.client(stranger)
		call := make(chan answer, 1)
		go func() { call <- w.get(c, "http://gateway.test:80/") }()
		time.Sleep(time.Second)
		o.reload(endpointsOf("h2c://up.test:80", slow+"retry: {max_retries: 1}\n"))
		o.reload(strings.ReplaceAll(endpointsOf("http://other.test:80", slow), "up", "other"))
		if a := <-call; a.status != 200 {
			t.Errorf("%+v", a)
		}
		time.Sleep(2 * time.Second)
		if n := o.conns.to("up.test:80"); n != 0 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// Reloads, one on the other, of all that has an heir, under load: no call fails, and nothing of the former targets is left.
func TestReloadsUnderLoadLeaveNothingBehind(t *testing.T) {
	for _, scheme := range []string{"http", "h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(20 * time.Millisecond) })
				endpoints := ""
				for i := range 3 {
					w.serveAs(scheme, fmt.Sprintf("e%d.test:80", i), h, a)
					endpoints += fmt.Sprintf(", %s://e%d.test:80", scheme, i)
				}
				transport := "transport: {max_age: 1s, dial_timeout: 500ms"
				if scheme == "https" {
					transport += ", tls: {ca: " + a.file + "}"
				}
				const balanced = "balance: {resolve: 0s, check: {path: /, interval: 100ms}}\n"
				configs := []string{
					endpointsOf(endpoints[2:], balanced+transport+"}\n"),
					endpointsOf(endpoints[2:], balanced+transport+"}\nretry: {max_retries: 1}\n"),
					endpointsOf(endpoints[2:], balanced+transport+", max_idle_per_host: 3}\n"),
					endpointsOf(endpoints[2:], "balance: {resolve: 0s}\n"+transport+"}\n"),
					endpointsOf(strings.Join(strings.Split(endpoints, ",")[2:], ","), balanced+transport+"}\n"),
				}
				o := w.operate(configs[0], nil)
				c := w.client(stranger)
				var bad, good atomic.Int64
				var calls sync.WaitGroup
				for range 8 {
					calls.Go(func() {
						for end := time.Now().Add(6 * time.Second); time.Now().Before(end); {
							if x := w.get(c, "http://gateway.test:80/"); x.status != 200 || x.err != nil {
								bad.Add(1)
							} else {
								good.Add(1)
							}
						}
					})
				}
				for i := range 100 {
					o.reload(configs[(i*i+i/3)%len(configs)])
					time.Sleep(time.Duration(i%7) * 10 * time.Millisecond)
				}
				calls.Wait()
				if bad.Load() > 0 || good.Load() < 100 {
					t.Errorf("%d calls failed, %d did not", bad.Load(), good.Load())
				}
				for _, x := range o.s.Gateway().Targets() {
					if n := x.Engine.Pressure().InFlight; n != 0 {
						t.Errorf("%d are in flight", n)
					}
				}
				o.reload(strings.ReplaceAll(endpointsOf("http://other.test:80", "balance: {resolve: 0s}\n"), "up", "other"))
				time.Sleep(3 * time.Second)
				for i := range 3 {
					if n := o.conns.to(fmt.Sprintf("e%d.test:80", i)); n != 0 {
						t.Errorf("e%d: %d connections are open", i, n)
					}
				}
			})
		})
	}
}
