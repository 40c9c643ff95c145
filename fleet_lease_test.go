package cortex_test

import (
	"math"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
)

// share lets all tell each other what they saw, with an exclusive right to probe for that long.
func (c *crowd) share(prober int, lease time.Duration) {
	var sum cortex.FleetReport
	for _, e := range c.all {
		r := e.TakeReport()
		sum.Add(&r)
	}
	for i, e := range c.all {
		e.ObserveFleet(cortex.FleetView{FleetReport: sum, Span: interval, Exclusive: true, Prober: i == prober, Lease: lease})
	}
}

// outage opens all circuits.
func (c *crowd) outage(tb testing.TB) {
	tb.Helper()
	for range 80 {
		for _, e := range c.all {
			if p, err := e.Admit(bg, 5); err == nil {
				p.Record(cortex.Failed)
			}
		}
		c.advance(10 * ms)
	}
	c.share(-1, 0)
	if n := c.states(); n != len(c.all) {
		tb.Fatalf("%d circuits of %d are open", n, len(c.all))
	}
}

func probes(c *crowd) (n int) {
	for _, e := range c.all {
		if p, err := e.Admit(bg, 5); err == nil {
			p.Record(cortex.Failed)
			n++
		}
	}
	return n
}

// The right to probe ends when its lease does, whether or not a view comes.
func TestLeaseOfTheRightToProbe(t *testing.T) {
	c := newCrowd(t, 4)
	c.warm(t)
	c.outage(t)
	for range 200 { // nobody has it, for 50 s: nobody makes use of having waited
		c.advance(interval)
		c.share(-1, 0)
		if n := probes(c); n > 0 {
			t.Fatalf("%d probes by guards that have no right to", n)
		}
	}
	c.share(2, 100*ms)
	c.advance(101 * ms)
	if n := probes(c); n > 0 {
		t.Fatalf("%d probes after the lease", n)
	}
	c.share(2, 100*ms)
	c.advance(99 * ms)
	if n := probes(c); n != 1 {
		t.Fatalf("%d probes within the lease, want 1", n)
	}
}

// A guard that was stopped for an hour does not send a probe of its own before it has had time for a view; one that gets none does.
func TestGuardThatWasStoppedWaitsForAView(t *testing.T) {
	c := newCrowd(t, 4)
	c.warm(t)
	c.outage(t)
	c.advance(time.Hour)
	for range 9 {
		if n := probes(c); n > 0 {
			t.Fatalf("%d probes by guards that have just missed a view", n)
		}
		c.advance(100 * ms)
	}
	c.share(-1, 0)
	c.advance(500 * ms)
	if n := probes(c); n > 0 {
		t.Fatalf("%d probes after the view", n)
	}
	c.advance(4 * interval)
	probes(c) // they find that there is none
	c.advance(4*interval + ms)
	if n := probes(c); n != len(c.all) {
		t.Errorf("%d guards of %d send probes without a view", n, len(c.all))
	}
}

// The last of a fleet has to ask all the same: the others may not be known yet.
func TestRightToProbeOfTheOnlyOneInSight(t *testing.T) {
	c := newCrowd(t, 1)
	c.outage(t)
	for range 20 {
		c.advance(interval)
		c.share(-1, 0)
	}
	c.advance(200 * ms)
	if probes(c) > 0 {
		t.Error("a probe without the right to")
	}
	c.share(0, time.Second)
	if probes(c) != 1 {
		t.Error("no probe with the right to")
	}
	c.all[0].LeaveFleet()
	c.advance(10 * time.Second)
	if probes(c) != 1 {
		t.Error("no probe after it has left")
	}
}

// Outcomes that are told early open the circuit, and are not evidence twice when the view comes.
func TestOutcomesToldEarly(t *testing.T) {
	c := newCrowd(t, 4)
	c.warm(t)
	e := c.all[0]
	few := cortex.FleetOutcomes{Failure: 20, Success: 20}
	for range 20 {
		e.ObserveOutcomes(few)
	}
	if c.states() != 0 {
		t.Fatal("half of all fails: the circuit is open")
	}
	var sum cortex.FleetReport
	for _, e := range c.all {
		r := e.TakeReport()
		sum.Add(&r)
	}
	sum.Failure += 60
	e.ObserveFleet(cortex.FleetView{FleetReport: sum, Span: interval, Told: cortex.FleetOutcomes{Failure: 60}})
	if c.states() != 0 {
		t.Fatal("what was told before opened the circuit")
	}
	e.ObserveOutcomes(cortex.FleetOutcomes{Epoch: 1 << 40, Failure: 1000})
	if c.states() != 0 {
		t.Fatal("junk opened the circuit")
	}
	e.ObserveOutcomes(cortex.FleetOutcomes{Failure: 1000})
	if c.states() != 1 {
		t.Fatal("a thousand failures did not open the circuit")
	}
	if r := e.TakeReport(); r.Epoch != 1 {
		t.Errorf("epoch %d", r.Epoch)
	}
	c.all[1].ObserveOutcomes(cortex.FleetOutcomes{Epoch: 1})
	if c.states() != 2 {
		t.Error("a newer epoch was not followed")
	}
}

// Failures wake whoever carries the reports, successes do not, and a transition does.
func TestWatchFleet(t *testing.T) {
	c := newCrowd(t, 2)
	c.warm(t)
	n := 0
	e := c.all[0]
	e.WatchFleet(func() { n++ })
	c.calls(t, 50)
	if n != 0 {
		t.Errorf("woken %d times by successes", n)
	}
	for range 20 {
		if p, err := e.Admit(bg, 5); err == nil {
			p.Record(cortex.Failed)
		}
	}
	if n == 0 {
		t.Error("not woken by failures")
	}
	e.WatchFleet(nil)
	was := n
	e.Force(breaker.ForcedOpen)
	if n != was {
		t.Error("woken after the watch ended")
	}
}

// A guard with a lease spends what it was granted, earns for all, and has a budget of its own when the grants end.
func TestBudgetOfTheFleet(t *testing.T) {
	c := newCrowd(t, 2)
	e := c.all[0]
	grant := func(tokens float64) {
		e.GrantBudget(cortex.BudgetGrant{Tokens: tokens, Pool: 5, Guards: 8, Span: interval})
	}
	if r := e.TakeBudget(); r.Want != 0 || r.Earned != 0 || r.Initial != budget.DefaultCapacity || r.Income != budget.DefaultMinPerSecond {
		t.Errorf("%+v before a lease", r)
	}
	grant(0)
	if n := e.Pressure().Tokens; n != 1 {
		t.Errorf("%v tokens after joining, want one lease of 1", n)
	}
	spent := 0.0
	fail := cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 9}
	for range 1000 {
		if d := e.Decide(fail); d.Retry {
			spent += d.Price
		}
	}
	if spent > 1+1e-6 || spent < 0.9 {
		t.Errorf("%v tokens spent of one", spent)
	}
	for range 100 {
		p := admit(t, e, 5)
		c.advance(2 * ms)
		p.Record(cortex.Success)
	}
	c.advance(2 * ms)
	r := e.TakeBudget()
	if math.Abs(r.Earned-10) > 0.2 || math.Abs(r.Want-1) > 0.1 || r.Surplus != 0 {
		t.Errorf("%+v", r)
	}
	if n := e.Pressure().Tokens; n > 0.1 {
		t.Errorf("%v tokens: it earns for itself", n)
	}
	if again := e.TakeBudget(); again.Earned != 0 {
		t.Errorf("earned %v again", again.Earned)
	}
	grant(3.5)
	if r := e.TakeBudget(); math.Abs(r.Surplus-2.5) > 0.1 || r.Want != 0 {
		t.Errorf("%+v of a lease that is too large", r)
	}
	for _, g := range []cortex.BudgetGrant{{Tokens: math.NaN(), Span: interval}, {Tokens: -1, Span: interval}, {Tokens: math.Inf(1), Span: interval}, {Tokens: 5}} {
		e.GrantBudget(g)
	}
	if n := e.Pressure().Tokens; !(n <= 1) {
		t.Errorf("%v tokens after junk", n)
	}
	c.advance(4*interval + 2*ms)
	for range 200 {
		p := admit(t, e, 5)
		c.advance(2 * ms)
		p.Record(cortex.Success)
	}
	if n := e.Pressure().Tokens; n < 5 {
		t.Errorf("%v tokens: it does not earn for itself when alone", n)
	}
}
