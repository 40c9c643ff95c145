package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// fleetScenarios are those in which a fleet must hold back together.
var fleetScenarios = []string{"S1", "S2", "S3", "S5", "S6", "S8"}

type fleetRow struct {
	N      int     `json:"n"`
	Policy string  `json:"policy"`
	Share  string  `json:"share"`
	Mean   float64 `json:"mean"` // efficiency
	Worst  float64 `json:"worst"`
	Where  string  `json:"where"`
	Over   float64 `json:"overshoot"` // the worst
	Never  int     `json:"never"`
	Seeds  int     `json:"seeds"`
}

type fleetData struct {
	Rows []fleetRow `json:"rows"`
}

// deployments that are compared: the product by what its guards know of each other, and the rest, who know nothing.
var deployments = []struct{ policy, share string }{
	{product, "none"}, {product, "250ms"}, {product, "door"}, {"hystrix", "none"}, {"token-bucket", "none"}, {"none", "none"},
}

func measureFleet(s *study) (any, error) {
	var d fleetData
	for _, n := range s.scale.fleets {
		for _, x := range deployments {
			if n == 1 && x.share == "250ms" {
				continue // nobody to tell
			}
			var all []*scenario.Scenario
			for _, name := range fleetScenarios {
				sc, err := scenario.Find(name)
				if err != nil {
					return nil, err
				}
				all = append(all, sc)
			}
			rows, err := suite.Run(s.ctx, suite.Options{Scenarios: all, Policies: []string{x.policy}, Seeds: s.scale.fleetSeeds, Seed: firstSeed, Instances: n, Share: x.share})
			if err != nil {
				return nil, err
			}
			r := fleetRow{N: n, Policy: x.policy, Share: x.share, Worst: math.Inf(1)}
			for _, f := range rows {
				r.Mean += f.Efficiency / float64(len(rows))
				if f.Efficiency < r.Worst {
					r.Worst, r.Where = f.Efficiency, f.Scenario
				}
				r.Over = max(r.Over, f.Overshoot)
				r.Never += f.NeverRecovered
				r.Seeds = f.Seeds
			}
			d.Rows = append(d.Rows, r)
		}
	}
	return d, nil
}

func (d *fleetData) at(n int, policy, share string) (fleetRow, bool) {
	for _, r := range d.Rows {
		if r.N == n && r.Policy == policy && r.Share == share {
			return r, true
		}
	}
	return fleetRow{}, false
}

func (d *fleetData) sizes() []int {
	var all []int
	for _, r := range d.Rows {
		if len(all) == 0 || all[len(all)-1] != r.N {
			all = append(all, r.N)
		}
	}
	return all
}

func writeFleet(p *page, s *study) error {
	d, err := load[fleetData](s, "fleet")
	if err != nil {
		return err
	}
	p.head(2, "Fleets")
	p.para("The load split at random over n guards before the same target: mean efficiency over %s, %d seeds, and in brackets the scenario that loses most. *none*: they know "+
		"nothing of each other. *250ms*: they share counts with that delay. *door*: one more guard at the target's own door, whose pressure reaches the clients in its answers.",
		strings.Join(fleetScenarios, ", "), d.Rows[0].Seeds)
	sizes := d.sizes()
	head := []string{""}
	for _, n := range sizes {
		head = append(head, fmt.Sprintf("n = %d", n))
	}
	var rows, over [][]string
	for _, x := range deployments {
		name := x.policy
		if x.policy == product {
			name += ", " + x.share
		}
		line, peak := []string{bold(name, x.policy == product)}, []string{bold(name, x.policy == product)}
		for _, n := range sizes {
			r, ok := d.at(n, x.policy, x.share)
			if !ok {
				line, peak = append(line, "–"), append(peak, "–")
				continue
			}
			mark := ""
			if r.Never > 0 {
				mark = " †"
			}
			line = append(line, plain(r.Mean, 3)+" ("+r.Where+" "+plain(r.Worst, 3)+")"+mark)
			peak = append(peak, plain(r.Over, 2))
		}
		rows, over = append(rows, line), append(over, peak)
	}
	p.table(head, rows)
	p.para("Overshoot, the peak of attempts a second after recovery ÷ capacity, the worst of the scenarios:")
	p.table(head, over)
	p.para("Which to choose: %s", d.advice())
	largest := sizes[len(sizes)-1]
	p.command(fmt.Sprintf("go run ./cmd/cortex sim --scenario %s --policy cortex-adaptive --seeds %d --instances %d --share none", strings.Join(fleetScenarios, ","), d.Rows[0].Seeds, largest),
		fmt.Sprintf("go run ./cmd/cortex sim --scenario %s --policy cortex-adaptive --seeds %d --instances %d --share door", strings.Join(fleetScenarios, ","), d.Rows[0].Seeds, largest))
	return nil
}

// enough is the efficiency from which on guards need not know of each other.
const enough = 0.98

// advice is what the numbers say of where to put guards.
func (d *fleetData) advice() string {
	alone, shared := 0, 0
	door := math.Inf(1)
	for _, n := range d.sizes() {
		if r, ok := d.at(n, product, "none"); ok && r.Mean >= enough {
			alone = n
		}
		if r, ok := d.at(n, product, "250ms"); ok && r.Mean >= 0.95 {
			shared = n
		}
		if r, ok := d.at(n, product, "door"); ok {
			door = min(door, r.Mean)
		}
	}
	text := fmt.Sprintf("up to %s before a target a guard in each client is enough (≥ %s). ", guards(alone), plain(enough, 2))
	if alone == 0 {
		text = fmt.Sprintf("a guard in each client alone does not reach %s at any size. ", plain(enough, 2))
	}
	if shared > alone {
		text += fmt.Sprintf("Shared counts carry that to %s at ≥ 0.95. ", guards(shared))
	}
	text += fmt.Sprintf("The guard at the target's own door sees all of the load and the true occupancy, abandoned work included: it comes to %s or more at every size here. ", plain(door, 3))
	if door >= enough {
		return text + "Where the target is yours, put it there; the guards in the clients then save the refused calls their way."
	}
	return text + "That is less than it should be, so prefer guards in the clients while they are enough."
}

func guards(n int) string {
	if n == 1 {
		return "one guard"
	}
	return fmt.Sprintf("%d guards", n)
}
