package window

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"
)

func TestSpanTables(t *testing.T) {
	want := [Spans]time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 15 * time.Second, time.Minute}
	for s := range Spans {
		if s.Duration() != want[s] {
			t.Errorf("span %d is %v, want %v", s, s.Duration(), want[s])
		}
		for g, geo := range geometry {
			if s < geo.first || s > geo.last {
				continue
			}
			if got := time.Duration(spanSlots[s]) * geo.width; got != want[s] {
				t.Errorf("span %v: its slots in ring %d make %v", want[s], g, got)
			}
			if s == geo.last && geo.n != spanSlots[s]+1 {
				t.Errorf("ring %d has %d slots, its longest span needs %d", g, geo.n, spanSlots[s]+1)
			}
			if geo.width%geometry[0].width != 0 {
				t.Errorf("ring %d: slots of %v turn between turns of the first ring", g, geo.width)
			}
		}
	}
	if got := Span(200).Duration(); got != time.Minute {
		t.Errorf("Span(200) is %v, want that of the longest span", got)
	}
}

// A span covers between its nominal length and that plus one slot, on whatever phase the event falls.
func TestSpanCoverage(t *testing.T) {
	for s := range Spans {
		nominal, slot := oracleSpans[s].length, oracleSpans[s].slot
		for phase := range 40 {
			at := time.Hour + slot*time.Duration(phase)/40
			for _, c := range []struct {
				age time.Duration
				in  bool
			}{{0, true}, {nominal / 2, true}, {nominal, true}, {nominal + slot, false}, {3 * nominal, false}} {
				r := New()
				r.Add(at, Counts{Failure: 1})
				r.AddLatency(at, 50, 1)
				r.Advance(at + c.age)
				if got := r.Counts(s).Failure == 1; got != c.in {
					t.Errorf("%v, phase %d/40, age %v: in = %v, want %v", nominal, phase, c.age, got, c.in)
				}
				if got := r.Latencies(s) == 1; got != c.in {
					t.Errorf("%v, phase %d/40, age %v: latency in = %v, want %v", nominal, phase, c.age, got, c.in)
				}
			}
		}
	}
}

func TestSizeIsBounded(t *testing.T) {
	// Rolling holds no pointer, so its size is all there is.
	if size := unsafe.Sizeof(Rolling{}); size > 40<<10 {
		t.Errorf("a window takes %d bytes, more than 40 KiB", size)
	}
}

func TestNoAllocationAfterNew(t *testing.T) {
	r := New()
	now := time.Duration(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 40 * time.Millisecond
		r.Add(now, Counts{Success: 1, Timeout: 1})
		r.AddLatency(now, 70, 1)
		r.Quantile(r.ShortestLatencies(10), 0.99)
		r.Counts(r.Shortest(10))
		if now > time.Minute {
			r.Reset(0)
			now = 0
		}
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

// F25: counters dropped at an interval's edge made the ratio depend on the phase against the clock, up to tenfold.
func TestFailureRatioDoesNotDependOnPhase(t *testing.T) {
	for _, offset := range []time.Duration{0, 300 * time.Millisecond, 700 * time.Millisecond, 9900 * time.Millisecond} {
		// The case as reported: 10,000 calls in 10 s, of which the last 900 fail.
		r := New()
		start := offset + time.Second
		var now time.Duration
		for i := range 10_000 {
			now = start + time.Duration(i)*time.Millisecond
			r.Add(now, outcome(i < 9100))
		}
		r.Advance(start + 10*time.Second)
		if c := r.Counts(Span15s); c.Total() != 10_000 || c.Failures() != 900 {
			t.Errorf("offset %v: %d of %d failed, want 900 of 10000", offset, c.Failures(), c.Total())
		}

		// The same in every span under traffic that began long before: .09 of the nominal length, at most one slot less.
		for s := range Spans {
			r := New()
			n := int(s.Duration() / time.Millisecond)
			before := int(2 * time.Minute / time.Millisecond)
			for i := range before + n {
				r.Add(start+time.Duration(i)*time.Millisecond, outcome(i < before+n*91/100))
			}
			c := r.Counts(s)
			ratio := float64(c.Failures()) / float64(c.Total())
			low := 0.09 * float64(s.Duration()) / float64(s.Duration()+oracleSpans[s].slot)
			if ratio < low-1e-3 || ratio > 0.09+1e-3 {
				t.Errorf("offset %v, span %v: ratio %.4f, want [%.4f, 0.09]", offset, s.Duration(), ratio, low)
			}
		}
	}
}

func outcome(ok bool) Counts {
	if ok {
		return Counts{Success: 1}
	}
	return Counts{Failure: 1}
}

// F27: each new error extended the window, so that errors far apart added up.
func TestSparseErrorsDoNotAddUp(t *testing.T) {
	r := New()
	for _, at := range []time.Duration{94, 99, 100} { // t-6, t-1, t
		r.Add(at*time.Second, Counts{Failure: 1})
	}
	if got := r.Counts(Span5s).Failures(); got != 2 {
		t.Errorf("%d failures in 5 s, want 2: the one 6 s ago is out", got)
	}
	r = New()
	for day := range 10 {
		r.Add(time.Duration(day)*24*time.Hour, Counts{Failure: 1})
		if got := r.Counts(Span60s).Failures(); got != 1 {
			t.Fatalf("day %d: %d failures in 60 s, want 1", day, got)
		}
	}
}

// F31: when the time was set back, the window did not find its slot any more and counted nothing.
func TestTimeSetBackIsNoTimePassing(t *testing.T) {
	r := New()
	start := 10 * time.Hour
	r.Add(start, Counts{Success: 1})
	for _, back := range []time.Duration{time.Nanosecond, time.Second, 8 * time.Hour, 100 * time.Hour} {
		r.Advance(start - back)
		r.Add(start-back, Counts{Failure: 1})
		r.AddLatency(start-back, 60, 1)
	}
	r.Add(math.MinInt64, Counts{Failure: 1})
	want := Counts{Success: 1, Failure: 5}
	for s := range Spans {
		if got := r.Counts(s); got != want {
			t.Errorf("%v: %+v, want %+v", s.Duration(), got, want)
		}
		if got := r.Latencies(s); got != 4 {
			t.Errorf("%v: %d latencies, want 4", s.Duration(), got)
		}
	}
	// Back on the old axis everything ages from the latest time seen.
	r.Advance(start + time.Second)
	if got := r.Counts(Span1s); got != want {
		t.Errorf("1 s later: %+v, want %+v", got, want)
	}
	r.Advance(start + 1125*time.Millisecond)
	if got := r.Counts(Span1s); got != (Counts{}) {
		t.Errorf("1.125 s later: %+v, want nothing", got)
	}
	// Set forward by 8 h: all of it is old, and counting goes on.
	r.Add(start+8*time.Hour, Counts{Success: 1})
	if got := r.Counts(Span60s); got != (Counts{Success: 1}) {
		t.Errorf("8 h later: %+v, want one success", got)
	}
	// Reset is the way to a new axis.
	r.Reset(time.Second)
	r.Add(time.Second, Counts{Success: 1})
	r.Advance(3 * time.Second)
	if got, kept := r.Counts(Span1s), r.Counts(Span2s); got != (Counts{}) || kept != (Counts{Success: 1}) {
		t.Errorf("after Reset to an earlier time: %+v in 1 s, %+v in 2 s", got, kept)
	}
}

func TestIdleGaps(t *testing.T) {
	for _, gap := range []time.Duration{
		125 * time.Millisecond, 250 * time.Millisecond, time.Second, 2 * time.Second, 2125 * time.Millisecond,
		4 * time.Second, 16 * time.Second, 63 * time.Second, 64 * time.Second, time.Hour, 1000 * time.Hour, math.MaxInt64,
	} {
		r, o := New(), &oracle{}
		for i := range 700 { // 70 s of traffic, then the gap, then more
			now := time.Duration(i) * 100 * time.Millisecond
			e := event{counts: Counts{Success: 1, Failure: uint64(i) % 2}, bucket: i % Buckets, n: 2}
			r.Add(now, e.counts)
			r.AddLatency(now, e.bucket, e.n)
			o.add(now, e)
		}
		after := o.now + gap
		if after < 0 {
			after = math.MaxInt64
		}
		r.Advance(after)
		o.advance(after)
		o.check(t, r)
		for i := range 3 {
			now := after
			if now < math.MaxInt64-time.Hour {
				now += time.Duration(i) * 700 * time.Millisecond
			}
			r.Add(now, Counts{Timeout: 1})
			o.add(now, event{counts: Counts{Timeout: 1}})
			o.check(t, r)
		}
	}
}

func TestSaturatedCountsStillLeaveTheWindow(t *testing.T) {
	const top = math.MaxUint64
	r := New()
	full := Counts{top, top, top, top}
	for i := range 5 {
		now := time.Duration(i) * 300 * time.Millisecond
		r.Add(now, full)
		r.Add(now, Counts{Success: 1, Failure: 1})
		r.AddLatency(now, 40, math.MaxUint64)
		r.AddLatency(now, 40, 1)
	}
	for s := range Spans {
		if s == Span1s {
			continue // its part of the ring came after the ring was full: see below
		}
		if got := r.Counts(s); got != full {
			t.Errorf("%v: %+v, want all at the top", s.Duration(), got)
		}
		if got := r.Latencies(s); got != math.MaxUint32 {
			t.Errorf("%v: %d latencies, want the top of one bucket", s.Duration(), got)
		}
	}
	if got := r.Counts(Span60s).Total(); got != top {
		t.Errorf("total %d wraps", got)
	}
	r.Advance(65 * time.Second)
	for s := range Spans {
		if got, n := r.Counts(s), r.Latencies(s); got != (Counts{}) || n != 0 {
			t.Errorf("%v: %+v and %d latencies are left after 65 s", s.Duration(), got, n)
		}
	}
	r.Add(65*time.Second, Counts{Success: 3})
	r.AddLatency(65*time.Second, 40, 3)
	if got, n := r.Counts(Span1s), r.Latencies(Span1s); got != (Counts{Success: 3}) || n != 3 {
		t.Errorf("afterwards: %+v and %d latencies, want 3 and 3", got, n)
	}
}

func TestQuantile(t *testing.T) {
	r := New()
	if _, ok := r.Quantile(Span1s, 0.5); ok {
		t.Error("an empty window has a quantile")
	}
	lo, hi := Bounds(80)
	r.AddLatency(0, 80, 4)
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{
		{0, lo}, {0.25, lo + (hi-lo)/4}, {0.5, lo + (hi-lo)/2}, {1, hi},
		{-1, lo}, {2, hi}, {math.Inf(-1), lo}, {math.Inf(1), hi},
	} {
		for s := range Spans {
			if got, ok := r.Quantile(s, c.q); !ok || got != c.want {
				t.Errorf("Quantile(%v, %v) = %v, %v, want %v", s.Duration(), c.q, got, ok, c.want)
			}
		}
	}
	if _, ok := r.Quantile(Span1s, math.NaN()); ok {
		t.Error("NaN has a quantile")
	}
	// Empty buckets between two full ones are no answer.
	r.AddLatency(0, 120, 4)
	if got, _ := r.Quantile(Span1s, 0.5); got != hi {
		t.Errorf("median = %v, want the end %v of the lower bucket", got, hi)
	}
	lo, hi = Bounds(120)
	if got, _ := r.Quantile(Span1s, 0.75); got != lo+(hi-lo)/2 {
		t.Errorf("0.75 = %v, want the middle of [%v, %v)", got, lo, hi)
	}
	// A bucket or span out of range is moved to the nearest one.
	r.Reset(0)
	r.AddLatency(0, -5, 1)
	r.AddLatency(0, Buckets+5, 1)
	if got, ok := r.Quantile(Spans+3, 1); !ok || got < 68*time.Second {
		t.Errorf("maximum = %v, %v, want the scale's end", got, ok)
	}
	if got, ok := r.Quantile(Span1s, 0); !ok || got != 0 {
		t.Errorf("minimum = %v, %v, want 0", got, ok)
	}
}

func TestShortest(t *testing.T) {
	r := New()
	now := time.Minute
	for i, age := range []time.Duration{50 * time.Second, 10 * time.Second, 4 * time.Second, 1500 * time.Millisecond, 0} {
		r.Add(now-age, Counts{Success: 10, Throttled: 1000})
		r.AddLatency(now-age, 40+i, 10)
	}
	for _, c := range []struct {
		min  uint64
		want Span
	}{{0, Span1s}, {10, Span1s}, {11, Span2s}, {20, Span2s}, {21, Span5s}, {31, Span15s}, {41, Span60s}, {50, Span60s}, {math.MaxUint64, Span60s}} {
		if got := r.Shortest(c.min); got != c.want {
			t.Errorf("Shortest(%d) = %v, want %v", c.min, got.Duration(), c.want.Duration())
		}
		if got := r.ShortestLatencies(c.min); got != c.want {
			t.Errorf("ShortestLatencies(%d) = %v, want %v", c.min, got.Duration(), c.want.Duration())
		}
	}
}

func BenchmarkAddAndLatency(b *testing.B) {
	b.ReportAllocs()
	r := New()
	for i := range b.N {
		now := time.Duration(i) * 100 * time.Nanosecond
		r.Add(now, Counts{Success: 1})
		r.AddLatency(now, 60+i%40, 1)
	}
}

func BenchmarkAdvanceSameSlot(b *testing.B) {
	b.ReportAllocs()
	r := New()
	for b.Loop() {
		r.Advance(time.Millisecond)
	}
}

// One turn of the first ring's slot each, with something in every slot.
func BenchmarkAdvanceRotation(b *testing.B) {
	b.ReportAllocs()
	r := New()
	for i := range b.N {
		now := time.Duration(i) * 125 * time.Millisecond
		r.Add(now, Counts{Success: 1})
		r.AddLatency(now, 70, 1)
	}
}

// The dearest rotation: all slots full, and all but one of them leave.
func BenchmarkAdvanceLongestRotation(b *testing.B) {
	b.ReportAllocs()
	r := New()
	full := func(now time.Duration) {
		for i := range 512 {
			r.AddLatency(now+time.Duration(i)*125*time.Millisecond, 70, 1)
		}
	}
	now := time.Duration(0)
	for b.Loop() {
		b.StopTimer()
		full(now)
		now += 64*time.Second + 1875*time.Millisecond
		b.StartTimer()
		r.Advance(now)
	}
}

func BenchmarkQuantile(b *testing.B) {
	b.ReportAllocs()
	r := New()
	for i := range 60 {
		r.AddLatency(0, 60+i, uint64(i+1))
	}
	for _, c := range []struct {
		name string
		step float64
	}{{"fresh", 1e-9}, {"again", 0}} {
		b.Run(c.name, func(b *testing.B) {
			q := 0.99
			for b.Loop() {
				r.Quantile(Span5s, q)
				q -= c.step
			}
		})
	}
}

// Asked again, a window answers from memory; whatever may have moved in between, the answer is that of a window without one.
func TestQuantileFromMemoryIsNeverOld(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 8))
		w := New()
		var now time.Duration
		for i := range 20_000 {
			switch r.IntN(6) {
			case 0:
				w.AddLatency(now, r.IntN(Buckets), uint64(r.IntN(3)))
			case 1:
				w.Add(now, Counts{Success: 1})
			case 2:
				now += time.Duration(r.Int64N(int64(300 * time.Millisecond)))
				w.Advance(now)
			case 3:
				if r.IntN(500) == 0 {
					now += time.Duration(r.Int64N(int64(2 * time.Minute)))
					w.Advance(now)
				}
				if r.IntN(1000) == 0 {
					now = time.Duration(r.Int64N(int64(time.Minute)))
					w.Reset(now)
				}
			}
			s, q := Span(r.IntN(int(Spans))), []float64{0.5, 0.99}[r.IntN(20)/19]
			got, ok := w.Quantile(s, q)
			fresh := *w
			fresh.sums[s].last = answer{}
			if want, known := fresh.Quantile(s, q); got != want || ok != known {
				t.Fatalf("seed %d, step %d: Quantile(%v, %v) = %v, %v, want %v, %v", seed, i, s.Duration(), q, got, ok, want, known)
			}
		}
	}
}
