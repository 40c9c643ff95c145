package main

import (
	"errors"
	"fmt"
	"math"
	"os"
)

// A goal is what the law was to reach, and what it did.
type goal struct {
	what, got string
	verdict   string
}

// goals of the control law. Chapters that were not measured have none.
func goals(s *study) ([]goal, error) {
	var all []goal
	add := func(ok bool, what, got string, args ...any) {
		verdict := "reached"
		if !ok {
			verdict = "**missed**"
		}
		all = append(all, goal{what, fmt.Sprintf(got, args...), verdict})
	}
	d, err := load[suiteData](s, "suite")
	if err != nil {
		return nil, err
	}
	row := func(name string) figures {
		f, _ := find(d.Rows, name, product)
		return f
	}
	never := 0
	for _, name := range core {
		never += row(name).Never
	}
	mean, worst, where := meanEfficiency(d.Rows, product, core)
	add(worst >= 0.99 && never == 0, "S1 to S8: efficiency ≥ 0.99 each, every seed recovers", "mean %s, worst %s (%s), %d never", plain(mean, 4), plain(worst, 4), where, never)
	quiet := max(row("S9").False, row("two-a-second").False)
	add(quiet == 0, "S9 and 2 calls/s: no false rejection", "%s %%", percent(quiet, 3))
	add(row("S10").Eff >= 0.99, "S10: efficiency ≥ 0.99", "%s", plain(row("S10").Eff, 4))
	add(row("S11").Eff >= 0.98 && row("S11").Over <= 1.1, "S11: efficiency ≥ 0.98, overshoot ≤ 1.1", "%s, %s", plain(row("S11").Eff, 4), plain(row("S11").Over, 2))
	add(row("S12").InFault <= 0.1 && row("S12-unmarked").InFault <= 4, "S12: attempts a call at the bottom in the outage ≤ 0.1 with the retry mark, ≤ 4 without", "%s, %s",
		plain(row("S12").InFault, 3), plain(row("S12-unmarked").InFault, 3))
	nine, seven := math.Inf(1), math.Inf(1)
	for _, name := range []string{"S2", "S3", "S8"} {
		nine, seven = min(nine, row(name).By[0]), min(seven, row(name).By[1])
	}
	add(nine >= 0.999 && seven >= 0.99, "S2, S3, S8: priority 9 ≥ 99.9 %, priority 7 ≥ 99 %", "%s %%, %s %%", percent(nine, 2), percent(seven, 2))
	busy, slow := max(row("S1").InFault, row("S5").InFault), max(row("S1-50").InFault, row("S5-50").InFault)
	add(busy <= 0.02 && slow <= 0.05, "full outages: attempts a call ≤ 0.02 at 417/s, ≤ 0.05 at 50/s", "%s, %s", plain(busy, 4), plain(slow, 4))
	late, refused, turns := 0.0, 0.0, 0.0
	for _, f := range d.Rows {
		if f.Policy != product {
			continue
		}
		if f.Scenario == "S3-90" { // where the law is known to be weak: docs/law.md
			continue
		}
		if f.TTR == nil {
			late = math.Inf(1)
		} else {
			late = max(late, *f.TTR)
		}
		refused = max(refused, f.False)
		if f.Scenario != "S7" && f.Scenario != "S4-90" {
			turns = max(turns, f.Turns)
		}
	}
	add(late <= 1 && refused <= 0.001 && turns <= 6, "everywhere but in S3-90: back within 1 s, false rejections ≤ 0.1 %, ≤ 6 circuit changes a minute outside S7 and f ≥ 0.85", "at most %s s, %s %%, %s",
		plain(late, 1), percent(refused, 3), plain(turns, 1))
	lost, err := studyLosses(s)
	if err != nil {
		return nil, err
	}
	add(len(lost) == 0, "within 0.2 points of the best other policy and library, or above; else the reason is named", "not in %d of %d scenarios", len(lost), len(scenariosOf(d.Rows)))
	if len(lost) > 0 {
		all[len(all)-1].verdict = "[reasons](#losses)"
	}
	sw, err := load[sweepData](s, "sweep")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if x, ok := summaryOf(sw, product); ok {
		add(x.Median >= 0.985 && x.Mean >= 0.965 && x.Percentile5 >= 0.87 && x.Worst >= 0.6 && x.Before <= 0.008,
			"random systems: median ≥ 0.985, mean ≥ 0.965, 5th percentile ≥ 0.87, worst ≥ 0.6, refused before ≤ 0.8 %", "%s, %s, %s, %s, %s %%",
			plain(x.Median, 3), plain(x.Mean, 3), plain(x.Percentile5, 3), plain(x.Worst, 3), percent(x.Before, 2))
	}
	fl, err := load[fleetData](s, "fleet")
	if errors.Is(err, os.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	below, door, over := 0, math.Inf(1), 0.0
	for _, n := range fl.sizes() {
		own, _ := fl.at(n, product, "none")
		for _, other := range []string{"hystrix", "token-bucket", "none"} {
			if r, ok := fl.at(n, other, "none"); ok && r.Mean > own.Mean {
				below++
			}
		}
		for _, share := range []string{"none", "250ms", "door"} {
			if r, ok := fl.at(n, product, share); ok {
				over = max(over, r.Over)
				if share == "door" {
					door = min(door, r.Mean)
				}
			}
		}
	}
	add(below == 0, "fleets of every size, in the mean over S1, S2, S3, S5, S6 and S8: not below no retry, Hystrix and token bucket", "below in %d; [others](fleets.md#what-is-lost)", below)
	add(door >= 0.98, "a guard at the target's door: ≥ 0.98 at every size", "%s", plain(door, 3))
	if r, ok := fl.at(64, product, "250ms"); ok {
		add(r.Mean >= 0.95, "64 guards that share counts after 250 ms: ≥ 0.95", "%s", plain(r.Mean, 3))
	}
	add(over <= 1.1, "no herd when a fleet recovers: overshoot ≤ 1.1", "%s", plain(over, 2))
	return all, nil
}

func introduction(p *page, s *study) error {
	p.head(1, "Results")
	p.para("What the laboratory found: the product's own engine in virtual time, beside what people use instead, on the same load, target and faults. Everything here is written by one command, " +
		"and the command of every number stands below it. Numbers do not depend on the machine: the same code gives the same bytes, but for the [real libraries](#real-libraries), which have randomness of their own.")
	p.command("go generate ./lab/results", "go run ./lab/results --check     # is this page what the code does?")
	p.para("*Goodput*: calls answered correctly within their deadline ÷ offered. *Efficiency*: goodput ÷ that of an oracle. *Attempts*: that reached the target, for each call offered. *TTR*: from the fault's end to the first " +
		"3 s with ≥ 95 %% success. *TTD*: from the start of a full outage until attempts fall below a tenth of the load. *False rejections*: calls refused while the target is healthy. *Overshoot*: peak of attempts a second after recovery ÷ capacity. " +
		"Scenarios and policies: `go run ./cmd/cortex sim --list`.")
	if err := summary(p, s); err != nil {
		return err
	}
	all, err := goals(s)
	if err != nil {
		return err
	}
	p.head(2, "Goals")
	var rows [][]string
	for _, g := range all {
		rows = append(rows, []string{g.what, g.got, g.verdict})
	}
	p.list([]string{"the adaptive profile should reach", "it reaches", ""}, rows)
	return nil
}

// summary is what somebody who reads nothing else should know.
func summary(p *page, s *study) error {
	d, err := load[suiteData](s, "suite")
	if err != nil {
		return err
	}
	p.head(2, "In short")
	best := func(value func(policy string) float64) (string, float64) {
		name, most := "", math.Inf(-1)
		for _, policy := range policiesOf(d.Rows) {
			if v := value(policy); policy != product && policy != "cortex-article" && v > most {
				name, most = policy, v
			}
		}
		return name, most
	}
	mean := func(policy string) float64 { m, _, _ := meanEfficiency(d.Rows, policy, core); return m }
	name, most := best(mean)
	text := fmt.Sprintf("- Over S1 to S8 the adaptive profile comes to %s of what an oracle could answer; the best alternative, %s, to %s.\n", plain(mean(product), 3), name, plain(most, 3))
	if sw, err := load[sweepData](s, "sweep"); err == nil {
		of := func(policy string) float64 {
			if x, ok := summaryOf(sw, policy); ok {
				return x.Mean
			}
			return math.Inf(-1)
		}
		name, most := best(of)
		x, _ := summaryOf(sw, product)
		text += fmt.Sprintf("- On %d random systems to %s in the mean and %s in the worst; the best alternative, %s, to %s.\n", sw.Draws, plain(x.Mean, 3), plain(x.Worst, 3), name, plain(most, 3))
	}
	if m, err := load[mapData](s, "map"); err == nil {
		down := map[string]string{}
		for _, x := range m.Maps {
			down[x.Policy] = percent(m.region(x).share, 0) + " %"
		}
		text += fmt.Sprintf("- Of the map of loads and outages it stays down in %s, retries with jitter in %s.\n", down[product], down["exponential-jitter"])
	}
	lost, err := studyLosses(s)
	if err != nil {
		return err
	}
	text += fmt.Sprintf("- In %d of %d scenarios something else answers more calls, by more than 0.2 points: the [losses](#losses) say what, by how much, and why.\n", len(lost), len(scenariosOf(d.Rows)))
	p.WriteString("\n" + text)
	return nil
}
