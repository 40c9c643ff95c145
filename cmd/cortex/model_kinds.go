package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-a29ca62a/cortex/lab/model"
)

// pure adapts a model that takes no time to modelCommand.
func pure[T any](f func(T) (model.Report, error)) func(context.Context, T) (model.Report, error) {
	return func(_ context.Context, in T) (model.Report, error) { return f(in) }
}

func newModelAmplification() *cobra.Command {
	return modelCommand("amplification", "How many attempts reach a target for each call",
		"  cortex model amplification --failure-rate 0.3\n  cortex model amplification --retries 5 --budget 0.2 --plot amplification.svg",
		model.DefaultAmplification(), func(f *pflag.FlagSet, in *model.AmplificationInput) {
			f.IntVar(&in.Retries, "retries", in.Retries, "retries after the original attempt, 0 to 100")
			f.Float64Var(&in.FailureRate, "failure-rate", in.FailureRate, "failure rate of an attempt, 0 to 1")
			f.Float64Var(&in.Budget, "budget", in.Budget, "retries for each call that a budget allows, 0 to 100; 0 = no budget")
		}, pure(model.Amplification))
}

func newModelJitter() *cobra.Command {
	return modelCommand("jitter", "How far jitter lowers the peak of a herd",
		"  cortex model jitter --timer 1s --bin 100ms,200ms\n  cortex model jitter --law full --timer 1s --plot jitter.svg",
		model.DefaultJitter(), func(f *pflag.FlagSet, in *model.JitterInput) {
			f.DurationVar(&in.Timer, "timer", in.Timer, "the delay that is jittered, 1ms to 24h")
			f.Float64Var(&in.Jitter, "jitter", in.Jitter, "share of the timer, 0 to 1 (one-sided and two-sided)")
			f.StringVar(&in.Law, "law", in.Law, "one-sided, two-sided, equal (half of the timer) or full (all of it)")
			f.DurationSliceVar(&in.Bins, "bin", in.Bins, "widths of the bins in which the load is counted, a 10,000th of the spread to 24h")
			f.IntVar(&in.Clients, "clients", in.Clients, "calls in the herd, 1 to 20000; the exact column is for up to 1000")
			f.IntVar(&in.Runs, "runs", in.Runs, "runs of the Monte Carlo check, 1 to 10000")
			f.Uint64Var(&in.Seed, "seed", in.Seed, "of the Monte Carlo check")
		}, pure(model.Jitter))
}

func newModelBackoff() *cobra.Command {
	return modelCommand("backoff", "What each retry delay wastes and loses, and the base and ceiling that cost least",
		"  cortex model backoff --recovery lognormal --mean 5s --sigma 1.5\n  cortex model backoff --law full-jitter --attempt-cost 10 --plot backoff.svg",
		model.DefaultBackoff(), func(f *pflag.FlagSet, in *model.BackoffInput) {
			f.StringVar(&in.Law, "law", in.Law, "the law that is judged: pressure, exponential, full-jitter, equal-jitter or decorrelated")
			f.DurationVar(&in.Base, "base", in.Base, "base of the delay, 1ms to 1h")
			f.DurationVar(&in.Max, "max", in.Max, "ceiling of the delay, the base to 1h")
			f.DurationVar(&in.PressureBase, "pressure-base", in.PressureBase, "base of the pressure law, 1ms to 1h, cut at the ceiling")
			f.Float64SliceVar(&in.CPS, "cps", in.CPS, "pressures of the pressure law, each 0 to 1; it is judged at the first")
			f.IntVar(&in.Attempts, "attempts", in.Attempts, "attempts in the schedule, 1 to 30")
			f.StringVar(&in.Recovery.Kind, "recovery", in.Recovery.Kind, "how long outages last: exponential, lognormal, uniform, constant or pareto")
			f.DurationVar(&in.Recovery.Mean, "mean", in.Recovery.Mean, "mean length of an outage, 1ms to 24h")
			f.Float64Var(&in.Recovery.Sigma, "sigma", in.Recovery.Sigma, "σ of a lognormal, 0.05 to 5")
			f.Float64Var(&in.Recovery.Alpha, "alpha", in.Recovery.Alpha, "tail exponent of a Pareto, 1.05 to 100")
			f.Float64Var(&in.AttemptCost, "attempt-cost", in.AttemptCost, "of a wasted attempt, 0 to 1e6")
			f.Float64Var(&in.SecondCost, "second-cost", in.SecondCost, "of a second lost after the recovery, 0 to 1e6")
			f.Float64Var(&in.Factor, "factor", in.Factor, "a setting is right that costs at most so many times the best, 1.01 to 100")
			f.IntVar(&in.Paths, "paths", in.Paths, "draws of the jitter, 2 to 2000")
			f.Uint64Var(&in.Seed, "seed", in.Seed, "of the jitter")
		}, pure(model.Backoff))
}

func newModelTimeout() *cobra.Command {
	return modelCommand("timeout", "How many calls a timeout of k × p99.9 cuts off",
		"  cortex model timeout --k 3 --lognormal 1,1.5\n  cortex model timeout --pareto 2 --samples 1000,10000 --plot timeout.svg",
		model.DefaultTimeout(), func(f *pflag.FlagSet, in *model.TimeoutInput) {
			f.Float64Var(&in.K, "k", in.K, "the timeout is k times the quantile, 1 to 100")
			f.Float64Var(&in.Quantile, "quantile", in.Quantile, "0.5 to 0.99999")
			f.Float64Var(&in.Target, "target", in.Target, "share of the calls that is to get through, above the quantile")
			f.Float64SliceVar(&in.Lognormal, "lognormal", in.Lognormal, "σ of lognormal latencies, each 0.01 to 10")
			f.Float64SliceVar(&in.Pareto, "pareto", in.Pareto, "tail exponents α of Pareto latencies, each 0.1 to 100")
			f.IntSliceVar(&in.Samples, "samples", in.Samples, "samples that the quantile is estimated from, each 1 to 10000000")
		}, pure(model.Timeout))
}

func newModelThreshold() *cobra.Command {
	return modelCommand("threshold", "How well a breaker's rule finds outages, by its threshold",
		"  cortex model threshold --mix full=1\n  cortex model threshold --mix uniform=3,partial=1 --prior 0.01 --plot threshold.svg",
		model.DefaultThreshold(), func(f *pflag.FlagSet, in *model.ThresholdInput) {
			f.StringVar(&in.Rule, "rule", in.Rule, "posterior: (f+1)/(n+2) > threshold; share: f/n >= threshold")
			f.IntVar(&in.Samples, "samples", in.Samples, "outcomes that the breaker sees, 1 to 10000")
			f.Float64Var(&in.Healthy, "healthy", in.Healthy, "failure rate in health, 0 to 0.99")
			f.Float64Var(&in.Prior, "prior", in.Prior, "share of the time that is an outage, 0.000001 to 0.999999")
			f.StringVar(&in.Mix, "mix", in.Mix, "kinds of outages (full, uniform, partial) and their weights")
			f.Float64Var(&in.Full, "full", in.Full, "failure rate of a full outage, 0 to 1")
			f.Float64Var(&in.UniformFrom, "uniform-from", in.UniformFrom, "lowest failure rate of a uniform outage, 0 to 1")
			f.Float64Var(&in.UniformTo, "uniform-to", in.UniformTo, "highest failure rate of a uniform outage, 0 to 1")
			f.Float64Var(&in.Partial, "partial", in.Partial, "mean failure rate of a partial outage, 0.001 to 0.999")
			f.Float64Var(&in.Concentration, "concentration", in.Concentration, "a+b of its Beta distribution, 0.1 to 1000000; 0 = always the mean")
			f.Float64Var(&in.Step, "step", in.Step, "between thresholds, 0.001 to 0.25")
		}, pure(model.Threshold))
}

func newModelLittlesLaw() *cobra.Command {
	return modelCommand("littles-law", "How many calls a pool of threads can make when some are slow",
		"  cortex model littles-law --slow-share 1\n  cortex model littles-law --threads 50 --slow 2s --fast 20ms --rate 800 --plot pool.svg",
		model.DefaultLittlesLaw(), func(f *pflag.FlagSet, in *model.LittlesLawInput) {
			f.IntVar(&in.Threads, "threads", in.Threads, "threads in the pool, 1 to 1000000")
			f.DurationVar(&in.Slow, "slow", in.Slow, "time of a slow call, 1µs to 24h")
			f.DurationVar(&in.Fast, "fast", in.Fast, "time of a fast call, 1µs to 24h")
			f.Float64Var(&in.SlowShare, "slow-share", in.SlowShare, "share of the calls that are slow, 0 to 1")
			f.Float64Var(&in.Rate, "rate", in.Rate, "calls per second, 0 to 1e9")
		}, pure(model.LittlesLaw))
}

func newModelFloor() *cobra.Command {
	return modelCommand("floor", "Which priorities a pressure sheds, and how it stretches the delay",
		"  cortex model floor --cps 0.72 --levels 5\n  cortex model floor --cps 0.5 --levels 10,4 --tiers 1,2,3 --keep 3",
		model.DefaultFloor(), func(f *pflag.FlagSet, in *model.FloorInput) {
			f.Float64Var(&in.CPS, "cps", in.CPS, "pressure, 0 to 1")
			f.IntSliceVar(&in.Levels, "levels", in.Levels, "priority levels, each 1 to 31; the claim is of the first")
			f.IntSliceVar(&in.Tiers, "tiers", in.Tiers, "priorities that are in use, each 0 to 31")
			f.IntVar(&in.Keep, "keep", in.Keep, "the tier that is to be kept, one of --tiers")
		}, pure(model.Floor))
}
