package budget_test

import (
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/budget"
)

// Thirty calls fail at once: as many are retried as there are tokens, and successes earn new ones.
func ExampleBucket() {
	b, err := budget.New(budget.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Second
	retries := 0
	for range 30 {
		if b.Spend(now, 1) {
			retries++
		}
	}
	fmt.Println(retries, "retries, burn", b.Burn())

	b.Earn(now, 50)
	fmt.Println(b.Tokens(), "tokens after 50 successes")
	// Output:
	// 10 retries, burn 1
	// 5 tokens after 50 successes
}
