// Package limit holds the adaptive law's view of a target's capacity: an in-flight limit from Little's law, the shed
// fraction under PI control on the queue, and the distribution of priorities that the fraction is mapped through.
//
// No constant of it is in units of a machine: rates, latencies and limits are learned. docs/law.md says what the law is as
// built. A [Limiter] is not safe for concurrent use: the engine advances it under its own lock, at most once a
// millisecond, from the differences of counters and the exact integral of the number in flight.
package limit

import (
	"fmt"
	"math"
	"time"
)

// MaxLevels is the highest number of priority levels.
const MaxLevels = 31

// Constants of the law.
const (
	alpha      = 0.35 // share of the slack between the healthy P99 and the timeout that queueing may take
	setPoint   = 0.5  // Q*: at it the mean sojourn time is τ*
	kp         = 1.0  // proportional gain; by itself the fuse: at Q = 1.5 everything is refused
	kiTau      = 0.8  // integral gain × τ*: the plant is an integrator, so the gain must scale with 1/τ*
	kiMin      = 0.05
	kiMax      = 5.0
	phiMax     = 0.98 // anti-windup; a trickle always gets through
	kappaMin   = 0.1
	kappaBack  = 30.0 // s
	leak       = 60.0 // s: without load nothing is learned about capacity, so the estimate leaks
	n0Tau      = 10.0 // s
	priceLow   = 0.02 // price of a retry when failures do not depend on load
	warmCount  = 100  // successes that end the warm-up
	coldLimit  = 20   // least limit until then
	burstLimit = 128  // in the first second, before any rate is known: a pool of clients may start all at once
	// criticalSlack is by how much more queue pressure critical calls are refused than others.
	criticalSlack = 0.75
	gaugeOK       = 0.8 // fill of a user's own queue that sheds nothing
)

// Ingredients is a set of parts of the adaptive law, for switching them off one at a time. It is for the laboratory's
// ablation table, not for operation.
type Ingredients uint32

// Parts of the law that can be switched off.
const (
	AdaptiveLimit   Ingredients = 1 << iota // no limit at all: Q stays 0
	HealthyFloor                            // no N0 floor under the limit
	FloorScale                              // κ stays 1
	Integral                                // P control only
	ErrorOccupancy                          // fast errors count as queue
	BaselineFreeze                          // the baseline learns in trouble too
	WarmUp                                  // no cold-start rule
	SlowStart                               // no ramp after a circuit closes
	Circuit                                 // never opens
	EvidenceTrip                            // opens on outcomes only
	GenerationReset                         // old evidence survives a transition
	ProbeLease                              // a probe holds its slot until it returns
	LoadPrice                               // every retry costs one token
	ShortWindows                            // 60 s window for signals
)

// Config bounds the limit. The zero value leaves it to the law.
type Config struct {
	Levels int         // priority levels, 1 to MaxLevels; zero = 10
	Min    int         // the limit never falls below it; zero = 2
	Max    int         // the limit never rises above it, and what is in flight counts against it undiscounted; zero = no bound
	Off    Ingredients // ablation
}

// ConfigError says which field of a [Config] cannot be used and what would be right.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v: want %s", e.Field, e.Value, e.Want) }

// Normalize fills in defaults and checks the rest; the error names the field.
func (c Config) Normalize() (Config, error) {
	if c.Levels == 0 {
		c.Levels = 10
	}
	if c.Min == 0 {
		c.Min = 2
	}
	switch {
	case c.Levels < 1 || c.Levels > MaxLevels:
		return c, &ConfigError{Field: "Levels", Value: c.Levels, Want: fmt.Sprintf("from 1 to %d", MaxLevels)}
	case c.Min < 1:
		return c, &ConfigError{Field: "Min", Value: c.Min, Want: "at least 1, or 0 for 2"}
	case c.Max < 0:
		return c, &ConfigError{Field: "Max", Value: c.Max, Want: "0 for no bound, or more"}
	case c.Max > 0 && c.Max < c.Min:
		return c, &ConfigError{Field: "Max", Value: c.Max, Want: fmt.Sprintf("not below Min, %d", c.Min)}
	}
	return c, nil
}

// Sample is what happened since the last [Limiter.Advance].
type Sample struct {
	Now       time.Duration
	InFlight  int64   // now
	Area      float64 // ∫N dt since the last sample, in seconds
	ErrorArea float64 // the sum of the latencies of fast errors and throttled answers, in seconds
	Success   uint64
	Failure   uint64 // fast ones
	TimedOut  uint64
	Cut       uint64 // of TimedOut, by a timeout shorter than the one that tells a slow target from a dead one
	InTime    uint64 // successes within [Limiter.Target], of those whose latencies were collected
	Late      uint64 // the others of them
	Throttled uint64
	Offered   *[MaxLevels + 1]uint64 // first attempts by priority; nil = none
	Timeout   time.Duration          // attempt timeout in force
	Deadline  time.Duration          // typical time a caller has; 0 = unlimited
	P99       time.Duration          // of the shortest window that can tell; 0 = none
	Usual     bool                   // answers are as fast as usual beside failures that take long: those wait in no queue
	Calm      bool                   // pressure low and circuit closed: the baseline may learn
	Gauge     float64                // fill of a user's queue, in [0,1]; negative = none
	Evidence  float64                // E, used by ShedByPressure only
	Remote    float64                // share that the target's own guard sheds, as far as it is trusted
}

// Limiter is the law's state. Times inside are in seconds.
type Limiter struct {
	cfg        Config
	byPressure bool
	last       time.Duration
	first      time.Duration // first arrival
	started    bool
	warm       bool
	frozen     bool

	x, nbar, w, errOcc float64 // EWMAs with τx, same fill
	throttle           throttle
	crowd              crowd
	thrShed            float64 // share that a throttling target makes too much
	mu                 float64 // capacity estimate, successes a second
	muCalm             float64 // before the trouble that goes on now
	w0, b99, n0        float64 // baseline
	tau                float64 // τ*
	tauX               float64
	te                 float64 // that τ* and τx were set by; 0: they are to be set anew
	phi                float64
	kappa              float64
	lambda, lambdaW    float64
	pd                 [MaxLevels + 1]float64
	pdSum              float64
	limit              float64
	cwnd, cwnd0        float64 // cwnd = +Inf: no ramp
	e                  float64 // the control error without the in-flight part
	hasE               bool
	usual              bool
	evidence, remote   float64

	successes, arrivals uint64
	area, errArea       float64 // since the first arrival, during warm-up
	blockArea, blockErr float64
	blockStart          float64
	blockOK             uint64
	idleSince           float64
}

// New returns a limiter; byPressure drives shedding by the evidence gated by Q instead of Q alone (DESIGN 4).
func New(c Config, byPressure bool) (*Limiter, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, err
	}
	l := &Limiter{cfg: c, byPressure: byPressure, kappa: 1, cwnd: math.Inf(1), limit: burstLimit}
	l.warm = c.Off&WarmUp != 0
	return l, nil
}

func (l *Limiter) on(i Ingredients) bool { return l.cfg.Off&i == 0 }

// Advance brings the estimators to s.Now. A sample that is not later than the last one is ignored, so its counts must be
// carried into the next.
func (l *Limiter) Advance(s Sample) {
	dt := (s.Now - l.last).Seconds()
	if dt <= 0 {
		return
	}
	s.sanitize()
	l.last = s.Now
	now := s.Now.Seconds()
	arrived := l.offered(s.Offered, dt)
	if !l.started {
		if arrived == 0 && s.Success+s.Failure+s.TimedOut+s.Throttled == 0 {
			return
		}
		l.started, l.first, l.blockStart = true, s.Now, now
	}
	te := effectiveTimeout(s.Timeout, s.Deadline)
	l.evidence, l.remote, l.usual = s.Evidence, s.Remote, s.Usual
	if te != l.te { // else it is as the last sample left it
		l.sojournTarget(te)
	}

	a := decay(dt / l.tauX)
	in := (1 - a) / dt
	l.x = l.x*a + float64(s.Success)*in
	l.nbar = l.nbar*a + s.Area*in
	l.errOcc = l.errOcc*a + s.ErrorArea*in
	l.w = l.w*a + 1 - a

	busy := l.busy()
	l.capacity(busy, a, dt)
	l.successes += s.Success
	l.arrivals += arrived
	if l.warm {
		l.baseline(s, now, dt, busy)
	} else {
		l.warmUp(s, te, busy)
	}
	l.sojournTarget(te)
	if l.kappa < 1 {
		l.kappa += (1 - l.kappa) * (1 - decay(dt/kappaBack))
	}
	l.setLimit(te)
	l.ramp(s.Success, s.TimedOut)
	l.throttle.advance(&s, dt, l.OfferedRate())
	l.crowd.advance(l, &s, dt)
	l.thrShed = max(l.throttle.shed(l.OfferedRate()), l.crowd.shed())
	l.integrate(s, dt, now, arrived > 0)
}

// sanitize makes what is not a number say nothing: one NaN in an average would stay for ever.
func (s *Sample) sanitize() {
	known := func(v *float64, most float64) {
		switch {
		case *v >= 0 && *v <= most:
		case *v > most && !math.IsInf(*v, 1):
			*v = most
		default:
			*v = 0
		}
	}
	s.InFlight = max(0, s.InFlight)
	known(&s.Area, math.MaxInt64)
	known(&s.ErrorArea, math.MaxInt64)
	known(&s.Evidence, 1)
	known(&s.Remote, 1)
	if !(s.Gauge >= 0 && s.Gauge <= 1) {
		s.Gauge = -1
	}
}

// decay is exp(−x), what x time constants leave of an average. Ticks are short and time constants long: below 1/32, eight terms of
// the series are as exact as a float64 (the next is x⁸/8! < 2⁻⁵⁵, and only the last subtraction rounds) and cost less than
// [math.Exp].
func decay(x float64) float64 {
	if x >= 0 && x < 1.0/32 {
		xx := x * x
		return 1 - (x - xx*((1.0/2-x*(1.0/6))+xx*((1.0/24-x*(1.0/120))+xx*(1.0/720-x*(1.0/5040)))))
	}
	return math.Exp(-x)
}

func effectiveTimeout(timeout, deadline time.Duration) float64 {
	te := timeout.Seconds()
	if d := deadline.Seconds(); d > 0 && (te <= 0 || d < te) {
		te = d
	}
	if te <= 0 {
		te = 1
	}
	return te
}

func (l *Limiter) offered(by *[MaxLevels + 1]uint64, dt float64) (n uint64) {
	if by == nil {
		return 0
	}
	fade := decay(dt / 20)
	sum := 0.0
	pd := l.pd[:l.cfg.Levels+1]
	for p, k := range by[:len(pd)] {
		v := pd[p] * fade
		if k > 0 {
			n += k
			v += float64(k)
		}
		pd[p] = v
		sum += v
	}
	l.pdSum = sum
	a := decay(dt / 5)
	l.lambda = l.lambda*a + float64(n)/dt*(1-a)
	l.lambdaW = l.lambdaW*a + 1 - a
	return n
}

// sojournTarget sets τ* and τx.
func (l *Limiter) sojournTarget(te float64) {
	l.te = te
	if l.w0 > 0 {
		l.tau = max(1.5*l.w0, l.w0+alpha*max(0, te-l.b99))
	} else {
		l.tau = 0.3 * te
	}
	l.tauX = 10.0
	if l.mu > 0 { // the remembered capacity: a stall does not lengthen its own window
		l.tauX = min(10, max(0.2, max(30/l.mu, 2*l.tau)))
	}
}

// queueing is the EWMA of the number in flight without those that will end as fast errors.
func (l *Limiter) queueing() float64 {
	if !l.on(ErrorOccupancy) {
		return l.nbar
	}
	n := max(0, l.nbar-l.errOcc)
	if l.usual {
		n = min(n, usualSlack*l.x*l.w0)
	}
	return n
}

// usualSlack is by how much more than Little's law says there may be in flight, where answers are as fast as usual.
const usualSlack = 1.5

func (l *Limiter) busy() bool {
	n := l.queueing()
	return l.w > 0 && n/l.w >= 1.5 && n > l.x*l.tau
}

func (l *Limiter) capacity(busy bool, a, dt float64) {
	if l.w <= 0 {
		return
	}
	rate := l.x / l.w
	if busy { // what comes out under saturation is the capacity
		l.mu += (rate - l.mu) * (1 - a)
		return
	}
	l.mu *= decay(dt / leak)
	if rate > l.mu && l.x*l.tauX >= 3 && l.w > 0.3 {
		l.mu += (rate - l.mu) * (1 - a)
	}
}

// warmUp learns everything by Little's law over the whole warm-up, both ways, no freeze. The cap of 0.3·Te keeps a cold
// start inside an incident from learning it; ∫N dt per success, residence of timeouts included, is the same quantity as the
// sojourn it is compared with later (survivors alone would make a healthy target look busy for ever).
func (l *Limiter) warmUp(s Sample, te float64, busy bool) {
	l.area += s.Area
	l.errArea += s.ErrorArea
	elapsed := (s.Now - l.first).Seconds()
	if l.successes > 0 {
		l.w0 = min(max(0, l.area-l.errArea)/float64(l.successes), 0.3*te)
	}
	if elapsed > 0 {
		l.n0 = l.w0 * float64(l.successes) / elapsed
		rate := float64(l.arrivals) / elapsed
		if l.w > 0 {
			rate = max(rate, l.x/l.w)
		}
		l.mu = rate
	}
	if s.P99 > 0 {
		l.b99 = s.P99.Seconds()
	}
	if l.successes >= warmCount && (elapsed >= max(1, 10*l.w0) || elapsed >= 3*l.w0 && busy) {
		l.warm = true
		l.block(s.Now.Seconds())
	}
}

func (l *Limiter) block(now float64) {
	l.blockStart, l.blockArea, l.blockErr, l.blockOK = now, 0, 0, 0
}

// baseline moves W0, B99 and N0 toward what calm operation shows: fast downward, slowly upward, not at all in trouble.
func (l *Limiter) baseline(s Sample, now, dt float64, busy bool) {
	l.frozen = l.on(BaselineFreeze) && (!s.Calm || l.phi > 0.01 || l.thrShed > 0.01 || busy)
	if l.frozen {
		l.block(now)
		return
	}
	l.muCalm = l.mu
	l.n0 += (l.queueing()/max(l.w, 1e-9) - l.n0) * (1 - decay(dt/n0Tau)) * l.w
	l.blockArea += s.Area
	l.blockErr += s.ErrorArea
	l.blockOK += s.Success
	length := now - l.blockStart
	if l.blockOK < 50 || length < 0.5 {
		return
	}
	up := 60.0
	if l.successes < 2_000 {
		up = 5
	}
	toward := func(v, to float64) float64 {
		if v <= 0 {
			return to
		}
		tau := up
		if to < v {
			tau = 5
		}
		return v + (to-v)*(1-decay(length/tau))
	}
	l.w0 = toward(l.w0, max(0, l.blockArea-l.blockErr)/float64(l.blockOK))
	if s.P99 > 0 {
		l.b99 = toward(l.b99, s.P99.Seconds())
	}
	l.block(now)
}

func (l *Limiter) setLimit(te float64) {
	limit := l.mu * l.tau / setPoint
	if l.on(HealthyFloor) {
		k := l.kappa
		if !l.on(FloorScale) {
			k = 1
		}
		// 3√N0 + 5 is Poisson slack: no false refusals at low traffic.
		limit = max(limit, k*(2*l.n0+3*math.Sqrt(l.n0)+l.slack()))
	}
	if !l.warm {
		least := float64(coldLimit)
		if l.last-l.first < time.Second {
			least = burstLimit
		}
		limit = max(max(least, limit), l.mu*max(l.tau, 0.3*te)/setPoint)
	}
	limit = max(limit, float64(l.cfg.Min))
	if l.cfg.Max > 0 {
		limit = min(limit, float64(l.cfg.Max))
	}
	l.limit = limit
}

// ramp is slow start on in-flight, clocked by the target's own answers: it doubles a round trip and takes longer by itself
// when the target is slow.
func (l *Limiter) ramp(success, timeouts uint64) {
	if math.IsInf(l.cwnd, 1) {
		return
	}
	l.cwnd = max(l.cwnd0, l.cwnd+float64(success)-0.5*float64(timeouts))
	if l.cwnd >= l.limit {
		l.cwnd = math.Inf(1)
	}
}

// Tripped tells that the circuit opened; slow, that at least half of the failures were timeouts: the floor proved too high
// and is halved.
func (l *Limiter) Tripped(slow bool) {
	if slow {
		l.kappa = max(kappaMin, l.kappa/2)
	}
}

// Restart begins a new generation after a circuit closed: rates are forgotten, capacity and baseline kept, in-flight ramps up. So many of
// the attempts in flight are abandoned: they hang since before the outage ended, and the ramp begins above them.
func (l *Limiter) Restart(abandoned float64) {
	l.x, l.nbar, l.w, l.errOcc = 0, 0, 0, 0
	l.phi, l.crowd.level = 0, 0
	l.te = 0
	l.mu = max(l.mu, l.muCalm) // that nothing came out of a dead target says nothing of what a living one can do
	if l.on(SlowStart) {
		l.cwnd0 = max(2, l.n0/4) + min(abandoned, 2*l.n0+3*math.Sqrt(l.n0)+5) // no more were let in
		l.cwnd = l.cwnd0
	}
	l.block(l.last.Seconds())
}

// Frozen reports whether the target is in trouble, so that nothing is to be learned of its healthy operation. It is false
// during the cold start.
func (l *Limiter) Frozen() bool { return l.frozen }

// Warm reports whether the cold start is over.
func (l *Limiter) Warm() bool { return l.warm }

// Limit is the number of attempts in flight at which Q is 1.
func (l *Limiter) Limit() float64 { return min(l.limit, l.cwnd) }

// Target is the mean sojourn time that is aimed at under load, τ*.
func (l *Limiter) Target() time.Duration { return seconds(l.tau) }

// Capacity is the estimated capacity in successes a second.
func (l *Limiter) Capacity() float64 { return l.mu }

// OfferedRate is the rate of first attempts a second, averaged over 5 s.
func (l *Limiter) OfferedRate() float64 {
	if l.lambdaW <= 0 {
		return 0
	}
	return l.lambda / l.lambdaW
}

// Baseline of healthy operation: the mean sojourn, the P99 latency and the number in flight; warm is false until the cold
// start is over.
func (l *Limiter) Baseline() (sojourn, p99 time.Duration, inFlight float64, warm bool) {
	return seconds(l.w0), seconds(l.b99), l.n0, l.warm
}

func seconds(s float64) time.Duration {
	if !(s > 0) {
		return 0
	}
	if s >= math.MaxInt64/1e9 {
		return math.MaxInt64
	}
	return time.Duration(s * 1e9)
}
