package breaker

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestDefaults(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Config
		want Config
	}{
		{"adaptive", Config{}, Config{
			Threshold: 0.5, ThetaFast: 0.9, ThetaSlow: 0.7, Confidence: 0.99,
			OpenFor: 100 * time.Millisecond, ProbeEvery: time.Second, ProbeShare: 0.01, ProbesToClose: 1, MaxProbes: 1,
		}},
		{"article", Config{Article: true}, Config{
			Article: true, Threshold: 0.5, ThetaFast: 0.9, ThetaSlow: 0.7, Confidence: 0.99,
			OpenFor: 30 * time.Second, ProbeEvery: 5 * time.Second, ProbeShare: 0.01, ProbesToClose: 1, MaxProbes: 1,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			once, err := tc.in.Normalize()
			if err != nil {
				t.Fatal(err)
			}
			if !sameConfig(once, tc.want) {
				t.Errorf("Normalize() = %+v, want %+v", once, tc.want)
			}
			twice, err := once.Normalize()
			if err != nil || !sameConfig(twice, once) {
				t.Errorf("Normalize() again = %+v, %v; want no change", twice, err)
			}
		})
	}
}

func sameConfig(a, b Config) bool {
	return a.Article == b.Article && a.Threshold == b.Threshold && a.ThetaFast == b.ThetaFast && a.ThetaSlow == b.ThetaSlow &&
		a.Confidence == b.Confidence && a.OpenFor == b.OpenFor && a.ProbeEvery == b.ProbeEvery && a.ProbeShare == b.ProbeShare &&
		a.ProbesToClose == b.ProbesToClose && a.MaxProbes == b.MaxProbes
}

// F06: a wrong number computed elsewhere is refused at construction, by the name of its field.
func TestWrongNumbersAreRefusedByName(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	set := map[string]func(*Config, float64){
		"Threshold":  func(c *Config, v float64) { c.Threshold = v },
		"ThetaFast":  func(c *Config, v float64) { c.ThetaFast = v },
		"ThetaSlow":  func(c *Config, v float64) { c.ThetaSlow = v },
		"Confidence": func(c *Config, v float64) { c.Confidence = v },
		"ProbeShare": func(c *Config, v float64) { c.ProbeShare = v },
		"OpenFor":    func(c *Config, v float64) { c.OpenFor = time.Duration(v) },
		"ProbeEvery": func(c *Config, v float64) { c.ProbeEvery = time.Duration(v) },
		"ProbesToClose": func(c *Config, v float64) {
			c.ProbesToClose = int(v)
		},
		"MaxProbes": func(c *Config, v float64) { c.MaxProbes = int(v) },
	}
	wrong := map[string][]float64{
		"Threshold":     {nan, inf, -inf, -0.1, 1, 1.1},
		"ThetaFast":     {nan, inf, -inf, -0.1, 1, 1.1, 0.001, 0.94}, // 0.94: not even 64 straight failures would do
		"ThetaSlow":     {nan, inf, -inf, -0.1, 1, 1.1, 0.001, 0.94},
		"Confidence":    {nan, inf, -inf, -0.1, 1, 1.1},
		"ProbeShare":    {nan, inf, -inf, -0.1, 1.1},
		"OpenFor":       {-1e9, 600, 1e15}, // 600: F08, a number without its unit
		"ProbeEvery":    {-1e9, 600, 1e15},
		"ProbesToClose": {-1, math.MaxInt32},
		"MaxProbes":     {-1, 65, math.MaxInt32},
	}
	for field, values := range wrong {
		for _, v := range values {
			var c Config
			set[field](&c, v)
			b, err := New(c)
			var ce *ConfigError
			if b != nil || !errors.As(err, &ce) {
				t.Errorf("New with %s = %v: %v, %v; want a *ConfigError", field, v, b, err)
				continue
			}
			if ce.Field != field || !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "must be") {
				t.Errorf("New with %s = %v: error %q about %s", field, v, err, ce.Field)
			}
		}
	}
}

func TestExtremesThatAreAllowed(t *testing.T) {
	for _, c := range []Config{
		{Threshold: 0.001}, {Threshold: 0.999}, {ThetaFast: 0.01}, {ThetaFast: 0.931}, {ThetaSlow: 0.931}, {Confidence: 0.001},
		{Confidence: 0.9989}, {OpenFor: time.Millisecond}, {OpenFor: 24 * time.Hour}, {ProbeEvery: 24 * time.Hour},
		{ProbeShare: 1}, {ProbeShare: math.SmallestNonzeroFloat64}, {ProbesToClose: 1000}, {MaxProbes: 64},
		{Article: true, ThetaFast: 0.999, Confidence: 0.999}, // not the article's concern
	} {
		if _, err := New(c); err != nil {
			t.Errorf("New(%+v): %v", c, err)
		}
	}
}

// F07: a breaker whose keys are left out acts by its defaults, and so does every accepted configuration in some outage.
func TestEveryAcceptedCircuitOpensInAnOutage(t *testing.T) {
	for _, c := range []Config{{}, {ThetaFast: 0.931}, {ThetaSlow: 0.931, ThetaFast: 0.5}, {Confidence: 0.9988}, {Confidence: 1e-6}} {
		for _, timedOut := range []bool{false, true} {
			b := mustNew(t, c)
			opened := false
			for i := 0; i < 64 && !opened; i++ {
				opened = b.Failure(time.Duration(i)*time.Millisecond, timedOut, 0, 0)
			}
			if !opened {
				t.Errorf("%+v, timeouts %v: closed after 64 straight failures", c, timedOut)
			}
		}
	}
}

func mustNew(tb testing.TB, c Config) *Breaker {
	tb.Helper()
	b, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
