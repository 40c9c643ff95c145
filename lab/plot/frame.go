package plot

import (
	"image/color"
	"io"
)

// Sizes in picture units.
const (
	titleSize = 15
	labelSize = 13
	tickSize  = 12
	margin    = 14.0
	gapBelow  = 18.0
	barWidth  = 18.0
	bandSize  = 11
	bandRow   = 13.0
)

var (
	ink        = color.NRGBA{0x22, 0x22, 0x22, 0xFF}
	gridColour = color.NRGBA{0xE2, 0xE2, 0xE2, 0xFF}
	minorGrid  = color.NRGBA{0xF2, 0xF2, 0xF2, 0xFF}
	bandColour = color.NRGBA{0xEC, 0xE6, 0xDA, 0xFF}
	bandText   = color.NRGBA{0x6B, 0x5A, 0x38, 0xFF}
	gapColour  = color.NRGBA{0xDD, 0xDD, 0xDD, 0xFF}
)

// A key is an entry of the legend.
type key struct {
	name  string
	style stroke
}

type colourBar struct {
	label string
	scale axis
	gaps  bool // some cells have no value
}

// A frame is a panel ready to be laid out.
type frame struct {
	title, xLabel, yLabel string
	x, y                  axis
	height                float64 // of the area
	shareX                bool    // may share its horizontal range with others of the same label
	series                int
	legend                []key
	bar                   *colourBar
	draw                  func(p *pen, f *frame, budget int)
	place                 func(f *frame) (rows int) // of labels above the area; nil if there are none

	area   rect
	head   float64 // where the legend begins
	bands  []bandLabel
	xTicks []tick
	yTicks []tick
}

type bandLabel struct {
	label string
	left  float64
	row   int // from 0, upwards
}

func (f *frame) px(v float64) float64 { return f.area.left + f.x.at(v)*(f.area.right-f.area.left) }
func (f *frame) py(v float64) float64 { return f.area.bottom - f.y.at(v)*(f.area.bottom-f.area.top) }

// grid draws the lines behind the data. A heat map has them outside only: as ticks.
func (f *frame) grid(p *pen) {
	for _, minor := range [...]bool{true, false} {
		st, out := stroke{colour: gridColour, width: 1}, 5.0
		if minor {
			st, out = stroke{colour: minorGrid, width: 1}, 3.0
		}
		for _, t := range f.xTicks {
			if x := f.px(t.value); (t.label == "") == minor {
				if f.bar == nil {
					p.line(st, []point{{x, f.area.top}, {x, f.area.bottom}}, everywhere)
				}
				p.line(stroke{colour: ink, width: 1}, []point{{x, f.area.bottom}, {x, f.area.bottom + out}}, everywhere)
			}
		}
		for _, t := range f.yTicks {
			if y := f.py(t.value); (t.label == "") == minor {
				if f.bar == nil {
					p.line(st, []point{{f.area.left, y}, {f.area.right, y}}, everywhere)
				}
				p.line(stroke{colour: ink, width: 1}, []point{{f.area.left - out, y}, {f.area.left, y}}, everywhere)
			}
		}
	}
}

// A picture is a stack of frames, laid out.
type picture struct {
	frames []*frame
	height float64
	rows   [][][]key // of the legend, by frame
	budget int       // points of a series
	axisX  float64   // width of the tick labels left of the areas
}

func stack(frames []*frame) *picture {
	p := &picture{frames: frames}
	share(frames)
	left, right, series := 0.0, margin+14, 0
	for _, f := range frames {
		f.x.fit(false)
		if len(frames) == 1 {
			f.height *= 1.6
		}
		f.xTicks = f.x.ticks(9)
		f.yTicks = f.y.ticks(6)
		for _, t := range f.yTicks {
			left = max(left, textWidth(t.label, tickSize))
		}
		if f.bar != nil {
			wide := textWidth("no data", tickSize)
			for _, t := range f.bar.scale.ticks(6) {
				wide = max(wide, textWidth(t.label, tickSize))
			}
			right = max(right, margin+barWidth+18+wide+10+labelSize+margin/2)
		}
		series += f.series
	}
	p.axisX = left
	left += margin + labelSize + 20
	p.budget = min(pointsPerSeries, max(64, pointsPerPicture/max(series, 1)))
	y := margin
	for _, f := range frames {
		if f.title != "" {
			y += titleSize + 8
		}
		f.head = y
		rows := wrap(f.legend, Width-left-right)
		p.rows = append(p.rows, rows)
		y += float64(len(rows)) * 19
		y += 4
		f.area = rect{left: left, right: Width - right}
		if f.place != nil {
			if n := f.place(f); n > 0 {
				y += 3 + float64(n)*bandRow
			}
		}
		f.area.top, f.area.bottom = y, y+f.height
		y += f.height + 8 + tickSize
		if f.xLabel != "" {
			y += labelSize + 7
		}
		y += gapBelow
	}
	p.height = y - gapBelow + margin
	return p
}

// share gives frames with the same horizontal label and scale the same range: time is time.
func share(frames []*frame) {
	for i, f := range frames {
		if !f.shareX {
			continue
		}
		for _, g := range frames[i+1:] {
			if g.shareX && g.xLabel == f.xLabel && g.x.log == f.x.log {
				f.x.min, f.x.max = min(f.x.min, g.x.min), max(f.x.max, g.x.max)
			}
		}
		for _, g := range frames[i+1:] {
			if g.shareX && g.xLabel == f.xLabel && g.x.log == f.x.log {
				g.x.min, g.x.max = f.x.min, f.x.max
			}
		}
	}
}

const thumb = 26.0 // width of a line sample in the legend

func wrap(keys []key, width float64) [][]key {
	var rows [][]key
	x := width + 1
	for _, k := range keys {
		w := thumb + 6 + textWidth(k.name, tickSize) + 16
		if x+w > width {
			rows = append(rows, nil)
			x = 0
		}
		x += w
		rows[len(rows)-1] = append(rows[len(rows)-1], k)
	}
	return rows
}

func (p *picture) write(w io.Writer, format string) error {
	pen := newPen(format, Width, p.height)
	pen.fill(color.NRGBA{0xFF, 0xFF, 0xFF, 0xFF}, rect{0, 0, Width, p.height})
	for i, f := range p.frames {
		a := f.area
		f.draw(pen, f, p.budget)
		pen.line(stroke{colour: ink, width: 1}, []point{{a.left, a.top}, {a.left, a.bottom}, {a.right, a.bottom}}, everywhere)
		last := -1e9
		for _, t := range f.xTicks {
			x := f.px(t.value)
			if half := textWidth(t.label, tickSize) / 2; t.label != "" && x-half > last {
				pen.text(t.label, x, a.bottom+8+tickSize, atCentre, tickSize, ink)
				last = x + half + 6
			}
		}
		for _, t := range f.yTicks {
			pen.text(t.label, a.left-9, f.py(t.value)+tickSize*0.36, atRight, tickSize, ink)
		}
		pen.text(f.xLabel, (a.left+a.right)/2, a.bottom+8+tickSize+labelSize+6, atCentre, labelSize, ink)
		pen.upright(f.yLabel, a.left-p.axisX-20, (a.top+a.bottom)/2, labelSize, ink)
		y := f.head
		pen.bold(f.title, a.left, y-8, titleSize, ink)
		for _, row := range p.rows[i] {
			x := a.left
			for _, k := range row {
				if k.style.dots {
					pen.dots(k.style.colour, []point{{x + thumb/2, y + 7}}, everywhere)
				} else {
					pen.line(k.style, []point{{x, y + 7}, {x + thumb, y + 7}}, everywhere)
				}
				pen.text(k.name, x+thumb+6, y+7+tickSize*0.36, atLeft, tickSize, ink)
				x += thumb + 6 + textWidth(k.name, tickSize) + 16
			}
			y += 19
		}
		if f.bar != nil {
			f.bar.draw(pen, a)
		}
	}
	return pen.close(w)
}

func (b *colourBar) draw(p *pen, a rect) {
	l, bottom := a.right+margin, a.bottom
	if b.gaps {
		bottom -= 34
		p.fill(gapColour, rect{l, a.bottom - 16, l + barWidth, a.bottom})
		p.text("no data", l+barWidth+9, a.bottom-16/2+tickSize*0.36, atLeft, tickSize, ink)
	}
	h := (bottom - a.top) / shades
	for i := range shades {
		base := bottom - float64(i)*h
		top := base - h
		if i < shades-1 {
			top -= 0.5 // a little overlap: no seams
		}
		p.fill(shade(i), rect{l, top, l + barWidth, base})
	}
	wide := 0.0
	for _, t := range b.scale.ticks(6) {
		y := bottom - b.scale.at(t.value)*(bottom-a.top)
		p.line(stroke{colour: ink, width: 1}, []point{{l + barWidth, y}, {l + barWidth + 5, y}}, everywhere)
		p.text(t.label, l+barWidth+9, y+tickSize*0.36, atLeft, tickSize, ink)
		wide = max(wide, textWidth(t.label, tickSize))
	}
	p.upright(b.label, l+barWidth+9+wide+8+labelSize, (a.top+bottom)/2, labelSize, ink)
}
