package breaker

import (
	"math"
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
	head     uint8  // index of the newest in ring
	n        uint8  // failures in ring
	run      uint32 // failures since the last success
	share    uint8  // successes among the outcomes before the run, in 255ths; 255 where most of them were successes
}

// failure is one failed attempt. Both fields never fall from one to the next.
type failure struct {
	at  time.Duration
	cum uint64
}

func (e *evidence) clear() { e.timeouts, e.cum, e.n, e.run = 0, 0, 0, 0 }

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
	if e.run == 0 || cum != e.cum {
		e.run = 0
		e.share = e.before(at, cum)
	}
	e.run++
	e.cum = cum
	e.head = (e.head + 1) % span
	e.ring[e.head] = failure{at: at, cum: cum}
	e.timeouts <<= 1
	if timedOut {
		e.timeouts |= 1
	}
	e.n = min(e.n+1, span)
}

// before is the share of successes among the last 64 outcomes, as a run of failures begins.
func (e *evidence) before(now time.Duration, cum uint64) uint8 {
	const most = math.MaxUint8
	if !e.reaches(outcomesThatTell, now) { // the common case: isolated failures
		return most
	}
	cum, e.cum = e.cum, cum
	f, _, s := e.counts(now, math.MaxUint64)
	e.cum = cum
	if s > f {
		return most
	}
	// Less a standard deviation: counted too high, it would make an ordinary run look extraordinary.
	return uint8(most * (float64(s) - math.Sqrt(float64(s)) + 0.5) / float64(f+s+1))
}

// outcomesThatTell is the number of failures from which on the share of successes beside them means anything.
const outcomesThatTell = 8

// ordinary reports whether a target that has been answering this share of its calls would make a run of failures as long as this
// one by chance, with a probability of at least 1 in 10,000; longest bounds what is taken for chance.
func (e *evidence) ordinary(longest int) bool {
	if e.share == math.MaxUint8 || e.run >= uint32(longest) {
		return false
	}
	const chance = 1e-4
	return float64(e.run)*math.Log1p(-float64(e.share)/math.MaxUint8) > math.Log(chance)
}

// straight is the number of failures in a row up to now, of those that are evidence.
func (e *evidence) straight(now time.Duration) int { return int(min(uint32(e.newest(now)), e.run)) }

// reaches reports whether at least k ≥ 1 failures are among the last 64 outcomes and not older than the horizon.
func (e *evidence) reaches(k int, now time.Duration) bool {
	if k > int(e.n) {
		return false
	}
	kth := &e.ring[(int(e.head)+1-k)&(span-1)] // from the newest
	return e.cum-kth.cum <= uint64(span-k) && now-kth.at <= horizon
}

// counts returns the failures, the timeouts among them and the successes of the last 64 outcomes that are not older than
// the horizon, given how many successes are not. It holds at the instant of a failure; later, successes are missing.
func (e *evidence) counts(now time.Duration, recent uint64) (f, timeouts, s int) {
	// Successes by count, by generation and by age are each the newest ones of the same sequence, so those that meet all
	// three conditions are the smallest of the numbers.
	f = e.newest(now)
	timeouts = bits.OnesCount64(e.timeouts & (1<<f - 1))
	s = int(min(uint64(span-f), e.cum, recent))
	return f, timeouts, s
}

// newest returns the largest k that reaches holds for; it holds up to there and not beyond.
func (e *evidence) newest(now time.Duration) int {
	lo, hi := 0, int(e.n)+1 // reached at lo, not at hi
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; e.reaches(mid, now) {
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
