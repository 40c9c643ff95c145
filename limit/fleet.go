package limit

import (
	"math"
	"time"
)

// Constants of the law for a fleet. They are in units of the delay and of the limit.
const (
	fleetDrain   = 1.5 // an excess of the queue is taken off within so many delays; below 1 the loop rings (P control of an integrator)
	fleetOnset   = 2.0 // standard deviations of a Poisson count above the set point at which shedding begins
	fleetRelease = 0.6 // what is left of the shed fraction a report later when the queue has fallen below half of its set point
	fleetSettle  = 4.0 // delays after the onset in which timeouts may be of the queue that had grown until then
)

// A Fleet is the law's view of a target that several guards send to, each a part of its calls: a [Limiter] that is advanced with the
// counts of all of them, merged, whenever these arrive, and a control that does not mind that they are late. It is not safe for
// concurrent use.
//
// With a delay d a queue cannot be steered by its own length at the gain of a single guard: P control of an integrator with a dead
// time needs Kp·k ≤ 1/(2d), where k is how fast the pressure rises for each unit of overload. What can be known in spite of the delay is
// how much is offered and how much comes out. So the shed fraction is fed forward from these two, and the length of the queue, as
// predicted for now, only trims it:
//
//	A = μ̂ + (N* − N')/(1.5·d)    N' = N + age·(λ·(1−s) − μ̂)    N* = Q*·limit    s = 1 − A/λ
type Fleet struct {
	l Limiter

	shed      float64
	regulates bool
	since     time.Duration // regulates began
	most      float64       // of shed, for critical calls
	q, n      float64       // of the newest counts
	offered   float64       // attempts asked for a second, those shed included
	age, span float64       // of the newest counts
}

// FleetSample is a [Sample] of all guards together. Its Now is when the counts end, on the clock of the guard that was told.
type FleetSample struct {
	Sample
	Span  time.Duration // that the counts cover
	Age   time.Duration // since their end
	Asked uint64        // attempts asked for: admitted or shed, retries included
}

// NewFleet returns the law of a fleet about which nothing is known yet.
func NewFleet(c Config) (*Fleet, error) {
	c.Off |= Integral // φ is this law's own
	l, err := New(c, false)
	if err != nil {
		return nil, err
	}
	l.crowd.off = true // here all are counted
	return &Fleet{l: *l, most: 1}, nil
}

// Law is the estimators, for reading.
func (f *Fleet) Law() *Limiter { return &f.l }

// Advance takes in counts. Those that end no later than the last ones are ignored.
func (f *Fleet) Advance(s FleetSample) {
	l := &f.l
	if s.Now <= l.last || s.Span <= 0 {
		return
	}
	l.last = max(l.last, s.Now-s.Span) // a report that was lost is no time without calls
	dt := (s.Now - l.last).Seconds()
	l.phi = f.shed // what shedding means to the baseline
	l.Advance(s.Sample)
	f.span, f.age = s.Span.Seconds(), max(0, s.Age.Seconds())
	f.control(&s, dt)
	l.phi = f.shed
}

func (f *Fleet) control(s *FleetSample, dt float64) {
	l := &f.l
	a := 1 - decay(dt/max(f.span, 5/max(f.offered, 1e-3)))
	f.offered += (float64(s.Asked)/dt - f.offered) * a
	limit := min(l.limit, l.cwnd)
	n := float64(max(0, s.InFlight))
	if l.w > 0 && l.on(ErrorOccupancy) {
		n = max(0, n-l.errOcc/l.w)
	}
	f.q = n / limit
	if !l.warm || !l.on(AdaptiveLimit) {
		f.shed, f.regulates = l.thrShed, false
		return
	}
	target := setPoint * limit
	coming := n + f.age*max(0, n-f.n)/dt // were it to go on as it went
	f.n = n
	if coming > target+fleetOnset*math.Sqrt(target) {
		if !f.regulates {
			f.since = l.last
		}
		f.regulates = true
	}
	was := f.shed
	f.shed, f.most = 0, 1
	if f.regulates && f.offered > 0 {
		ahead := n
		out := l.mu
		if was == 0 {
			ahead = coming
			if s.TimedOut == 0 { // all that left was served
				out = min(out, float64(s.Success)/dt)
			}
		} else if n > target {
			ahead = max(0, n+f.age*(f.offered*(1-was)-out))
		}
		drain := max(2*l.tau, fleetDrain*(f.age+f.span))
		rate := out + (target-ahead)/drain
		shed := 1 - rate/f.offered
		if n < target/2 {
			shed = min(shed, was*fleetRelease)
		}
		f.shed = max(0, min(phiMax, shed))
		if f.shed < 0.01 && n < target {
			f.shed, f.regulates = 0, false
		}
		if ahead < (setPoint+criticalSlack)*limit {
			f.most = 1 - l.CriticalShare()
		}
	}
	f.shed = max(f.shed, f.slowStart(), l.thrShed)
}

// slowStart is what is shed while the number in flight ramps up: the ramp in calls a second, by Little's law.
func (f *Fleet) slowStart() float64 {
	l := &f.l
	if math.IsInf(l.cwnd, 1) || l.w0 <= 0 || f.offered <= 0 {
		return 0
	}
	return max(0, min(phiMax, 1-l.cwnd/l.w0/f.offered))
}

// Restart begins a new generation after the fleet's circuit closed.
func (f *Fleet) Restart() {
	f.l.Restart(0)
	f.most, f.regulates, f.q, f.n = 1, false, 0, 0
	f.shed = f.slowStart()
}

// Settles reports whether shedding began so lately that what is seen may still be the queue of before.
func (f *Fleet) Settles() bool {
	return f.regulates && (f.l.last-f.since).Seconds() < fleetSettle*(f.age+f.span)
}

// Q is the queue pressure of the fleet, as of the newest counts.
func (f *Fleet) Q() float64 { return f.q }

// ShedFraction is the share of the offered calls to shed, for a call that is critical or not.
func (f *Fleet) ShedFraction(critical bool) float64 {
	if critical {
		return min(f.shed, f.most)
	}
	return f.shed
}
