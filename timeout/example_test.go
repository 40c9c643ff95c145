package timeout_test

import (
	"fmt"
	"time"

	"github.com/seed-a29ca62a/cortex/timeout"
	"github.com/seed-a29ca62a/cortex/window"
)

func ExampleTimeout() {
	t, err := timeout.New(timeout.Config{Bootstrap: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Duration(0)
	fmt.Println(t.Refresh(now))
	for range 1000 {
		t.Observe(now, window.Bucket(80*time.Millisecond), 1)
		now += 10 * time.Millisecond
	}
	fmt.Println(t.Refresh(now).Round(10 * time.Millisecond))

	_, err = timeout.New(timeout.Config{Bootstrap: 10 * time.Second})
	fmt.Println(err)
	// Output:
	// 1s
	// 170ms
	// Bootstrap: 10s is above Max 5s; lower Bootstrap or raise Max
}
