package gateway

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/config"
)

// sink is a response writer that keeps nothing.
type sink struct {
	h      http.Header
	status int
}

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(code int)        { s.status = code }

func heap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func series(t *testing.T, g *Gateway) int {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://127.0.0.1/metrics", nil)
	admin.New(admin.Config{Targets: g.adminTargets, Ready: func() bool { return true }}).ServeHTTP(w, r)
	n := 0
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// F88: what clients send makes neither series nor memory.
func TestDistinctPathsAndHostsCostNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/good") {
				w.Write(make([]byte, 1000))
				return
			}
			w.WriteHeader(500)
		}))
		g := w.gateway(one("retry: {max_retries: 0}", "priority: {header: X-Priority}\nfallback: {cache: {max_entries: 100}}"))
		before := series(t, g)
		ask := func(i int, path string) int {
			r := httptest.NewRequest("GET", fmt.Sprintf("http://host-%d.test/%s/%d?q=%d", i, path, i, i), nil)
			r.Header.Set("X-Priority", fmt.Sprint(i))
			r.Method = []string{"GET", "GET", fmt.Sprintf("METHOD%d", i)}[i%3]
			s := &sink{h: http.Header{}}
			g.ServeHTTP(s, r)
			return s.status
		}
		for i := range 1000 {
			ask(i, "good")
		}
		if tr := g.trafficOf(g.Targets()[0]); tr.CacheEntries != 100 {
			t.Errorf("%d answers are kept, the bound is 100", tr.CacheEntries)
		}
		openCircuit(t, w, w.client(stranger), "http://gateway.test:80/bad")
		held := heap()
		refused := 0
		for i := range 100_000 {
			if ask(i, "bad") == 503 {
				refused++
			}
		}
		if refused < 99_000 {
			t.Errorf("%d refused", refused)
		}
		if grown := heap() - held; grown > 2<<20 {
			t.Errorf("memory grew by %d bytes", grown)
		}
		if after := series(t, g); after != before {
			t.Errorf("%d series, then %d", before, after)
		}
	})
}

// What goes wrong with single requests does not fill the log: an outage would drown what matters.
func TestTroubleDoesNotFloodTheLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var log bytes.Buffer // written under the handler's lock, read at the end
		f, err := config.Parse("test.yaml", []byte(one("retry: {max_retries: 0}", "")))
		if err != nil {
			t.Fatal(err)
		}
		g, err := New(f, Options{Dial: w.dialFrom("gateway.test"), Lookup: noAddress, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		w.serve("gateway.test:80", g)
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte("begun"))
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		c := w.client(stranger)
		for range 200 {
			w.do(c, "POST", "http://gateway.test:80/", "x")
		}
		text := log.String()
		if strings.Contains(text, "goroutine") || strings.Contains(text, "panic") {
			t.Errorf("a stack trace in the log:\n%s", text)
		}
		if lines := strings.Count(text, "\n"); lines < 1 || lines > 20 {
			t.Errorf("%d lines for 200 broken answers, want the circuit's transitions:\n%s", lines, text)
		}
	})
}

// Answers that are being copied for the cache share a bound: many slow clients must not fill the memory.
func TestCopiedAnswersShareABound(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		goOn := make(chan struct{})
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(maxStored))
			w.Write(make([]byte, maxStored/2))
			http.NewResponseController(w).Flush()
			<-goOn
			w.Write(make([]byte, maxStored/2))
		}))
		const most = 32
		g := w.gateway(fmt.Sprintf("memory: {limit: %dMiB}\n", most) + one("limit: {min: 100}", "fallback: {cache: {}}"))
		c := w.client(stranger)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if a := w.get(c, fmt.Sprintf("http://gateway.test:80/%d", i)); a.status != 200 || len(a.body) != maxStored {
					t.Errorf("call %d: %d, %d bytes, %v", i, a.status, len(a.body), a.err)
				}
			})
		}
		synctest.Wait()
		if n := g.memory.Used(); n != most*maxStored {
			t.Errorf("%d bytes are being copied, the bound is %d", n, most*maxStored)
		}
		close(goOn)
		wg.Wait()
		synctest.Wait()
		tr := g.trafficOf(g.Targets()[0])
		if n := g.memory.Used(); n != tr.CacheBytes {
			t.Errorf("%d bytes are reserved, the cache holds %d", n, tr.CacheBytes)
		}
		if tr.CacheEntries != most-1 { // each takes a little more than its body
			t.Errorf("%+v", tr)
		}
	})
}
