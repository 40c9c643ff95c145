package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// logLines are those of an access log that is closed or has been written out.
func logLines(t *testing.T, path string) []map[string]any {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var ls []map[string]any
	for line := range strings.Lines(string(b)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		ls = append(ls, v)
	}
	return ls
}

// In shadow mode an outage is seen and nothing is done about it: each call reaches the target, once, and its answer the client.
func TestShadowModeOnlyWatches(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.WriteHeader(500)
			fmt.Fprintf(w, "ill %s", b)
		})}
		w.serve("up.test:80", up)
		path := filepath.Join(t.TempDir(), "access.log")
		const route = "shadow: true\npriority: {header: X-Priority}\nfallback: {static: {status: 200, body: instead}}"
		o := w.operate("access_log: {path: "+path+"}\n"+one("balance: {resolve: 0s}", route), nil)
		c := w.client(trusted)
		const calls = 400
		explained := map[string]int{}
		for i := range calls {
			method, body := []string{"GET", "POST", "PUT"}[i%3], ""
			if i%3 > 0 {
				body = "body " + strconv.Itoa(i)
			}
			a := w.do(c, method, "http://gateway.test:80/", body, "Cortex-Explain", "1")
			if a.status != 500 || a.body != "ill "+body || a.header.Get("Cortex-Attempts") != "1" || len(a.header["Cortex-Fallback"]) > 0 ||
				len(a.header["Cortex-Retry"]) > 0 {
				t.Fatalf("call %d: %+v", i, a)
			}
			x := a.header.Get("Cortex-Explain")
			if !strings.Contains(x, "shadow") {
				t.Fatalf("call %d is explained as %q", i, x)
			}
			for _, would := range []string{"would-refuse=", "would-retry-ms=", "would-reason="} {
				if strings.Contains(x, would) {
					explained[would]++
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
		if n := up.n.Load(); n != calls {
			t.Errorf("the target saw %d of %d calls", n, calls)
		}
		s := o.s.gateway.trafficOf(o.s.gateway.Targets()[0]).Shadow
		refused := s.Refused[cortex.ReasonCircuitOpen] + s.Refused[cortex.ReasonCircuitEmergency] + s.Refused[cortex.ReasonShed]
		if s.Calls != calls || refused < 200 || s.Retried < 1 || s.Cut != 0 {
			t.Errorf("%+v", s)
		}
		if explained["would-refuse="] != int(refused) || explained["would-retry-ms="] != int(s.Retried) || explained["would-reason="] == 0 {
			t.Errorf("explained %v; counted %+v", explained, s)
		}
		open := s.Refused[cortex.ReasonCircuitOpen]
		if v := o.metric(`shadow_refusals_total{target="up",reason="CIRCUIT_OPEN"}`); v != fmt.Sprint(open) {
			t.Errorf("cortex_guard_shadow_refusals_total says %q of %d", v, open)
		}
		for series, want := range map[string]uint64{"shadow_calls_total": s.Calls, "shadow_retries_total": s.Retried, "static_fallbacks_total": 0} {
			if v := o.metric(series + `{target="up"}`); v != fmt.Sprint(want) && !(want == 0 && v == "") {
				t.Errorf("%s: %q, want %d", series, v, want)
			}
		}
		o.s.Close()
		logged := map[string]int{}
		for _, l := range logLines(t, path) {
			if l["status"] != 500.0 || l["attempts"] != 1.0 || l["fallback"] != nil || l["reason"] != nil {
				t.Fatalf("line %v", l)
			}
			kind, _, _ := strings.Cut(fmt.Sprint(l["shadow"]), ":")
			logged[kind]++
		}
		if logged["refuse"] != int(refused) || logged["retry"] != int(s.Retried) {
			t.Errorf("logged %v; counted %+v", logged, s)
		}
	})
}

// A hanging target is waited for in shadow mode, and what would have been cut is told.
func TestShadowModeCutsNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second)
			io.WriteString(w, "late")
		})}
		w.serve("up.test:80", up)
		path := filepath.Join(t.TempDir(), "access.log")
		o := w.operate("access_log: {path: "+path+"}\n"+one("timeout: {max: 2s}", "shadow: true"), nil)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if a := w.get(w.client(trusted), "http://gateway.test:80/", "Cortex-Explain", "1"); a.status != 200 || a.body != "late" || a.took < 20*time.Second ||
					!strings.Contains(a.header.Get("Cortex-Explain"), "would-cut") && !strings.Contains(a.header.Get("Cortex-Explain"), "would-refuse") {
					t.Errorf("%+v", a)
				}
			})
			time.Sleep(300 * time.Millisecond)
		}
		wg.Wait()
		if up.n.Load() != 20 {
			t.Errorf("the target saw %d of 20 calls", up.n.Load())
		}
		s := o.s.gateway.trafficOf(o.s.gateway.Targets()[0]).Shadow
		if s.Cut < 5 || s.Calls != 20 {
			t.Errorf("%+v", s)
		}
		o.s.Close()
		for _, l := range logLines(t, path) {
			if l["shadow"] == nil || l["status"] != 200.0 || l["error"] != nil {
				t.Errorf("line %v", l)
			}
		}
	})
}

// Overload in shadow mode: what would have been shed is counted, more of the low priority. Nothing is relieved by it, so that in the end
// the high one would be shed too.
func TestShadowModeCountsSheds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s := newService(4, 20*time.Millisecond)
		w.serve("up.test:80", s)
		o := w.operate(one("", "shadow: true\npriority: {header: X-Priority}"), nil)
		tr := &http.Transport{DialContext: w.dialFrom(trusted), MaxIdleConnsPerHost: 1000}
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr}
		var wg sync.WaitGroup
		var mu sync.Mutex
		shed := map[string]int{}
		var calls int64
		load := func(rate int, d time.Duration) {
			for range int(d.Seconds() * float64(rate)) {
				calls++
				p := []string{"1", "9"}[calls%2]
				wg.Go(func() {
					a := w.get(c, "http://gateway.test:80/", "X-Priority", p, "Cortex-Explain", "1")
					if a.status != 200 {
						t.Errorf("%+v", a)
					}
					if strings.Contains(a.header.Get("Cortex-Explain"), "would-refuse=SHED") {
						mu.Lock()
						shed[p]++
						mu.Unlock()
					}
				})
				time.Sleep(time.Second / time.Duration(rate))
			}
		}
		load(100, 5*time.Second) // a healthy time to learn from
		load(300, 5*time.Second)
		wg.Wait()
		if s.attempts.Load() != calls {
			t.Errorf("the target saw %d of %d calls", s.attempts.Load(), calls)
		}
		n := o.s.gateway.trafficOf(o.s.gateway.Targets()[0]).Shadow
		if r := n.Refused[cortex.ReasonShed]; r == 0 || shed["1"] <= shed["9"] {
			t.Errorf("%+v; explained %v", n, shed)
		}
	})
}
