package main

import (
	"fmt"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/sweep"
)

type sweepData struct {
	Draws     int             `json:"draws"`
	Seed      int             `json:"seed"`
	Summaries []sweep.Summary `json:"summaries"`
	Strict    []sweep.Summary `json:"strict"`  // against the strict oracle
	Product   []float64       `json:"product"` // its efficiency by draw
	Behind    int             `json:"behind"`  // draws in which another policy is ahead by more than behindBy
	Most      behind          `json:"most"`    // the one in which it is ahead the most
}

// behind is a draw in which another policy is ahead.
type behind struct {
	Draw   string  `json:"draw"`
	Kind   string  `json:"kind"` // of the fault
	Policy string  `json:"policy"`
	Theirs float64 `json:"theirs"` // efficiency
	Ours   float64 `json:"ours"`
}

// behindBy is an efficiency that is no noise.
const behindBy = 0.02

func (s *study) sweep(policies []policy.Policy, draws int, strict bool) ([]sweep.Outcome, error) {
	return sweep.Run(s.ctx, sweep.Options{Seed: sweepSeed, Draws: draws, Policies: policies, Strict: strict})
}

// strictly are the policies that are also judged by the strict oracle.
var strictly = []string{"hystrix", "token-bucket", product}

// of the product by draw.
func efficiencies(all []sweep.Outcome) []float64 {
	var out []float64
	for _, o := range all {
		for _, x := range o.Scores {
			if x.Policy == product {
				out = append(out, x.Efficiency)
			}
		}
	}
	return out
}

func measureSweep(s *study) (any, error) {
	all, err := s.sweep(policy.All(), s.scale.sweep, false)
	if err != nil {
		return nil, err
	}
	var few []policy.Policy
	for _, name := range strictly {
		p, err := policy.Find(name)
		if err != nil {
			return nil, err
		}
		few = append(few, p)
	}
	strict, err := s.sweep(few, s.scale.sweep, true)
	if err != nil {
		return nil, err
	}
	d := sweepData{Draws: s.scale.sweep, Seed: sweepSeed, Summaries: sweep.Summarize(all), Strict: sweep.Summarize(strict), Product: efficiencies(all)}
	for i, o := range all {
		best := behind{Draw: o.Draw.Scenario.Name, Kind: o.Draw.Kind, Ours: d.Product[i]}
		for _, x := range o.Scores {
			if x.Policy != product && x.Efficiency > best.Theirs {
				best.Policy, best.Theirs = x.Policy, x.Efficiency
			}
		}
		if best.Theirs-best.Ours > behindBy {
			d.Behind++
		}
		if best.Theirs-best.Ours > d.Most.Theirs-d.Most.Ours {
			d.Most = best
		}
	}
	return d, nil
}

func writeSweep(p *page, s *study) error {
	d, err := load[sweepData](s, "sweep")
	if err != nil {
		return err
	}
	p.head(2, "Random systems")
	p.para("%d systems drawn at random, with a seed that nobody tuned on: load log-uniform from 5 to 3,000/s, ρ from 0.3 to 0.9, 2 to 200 workers, lognormal, exponential or "+
		"Pareto service, deadlines, timeouts, queues, 1 to 5 priorities, and every kind of fault. Efficiency is against a clairvoyant oracle that runs in the same simulator, "+
		"knows the target's true state and the faults, admits from the highest class down, and is the best of several settings on each draw. *Before*: calls refused before the fault. *Top*: goodput of the "+
		"highest class in overload.", d.Draws)
	var rows [][]string
	var kinds [][]string
	head := []string{""}
	for _, x := range d.Summaries {
		b := func(v string) string { return bold(v, x.Policy == product) }
		rows = append(rows, []string{b(x.Policy), b(plain(x.Mean, 3)), b(plain(x.Median, 3)), b(plain(x.Percentile5, 3)), b(plain(x.Worst, 3)), percent(x.Before, 2),
			percentOr(x.Top, 1), orDash(x.AmplificationHang, 3)})
		line := []string{b(x.Policy)}
		for _, k := range x.Kinds {
			if len(kinds) == 0 {
				head = append(head, fmt.Sprintf("%s (%d)", k.Kind, k.Draws))
			}
			line = append(line, b(plain(k.Mean, 3)+" / "+plain(k.Worst, 3)))
		}
		kinds = append(kinds, line)
	}
	p.table([]string{"", "mean", "median", "5th percentile", "worst", "before %", "top %", "attempts a call in full hangs"}, rows)
	if len(d.Strict) > 0 {
		p.para("A stricter oracle also ignores priorities, which keeps every worker busy, and holds calls back until there is room, which no guard can do that admits or refuses. Against it:")
		var strict [][]string
		for _, x := range d.Strict {
			b := func(v string) string { return bold(v, x.Policy == product) }
			strict = append(strict, []string{b(x.Policy), b(plain(x.Mean, 3)), b(plain(x.Median, 3)), b(plain(x.Percentile5, 3)), b(plain(x.Worst, 3))})
		}
		p.table([]string{"", "mean", "median", "5th percentile", "worst"}, strict)
	}
	p.para("By kind of fault, with the number of draws: mean / worst.")
	p.table(head, kinds)
	if x, ok := summaryOf(d, product); ok {
		p.para("The worst draw of the product is %s: `go run ./cmd/cortex sim --scenario %s --seed %s` shows it, with `--print` what it is.", x.WorstDraw, x.WorstDraw, index(x.WorstDraw))
	}
	if m := d.Most; m.Draw != "" {
		p.para("In %d of the %d draws another policy is ahead by more than %s of efficiency; the most in %s (%s), where %s comes to %s and the product to %s.", d.Behind, d.Draws, short(behindBy),
			m.Draw, m.Kind, m.Policy, plain(m.Theirs, 3), plain(m.Ours, 3))
	}
	p.command(fmt.Sprintf("go run ./cmd/cortex sim --sweep %d --seed %d --policy all", d.Draws, d.Seed),
		fmt.Sprintf("go run ./cmd/cortex sim --sweep %d --seed %d --policy %s --strict", d.Draws, d.Seed, strings.Join(strictly, ",")))
	return nil
}

func index(draw string) string {
	if d, ok := sweep.Find(draw); ok {
		return fmt.Sprint(d.Index)
	}
	return "0"
}

func summaryOf(d sweepData, policy string) (sweep.Summary, bool) {
	for _, x := range d.Summaries {
		if x.Policy == policy {
			return x, true
		}
	}
	return sweep.Summary{}, false
}

func percentOr(v *float64, decimals int) string {
	if v == nil {
		return "–"
	}
	return percent(*v, decimals)
}
