package main

import (
	"context"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/adaptivethrottler"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/failsafe-go/failsafe-go/priority"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
	"github.com/failsafe-go/failsafe-go/timeout"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

const (
	failsafeOrder      = "RetryPolicy(guard(Timeout(call))): https://failsafe-go.dev/policies, composition recommendations"
	failsafeRetries    = "retries: the client's 3, WithBackoff(100ms, 30s), jitter 0.5; Retry-After as the delay, as failsafehttp does; a refused attempt is retried, its default"
	failsafePriorities = "priorities 9, 7, 5, 2 = VeryHigh, High, Medium, Low; ScheduleCalibrations each second: https://failsafe-go.dev/execution-prioritization"
)

var failsafeBreaker = subject{
	name:  "failsafe-breaker",
	title: "failsafe-go: retry + circuit breaker, count based",
	settings: []string{failsafeOrder, failsafeRetries,
		"breaker: WithFailureThreshold(5), WithDelay(1m), WithSuccessThreshold(2): https://failsafe-go.dev/circuit-breaker, usage"},
	start: func(_ context.Context, s *scenario.Scenario, _ uint64) (client, error) {
		b := circuitbreaker.NewBuilder[any]().WithFailureThreshold(5).WithDelay(time.Minute).WithSuccessThreshold(2).Build()
		return failsafeClient(s, b, refusals(cortex.ReasonCircuitOpen, circuitbreaker.ErrOpen)), nil
	},
}

var failsafeBreakerRate = subject{
	name:  "failsafe-breaker-rate",
	title: "failsafe-go: retry + circuit breaker, time based",
	settings: []string{failsafeOrder, failsafeRetries,
		"breaker: WithFailureRateThreshold(.2, 5, 1m), WithDelay(30s), WithSuccessThreshold(5): https://failsafe-go.dev/circuit-breaker, configuration"},
	start: func(_ context.Context, s *scenario.Scenario, _ uint64) (client, error) {
		b := circuitbreaker.NewBuilder[any]().WithFailureRateThreshold(.2, 5, time.Minute).WithDelay(30 * time.Second).WithSuccessThreshold(5).Build()
		return failsafeClient(s, b, refusals(cortex.ReasonCircuitOpen, circuitbreaker.ErrOpen)), nil
	},
}

var failsafeThrottler = subject{
	name:  "failsafe-throttler",
	title: "failsafe-go: retry + adaptive throttler with priorities",
	settings: []string{failsafeOrder, failsafeRetries,
		"throttler: WithFailureRateThreshold(0.1, 5, 1m), WithMaxRejectionRate(.9): https://failsafe-go.dev/adaptive-throttler, usage", failsafePriorities},
	start: func(ctx context.Context, s *scenario.Scenario, _ uint64) (client, error) {
		p := adaptivethrottler.NewPrioritizer()
		p.ScheduleCalibrations(ctx, time.Second)
		t := adaptivethrottler.NewBuilder[any]().WithFailureRateThreshold(0.1, 5, time.Minute).WithMaxRejectionRate(.9).BuildPrioritized(p)
		return failsafeClient(s, t, refusals(cortex.ReasonShed, adaptivethrottler.ErrExceeded)), nil
	},
}

var failsafeLimiter = subject{
	name:  "failsafe-limiter",
	title: "failsafe-go: retry + adaptive limiter with queueing and priorities",
	settings: []string{failsafeOrder, failsafeRetries,
		"limiter: WithLimits(1, 100, 20), WithRecentWindow(1s, 30s, 50), WithBaselineWindow(10), WithQueueing(2, 3): https://failsafe-go.dev/adaptive-limiter, usage",
		failsafePriorities},
	start: func(ctx context.Context, s *scenario.Scenario, _ uint64) (client, error) {
		p := adaptivelimiter.NewPrioritizer()
		p.ScheduleCalibrations(ctx, time.Second)
		l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 100, 20).WithRecentWindow(time.Second, 30*time.Second, 50).
			WithBaselineWindow(10).WithQueueing(2, 3).BuildPrioritized(p)
		return failsafeClient(s, l, refusals(cortex.ReasonShed, adaptivelimiter.ErrExceeded)), nil
	},
}

// failsafeClient puts a guard between retries and the timeout of attempts.
func failsafeClient(s *scenario.Scenario, guard failsafe.Policy[any], refused func(error) (cortex.Reason, bool)) client {
	retry := retrypolicy.NewBuilder[any]().
		WithMaxRetries(s.Client.MaxRetries).
		WithBackoff(s.Client.BaseDelay, 30*time.Second).
		WithJitterFactor(jitter).
		WithDelayFunc(func(e failsafe.ExecutionAttempt[any]) time.Duration {
			if d := hint(e.LastError()); d > 0 {
				return d
			}
			return -1 // as configured
		}).
		ReturnLastFailure().
		Build()
	ex := failsafe.With[any](retry, guard, timeout.New[any](s.Client.Timeout))
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
