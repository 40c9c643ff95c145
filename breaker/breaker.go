// Package breaker is the circuit: a state machine with generations and probe leases.
//
// A closed circuit admits everything, an open one nothing but probes. Two laws decide when it opens and how it probes:
// the article's (a posterior mean, 30 s open, one probe per 5 s) and the adaptive one (a posterior probability over the
// last 64 outcomes, probes from 0.1 s to 1 s apart, each with a lease). Above both stands an operator's order (Force).
//
// The package holds no windows, calls nobody back and has no clock: its owner passes the time and the numbers in.
//
//	b, err := breaker.New(breaker.Config{Rand: rng.Float64})
//	...
//	if b.Failure(now, timedOut, successes, success60) { // an attempt failed while closed
//		b.Trip(now, rate)
//	}
//	if p, ok := b.TryProbe(now, lease); ok { // a call arrived while not closed
//		... // one attempt
//		used, closed := b.ProbeDone(now, p, breaker.ProbeSucceeded, latency, rate)
//	}
//
// A Breaker is not safe for concurrent use: its owner's mutex guards it, State and NextProbe included, because leases run
// out lazily, in whichever call finds them old.
//
// Every now is a time on one monotonic axis with an arbitrary origin. Going backwards means that no time has passed.
package breaker

import (
	"math"
	"strconv"
	"time"
)

// State is what a circuit lets through: everything, a probe, or nothing.
type State uint8

// The states, in the order of their pressure. The zero value is Closed.
const (
	Closed State = iota
	HalfOpen
	Open
)

// String returns "closed", "half-open" or "open".
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// Pressure is the signal C: 0 when closed, 0.5 when half-open, 1 when open.
func (s State) Pressure() float64 {
	return min(float64(s)/float64(Open), 1)
}

// Forcing is what an operator has ordered a circuit to be.
type Forcing uint8

// Forcings. The zero value is Automatic.
const (
	Automatic    Forcing = iota // it opens and closes by its law
	ForcedOpen                  // it admits nothing, not even a probe, for as long as the order stands
	ForcedClosed                // it does not open
)

// String returns "auto", "open" or "closed".
func (f Forcing) String() string {
	switch f {
	case Automatic:
		return "auto"
	case ForcedOpen:
		return "open"
	case ForcedClosed:
		return "closed"
	}
	return "Forcing(" + strconv.Itoa(int(f)) + ")"
}

// MarshalText makes a forcing its word in JSON.
func (f Forcing) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// Probe names one admitted probe until its result is handed to ProbeDone. The zero value names none.
type Probe struct {
	// ID counts the probes of one Breaker, from 1.
	ID uint64
}

// ProbeResult is how a probe ended. The zero value, like every unknown one, is no verdict and acts as ProbeReleased.
type ProbeResult uint8

const (
	// ProbeSucceeded counts towards closing.
	ProbeSucceeded ProbeResult = iota + 1
	// ProbeFailed is a failure that came back in time.
	ProbeFailed
	// ProbeTimedOut is a failure by timeout: it also widens the adaptive gap between probes.
	ProbeTimedOut
	// ProbeThrottled is an answer 429 or kin: the target is alive, so it counts like a success.
	ProbeThrottled
	// ProbeReleased is no verdict (the caller cancelled, the error says nothing of the target): the slot is free again and
	// the next probe need not wait for this one's sake.
	ProbeReleased
)

const (
	defaultLease = time.Second
	longestLease = 10 * time.Minute
)

// slot is held by a probe in flight.
type slot struct {
	id       uint64
	until    time.Duration // on the breaker's own clock; past it the probe is presumed failed, or good if it was answered
	lease    time.Duration
	answered bool
}

// Breaker is one circuit. Make it with New.
type Breaker struct {
	cfg   Config
	clock clock
	gen   uint32

	open   bool // Closed is !open; Open and HalfOpen are told apart by State
	slow   bool
	forced Forcing

	// While closed.
	evidence evidence
	fast     law
	timeout  law
	fewest   int // failures without which neither law can trip

	// While not closed.
	slots     []slot        // probes in flight, at most cfg.MaxProbes
	lastID    uint64        // of the newest probe ever admitted
	overdue   uint64        // bit i: probe lastID−i outlived its lease and has not reported (adaptive only)
	successes int           // of probes, in a row
	openUntil time.Duration // article: HalfOpen from here on
	next      time.Duration // earliest next probe; article: start of the next round
	left      int           // article: probes that this round still admits
	gap       time.Duration // adaptive: g
	rate      float64       // adaptive: first attempts per second, as last known or remembered from the trip; 0 when unknown
	tripRate  float64       // when the circuit opened
	tripped   time.Duration // when that was
}

// New returns a closed circuit, or the error of c.Normalize.
func New(c Config) (*Breaker, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, err
	}
	b := &Breaker{cfg: c, slots: make([]slot, 0, c.MaxProbes)}
	if !c.Article {
		b.fast = leastFailures(c.ThetaFast, c.Confidence)
		b.timeout = leastFailures(c.ThetaSlow, c.Confidence)
		b.fewest = min(b.fast.fewest(), b.timeout.fewest())
	}
	return b, nil
}

// State returns the state at now. The article's circuit is Open for OpenFor, then HalfOpen until a probe's verdict. The
// adaptive one is HalfOpen while a probe is in flight and Open otherwise. Leases that ran out are settled first, so that
// asking can close the circuit (Answered): compare Generation.
func (b *Breaker) State(now time.Duration) State {
	t := b.clock.advance(now)
	b.expire(t)
	if !b.open {
		return Closed
	}
	if b.forced == ForcedOpen {
		return Open
	}
	if b.cfg.Article && t-b.openUntil >= 0 || len(b.slots) > 0 {
		return HalfOpen
	}
	return Open
}

// Generation counts the transitions: to open, to closed and, by the article's law, from half-open back to open; an order that
// is obeyed begins one too, see Force. A result
// belongs to the generation in which its attempt was admitted and counts in no other. A circuit that opens by the adaptive
// law stays in one generation until it closes, however many probes fail meanwhile: that is what lets a late success count.
// It starts at 0 and wraps after 2³² transitions.
func (b *Breaker) Generation() uint32 { return b.gen }

// NextProbe returns the time until TryProbe may admit a probe; 0 when one is due, when the circuit is closed, and when it is forced
// open, where none will ever be. While every
// probe slot is taken it is the time until the first lease runs out, a bound from below: the gap that follows is not drawn
// yet, and a probe that reports earlier moves it.
func (b *Breaker) NextProbe(now time.Duration) time.Duration {
	t := b.clock.advance(now)
	b.expire(t)
	if !b.open || b.forced == ForcedOpen {
		return 0
	}
	return b.wait(t)
}

// Failure tells an adaptive, closed circuit of a failed attempt of the current generation and reports whether it must
// open, which is then up to the caller: Trip.
//
// cumSuccess is the number of successes in this generation so far, success60 how many of them came within the last 60 s.
// From the first the successes between failures are reconstructed, so that a success costs nothing here. A counter that
// falls by more than 64 is taken for a new one, and the evidence starts anew.
//
// The rule: with f failures and s successes among the last 64 outcomes that are not older than 60 s, or since the last success, open
// if P(θ > θ* | Beta(1+f, 1+s)) ≥ Confidence, where θ* is ThetaSlow if at least half of the failures timed out, else ThetaFast. But a
// target that has answered some of its calls all the while fails as often in a row now and then by chance: where most of
// the outcomes before the failures in a row were failures too, there must be as many in a row as that share of successes makes
// with a probability of 1 in 10,000, though never more than 2.5 times as many as open a circuit by themselves.
//
// It returns false for the article's law (see MeanTrips) and while the circuit is not closed.
func (b *Breaker) Failure(now time.Duration, timedOut bool, cumSuccess, success60 uint64) (trip bool) {
	t := b.clock.advance(now)
	if b.open || b.cfg.Article || b.forced != Automatic {
		return false
	}
	e := &b.evidence
	e.add(t, timedOut, cumSuccess)
	if !e.reaches(b.fewest, t) {
		return false // the common case: isolated failures
	}
	f, timeouts, s := e.counts(t, success60)
	least := &b.fast
	if mostlyTimeouts(f, timeouts) {
		least = &b.timeout
	}
	run := e.straight(t)
	if f < int(least[f+s]) && run < int(least[run]) {
		return false
	}
	return !e.ordinary(least.fewest() * 5 / 2)
}

// MeanTrips is the article's rule: the mean of the Beta(1,1) posterior, (f+1)/(f+s+2), exceeds Threshold. Taken literally it
// trips on a single failure in an empty window, whose mean is 2/3.
func (b *Breaker) MeanTrips(failures, successes uint64) bool {
	f, s := float64(failures), float64(successes)
	return (f+1)/(f+s+2) > b.cfg.Threshold
}

// Trip opens the circuit and reports whether that was a transition. rate is the number of first attempts offered per
// second, by which probes are spaced; 0, negative, NaN and infinite mean unknown.
//
// When the circuit is not closed, the adaptive law ignores the call: a timer is never extended. The article's restarts the
// timer, which from half-open is a transition. A circuit that is forced ignores it.
func (b *Breaker) Trip(now time.Duration, rate float64) bool {
	t := b.clock.advance(now)
	if b.forced != Automatic {
		return false
	}
	if !b.open {
		f, timeouts, _ := b.evidence.counts(t, math.MaxUint64)
		b.slow = mostlyTimeouts(f, timeouts)
		b.trip(t, rate)
		return true
	}
	if !b.cfg.Article {
		return false
	}
	if t-b.openUntil >= 0 {
		b.trip(t, rate)
		return true
	}
	b.restart(t)
	return false
}

// SlowTrip reports whether at least half of the failures that led to the last trip were timeouts. It is false before the
// first trip, for a trip without failures and for the article's law.
func (b *Breaker) SlowTrip() bool { return b.slow }

// TryProbe admits the calling attempt as a probe if one is due and a slot is free. It admits none while the circuit is
// closed.
//
// The slot of a probe older than its lease is free again. By the article's law that is no verdict: the timer does not start
// over and the late result is discarded. By the adaptive law the probe is presumed failed, as if it had timed out; its late
// success still counts while the circuit has not closed in between (of the 64 newest probes), its late failure does not. lease ≤ 0 means the larger of OpenFor and 1 s; it is cut to 10 minutes.
func (b *Breaker) TryProbe(now, lease time.Duration) (Probe, bool) {
	t := b.clock.advance(now)
	b.expire(t)
	if !b.open || b.forced == ForcedOpen {
		return Probe{}, false
	}
	if b.wait(t) > 0 {
		return Probe{}, false
	}
	if b.cfg.Article {
		if t-b.next >= 0 {
			b.left = b.cfg.MaxProbes
			b.next = t + b.cfg.ProbeEvery
		}
		b.left--
	}
	if lease <= 0 {
		lease = max(b.cfg.OpenFor, defaultLease)
	}
	lease = min(lease, longestLease)
	b.lastID++
	b.overdue <<= 1
	b.slots = append(b.slots, slot{id: b.lastID, until: t + lease, lease: lease})
	return Probe{ID: b.lastID}, true
}

// ProbeDone hands in the result of a probe, once. latency is how long the attempt took; rate as in Trip.
//
// used tells whether the result counted: not that of an older generation, of a probe that was never admitted or has
// already reported, nor of one that outlived its lease (see TryProbe for the exception). transition tells whether the
// circuit closed or, by the article's law, opened again.
func (b *Breaker) ProbeDone(now time.Duration, p Probe, r ProbeResult, latency time.Duration, rate float64) (used, transition bool) {
	t := b.clock.advance(now)
	b.expire(t)
	if !b.open {
		return false, false
	}
	b.rate = max(known(rate), b.remembered(t))
	success := r == ProbeSucceeded || r == ProbeThrottled
	if !b.free(p.ID) && !(b.reportLate(p.ID) && success) {
		return false, false
	}
	switch {
	case success:
		if b.succeeded(t) {
			return true, true
		}
	case r == ProbeFailed || r == ProbeTimedOut:
		if b.cfg.Article {
			b.trip(t, rate)
			return true, true
		}
		b.missed(t, r == ProbeTimedOut, latency)
	case b.cfg.Article:
		b.left = min(b.left+1, b.cfg.MaxProbes) // the round may admit another in its place
	}
	return true, false
}

// Force obeys an operator's order and reports whether that began a new generation, in which no earlier evidence and no probe
// counts. rate is as in Trip.
//
//   - ForcedOpen opens it, whatever the state: probes in flight count no more.
//   - ForcedClosed closes an open circuit; a closed one goes on.
//   - Automatic after ForcedOpen leaves it open and due for a probe at once, which the article calls half-open; after ForcedClosed
//     it stays closed, without what was seen meanwhile.
//
// The order in force, given once more, and an unknown one change nothing.
func (b *Breaker) Force(now time.Duration, f Forcing, rate float64) bool {
	t := b.clock.advance(now)
	b.expire(t)
	was := b.forced
	if f == was || f > ForcedClosed {
		return false
	}
	b.forced = f
	switch {
	case f == ForcedOpen:
		b.slow = false
		b.trip(t, rate)
	case f == ForcedClosed && !b.open:
		return false
	case f == Automatic && was == ForcedOpen:
		b.trip(t, rate)
		b.openUntil, b.next = t, t
	default:
		b.close()
	}
	return true
}

// Forced is the order in force.
func (b *Breaker) Forced() Forcing { return b.forced }

// Close closes the circuit on the word of others who have probed the target, and reports whether that was a transition. A
// closed circuit keeps its evidence; one that is forced open stays so.
func (b *Breaker) Close(now time.Duration) bool {
	b.clock.advance(now)
	if !b.open || b.forced == ForcedOpen {
		return false
	}
	b.close()
	return true
}

// Reset closes the circuit, forgets all evidence and any order and starts a new generation, whatever the state. It reports
// whether the state changed.
func (b *Breaker) Reset(now time.Duration) bool {
	b.clock.advance(now)
	changed := b.open
	b.forced = Automatic
	b.close()
	b.slow = false
	return changed
}

// Answered tells that the target began to answer a probe whose outcome is still open: the answer streams. If it is still
// streaming when the lease ends, that is taken for a success: a target whose every answer is a long stream could never close
// its circuit otherwise.
func (b *Breaker) Answered(p Probe) {
	for i := range b.slots {
		if b.slots[i].id == p.ID {
			b.slots[i].answered = true
		}
	}
}

// succeeded counts a probe's success at t and reports whether it closed the circuit.
func (b *Breaker) succeeded(t time.Duration) bool {
	b.successes++
	if b.successes >= b.cfg.ProbesToClose {
		b.close()
		return true
	}
	if !b.cfg.Article {
		b.gap = b.firstGap()
		b.next = t + b.jitter(b.spacing())
	}
	return false
}

// trip starts an open generation at t.
func (b *Breaker) trip(t time.Duration, rate float64) {
	b.begin(true)
	b.rate = known(rate)
	b.tripRate, b.tripped = b.rate, t
	if b.cfg.Article {
		b.restart(t)
		return
	}
	b.gap = b.firstGap()
	// An OpenFor beyond ProbeEvery is the user's wish: only what the rate adds to it is bounded by ProbeEvery.
	b.next = t + b.jitter(max(b.cfg.OpenFor, b.spacing()))
}

// remembered is what is left at t of the rate at which the circuit opened, halved every minute. Guards above this one that have opened
// too hold nearly everything back: by what they still let through, the probes of the lowest would be as rare as can be, and those above
// could find out nothing before it does.
func (b *Breaker) remembered(t time.Duration) float64 {
	return b.tripRate * math.Exp2(-(t - b.tripped).Minutes())
}

// restart starts the article's timer at t.
func (b *Breaker) restart(t time.Duration) {
	b.openUntil = t + b.cfg.OpenFor
	b.next = b.openUntil
}

func (b *Breaker) close() { b.begin(false) }

// begin starts a generation: no evidence, no probe and no debt of the last one is left.
func (b *Breaker) begin(open bool) {
	b.gen++
	b.open = open
	b.evidence.clear()
	b.slots = b.slots[:0]
	b.overdue = 0
	b.successes = 0
	b.left = 0
}

// wait returns the time until a probe may be admitted, 0 if it may be now. Leases that ran out must be gone.
func (b *Breaker) wait(t time.Duration) time.Duration {
	var w time.Duration
	if b.left == 0 { // always, by the adaptive law
		w = b.next - t
	}
	if len(b.slots) >= b.cfg.MaxProbes {
		w = max(w, b.slots[b.oldest()].until-t+1)
	}
	return max(w, 0)
}

// oldest returns the index of the slot whose lease runs out first. There must be one.
func (b *Breaker) oldest() int {
	o := 0
	for i := range b.slots {
		if b.slots[i].until-b.slots[o].until < 0 {
			o = i
		}
	}
	return o
}

// expire presumes failed what has outlived its lease, in the order and at the instants at which the leases ran out: the
// outcome does not depend on when somebody looks.
func (b *Breaker) expire(t time.Duration) {
	for len(b.slots) > 0 {
		i := b.oldest()
		s := b.slots[i]
		if t-s.until <= 0 {
			return
		}
		b.remove(i)
		if s.answered {
			b.succeeded(s.until)
			continue
		}
		b.successes = 0
		if b.cfg.Article {
			continue // no verdict: the timer is not restarted, the late result is discarded
		}
		if back := b.lastID - s.id; back < 64 {
			b.overdue |= 1 << back
		}
		b.missed(s.until, true, s.lease)
	}
}

// free gives back the slot of a probe and reports whether it held one.
func (b *Breaker) free(id uint64) bool {
	for i := range b.slots {
		if b.slots[i].id == id {
			b.remove(i)
			return true
		}
	}
	return false
}

func (b *Breaker) remove(i int) {
	last := len(b.slots) - 1
	b.slots[i] = b.slots[last]
	b.slots = b.slots[:last]
}

// reportLate reports whether the probe outlived its lease and had not reported before.
func (b *Breaker) reportLate(id uint64) bool {
	back := b.lastID - id // huge for an ID from nowhere
	if back >= 64 || b.overdue&(1<<back) == 0 {
		return false
	}
	b.overdue &^= 1 << back
	return true
}

// missed spaces the next probe after a failed one by the adaptive law.
func (b *Breaker) missed(at time.Duration, timedOut bool, latency time.Duration) {
	b.successes = 0
	longest := b.cfg.ProbeEvery
	if timedOut {
		b.gap = min(longest, b.gap+b.gap/2)
	}
	b.next = at + b.jitter(min(longest, max(b.spacing(), 3*min(latency, longest))))
}

func (b *Breaker) firstGap() time.Duration { return min(b.cfg.OpenFor, b.cfg.ProbeEvery) }

// spacing is min(gmax, max(g, 1/(share·rate))): probes are at most that share of one's own traffic, but not rarer than one
// in gmax.
func (b *Breaker) spacing() time.Duration {
	if b.rate == 0 {
		return b.gap
	}
	longest := b.cfg.ProbeEvery
	byShare := float64(time.Second) / (b.cfg.ProbeShare * b.rate)
	if byShare >= float64(longest) {
		return longest
	}
	return min(longest, max(b.gap, time.Duration(byShare)))
}

// jitter returns d·U(0.8, 1.2): guards that opened together do not probe together.
func (b *Breaker) jitter(d time.Duration) time.Duration {
	u := 0.5
	if b.cfg.Rand != nil {
		if r := b.cfg.Rand(); r >= 0 && r <= 1 {
			u = r
		}
	}
	return time.Duration(float64(d) * (0.8 + 0.4*u))
}

// known returns the rate, or 0 if it is none.
func known(rate float64) float64 {
	if rate > 0 && !math.IsInf(rate, 1) {
		return rate
	}
	return 0
}
