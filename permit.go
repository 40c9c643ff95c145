package cortex

import (
	"context"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// A Permit is the right to make one attempt. It is used once: by [Permit.Done] or [Permit.Record] with the outcome, or by
// [Permit.Release] without one; whatever comes later changes nothing. Defer Release right after a successful admission, so
// that a panic, Goexit or early return frees it. A Permit must not be copied after first use; its methods, but for
// [Permit.Timeout], may be called from several goroutines, and do nothing on the zero Permit.
type Permit struct {
	_       noCopy
	e       *Engine
	ctx     context.Context
	start   time.Duration
	latency time.Duration // fixed by Answered
	probe   breaker.Probe // the zero Probe: none
	gen     uint32
	epoch   uint32
	given   uint32 // by Timeout, in units of 1<<givenShift ns
	stripe  uint8
	soft    bool // given less than the extended timeout
	// Guarded by the stripe's lock, like start, epoch and latency once the attempt is under way.
	state uint8
	// 64 bytes: the compiler copies a struct whose size is no multiple of 16 in overlapping halves, which stalls the next read.
}

const givenShift = 10

// States of a permit, together.
const (
	left     = 1 << iota // not in flight: paused, answered or over
	answered             // the latency is fixed
	judged               // the outcome is recorded
	done
	arrived // the latency is fixed, unless that is taken back
)

func (p *Permit) isProbe() bool { return p.probe.ID != 0 }

type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Timeout is the time this attempt should be given; 0 where Config.DisableTimeout is set. It is the adaptive timeout while
// all is well. Where there is a queue or others have just been cut, and for a probe, it is longer: a target that has become slow would otherwise be cut
// into doing nothing but work that nobody waits for any more, and only an attempt with more time can tell it from one that
// hangs. The in-flight limit bounds what that costs in a hang. Ask before the attempt starts.
func (p *Permit) Timeout() time.Duration {
	e := p.e
	if e == nil || e.cfg.DisableTimeout {
		return 0
	}
	given := e.timeoutNow.Load()
	x := e.extended.Load()
	if x > given && (p.isProbe() || e.strained.Load()) {
		given = x
	}
	p.soft = given < x
	p.given = uint32(min(given>>givenShift, math.MaxUint32))
	return time.Duration(given)
}

// Answered tells that the target has answered and only the rest of the answer is to come (response headers were read): the
// attempt's latency is fixed and it is no longer in flight, while its outcome is still open. It serves answers that stream:
// their length is no latency and their number no queue. Do not call it for an answer that is a failure already: record that.
func (p *Permit) Answered() {
	if p.e == nil {
		return
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	first := p.state&answered == 0 && p.state&done == 0
	if first {
		p.state |= answered
		switch p.state & (left | arrived) {
		case 0:
			p.leave(s, now)
		case left: // paused: it was answered before all was sent
			p.latency = max(0, now-p.start)
		}
	}
	s.mu.Unlock()
	if first && p.isProbe() {
		p.e.mu.Lock()
		p.e.breaker.Answered(p.probe)
		p.e.unlock()
	}
}

// Pause takes the attempt out of those in flight until [Permit.Resume]: what happens meanwhile is not the target's doing, such as
// the upload of a request body by a slow client. It does nothing on an attempt that was answered or is over.
func (p *Permit) Pause() {
	if p.e == nil {
		return
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	if p.state&left == 0 && p.state&done == 0 {
		p.leave(s, now)
	}
	s.mu.Unlock()
}

// Resume puts a paused attempt back in flight. Its latency counts from here.
func (p *Permit) Resume() {
	if p.e == nil {
		return
	}
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	goesOn := p.state&(left|answered|done|arrived) == left
	if goesOn {
		p.state &^= left
		p.start, p.epoch, p.latency = now, s.epoch, 0
		if p.state&judged != 0 {
			s.orphans++
		}
		s.credit--
		s.reenter(now)
	}
	owes := goesOn && s.credit < 0
	s.mu.Unlock()
	if owes {
		p.e.mu.Lock()
		p.e.borrow(s)
		p.e.unlock()
	}
}

// leave fixes the latency and takes the attempt out of those in flight; the stripe's lock is held.
func (p *Permit) leave(s *stripe, now time.Duration) {
	p.latency = max(0, now-p.start)
	s.leave(p.start, p.epoch, max(now, p.start))
	p.state |= left
	if p.state&(judged|done) == judged {
		s.orphans--
	}
}

// Done ends the attempt with its error, classified by Config.Classify; nil is a success. An attempt whose context had been
// cancelled is neutral: its caller gave up. It reports whether the outcome counted: false for a permit that was used before
// and for a result of an older generation of the circuit.
func (p *Permit) Done(err error) bool {
	if p.e == nil {
		return false
	}
	if err == nil {
		return p.Record(Success)
	}
	return p.Record(p.e.classify(p.ctx, err, p.took()).Outcome)
}

// took is how long the attempt has been under way.
func (p *Permit) took() time.Duration {
	now := p.e.now()
	s := &p.e.stripes[p.stripe]
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.state&left != 0 {
		return p.latency
	}
	return now - p.start
}

// Hurried reports whether the deadline of the caller's context leaves the attempt less time than must have passed for that deadline
// to speak against the target; see [Permit.Done]. What such an attempt's answer says of time that ran out (504, DEADLINE_EXCEEDED, from
// targets that are told of the deadline) is then the caller's doing, and Neutral.
func (p *Permit) Hurried() bool {
	if p.e == nil || p.ctx == nil {
		return false
	}
	left, ok := remaining(p.ctx)
	return ok && p.took()+left < p.e.longWait()
}

// Release frees a permit that has no outcome; after Done or Record it does nothing.
func (p *Permit) Release() { p.Record(Neutral) }

// Abandoned tells that nobody waits for the attempt any more while its work goes on, as where a server's client has left: what err
// says, by the rule of [Permit.Done], is recorded now, and the attempt stays in flight until Done, Record or Release, whose own
// outcome then counts no more. Work that goes on for nobody holds the target all the same, and that a client had to leave should
// not be known only when a handler that hangs returns. It reports whether the outcome counted.
func (p *Permit) Abandoned(err error) bool {
	if p.e == nil {
		return false
	}
	return p.record(p.e.classify(p.ctx, err, p.took()).Outcome, judged)
}

// Record ends the attempt with an outcome; see [Permit.Done] for what it reports.
func (p *Permit) Record(o Outcome) bool { return p.record(o, judged|done) }

// record takes in an outcome, the first time, and ends the attempt where that is among the states it is to reach.
func (p *Permit) record(o Outcome, reach uint8) bool {
	e := p.e
	if e == nil {
		return false
	}
	now := e.now()
	s := &e.stripes[p.stripe]
	s.mu.Lock()
	was := p.state
	p.state |= reach
	if was&done != 0 {
		s.mu.Unlock()
		return false
	}
	switch {
	case was&(answered|arrived) != 0:
	case was&left != 0, reach&done == 0:
		p.latency = max(0, now-p.start)
	}
	switch {
	case was&left != 0:
	case reach&done != 0:
		if was&judged != 0 {
			s.orphans--
		}
		p.leave(s, now)
	case was&judged == 0:
		s.orphans++
	}
	if was&judged != 0 {
		s.mu.Unlock()
		return false
	}
	if !p.isProbe() && p.gen != s.gen {
		s.stale++
		s.mu.Unlock()
		return false
	}
	if o == Success && !p.isProbe() && (int64(p.latency) <= e.timeoutNow.Load() || e.cfg.DisableTimeout) {
		s.observe(now, p.latency)
		s.mu.Unlock()
		return true
	}
	at := times{p.start, p.latency, now}
	s.mu.Unlock()
	return e.record(p, o, at)
}
