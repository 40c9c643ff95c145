package main

import (
	"context"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// hintWatch starts a subject whose attempts are watched: early counts those that come before the hint of the call's last answer.
func hintWatch(sub subject, early *int) func(context.Context, env) (client, error) {
	var mu sync.Mutex
	return func(ctx context.Context, e env) (client, error) {
		c, err := sub.start(ctx, e)
		if err != nil {
			return c, err
		}
		do := c.do
		c.do = func(ctx context.Context, p cortex.Priority, attempt func(context.Context) error) error {
			var due time.Time
			return do(ctx, p, func(ctx context.Context) error {
				if time.Now().Before(due) {
					mu.Lock()
					*early++
					mu.Unlock()
				}
				err := attempt(ctx)
				if d := hint(err); d > 0 {
					due = time.Now().Add(d)
				}
				return err
			})
		}
		return c, nil
	}
}
