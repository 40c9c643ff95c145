package breaker

import (
	"testing"
	"time"
)

// One failure in a hundred calls: the early way out.
func BenchmarkFailureIsolated(b *testing.B) {
	br := mustNew(b, Config{})
	b.ReportAllocs()
	var now time.Duration
	var cum uint64
	for b.Loop() {
		now += 100 * time.Millisecond
		cum += 99
		br.Failure(now, false, cum, cum)
	}
}

// 60 % errors: the whole reckoning on each.
func BenchmarkFailureDense(b *testing.B) {
	br := mustNew(b, Config{})
	b.ReportAllocs()
	var now time.Duration
	var cum uint64
	for i := 0; b.Loop(); i++ {
		now += time.Millisecond
		cum += uint64(i & 1)
		br.Failure(now, i&2 == 0, cum, cum)
	}
}

func BenchmarkTryProbeRefused(b *testing.B) {
	for name, c := range map[string]Config{"adaptive": {}, "article": {Article: true}} {
		b.Run(name, func(b *testing.B) {
			br := mustNew(b, c)
			br.Trip(0, 1000)
			now := br.NextProbe(0)
			br.TryProbe(now, time.Minute)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := br.TryProbe(now, time.Minute); ok {
					b.Fatal("admitted")
				}
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustNew(b, Config{})
	}
}
