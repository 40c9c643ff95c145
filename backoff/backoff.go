// Package backoff holds the delay laws between the attempts of a call: how long to wait after attempt n has failed.
//
// A law gives a range, not a number: [Config.Bounds] says which, [Config.Delay] draws from it with a random source that is
// passed in. So a delay can be shown before it is drawn, and a caller with a deadline sees whether it fits:
//
//	cfg, err := backoff.Config{Law: backoff.Exponential, Max: 10 * time.Second}.Normalize()
//	...
//	d := cfg.Delay(backoff.Input{Attempt: 0}, rand.Float64)
//
// Nothing here has state: a Config may be used by any number of goroutines.
package backoff

import (
	"fmt"
	"math"
	"time"
)

// Defaults of a [Config].
const (
	DefaultPressureBase = 500 * time.Millisecond // Base of the pressure law
	DefaultBase         = 100 * time.Millisecond // Base of every other law
	DefaultMax          = 30 * time.Second
)

const (
	expJitter      = 0.2 // share of the delay that Exponential adds at random
	hintSpread     = 0.2 // most of a hint that is added at random to tear a herd apart
	pressureFactor = 10  // how many times longer the full pressure makes a delay, beyond the first time
	// From a base of 1 ns, 63 doublings leave the range of a Duration, whatever Max is. Ldexp overflows its own exponent
	// near MaxInt and would answer 0: a hot loop.
	maxDoublings = 63
)

// A Law is the form of the delay. The zero value is [Pressure]. Below, attempt counts from 0, and cap(x) is min(Max, x).
type Law uint8

const (
	// Pressure is full jitter that pressure stretches: random(0, cap(Base·2^attempt·(1+10·CPS))). DESIGN 3.2, check 5.
	Pressure Law = iota
	// Exponential is cap(Base·2^attempt) + U(0, 0.2·that), with Max a ceiling for the sum too (DESIGN 3.4). The closer the
	// first part comes to Max, the less jitter is left, at Max none: a herd wants another law, or a Max it does not reach.
	Exponential
	// FullJitter is random(0, cap(Base·2^attempt)).
	FullJitter
	// EqualJitter waits half for sure and half at random: from cap(Base·2^attempt)/2 to cap(Base·2^attempt).
	EqualJitter
	// Decorrelated is random(Base, cap(3·previous)); it grows by what was drawn and not by the attempt. Before the first
	// delay, previous is Base.
	Decorrelated

	lawCount
)

var lawNames = [lawCount]string{"pressure", "exponential", "full-jitter", "equal-jitter", "decorrelated"}

// String returns the name that [ParseLaw] reads.
func (l Law) String() string {
	if l < lawCount {
		return lawNames[l]
	}
	return fmt.Sprintf("Law(%d)", uint8(l))
}

// ParseLaw reads a law's name: pressure, exponential, full-jitter, equal-jitter or decorrelated. Any other name is a
// [*ConfigError].
func ParseLaw(name string) (Law, error) {
	for l, n := range lawNames {
		if n == name {
			return Law(l), nil
		}
	}
	return 0, &ConfigError{Field: "Law", Value: name, Want: wantLaw}
}

const wantLaw = "pressure, exponential, full-jitter, equal-jitter or decorrelated"

// A ConfigError names the field of a [Config] that cannot be used and says what would be right.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v: want %s", e.Field, e.Value, e.Want) }

// A Config is a law and its scale. The zero value is the pressure law with its defaults.
type Config struct {
	Law Law
	// Base is the scale of the first delay: zero means 500 ms for the pressure law and 100 ms for the others. 1 ns is legal.
	Base time.Duration
	// Max is a hard ceiling for every delay, jitter and a server's hint included. At least Base; zero means 30 s.
	Max time.Duration
}

// Normalize returns c with its defaults filled in, or a [*ConfigError] for an unknown law, a negative Base or Max, or a Max
// below Base (defaults included: a Base of a minute needs a Max of its own).
func (c Config) Normalize() (Config, error) {
	if c.Law >= lawCount {
		return c, &ConfigError{Field: "Law", Value: c.Law, Want: wantLaw}
	}
	if c.Base < 0 {
		return c, &ConfigError{Field: "Base", Value: c.Base, Want: fmt.Sprintf("a duration ≥ 0 (0 is %v)", c.defaultBase())}
	}
	if c.Max < 0 {
		return c, &ConfigError{Field: "Max", Value: c.Max, Want: fmt.Sprintf("a duration ≥ 0 (0 is %v)", DefaultMax)}
	}
	if c.Base == 0 {
		c.Base = c.defaultBase()
	}
	if c.Max == 0 {
		c.Max = DefaultMax
	}
	if c.Max < c.Base {
		return c, &ConfigError{Field: "Max", Value: c.Max, Want: fmt.Sprintf("at least Base, which is %v", c.Base)}
	}
	return c, nil
}

func (c Config) defaultBase() time.Duration {
	if c.Law == Pressure {
		return DefaultPressureBase
	}
	return DefaultBase
}

// usable is Normalize for a Config that nobody checked: it repairs where Normalize refuses, so that a delay can always be
// given.
func (c Config) usable() Config {
	if c.Law >= lawCount {
		c.Law = Pressure
	}
	if c.Base <= 0 {
		c.Base = c.defaultBase()
	}
	if c.Max <= 0 {
		c.Max = DefaultMax
	}
	c.Base = min(c.Base, c.Max)
	return c
}

// An Input is what one delay depends on.
type Input struct {
	// Attempt that failed, counted from 0. Negative counts as 0.
	Attempt int
	// CPS is the pressure in [0,1]; what lies outside is clamped, NaN counts as 0. Only the pressure law grows with it.
	CPS float64
	// Previous is the delay before this one, 0 if there was none. Only for the decorrelated law.
	Previous time.Duration
	// Hint is the server's lower bound (Retry-After and kin); 0 or less means none.
	Hint time.Duration
	// Limit is the longest delay after which the retry still fits before the deadline. 0 means no deadline; negative, that it
	// has passed.
	Limit time.Duration
}

// Bounds returns the exact range that [Config.Delay] draws from, 0 ≤ lo ≤ hi ≤ Max. In this order:
//
//   - the law's own range, cut at Max;
//   - a Hint above the law's lower end becomes the lower end, cut at Max. The upper end is then above it by at least
//     min(0.2·Hint, Base·(1+10·CPS)), again cut at Max: all callers are given the same hint, and without a spread they would
//     return in the same instant. A Hint of Max or more is therefore a delay of exactly Max;
//   - Limit cuts the upper end, but neither the hint nor the law's lower end: those are what they ask for, and a shorter wait
//     is not a wait for them. If Limit is not 0 and lo > Limit, the retry does not fit and is better refused at once.
//
// c need not be normalized: what [Config.Normalize] would refuse is replaced by a default, a Base above Max by Max.
func (c Config) Bounds(in Input) (lo, hi time.Duration) {
	c = c.usable()
	stretch := 1 + pressureFactor*unit(in.CPS)
	grown := math.Ldexp(float64(c.Base), min(max(in.Attempt, 0), maxDoublings))
	switch c.Law {
	case Pressure:
		hi = c.capped(grown * stretch)
	case Exponential:
		lo = c.capped(grown)
		hi = c.capped(float64(lo) * (1 + expJitter))
	case FullJitter:
		hi = c.capped(grown)
	case EqualJitter:
		hi = c.capped(grown)
		lo = hi / 2
	case Decorrelated:
		lo = c.Base
		hi = c.capped(3 * float64(max(in.Previous, c.Base)))
	}
	if in.Hint > lo {
		lo = min(in.Hint, c.Max)
		spread := min(hintSpread*float64(in.Hint), float64(c.Base)*stretch)
		hi = max(hi, c.capped(float64(lo)+spread))
	}
	if in.Limit != 0 {
		hi = min(hi, in.Limit)
	}
	// Also mends what rounding a Duration of more than 104 days to a float may have cost hi.
	return lo, max(lo, hi)
}

// capped converts nanoseconds to a Duration of at most Max. The comparison comes before the conversion: a float beyond the
// range of a Duration would become a negative one. Rounded, because 1+10·0.57 is a hair below 6.7.
func (c Config) capped(ns float64) time.Duration {
	if ns >= float64(c.Max) {
		return c.Max
	}
	return time.Duration(math.Round(ns))
}

// Delay draws a delay from [Config.Bounds]: lo + r·(hi−lo), with r from rnd, uniform in [0,1). It is never negative and never
// above Max, whatever the input. An r outside [0,1] is clamped; NaN counts as 1 and so does a nil rnd, because of two wrong
// delays the longer one does no harm to the target.
func (c Config) Delay(in Input, rnd func() float64) time.Duration {
	lo, hi := c.Bounds(in)
	r := 1.0
	if rnd != nil {
		if v := rnd(); v < 1 {
			r = max(v, 0)
		}
	}
	// Clamped once more after the jitter: near the end of the range of a Duration the product rounds up past hi−lo. What is
	// below float64(span) is at most span, because conversion rounds to the nearest.
	span := hi - lo
	if f := r * float64(span); f < float64(span) {
		return lo + time.Duration(f)
	}
	return hi
}

// unit clamps x to [0,1]; NaN becomes 0.
func unit(x float64) float64 {
	if x > 0 {
		return min(x, 1)
	}
	return 0
}
