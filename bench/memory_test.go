package bench

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// Goals for an engine with default windows.
const (
	engineBytes      = 64 << 10
	tenThousandBytes = 700 << 20
)

// used is an engine after its first minute: every outcome seen, latencies spread over the whole scale, windows turned, the
// circuit opened and probed, refusals made. What an engine allocates lazily is allocated then.
func used(t *testing.T) *cortex.Engine {
	t.Helper()
	var now time.Duration
	e, err := cortex.New(cortex.Config{Name: "memory", Now: func() time.Duration { return now }})
	if err != nil {
		t.Fatal(err)
	}
	attempt := func(p cortex.Priority, latency time.Duration, o cortex.Outcome) {
		permit, err := e.Admit(context.Background(), p)
		if err != nil {
			return
		}
		now += latency
		permit.Record(o)
	}
	for i := range 100 {
		attempt(cortex.Priority(i%11), time.Duration(1)<<(i%31), cortex.Success)
		now += 100 * time.Millisecond
	}
	attempt(5, time.Millisecond, cortex.Throttled)
	attempt(5, time.Millisecond, cortex.Neutral)
	for i := range 200 {
		attempt(cortex.Priority(i%11), time.Millisecond, cortex.Failed)
		attempt(cortex.Priority(i%11), 2*time.Second, cortex.TimedOut)
		e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: cortex.Priority(i % 11)})
	}
	if e.Stats().Transitions == 0 {
		t.Fatal("the circuit never opened")
	}
	return e
}

// heap is what is alive on it, size classes included.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what sync.Pool keeps survives one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// perEngine makes n engines and returns what each takes.
func perEngine(t *testing.T, n int) uint64 {
	t.Helper()
	used(t) // pools and tables of the process
	engines := make([]*cortex.Engine, n)
	before := heap()
	for i := range engines {
		engines[i] = used(t)
	}
	after := heap()
	runtime.KeepAlive(engines)
	return (after - before) / uint64(n)
}

// The number of stripes, and so the size, follows the number of processors.
func TestEngineFits64KiB(t *testing.T) {
	for _, procs := range []int{1, 2, 8, 64} {
		old := runtime.GOMAXPROCS(procs)
		size := perEngine(t, 1_000)
		runtime.GOMAXPROCS(old)
		t.Logf("%d procs: %.1f KiB an engine", procs, float64(size)/1024)
		if size > engineBytes {
			t.Errorf("%d procs: an engine takes %d bytes, more than %d", procs, size, engineBytes)
		}
	}
}

func TestTenThousandEnginesFit700MiB(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 700 MiB")
	}
	all := perEngine(t, 10_000) * 10_000
	t.Logf("%.0f MiB alive", float64(all)/(1<<20))
	if all > tenThousandBytes {
		t.Errorf("10,000 engines take %d bytes, more than %d", all, tenThousandBytes)
	}
}
