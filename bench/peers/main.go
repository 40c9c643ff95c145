// Peers runs the public libraries themselves on the laboratory's scenarios: the same arrivals, target and faults as in the simulator,
// under the virtual clock of testing/synctest, each library with the settings its documentation recommends.
//
//	go run ./peers                                S1 to S8 and S10, 3 seeds, in some minutes
//	go run ./peers -scenario S1,S2 -seeds 10
//	go run ./peers -format md -settings           also prints what each library was told, and where its documentation says so
//
// Arrivals, service times and faults are the same in every run of a seed. What libraries draw from the process's random source is not,
// nor is the order of what happens in the same nanosecond: numbers differ from run to run as they do from seed to seed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed-a29ca62a/cortex/lab/report"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

type options struct {
	scenarios []*scenario.Scenario
	subjects  []subject
	seeds     int
	seed      uint64
	giveUp    bool
	progress  io.Writer // nil = none
}

func main() {
	c, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(2)
	}
	// A bubble needs a test to live in. What package testing has to say of it is not for the table.
	out := os.Stdout
	if os.Stdout, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	os.Args = os.Args[:1]
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "peers", F: func(t *testing.T) {
		if err := c.do(t, out); err != nil {
			fmt.Fprintln(os.Stderr, "peers:", err)
			t.Fail() // exits 1
		}
	}}}, nil, nil)
}

// command is what was asked for.
type command struct {
	options
	format   string
	settings bool
}

func parse(args []string, progress io.Writer) (*command, error) {
	fl := flag.NewFlagSet("peers", flag.ContinueOnError)
	fl.SetOutput(progress)
	scenarios := fl.String("scenario", "S1,S2,S3,S4,S5,S6,S7,S8,S10", "`NAMES` with commas between, or all")
	names := fl.String("subject", "all", "`NAMES` with commas between, or all: "+strings.Join(subjectNames(), ", "))
	seeds := fl.Int("seeds", 3, "`N` runs of each, with seeds that count up; 1 to 1000")
	seed := fl.Uint64("seed", 1, "seed `K` of the first run")
	format := fl.String("format", "table", "`FORMAT`: "+strings.Join(report.Formats(), ", "))
	giveUp := fl.Bool("give-up", false, "a refused attempt ends its call; otherwise it is retried like one that failed, as the libraries do by default")
	settings := fl.Bool("settings", false, "print what the libraries were told, too (with -format table or md)")
	if err := fl.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case fl.NArg() > 0:
		return nil, fmt.Errorf("%q: want flags only", fl.Arg(0))
	case *seeds < 1 || *seeds > 1000:
		return nil, fmt.Errorf("-seeds: %d: want 1 to 1000", *seeds)
	case !slices.Contains(report.Formats(), *format):
		return nil, fmt.Errorf("-format: %q: want one of %s", *format, strings.Join(report.Formats(), ", "))
	}
	c := &command{options{seeds: *seeds, seed: *seed, giveUp: *giveUp}, *format, *settings}
	if f, ok := progress.(*os.File); ok {
		if i, err := f.Stat(); err == nil && i.Mode()&os.ModeCharDevice != 0 {
			c.progress = progress // a terminal
		}
	}
	var err error
	if c.subjects, err = find(*names); err != nil {
		return nil, err
	}
	if *scenarios == "all" {
		c.scenarios = scenario.Builtin()
	} else {
		for name := range strings.SplitSeq(*scenarios, ",") {
			s, err := scenario.Find(strings.TrimSpace(name))
			if err != nil {
				return nil, err
			}
			c.scenarios = append(c.scenarios, s)
		}
	}
	c.scenarios = slices.DeleteFunc(c.scenarios, func(s *scenario.Scenario) bool {
		why := unfit(s)
		if why != "" {
			fmt.Fprintf(progress, "%s is left out: %s\n", s.Name, why)
		}
		return why != ""
	})
	return c, nil
}

func (c *command) do(t *testing.T, out io.Writer) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	rows, failed := runAll(ctx, t, c.options)
	titles := map[string]string{}
	for _, s := range c.scenarios {
		titles[s.Name] = s.Title
	}
	if err := report.Write(out, c.format, rows, titles); err != nil {
		return err
	}
	if c.settings && (c.format == "table" || c.format == "md") {
		printSettings(out, c.subjects)
	}
	return failed
}

func subjectNames() []string {
	var names []string
	for _, s := range subjects {
		names = append(names, s.name)
	}
	return names
}

func find(list string) ([]subject, error) {
	if list == "all" {
		return subjects, nil
	}
	var found []subject
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(subjects, func(s subject) bool { return s.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("unknown subject %q: use %s", name, strings.Join(subjectNames(), ", "))
		}
		found = append(found, subjects[i])
	}
	return found, nil
}

func printSettings(w io.Writer, all []subject) {
	for _, s := range all {
		fmt.Fprintf(w, "\n- **%s**: %s\n", s.name, s.title)
		for _, line := range s.settings {
			fmt.Fprintf(w, "  - %s\n", line)
		}
	}
}

// runAll makes all runs, as many at a time as there are processors, and returns the rows of those scenarios and subjects that have all
// their seeds.
func runAll(ctx context.Context, t *testing.T, o options) ([]suite.Row, error) {
	type cell struct {
		runs []sim.Result
		done int
	}
	cells := make([]cell, len(o.scenarios)*len(o.subjects))
	var mu sync.Mutex // of cells and what follows
	var failed error
	done, total := 0, len(cells)*o.seeds
	job := func(t *testing.T, n int) {
		c, k := &cells[n/o.seeds], n%o.seeds
		s, sub := o.scenarios[n/o.seeds/len(o.subjects)], o.subjects[n/o.seeds%len(o.subjects)]
		r, err := run(t, sub, env{scenario: s, seed: o.seed + uint64(k), giveUp: o.giveUp})
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s, %s: %w", s.Name, sub.name, err))
			return
		}
		if c.runs == nil {
			c.runs = make([]sim.Result, o.seeds)
		}
		c.runs[k] = r
		c.done++
		done++
		if o.progress != nil {
			fmt.Fprintf(o.progress, "\r%d of %d runs", done, total)
		}
	}
	ok := t.Run("runs", func(t *testing.T) { // ends when all have
		for n := range total {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				if ctx.Err() == nil {
					job(t, n)
				}
			})
		}
	})
	if o.progress != nil {
		fmt.Fprint(o.progress, "\r\033[K")
	}
	if !ok && failed == nil {
		failed = errors.New("a run did not end as it should")
	}
	var rows []suite.Row
	for i, c := range cells {
		if c.done == o.seeds {
			rows = append(rows, suite.Summarize(o.scenarios[i/len(o.subjects)], o.subjects[i%len(o.subjects)].name, c.runs))
		}
	}
	return rows, errors.Join(failed, ctx.Err())
}
