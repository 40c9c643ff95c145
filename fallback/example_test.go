package fallback_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/fallback"
)

// A balance query: the last good answer for up to five minutes, then a plain "we do not know".
func Example() {
	now := time.Duration(0)
	cache, err := fallback.NewCache(fallback.CacheConfig[string]{
		Size: func(balance string) int64 { return int64(len(balance)) },
		Now:  func() time.Duration { return now }, // leave it out for the process's own clock
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	cache.Put("account 7", "120.50 EUR") // after every call that went well

	ladder := fallback.Ladder[string]{
		fallback.Cached(cache, "account 7", 5*time.Minute),
		fallback.Static("balance not available"),
	}
	down := errors.New("connection refused")
	for _, now = range []time.Duration{time.Minute, 10 * time.Minute} {
		if answer, ok := ladder.Answer(context.Background(), down); ok {
			fmt.Printf("%s (%v, %v old)\n", answer.Value, answer.Source, answer.Age)
		}
	}
	// Output:
	// 120.50 EUR (cache, 1m0s old)
	// balance not available (static, 0s old)
}
