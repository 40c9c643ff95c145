package backoff_test

import (
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/backoff"
)

// The range is known before a delay is drawn: here the server asks for 2 s, and 5 s are left for the wait.
func ExampleConfig_Bounds() {
	cfg, err := backoff.Config{Law: backoff.FullJitter}.Normalize()
	if err != nil {
		fmt.Println(err)
		return
	}
	for attempt := range 3 {
		fmt.Println(cfg.Bounds(backoff.Input{Attempt: attempt}))
	}
	in := backoff.Input{Hint: 2 * time.Second, Limit: 5 * time.Second}
	fmt.Println(cfg.Bounds(in))
	fmt.Println(cfg.Delay(in, func() float64 { return 0.5 }))
	// Output:
	// 0s 100ms
	// 0s 200ms
	// 0s 400ms
	// 2s 2.1s
	// 2.05s
}
