package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-a29ca62a/cortex/lab/model"
)

func newModelCascade() *cobra.Command {
	return modelCommand("cascade", "Whether a hang makes a system collapse for good: a birth–death chain, and the simulator beside it",
		"  cortex model cascade\n  cortex model cascade --utilisation 0.24 --hang 1s --policies exponential-jitter\n  cortex model cascade --runs 30000 --policies cortex-adaptive --plot cascade.svg",
		model.DefaultCascade(), func(f *pflag.FlagSet, in *model.CascadeInput) {
			f.IntVar(&in.Servers, "servers", in.Servers, "servers of the target, 1 to 1000")
			f.IntVar(&in.Queue, "queue", in.Queue, "places to wait, 1 to 20000")
			f.DurationVar(&in.Service, "service", in.Service, "mean service time")
			f.Float64Var(&in.Utilisation, "utilisation", in.Utilisation, "of the target by the calls alone, 0.01 to 3")
			f.DurationVar(&in.Timeout, "timeout", in.Timeout, "of an attempt")
			f.IntVar(&in.Retries, "retries", in.Retries, "retries after the original attempt, 1 to 20")
			f.DurationVar(&in.BaseDelay, "base-delay", in.BaseDelay, "of the backoff in the simulator; the chain's retries come at once")
			f.Float64Var(&in.Budget, "budget", in.Budget, "retries for each call that the chain's budget allows, 0 to 20")
			f.DurationVar(&in.Window, "window", in.Window, "of the chain's breaker, which opens when half of it failed")
			f.DurationVar(&in.Sleep, "sleep", in.Sleep, "of the chain's breaker before each probe")
			f.DurationVar(&in.Hang, "hang", in.Hang, "length of the trigger, in which nothing is served")
			f.DurationVar(&in.Horizon, "horizon", in.Horizon, "when to look, after the trigger")
			f.IntVar(&in.Runs, "runs", in.Runs, "runs of the simulator for each policy; 0 = none")
			f.StringSliceVar(&in.Policies, "policies", in.Policies, "what the simulator runs")
			f.Uint64Var(&in.Seed, "seed", in.Seed, "of the first run; the next ones count up")
			f.Float64SliceVar(&in.Utilisations, "utilisations", in.Utilisations, "of the curve of the chance against the utilisation")
			f.IntVar(&in.Dependencies, "dependencies", in.Dependencies, "of a service, each of which may cascade")
		}, model.Cascade)
}
