// Package bench compares CORTEX with its peers, side by side in one process: what a call through each guard costs when the
// guarded function costs nothing. Every peer runs with the settings its documentation gives as defaults; where a comparison
// needs another value, the comment at the subject says which and why.
//
// The subjects live here, not in a _test file, because two programs run them: go test -bench, and ratios.
package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	"github.com/failsafe-go/failsafe-go"
	fscircuit "github.com/failsafe-go/failsafe-go/circuitbreaker"
	fsretry "github.com/failsafe-go/failsafe-go/retrypolicy"
	fstimeout "github.com/failsafe-go/failsafe-go/timeout"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	"github.com/sony/gobreaker/v2"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

// A Subject is one benchmark; Run is what its Benchmark function calls.
type Subject struct {
	Name string
	Run  func(*testing.B)
}

// Subjects are all benchmarks, ours first.
var Subjects = []Subject{
	{"GuardClosed", GuardClosed},
	{"GuardOpen", GuardOpen},
	{"Do", Do},
	{"DoWithTimeout", DoWithTimeout},
	{"GobreakerRolling60s", GobreakerRolling60s},
	{"GobreakerOpen", GobreakerOpen},
	{"FailsafeRetryBreaker", FailsafeRetryBreaker},
	{"FailsafeRetryBreakerTimeout", FailsafeRetryBreakerTimeout},
	{"Hystrix", Hystrix},
	{"AegisSRE", AegisSRE},
}

// warmUp is how many calls each guard sees before it is measured: enough for its windows, pools and estimators to exist.
const warmUp = 2_000

var errDown = errors.New("down")

func succeed() (int, error) { return 1, nil }

func succeedContext(context.Context) (int, error) { return 1, nil }

// measure warms call up and runs it on every processor. call reports whether the guard did what the benchmark is about.
func measure(b *testing.B, call func() bool) {
	b.Helper()
	for range warmUp {
		if !call() {
			b.Fatal("warm-up: the guard did not do what is measured")
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if !call() {
				b.Error("the guard did not do what is measured")
				return
			}
		}
	})
}

func engine(b *testing.B, c cortex.Config) *cortex.Engine {
	b.Helper()
	e, err := cortex.New(c)
	if err != nil {
		b.Fatal(err)
	}
	return e
}

// GuardClosed admits an attempt and records its success. Settings: the zero Config, the adaptive profile with all its
// estimators.
func GuardClosed(b *testing.B) {
	e, ctx := engine(b, cortex.Config{}), context.Background()
	measure(b, func() bool {
		permit, err := e.Admit(ctx, 5)
		if err != nil {
			return false
		}
		return permit.Record(cortex.Success)
	})
}

// GuardOpen is refused by an open circuit. Settings: the zero Config, so a probe is due every 0.1 s to 1 s; the benchmark
// fails it, as a target that is still down would, and its cost is in the figure.
func GuardOpen(b *testing.B) {
	e, ctx := engine(b, cortex.Config{}), context.Background()
	var probes atomic.Int64
	ask := func() {
		permit, err := e.Admit(ctx, 5)
		if err == nil {
			probes.Add(1)
			permit.Record(cortex.Failed)
		}
	}
	for e.Pressure().Circuit == breaker.Closed {
		ask()
	}
	probes.Store(0)
	measure(b, func() bool { ask(); return true })
	b.StopTimer()
	// Probes are at least some 0.1 s apart.
	if most := 2 + int64(b.Elapsed()/(50*time.Millisecond)); e.Pressure().Circuit == breaker.Closed || probes.Load() > most {
		b.Fatalf("the circuit did not stay open: %d probes in %v", probes.Load(), b.Elapsed())
	}
}

// Do runs a function under the guard, its attempts not cut: admission, outcome, the machinery for retries in place.
// Settings: the zero Config but for the timeout.
func Do(b *testing.B) {
	e, ctx := engine(b, cortex.Config{DisableTimeout: true}), context.Background()
	measure(b, func() bool {
		_, err := cortex.Do(ctx, e, succeedContext)
		return err == nil
	})
}

// DoWithTimeout is Do with the adaptive timeout, as the zero Config has it: 1 s at first.
func DoWithTimeout(b *testing.B) {
	e, ctx := engine(b, cortex.Config{}), context.Background()
	measure(b, func() bool {
		_, err := cortex.Do(ctx, e, succeedContext)
		return err == nil
	})
}

// rolling60s is a window like ours, 60 s in buckets of 1 s. The rest is gobreaker's default: it opens after more than 5
// consecutive failures, for 60 s. (Its default window is one bucket that never expires.)
func rolling60s() gobreaker.Settings {
	return gobreaker.Settings{Name: "bench", Interval: 60 * time.Second, BucketPeriod: time.Second}
}

// GobreakerRolling60s runs a function through a closed gobreaker with a rolling window.
func GobreakerRolling60s(b *testing.B) {
	cb := gobreaker.NewCircuitBreaker[int](rolling60s())
	measure(b, func() bool {
		_, err := cb.Execute(succeed)
		return err == nil
	})
}

// GobreakerOpen is refused by an open gobreaker, with the settings of GobreakerRolling60s but open for an hour, so that the
// benchmark cannot outlast it.
func GobreakerOpen(b *testing.B) {
	s := rolling60s()
	s.Timeout = time.Hour
	cb := gobreaker.NewCircuitBreaker[int](s)
	for range 6 {
		_, _ = cb.Execute(func() (int, error) { return 0, errDown })
	}
	measure(b, func() bool {
		_, err := cb.Execute(succeed)
		return err != nil
	})
	if cb.State() != gobreaker.StateOpen {
		b.Fatal("the circuit did not stay open")
	}
}

// failsafeRetry makes as many retries as our default, 3 (its own is 2), without delay, which is its default.
func failsafeRetry() failsafe.Policy[int] {
	return fsretry.NewBuilder[int]().WithMaxRetries(3).Build()
}

// FailsafeRetryBreaker runs a function through failsafe's retry policy around its circuit breaker. The breaker is its
// default: it opens at the first failure, for a minute.
func FailsafeRetryBreaker(b *testing.B) {
	ex := failsafe.With(failsafeRetry(), fscircuit.NewWithDefaults[int]())
	measure(b, func() bool {
		_, err := ex.Get(succeed)
		return err == nil
	})
}

// FailsafeRetryBreakerTimeout adds a timeout of 1 s for each attempt, what ours starts with. It has no default.
func FailsafeRetryBreakerTimeout(b *testing.B) {
	ex := failsafe.With(failsafeRetry(), fscircuit.NewWithDefaults[int](), fstimeout.New[int](time.Second))
	measure(b, func() bool {
		_, err := ex.Get(succeed)
		return err == nil
	})
}

// Hystrix runs a command without fallback. Settings: its defaults, a timeout of 1 s, open at 50 % of at least 20 for 5 s; but
// 100,000 concurrent commands instead of 10: it gives a ticket back on a goroutine that it does not wait for, and one caller
// in a tight loop runs out of 1,000 of them.
func Hystrix(b *testing.B) {
	hystrix.ConfigureCommand("bench", hystrix.CommandConfig{MaxConcurrentRequests: 100_000})
	run := func() error { return nil }
	measure(b, func() bool { return hystrix.Do("bench", run, nil) == nil })
}

// AegisSRE asks Google's adaptive throttling and marks a success. Settings: its defaults, K = 1/0.6 over 3 s in 10 buckets,
// at least 100 requests.
func AegisSRE(b *testing.B) {
	cb := sre.NewBreaker()
	measure(b, func() bool {
		if cb.Allow() != nil {
			return false
		}
		cb.MarkSuccess()
		return true
	})
}
