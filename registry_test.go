package cortex_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

func engineOf(tb testing.TB, r *cortex.Registry, target string) *cortex.Engine {
	tb.Helper()
	e, err := r.Engine(target)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestRegistryKeepsAnEngineATarget(t *testing.T) {
	asked := map[string]int{}
	r := cortex.NewRegistry(func(target string) cortex.Config {
		asked[target]++
		return cortex.Config{Name: "overruled", MaxRetries: len(target)}
	}, 0)
	a := engineOf(t, r, "a")
	if b := engineOf(t, r, "bb"); a == b || a.Name() != "a" || b.Name() != "bb" || b.Config().MaxRetries != 2 {
		t.Errorf("%q and %q", a.Name(), b.Name())
	}
	if engineOf(t, r, "a") != a || asked["a"] != 1 {
		t.Errorf("asked for %v", asked)
	}
	engineOf(t, r, "") // a target like any other
	n := 0
	r.All(func(*cortex.Engine) bool { n++; return true })
	if n != 3 || r.Len() != 3 {
		t.Errorf("%d yielded, %d held", n, r.Len())
	}
	n = 0
	r.All(func(*cortex.Engine) bool { n++; return false })
	if n != 1 {
		t.Errorf("%d yielded after false", n)
	}
}

func TestRegistryReportsABadConfig(t *testing.T) {
	bad := true
	r := cortex.NewRegistry(func(string) cortex.Config {
		if bad {
			return cortex.Config{Levels: 99}
		}
		return cortex.Config{}
	}, 1)
	for range 2 {
		_, err := r.Engine("ledger")
		var ce *cortex.ConfigError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), `"ledger"`) {
			t.Error(err)
		}
	}
	if r.Len() != 0 {
		t.Errorf("%d held", r.Len())
	}
	bad = false
	engineOf(t, r, "ledger")
}

// The least recently asked for makes room, but never an engine whose circuit is not closed or that has attempts in flight.
func TestRegistryNeverForgetsWhatProtects(t *testing.T) {
	clock := &timeline{}
	r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{Now: clock.now} }, 10)
	open := engineOf(t, r, "open")
	attempts(t, open, clock, 43, ms, cortex.Failed)
	busy := engineOf(t, r, "busy")
	hung := admit(t, busy, 5)
	half := engineOf(t, r, "half-open")
	attempts(t, half, clock, 43, ms, cortex.Failed)
	clock.advance(half.Pressure().NextProbe)
	probe := admit(t, half, 5)
	for i := range 1000 {
		engineOf(t, r, fmt.Sprint("scan ", i))
		if r.Len() > 10 {
			t.Fatalf("%d held", r.Len())
		}
	}
	if engineOf(t, r, "open") != open || engineOf(t, r, "busy") != busy || engineOf(t, r, "half-open") != half {
		t.Error("an engine that was needed is gone")
	}
	if evicted, over := r.Counts(); evicted != 993 || over != 0 {
		t.Errorf("%d evicted, %d shared", evicted, over)
	}
	hung.Record(cortex.Success)
	probe.Record(cortex.Success)
	for i := range 1000 {
		engineOf(t, r, fmt.Sprint("scan again ", i))
	}
	if engineOf(t, r, "busy") == busy || engineOf(t, r, "half-open") == half {
		t.Error("engines that nobody needs are kept for ever")
	}
	if engineOf(t, r, "open") != open {
		t.Error("the open circuit is gone")
	}
}

// Beyond the limit targets share one engine with a name of its own, as long as none can go; none is built to be thrown away, and
// what the shared one knows is never lost.
func TestRegistryOverflow(t *testing.T) {
	clock := &timeline{}
	built := 0
	r := cortex.NewRegistry(func(string) cortex.Config { built++; return cortex.Config{Now: clock.now} }, 3)
	var hung []*cortex.Permit
	for i := range 3 {
		hung = append(hung, admit(t, engineOf(t, r, fmt.Sprint("busy ", i)), 5))
	}
	shared := engineOf(t, r, "more")
	if shared.Name() != cortex.Overflow {
		t.Errorf("the shared engine is called %q", shared.Name())
	}
	attempts(t, shared, clock, 43, ms, cortex.Failed)
	n := built
	for i := range 500 {
		if engineOf(t, r, fmt.Sprint("more ", i)) != shared {
			t.Fatal("a second shared engine")
		}
	}
	if built > n {
		t.Errorf("%d engines built for nobody", built-n)
	}
	if _, over := r.Counts(); over != 501 {
		t.Errorf("%d shared", over)
	}
	seen := false
	r.All(func(e *cortex.Engine) bool { seen = seen || e == shared; return true })
	if r.Len() != 3 || !seen {
		t.Errorf("%d held, the shared one is among them: %v", r.Len(), seen)
	}
	// Room again: a new target has its own; when there is none again, the shared one still knows.
	hung[0].Release()
	own := engineOf(t, r, "late")
	if own == shared || own.Name() != "late" {
		t.Errorf("%q", own.Name())
	}
	admit(t, own, 5)
	if e := engineOf(t, r, "even later"); e != shared || e.Pressure().Circuit == breaker.Closed {
		t.Errorf("%q, %v", e.Name(), e.Pressure().Circuit)
	}
}

// F88: 100,000 keys that somebody made up cost the memory of the limit.
func TestRegistryMemoryIsFlat(t *testing.T) {
	r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 4)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	for i := range 200 {
		engineOf(t, r, fmt.Sprint("host-", i, ".example"))
	}
	before := heap()
	for i := range 100_000 {
		e := engineOf(t, r, fmt.Sprint("path-", i))
		if i == 1500 { // from here on none can go
			r.All(func(e *cortex.Engine) bool { admit(t, e, 5); return true })
		}
		if i > 1500 && e.Name() != cortex.Overflow {
			t.Fatalf("key %d has an engine of its own", i)
		}
	}
	after := heap()
	if r.Len() != 4 {
		t.Errorf("%d held", r.Len())
	}
	if after > before+1<<20 {
		t.Errorf("%d KiB grew to %d KiB", before>>10, after>>10)
	}
	runtime.KeepAlive(r)
}

// Many goroutines, few places: nobody gets nil, the bound holds, and what is in flight is always on a held or shared engine.
func TestRegistryUnderConcurrentUse(t *testing.T) {
	r := cortex.NewRegistry(func(target string) cortex.Config {
		return cortex.Config{DisableTimeout: true, Limit: limit.Config{Off: limit.Circuit}}
	}, 20)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 1))
			for range 1500 {
				target := fmt.Sprint(rng.IntN(60))
				e, err := r.Engine(target)
				if err != nil || e == nil {
					t.Error(e, err)
					return
				}
				if name := e.Name(); name != target && name != cortex.Overflow {
					t.Errorf("asked for %s, got %s", target, name)
				}
				if p, err := e.Admit(bg, 9); err == nil {
					if rng.IntN(4) == 0 {
						runtime.Gosched()
					}
					p.Record(cortex.Outcome(rng.IntN(5)))
				}
				if n := r.Len(); n > 20 {
					t.Errorf("%d held", n)
				}
			}
		})
	}
	wg.Wait()
	r.All(func(e *cortex.Engine) bool {
		if n := e.Pressure().InFlight; n != 0 {
			t.Errorf("%s: %d in flight", e.Name(), n)
		}
		return true
	})
}

// What is asked for often stays when a scan passes by.
func TestRegistryKeepsWhatIsUsed(t *testing.T) {
	r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 10)
	hot := engineOf(t, r, "hot")
	for i := range 500 {
		engineOf(t, r, fmt.Sprint("scan ", i))
		if engineOf(t, r, "hot") != hot {
			t.Fatalf("gone after %d other targets", i+1)
		}
	}
}

// A look at an engine makes none, and keeps none from making room.
func TestLookup(t *testing.T) {
	r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{Stripes: 1} }, 2)
	if e := r.Lookup("a"); e != nil || r.Len() != 0 {
		t.Fatalf("%v, %d engines", e, r.Len())
	}
	a, err := r.Engine("a")
	if err != nil || r.Lookup("a") != a {
		t.Fatalf("%v %v", r.Lookup("a"), err)
	}
	r.Engine("b")
	r.Lookup("a")
	r.Engine("c")
	if r.Lookup("a") != nil || r.Lookup("b") == nil || r.Lookup("c") == nil {
		t.Errorf("%v %v %v", r.Lookup("a"), r.Lookup("b"), r.Lookup("c"))
	}
}
