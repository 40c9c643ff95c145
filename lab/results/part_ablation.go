package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
	"github.com/seed-a29ca62a/cortex/lab/suite"
	"github.com/seed-a29ca62a/cortex/lab/sweep"
	"github.com/seed-a29ca62a/cortex/limit"
)

// ingredients of the law, each to be switched off; a test holds the list against package limit.
var ingredients = []struct {
	off   limit.Ingredients
	name  string
	title string
}{
	{limit.AdaptiveLimit, "AdaptiveLimit", "the in-flight limit, and shedding with it"},
	{limit.HealthyFloor, "HealthyFloor", "the floor under the limit: the healthy number in flight"},
	{limit.FloorScale, "FloorScale", "the scale that shrinks a floor that proves too high"},
	{limit.Integral, "Integral", "the integral part of shedding"},
	{limit.ErrorOccupancy, "ErrorOccupancy", "fast errors are no queue"},
	{limit.BaselineFreeze, "BaselineFreeze", "the baseline does not learn in trouble"},
	{limit.WarmUp, "WarmUp", "the cold-start rule"},
	{limit.SlowStart, "SlowStart", "the ramp after a circuit closes"},
	{limit.Circuit, "Circuit", "the circuit"},
	{limit.EvidenceTrip, "EvidenceTrip", "the circuit opens on the score, too"},
	{limit.GenerationReset, "GenerationReset", "old evidence does not survive a transition"},
	{limit.ProbeLease, "ProbeLease", "a probe that hangs gives up its slot"},
	{limit.LoadPrice, "LoadPrice", "retries that are no load are cheap"},
	{limit.ShortWindows, "ShortWindows", "windows of 1 to 15 s beside the one of 60 s"},
}

type ablationRow struct {
	Name   string  `json:"name"`
	Mean   float64 `json:"mean"` // efficiency over S1 to S8
	Worst  float64 `json:"worst"`
	Where  string  `json:"where"`
	Never  int     `json:"never"`
	F60    float64 `json:"f60"`   // goodput of S4-60
	S390   float64 `json:"s3_90"` // efficiency of S3-90
	Moves  float64 `json:"moves"` // of the circuit in it, a minute
	Sweep  float64 `json:"sweep"`
	Fifth  float64 `json:"fifth"`
	Lowest float64 `json:"lowest"`
}

type ablationData struct {
	Seeds int           `json:"seeds"`
	Draws int           `json:"draws"`
	Rows  []ablationRow `json:"rows"`
}

const fullLaw = "full law"

// shows is a difference that is no noise.
const shows = 0.005

func without(off limit.Ingredients) sim.Maker {
	return policy.Engine(func(c *cortex.Config) { c.Limit.Off = off })
}

func measureAblation(s *study) (any, error) {
	policies := []policy.Policy{{Name: fullLaw, Make: without(0)}}
	for _, x := range ingredients {
		policies = append(policies, policy.Policy{Name: x.name, Make: without(x.off)})
	}
	d := ablationData{Seeds: s.scale.seeds, Draws: s.scale.ablation, Rows: make([]ablationRow, len(policies))}

	var scenarios []*scenario.Scenario
	for _, name := range append([]string{"S4-60", "S3-90"}, core...) {
		x, err := scenario.Find(name)
		if err != nil {
			return nil, err
		}
		scenarios = append(scenarios, x)
	}
	runs := make([]sim.Result, len(policies)*len(scenarios)*d.Seeds)
	err := s.each(len(runs), func(i int) error {
		w, err := sim.New(sim.Options{Scenario: scenarios[i/d.Seeds%len(scenarios)], Seed: firstSeed + uint64(i%d.Seeds), Guard: policies[i/d.Seeds/len(scenarios)].Make,
			Stop: func() bool { return s.ctx.Err() != nil }})
		if err == nil {
			runs[i] = w.Run()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, pol := range policies {
		row := ablationRow{Name: pol.Name, Worst: math.Inf(1)}
		for k, sc := range scenarios {
			from := (i*len(scenarios) + k) * d.Seeds
			r := suite.Summarize(sc, pol.Name, runs[from:from+d.Seeds])
			if sc.Name == "S4-60" {
				row.F60 = r.Goodput
				continue
			}
			if sc.Name == "S3-90" {
				row.S390, row.Moves = r.Efficiency, r.TransitionsPerMinute
				continue
			}
			row.Mean += r.Efficiency / float64(len(core))
			row.Never += r.NeverRecovered
			if r.Efficiency < row.Worst {
				row.Worst, row.Where = r.Efficiency, sc.Name
			}
		}
		d.Rows[i] = row
	}
	all, err := s.sweep(policies, d.Draws, false)
	if err != nil {
		return nil, err
	}
	for i, x := range sweep.Summarize(all) {
		d.Rows[i].Sweep, d.Rows[i].Fifth, d.Rows[i].Lowest = x.Mean, x.Percentile5, x.Worst
	}
	return d, nil
}

func writeAblation(p *page, s *study) error {
	d, err := load[ablationData](s, "ablation")
	if err != nil {
		return err
	}
	p.head(2, "Ablation")
	p.para("Each ingredient of the law switched off, all else on: efficiency over S1 to S8 (%d seeds; in brackets the scenario that is worst), goodput where 60 %% of attempts fail, "+
		"efficiency where nine tenths of a large target are gone, with the circuit's changes a minute, "+
		"and the first %d draws of the sweep above. What is within ±0.002 of the full law is noise.", d.Seeds, d.Draws)
	titles := map[string]string{}
	for _, x := range ingredients {
		titles[x.name] = x.title
	}
	base := d.Rows[0]
	var rows [][]string
	var idle []string
	for _, r := range d.Rows {
		name := "**full law**"
		if r.Name != fullLaw {
			title, ok := titles[r.Name]
			if !ok {
				return fmt.Errorf("%s is no ingredient any more: measure it again", r.Name)
			}
			name = "without `" + r.Name + "`: " + title
		}
		mark := ""
		if r.Never > 0 {
			mark = " †"
		}
		if least := min(r.Mean-base.Mean, r.Worst-base.Worst, r.F60-base.F60, r.S390-base.S390, r.Sweep-base.Sweep, r.Fifth-base.Fifth, r.Lowest-base.Lowest); r.Name != fullLaw && least >= -shows {
			idle = append(idle, "`"+r.Name+"`")
		}
		loss := func(v, of float64, text string) string { return bold(text, v < of-shows) }
		rows = append(rows, []string{name, loss(r.Mean, base.Mean, plain(r.Mean, 4)), loss(r.Worst, base.Worst, plain(r.Worst, 3)) + " (" + r.Where + ")" + mark,
			loss(r.F60, base.F60, percent(r.F60, 1)),
			loss(r.S390, base.S390, plain(r.S390, 3)) + " (" + plain(r.Moves, 1) + ")", loss(r.Sweep, base.Sweep, plain(r.Sweep, 3)), loss(r.Fifth, base.Fifth, plain(r.Fifth, 3)), loss(r.Lowest, base.Lowest, plain(r.Lowest, 3))})
	}
	p.table([]string{"", "S1–S8 mean", "worst", "S4-60 goodput %", "S3-90 (changes)", "sweep mean", "5th percentile", "worst"}, rows)
	p.para("In bold what falls by more than %s below the full law.", short(shows))
	if len(idle) > 0 {
		p.para("No column falls by that much without %s: in goodput these are not needed here, and the law would be smaller without them. They are kept for what the columns do not have, and "+
			"each is held by a test of its own (`ablation_test.go`, `limit/law_test.go`): results of older generations must not decide, a probe whose caller never returns must not hold the circuit, "+
			"and the score that everything else follows opens the circuit, too.", strings.Join(idle, ", "))
	}
	p.command("go run ./lab/results --only ablation")
	return nil
}
