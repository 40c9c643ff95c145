package gateway

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// What all calls together keep stays below memory.limit: bodies for a retry and answers for the cache. A body for which there is no room
// is passed on all the same, and is not sent again. In the end there is what the caches hold.
func TestMemoryIsSharedAndBounded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const limit = 1 << 20
		const size = 60 << 10
		var g *Gateway
		var most, whole, again atomic.Int64
		look := func() { most.Store(max(most.Load(), g.memory.Used())) }
		var seen sync.Map
		up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sum := sha256.New()
			n, _ := io.Copy(sum, r.Body)
			look()
			time.Sleep(50 * time.Millisecond)
			look()
			switch {
			case r.Method == "GET":
				w.Write(bytes.Repeat([]byte("x"), 20<<10))
			case n == size && fmt.Sprintf("%x", sum.Sum(nil)) == r.Header.Get("X-Sum"):
				whole.Add(1)
				if _, there := seen.LoadOrStore(r.URL.Path, true); there {
					again.Add(1)
					return
				}
				w.WriteHeader(503)
			default:
				t.Errorf("%s: a body of %d bytes", r.URL.Path, n)
			}
		})
		w.serve("up.test:80", up)
		w.serve("two.test:80", up)
		const yaml = `
memory: {limit: 1MiB}
targets:
  up: {endpoints: ['http://up.test'], balance: {resolve: 0s}, retry: {base_delay: 10ms}, budget: {ratio: 1, capacity: 1000}, limit: {min: 1000}, timeout: {min: 4s}}
  two: {endpoints: ['http://two.test'], balance: {resolve: 0s}, retry: {base_delay: 10ms}, budget: {ratio: 1, capacity: 1000}, limit: {min: 1000}, timeout: {min: 4s}}
routes:
  - {path: /a, target: up, fallback: {cache: {}}}
  - {path: /b, target: two, fallback: {cache: {max_bytes: 10MiB}}}
`
		o := w.operate(yaml, nil)
		g = o.s.gateway
		tr := &http.Transport{DialContext: w.dialFrom(stranger), MaxIdleConnsPerHost: 1000, DisableCompression: true}
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr}
		var wg sync.WaitGroup
		var good, unavailable, broken atomic.Int64
		const calls = 200
		w.get(c, "http://gateway.test:80/a/before") // kept for sure
		for i := range calls {
			path := fmt.Sprintf("/%c/%d", "ab"[i%2], i)
			body := bytes.Repeat([]byte{byte(i)}, size)
			sum := sha256.Sum256(body)
			wg.Go(func() {
				r, _ := http.NewRequest("PUT", "http://gateway.test:80"+path, io.NopCloser(bytes.NewReader(body)))
				if i%3 == 0 {
					r.ContentLength = size
				}
				r.Header.Set("X-Sum", fmt.Sprintf("%x", sum))
				switch a := send(c, r); {
				case a.status == 200:
					good.Add(1)
				case a.status == 503 && a.header.Get("Cortex-Attempts") == "1":
					unavailable.Add(1)
				default:
					broken.Add(1)
					t.Errorf("%s: %+v", path, a)
				}
				look()
			})
			wg.Go(func() {
				if a := w.get(c, "http://gateway.test:80"+path); a.status != 200 || len(a.body) != 20<<10 {
					t.Errorf("%s: %+v", path, a)
				}
				look()
			})
			if i%20 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		wg.Wait()
		synctest.Wait()
		if most.Load() > limit || most.Load() < limit/2 {
			t.Errorf("at most %d bytes were in use, the limit is %d", most.Load(), limit)
		}
		if good.Load() == 0 || unavailable.Load() == 0 || whole.Load() != calls+again.Load() || again.Load() != good.Load() {
			t.Errorf("%d good, %d not tried again, %d whole bodies, %d of them again", good.Load(), unavailable.Load(), whole.Load(), again.Load())
		}
		var cached int64
		var skipped uint64
		for _, target := range g.Targets() {
			tr := g.trafficOf(target)
			cached += tr.CacheBytes
			skipped += tr.ReplaysSkipped[cortexhttp.ReplayNoMemory-1]
		}
		if n := g.memory.Used(); n != cached || cached == 0 {
			t.Errorf("%d bytes are in use, the caches hold %d", n, cached)
		}
		if skipped != uint64(unavailable.Load()) {
			t.Errorf("%d replays skipped for want of memory, %d calls", skipped, unavailable.Load())
		}
		if v := o.metric("memory_used_bytes"); v != fmt.Sprint(cached) {
			t.Errorf("cortex_guard_memory_used_bytes %s, want %d", v, cached)
		}

		// A limit below what is in use: nothing more is kept, and nothing breaks.
		again.Store(0)
		o.reload(strings.Replace(yaml, "fallback: {cache: {}}", "fallback: {static: {status: 200, body: x}}", 1))
		var two int64
		for _, target := range g.Targets() {
			two += g.trafficOf(target).CacheBytes
		}
		if n := g.memory.Used(); n != two {
			t.Errorf("after a cache has gone %d bytes are in use, the other holds %d", n, two)
		}
		o.reload(strings.Replace(yaml, "fallback: {cache: {", "fallback: {static: {status: 200, body: x}} }\n#", -1))
		if n := g.memory.Used(); n != 0 {
			t.Errorf("without caches %d bytes are in use", n)
		}
	})
}
