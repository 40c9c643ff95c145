package window

import (
	"math"
	"time"
)

// Span is the nominal length of a window. As time is cut into slots, a span really covers the slot in progress and enough
// whole slots before it: between its nominal length and that plus one slot. An event of exactly the nominal age is always
// in, one older than nominal length plus one slot never.
//
//	span  slot    covers
//	1 s   125 ms  [1 s, 1.125 s)
//	2 s   125 ms  [2 s, 2.125 s)
//	5 s   1 s     [5 s, 6 s)
//	15 s  1 s     [15 s, 16 s)
//	60 s  4 s     [60 s, 64 s)
type Span uint8

// The spans, shortest first. Spans is their number; it and everything above are read as Span60s.
const (
	Span1s Span = iota
	Span2s
	Span5s
	Span15s
	Span60s
	Spans
)

// Duration returns the span's nominal length.
func (s Span) Duration() time.Duration { return spanLength[s.clamp()] }

func (s Span) clamp() Span { return min(s, Spans-1) }

var spanLength = [Spans]time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second, time.Minute}

// spanSlots is how many whole slots before the one in progress a span covers: its length over its ring's slot width.
var spanSlots = [Spans]int{8, 16, 5, 15, 15}

// Spans of similar length share a ring of slots. A ring has one slot more than its longest span has whole slots, for the
// slot in progress. Every width is a multiple of the first one, so that a time which turns no slot of the first ring turns
// none at all.
const (
	rings    = 3
	fineRing = 17 // 125 ms slots
	midRing  = 16 // 1 s slots
	wideRing = 16 // 4 s slots
)

var geometry = [rings]struct {
	width       time.Duration
	offset, n   int  // the ring's part of Rolling.slots
	first, last Span // the spans that it feeds, the last one is the longest
}{
	{125 * time.Millisecond, 0, fineRing, Span1s, Span2s},
	{time.Second, fineRing, midRing, Span5s, Span15s},
	{4 * time.Second, fineRing + midRing, wideRing, Span60s, Span60s},
}

// fields is the number of fields of Counts; inside, counts are arrays so that zero fields can be skipped.
const fields = 4

// slot holds what happened in one slot of time.
type slot struct {
	counts [fields]uint64
	hist   [Buckets]uint32
	used   bool // anything in it: unused slots need no subtraction and no clearing
}

// sum is the exact sum of a span's slots, at any time. This is why additions are cut to what still fits the sum of the ring's
// longest span: a sum that saturated on its own could not be subtracted from again.
type sum struct {
	counts    [fields]uint64
	hist      [Buckets]uint32
	latencies uint64 // sum over hist
	last      answer
}

// An answer is the quantile that was last asked of a span. It stands while nothing is added and no slot turns.
type answer struct {
	q       float64
	version uint64
	latency time.Duration
}

// Rolling counts outcomes and latencies over all spans at once. Make one with New. It takes 38 KiB in one piece and never
// allocates again.
//
// Time only goes forward: a call with an earlier time than a previous one is taken as made at that latest time, and times
// before 0 as 0. Only Reset goes back. Idle gaps of any length are handled at once.
//
// Counts saturate instead of wrapping, at math.MaxUint64 a field and span and at math.MaxUint32 a latency bucket and span:
// what does not fit is not counted, and what was counted still leaves the window exactly.
type Rolling struct {
	turn  time.Duration // the slot of the first ring ends here; before it, time changes nothing
	heads [rings]struct {
		number int64 // of the slot in progress, counted from time 0
		pos    int   // its place in the ring
	}
	version uint64 // of the latencies; the zero answer is of none
	sums    [Spans]sum
	slots   [fineRing + midRing + wideRing]slot
}

// New returns an empty window at time 0.
func New() *Rolling {
	r := new(Rolling)
	r.Reset(0)
	return r
}

// Reset forgets everything and sets the time to now, backwards too.
func (r *Rolling) Reset(now time.Duration) {
	r.version++
	for g := range r.heads {
		r.clear(g)
		r.heads[g].number = int64(max(now, 0) / geometry[g].width)
		r.heads[g].pos = 0
	}
	r.setTurn()
}

// Advance moves the windows to time now: what became too old for a span leaves it. Between two turns of a slot (125 ms) it
// does nothing and costs next to nothing; at a turn its cost is bounded, however long ago the last one was.
func (r *Rolling) Advance(now time.Duration) {
	if now >= r.turn {
		r.rotate(now)
	}
}

func (r *Rolling) rotate(now time.Duration) {
	r.version++
	for g := range r.heads {
		h, geo := &r.heads[g], &geometry[g]
		steps := int64(now/geo.width) - h.number
		if steps <= 0 {
			continue
		}
		h.number += steps
		if steps >= int64(geo.n) {
			r.clear(g)
			continue
		}
		ring := r.slots[geo.offset : geo.offset+geo.n]
		for range steps {
			if h.pos++; h.pos == geo.n {
				h.pos = 0
			}
			for s := geo.first; s <= geo.last; s++ {
				i := h.pos - spanSlots[s] - 1
				if i < 0 {
					i += geo.n
				}
				if ring[i].used {
					r.sums[s].subtract(&ring[i])
				}
			}
			// The slot that the longest span has just lost is the one to be filled next.
			if ring[h.pos].used {
				ring[h.pos] = slot{}
			}
		}
	}
	r.setTurn()
}

// setTurn sets turn from the number of the first ring's slot in progress.
func (r *Rolling) setTurn() {
	next := r.heads[0].number + 1
	if next > int64(math.MaxInt64/geometry[0].width) {
		r.turn = math.MaxInt64
		return
	}
	r.turn = time.Duration(next) * geometry[0].width
}

// clear empties ring g and the sums over it.
func (r *Rolling) clear(g int) {
	geo := &geometry[g]
	ring := r.slots[geo.offset : geo.offset+geo.n]
	for i := range ring {
		if ring[i].used {
			ring[i] = slot{}
		}
	}
	for s := geo.first; s <= geo.last; s++ {
		r.sums[s] = sum{}
	}
}

func (u *sum) subtract(p *slot) {
	for f, n := range p.counts {
		u.counts[f] -= n
	}
	var latencies uint64
	for b, n := range &p.hist {
		u.hist[b] -= n
		latencies += uint64(n)
	}
	u.latencies -= latencies
}

// Add advances to now and counts c there.
func (r *Rolling) Add(now time.Duration, c Counts) {
	r.Advance(now)
	for f, n := range [fields]uint64{c.Success, c.Failure, c.Timeout, c.Throttled} {
		if n == 0 {
			continue
		}
		for g := range r.heads {
			geo := &geometry[g]
			m := min(n, math.MaxUint64-r.sums[geo.last].counts[f])
			p := &r.slots[geo.offset+r.heads[g].pos]
			p.used = true
			p.counts[f] += m
			for s := geo.first; s <= geo.last; s++ {
				r.sums[s].counts[f] += m
			}
		}
	}
}

// AddLatency advances to now and counts n latencies of the given bucket (see Bucket) there. A bucket out of range is moved
// to the nearest one.
func (r *Rolling) AddLatency(now time.Duration, bucket int, n uint64) {
	r.Advance(now)
	if n == 0 {
		return
	}
	r.version++
	b := clampBucket(bucket)
	for g := range r.heads {
		geo := &geometry[g]
		m := uint32(min(n, uint64(math.MaxUint32-r.sums[geo.last].hist[b])))
		p := &r.slots[geo.offset+r.heads[g].pos]
		p.used = true
		p.hist[b] += m
		for s := geo.first; s <= geo.last; s++ {
			r.sums[s].hist[b] += m
			r.sums[s].latencies += uint64(m)
		}
	}
}

// Counts returns the outcomes in span s as of the latest time that the window was told.
func (r *Rolling) Counts(s Span) Counts {
	c := &r.sums[s.clamp()].counts
	return Counts{Success: c[0], Failure: c[1], Timeout: c[2], Throttled: c[3]}
}

// Latencies returns the number of latencies in span s as of the latest time that the window was told.
func (r *Rolling) Latencies(s Span) uint64 { return r.sums[s.clamp()].latencies }

// Quantile returns the q-quantile of the latencies in span s, interpolated linearly inside its bucket: within 12.5 % of the
// exact sample (8.192 µs below 65.5 µs). A q outside [0, 1] is moved to the nearest end. It returns false when the span
// holds no latency or q is not a number. Asked again for the same one of a span in which nothing moved, it answers from memory.
func (r *Rolling) Quantile(s Span, q float64) (time.Duration, bool) {
	u := &r.sums[s.clamp()]
	if u.latencies == 0 || math.IsNaN(q) {
		return 0, false
	}
	if u.last.version == r.version && u.last.q == q {
		return u.last.latency, true
	}
	rank := min(max(q, 0), 1) * float64(u.latencies) // exact: a sum over a histogram is below 2^53
	need := max(1, uint64(math.Ceil(rank)))
	var seen uint64
	b := 0
	for ; b < Buckets-1; b++ {
		if seen += uint64(u.hist[b]); seen >= need {
			break
		}
	}
	if b == Buckets-1 {
		seen = u.latencies
	}
	n := u.hist[b]
	lo, hi := Bounds(b)
	part := (rank - float64(seen-uint64(n))) / float64(n)
	u.last = answer{q, r.version, lo + time.Duration(part*float64(hi-lo))}
	return u.last.latency, true
}

// Shortest returns the shortest span with at least that many outcomes (Counts.Total), Span60s if none has.
func (r *Rolling) Shortest(atLeast uint64) Span {
	for s := Span1s; s < Span60s; s++ {
		if r.Counts(s).Total() >= atLeast {
			return s
		}
	}
	return Span60s
}

// ShortestLatencies returns the shortest span with at least that many latencies, Span60s if none has.
func (r *Rolling) ShortestLatencies(atLeast uint64) Span {
	for s := Span1s; s < Span60s; s++ {
		if r.Latencies(s) >= atLeast {
			return s
		}
	}
	return Span60s
}
