// Package sim is a discrete-event simulator: callers behind guards, a downstream with workers and a queue, faults on a timeline, and
// what got through. A guard that is an engine is the product's own, driven by its clock and random source; nothing here models it.
//
// The same scenario and seed give the same result, bit for bit, whatever the machine.
package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// Random streams of a run: arrivals do not depend on what the policy under test draws.
const (
	streamArrivals = iota + 1
	streamPriorities
	streamRoute
	streamService
	streamFaults
	streamExchange = 500
	streamGuards   = 1000
)

// Options of a run.
type Options struct {
	Scenario *scenario.Scenario // validated
	Seed     uint64
	Guard    Maker

	Instances int           // guards that share the load at random, on every tier; 0 = 1
	Door      Maker         // one more guard at the target's door, of an engine; nil = none
	Exchange  time.Duration // guards that are [Sharer]s tell each other what they saw, with this delay; 0 = never

	// Begin, if set, takes over the calls of the callers: it is told of each and uses [World.Send] and [World.Finish]. It is how
	// clients that are not guards of this package, such as real libraries, are run against the same target.
	Begin func(*Call)

	// Observe, if set, is called at the end of each of Samples equal parts of the run.
	Observe func(*World)
	Samples int

	Stop func() bool // asked now and then: ends the run early
}

// A World is one run.
type World struct {
	opt      Options
	scenario *scenario.Scenario
	now      time.Duration
	seq      uint64
	events   heap4
	timeouts ring
	arrivals arrivals
	route    *rand.Rand
	guards   [][]Guard // by tier and instance
	target   *target
	meter    meter
	callers  *rand.Rand

	exchanges []*exchange // by tier

	stopped bool // before its end

	freeCalls    []*Call
	freeAttempts []*Attempt
	alive        *alive // in tests
}

// alive keeps what is free from being used again, so that a use of it shows.
type alive struct{ calls, attempts int }

// New makes a run; the error is of the options or of a guard.
func New(o Options) (*World, error) {
	s := o.Scenario
	if o.Instances <= 0 {
		o.Instances = 1
	}
	switch {
	case o.Guard == nil && o.Begin == nil:
		return nil, errors.New("a run needs a guard, or somebody who takes over the calls")
	case o.Begin != nil && s.Hops > 1:
		return nil, fmt.Errorf("scenario %s: calls that somebody else takes over go straight to the target: want hops: 1, not %d", s.Name, s.Hops)
	}
	w := &World{opt: o, scenario: s, route: rand.New(rand.NewPCG(o.Seed, streamRoute)), callers: rand.New(rand.NewPCG(o.Seed, streamArrivals))}
	w.target = newTarget(w, s, o.Seed)
	w.meter.init(s, o.Samples)
	w.arrivals.init(s, o.Seed)
	for tier := range s.Hops {
		if o.Begin != nil {
			break
		}
		row := make([]Guard, o.Instances)
		for i := range row {
			g, err := o.Guard(w.env(tier, i))
			if err != nil {
				return nil, fmt.Errorf("guard %d of tier %d: %w", i, tier, err)
			}
			row[i] = g
		}
		w.guards = append(w.guards, row)
	}
	if o.Door != nil {
		g, err := o.Door(w.env(s.Hops, 0))
		if err != nil {
			return nil, fmt.Errorf("guard at the door: %w", err)
		}
		if w.target.door, err = newDoor(w, g); err != nil {
			return nil, err
		}
	}
	w.schedule()
	return w, nil
}

func (w *World) env(tier, instance int) Env {
	return Env{Scenario: w.scenario, Now: w.Now, Seed: [2]uint64{w.opt.Seed, streamGuards + uint64(tier)<<32 + uint64(instance)}, Tier: tier,
		Instance: instance, Instances: w.opt.Instances, Truth: w.truth}
}

// schedule puts what is known from the start into the queue.
func (w *World) schedule() {
	w.target.refresh()
	for _, f := range w.scenario.Faults {
		for _, at := range [...]time.Duration{f.From, f.To} {
			if at > 0 {
				w.after(at, event{kind: evFault})
			}
		}
	}
	for range w.scenario.Callers.Count {
		w.think()
	}
	if w.opt.Exchange > 0 {
		w.after(w.opt.Exchange, event{kind: evSync})
	}
}

// Now is the time of the run; it starts at 0.
func (w *World) Now() time.Duration { return w.now }

// Guards are those of a tier, for looking at.
func (w *World) Guards(tier int) []Guard {
	if tier >= len(w.guards) {
		return nil
	}
	return w.guards[tier]
}

func (w *World) after(d time.Duration, e event) {
	w.seq++
	e.at, e.seq = w.now+d, w.seq
	w.events.push(e)
}

// Next is when the next thing happens; false when the run is over.
func (w *World) Next() (time.Duration, bool) {
	at, _, ok := w.next()
	if !ok || at > w.scenario.Duration+w.scenario.Deadline {
		return 0, false
	}
	return at, true
}

type source uint8

const (
	fromHeap source = iota
	fromRing
	fromArrivals
)

func (w *World) next() (at time.Duration, from source, ok bool) {
	at, ok = w.arrivals.next, !w.arrivals.over
	from = fromArrivals
	var seq uint64 // of calls that arrive, which come first
	if len(w.events) > 0 {
		if e := &w.events[0]; !ok || e.at < at || e.at == at && e.kind == evFault { // what arrives with a fault meets it
			at, seq, from, ok = e.at, e.seq, fromHeap, true
		}
	}
	if e := w.timeouts.front(); e != nil {
		if !ok || e.at < at || e.at == at && from == fromHeap && e.seq < seq {
			at, from, ok = e.at, fromRing, true
		}
	}
	return at, from, ok
}

// Step lets the next thing happen.
func (w *World) Step() {
	if at, from, ok := w.next(); ok {
		w.step(at, from)
	}
}

func (w *World) step(at time.Duration, from source) {
	w.advance(at)
	switch from {
	case fromArrivals:
		w.arrivals.step()
		w.arrive()
		return
	case fromRing:
		w.handle(w.timeouts.pop())
	default:
		w.handle(w.events.pop())
	}
}

// advance moves the time on, with a look for whoever observes at the samples in between.
func (w *World) advance(to time.Duration) {
	for w.opt.Observe != nil && w.meter.sampleDue(to) {
		w.now = w.meter.nextSample
		w.opt.Observe(w)
		w.meter.sampled()
	}
	w.now = to
}

// Advance moves the time on to t, for whoever acts between events; what was due before happens first.
func (w *World) Advance(t time.Duration) {
	for at, _, ok := w.next(); ok && at < t; at, _, ok = w.next() {
		w.Step()
	}
	if t > w.now {
		w.advance(t)
	}
}

// Run makes the whole run.
func (w *World) Run() Result {
	end := w.scenario.Duration + w.scenario.Deadline
	for n := 0; ; n++ {
		if n&0xfff == 0 && w.opt.Stop != nil && w.opt.Stop() {
			w.stopped = true
			break
		}
		at, from, ok := w.next()
		if !ok || at > end {
			w.advance(end)
			break
		}
		w.step(at, from)
	}
	return w.Result()
}

func (w *World) handle(e event) {
	switch e.kind {
	case evTimeout:
		if a := e.what; a.gen == e.gen && !a.over {
			w.expire(a)
		}
	case evServed:
		if e.what.work == e.gen {
			w.target.served(e.what)
		}
	case evAnswer:
		w.target.answer(e.what, e.what.fail)
	case evRefused:
		w.target.door.refused(e.what)
	case evRetry:
		w.try(e.call)
	case evCall:
		w.arrive()
	case evFault:
		w.target.refresh()
	case evSync:
		w.exchange()
		w.after(w.opt.Exchange, event{kind: evSync})
	}
}

// think lets a caller of the closed loop make its next call after a while.
func (w *World) think() {
	d := time.Duration(w.callers.ExpFloat64() * float64(w.scenario.Callers.Think))
	if w.now+d < w.scenario.Duration {
		w.after(d, event{kind: evCall})
	}
}

func (w *World) arrive() {
	c := w.newCall()
	c.Priority, c.meter.class = w.arrivals.priority()
	c.Start, c.Deadline = w.now, w.now+w.scenario.Deadline
	if w.opt.Instances > 1 {
		c.instance = w.route.IntN(w.opt.Instances)
	}
	w.meter.offered(c, w.now)
	if w.opt.Begin != nil {
		w.opt.Begin(c)
		return
	}
	w.try(c)
}

func (w *World) guard(c *Call) Guard { return w.guards[c.tier][c.instance] }

// try makes a call's next attempt.
func (w *World) try(c *Call) {
	a := w.newAttempt(c)
	g := w.guard(c)
	if r := g.Admit(a); r != cortex.ReasonNone {
		w.meter.refused(c, a.Number, r)
		w.release(a)
		w.release(a)
		w.refuse(c, r)
		return
	}
	a.Due = c.Deadline
	if t := g.Timeout(a); t > 0 && w.now+t < a.Due {
		a.Due = w.now + t
	}
	w.dispatch(a)
}

// dispatch sends an attempt on its way: to the target, or as a call of the next tier.
func (w *World) dispatch(a *Attempt) {
	w.seq++
	e := event{at: a.Due, seq: w.seq, kind: evTimeout, what: a, gen: a.gen}
	if !w.timeouts.push(e) {
		w.events.push(e)
	}
	c := a.Call
	if c.tier+1 >= w.scenario.Hops {
		w.target.arrive(a)
		return
	}
	n := w.newCall()
	n.Priority, n.Start, n.Deadline, n.tier, n.parent = c.Priority, w.now, a.Due, c.tier+1, a
	n.Marked = w.scenario.Mark && (c.Marked || w.scenario.Client.MaxRetries > 0)
	n.meter.class = c.meter.class
	if w.opt.Instances > 1 {
		n.instance = w.route.IntN(w.opt.Instances)
	}
	w.try(n)
}

// Send makes an attempt for a call that Begin took over: done is told its end once, a timeout after limit included.
func (w *World) Send(c *Call, limit time.Duration, done func(Failure)) *Attempt {
	a := w.newAttempt(c)
	a.done = done
	a.Due = c.Deadline
	if limit > 0 && w.now+limit < a.Due {
		a.Due = w.now + limit
	}
	w.dispatch(a)
	return a
}

// Abandon tells that the client of an attempt has gone before its end. Once done was told, the attempt may be another call's.
func (w *World) Abandon(a *Attempt) {
	if !a.over {
		w.end(a)
	}
}

// Refused counts a call or retry of Begin's that was not let through.
func (w *World) Refused(c *Call, retry bool, r cortex.Reason) {
	if retry || w.now > c.Deadline {
		w.meter.retryRefused(r)
		return
	}
	w.meter.refused(c, 0, r)
}

// Finish ends a call that Begin took over.
func (w *World) Finish(c *Call, ok bool) { w.finish(c, ok && w.now <= c.Deadline) }

// expire is the end of a client's patience with an attempt.
func (w *World) expire(a *Attempt) {
	a.ctx.expired = w.now >= a.Call.Deadline
	w.settle(a, Failure{Outcome: cortex.TimedOut, Retryable: true})
}

// answered brings the target's answer to the client, if it is still there.
func (w *World) answered(a *Attempt, f Failure) {
	if !a.over {
		w.settle(a, f)
	}
}

func (w *World) settle(a *Attempt, f Failure) {
	c := a.Call
	if a.done != nil {
		done := a.done
		w.end(a)
		done(f)
		return
	}
	g := w.guard(c)
	g.Done(a, f.Outcome)
	if f.Outcome == cortex.Success {
		w.end(a)
		w.finish(c, true)
		return
	}
	v := g.Retry(a, f)
	w.end(a)
	switch {
	case !v.Retry:
		if v.Reason != cortex.ReasonNone {
			w.meter.retryRefused(v.Reason)
		}
		w.finish(c, false)
	case v.Delay >= c.Deadline-w.now: // nobody will wait for it
		w.finish(c, false)
	default:
		if v.Delay < f.RetryAfter {
			w.meter.beforeHint++
		}
		c.Previous = v.Delay
		w.after(max(0, v.Delay), event{kind: evRetry, call: c})
	}
}

// end is the client's part in an attempt.
func (w *World) end(a *Attempt) {
	a.over = true
	if w.target.door != nil {
		w.target.door.gone(a)
	}
	if a.queued && w.scenario.Downstream.Cancels {
		w.target.drop(a)
	}
	w.release(a)
}

// refuse ends a call that its guard did not let go. An engine's refusal says so to the tier above, as the product's HTTP answers do: one
// that sheds throttles, and failing fast is the point of an open circuit. Others' refusals are errors like any.
func (w *World) refuse(c *Call, r cortex.Reason) {
	if _, ok := w.guard(c).(Snapshotter); c.parent != nil && ok {
		f := Failure{Outcome: cortex.Throttled, Retryable: true}
		if r == cortex.ReasonCircuitOpen || r == cortex.ReasonCircuitEmergency {
			f = Failure{Outcome: cortex.Neutral}
		}
		w.up(c, f)
		return
	}
	w.finish(c, false)
}

// up brings the end of a call that was made for another tier's attempt to it.
func (w *World) up(c *Call, f Failure) {
	p := c.parent
	w.freeCall(c)
	w.answered(p, f)
	w.release(p)
}

func (w *World) finish(c *Call, ok bool) {
	if c.parent != nil {
		f := Failure{Outcome: cortex.Success}
		if !ok {
			f = Failure{Outcome: cortex.Failed, Retryable: true}
		}
		w.up(c, f)
		return
	}
	w.meter.finished(c, ok, w.now)
	w.freeCall(c)
	if w.scenario.Callers.Count > 0 {
		w.think()
	}
}

func (w *World) newCall() *Call {
	if n := len(w.freeCalls); n > 0 {
		c := w.freeCalls[n-1]
		w.freeCalls = w.freeCalls[:n-1]
		return c
	}
	if w.alive != nil {
		w.alive.calls++
	}
	return &Call{}
}

func (w *World) freeCall(c *Call) {
	if w.alive != nil {
		w.alive.calls--
		*c = Call{tier: -1, instance: -1, Priority: -1, Start: -1, Deadline: -1}
		return
	}
	*c = Call{}
	w.freeCalls = append(w.freeCalls, c)
}

func (w *World) newAttempt(c *Call) *Attempt {
	var a *Attempt
	if n := len(w.freeAttempts); n > 0 {
		a = w.freeAttempts[n-1]
		w.freeAttempts = w.freeAttempts[:n-1]
	} else {
		a = &Attempt{ctx: attemptContext{Context: context.Background()}}
		if w.alive != nil {
			w.alive.attempts++
		}
	}
	a.Call, a.Number, a.Start = c, c.number, w.now
	c.number++
	a.refs, a.over, a.queued = 2, false, false
	return a
}

// release gives up one of the two holds on an attempt: the client's and the target's.
func (w *World) release(a *Attempt) {
	if a.refs--; a.refs > 0 {
		return
	}
	a.gen++
	a.work++
	a.Call, a.done, a.Mine, a.ctx.expired = nil, nil, 0, false
	a.Permit, a.door = cortex.Permit{}, cortex.Permit{}
	if w.alive != nil {
		w.alive.attempts--
		if a.refs < 0 {
			panic("an attempt was given up twice")
		}
		return
	}
	w.freeAttempts = append(w.freeAttempts, a)
}
