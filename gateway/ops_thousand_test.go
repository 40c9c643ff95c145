package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/config"
)

// descriptors is how many files this process has open, -1 where that cannot be known.
func descriptors() int {
	fs, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(fs)
}

// F89: 1,000 reloads under calls, of every kind, over real sockets. No call fails by one, and nothing is left of them.
func TestThousandReloadsUnderLoad(t *testing.T) {
	goroutines, files := runtime.NumGoroutine(), descriptors()
	var ups []*httptest.Server
	for range 3 {
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			w.Write(append([]byte(r.URL.Path+":"), b...))
		}))
		ups = append(ups, up)
	}
	dir := t.TempDir()
	yaml := func(top, a string) string {
		return top + fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
targets:
  a: {%s, limit: {min: 100}, balance: {check: {path: /, interval: 1s}}}
  b: {endpoints: ['%s'], timeout: {min: 5s}, limit: {min: 100}}
  c: {endpoints: ['%s'], timeout: {min: 5s}}
routes: [{path: /a, target: a, fallback: {cache: {}}}, {path: /b, target: b}, {path: /c, target: c}]
`, a, ups[1].URL, ups[2].URL)
	}
	plain := "endpoints: ['" + ups[0].URL + "'], timeout: {min: 5s}"
	kinds := []struct {
		yaml string
		bad  bool
	}{
		{yaml: yaml("", plain)},
		{yaml: yaml("", "endpoints: ['"+ups[0].URL+"'], timeout: {min: 4s}")},
		{yaml: yaml("", "endpoints: ['"+ups[0].URL+"', '"+ups[1].URL+"'], timeout: {min: 5s}")},
		{yaml: yaml("", "endpoints: ['"+strings.Replace(ups[0].URL, "127.0.0.1", "localhost", 1)+"'], timeout: {min: 5s}")},
		{yaml: yaml("", plain+", retry: {replay_limit: 1KiB}")},
		{yaml: yaml("server: {idle_timeout: 100s}", plain)},
		{yaml: yaml("access_log: {path: "+filepath.Join(dir, "access.log")+"}", plain)},
		{yaml: yaml("memory: {limit: 1MiB}", plain)},
		{yaml: yaml("lisen: x", plain), bad: true},
		{yaml: "panic", bad: true},
	}
	var now atomic.Pointer[string]
	now.Store(&kinds[0].yaml)
	load := func() (*config.File, error) {
		y := *now.Load()
		if y == "panic" {
			panic("an initialiser")
		}
		return config.Parse("cortex.yaml", []byte(y))
	}
	f, err := load()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(f, Options{Load: load})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b, c := s.Gateway().Targets()[1], s.Gateway().Targets()[2]
	c.Engine.Force(breaker.ForcedOpen)

	tr := &http.Transport{MaxIdleConnsPerHost: 16}
	client := &http.Client{Transport: tr}
	var over atomic.Bool
	var calls [3]atomic.Int64
	total := func() int64 { return calls[0].Load() + calls[1].Load() + calls[2].Load() }
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			for i := 0; !over.Load(); i++ {
				n := (worker + i) % 3
				path := "/" + string("abc"[n])
				body := fmt.Sprintf("%d/%d", worker, i)
				r, _ := http.NewRequest([]string{"POST", "PUT"}[i%2], "http://"+s.Addr().String()+path, strings.NewReader(body))
				x := send(client, r)
				calls[n].Add(1)
				switch {
				case x.err != nil:
					t.Errorf("%s: no answer: %v", path, x.err)
				case n == 2 && x.status != 503, n != 2 && (x.status != 200 || x.body != path+":"+body):
					t.Errorf("%s: %d %q %v", path, x.status, x.body, x.header)
				default:
					continue
				}
				return
			}
		})
	}
	var most int
	rounds := 1000
	if raced {
		rounds = 200
	}
	for i := range rounds {
		k := kinds[i%len(kinds)]
		now.Store(&k.yaml)
		if err := s.Reload(); (err != nil) != k.bad {
			t.Errorf("reload %d: %v", i, err)
		}
		most = max(most, runtime.NumGoroutine())
		for seen := total(); total() < seen+5 && !t.Failed(); { // some calls for each
			time.Sleep(100 * time.Microsecond)
		}
	}
	now.Store(&kinds[0].yaml)
	if err := s.Reload(); err != nil {
		t.Error(err)
	}
	over.Store(true)
	wg.Wait()
	t.Logf("calls %d, %d, %d; at most %d goroutines, %d at the start", calls[0].Load(), calls[1].Load(), calls[2].Load(), most, goroutines)
	if calls[0].Load() < 100 || calls[1].Load() < 100 {
		t.Error("too few calls to say anything")
	}
	ts := s.Gateway().Targets()
	if ts[1] != b || ts[2] != c || c.Engine.Pressure().Circuit != breaker.Open {
		t.Error("what has not changed has not stayed")
	}
	if n := s.front.Connections(); n > 12 {
		t.Errorf("%d connections of 6 clients", n)
	}
	if most > goroutines+200 {
		t.Errorf("%d goroutines under reloads", most)
	}
	if r := s.reloads.Load(); r.OK != uint64(rounds*8/10+1) || r.Failed != uint64(rounds*2/10) {
		t.Errorf("reloads %+v", r)
	}
	tr.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, up := range ups {
		up.Close()
	}
	settle(t, goroutines)
	for deadline := time.Now().Add(5 * time.Second); descriptors() > files+10; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("%d descriptors, at the start %d", descriptors(), files)
			return
		}
	}
	if n := s.gateway.memory.Used(); n > 1<<20 {
		t.Errorf("%d bytes in use", n)
	}
}
