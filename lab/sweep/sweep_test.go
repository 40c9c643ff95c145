package sweep

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

func TestDrawsStayWithinTheirRanges(t *testing.T) {
	kinds, distributions := map[string]int{}, map[scenario.Distribution]int{}
	var adaptive, single, cold, usual, onset, slow int
	const n = 4000
	for i := range n {
		d := Make(uint64(i%7), i)
		s := d.Scenario
		within := func(what string, v, lo, hi float64) {
			t.Helper()
			if !(v >= lo && v <= hi) {
				t.Errorf("%s: %s %g is not within %g to %g\n%s", s.Name, what, v, lo, hi, s.YAML())
			}
		}
		base, mean := s.Rate(s.Duration-1), s.Downstream.Service.Mean.Seconds()
		within("rate", base, 5, 3000)
		within("workers", float64(s.Downstream.Workers), 2, 200)
		within("mean", mean, 0.000999, 2.001)
		within("ρ", base*mean/float64(s.Downstream.Workers), 0.299, 0.901)
		within("deadline", s.Deadline.Seconds(), 1, 10)
		within("mean ÷ deadline", mean/s.Deadline.Seconds(), 0, 0.2501)
		within("queue", float64(s.Downstream.Queue), 20, 5000)
		within("classes", float64(len(s.Priorities)), 1, 5)
		within("calls", s.Offered(), 1, 1.001*maxCalls)
		within("fault", (d.To - d.From).Seconds(), 2.99, 60.01)
		within("rest", (s.Duration - d.To).Seconds(), 24.99, 45.01)
		if s.Client.Timeout == 0 {
			adaptive++
		} else {
			within("timeout ÷ mean", float64(s.Client.Timeout)/float64(s.Downstream.Service.Mean), 2.99, 30.01)
			within("timeout ÷ deadline", float64(s.Client.Timeout)/float64(s.Deadline), 0, 1)
		}
		if d.Cold {
			cold++
			within("start of a cold one", d.From.Seconds(), 0, 0)
		} else {
			within("calm", d.From.Seconds(), 20, 100.1)
			within("calm calls", d.From.Seconds()*s.Rate(0), 299, math.Inf(1))
		}
		if v := s.Downstream.Service; v.Distribution == scenario.Pareto {
			within("α", v.Alpha, 1.8, 3.5)
		} else if v.Distribution == scenario.Lognormal {
			within("σ", v.Sigma, 0.3, 1.5)
		}
		if s.Client.MaxRetries != 3 || s.Client.BaseDelay != 100*time.Millisecond || s.Downstream.Cancels || s.Callers.Count > 0 || s.Hops != 1 {
			t.Errorf("%s: not what every draw is\n%s", s.Name, s.YAML())
		}
		for _, f := range s.Faults {
			if f.Kind.String() != d.Kind || f.From != d.From || f.To != d.To {
				t.Errorf("%s is a %s but has %+v", s.Name, d.Kind, f)
			}
			switch f.Kind {
			case scenario.Hang:
				within("hang", f.Latency.Seconds(), 1, 20)
			case scenario.Slow:
				within("factor", f.Factor, 1.5, 10)
				slow++
				if f.Onset > 0 {
					onset++
				}
			case scenario.Capacity:
				within("workers left", float64(s.WorkersAt(d.From)), 1, 0.7*float64(s.Downstream.Workers)+0.5)
			case scenario.Error:
				within("probability", f.Probability, 0.2, 1)
			case scenario.Throttle:
				within("limit ÷ rate", f.Limit/base, 0.199, 0.901)
			}
		}
		if d.Kind == "spike" {
			within("spike", s.Rate(d.From)/base, 1.499, 4.001)
		} else if len(s.Faults) != 1 || len(s.Arrivals.Steps) != 1 {
			t.Errorf("%s: %d faults, %d steps", s.Name, len(s.Faults), len(s.Arrivals.Steps))
		}
		kinds[d.Kind]++
		distributions[s.Downstream.Service.Distribution]++
		if len(s.Priorities) == 1 {
			single++
		}
		if s.Downstream.Queue == 2000 {
			usual++
		}
	}
	for _, c := range []struct {
		what      string
		got, of   int
		want, tol float64
	}{
		{"adaptive timeouts", adaptive, n, 0.3, 0.03}, {"single classes", single, n, 0.25, 0.03}, {"cold starts", cold, n, 0.1, 0.02},
		{"queues of 2,000", usual, n, 0.6, 0.03}, {"slow onsets", onset, slow, 0.36, 0.08}, {"lognormal", distributions[scenario.Lognormal], n, 0.6, 0.03},
		{"exponential", distributions[scenario.Exponential], n, 0.2, 0.03}, {"pareto", distributions[scenario.Pareto], n, 0.2, 0.03},
	} {
		if share := float64(c.got) / float64(c.of); math.Abs(share-c.want) > c.tol {
			t.Errorf("%s: a share of %.3f, want about %g", c.what, share, c.want)
		}
	}
	for _, k := range Kinds() {
		if share := float64(kinds[k]) / n; math.Abs(share-1/float64(len(Kinds()))) > 0.02 {
			t.Errorf("%s: a share of %.3f of the draws", k, share)
		}
	}
}

func TestADrawIsAScenarioFile(t *testing.T) {
	for i := range 300 {
		d := Make(5, i)
		s, err := scenario.Parse(d.Scenario.YAML(), d.Scenario.Name)
		if err != nil {
			t.Fatalf("%v\n%s", err, d.Scenario.YAML())
		}
		if !reflect.DeepEqual(s, d.Scenario) {
			t.Fatalf("%s is another one from its file:\n%+v\n%+v", d.Scenario.Name, d.Scenario, s)
		}
		again, ok := Find(strings.ToUpper(d.Scenario.Name))
		if !ok || !reflect.DeepEqual(again, d) {
			t.Fatalf("%s is another one by its name", d.Scenario.Name)
		}
	}
	for _, name := range []string{"", "sweep", "sweep-", "sweep-1", "sweep-1-", "sweep-1-x", "sweep--1-2", "sweep-1--2", "sweep-1-2-3", "sweep-1-100000", "S1",
		"sweep-99999999999999999999-1"} {
		if d, ok := Find(name); ok {
			t.Errorf("%q is %s", name, d.Scenario.Name)
		}
	}
}

func policies(t testing.TB, names ...string) []policy.Policy {
	var all []policy.Policy
	for _, n := range names {
		p, err := policy.Find(n)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// small are draws that are cheap to run.
func small(t testing.TB, n int) []Draw {
	var all []Draw
	for i := 0; len(all) < n; i++ {
		if d := Make(11, i); d.Scenario.Offered() < 4000 {
			all = append(all, d)
		}
	}
	return all
}

func TestTheSameSweepWhateverTheMachine(t *testing.T) {
	o := Options{Seed: 3585, Draws: 4, Policies: policies(t, "hystrix", "cortex-adaptive")}
	render := func(procs, parallel int) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		o.Parallel = parallel
		all, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		for _, f := range []string{"table", "md", "json", "csv"} {
			if err := Write(&b, f, all); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	one := render(1, 1)
	if two := render(2, 3); one != two {
		t.Errorf("with two processors it is\n%s\nwith one\n%s", two, one)
	}
}

func TestNoPolicyBeatsTheStrictOracle(t *testing.T) {
	all := policies(t, "none", "exponential-jitter", "hystrix", "cortex-adaptive")
	for _, d := range small(t, 15) {
		x, err := judge(t.Context(), d, all, true)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range x.Scores {
			// Retries that wait for the end of an outage, or that chance favours: an oracle does neither.
			if s.Efficiency > 1.02 {
				t.Errorf("%s, %s: %s has %.4f of the oracle's %.4f", d.Scenario.Name, d.Scenario.Title, s.Policy, s.Efficiency, x.Oracle.Goodput)
			}
		}
	}
}

// What the oracle reaches in the suite is what can be calculated, in one setting for all.
func TestTheOracleOfTheSuite(t *testing.T) {
	for _, s := range scenario.Builtin()[:8] {
		x, err := score(t.Context(), Draw{Scenario: s, From: 20 * time.Second, To: 60 * time.Second}, "oracle", Oracle(Setting{0, 0.35, true}))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := s.Oracle()
		if ratio := x.Goodput / want; ratio < 0.98 || ratio > 1.03 {
			t.Errorf("%s: the oracle comes to %.4f, which is %.4f of the %.4f that can be calculated", s.Name, x.Goodput, ratio, want)
		}
	}
}

func TestInterruptedItReturnsWhatIsDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	all, err := Run(ctx, Options{Seed: 3585, Draws: 1000, Parallel: 1, Policies: policies(t, "none"), Progress: func(done, total int) {
		if done == 2 && total == 1000 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || len(all) != 2 {
		t.Errorf("%d draws and %v, want 2 and that it was cancelled", len(all), err)
	}
	var b bytes.Buffer
	if err := Write(&b, "table", all); err != nil || !strings.Contains(b.String(), "(2 draws)") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{}, {Draws: 1}, {Draws: -1, Policies: policies(t, "none")}, {Draws: 1, First: MaxDraws, Policies: policies(t, "none")},
		{Draws: 1, First: -1, Policies: policies(t, "none")}, {Draws: math.MaxInt, First: 1, Policies: policies(t, "none")}} {
		var wrong *OptionError
		if _, err := Run(t.Context(), o); !errors.As(err, &wrong) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// outcomes of a made up sweep: efficiencies of one policy, by kind.
func outcomes(kind string, e ...float64) []Outcome {
	var all []Outcome
	for i, v := range e {
		s := scenario.Rig()
		s.Name = fmt.Sprintf("%s-%d", kind, i)
		all = append(all, Outcome{Draw: Draw{Index: i, Kind: kind, Scenario: s}, Oracle: Score{Policy: "oracle", Efficiency: 1, Goodput: 0.5},
			Scores: []Score{{Policy: "p", Efficiency: v, Goodput: v / 2, Before: float64(i) / 100, Top: 0.5}}})
	}
	return all
}

func TestSummary(t *testing.T) {
	all := append(outcomes("slow", 0.1, 0.5, 0.9), outcomes("crash", 1.5, 1)...)
	all[0].Draw.Cold, all[0].Scores[0].Before = true, 9 // has no calm stretch
	s := Summarize(all)[0]
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	near("mean", s.Mean, 0.8)
	near("median", s.Median, 0.9)
	near("5th percentile", s.Percentile5, 0.18)
	near("10th percentile", s.Percentile10, 0.26)
	near("worst", s.Worst, 0.1)
	near("before", s.Before, (0.01+0.02+0+0.01)/4)
	near("before, 90th percentile", s.Before90, 0.017)
	near("top", *s.Top, 0.5)
	if s.WorstDraw != "slow-0" || s.Above != 1 || s.Draws != 5 || s.AmplificationHang != nil {
		t.Errorf("%+v", s)
	}
	want := []KindSummary{{"slow", 3, 0.5, 0.5, 0.1}, {"crash", 2, 1.25, 1.25, 1}}
	if !reflect.DeepEqual(s.Kinds, want) {
		t.Errorf("kinds are %+v, want %+v", s.Kinds, want)
	}
	if w := Worst(all, "p", 2); len(w) != 2 || w[0].Draw.Scenario.Name != "slow-0" || w[1].Draw.Scenario.Name != "slow-1" {
		t.Errorf("the worst are %+v", w)
	}
	if Summarize(nil) != nil {
		t.Error("a summary of nothing")
	}
}

func TestFormats(t *testing.T) {
	all := append(outcomes("slow", 0.1, 0.5, 0.9), outcomes("crash", 1.5, 1)...)
	out := map[string]string{}
	for _, f := range []string{"table", "md", "json", "csv"} {
		var b bytes.Buffer
		if err := Write(&b, f, all); err != nil {
			t.Fatal(err)
		}
		out[f] = b.String()
	}
	for _, f := range []string{"table", "md"} {
		for _, says := range []string{"(5 draws)", "0.500/0.500/0.100", "slow (3)", "Worst draws of p", "slow-0", "not capped"} {
			if !strings.Contains(out[f], says) {
				t.Errorf("%s has no %q:\n%s", f, says, out[f])
			}
		}
	}
	var parsed struct {
		Summaries []Summary
		Draws     []map[string]any
	}
	if err := json.Unmarshal([]byte(out["json"]), &parsed); err != nil || len(parsed.Summaries) != 1 || len(parsed.Draws) != 5 {
		t.Errorf("%v\n%s", err, out["json"])
	} else if s, err := scenario.Parse([]byte(parsed.Draws[0]["scenario"].(string)), "json"); err != nil || s.Name != "slow-0" {
		t.Errorf("the scenario in it: %v", err)
	}
	lines, err := csv.NewReader(strings.NewReader(out["csv"])).ReadAll()
	if err != nil || len(lines) != 1+2*5 {
		t.Errorf("%v\n%s", err, out["csv"])
	}
	if err := Write(&bytes.Buffer{}, "xml", all); err == nil || !strings.Contains(err.Error(), "table") {
		t.Errorf("xml: %v", err)
	}
	for _, f := range []string{"table", "md", "json", "csv"} {
		if err := Write(&bytes.Buffer{}, f, nil); err != nil {
			t.Errorf("nothing as %s: %v", f, err)
		}
	}
}
