package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// reasons say why something else is ahead of the product, by scenario. The document cannot be written while a loss has no reason here,
// or a reason no loss.
var reasons = map[string]string{}

// margin is how far ahead, in goodput, something else must be to be a loss.
const margin = 0.002

// A loss is a scenario in which something else is ahead.
type loss struct {
	scenario string
	ours     float64
	ahead    []rival // best first
}

type rival struct {
	name    string
	goodput float64
	attempts,
	in float64 // attempts a call; within the fault
}

// losses compares the product with the policies of the suite, and with the libraries by the runs beside them. Without peers that is of
// the suite alone.
func losses(rows []figures, peers []figures) []loss {
	var all []loss
	for _, name := range scenariosOf(rows) {
		l := loss{scenario: name}
		for i, list := range [][]figures{rows, peers} {
			own, ok := find(list, name, product)
			if !ok {
				continue
			}
			if i == 0 {
				l.ours = own.Goodput
			}
			for _, f := range list {
				if f.Scenario != name || f.Policy == product || f.Goodput-own.Goodput <= margin {
					continue
				}
				r := rival{f.Policy, f.Goodput, f.Attempts, f.InFault}
				if i == 1 {
					r.name += fmt.Sprintf(" (beside %s)", percent(own.Goodput, 1))
				}
				l.ahead = append(l.ahead, r)
			}
		}
		slices.SortStableFunc(l.ahead, func(a, b rival) int { return cmp.Compare(b.goodput, a.goodput) })
		if len(l.ahead) > 0 {
			all = append(all, l)
		}
	}
	return all
}

// studyLosses are those of what was measured.
func studyLosses(s *study) ([]loss, error) {
	d, err := load[suiteData](s, "suite")
	if err != nil {
		return nil, err
	}
	peers, err := load[peersData](s, "peers")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return losses(d.Rows, peers.Rows), nil
}

// explained fails unless losses and reasons are of the same scenarios.
func explained(all []loss) error {
	var problems []error
	for _, l := range all {
		if reasons[l.scenario] == "" {
			var ahead []string
			for _, r := range l.ahead {
				ahead = append(ahead, r.name+" "+percent(r.goodput, 2))
			}
			problems = append(problems, fmt.Errorf("%s: %s %s, ahead: %s: why? Add it to reasons in lab/results/losses.go", l.scenario, product, percent(l.ours, 2), strings.Join(ahead, ", ")))
		}
	}
	for _, s := range everyScenario() {
		if reasons[s.Name] != "" && !slices.ContainsFunc(all, func(l loss) bool { return l.scenario == s.Name }) {
			problems = append(problems, fmt.Errorf("%s: nothing is ahead any more: take its reason out of lab/results/losses.go", s.Name))
		}
	}
	return errors.Join(problems...)
}

func writeLosses(p *page, s *study) error {
	all, err := studyLosses(s)
	if err != nil {
		return err
	}
	if s.scale.seeds == full.seeds {
		if err := explained(all); err != nil {
			return err
		}
	}
	p.head(2, "Losses")
	if len(all) == 0 {
		p.para("No policy and no library is more than 0.2 points of goodput above `%s` in any scenario.", product)
		return nil
	}
	p.para("Every scenario in which a policy or a library is more than 0.2 points of goodput above `%s`, and why. The generator finds them, and fails while one has no reason.", product)
	var rows [][]string
	for _, l := range all {
		sc, err := scenario.Find(l.scenario)
		if err != nil {
			return err
		}
		var ahead []string
		for _, r := range l.ahead {
			ahead = append(ahead, fmt.Sprintf("%s %s (%s attempts a call in the fault)", r.name, percent(r.goodput, 1), plain(r.in, 2)))
		}
		rows = append(rows, []string{"**" + l.scenario + "** " + sc.Title, percent(l.ours, 1), strings.Join(ahead, "<br>"), reasons[l.scenario]})
	}
	p.list([]string{"", "goodput %", "ahead", "why"}, rows)
	return nil
}
