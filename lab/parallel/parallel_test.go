package parallel_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/seed-a29ca62a/cortex/lab/parallel"
)

func TestEachDoesEveryJobOnceAndCountsInOrder(t *testing.T) {
	for _, most := range []int{-1, 0, 1, 3, 200} {
		for _, n := range []int{0, 1, 100} {
			var running, over atomic.Int64
			did := make([]atomic.Int64, n)
			last := 0
			err := parallel.Each(context.Background(), n, most, func(done, total int) {
				if done != last+1 || total != n {
					t.Errorf("%d of %d after %d", done, total, last)
				}
				last = done
			}, func(i int) error {
				if running.Add(1) > int64(most) && most > 0 {
					over.Add(1)
				}
				did[i].Add(1)
				running.Add(-1)
				return nil
			})
			if err != nil || last != n || over.Load() > 0 {
				t.Errorf("%d jobs, %d at a time: %v, %d done, %d too many at once", n, most, err, last, over.Load())
			}
			for i := range did {
				if k := did[i].Load(); k != 1 {
					t.Errorf("job %d was done %d times", i, k)
				}
			}
		}
	}
}

func TestEachEndsWithTheFirstFailure(t *testing.T) {
	broken := errors.New("broken")
	for _, most := range []int{1, 4} {
		var began atomic.Int64
		done := 0
		err := parallel.Each(context.Background(), 10_000, most, func(n, _ int) { done = n }, func(i int) error {
			began.Add(1)
			if i >= 5 {
				return broken
			}
			return nil
		})
		if !errors.Is(err, broken) || done != 5 || began.Load() > int64(5+most) {
			t.Errorf("%d at a time: %v, %d done of %d", most, err, done, began.Load())
		}
	}
}

func TestEachEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	done := 0
	err := parallel.Each(ctx, 100, 1, func(n, _ int) { done = n }, func(i int) error {
		if i == 6 {
			stop()
			return ctx.Err() // cut short: not done
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || done != 6 {
		t.Errorf("%v, %d done", err, done)
	}
	err = parallel.Each(ctx, 100, 0, nil, func(int) error {
		t.Error("a job after the end")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
