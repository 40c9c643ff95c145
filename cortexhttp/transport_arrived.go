package cortexhttp

import (
	"context"
	"sync/atomic"
	"time"
)

// Arrived tells the attempt whose context that is, or is derived from it, that its answer has arrived or begun to, although nobody has
// come to read it; and with false that what came was not the answer, or not all of its header. It is for bases that see more than their callers, as
// package h1: what an answer waits for where this process is too busy to read it is neither the target's latency nor its queue.
// The attempt's timeout, once it passes, is given anew then, a single time, but not beyond Config.Deadline. A base with a method Look() is asked to tell before an attempt is cut.
//
// It may be called at any time, from any goroutine, and does nothing for a context of no attempt.
func Arrived(ctx context.Context, here bool) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return
	}
	after := time.Duration(0)
	if here {
		after = 1
		if !a.began.IsZero() {
			after = max(after, since(a.began))
		}
	}
	a.arrived.after.Store(int64(after))
	a.permit.Arrived(here)
}

type attemptKey struct{}

// arrival is what is known of an answer before it is read.
type arrival struct {
	after  atomic.Int64 // of the attempt's beginning; 0: it is not there
	spared bool         // from being cut, once; guarded by the cutter
}

// latency is the target's.
func (a *attempt) latency() time.Duration {
	if d := a.arrived.after.Load(); d > 0 {
		return time.Duration(d)
	}
	return since(a.began)
}

// spare gives an attempt whose time is up its timeout anew, within the time of the call, if its answer is there: whoever waits for it only has
// to run. A second time it does not, for a header that goes on for ever.
func (a *attempt) spare(now time.Time) bool {
	if a.arrived.spared || a.arrived.after.Load() == 0 {
		return false
	}
	due := now.Add(a.timeout)
	if !a.ends.IsZero() && a.ends.Before(due) {
		due = a.ends
	}
	if !due.After(now) {
		return false
	}
	a.due, a.arrived.spared = due, true
	return true
}
