package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	"github.com/cenkalti/backoff/v5"
	"github.com/go-kratos/aegis/circuitbreaker"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	"github.com/sony/gobreaker/v2"
	"github.com/zeromicro/go-zero/core/breaker"
	"github.com/zeromicro/go-zero/core/logx"
	"github.com/zeromicro/go-zero/core/stat"

	"github.com/seed-a29ca62a/cortex"
)

// jitter of all delays: ± half, the default of cenkalti/backoff.
const jitter = 0.5

const loopSettings = "retries: cenkalti/backoff v5, WithMaxTries(4), 100ms × 2, randomization 0.5 (its default), RetryAfterError for the target's hint; " +
	"refusals are retried like any error, as it does unless told they are permanent: https://pkg.go.dev/github.com/cenkalti/backoff/v5#Retry"

// loop is a client of guards that do not retry themselves.
func loop(e env, guarded func(ctx context.Context, attempt func(context.Context) error) error,
	refused func(error) (cortex.Reason, bool)) client {
	s := e.scenario
	return client{
		do: func(ctx context.Context, _ cortex.Priority, attempt func(context.Context) error) error {
			b := backoff.NewExponentialBackOff()
			b.InitialInterval, b.Multiplier, b.RandomizationFactor = s.Client.BaseDelay, 2, jitter
			_, err := backoff.Retry(ctx, func() (struct{}, error) {
				err := guarded(ctx, attempt)
				if d := hint(err); d > 0 {
					err = errors.Join(err, &backoff.RetryAfterError{Duration: d})
				}
				if _, no := refused(err); no && e.giveUp {
					err = backoff.Permanent(err)
				}
				return struct{}{}, err
			}, backoff.WithBackOff(b), backoff.WithMaxTries(uint(s.Client.MaxRetries)+1))
			return err
		},
		refused: refused,
	}
}

var gobreakerDefaults = subject{
	name:     "gobreaker",
	title:    "sony/gobreaker v2 by its defaults, in a backoff loop",
	settings: []string{loopSettings, "breaker: the zero Settings: opens after more than 5 consecutive failures, for 60 s, then 1 probe: https://pkg.go.dev/github.com/sony/gobreaker/v2#Settings"},
	start: func(_ context.Context, e env) (client, error) {
		return gobreakerClient(e, gobreaker.Settings{}), nil
	},
}

var gobreakerReadme = subject{
	name:  "gobreaker-ratio",
	title: "sony/gobreaker v2 by its example, in a backoff loop",
	settings: []string{loopSettings,
		"breaker: ReadyToTrip at ≥ 3 requests of which 60 % failed, all else default (counts never expire): https://github.com/sony/gobreaker, example"},
	start: func(_ context.Context, e env) (client, error) {
		return gobreakerClient(e, gobreaker.Settings{ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.Requests >= 3 && float64(c.TotalFailures)/float64(c.Requests) >= 0.6
		}}), nil
	},
}

func gobreakerClient(e env, settings gobreaker.Settings) client {
	changes := 0
	settings.OnStateChange = func(string, gobreaker.State, gobreaker.State) { changes++ } // under its lock
	cb := gobreaker.NewCircuitBreaker[struct{}](settings)
	c := loop(e, func(ctx context.Context, attempt func(context.Context) error) error {
		_, err := cb.Execute(func() (struct{}, error) { return struct{}{}, within(ctx, e.scenario.Client.Timeout, attempt) })
		return err
	}, refusals(cortex.ReasonCircuitOpen, gobreaker.ErrOpenState, gobreaker.ErrTooManyRequests))
	c.transitions = func() int { return changes }
	return c
}

// commands numbers the commands of hystrix-go, which are the process's: each run needs one of its own.
var commands atomic.Int64

var hystrixGo = subject{
	name:  "hystrix-go",
	title: "afex/hystrix-go in a backoff loop",
	settings: []string{loopSettings, "command: Timeout the client's 345 ms, MaxConcurrentRequests 100; ErrorPercentThreshold 50, RequestVolumeThreshold 20, " +
		"SleepWindow 5 s are defaults (and 10 at a time, which does not carry the load): https://github.com/afex/hystrix-go, configure settings"},
	leaks: true, // two goroutines a command that read metrics for ever
	start: func(_ context.Context, e env) (client, error) {
		name := fmt.Sprintf("peers-%d", commands.Add(1))
		hystrix.ConfigureCommand(name, hystrix.CommandConfig{Timeout: int(e.scenario.Client.Timeout / time.Millisecond), MaxConcurrentRequests: 100})
		circuit, _, err := hystrix.GetCircuit(name)
		if err != nil {
			return client{}, err
		}
		var open atomic.Bool // when last looked at: it tells nobody of its changes
		var changes atomic.Int64
		c := loop(e, func(ctx context.Context, attempt func(context.Context) error) error {
			ctx, cancel := context.WithCancel(ctx) // its timeout leaves the function running
			defer cancel()
			err := hystrix.DoC(ctx, name, attempt, nil)
			if now := circuit.IsOpen(); open.CompareAndSwap(!now, now) {
				changes.Add(1)
			}
			return err
		}, refusals(cortex.ReasonShed, hystrix.ErrMaxConcurrency, hystrix.ErrCircuitOpen))
		c.transitions = func() int { return int(changes.Load()) }
		return c, nil
	},
}

var goZero = subject{
	name:  "go-zero",
	title: "zeromicro/go-zero core/breaker in a backoff loop",
	settings: []string{loopSettings,
		"breaker: NewBreaker(), which has no settings: K 1.5 down to 1.1, 10 s in 40 buckets, one forced pass a second: https://go-zero.dev/components/resilience/circuit-breaker"},
	start: func(_ context.Context, e env) (client, error) {
		b := breaker.NewBreaker()
		return loop(e, func(ctx context.Context, attempt func(context.Context) error) error {
			return b.DoCtx(ctx, func() error { return within(ctx, e.scenario.Client.Timeout, attempt) })
		}, refusals(cortex.ReasonShed, breaker.ErrServiceUnavailable)), nil
	},
}

func init() {
	stat.SetReporter(nil) // go-zero reports open breakers to its log, and the machine's load to the process's output
	stat.DisableLog()
	logx.Disable()
}

var aegis = subject{
	name:  "aegis",
	title: "go-kratos/aegis circuitbreaker/sre in a backoff loop",
	settings: []string{loopSettings,
		"breaker: NewBreaker() by its defaults: success 0.6 (K = 1.67), at least 100 requests, 3 s in 10 buckets; a refusal is marked failed, as the kratos middleware does: https://pkg.go.dev/github.com/go-kratos/aegis/circuitbreaker/sre"},
	start: func(_ context.Context, e env) (client, error) {
		b := sre.NewBreaker()
		return loop(e, func(ctx context.Context, attempt func(context.Context) error) error {
			if err := b.Allow(); err != nil {
				b.MarkFailed()
				return err
			}
			err := within(ctx, e.scenario.Client.Timeout, attempt)
			if err != nil {
				b.MarkFailed()
			} else {
				b.MarkSuccess()
			}
			return err
		}, refusals(cortex.ReasonShed, circuitbreaker.ErrNotAllowed)), nil
	},
}
