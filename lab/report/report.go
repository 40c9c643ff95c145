// Package report writes what the laboratory measured: for people as a table or as Markdown, for programs as JSON or CSV; and draws
// a run over time.
package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// Formats are what [Write] knows.
func Formats() []string { return []string{"table", "json", "csv", "md"} }

// Write writes rows in a format of [Formats]. Rows of a scenario that stand together become one block of a table or of Markdown;
// titles say, by scenario, what stands above it, and may be nil. The same rows are the same bytes.
func Write(w io.Writer, format string, rows []suite.Row, titles map[string]string) error {
	switch format {
	case "table":
		return writeBlocks(w, rows, titles, (*grid).text)
	case "md":
		return writeBlocks(w, rows, titles, (*grid).markdown)
	case "json":
		return writeJSON(w, rows)
	case "csv":
		return writeCSV(w, rows)
	}
	return fmt.Errorf("format %q: use %s", format, strings.Join(Formats(), ", "))
}

func writeJSON(w io.Writer, rows []suite.Row) error {
	all := make([]suite.Row, len(rows)) // never null
	for i, r := range rows {
		for _, m := range []*map[string]float64{&r.GoodputByPriority, &r.OracleByPriority, &r.Rejections} {
			if *m == nil {
				*m = map[string]float64{}
			}
		}
		all[i] = r
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(all)
}

// writeCSV makes a column of each priority and each reason that any row has; what a row has not is empty.
func writeCSV(w io.Writer, rows []suite.Row) error {
	var goodput, oracle, rejections []map[string]float64
	for _, r := range rows {
		goodput, oracle = append(goodput, r.GoodputByPriority), append(oracle, r.OracleByPriority)
		rejections = append(rejections, r.Rejections)
	}
	priorities := descending(union(append(goodput, oracle...)))
	reasons := union(rejections)
	type column struct {
		name string
		cell func(*suite.Row) string
	}
	var columns []column
	add := func(name string, cell func(*suite.Row) string) { columns = append(columns, column{name, cell}) }
	float := func(name string, f func(*suite.Row) float64) {
		add(name, func(r *suite.Row) string { return number(f(r)) })
	}
	each := func(prefix string, keys []string, m func(*suite.Row) map[string]float64) {
		for _, k := range keys {
			add(prefix+k, func(r *suite.Row) string {
				if v, ok := m(r)[k]; ok {
					return number(v)
				}
				return ""
			})
		}
	}
	maybe := func(name string, f func(*suite.Row) *float64) {
		add(name, func(r *suite.Row) string {
			if v := f(r); v != nil {
				return number(*v)
			}
			return ""
		})
	}
	add("scenario", func(r *suite.Row) string { return r.Scenario })
	add("policy", func(r *suite.Row) string { return r.Policy })
	add("instances", func(r *suite.Row) string { return strconv.Itoa(max(1, r.Instances)) })
	add("share", func(r *suite.Row) string { return r.Share })
	add("seeds", func(r *suite.Row) string { return strconv.Itoa(r.Seeds) })
	float("offered", func(r *suite.Row) float64 { return r.Offered })
	float("goodput", func(r *suite.Row) float64 { return r.Goodput })
	float("goodput_sd", func(r *suite.Row) float64 { return r.GoodputSD })
	each("goodput_", priorities, func(r *suite.Row) map[string]float64 { return r.GoodputByPriority })
	float("oracle", func(r *suite.Row) float64 { return r.Oracle })
	each("oracle_", priorities, func(r *suite.Row) map[string]float64 { return r.OracleByPriority })
	float("efficiency", func(r *suite.Row) float64 { return r.Efficiency })
	float("efficiency_worst", func(r *suite.Row) float64 { return r.EfficiencyWorst })
	float("amplification", func(r *suite.Row) float64 { return r.Amplification })
	float("amplification_in_fault", func(r *suite.Row) float64 { return r.AmplificationInFault })
	maybe("ttr_s", func(r *suite.Row) *float64 { return r.TTR })
	add("never_recovered", func(r *suite.Row) string { return strconv.Itoa(r.NeverRecovered) })
	maybe("ttd_s", func(r *suite.Row) *float64 { return r.TTD })
	float("wasted_server_s", func(r *suite.Row) float64 { return r.WastedServerS })
	float("p99_served_ms", func(r *suite.Row) float64 { return r.P99ServedMS })
	float("false_rejections", func(r *suite.Row) float64 { return r.FalseRejections })
	float("inversions", func(r *suite.Row) float64 { return r.Inversions })
	float("overshoot", func(r *suite.Row) float64 { return r.Overshoot })
	float("transitions", func(r *suite.Row) float64 { return r.Transitions })
	float("transitions_per_minute", func(r *suite.Row) float64 { return r.TransitionsPerMinute })
	float("admitted_cv", func(r *suite.Row) float64 { return r.AdmittedCV })
	each("rejections_", reasons, func(r *suite.Row) map[string]float64 { return r.Rejections })

	out := csv.NewWriter(w)
	line := make([]string, len(columns))
	for i, c := range columns {
		line[i] = c.name
	}
	if err := out.Write(line); err != nil {
		return err
	}
	for i := range rows {
		for j, c := range columns {
			line[j] = c.cell(&rows[i])
		}
		if err := out.Write(line); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func number(f float64) string { return strconv.FormatFloat(f, 'g', 10, 64) }

// union is the keys of all maps, sorted.
func union(all []map[string]float64) []string {
	seen := make(map[string]bool)
	for _, m := range all {
		for k := range m {
			seen[k] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// descending sorts priorities from the highest down.
func descending(priorities []string) []string {
	slices.SortFunc(priorities, func(a, b string) int {
		x, errX := strconv.Atoi(a)
		y, errY := strconv.Atoi(b)
		if errX != nil || errY != nil {
			return strings.Compare(a, b)
		}
		return y - x
	})
	return priorities
}
