package main

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/model"
)

func newModelBreaker() *cobra.Command {
	var measure bool
	return modelCommand("breaker", "What one failure does to a circuit, and how many it should take",
		"  cortex model breaker --failures 4\n  cortex model breaker --failure-rate 0.05 --measure",
		model.DefaultBreaker(), func(f *pflag.FlagSet, in *model.BreakerInput) {
			f.IntVar(&in.Failures, "failures", in.Failures, "failures seen, 0 to 100000")
			f.IntVar(&in.Successes, "successes", in.Successes, "successes seen, 0 to 100000")
			f.Float64Var(&in.Threshold, "threshold", in.Threshold, "of the article's rule on the posterior mean, 0.01 to 0.99")
			f.Float64Var(&in.FailureRate, "failure-rate", in.FailureRate, "of a healthy target, 0 to 0.49")
			f.Float64Var(&in.Theta, "theta", in.Theta, "failure probability that the posterior is asked about, 0.01 to 0.99")
			f.BoolVar(&measure, "measure", false, "measure what a check costs on this machine: some seconds")
		}, func(_ context.Context, in model.BreakerInput) (_ model.Report, err error) {
			if measure {
				if in.CheckClosed, err = measureCheck(false); err != nil {
					return model.Report{}, err
				}
				if in.CheckProbing, err = measureCheck(true); err != nil {
					return model.Report{}, err
				}
			}
			return model.Breaker(in)
		})
}

// measureCheck times what a call pays for the guard: an admission and its record through a closed circuit, or the refusals
// and probes of one that is open.
func measureCheck(open bool) (time.Duration, error) {
	e, err := cortex.New(cortex.Config{Rand: rand.NewPCG(1, 1)})
	if err != nil {
		return 0, err
	}
	ctx := context.Background()
	outcome := cortex.Success
	if open {
		outcome = cortex.Failed // every probe fails, so that it stays open
	}
	r := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			if p, err := e.Admit(ctx, 5); err == nil {
				p.Record(outcome)
			}
		}
	})
	return max(1, time.Duration(r.NsPerOp())), nil
}
