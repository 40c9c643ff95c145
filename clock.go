package cortex

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the one place of the core that reads the process's clock and its random source.

// origin makes the default clock a difference of monotonic readings: one cheap read, and no jump when the wall clock is set.
var origin = time.Now()

func monotonic() time.Duration { return time.Since(origin) }

// steady makes a clock that somebody injected go forward only, in steps that make sense: one that was set back goes on from
// where it was, instead of freezing every timer until it has caught up.
func steady(clock func() time.Duration) func() time.Duration {
	const (
		jitter  = time.Second    // readings of several processors may be out of order by this
		longest = 48 * time.Hour // step forward; more is no time that passed
	)
	// A base holds from one jump to the next. It is replaced as a whole, so that a reading never mixes two of them.
	type base struct {
		newest atomic.Int64  // raw reading
		ahead  time.Duration // of the raw clock
	}
	var at atomic.Pointer[base]
	var mu sync.Mutex // held while at is replaced
	start := func(raw, now time.Duration) {
		b := &base{ahead: now - raw}
		b.newest.Store(int64(raw))
		at.Store(b)
	}
	start(clock(), 0)
	return func() time.Duration {
		t := clock()
		for {
			b := at.Load()
			newest := time.Duration(b.newest.Load())
			switch d := t - newest; {
			case d > 0 && d <= longest:
				if b.newest.CompareAndSwap(int64(newest), int64(t)) {
					return t + b.ahead
				}
			case d <= 0 && d >= -jitter:
				return newest + b.ahead
			default:
				mu.Lock()
				// Somebody may have seen the jump already, and the reading compared with may not be the newest any more.
				newest = time.Duration(b.newest.Load())
				if d := t - newest; b == at.Load() && (d < -jitter || d > longest) {
					start(t, newest+b.ahead+min(max(d, 0), longest))
				}
				mu.Unlock()
			}
		}
	}
}

// remaining is the time until ctx's deadline; ok is false where it has none. Deadlines are in the process's own time, also
// where an engine's clock is injected.
func remaining(ctx context.Context) (left time.Duration, ok bool) {
	d, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	return time.Until(d), true
}

type processRandom struct{}

func (processRandom) Uint64() uint64 { return rand.Uint64() }
