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

// reasons say why something else is ahead of the product, by scenario. The document cannot be written while a loss has no reason here or
// in habits, or a reason no loss.
var reasons = []reason{
	{"S5", "Retries in the dark: a call that fails in the last second of the outage waits with its backoff until the target is back. It takes four attempts a call through all of the outage, " +
		"where the goal is 0.02."},
	{"S7", "The target is back for 5 s at a time. Who never stops sending finds each return at once, and retries carry calls across the end of each gap; the circuit's probes find it after about a tenth of a " +
		"second, four times a run. The price of the others is one to four attempts a call while the target is down."},
	{"S10", "Those ahead send every refused call again, at its hint, until there is a place: twice the attempts at a target that has said no. Here the throttle is pressure: what does not fit is shed, lowest first, and the " +
		"highest two classes lose nothing."},
	{"S11", "A share of the calls offered, in a closed loop: who keeps callers waiting with retries lets them make fewer calls that fail. Of the answers that there are to have, hardly more are had."},
	{"S12", "A blackout of the last of three tiers: three circuits, one above the other, must find out that the tier below is back. No retry has nothing to find out, and sends a call's attempt through all of the outage."},
	{"S12-unmarked", "As S12; without the mark the tiers above do not know that the one below has tried."},
	{"S4-90", "Nine attempts of ten fail whatever the load, so that every attempt saved is goodput lost: those ahead make three and a half a call. A budget does not pay for that, and 90 % of errors is where the circuit may open."},
	{"S5-50", "As S5; and at 50 calls a second the probes, 1 % of the traffic, are up to a second apart."},
}

// habits say why a rival is ahead wherever it is, if nothing is said of the scenario.
var habits = []habit{
	{"failsafe-limiter", waits},
	{"hystrix-go", waits},
}

type (
	reason struct{ scenario, why string }
	habit  struct{ rival, why string }
)

const waits = "It retries its own refusals, as it does by default: a call comes again until there is a place, and so a backlog waits in the clients, of all priorities alike, " +
	"when the overload ends. Told to give up at a refusal (`-give-up`) it comes to what this product does in S2 and S8. Here what cannot be answered is refused at once, and the highest class loses nothing."

// reasonOf a loss: that of the scenario, or the habits of all who are ahead.
func reasonOf(l loss) string {
	for _, r := range reasons {
		if r.scenario == l.scenario {
			return r.why
		}
	}
	var all []string
	for _, x := range l.ahead {
		i := slices.IndexFunc(habits, func(h habit) bool { return h.rival == x.name })
		if i < 0 {
			return ""
		}
		if !slices.Contains(all, habits[i].why) {
			all = append(all, habits[i].why)
		}
	}
	return strings.Join(all, " ")
}

// needed tells whether a habit explains a loss that nothing else does.
func needed(h habit, all []loss) bool {
	return slices.ContainsFunc(all, func(l loss) bool {
		own := slices.ContainsFunc(reasons, func(r reason) bool { return r.scenario == l.scenario })
		return !own && slices.ContainsFunc(l.ahead, func(r rival) bool { return r.name == h.rival })
	})
}

// margin is how far ahead, in goodput, something else must be to be a loss.
const margin = 0.002

// A loss is a scenario in which something else is ahead.
type loss struct {
	scenario string
	ours     figures
	ahead    []rival // best first
}

type rival struct {
	name string
	figures
	beside float64 // goodput of the product in the same runs
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
				l.ours = own
			}
			for _, f := range list {
				if f.Scenario != name || f.Policy == product || f.Goodput-own.Goodput <= margin {
					continue
				}
				r := rival{f.Policy, f, own.Goodput}
				l.ahead = append(l.ahead, r)
			}
		}
		slices.SortStableFunc(l.ahead, func(a, b rival) int { return cmp.Compare(b.Goodput, a.Goodput) })
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

// explained fails unless every loss has a reason and every reason a loss; habits are those of libraries, if these were measured.
func explained(all []loss, libraries bool) error {
	var problems []error
	for _, l := range all {
		if reasonOf(l) == "" {
			problems = append(problems, fmt.Errorf("%s: %s %s, ahead: %s: why? Add it to reasons in lab/results/losses.go", l.scenario, product, percent(l.ours.Goodput, 2), strings.Join(l.rivals(), ", ")))
		}
	}
	for _, r := range reasons {
		if !slices.ContainsFunc(all, func(l loss) bool { return l.scenario == r.scenario }) {
			problems = append(problems, fmt.Errorf("%s: nothing is ahead any more: take its reason out of lab/results/losses.go", r.scenario))
		}
	}
	for _, h := range habits {
		if libraries && !needed(h, all) {
			problems = append(problems, fmt.Errorf("%s: is not ahead any more where nothing else explains it: take its habit out of lab/results/losses.go", h.rival))
		}
	}
	return errors.Join(problems...)
}

// rivals are those ahead with their figures.
func (l *loss) rivals() []string {
	var all []string
	for _, r := range l.ahead {
		text := fmt.Sprintf("%s %s", r.name, percent(r.Goodput, 1))
		if percent(r.beside, 1) != percent(l.ours.Goodput, 1) {
			text += fmt.Sprintf(" (against %s in the same runs)", percent(r.beside, 1))
		}
		text += fmt.Sprintf(", attempts in the fault %s", plain(r.InFault, 2))
		if len(r.By) > 1 {
			text += fmt.Sprintf(", highest priority %s", percent(r.By[0], 1))
		}
		all = append(all, text)
	}
	return all
}

func writeLosses(p *page, s *study) error {
	all, err := studyLosses(s)
	if err != nil {
		return err
	}
	if s.scale.seeds == full.seeds {
		_, err := os.Stat(s.file("peers.json"))
		if err := explained(all, err == nil); err != nil {
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
		own := fmt.Sprintf("%s, attempts in the fault %s", percent(l.ours.Goodput, 1), plain(l.ours.InFault, 2))
		if len(l.ours.By) > 1 {
			own += fmt.Sprintf(", highest priority %s", percent(l.ours.By[0], 1))
		}
		rows = append(rows, []string{"**" + l.scenario + "** " + sc.Title, own, strings.Join(l.rivals(), "<br>"), reasonOf(l)})
	}
	p.list([]string{"", product + ", goodput %", "ahead", "why"}, rows)
	return nil
}
