package model

import (
	"fmt"
	"math"

	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// TimeoutInput is what [Timeout] depends on.
type TimeoutInput struct {
	K         float64   // timeout = K × the quantile, 1 to 100
	Quantile  float64   // 0.5 to 0.99999
	Target    float64   // share of calls that are to get through, Quantile to 1, both excluded
	Lognormal []float64 // σ of the logarithm, each 0.01 to 10
	Pareto    []float64 // tail exponent α, each 0.1 to 100
	Samples   []int     // from which the quantile is estimated, each 1 to 10,000,000
}

// DefaultTimeout is the claim's case: 2 × p99.9 for 99.99 %.
func DefaultTimeout() TimeoutInput {
	return TimeoutInput{K: 2, Quantile: 0.999, Target: 0.9999, Lognormal: []float64{0.5, 1, 1.1, 1.5}, Pareto: []float64{1.5, 2, 3, 4}, Samples: []int{100, 1000, 10_000, 100_000}}
}

// The probability that a call takes longer than k times the quantile that a share q of calls exceeds.

func missExponential(k, q float64) float64 { return math.Pow(q, k) }

func missLognormal(k, q, sigma float64) float64 {
	return normalTail(normalQuantile(q) + math.Log(k)/sigma)
}

func missPareto(k, q, alpha float64) float64 { return q * math.Pow(k, -alpha) }

// lognormalLimit is the σ up to which k × quantile misses no more than a share t.
func lognormalLimit(k, q, t float64) float64 {
	return math.Log(k) / (normalQuantile(t) - normalQuantile(q))
}

// paretoLimit is the α from which it does not.
func paretoLimit(k, q, t float64) float64 { return math.Log(q/t) / math.Log(k) }

// orderStatistics returns the ranks, from 1, of the samples that enclose the quantile of level p with a confidence of at least
// 95 %: 0 and n+1 are ends that the samples do not have.
func orderStatistics(n int, p float64) (lower, upper int) {
	// The number of samples below the true quantile is binomial. Both searches: the largest l with P(X < l) ≤ 2.5 %, the
	// smallest u with P(X ≥ u) ≤ 2.5 %.
	lower = search(0, n, func(l int) bool { return binomialLower(n, p, l-1) <= 0.025 })
	upper = n + 1 - search(0, n, func(d int) bool { return binomialTail(n, p, n+1-d) <= 0.025 })
	return lower, upper
}

// search is the largest i from lo to hi for which ok holds; it holds at lo and, from some point on, no more.
func search(lo, hi int, ok func(int) bool) int {
	for lo < hi {
		mid := lo + (hi-lo+1)/2
		if ok(mid) {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// Timeout tells how many calls a timeout of K times a quantile cuts off, by the tail of the latency, and how many samples an
// estimate of that quantile needs.
func Timeout(in TimeoutInput) (Report, error) {
	err := firstError(within("k", in.K, 1, 100), within("quantile", in.Quantile, 0.5, 0.99999), countWithin("lognormal", len(in.Lognormal), 0, 20),
		countWithin("pareto", len(in.Pareto), 0, 20), countWithin("samples", len(in.Samples), 0, 20))
	if err == nil && !(in.Target > in.Quantile && in.Target <= 0.9999999) {
		err = &InputError{"target", in.Target, fmt.Sprintf("above the quantile of %g, up to 0.9999999", in.Quantile)}
	}
	for _, s := range in.Lognormal {
		err = firstError(err, within("lognormal", s, 0.01, 10))
	}
	for _, a := range in.Pareto {
		err = firstError(err, within("pareto", a, 0.1, 100))
	}
	for _, n := range in.Samples {
		err = firstError(err, intWithin("samples", n, 1, 10_000_000))
	}
	if err != nil {
		return Report{}, err
	}
	q, t := 1-in.Quantile, 1-in.Target
	r := Report{
		Model: "timeout",
		Claim: fmt.Sprintf("a timeout of %s × p%s lets %s of the calls through", short(in.K), exactly(100*in.Quantile), exactly(100*in.Target)+" %"),
		Formula: []string{
			"miss = P(latency > k·p), where a share q of the calls is slower than p",
			"exponential: q^k; lognormal: 1 − Φ(z_q + ln k / σ); Pareto: q·k^−α",
			"samples: the number below the true quantile is binomial, which gives the two order statistics that enclose it at 95 %",
		},
		Inputs: []Input{{Name: "k", Value: in.K}, {Name: "quantile", Value: in.Quantile}, {Name: "target", Value: in.Target}, {Name: "lognormal", Value: in.Lognormal, Unit: "σ"},
			{Name: "pareto", Value: in.Pareto, Unit: "α"}, {Name: "samples", Value: in.Samples}},
	}
	if exactly(in.Quantile) == "0.999" {
		q = 1e-3 // 1 − 0.999 is not
	}
	sigmaLimit, alphaLimit := lognormalLimit(in.K, q, t), paretoLimit(in.K, q, t)
	table := Table{Title: "Calls cut off", Columns: []Column{{"latency", ""}, {"miss", ""}, {"let through", "%"}, {"claim holds", ""}}}
	all, none := true, true
	add := func(name string, miss float64) {
		ok := miss <= t
		all, none = all && ok, none && !ok
		table.Rows = append(table.Rows, []any{name, miss, exactly(100 * (1 - miss)), ok})
	}
	add("exponential", missExponential(in.K, q))
	for _, s := range in.Lognormal {
		add("lognormal, σ = "+short(s), missLognormal(in.K, q, s))
	}
	for _, a := range in.Pareto {
		add("Pareto, α = "+short(a), missPareto(in.K, q, a))
	}
	limits := Table{Title: "Where the claim holds", Columns: []Column{{"latency", ""}, {"limit", ""}, {"value", ""}}}
	limits.Rows = [][]any{{"lognormal", "σ up to", sigmaLimit}, {"Pareto", "α from", alphaLimit}}
	r.Tables = []Table{table, limits}

	if len(in.Samples) > 0 {
		st := Table{Title: fmt.Sprintf("What the estimate of p%s is worth (95 %% confidence)", exactly(100*in.Quantile)), Columns: []Column{{"samples", ""},
			{"expected above it", ""}, {"rank from", ""}, {"rank to", ""}, {"as quantile from", "%"}, {"to", "%"}, {"error if exponential", ""}}}
		for _, n := range in.Samples {
			lo, hi := orderStatistics(n, in.Quantile)
			from, to := float64(lo)/float64(n+1), float64(hi)/float64(n+1)
			top, worth := any(hi), any("unbounded")
			if hi > n {
				top = "none"
			} else if lo > 0 {
				worth = fmt.Sprintf("−%.0f to +%.0f %%", 100*(1-math.Log1p(-from)/math.Log(q)), 100*(math.Log1p(-to)/math.Log(q)-1))
			}
			st.Rows = append(st.Rows, []any{n, float64(n) * q, lo, top, exactly(100 * from), exactly(100 * min(1, to)), worth})
		}
		r.Tables = append(r.Tables, st)
	}
	switch {
	case all:
		r.Verdict, r.Because = Holds, "for every tail listed."
	case none:
		r.Verdict, r.Because = False, "for every tail listed."
	default:
		r.Verdict = HoldsOnlyIf
		r.Because = fmt.Sprintf("the tail is light: lognormal up to σ = %.2f, Pareto from α = %.2f", sigmaLimit, alphaLimit)
		if missExponential(in.K, q) <= t {
			r.Because += "; exponential latencies miss " + short(missExponential(in.K, q)) + "."
		} else {
			r.Because += "."
		}
	}
	r.Notes = []string{fmt.Sprintf("A p%s with fewer than 10 samples above it, so from fewer than %s, is mostly chance: take a lower quantile and a larger k, or a ceiling.", exactly(100*in.Quantile), short(math.Ceil(10/q-1e-6)))}

	miss := func(title, x string, f func(float64) float64, lo, hi float64) plot.Chart {
		goal := plot.Series{Name: "claimed: " + short(t), X: []float64{lo, hi}, Y: []float64{t, t}, Dashed: true}
		return plot.Chart{Title: title, X: x, Y: "calls cut off", LogY: true, Series: []plot.Series{curve(fmt.Sprintf("%s × p%s", short(in.K), exactly(100*in.Quantile)), lo, hi, 300, f), goal}}
	}
	r.Panels = []plot.Panel{
		miss("Lognormal latency", "σ of the logarithm", func(s float64) float64 { return missLognormal(in.K, q, s) }, 0.3, 2),
		miss("Pareto latency", "tail exponent α (lower is heavier)", func(a float64) float64 { return missPareto(in.K, q, a) }, 0.5, 6),
	}
	return r, nil
}

// exactly writes a number whose nines matter.
func exactly(v float64) string { return fmt.Sprintf("%.7g", v) }
