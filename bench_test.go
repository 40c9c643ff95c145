package cortex_test

import (
	"context"
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
