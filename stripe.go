package cortex

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/window"
)

// A stripe is what one processor counts of an engine's calls, so that calls on different processors do not share a cache
// line. While credit lasts, a call is admitted by its stripe alone: credit is this stripe's part of the room below the point
// where the law could refuse anything (limit.Headroom). A call that enters takes one, a call that leaves gives one back, so
// that the sum of credit and in-flight never exceeds the room that was shared out; opening the circuit or a new tick takes
// all of it back.
type stripe struct {
	mu     sync.Mutex
	credit int64
	until  time.Duration // credit ends here: the estimators are due
	gen    uint32
	epoch  uint32 // now / permit life

	// Residence: ∫N dt up to t = done + inFlight·t − starts, exact whatever happened between two readings. The sums wrap;
	// only differences are used.
	inFlight int64
	orphans  int64         // of those, abandoned: the work goes on for nobody
	starts   time.Duration // sum of the starts of the attempts in flight
	done     time.Duration // sum of the residences of those that left
	inEpoch  [2]int64      // of inFlight, by permit epoch: what is older is written off
	startsIn [2]time.Duration

	refused [limit.MaxLevels + 1]atomic.Uint32 // offered and refused by the open circuit, since the last collection

	clashes  uint8
	attempts uint64 // since the last collection, like all below
	stale    uint64
	success  uint64
	last     time.Duration // of the newest success
	offered  [limit.MaxLevels + 1]uint64
	latencies
	_ [64]byte // the next stripe's first words are another processor's
}

// latencies are numbers of successes by latency bucket. Most buckets are empty most of the time, so a set of those that are not
// goes with them.
type latencies struct {
	used  [(window.Buckets + 63) / 64]uint64
	count [window.Buckets]uint32
}

func (l *latencies) add(bucket int, n uint32) {
	b := uint(bucket) // spares the hot path what a negative one would need
	l.used[b/64] |= 1 << (b % 64)
	l.count[b] += n
}

// all yields the buckets that are not empty, in order.
func (l *latencies) all(yield func(bucket int, n uint32) bool) {
	for i, set := range l.used {
		for ; set != 0; set &= set - 1 {
			if b := i*64 + bits.TrailingZeros64(set); !yield(b, l.count[b]) {
				return
			}
		}
	}
}

func (l *latencies) clear() {
	for b := range l.all {
		l.count[b] = 0
	}
	l.used = [len(l.used)]uint64{}
}

func (l *latencies) moveTo(to *latencies) {
	for b, n := range l.all {
		to.add(b, n)
		l.count[b] = 0
	}
	l.used = [len(l.used)]uint64{}
}

const maxStripes = 8 // bounds the memory of an engine; beyond it processors share stripes

func stripesFor(procs int) int {
	n := 1
	for n < procs && n < maxStripes {
		n *= 2
	}
	return n
}

// affinity hands out stripe numbers that stay with a processor: a sync.Pool keeps what was put on a processor for the next
// Get there. Which one a call gets never matters for what is decided.
var (
	nextStripe atomic.Uint32
	affinity   = sync.Pool{New: func() any { n := nextStripe.Add(1) - 1; return &n }}
)

func (e *Engine) stripe() uint8 {
	n := affinity.Get().(*uint32)
	i := uint8(*n) & e.stripeMask
	affinity.Put(n)
	return i
}

const clashes = 8 // within a tick

// lockTaken locks a stripe that was found taken. Finding it so again and again means that two processors have the same one, by
// the chance of how numbers were handed out: this one then gets another, for good. Now and then the collection is what holds it.
func (e *Engine) lockTaken(s *stripe) {
	s.mu.Lock()
	if e.stripeMask == 0 {
		return // there is no other
	}
	if s.clashes++; s.clashes < clashes {
		return
	}
	s.clashes = 0
	n := affinity.Get().(*uint32)
	*n = nextStripe.Add(1) - 1
	affinity.Put(n)
}

// newStripes makes n of them, as many as processors can use for 0.
func newStripes(n int) []stripe {
	if n == 0 {
		n = stripesFor(runtime.GOMAXPROCS(0))
	}
	return make([]stripe, n)
}

// enter counts an attempt that starts now.
func (s *stripe) enter(now time.Duration) {
	s.attempts++
	s.reenter(now)
}

// reenter counts an attempt that was paused and goes on now.
func (s *stripe) reenter(now time.Duration) {
	s.inFlight++
	s.starts += now
	i := s.epoch & 1
	s.inEpoch[i]++
	s.startsIn[i] += now
}

// leave takes out an attempt that entered at start in that epoch. One that was written off meanwhile is not there any more.
func (s *stripe) leave(start time.Duration, epoch uint32, now time.Duration) {
	if s.epoch-epoch > 1 {
		return
	}
	s.inFlight--
	s.credit++
	s.starts -= start
	s.done += now - start
	s.inEpoch[epoch&1]--
	s.startsIn[epoch&1] -= start
}

// turn moves the stripe to a later permit epoch and writes off the attempts of those that ended: their callers never
// returned.
func (s *stripe) turn(epoch uint32, now time.Duration) (lost int64) {
	for s.epoch != epoch {
		if epoch-s.epoch > 2 { // both slots are too old whatever lies between
			s.epoch = epoch - 2
		}
		s.epoch++
		i := s.epoch & 1 // held the epoch before the last one
		n := s.inEpoch[i]
		s.inFlight -= n
		s.starts -= s.startsIn[i]
		s.done += time.Duration(n)*now - s.startsIn[i]
		s.inEpoch[i], s.startsIn[i] = 0, 0
		lost += n
	}
	return lost
}

func (s *stripe) observe(now, latency time.Duration) {
	s.success++
	s.last = now
	s.add(window.Bucket(latency), 1)
}
