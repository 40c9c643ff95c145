package limit

import "math"

// integrate advances φ, the integral part of the shed fraction, by the control error over dt.
func (l *Limiter) integrate(s Sample, dt, now float64, arrived bool) {
	l.e, l.hasE = s.Gauge-gaugeOK, s.Gauge >= 0
	if arrived || s.InFlight > 0 {
		if idle := now - l.idleSince; idle > 1 && s.InFlight == 0 {
			l.phi *= math.Exp(-idle)
		}
		l.idleSince = now
	} else if now-l.idleSince > 1 {
		l.phi *= math.Exp(-dt)
	}
	if !l.warm || !l.on(Integral) {
		l.phi = 0
		return
	}
	q := l.Q(s.InFlight)
	e := max(-1, min(1, l.errorAt(q)))
	if l.phi == 0 && e <= 0 {
		return // as most of the time
	}
	ki := min(kiMax, max(kiMin, kiTau/l.tau))
	most := phiMax
	if q < setPoint+criticalSlack {
		// Winding up beyond the share of those who are not critical would only make the moment of overshoot longer for those
		// who are: the queue falls already. It takes a queue that overflows with nobody else in it.
		most = min(phiMax, max(l.phi, 1-l.CriticalShare()))
	}
	l.phi = max(0, min(most, l.phi+min(dt, 0.1)*ki*e))
}

// CriticalShare is the share of critical calls, those of the two highest levels, among those offered.
func (l *Limiter) CriticalShare() float64 {
	if l.pdSum <= 0 {
		return 0
	}
	n := 0.0
	for _, v := range l.pd[max(0, l.cfg.Levels-1) : l.cfg.Levels+1] {
		n += v
	}
	return n / l.pdSum
}

func (l *Limiter) errorAt(q float64) float64 {
	e := q - setPoint
	if l.byPressure {
		// The evidence gated by Q: 0.1875 is the weight of Q in E, so that the loop gain is the same.
		e = (l.evidence - 0.40) / 0.1875
		if q < 0.3 {
			e = min(e, q-0.3)
		}
	}
	if l.hasE && l.e > e {
		return l.e
	}
	return e
}

// Q is the queue pressure of n attempts in flight against the limit; it may exceed 1.
func (l *Limiter) Q(n int64) float64 {
	if !l.on(AdaptiveLimit) {
		return 0
	}
	free := float64(max(0, n))
	if l.w > 0 && l.on(ErrorOccupancy) {
		free = max(0, free-l.errOcc/l.w)
		if l.usual { // how many of those in flight are failures in the making is too rough an estimate where most of them are
			free = min(free, usualSlack*l.x*l.w0/l.w)
		}
	}
	q := free / min(l.limit, l.cwnd)
	if l.cfg.Max > 0 { // a bound of the user's is for all that is in flight, whatever becomes of it
		q = max(q, float64(n)/float64(l.cfg.Max))
	}
	return q
}

// ShedFraction is the share of the offered calls to shed at queue pressure q, lowest priority first, for a call that is
// critical or not. When a capacity is lost at once, the queue overshoots for a moment and the fraction passes what has to be
// shed in the end; the proportional part starts later for critical calls, so that the moment does not reach them.
func (l *Limiter) ShedFraction(q float64, critical bool) float64 {
	if critical {
		q -= criticalSlack
	}
	if !l.warm && q < 1 && !l.hasE {
		return max(l.remote, l.thrShed)
	}
	s := l.phi + kp*l.errorAt(q)
	if !l.warm && q < 1 {
		s = kp * l.e
	}
	if l.byPressure {
		s = max(s, (q-0.75)/0.5)
	}
	return max(0, min(1, max(s, l.remote, l.thrShed)))
}

// RefuseProbability maps a shed fraction through the observed distribution of priorities: 1 for those wholly inside the
// fraction counted from the lowest, 0 for those wholly above it.
func (l *Limiter) RefuseProbability(priority int, shed float64) float64 {
	if !(shed > 0) {
		return 0
	}
	priority = max(0, min(priority, l.cfg.Levels))
	lo, hi := 0.0, 1.0
	if l.pdSum > 0 {
		below := 0.0
		for p := range l.pd[:priority] {
			below += l.pd[p]
		}
		lo, hi = below/l.pdSum, (below+l.pd[priority])/l.pdSum
	}
	return RefuseProbability(lo, hi, shed)
}

// RefuseProbability is the chance that a call of a priority which takes the share [lo, hi] of the offered calls, counted
// from the lowest, falls into the fraction shed.
func RefuseProbability(lo, hi, shed float64) float64 {
	switch {
	case !(shed > lo): // also when it is not a number: unknown is not refused
		return 0
	case shed >= hi:
		return 1
	}
	return (shed - lo) / (hi - lo)
}

// Floor is the lowest priority that the fraction shed does not take whole.
func (l *Limiter) Floor(shed float64) int {
	below := 0.0
	for p := range l.pd[:l.cfg.Levels+1] {
		below += l.pd[p]
		if shed <= 0 || l.pdSum > 0 && below/l.pdSum > shed {
			return p
		}
	}
	return l.cfg.Levels
}

// Headroom is how many more attempts may enter before any could be refused: while they last, admission needs no look at the
// law. It is 0 when anything but an empty queue speaks.
func (l *Limiter) Headroom(inFlight int64) int64 {
	if l.phi > 0 || l.remote > 0 || l.thrShed > 0 || l.byPressure || l.hasE && l.e > 0 {
		return 0
	}
	if !l.on(AdaptiveLimit) {
		return math.MaxInt32
	}
	edge := setPoint
	if !l.warm {
		edge = 1
	}
	room := edge*min(l.limit, l.cwnd) - float64(inFlight) - 1
	if room <= 0 {
		return 0
	}
	return int64(min(room, math.MaxInt32))
}

// Price of a retry in tokens: 0.02 when failures do not depend on load, up to 1 when anything looks like load. l is the
// latency signal, q the queue pressure, slow the share of timeouts among failures.
func (l *Limiter) Price(latency, q, slow float64) float64 {
	if !l.on(LoadPrice) {
		return 1
	}
	return Price(latency, q, slow, max(l.phi, l.thrShed))
}

// Price is the law behind [Limiter.Price], phi the integral part of the shed fraction. The dead band on
// the latency signal matters: the noise of a P99 alone is no load.
func Price(latency, q, slow, phi float64) float64 {
	g := 0.0
	for _, v := range [...]float64{(latency - 0.2) / 0.3, (q - 0.25) / 0.25, slow} {
		if v > g { // false for NaN
			g = min(1, v)
		}
	}
	if phi > 0.02 {
		g = 1
	}
	return priceLow + (1-priceLow)*g
}

// Shed is the shed fraction of an idle controller (φ = 0) at queue pressure q: what one look without history decides.
func Shed(q float64) float64 {
	if !(q > setPoint) {
		return 0
	}
	return min(1, kp*(q-setPoint))
}
