package limit

import "math"

// throttle follows a target that answers only so many calls a second and refuses the others with a 429. How many it is cannot be told
// from a queue, but from the answers. The admitted rate falls by a fixed share with every 429, though not below what is accepted, and
// rises with every success, the more the longer none was refused: at one refusal in twenty answers the two cancel out.
//
// It is counted in answers, so that the loop is as stable at 1 call a second as at 1,000, and a limit that has gone is found out by the
// calls that are still admitted. A guard of a few calls a second, one of many before the target, would take half a minute for that: seconds
// without a 429 count, too, as far as some of its calls were answered in them.
type throttle struct {
	accepted, refused, out, w float64 // a second: EWMAs with the same fill
	rate                      float64 // that is admitted; 0 = no limit known
	run                       float64 // successes since the last 429
	calm                      float64 // s since it
}

const (
	throttleMemory = 15   // answers
	throttleFirst  = 1.5  // 429s within that memory before anything is made of them: more than one
	throttleOK     = 0.05 // share of 429s at which rise and fall cancel out: below it there would be no telling where the limit is
	throttleRise   = 1.0 / 800
	throttleFall   = throttleRise * (1/throttleOK - 1) / throttleOK / 2 // the sum of the rises of 19 successes in a row, or nearly
	throttleRun    = 160                                                // at which the rise no longer grows
	throttleSure   = 0.75                                               // of what is accepted is admitted in any case; the rest is for retries
	throttleTime   = 0.1                                                // growth a second, for each second without a 429
	throttleSteep  = 2                                                  // at most
	throttleThin   = 5                                                  // answers in which it is at most e-fold
	throttleLeast  = 0.05                                               // of the offered rate likewise
)

// advance takes in the answers of dt; lambda is the offered rate.
func (t *throttle) advance(s *Sample, dt, lambda float64) {
	if t.rate == 0 && t.refused == 0 && s.Throttled == 0 {
		t.accepted, t.out, t.w = 0, 0, 0
		return
	}
	tau := math.Min(10, math.Max(0.2, throttleMemory/math.Max(math.Max(t.rate, lambda*throttleLeast), 1e-9)))
	if t.rate == 0 && lambda > 0 {
		tau = math.Min(10, math.Max(0.2, throttleMemory/lambda))
	}
	a := math.Exp(-dt / tau)
	in := (1 - a) / dt
	t.accepted = t.accepted*a + float64(s.Success)*in
	t.refused = t.refused*a + float64(s.Throttled)*in
	t.out = t.out*a + float64(s.Success+s.Failure+s.TimedOut+s.Throttled)*in
	t.w = t.w*a + 1 - a
	if t.refused*tau < 1e-3 {
		t.refused = 0
	}
	if t.rate == 0 {
		if t.refused > throttleOK*t.out && t.refused*tau >= throttleFirst {
			t.rate, t.run, t.calm = math.Max(t.accepted/t.w, math.Min(lambda, t.out/t.w)), 0, 0
		}
		return
	}
	if n := float64(s.Throttled); n > 0 {
		t.rate *= math.Exp(-throttleFall * n)
		t.run, t.calm = 0, 0
	} else {
		t.calm += dt
	}
	if t.run > 0 {
		t.rate *= math.Exp(dt * min(throttleSteep, throttleTime*t.calm, t.rate/throttleThin))
	}
	if n := float64(s.Success); n > 0 {
		t.rate *= math.Exp(math.Min(3, throttleRise*n*math.Min(throttleRun, t.run+n/2)))
		t.run += n
	}
	t.rate = math.Max(t.rate, math.Max(throttleSure*t.accepted/t.w, throttleLeast*lambda))
	if !(t.rate <= 1.1*lambda) && (t.run >= 1/throttleOK || t.run > 0 && t.calm > 3) { // shorter runs never outweigh a fall: what grows comes by here
		t.rate = 0
	}
}

// shed is the share of the offered rate that is too much.
func (t *throttle) shed(lambda float64) float64 {
	if t.rate == 0 || lambda <= t.rate*(1+1e-9) {
		return 0
	}
	return 1 - t.rate/lambda
}
