package window

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestBucketTable(t *testing.T) {
	const unit = 8192 * time.Nanosecond
	for _, c := range []struct {
		d    time.Duration
		want int
	}{
		{math.MinInt64, 0},
		{-1, 0},
		{0, 0},
		{1, 0},
		{unit - 1, 0},
		{unit, 1},
		{8*unit - 1, 7},
		{8 * unit, 8},
		{9 * unit, 9},
		{16*unit - 1, 15},
		{16 * unit, 16},
		{18*unit - 1, 16},
		{18 * unit, 17},
		{time.Millisecond, 39},       // 122 units: [120,128)
		{100 * time.Millisecond, 91}, // 12207 units: [11264,12288)
		{time.Second, 118},           // 122070 units: [114688,122880)
		{(16 << 19) * unit, Buckets - 1},
		{(16<<19)*unit - 1, Buckets - 1},
		{(15<<19)*unit - 1, Buckets - 2},
		{time.Hour, Buckets - 1},
		{math.MaxInt64, Buckets - 1},
	} {
		if got := Bucket(c.d); got != c.want {
			t.Errorf("Bucket(%d ns) = %d, want %d", c.d, got, c.want)
		}
	}
}

func TestBoundsAreContiguousAndNarrow(t *testing.T) {
	if Buckets != 168 {
		t.Fatalf("Buckets = %d", Buckets)
	}
	var end time.Duration
	for i := range Buckets {
		lo, hi := Bounds(i)
		if lo != end || hi <= lo {
			t.Fatalf("Bounds(%d) = [%d, %d), want a start at %d", i, lo, hi, end)
		}
		if Bucket(lo) != i || Bucket(hi-1) != i {
			t.Errorf("bucket %d: lo is in %d, hi-1 in %d", i, Bucket(lo), Bucket(hi-1))
		}
		if width := hi - lo; width > 8192 && float64(width) > 0.125*float64(lo) {
			t.Errorf("bucket %d: [%v, %v) is wider than an eighth of its start", i, lo, hi)
		}
		end = hi
	}
	if end < 68*time.Second || end > 69*time.Second {
		t.Errorf("the scale ends at %v", end)
	}
}

func TestBoundsOutOfRange(t *testing.T) {
	for _, c := range [][2]int{{-1, 0}, {math.MinInt, 0}, {Buckets, Buckets - 1}, {math.MaxInt, Buckets - 1}} {
		lo, hi := Bounds(c[0])
		wantLo, wantHi := Bounds(c[1])
		if lo != wantLo || hi != wantHi {
			t.Errorf("Bounds(%d) = [%v, %v), want those of %d", c[0], lo, hi, c[1])
		}
	}
}

func TestBucketIsMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		a := time.Duration(rng.Uint64() >> (1 + rng.UintN(63)))
		b := time.Duration(rng.Uint64() >> (1 + rng.UintN(63)))
		if a > b {
			a, b = b, a
		}
		if Bucket(a) > Bucket(b) {
			t.Fatalf("Bucket(%d) = %d > Bucket(%d) = %d", a, Bucket(a), b, Bucket(b))
		}
	}
}

func TestCountsSaturate(t *testing.T) {
	const top = math.MaxUint64
	full := Counts{top, top, top, top}
	one := Counts{1, 1, 1, 1}
	for _, c := range []struct {
		name      string
		got, want Counts
	}{
		{"add", Counts{1, 2, 3, 4}.Add(Counts{10, 20, 30, 40}), Counts{11, 22, 33, 44}},
		{"add full", full.Add(one), full},
		{"add to full", one.Add(full), full},
		{"sub", Counts{11, 22, 33, 44}.Sub(Counts{10, 20, 30, 40}), Counts{1, 2, 3, 4}},
		{"sub below zero", Counts{1, 2, 3, 4}.Sub(Counts{2, 2, 1, 5}), Counts{0, 0, 2, 0}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, c.got, c.want)
		}
	}
	if got := (Counts{Failure: top, Timeout: 1}).Failures(); got != top {
		t.Errorf("Failures wraps to %d", got)
	}
	if got := full.Total(); got != top {
		t.Errorf("Total wraps to %d", got)
	}
	if got := (Counts{1, 2, 4, 8}).Total(); got != 7 {
		t.Errorf("Total = %d, want 7: throttled attempts are no part of it", got)
	}
	if got := (Counts{1, 2, 4, 8}).Failures(); got != 6 {
		t.Errorf("Failures = %d, want 6", got)
	}
}
