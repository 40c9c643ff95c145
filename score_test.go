package cortex_test

import (
	"encoding/json"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/seed-a29ca62a/cortex"
)

func TestHealthStatesChangeAtTheirEdges(t *testing.T) {
	for _, c := range []struct {
		cps  float64
		want cortex.State
	}{
		{0, cortex.Healthy}, {0.2999, cortex.Healthy}, {0.3, cortex.Elevated}, {0.5999, cortex.Elevated}, {0.6, cortex.Pressured},
		{0.7999, cortex.Pressured}, {0.8, cortex.Emergency}, {1, cortex.Emergency},
		// What sums of floats make of these edges.
		{0.7999999999999999, cortex.Emergency}, {0.30000000000000004, cortex.Elevated}, {0.29999999999999999, cortex.Elevated},
		{0.5999999999999999, cortex.Pressured},
		{-1, cortex.Healthy}, {7, cortex.Emergency}, {math.NaN(), cortex.Healthy}, {math.Inf(1), cortex.Healthy}, {math.Inf(-1), cortex.Healthy},
	} {
		if got := cortex.StateOf(c.cps); got != c.want {
			t.Errorf("StateOf(%v) = %v, want %v", c.cps, got, c.want)
		}
	}
}

func TestLatencyDeviation(t *testing.T) {
	for _, c := range []struct{ p99, base, want float64 }{
		{100, 100, 0}, {90, 100, 0}, {250, 100, 0.5}, {400, 100, 1}, {1e9, 100, 1}, {0, 100, 0},
		{100, 0, 0}, {100, -1, 0}, {100, math.NaN(), 0}, {100, math.Inf(1), 0}, {math.NaN(), 100, 0}, {-5, 100, 0},
		{math.Inf(1), 100, 1}, {100, math.SmallestNonzeroFloat64, 1}, {math.MaxFloat64, math.MaxFloat64, 0},
	} {
		if got := cortex.LatencyDeviation(c.p99, c.base); got != c.want {
			t.Errorf("LatencyDeviation(%v, %v) = %v, want %v", c.p99, c.base, got, c.want)
		}
	}
}

// The score against exact fractions: a signal is rounded to a millionth, the sum once more to a basis point.
func TestScoreAgainstExactFractions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	rat := func(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }
	for range 5_000 {
		// Random weights of four decimals that sum to 1.
		cuts := [4]int64{r.Int64N(10_001), r.Int64N(10_001), r.Int64N(10_001), r.Int64N(10_001)}
		for i := range cuts {
			for j := range i {
				if cuts[j] > cuts[i] {
					cuts[i], cuts[j] = cuts[j], cuts[i]
				}
			}
		}
		bp := [5]int64{cuts[0], cuts[1] - cuts[0], cuts[2] - cuts[1], cuts[3] - cuts[2], 10_000 - cuts[3]}
		if bp[4] == 10_000 {
			continue
		}
		w := cortex.Weights{F: float64(bp[0]) / 1e4, L: float64(bp[1]) / 1e4, Q: float64(bp[2]) / 1e4, B: float64(bp[3]) / 1e4, C: float64(bp[4]) / 1e4}
		x := [5]float64{r.Float64(), r.Float64(), r.Float64(), r.Float64(), float64(r.IntN(3)) / 2}
		s := cortex.Signals{F: x[0], L: x[1], Q: x[2], B: x[3], C: x[4]}
		all, rest := new(big.Rat), new(big.Rat)
		for i, v := range x {
			part := new(big.Rat).Mul(big.NewRat(bp[i], 10_000), rat(v))
			all.Add(all, part)
			if i < 4 {
				rest.Add(rest, part)
			}
		}
		rest.Quo(rest, big.NewRat(10_000-bp[4], 10_000))
		for name, c := range map[string]struct {
			got  float64
			want *big.Rat
		}{"cps": {w.CPS(s), all}, "evidence": {w.Evidence(s), rest}} {
			want, _ := c.want.Float64()
			if math.Abs(c.got-want) > 0.00005+0.0000005+1e-12 || c.got != math.Round(c.got*1e4)/1e4 {
				t.Fatalf("%s of %+v under %+v is %v, want %v to a basis point", name, s, w, c.got, want)
			}
		}
	}
}

func TestScoreStaysInItsRange(t *testing.T) {
	odd := []float64{0, 1, 0.5, -1, 2, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64}
	for _, w := range []cortex.Weights{cortex.DefaultWeights, cortex.ReadHeavyWeights, cortex.TransactionalWeights, {F: 1}} {
		for _, f := range odd {
			for _, l := range odd {
				for _, q := range odd {
					s := cortex.Signals{F: f, L: l, Q: q, B: f, C: l}
					for _, v := range []float64{w.CPS(s), w.Evidence(s)} {
						if !(v >= 0 && v <= 1) {
							t.Fatalf("%v of %+v under %+v", v, s, w)
						}
					}
				}
			}
		}
	}
	// Weights that nobody checked must not take the program down.
	for _, w := range []cortex.Weights{{C: 1}, {F: math.NaN()}, {F: -1, C: 2}, {F: math.Inf(1)}, {F: 1e300, L: 1e300}} {
		for _, v := range []float64{w.CPS(cortex.Signals{F: 1, C: 1}), w.Evidence(cortex.Signals{F: 1, C: 1})} {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				t.Errorf("%v under %+v", v, w)
			}
		}
	}
}

func TestPresetWeights(t *testing.T) {
	for name, want := range map[string]cortex.Weights{"default": cortex.DefaultWeights, "read-heavy": cortex.ReadHeavyWeights,
		"transactional": cortex.TransactionalWeights} {
		w, err := cortex.PresetWeights(name)
		if err != nil || w != want {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
		if _, err := cortex.New(cortex.Config{Weights: w}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if cortex.ReadHeavyWeights.L <= cortex.DefaultWeights.L || cortex.TransactionalWeights.Q <= cortex.DefaultWeights.Q {
		t.Error("read-heavy weighs L higher, transactional Q")
	}
	if _, err := cortex.PresetWeights("Default"); err == nil {
		t.Error("an unknown preset is accepted")
	}
}

// Names are what people see in logs, metrics and JSON; numbers must not leak there.
func TestNamesInTextAndJSON(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range cortex.Reasons() {
		b, err := json.Marshal(r)
		if err != nil || string(b) != `"`+r.String()+`"` || r.String() == "" || seen[r.String()] {
			t.Errorf("reason %d: %s, %v", r, b, err)
		}
		seen[r.String()] = true
	}
	for _, want := range []string{"NOT_RETRYABLE", "MAX_RETRIES_EXCEEDED", "CIRCUIT_OPEN_EMERGENCY", "CIRCUIT_OPEN", "SHED_LOW_PRIORITY",
		"BUDGET_EXHAUSTED", "DEADLINE"} {
		if !seen[want] {
			t.Errorf("no reason is named %s", want)
		}
	}
	if cortex.ReasonNone.String() != "" || cortex.Reason(200).String() != "Reason(200)" || cortex.State(9).String() != "State(9)" ||
		cortex.Outcome(9).String() != "Outcome(9)" || cortex.Profile(9).String() != "Profile(9)" {
		t.Error("values out of range")
	}
	for p, name := range map[cortex.Profile]string{cortex.Adaptive: "adaptive", cortex.Article: "article"} {
		got, err := cortex.ParseProfile(name)
		if b, _ := json.Marshal(p); got != p || err != nil || string(b) != `"`+name+`"` {
			t.Errorf("%s: %v, %v, %s", name, got, err, b)
		}
	}
	if _, err := cortex.ParseProfile("hystrix"); err == nil {
		t.Error("an unknown profile is accepted")
	}
	for s, name := range map[cortex.State]string{cortex.Healthy: `"HEALTHY"`, cortex.Elevated: `"ELEVATED"`, cortex.Pressured: `"PRESSURED"`,
		cortex.Emergency: `"EMERGENCY"`} {
		if b, _ := json.Marshal(s); string(b) != name {
			t.Errorf("%s: %s", name, b)
		}
	}
}

// A decision on numbers that are none still has numbers in it: JSON has no NaN.
func TestDecisionOnNonsenseIsStillJSON(t *testing.T) {
	nan := math.NaN()
	d := cortex.Situation{Profile: cortex.Article, Signals: cortex.Signals{F: nan, L: math.Inf(1), Q: -3, B: 17}, Priority: 5, MaxRetries: 3,
		Retryable: true, Tokens: 10, Price: 1}.Decide(func() float64 { return 0 })
	if _, err := json.Marshal(d.Signals); err != nil {
		t.Error(err)
	}
	if !d.Retry || d.CPS != 0.15 {
		t.Errorf("%+v", d)
	}
	for _, s := range []cortex.Situation{{Tokens: nan, Price: 1}, {Tokens: 1, Price: nan}} {
		s.Retryable, s.MaxRetries = true, 3
		if d := s.Decide(func() float64 { return 0 }); d.Reason != cortex.ReasonBudget {
			t.Errorf("tokens %v at a price of %v: %v", s.Tokens, s.Price, d.Reason)
		}
	}
}

func TestEvidenceOfCircuitOnlyWeights(t *testing.T) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
	}()
	cortex.Weights{C: 1}.Evidence(cortex.Signals{F: 1})
	cortex.Situation{Weights: cortex.Weights{C: 1}, Retryable: true, MaxRetries: 3}.Decide(func() float64 { return 0 })
}
