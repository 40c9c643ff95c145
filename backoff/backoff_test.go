package backoff

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const (
	ms = time.Millisecond
	s  = time.Second
)

var laws = []Law{Pressure, Exponential, FullJitter, EqualJitter, Decorrelated}

func always(r float64) func() float64 { return func() float64 { return r } }

// The formulas of DESIGN 3.2 (check 5) and 3.4, worked out by hand.
func TestBoundsByHand(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    Config
		in     Input
		lo, hi time.Duration
	}{
		{"pressure, calm", Config{}, Input{}, 0, 500 * ms},
		{"pressure, third attempt", Config{}, Input{Attempt: 2}, 0, 2 * s},
		{"pressure 0.70 is eight times as long", Config{}, Input{CPS: 0.70}, 0, 4 * s},
		{"pressure 0.57 is not a nanosecond short", Config{}, Input{CPS: 0.57}, 0, 3350 * ms},
		{"pressure, full", Config{}, Input{Attempt: 1, CPS: 1}, 0, 11 * s},
		{"pressure, capped", Config{}, Input{Attempt: 3, CPS: 1}, 0, 30 * s},
		{"pressure, CPS above 1", Config{}, Input{CPS: 7}, 0, 5500 * ms},
		{"pressure, CPS +Inf", Config{}, Input{CPS: math.Inf(1)}, 0, 5500 * ms},
		{"pressure, CPS below 0", Config{}, Input{CPS: -7}, 0, 500 * ms},
		{"pressure, CPS NaN", Config{}, Input{CPS: math.NaN()}, 0, 500 * ms},
		{"pressure, attempt below 0", Config{}, Input{Attempt: -5}, 0, 500 * ms},
		{"exponential", Config{Law: Exponential}, Input{}, 100 * ms, 120 * ms},
		{"exponential is deaf to pressure", Config{Law: Exponential}, Input{CPS: 1}, 100 * ms, 120 * ms},
		{"exponential, sixth attempt", Config{Law: Exponential}, Input{Attempt: 5}, 3200 * ms, 3840 * ms},
		{"exponential, the ceiling cuts the jitter", Config{Law: Exponential, Max: 3500 * ms}, Input{Attempt: 5}, 3200 * ms, 3500 * ms},
		{"exponential, at the ceiling", Config{Law: Exponential}, Input{Attempt: 9}, 30 * s, 30 * s},
		{"full jitter", Config{Law: FullJitter}, Input{Attempt: 3}, 0, 800 * ms},
		{"full jitter, capped", Config{Law: FullJitter, Max: 700 * ms}, Input{Attempt: 3}, 0, 700 * ms},
		{"equal jitter", Config{Law: EqualJitter}, Input{Attempt: 3}, 400 * ms, 800 * ms},
		{"equal jitter, capped", Config{Law: EqualJitter, Max: 700 * ms}, Input{Attempt: 3}, 350 * ms, 700 * ms},
		{"decorrelated, first", Config{Law: Decorrelated}, Input{}, 100 * ms, 300 * ms},
		{"decorrelated, after 250 ms", Config{Law: Decorrelated}, Input{Attempt: 8, Previous: 250 * ms}, 100 * ms, 750 * ms},
		{"decorrelated, after less than base", Config{Law: Decorrelated}, Input{Previous: 1}, 100 * ms, 300 * ms},
		{"decorrelated, after a negative delay", Config{Law: Decorrelated}, Input{Previous: -s}, 100 * ms, 300 * ms},
		{"decorrelated, capped", Config{Law: Decorrelated}, Input{Previous: 20 * s}, 100 * ms, 30 * s},

		{"hint inside the range is a lower bound", Config{Law: FullJitter}, Input{Attempt: 5, Hint: s}, s, 3200 * ms},
		{"hint above the range spreads by base", Config{Law: FullJitter}, Input{Attempt: 0, Hint: 2 * s}, 2 * s, 2100 * ms},
		{"pressure widens the spread", Config{Law: FullJitter}, Input{CPS: 0.2, Hint: 2 * s}, 2 * s, 2300 * ms},
		{"hint above the range spreads by a fifth", Config{Law: FullJitter}, Input{Hint: 200 * ms}, 200 * ms, 240 * ms},
		{"hint at the range's end spreads too", Config{Law: FullJitter}, Input{Hint: 100 * ms}, 100 * ms, 120 * ms},
		{"hint below the law's lower end says nothing", Config{Law: Exponential}, Input{Attempt: 5, Hint: s}, 3200 * ms, 3840 * ms},
		{"hint beyond the ceiling (F39)", Config{}, Input{Hint: time.Hour}, 30 * s, 30 * s},
		{"hint just below the ceiling", Config{}, Input{Hint: 29900 * ms}, 29900 * ms, 30 * s},
		{"negative hint", Config{Law: FullJitter}, Input{Hint: -s}, 0, 100 * ms},

		{"limit cuts the upper end", Config{}, Input{Limit: 300 * ms}, 0, 300 * ms},
		{"limit above the range", Config{}, Input{Limit: s}, 0, 500 * ms},
		{"limit does not cut the law's lower end", Config{Law: Exponential}, Input{Attempt: 5, Limit: s}, 3200 * ms, 3200 * ms},
		{"limit cuts the law's jitter", Config{Law: Exponential}, Input{Attempt: 5, Limit: 3300 * ms}, 3200 * ms, 3300 * ms},
		{"limit does not cut the hint", Config{}, Input{Hint: 2 * s, Limit: s}, 2 * s, 2 * s},
		{"limit cuts the spread of the hint", Config{}, Input{Hint: 2 * s, Limit: 2100 * ms}, 2 * s, 2100 * ms},
		{"deadline has passed", Config{}, Input{Limit: -s}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if lo, hi := c.cfg.Bounds(c.in); lo != c.lo || hi != c.hi {
				t.Fatalf("Bounds = [%v, %v], want [%v, %v]", lo, hi, c.lo, c.hi)
			}
			if d := c.cfg.Delay(c.in, always(0)); d != c.lo {
				t.Errorf("Delay with r = 0: %v, want %v", d, c.lo)
			}
			mid := c.lo + (c.hi-c.lo)/2
			if d := c.cfg.Delay(c.in, always(0.5)); d != mid {
				t.Errorf("Delay with r = 0.5: %v, want %v", d, mid)
			}
		})
	}
}

// F01: after some dozens of attempts the delay wrapped to zero or below, or skipped the cap.
func TestExponentialDelayNeverOverflows(t *testing.T) {
	cfg := Config{Law: Exponential, Base: 500 * ms, Max: 60 * s}
	attempts := []int{}
	for n := 1; n <= 200; n++ {
		attempts = append(attempts, n)
	}
	attempts = append(attempts, 1000, 1100, math.MaxInt32, math.MaxInt)
	last := time.Duration(0)
	for _, n := range attempts { // n counts from 1, as the field case does
		d := cfg.Delay(Input{Attempt: n - 1}, always(0))
		if n == 7 && d != 32*s {
			t.Errorf("attempt 7: %v, want 32s", d)
		}
		if n >= 8 && d != 60*s {
			t.Errorf("attempt %d: %v, want exactly 60s", n, d)
		}
		if d < last || d <= 0 {
			t.Errorf("attempt %d: %v after %v: decreases", n, d, last)
		}
		last = d
	}
	for _, law := range laws[:4] {
		cfg.Law = law
		for _, n := range attempts[8:] {
			if _, hi := cfg.Bounds(Input{Attempt: n - 1}); hi != 60*s {
				t.Errorf("%v, attempt %d: upper end %v, want 60s", law, n, hi)
			}
		}
	}
}

// F01, second part.
func TestDecorrelatedStaysBetweenBaseAndCap(t *testing.T) {
	cfg := Config{Law: Decorrelated, Base: 500 * ms, Max: 60 * s}
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		prev, top := time.Duration(0), time.Duration(0)
		for n := range 10_000 {
			prev = cfg.Delay(Input{Attempt: n, Previous: prev}, rnd.Float64)
			if prev < cfg.Base || prev > cfg.Max {
				t.Fatalf("seed %d, draw %d: %v outside [%v, %v]", seed, n, prev, cfg.Base, cfg.Max)
			}
			top = max(top, prev)
		}
		if top < cfg.Max*9/10 {
			t.Errorf("seed %d: longest delay %v: it does not grow towards the cap", seed, top)
		}
	}
}

// F02: jitter after the cap handed out waits above the maximum, and without a cap overflowed again.
func TestJitterNeverExceedsMax(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	for _, law := range laws {
		cfg := Config{Law: law, Base: 800 * ms, Max: 1200 * ms}
		longest, prev := time.Duration(0), time.Duration(0)
		for attempt := range 6 {
			for range 10_000 {
				prev = cfg.Delay(Input{Attempt: attempt, CPS: rnd.Float64(), Previous: prev}, rnd.Float64)
				if prev < 0 || prev > cfg.Max {
					t.Fatalf("%v, attempt %d: %v outside [0, %v]", law, attempt, prev, cfg.Max)
				}
				longest = max(longest, prev)
			}
		}
		if longest < cfg.Max*9/10 {
			t.Errorf("%v: longest of 60,000 delays is %v, want about %v", law, longest, cfg.Max)
		}
		uncapped := Config{Law: law, Base: 800 * ms, Max: math.MaxInt64}
		for _, r := range []float64{0.1, 0.5, math.Nextafter(1, 0), 1} {
			for _, hint := range []time.Duration{0, 1, 511, math.MaxInt64} {
				if d := uncapped.Delay(Input{Attempt: 400, CPS: 1, Previous: math.MaxInt64, Hint: hint}, always(r)); d < math.MaxInt64/11 {
					t.Errorf("%v, attempt 400 without a cap, hint %d, r = %v: %v", law, hint, r, d)
				}
			}
		}
	}
}

// F04: a jitter that truncates to nothing panicked in the random source. Here a base of zero is the default, one of 1 ns legal.
func TestTinyBaseDoesNotPanic(t *testing.T) {
	for _, law := range laws[1:] {
		for _, base := range []time.Duration{1, 2, 9} {
			cfg, err := Config{Law: law, Base: base}.Normalize()
			if err != nil || cfg.Base != base {
				t.Fatalf("%v, base %v: %v, %v", law, base, cfg.Base, err)
			}
			for attempt := range 2 {
				most := base << attempt * 3 / 2
				if law == Decorrelated {
					most = 3 * base
				}
				for _, r := range []float64{0, 0.5, math.Nextafter(1, 0), 1} {
					if d := cfg.Delay(Input{Attempt: attempt}, always(r)); d < 0 || d > most {
						t.Errorf("%v, base %v, attempt %d, r %v: %v outside [0, %v]", law, base, attempt, r, d, most)
					}
				}
			}
		}
	}
	if d := (Config{Law: Exponential, Base: 1}).Delay(Input{}, always(0)); d != 1 {
		t.Errorf("base 1ns, no jitter: %v", d)
	}
	if d := (Config{Law: Exponential, Base: 100 * ms}).Delay(Input{}, always(0)); d != 100*ms {
		t.Errorf("base 100ms, no jitter: %v", d)
	}
}

// F78: a power law left the range of a Duration near attempt 310, and the next retry lay in the past.
func TestNextRetryIsNeverInThePast(t *testing.T) {
	for _, law := range []Law{Exponential, EqualJitter, Decorrelated} {
		cfg := Config{Law: law, Base: s, Max: time.Hour}
		for _, attempt := range []int{1, 25, 309, 310, 311, 10_000} {
			for _, r := range []float64{0, 0.5, math.Nextafter(1, 0)} {
				if d := cfg.Delay(Input{Attempt: attempt}, always(r)); d <= 0 || d > time.Hour {
					t.Errorf("%v, attempt %d, r %v: %v, want in (0, 1h]", law, attempt, r, d)
				}
			}
		}
	}
}

// F82 and F39: whoever is told the same Retry-After must not come back in the same instant.
func TestHerdWithOneHintIsSpread(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for _, law := range laws {
		cfg := Config{Law: law, Base: 100 * ms}
		in := Input{Hint: 5 * s}
		var bins [10]int
		for range 10_000 {
			d := cfg.Delay(in, rnd.Float64)
			if d < 5*s || d > 5100*ms {
				t.Fatalf("%v: %v outside [5s, 5.1s]", law, d)
			}
			bins[min(9, int((d-5*s)/(10*ms)))]++
		}
		for i, n := range bins {
			if n < 800 || n > 1200 {
				t.Errorf("%v: %d of 10,000 in bin %d, want about 1,000", law, n, i)
			}
		}
	}
}

func TestRandomSourceOutOfRangeIsClamped(t *testing.T) {
	cfg := Config{Law: FullJitter, Base: s}
	for _, c := range []struct {
		r    float64
		want time.Duration
	}{
		{math.NaN(), s}, {math.Inf(1), s}, {1, s}, {2, s}, {-1, 0}, {math.Inf(-1), 0}, {math.Copysign(0, -1), 0}, {0.25, 250 * ms},
	} {
		if d := cfg.Delay(Input{}, always(c.r)); d != c.want {
			t.Errorf("r = %v: %v, want %v", c.r, d, c.want)
		}
	}
	if d := cfg.Delay(Input{}, nil); d != s {
		t.Errorf("nil source: %v, want the upper end", d)
	}
}

func TestNormalize(t *testing.T) {
	for _, law := range laws {
		got, err := Config{Law: law}.Normalize()
		want := Config{Law: law, Base: 100 * ms, Max: 30 * s}
		if law == Pressure {
			want.Base = 500 * ms
		}
		if err != nil || got != want {
			t.Errorf("zero %v: %+v, %v, want %+v", law, got, err, want)
		}
		if again, err := got.Normalize(); err != nil || again != got {
			t.Errorf("%v: a second Normalize changed %+v to %+v, %v", law, got, again, err)
		}
	}
	for _, c := range []struct {
		cfg   Config
		field string
	}{
		{Config{Base: -1}, "Base"},
		{Config{Base: -s}, "Base"},
		{Config{Max: -1}, "Max"},
		{Config{Base: 2 * s, Max: s}, "Max"},
		{Config{Base: time.Minute}, "Max"},
		{Config{Max: 100 * ms}, "Max"},
		{Config{Law: 5}, "Law"},
		{Config{Law: 255}, "Law"},
	} {
		_, err := c.cfg.Normalize()
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != c.field || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%+v: error %v, want one that names %s", c.cfg, err, c.field)
		}
	}
	if _, err := (Config{Base: s, Max: s}).Normalize(); err != nil {
		t.Errorf("Base = Max refused: %v", err)
	}
}

// A Config nobody normalized still gives a delay.
func TestUncheckedConfigIsRepaired(t *testing.T) {
	for _, c := range []struct{ cfg, like Config }{
		{Config{Law: 77, Base: -s, Max: -s}, Config{}},
		{Config{Base: time.Minute}, Config{Base: 30 * s, Max: 30 * s}},
		{Config{Law: FullJitter, Max: ms}, Config{Law: FullJitter, Base: ms, Max: ms}},
	} {
		lo, hi := c.cfg.Bounds(Input{Attempt: 1})
		wlo, whi := c.like.Bounds(Input{Attempt: 1})
		if lo != wlo || hi != whi {
			t.Errorf("%+v: [%v, %v], want [%v, %v]", c.cfg, lo, hi, wlo, whi)
		}
	}
}

func TestLawNames(t *testing.T) {
	for _, law := range laws {
		if got, err := ParseLaw(law.String()); err != nil || got != law {
			t.Errorf("ParseLaw(%q) = %v, %v", law, got, err)
		}
	}
	for _, name := range []string{"", "Pressure", "full", "Law(9)"} {
		var ce *ConfigError
		if _, err := ParseLaw(name); !errors.As(err, &ce) {
			t.Errorf("ParseLaw(%q): error %v", name, err)
		}
	}
	if got := Law(9).String(); got != "Law(9)" {
		t.Errorf("unknown law prints %q", got)
	}
}

func FuzzDelay(f *testing.F) {
	f.Add(uint8(0), int64(0), int64(0), 0, 0.0, int64(0), int64(0), int64(0), 0.5)
	f.Add(uint8(1), int64(1), int64(math.MaxInt64), math.MaxInt, 1.0, int64(0), int64(1), int64(0), 1.0)
	f.Add(uint8(4), int64(math.MaxInt64), int64(math.MaxInt64), -1, math.NaN(), int64(math.MaxInt64), int64(math.MaxInt64), int64(-1), math.NaN())
	f.Add(uint8(9), int64(-1), int64(-1), math.MinInt, math.Inf(1), int64(math.MinInt64), int64(math.MinInt64), int64(math.MinInt64), math.Inf(-1))
	f.Add(uint8(2), int64(511), int64(math.MaxInt64), 63, 0.0, int64(0), int64(511), int64(0), math.Nextafter(1, 0))
	f.Fuzz(func(t *testing.T, law uint8, base, ceiling int64, attempt int, cps float64, prev, hint, limit int64, r float64) {
		cfg := Config{Law: Law(law), Base: time.Duration(base), Max: time.Duration(ceiling)}
		in := Input{Attempt: attempt, CPS: cps, Previous: time.Duration(prev), Hint: time.Duration(hint), Limit: time.Duration(limit)}
		most := cfg.usable().Max
		lo, hi := cfg.Bounds(in)
		d := cfg.Delay(in, always(r))
		if lo < 0 || lo > hi || hi > most || d < lo || d > hi {
			t.Fatalf("%+v %+v r=%v: %v in [%v, %v], ceiling %v", cfg, in, r, d, lo, hi, most)
		}
		if in.Hint > 0 && lo < min(in.Hint, most) {
			t.Fatalf("%+v %+v: lower end %v is below the hint", cfg, in, lo)
		}
		if in.Limit != 0 && hi > in.Limit && hi != lo {
			t.Fatalf("%+v %+v: jitter up to %v, beyond the limit", cfg, in, hi)
		}
		if n, err := cfg.Normalize(); err == nil {
			if nlo, nhi := n.Bounds(in); nlo != lo || nhi != hi {
				t.Fatalf("%+v %+v: [%v, %v], normalized [%v, %v]", cfg, in, lo, hi, nlo, nhi)
			}
		}
		if in.Attempt < math.MaxInt {
			next := in
			next.Attempt++
			if nlo, nhi := cfg.Bounds(next); nlo < lo || nhi < hi {
				t.Fatalf("%+v %+v: [%v, %v], one attempt later [%v, %v]", cfg, in, lo, hi, nlo, nhi)
			}
		}
	})
}
