package cortex

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The filter of an injected clock against the obvious way to write it, over jumps of every size in both directions.
func TestSteadyClockAgainstTheObvious(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 6))
		raw := time.Duration(r.Uint64())
		clock := steady(func() time.Duration { return raw })
		newest, want := raw, time.Duration(0)
		for i := range 2000 {
			switch r.IntN(8) {
			case 0, 1, 2, 3:
				raw += time.Duration(r.Int64N(int64(5 * time.Millisecond)))
			case 4:
				raw -= time.Duration(r.Int64N(int64(2 * time.Second)))
			case 5:
				raw += time.Duration(r.Int64N(int64(50 * time.Hour)))
			case 6: // the same again
			case 7:
				if r.IntN(20) == 0 {
					raw = []time.Duration{0, math.MinInt64, math.MaxInt64, time.Duration(r.Uint64())}[r.IntN(4)]
				}
			}
			switch d := raw - newest; {
			case d > 0:
				want += min(d, 48*time.Hour)
				newest = raw
			case d < -time.Second:
				newest = raw
			}
			if got := clock(); got != want {
				t.Fatalf("seed %d, reading %d: %v, want %v", seed, i, got, want)
			}
		}
	}
}

// Several goroutines read the clock at once: none of them sees it go back, and in the end it has gone as far as the clock below.
func TestSteadyClockIsSharedByGoroutines(t *testing.T) {
	var raw atomic.Int64
	clock := steady(func() time.Duration { return time.Duration(raw.Load()) })
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := time.Duration(0)
			for range 20_000 {
				raw.Add(1000)
				now := clock()
				if now < last {
					t.Errorf("%v after %v", now, last)
					return
				}
				last = now
			}
		})
	}
	wg.Wait()
	if got, want := clock(), time.Duration(raw.Load()); got != want {
		t.Errorf("%v, want %v", got, want)
	}
}
