package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cluster"
)

var failure = cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 9}

// All instances want to retry as often as they can: together they make no more retries than one budget pays for, and one lease each.
func TestOneRetryBudget(t *testing.T) {
	const n = 8
	s := startRedis(t)
	start := time.Now()
	all := fleetOf(t, n, s.url())
	retries, earned, spent, budget := 0, 0, 0.0, 10.0
	// All of it can be spent, sooner or later.
	for time.Since(start) < 2*time.Second || (earned < 500 || spent < 0.8*(budget-n)) && time.Since(start) < 30*time.Second {
		for _, i := range all {
			// What comes while there are 10 tokens is lost, as from any bucket that is full.
			if earned < 500 && spent > budget-10 && i.call(cortex.Success) {
				earned++
			}
			for range 3 {
				if d := i.engine.Decide(failure); d.Retry {
					retries++
					spent += d.Price
				}
			}
		}
		time.Sleep(ms)
		budget = 10 + 0.1*float64(earned) + 0.2*time.Since(start).Seconds()
	}
	if earned < 500 {
		t.Errorf("%d calls; without a token to spend there are no more", earned)
	}
	t.Logf("%d retries for %.1f tokens; one budget has %.1f", retries, spent, budget)
	if spent > budget+n {
		t.Errorf("%.1f tokens spent by %d instances, want at most %.1f and one lease (1 token) each", spent, n, budget)
	}
	if spent < 0.8*(budget-n) {
		t.Errorf("%.1f tokens spent by %d instances, where one budget has %.1f", spent, n, budget)
	}
}

// An instance that cannot reach Redis has a budget of its own.
func TestBudgetOfOnesOwnWhenAlone(t *testing.T) {
	s := startRedis(t)
	all := fleetOf(t, 2, s.url())
	for range 50 {
		all[0].engine.Decide(failure)
	}
	s.kill()
	retries := 0
	eventually(t, 20*time.Second, "it earns for itself", func() bool {
		for range 20 {
			all[0].call(cortex.Success)
		}
		if all[0].engine.Decide(failure).Retry {
			retries++
		}
		return retries > 20
	})
}

// An instance that closed with the right to probe told its fleet of a budget that holds nothing, and took the tokens of all with it.
func TestLeavingWithTheRightEmptiedTheBudget(t *testing.T) {
	s := startRedis(t)
	db := redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1, Protocol: 2, ContextTimeoutEnabled: true})
	defer db.Close()
	said := &pipelines{}
	db.AddHook(said)
	i := join(t, "", func(c *cluster.Config, _ *cortex.Config) { c.Client = db })
	all := []*instance{i, join(t, s.url())}
	together(t, all)
	open(t, all)
	eventually(t, 20*time.Second, "it has the right", func() bool {
		i.call(cortex.Failed)
		return i.Status().Targets[0].Prober
	})
	i.Close()
	last := said.last[len(said.last)-1].Args()[3+11:] // the arguments of the script
	if order, capacity, wanted := last[4], last[6], last[11]; order != "leave" || capacity.(int64) < 10_000 || wanted != int64(0) {
		t.Errorf("the last word: %q, a budget that holds %v thousandths of a token, %v wanted", order, capacity, wanted)
	}
}

// pipelines remembers the newest pipeline.
type pipelines struct{ last []redis.Cmder }

func (*pipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*pipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p *pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() == "evalsha" {
			p.last = cmds
		}
		return next(ctx, cmds)
	}
}
