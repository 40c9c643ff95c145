// Package plot draws the laboratory's charts as SVG or PNG: lines over shaded faults, and heat maps, stacked as panels of
// one width whose axes line up.
//
//	err := plot.WriteFile("run.svg",
//		plot.Chart{Title: "Goodput", X: "time, s", Y: "calls/s", Series: series, Bands: []plot.Band{{From: 20, To: 60, Label: "hang"}}},
//		plot.HeatMap{Title: "Collapse", X: "utilisation", Y: "outage, s", Xs: rho, Ys: outage, Z: share, Label: "share of runs"})
//
// The same panels give the same bytes. Colours are those of Okabe and Ito, which colour-blind people can tell apart, and
// cividis for heat maps; text in an SVG stays text. The drawing is done by gonum.org/v1/plot/vg, the layout here.
//
// What cannot be drawn (NaN, infinities, beyond ±1e300; on a logarithmic axis what lies outside 1e-150 to 1e150) is a gap in a line and a grey
// cell in a heat map. All functions may be called by any number of goroutines.
package plot

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Width of every picture, in SVG user units (CSS pixels). A PNG has two pixels for each.
const Width = 900

// A Series is one line of a Chart: Y over X, which must be equally long. Points are joined in the order given.
type Series struct {
	Name   string    // for the legend; empty is left out of it
	X, Y   []float64 // in the units of the axes
	Step   bool      // each value holds until the next X, instead of a straight line to it
	Dashed bool
	Dots   bool // points alone, without a line: samples, not a course
}

// A Band shades the range From ≤ x ≤ To of a Chart: a fault. It is cut at the axis. With From = To it is a line.
type Band struct {
	From, To float64
	Label    string
}

// A Chart is a panel of lines.
type Chart struct {
	Title, X, Y string // the panel's title and the axes' labels, with their units
	Series      []Series
	Bands       []Band
	LogX, LogY  bool
	// YMin and YMax fix the vertical axis. NaN is automatic, each for itself, and so are both 0. What lies outside is cut.
	YMin, YMax float64
}

// A HeatMap is a panel of coloured cells: Z[i][j] is the value at Ys[i], Xs[j]. Xs and Ys are the cells' centres, strictly
// ascending; the edges lie half-way between them.
type HeatMap struct {
	Title, X, Y string
	Xs, Ys      []float64
	Z           [][]float64
	// Min and Max are the ends of the colour scale; NaN is automatic, each for itself, and so are both 0. Values outside get
	// the colour of the nearer end.
	Min, Max   float64
	Label      string // of the colour scale, with its unit
	LogX, LogY bool
}

// A Panel is one picture of a stack: a Chart or a HeatMap.
type Panel interface {
	frame() (*frame, error)
}

// An InputError names what of a panel cannot be drawn and says what would be right.
type InputError struct {
	Panel int    // index of the panel, from 0
	Field string // such as "Series[2].X"
	Value any
	Want  string
}

func (e *InputError) Error() string {
	return fmt.Sprintf("plot: panel %d: %s is %v: want %s", e.Panel, e.Field, e.Value, e.Want)
}

// A FormatError is a picture format that is not known.
type FormatError struct {
	Format string // as it was given: a format or a file name
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("plot: %q is not a known picture format: use svg or png (a file ends in .svg or .png)", e.Format)
}

// MaxPanels is how many panels one picture can have.
const MaxPanels = 64

// Write draws the panels below each other, in the format "svg" or "png". It returns a *FormatError, an *InputError, or the
// error of w; nothing is written in the first two cases. Panels that are charts with the same X label and scale share the
// range of their horizontal axis.
func Write(w io.Writer, format string, panels ...Panel) error {
	picture, err := render(format, panels)
	if err != nil {
		return err
	}
	_, err = w.Write(picture)
	return err
}

// WriteFile draws the panels into the file, in the format that its name ends in. The file is replaced as a whole or, after an
// error, not at all. Errors are those of Write and of the file system.
func WriteFile(path string, panels ...Panel) (err error) {
	format, err := FormatOf(path)
	if err != nil {
		return err
	}
	picture, err := render(format, panels)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("plot: %w", err)
		}
	}()
	_, err = f.Write(picture)
	if errMode := f.Chmod(0o644); err == nil { // CreateTemp makes it private
		err = errMode
	}
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// FormatOf returns the format that a file's name asks for, or a *FormatError: for a check before the work begins.
func FormatOf(path string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".svg", ".png":
		return ext[1:], nil
	}
	return "", &FormatError{path}
}

func render(format string, panels []Panel) ([]byte, error) {
	if format != "svg" && format != "png" {
		return nil, &FormatError{format}
	}
	if len(panels) == 0 || len(panels) > MaxPanels {
		return nil, &InputError{Field: "number of panels", Value: len(panels), Want: fmt.Sprintf("1 to %d", MaxPanels)}
	}
	frames := make([]*frame, len(panels))
	for i, p := range panels {
		if p == nil {
			return nil, &InputError{Panel: i, Field: "panel", Value: "nil", Want: "a Chart or a HeatMap"}
		}
		f, err := p.frame()
		if err != nil {
			if in, ok := err.(*InputError); ok {
				in.Panel = i
			}
			return nil, err
		}
		frames[i] = f
	}
	var out bytes.Buffer
	if err := stack(frames).write(&out, format); err != nil {
		return nil, fmt.Errorf("plot: %w", err)
	}
	return out.Bytes(), nil
}
