package plot

import (
	"math"
	"strconv"
	"strings"
)

// drawable is the largest magnitude that is drawn: differences of such values do not overflow. On a logarithmic axis quotients
// must not, either.
const (
	drawable    = 1e300
	drawableLog = 1e150
)

// An axis maps values to [0,1].
type axis struct {
	min, max float64 // min < max once fit has run; before: +Inf and -Inf if nothing was included
	log      bool
}

func newAxis(log bool) axis { return axis{min: math.Inf(1), max: math.Inf(-1), log: log} }

// ok reports whether v has a place on the axis at all.
func (a *axis) ok(v float64) bool {
	if a.log {
		return v >= 1/drawableLog && v <= drawableLog
	}
	return math.Abs(v) <= drawable
}

func (a *axis) include(v float64) {
	if a.ok(v) {
		a.min = min(a.min, v)
		a.max = max(a.max, v)
	}
}

// fit makes a usable range of what was included, with room above and below if pad is set.
func (a *axis) fit(pad bool) {
	if a.min > a.max {
		a.min, a.max = 0, 1
		if a.log {
			a.min = 0.1
		}
	}
	if a.log {
		if a.max/a.min < 1.01 {
			a.min, a.max = a.min/2, a.max*2
		} else if pad {
			room := math.Pow(a.max/a.min, 0.04)
			a.min, a.max = a.min/room, a.max*room
		}
		return
	}
	scale := max(math.Abs(a.min), math.Abs(a.max))
	if a.max-a.min <= 1e-9*scale || a.max == a.min {
		room := max(scale*0.1, 1e-290)
		if scale == 0 {
			room = 1
		}
		a.min, a.max = a.min-room, a.max+room
		return
	}
	if pad {
		room := 0.04 * (a.max - a.min)
		if low := a.min; low < 0 || low > (a.max-low)*0.6 { // a range that reaches near 0 begins there
			a.min -= room
		} else {
			a.min = 0
		}
		a.max += room
	}
}

func (a *axis) at(v float64) float64 {
	if a.log {
		return (math.Log(v) - math.Log(a.min)) / (math.Log(a.max) - math.Log(a.min))
	}
	return (v - a.min) / (a.max - a.min)
}

// A tick without a label is a minor one.
type tick struct {
	value float64
	label string
}

// ticks returns about n labelled ticks, ascending.
func (a *axis) ticks(n int) []tick {
	if a.log && a.max/a.min >= 8 {
		return a.logTicks(n)
	}
	step := niceStep((a.max - a.min) / float64(n))
	var out []tick
	first := math.Ceil(a.min/step - 1e-9)
	for i := 0; i < 2*n+2; i++ {
		v := (first + float64(i)) * step
		if v > a.max+1e-9*step {
			break
		}
		if math.Abs(v) < step*1e-6 {
			v = 0
		}
		out = append(out, tick{v, number(v, step)})
	}
	return out
}

func (a *axis) logTicks(n int) []tick {
	lo, hi := int(math.Floor(math.Log10(a.min)-1e-9)), int(math.Ceil(math.Log10(a.max)+1e-9))
	every := 1
	for (hi-lo)/every > n+2 {
		every++
	}
	labelled := func(digit int) bool { return digit == 1 }
	if a.max/a.min < 500 {
		labelled = func(digit int) bool { return digit == 1 || digit == 2 || digit == 5 }
	}
	var out []tick
	for e := lo; e <= hi; e++ {
		for digit := 1; digit <= 9; digit++ {
			v, err := strconv.ParseFloat(strconv.Itoa(digit)+"e"+strconv.Itoa(e), 64)
			if err != nil || v < a.min*(1-1e-9) || v > a.max*(1+1e-9) {
				continue
			}
			switch {
			case (e-lo)%every == 0 && labelled(digit):
				out = append(out, tick{v, number(v, v)})
			case every == 1 && hi-lo <= 8:
				out = append(out, tick{value: v})
			}
		}
	}
	return out
}

// niceStep is the smallest of 1, 2, 5 times a power of ten that is at least raw.
func niceStep(raw float64) float64 {
	if raw < 1e-300 {
		return 1e-300
	}
	e := math.Floor(math.Log10(raw))
	unit := math.Pow(10, e)
	for _, m := range [...]float64{1, 2, 5} {
		if m*unit >= raw*(1-1e-9) {
			return m * unit
		}
	}
	return 10 * unit
}

// number formats a tick of a scale whose ticks are step apart.
func number(v, step float64) string {
	if v == 0 && step < 1e-4 {
		return "0"
	}
	if m := math.Abs(v); m >= 1e7 || step < 1e-4 {
		return strings.NewReplacer("e+0", "e", "e-0", "e−", "e+", "e", "e-", "e−", "-", "−").Replace(strconv.FormatFloat(v, 'g', 4, 64))
	}
	prec := 0
	if step < 1 && step > 0 {
		prec = int(math.Ceil(-math.Log10(step) - 1e-9))
	}
	s := strconv.FormatFloat(math.Abs(v), 'f', prec, 64)
	whole, rest, _ := strings.Cut(s, ".")
	if len(whole) > 4 {
		whole = whole[:len(whole)-3] + "," + whole[len(whole)-3:]
		if len(whole) > 7 {
			whole = whole[:len(whole)-7] + "," + whole[len(whole)-7:]
		}
	}
	if rest != "" {
		whole += "." + rest
	}
	if v < 0 {
		whole = "−" + whole
	}
	return whole
}
