// Package policy has the client policies that the laboratory compares: the product's two profiles, and what people use instead.
package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
	"github.com/seed-a29ca62a/cortex/timeout"
	"github.com/seed-a29ca62a/cortex/window"
)

// A Policy is a way to guard calls.
type Policy struct {
	Name  string
	Title string // one line for people
	Make  sim.Maker
}

// All policies, in the order of tables.
func All() []Policy {
	return []Policy{
		{"none", "no retry", plain(func(*plainGuard) {})},
		{"exponential", "3 retries after 100, 200, 400 ms (baseline A)", plain(func(g *plainGuard) { g.retries = g.env.Scenario.Client.MaxRetries })},
		{"exponential-jitter", "the same with full jitter", plain(jittered)},
		{"hystrix", "3 retries behind a breaker: 50 % of ≥ 20 calls in 10 s, 5 s open, 1 probe (baseline B)", plain(func(g *plainGuard) {
			jittered(g)
			g.breaker = &hystrix{}
		})},
		{"token-bucket", "3 retries with a budget of 10 % of the successes, at most 10", plain(func(g *plainGuard) {
			jittered(g)
			g.budget = &bucket{tenths: bucketMax}
		})},
		{"sre-throttle", "3 retries behind client-side throttling after the SRE book: K = 2 over 2 min", plain(func(g *plainGuard) {
			jittered(g)
			g.throttle = &sre{}
		})},
		{"cortex-article", "this product, the article's laws to the letter", Engine(func(c *cortex.Config) { c.Profile = cortex.Article })},
		{"cortex-adaptive", "this product, as it comes", Engine(nil)},
	}
}

// Find returns the policy of that name.
func Find(name string) (Policy, error) {
	var names []string
	for _, p := range All() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Policy{}, fmt.Errorf("unknown policy %q: use %s", name, strings.Join(names, ", "))
}

// Engine makes guards of the product's own engine. change, if set, has the last word on its configuration.
func Engine(change func(*cortex.Config)) sim.Maker {
	return func(env sim.Env) (sim.Guard, error) {
		s := env.Scenario
		c := Config(s)
		c.Now = env.Now
		c.Rand = rand.NewPCG(env.Seed[0], env.Seed[1])
		if change != nil {
			change(&c)
		}
		e, err := cortex.New(c)
		if err != nil {
			return nil, err
		}
		return &engineGuard{e: e, env: env}, nil
	}
}

// Config is what an engine is told of a scenario's client: what its user would configure, and nothing of the downstream.
func Config(s *scenario.Scenario) cortex.Config {
	c := cortex.Config{Name: s.Name, Deadline: s.Deadline, Levels: cortex.DefaultLevels, MaxRetries: s.Client.MaxRetries,
		DisableRetries: s.Client.MaxRetries == 0, Stripes: 1}
	c.Levels = max(c.Levels, int(s.Priorities[0].Priority))
	c.Backoff.Base = s.Client.BaseDelay
	if c.Backoff.Base > 30*time.Second {
		c.Backoff.Max = c.Backoff.Base
	}
	if t := s.Client.Timeout; t > 0 {
		c.Timeout = timeout.Config{Min: t, Bootstrap: t, Max: t}
	}
	return c
}

type engineGuard struct {
	e   *cortex.Engine
	env sim.Env
}

func (g *engineGuard) Engine() *cortex.Engine     { return g.e }
func (g *engineGuard) Pressure() cortex.Pressure  { return g.e.Pressure() }
func (g *engineGuard) Transitions() int           { return int(g.e.Stats().Transitions) }
func (g *engineGuard) ObserveRemote(shed float64) { g.e.ObserveRemote(shed) }

func (g *engineGuard) Admit(a *sim.Attempt) cortex.Reason {
	var err error
	a.Permit, err = g.e.AdmitRetry(a.Context(), a.Call.Priority, a.Number)
	return reason(err)
}

func reason(err error) cortex.Reason {
	if err == nil {
		return cortex.ReasonNone
	}
	return err.(*cortex.Rejection).Reason // Admit gives nothing else
}

func (g *engineGuard) Timeout(a *sim.Attempt) time.Duration { return a.Permit.Timeout() }

func (g *engineGuard) Done(a *sim.Attempt, o cortex.Outcome) {
	if o == cortex.TimedOut && a.Context().Err() != nil {
		a.Permit.Done(a.Context().Err()) // the caller's deadline, not the guard's timeout: the engine makes what it can of it
		return
	}
	a.Permit.Record(o)
}

func (g *engineGuard) Retry(a *sim.Attempt, f sim.Failure) sim.Verdict {
	left := a.Call.Deadline - g.env.Now()
	if left <= 0 {
		left = -1
	}
	d := g.e.Decide(cortex.Failure{Class: cortex.Class{Outcome: f.Outcome, Retryable: f.Retryable, RetryAfter: f.RetryAfter},
		Priority: a.Call.Priority, Attempt: a.Number, RetriedAbove: a.Call.Marked, Previous: a.Call.Previous, Deadline: left})
	return sim.Verdict{Retry: d.Retry, Delay: d.Delay, Reason: d.Reason}
}

// plainGuard is what people build: retries with exponential backoff, with a breaker, a budget or a throttle in front.
type plainGuard struct {
	env      sim.Env
	rand     *rand.Rand
	retries  int
	jitter   bool
	breaker  *hystrix
	budget   *bucket
	throttle *sre
	timeout  *timeout.Timeout // nil: the client's fixed one
}

func plain(set func(*plainGuard)) sim.Maker {
	return func(env sim.Env) (sim.Guard, error) {
		g := &plainGuard{env: env, rand: rand.New(rand.NewPCG(env.Seed[0], env.Seed[1]))}
		if env.Scenario.Client.Timeout == 0 { // adaptive timeouts are not what policies differ in: all have the product's
			t, err := timeout.New(timeout.Config{})
			if err != nil {
				return nil, err
			}
			g.timeout = t
		}
		set(g)
		return g, nil
	}
}

func jittered(g *plainGuard) {
	g.retries = g.env.Scenario.Client.MaxRetries
	g.jitter = true
}

func (g *plainGuard) Admit(a *sim.Attempt) cortex.Reason {
	now := g.env.Now()
	if g.breaker != nil && !g.breaker.admit(now, a) {
		return cortex.ReasonCircuitOpen
	}
	if g.throttle != nil && !g.throttle.admit(now, g.rand.Float64()) {
		return cortex.ReasonShed
	}
	return cortex.ReasonNone
}

func (g *plainGuard) Timeout(*sim.Attempt) time.Duration {
	if g.timeout != nil {
		return g.timeout.Refresh(g.env.Now())
	}
	return g.env.Scenario.Client.Timeout
}

func (g *plainGuard) Done(a *sim.Attempt, o cortex.Outcome) {
	now := g.env.Now()
	ok := o == cortex.Success
	if g.timeout != nil {
		switch o {
		case cortex.Success:
			g.timeout.Observe(now, window.Bucket(now-a.Start), 1)
		case cortex.TimedOut:
			g.timeout.ObserveTimeouts(now, 1)
		}
	}
	if g.breaker != nil {
		g.breaker.done(now, a, ok)
	}
	if g.throttle != nil && ok {
		g.throttle.accept(now)
	}
	if g.budget != nil && ok {
		g.budget.earn()
	}
}

func (g *plainGuard) Retry(a *sim.Attempt, f sim.Failure) sim.Verdict {
	if !f.Retryable {
		return sim.Verdict{Reason: cortex.ReasonNotRetryable}
	}
	if a.Number >= g.retries {
		return sim.Verdict{Reason: cortex.ReasonMaxRetries}
	}
	d := float64(g.env.Scenario.Client.BaseDelay) * math.Exp2(float64(a.Number))
	if g.jitter {
		d *= g.rand.Float64()
	}
	delay := max(time.Duration(min(d, 3.6e12)), f.RetryAfter)
	if delay >= a.Call.Deadline-g.env.Now() { // a retry that will not be made costs no token
		return sim.Verdict{Reason: cortex.ReasonDeadline}
	}
	if g.budget != nil && !g.budget.spend() {
		return sim.Verdict{Reason: cortex.ReasonBudget}
	}
	return sim.Verdict{Retry: true, Delay: delay}
}

func (g *plainGuard) Transitions() int {
	if g.breaker == nil {
		return 0
	}
	return g.breaker.transitions
}
