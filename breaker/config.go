package breaker

import (
	"fmt"
	"math"
	"time"
)

// Config chooses the law of a circuit. The zero value is the adaptive law with its documented defaults, without jitter.
type Config struct {
	// Article selects the article's law: trip when the mean of the Beta(1,1) posterior exceeds Threshold (MeanTrips); open for
	// OpenFor; half-open admits one probe (MaxProbes of them) per ProbeEvery; success closes, failure opens again and restarts
	// the timer. Otherwise the law is adaptive.
	Article bool

	// Threshold is the article's: in (0,1); 0 means 0.5.
	Threshold float64

	// ThetaFast, ThetaSlow and Confidence are the adaptive rule's (Failure): open when the failure probability exceeds
	// ThetaFast, or ThetaSlow when at least half of the failures are timeouts, with this confidence. Thetas in [0.01,1),
	// confidence in (0,1), such that 64 failures in a row are enough; 0 means 0.9, 0.7 and 0.99.
	ThetaFast, ThetaSlow, Confidence float64

	// OpenFor is the time from opening to the first probe: 1 ms to 24 h; 0 means 30 s, adaptive 0.1 s. Adaptive, it is
	// jittered, and longer if ProbeShare asks for it.
	OpenFor time.Duration

	// ProbeEvery is the time between probes; adaptive, the longest gap between them. 1 ms to 24 h; 0 means 5 s, adaptive 1 s.
	ProbeEvery time.Duration

	// ProbeShare is the largest share of one's own traffic that adaptive probes may be, as far as ProbeEvery allows: in (0,1];
	// 0 means 0.01.
	ProbeShare float64

	// ProbesToClose is the number of probe successes in a row that close: 1 to 1000; 0 means 1.
	ProbesToClose int

	// MaxProbes is the number of probes that may be in flight at once: 1 to 64; 0 means 1.
	MaxProbes int

	// Rand is uniform in [0,1) and jitters adaptive probes by U(0.8,1.2). Nil, or a value outside [0,1], means 0.5: no jitter.
	// It is called with the owner's lock held.
	Rand func() float64
}

// ConfigError says which field of a Config is wrong and what would be right.
type ConfigError struct {
	Field string // name of the field of Config
	Value any    // as it was given
	Want  string // what would be right
}

// Error names the field, its value and what would be right.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s: %v: it must be %s", e.Field, e.Value, e.Want)
}

const (
	shortestTimer = time.Millisecond
	longestTimer  = 24 * time.Hour
)

// Normalize returns c with every zero value replaced by its default, or a *ConfigError for the first field that is wrong.
func (c Config) Normalize() (Config, error) {
	openFor, probeEvery := 100*time.Millisecond, time.Second
	if c.Article {
		openFor, probeEvery = 30*time.Second, 5*time.Second
	}
	c.Threshold = orDefault(c.Threshold, 0.5)
	c.ThetaFast = orDefault(c.ThetaFast, 0.9)
	c.ThetaSlow = orDefault(c.ThetaSlow, 0.7)
	c.Confidence = orDefault(c.Confidence, 0.99)
	c.OpenFor = orDefault(c.OpenFor, openFor)
	c.ProbeEvery = orDefault(c.ProbeEvery, probeEvery)
	c.ProbeShare = orDefault(c.ProbeShare, 0.01)
	c.ProbesToClose = orDefault(c.ProbesToClose, 1)
	c.MaxProbes = orDefault(c.MaxProbes, 1)

	// Beyond this even 64 failures in a row, P(θ > θ*) = 1−θ*^65, would not open the circuit: a breaker switched off unawares.
	highest := math.Pow(1-c.Confidence, 1/float64(span+1))
	theta := fmt.Sprintf("between 0.01 and %.4f (at confidence %v, over %d outcomes), or 0 for the default", math.Floor(highest*1e4)/1e4, c.Confidence, span)
	timer := fmt.Sprintf("between %v and %v, or 0 for the default", shortestTimer, longestTimer)

	// Each ok is written so that NaN fails it.
	for _, check := range []struct {
		ok    bool
		field string
		value any
		want  string
	}{
		{c.Threshold > 0 && c.Threshold < 1, "Threshold", c.Threshold, "above 0 and below 1, or 0 for the default"},
		{c.Confidence > 0 && c.Confidence < 1, "Confidence", c.Confidence, "above 0 and below 1, or 0 for the default"},
		{c.thetaOK(c.ThetaFast), "ThetaFast", c.ThetaFast, theta},
		{c.thetaOK(c.ThetaSlow), "ThetaSlow", c.ThetaSlow, theta},
		{c.OpenFor >= shortestTimer && c.OpenFor <= longestTimer, "OpenFor", c.OpenFor, timer},
		{c.ProbeEvery >= shortestTimer && c.ProbeEvery <= longestTimer, "ProbeEvery", c.ProbeEvery, timer},
		{c.ProbeShare > 0 && c.ProbeShare <= 1, "ProbeShare", c.ProbeShare, "above 0 and at most 1, or 0 for the default"},
		{c.ProbesToClose >= 1 && c.ProbesToClose <= 1000, "ProbesToClose", c.ProbesToClose, "between 1 and 1000, or 0 for the default"},
		{c.MaxProbes >= 1 && c.MaxProbes <= 64, "MaxProbes", c.MaxProbes, "between 1 and 64, or 0 for the default"},
	} {
		if !check.ok {
			return Config{}, &ConfigError{Field: check.field, Value: check.value, Want: check.want}
		}
	}
	return c, nil
}

// thetaOK reports whether the adaptive rule can be met with this θ*: judged by the very table that it uses. The article's
// law does not use it, so there only nonsense is refused.
func (c Config) thetaOK(theta float64) bool {
	if !(theta >= 0.01 && theta < 1) {
		return false
	}
	if c.Article || !(c.Confidence > 0 && c.Confidence < 1) {
		return true
	}
	l := leastFailures(theta, c.Confidence)
	return l[span] <= span
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
