package limit

import "math"

// A guard of a few calls a second cannot tell a queue from its own number in flight: a target that is shared with many others like it may
// be drowning while none of them ever has two attempts in flight. What it can tell is that its answers come late or not at all. Each such
// answer raises what is shed by a step and each quick one lowers it: counted in answers, so that nothing lags behind its own evidence, and
// many small guards together come to a rate that is answered in time, as flows with multiplicative decrease and additive increase do.
type crowd struct {
	level float64
	off   bool
}

const (
	crowdCut    = 0.4  // of what is left, for a timeout
	crowdLate   = 0.1  // the same for a success beyond the target sojourn time
	crowdInTime = 0.05 // given back for one within it
	crowdFree   = 0.3  // of the level sheds nothing: a late answer or two are chance
	crowdFade   = 15.0 // s; where everything is refused no answer tells of better times
	// crowdAlone is the number in flight in peace from which it says enough by itself. Below, a queue of the target's is not this
	// guard's doing.
	crowdAlone = 0.25
)

func (c *crowd) advance(l *Limiter, s *Sample, dt float64) {
	if c.off || l.n0 > crowdAlone || l.successes == 0 {
		c.level = 0
		return
	}
	patient := s.TimedOut - min(s.Cut, s.TimedOut)
	if c.level == 0 && patient+s.Late == 0 {
		return
	}
	c.level = 1 - (1-c.level)*math.Pow(1-crowdCut, float64(patient))*math.Pow(1-crowdLate, float64(s.Late))
	c.level = max(0, min(phiMax, c.level-crowdInTime*float64(s.InTime)))
	if c.level *= decay(dt / crowdFade); c.level < 1e-3 {
		c.level = 0
	}
}

func (c *crowd) shed() float64 { return max(0, (c.level-crowdFree)/(1-crowdFree)) }

// slack is the room for chance in the floor under the limit. Where a guard has little in flight by itself it is most of the floor, and the
// slacks of many guards add up: there it is less where the mean sojourn time says that it is no chance.
func (l *Limiter) slack() float64 {
	const most, least = 5, 1
	if l.n0 > 1 || l.w <= 0.3 || l.x*l.tauX < 1 {
		return most
	}
	over := l.queueing()/l.x/l.tau - 1
	return most - (most-least)*max(0, min(1, over))
}
