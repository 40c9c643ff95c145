package cortex

import (
	"context"
	"math/rand/v2"
	"sync"
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
	var mu sync.Mutex
	raw := clock()
	now := time.Duration(0)
	return func() time.Duration {
		t := clock()
		mu.Lock()
		defer mu.Unlock()
		switch d := t - raw; {
		case d > 0:
			now += min(d, longest)
			raw = t
		case d < -jitter:
			raw = t
		}
		return now
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
