package cortex

import (
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/window"
)

// quick tells failures that take longer than the timeout from a queue. Both end as timeouts here, but behind a queue, or before a
// target that has become slow, nobody is answered as fast as usual; beside slow failures the others are. Taken for a queue, such
// failures would be given the price of overload and the circuit's rule for hangs, and shedding would lose what a retry mends.
type quick struct {
	usual   time.Duration // what quickShare of the answers take at most, in calm times
	learned time.Duration // when that was last looked at
	share   float64       // of the successes that took no longer, among the last 50 or so
	newest  [quickFew]time.Duration
	slow    time.Duration // the newest failure that was told from a queue
}

const (
	quickShare  = 0.75 // of the answers are usual by definition
	quickLeast  = 0.55 // of them must be, for there to be no queue: about half of those that wait in a short one are
	quickFew    = 3    // usual answers while an attempt waited in vain, before it is no queue that it waited in
	quickMemory = 50   // answers
	quickTail   = 2.2  // times what is usual is the shortest timeout that leaves the usual answers alone
	quickCalm   = 0.05 // share of failures above which the times are not calm
	quickLook   = 500 * time.Millisecond
)

// learn follows what is usual; it is asked in calm times only.
func (q *quick) learn(now time.Duration, r *window.Rolling) {
	if now-q.learned < quickLook {
		return
	}
	span := r.ShortestLatencies(baselineMin)
	if r.Latencies(span) < baselineMin {
		return
	}
	v, _ := r.Quantile(span, quickShare)
	if q.usual == 0 {
		q.usual = v
	} else { // an average over the last ten looks or so
		q.usual += (v - q.usual) / 10
	}
	q.learned = now
}

// beside reports whether usual answers came to others while an attempt that began at start waited for its timeout in vain. They must
// have come in the second half of it: what was under way when a target became slow is still answered in the first. Where the
// timeout cuts into the usual answers themselves, what is left of them looks usual whatever happens.
func (q *quick) beside(start, timeout time.Duration) bool {
	return q.share >= quickLeast && q.newest[0] >= start+timeout/2 && float64(timeout) >= quickTail*float64(q.usual)
}

// active reports whether such failures are going on: answers are as fast as usual beside them, up to the last attempt timeout.
func (q *quick) active(now, timeout time.Duration) bool {
	return q.slow > 0 && now-q.slow <= max(time.Second, timeout) && q.beside(now-max(timeout, 100*time.Millisecond), timeout)
}

// add takes in so many successes, the newest of them at that time, of which so many took no longer than usual.
func (q *quick) add(at time.Duration, usual, all uint64) {
	if all == 0 {
		return
	}
	q.share += (float64(usual)/float64(all) - q.share) * (1 - math.Exp(-float64(all)/quickMemory))
	for range min(usual, quickFew) {
		copy(q.newest[:], q.newest[1:])
		q.newest[quickFew-1] = at
	}
}
