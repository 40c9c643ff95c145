package plot

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strings"
	"sync"

	"codeberg.org/go-fonts/liberation/liberationsansbold"
	"codeberg.org/go-fonts/liberation/liberationsansregular"
	"golang.org/x/image/font/opentype"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Picture units: origin top left, y downwards.
type point struct{ x, y float64 }

type rect struct{ left, top, right, bottom float64 }

// everywhere cuts nothing.
var everywhere = rect{-1e6, -1e6, 1e6, 1e6}

type stroke struct {
	colour color.NRGBA
	width  float64
	dash   []float64
	dots   bool // for the legend: a dot instead of a line
}

type anchor uint8

const (
	atLeft anchor = iota
	atCentre
	atRight
)

// A pen draws in picture units on a canvas of gonum's, whose origin is bottom left.
type pen struct {
	canvas interface {
		vg.Canvas
		io.WriterTo
	}
	svg  bool
	w, h float64
}

func newPen(format string, w, h float64) *pen {
	p := &pen{svg: format == "svg", w: w, h: math.Ceil(h)}
	if p.svg {
		p.canvas = vgsvg.New(vg.Length(p.w), vg.Length(p.h))
	} else {
		const dpi = 144 // a point is a picture unit: two pixels
		p.canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(vg.Length(p.w), vg.Length(p.h)), vgimg.UseDPI(dpi))}
	}
	return p
}

func (p *pen) at(q point) vg.Point { return vg.Point{X: vg.Length(q.x), Y: vg.Length(p.h - q.y)} }

func (p *pen) fill(c color.NRGBA, r rect) { p.cells(c, []rect{r}) }

// cells fills rectangles of one colour.
func (p *pen) cells(c color.NRGBA, rs []rect) {
	if len(rs) == 0 {
		return
	}
	var path vg.Path
	for _, r := range rs {
		path.Move(p.at(point{r.left, r.top}))
		path.Line(p.at(point{r.right, r.top}))
		path.Line(p.at(point{r.right, r.bottom}))
		path.Line(p.at(point{r.left, r.bottom}))
		path.Close()
	}
	p.canvas.SetColor(c)
	p.canvas.Fill(path)
}

// line joins the points, cut at the edges of clip.
func (p *pen) line(s stroke, pts []point, clip rect) {
	if len(pts) < 2 {
		return
	}
	line := make([]vg.Point, len(pts))
	for i, q := range pts {
		line[i] = p.at(point{max(-1e7, min(1e7, q.x)), max(-1e7, min(1e7, q.y))})
	}
	c := draw.Canvas{Canvas: p.canvas, Rectangle: vg.Rectangle{Min: p.at(point{clip.left, clip.bottom}), Max: p.at(point{clip.right, clip.top})}}
	p.canvas.SetColor(s.colour)
	p.canvas.SetLineWidth(vg.Length(s.width))
	var dash []vg.Length
	for _, d := range s.dash {
		dash = append(dash, vg.Length(d))
	}
	p.canvas.SetLineDash(dash, 0)
	for _, l := range c.ClipLinesXY(line) {
		if len(l) < 2 {
			continue
		}
		var path vg.Path
		path.Move(l[0])
		for _, q := range l[1:] {
			path.Line(q)
		}
		p.canvas.Stroke(path)
	}
}

// dots marks the points inside clip.
func (p *pen) dots(c color.NRGBA, pts []point, clip rect) {
	var rs []rect
	for _, q := range pts {
		if q.x >= clip.left-1 && q.x <= clip.right+1 && q.y >= clip.top-1 && q.y <= clip.bottom+1 {
			rs = append(rs, rect{q.x - 3, q.y - 3, q.x + 3, q.y + 3})
		}
	}
	p.cells(c, rs)
}

func (p *pen) text(s string, x, y float64, a anchor, size float64, c color.NRGBA) {
	p.write(s, x, y, a, size, c, false, false)
}

func (p *pen) bold(s string, x, y, size float64, c color.NRGBA) {
	p.write(s, x, y, atLeft, size, c, true, false)
}

// upright writes from bottom to top, centred at x, y.
func (p *pen) upright(s string, x, y, size float64, c color.NRGBA) {
	p.write(s, x, y, atCentre, size, c, false, true)
}

func (p *pen) write(s string, x, y float64, a anchor, size float64, c color.NRGBA, bold, upright bool) {
	s = printable(s)
	if s == "" {
		return
	}
	face := face(size, bold)
	shift := 0.0
	switch a {
	case atCentre:
		shift = -float64(face.Width(s)) / 2
	case atRight:
		shift = -float64(face.Width(s))
	}
	p.canvas.SetColor(c)
	p.canvas.Push()
	p.canvas.Translate(p.at(point{x, y}))
	if upright {
		p.canvas.Rotate(math.Pi / 2)
	}
	p.canvas.FillString(face, vg.Point{X: vg.Length(shift)}, s)
	p.canvas.Pop()
}

func (p *pen) close(w io.Writer) error {
	if !p.svg {
		_, err := p.canvas.WriteTo(w)
		return err
	}
	var b bytes.Buffer
	if _, err := p.canvas.WriteTo(&b); err != nil {
		return err
	}
	// Units are pixels, not points, and where the font is not installed one of the same widths will do.
	svg := b.Bytes()
	size := fmt.Sprintf(`width="%.5gpt" height="%.5gpt"`, p.w, p.h)
	svg = bytes.Replace(svg, []byte(size), []byte(strings.ReplaceAll(size, "pt", "")), 1)
	svg = bytes.ReplaceAll(svg, []byte("font-family:Liberation Sans;font-variant:normal;"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif;"))
	_, err := w.Write(svg)
	return err
}

// printable makes a line of text that every XML parser takes.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r == 0x7F || r == 0xFFFE || r == 0xFFFF:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

var fonts = sync.OnceValue(func() (out [2]font.Face) {
	for i, ttf := range [...][]byte{liberationsansregular.TTF, liberationsansbold.TTF} {
		f, err := opentype.Parse(ttf)
		if err != nil {
			panic("plot: the built-in font is broken: " + err.Error())
		}
		out[i] = font.Face{Font: font.Font{Typeface: "Liberation", Variant: "Sans"}, Face: f}
	}
	out[1].Font.Weight = 3 // bold, as golang.org/x/image/font has it
	return out
})

func face(size float64, bold bool) font.Face {
	f := fonts()[0]
	if bold {
		f = fonts()[1]
	}
	f.Font.Size = vg.Length(size)
	return f
}

func textWidth(s string, size float64) float64 {
	f := face(size, false)
	return float64(f.Width(printable(s)))
}
