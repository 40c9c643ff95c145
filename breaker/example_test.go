package breaker_test

import (
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// A target hangs, the circuit opens on timeouts alone, and the first probe that gets through closes it.
func Example() {
	b, err := breaker.New(breaker.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	const rate = 200 // first attempts per second
	now := time.Duration(0)
	for failures := 1; b.State(now) == breaker.Closed; failures++ {
		now += 5 * time.Millisecond
		if b.Failure(now, true, 0, 0) {
			b.Trip(now, rate)
			fmt.Println(b.State(now), "after", failures, "timeouts")
		}
	}
	fmt.Println("next probe in", b.NextProbe(now))

	now += b.NextProbe(now)
	p, ok := b.TryProbe(now, 100*time.Millisecond)
	fmt.Println("probe:", ok, b.State(now))
	now += 20 * time.Millisecond
	used, closed := b.ProbeDone(now, p, breaker.ProbeSucceeded, 20*time.Millisecond, rate)
	fmt.Println(b.State(now), used, closed, "generation", b.Generation())
	// Output:
	// open after 12 timeouts
	// next probe in 500ms
	// probe: true half-open
	// closed true true generation 2
}

func ExampleConfig_Normalize() {
	_, err := breaker.Config{OpenFor: 600}.Normalize()
	fmt.Println(err)
	// Output:
	// OpenFor: 600ns: it must be between 1ms and 24h0m0s, or 0 for the default
}
