package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/window"
)

var bg = context.Background()

// redisServer starts a real server, for what the store itself does.
func redisServer(t testing.TB) *redis.Client {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
			t.Fatal(err)
		}
		t.Skipf("%v (Debian: apt-get install redis-server)", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command(program, "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	db := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port), MaxRetries: -1, Protocol: 2, ReadTimeout: 10 * time.Second})
	t.Cleanup(func() {
		db.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	for end := time.Now().Add(10 * time.Second); db.Ping(bg).Err() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("redis-server does not answer")
		}
	}
	return db
}

func run(t testing.TB, db *redis.Client, r *request, target string) answer {
	t.Helper()
	v, err := db.Eval(bg, syncSource, keysOf("test", target), r.args()...).Result()
	if err != nil {
		t.Fatal(err)
	}
	a, err := parseAnswer(v)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// read is the sum of what is in a slot.
func read(t testing.TB, db *redis.Client, target string, n uint64) slot {
	t.Helper()
	m, err := db.HGetAll(bg, keysOf("test", target)[n%slots]).Result()
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for k, v := range m {
		text = append(text, k, v)
	}
	return parseSlot(strings.Join(text, " "))
}

func randomReport(r *rand.Rand) cortex.FleetReport {
	x := cortex.FleetReport{Epoch: r.Uint64N(4), Guards: 1, Open: r.Uint64N(2), InFlight: r.Int64N(9), Asked: r.Uint64N(900), Success: r.Uint64N(900),
		Failure: r.Uint64N(9), Throttled: r.Uint64N(9), Area: time.Duration(r.Int64N(1e6)) * time.Microsecond,
		ErrorArea: time.Duration(r.Int64N(1e6)) * time.Microsecond}
	x.Probing = min(x.Open, r.Uint64N(2))
	x.Timeout = r.Uint64N(9)
	x.Patient, x.Cut = r.Uint64N(x.Timeout+1), r.Uint64N(x.Timeout+1)
	for range 5 {
		x.Offered[r.IntN(len(x.Offered))] = r.Uint64N(99)
		x.Latency[r.IntN(window.Buckets)] = r.Uint64N(99)
	}
	if x.Success == 0 {
		clear(x.Latency[:])
	}
	return x
}

// What the store makes of reports, in whatever order they come, is what FleetReport.Add makes of them.
func TestStoreAddsLikeTheEngine(t *testing.T) {
	db := redisServer(t)
	r := rand.New(rand.NewPCG(1, 1))
	for round := range 50 {
		var want cortex.FleetReport
		target := fmt.Sprint("round ", round)
		var first uint64
		for {
			want = cortex.FleetReport{}
			ends := map[uint64]bool{}
			for i := range 12 {
				x := randomReport(r)
				want.Add(&x)
				q := request{instance: fmt.Sprint("i", i), seq: 1, interval: time.Minute, epoch: x.Epoch, order: orderNone, lease: time.Second,
					fields: fieldsOf(nil, &x, 0)}
				first = run(t, db, &q, target).slot
				ends[first] = true
				run(t, db, &q, target) // a replay adds nothing
			}
			if len(ends) == 1 {
				break
			}
			db.FlushAll(bg) // the minute ended
		}
		if got := read(t, db, target, first); got.junk > 0 || !reflect.DeepEqual(got.FleetReport, want) {
			t.Fatalf("round %d:\n got %+v\nwant %+v", round, got, want)
		}
	}
}

// An instance that reports twice in a slot counts once as an instance, and all that it counted counts.
func TestTwoReportsInASlot(t *testing.T) {
	db := redisServer(t)
	x := cortex.FleetReport{Guards: 1, InFlight: 3, Success: 5, Asked: 5}
	q := request{instance: "a", seq: 1, interval: time.Minute, order: orderNone, lease: time.Second, fields: fieldsOf(nil, &x, 0)}
	n := run(t, db, &q, "x").slot
	q.seq = 2
	if run(t, db, &q, "x").slot != n {
		t.Skip("the minute ended")
	}
	if got := read(t, db, "x", n); got.Guards != 1 || got.InFlight != 3 || got.Success != 10 || got.Asked != 10 {
		t.Errorf("%+v", got.FleetReport)
	}
}

// The budget in the store against the laws: initial, income up to the reserve, earned, capacity; a replay is granted nothing.
func TestBudgetInTheStore(t *testing.T) {
	db := redisServer(t)
	q := request{instance: "a", interval: time.Second, order: orderNone, lease: time.Second,
		budget: cortex.BudgetReport{Capacity: 20, Initial: 10, Income: 0.2, Reserve: 2}}
	step := func(earned, want, surplus float64) answer {
		q.seq++
		q.budget.Earned, q.budget.Want, q.budget.Surplus = earned, want, surplus
		return run(t, db, &q, "x")
	}
	if a := step(0, 4, 0); a.granted != 4 || a.pool != 6 {
		t.Errorf("%+v", a)
	}
	if a := run(t, db, &q, "x"); a.granted != 0 || a.pool != 6 {
		t.Errorf("replay: %+v", a)
	}
	if a := step(1.5, 0, 0.25); a.pool != 7.75 {
		t.Errorf("%+v", a)
	}
	if a := step(100, 0, 0); a.pool != 20 {
		t.Errorf("%+v", a)
	}
	if a := step(0, 1e6, 0); a.granted != 20 || a.pool != 0 {
		t.Errorf("%+v", a)
	}
	// Time only from the server; a time in the future, as of a server whose clock was ahead, earns nothing and stops nothing.
	key := keysOf("test", "x")[10]
	db.HSet(bg, key, "at", time.Now().Add(time.Hour).UnixMilli())
	if a := step(0, 0, 0); a.pool != 0 {
		t.Errorf("%+v", a)
	}
	db.HSet(bg, key, "at", time.Now().Add(-5*time.Second).UnixMilli())
	if a := step(0, 0, 0); a.pool < 0.9 || a.pool > 1.3 {
		t.Errorf("%v tokens after 5 s at 0.2 a second", a.pool)
	}
	db.HSet(bg, key, "at", 0)
	if a := step(0, 0, 0); a.pool != 2 {
		t.Errorf("%v tokens, want the reserve", a.pool)
	}
}

// A guard that had just come, and knew nothing of what its fleet can do, cut the budget of all to the ten tokens of a guard alone.
func TestNewcomerCutTheBudgetOfAll(t *testing.T) {
	db := redisServer(t)
	seq := uint64(0)
	tell := func(who string, capacity, earned, want float64) {
		t.Helper()
		seq++
		a := run(t, db, &request{instance: who, seq: seq, interval: time.Minute, order: orderNone, lease: time.Second,
			budget: cortex.BudgetReport{Capacity: capacity, Initial: 10, Income: 0.2, Reserve: 2, Earned: earned}}, "x")
		if a.pool != want {
			t.Errorf("%s: %v tokens in the budget of all, want %v", who, a.pool, want)
		}
	}
	ago := func(spans int64) { db.HIncrBy(bg, keysOf("test", "x")[10], "span", -spans) } // what was said is so old
	tell("old", 400, 1000, 400)
	tell("new", 10, 0, 400)
	ago(1)
	tell("new", 10, 0, 400)
	tell("old", 300, 0, 400)
	ago(1)
	tell("new", 10, 0, 300) // the target can do less by now
	ago(1)
	tell("new", 10, 0, 10) // the old one has gone
	tell("old", 400, 1000, 400)
	ago(2)
	tell("new", 10, 0, 10)
}

// The right to probe in the store.
func TestRightToProbeInTheStore(t *testing.T) {
	db := redisServer(t)
	seq := uint64(0)
	ask := func(who string, o order) time.Duration {
		seq++
		return run(t, db, &request{instance: who, seq: seq, interval: 100 * time.Millisecond, epoch: 1, order: o, lease: time.Minute}, "x").lease
	}
	// A store that knows nothing has been emptied: somebody may have the right.
	if ask("a", orderWant) > 0 {
		t.Error("given by a store that was just emptied")
	}
	db.Del(bg, keysOf("test", "x")[9])
	for i, c := range []struct {
		who   string
		order order
		has   bool
	}{
		{"a", orderNone, false}, {"a", orderWant, true}, {"b", orderWant, false}, {"a", orderNone, true}, {"b", orderLeave, false}, {"a", orderRenew, true},
		{"b", orderRenew, false}, {"b", orderPass, false}, {"a", orderNone, true},
		{"a", orderPass, false}, // b has asked
		{"a", orderNone, false}, {"b", orderWant, true}, {"b", orderLeave, false}, {"a", orderRenew, true}, {"a", orderLeave, false},
	} {
		if has := ask(c.who, c.order) > 0; has != c.has {
			t.Fatalf("step %d: %s asks %q: %v", i, c.who, c.order, has)
		}
	}
	ask("a", orderWant)
	time.Sleep(300 * time.Millisecond) // b asked long ago
	if ask("a", orderPass) <= 0 {
		t.Error("passed on to nobody")
	}
}

// The epoch of the circuit only grows, but for one that is out of reach, which is junk.
func TestEpochInTheStore(t *testing.T) {
	db := redisServer(t)
	seq := uint64(0)
	tell := func(who string, epoch uint64) answer {
		seq++
		return run(t, db, &request{instance: who, seq: seq, interval: time.Minute, epoch: epoch, order: orderNone, lease: time.Second}, "x")
	}
	for i, c := range []struct {
		who   string
		tells uint64
		epoch uint64
		owner string
	}{{"a", 3, 3, "a"}, {"b", 0, 3, "a"}, {"b", 3, 3, "a"}, {"b", 4, 4, "b"}, {"a", 3, 4, "b"}, {"c", 1 << 33, 1 << 33, "c"}, {"a", 4, 4, "a"}} {
		if a := tell(c.who, c.tells); a.epoch != c.epoch || a.owner != c.owner {
			t.Errorf("step %d: epoch %d of %q, want %d of %q", i, a.epoch, a.owner, c.epoch, c.owner)
		}
	}
}

func FuzzSlot(f *testing.F) {
	x := randomReport(rand.New(rand.NewPCG(1, 1)))
	text := "# 7 e 3"
	for _, v := range fieldsOf(nil, &x, time.Second) {
		text += fmt.Sprint(" ", v.name, " ", v.value)
	}
	for _, s := range []string{"", text, "xg 1 s 18446744073709551615", "xg 2 t 1 p 2", "xg 1 s -1", "l1 l2 l3", "xg 1  s", "xg 1000000 xA 1000000000000000"} {
		f.Add(s)
	}
	e, err := cortex.New(cortex.Config{})
	if err != nil {
		f.Fatal(err)
	}
	e.TakeReport()
	f.Fuzz(func(t *testing.T, text string) {
		s := parseSlot(text)
		if s.Guards > 1e6 || s.Success > mostEach*s.Guards || s.Area < 0 || s.ErrorArea < 0 || s.phase < 0 || s.InFlight < 0 || s.Timeout < s.Patient {
			t.Fatalf("%+v", s)
		}
		if s.Guards > 0 {
			e.ObserveFleet(cortex.FleetView{FleetReport: s.FleetReport, Span: time.Second, Exclusive: true})
			p := e.Pressure()
			if !(p.CPS >= 0 && p.CPS <= 1) || !(p.Limit > 0) || !(p.Shed >= 0 && p.Shed <= 1) || p.Timeout < 0 {
				t.Fatalf("%+v after %q", p, text)
			}
		}
	})
}

func FuzzMember(f *testing.F) {
	for _, s := range []string{"abc.1.0.0.s12", "abc.1.0.0.s999", "a.b.c.d.h0", "....", "a.1.1.zzzzzzzzzzzzzzz.f0", "a.1.1.1.s336"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var r cortex.FleetReport
		if parseMember(s, &r) && r.Success+r.Failure+r.Timeout+r.Throttled != 1 {
			t.Fatalf("%q: %+v", s, r)
		}
	})
}

// Members say what the report said.
func TestMembersSayAll(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	for range 100 {
		x := randomReport(r)
		lat := uint64(0)
		for _, n := range x.Latency {
			lat += n
		}
		x.Success = max(x.Success, lat)
		was := x
		good, bad, dropped := takeMembers("i", 1, &x)
		list := []any{int64(1), int64(1), int64(len(good)), int64(len(bad))}
		for _, m := range append(good, bad...) {
			list = append(list, m)
		}
		w, err := parseExact(list, 0)
		if err != nil || w.junk > 0 || dropped > 0 {
			t.Fatal(err, w.junk, dropped)
		}
		g := w.outcomes
		if g.Success != was.Success || g.Failure != was.Failure || g.Timeout != was.Timeout || g.Patient != was.Patient || g.Cut != was.Cut ||
			g.Throttled != was.Throttled || g.Latency != was.Latency {
			t.Fatalf("got %+v\nwant %+v", g, was)
		}
	}
	x := cortex.FleetReport{Success: 1e12, Failure: 10}
	if good, bad, dropped := takeMembers("i", 1, &x); len(good) != mostMembers-10 || len(bad) != 10 || dropped != 1e12-mostMembers+10 {
		t.Errorf("%d, %d, %d dropped", len(good), len(bad), dropped)
	}
}

func TestURLs(t *testing.T) {
	for _, c := range []struct {
		url  string
		want string // "" = refused
	}{
		{"redis://localhost", "single [localhost:6379] 0 \"\" \"\" plain"},
		{"redis://me:secret@10.0.0.1:7000/3", "single [10.0.0.1:7000] 3 \"me\" \"secret\" plain"},
		{"rediss://host", "single [host:6379] 0 \"\" \"\" TLS"},
		{"redis+unix:///run/redis.sock", "single [/run/redis.sock] 0 \"\" \"\" plain"},
		{"redis+cluster://a:1,b,[::1]:3", "cluster [a:1 b:6379 [::1]:3] 0 \"\" \"\" plain"},
		{"rediss+cluster://me:p%40ss@a:1", "cluster [a:1] 0 \"me\" \"p@ss\" TLS"},
		{"redis+sentinel://a,b:2/main/1?sentinel_password=x", "main [a:26379 b:2] 1 \"\" \"\" plain"},
		{"redis+sentinel://:secret@a/main", "main [a:26379] 0 \"\" \"secret\" plain"},
		{"", ""}, {"localhost:6379", ""}, {"http://a", ""}, {"redis+cluster://a/1", ""}, {"redis+cluster://", ""}, {"redis+sentinel://a", ""},
		{"redis+sentinel://a/main/x", ""}, {"redis+sentinel://a/main?secret=1", ""}, {"redis+cluster://a,,b", ""}, {"redis://:secret@a/x", ""},
		{"redis+cluster://me:sec/ret@a:1", ""}, {"redis+sentinel://a/main/-1", ""}, {"redis+cluster://a b", ""}, {"rediss+unix:///run/redis.sock", ""},
	} {
		o, cluster, err := options(c.url)
		if c.want == "" {
			if err == nil {
				t.Errorf("%q was taken", c.url)
			} else if strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), ":sec") {
				t.Errorf("%q: %v", c.url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.url, err)
			continue
		}
		kind := "single"
		if cluster {
			kind = "cluster"
		} else if o.MasterName != "" {
			kind = o.MasterName
		}
		secure := "plain"
		if o.TLSConfig != nil {
			secure = "TLS"
		}
		if got := fmt.Sprintf("%s %v %d %q %q %s", kind, o.Addrs, o.DB, o.Username, o.Password, secure); got != c.want {
			t.Errorf("%q: %s, want %s", c.url, got, c.want)
		}
	}
}

func FuzzURL(f *testing.F) {
	f.Add("redis+sentinel://:hunter2@a,b:2/main/1?sentinel_password=x")
	f.Add("rediss+cluster://me:hunter2@a:1,[::1]:2")
	f.Fuzz(func(t *testing.T, s string) {
		if _, _, err := options(s); err != nil && strings.Contains(s, "hunter2@") && strings.Count(s, "@") == 1 && strings.HasPrefix(s, "redis") &&
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{}, {URL: "redis://a", Client: redis.NewClient(&redis.Options{})}, {URL: "redis://a", Interval: time.Millisecond},
		{URL: "redis://a", Interval: 10*time.Millisecond + 1}, {URL: "redis://a", Timeout: time.Hour}, {URL: "redis://a", Prefix: "{x}"},
		{URL: "redis://a", Mode: "other"}, {URL: "redis://a", Window: time.Millisecond}, {URL: "nonsense"}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

// A target's name cannot leave its hash slot, nor collide with another's.
func TestKeys(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{"a", "a}b", "{a", "%7B", "", "a}b}c", "a%7Db", "{}"} {
		keys := keysOf("cortex", name)
		tag := keys[0][strings.IndexByte(keys[0], '{') : strings.IndexByte(keys[0], '}')+1]
		for _, k := range append(keys, exactKeys(keys)...) {
			if !strings.HasPrefix(k, tag) || strings.Count(k, "}") != 1 {
				t.Errorf("%q: %s", name, k)
			}
			if o, ok := seen[k]; ok {
				t.Errorf("%q and %q share %s", name, o, k)
			}
			seen[k] = name
		}
	}
}
