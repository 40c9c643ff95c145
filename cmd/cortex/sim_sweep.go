package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/report"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sweep"
)

// sweepFlags is the part of a command line of cortex sim that is about random systems.
type sweepFlags struct {
	sim          *simFlags
	draws, first int
	strict       bool
}

// addSweep gives cortex sim its --sweep.
func addSweep(cmd *cobra.Command, f *simFlags) {
	s := &sweepFlags{sim: f}
	cmd.Example += "\n  cortex sim --sweep 200 --seed 7 --policy hystrix,cortex-adaptive\n" +
		"  cortex sim --scenario sweep-7-12 --seed 12 --policy cortex-adaptive --plot draw.svg"
	cmd.Flags().IntVar(&s.draws, "sweep", 0, "`N` random systems drawn from --seed, against a clairvoyant oracle, instead of scenarios")
	cmd.Flags().IntVar(&s.first, "draw", 0, "with --sweep: `I` of the first draw, which is scenario sweep-K-I")
	cmd.Flags().BoolVar(&s.strict, "strict", false, "with --sweep: an oracle that also ignores priorities and holds calls back until there is room")
	scenarios := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case cmd.Flags().Changed("sweep"):
			return s.do(cmd)
		case s.strict:
			return errors.New("--strict: goes with --sweep N")
		case cmd.Flags().Changed("draw"):
			return errors.New("--draw: goes with --sweep N; a single draw is --scenario sweep-K-I")
		}
		return scenarios(cmd, args)
	}
}

func (f *sweepFlags) do(cmd *cobra.Command) error {
	if f.draws < 1 || f.draws > sweep.MaxDraws {
		return fmt.Errorf("--sweep %d: want from 1 to %d draws", f.draws, sweep.MaxDraws)
	}
	if f.first < 0 || f.first > sweep.MaxDraws-f.draws {
		return fmt.Errorf("--draw %d: want from 0 to %d", f.first, sweep.MaxDraws-f.draws)
	}
	for _, name := range []string{"scenario", "scenario-file", "list", "seeds", "instances", "share", "plot"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s: does not go with --sweep; a draw is a scenario as well: --scenario %s", name, sweep.Name(f.sim.seed, f.first))
		}
	}
	if f.sim.print {
		all := make([]*scenario.Scenario, f.draws)
		for i := range all {
			all[i] = sweep.Make(f.sim.seed, f.first+i).Scenario
		}
		return printScenarios(cmd.OutOrStdout(), all)
	}
	if err := checkFormat(f.sim.format, report.Formats()...); err != nil {
		return err
	}
	if err := checkCount(cmd, "parallel", f.sim.parallel, maxParallel); err != nil {
		return err
	}
	names, err := chosenPolicies(f.sim.policies)
	if err != nil {
		return err
	}
	o := sweep.Options{Seed: f.sim.seed, First: f.first, Draws: f.draws, Strict: f.strict, Parallel: f.sim.parallel}
	for _, name := range names {
		p, err := policy.Find(name)
		if err != nil {
			return err
		}
		o.Policies = append(o.Policies, p)
	}
	return f.run(cmd, o)
}

func (f *sweepFlags) run(cmd *cobra.Command, o sweep.Options) error {
	ctx, errs := cmd.Context(), cmd.ErrOrStderr()
	defer untilSecondSignal(ctx)()
	bar := newBar(errs, isTerminal(errs))
	bar.show("draws", 0, o.Draws)
	o.Progress = func(n, total int) { bar.show("draws", n, total) }
	all, err := sweep.Run(ctx, o)
	bar.clear()
	interrupted := ended(err)
	if err != nil && !interrupted {
		return &notSo{fmt.Errorf("cortex sim: %w", err)}
	}
	if err := sweep.Write(cmd.OutOrStdout(), f.sim.format, all); err != nil {
		return &notSo{fmt.Errorf("cortex sim: %w", err)}
	}
	if interrupted {
		return &stopped{fmt.Sprintf("cortex sim: interrupted after %d of %d draws", len(all), o.Draws)}
	}
	return nil
}
