package main

import (
	"context"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/priority"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/seed-a29ca62a/cortex"
)

const (
	failsafeOrder      = "RetryPolicy(guard(Timeout(call))): https://failsafe-go.dev/policies, composition recommendations"
	failsafeRetries    = "retries: the client's 3, WithDelayFunc: 100ms × 2, ± half; Retry-After where there is one, as failsafehttp does: https://failsafe-go.dev/retry, delays; refusals are retried like any error, its default"
	failsafePriorities = "priorities 9, 7, 5, 2 = VeryHigh, High, Medium, Low; ScheduleCalibrations each second: https://failsafe-go.dev/execution-prioritization"
)

var failsafeBreaker = subject{
	name:  "failsafe-breaker",
	title: "failsafe-go: retry + circuit breaker, count based",
	settings: []string{failsafeOrder, failsafeRetries,
		"breaker: WithFailureThreshold(5), WithDelay(1m), WithSuccessThreshold(2): https://failsafe-go.dev/circuit-breaker, usage"},
	start: func(_ context.Context, e env) (client, error) {
		return failsafeBreakerClient(e, circuitbreaker.NewBuilder[any]().WithFailureThreshold(5).WithDelay(time.Minute).WithSuccessThreshold(2)), nil
	},
}

var failsafeBreakerRate = subject{
	name:  "failsafe-breaker-rate",
	title: "failsafe-go: retry + circuit breaker, time based",
	settings: []string{failsafeOrder, failsafeRetries,
		"breaker: WithFailureRateThreshold(.2, 5, 1m), WithDelay(30s), WithSuccessThreshold(5): https://failsafe-go.dev/circuit-breaker, configuration"},
	start: func(_ context.Context, e env) (client, error) {
		return failsafeBreakerClient(e,
			circuitbreaker.NewBuilder[any]().WithFailureRateThreshold(.2, 5, time.Minute).WithDelay(30*time.Second).WithSuccessThreshold(5)), nil
	},
}

func failsafeBreakerClient(e env, b circuitbreaker.Builder[any]) client {
	var changes atomic.Int64
	b.OnStateChanged(func(circuitbreaker.StateChangedEvent) { changes.Add(1) })
	c := failsafeClient(e, b.Build(), refusals(cortex.ReasonCircuitOpen, circuitbreaker.ErrOpen))
	c.transitions = func() int { return int(changes.Load()) }
	return c
}

var failsafeThrottler = subject{
	name:  "failsafe-throttler",
	title: "failsafe-go: retry + adaptive throttler with priorities",
	settings: []string{failsafeOrder, failsafeRetries,
		"throttler: WithFailureRateThreshold(0.1, 5, 1m), WithMaxRejectionRate(.9): https://failsafe-go.dev/adaptive-throttler, usage", failsafePriorities},
	start: func(ctx context.Context, e env) (client, error) {
		p := adaptivethrottler.NewPrioritizer()
		p.ScheduleCalibrations(ctx, time.Second)
		t := adaptivethrottler.NewBuilder[any]().WithFailureRateThreshold(0.1, 5, time.Minute).WithMaxRejectionRate(.9).BuildPrioritized(p)
		return failsafeClient(e, t, refusals(cortex.ReasonShed, adaptivethrottler.ErrExceeded)), nil
	},
}

var failsafeLimiter = subject{
	name:  "failsafe-limiter",
	title: "failsafe-go: retry + adaptive limiter with queueing and priorities",
	settings: []string{failsafeOrder, failsafeRetries,
		"limiter: WithLimits(1, 100, 20), WithRecentWindow(1s, 30s, 50), WithBaselineWindow(10), WithQueueing(2, 3): https://failsafe-go.dev/adaptive-limiter, usage",
		failsafePriorities},
	start: func(ctx context.Context, e env) (client, error) {
		p := adaptivelimiter.NewPrioritizer()
		p.ScheduleCalibrations(ctx, time.Second)
		l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 100, 20).WithRecentWindow(time.Second, 30*time.Second, 50).
			WithBaselineWindow(10).WithQueueing(2, 3).BuildPrioritized(p)
		return failsafeClient(e, l, refusals(cortex.ReasonShed, adaptivelimiter.ErrExceeded)), nil
	},
}

// failsafeClient puts a guard between retries and the timeout of attempts.
func failsafeClient(e env, guard failsafe.Policy[any], refused func(error) (cortex.Reason, bool)) client {
	s := e.scenario
	retry := retrypolicy.NewBuilder[any]().
		WithMaxRetries(s.Client.MaxRetries).
		WithDelayFunc(func(a failsafe.ExecutionAttempt[any]) time.Duration { // its own jitter would shorten hints, too
			if d := hint(a.LastError()); d > 0 {
				return d
			}
			return time.Duration(float64(s.Client.BaseDelay) * math.Exp2(float64(a.Retries())) * (1 + jitter*(2*rand.Float64()-1)))
		}).
		ReturnLastFailure()
	if e.giveUp {
		retry.AbortIf(func(_ any, err error) bool {
			_, no := refused(err)
			return no
		})
	}
	ex := failsafe.With[any](retry.Build(), guard, timeout.New[any](s.Client.Timeout))
	return client{
		do: func(ctx context.Context, p cortex.Priority, attempt func(context.Context) error) error {
			return ex.WithContext(failsafePriority(p).AddTo(ctx)).RunWithExecution(func(e failsafe.Execution[any]) error {
				return attempt(e.Context())
			})
		},
		refused: refused,
	}
}

func failsafePriority(p cortex.Priority) priority.Priority {
	switch {
	case p >= 9:
		return priority.VeryHigh
	case p >= 7:
		return priority.High
	case p >= 5:
		return priority.Medium
	case p >= 2:
		return priority.Low
	}
	return priority.VeryLow
}
