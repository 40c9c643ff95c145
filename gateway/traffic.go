package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/admin"
)

// traffic counts what a target's clients got.
type traffic struct {
	answers         [6]atomic.Uint64 // by class
	cacheFallbacks  atomic.Uint64
	staticFallbacks atomic.Uint64
	clientAborts    atomic.Uint64
	brokenAnswers   atomic.Uint64
	replaysSkipped  [5]atomic.Uint64 // by cortexhttp.ReplaySkip; the first is of calls where none was
	durations       [len(admin.DurationBounds) + 1]atomic.Uint64
	durationSum     atomic.Int64 // ns
}

func (t *traffic) observe(d time.Duration) {
	i := 0
	for i < len(admin.DurationBounds) && d > admin.DurationBounds[i] {
		i++
	}
	t.durations[i].Add(1)
	t.durationSum.Add(int64(max(d, 0)))
}

// trafficNow is the traffic so far, for the admin port.
func (t *Target) trafficNow() admin.Traffic {
	a := admin.Traffic{
		CacheFallbacks:  t.traffic.cacheFallbacks.Load(),
		StaticFallbacks: t.traffic.staticFallbacks.Load(),
		ClientAborts:    t.traffic.clientAborts.Load(),
		BrokenAnswers:   t.traffic.brokenAnswers.Load(),
	}
	for i := range t.traffic.answers {
		a.Answers[i] = t.traffic.answers[i].Load()
	}
	for i := range a.ReplaysSkipped {
		a.ReplaysSkipped[i] = t.traffic.replaysSkipped[i+1].Load()
	}
	for i := range t.traffic.durations {
		a.Durations.Counts[i] = t.traffic.durations[i].Load()
	}
	a.Durations.Sum = time.Duration(t.traffic.durationSum.Load())
	for _, c := range t.caches {
		a.CacheEntries += c.Len()
		a.CacheBytes += c.Bytes()
	}
	return a
}

// tally counts upgraded connections, which a server that shuts down knows nothing of. The zero value counts none.
type tally struct {
	mu    sync.Mutex
	n     int
	empty chan struct{} // closed when n is 0 again; nil while nobody waits
}

func (t *tally) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *tally) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.empty != nil {
		close(t.empty)
		t.empty = nil
	}
}

// wait returns when there are none, or the error of ctx.
func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.empty == nil {
		t.empty = make(chan struct{})
	}
	empty := t.empty
	t.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
