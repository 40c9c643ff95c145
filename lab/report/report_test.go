package report_test

import (
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/plot"
	"github.com/seed-a29ca62a/cortex/lab/report"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

func rows() []suite.Row {
	ttr, ttd := 0.4, 1.25
	oracle := map[string]float64{"10": 1, "9": 0.666, "2": 0.5}
	return []suite.Row{
		{Scenario: "S1", Policy: "exponential", Seeds: 10, Offered: 50004, Goodput: 0.1662, GoodputSD: 0.0213,
			GoodputByPriority: map[string]float64{"10": 0.2, "9": 0.16, "2": 0.15}, Oracle: 0.6667, OracleByPriority: oracle,
			Efficiency: 0.2493, Amplification: 3.5, AmplificationInFault: 3.98, NeverRecovered: 3, FalseRejections: 0.001,
			Rejections: map[string]float64{"DEADLINE": 12}},
		{Scenario: "S1", Policy: "cortex-adaptive", Seeds: 10, Offered: 50002, Goodput: 0.6651, GoodputSD: 0.0004,
			GoodputByPriority: map[string]float64{"10": 1, "9": 0.67, "2": 0.66}, Oracle: 0.6667, OracleByPriority: oracle,
			Efficiency: 0.9976, EfficiencyWorst: 0.99, Amplification: 0.67, AmplificationInFault: 0.012, TTR: &ttr, TTD: &ttd,
			Transitions: 2, TransitionsPerMinute: 1, Rejections: map[string]float64{"SHED": 1.5}},
		{Scenario: "two|a", Policy: "none", Instances: 16, Share: "250ms", Seeds: 1, Offered: 1234567, Goodput: 1,
			GoodputByPriority: map[string]float64{"5": 1}, Oracle: 1, OracleByPriority: map[string]float64{"5": 1}, Efficiency: 1, TTR: &ttr},
	}
}

func write(t *testing.T, format string, rows []suite.Row) string {
	t.Helper()
	var b strings.Builder
	if err := report.Write(&b, format, rows, map[string]string{"S1": "every attempt hangs"}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTable(t *testing.T) {
	want := `S1 — every attempt hangs (50,003 calls, mean of 10 seeds)
  policy           goodput %  ± sd  prio 10  prio 9  prio 2  effic.  ampl.  in fault         TTR  false %  trans/min
  oracle              66.7            100.0    66.6    50.0       1
  exponential         16.6 †   2.1     20.0    16.0    15.0   0.249   3.50     3.980  never 3/10     0.10        0.0
  cortex-adaptive     66.5     0.0    100.0    67.0    66.0   0.998   0.67     0.012       0.4 s     0.00        1.0

two|a (1,234,567 calls, 1 seed, 16 guards, counts shared after 250ms)
  policy  goodput %  effic.  ampl.  in fault    TTR  false %  trans/min
  oracle      100.0       1
  none        100.0   1.000   0.00     0.000  0.4 s     0.00        0.0

goodput: calls answered `
	if got := write(t, "table", rows()); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\n† never recovered in at least one seed\n") {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
	if got := write(t, "table", nil); got != "" {
		t.Errorf("no rows are %q", got)
	}
}

// After an interruption policies have different numbers of seeds: each says its own.
func TestSeedsOfEachPolicy(t *testing.T) {
	r := rows()[:2]
	r[1].Seeds = 1
	got := write(t, "table", r)
	if !strings.Contains(got, "seeds as shown") || !strings.Contains(got, "cortex-adaptive      1 ") || !strings.Contains(got, "exponential         10 ") {
		t.Error("\n" + got)
	}
}

func TestMarkdown(t *testing.T) {
	got := write(t, "md", rows())
	for _, want := range []string{
		"### S1 — every attempt hangs (50,003 calls, mean of 10 seeds)\n\n| policy | goodput % | ± sd | prio 10 |",
		"| exponential | 16.6 † | 2.1 | 20.0 |", "\n|---|---:|---:|", "\n† never recovered"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

func TestJSONHasEveryKey(t *testing.T) {
	var got []map[string]any
	if err := json.Unmarshal([]byte(write(t, "json", rows())), &got); err != nil {
		t.Fatal(err)
	}
	for _, r := range got {
		for _, key := range strings.Fields(`scenario policy seeds offered goodput goodput_by_priority oracle oracle_by_priority efficiency
			amplification amplification_in_fault ttr_s never_recovered ttd_s wasted_server_s p99_served_ms false_rejections inversions
			overshoot transitions rejections goodput_sd efficiency_worst`) {
			if _, ok := r[key]; !ok {
				t.Errorf("%v has no %s", r["policy"], key)
			}
		}
		if r["rejections"] == nil {
			t.Error("no rejections are null")
		}
	}
	if got[0]["ttr_s"] != nil || got[1]["ttr_s"] != 0.4 {
		t.Errorf("ttr_s is %v and %v", got[0]["ttr_s"], got[1]["ttr_s"])
	}
	if got := write(t, "json", nil); got != "[]\n" {
		t.Errorf("no rows are %q", got)
	}
}

func TestCSV(t *testing.T) {
	all, err := csv.NewReader(strings.NewReader(write(t, "csv", rows()))).ReadAll()
	if err != nil || len(all) != 4 {
		t.Fatal(all, err)
	}
	cell := func(row int, column string) string {
		i := slices.Index(all[0], column)
		if i < 0 {
			t.Fatalf("no column %s in %v", column, all[0])
		}
		return all[row][i]
	}
	for _, c := range []struct {
		row          int
		column, want string
	}{
		{1, "scenario", "S1"}, {1, "ttr_s", ""}, {2, "ttr_s", "0.4"}, {1, "goodput_9", "0.16"}, {3, "goodput_9", ""}, {3, "goodput_5", "1"},
		{1, "instances", "1"}, {3, "instances", "16"}, {3, "share", "250ms"}, {1, "rejections_DEADLINE", "12"}, {2, "rejections_DEADLINE", ""},
		{1, "never_recovered", "3"}, {2, "ttd_s", "1.25"}, {1, "oracle_2", "0.5"},
	} {
		if got := cell(c.row, c.column); got != c.want {
			t.Errorf("%s of row %d is %q, want %q", c.column, c.row, got, c.want)
		}
	}
	if i := slices.Index(all[0], "goodput_10"); all[0][i+1] != "goodput_9" || all[0][i+2] != "goodput_5" {
		t.Errorf("priorities are not in their order: %v", all[0])
	}
}

func TestFormats(t *testing.T) {
	for _, f := range report.Formats() {
		if a, b := write(t, f, rows()), write(t, f, rows()); a != b {
			t.Errorf("%s is not the same twice", f)
		}
	}
	if err := report.Write(&strings.Builder{}, "xml", nil, nil); err == nil || !strings.Contains(err.Error(), "table, json, csv, md") {
		t.Error(err)
	}
}

func timeline(length time.Duration, circuit bool) *suite.Timeline {
	t := &suite.Timeline{Scenario: "S1", Policy: "p", Incidents: []scenario.Interval{{From: length / 3, To: length / 2}}, Priorities: []int{9, 2}}
	for i := range 100 {
		s := suite.TimeSample{At: length * time.Duration(i+1) / 100, Offered: 400, Attempts: 500, Calls: []float64{200, 100}, Goodput: []float64{1, 0.5}}
		if circuit {
			s.CPS, s.F, s.Circuit = 0.5, 1, []string{"closed", "open", "half-open"}[i%3]
		}
		t.Samples = append(t.Samples, s)
	}
	return t
}

func TestPlot(t *testing.T) {
	if n := len(report.Panels(timeline(time.Minute, false))); n != 2 {
		t.Errorf("%d panels without score and circuit, want 2", n)
	}
	panels := report.Panels(timeline(24*time.Hour, true))
	if len(panels) != 4 {
		t.Fatalf("%d panels, want 4", len(panels))
	}
	c := panels[0].(plot.Chart)
	if c.X != "time, h" || c.Bands[0].From != 8 || c.Bands[0].To != 12 || c.Series[1].Y[0] != 50 {
		t.Errorf("%+v", c)
	}
	if s := panels[3].(plot.Chart).Series[0]; !s.Step || s.Y[0] != 0 || s.Y[1] != 2 || s.Y[2] != 1 {
		t.Errorf("%+v", s)
	}
	for _, name := range []string{"a.svg", "a.png"} {
		path := filepath.Join(t.TempDir(), name)
		if err := report.WritePlot(path, timeline(time.Minute, name == "a.svg")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() < 1000 {
			t.Error(info, err)
		}
	}
}

func TestPlotFile(t *testing.T) {
	if got := report.PlotFile("out/run.svg", "S1", "none", true); got != "out/run.svg" {
		t.Error(got)
	}
	if got := report.PlotFile("out.d/run.svg", "S1", "none", false); got != "out.d/run-S1-none.svg" {
		t.Error(got)
	}
}
