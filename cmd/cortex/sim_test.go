package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

const tiny = `name: tiny
duration: 4s
deadline: 1s
seeds: 2
arrivals: [{ from: 0s, rate: 50 }]
priorities: { 9: 1, 2: 3 }
client: { timeout: 200ms, max_retries: 3 }
downstream: { workers: 2, service: { distribution: exponential, mean: 10ms } }
faults: [{ from: 1s, to: 2s, kind: crash }]
`

func tinyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tiny.yaml")
	write(t, path, tiny)
	return path
}

func TestSimErrors(t *testing.T) {
	file := tinyFile(t)
	wrong := filepath.Join(t.TempDir(), "wrong.yaml")
	write(t, wrong, strings.Replace(tiny, "deadline: 1s", "deadline: 1", 1))
	for _, c := range []struct{ args, says string }{
		{"--scenario S99", "--scenario S99: not known: `cortex sim --list`"},
		{"--scenario ,", "which scenario? Use --scenario NAME or --scenario-file FILE"},
		{"--policy none", "which scenario?"},
		{"--scenario S1 --policy nun", "--policy nun: not known: use none, exponential"},
		{"--scenario S1 --policy ,", `--policy ",": use none, exponential`},
		{"--scenario S1 --seeds 0", "--seeds 0: want a whole number from 1 to 10000"},
		{"--scenario S1 --seeds x", `"x" for "--seeds" flag: must be an integer`},
		{"--scenario S1 --seeds 20000", "--seeds 20000: want"},
		{"--scenario S1 --seed -1", `"-1" for "--seed" flag: must be a`},
		{"--scenario S1 --instances 0", "--instances 0: want a whole number from 1 to"},
		{"--scenario S1 --parallel 0", "--parallel 0: want"},
		{"--scenario S1 --share 250ms", "--share 250ms: one guard has no one to share with: add --instances N"},
		{"--scenario S1 --instances 4 --share 5", "--share 5: want none, door, or the delay"},
		{"--scenario S1 --format xml", `--format "xml": use table or json or csv or md`},
		{"--scenario S1 --plot a.gif", `--plot "a.gif": want a file that ends in .svg or .png`},
		{"--scenario S1 --plot /none/a.svg", "want a file in a directory that exists"},
		{"--scenario-file /none.yaml", "--scenario-file: stat /none.yaml: no such file"},
		{"--scenario-file " + wrong, "wrong.yaml:3:1: deadline: 1: missing unit"},
		{"--scenario-file " + file + " --scenario-file " + file, "there is another scenario named tiny"},
		{"--scenario S1 --plot=", `--plot "": want a file that ends in .svg or .png`},
		{"--scenario S1 --plot .svg", `--plot ".svg": want a file that ends in`},
		{"--scenario S1 --share 5", "--share 5: want none, door, or the delay"},
		{"--scenario S1 --seeds 99999999999999999999", `flag: must be an integer`},
		{"--scneario S1", "unknown flag: --scneario: did you mean --scenario?"},
		{"--colour", "unknown flag: --colour: `cortex sim --help` shows them"},
		{"--scenario S1, S2", "S2: not a flag: names go to --scenario or --policy, with commas and no spaces between"},
		{"surplus", "surplus"},
	} {
		code, stdout, stderr := cli(t, append([]string{"sim"}, strings.Fields(c.args)...)...)
		if code != exitUsage || !strings.Contains(stderr, c.says) || stdout != "" {
			t.Errorf("cortex sim %s: exit %d, %q and\n%q, want %d and %q in it", c.args, code, stdout, stderr, exitUsage, c.says)
		}
	}
}

func TestSimWithoutAnythingHelps(t *testing.T) {
	if code, out, _ := cli(t, "sim"); code != 0 || !strings.Contains(out, "cortex sim --scenario S1") {
		t.Errorf("exit %d and\n%s", code, out)
	}
}

func TestSimList(t *testing.T) {
	_, out, _ := cli(t, "sim", "--list")
	for _, s := range append(scenario.Builtin(), scenario.Extra()...) {
		if !strings.Contains(out, "  "+s.Name+" ") || !strings.Contains(out, s.Title) {
			t.Errorf("%s is not in\n%s", s.Name, out)
		}
	}
	for _, p := range suite.Policies() {
		if !strings.Contains(out, "  "+p+" ") {
			t.Errorf("%s is not in\n%s", p, out)
		}
	}
}

// What --print shows is a file that --scenario-file takes, one scenario or all of them.
func TestSimPrintIsAScenarioFile(t *testing.T) {
	for _, which := range []string{"--scenario s2", "--scenario all,extras", "--sweep 100 --seed 3"} {
		code, out, stderr := cli(t, append([]string{"sim", "--print"}, strings.Fields(which)...)...)
		if code != 0 {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		path := filepath.Join(t.TempDir(), "a.yaml")
		write(t, path, out)
		if code, again, stderr := cli(t, "sim", "--scenario-file", path, "--print"); code != 0 || again != out {
			t.Errorf("exit %d: %s\n%s\nwant\n%s", code, stderr, again, out)
		}
	}
}

func TestSimRuns(t *testing.T) {
	file := tinyFile(t)
	args := []string{"sim", "--scenario-file", file, "--policy", "CORTEX-adaptive,none,none"}
	code, out, stderr := cli(t, append(args, "--format", "json")...)
	var rows []suite.Row
	if err := json.Unmarshal([]byte(out), &rows); code != 0 || err != nil || stderr != "" {
		t.Fatalf("exit %d, %v, %q and\n%s", code, err, stderr, out)
	}
	if len(rows) != 2 || rows[0].Policy != "cortex-adaptive" || rows[1].Policy != "none" || rows[0].Seeds != 2 || rows[0].Goodput < 0.5 {
		t.Errorf("%+v", rows)
	}
	if _, again, _ := cli(t, append(args, "--format", "json", "--parallel", "1")...); again != out {
		t.Errorf("the same seed gave\n%s\nand\n%s", out, again)
	}
	if _, other, _ := cli(t, append(args, "--format", "json", "--seed", "7")...); other == out {
		t.Error("another seed gave the same")
	}
	_, out, _ = cli(t, append(args, "--format", "csv", "--seeds", "1", "--instances", "4", "--share", "250ms")...)
	if all, err := csv.NewReader(strings.NewReader(out)).ReadAll(); err != nil || len(all) != 3 || all[1][2] != "4" || all[1][3] != "250ms" || all[1][4] != "1" {
		t.Errorf("%v in\n%s", err, out)
	}
	for _, format := range []string{"table", "md"} {
		if _, out, _ = cli(t, append(args, "--format", format)...); !strings.Contains(out, "tiny (") || !strings.Contains(out, "oracle") {
			t.Errorf("%s:\n%s", format, out)
		}
	}
}

func TestSimPlots(t *testing.T) {
	dir, file := t.TempDir(), tinyFile(t)
	one, many := filepath.Join(dir, "one.svg"), filepath.Join(dir, "many.svg")
	if code, _, stderr := cli(t, "sim", "--scenario-file", file, "--policy", "none", "--plot", one); code != 0 || stderr != "wrote "+one+"\n" {
		t.Errorf("exit %d and %q", code, stderr)
	}
	cli(t, "sim", "--scenario-file", file, "--policy", "none,hystrix", "--plot", many)
	for _, name := range []string{"one.svg", "many-tiny-none.svg", "many-tiny-hystrix.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 3 {
		t.Errorf("%v", left)
	}
}

// Ctrl-C in the middle: the rows that are done, a word on stderr, and exit code 130.
func TestSimInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := simCommand(&simFlags{run: func(ctx context.Context, o suite.Options) ([]suite.Row, error) {
		part := o
		part.Policies, part.Seeds, part.Progress = o.Policies[:1], 3, func(n, _ int) { o.Progress(n, 20) }
		rows, err := suite.Run(ctx, part)
		if err != nil {
			t.Error(err)
		}
		stop()
		return rows, ctx.Err()
	}})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true // as below root
	var out, errs bytes.Buffer
	cmd.SetArgs([]string{"--scenario-file", tinyFile(t), "--format", "json", "--seeds", "10", "--policy", "none,hystrix",
		"--plot", filepath.Join(t.TempDir(), "a.svg")})
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(ctx)
	var cut *stopped
	if !errors.As(err, &cut) || err.Error() != "cortex sim: interrupted after 3 of 20 runs" {
		t.Errorf("%v", err)
	}
	var rows []suite.Row
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil || len(rows) != 1 || rows[0].Seeds != 3 {
		t.Errorf("%v in\n%s", err, out.String())
	}
}

// Ctrl-C after the runs, in the plots: the rows are all there, and what is left out is plots.
func TestSimInterruptedInThePlots(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := simCommand(&simFlags{run: func(ctx context.Context, o suite.Options) ([]suite.Row, error) {
		rows, err := suite.Run(ctx, o)
		stop()
		return rows, err
	}})
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	var out, errs bytes.Buffer
	cmd.SetArgs([]string{"--scenario-file", tinyFile(t), "--format", "json", "--seeds", "1", "--policy", "none,hystrix",
		"--plot", filepath.Join(t.TempDir(), "a.svg")})
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err := cmd.ExecuteContext(ctx)
	var cut *stopped
	if !errors.As(err, &cut) || err.Error() != "cortex sim: interrupted after 0 of 2 plots" || strings.Contains(errs.String(), "wrote") {
		t.Errorf("%v and %q", err, errs.String())
	}
	var rows []suite.Row
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil || len(rows) != 2 {
		t.Errorf("%v in\n%s", err, out.String())
	}
}

// A run that would take minutes ends at once.
func TestSimInterruptedAtOnce(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"sim", "--scenario", "all", "--seeds", "1000", "--format", "json"}, &out, &errs)
	if code != exitInterrupted || out.String() != "[]\n" || !strings.Contains(errs.String(), "interrupted after 0 of 96000 runs") {
		t.Errorf("exit %d, %q and %q", code, out.String(), errs.String())
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		done, total int
		want        string
	}{
		{0, 3, "runs [░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░] 0/3"},
		{1, 3, "runs [██████████░░░░░░░░░░░░░░░░░░░░] 1/3  20s left"},
		{3, 3, "runs [██████████████████████████████] 3/3"},
	} {
		if got := barLine("runs", c.done, c.total, 10*time.Second); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	var out bytes.Buffer
	b := newBar(&out, false)
	b.show("runs", 1, 2)
	b.clear()
	if out.Len() > 0 {
		t.Errorf("what is no terminal got %q", out.String())
	}
	b = newBar(&out, true)
	b.show("runs", 2, 2)
	b.clear()
	if got := out.String(); !strings.HasPrefix(got, "\rruns [") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("a terminal got %q", got)
	}
}
