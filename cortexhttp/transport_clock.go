package cortexhttp

import (
	"context"
	"time"
)

// This file is the one place of the client's side that reads the process's clock. Deadlines of contexts are in its time,
// whatever clock an engine is given, and timers run on it.

func wallClock() time.Time { return time.Now() }

// processTime and since measure how long something took.
func processTime() time.Time { return time.Now() }

func since(t time.Time) time.Duration { return time.Since(t) }

// untilDeadline is the time left until ctx's deadline; ok is false where it has none.
func untilDeadline(ctx context.Context) (left time.Duration, ok bool) {
	d, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	return time.Until(d), true
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
