package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// A subject is a library as its documentation says it is to be used.
type subject struct {
	name     string
	title    string
	settings []string // for people, with the pages they are from
	leaks    bool     // it leaves goroutines behind
	start    func(ctx context.Context, e env) (client, error)
}

// env is what a subject is started for.
type env struct {
	scenario *scenario.Scenario
	seed     uint64
	giveUp   bool // a refused attempt ends its call, where the subject would retry it
}

// client is a subject at work. do makes a call: attempt as often as the library lets it. refused tells whether an error is a refusal
// of the library's.
type client struct {
	do          func(ctx context.Context, p cortex.Priority, attempt func(context.Context) error) error
	refused     func(error) (cortex.Reason, bool)
	transitions func() int // of its circuit; nil = it has none
}

// subjects in the order of tables.
var subjects = []subject{
	failsafeBreaker, failsafeBreakerRate, failsafeThrottler, failsafeLimiter, gobreakerDefaults, gobreakerReadme, hystrixGo, goZero, aegis, cortexDo,
}

// refusals is a refused function for a library's own errors.
func refusals(r cortex.Reason, all ...error) func(error) (cortex.Reason, bool) {
	return func(err error) (cortex.Reason, bool) {
		for _, x := range all {
			if errors.Is(err, x) {
				return r, true
			}
		}
		return cortex.ReasonNone, false
	}
}

// cortexDo is this product's library as it comes, told what the others are told. Its simulated twin is the laboratory's
// cortex-adaptive: the same engine by the same configuration.
var cortexDo = subject{
	name:     "cortex-adaptive",
	title:    "this product: cortex.Do with the zero Config",
	settings: []string{"the zero Config but for the client's timeout, deadline, retries and base delay"},
	start: func(_ context.Context, env env) (client, error) {
		c := policy.Config(env.scenario)
		c.Rand = rand.NewPCG(env.seed, 1)
		e, err := cortex.New(c)
		if err != nil {
			return client{}, err
		}
		return client{
			do: func(ctx context.Context, p cortex.Priority, attempt func(context.Context) error) error {
				_, err := cortex.Do(ctx, e, func(ctx context.Context) (struct{}, error) {
					err := attempt(ctx)
					if f, ok := errors.AsType[*failure](err); ok {
						err = cortex.WithClass(err, cortex.Class{Outcome: f.Outcome, Retryable: f.Retryable, RetryAfter: f.RetryAfter})
					}
					return struct{}{}, err
				}, cortex.WithPriority(p))
				return err
			},
			refused: func(err error) (cortex.Reason, bool) {
				if r, ok := errors.AsType[*cortex.Rejection](err); ok {
					return r.Reason, true
				}
				if c, ok := errors.AsType[*cortex.CallError](err); ok && c.Reason != cortex.ReasonNone {
					return c.Reason, true
				}
				return cortex.ReasonNone, false
			},
			transitions: func() int { return int(e.Stats().Transitions) },
		}, nil
	},
}

// unguarded makes one attempt: what tests compare with the laboratory's policy of that kind.
var unguarded = subject{
	name:  "none",
	title: "one attempt",
	start: func(_ context.Context, e env) (client, error) {
		return client{
			do: func(ctx context.Context, _ cortex.Priority, attempt func(context.Context) error) error {
				return within(ctx, e.scenario.Client.Timeout, attempt)
			},
			refused: refusals(cortex.ReasonNone),
		}, nil
	},
}

// within makes an attempt with a timeout.
func within(ctx context.Context, timeout time.Duration, attempt func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return attempt(ctx)
}
