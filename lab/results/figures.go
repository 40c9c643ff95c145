package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// figures are what of a suite.Row the document says; shares are in [0,1].
type figures struct {
	Scenario string    `json:"scenario"`
	Policy   string    `json:"policy"`
	Seeds    int       `json:"seeds"`
	Goodput  float64   `json:"goodput"`
	SD       float64   `json:"sd"`
	By       []float64 `json:"by"` // priority, from the highest
	Eff      float64   `json:"efficiency"`
	Worst    float64   `json:"worst"` // efficiency of a seed
	Attempts float64   `json:"attempts"`
	InFault  float64   `json:"in_fault"`
	TTR      *float64  `json:"ttr"`
	Never    int       `json:"never"`
	TTD      *float64  `json:"ttd"`
	Wasted   float64   `json:"wasted"`
	P99      float64   `json:"p99"`
	False    float64   `json:"false"`
	Inverse  float64   `json:"inversions"`
	Over     float64   `json:"overshoot"`
	Turns    float64   `json:"turns"` // of the circuit, a minute
}

func figuresOf(r suite.Row, s *scenario.Scenario) figures {
	f := figures{Scenario: r.Scenario, Policy: r.Policy, Seeds: r.Seeds, Goodput: r.Goodput, SD: r.GoodputSD, Eff: r.Efficiency, Worst: r.EfficiencyWorst,
		Attempts: r.Amplification, InFault: r.AmplificationInFault, TTR: r.TTR, Never: r.NeverRecovered, TTD: r.TTD, Wasted: r.WastedServerS,
		P99: r.P99ServedMS, False: r.FalseRejections, Inverse: r.Inversions, Over: r.Overshoot, Turns: r.TransitionsPerMinute}
	for _, p := range s.Priorities {
		f.By = append(f.By, r.GoodputByPriority[fmt.Sprint(p.Priority)])
	}
	return f
}

func find(rows []figures, scenario, policy string) (figures, bool) {
	i := slices.IndexFunc(rows, func(f figures) bool { return f.Scenario == scenario && f.Policy == policy })
	if i < 0 {
		return figures{}, false
	}
	return rows[i], true
}

// names of what rows have, in their order.
func scenariosOf(rows []figures) []string {
	return distinct(rows, func(f figures) string { return f.Scenario })
}
func policiesOf(rows []figures) []string {
	return distinct(rows, func(f figures) string { return f.Policy })
}

func distinct(rows []figures, name func(figures) string) []string {
	var names []string
	for _, f := range rows {
		if n := name(f); !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return names
}

// goodput in percent; † never recovered in at least one seed.
func (f *figures) goodput(decimals int) string { return percent(f.Goodput, decimals) + f.dagger() }

func (f *figures) dagger() string {
	if f.Never > 0 {
		return " †"
	}
	return ""
}

// by priority in percent, with slashes between.
func (f *figures) by() string { return slashed(f.By) }

func slashed(by []float64) string {
	var parts []string
	for _, g := range by {
		parts = append(parts, percent(g, 1))
	}
	return strings.Join(parts, " / ")
}

func ttr(f *figures) string {
	if f.TTR == nil {
		return fmt.Sprintf("never (%d of %d)", f.Never, f.Seeds)
	}
	return plain(*f.TTR, 1)
}

func orDash(v *float64, decimals int) string {
	if v == nil {
		return "–"
	}
	return plain(*v, decimals)
}

// core are the scenarios that the control law's goals are set for.
var core = []string{"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"}

// meanEfficiency over scenarios, with the one that is worst.
func meanEfficiency(rows []figures, policy string, names []string) (mean, worst float64, where string) {
	worst = math.Inf(1)
	n := 0
	for _, s := range names {
		f, ok := find(rows, s, policy)
		if !ok {
			continue
		}
		n++
		mean += f.Eff
		if f.Eff < worst {
			worst, where = f.Eff, s
		}
	}
	if n == 0 {
		return math.NaN(), math.NaN(), ""
	}
	return mean / float64(n), worst, where
}

// goodputTable is scenarios down and policies across, the best in bold.
func goodputTable(p *page, rows []figures, names, policies []string, decimals int) error {
	head := append([]string{"", "oracle"}, policies...)
	var lines [][]string
	for _, name := range names {
		s, err := scenario.Find(name)
		if err != nil {
			return err
		}
		oracle, _ := s.Oracle()
		best := math.Inf(-1)
		for _, pol := range policies {
			if f, ok := find(rows, name, pol); ok {
				best = max(best, f.Goodput)
			}
		}
		line := []string{"**" + name + "** " + strings.TrimPrefix(s.Title, name+" "), percent(oracle, decimals)}
		for _, pol := range policies {
			f, ok := find(rows, name, pol)
			if !ok {
				line = append(line, "–")
				continue
			}
			line = append(line, bold(f.goodput(decimals), percent(f.Goodput, decimals) == percent(best, decimals)))
		}
		lines = append(lines, line)
	}
	p.table(head, lines)
	return nil
}
