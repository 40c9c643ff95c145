package sim_test

import (
	"testing"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// The speed of the laboratory in simulated calls a second on one core. The goal is 500,000 for S1 under cortex-adaptive:
//
//	go test -run xxx -bench S1 -cpu 1 ./lab/sim
func BenchmarkS1(b *testing.B) {
	for _, name := range []string{"none", "exponential-jitter", "cortex-article", "cortex-adaptive"} {
		b.Run(name, func(b *testing.B) {
			p, err := policy.Find(name)
			if err != nil {
				b.Fatal(err)
			}
			s, err := scenario.Find("S1")
			if err != nil {
				b.Fatal(err)
			}
			calls := 0
			for b.Loop() {
				w, err := sim.New(sim.Options{Scenario: s, Seed: 1, Guard: p.Make})
				if err != nil {
					b.Fatal(err)
				}
				calls += w.Run().Calls
			}
			b.ReportMetric(float64(calls)/b.Elapsed().Seconds(), "calls/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(calls), "ns/call")
		})
	}
}
