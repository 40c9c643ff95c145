package cortex_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// F06, F07: a number that cannot be meant is refused by name; the zero value is the documented default.
func TestConfigErrorsNameTheField(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		field  string
		config cortex.Config
	}{
		{"Profile", cortex.Config{Profile: 2}},
		{"ShedSignal", cortex.Config{ShedSignal: 2}},
		{"Weights.F", cortex.Config{Weights: cortex.Weights{F: nan, L: 1}}},
		{"Weights.L", cortex.Config{Weights: cortex.Weights{F: 0.5, L: inf}}},
		{"Weights.Q", cortex.Config{Weights: cortex.Weights{F: 0.9, L: 0.2, Q: -0.1}}}, // sums to 1
		{"Weights.F", cortex.Config{Weights: cortex.Weights{F: 1.1}}},
		{"Weights.B", cortex.Config{Weights: cortex.Weights{F: 0.5, B: 0.49999, C: 0.00001}}},
		{"Weights.C", cortex.Config{Weights: cortex.Weights{C: 1}}},
		{"Weights", cortex.Config{Weights: cortex.Weights{F: 0.5}}},
		{"Weights", cortex.Config{Weights: cortex.Weights{F: 0.5, L: 0.5001}}},
		{"Levels", cortex.Config{Levels: -1}},
		{"Levels", cortex.Config{Levels: 32}},
		{"MaxRetries", cortex.Config{MaxRetries: -1}},
		{"MaxRetries", cortex.Config{MaxRetries: math.MaxInt32}},
		{"MaxRetries", cortex.Config{MaxRetries: 1001}},
		{"MaxRetries", cortex.Config{MaxRetries: 1, DisableRetries: true}},
		{"Deadline", cortex.Config{Deadline: -time.Second}},
		{"Concurrency", cortex.Config{Concurrency: -1}},
		{"RemoteTrust", cortex.Config{RemoteTrust: nan}},
		{"RemoteTrust", cortex.Config{RemoteTrust: inf}},
		{"RemoteTrust", cortex.Config{RemoteTrust: -0.1}},
		{"RemoteTrust", cortex.Config{RemoteTrust: 1.1}},
		{"Stripes", cortex.Config{Stripes: -1}},
		{"Stripes", cortex.Config{Stripes: 3}},
		{"Stripes", cortex.Config{Stripes: 6}},
		{"Stripes", cortex.Config{Stripes: 16}},
		{"Stripes", cortex.Config{Stripes: math.MinInt}},
		{"PermitLife", cortex.Config{PermitLife: -time.Second}},
		{"PermitLife", cortex.Config{PermitLife: time.Millisecond}},
		{"Backoff.Base", cortex.Config{Backoff: backoff.Config{Base: -time.Second}}},
		{"Backoff.Max", cortex.Config{Backoff: backoff.Config{Max: -time.Second}}},
		{"Backoff.Max", cortex.Config{Backoff: backoff.Config{Base: time.Hour}}}, // above the default maximum
		{"Backoff.Law", cortex.Config{Backoff: backoff.Config{Law: 77}}},
		{"Budget.Ratio", cortex.Config{Budget: budget.Config{Ratio: nan}}},
		{"Budget.Ratio", cortex.Config{Budget: budget.Config{Ratio: 1.1}}},
		{"Budget.Ratio", cortex.Config{Budget: budget.Config{Ratio: -0.1}}},
		{"Budget.Capacity", cortex.Config{Budget: budget.Config{Capacity: inf}}},
		{"Budget.MinPerSecond", cortex.Config{Budget: budget.Config{MinPerSecond: nan}}},
		{"Breaker.Threshold", cortex.Config{Breaker: breaker.Config{Threshold: nan}}},
		{"Breaker.Threshold", cortex.Config{Breaker: breaker.Config{Threshold: 1.1}}},
		{"Breaker.ThetaFast", cortex.Config{Breaker: breaker.Config{ThetaFast: -0.1}}},
		{"Breaker.Confidence", cortex.Config{Breaker: breaker.Config{Confidence: inf}}},
		{"Breaker.OpenFor", cortex.Config{Breaker: breaker.Config{OpenFor: -time.Second}}},
		{"Breaker.MaxProbes", cortex.Config{Breaker: breaker.Config{MaxProbes: -1}}},
		{"Timeout.Min", cortex.Config{Timeout: timeout.Config{Min: -time.Second}}},
		{"Timeout.Min", cortex.Config{Timeout: timeout.Config{Min: time.Minute}}}, // above the default maximum
		{"Timeout.Multiplier", cortex.Config{Timeout: timeout.Config{Multiplier: nan}}},
		{"Limit.Min", cortex.Config{Limit: limit.Config{Min: -1}}},
		{"Limit.Max", cortex.Config{Limit: limit.Config{Min: 10, Max: 5}}},
	} {
		for _, check := range []func(cortex.Config) error{
			func(c cortex.Config) error { _, err := cortex.New(c); return err },
			func(c cortex.Config) error { _, err := c.WithDefaults(); return err },
		} {
			err := check(c.config)
			var ce *cortex.ConfigError
			if !errors.As(err, &ce) {
				t.Errorf("%s: %v is no *ConfigError", c.field, err)
				continue
			}
			if text := err.Error(); !strings.Contains(text, c.field) || !strings.HasPrefix(text, "cortex: config: ") {
				t.Errorf("%q does not name %s", text, c.field)
			}
			part, _, nested := strings.Cut(c.field, ".")
			if nested && part != "Weights" && (ce.Field != part || errors.Unwrap(ce) == nil) {
				t.Errorf("%s: field %q, wraps %v", c.field, ce.Field, errors.Unwrap(ce))
			}
		}
	}
}

func TestZeroConfigIsTheDocumentedDefault(t *testing.T) {
	c := mustNew(t, cortex.Config{}).Config()
	for name, ok := range map[string]bool{
		"Profile":       c.Profile == cortex.Adaptive,
		"Weights":       c.Weights == cortex.Weights{F: 0.30, L: 0.20, Q: 0.15, B: 0.15, C: 0.20},
		"Levels":        c.Levels == 10,
		"MaxRetries":    c.MaxRetries == 3,
		"Backoff":       c.Backoff == backoff.Config{Law: backoff.Pressure, Base: 500 * ms, Max: 30 * time.Second},
		"Budget":        c.Budget == budget.Config{Ratio: 0.1, Capacity: 10, MinPerSecond: 0.2, Reserve: 2},
		"probes":        c.Breaker.OpenFor == 100*ms && c.Breaker.ProbeEvery == time.Second && c.Breaker.ProbeShare == 0.01,
		"trip":          c.Breaker.ThetaFast == 0.9 && c.Breaker.ThetaSlow == 0.7 && c.Breaker.Confidence == 0.99,
		"Timeout":       c.Timeout.Min == 50*ms && c.Timeout.Max == 5*time.Second && c.Timeout.Bootstrap == time.Second,
		"Limit":         c.Limit.Levels == 10 && c.Limit.Min == 2 && c.Limit.Max == 0 && c.Limit.Off == 0,
		"Deadline":      c.Deadline == 0,
		"Concurrency":   c.Concurrency == 100,
		"RemoteTrust":   c.RemoteTrust == 0.5,
		"PermitLife":    c.PermitLife == 10*time.Minute,
		"Classify, Now": c.Classify != nil && c.Now != nil && c.Rand != nil,
	} {
		if !ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
	a := mustNew(t, cortex.Config{Profile: cortex.Article}).Config()
	if a.Breaker.OpenFor != 30*time.Second || a.Breaker.ProbeEvery != 5*time.Second || a.Breaker.Threshold != 0.5 || !a.Breaker.Article {
		t.Errorf("article: %+v", a.Breaker)
	}
	if c := mustNew(t, cortex.Config{DisableRetries: true}).Config(); c.MaxRetries != 0 {
		t.Errorf("DisableRetries: %d", c.MaxRetries)
	}
	if c := mustNew(t, cortex.Config{DistrustRemote: true}).Config(); c.RemoteTrust != 0 {
		t.Errorf("DistrustRemote: %v", c.RemoteTrust)
	}
}

// F06: every accepted number of retries calls the operation at least once, and stops.
func TestAcceptedConfigCallsAndStops(t *testing.T) {
	failed := cortex.Class{Outcome: cortex.Failed, Retryable: true}
	for _, c := range []struct {
		config cortex.Config
		want   int // attempts
	}{
		{cortex.Config{}, 4}, {cortex.Config{MaxRetries: 1}, 2}, {cortex.Config{DisableRetries: true}, 1},
		{cortex.Config{MaxRetries: 1000, Budget: budget.Config{Capacity: 1e6}, Backoff: backoff.Config{Base: 1}, Limit: limit.Config{Off: limit.Circuit}}, 1001},
		{cortex.Config{Profile: cortex.Article}, 1}, // the first failure opens the circuit
		{cortex.Config{Levels: 1}, 4}, {cortex.Config{Levels: limit.MaxLevels}, 4},
		{cortex.Config{Backoff: backoff.Config{Base: 1, Max: 1}}, 4},
		{cortex.Config{Limit: limit.Config{Min: 1, Max: 1}}, 4},
		{cortex.Config{Concurrency: math.MaxInt32}, 4},
		{cortex.Config{Weights: cortex.Weights{F: 1}}, 4},
		{cortex.Config{PermitLife: time.Second}, 4},
	} {
		e, clock := virtual(t, c.config)
		made := 0
		for n := 0; ; n++ {
			p, err := e.AdmitRetry(bg, 10, n)
			if err != nil {
				break
			}
			made++
			clock.advance(10 * ms)
			p.Record(cortex.Failed)
			d := e.Decide(cortex.Failure{Class: failed, Priority: 10, Attempt: n})
			if !d.Retry {
				break
			}
			if d.Delay < 0 || d.Delay > e.Config().Backoff.Max {
				t.Fatalf("a delay of %v", d.Delay)
			}
			clock.advance(d.Delay)
		}
		if made != c.want {
			t.Errorf("%+v: %d attempts, want %d", c.config, made, c.want)
		}
	}
}
