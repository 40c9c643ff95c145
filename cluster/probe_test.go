package cluster_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

// open makes all circuits open by failures.
func open(t testing.TB, all []*instance) {
	t.Helper()
	eventually(t, 20*time.Second, "all circuits open", func() bool {
		n := 0
		for _, i := range all {
			i.call(cortex.Failed)
			if i.engine.Pressure().Circuit != breaker.Closed && i.Status().Targets[0].Epoch&1 == 1 {
				n++
			}
		}
		return n == len(all)
	})
}

// A target that answers no probe for a while; what 16 guards send it meanwhile.
func TestOneProbeAtATime(t *testing.T) { oneProbe(t, func(*server) {}) }

// A Redis that was short of memory evicted the right to probe while a probe was under way, and a second guard made one.
func TestOneProbeWithoutItsKey(t *testing.T) {
	oneProbe(t, func(s *server) { s.db.Del(bg, "{cortex:wallet}:probe") })
}

func oneProbe(t *testing.T, disturb func(*server)) {
	s := startRedis(t)
	all := fleetOf(t, 16, s.url())
	open(t, all)
	var c crowd
	var healthy atomic.Bool
	stop := hammer(t, all, func(i *instance) {
		p, err := i.engine.Admit(bg, 5)
		if err != nil {
			return
		}
		if healthy.Load() {
			p.Record(cortex.Success)
			return
		}
		c.visit(3 * interval)
		p.Record(cortex.Failed)
	})
	w := newAttendance(all)
	for w.complete < 2*time.Second {
		w.busy(t)
		disturb(s)
		time.Sleep(ms)
		w.look()
	}
	holders := 0
	for _, i := range all {
		if i.Status().Targets[0].Prober {
			holders++
		}
	}
	now := time.Now()
	w.look()
	if holders > 1 && !w.missing(now) {
		t.Errorf("%d guards have the right to probe", holders)
	}
	c.alone(t, w)
	if n := c.visits.Load(); n < 2 {
		t.Errorf("%d probes", n)
	}
	healthy.Store(true)
	eventually(t, 20*time.Second, "all circuits close", func() bool {
		for _, i := range all {
			if i.engine.Pressure().Circuit != breaker.Closed {
				return false
			}
		}
		return true
	})
	stop()
}

// hammer calls f for each instance every millisecond, until stop or the end of the test.
func hammer(t *testing.T, all []*instance, f func(*instance)) (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	for _, i := range all {
		wg.Go(func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(ms):
					f(i)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { close(end); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// Redis comes back while the target is down and every guard has been probing for itself: there is no burst of probes, and soon one at a time again.
func TestNoBurstOfProbesWhenRedisReturns(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 8, s.url())
	open(t, all)
	var c crowd
	var closed atomic.Int64
	hammer(t, all, func(i *instance) {
		if p, err := i.engine.Admit(bg, 5); err == nil {
			c.visit(interval)
			p.Record(cortex.Failed)
			if i.engine.Pressure().Circuit == breaker.Closed {
				closed.Add(1)
			}
		}
	})
	s.kill()
	for _, i := range all {
		eventually(t, 20*time.Second, "it is alone", func() bool { return i.Status().Mode == cluster.Alone })
	}
	time.Sleep(500 * ms)
	before := c.visits.Load()
	time.Sleep(time.Second)
	alone := c.visits.Load() - before
	s.restart()
	together(t, all)
	time.Sleep(4 * interval) // probes that were under way end
	w := newAttendance(all)
	before = c.visits.Load()
	for w.complete < 2*time.Second || c.visits.Load() < before+5 {
		w.busy(t)
		time.Sleep(ms)
		w.look()
	}
	c.alone(t, w)
	t.Logf("%d probes in a second of guards alone, then %d in %v", alone, c.visits.Load()-before, w.elapsed)
	if alone == 0 || closed.Load() > 0 {
		t.Errorf("%d in a second alone, %d circuits closed", alone, closed.Load())
	}
}

// A crowd notes when one probe was under way beside another.
type crowd struct {
	visits, flight atomic.Int64
	mu             sync.Mutex
	beside         []time.Time
}

func (c *crowd) visit(d time.Duration) {
	c.visits.Add(1)
	if c.flight.Add(1) > 1 {
		c.mu.Lock()
		c.beside = append(c.beside, time.Now())
		c.mu.Unlock()
	}
	time.Sleep(d)
	c.flight.Add(-1)
}

// alone fails the test where there were two probes at a time since the attendance began, and all guards were there.
func (c *crowd) alone(t *testing.T, w *attendance) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.beside {
		if at.After(w.start) && !w.missing(at) {
			t.Errorf("two probes at a time, %v after the start", at.Sub(w.start))
		}
	}
	t.Logf("%d probes, %d beside another; all guards were there for %v of %v", c.visits.Load(), len(c.beside), w.complete, w.elapsed)
}

// An attendance says when all guards were in touch with their fleet. One that was not for four intervals, because its process or Redis did
// not run, is alone and probes by itself, and the right of one that was not for six goes to another: so they should.
type attendance struct {
	all               []*instance
	exchanges         []uint64
	last              []time.Time // exchange that was seen
	absent            [][2]time.Time
	start, looked     time.Time
	elapsed, complete time.Duration
}

func newAttendance(all []*instance) *attendance {
	now := time.Now()
	w := &attendance{all: all, exchanges: make([]uint64, len(all)), last: make([]time.Time, len(all)), start: now, looked: now}
	for k := range all {
		w.last[k] = now
	}
	return w
}

// look is called all the time; where it was not, nobody is known to have been in touch.
func (w *attendance) look() {
	now, complete := time.Now(), true
	for k, i := range w.all {
		if n := i.Status().Targets[0].Exchange.OK; n != w.exchanges[k] {
			if now.Sub(w.last[k]) > 2*interval {
				w.absent = append(w.absent, [2]time.Time{w.last[k], now})
			}
			w.exchanges[k], w.last[k] = n, now
		}
		complete = complete && now.Sub(w.last[k]) <= 2*interval
	}
	if complete && !w.missing(now) {
		w.complete += now.Sub(w.looked)
	}
	w.elapsed, w.looked = now.Sub(w.start), now
}

// busy ends a test that would not end: a guard that probes too little is a failure, a machine that has no time is none.
func (w *attendance) busy(t *testing.T) {
	t.Helper()
	switch {
	case w.elapsed < 30*time.Second:
	case w.complete >= 2*time.Second:
		t.Fatalf("not within %v, in which all guards were in touch with their fleet for %v", w.elapsed, w.complete)
	default:
		t.Skipf("this machine is too busy: all guards were in touch with their fleet for %v of %v", w.complete, w.elapsed)
	}
}

// missing says whether somebody was not in touch at a time, or so little before that its probe may still have been under way.
func (w *attendance) missing(at time.Time) bool {
	for k := range w.last {
		if w.looked.Sub(w.last[k]) > 2*interval && at.After(w.last[k]) {
			return true
		}
	}
	for _, a := range w.absent {
		if at.After(a[0]) && at.Before(a[1].Add(4*interval)) {
			return true
		}
	}
	return false
}

// An instance dies with the right to probe: another one gets it when its time is over.
func TestRightToProbeOutlivesNobody(t *testing.T) {
	for _, evicted := range []bool{false, true} {
		t.Run(fmt.Sprint("evicted: ", evicted), func(t *testing.T) { outlivesNobody(t, evicted) })
	}
}

func outlivesNobody(t *testing.T, evicted bool) {
	s := startRedis(t)
	all := fleetOf(t, 3, s.url())
	open(t, all)
	if err := s.db.Set(bg, "{cortex:wallet}:probe", "one-that-died", 6*interval).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.db.HSet(bg, "{cortex:wallet}:circuit", "holder", "one-that-died", "until", time.Now().Add(6*interval).UnixMilli()).Err(); err != nil {
		t.Fatal(err)
	}
	if evicted {
		s.db.Del(bg, "{cortex:wallet}:probe")
	}
	start := time.Now()
	eventually(t, 20*time.Second, "somebody has the right", func() bool {
		for _, i := range all {
			i.call(cortex.Failed)
			if i.Status().Targets[0].Prober {
				return true
			}
		}
		return false
	})
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("after %v", d)
	}
}

// The fleet recovers although only one of its guards, and not the first to be asked, is asked for anything.
func TestProbeGoesWhereCallsCome(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 8, s.url())
	open(t, all)
	eventually(t, 20*time.Second, "all circuits close by the probe of one", func() bool {
		all[5].call(cortex.Success)
		for _, i := range all {
			if i.engine.Pressure().Circuit != breaker.Closed {
				return false
			}
		}
		return true
	})
}

// Closing gives the right back at once, and an instance that has left is on its own.
func TestLeaving(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 2, s.url())
	open(t, all)
	eventually(t, 20*time.Second, "the first has the right", func() bool {
		all[0].call(cortex.Failed)
		return all[0].Status().Targets[0].Prober
	})
	all[0].Close()
	if v := s.db.Get(bg, "{cortex:wallet}:probe").Val(); v == all[0].Status().Instance {
		t.Errorf("%s has the right to probe after Close", v)
	}
	if err := all[0].Guard(all[0].engine); err != cluster.ErrClosed {
		t.Errorf("Guard after Close: %v", err)
	}
	if !all[1].Leave(all[1].engine) || all[1].Leave(all[1].engine) {
		t.Error("Leave")
	}
	if st := all[1].Status(); len(st.Targets) != 0 || st.Mode != cluster.Alone {
		t.Errorf("%+v", st)
	}
	eventually(t, 20*time.Second, "it probes by itself", func() bool {
		all[1].call(cortex.Success)
		return all[1].engine.Pressure().Circuit == breaker.Closed
	})
}
