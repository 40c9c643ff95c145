package breaker

import (
	"math/bits"
	"time"
)

const (
	span    = 64               // outcomes that are evidence
	horizon = 60 * time.Second // their greatest age
)

// evidence is the last 64 outcomes, kept as the failures among them: with each the number of successes before it, so that
// the successes need not be kept.
type evidence struct {
	ring     [span]failure
	timeouts uint64 // bit i: the failure i places back from the newest timed out
	cum      uint64 // successes at the newest failure
	newest   uint8  // index in ring
	n        uint8  // failures in ring
}

// failure is one failed attempt. Both fields never fall from one to the next.
type failure struct {
	at  time.Duration
	cum uint64
}

func (e *evidence) clear() { e.timeouts, e.cum, e.n = 0, 0, 0 }

func (e *evidence) add(at time.Duration, timedOut bool, cum uint64) {
	if cum < e.cum {
		// A little lower is a counter read before the lock was taken. Much lower is another counter: held at the old value it
		// would make later failures look consecutive.
		if e.cum-cum > span {
			e.clear()
		} else {
			cum = e.cum
		}
	}
	e.cum = cum
	e.newest = (e.newest + 1) % span
	e.ring[e.newest] = failure{at: at, cum: cum}
	e.timeouts <<= 1
	if timedOut {
		e.timeouts |= 1
	}
	e.n = min(e.n+1, span)
}

// reaches reports whether at least k failures are among the last 64 outcomes and not older than the horizon.
func (e *evidence) reaches(k int, now time.Duration) bool {
	return k <= int(e.n) && e.inSpan(k) && e.inTime(k, now)
}

// inSpan reports whether the k-th newest failure (from 1) is among the last 64 outcomes.
func (e *evidence) inSpan(k int) bool {
	return e.cum-e.back(k).cum <= uint64(span-k)
}

// inTime reports whether the k-th newest failure (from 1) is not older than the horizon.
func (e *evidence) inTime(k int, now time.Duration) bool {
	return now-e.back(k).at <= horizon
}

func (e *evidence) back(k int) *failure {
	return &e.ring[(int(e.newest)+1-k)&(span-1)]
}

// counts returns the failures, the timeouts among them and the successes of the last 64 outcomes that are not older than
// the horizon, given how many successes are not. It holds at the instant of a failure; later, successes are missing.
func (e *evidence) counts(now time.Duration, recent uint64) (f, timeouts, s int) {
	// Failures by count and by age, and successes by count and by age, are each the newest ones of the same sequence: what
	// meets both conditions is the smaller number.
	inSpan := newestWith(int(e.n), e.inSpan)
	f = newestWith(inSpan, func(k int) bool { return e.inTime(k, now) })
	timeouts = bits.OnesCount64(e.timeouts & (1<<f - 1))
	s = int(min(uint64(span-inSpan), e.cum, recent))
	return f, timeouts, s
}

// newestWith returns the largest k ≤ n for which ok holds, where ok holds up to some k and not beyond; 0 if there is none.
func newestWith(n int, ok func(k int) bool) int {
	if n == 0 || ok(n) {
		return n
	}
	lo, hi := 0, n // ok up to lo, not at hi
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; ok(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

func mostlyTimeouts(failures, timeouts int) bool { return failures > 0 && 2*timeouts >= failures }

// law holds, for each number of outcomes, the least number of failures that trips.
type law [span + 1]uint8

const never = 255

// leastFailures tabulates the least f with P(θ > x | Beta(1+f, 1+n−f)) ≥ confidence for n = 1 to 64.
//
// The regularized incomplete beta function of whole arguments is a binomial sum (DLMF 8.17.5):
// P(θ ≤ x) = I_x(f+1, n−f+1) = Σ_{k=f+1}^{m} C(m,k) x^k (1−x)^(m−k), m = n+1. Summed from its last term down it is exact to
// rounding, because nothing is subtracted, and the least f is where the sum passes 1−confidence.
func leastFailures(x, confidence float64) law {
	var l law
	l[0] = never
	power := x // x^n
	for n := 1; n <= span; n++ {
		power *= x
		m := n + 1
		term, sum := power, 0.0
		f := m // so far the sum over k > f, which is empty
		for f > 0 && sum+term <= 1-confidence {
			sum += term
			term *= float64(f) / float64(m-f+1) * (1 - x) / x
			f--
		}
		l[n] = uint8(max(f, 1))
		if f > n {
			l[n] = never
		}
	}
	return l
}

// fewest returns the least number of failures that can trip at all.
func (l *law) fewest() int {
	least := uint8(never)
	for _, f := range l {
		least = min(least, f)
	}
	return int(least)
}
