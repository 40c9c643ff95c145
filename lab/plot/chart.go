package plot

import (
	"fmt"
	"image/color"
	"math"
)

// The colours of Okabe and Ito (2008), without the yellow that vanishes on white, ordered by contrast with their neighbours.
var lineColours = [...]color.NRGBA{
	{0x00, 0x72, 0xB2, 0xFF}, // blue
	{0xD5, 0x5E, 0x00, 0xFF}, // vermillion
	{0x00, 0x9E, 0x73, 0xFF}, // bluish green
	{0xCC, 0x79, 0xA7, 0xFF}, // reddish purple
	{0xE6, 0x9F, 0x00, 0xFF}, // orange
	{0x56, 0xB4, 0xE9, 0xFF}, // sky blue
	{0x00, 0x00, 0x00, 0xFF}, // black
}

// Dashes: of Series.Dashed, then of the second, third and fourth round through the colours.
var dashes = [...][]float64{{7, 4}, {2, 3}, {10, 3, 2, 3}, {14, 4}}

// pointsPerPicture and pointsPerSeries bound the size of a picture: more points than pixels are not seen.
const (
	pointsPerPicture = 8000
	pointsPerSeries  = 1500
)

func styleOf(i int, of Series) stroke {
	s := stroke{colour: lineColours[i%len(lineColours)], width: 2, dots: of.Dots}
	if round := i / len(lineColours); round > 0 {
		s.dash = dashes[1+(round-1)%(len(dashes)-1)]
	} else if of.Dashed {
		s.dash = dashes[0]
	}
	return s
}

func (c Chart) frame() (*frame, error) {
	x, y := newAxis(c.LogX), newAxis(c.LogY)
	for i, s := range c.Series {
		if len(s.X) != len(s.Y) {
			return nil, &InputError{Field: fmt.Sprintf("Series[%d].Y", i), Value: fmt.Sprintf("%d values long", len(s.Y)), Want: fmt.Sprintf("as many as X has: %d", len(s.X))}
		}
		for j := range s.X {
			if x.ok(s.X[j]) && y.ok(s.Y[j]) {
				x.include(s.X[j])
				y.include(s.Y[j])
			}
		}
	}
	if x.min > x.max { // nothing but bands to show
		for _, b := range c.Bands {
			x.include(b.From)
			x.include(b.To)
		}
	}
	for i, b := range c.Bands {
		if !(b.From <= b.To) {
			return nil, &InputError{Field: fmt.Sprintf("Bands[%d]", i), Value: fmt.Sprintf("%g to %g", b.From, b.To), Want: "numbers, From ≤ To"}
		}
	}
	y.fit(true)
	if err := fix(&y, c.YMin, c.YMax, "YMin", "YMax"); err != nil {
		return nil, err
	}
	f := &frame{title: c.Title, xLabel: c.X, yLabel: c.Y, x: x, y: y, height: 235, shareX: true, series: len(c.Series)}
	for i, s := range c.Series {
		if s.Name != "" {
			f.legend = append(f.legend, key{s.Name, styleOf(i, s)})
		}
	}
	f.draw = c.draw
	f.place = c.place
	return f, nil
}

// place gives the labels of the bands a row above the area each, where they do not overlap, and says how many rows that takes.
func (c Chart) place(f *frame) (rows int) {
	var ends [3]float64 // how far to the right each row is taken
	for _, b := range c.Bands {
		if b.Label == "" || b.To < f.x.min || b.From > f.x.max {
			continue
		}
		width := textWidth(b.Label, bandSize)
		left := max(f.area.left, min(f.px(max(b.From, f.x.min)), f.area.right-width))
		for i := range ends {
			if left >= ends[i] {
				f.bands = append(f.bands, bandLabel{b.Label, left, i})
				ends[i] = left + width + 8
				rows = max(rows, i+1)
				break
			}
		}
	}
	return rows
}

// fix puts the ends of a scale where the user wants them. NaN, and both 0, leave it as it is.
func fix(a *axis, lo, hi float64, loName, hiName string) error {
	if lo == 0 && hi == 0 {
		return nil
	}
	for _, end := range [...]struct {
		name string
		v    float64
		to   *float64
	}{{loName, lo, &a.min}, {hiName, hi, &a.max}} {
		if math.IsNaN(end.v) {
			continue
		}
		if !a.ok(end.v) {
			want := "a number within ±1e300"
			if a.log {
				want = "above 0: the axis is logarithmic"
			}
			return &InputError{Field: end.name, Value: end.v, Want: want}
		}
		*end.to = end.v
	}
	if !(a.max-a.min > 1e-12*max(math.Abs(a.min), math.Abs(a.max))) {
		return &InputError{Field: hiName, Value: a.max, Want: fmt.Sprintf("more than %s, which is %g", loName, a.min)}
	}
	return nil
}

func (c Chart) draw(p *pen, f *frame, budget int) {
	for _, b := range c.Bands {
		if b.To < f.x.min || b.From > f.x.max {
			continue
		}
		l, r := f.px(max(b.From, f.x.min)), f.px(min(b.To, f.x.max))
		if r < l+1 { // an instant
			p.line(stroke{colour: bandText, width: 1, dash: dashes[0]}, []point{{l, f.area.top}, {l, f.area.bottom}}, everywhere)
			continue
		}
		p.fill(bandColour, rect{l, f.area.top, r, f.area.bottom})
	}
	f.grid(p)
	for _, b := range f.bands {
		p.text(b.label, b.left, f.area.top-5-float64(b.row)*bandRow, atLeft, bandSize, bandText)
	}
	for i, s := range c.Series {
		limit := budget
		if s.Step {
			limit /= 2 // a step is two points
		}
		st := styleOf(i, s)
		if s.Dots {
			limit /= 3 // a dot takes more to write than a point of a line
		}
		for _, run := range c.runs(f, s) {
			run = thin(run, limit)
			if s.Dots {
				p.dots(st.colour, run, f.area)
				continue
			}
			if s.Step {
				run = steps(run)
			}
			if len(run) == 1 {
				p.dots(st.colour, run, f.area)
				continue
			}
			p.line(st, run, f.area)
		}
	}
}

// runs returns the stretches of a series between its gaps, in picture units.
func (c Chart) runs(f *frame, s Series) [][]point {
	var out [][]point
	var run []point
	for i := range s.X {
		if f.x.ok(s.X[i]) && f.y.ok(s.Y[i]) {
			run = append(run, point{f.px(s.X[i]), f.py(s.Y[i])})
			continue
		}
		if len(run) > 0 {
			out = append(out, run)
			run = nil
		}
	}
	if len(run) > 0 {
		out = append(out, run)
	}
	return out
}

// thin keeps of every stretch of equally many points the first, the lowest, the highest and the last, in their order, so that
// no extreme is lost and at most limit points remain.
func thin(run []point, limit int) []point {
	limit = max(limit, 16)
	if len(run) <= limit {
		return run
	}
	buckets := limit / 4
	out := make([]point, 0, limit)
	for b := range buckets {
		from, to := b*len(run)/buckets, (b+1)*len(run)/buckets
		lo, hi := from, from
		for i := from; i < to; i++ {
			if run[i].y < run[lo].y {
				lo = i
			}
			if run[i].y > run[hi].y {
				hi = i
			}
		}
		last := -1
		for _, i := range [...]int{from, min(lo, hi), max(lo, hi), to - 1} {
			if i != last {
				out = append(out, run[i])
			}
			last = i
		}
	}
	return out
}

func steps(run []point) []point {
	out := make([]point, 0, 2*len(run))
	for i, p := range run {
		if i > 0 {
			out = append(out, point{p.x, run[i-1].y})
		}
		out = append(out, p)
	}
	return out
}
