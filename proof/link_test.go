package proof

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// A link is a toxiproxy in front of an address.
type link struct {
	name  string
	proxy *toxiproxy.Proxy

	mu     sync.Mutex
	serial int
	stuck  sync.WaitGroup // removals under way: one waits for the data that its toxic holds
}

var toxiproxies = sync.OnceValue(func() *toxiproxy.ApiServer {
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
})

func newLink(t *testing.T, name, to string) *link {
	t.Helper()
	l := &link{name: name, proxy: toxiproxy.NewProxy(toxiproxies(), name, "127.0.0.1:0", to)}
	if err := l.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { within(5*time.Second, l.proxy.Stop) })
	return l
}

func (l *link) addr() string { return l.proxy.Listen }

// within reports whether f returned in time; it goes on behind it otherwise.
func within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}

// poison adds a random toxic and returns what removes it.
func (l *link) poison(r *rand.Rand) (what string, undo func()) {
	between := func(lo, hi int) int { return lo + r.IntN(hi-lo+1) }
	kinds := []func() (string, map[string]any){
		func() (string, map[string]any) {
			return "latency", map[string]any{"latency": between(5, 400), "jitter": between(0, 200)}
		},
		func() (string, map[string]any) { return "bandwidth", map[string]any{"rate": between(20, 2000)} },
		func() (string, map[string]any) { return "reset_peer", map[string]any{"timeout": between(0, 300)} },
		func() (string, map[string]any) { return "slow_close", map[string]any{"delay": between(50, 1500)} },
		func() (string, map[string]any) {
			return "timeout", map[string]any{"timeout": between(0, 1) * between(50, 1500)}
		}, // 0: half-open
		func() (string, map[string]any) {
			return "slicer", map[string]any{"average_size": between(20, 2000), "size_variation": 10, "delay": between(10, 500)}
		},
		func() (string, map[string]any) { return "limit_data", map[string]any{"bytes": between(100, 100_000)} },
	}
	kind, attributes := kinds[r.IntN(len(kinds))]()
	direction := []string{"upstream", "downstream"}[r.IntN(2)]
	share := []float64{0.1, 0.3, 1}[r.IntN(3)]
	l.mu.Lock()
	l.serial++
	name := fmt.Sprintf("%s-%d", kind, l.serial)
	l.mu.Unlock()
	b, _ := json.Marshal(map[string]any{"name": name, "type": kind, "stream": direction, "toxicity": share, "attributes": attributes})
	l.stuck.Go(func() { l.proxy.Toxics.AddToxicJson(strings.NewReader(string(b))) })
	return fmt.Sprintf("%s %s of %.0f %% %s %v", l.name, kind, share*100, direction, attributes), func() {
		l.stuck.Go(func() { l.proxy.Toxics.RemoveToxic(context.Background(), name) })
	}
}

// cut closes the port and every connection until undo.
func (l *link) cut() (undo func()) {
	l.stuck.Go(l.proxy.Stop)
	return func() { l.stuck.Go(func() { l.proxy.Start() }) }
}

// heal removes what is left of everything.
func (l *link) heal() bool {
	l.stuck.Go(func() { l.proxy.Toxics.ResetToxics(context.Background()) })
	return within(10*time.Second, l.stuck.Wait)
}
