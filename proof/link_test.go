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

// A link is a toxiproxy in front of an address. Where toxiproxy locks itself up, which it does when a toxic is removed whose data nobody
// takes, another one takes its place; the connections of the old one are then half-open until somebody's patience ends.
type link struct {
	name, addr, to string

	mu       sync.Mutex
	proxy    *toxiproxy.Proxy // with at most one toxic in each direction
	serial   int
	busy     map[string]bool // directions
	replaced int
}

var toxiproxies = sync.OnceValue(func() *toxiproxy.ApiServer {
	zerolog.SetGlobalLevel(zerolog.Disabled)
	return toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
})

func newLink(t *testing.T, name, to string) *link {
	t.Helper()
	l := &link{name: name, addr: "127.0.0.1:0", to: to, busy: map[string]bool{}}
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	l.addr = l.proxy.Listen
	t.Cleanup(func() { within(time.Second, l.proxy.Stop) })
	return l
}

func (l *link) start() error {
	l.proxy = toxiproxy.NewProxy(toxiproxies(), l.name, l.addr, l.to)
	return l.proxy.Start()
}

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

// do does something with the proxy, or replaces it.
func (l *link) do(f func(*toxiproxy.Proxy)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.proxy
	if within(time.Second, func() { f(old) }) {
		return
	}
	l.replaced++
	go old.Stop() // which closes the port, and waits for ever then
	for range 100 {
		if l.start() == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// poison adds a random toxic and returns what removes it; "" where there is one in that direction already.
func (l *link) poison(r *rand.Rand) (kind string, undo func()) {
	between := func(lo, hi int) int { return lo + r.IntN(hi-lo+1) }
	kinds := []string{"latency", "bandwidth", "reset_peer", "slow_close", "timeout", "slicer", "limit_data"}
	kind = kinds[r.IntN(len(kinds))]
	var attributes map[string]any // times in ms
	switch kind {
	case "latency":
		attributes = map[string]any{"latency": between(5, 400), "jitter": between(0, 200)}
	case "bandwidth":
		attributes = map[string]any{"rate": between(20, 2000)} // KB/s
	case "reset_peer":
		attributes = map[string]any{"timeout": between(0, 300)}
	case "slow_close":
		attributes = map[string]any{"delay": between(50, 1500)}
	case "timeout":
		attributes = map[string]any{"timeout": between(0, 1) * between(50, 1500)} // 0: half-open until it is removed
	case "slicer":
		attributes = map[string]any{"average_size": between(20, 2000), "size_variation": 10, "delay": between(10, 500)} // bytes, µs
	case "limit_data":
		attributes = map[string]any{"bytes": between(100, 100_000)}
	}
	direction := []string{"upstream", "downstream"}[r.IntN(2)]
	share := []float64{0.1, 0.3, 1}[r.IntN(3)]
	if l.busy[direction] {
		return "", nil
	}
	l.busy[direction] = true
	l.serial++
	name := fmt.Sprintf("%s-%d", kind, l.serial)
	b, _ := json.Marshal(map[string]any{"name": name, "type": kind, "stream": direction, "toxicity": share, "attributes": attributes})
	l.do(func(p *toxiproxy.Proxy) { p.Toxics.AddToxicJson(strings.NewReader(string(b))) })
	return kind, func() {
		l.do(func(p *toxiproxy.Proxy) { p.Toxics.RemoveToxic(context.Background(), name) })
		l.busy[direction] = false
	}
}

// cut closes the port and every connection until undo.
func (l *link) cut() (undo func()) {
	l.do(func(p *toxiproxy.Proxy) { p.Stop() })
	return func() { l.do(func(p *toxiproxy.Proxy) { p.Start() }) }
}

// heal removes what is left of everything.
func (l *link) heal() {
	l.do(func(p *toxiproxy.Proxy) { p.Toxics.ResetToxics(context.Background()) })
}
