package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// Real sockets, many connections, two endpoints of which one refuses and breaks off now and then: every call has an answer,
// bodies arrive as they were sent, and nothing is left.
func TestManyConnectionsOverRealSockets(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	echo := func(faulty bool) http.Handler {
		var n atomic.Int64
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			switch i := n.Add(1); {
			case err != nil:
				return
			case faulty && i%5 == 0:
				w.WriteHeader(503)
			case faulty && i%7 == 0:
				panic(http.ErrAbortHandler)
			default:
				w.Write(b)
			}
		})
	}
	a, b := httptest.NewServer(echo(false)), httptest.NewUnstartedServer(echo(true))
	b.Config.ErrorLog = nil
	b.Start()
	f, err := config.Parse("real.yaml", []byte(fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
targets: {echo: {endpoints: [%s, %s], retry: {base_delay: 1ms}, budget: {capacity: 1000}, timeout: {min: 5s}, limit: {min: 100}}}
routes: [{path: /, target: echo}]
`, a.URL, b.URL)))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	tr := &http.Transport{MaxIdleConnsPerHost: 16}
	c := &http.Client{Transport: tr}
	var good, bad atomic.Int64
	var wg sync.WaitGroup
	for worker := range 16 {
		wg.Go(func() {
			for i := range 60 {
				body := strings.Repeat(fmt.Sprintf("%d/%d ", worker, i), 1+i*50)
				r, _ := http.NewRequest("PUT", "http://"+s.Addr().String()+"/", strings.NewReader(body))
				switch a := send(c, r); {
				case a.err != nil:
					t.Errorf("no answer: %v", a.err)
				case a.status == 200 && a.body == body:
					good.Add(1)
				case a.status == 200:
					t.Errorf("another body: %d bytes for %d", len(a.body), len(body))
				case a.header.Get("Cortex-Reason") == "" && a.header.Get("Cortex-Attempts") == "":
					t.Errorf("an answer without a reason: %+v", a)
				default:
					bad.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if good.Load() < 850 || good.Load()+bad.Load() != 960 {
		t.Errorf("%d good, %d bad of 960", good.Load(), bad.Load())
	}
	tr.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	a.Close()
	b.Close()
	settle(t, goroutines)
}

// settle waits for goroutines that are just ending.
func settle(t *testing.T, goroutines int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines, at the start %d", runtime.NumGoroutine(), goroutines)
			return
		}
	}
}
