package proof

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Reloads under load, of every kind, fail no request, leave goroutines, sockets and memory where they were, and the circuit of a
// target that did not change stays open (F89).
func TestReloadsUnderLoad(t *testing.T) {
	good := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	bad := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }))
	text := func(timeout, fallback string) string {
		return fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
drain: {timeout: 5s}
reload: {watch: false}
targets:
  live: {endpoints: [http://%s], timeout: {min: %s, bootstrap: 2s}, limit: {min: 200}, transport: {idle_timeout: 2s}}
  dead: {endpoints: [http://%s], breaker: {open_for: 1h, probe_every: 1h}, retry: {max_retries: 0}}
routes:
  - {path: /, target: live, fallback: {static: {status: 203, body: %q}}}
  - {path: /dead, target: dead}
`, good, timeout, bad, fallback)
	}
	kinds := []string{text("1s", "a"), text("1s", "a"), text("1100ms", "a"), "targets: {live: {endpoints: [ftp://x], timeout: {max: 5}}}\n", text("1s", "b")}
	valid(t, kinds[0])
	g := serve(t, kinds[0], collects)
	open := func() bool {
		return g.series()[`cortex_guard_circuit_state{target="dead",state="open"}`] == 1
	}
	for deadline := time.Now().Add(10 * time.Second); !open(); {
		if r, err := http.Get("http://" + g.addr + "/dead"); err == nil {
			r.Body.Close()
		}
		if time.Now().After(deadline) {
			t.Fatal("the circuit of the target that fails does not open")
		}
	}
	if err := g.reload(kinds[0]); err != nil {
		t.Fatal(err)
	}

	reloads := 100
	if slow() {
		reloads = 1000
	}
	const rate = 500
	load := newSteadyLoad("http://"+g.addr+"/", rate)
	time.Sleep(2 * time.Second)
	before := g.footprint()
	p := g.watchPeak()
	closed := 0
	begin := time.Now()
	for i := range reloads {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * 20 * time.Millisecond))) // some calls see every one
		if err := g.reload(kinds[i%len(kinds)]); err != nil {
			t.Fatalf("reload %d: %v", i, err)
		}
		if i%10 == 9 && !open() {
			closed++
		}
	}
	t.Logf("%d reloads in %v, %d of them refused", reloads, time.Since(begin).Round(time.Millisecond), g.count("refused reload"))
	if n := g.count("refused reload"); n != reloads/len(kinds) {
		t.Errorf("%d reloads refused, want those of the invalid file: %d", n, reloads/len(kinds))
	}
	g.reload(kinds[0])
	after, ok := g.settles(20*time.Second, func(f footprint) bool {
		return abs(f.sockets-before.sockets) <= 10 && f.rss-before.rss <= 16<<20
	})
	load.stop()
	p.stop()
	t.Logf("before: %v; after: %v; peak RSS %.1f MiB; %d calls, %d failed", before, after, mib(p.most), load.calls.Load(), load.failed.Load())
	if !ok {
		t.Errorf("sockets ± 10, RSS + 16 MiB: before %v, after %v", before, after)
	}
	if n := load.failed.Load(); n > 0 {
		t.Errorf("%d requests failed, such as: %v", n, load.why.Load())
	}
	if n := load.cut.Load(); n > 0 {
		t.Errorf("the gateway ended %d connections", n)
	}
	if closed > 0 || !open() {
		t.Errorf("the circuit of the unchanged target closed: seen closed %d times", closed)
	}
	quiesces(t, g)
	n, by := g.goroutines()
	ref := serve(t, kinds[0], collects)
	measure("http://"+ref.addr+"/", 100, time.Second)
	quiesces(t, ref)
	if fresh, freshBy := ref.goroutines(); abs(n-fresh) > 10 {
		t.Errorf("%d goroutines, in a fresh process %d:\n%v\n%v", n, fresh, by, freshBy)
	} else {
		t.Logf("%d goroutines, in a fresh process %d", n, fresh)
	}
}

// quiesces waits until the idle connections of a gateway are gone.
func quiesces(t *testing.T, g *child) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	if f, ok := g.settles(20*time.Second, func(f footprint) bool { return f.sockets <= 4 }); !ok {
		t.Errorf("sockets stay: %v", f)
	}
}

func abs(n int) int { return max(n, -n) }

// steadyLoad calls at an even rate until it is stopped.
type steadyLoad struct {
	calls, failed, cut atomic.Int64
	why                atomic.Value
	stop               func()
}

func newSteadyLoad(url string, rate int) *steadyLoad {
	l := &steadyLoad{}
	// What a moment of stalling made the client dial goes again, before the gateway wonders why nothing ever comes.
	tr := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 2 * time.Second, DialContext: dialWatched(&l.cut)}
	client := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		defer wg.Wait()
		begin := time.Now()
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-time.After(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate)))):
			}
			wg.Go(func() {
				l.calls.Add(1)
				r, err := client.Get(url)
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
				switch {
				case err != nil:
					l.failed.Add(1)
					l.why.Store(err.Error())
				case r.StatusCode != 200:
					l.failed.Add(1)
					l.why.Store(fmt.Sprint(r.Status, r.Header))
				}
			})
		}
	}()
	l.stop = sync.OnceFunc(func() {
		close(quit)
		<-done
		tr.CloseIdleConnections()
	})
	return l
}
