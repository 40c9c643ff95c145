package timeout

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Defaults of Config.
const (
	defaultMin        = 50 * time.Millisecond
	defaultMax        = 5 * time.Second
	defaultBootstrap  = time.Second
	defaultMinSamples = 100
	defaultMultiplier = 2.0
)

// Config sets the bounds of a Timeout. The zero value means the defaults.
type Config struct {
	// Min is the shortest timeout, above 0. Zero means 50 ms, or Max if that is shorter.
	Min time.Duration
	// Max is the longest timeout, at least Min. Zero means 5 s.
	Max time.Duration
	// Bootstrap is the timeout until MinSamples successes have been seen, within [Min, Max]. Zero means 1 s, moved into
	// [Min, Max].
	Bootstrap time.Duration
	// MinSamples is the number of successes below which nothing is concluded from them, at least 1. Zero means 100.
	MinSamples int
	// Multiplier is what the 99.9th percentile is multiplied with, in [1, 10]. Zero means 2.
	Multiplier float64
}

// ConfigError says which field of a Config is wrong and what to do about it.
type ConfigError struct {
	Field   string // name of the field in Config
	Problem string
}

func (e *ConfigError) Error() string { return e.Field + ": " + e.Problem }

// Normalize returns c with its zero fields set to their defaults. A default never overrules a field that is set, but Max's is
// a promise: a Min or Bootstrap above 5 s needs a Max. The error is a *ConfigError, or several joined.
func (c Config) Normalize() (Config, error) {
	n := c
	if n.Max == 0 {
		n.Max = defaultMax
	}
	if n.Min == 0 {
		n.Min = min(defaultMin, n.Max)
	}
	if n.Bootstrap == 0 {
		n.Bootstrap = min(max(defaultBootstrap, n.Min), n.Max)
	}
	if n.MinSamples == 0 {
		n.MinSamples = defaultMinSamples
	}
	if n.Multiplier == 0 {
		n.Multiplier = defaultMultiplier
	}

	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &ConfigError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	// One fault, one message: what depends on a field that is wrong by itself is not looked at.
	switch {
	case c.Max < 0:
		bad("Max", "%v is negative; set the longest timeout, or 0 for %v", c.Max, defaultMax)
	case c.Min < 0:
		bad("Min", "%v is negative; set the shortest timeout, or 0 for %v", c.Min, defaultMin)
	case n.Min > n.Max:
		bad("Min", "%v is above Max %v; lower Min or raise Max", n.Min, n.Max)
	case c.Bootstrap < 0:
		bad("Bootstrap", "%v is negative; set a timeout between Min and Max, or 0 for %v", c.Bootstrap, defaultBootstrap)
	case n.Bootstrap > n.Max:
		bad("Bootstrap", "%v is above Max %v; lower Bootstrap or raise Max", n.Bootstrap, n.Max)
	case n.Bootstrap < n.Min:
		bad("Bootstrap", "%v is below Min %v; raise Bootstrap or lower Min", n.Bootstrap, n.Min)
	}
	if n.MinSamples < 1 {
		bad("MinSamples", "%d is below 1; set how many successes to wait for, or 0 for %d", n.MinSamples, defaultMinSamples)
	}
	if math.IsNaN(n.Multiplier) || n.Multiplier < 1 || n.Multiplier > 10 {
		bad("Multiplier", "%v is not in [1, 10]; set how many times the 99.9th percentile to wait, or 0 for %v", n.Multiplier, defaultMultiplier)
	}
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	return n, nil
}
