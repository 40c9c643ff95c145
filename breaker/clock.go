package breaker

import "time"

// clock turns the caller's axis into one that never steps back and whose steps are bounded. Instants on it are compared by
// difference only, which stays right if it ever wraps.
type clock struct {
	begun bool
	last  time.Duration // newest now seen
	t     time.Duration
}

const (
	// Callers read the time before they take the lock, so a slightly older now is ordinary and must not make later ones
	// count twice; a step back beyond this is a new origin, or an open circuit would wait until the old one is reached.
	backlash = time.Second
	// No timer is longer than longestTimer, so a longer step changes nothing but could overflow.
	longestStep = 2 * longestTimer
)

func (c *clock) advance(now time.Duration) time.Duration {
	// Differences of any two durations fit an unsigned number.
	switch ahead, behind := uint64(now)-uint64(c.last), uint64(c.last)-uint64(now); {
	case !c.begun:
		c.begun, c.last = true, now
	case now > c.last:
		c.t += time.Duration(min(ahead, uint64(longestStep)))
		c.last = now
	case behind > uint64(backlash):
		c.last = now
	}
	return c.t
}
