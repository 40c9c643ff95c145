package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/plot"
	"github.com/seed-a29ca62a/cortex/lab/report"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

const product = "cortex-adaptive"

// article are the policies of the article's benchmark.
var article = []string{"exponential", "hystrix", "cortex-article", product}

type suiteData struct {
	Rows []figures `json:"rows"`
}

// suiteRows runs scenarios under policies.
func (s *study) suiteRows(scenarios []*scenario.Scenario, policies []string) ([]figures, error) {
	for _, x := range scenarios {
		x.Seeds = min(x.Seeds, s.scale.seeds)
	}
	o := suite.Options{Scenarios: scenarios, Policies: policies, Seed: firstSeed}
	rows, err := suite.Run(s.ctx, o)
	if err != nil {
		return nil, err
	}
	var all []figures
	for i, r := range rows {
		all = append(all, figuresOf(r, scenarios[i/len(policies)]))
	}
	return all, nil
}

func everyScenario() []*scenario.Scenario { return append(scenario.Builtin(), scenario.Extra()...) }

func measureSuite(s *study) (any, error) {
	rows, err := s.suiteRows(everyScenario(), suite.Policies())
	return suiteData{rows}, err
}

func measureArticle(s *study) (any, error) {
	for _, x := range articlePictures(s.ctx) {
		p, err := x.panels()
		if err != nil {
			return nil, err
		}
		if err := s.picture(x.file, p...); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// A drawing is a picture that a run of its own is made for.
type drawing struct {
	file   string
	panels func() ([]plot.Panel, error)
}

func articlePictures(ctx context.Context) []drawing {
	all := []drawing{
		{"article.svg", func() ([]plot.Panel, error) { return compared(ctx, "S1", "a hang of 5 s an attempt from 20 s to 60 s") }},
		{"storm.svg", func() ([]plot.Panel, error) { return compared(ctx, "S6", "ρ = 0.85 and a hang from 20 s to 25 s") }},
	}
	for _, policy := range article {
		all = append(all, drawing{"article-" + policy + ".svg", func() ([]plot.Panel, error) {
			t, err := watch(ctx, "S1", policy)
			if err != nil {
				return nil, err
			}
			return report.Panels(t), nil
		}})
	}
	return all
}

func watch(ctx context.Context, name, policy string) (*suite.Timeline, error) {
	s, err := scenario.Find(name)
	if err != nil {
		return nil, err
	}
	return suite.Watch(ctx, s, policy, suite.Options{Seed: firstSeed})
}

// compared draws the policies of the article in one scenario beside each other.
func compared(ctx context.Context, name, what string) ([]plot.Panel, error) {
	s, err := scenario.Find(name)
	if err != nil {
		return nil, err
	}
	goodput := plot.Chart{Title: name + ": calls answered in time, " + what, X: "time, s", Y: "% of calls", YMin: 0, YMax: 100}
	attempts := plot.Chart{Title: "Attempts at the downstream, for each call that is offered", X: "time, s", Y: "attempts a call"}
	for _, i := range s.Incidents() {
		b := plot.Band{From: i.From.Seconds(), To: i.To.Seconds()}
		goodput.Bands, attempts.Bands = append(goodput.Bands, b), append(attempts.Bands, b)
	}
	for _, policy := range article {
		t, err := watch(ctx, name, policy)
		if err != nil {
			return nil, err
		}
		g, a := plot.Series{Name: policy}, plot.Series{Name: policy}
		const group = 4 // samples: a second of the 120
		for i := 0; i+group <= len(t.Samples); i += group {
			var good, tried, offered float64
			for _, x := range t.Samples[i : i+group] {
				offered += x.Offered
				tried += x.Attempts
				for k, share := range x.Goodput {
					good += x.Offered * s.Priorities[k].Share * share
				}
			}
			at := t.Samples[i+group-1].At.Seconds()
			g.X, g.Y = append(g.X, at), append(g.Y, 100*min(1, good/offered))
			a.X, a.Y = append(a.X, at), append(a.Y, tried/offered)
		}
		goodput.Series, attempts.Series = append(goodput.Series, g), append(attempts.Series, a)
	}
	return []plot.Panel{goodput, attempts}, nil
}

func writeArticle(p *page, s *study) error {
	d, err := load[suiteData](s, "suite")
	if err != nil {
		return err
	}
	p.head(2, "The article's benchmark")
	p.para("50,000 calls in 120 s; from 20 s to 60 s every attempt hangs for 5 s. Baseline A retries 3 times with exponential backoff, baseline B does it behind an " +
		"isolated breaker. Of all calls the target can answer two thirds: it is down for a third of the time.")
	var rows [][]string
	for _, policy := range article {
		f, ok := find(d.Rows, "S1", policy)
		if !ok {
			return fmt.Errorf("no row of S1 under %s", policy)
		}
		name := map[string]string{"exponential": " (baseline A)", "hystrix": " (baseline B)"}[policy]
		rows = append(rows, []string{policy + name, bold(f.goodput(2), policy == product), "± " + percent(f.SD, 2), f.by(), plain(f.Attempts, 2), plain(f.InFault, 3), ttr(&f), plain(f.Wasted, 0)})
	}
	p.table([]string{"", "goodput %", "sd", "by priority 9 / 7 / 5 / 2", "attempts a call", "in the fault", "TTR s", "wasted server-s"}, rows)
	p.para("† never recovered in at least one seed: the queue is full of attempts whose clients have gone, and their retries keep it full.")
	p.command("go run ./cmd/cortex sim --scenario S1 --policy " + strings.Join(article, ","))
	p.picture("article.svg", "Goodput and attempts over time under the four policies")
	if f, _ := find(d.Rows, "S1", "cortex-article"); f.TTD != nil {
		p.para("The literal reading of the article loses to a plain breaker: its window of a minute takes %s s to see the outage, its circuit then stays open for half a minute at a time, and the failures that the "+
			"window still holds can open it once more.", plain(*f.TTD, 0))
	}
	p.para("What the adaptive profile does instead is in [law.md](law.md). One run of each in detail: [exponential](results/article-exponential.svg), " +
		"[hystrix](results/article-hystrix.svg), [cortex-article](results/article-cortex-article.svg), [cortex-adaptive](results/article-cortex-adaptive.svg).")
	p.command("go run ./cmd/cortex sim --scenario S1 --policy cortex-adaptive --plot s1.svg")
	p.picture("article-cortex-adaptive.svg", "S1 under cortex-adaptive: goodput by priority, load, score and circuit")
	return nil
}

func writeSuite(p *page, s *study) error {
	d, err := load[suiteData](s, "suite")
	if err != nil {
		return err
	}
	policies := policiesOf(d.Rows)
	builtin, extra := split(d.Rows)
	p.head(2, "The suite")
	p.para("Goodput in %% of the calls offered, mean of %d seeds (S9 and the trickles: what the scenario says). The oracle is what the target can answer at all; retries that carry calls across the "+
		"end of a fault can exceed it a little. Best of a row in bold, † never recovered in at least one seed.", d.Rows[0].Seeds)
	if err := goodputTable(p, d.Rows, builtin, policies, 1); err != nil {
		return err
	}
	var means [][]string
	for _, policy := range policies {
		mean, worst, where := meanEfficiency(d.Rows, policy, core)
		means = append(means, []string{policy, bold(plain(mean, 4), policy == product), plain(worst, 3) + " (" + where + ")"})
	}
	p.para("Efficiency, goodput ÷ oracle, over S1 to S8:")
	p.table([]string{"", "mean", "worst"}, means)
	p.command("go run ./cmd/cortex sim --scenario all --policy all --format md")
	p.para("The metastable case, S6: an outage of five seconds from which retries alone never come back.")
	p.picture("storm.svg", "S6 under the four policies")
	p.head(3, "cortex-adaptive in detail")
	if err := detail(p, d.Rows, builtin); err != nil {
		return err
	}
	p.head(3, "Variants")
	p.para("Harder failures, low rates, cold starts inside an incident, a slow onset: beside the suite, and looked at as little as possible while the law was tuned.")
	if err := goodputTable(p, d.Rows, extra, policies, 1); err != nil {
		return err
	}
	if err := detail(p, d.Rows, extra); err != nil {
		return err
	}
	p.command("go run ./cmd/cortex sim --scenario extras --policy all --format md")
	return nil
}

// split names those of the suite and the extras.
func split(rows []figures) (builtin, extra []string) {
	is := map[string]bool{}
	for _, s := range scenario.Builtin() {
		is[s.Name] = true
	}
	for _, name := range scenariosOf(rows) {
		if is[name] {
			builtin = append(builtin, name)
		} else {
			extra = append(extra, name)
		}
	}
	return builtin, extra
}

// detail is everything about the product in some scenarios.
func detail(p *page, rows []figures, names []string) error {
	var lines [][]string
	for _, name := range names {
		f, ok := find(rows, name, product)
		if !ok {
			return fmt.Errorf("no row of %s under %s", name, product)
		}
		s, err := scenario.Find(name)
		if err != nil {
			return err
		}
		_, by := s.Oracle()
		lines = append(lines, []string{"**" + name + "**", plain(f.Eff, 4), plain(f.Worst, 4), f.by() + " (" + slashed(by) + ")", plain(f.Attempts, 3) + " / " + plain(f.InFault, 4),
			ttr(&f), orDash(f.TTD, 1), percent(f.False, 3), plain(f.Turns, 1), plain(f.Over, 2), plain(f.P99, 0), plain(f.Wasted, 0)})
	}
	p.table([]string{"", "efficiency", "worst seed", "goodput % by priority 9 / 7 / 5 / 2 (oracle)", "attempts a call / in the fault", "TTR s", "TTD s", "false rejections %", "circuit changes a minute", "overshoot", "p99 ms", "wasted server-s"}, lines)
	return nil
}
