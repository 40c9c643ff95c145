package window

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// oracle is the window as one would write it without a care for speed: a list of events, and for every question a walk over
// all of them. It shares no table with Rolling.
type oracle struct {
	now    time.Duration
	events []event
}

type event struct {
	at     time.Duration
	counts Counts
	bucket int
	n      uint64
}

var oracleSpans = [Spans]struct{ length, slot time.Duration }{
	{1 * time.Second, 125 * time.Millisecond},
	{2 * time.Second, 125 * time.Millisecond},
	{5 * time.Second, 1 * time.Second},
	{15 * time.Second, 1 * time.Second},
	{60 * time.Second, 4 * time.Second},
}

func (o *oracle) advance(now time.Duration) { o.now = max(o.now, now) }

func (o *oracle) add(now time.Duration, e event) {
	o.advance(now)
	e.at = o.now
	o.events = append(o.events, e)
}

func (o *oracle) in(s Span) []event {
	g := oracleSpans[s]
	start := o.now/g.slot*g.slot - g.length
	return slices.DeleteFunc(slices.Clone(o.events), func(e event) bool { return e.at < start })
}

func (o *oracle) check(t *testing.T, r *Rolling) {
	t.Helper()
	o.events = o.in(Span60s) // no span looks further back
	shortest, shortestLat := Span60s, Span60s
	for s := Spans; s > 0; {
		s--
		var want Counts
		var latencies uint64
		hist := map[int]uint64{}
		for _, e := range o.in(s) {
			want = want.Add(e.counts)
			if e.n > 0 {
				hist[e.bucket] += e.n
				latencies += e.n
			}
		}
		if got := r.Counts(s); got != want {
			t.Fatalf("at %v: Counts(%v) = %+v, want %+v", o.now, s.Duration(), got, want)
		}
		if got := r.Latencies(s); got != latencies {
			t.Fatalf("at %v: Latencies(%v) = %d, want %d", o.now, s.Duration(), got, latencies)
		}
		if want.Total() >= 50 {
			shortest = s
		}
		if latencies >= 50 {
			shortestLat = s
		}
		for _, q := range []float64{0, 0.001, 0.5, 0.9, 0.99, 0.999, 1} {
			o.checkQuantile(t, r, s, q, hist, latencies)
		}
	}
	if got := r.Shortest(50); got != shortest {
		t.Fatalf("at %v: Shortest(50) = %v, want %v", o.now, got.Duration(), shortest.Duration())
	}
	if got := r.ShortestLatencies(50); got != shortestLat {
		t.Fatalf("at %v: ShortestLatencies(50) = %v, want %v", o.now, got.Duration(), shortestLat.Duration())
	}
}

// checkQuantile wants the quantile to lie in the bucket of the sample of that rank.
func (o *oracle) checkQuantile(t *testing.T, r *Rolling, s Span, q float64, hist map[int]uint64, n uint64) {
	t.Helper()
	got, ok := r.Quantile(s, q)
	if ok != (n > 0) {
		t.Fatalf("at %v: Quantile(%v, %v) ok = %v with %d latencies", o.now, s.Duration(), q, ok, n)
	}
	if !ok {
		return
	}
	rank := func(x float64) int {
		want := uint64(max(1, math.Ceil(x*float64(n))))
		var seen uint64
		for b := range Buckets {
			if seen += hist[b]; seen >= want {
				return b
			}
		}
		return Buckets - 1
	}
	// Two ranks: q*n may lie within a rounding error of a whole number.
	lo, _ := Bounds(rank(max(0, q-1e-12)))
	_, hi := Bounds(rank(min(1, q+1e-12)))
	if got < lo || got > hi {
		t.Fatalf("at %v: Quantile(%v, %v) = %v, want within [%v, %v]", o.now, s.Duration(), q, got, lo, hi)
	}
}

func TestRandomOperationsAgainstOracle(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r, o := New(), &oracle{}
		scale := time.Duration(1) << (20 + seed%15) // steps from 1 ms to 17 s
		now := time.Duration(0)
		for range 400 {
			switch rng.UintN(20) {
			case 0:
				now -= time.Duration(rng.Int64N(int64(4 * scale)))
			case 1:
				now += time.Duration(rng.Int64N(int64(20 * scale)))
			default:
				now += time.Duration(rng.Int64N(int64(scale)))
			}
			switch rng.UintN(3) {
			case 0:
				c := Counts{rng.Uint64N(5), rng.Uint64N(3), rng.Uint64N(2), rng.Uint64N(2)}
				r.Add(now, c)
				o.add(now, event{counts: c})
			case 1:
				b, n := rng.IntN(Buckets), rng.Uint64N(9)
				r.AddLatency(now, b, n)
				o.add(now, event{bucket: b, n: n})
			case 2:
				r.Advance(now)
				o.advance(now)
			}
			o.check(t, r)
		}
	}
}

// FuzzRolling replays operations of four bytes each (what, how much, and a 16 bit time step) against the oracle.
func FuzzRolling(f *testing.F) {
	f.Add([]byte{0, 1, 0, 100, 1, 200, 0, 100, 2, 0, 255, 255})
	f.Fuzz(func(t *testing.T, ops []byte) {
		r, o := New(), &oracle{}
		now := time.Duration(0)
		for i := 0; len(ops) >= 4 && i < 300; i++ {
			what, amount, step := ops[0], ops[1], time.Duration(binary.BigEndian.Uint16(ops[2:]))
			ops = ops[4:]
			switch what >> 4 {
			case 0, 1, 2: // up to 1 s
				now += step * (time.Second / 65535)
			case 3, 4: // whole fine slots
				now += step % 600 * (125 * time.Millisecond)
			case 5: // up to 18 h
				now += step * time.Second
			case 6:
				now -= step * time.Millisecond
			case 7:
				now = math.MaxInt64
			case 8:
				now = math.MinInt64
			}
			switch what & 7 {
			case 0, 1:
				c := Counts{Success: uint64(amount & 3), Failure: uint64(amount >> 2 & 3), Timeout: uint64(amount >> 4 & 3), Throttled: uint64(amount >> 6)}
				r.Add(now, c)
				o.add(now, event{counts: c})
			case 2, 3:
				b, n := int(amount)%Buckets, uint64(what>>3&3)
				r.AddLatency(now, b, n)
				o.add(now, event{bucket: b, n: n})
			case 4:
				r.Reset(now)
				o.now, o.events = max(now, 0), nil
			default:
				r.Advance(now)
				o.advance(now)
			}
			o.check(t, r)
		}
	})
}
