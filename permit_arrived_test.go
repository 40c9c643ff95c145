package cortex_test

import (
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

func TestAnAnswerThatLiesUnreadIsNeitherLatencyNorInFlight(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	for range 200 {
		p := admit(t, e, 5)
		clock.advance(10 * ms)
		p.Arrived(true)
		p.Arrived(true)
		if n := e.Pressure().InFlight; n != 0 {
			t.Fatalf("%d in flight", n)
		}
		p.Pause() // nor do these change anything
		p.Resume()
		clock.advance(300 * ms)
		p.Answered()
		clock.advance(300 * ms)
		p.Record(cortex.Success)
		p.Arrived(false)
	}
	if p := e.Pressure(); p.InFlight != 0 || p.P99 < 9*ms || p.P99 > 12*ms || p.BaselineSojourn < 9*ms || p.BaselineSojourn > 12*ms {
		t.Errorf("%+v", p)
	}
	var zero cortex.Permit
	zero.Arrived(true)
}

func TestWhatArrivedAndWasNotTheAnswerChangesNothing(t *testing.T) {
	run := func(arrive bool) (cortex.Pressure, cortex.Stats) {
		e, clock := virtual(t, cortex.Config{})
		for i := range 300 {
			p := admit(t, e, 5)
			beside := admit(t, e, 5)
			clock.advance(5 * ms)
			if arrive {
				p.Arrived(true)
				p.Arrived(false)
			}
			clock.advance(5 * ms)
			if n := e.Pressure().InFlight; n != 2 {
				t.Fatalf("%d in flight", n)
			}
			beside.Record(cortex.Success)
			o := cortex.Success
			if i%50 == 0 {
				o = cortex.Failed
			}
			p.Record(o)
		}
		return e.Pressure(), e.Stats()
	}
	with, withStats := run(true)
	without, withoutStats := run(false)
	if with != without || withStats != withoutStats {
		t.Errorf("%+v\n%+v\nnot\n%+v\n%+v", with, withStats, without, withoutStats)
	}
}

// A core is a process with one processor, which does one thing after the other for callers that call again as soon as they have their
// answer. The target is on another machine.
type core struct {
	e      *cortex.Engine
	clock  *timeline
	tells  bool // of answers that have arrived
	target func(start time.Duration) (takes time.Duration)

	ready           []func() // in the order in which it comes to them
	out             []*outCall
	good, bad, lost int
}

type outCall struct {
	p   cortex.Permit
	at  time.Duration // when the answer arrives, or the time is up
	cut bool
}

func (c *core) call() {
	var o outCall
	var err error
	if o.p, err = c.e.Admit(bg, 5); err != nil {
		c.bad++
		c.ready = append(c.ready, c.call)
		return
	}
	now := c.clock.now()
	o.at = now + c.target(now)
	if end := now + o.p.Timeout(); end < o.at {
		o.at, o.cut = end, true
	}
	c.out = append(c.out, &o)
}

func (c *core) run(d time.Duration) {
	const step = 50 * time.Microsecond
	for end := c.clock.now() + d; c.clock.now() < end; c.clock.advance(step) {
		now := c.clock.now()
		waiting := c.out[:0]
		for _, o := range c.out {
			if o.at > now {
				waiting = append(waiting, o)
				continue
			}
			c.ready = append(c.ready, func() {
				if o.cut {
					c.lost++
					o.p.Record(cortex.TimedOut)
				} else {
					c.good++
					o.p.Answered()
					o.p.Record(cortex.Success)
				}
				c.call()
			})
			if c.tells && !o.cut {
				o.p.Arrived(true)
			}
		}
		c.out = waiting
		if len(c.ready) > 0 {
			first := c.ready[0]
			c.ready = c.ready[1:]
			first()
		}
	}
}

func newCore(t *testing.T, tells bool) *core {
	e, clock := virtual(t, cortex.Config{})
	c := &core{e: e, clock: clock, tells: tells, target: func(time.Duration) time.Duration { return ms / 2 }}
	c.ready = append(c.ready, c.call)
	c.run(3 * time.Second) // what the target is like is known
	for range 63 {
		c.ready = append(c.ready, c.call)
	}
	c.run(3 * time.Second)
	for range 1024 - 64 {
		c.ready = append(c.ready, c.call)
	}
	c.good, c.bad, c.lost = 0, 0, 0
	return c
}

// 1,024 connections before a gateway with one core: the calls whose answers waited for it were taken for a queue at the target, and nearly
// all were refused, for good.
func TestAFullCoreIsNoQueueAtTheTarget(t *testing.T) {
	c := newCore(t, true)
	c.run(5 * time.Second)
	if c.bad > 0 || c.lost > 0 || c.good < 90_000 {
		t.Errorf("%d answered, %d refused, %d timed out", c.good, c.bad, c.lost)
	}
	blind := newCore(t, false)
	blind.run(5 * time.Second)
	if blind.bad < blind.good { // else this proves nothing
		t.Errorf("without being told: %d answered, %d refused", blind.good, blind.bad)
	}
}

// The other side of it: what the target does is seen through a full core.
func TestATargetThatHangsBehindAFullCoreIsNoticed(t *testing.T) {
	opened := func(tells bool) time.Duration {
		c := newCore(t, tells)
		c.run(time.Second)
		c.target = func(time.Duration) time.Duration { return time.Hour }
		began := c.clock.now()
		for c.e.Pressure().Circuit == breaker.Closed && c.clock.now()-began < 10*time.Second {
			c.run(10 * ms)
		}
		return c.clock.now() - began
	}
	if d, blind := opened(true), opened(false); d > 1500*ms || d > blind+500*ms {
		t.Errorf("the circuit opened after %v, without being told after %v", d, blind)
	}
}

func TestATargetThatTurnsSlowBehindAFullCoreIsNoticed(t *testing.T) {
	c := newCore(t, true)
	c.run(time.Second)
	// One worker of 5 ms: 200 calls a second, of the thousands before.
	free := c.clock.now()
	c.target = func(now time.Duration) time.Duration {
		free = max(free, now) + 5*ms
		return free - now
	}
	c.good, c.bad = 0, 0
	c.run(500 * ms)
	if p := c.e.Pressure(); c.bad < c.good || p.Signals.L < 0.9 {
		t.Errorf("after half a second %d are refused, %d answered, %+v", c.bad, c.good, p)
	}
}
