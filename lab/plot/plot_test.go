package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func sine(n int) (x, y []float64) {
	for i := range n {
		x = append(x, float64(i)*120/float64(n))
		y = append(y, 200+150*math.Sin(float64(i)*12/float64(n)))
	}
	return x, y
}

func sample() []Panel {
	rng := rand.New(rand.NewPCG(1, 2))
	x, good := sine(240)
	noisy, cps := make([]float64, len(x)), make([]float64, len(x))
	for i := range noisy {
		noisy[i] = good[i] + 60*rng.Float64()
		cps[i] = math.Abs(math.Sin(x[i] / 9))
	}
	good[50], good[51], good[53] = math.NaN(), math.NaN(), math.NaN() // 52 stands alone
	bands := []Band{{20, 60, "hang"}, {80, 82, "errors 30 %"}, {81, 84, "slow"}}
	h := HeatMap{Title: "Share of runs that stay down", X: "utilisation ρ", Y: "outage, s", Label: "share of runs", LogY: true, Max: 1}
	for j := range 24 {
		h.Xs = append(h.Xs, 0.3+0.025*float64(j))
	}
	for i := range 14 {
		h.Ys = append(h.Ys, 0.5*math.Pow(1.5, float64(i)))
		var row []float64
		for j := range h.Xs {
			row = append(row, 1/(1+math.Exp(-12*(h.Xs[j]-0.6)-float64(i-7))))
		}
		h.Z = append(h.Z, row)
	}
	h.Z[3][3], h.Z[3][4] = math.NaN(), math.Inf(1)
	return []Panel{
		Chart{Title: "Goodput & attempts, calls/s <S1>", X: "time, s", Y: "calls/s", Bands: bands, Series: []Series{
			{Name: "goodput, priority 9", X: x, Y: good}, {Name: "goodput, priority 7", X: x, Y: noisy, Step: true},
			{Name: "attempts that reached the target", X: x, Y: cps, Dashed: true}, {Name: "offered", X: []float64{0, 120}, Y: []float64{417, 417}},
			{Name: "capacity", X: []float64{0, 20, 60, 100}, Y: []float64{417, 0, 300, 350}, Step: true, Dashed: true},
		}},
		Chart{Title: "Pressure", X: "time, s", Y: "CPS", Series: []Series{{Name: "CPS", X: x[:200], Y: cps[:200]}}, YMin: 0, YMax: 1, Bands: bands[:1]},
		Chart{Title: "On logarithmic axes", X: "bin w, ms", Y: "miss probability", LogX: true, LogY: true, Series: []Series{
			{Name: "exponential", X: []float64{1, 10, 100, 1000}, Y: []float64{1e-1, 1e-3, 1e-6, 0}}, {Name: "Pareto α = 2", X: []float64{1, 10, 100, 1000}, Y: []float64{1e-1, 1e-2, 2e-3, 1e-4}},
		}},
		h,
	}
}

func drawn(t *testing.T, format string, panels ...Panel) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, format, panels...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// texts parses an SVG and returns its texts; it fails for what is no XML or no SVG.
func texts(t *testing.T, svg []byte) []string {
	t.Helper()
	var out []string
	dec := xml.NewDecoder(bytes.NewReader(svg))
	inText, root := false, ""
	for {
		tok, err := dec.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			if root == "" {
				root = e.Name.Local
				attr := map[string]string{}
				for _, a := range e.Attr {
					attr[a.Name.Local] = a.Value
				}
				if root != "svg" || attr["width"] != "900" || attr["viewBox"] != "0 0 900 "+attr["height"] {
					t.Errorf("root %s %v", root, attr)
				}
			}
			if inText = e.Name.Local == "text"; inText {
				out = append(out, "")
			}
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				out[len(out)-1] += string(e)
			}
		}
	}
	return out
}

func TestSVGHoldsEveryWordAsText(t *testing.T) {
	svg := drawn(t, "svg", sample()...)
	all := texts(t, svg)
	for _, want := range []string{
		"Goodput & attempts, calls/s <S1>", "time, s", "calls/s", "hang", "errors 30 %", "slow", "goodput, priority 9", "offered",
		"Pressure", "CPS", "utilisation ρ", "share of runs", "no data", "0.5", "Pareto α = 2",
	} {
		found := false
		for _, s := range all {
			found = found || s == want
		}
		if !found {
			t.Errorf("%q is not in the picture: %q", want, all)
		}
	}
	if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
		t.Error("a gap reached the picture as a number")
	}
	if len(svg) > 150_000 {
		t.Errorf("%d bytes", len(svg))
	}
	if err := os.WriteFile(filepath.Join(t.TempDir(), "x.svg"), svg, 0o600); err != nil {
		t.Fatal(err)
	}
}

func decode(t *testing.T, b []byte) image.Image {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPNGShowsTheSeries(t *testing.T) {
	img := decode(t, drawn(t, "png", sample()...))
	if img.Bounds().Dx() != 2*Width {
		t.Errorf("%v", img.Bounds())
	}
	if r, g, b, a := img.At(1, 1).RGBA(); r != 0xFFFF || g != 0xFFFF || b != 0xFFFF || a != 0xFFFF {
		t.Error("the background is not white")
	}
	seen := map[[3]uint32]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			r, g, b, _ := img.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	for i, c := range lineColours[:5] {
		if seen[[3]uint32{uint32(c.R), uint32(c.G), uint32(c.B)}] < 200 {
			t.Errorf("line %d is not to be seen", i)
		}
	}
}

func TestSamePanelsSameBytes(t *testing.T) {
	for _, format := range []string{"svg", "png"} {
		if !bytes.Equal(drawn(t, format, sample()...), drawn(t, format, sample()...)) {
			t.Errorf("%s differs from one time to the next", format)
		}
	}
}

func TestManyDrawAtOnce(t *testing.T) {
	want := drawn(t, "svg", sample()...)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			var b bytes.Buffer
			if err := Write(&b, "svg", sample()...); err != nil || !bytes.Equal(b.Bytes(), want) {
				t.Errorf("%v, %d bytes", err, b.Len())
			}
		})
	}
	group.Wait()
}

func TestEdgesOfTheDrawable(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	one := func(c Chart, x, y []float64) Chart {
		c.Series = []Series{{Name: "s", X: x, Y: y}, {X: x, Y: y, Step: true}}
		return c
	}
	for name, p := range map[string]Panel{
		"nothing":       Chart{},
		"bands only":    Chart{Bands: []Band{{1, 2, "a"}, {-inf, inf, "b"}}},
		"empty series":  Chart{Series: []Series{{Name: "a"}}, LogX: true, LogY: true},
		"gaps only":     one(Chart{}, []float64{1, 2}, []float64{nan, inf}),
		"one point":     one(Chart{}, []float64{3}, []float64{4}),
		"all equal":     one(Chart{}, []float64{1, 2, 3}, []float64{5, 5, 5}),
		"all 0":         one(Chart{LogY: true}, []float64{1, 2, 3}, []float64{0, 0, 0}),
		"one x":         one(Chart{LogX: true}, []float64{2, 2, 2}, []float64{1, 2, 3}),
		"huge":          one(Chart{}, []float64{-1e300, 1e300}, []float64{math.MaxFloat64, -math.MaxFloat64}),
		"huge y":        one(Chart{}, []float64{0, 1, 2}, []float64{-1e300, 1e300, 0}),
		"huge log":      one(Chart{LogX: true, LogY: true}, []float64{1e-300, 1, 1e300}, []float64{1e-300, 1e300, 1}),
		"tiny":          one(Chart{LogX: true}, []float64{5e-324, 1e-310, 1e-305}, []float64{5e-324, 1e-310, 1e-305}),
		"tiny x":        one(Chart{}, []float64{0, 1e-310, 2e-310}, []float64{0, 1e-305, 2e-305}),
		"nearly equal":  one(Chart{}, []float64{1e9, 1e9 + 1e-6}, []float64{1, 1 + 1e-15}),
		"out of sight":  one(Chart{YMin: 10, YMax: 11}, []float64{1, 2, 3}, []float64{-1e200, 1e200, 0}),
		"half fixed":    one(Chart{YMin: nan, YMax: 3}, []float64{1, 2, 3}, []float64{1, 2, 5}),
		"no UTF-8":      Chart{Title: "a\xff\x00\n<b>&", Y: "\x01"},
		"long names":    Chart{Series: []Series{{Name: strings.Repeat("x", 500), X: []float64{1}, Y: []float64{1}}, {Name: "y"}}},
		"many series":   many(40, 500),
		"many points":   many(1, 200_000),
		"many dots":     dotted(many(12, 5000)),
		"one cell":      HeatMap{Xs: []float64{0}, Ys: []float64{1e200}, Z: [][]float64{{nan}}},
		"one log cell":  HeatMap{Xs: []float64{3}, Ys: []float64{7}, Z: [][]float64{{1}}, LogX: true, LogY: true},
		"equal cells":   HeatMap{Xs: []float64{1, 2}, Ys: []float64{1}, Z: [][]float64{{3, 3}}},
		"cells outside": HeatMap{Xs: []float64{1, 2}, Ys: []float64{1}, Z: [][]float64{{-3, 30}}, Min: 0, Max: 1},
	} {
		svg := drawn(t, "svg", p)
		texts(t, svg)
		if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("%s: a number that is none", name)
		}
		if len(svg) > 150_000 {
			t.Errorf("%s: %d bytes", name, len(svg))
		}
		if strings.HasPrefix(name, "one") || strings.HasPrefix(name, "gaps") || name == "huge log" { // a PNG takes long
			decode(t, drawn(t, "png", p))
		}
	}
}

func many(series, points int) Chart {
	c := Chart{Title: "many", LogY: true}
	for i := range series {
		x, y := sine(points)
		for j := range y {
			y[j] += float64(i)
		}
		c.Series = append(c.Series, Series{Name: fmt.Sprint("series ", i), X: x, Y: y, Step: i%2 == 1})
	}
	return c
}

func dotted(c Chart) Chart {
	for i := range c.Series {
		c.Series[i].Dots = true
	}
	return c
}

func TestThinningKeepsTheExtremes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		n, limit := 1+rng.IntN(5000), 1+rng.IntN(1500)
		run := make([]point, n)
		lo, hi := math.Inf(1), math.Inf(-1)
		for i := range run {
			run[i] = point{float64(i), rng.NormFloat64()}
			lo, hi = min(lo, run[i].y), max(hi, run[i].y)
		}
		got := thin(run, limit)
		if len(got) > max(limit, 16) || got[0] != run[0] || got[len(got)-1] != run[n-1] {
			t.Fatalf("%d of %d points, limit %d", len(got), n, limit)
		}
		gotLo, gotHi := math.Inf(1), math.Inf(-1)
		for i, p := range got {
			if i > 0 && p.x <= got[i-1].x {
				t.Fatal("out of order")
			}
			gotLo, gotHi = min(gotLo, p.y), max(gotHi, p.y)
		}
		if gotLo != lo || gotHi != hi {
			t.Fatalf("extremes %v %v, want %v %v", gotLo, gotHi, lo, hi)
		}
	}
}

func TestBadInputIsNamed(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		panel Panel
		field string
	}{
		{nil, "panel"},
		{Chart{Series: []Series{{}, {X: []float64{1}}}}, "Series[1].Y"},
		{Chart{Bands: []Band{{2, 1, ""}}}, "Bands[0]"},
		{Chart{Bands: []Band{{nan, 1, ""}}}, "Bands[0]"},
		{Chart{YMin: 2, YMax: 1}, "YMax"},
		{Chart{YMin: math.Inf(-1), YMax: 1}, "YMin"},
		{Chart{YMin: -1, YMax: 1, LogY: true}, "YMin"},
		{HeatMap{}, "Xs"},
		{HeatMap{Xs: []float64{1}}, "Ys"},
		{HeatMap{Xs: []float64{1, 1}}, "Xs[1]"},
		{HeatMap{Xs: []float64{0}, LogX: true}, "Xs[0]"},
		{HeatMap{Xs: []float64{1}, Ys: []float64{nan}}, "Ys[0]"},
		{HeatMap{Xs: []float64{1}, Ys: []float64{1}}, "Z"},
		{HeatMap{Xs: []float64{1}, Ys: []float64{1}, Z: [][]float64{{1, 2}}}, "Z[0]"},
		{HeatMap{Xs: []float64{1}, Ys: []float64{1}, Z: [][]float64{{1}}, Min: 3, Max: 2}, "Max"},
	} {
		var in *InputError
		err := Write(io.Discard, "svg", Chart{}, c.panel)
		if !errors.As(err, &in) || in.Panel != 1 || in.Field != c.field || in.Want == "" {
			t.Errorf("%+v: %v, want panel 1, %s", c.panel, err, c.field)
		}
	}
	var in *InputError
	if err := Write(io.Discard, "svg"); !errors.As(err, &in) {
		t.Errorf("no panels: %v", err)
	}
	var format *FormatError
	if err := Write(io.Discard, "gif", Chart{}); !errors.As(err, &format) || !strings.Contains(err.Error(), "svg or png") {
		t.Errorf("gif: %v", err)
	}
}

func TestWriteFileIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.SVG")
	if err := WriteFile(path, sample()...); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	texts(t, good)
	if err := WriteFile(path, Chart{YMin: 2, YMax: 1}); err == nil {
		t.Error("a bad chart was drawn")
	}
	if now, _ := os.ReadFile(path); !bytes.Equal(now, good) {
		t.Error("a failure touched the file")
	}
	var format *FormatError
	if err := WriteFile(filepath.Join(dir, "a.pdf"), Chart{}); !errors.As(err, &format) {
		t.Errorf("pdf: %v", err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "a.png"), Chart{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "b.png"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "b.png"), Chart{}); err == nil {
		t.Error("a folder was replaced")
	}
	entries, _ := os.ReadDir(dir)
	if len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		min, max float64
		log      bool
		want     string
	}{
		{0, 1, false, "0.0 0.2 0.4 0.6 0.8 1.0"},
		{0, 120, false, "0 20 40 60 80 100 120"},
		{-0.3, 0.3, false, "−0.3 −0.2 −0.1 0.0 0.1 0.2 0.3"},
		{0, 25000, false, "0 5000 10,000 15,000 20,000 25,000"},
		{0, 5e7, false, "0 1e7 2e7 3e7 4e7 5e7"},
		{0, 5e-6, false, "0 1e−6 2e−6 3e−6 4e−6 5e−6"},
		{1, 1000, true, "1 10 100 1000"},
		{1, 100, true, "1 2 5 10 20 50 100"},
		{1e-6, 1, true, "1e−6 1e−5 0.0001 0.001 0.01 0.1 1"},
		{1, 4, true, "1.0 1.5 2.0 2.5 3.0 3.5 4.0"},
	} {
		a := axis{min: c.min, max: c.max, log: c.log}
		var got []string
		for _, k := range a.ticks(7) {
			if k.label != "" {
				got = append(got, k.label)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v to %v log %v: %q, want %q", c.min, c.max, c.log, got, c.want)
		}
	}
}

func FuzzWrite(f *testing.F) {
	f.Add(0.0, 1.0, 2.0, 3.0, false, true)
	f.Add(math.Inf(1), -1e300, 5e-324, math.NaN(), true, false)
	f.Fuzz(func(t *testing.T, a, b, c, d float64, logX, logY bool) {
		var in *InputError
		ch := Chart{LogX: logX, LogY: logY, YMin: d, YMax: a, Bands: []Band{{a, b, "band"}}, Series: []Series{{X: []float64{a, b, c, d}, Y: []float64{d, a, b, c}}}}
		if err := Write(io.Discard, "svg", ch); err != nil && !errors.As(err, &in) {
			t.Error(err)
		}
		h := HeatMap{LogX: logX, LogY: logY, Min: c, Max: d, Xs: []float64{a, b}, Ys: []float64{c, d}, Z: [][]float64{{a, b}, {c, d}}}
		if err := Write(io.Discard, "svg", h); err != nil && !errors.As(err, &in) {
			t.Error(err)
		}
	})
}
