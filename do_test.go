package cortex_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/fallback"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// opError is an error of the operation's own type, to be found again by errors.As.
type opError struct{ code int }

func (e *opError) Error() string { return fmt.Sprintf("op failed with %d", e.code) }

func fails(n *int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		*n++
		return *n, &opError{*n}
	}
}

func TestDoReturnsTheValue(t *testing.T) {
	e := mustNew(t, cortex.Config{})
	v, err := cortex.Do(t.Context(), e, func(context.Context) (string, error) { return "42 EUR", nil })
	if v != "42 EUR" || err != nil {
		t.Error(v, err)
	}
	synctest.Test(t, func(t *testing.T) {
		e := mustNew(t, cortex.Config{})
		n := 0
		v, err := cortex.Do(t.Context(), e, func(context.Context) (int, error) {
			if n++; n < 3 {
				return -1, errBoom
			}
			return 7, nil
		})
		if v != 7 || err != nil || n != 3 {
			t.Errorf("%v, %v after %d attempts", v, err, n)
		}
		if s := e.Stats(); s.Calls != 1 || s.Attempts != 3 || s.Retries != 2 || s.Failures != 2 || s.Successes != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// The operation's own last error is kept, and says how it ended.
func TestDoErrors(t *testing.T) {
	for _, c := range []struct {
		name     string
		reason   cortex.Reason
		sentinel error
		attempts int
		config   cortex.Config
		opts     []cortex.CallOption
		op       func(context.Context, *int) error
	}{
		{"exhausted", cortex.ReasonMaxRetries, cortex.ErrExhausted, 4, cortex.Config{}, nil, nil},
		{"one retry", cortex.ReasonMaxRetries, cortex.ErrExhausted, 2, cortex.Config{}, []cortex.CallOption{cortex.WithRetries(1)}, nil},
		{"no retries", cortex.ReasonMaxRetries, cortex.ErrExhausted, 1, cortex.Config{}, []cortex.CallOption{cortex.WithRetries(0)}, nil},
		{"negative retries", cortex.ReasonMaxRetries, cortex.ErrExhausted, 1, cortex.Config{}, []cortex.CallOption{cortex.WithRetries(math.MinInt)}, nil},
		{"retries disabled", cortex.ReasonMaxRetries, cortex.ErrExhausted, 1, cortex.Config{DisableRetries: true}, []cortex.CallOption{cortex.WithRetries(5)}, nil},
		{"permanent", cortex.ReasonNotRetryable, nil, 1, cortex.Config{}, nil,
			func(_ context.Context, n *int) error { *n++; return cortex.Permanent(&opError{*n}) }},
		{"budget", cortex.ReasonBudget, cortex.ErrBudget, 2,
			cortex.Config{Profile: cortex.Article, Budget: budget.Config{Capacity: 1, MinPerSecond: -1}, Breaker: noTrip}, []cortex.CallOption{cortex.WithPriority(9)}, nil},
		{"deadline", cortex.ReasonDeadline, cortex.ErrDeadline, 1,
			cortex.Config{Deadline: time.Second, Backoff: backoff.Config{Law: backoff.Exponential, Base: 10 * time.Second}}, nil, nil},
		{"below a layer that retries", cortex.ReasonRetriedAbove, nil, 1, cortex.Config{}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.config.Name = "ledger"
				e := mustNew(t, c.config)
				ctx := t.Context()
				if c.reason == cortex.ReasonRetriedAbove {
					ctx = cortex.WithRetryMark(ctx, cortex.RetryMark{Attempt: 1})
				}
				n := 0
				op := fails(&n)
				if c.op != nil {
					op = func(ctx context.Context) (int, error) { return 99, c.op(ctx, &n) }
				}
				v, err := cortex.Do(ctx, e, op, c.opts...)
				var ce *cortex.CallError
				if v != 0 || !errors.As(err, &ce) {
					t.Fatalf("%v, %v", v, err)
				}
				if n != c.attempts || ce.Attempts != c.attempts || ce.Reason != c.reason || ce.Target != "ledger" {
					t.Errorf("%d attempts made: %+v", n, ce)
				}
				var oe *opError
				if !errors.As(err, &oe) || oe.code != c.attempts {
					t.Errorf("the last attempt's error is lost in %v", err)
				}
				for _, s := range []error{cortex.ErrExhausted, cortex.ErrBudget, cortex.ErrDeadline, cortex.ErrOpen, cortex.ErrShed} {
					if errors.Is(err, s) != (s == c.sentinel) {
						t.Errorf("errors.Is(%v, %v) is %v", err, s, errors.Is(err, s))
					}
				}
				if errors.Is(err, cortex.ErrRejected) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
					t.Errorf("%v claims what did not happen", err)
				}
				if p := e.Pressure(); p.InFlight != 0 {
					t.Errorf("%d in flight", p.InFlight)
				}
			})
		})
	}
}

// F20: an open circuit is refused before the operation, at once, and is not retried by a layer above.
func TestDoBelowAnOpenCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := mustNew(t, cortex.Config{Profile: cortex.Article})
		outer := mustNew(t, cortex.Config{})
		n := 0
		_, _ = cortex.Do(t.Context(), e, fails(&n))
		start := time.Now()
		_, err := cortex.Do(t.Context(), e, fails(&n))
		var r *cortex.Rejection
		if n != 1 || !errors.As(err, &r) || r.Reason != cortex.ReasonCircuitOpen {
			t.Errorf("%d calls, %v", n, err)
		}
		if !errors.Is(err, cortex.ErrOpen) || !errors.Is(err, cortex.ErrRejected) || errors.Is(err, cortex.ErrShed) {
			t.Errorf("%v is not what it is", err)
		}
		tries := 0
		_, err = cortex.Do(t.Context(), outer, func(ctx context.Context) (int, error) {
			tries++
			return cortex.Do(ctx, e, fails(&n))
		})
		if tries != 1 || n != 1 || !errors.Is(err, cortex.ErrOpen) {
			t.Errorf("the layer above tried %d times, %d calls: %v", tries, n, err)
		}
		if s := outer.Stats(); s.Failures != 0 || s.Neutral != 1 {
			t.Errorf("the refusal speaks against the layer above: %+v", s)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("took %v", d)
		}
	})
}

// A retry that was decided and then refused, because the circuit opened while it waited: the call's error has both, and the budget
// its token back.
func TestRetryRefusedWhileItWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := mustNew(t, cortex.Config{Budget: budget.Config{MinPerSecond: -1}, Backoff: backoff.Config{Law: backoff.Exponential, Base: 10 * ms}})
		n := 0
		before := e.Pressure().Tokens
		_, err := cortex.Do(t.Context(), e, func(context.Context) (int, error) {
			n++
			time.AfterFunc(5*ms, func() {
				for range 43 {
					if p, err := e.Admit(bg, 9); err == nil {
						p.Record(cortex.Failed)
					}
				}
			})
			return 0, &opError{n}
		})
		var ce *cortex.CallError
		var oe *opError
		var r *cortex.Rejection
		if !errors.As(err, &ce) || ce.Attempts != 1 || ce.Reason != cortex.ReasonCircuitOpen || !errors.As(err, &oe) || !errors.As(err, &r) || ce.Refusal != r {
			t.Errorf("%+v", err)
		}
		if !errors.Is(err, cortex.ErrOpen) || !errors.Is(err, cortex.ErrRejected) {
			t.Errorf("%v is not what it is", err)
		}
		if after := e.Pressure().Tokens; n == 1 && math.Abs(after-before) > 1e-9 {
			t.Errorf("%v tokens before, %v after a retry that was never sent", before, after)
		}
	})
}

// F34: no sleep before a retry that cannot fit; nothing is claimed of a context that has not ended.
func TestDelayThatDoesNotFitIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			config cortex.Config
			err    error
		}{
			"backoff of 10 s": {cortex.Config{Backoff: backoff.Config{Law: backoff.Exponential, Base: 10 * time.Second}}, errBoom},
			"hint of 10 s":    {cortex.Config{}, cortex.WithClass(errBoom, cortex.Class{Outcome: cortex.Failed, Retryable: true, RetryAfter: 10 * time.Second})},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			start := time.Now()
			n := 0
			_, err := cortex.Do(ctx, mustNew(t, c.config), func(context.Context) (int, error) { n++; return 0, c.err })
			if d := time.Since(start); d != 0 || n != 1 {
				t.Errorf("%s: %d attempts in %v", name, n, d)
			}
			if !errors.Is(err, errBoom) || !errors.Is(err, cortex.ErrDeadline) || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
				t.Errorf("%s: %v, context %v", name, err, ctx.Err())
			}
			cancel()
		}
	})
}

// Full jitter is cut so that the retry can still finish: it is made, and in time.
func TestDelayIsCutToWhatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			e := mustNew(t, cortex.Config{Backoff: backoff.Config{Base: 20 * time.Second}})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			n := 0
			_, err := cortex.Do(ctx, e, func(context.Context) (int, error) {
				if n++; n == 1 {
					return 0, errBoom
				}
				return 1, nil
			})
			if err != nil || n != 2 {
				t.Fatalf("%d attempts: %v", n, err)
			}
			cancel()
		}
	})
}

// F35 (a): an overall limit holds whatever the number of retries, and for an operation that hangs.
func TestOverallDeadlineEndsTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, op := range map[string]func(context.Context) (int, error){
			"fails": func(context.Context) (int, error) { return 0, errBoom },
			"fails later": func(ctx context.Context) (int, error) {
				select {
				case <-time.After(700 * ms):
				case <-ctx.Done():
				}
				return 0, errBoom
			},
			"hangs": func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() },
			"hangs, with an error of its own": func(ctx context.Context) (int, error) {
				<-ctx.Done()
				return 0, errors.New("driver: connection reset")
			},
		} {
			for _, own := range []bool{true, false} {
				c := cortex.Config{MaxRetries: 1000, Budget: budget.Config{Capacity: 1e6}, Timeout: timeout.Config{Max: time.Minute, Bootstrap: time.Minute}}
				ctx, cancel := context.WithCancel(t.Context())
				if own {
					c.Deadline = 5 * time.Second
				} else {
					ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
				}
				start := time.Now()
				_, err := cortex.Do(ctx, mustNew(t, c), op)
				if d := time.Since(start); d > 5*time.Second || err == nil {
					t.Errorf("%s, own deadline %v: %v after %v", name, own, err, d)
				}
				if !errors.Is(err, cortex.ErrDeadline) && !errors.Is(err, cortex.ErrOpen) {
					t.Errorf("%s, own deadline %v: %v", name, own, err)
				}
				cancel()
			}
		}
	})
}

// F35 (b): a limit outside cancels what is inside; nothing goes on in the background.
func TestOuterTimeoutStopsTheRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := mustNew(t, cortex.Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
		defer cancel()
		var starts atomic.Int32
		_, err := cortex.Do(ctx, e, func(ctx context.Context) (int, error) {
			starts.Add(1)
			select {
			case <-time.After(time.Second):
				return 0, errBoom
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		time.Sleep(time.Minute)
		if n := starts.Load(); n != 1 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d starts: %v", n, err)
		}
	})
}

// A caller that gives up finds its own reason beside the operation's error, and the budget its token back.
func TestCallerThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, when := range []time.Duration{0, 5 * ms} { // during the attempt, during the wait
			e := mustNew(t, cortex.Config{Backoff: backoff.Config{Law: backoff.Exponential, Base: time.Second}, Budget: budget.Config{MinPerSecond: -1}})
			before := e.Pressure().Tokens
			reason := errors.New("the user closed the page")
			ctx, cancel := context.WithCancelCause(t.Context())
			start := time.Now()
			_, err := cortex.Do(ctx, e, func(context.Context) (int, error) {
				if when == 0 {
					cancel(reason)
				} else {
					time.AfterFunc(when, func() { cancel(reason) })
				}
				return 0, errBoom
			})
			var ce *cortex.CallError
			if !errors.As(err, &ce) || ce.Reason != cortex.ReasonCancelled || ce.Attempts != 1 || !errors.Is(err, errBoom) || !errors.Is(err, reason) {
				t.Errorf("%+v", err)
			}
			if d := time.Since(start); d != when {
				t.Errorf("returned after %v, cancelled after %v", d, when)
			}
			if after := e.Pressure().Tokens; after != before {
				t.Errorf("%v tokens of %v", after, before)
			}
			// During the attempt the caller ended it; during the wait the attempt had failed by itself.
			if s := e.Stats(); s.Timeouts != 0 || (s.Neutral == 1) != (when == 0) || (s.Failures == 1) != (when > 0) {
				t.Errorf("%+v", s)
			}
		}
		// Without a cause of its own it is context.Canceled.
		e := mustNew(t, cortex.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		_, err := cortex.Do(ctx, e, func(context.Context) (int, error) { cancel(); return 0, errBoom })
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errBoom) {
			t.Error(err)
		}
	})
}

// F17, control group: it is CORTEX's own timeout that ends the attempts, whatever the driver says of it.
func TestOwnTimeoutSpeaksAgainstTheTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := mustNew(t, cortex.Config{DisableRetries: true})
		hang := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			return 0, errors.New("driver: query aborted")
		}
		refused := 0
		for range 100 {
			start := time.Now()
			_, err := cortex.Do(t.Context(), e, hang)
			if errors.Is(err, cortex.ErrRejected) {
				refused++
				time.Sleep(10 * ms)
				continue
			}
			if d := time.Since(start); d < time.Second || d > 5*time.Second {
				t.Errorf("an attempt was cut after %v", d)
			}
		}
		s := e.Stats()
		if refused == 0 || s.Timeouts < 12 || s.Failures+s.Neutral != 0 || s.Transitions == 0 {
			t.Errorf("%d refused: %+v", refused, s)
		}
	})
}

func TestAttemptTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name   string
			config cortex.Config
			opts   []cortex.CallOption
			want   time.Duration // 0: uncut
		}{
			{"bootstrap", cortex.Config{}, nil, time.Second},
			{"configured", cortex.Config{Timeout: timeout.Config{Bootstrap: 300 * ms}}, nil, 300 * ms},
			{"of the call", cortex.Config{}, []cortex.CallOption{cortex.WithTimeout(20 * ms)}, 20 * ms},
			{"of the call, longer", cortex.Config{}, []cortex.CallOption{cortex.WithTimeout(time.Minute)}, time.Minute},
			{"none for the call", cortex.Config{}, []cortex.CallOption{cortex.WithTimeout(0)}, 0},
			{"negative for the call", cortex.Config{}, []cortex.CallOption{cortex.WithTimeout(-time.Second)}, 0},
			{"disabled", cortex.Config{DisableTimeout: true}, nil, 0},
			{"deadline", cortex.Config{Deadline: 40 * ms}, nil, 40 * ms},
			{"deadline, disabled", cortex.Config{Deadline: 40 * ms, DisableTimeout: true}, nil, 40 * ms},
			{"deadline and none for the call", cortex.Config{Deadline: 40 * ms}, []cortex.CallOption{cortex.WithTimeout(0)}, 40 * ms},
		} {
			_, _ = cortex.Do(t.Context(), mustNew(t, c.config), func(ctx context.Context) (int, error) {
				d, ok := ctx.Deadline()
				if left := time.Until(d); ok != (c.want > 0) || ok && left != c.want {
					t.Errorf("%s: cut %v after %v, want %v", c.name, ok, left, c.want)
				}
				return 0, nil
			}, c.opts...)
		}
	})
}

// A fallback is marked, comes in the order of the ladder, and is no success of the target.
func TestDoOrClimbsTheLadder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache, err := fallback.NewCache(fallback.CacheConfig[int]{})
		if err != nil {
			t.Fatal(err)
		}
		e := mustNew(t, cortex.Config{DisableRetries: true})
		var cause error
		ladder := fallback.Ladder[int]{
			fallback.Cached(cache, "k", time.Minute),
			fallback.Func(func(_ context.Context, err error) (int, error) { cause = err; return 3, nil }),
		}
		ok := true
		op := func(context.Context) (int, error) {
			if !ok {
				return 0, errBoom
			}
			cache.Put("k", 1)
			return 1, nil
		}
		call := func() fallback.Result[int] {
			r, err := cortex.DoOr(t.Context(), e, ladder, op)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := call(); r != (fallback.Result[int]{Value: 1}) {
			t.Errorf("%+v", r)
		}
		ok = false
		time.Sleep(10 * time.Second)
		if r := call(); r != (fallback.Result[int]{Value: 1, Source: fallback.FromCache, Age: 10 * time.Second}) {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Minute)
		if r := call(); r != (fallback.Result[int]{Value: 3, Source: fallback.FromFunc}) || !errors.Is(cause, errBoom) {
			t.Errorf("%+v, cause %v", r, cause)
		}
		if s := e.Stats(); s.Successes != 1 || s.Failures != 2 {
			t.Errorf("%+v", s)
		}
		// A refusal climbs as well; without an answer the error is Do's.
		for range 43 {
			_, _ = cortex.Do(t.Context(), e, op)
		}
		if r := call(); r.Source != fallback.FromFunc || !errors.Is(cause, cortex.ErrOpen) {
			t.Errorf("%+v, cause %v", r, cause)
		}
		r, err := cortex.DoOr(t.Context(), e, nil, op)
		if r != (fallback.Result[int]{}) || !errors.Is(err, cortex.ErrOpen) {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// The mark says who retries; the layer that does sets it, and only then.
func TestRetryMarkTravelsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if _, ok := cortex.RetryMarkFrom(t.Context()); ok {
			t.Error("a mark out of nowhere")
		}
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "kept")
		var seen []int
		_, _ = cortex.Do(ctx, mustNew(t, cortex.Config{}), func(ctx context.Context) (int, error) {
			m, ok := cortex.RetryMarkFrom(ctx)
			if !ok || ctx.Value(key{}) != "kept" || m.Retries != 2 {
				t.Errorf("%+v, %v, value %v", m, ok, ctx.Value(key{}))
			}
			seen = append(seen, m.Attempt)
			return 0, errBoom
		}, cortex.WithRetries(2))
		if len(seen) != 3 || seen[0] != 0 || seen[1] != 1 || seen[2] != 2 {
			t.Errorf("attempts marked %v", seen)
		}
		for name, f := range map[string]func(op func(context.Context) (int, error)){
			"no retries": func(op func(context.Context) (int, error)) {
				_, _ = cortex.Do(t.Context(), mustNew(t, cortex.Config{}), op, cortex.WithRetries(0))
			},
			"disabled": func(op func(context.Context) (int, error)) {
				_, _ = cortex.Do(t.Context(), mustNew(t, cortex.Config{DisableRetries: true}), op)
			},
		} {
			f(func(ctx context.Context) (int, error) {
				if _, ok := cortex.RetryMarkFrom(ctx); ok {
					t.Errorf("%s: a layer that does not retry is marked as one", name)
				}
				return 0, nil
			})
		}
	})
}
