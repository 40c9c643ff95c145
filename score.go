package cortex

import (
	"fmt"
	"math"
)

// The score is computed in integers: as floats the weighted sum gives 0.7999999999999999 or 0.8 depending on its order, and
// a floor taken of it lands on the wrong tier. A signal has a resolution of 1e-6, a weight and the score one of a basis
// point (1e-4).
const (
	one       = 10_000    // 1.0 in basis points
	microOne  = 1_000_000 // 1.0 in millionths
	emergency = 8_000     // pressure from which the circuit is forced open, in basis points (DESIGN 3.2, check 3)
)

// Signals are the five inputs of the composite pressure score, each in [0,1]: failure rate, latency deviation, queue
// pressure, retry-budget burn and circuit state (0 closed, 0.5 half-open, 1 open).
type Signals struct {
	F, L, Q, B, C float64
}

// Weights say how much of the score each signal makes. They are ≥ 0, have at most four decimals and sum to 1. The zero
// value means [DefaultWeights].
type Weights struct {
	F, L, Q, B, C float64
}

// Weight presets.
var (
	// DefaultWeights are those of the article: CPS = 0.30·F + 0.20·L + 0.15·Q + 0.15·B + 0.20·C.
	DefaultWeights = Weights{F: 0.30, L: 0.20, Q: 0.15, B: 0.15, C: 0.20}
	// ReadHeavyWeights suit caches and read replicas, where latency says more than errors do.
	ReadHeavyWeights = Weights{F: 0.25, L: 0.30, Q: 0.15, B: 0.10, C: 0.20}
	// TransactionalWeights suit databases behind a pool, where the queue says more than latency does.
	TransactionalWeights = Weights{F: 0.30, L: 0.10, Q: 0.25, B: 0.15, C: 0.20}
)

// PresetWeights returns the preset of that name: "default", "read-heavy" or "transactional".
func PresetWeights(name string) (Weights, error) {
	switch name {
	case "default":
		return DefaultWeights, nil
	case "read-heavy":
		return ReadHeavyWeights, nil
	case "transactional":
		return TransactionalWeights, nil
	}
	return Weights{}, fmt.Errorf("cortex: unknown weight preset %q: use default, read-heavy or transactional", name)
}

func (w Weights) validate() error {
	sum := int64(0)
	for _, f := range [...]struct {
		name string
		v    float64
	}{{"Weights.F", w.F}, {"Weights.L", w.L}, {"Weights.Q", w.Q}, {"Weights.B", w.B}, {"Weights.C", w.C}} {
		if math.IsNaN(f.v) || f.v < 0 || f.v > 1 {
			return &ConfigError{Field: f.name, Value: f.v, Want: "a number from 0 to 1"}
		}
		bp := basisPoints(f.v)
		if math.Abs(float64(bp)-f.v*one) > 1e-6 {
			return &ConfigError{Field: f.name, Value: f.v, Want: "at most four decimals"}
		}
		sum += bp
	}
	if sum != one {
		return &ConfigError{Field: "Weights", Value: w, Want: fmt.Sprintf("a sum of 1 (it is %g)", float64(sum)/one)}
	}
	if basisPoints(w.C) == one {
		return &ConfigError{Field: "Weights.C", Value: w.C, Want: "less than 1: the circuit's own state is no evidence"}
	}
	return nil
}

// CPS is the weighted sum of the signals, rounded to a basis point. Signals that are not finite count as 0, those outside
// [0,1] as the nearer end.
func (w Weights) CPS(s Signals) float64 { return float64(w.cps(s)) / one }

// Evidence is the score without C, rescaled to [0,1]: what the circuit is tripped on in the adaptive profile (C is what the
// circuit itself does; fed back it would hold the circuit open).
func (w Weights) Evidence(s Signals) float64 { return float64(w.evidence(s)) / one }

// A scale is a set of weights in basis points, as an engine keeps them.
type scale struct{ f, l, q, b, c int64 }

func (w Weights) scale() scale {
	return scale{basisPoints(w.F), basisPoints(w.L), basisPoints(w.Q), basisPoints(w.B), basisPoints(w.C)}
}

func (w scale) sum(s *Signals) int64 { // without C, in weight × signal units (1e-10)
	return w.f*micro(s.F) + w.l*micro(s.L) + w.q*micro(s.Q) + w.b*micro(s.B)
}

func (w scale) cps(s Signals) int64 { return (w.sum(&s) + w.c*micro(s.C) + microOne/2) / microOne }

func (w scale) evidence(s Signals) int64 {
	rest := one - w.c
	if rest <= 0 {
		return 0 // the circuit's own state is no evidence
	}
	return (w.sum(&s)*one + rest*microOne/2) / (rest * microOne)
}

func (w Weights) cps(s Signals) int64 { return w.scale().cps(s) }

func (w Weights) evidence(s Signals) int64 { return w.scale().evidence(s) }

func basisPoints(v float64) int64 { return round(unit(v) * one) }

func micro(v float64) int64 { return round(unit(v) * microOne) }

// round is math.Round for v in [0, 2⁵³], where the rest of a truncation is exact.
func round(v float64) int64 {
	n := int64(v)
	if v-float64(n) >= 0.5 {
		n++
	}
	return n
}

// unit clamps v to [0,1]; NaN and infinities, which say nothing, count as 0.
func unit(v float64) float64 {
	switch {
	case v >= 0 && v <= 1:
		return v
	case v > 1 && v <= math.MaxFloat64:
		return 1
	}
	return 0
}

// floorOf is ⌊CPS × levels⌋: calls of a priority below it are shed (DESIGN 3.2, check 4).
func floorOf(cps int64, levels int) int { return int(cps * int64(levels) / one) }

// State is the health state of a target, for people and for metrics.
type State uint8

// Health states by CPS: Healthy below 0.30, Elevated from 0.30, Pressured from 0.60, Emergency from 0.80.
const (
	Healthy State = iota
	Elevated
	Pressured
	Emergency
)

// StateOf returns the health state of a score.
func StateOf(cps float64) State { return stateOf(basisPoints(unit(cps))) }

func stateOf(cps int64) State {
	switch {
	case cps >= emergency:
		return Emergency
	case cps >= 6_000:
		return Pressured
	case cps >= 3_000:
		return Elevated
	}
	return Healthy
}

func (s State) String() string {
	switch s {
	case Healthy:
		return "HEALTHY"
	case Elevated:
		return "ELEVATED"
	case Pressured:
		return "PRESSURED"
	case Emergency:
		return "EMERGENCY"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// MarshalText makes a state its name in JSON.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LatencyDeviation is the L signal: min(1, max(0, (P99 − Base) / (3·Base))), with both in the same unit. Without a baseline
// it is 0.
func LatencyDeviation(p99, base float64) float64 {
	if !(base > 0) || math.IsInf(base, 0) {
		return 0
	}
	return unit(min(1, (p99-base)/(3*base)))
}
