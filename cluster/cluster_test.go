package cluster_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

const (
	ms       = time.Millisecond
	interval = 50 * ms // a guard is alone after four, and on a busy machine a process may not run for as long as 100 ms
)

// An instance is one process's guard and its part in the fleet.
type instance struct {
	*cluster.Cluster
	engine *cortex.Engine
	mu     sync.Mutex
	events []cluster.Event
}

func (i *instance) heard() []cluster.Event {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]cluster.Event(nil), i.events...)
}

func join(t testing.TB, url string, change ...func(*cluster.Config, *cortex.Config)) *instance {
	t.Helper()
	i := &instance{}
	cc := cluster.Config{URL: url, Interval: interval, Timeout: 200 * ms, OnEvent: func(e cluster.Event) {
		i.mu.Lock()
		i.events = append(i.events, e)
		i.mu.Unlock()
	}}
	ec := cortex.Config{Name: "wallet"}
	for _, f := range change {
		f(&cc, &ec)
	}
	var err error
	if i.engine, err = cortex.New(ec); err != nil {
		t.Fatal(err)
	}
	if i.Cluster, err = cluster.New(cc); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	if err := i.Guard(i.engine); err != nil {
		t.Fatal(err)
	}
	return i
}

func fleetOf(t testing.TB, n int, url string) []*instance {
	t.Helper()
	var all []*instance
	for range n {
		all = append(all, join(t, url))
	}
	together(t, all)
	return all
}

// together waits until all know of each other.
func together(t testing.TB, all []*instance) {
	t.Helper()
	for _, i := range all {
		eventually(t, 20*time.Second, "all instances are seen", func() bool {
			s := i.Status()
			return s.Mode == cluster.Fleet && s.Targets[0].Seen == uint64(len(all))
		})
	}
}

func (i *instance) call(o cortex.Outcome) bool {
	p, err := i.engine.Admit(bg, 5)
	if err != nil {
		return false
	}
	p.Record(o)
	return true
}

func TestInstancesSeeEachOther(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 3, s.url())
	for range 200 {
		for _, i := range all {
			i.call(cortex.Success)
		}
	}
	st := all[0].Status()
	t.Logf("%+v", st)
	if st.Targets[0].Exchange.Failed > 0 || st.Targets[0].Exchange.Junk > 0 || st.Reloads > 1 {
		t.Errorf("%+v", st)
	}
	keys := s.db.Keys(bg, "*").Val()
	for _, k := range keys {
		if ttl := s.db.PTTL(bg, k).Val(); ttl <= 0 {
			t.Errorf("%s stays for ever", k)
		}
	}
	t.Log(keys)
	all[2].Close()
	eventually(t, 5*time.Second, "the third has left", func() bool { return all[0].Status().Targets[0].Seen == 2 })
}

func TestCircuitOpensForAll(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 4, s.url())
	eventually(t, 10*time.Second, "all circuits open", func() bool {
		for _, i := range all {
			i.call(cortex.Failed)
		}
		n := 0
		for _, i := range all {
			if i.engine.Pressure().Circuit != breaker.Closed {
				n++
			}
		}
		return n == len(all)
	})
	if e := all[0].Status().Targets[0]; e.Epoch > 1 {
		t.Errorf("%+v", e)
	}
	eventually(t, 20*time.Second, "all circuits close", func() bool {
		n, open := 0, 0
		for _, i := range all {
			if i.engine.Pressure().Circuit != breaker.Closed {
				open++
				i.call(cortex.Success)
			}
			if i.Status().Targets[0].Prober {
				n++
			}
		}
		if n > 1 {
			t.Errorf("%d have the right to probe", n)
		}
		return open == 0
	})
	eventually(t, time.Second, "the second transition is known", func() bool { return all[0].Status().Targets[0].Epoch == 2 })
}
