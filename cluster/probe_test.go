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
	var flight, most, probes atomic.Int64
	var healthy atomic.Bool
	probe := func(i *instance) {
		p, err := i.engine.Admit(bg, 5)
		if err != nil {
			return
		}
		if healthy.Load() {
			p.Record(cortex.Success)
			return
		}
		probes.Add(1)
		n := flight.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(3 * interval)
		flight.Add(-1)
		p.Record(cortex.Failed)
	}
	end := make(chan struct{})
	var wg sync.WaitGroup
	for _, i := range all {
		wg.Go(func() {
			for {
				select {
				case <-end:
					return
				case <-time.After(ms):
					probe(i)
				}
			}
		})
	}
	for until := time.Now().Add(2 * time.Second); time.Now().Before(until); time.Sleep(ms) {
		disturb(s)
	}
	holders := map[string]bool{}
	for _, i := range all {
		if i.Status().Targets[0].Prober {
			holders[i.Status().Instance] = true
		}
	}
	if n := len(holders); n > 1 {
		t.Errorf("%d guards have the right to probe", n)
	}
	if most.Load() != 1 || probes.Load() < 2 {
		t.Errorf("%d probes, up to %d at a time", probes.Load(), most.Load())
	}
	t.Logf("%d probes, up to %d at a time", probes.Load(), most.Load())
	healthy.Store(true)
	eventually(t, 20*time.Second, "all circuits close", func() bool {
		for _, i := range all {
			if i.engine.Pressure().Circuit != breaker.Closed {
				return false
			}
		}
		return true
	})
	close(end)
	wg.Wait()
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
