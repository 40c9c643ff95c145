package model

import (
	"fmt"
	"math"
	"strings"

	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// FloorInput is what [Floor] depends on.
type FloorInput struct {
	CPS    float64 // pressure, 0 to 1, resolved to a basis point as the engine does
	Levels []int   // of priority, each 1 to 31
	Tiers  []int   // priorities that are in use, each 0 to 31
	Keep   int     // the tier that is claimed to survive, one of Tiers
}

// DefaultFloor is the claim's case: tiers 1, 2 and 4 of 10 levels, and of the 5 that a system with 4 tiers should have.
func DefaultFloor() FloorInput {
	return FloorInput{CPS: 0.72, Levels: []int{10, 5}, Tiers: []int{1, 2, 4}, Keep: 4}
}

// maxLevels is the engine's limit.
const maxLevels = 31

// floorOf is ⌊CPS × levels⌋ in whole basis points, as the engine takes it: floats give 0.7·10 = 6.999….
func floorOf(cps float64, levels int) int { return int(math.Round(cps*10_000)) * levels / 10_000 }

// delayFactor is by how much pressure stretches the delay, from the delay's own law.
func delayFactor(cps float64) float64 {
	c := backoff.Config{Law: backoff.Pressure, Base: backoff.DefaultPressureBase}
	_, calm := c.Bounds(backoff.Input{})
	_, pressed := c.Bounds(backoff.Input{CPS: cps})
	return float64(pressed) / float64(calm)
}

// Floor tells which priorities a pressure sheds, and how much longer it makes the retry delay.
func Floor(in FloorInput) (Report, error) {
	err := firstError(within("cps", in.CPS, 0, 1), countWithin("levels", len(in.Levels), 1, 20), countWithin("tiers", len(in.Tiers), 1, 20))
	kept := false
	for _, l := range in.Levels {
		err = firstError(err, intWithin("levels", l, 1, maxLevels))
	}
	for _, t := range in.Tiers {
		err = firstError(err, intWithin("tiers", t, 0, maxLevels))
		kept = kept || t == in.Keep
	}
	if err == nil && !kept {
		err = &InputError{"keep", in.Keep, "one of the tiers " + inputText(in.Tiers)}
	}
	if err != nil {
		return Report{}, err
	}
	names := strings.ReplaceAll(inputText(in.Tiers), ",", ", ")
	r := Report{
		Model: "floor",
		Claim: fmt.Sprintf("%d levels and tiers %s at a CPS of %s keep tier %d", in.Levels[0], names, short(in.CPS), in.Keep),
		Formula: []string{
			"floor = ⌊CPS × levels⌋: calls of a priority below it are shed",
			"delay: random(0, base × 2^attempt × (1 + 10·CPS))",
		},
		Inputs: []Input{{Name: "cps", Value: in.CPS}, {Name: "levels", Value: in.Levels}, {Name: "tiers", Value: in.Tiers}, {Name: "keep", Value: in.Keep}},
	}
	t := Table{Title: "What is shed at a CPS of " + short(in.CPS), Columns: []Column{{"levels", ""}, {"CPS × levels", ""}, {"floor", ""}, {"tiers shed", ""}, {"tiers kept", ""}}}
	good := map[int]bool{}
	for _, l := range in.Levels {
		f := floorOf(in.CPS, l)
		var shed, keep []string
		for _, tier := range in.Tiers {
			if tier < f {
				shed = append(shed, fmt.Sprint(tier))
			} else {
				keep = append(keep, fmt.Sprint(tier))
			}
		}
		good[l] = in.Keep >= f
		t.Rows = append(t.Rows, []any{l, in.CPS * float64(l), f, list(shed), list(keep)})
	}
	delays := Table{Title: "The retry delay", Columns: []Column{{"CPS", ""}, {"times as long", ""}, {"floor of " + fmt.Sprint(in.Levels[0]), ""}}}
	for _, cps := range with([]float64{0, 0.3, 0.6, 0.7, 0.8, 1}, in.CPS) {
		delays.Rows = append(delays.Rows, []any{cps, delayFactor(cps), floorOf(cps, in.Levels[0])})
	}
	r.Tables = []Table{t, delays}
	r.Panels = floorPanels(in)
	first := in.Levels[0]
	f := floorOf(in.CPS, first)
	if good[first] {
		r.Verdict, r.Because = Holds, fmt.Sprintf("the floor is ⌊%s⌋ = %d.", short(in.CPS*float64(first)), f)
		return r, nil
	}
	r.Verdict, r.Because = False, fmt.Sprintf("the floor is ⌊%s⌋ = %d: tier %d is shed.", short(in.CPS*float64(first)), f, in.Keep)
	for _, l := range in.Levels[1:] {
		if good[l] {
			r.Because += fmt.Sprintf(" With %d levels it is ⌊%s⌋ = %d and tier %d is kept: a system with N tiers has N+1 levels.", l, short(in.CPS*float64(l)), floorOf(in.CPS, l), in.Keep)
			break
		}
	}
	return r, nil
}

func list(s []string) string {
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

func floorPanels(in FloorInput) []plot.Panel {
	floors := plot.Chart{Title: "Priorities below the line are shed", X: "CPS", Y: "priority"}
	for _, l := range in.Levels {
		c := curve(fmt.Sprintf("floor of %d levels", l), 0, 1, 1000, func(cps float64) float64 { return float64(floorOf(cps, l)) })
		c.Step = true
		floors.Series = append(floors.Series, c)
	}
	for _, t := range in.Tiers {
		floors.Series = append(floors.Series, plot.Series{Name: fmt.Sprintf("tier %d", t), X: []float64{0, 1}, Y: []float64{float64(t), float64(t)}, Dashed: true})
	}
	floors.Bands = []plot.Band{{From: in.CPS, To: in.CPS, Label: "CPS " + short(in.CPS)}}
	return []plot.Panel{floors, plot.Chart{Title: "The retry delay under pressure", X: "CPS", Y: "times as long", YMin: 0, YMax: math.NaN(),
		Series: []plot.Series{curve("1 + 10·CPS", 0, 1, 100, delayFactor)}}}
}
