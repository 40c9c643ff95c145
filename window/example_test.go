package window_test

import (
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/window"
)

func ExampleRolling() {
	w := window.New()
	now := time.Duration(0)
	for i := range 600 { // 10 s of traffic at 60 a second, every tenth attempt fails
		now = time.Duration(i) * time.Second / 60
		if i%10 == 0 {
			w.Add(now, window.Counts{Failure: 1})
			continue
		}
		w.Add(now, window.Counts{Success: 1})
		w.AddLatency(now, window.Bucket(20*time.Millisecond), 1)
	}
	span := w.Shortest(50)
	c := w.Counts(span)
	fmt.Printf("%v: %d of %d failed\n", span.Duration(), c.Failures(), c.Total())

	p99, ok := w.Quantile(w.ShortestLatencies(200), 0.99)
	fmt.Println(p99.Round(time.Millisecond), ok)

	// Without traffic the window empties by time alone.
	w.Advance(now + 2*time.Minute)
	fmt.Println(w.Counts(window.Span60s).Total())
	// Output:
	// 1s: 6 of 67 failed
	// 21ms true
	// 0
}
