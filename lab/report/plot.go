package report

import (
	"fmt"
	"math"
	"path/filepath"
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

	var goodput []plot.Series
	for i, p := range t.Priorities {
		goodput = append(goodput, series(fmt.Sprintf("priority %d", p), func(s *suite.TimeSample) float64 {
			if s.Offered == 0 || i >= len(s.Goodput) {
				return math.NaN() // no call, no share of them
			}
			return 100 * s.Goodput[i]
		}))
	}
	panels := []plot.Panel{
		chart(t.Scenario+", "+t.Policy+": goodput by priority", "% of calls", 0, 100, goodput...),
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
			case "CLOSED":
				return 0
			case "HALF_OPEN":
				return 1
			case "OPEN":
				return 2
			}
			return math.NaN()
		})
		s.Step = true
		panels = append(panels, chart("Circuit", "0 closed, 1 half-open, 2 open", 0, 2, s))
	}
	return panels
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
