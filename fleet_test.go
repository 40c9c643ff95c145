package cortex_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/timeout"
	"github.com/seed-a29ca62a/cortex/window"
)

const interval = 250 * ms

// A crowd is a few engines on one timeline, for one target.
type crowd struct {
	*timeline
	all []*cortex.Engine
}

func newCrowd(tb testing.TB, n int) *crowd {
	tb.Helper()
	c := &crowd{timeline: &timeline{}}
	for i := range n {
		c.all = append(c.all, mustNew(tb, cortex.Config{Now: c.now, Rand: rand.NewPCG(1, uint64(i))}))
	}
	c.meet(-1)
	return c
}

// meet lets all tell each other what they saw; the guard of that number may probe.
func (c *crowd) meet(prober int) cortex.FleetReport {
	var sum cortex.FleetReport
	for _, e := range c.all {
		r := e.TakeReport()
		sum.Add(&r)
	}
	for i, e := range c.all {
		e.ObserveFleet(cortex.FleetView{FleetReport: sum, Span: interval, Prober: i == prober})
	}
	return sum
}

// calls makes n successful calls of 20 ms at each guard, one after the other.
func (c *crowd) calls(tb testing.TB, n int) {
	tb.Helper()
	for range n {
		var flight []*cortex.Permit
		for _, e := range c.all {
			flight = append(flight, admit(tb, e, 5))
		}
		c.advance(20 * ms)
		for _, p := range flight {
			p.Record(cortex.Success)
		}
	}
}

// warm makes the fleet know its target.
func (c *crowd) warm(tb testing.TB) {
	tb.Helper()
	for range 20 {
		c.calls(tb, 12)
		c.advance(10 * ms)
		c.meet(-1)
	}
}

// ramp lets the slow start after a circuit closed come to its end.
func (c *crowd) ramp() {
	for range 8 {
		for _, e := range c.all {
			for range 20 {
				if p, err := e.Admit(bg, 5); err == nil {
					c.advance(ms)
					p.Record(cortex.Success)
				}
			}
		}
		c.advance(interval)
		c.meet(-1)
	}
}

func (c *crowd) states() (open int) {
	for _, e := range c.all {
		if e.Pressure().Circuit != breaker.Closed {
			open++
		}
	}
	return open
}

func TestReportsTellWhatHappenedOnce(t *testing.T) {
	c := newCrowd(t, 2)
	e := c.all[0]
	for _, o := range []cortex.Outcome{cortex.Success, cortex.Success, cortex.Failed, cortex.TimedOut, cortex.Throttled, cortex.Neutral} {
		p := admit(t, e, 7)
		c.advance(20 * ms)
		p.Record(o)
	}
	waiting := admit(t, e, 2)
	c.advance(10 * ms)
	r := e.TakeReport()
	if r.Guards != 1 || r.Success != 2 || r.Failure != 1 || r.Timeout != 1 || r.Throttled != 1 || r.Asked != 7 || r.InFlight != 1 ||
		r.Offered[7] != 6 || r.Offered[2] != 1 || r.Open != 0 || r.Epoch != 0 {
		t.Errorf("%+v", r)
	}
	if r.Area != 130*ms || r.ErrorArea != 40*ms {
		t.Errorf("area %v, of errors %v, want 130ms and 40ms", r.Area, r.ErrorArea)
	}
	n := uint64(0)
	for b, k := range r.Latency {
		if n += k; k > 0 && b != window.Bucket(20*ms) {
			t.Errorf("%d latencies in bucket %d", k, b)
		}
	}
	if n != 2 || r.Cut != 0 {
		t.Errorf("%d latencies, %d cut, want 2 and 0", n, r.Cut)
	}
	waiting.Release()
	c.advance(10 * ms)
	r = e.TakeReport()
	if r.Success+r.Failure+r.Timeout+r.Throttled+r.Asked+r.Offered[7]+r.Offered[2] != 0 || r.InFlight != 0 || r.Area != 0 {
		t.Errorf("again: %+v", r)
	}
}

// Reports come in any order, and add up to the same.
func TestReportsAddUpInAnyOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var list []cortex.FleetReport
	for range 20 {
		x := cortex.FleetReport{Epoch: r.Uint64N(4), Guards: 1, Open: r.Uint64N(2), InFlight: r.Int64N(9), Asked: r.Uint64N(9), Success: r.Uint64N(9),
			Failure: r.Uint64N(9), Timeout: r.Uint64N(9), Throttled: r.Uint64N(9), Patient: r.Uint64N(9), Area: time.Duration(r.Int64N(9)),
			ErrorArea: time.Duration(r.Int64N(9))}
		x.Offered[r.IntN(10)], x.Latency[r.IntN(window.Buckets)] = r.Uint64N(9), r.Uint64N(9)
		if x.Success == 0 {
			clear(x.Latency[:])
		}
		list = append(list, x)
	}
	var first cortex.FleetReport
	for i := range 50 {
		var sum cortex.FleetReport
		for _, k := range r.Perm(len(list)) {
			sum.Add(&list[k])
		}
		if i == 0 {
			first = sum
		}
		if sum != first {
			t.Fatalf("another order, another sum:\n%+v\n%+v", sum, first)
		}
	}
	success := uint64(0)
	for _, x := range list {
		if x.Epoch == 3 {
			success += x.Success
		}
	}
	if first.Epoch != 3 || first.Guards != 20 || first.Success != success {
		t.Errorf("epoch %d of %d guards, %d successes, want 3, 20, %d", first.Epoch, first.Guards, first.Success, success)
	}
}

// Each guard sees an eighth of a target that hangs: too little for any of them to know, enough for all.
func TestFleetOpensOnWhatAllSaw(t *testing.T) {
	c := newCrowd(t, 8)
	c.warm(t)
	for range 6 {
		var flight []*cortex.Permit
		for _, e := range c.all {
			flight = append(flight, admit(t, e, 5))
		}
		c.advance(2 * time.Second) // as long as the most patient attempt waits, in the end
		for _, p := range flight {
			p.Record(cortex.TimedOut)
		}
	}
	if n := c.states(); n != 0 {
		t.Fatalf("%d guards opened by themselves", n)
	}
	c.meet(-1)
	if n := c.states(); n != 8 {
		t.Fatalf("%d guards open, want all", n)
	}
	// What was before is no evidence any more: nothing flaps.
	if r := c.meet(-1); r.Epoch != 1 || r.Open != 8 || r.Timeout != 0 {
		t.Errorf("%+v", r)
	}
}

// open opens the circuit of the whole fleet.
func (c *crowd) open(tb testing.TB) {
	tb.Helper()
	c.warm(tb)
	for range 12 {
		for _, e := range c.all {
			p := admit(tb, e, 5)
			c.advance(5 * ms)
			p.Record(cortex.Failed)
		}
	}
	c.meet(-1)
	if n := c.states(); n != len(c.all) {
		tb.Fatalf("%d guards open, want all", n)
	}
}

func TestOneProbeInTheWholeFleetAndItsResultForAll(t *testing.T) {
	c := newCrowd(t, 8)
	c.open(t)
	c.advance(5 * time.Second / 10)
	c.meet(3)
	c.advance(interval)
	var probe *cortex.Permit
	for round := range 3 {
		for i, e := range c.all {
			p, err := e.Admit(bg, 9)
			switch {
			case err != nil && i == 3 && round == 0:
				t.Fatalf("the prober may not probe: %v", err)
			case err == nil && (i != 3 || round > 0):
				t.Fatalf("guard %d sends a probe, too", i)
			case err == nil:
				probe = &p
			}
		}
	}
	c.advance(20 * ms)
	probe.Record(cortex.Success)
	if n := c.states(); n != 7 {
		t.Fatalf("%d guards open, want the other 7", n)
	}
	// The others have reported that they are open before they knew: that opens nothing again.
	sum := c.meet(-1)
	if sum.Epoch != 2 || c.states() != 0 {
		t.Fatalf("epoch %d, %d open, want 2 and none", sum.Epoch, c.states())
	}
	c.advance(interval)
	if sum = c.meet(-1); sum.Epoch != 2 || sum.Open != 0 || c.states() != 0 {
		t.Fatalf("%+v, %d open", sum, c.states())
	}
	for _, e := range c.all {
		if n := e.Stats().Transitions; n != 2 {
			t.Errorf("%d transitions, want 2", n)
		}
	}
}

// The store of the counts is gone: every guard goes on by itself, with what it knows, and comes back without opening or closing
// anything that is not so.
func TestGuardGoesOnAloneAndComesBack(t *testing.T) {
	c := newCrowd(t, 8)
	c.open(t)
	e := c.all[0]
	c.advance(3 * interval)
	refusal(t, e, 9)
	c.advance(2 * time.Second)
	p := admit(t, e, 9) // its own probe
	c.advance(20 * ms)
	p.Record(cortex.Success)
	if s := e.Pressure(); s.Circuit != breaker.Closed {
		t.Fatalf("circuit %v", s.Circuit)
	}
	if n := c.states(); n != 7 {
		t.Fatalf("%d open, want 7", n)
	}
	c.advance(time.Minute)
	if sum := c.meet(-1); sum.Epoch != 2 || c.states() != 0 {
		t.Errorf("epoch %d, %d open, want 2 and none: a probe has succeeded", sum.Epoch, c.states())
	}

	// One that missed a whole outage follows the newest state, whatever it was.
	c.ramp()
	late := c.all[7]
	c.all = c.all[:7]
	c.open(t)
	c.all = append(c.all, late)
	if late.Pressure().Circuit != breaker.Closed {
		t.Fatal("it cannot know")
	}
	c.meet(-1)
	c.meet(-1)
	if n := c.states(); n != 8 {
		t.Errorf("%d open, want all", n)
	}
}

// load feeds a view of a fleet of that many in flight with that much coming out.
func view(n int64, offered, success uint64, span time.Duration) cortex.FleetView {
	v := cortex.FleetView{Span: span, Age: interval}
	v.Guards, v.InFlight, v.Asked, v.Success = 64, n, offered, success
	v.Offered[2], v.Offered[9] = offered/2, offered/2
	v.Area = time.Duration(n) * span
	v.Latency[window.Bucket(20*ms)] = success
	return v
}

// The guard itself has nothing in flight. The fleet's queue has grown: the low priorities are shed, and again let in when it has gone.
func TestShedsForTheQueueOfTheWholeFleet(t *testing.T) {
	c := &crowd{timeline: &timeline{}}
	e := mustNew(t, cortex.Config{Now: c.now, Rand: rand.NewPCG(1, 1), Timeout: timeout.Config{Min: 345 * ms, Bootstrap: 345 * ms, Max: 345 * ms}})
	e.TakeReport()
	for range 40 {
		c.advance(interval)
		e.ObserveFleet(view(8, 100, 100, interval))
	}
	p := e.Pressure()
	if p.Shed != 0 || !p.Warm || math.Abs(p.Capacity-400) > 40 || p.Circuit != breaker.Closed {
		t.Fatalf("in peace: %+v", p)
	}
	n := int64(8)
	for range 16 { // offered 800/s, capacity 400/s
		shed := e.Pressure().Shed
		n = max(8, n+int64(float64(interval/ms)*(0.8*(1-shed)-0.4)))
		c.advance(interval)
		e.ObserveFleet(view(n, 200, 100, interval))
	}
	p = e.Pressure()
	if p.Shed < 0.35 || p.Shed > 0.75 || p.Floor == 0 {
		t.Errorf("at twice the capacity %.2f is shed, want about half: %+v", p.Shed, p)
	}
	if p.Signals.Q > 1 || p.Limit <= 0 {
		t.Errorf("%+v", p)
	}
	refused := 0
	for range 100 {
		if x, err := e.Admit(bg, 2); err != nil {
			refused++
		} else {
			x.Release()
		}
		admit(t, e, 9).Release()
	}
	if refused < 60 {
		t.Errorf("%d of 100 calls of the lower half are refused, want about all", refused)
	}
	for range 12 {
		c.advance(interval)
		e.ObserveFleet(view(8, 100, 100, interval))
	}
	if p := e.Pressure(); p.Shed != 0 {
		t.Errorf("%.2f is shed when the queue has gone", p.Shed)
	}
}

// A fleet of one decides as a guard that reports to nobody.
func TestFleetOfOneIsNone(t *testing.T) {
	run := func(share bool) (decisions []bool, last cortex.Pressure) {
		e, c := virtual(t, cortex.Config{})
		r := rand.New(rand.NewPCG(3, 3))
		var flight []*cortex.Permit
		for i := range 4000 {
			c.advance(2 * ms)
			p, err := e.Admit(bg, cortex.Priority(r.IntN(10)))
			if decisions = append(decisions, err == nil); err == nil {
				flight = append(flight, &p)
			}
			if i > 1500 && i < 2500 && i%2 == 0 {
				continue // half as fast
			}
			if len(flight) > 10 {
				flight[0].Record(cortex.Success)
				flight = flight[1:]
			}
			if i%125 == 0 {
				if share {
					v := cortex.FleetView{FleetReport: e.TakeReport(), Span: interval}
					e.ObserveFleet(v)
				}
				e.Pressure() // a report is a look
			}
		}
		return decisions, e.Pressure()
	}
	alone, a := run(false)
	shared, b := run(true)
	for i := range alone {
		if alone[i] != shared[i] {
			t.Fatalf("call %d: alone %v, in a fleet of one %v", i, alone[i], shared[i])
		}
	}
	if a != b {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// Whoever carries the reports may bring anything.
func TestJunkViewsDoNoHarm(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	c := newCrowd(t, 2)
	c.warm(t)
	e := c.all[0]
	number := func() uint64 { return []uint64{0, 1, 2, 100, 1 << 20, 1 << 63, math.MaxUint64}[r.IntN(7)] }
	duration := func() time.Duration { return time.Duration(number()) * ms }
	for range 3000 {
		v := cortex.FleetView{Span: duration(), Age: duration(), Prober: r.IntN(2) == 0}
		v.Guards, v.Open, v.Probing, v.InFlight, v.Asked = number(), number(), number(), int64(number()), number()
		v.Success, v.Failure, v.Timeout, v.Throttled, v.Patient = number(), number(), number(), number(), number()
		v.Area, v.ErrorArea = duration(), duration()
		v.Offered[r.IntN(len(v.Offered))] = number()
		v.Latency[r.IntN(len(v.Latency))] = number()
		if r.IntN(10) == 0 {
			v.Epoch = number()
		}
		e.ObserveFleet(v)
		sane(t, e.Pressure())
		if p, err := e.Admit(bg, cortex.Priority(r.IntN(10))); err == nil {
			p.Record([]cortex.Outcome{cortex.Neutral, cortex.Success, cortex.Failed, cortex.TimedOut}[r.IntN(4)])
		}
		sane(t, e.Pressure())
		e.TakeReport()
		c.advance(time.Duration(r.IntN(300)) * ms)
	}
	// And it is over when it is over.
	c.advance(time.Hour)
	for range 300 {
		c.calls(t, 1)
	}
	if p := e.Pressure(); p.Circuit != breaker.Closed {
		t.Errorf("%+v", p)
	}
}

func TestAdmissionInAFleetDoesNotAllocate(t *testing.T) {
	c := newCrowd(t, 4)
	c.warm(t)
	e := c.all[0]
	v := view(300, 400, 100, interval)
	if n := testing.AllocsPerRun(200, func() {
		c.advance(2 * ms)
		e.ObserveFleet(v)
		if p, err := e.Admit(bg, 9); err == nil {
			p.Record(cortex.Success)
		}
		r := e.TakeReport()
		v.FleetReport.Add(&r)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Two instances before one target. Here they meet in one process; a store that adds the reports up does the same for many.
func ExampleEngine_TakeReport() {
	clock := &timeline{}
	guards := make([]*cortex.Engine, 2)
	for i := range guards {
		guards[i], _ = cortex.New(cortex.Config{Name: "ledger", Now: clock.now, Rand: rand.NewPCG(1, uint64(i))})
		guards[i].TakeReport() // begins the counting
	}
	const interval = 250 * time.Millisecond
	exchange := func() {
		var sum cortex.FleetReport
		for _, g := range guards {
			r := g.TakeReport()
			sum.Add(&r)
		}
		for i, g := range guards {
			g.ObserveFleet(cortex.FleetView{FleetReport: sum, Span: interval, Prober: i == 0})
		}
	}
	// Each sees too few failures to know; together they are enough.
	for range 30 {
		for _, g := range guards {
			if permit, err := g.Admit(context.Background(), 5); err == nil {
				clock.advance(time.Millisecond)
				permit.Record(cortex.Failed)
			}
		}
	}
	fmt.Println("before:", guards[0].Pressure().Circuit, guards[1].Pressure().Circuit)
	clock.advance(interval)
	exchange()
	fmt.Println("after:", guards[0].Pressure().Circuit, guards[1].Pressure().Circuit)
	// Output:
	// before: closed closed
	// after: open open
}

// A guard that was the only one for a while had taken over the number of an open circuit and stayed closed: those that came later opened, before
// a target that answered every call.
func TestALoneGuardFollowsAnOpenCircuit(t *testing.T) {
	e, c := virtual(t, cortex.Config{})
	e.TakeReport()
	view := cortex.FleetView{FleetReport: cortex.FleetReport{Epoch: 7, Guards: 1}, Span: interval, Exclusive: true, Prober: true, Lease: time.Second}
	e.ObserveFleet(view)
	if e.Pressure().Circuit == breaker.Closed {
		t.Fatal("closed, with an epoch that says open")
	}
	for range 30 {
		c.advance(100 * ms)
		e.ObserveFleet(view)
		if p, err := e.Admit(bg, 5); err == nil {
			p.Record(cortex.Success)
		}
	}
	if r := e.TakeReport(); r.Epoch != 8 || e.Pressure().Circuit != breaker.Closed {
		t.Errorf("after a good probe: epoch %d, %v", r.Epoch, e.Pressure().Circuit)
	}
}
