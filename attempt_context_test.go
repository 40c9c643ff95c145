package cortex

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestPermitSizeIsAMultipleOfSixteen(t *testing.T) {
	if n := reflect.TypeFor[Permit]().Size(); n%16 != 0 {
		t.Errorf("a Permit has %d bytes; copying it stalls the next read", n)
	}
}

// within runs op under an engine with an attempt timeout of one second.
func within(t *testing.T, ctx context.Context, op func(context.Context)) {
	t.Helper()
	e, err := New(Config{DisableRetries: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Do(ctx, e, func(ctx context.Context) (int, error) { op(ctx); return 0, nil })
	if err != nil {
		t.Fatal(err)
	}
}

func TestAttemptContextEndsWithItsTimeout(t *testing.T) {
	for name, wait := range map[string]func(context.Context){
		"Done":    func(ctx context.Context) { <-ctx.Done() },
		"a child": func(ctx context.Context) { c, cancel := context.WithCancel(ctx); defer cancel(); <-c.Done() },
		"Err": func(ctx context.Context) {
			for ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				within(t, t.Context(), func(ctx context.Context) {
					d, ok := ctx.Deadline()
					if left := time.Until(d); !ok || left <= 990*time.Millisecond || left > time.Second {
						t.Errorf("%v left (%v), want a second", left, ok)
					}
					if ctx.Err() != nil {
						t.Errorf("it begins with %v", ctx.Err())
					}
					wait(ctx)
					if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
						t.Errorf("it ended with %v", ctx.Err())
					}
					select {
					case <-ctx.Done():
					default:
						t.Error("Err tells of an end that Done does not know")
					}
				})
				if d := time.Since(start); d < 990*time.Millisecond || d > 1010*time.Millisecond {
					t.Errorf("it ended after %v, want a second", d)
				}
			})
		})
	}
}

func TestAttemptContextEndsWithItsParentAndItsAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		within(t, ctx, func(ctx context.Context) {
			cancel()
			<-ctx.Done()
			if ctx.Err() != context.Canceled {
				t.Errorf("it ended with %v", ctx.Err())
			}
		})
		var after [2]context.Context // one that was asked for Done in time, one that was not
		within(t, t.Context(), func(ctx context.Context) { after[0] = ctx; ctx.Done() })
		within(t, t.Context(), func(ctx context.Context) { after[1] = ctx })
		for _, ctx := range after {
			<-ctx.Done()
			if ctx.Err() != context.Canceled {
				t.Errorf("after the attempt: %v", ctx.Err())
			}
		}
		early, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		within(t, early, func(ctx context.Context) {
			if d, _ := ctx.Deadline(); time.Until(d) > time.Millisecond {
				t.Error("the parent's deadline is earlier")
			}
			<-ctx.Done()
		})
	})
}

type testKey struct{}

func TestAttemptContextPassesValuesAndNeedsNoGoroutine(t *testing.T) {
	e, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), testKey{}, 7)
	before := runtime.NumGoroutine()
	_, err = Do(ctx, e, func(ctx context.Context) (int, error) {
		for range 2 {
			if ctx.Value(testKey{}) != 7 {
				t.Error("the parent's value is lost")
			}
			if m, ok := RetryMarkFrom(ctx); !ok || m.Retries != 3 {
				t.Errorf("mark %+v %v", m, ok)
			}
			for range 10 {
				_, cancel := context.WithCancel(ctx)
				defer cancel()
			}
			if n := runtime.NumGoroutine(); n > before {
				t.Errorf("%d goroutines before, %d under children of the attempt's context", before, n)
			}
			ctx.Done()
		}
		return 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAttemptContextIsSafeForConcurrentUse(t *testing.T) {
	for range 200 {
		within(t, t.Context(), func(ctx context.Context) {
			var wg sync.WaitGroup
			done := make(chan (<-chan struct{}), 8)
			for range 4 {
				wg.Go(func() { done <- ctx.Done(); ctx.Err(); ctx.Value(testKey{}); ctx.Deadline() })
			}
			wg.Wait()
			first := <-done
			for range 3 {
				if d := <-done; d != first {
					t.Error("Done gave two channels")
				}
			}
		})
	}
}

// Two processors that were handed the same stripe by chance part soon.
func TestProcessorsThatClashGetOtherStripes(t *testing.T) {
	before := nextStripe.Load()
	e, err := New(Config{Stripes: 2})
	if err != nil {
		t.Fatal(err)
	}
	st := &e.stripes[0]
	for range clashes {
		st.mu.Lock()
		go func() {
			runtime.Gosched()
			st.mu.Unlock()
		}()
		e.lockTaken(st)
		st.mu.Unlock()
	}
	if nextStripe.Load() == before {
		t.Error("no new number was handed out")
	}
}
