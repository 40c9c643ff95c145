package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/model"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

type mapData struct {
	Seeds   int         `json:"seeds"`
	Rho     []float64   `json:"rho"`
	Outages []float64   `json:"outages"` // seconds
	Maps    []policyMap `json:"maps"`
}

// A policyMap is the share of the runs that stay down, by outage and ρ.
type policyMap struct {
	Policy string      `json:"policy"`
	Down   [][]float64 `json:"down"`
}

const (
	mapCalm  = 20 * time.Second // before the outage
	mapAfter = 45 * time.Second // after it; the last mapLast of that are looked at
	mapLast  = 20 * time.Second
)

// mapped is the rig at ρ with an outage of so many seconds, in which an attempt that begins hangs to its end, but for 5 s at most.
func mapped(rho, outage float64) (*scenario.Scenario, error) {
	s := scenario.Rig()
	length := time.Duration(outage * float64(time.Second))
	s.Name = "map"
	s.Arrivals.Steps[0].Rate = rho * float64(s.Downstream.Workers) / s.Downstream.Service.Mean.Seconds()
	s.Faults = []scenario.Fault{{From: mapCalm, To: mapCalm + length, Kind: scenario.Hang, Latency: min(length, 5*time.Second)}}
	s.Duration = (mapCalm + length + mapAfter + time.Second - 1).Truncate(time.Second)
	return s, s.Validate()
}

func measureMap(s *study) (any, error) {
	d := mapData{Seeds: s.scale.mapSeeds}
	for i := 10; i <= 95; i += 5 * s.scale.mapEvery {
		d.Rho = append(d.Rho, float64(i)/100)
	}
	for i, x := range []float64{0.1, 0.15, 0.25, 0.4, 0.6, 1, 1.5, 2.5, 4, 6, 10, 15, 20, 30} {
		if i%s.scale.mapEvery == 0 {
			d.Outages = append(d.Outages, x)
		}
	}
	policies := policy.All()
	cells := len(d.Rho) * len(d.Outages)
	down := make([]bool, len(policies)*cells*d.Seeds)
	err := s.each(len(down), func(i int) error {
		cell := i / d.Seeds % cells
		sc, err := mapped(d.Rho[cell%len(d.Rho)], d.Outages[cell/len(d.Rho)])
		if err != nil {
			return err
		}
		g, err := model.GoodputAtEnd(sc, policies[i/d.Seeds/cells].Make, firstSeed+uint64(i%d.Seeds), mapLast, func() bool { return s.ctx.Err() != nil })
		down[i] = g < 0.5
		return err
	})
	if err != nil {
		return nil, err
	}
	for k, p := range policies {
		m := policyMap{Policy: p.Name}
		for o := range d.Outages {
			row := make([]float64, len(d.Rho))
			for r := range d.Rho {
				n := 0
				for seed := range d.Seeds {
					if down[(k*cells+o*len(d.Rho)+r)*d.Seeds+seed] {
						n++
					}
				}
				row[r] = float64(n) / float64(d.Seeds)
			}
			m.Down = append(m.Down, row)
		}
		d.Maps = append(d.Maps, m)
	}
	return d, os.WriteFile(s.file("map.svg"), d.multiples(), 0o644)
}

// region is what of a map is down.
type region struct {
	share    float64 // of the cells
	from     float64 // the lowest ρ, NaN = none
	shortest map[float64]float64
}

func (d *mapData) region(m policyMap, at ...float64) region {
	r := region{from: math.NaN(), shortest: map[float64]float64{}}
	for o, row := range m.Down {
		for i, v := range row {
			r.share += v / float64(len(d.Rho)*len(d.Outages))
			if v < 0.5 {
				continue
			}
			if math.IsNaN(r.from) || d.Rho[i] < r.from {
				r.from = d.Rho[i]
			}
			for _, rho := range at {
				if _, seen := r.shortest[rho]; d.Rho[i] == rho && !seen {
					r.shortest[rho] = d.Outages[o]
				}
			}
		}
	}
	return r
}

func writeMap(p *page, s *study) error {
	d, err := load[mapData](s, "map")
	if err != nil {
		return err
	}
	p.head(2, "The vulnerable region")
	p.para("Where a policy collapses and stays down: the rig at a utilisation ρ from %s to %s, everything hangs for %s to %s s, and 25 to 45 s after the end fewer than half of the calls are "+
		"answered. %d runs a cell.", plain(d.Rho[0], 2), plain(d.Rho[len(d.Rho)-1], 2), plain(d.Outages[0], 1), plain(d.Outages[len(d.Outages)-1], 0), d.Seeds)
	marks := []float64{0.3, 0.6, 0.9}
	head := []string{"", "of the map is down", "from ρ"}
	for _, m := range marks {
		head = append(head, "shortest outage at ρ = "+plain(m, 1))
	}
	var rows [][]string
	var never []string
	for _, m := range d.Maps {
		r := d.region(m, marks...)
		line := []string{bold(m.Policy, m.Policy == product), percent(r.share, 1) + " %", orNever(r.from, 2, "")}
		for _, x := range marks {
			v, ok := r.shortest[x]
			if !ok {
				v = math.NaN()
			}
			line = append(line, orNever(v, 2, " s"))
		}
		rows = append(rows, line)
		if r.share == 0 {
			never = append(never, m.Policy)
		}
	}
	p.table(head, rows)
	switch {
	case slices.Contains(never, product):
		p.para("`%s` has no vulnerable region here. Retries alone have one from about ρ = 1/(1+r) = 0.25 on, whatever the backoff and its jitter: an outage of about a second fills the queue, and four attempts a call keep it "+
			"full. What stays down at the right edge under policies that do not retry, or hardly, is no feedback but the queue: 2,000 places take 2,000/(μ−λ) seconds to drain, 57 s at ρ = 0.95.", product)
	default:
		p.para("**`%s` stays down in a part of the map**: see the table. Retries alone do from about ρ = 1/(1+r) = 0.25 on.", product)
	}
	if len(never) > 0 {
		p.para("No cell is down under: %s.", strings.Join(never, ", "))
	}
	p.command("go run ./lab/results --only map")
	p.picture("map.svg", "Heat maps: share of runs that stay down, by utilisation and length of the outage, for each policy")
	return nil
}

func orNever(v float64, decimals int, unit string) string {
	if math.IsNaN(v) {
		return "never"
	}
	return fmt.Sprintf("%s%s", plain(v, decimals), unit)
}
