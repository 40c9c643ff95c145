package plot

import (
	"fmt"
	"image/color"
	"math"
)

// shades is the number of colours of a heat map: cells of one colour are one path.
const shades = 48

// maxCells bounds a heat map: more are neither seen nor kept apart.
const maxCells = 40_000

// Cividis (Nuñez, Anderton and Renslow 2018), every 1/8th: even in brightness, the same for most kinds of colour vision.
var cividis = [...]color.NRGBA{
	{0x00, 0x22, 0x4E, 0xFF}, {0x1E, 0x3B, 0x6F, 0xFF}, {0x43, 0x4E, 0x6C, 0xFF}, {0x5F, 0x61, 0x6E, 0xFF}, {0x7D, 0x7C, 0x78, 0xFF},
	{0x9B, 0x91, 0x76, 0xFF}, {0xBC, 0xAF, 0x6F, 0xFF}, {0xDC, 0xCC, 0x5D, 0xFF}, {0xFE, 0xE8, 0x38, 0xFF},
}

func shade(i int) color.NRGBA {
	at := float64(i) / (shades - 1) * float64(len(cividis)-1)
	k := min(int(at), len(cividis)-2)
	mix := func(a, b uint8) uint8 { return uint8(math.Round(float64(a) + (at-float64(k))*(float64(b)-float64(a)))) }
	a, b := cividis[k], cividis[k+1]
	return color.NRGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 0xFF}
}

func (h HeatMap) frame() (*frame, error) {
	x, y := newAxis(h.LogX), newAxis(h.LogY)
	xEdges, err := edges(&x, h.Xs, "Xs")
	if err != nil {
		return nil, err
	}
	yEdges, err := edges(&y, h.Ys, "Ys")
	if err != nil {
		return nil, err
	}
	if len(h.Z) != len(h.Ys) {
		return nil, &InputError{Field: "Z", Value: fmt.Sprintf("%d rows", len(h.Z)), Want: fmt.Sprintf("one for each of Ys: %d", len(h.Ys))}
	}
	if len(h.Xs)*len(h.Ys) > maxCells {
		return nil, &InputError{Field: "Z", Value: fmt.Sprintf("%d cells", len(h.Xs)*len(h.Ys)), Want: fmt.Sprintf("at most %d", maxCells)}
	}
	scale, gaps := newAxis(false), false
	for i, row := range h.Z {
		if len(row) != len(h.Xs) {
			return nil, &InputError{Field: fmt.Sprintf("Z[%d]", i), Value: fmt.Sprintf("%d values", len(row)), Want: fmt.Sprintf("one for each of Xs: %d", len(h.Xs))}
		}
		for _, v := range row {
			scale.include(v)
			gaps = gaps || !scale.ok(v)
		}
	}
	scale.fit(false)
	if err := fix(&scale, h.Min, h.Max, "Min", "Max"); err != nil {
		return nil, err
	}
	x.fit(false)
	y.fit(false)
	f := &frame{title: h.Title, xLabel: h.X, yLabel: h.Y, x: x, y: y, height: 330, bar: &colourBar{h.Label, scale, gaps}}
	f.draw = func(p *pen, f *frame, _ int) {
		cells := make([][]rect, shades+1) // the last is for gaps
		for i, row := range h.Z {
			// Edges on whole pixels: no seams between the cells.
			bottom, top := math.Round(f.py(yEdges[i])), math.Round(f.py(yEdges[i+1]))
			for j := 0; j < len(row); {
				s, k := shadeOf(&scale, row[j]), j+1
				for k < len(row) && shadeOf(&scale, row[k]) == s {
					k++
				}
				cells[s] = append(cells[s], rect{math.Round(f.px(xEdges[j])), top, math.Round(f.px(xEdges[k])), bottom})
				j = k
			}
		}
		for s, rs := range cells {
			c := gapColour
			if s < shades {
				c = shade(s)
			}
			p.cells(c, rs)
		}
		f.grid(p)
	}
	return f, nil
}

func shadeOf(scale *axis, v float64) int {
	if !scale.ok(v) {
		return shades
	}
	return int(math.Round(max(0, min(1, scale.at(v))) * (shades - 1)))
}

// edges returns the edges between cells with the given centres and fits the axis to them.
func edges(a *axis, centres []float64, field string) ([]float64, error) {
	n := len(centres)
	if n == 0 {
		return nil, &InputError{Field: field, Value: "empty", Want: "at least one value"}
	}
	for i, v := range centres {
		if !a.ok(v) || i > 0 && !(v-centres[i-1] > 1e-12*math.Abs(v)) {
			want := "strictly ascending numbers"
			if a.log {
				want = "strictly ascending numbers above 0: the axis is logarithmic"
			}
			return nil, &InputError{Field: fmt.Sprintf("%s[%d]", field, i), Value: v, Want: want}
		}
	}
	to, from := func(v float64) float64 { return v }, func(v float64) float64 { return v }
	if a.log {
		to, from = math.Log, math.Exp
	}
	half := 0.5
	if n > 1 {
		half = (to(centres[1]) - to(centres[0])) / 2
	} else if !a.log {
		half = max(0.5, math.Abs(centres[0])*0.1)
	}
	out := []float64{from(to(centres[0]) - half)}
	for i := 1; i < n; i++ {
		out = append(out, from((to(centres[i-1])+to(centres[i]))/2))
		half = (to(centres[i]) - to(centres[i-1])) / 2
	}
	out = append(out, from(to(centres[n-1])+half))
	for _, v := range out {
		a.include(v)
	}
	return out, nil
}
