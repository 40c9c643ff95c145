package scenario

import (
	"math"
	"testing"
)

// The oracle's goodput is what the suite's page says, worked out by hand: S1 is 80 of 120 s, and so on.
func TestOracleOfTheSuite(t *testing.T) {
	want := map[string]float64{"S1": 0.6667, "S2": 0.8533, "S3": 0.9467, "S4": 0.9973, "S5": 0.6667, "S6": 0.9583, "S7": 0.8333,
		"S8": 0.7361, "S9": 1, "S10": 0.9067, "S11": 0.5, "S12": 0.6667, "S4-60": 0.9568, "S4-90": 0.7813, "cold-S1": 0.6667,
		"cold-S2": 0.8533}
	for _, s := range append(Builtin(), Extra()...) {
		got, by := s.Oracle()
		if w, ok := want[s.Name]; ok && math.Abs(got-w) > 0.0006 {
			t.Errorf("%s: %.4f, want %.4f", s.Name, got, w)
		}
		sum := 0.0
		for i, g := range by {
			sum += g * s.Priorities[i].Share
		}
		if math.Abs(sum-got) > 1e-9 {
			t.Errorf("%s: by priority %v, all %v", s.Name, by, got)
		}
		t.Logf("%s: %.4f %.3f", s.Name, got, by)
	}
}
