package cluster_test

import (
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

// opensAfter is how long n guards that share the calls of a target, so many a second in all, take until all of their circuits are open, since the
// target fails each call.
func opensAfter(t *testing.T, url string, n int, rate float64, every time.Duration) time.Duration {
	t.Helper()
	var all []*instance
	for range n {
		all = append(all, join(t, url, func(c *cluster.Config, e *cortex.Config) { c.Interval, e.Name = every, t.Name() }))
	}
	together(t, all)
	healthy := time.Now().Add(2 * time.Second)
	took := make([]time.Duration, n)
	var wg sync.WaitGroup
	for k, i := range all {
		wg.Go(func() {
			gap := time.Duration(float64(n) / rate * float64(time.Second))
			next := time.Now().Add(gap * time.Duration(k) / time.Duration(n))
			for now := time.Now(); ; now = time.Now() {
				if now.After(healthy) && i.engine.Pressure().Circuit != breaker.Closed || now.After(healthy.Add(20*time.Second)) {
					took[k] = time.Since(healthy)
					return
				}
				if now.Before(next) {
					time.Sleep(min(time.Until(next), 2*ms))
					continue
				}
				next = next.Add(gap)
				if now.Before(healthy) {
					i.call(cortex.Success)
				} else {
					i.call(cortex.Failed)
				}
			}
		})
	}
	wg.Wait()
	for _, i := range all {
		i.Close()
	}
	return slices.Max(took)
}

// Eight guards that see an eighth each against one that sees all.
func TestEightOpenAsSoonAsOne(t *testing.T) {
	type load struct {
		rate  float64
		every time.Duration
	}
	if os.Getenv("CORTEX_SLOW") != "1" {
		t.Skip("it goes by real time, on a machine that is not busy: CORTEX_SLOW=1 runs it")
	}
	cases := []load{{400, 250 * ms}, {40, 250 * ms}, {100, 100 * ms}}
	for _, c := range cases {
		s := startRedis(t)
		ratio := 0.0
		for range 3 { // the machine may be busy
			alone := opensAfter(t, s.url(), 1, c.rate, c.every)
			s.db.FlushAll(bg)
			shared := opensAfter(t, s.url(), 8, c.rate, c.every)
			s.db.FlushAll(bg)
			ratio = shared.Seconds() / alone.Seconds()
			t.Logf("%v calls/s, every %v: one guard after %v, eight after %v: %.2f", c.rate, c.every, alone, shared, ratio)
			if ratio <= 1.5 {
				break
			}
		}
		if ratio > 1.5*1.1 { // a tenth for the machine
			t.Errorf("%.2f times as long as one guard that sees all, the goal is 1.5", ratio)
		}
	}
}
