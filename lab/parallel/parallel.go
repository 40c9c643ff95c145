// Package parallel does jobs that are independent of each other on several processors, until the context ends or one fails.
package parallel

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Each does the jobs 0 to n−1, at most so many at a time (0 or less: as many as there are processors), beginning with the first, and
// returns when none of them runs any more. The error is the first that a job returned; after it no other begins. When ctx ends no
// other begins either and the error is the context's; what is running is to look at ctx itself and, cut short, to return its error.
//
// Progress, unless nil, is called after every job that returned nil, by one job at a time, with a number done that counts up.
func Each(ctx context.Context, n, most int, progress func(done, total int), job func(i int) error) error {
	if most <= 0 {
		most = runtime.GOMAXPROCS(0)
	}
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var finished struct {
		sync.Mutex
		n int
	}
	var wg sync.WaitGroup
	for range min(most, n) {
		wg.Go(func() {
			for ctx.Err() == nil && failure.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := job(i); err != nil {
					failure.CompareAndSwap(nil, &err)
					return
				}
				if progress != nil {
					finished.Lock()
					finished.n++
					progress(finished.n, n)
					finished.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if e := failure.Load(); e != nil {
		return *e
	}
	return ctx.Err()
}
