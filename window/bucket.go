package window

import (
	"math/bits"
	"time"
)

// The latency scale is log-linear: 8 buckets of one unit, then 20 octaves of 8 equal sub-buckets each. The unit is a power
// of two of nanoseconds so that finding a bucket is a shift and a count of leading zeros.
const (
	unitShift = 13 // 8.192 µs
	subShift  = 3  // 8 sub-buckets an octave: a bucket is at most 1/8 of its lower bound wide
	sub       = 1 << subShift
	octaves   = 20
)

// Buckets is the number of latency buckets.
const Buckets = sub + octaves*sub

// Bucket returns the bucket of latency d, in [0, Buckets). Negative latencies count as 0, those of the scale's end (about
// 68.7 s) and above fall in the last bucket. The exact value differs from any other in its bucket by at most 12.5 %, or by
// 8.192 µs below 65.5 µs.
func Bucket(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	u := uint64(d) >> unitShift
	if u < sub {
		return int(u)
	}
	e := bits.Len64(u) - subShift - 1 // u is in [sub<<e, 2*sub<<e)
	if e >= octaves {
		return Buckets - 1
	}
	return e*sub + int(u>>e)
}

// Bounds returns the latencies that bucket i stands for: lo included, hi excluded. Buckets are contiguous: the hi of one is
// the lo of the next. The last bucket also holds everything above its hi. An i out of range is moved to the nearest bucket.
func Bounds(i int) (lo, hi time.Duration) {
	i = clampBucket(i)
	if i < sub {
		return time.Duration(i) << unitShift, time.Duration(i+1) << unitShift
	}
	e := i/sub - 1
	m := time.Duration(i - e*sub) // in [sub, 2*sub)
	return m << e << unitShift, (m + 1) << e << unitShift
}

func clampBucket(i int) int {
	return min(max(i, 0), Buckets-1)
}
