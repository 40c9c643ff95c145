package window

import (
	"math"
	"math/bits"
)

// Counts are numbers of finished attempts by outcome. Neutral outcomes and refusals are not attempts that say something
// about the target, so they have no place here.
type Counts struct {
	// Success counts attempts that were answered as they should be.
	Success uint64
	// Failure counts attempts that failed by themselves, without those in Timeout.
	Failure uint64
	// Timeout counts attempts that were given up because they took too long.
	Timeout uint64
	// Throttled counts attempts that the target refused for its rate limit (429 and kin). They say that the target is alive
	// and busy: they are neither successes nor failures, and no part of Total.
	Throttled uint64
}

// Failures returns Failure + Timeout, at most math.MaxUint64.
func (c Counts) Failures() uint64 { return addSat(c.Failure, c.Timeout) }

// Total returns Success + Failure + Timeout, at most math.MaxUint64. Throttled attempts are not counted.
func (c Counts) Total() uint64 { return addSat(c.Success, c.Failures()) }

// Add returns the sums, each at most math.MaxUint64.
func (c Counts) Add(o Counts) Counts {
	return Counts{
		Success:   addSat(c.Success, o.Success),
		Failure:   addSat(c.Failure, o.Failure),
		Timeout:   addSat(c.Timeout, o.Timeout),
		Throttled: addSat(c.Throttled, o.Throttled),
	}
}

// Sub returns the differences, each at least 0.
func (c Counts) Sub(o Counts) Counts {
	return Counts{
		Success:   c.Success - min(c.Success, o.Success),
		Failure:   c.Failure - min(c.Failure, o.Failure),
		Timeout:   c.Timeout - min(c.Timeout, o.Timeout),
		Throttled: c.Throttled - min(c.Throttled, o.Throttled),
	}
}

func addSat(a, b uint64) uint64 {
	s, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return s
}
