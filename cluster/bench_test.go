package cluster

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/window"
)

// usual is what a guard of 25 calls a second reports after 250 ms.
func usual(r *rand.Rand) cortex.FleetReport {
	x := cortex.FleetReport{Guards: 1, InFlight: 1, Asked: 6, Success: 6, Area: 120 * time.Millisecond}
	for range 6 {
		x.Offered[[]int{2, 5, 5, 7, 9}[r.IntN(5)]]++
		x.Latency[window.Bucket(time.Duration(20*(0.3+r.ExpFloat64()))*time.Millisecond)]++
	}
	return x
}

// info reads a number of Redis's INFO.
func info(tb testing.TB, db *redis.Client, section, key string) float64 {
	tb.Helper()
	for line := range strings.Lines(db.Info(bg, section).Val()) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == key {
			f, err := strconv.ParseFloat(v, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return f
		}
	}
	tb.Fatalf("no %s in INFO %s", key, section)
	return 0
}

// cost measures what Redis spends on one exchange: processor time and bytes.
func cost(b *testing.B, db *redis.Client, f func(i int)) {
	cpu := func() float64 { return info(b, db, "cpu", "used_cpu_user") + info(b, db, "cpu", "used_cpu_sys") }
	for i := range 2000 {
		f(i)
	}
	u, in, out := cpu(), info(b, db, "stats", "total_net_input_bytes"), info(b, db, "stats", "total_net_output_bytes")
	n := 0
	for b.Loop() {
		f(n)
		n++
	}
	per := float64(n)
	b.ReportMetric((cpu()-u)*1e6/per, "redis-µs/op")
	b.ReportMetric((info(b, db, "stats", "total_net_input_bytes")-in)/per, "B-in/op")
	b.ReportMetric((info(b, db, "stats", "total_net_output_bytes")-out)/per, "B-out/op")
}

// One exchange of one target in a fleet of that size: counts that are added up in Redis, as this package has them, against a report of each
// instance that everybody reads.
func BenchmarkLayout(b *testing.B) {
	for _, n := range []int{4, 16, 64, 256} {
		r := rand.New(rand.NewPCG(1, 1))
		reports := make([]cortex.FleetReport, 64)
		for i := range reports {
			reports[i] = usual(r)
		}
		b.Run(fmt.Sprint("merged/", n), func(b *testing.B) {
			db := redisServer(b)
			db.ScriptLoad(bg, syncSource)
			keys := keysOf("cortex", "wallet")
			cost(b, db, func(i int) {
				// An interval of the server's has as many exchanges as there are instances, as in life: n at 250 ms each.
				q := request{instance: fmt.Sprint("instance", i%n), seq: uint64(i), interval: 20 * time.Millisecond, order: orderNone, lease: time.Second,
					budget: cortex.BudgetReport{Capacity: 10, Initial: 10, Income: 0.2, Reserve: 2}, fields: fieldsOf(nil, &reports[i%64], 100*time.Millisecond)}
				if err := db.EvalSha(bg, syncScript.hash, keys, q.args()...).Err(); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(fmt.Sprint("each/", n), func(b *testing.B) {
			db := redisServer(b)
			cost(b, db, func(i int) {
				var blob []byte
				for _, f := range fieldsOf(nil, &reports[i%64], 100*time.Millisecond) { // about as compact as MessagePack
					blob = append(append(blob, f.name...), byte(f.value), byte(f.value>>8))
				}
				p := db.Pipeline()
				p.Time(bg)
				p.HSet(bg, "{cortex:wallet}", fmt.Sprint("instance", i%n), blob)
				p.PExpire(bg, "{cortex:wallet}", time.Second)
				p.HGetAll(bg, "{cortex:wallet}")
				if _, err := p.Exec(bg); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// What a call costs its caller: guarded; guarded and shared, by either mode; and the article's way, which asks Redis on every call.
func BenchmarkCall(b *testing.B) {
	guarded := func(b *testing.B, mode Sharing) {
		e, err := cortex.New(cortex.Config{})
		if err != nil {
			b.Fatal(err)
		}
		var c *Cluster
		if mode != "" {
			db := redisServer(b)
			if c, err = New(Config{Client: db, Mode: mode}); err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			if err := c.Guard(e); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			p, err := e.Admit(bg, 5)
			if err != nil {
				b.Fatal(err)
			}
			p.Record(cortex.Success)
		}
	}
	b.Run("alone", func(b *testing.B) { guarded(b, "") })
	b.Run("counts", func(b *testing.B) { guarded(b, Counts) })
	b.Run("exact", func(b *testing.B) { guarded(b, Exact) })
	b.Run("article", func(b *testing.B) {
		db := redisServer(b)
		n := 0
		for b.Loop() {
			now := float64(time.Now().UnixMilli())
			p := db.Pipeline()
			p.ZAdd(bg, "w", redis.Z{Score: now, Member: strconv.Itoa(n)})
			p.ZRemRangeByScore(bg, "w", "-inf", strconv.FormatFloat(now-60000, 'f', 0, 64))
			p.ZCount(bg, "w", "-inf", "+inf")
			if _, err := p.Exec(bg); err != nil {
				b.Fatal(err)
			}
			n++
		}
	})
}

// Memory and time of one exchange with 600,000 calls in the window, of either mode.
func BenchmarkWindow600k(b *testing.B) {
	const events = 600_000
	b.Run("exact", func(b *testing.B) {
		db := redisServer(b)
		before := info(b, db, "memory", "used_memory")
		keys := keysOf("cortex", "wallet")
		db.ScriptLoad(bg, exactSource)
		seq := uint64(0)
		exchange := func(n uint64) {
			seq++
			x := cortex.FleetReport{Success: n, Guards: 1}
			good, bad, _ := takeMembers("abcdefghijkl", seq, &x)
			if err := db.EvalSha(bg, exactScript.hash, exactKeys(keys), exactArgs("abcdefghijkl", seq, DefaultInterval, time.Hour, good, bad)...).Err(); err != nil {
				b.Fatal(err)
			}
		}
		for range events / mostMembers {
			exchange(mostMembers)
		}
		memory := info(b, db, "memory", "used_memory") - before
		time.Sleep(2 * DefaultInterval) // the last slot is over
		for b.Loop() {
			exchange(100)
		}
		b.ReportMetric(memory/(1<<20), "MiB")
	})
	b.Run("counts", func(b *testing.B) {
		db := redisServer(b)
		before := info(b, db, "memory", "used_memory")
		keys := keysOf("cortex", "wallet")
		db.ScriptLoad(bg, syncSource)
		r := rand.New(rand.NewPCG(1, 1))
		seq := uint64(0)
		exchange := func(i int) {
			seq++
			x := usual(r)
			x.Success = events / 240 / 16 // a minute of 600,000 calls
			q := request{instance: fmt.Sprint("instance", i%16), seq: seq, interval: DefaultInterval, order: orderNone, lease: time.Second,
				budget: cortex.BudgetReport{Capacity: 10, Initial: 10}, fields: fieldsOf(nil, &x, 0)}
			if err := db.EvalSha(bg, syncScript.hash, keys, q.args()...).Err(); err != nil {
				b.Fatal(err)
			}
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			exchange(int(seq))
		}
		memory := 0.0
		for _, k := range keys {
			memory += float64(db.MemoryUsage(bg, k).Val())
		}
		_ = before
		for b.Loop() {
			exchange(int(seq))
		}
		b.ReportMetric(memory/(1<<20), "MiB")
	})
}
