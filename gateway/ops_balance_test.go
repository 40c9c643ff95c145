package gateway

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/breaker"
)

// A place is an endpoint that can be made ill.
type place struct {
	n    atomic.Int64
	ill  atomic.Int32 // 0 = well, 1 = half of the calls fail, 2 = hangs, 3 = every call fails, 4 = breaks off the connection
	seen sync.Map     // Host → true
}

func (p *place) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.n.Add(1)
	p.seen.Store(r.Host, true)
	time.Sleep(5 * time.Millisecond)
	switch ill := p.ill.Load(); {
	case ill == 1 && rand.IntN(2) == 0, ill == 3:
		w.WriteHeader(500)
	case ill == 2:
		hang(w, r)
	case ill == 4:
		panic(http.ErrAbortHandler)
	}
	io.WriteString(w, "good")
}

// tally of calls.
type score struct {
	good, bad atomic.Int64
	worst     atomic.Int64 // CPS, in thousandths
	opened    atomic.Bool  // the circuit
}

// drive sends calls at a rate for a time.
func drive(w *world, g *Gateway, c *http.Client, rate int, d time.Duration) *score {
	s := new(score)
	var wg sync.WaitGroup
	e := g.Targets()[0].Engine
	for range int(d.Seconds() * float64(rate)) {
		wg.Go(func() {
			if a := w.get(c, "http://gateway.test:80/"); a.status == 200 && a.body == "good" {
				s.good.Add(1)
			} else {
				s.bad.Add(1)
			}
		})
		p := e.Pressure()
		if p.Circuit != breaker.Closed {
			s.opened.Store(true)
		}
		s.worst.Store(max(s.worst.Load(), int64(p.CPS*1000)))
		time.Sleep(time.Second / time.Duration(rate))
	}
	wg.Wait()
	return s
}

func (s *score) success() float64 {
	return float64(s.good.Load()) / float64(s.good.Load()+s.bad.Load())
}

const four = "targets:\n  up:\n    endpoints: [http://e0.test:80, http://e1.test:80, http://e2.test:80, http://e3.test:80]\n"

// states are the members' by their names.
func states(g *Gateway) map[string]string {
	m := map[string]string{}
	for _, e := range g.Targets()[0].members() {
		name := e.URL
		if e.Address != "" {
			name = e.Address
		}
		m[name] = e.State.String()
	}
	return m
}

// One of four endpoints is ill: that is the endpoint's matter. Clients see nothing of it, the target's circuit stays closed, and when it
// is well it comes back, slowly.
func TestIllEndpointIsNotTheTarget(t *testing.T) {
	for name, k := range map[string]struct {
		ill     int32
		success float64
	}{"dead": {-1, 0.999}, "hanging": {2, 0.999}, "failing": {3, 0.999}, "failing half the time": {1, 0.999}, "breaking off": {4, 0.999}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var ps [4]place
				var servers [4]*http.Server
				serve := func(i int) { servers[i] = w.serve(fmt.Sprintf("e%d.test:80", i), &ps[i]) }
				for i := range ps {
					serve(i)
				}
				o := w.operate(four+"    balance: {resolve: 0s}\n    retry: {base_delay: 10ms}\nroutes: [{path: /, target: up}]\n", nil)
				g := o.s.gateway
				tr := &http.Transport{DialContext: w.dialFrom(stranger), MaxIdleConnsPerHost: 1000, DisableCompression: true}
				defer tr.CloseIdleConnections()
				c := &http.Client{Transport: tr}
				if s := drive(w, g, c, 200, 3*time.Second); s.bad.Load() != 0 {
					t.Fatalf("while all are well: %d of 600 failed", s.bad.Load())
				}
				if k.ill < 0 {
					servers[1].Close()
				} else {
					ps[1].ill.Store(k.ill)
				}
				before := ps[1].n.Load()
				s := drive(w, g, c, 200, 10*time.Second)
				t.Logf("success %.5f, worst CPS 0.%03d, %d calls to the ill one", s.success(), s.worst.Load(), ps[1].n.Load()-before)
				if s.success() < k.success || s.opened.Load() || s.worst.Load() > 300 {
					t.Errorf("success %.5f, circuit opened %v, worst CPS 0.%03d", s.success(), s.opened.Load(), s.worst.Load())
				}
				if m := g.Targets()[0].members()[1]; m.State == admin.EndpointUp || m.Ejections == 0 || m.Failures == 0 {
					t.Errorf("the ill one: %+v", m)
				}
				if v := o.metric(`endpoint_ejections_total{target="up",endpoint="http://e1.test:80",address=""}`); v == "" || v == "0" {
					t.Errorf("cortex_guard_endpoint_ejections_total %q", v)
				}
				if n := ps[1].n.Load() - before; n > 400 { // of one that fails half the time it takes a while to be sure
					t.Errorf("%d of 2000 calls to the ill endpoint", n)
				}
				for i, m := range g.Targets()[0].members() {
					if i != 1 && (m.State != admin.EndpointUp || m.Ejections != 0) {
						t.Errorf("one that is well: %+v", m)
					}
				}
				if k.ill < 0 {
					serve(1)
				} else {
					ps[1].ill.Store(0)
				}
				var slow, up bool
				for range 300 {
					drive(w, g, c, 100, 200*time.Millisecond)
					switch states(g)["http://e1.test:80"] {
					case "slow-start":
						slow = true
					case "up":
						up = true
					}
					if up {
						break
					}
				}
				if !slow || !up {
					t.Errorf("when it is well: slow start %v, back %v; %v", slow, up, states(g))
				}
				before = ps[1].n.Load()
				drive(w, g, c, 200, 5*time.Second)
				if n := ps[1].n.Load() - before; n < 200 || n > 300 {
					t.Errorf("%d of 1000 calls to the one that has come back", n)
				}
			})
		})
	}
}

// All are ill: all are used, the circuit opens, and closes when they are well.
func TestAllEndpointsIll(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ps [4]place
		for i := range ps {
			w.serve(fmt.Sprintf("e%d.test:80", i), &ps[i])
		}
		g := w.operate(four+"    balance: {resolve: 0s}\nroutes: [{path: /, target: up}]\n", nil).s.gateway
		c := w.client(stranger)
		drive(w, g, c, 100, 5*time.Second)
		for i := range ps {
			ps[i].ill.Store(3)
		}
		if s := drive(w, g, c, 100, 10*time.Second); !s.opened.Load() {
			t.Error("the circuit has not opened")
		}
		for i := range ps {
			ps[i].ill.Store(0)
		}
		drive(w, g, c, 100, 30*time.Second)
		if s := drive(w, g, c, 100, 5*time.Second); s.success() < 1 || s.opened.Load() {
			t.Errorf("when they are well: success %v, circuit opened %v; %v", s.success(), s.opened.Load(), states(g))
		}
	})
}

// Checks take out and put back, by their own request.
func TestActiveChecksTakeOutAndPutBack(t *testing.T) {
	for _, scheme := range []string{"http", "h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				var ill atomic.Bool
				var calls [2]atomic.Int64
				var mu sync.Mutex
				checks := map[string]bool{}
				for i := range calls {
					w.serveAs(scheme, fmt.Sprintf("e%d.test:443", i), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path != "/up now" {
							calls[i].Add(1)
							return
						}
						mu.Lock()
						checks[fmt.Sprint(r.Method, " ", r.Host, " ", r.RequestURI, " ", r.Header["User-Agent"])] = true
						mu.Unlock()
						if i == 1 && ill.Load() {
							w.WriteHeader(503)
						}
					}), a)
				}
				tls := ""
				if scheme == "https" {
					tls = "    transport: {tls: {ca: " + a.file + "}}\n"
				}
				o := w.operate(fmt.Sprintf("targets:\n  up:\n    endpoints: ['%s://e0.test:443/base', '%s://e1.test:443/base']\n%s", scheme, scheme, tls)+
					"    balance: {resolve: 0s, slow_start: 0s, check: {path: /up now, interval: 1s, timeout: 500ms, healthy: 2, unhealthy: 3}}\n"+
					"routes: [{path: /, target: up}]\n", nil)
				g, c := o.s.gateway, w.client(stranger)
				ask := func() (a, b int64) {
					t.Helper()
					x, y := calls[0].Load(), calls[1].Load()
					for range 100 {
						if a := w.get(c, "http://gateway.test:80/"); a.status != 200 {
							t.Fatalf("%+v", a)
						}
					}
					return calls[0].Load() - x, calls[1].Load() - y
				}
				time.Sleep(3 * time.Second)
				if _, b := ask(); b == 0 {
					t.Error("one that is well gets no calls")
				}
				ill.Store(true)
				time.Sleep(5 * time.Second)
				if m := g.Targets()[0].members()[1]; m.State != admin.EndpointCheckedOut {
					t.Errorf("the ill one: %+v", m)
				}
				if _, b := ask(); b != 0 {
					t.Errorf("%d calls to the ill one", b)
				}
				ill.Store(false)
				time.Sleep(4 * time.Second)
				if _, b := ask(); b == 0 || g.Targets()[0].members()[1].State != admin.EndpointUp {
					t.Errorf("%d calls to the one that is well again: %v", b, states(g))
				}
				mu.Lock()
				defer mu.Unlock()
				for i := range 2 {
					if want := fmt.Sprintf("GET e%d.test:443 /up%%20now [cortex-check]", i); !checks[want] {
						t.Errorf("checks %v, want %s", checks, want)
					}
				}
				if len(checks) != 2 {
					t.Errorf("checks %v", checks)
				}
				if n := g.Targets()[0].Engine.Stats().Attempts; n != 300 {
					t.Errorf("%d attempts are counted for 300 calls", n)
				}
			})
		})
	}
}

// Addresses of a name are members; when they change no call fails, and connections to those that are gone are
// closed.
func TestAddressesOfANameChange(t *testing.T) {
	for _, scheme := range []string{"http", "h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				var ps [3]place
				serve := func(i int) {
					addr := fmt.Sprintf("10.0.0.%d:443", i+1)
					if scheme != "https" {
						w.serveAs(scheme, addr, &ps[i], nil)
						return
					}
					w.serveTLS(addr, &ps[i], a.pair("shop.test", "shop.test"))
				}
				for i := range ps {
					serve(i)
				}
				var mu sync.Mutex
				answers := "10.0.0.1 10.0.0.2"
				tls := ""
				if scheme == "https" {
					tls = ", tls: {ca: " + a.file + "}"
				}
				// On HTTP/2 a connection that is in use when its address goes is closed when it has been idle.
				if tls = "    transport: {idle_timeout: 3s" + tls + "}\n"; scheme == "http" {
					tls = ""
				}
				yaml := "targets:\n  up:\n    endpoints: ['" + scheme + "://shop.test:443']\n" + tls + "    balance: {resolve: 5s, slow_start: 2s}\nroutes: [{path: /, target: up}]\n"
				o := w.operate(yaml, func(o *Options) {
					o.Lookup = func(_ context.Context, host string) (as []netip.Addr, _ error) {
						mu.Lock()
						defer mu.Unlock()
						if host != "shop.test" {
							t.Errorf("looked up %s", host)
						}
						if answers == "" {
							return noAddress(context.Background(), host)
						}
						for _, a := range strings.Fields(answers) {
							as = append(as, netip.MustParseAddr(a))
						}
						return as, nil
					}
				})
				g := o.s.gateway
				tr := &http.Transport{DialContext: w.dialFrom(stranger), MaxIdleConnsPerHost: 100, DisableCompression: true}
				defer tr.CloseIdleConnections()
				c := &http.Client{Transport: tr}
				synctest.Wait()
				change := func(to string, members int) {
					t.Helper()
					mu.Lock()
					answers = to
					mu.Unlock()
					if s := drive(w, g, c, 40, 12*time.Second); s.bad.Load() != 0 {
						t.Errorf("%q: %d calls failed", to, s.bad.Load())
					}
					if m := states(g); len(m) != members {
						t.Errorf("%q: members %v", to, m)
					}
				}
				change("10.0.0.1 10.0.0.2", 2)
				if ps[0].n.Load() < 160 || ps[1].n.Load() < 160 || ps[2].n.Load() != 0 {
					t.Errorf("calls %d %d %d", ps[0].n.Load(), ps[1].n.Load(), ps[2].n.Load())
				}
				change("10.0.0.2 10.0.0.3", 2)
				change("10.0.0.2 10.0.0.3", 2)
				if n := o.conns.to("10.0.0.1:443"); n != 0 {
					t.Errorf("%d connections to an address that is gone", n)
				}
				one := ps[0].n.Load()
				change("", 2) // nobody answers: what was known stays
				if ps[0].n.Load() != one || ps[2].n.Load() < 160 {
					t.Errorf("calls %d %d %d", ps[0].n.Load()-one, ps[1].n.Load(), ps[2].n.Load())
				}
				change("10.0.0.3", 1)
				if n := o.conns.to("10.0.0.2:443"); n != 0 {
					t.Errorf("%d connections to an address that is gone", n)
				}
				host := "gateway.test:80" // that of the client, as ever
				if scheme == "https" {
					host = "shop.test:443"
				}
				for i := range ps {
					ps[i].seen.Range(func(h, _ any) bool {
						if h != host {
							t.Errorf("endpoint %d saw the host %v", i, h)
						}
						return true
					})
				}
				if v := o.metric(`endpoint_state{target="up",endpoint="` + scheme + `://shop.test:443",address="10.0.0.3:443",state="up"}`); v != "1" {
					t.Errorf("cortex_guard_endpoint_state %q", v)
				}
			})
		})
	}
}

// Weights share the load, an IPv6 address is one like others, h2c and http endpoints go together.
func TestWeightsAndIPv6(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var ps [3]place
		w.serve("[2001:db8::1]:80", &ps[0])
		w.serveAs("h2c", "[2001:db8::2]:80", &ps[1], nil)
		w.serve("e2.test:80", &ps[2])
		g := w.operate(`
targets:
  up:
    endpoints: [{url: 'http://[2001:db8::1]', weight: 1}, {url: 'h2c://[2001:db8::2]:80', weight: 3}, {url: 'http://e2.test', weight: 6}]
    balance: {resolve: 0s}
routes: [{path: /, target: up}]
`, nil).s.gateway
		if s := drive(w, g, w.client(stranger), 100, 10*time.Second); s.bad.Load() != 0 {
			t.Errorf("%d of 1000 calls failed", s.bad.Load())
		}
		for i, want := range []int64{100, 300, 600} {
			if n := ps[i].n.Load(); n < want*3/4 || n > want*5/4 {
				t.Errorf("endpoint %d: %d calls, want about %d", i, n, want)
			}
		}
	})
}
