package sweep

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/report"
)

const legend = `Efficiency: goodput ÷ that of the best of %d clairvoyant oracles on the same draw; it is not capped, retries that wait for the end of a
fault may bring more. >1.01: draws in which it is. before %%: calls refused before the fault, mean and 90th percentile. top %%: goodput of
the highest priority in slow, capacity and spike draws with several. hang: attempts a call in hangs longer than the timeout.
trans/min: changes of the circuit's state a minute. A draw again: cortex sim --scenario sweep-K-I --seed I
`

const listed = 10 // of the worst draws

// Write writes outcomes as table, md, json or csv: summaries, tables by kind of fault, and the worst draws of the last policy; csv is
// one line for each draw and policy instead. The same outcomes are the same bytes.
func Write(w io.Writer, format string, all []Outcome) error {
	switch format {
	case "table", "md":
		return writeTables(w, format, all)
	case "json":
		return writeJSON(w, all)
	case "csv":
		return writeCSV(w, all)
	}
	return fmt.Errorf("format %q: use %s", format, strings.Join(report.Formats(), ", "))
}

func writeTables(w io.Writer, format string, all []Outcome) error {
	if len(all) == 0 {
		return nil
	}
	sums := Summarize(all)
	var b strings.Builder
	var lines [][]string
	for _, s := range sums {
		lines = append(lines, []string{s.Policy, fix(s.Mean), fix(s.Median), fix(s.Percentile5), fix(s.Percentile10), fix(s.Worst), s.WorstDraw,
			strconv.Itoa(s.Above), percent(s.Before), percent(s.Before90), maybe(s.Top, 100, 1), maybe(s.AmplificationHang, 1, 3),
			strconv.FormatFloat(s.TransitionsPerMinute, 'f', 1, 64)})
	}
	if err := report.WriteTable(&b, format, fmt.Sprintf("Efficiency in random systems (%d draws)", len(all)),
		[]string{"policy", "mean", "median", "5th pct", "10th pct", "worst", "in draw", ">1.01", "before %", "90th", "top %", "hang", "trans/min"},
		lines); err != nil {
		return err
	}
	head, lines := []string{"policy"}, nil
	for _, k := range sums[0].Kinds {
		head = append(head, fmt.Sprintf("%s (%d)", k.Kind, k.Draws))
	}
	for _, s := range sums {
		line := []string{s.Policy}
		for _, k := range s.Kinds {
			line = append(line, fmt.Sprintf("%.3f/%.3f/%.3f", k.Mean, k.Median, k.Worst))
		}
		lines = append(lines, line)
	}
	b.WriteString("\n")
	if err := report.WriteTable(&b, format, "By kind of fault: mean/median/worst (draws)", head, lines); err != nil {
		return err
	}
	last := sums[len(sums)-1].Policy
	lines = nil
	for _, x := range Worst(all, last, listed) {
		s := x.Draw.Scenario
		v := x.score(last)
		lines = append(lines, []string{s.Name, fix(v.Efficiency), percent(x.Oracle.Goodput), percent(v.Before), s.Title, strconv.Itoa(s.Downstream.Workers),
			serviceText(&x), strconv.Itoa(s.Downstream.Queue), s.Deadline.Round(time.Millisecond).String(), timeoutText(&x), strconv.Itoa(len(s.Priorities)),
			span(&x)})
	}
	b.WriteString("\n")
	if err := report.WriteTable(&b, format, "Worst draws of "+last,
		[]string{"draw", "effic.", "oracle %", "before %", "what", "workers", "service", "queue", "deadline", "timeout", "classes", "fault"}, lines); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n"+legend, len(Settings(false)))
	_, err := io.WriteString(w, b.String())
	return err
}

func serviceText(x *Outcome) string {
	v := x.Draw.Scenario.Downstream.Service
	text := fmt.Sprintf("%v %v", v.Distribution, v.Mean.Round(10*time.Microsecond))
	switch {
	case v.Sigma > 0:
		text += fmt.Sprintf(" σ %.2g", v.Sigma)
	case v.Alpha > 0:
		text += fmt.Sprintf(" α %.2g", v.Alpha)
	}
	return text
}

func timeoutText(x *Outcome) string {
	s := x.Draw.Scenario
	if s.Client.Timeout == 0 {
		return "adaptive"
	}
	return fmt.Sprintf("%v (%.1f ×)", s.Client.Timeout.Round(time.Millisecond), float64(s.Client.Timeout)/float64(s.Downstream.Service.Mean))
}

func span(x *Outcome) string {
	return fmt.Sprintf("%.0f–%.0f of %.0f s", x.Draw.From.Seconds(), x.Draw.To.Seconds(), x.Draw.Scenario.Duration.Seconds())
}

// drawJSON is a draw for programs.
type drawJSON struct {
	Draw     string  `json:"draw"`
	Seed     uint64  `json:"seed"` // of its runs
	Kind     string  `json:"kind"`
	Cold     bool    `json:"cold"`
	Title    string  `json:"title"`
	From     float64 `json:"from_s"`
	To       float64 `json:"to_s"`
	Scenario string  `json:"scenario"` // as a file
	Best     Setting `json:"oracle_setting"`
	Oracle   Score   `json:"oracle"`
	Scores   []Score `json:"scores"`
}

func writeJSON(w io.Writer, all []Outcome) error {
	out := struct {
		Summaries []Summary  `json:"summaries"`
		Draws     []drawJSON `json:"draws"`
	}{Summarize(all), []drawJSON{}}
	if out.Summaries == nil {
		out.Summaries = []Summary{}
	}
	for _, x := range all {
		d := x.Draw
		out.Draws = append(out.Draws, drawJSON{d.Scenario.Name, uint64(d.Index), d.Kind, d.Cold, d.Scenario.Title, d.From.Seconds(), d.To.Seconds(),
			string(d.Scenario.YAML()), x.Best, x.Oracle, x.Scores})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(out)
}

func writeCSV(w io.Writer, all []Outcome) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"draw", "kind", "cold", "policy", "efficiency", "goodput", "oracle_goodput", "before", "top", "in_fault", "transitions_per_minute",
		"rate", "workers", "service", "mean_ms", "queue", "deadline_s", "timeout_ms", "classes", "from_s", "to_s", "duration_s", "title"}); err != nil {
		return err
	}
	n := func(f float64) string { return strconv.FormatFloat(f, 'g', 10, 64) }
	for _, x := range all {
		s := x.Draw.Scenario
		for _, v := range append([]Score{x.Oracle}, x.Scores...) {
			if err := out.Write([]string{s.Name, x.Draw.Kind, strconv.FormatBool(x.Draw.Cold), v.Policy, n(v.Efficiency), n(v.Goodput), n(x.Oracle.Goodput),
				n(v.Before), n(v.Top), n(v.InFault), n(v.TransitionsPerMinute), n(s.Arrivals.Steps[len(s.Arrivals.Steps)-1].Rate),
				strconv.Itoa(s.Downstream.Workers), s.Downstream.Service.Distribution.String(), n(s.Downstream.Service.Mean.Seconds() * 1e3),
				strconv.Itoa(s.Downstream.Queue), n(s.Deadline.Seconds()), n(s.Client.Timeout.Seconds() * 1e3), strconv.Itoa(len(s.Priorities)),
				n(x.Draw.From.Seconds()), n(x.Draw.To.Seconds()), n(s.Duration.Seconds()), s.Title}); err != nil {
				return err
			}
		}
	}
	out.Flush()
	return out.Error()
}

func fix(f float64) string { return strconv.FormatFloat(f, 'f', 4, 64) }

func percent(share float64) string { return strconv.FormatFloat(100*share, 'f', 2, 64) }

func maybe(f *float64, times float64, digits int) string {
	if f == nil {
		return "–"
	}
	return strconv.FormatFloat(*f*times, 'f', digits, 64)
}
