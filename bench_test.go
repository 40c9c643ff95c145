package cortex_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// The hot path by itself; bench/ holds it against the peers.

func mustNew(tb testing.TB, c cortex.Config) *cortex.Engine {
	tb.Helper()
	e, err := cortex.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func BenchmarkAdmitRecord(b *testing.B) {
	e := mustNew(b, cortex.Config{})
	ctx := context.Background()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, err := e.Admit(ctx, 5)
			if err != nil {
				b.Error(err)
				return
			}
			p.Record(cortex.Success)
		}
	})
}

func BenchmarkAdmitOpen(b *testing.B) {
	e := mustNew(b, cortex.Config{Profile: cortex.Article})
	ctx := context.Background()
	p, _ := e.Admit(ctx, 5)
	p.Record(cortex.Failed)
	if _, err := e.Admit(ctx, 5); err == nil {
		b.Fatal("the circuit is closed")
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := e.Admit(ctx, 5); err == nil {
				b.Error("admitted")
				return
			}
		}
	})
}

func BenchmarkDo(b *testing.B) {
	op := func(context.Context) (int, error) { return 1, nil }
	for _, c := range []struct {
		name string
		off  bool
	}{{"timeout=off", true}, {"timeout=adaptive", false}} {
		b.Run(c.name, func(b *testing.B) {
			e := mustNew(b, cortex.Config{DisableTimeout: c.off})
			ctx := context.Background()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := cortex.Do(ctx, e, op); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// A trickle: every call finds the estimators due.
func BenchmarkTick(b *testing.B) {
	now := time.Duration(0)
	e := mustNew(b, cortex.Config{Now: func() time.Duration { return now }})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		now += 2 * time.Millisecond
		p, err := e.Admit(ctx, 5)
		if err != nil {
			b.Fatal(err)
		}
		now += 400 * time.Microsecond
		p.Record(cortex.Success)
	}
}

// The laboratory's load: one goroutine, 417 calls a second, a dozen in flight, latencies of all kinds.
func BenchmarkTickInFlight(b *testing.B) {
	const every = 2400 * time.Microsecond
	for _, stripes := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("stripes=%d", stripes), func(b *testing.B) {
			now := time.Duration(0)
			e := mustNew(b, cortex.Config{Stripes: stripes, Now: func() time.Duration { return now }})
			ctx := context.Background()
			r := rand.New(rand.NewPCG(1, 1))
			var next [1024]uint8 // who is answered next
			for i := range next {
				next[i] = uint8(r.IntN(12))
			}
			var flight [12]cortex.Permit
			i := 0
			call := func() {
				p := &flight[next[i%len(next)]]
				i++
				p.Record(cortex.Success)
				now += every
				var err error
				if *p, err = e.Admit(ctx, 5); err != nil {
					b.Fatal(err)
				}
			}
			for range 20_000 { // 48 s
				call()
			}
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}
