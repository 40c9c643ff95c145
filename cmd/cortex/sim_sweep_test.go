package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sweep"
)

func TestSweepErrors(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--sweep 0", "--sweep 0: want from 1 to 100000 draws"},
		{"--sweep x", "must be an integer"},
		{"--sweep 2000000", "--sweep 2000000: want"},
		{"--sweep 5 --draw -1", "--draw -1: want from 0 to 99995"},
		{"--sweep 5 --draw 99999", "--draw 99999: want from 0 to 99995"},
		{"--draw 5", "--draw: goes with --sweep N"},
		{"--sweep 5 --scenario S1", "--scenario: does not go with --sweep"},
		{"--sweep 5 --seed 3 --plot a.svg", "--plot: does not go with --sweep; a draw is a scenario as well: --scenario sweep-3-0"},
		{"--sweep 5 --instances 4", "--instances: does not go with --sweep"},
		{"--sweep 5 --policy nun", "--policy nun: not known"},
		{"--sweep 5 --format xml", `--format "xml": use table`},
		{"--sweep 5 --parallel 0", "--parallel 0: want"},
		{"--scenario sweep-1", "--scenario sweep-1: not known"},
	} {
		code, stdout, stderr := cli(t, append([]string{"sim"}, strings.Fields(c.args)...)...)
		if code != exitUsage || !strings.Contains(stderr, c.says) || stdout != "" {
			t.Errorf("cortex sim %s: exit %d, %q and\n%q, want %d and %q in it", c.args, code, stdout, stderr, exitUsage, c.says)
		}
	}
}

// A draw of a sweep is a scenario as well: the same numbers under its name, with its index as the seed.
func TestADrawAgain(t *testing.T) {
	code, out, errs := cli(t, "sim", "--sweep", "1", "--seed", "3", "--draw", "4", "--policy", "hystrix", "--format", "json")
	var swept struct {
		Draws []struct {
			Draw   string
			Oracle sweep.Score
			Scores []sweep.Score
		}
	}
	if err := json.Unmarshal([]byte(out), &swept); code != 0 || err != nil || len(swept.Draws) != 1 || swept.Draws[0].Draw != "sweep-3-4" {
		t.Fatalf("exit %d, %v, %s\n%s", code, err, errs, out)
	}
	_, out, _ = cli(t, "sim", "--scenario", "sweep-3-4", "--seed", "4", "--policy", "hystrix", "--format", "json")
	var rows []struct{ Goodput float64 }
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	d := swept.Draws[0]
	if got := d.Scores[0].Goodput; got != rows[0].Goodput || d.Oracle.Goodput <= 0 {
		t.Errorf("goodput %g in the sweep, %g on its own; the oracle's is %g", got, rows[0].Goodput, d.Oracle.Goodput)
	}
}

func TestSweepPrintsItsDraws(t *testing.T) {
	_, out, _ := cli(t, "sim", "--sweep", "3", "--seed", "9", "--draw", "2", "--print")
	for i, doc := range strings.Split(out, "---\n") {
		s, err := scenario.Parse([]byte(doc), "print")
		if err != nil || s.Name != sweep.Name(9, i+2) {
			t.Errorf("%v in\n%s", err, doc)
		}
	}
}

func TestSweepInterruptedShowsWhatIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs strings.Builder
	if code := run(ctx, []string{"sim", "--sweep", "50"}, &out, &errs); code == exitDone || !strings.Contains(errs.String(), "interrupted after 0 of 50 draws") {
		t.Errorf("exit %d, %q", code, errs.String())
	}
}
