package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/admin"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
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
	shadow          struct {
		calls, retried, cut atomic.Uint64
		refused             [cortex.ReasonCancelled + 1]atomic.Uint64
	}
}

// watched counts what would have been done with a call in shadow mode.
func (t *traffic) watched(r *cortexhttp.Report) {
	if !r.Shadow {
		return
	}
	t.shadow.calls.Add(1)
	if rej := r.WouldRefuse; rej != nil && int(rej.Reason) < len(t.shadow.refused) {
		t.shadow.refused[rej.Reason].Add(1)
	}
	if r.WouldRetry {
		t.shadow.retried.Add(1)
	}
	if r.WouldCut {
		t.shadow.cut.Add(1)
	}
}

func (t *traffic) observe(d time.Duration) {
	i := 0
	for i < len(admin.DurationBounds) && d > admin.DurationBounds[i] {
		i++
	}
	t.durations[i].Add(1)
	t.durationSum.Add(int64(max(d, 0)))
}

// trafficOf is a target's traffic so far, for the admin port.
func (g *Gateway) trafficOf(t *Target) admin.Traffic {
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
	a.Shadow = admin.Shadow{Calls: t.traffic.shadow.calls.Load(), Retried: t.traffic.shadow.retried.Load(), Cut: t.traffic.shadow.cut.Load()}
	for i := range a.Shadow.Refused {
		a.Shadow.Refused[i] = t.traffic.shadow.refused[i].Load()
	}
	a.CacheEntries, a.CacheBytes = g.state.Load().cached(t)
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
