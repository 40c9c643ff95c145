package gateway

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// The field cases of the circuit, of outcomes and of shedding, as those see them who call through the gateway; the engine's own tests are in
// field_circuit_test.go of the module's root.

// switched is a target that can be told to be another.
type switched struct {
	n  atomic.Int64
	as atomic.Pointer[http.Handler]
}

func (s *switched) be(h http.Handler) { s.as.Store(&h) }

func (s *switched) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.n.Add(1)
	(*s.as.Load()).ServeHTTP(w, r)
}

// brokenCircuit is a gateway whose circuit is open, before a target that can be told to be well.
func brokenCircuit(t *testing.T, w *world, target string) (up *switched, g *Gateway, c *http.Client) {
	t.Helper()
	up = new(switched)
	up.be(status(500))
	w.serve("up.test:80", up)
	g = w.gateway(one("retry: {max_retries: 0}\ntimeout: {enabled: false}\n"+target, ""))
	c = w.client(stranger)
	openCircuit(t, w, c, "http://gateway.test:80/")
	return up, g, c
}

// F10: a probe that ends in a 404, or whose client leaves, decides nothing, and the next caller may probe.
func TestProbeOfAClientThatLeavesKeepsNobodyOut(t *testing.T) {
	for name, h := range map[string]http.Handler{"404": status(404), "left": hang} {
		inWorld(t, func(t *testing.T, w *world) {
			up, g, c := brokenCircuit(t, w, "")
			up.be(h)
			before := up.n.Load()
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				r, _ := http.NewRequestWithContext(ctx, "GET", "http://gateway.test:80/", nil)
				send(c, r)
				cancel()
				if up.n.Load() > before {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			synctest.Wait()
			if n := up.n.Load() - before; n != 1 {
				t.Fatalf("%s: %d probes", name, n)
			}
			e := g.Targets()[0].Engine
			if p := e.Pressure(); p.Circuit == breaker.Closed || p.InFlight != 0 {
				t.Errorf("%s: after it %+v", name, p)
			}
			up.be(status(200))
			began := time.Now()
			for w.get(c, "http://gateway.test:80/").status != 200 {
				if time.Since(began) > 3*time.Second {
					t.Fatalf("%s: refused for 3 s though the target is well: %+v", name, e.Pressure())
				}
				time.Sleep(50 * time.Millisecond)
			}
			if p := e.Pressure(); p.Circuit != breaker.Closed {
				t.Errorf("%s: after a good probe %+v", name, p)
			}
		})
	}
}

// F11: a probe that hangs, where no timeout cuts it, keeps the circuit for a bounded time; what it says in the end counts no more.
func TestProbeThatHangsKeepsNobodyOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up, g, c := brokenCircuit(t, w, "")
		hung := make(chan struct{})
		resume := sync.OnceFunc(func() { close(hung) })
		defer resume()
		up.be(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-hung
			w.WriteHeader(500)
		}))
		before := up.n.Load()
		late := make(chan answer, 1)
		for up.n.Load() == before {
			go func() {
				if a := w.get(c, "http://gateway.test:80/"); a.header.Get("Cortex-Attempts") == "1" {
					late <- a
				}
			}()
			time.Sleep(50 * time.Millisecond)
		}
		up.be(status(200))
		began := time.Now()
		for w.get(c, "http://gateway.test:80/").status != 200 {
			if time.Since(began) > 5*time.Second {
				t.Fatalf("refused for 5 s though the target is well: %+v", g.Targets()[0].Engine.Pressure())
			}
			time.Sleep(50 * time.Millisecond)
		}
		failures := g.Targets()[0].Engine.Stats().Failures
		resume()
		if a := <-late; a.status != 500 {
			t.Errorf("the one that hung: %+v", a)
		}
		synctest.Wait()
		e := g.Targets()[0].Engine
		if p, s := e.Pressure(), e.Stats(); p.Circuit != breaker.Closed || p.InFlight != 0 || s.Failures != failures {
			t.Errorf("after its answer %+v, %d failures more", p, s.Failures-failures)
		}
	})
}

// F13: of 200 callers at the moment at which a probe is due no more reach the target than there may be probes.
func TestNoHerdReachesATargetThatIsProbed(t *testing.T) {
	for _, most := range []int64{1, 3} {
		inWorld(t, func(t *testing.T, w *world) {
			up, g, c := brokenCircuit(t, w, "breaker: {max_probes: "+strconv.FormatInt(most, 10)+", probes_to_close: 3}")
			resume := make(chan struct{})
			up.be(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-resume }))
			time.Sleep(g.Targets()[0].Engine.Pressure().NextProbe)
			before := up.n.Load()
			var good, refused atomic.Int64
			var wg sync.WaitGroup
			for range 200 {
				wg.Go(func() {
					switch a := w.get(c, "http://gateway.test:80/"); {
					case a.status == 200:
						good.Add(1)
					case a.status == 503 && a.took == 0 && strings.HasPrefix(a.header.Get("Cortex-Reason"), "CIRCUIT_OPEN"):
						refused.Add(1)
					default:
						t.Errorf("%+v", a)
					}
				})
			}
			synctest.Wait()
			if n := up.n.Load() - before; n != most {
				t.Errorf("%d of 200 callers reached the target, want %d", n, most)
			}
			close(resume)
			wg.Wait()
			if good.Load() != most || refused.Load() != 200-most {
				t.Errorf("%d good, %d refused", good.Load(), refused.Load())
			}
		})
	}
}

// F17: clients that give up on a target that is well open no circuit; its timeouts do.
func TestClientsThatGiveUpOpenNoCircuit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := new(switched)
		up.be(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-time.After(200 * time.Millisecond):
			}
		}))
		w.serve("up.test:80", up)
		g := w.gateway(one("retry: {max_retries: 0}\ntimeout: {min: 50ms, max: 300ms, bootstrap: 300ms}", ""))
		c := w.client(stranger)
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://gateway.test:80/", nil)
			if a := send(c, r); a.err == nil {
				t.Fatalf("call %d: %+v", i, a)
			}
			cancel()
			synctest.Wait()
		}
		e := g.Targets()[0].Engine
		if s, p := e.Stats(), e.Pressure(); up.n.Load() != 100 || s.Neutral != 100 || s.Failures+s.Timeouts != 0 || p.Circuit != breaker.Closed || p.InFlight != 0 {
			t.Errorf("%d requests, %+v, %+v", up.n.Load(), s, p)
		}
		up.be(hang)
		for range 100 {
			w.get(c, "http://gateway.test:80/")
		}
		if s := e.Stats(); s.Timeouts == 0 || e.Pressure().Circuit == breaker.Closed {
			t.Errorf("after 100 calls of a target that hangs: %+v", s)
		}
	})
}

// F18: answers that find fault with the request open no circuit, however many. Those that say that the target is ill do.
func TestFaultsOfRequestsOpenNoCircuit(t *testing.T) {
	for _, code := range []int{400, 401, 403, 404, 409, 410, 422, 501} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &counter{next: status(code)}
			w.serve("up.test:80", up)
			g := w.gateway(one("retry: {max_retries: 0}", ""))
			c := w.client(stranger)
			for i := range 200 {
				if a := w.get(c, "http://gateway.test:80/"); a.status != code {
					t.Fatalf("%d, call %d: %+v", code, i, a)
				}
				time.Sleep(2 * time.Millisecond)
			}
			e := g.Targets()[0].Engine
			if s := e.Stats(); up.n.Load() != 200 || s.Failures+s.Timeouts != 0 || e.Pressure().Circuit != breaker.Closed {
				t.Errorf("%d: %d requests, %+v", code, up.n.Load(), s)
			}
		})
	}
	for _, code := range []int{500, 502, 503, 504} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", status(code))
			w.gateway(one("retry: {max_retries: 0}", ""))
			openCircuit(t, w, w.client(stranger), "http://gateway.test:80/")
		})
	}
}

// F19: an outage of a minute under 50 calls a second that are refused is over with the next good probe, for every caller.
func TestRefusalsDoNotKeepTheGatewaysCircuitOpen(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up, g, c := brokenCircuit(t, w, "")
		before := up.n.Load()
		call := func() bool {
			time.Sleep(20 * time.Millisecond)
			return w.get(c, "http://gateway.test:80/").status == 200
		}
		for range 60 * 50 {
			call()
		}
		if n := up.n.Load() - before; n > 300 {
			t.Errorf("%d of 3000 calls reached the target that is ill", n)
		}
		up.be(status(200))
		began := time.Now()
		for !call() {
			if time.Since(began) > 2*time.Second {
				t.Fatalf("refused for 2 s: %+v", g.Targets()[0].Engine.Pressure())
			}
		}
		bad := 0
		for range 1000 {
			if !call() {
				bad++
			}
		}
		if bad > 0 {
			t.Errorf("%d of 1000 calls after the first good one were refused", bad)
		}
	})
}

// F24: a few failures after a start are no ill target, and nobody is refused for them.
func TestFewFailuresAfterAStartRefuseNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := new(switched)
		up.be(status(500))
		w.serve("up.test:80", up)
		g := w.gateway(one("retry: {max_retries: 0}", ""))
		c := w.client(stranger)
		for i := range 19 {
			if a := w.get(c, "http://gateway.test:80/"); a.status != 500 || len(a.header["Cortex-Reason"]) > 0 && a.header.Get("Cortex-Reason") != "MAX_RETRIES_EXCEEDED" {
				t.Errorf("call %d: %+v", i, a)
			}
		}
		up.be(status(200))
		for i := range 100 {
			if a := w.get(c, "http://gateway.test:80/"); a.status != 200 {
				t.Errorf("call %d: %+v", i, a)
			}
		}
		if s := g.Targets()[0].Engine.Stats(); up.n.Load() != 119 || s.Transitions != 0 {
			t.Errorf("%d requests, %+v", up.n.Load(), s)
		}
	})
}

// F72b: slow calls that matter little do not take all there is: those that matter most are let in beside them at once.
func TestSlowCallsLeaveRoomForTheCriticalOnes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ended := make(chan struct{})
		var slow atomic.Int64
		w.serve("up.test:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				slow.Add(1)
				<-ended
				return
			}
			time.Sleep(10 * time.Millisecond)
		}))
		w.gateway(one("timeout: {enabled: false}\nretry: {max_retries: 0}\nlimit: {max: 10}", "priority: {header: X-Priority}"))
		c := w.client(trusted)
		for range 500 {
			w.get(c, "http://gateway.test:80/", "X-Priority", "5")
			time.Sleep(5 * time.Millisecond)
		}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { w.get(c, "http://gateway.test:80/slow", "X-Priority", "1") })
			time.Sleep(time.Millisecond)
		}
		if n := slow.Load(); n < 3 || n > 9 {
			t.Errorf("%d slow calls are under way at a limit of 10", n)
		}
		for i := range 20 {
			if a := w.get(c, "http://gateway.test:80/", "X-Priority", "9"); a.status != 200 {
				t.Errorf("critical call %d: %+v", i, a)
			}
		}
		close(ended)
		wg.Wait()
	})
}

// F72c: where everybody claims the highest priority, an overload is shed all the same, and the target does as much as it can.
func TestHighestPriorityOfAllIsNoWayPastTheLimit(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := slowStorm(1)
		s.mix, s.before, s.after = []share{{10, 1}}, 5*time.Second, time.Second
		r := inMemory(t, w, s)
		if _, good := r.offered(0, s.fault, -1); float64(good) < 0.8*100*s.fault.Seconds() {
			t.Errorf("%d good calls in the overload, of 1000 that are possible", good)
		}
		if n, _ := r.offered(0, s.fault, -1); float64(r.attempts) > 0.6*float64(n) {
			t.Errorf("%d attempts for %d calls: nothing was shed", r.attempts, n)
		}
	})
}
