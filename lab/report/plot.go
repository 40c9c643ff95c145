package report

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/plot"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

// PlotFile is the name of the picture of one run: file itself where it is the only one, otherwise with scenario and policy in it,
// such as run-S1-cortex-adaptive.svg.
func PlotFile(file, scenario, policy string, only bool) string {
	if only {
		return file
	}
	ext := filepath.Ext(file)
	return strings.TrimSuffix(file, ext) + "-" + scenario + "-" + policy + ext
}

// WritePlot draws a run into a file; the name's ending says whether as SVG or PNG.
func WritePlot(file string, t *suite.Timeline) error {
	return plot.WriteFile(file, Panels(t)...)
}

// Panels are a run over time, one below the other: goodput by priority, load, and for policies that have them the score with its
// five signals, and the circuit. Incidents are shaded.
func Panels(t *suite.Timeline) []plot.Panel {
	n := len(t.Samples)
	unit, x := axis(t)
	var bands []plot.Band
	for _, i := range t.Incidents {
		bands = append(bands, plot.Band{From: inUnit(i.From, unit), To: inUnit(i.To, unit)})
	}
	series := func(name string, f func(*suite.TimeSample) float64) plot.Series {
		s := plot.Series{Name: name, X: make([]float64, n), Y: make([]float64, n)}
		for i := range t.Samples {
			s.X[i], s.Y[i] = inUnit(t.Samples[i].At, unit), f(&t.Samples[i])
		}
		return s
	}
	chart := func(title, y string, yMin, yMax float64, s ...plot.Series) plot.Chart {
		return plot.Chart{Title: title, X: x, Y: y, Series: s, Bands: bands, YMin: yMin, YMax: yMax}
	}

	panels := []plot.Panel{
		chart(t.Scenario+", "+t.Policy+": goodput by priority", "% of calls", 0, 100, goodput(t, unit)...),
		chart("Load", "a second", 0, math.NaN(),
			series("calls offered", func(s *suite.TimeSample) float64 { return s.Offered }),
			series("attempts at the downstream", func(s *suite.TimeSample) float64 { return s.Attempts })),
	}
	score, circuit := false, false
	for _, s := range t.Samples {
		score = score || s.CPS != 0 || s.F != 0 || s.L != 0 || s.Q != 0 || s.B != 0 || s.C != 0
		circuit = circuit || s.Circuit != ""
	}
	if score {
		part := func(name string, f func(*suite.TimeSample) float64) plot.Series {
			s := series(name, f)
			s.Dashed = true
			return s
		}
		panels = append(panels, chart("Cascade pressure score and its signals", "0 to 1", 0, 1,
			series("CPS", func(s *suite.TimeSample) float64 { return s.CPS }),
			part("failure rate", func(s *suite.TimeSample) float64 { return s.F }),
			part("latency", func(s *suite.TimeSample) float64 { return s.L }),
			part("queue", func(s *suite.TimeSample) float64 { return s.Q }),
			part("budget burn", func(s *suite.TimeSample) float64 { return s.B }),
			part("circuit", func(s *suite.TimeSample) float64 { return s.C })))
	}
	if circuit {
		s := series("", func(s *suite.TimeSample) float64 {
			switch s.Circuit {
			case "closed":
				return 0
			case "half-open":
				return 1
			case "open":
				return 2
			}
			return math.NaN()
		})
		s.Step = true
		panels = append(panels, chart("Circuit", "0 closed, 1 half-open, 2 open", -0.2, 2.2, s))
	}
	return panels
}

// goodput is a line for each priority. Samples are put together until a line is not the noise of a few calls.
func goodput(t *suite.Timeline, unit time.Duration) []plot.Series {
	const (
		enough = 40 // calls of a priority
		least  = 24 // points of a line
	)
	all := make([]plot.Series, len(t.Priorities))
	for i, p := range t.Priorities {
		calls := 0.0
		for _, s := range t.Samples {
			if i < len(s.Calls) {
				calls += s.Calls[i]
			}
		}
		together := len(t.Samples)
		if calls > 0 {
			together = int(math.Ceil(enough * float64(len(t.Samples)) / calls))
		}
		together = max(1, min(together, len(t.Samples)/least))
		all[i].Name, all[i].Step = fmt.Sprintf("priority %d", p), true
		from, y := 0.0, 0.0
		for chunk := range slices.Chunk(t.Samples, together) {
			calls, good := 0.0, 0.0
			for _, s := range chunk {
				if i < len(s.Calls) && s.Calls[i] > 0 {
					calls += s.Calls[i]
					good += s.Calls[i] * s.Goodput[i]
				}
			}
			y = math.NaN() // no call, no share of them
			if calls > 0 {
				y = 100 * good / calls
			}
			all[i].X, all[i].Y = append(all[i].X, from), append(all[i].Y, y)
			from = inUnit(chunk[len(chunk)-1].At, unit)
		}
		all[i].X, all[i].Y = append(all[i].X, from), append(all[i].Y, y) // the last one holds to the end
	}
	return all
}

// axis is the unit of time that suits the run's length, and the label with it.
func axis(t *suite.Timeline) (unit time.Duration, label string) {
	length := time.Duration(0)
	if n := len(t.Samples); n > 0 {
		length = t.Samples[n-1].At
	}
	switch {
	case length > 5*time.Hour:
		return time.Hour, "time, h"
	case length > 15*time.Minute:
		return time.Minute, "time, min"
	}
	return time.Second, "time, s"
}

func inUnit(d, unit time.Duration) float64 { return float64(d) / float64(unit) }
