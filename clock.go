package cortex

import (
	"context"
	"math/rand/v2"
	"time"
)

// This file is the one place of the core that reads the process's clock and its random source.

// origin makes the default clock a difference of monotonic readings: one cheap read, and no jump when the wall clock is set.
var origin = time.Now()

func monotonic() time.Duration { return time.Since(origin) }

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
