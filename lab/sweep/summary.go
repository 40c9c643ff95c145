package sweep

import (
	"cmp"
	"math"
	"slices"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// A Summary is what a policy made of all draws. Shares are in [0,1].
type Summary struct {
	Policy       string  `json:"policy"`
	Draws        int     `json:"draws"`
	Mean         float64 `json:"mean"` // of the efficiency, as all that follow
	Median       float64 `json:"median"`
	Percentile5  float64 `json:"percentile_5"`
	Percentile10 float64 `json:"percentile_10"`
	Worst        float64 `json:"worst"`
	WorstDraw    string  `json:"worst_draw"`
	Above        int     `json:"above"` // draws in which it beats the oracle by more than 1 %

	Before   float64 `json:"before"`    // refused before the fault: mean over the draws with a calm stretch
	Before90 float64 `json:"before_90"` // 90th percentile of the same

	Top                  *float64 `json:"top"`                // goodput of the highest priority; nil: no such draws
	AmplificationHang    *float64 `json:"amplification_hang"` // attempts a call in full hangs; nil: no such draws
	TransitionsPerMinute float64  `json:"transitions_per_minute"`

	Kinds []KindSummary `json:"kinds"`
}

// A KindSummary is the efficiency in the draws with one kind of fault.
type KindSummary struct {
	Kind   string  `json:"kind"`
	Draws  int     `json:"draws"`
	Mean   float64 `json:"mean"`
	Median float64 `json:"median"`
	Worst  float64 `json:"worst"`
}

// Summarize sums up outcomes by policy.
func Summarize(all []Outcome) []Summary {
	if len(all) == 0 {
		return nil
	}
	var out []Summary
	for p, first := range all[0].Scores {
		s := Summary{Policy: first.Policy, Draws: len(all), Worst: math.Inf(1)}
		var efficiency, before, top, hang, transitions []float64
		kinds := map[string][]float64{}
		for _, x := range all {
			v := x.Scores[p]
			efficiency = append(efficiency, v.Efficiency)
			transitions = append(transitions, v.TransitionsPerMinute)
			kinds[x.Draw.Kind] = append(kinds[x.Draw.Kind], v.Efficiency)
			if v.Efficiency < s.Worst {
				s.Worst, s.WorstDraw = v.Efficiency, x.Draw.Scenario.Name
			}
			if v.Efficiency > 1.01 {
				s.Above++
			}
			if !x.Draw.Cold {
				before = append(before, v.Before)
			}
			switch x.Draw.Kind {
			case "slow", "capacity", "spike":
				if len(x.Draw.Scenario.Priorities) > 1 {
					top = append(top, v.Top)
				}
			case "hang":
				if f, ok := x.Draw.Scenario.InForce(scenario.Hang, x.Draw.From); ok && f.Latency >= patience(x.Draw.Scenario) {
					hang = append(hang, v.InFault)
				}
			}
		}
		slices.Sort(efficiency)
		slices.Sort(before)
		s.Mean, s.Median = mean(efficiency), quantile(efficiency, 0.5)
		s.Percentile5, s.Percentile10 = quantile(efficiency, 0.05), quantile(efficiency, 0.1)
		s.Before, s.Before90 = mean(before), quantile(before, 0.9)
		s.Top, s.AmplificationHang = meanOf(top), meanOf(hang)
		s.TransitionsPerMinute = mean(transitions)
		for _, k := range Kinds() {
			if e := kinds[k]; len(e) > 0 {
				slices.Sort(e)
				s.Kinds = append(s.Kinds, KindSummary{Kind: k, Draws: len(e), Mean: mean(e), Median: quantile(e, 0.5), Worst: e[0]})
			}
		}
		out = append(out, s)
	}
	return out
}

// Worst are the n outcomes in which a policy comes to least, the worst first.
func Worst(all []Outcome, policy string, n int) []Outcome {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b Outcome) int { return cmp.Compare(a.score(policy).Efficiency, b.score(policy).Efficiency) })
	return sorted[:min(n, len(sorted))]
}

func (x *Outcome) score(policy string) Score {
	for _, s := range x.Scores {
		if s.Policy == policy {
			return s
		}
	}
	return Score{Efficiency: math.Inf(1)}
}

func mean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

func meanOf(v []float64) *float64 {
	if len(v) == 0 {
		return nil
	}
	m := mean(v)
	return &m
}

// quantile of sorted values, between the two that are next to it.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 >= len(v) {
		return v[len(v)-1]
	}
	return v[i] + (v[i+1]-v[i])*(at-float64(i))
}
