package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

// Field case 75: no Redis is no reason to have no protection.
func TestRedisDownFromTheStart(t *testing.T) {
	port := freePort(t)
	url := fmt.Sprintf("redis://127.0.0.1:%d", port)
	all := []*instance{join(t, url), join(t, url), join(t, url)}
	for _, i := range all {
		eventually(t, 10*time.Second, "it says that it is alone", func() bool { return len(i.heard()) > 0 })
		for range 200 {
			i.call(cortex.Failed)
		}
		if i.engine.Pressure().Circuit == breaker.Closed {
			t.Error("the circuit is closed after 200 failures")
		}
	}
	time.Sleep(10 * interval)
	closed, stop := watch(all)
	s := &server{tb: t, port: port, dir: t.TempDir(), out: &logBuffer{}}
	s.start()
	t.Cleanup(s.kill)
	s.db = redis.NewClient(&redis.Options{Addr: s.addr()})
	t.Cleanup(func() { s.db.Close() })
	s.ready()
	together(t, all)
	time.Sleep(20 * interval)
	stop()
	if n := closed.Load(); n > 0 {
		t.Errorf("a circuit was closed %d times when Redis came, while everything fails", n)
	}
	for _, i := range all {
		ev := i.heard()
		if len(ev) != 2 || ev[0].Mode != cluster.Alone || ev[0].Err == nil || ev[1].Mode != cluster.Fleet {
			t.Errorf("events %+v, want alone, then fleet", ev)
		}
	}
}

// watch makes failing calls at all instances and counts how often one finds a closed circuit, until stop.
func watch(all []*instance) (closed *atomic.Int64, stop func()) {
	closed = &atomic.Int64{}
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			case <-time.After(ms):
			}
			for _, i := range all {
				i.call(cortex.Failed)
				if i.engine.Pressure().Circuit == breaker.Closed {
					closed.Add(1)
				}
			}
		}
	})
	return closed, func() { close(end); wg.Wait() }
}

// Redis is killed, or stops without a word, under load: no call waits, none fails, all join again, and say each once.
func TestRedisGoesUnderLoad(t *testing.T) {
	for _, how := range []string{"killed", "stopped"} {
		t.Run(how, func(t *testing.T) {
			s := startRedis(t)
			all := fleetOf(t, 4, s.url())
			end := make(chan struct{})
			var wg sync.WaitGroup
			var refused atomic.Int64
			took, inTouch := make([][]time.Duration, len(all)), make([][]time.Duration, len(all))
			var gone atomic.Bool
			for n, i := range all {
				wg.Go(func() {
					for {
						select {
						case <-end:
							return
						default:
						}
						start := time.Now()
						ok := i.call(cortex.Success)
						if d := time.Since(start); gone.Load() {
							took[n] = append(took[n], d)
						} else {
							inTouch[n] = append(inTouch[n], d)
						}
						if !ok {
							refused.Add(1)
						}
						time.Sleep(500 * time.Microsecond)
					}
				})
			}
			time.Sleep(500 * ms)
			gone.Store(true)
			if how == "killed" {
				s.kill()
			} else {
				signal(t, s.cmd, stopSignal)
			}
			for _, i := range all {
				eventually(t, 20*time.Second, "it is alone", func() bool { return i.Status().Mode == cluster.Alone })
			}
			time.Sleep(500 * ms)
			if how == "killed" {
				s.restart()
			} else {
				signal(t, s.cmd, continueSignal)
			}
			together(t, all)
			close(end)
			wg.Wait()
			for _, i := range all {
				if ev := i.heard(); len(ev) != 3 {
					t.Errorf("events %+v, want fleet, alone, fleet", ev)
				}
			}
			d, before := slices.Concat(took...), slices.Concat(inTouch...)
			slices.Sort(d)
			slices.Sort(before)
			p99, p99Before := d[len(d)*99/100], before[len(before)*99/100]
			t.Logf("%d calls, median %v, p99 %v; before %v and %v", len(d), d[len(d)/2], p99, before[len(before)/2], p99Before)
			if refused.Load() > 0 {
				t.Errorf("%d calls refused", refused.Load())
			}
			if p99 > ms+2*p99Before {
				t.Errorf("p99 %v of asking and recording, %v before", p99, p99Before)
			}
		})
	}
}

// Field case 73: a script that Redis has forgotten is sent once more, and nothing fails.
func TestScriptFlushed(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 2, s.url())
	before := all[0].Status()
	if err := s.db.ScriptFlush(bg).Err(); err != nil {
		t.Fatal(err)
	}
	ok := before.Targets[0].Exchange.OK
	eventually(t, 10*time.Second, "ten more exchanges", func() bool { return all[0].Status().Targets[0].Exchange.OK > ok+10 })
	n := uint64(0)
	for _, i := range all {
		st := i.Status()
		n += st.Reloads
		if st.Targets[0].Exchange.Failed > 0 || st.Mode != cluster.Fleet {
			t.Errorf("%+v", st)
		}
	}
	if n > 4 || n < before.Reloads+1 {
		t.Errorf("%d reloads in all", n)
	}
}

// The store is emptied again and again, while a circuit is open and while it is closed: the fleet stays one, and nothing closes by that.
func TestFlushed(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 4, s.url())
	open(t, all)
	closed, stop := watch(all)
	for range 10 {
		if err := s.db.FlushAll(bg).Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * interval)
	}
	together(t, all)
	stop()
	if n := closed.Load(); n > 0 {
		t.Errorf("a circuit was closed %d times", n)
	}
	for _, i := range all {
		st := i.Status().Targets[0]
		if st.Epoch != 1 || st.Exchange.Failed > 0 || len(i.heard()) != 1 {
			t.Errorf("%+v, events %v", st, i.heard())
		}
	}
}

// Somebody writes junk into every key: it is ignored, counted and cleared away, and does not move the guards.
func TestJunk(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 3, s.url())
	r := rand.New(rand.NewPCG(1, 1))
	values := []string{"", "-1", "1e9", "nan", "inf", "0x10", "99999999999999999999999999", "9223372036854775807", "junk", strings.Repeat("x", 5000),
		"1000000000000000", "18446744073709551615", " 1", "\x00\xff", "007"}
	fields := []string{"#", "e", "xg", "xp", "xn", "xa", "xA", "o", "q", "s", "f", "t", "h", "p", "c", "E", "x0", "x31", "x32", "l0", "l335", "l9999", "", "?", "epoch",
		"owner", "since", "holder", "until", "waits", "asked", "tokens", "at", "high", "before", "span"}
	keys := func() (k []string) {
		for _, kind := range []string{"slot", "seen"} {
			for n := range 4 {
				k = append(k, fmt.Sprintf("{cortex:wallet}:%s:%d", kind, n))
			}
		}
		return append(k, "{cortex:wallet}:circuit", "{cortex:wallet}:probe", "{cortex:wallet}:budget")
	}()
	pick := func(list []string) string { return list[r.IntN(len(list))] }
	end := time.Now().Add(2 * time.Second)
	for time.Now().Before(end) {
		k := pick(keys)
		switch r.IntN(8) {
		case 0:
			s.db.Del(bg, k)
			s.db.Set(bg, k, pick(values), 0)
		case 1:
			s.db.Del(bg, k)
			s.db.RPush(bg, k, pick(values))
		case 2:
			s.db.Del(bg, k)
			s.db.ZAdd(bg, k, redis.Z{Score: 1, Member: pick(values)})
		case 3:
			s.db.Persist(bg, k)
		default:
			s.db.HSet(bg, k, pick(fields), pick(values))
		}
		for _, i := range all {
			if !i.call(cortex.Success) {
				t.Fatalf("a call was refused: %+v", i.engine.Pressure())
			}
			p := i.engine.Pressure()
			if p.Circuit != breaker.Closed || !(p.CPS >= 0 && p.CPS <= 1) || !(p.Limit > 0) || !(p.Tokens >= 0 && p.Tokens < 1e6) {
				t.Fatalf("%+v", p)
			}
		}
		time.Sleep(500 * time.Microsecond)
	}
	junk := uint64(0)
	for _, i := range all {
		st := i.Status().Targets[0]
		junk += st.Exchange.Junk
		if st.Exchange.Failed > 0 {
			t.Errorf("%+v", st)
		}
	}
	if junk == 0 {
		t.Error("no junk was counted")
	}
	together(t, all)
	open(t, all)
	eventually(t, 20*time.Second, "all circuits close", func() bool {
		n := 0
		for _, i := range all {
			i.call(cortex.Success)
			if i.engine.Pressure().Circuit == breaker.Closed {
				n++
			}
		}
		return n == len(all)
	})
}

// A replica does not take anything: the instance is alone and says why.
func TestReadOnlyReplica(t *testing.T) {
	s := startRedis(t)
	replica := startRedis(t, "--replicaof", "127.0.0.1", fmt.Sprint(s.port))
	i := join(t, replica.url())
	eventually(t, 10*time.Second, "it is alone", func() bool { return len(i.heard()) > 0 })
	if e := i.Status().Targets[0].Error; !strings.Contains(e, "READONLY") {
		t.Errorf("%q", e)
	}
	if err := replica.db.Do(bg, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "it shares", func() bool { return i.Status().Mode == cluster.Fleet })
}

// A wrong password is in no message, and neither is the right one.
func TestPasswordIsNotTold(t *testing.T) {
	s := startRedis(t, "--requirepass", "right")
	i := join(t, fmt.Sprintf("redis://:secret-and-wrong@%s/0", s.addr()))
	eventually(t, 10*time.Second, "it is alone", func() bool { return len(i.heard()) > 0 })
	if st := fmt.Sprintf("%+v %v", i.Status(), i.heard()); strings.Contains(st, "secret") {
		t.Error(st)
	}
}

// Whatever the number of calls and engines, one round trip an interval.
func TestOneRoundTripAnInterval(t *testing.T) {
	s := startRedis(t)
	i := join(t, s.url())
	engines := []*cortex.Engine{i.engine}
	for n := range 4 {
		e, err := cortex.New(cortex.Config{Name: fmt.Sprint("target ", n)})
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Guard(e); err != nil {
			t.Fatal(err)
		}
		engines = append(engines, e)
	}
	if err := i.Guard(engines[1]); err == nil {
		t.Error("an engine was registered twice")
	}
	time.Sleep(5 * interval)
	if err := s.db.ConfigResetStat(bg).Err(); err != nil {
		t.Fatal(err)
	}
	before, start := i.Status(), time.Now()
	calls := 0
	for time.Since(start) < 50*interval {
		for _, e := range engines {
			if p, err := e.Admit(bg, 5); err == nil {
				p.Record(cortex.Success)
				calls++
			}
		}
	}
	after := i.Status()
	trips := after.Syncs - before.Syncs
	if most := uint64(time.Since(start)/interval) + 2; trips > most || trips < most/2 {
		t.Errorf("%d round trips in %v", trips, time.Since(start))
	}
	stat := s.db.Info(bg, "commandstats").Val()
	t.Logf("%d calls, %d round trips", calls, trips)
	for line := range strings.Lines(stat) {
		t.Log(strings.TrimSpace(line))
	}
}

func TestNothingStays(t *testing.T) {
	s := startRedis(t)
	before := runtime.NumGoroutine()
	for range 10 {
		i := join(t, s.url())
		eventually(t, 10*time.Second, "it shares", func() bool { return i.Status().Mode == cluster.Fleet })
		i.Close()
		i.Close()
	}
	eventually(t, 10*time.Second, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	eventually(t, 10*time.Second, "all connections are closed", func() bool {
		return strings.Contains(s.db.Info(bg, "clients").Val(), "connected_clients:1\r")
	})
}

func TestExactShares(t *testing.T) {
	s := startRedis(t)
	var all []*instance
	for range 3 {
		all = append(all, join(t, s.url(), func(c *cluster.Config, _ *cortex.Config) { c.Mode = cluster.Exact }))
	}
	together(t, all)
	good := 0
	for range 50 {
		for _, i := range all {
			if i.call(cortex.Success) {
				good++
			}
		}
		time.Sleep(2 * ms)
	}
	eventually(t, 10*time.Second, "all successes are in the window", func() bool {
		st := all[1].Status().Targets[0]
		return st.WindowOK == uint64(good) && st.WindowFailed == 0
	})
	open(t, all)
	st := all[1].Status().Targets[0]
	if st.WindowFailed == 0 || st.Exchange.Failed > 0 || st.Exchange.Junk > 0 || st.Exchange.Dropped > 0 {
		t.Errorf("%+v", st)
	}
	eventually(t, 20*time.Second, "all circuits close", func() bool {
		n := 0
		for _, i := range all {
			i.call(cortex.Success)
			if i.engine.Pressure().Circuit == breaker.Closed {
				n++
			}
		}
		return n == len(all)
	})
}

// Mode exact kept the name of every instance there ever was, as long as there was one.
func TestExactRemembersNoInstance(t *testing.T) {
	s := startRedis(t)
	exact := func(c *cluster.Config, _ *cortex.Config) { c.Mode = cluster.Exact }
	stays := join(t, s.url(), exact)
	keys := func() (n int64) {
		for _, k := range s.db.Keys(bg, "*").Val() {
			if s.db.Type(bg, k).Val() == "hash" && !strings.Contains(k, ":seen:") { // which expires by itself
				n += s.db.HLen(bg, k).Val()
			}
		}
		return n
	}
	stays.call(cortex.Success)
	together(t, []*instance{stays})
	before := keys()
	for range 40 {
		i := join(t, s.url(), exact)
		i.call(cortex.Success)
		eventually(t, 10*time.Second, "it shares", func() bool { return i.Status().Mode == cluster.Fleet })
		i.Close()
	}
	if n := keys(); n > before+30 {
		t.Errorf("%d fields, before 40 instances came and went %d", n, before)
	}
}

// A clock of Redis that goes back left members of mode exact in the future, where they were counted until the clock was there again.
func TestExactClockThatWentBack(t *testing.T) {
	s := startRedis(t)
	i := join(t, s.url(), func(c *cluster.Config, _ *cortex.Config) { c.Mode = cluster.Exact })
	together(t, []*instance{i})
	later := float64(time.Now().Add(time.Hour).UnixMilli())
	for _, key := range []string{"{cortex:wallet}:ok", "{cortex:wallet}:failed"} {
		for n := range 100 {
			if err := s.db.ZAdd(bg, key, redis.Z{Score: later, Member: fmt.Sprintf("before.1.%d.0.s1", n)}).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 5 {
		i.call(cortex.Success)
	}
	eventually(t, 10*time.Second, "the window has the five calls, and nothing of the future", func() bool {
		st := i.Status().Targets[0]
		return st.WindowOK == 5 && st.WindowFailed == 0
	})
}

// An engine that came in the place of another one of its name, as with a reload, numbered its exchanges anew: in mode exact its calls had the
// names of calls that were there already, and were not counted.
func TestExactCountsTheCallsOfASecondEngine(t *testing.T) {
	s := startRedis(t)
	i := join(t, s.url(), func(c *cluster.Config, _ *cortex.Config) { c.Mode = cluster.Exact })
	together(t, []*instance{i})
	calls := uint64(0)
	counted := func() {
		t.Helper()
		start := i.Status().Targets[0].Exchange.OK
		eventually(t, 20*time.Second, "30 exchanges", func() bool {
			if p, err := i.engine.Admit(bg, 10); err == nil {
				p.Record(cortex.Throttled) // their names say no latency, and they open nothing
				calls++
			}
			return i.Status().Targets[0].Exchange.OK > start+30
		})
		eventually(t, 10*time.Second, "all of them are in the window", func() bool { return i.Status().Targets[0].WindowFailed == calls })
	}
	counted()
	i.Leave(i.engine)
	var err error
	if i.engine, err = cortex.New(cortex.Config{Name: "wallet"}); err != nil {
		t.Fatal(err)
	}
	if err := i.Guard(i.engine); err != nil {
		t.Fatal(err)
	}
	counted()
}
