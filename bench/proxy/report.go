//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// The goals, as shares of another subject's requests a second.
const (
	floorBare  = 0.95
	floorCaddy = 1.0
	aimBare    = 1.5
	aimHAProxy = 0.5
)

// A measurement is one subject's part of one round.
type measurement struct {
	loadResult
	cpu    time.Duration // of all its processes
	memory int64         // bytes
}

func (m measurement) cpuMicros() float64 {
	return float64(m.cpu.Microseconds()) / float64(max(m.Requests, 1))
}

func (m measurement) busy() float64 { return float64(m.cpu.Microseconds()) / float64(m.Micros) }

// result is a whole run, as it is printed with --format json.
type result struct {
	Processors int       `json:"processors"`
	Rounds     int       `json:"rounds"`
	Duration   string    `json:"duration"`
	Method     string    `json:"method"`
	Subjects   []string  `json:"subjects"`
	Cells      []*cell   `json:"cells"`
	Open       *refusals `json:"circuit_open,omitempty"` // nil = cortex was not measured
}

// A cell is one number of connections and one size of body.
type cell struct {
	Connections int                 `json:"connections"`
	Bytes       int                 `json:"bytes"`
	Subjects    map[string]*figures `json:"subjects"`
	Reasons     map[string]int      `json:"cortex_reasons,omitempty"` // refusals and failed attempts of cortex, the second before the first round too

	measured map[string][]measurement
}

// figures are medians over the rounds.
type figures struct {
	PerSecond   float64 `json:"requests_per_second"`
	P50Micros   float64 `json:"p50_us"`
	P99Micros   float64 `json:"p99_us"`
	CPUMicros   float64 `json:"cpu_us_per_request"`
	Busy        float64 `json:"busy"` // share of a processor
	MemoryBytes float64 `json:"memory_bytes"`
	Bad         int     `json:"bad"` // answers of 400 and above, broken connections and timeouts, in all rounds

	CortexShare  float64   `json:"cortex_share,omitempty"` // cortex's requests a second over this subject's: median of the rounds' ratios
	CortexShares []float64 `json:"cortex_shares,omitempty"`
}

// refusals are those of cortex with its circuit open.
type refusals struct {
	Connections int     `json:"connections"`
	PerSecond   float64 `json:"refused_per_second"`
	P99Micros   float64 `json:"p99_us"`
	CPUMicros   float64 `json:"cpu_us_per_request"`
}

func (c *cell) summarize() {
	c.Subjects = map[string]*figures{}
	for name, all := range c.measured {
		f := &figures{
			PerSecond:   median(all, func(m measurement) float64 { return m.good() }),
			P50Micros:   median(all, func(m measurement) float64 { return float64(m.P50) }),
			P99Micros:   median(all, func(m measurement) float64 { return float64(m.P99) }),
			CPUMicros:   median(all, measurement.cpuMicros),
			Busy:        median(all, measurement.busy),
			MemoryBytes: median(all, func(m measurement) float64 { return float64(m.memory) }),
		}
		for _, m := range all {
			f.Bad += m.Status + m.Broken + m.Timeouts
		}
		if name != "cortex" {
			f.CortexShares = ratios(c.measured["cortex"], all)
		}
		if len(f.CortexShares) > 0 {
			f.CortexShare = median(f.CortexShares, itself)
		}
		c.Subjects[name] = f
	}
}

// share is what the gateway moves of another subject's requests a second, not a number where one of them was not measured.
func (c *cell) share(of string) float64 {
	if f := c.Subjects[of]; f != nil && len(f.CortexShares) > 0 {
		return f.CortexShare
	}
	return math.NaN()
}

func (c *cell) String() string { return fmt.Sprintf("%d × %s", c.Connections, bytesOf(c.Bytes)) }

// missed says where the gateway is below the floor by more than the tolerance.
func (r *result) missed(tolerance float64) (missed []string) {
	for _, c := range r.Cells {
		for _, g := range []struct {
			of    string
			floor float64
		}{{"bare", floorBare}, {"caddy", floorCaddy}} {
			switch s := c.share(g.of); {
			case s < g.floor*(1-tolerance):
				missed = append(missed, fmt.Sprintf("%s: %.3f of %s, not %.2f", c, s, g.of, g.floor))
			case math.IsNaN(s) && slices.Contains(r.Subjects, g.of):
				missed = append(missed, fmt.Sprintf("%s: no figure of %s", c, g.of))
			}
		}
		// Good answers only are counted, so a few that are not cannot make anything look fast; but they should not be there.
		if f := c.Subjects["cortex"]; f != nil {
			all := 0
			for _, m := range c.measured["cortex"] {
				all += m.Requests
			}
			if f.Bad > all/100 {
				missed = append(missed, fmt.Sprintf("%s: %d of %d answers of cortex were not good", c, f.Bad, all))
			}
		}
	}
	return missed
}

func (r *result) print(w io.Writer, format string) error {
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t := &table{w: w, md: format == "md"}
	fmt.Fprintf(w, "%s, %d processors, one of them for the proxy; medians of %d rounds of %s\n\n", r.Method, r.Processors, r.Rounds, r.Duration)
	t.row("connections × body", "proxy", "requests/s", "of bare", "p50", "p99", "CPU/request", "busy", "memory", "not good")
	for _, c := range r.Cells {
		for _, name := range r.Subjects {
			f := c.Subjects[name]
			ofBare := "–"
			if r := ratios(c.measured[name], c.measured["bare"]); len(r) > 0 {
				ofBare = fmt.Sprintf("%.2f", median(r, itself))
			}
			t.row(c.String(), name, fmt.Sprintf("%.0f", f.PerSecond), ofBare, micros(f.P50Micros), micros(f.P99Micros),
				fmt.Sprintf("%.1f µs", f.CPUMicros), fmt.Sprintf("%.2f", f.Busy), fmt.Sprintf("%.0f MiB", f.MemoryBytes/(1<<20)), fmt.Sprint(f.Bad))
		}
	}
	if err := t.end(); err != nil {
		return err
	}
	for _, c := range r.Cells {
		for _, reason := range slices.Sorted(maps.Keys(c.Reasons)) {
			fmt.Fprintf(w, "\n%s: cortex counts %d × %s", c, c.Reasons[reason], reason)
		}
	}
	if r.Open != nil {
		fmt.Fprintf(w, "\ncortex with its circuit open, %d connections: %.0f requests refused a second, p99 %s, %.1f µs of CPU each\n",
			r.Open.Connections, r.Open.PerSecond, micros(r.Open.P99Micros), r.Open.CPUMicros)
	}
	fmt.Fprintf(w, "\nThe gateway's requests a second as shares of the others': medians of the rounds' ratios\n\n")
	t = &table{w: w, md: format == "md"}
	t.row("connections × body", "of bare", "of bare+pool", "of caddy", "of nginx", "of haproxy", "floor", "aim")
	for _, c := range r.Cells {
		cells := []string{c.String()}
		for _, of := range []string{"bare", "bare+pool", "caddy", "nginx", "haproxy"} {
			if s := c.share(of); !math.IsNaN(s) {
				cells = append(cells, fmt.Sprintf("%.3f", s))
			} else {
				cells = append(cells, "–")
			}
		}
		t.row(append(cells, verdict(c.share("bare"), floorBare, c.share("caddy"), floorCaddy),
			verdict(c.share("bare"), aimBare, c.share("haproxy"), aimHAProxy))...)
	}
	if err := t.end(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nfloor: at least %.2f of bare and %.2f of caddy; aim: %.1f of bare and %.1f of haproxy\n", floorBare, floorCaddy, aimBare, aimHAProxy)
	return err
}

// verdict is about two goals, of which either may not have been measured.
func verdict(a, goalA, b, goalB float64) string {
	switch {
	case a < goalA, b < goalB:
		return "MISSED"
	case math.IsNaN(a), math.IsNaN(b):
		return "–"
	}
	return "met"
}

func itself(v float64) float64 { return v }

// ratios is what a moved of what b did, round by round. A round in which b had no answer at all, on a machine that had no time
// for it, says nothing.
func ratios(a, b []measurement) (r []float64) {
	for i := range min(len(a), len(b)) {
		if b[i].good() > 0 {
			r = append(r, a[i].good()/b[i].good())
		}
	}
	return r
}

func median[T any](all []T, of func(T) float64) float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = of(all[i])
	}
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// micros prints microseconds for people.
func micros(us float64) string {
	if us >= 1000 {
		return fmt.Sprintf("%.1f ms", us/1000)
	}
	return fmt.Sprintf("%.0f µs", us)
}

func bytesOf(n int) string {
	if n >= 1<<10 && n%(1<<10) == 0 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// A table is printed for a terminal or as Markdown.
type table struct {
	w     io.Writer
	md    bool
	lines [][]string
}

func (t *table) row(cells ...string) { t.lines = append(t.lines, cells) }

func (t *table) end() error {
	if t.md {
		for i, cells := range t.lines {
			fmt.Fprintf(t.w, "| %s |\n", strings.Join(cells, " | "))
			if i == 0 {
				fmt.Fprintf(t.w, "|%s\n", strings.Repeat("---|", len(cells)))
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	for _, cells := range t.lines {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}
