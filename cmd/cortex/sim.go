package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/lab/plot"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/report"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
	"github.com/seed-a29ca62a/cortex/lab/sweep"
)

// simFlags is a command line of cortex sim.
type simFlags struct {
	list, print         bool
	scenarios, policies []string // lists, each with commas between
	files               []string
	format, plot        string
	share               string
	seeds, instances    int
	parallel            int
	seed                uint64

	run func(context.Context, suite.Options) ([]suite.Row, error)
}

func newSim() *cobra.Command { return simCommand(&simFlags{run: suite.Run}) }

func simCommand(f *simFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Judge retry policies in a simulated incident, in virtual time",
		Long: "Runs scenarios (load, a downstream, faults on a timeline) under retry policies, among them this product's own engine, and\n" +
			"shows what got through. Time is virtual: minutes take well under a second. The same seed gives the same numbers.\n" +
			"Ctrl-C shows what is done by then.",
		Example: "  cortex sim --list\n" +
			"  cortex sim --scenario S1\n" +
			"  cortex sim --scenario all --policy none,hystrix,cortex-adaptive --format md\n" +
			"  cortex sim --scenario S2 --policy cortex-adaptive --plot s2.svg\n" +
			"  cortex sim --scenario S2 --print > mine.yaml\n" +
			"  cortex sim --scenario-file mine.yaml --seeds 3",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("%s: not a flag: names go to --scenario or --policy, with commas and no spaces between", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.do(cmd) },
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.list, "list", false, "show scenarios and policies")
	fl.StringArrayVar(&f.scenarios, "scenario", nil, "run these `NAMES`, with commas between; all = the suite, extras = variants of it")
	fl.StringArrayVar(&f.files, "scenario-file", nil, "run the scenarios of a `FILE` of your own; may be given again")
	fl.BoolVar(&f.print, "print", false, "print the scenarios as a file instead of running them")
	fl.StringArrayVar(&f.policies, "policy", []string{"all"}, "compare these `NAMES`, with commas between, or all")
	fl.IntVar(&f.seeds, "seeds", 0, "run each `N` times, with seeds that count up (default: the scenario's own, 10)")
	fl.Uint64Var(&f.seed, "seed", 1, "`K` is the seed of the first run")
	fl.IntVar(&f.instances, "instances", 1, "share the load among `N` guards")
	fl.StringVar(&f.share, "share", "none", "`WHAT` the guards know of each other: none, counts after a delay (250ms), door (a guard at the target)")
	fl.StringVar(&f.format, "format", "table", "`FORMAT` of the result: table, json, csv or md")
	fl.StringVar(&f.plot, "plot", "", "draw a run into `FILE`.svg or .png; of several, into FILE-SCENARIO-POLICY.svg")
	fl.IntVar(&f.parallel, "parallel", 0, "do `N` runs at a time (default: the number of processors)")
	addSweep(cmd, f)
	return cmd
}

func (f *simFlags) do(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	switch {
	case f.list:
		return listSim(out)
	case cmd.Flags().NFlag() == 0:
		return cmd.Help()
	}
	o, titles, err := f.options(cmd)
	if err != nil {
		return err
	}
	if f.print {
		return printScenarios(out, o.Scenarios)
	}
	return f.measure(cmd, o, titles)
}

// options checks everything that can be wrong before the first run.
func (f *simFlags) options(cmd *cobra.Command) (o suite.Options, titles map[string]string, err error) {
	if o.Scenarios, err = f.chosen(); err != nil {
		return o, nil, err
	}
	if o.Policies, err = chosenPolicies(f.policies); err != nil {
		return o, nil, err
	}
	if err = checkFormat(f.format, report.Formats()...); err != nil {
		return o, nil, err
	}
	for _, x := range []struct {
		name        string
		value, most int
	}{{"seeds", f.seeds, 10_000}, {"instances", f.instances, suite.MaxInstances}, {"parallel", f.parallel, maxParallel}} {
		if err := checkCount(cmd, x.name, x.value, x.most); err != nil {
			return o, nil, err
		}
	}
	if cmd.Flags().Changed("plot") {
		if _, err := plot.FormatOf(f.plot); err != nil || filepath.Ext(f.plot) == filepath.Base(f.plot) {
			return o, nil, fmt.Errorf("--plot %q: want a file that ends in .svg or .png", f.plot)
		}
		if info, err := os.Stat(filepath.Dir(f.plot)); err != nil || !info.IsDir() {
			return o, nil, fmt.Errorf("--plot %q: want a file in a directory that exists", f.plot)
		}
	}
	o.Seeds, o.Seed, o.Instances, o.Share, o.Parallel = f.seeds, f.seed, f.instances, f.share, f.parallel
	if err := o.Validate(); err != nil {
		var option *suite.OptionError
		if errors.As(err, &option) {
			err = fmt.Errorf("--%s %v: want %s", option.Option, option.Value, option.Want)
		}
		return o, nil, err
	}
	if f.instances < 2 && f.share != "" && f.share != "none" && f.share != "door" {
		return o, nil, fmt.Errorf("--share %s: one guard has no one to share with: add --instances N", f.share)
	}
	titles = make(map[string]string)
	for _, s := range o.Scenarios {
		titles[s.Name] = s.Title
	}
	return o, titles, nil
}

const maxParallel = 1024 // runs at a time

// checkCount checks a flag that is given.
func checkCount(cmd *cobra.Command, name string, value, most int) error {
	if cmd.Flags().Changed(name) && (value < 1 || value > most) {
		return fmt.Errorf("--%s %d: want a whole number from 1 to %d", name, value, most)
	}
	return nil
}

// chosen is the scenarios of --scenario and --scenario-file, in their order, each once.
func (f *simFlags) chosen() ([]*scenario.Scenario, error) {
	var all []*scenario.Scenario
	known := func(name string) bool {
		return slices.ContainsFunc(all, func(s *scenario.Scenario) bool { return strings.EqualFold(s.Name, name) })
	}
	for _, name := range names(f.scenarios) {
		var found []*scenario.Scenario
		switch strings.ToLower(name) {
		case "all":
			found = scenario.Builtin()
		case "extras":
			found = scenario.Extra()
		default:
			s, err := scenario.Find(name)
			if d, ok := sweep.Find(name); ok {
				s, err = d.Scenario, nil
			}
			if err != nil {
				return nil, fmt.Errorf("--scenario %s: not known: `cortex sim --list` shows the names; a file goes to --scenario-file", name)
			}
			found = []*scenario.Scenario{s}
		}
		for _, s := range found {
			if !known(s.Name) {
				all = append(all, s)
			}
		}
	}
	for _, path := range f.files {
		found, err := scenario.LoadAll(path)
		if err != nil {
			var file *os.PathError
			if errors.As(err, &file) {
				return nil, fmt.Errorf("--scenario-file: %w", err)
			}
			return nil, err // says file, line and column itself
		}
		for _, s := range found {
			if known(s.Name) {
				return nil, fmt.Errorf("--scenario-file %s: there is another scenario named %s: give it a name of its own", path, s.Name)
			}
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("which scenario? Use --scenario NAME or --scenario-file FILE; `cortex sim --list` shows the names")
	}
	return all, nil
}

func chosenPolicies(lists []string) ([]string, error) {
	all := suite.Policies()
	var chosen []string
	for _, name := range names(lists) {
		found := all
		if !strings.EqualFold(name, "all") {
			i := slices.IndexFunc(all, func(p string) bool { return strings.EqualFold(p, name) })
			if i < 0 {
				return nil, fmt.Errorf("--policy %s: not known: use %s, or all", name, strings.Join(all, ", "))
			}
			found = all[i : i+1]
		}
		for _, p := range found {
			if !slices.Contains(chosen, p) {
				chosen = append(chosen, p)
			}
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("--policy %q: use %s, or all", strings.Join(lists, ","), strings.Join(all, ", "))
	}
	return chosen, nil
}

// names divides lists at their commas.
func names(lists []string) []string {
	return strings.FieldsFunc(strings.Join(lists, ","), func(r rune) bool { return r == ',' || r == ' ' })
}

func listSim(w io.Writer) error {
	var b strings.Builder
	scenarios := func(all []*scenario.Scenario) {
		for _, s := range all {
			fmt.Fprintf(&b, "  %-20s%s\n", s.Name, s.Title)
		}
	}
	b.WriteString("Scenarios (--scenario all)\n")
	scenarios(scenario.Builtin())
	b.WriteString("\nVariants of them (--scenario extras)\n")
	scenarios(scenario.Extra())
	b.WriteString("\nPolicies (--policy all)\n")
	for _, p := range policy.All() {
		fmt.Fprintf(&b, "  %-20s%s\n", p.Name, p.Title)
	}
	b.WriteString("\nA scenario as a file, to make one of your own of it:\n" +
		"  cortex sim --scenario S2 --print > mine.yaml\n" +
		"  cortex sim --scenario-file mine.yaml\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func printScenarios(w io.Writer, all []*scenario.Scenario) error {
	for i, s := range all {
		if i > 0 {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return err
			}
		}
		if _, err := w.Write(s.YAML()); err != nil {
			return err
		}
	}
	return nil
}

// measure runs, writes what came out, and draws. Interrupted, it writes what is done.
func (f *simFlags) measure(cmd *cobra.Command, o suite.Options, titles map[string]string) error {
	ctx, errs := cmd.Context(), cmd.ErrOrStderr()
	defer untilSecondSignal(ctx)()
	total := 0
	for _, s := range o.Scenarios {
		n := o.Seeds
		if n == 0 {
			n = s.Seeds
		}
		total += n * len(o.Policies)
	}
	done := 0
	bar := newBar(errs, isTerminal(errs))
	bar.show("runs", 0, total)
	o.Progress = func(n, total int) {
		done = n
		bar.show("runs", n, total)
	}
	rows, err := f.run(ctx, o)
	bar.clear()
	interrupted := ended(err)
	if err != nil && !interrupted {
		return &notSo{fmt.Errorf("cortex sim: %w", err)}
	}
	if err := report.Write(cmd.OutOrStdout(), f.format, rows, titles); err != nil {
		return &notSo{fmt.Errorf("cortex sim: %w", err)}
	}
	if !interrupted && f.plot != "" {
		wrote, err := f.draw(ctx, o, bar, errs)
		if ended(err) {
			return &stopped{fmt.Sprintf("cortex sim: interrupted after %d of %d plots", wrote, len(o.Scenarios)*len(o.Policies))}
		}
		if err != nil {
			return &notSo{fmt.Errorf("cortex sim: %w", err)}
		}
	}
	if interrupted {
		return &stopped{fmt.Sprintf("cortex sim: interrupted after %d of %d runs", done, total)}
	}
	return nil
}

// draw makes a picture of one more run of every scenario under every policy. It returns how many it has written.
func (f *simFlags) draw(ctx context.Context, o suite.Options, bar *bar, errs io.Writer) (int, error) {
	total := len(o.Scenarios) * len(o.Policies)
	var wrote []string
	defer func() {
		bar.clear()
		for _, file := range wrote {
			fmt.Fprintln(errs, "wrote", file)
		}
	}()
	for _, s := range o.Scenarios {
		for _, p := range o.Policies {
			bar.show("plots", len(wrote), total)
			t, err := suite.Watch(ctx, s, p, o)
			if err != nil {
				return len(wrote), err
			}
			file := report.PlotFile(f.plot, s.Name, p, total == 1)
			if err := report.WritePlot(file, t); err != nil {
				return len(wrote), err
			}
			wrote = append(wrote, file)
		}
	}
	return len(wrote), nil
}

// untilSecondSignal makes the next signal after the one that ends ctx end the program at once, until it is undone.
func untilSecondSignal(ctx context.Context) (undo func() bool) {
	return context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
}

// ended reports whether an error is the end of the context.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// stopped is an end that a signal asked for.
type stopped struct{ message string }

func (s *stopped) Error() string { return s.message }
