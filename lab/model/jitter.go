package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// JitterInput is what [Jitter] depends on.
type JitterInput struct {
	Timer   time.Duration   // the delay that is jittered, 1 ms to 24 h
	Jitter  float64         // share of the timer, 0 to 1
	Law     string          // one-sided (0 to +Jitter), two-sided (−Jitter to +Jitter), equal (half the timer), full (all of it)
	Bins    []time.Duration // widths over which the load is counted, 1 to 20 of them
	Clients int             // in the herd, 1 to 20,000
	Runs    int             // of the Monte Carlo check, 1 to 10,000
	Seed    uint64          // of the Monte Carlo check
}

// DefaultJitter is the claim's case: 20 % on a timer of 30 s.
func DefaultJitter() JitterInput {
	ms := time.Millisecond
	return JitterInput{Timer: 30 * time.Second, Jitter: 0.2, Law: "one-sided", Bins: []time.Duration{100 * ms, 500 * ms, 1000 * ms, 1200 * ms, 3000 * ms, 6000 * ms},
		Clients: 1000, Runs: 200, Seed: 1}
}

// spread is the time over which a herd's calls are spread, in seconds.
func spread(law string, timer, jitter float64) (float64, bool) {
	switch law {
	case "one-sided":
		return jitter * timer, true
	case "two-sided":
		return 2 * jitter * timer, true
	case "equal":
		return timer / 2, true
	case "full":
		return timer, true
	}
	return 0, false
}

// peakShare is the share of a large herd that arrives in the fullest bin of width w, spread evenly over s.
func peakShare(w, s float64) float64 {
	if s <= 0 {
		return 1
	}
	return min(1, w/s)
}

// The exact peak of a herd is worked out for so many clients, and clients × bins.
const (
	exactClients = 1000
	exactWork    = 200_000
)

// Jitter tells how far jitter lowers the peak of a herd that was in step.
func Jitter(in JitterInput) (Report, error) {
	err := firstError(durationWithin("timer", in.Timer, time.Millisecond, 24*time.Hour), within("jitter", in.Jitter, 0, 1), countWithin("bin", len(in.Bins), 1, 20),
		intWithin("clients", in.Clients, 1, 20_000), intWithin("runs", in.Runs, 1, 10_000))
	if err != nil {
		return Report{}, err
	}
	s, ok := spread(in.Law, in.Timer.Seconds(), in.Jitter)
	if !ok {
		return Report{}, &InputError{"law", in.Law, "one-sided, two-sided, equal or full"}
	}
	if in.Clients*in.Runs > 20_000_000 {
		return Report{}, &InputError{"runs", in.Runs, fmt.Sprintf("clients × runs up to 20,000,000, so at most %d", 20_000_000/in.Clients)}
	}
	for _, w := range in.Bins {
		if err := durationWithin("bin", w, max(time.Microsecond, time.Duration(s/10_000*1e9)), 24*time.Hour); err != nil {
			return Report{}, err
		}
	}

	r := Report{
		Model: "jitter",
		Claim: fmt.Sprintf("%s jitter cuts the peak of a herd by 80 %% or more", percent(in.Jitter)),
		Formula: []string{
			"reduction = 1 − w/s: the peak is what falls into the fullest bin of width w, the herd being spread evenly over s",
			"s = jitter × timer one-sided, 2 × jitter × timer two-sided, timer/2 for equal jitter, timer for full jitter",
			"with N calls the fullest bin is fuller than the mean one: E[max] of a multinomial over s/w bins",
		},
		Inputs: []Input{{Name: "timer", Value: in.Timer}, {"jitter", in.Jitter, "of the timer"}, {Name: "law", Value: in.Law}, {Name: "bin", Value: in.Bins},
			{Name: "clients", Value: in.Clients}, {Name: "runs", Value: in.Runs}, {Name: "seed", Value: in.Seed}},
	}
	if in.Law == "equal" || in.Law == "full" {
		r.Claim = in.Law + " jitter cuts the peak of a herd by 80 % or more"
	}
	t := Table{Title: fmt.Sprintf("Reduction of the peak, spread s = %s", seconds(s)), Columns: []Column{{"bin w", "s"}, {"1 − w/s", ""},
		{fmt.Sprintf("exact, %d clients", in.Clients), ""}, {fmt.Sprintf("Monte Carlo, %d runs", in.Runs), ""}, {"± 2 s.e.", ""}}}
	means, errs := peaks(in, s)
	good, bad := 0, 0
	for i, bin := range in.Bins {
		w := bin.Seconds()
		exact := math.NaN()
		if in.Clients <= exactClients && float64(in.Clients)*s/w <= exactWork {
			exact = 1 - expectedPeak(in.Clients, w, s)/float64(in.Clients)
		}
		t.Rows = append(t.Rows, []any{w, 1 - peakShare(w, s), exact, 1 - means[i], 2 * errs[i]})
		if 1-peakShare(w, s) >= 0.8-1e-9 {
			good++
		} else {
			bad++
		}
	}
	said := Table{Title: "Cases that are quoted", Columns: []Column{{"case", ""}, {"s", "s"}, {"w", "s"}, {"1 − w/s", ""}}}
	for _, c := range []struct {
		name string
		s, w float64
	}{{"timer of 30 s, 20 % one-sided", 6, 1}, {"backoff of 1 s, 20 % one-sided", 0.2, 0.1}, {"backoff of 1 s, 20 % one-sided", 0.2, 0.2}, {"full jitter over 1 s", 1, 0.1}, {"full jitter over 1 s", 1, 0.2}} {
		said.Rows = append(said.Rows, []any{c.name, c.s, c.w, 1 - peakShare(c.w, c.s)})
	}
	r.Tables = []Table{t, said}
	switch {
	case s == 0:
		r.Verdict, r.Because = False, "without jitter nothing is spread."
	case bad == 0:
		r.Verdict, r.Because = Holds, fmt.Sprintf("no bin is wider than s/5 = %s.", seconds(s/5))
	case good == 0:
		r.Verdict, r.Because = False, fmt.Sprintf("that needs bins of at most s/5 = %s, and every bin is wider.", seconds(s/5))
	default:
		r.Verdict = HoldsOnlyIf
		r.Because = fmt.Sprintf("the load is counted in bins of at most s/5 = %s; 83 %% is w = s/6 = %s. From w = s = %s on nothing is gained.", seconds(s/5), seconds(s/6), seconds(s))
	}
	r.Notes = []string{"State w and s with every such figure: w is the time in which the target must absorb what arrives, such as the time its queue takes to drain."}

	chart := plot.Chart{Title: "Peak of a herd against the width of the bin", X: "bin width w, s", Y: "share of the herd in the fullest bin", LogX: true, YMin: 0, YMax: 1.02}
	lo, hi := 0.01, 60.0
	for _, b := range in.Bins {
		lo, hi = min(lo, b.Seconds()), max(hi, b.Seconds())
	}
	chart.Series = append(chart.Series, logCurve(fmt.Sprintf("%s (s = %s)", in.Law, seconds(s)), lo, hi, 300, func(w float64) float64 { return peakShare(w, s) }))
	timer := in.Timer.Seconds()
	for _, law := range []string{"one-sided", "equal", "full"} {
		if other, _ := spread(law, timer, in.Jitter); law != in.Law && other > 0 {
			c := logCurve(fmt.Sprintf("%s (s = %s)", law, seconds(other)), lo, hi, 300, func(w float64) float64 { return peakShare(w, other) })
			chart.Series = append(chart.Series, c)
		}
	}
	mc := plot.Series{Name: fmt.Sprintf("Monte Carlo, %d clients", in.Clients), Dots: true}
	for i, b := range in.Bins {
		mc.X, mc.Y = append(mc.X, b.Seconds()), append(mc.Y, means[i])
	}
	chart.Series = append(chart.Series, mc)
	r.Panels = []plot.Panel{chart}
	return r, nil
}

// peaks draws herds and returns the mean share of each in its fullest bin, with the standard error, for each bin width.
func peaks(in JitterInput, s float64) (mean, stderr []float64) {
	rng := rand.New(rand.NewPCG(in.Seed, 0x6a697474))
	counts := make([][]int, len(in.Bins))
	for i, b := range in.Bins {
		counts[i] = make([]int, int(s/b.Seconds())+2)
	}
	sum, square := make([]float64, len(in.Bins)), make([]float64, len(in.Bins))
	for range in.Runs {
		for i := range counts {
			clear(counts[i])
		}
		for range in.Clients {
			at := s * rng.Float64()
			for i, b := range in.Bins {
				counts[i][int(at/b.Seconds())]++
			}
		}
		for i := range counts {
			top := 0
			for _, c := range counts[i] {
				top = max(top, c)
			}
			x := float64(top) / float64(in.Clients)
			sum[i] += x
			square[i] += x * x
		}
	}
	n := float64(in.Runs)
	for i := range sum {
		m := sum[i] / n
		mean = append(mean, m)
		stderr = append(stderr, math.Sqrt(max(0, square[i]/n-m*m)/n))
	}
	return mean, stderr
}

// expectedPeak is E[max] of n calls that fall evenly into bins of width w over s, the last one cut: Σ_m P(max > m). P(max ≤ m)
// is the coefficient of x^n in n!·Π_i Σ_{j≤m} (p_i x)^j/j!, taken bin by bin with binomials of what is left.
func expectedPeak(n int, w, s float64) float64 {
	if w >= s {
		return float64(n)
	}
	full := int(s/w + 1e-9)
	rest := 1 - float64(full)*w/s
	bins := full
	if rest > 1e-9 {
		bins++
	}
	lnf := make([]float64, n+1)
	for i := range lnf {
		lnf[i] = lnFactorial(i)
	}
	expected := 0.0
	now, next := make([]float64, n+1), make([]float64, n+1)
	for m := 0; m < n; m++ {
		if m*bins < n {
			expected++ // some bin must hold more
			continue
		}
		clear(now)
		now[n] = 1 // still to be placed
		for i := range bins - 1 {
			p := (w / s) / (1 - float64(i)*w/s) // of this bin among those that are left
			lnP, lnQ := math.Log(p), math.Log1p(-p)
			clear(next)
			for left, weight := range now {
				if weight < 1e-16 {
					continue
				}
				mode := int(float64(left) * p)
				add := func(k int) bool {
					q := weight * math.Exp(lnf[left]-lnf[k]-lnf[left-k]+float64(k)*lnP+float64(left-k)*lnQ)
					next[left-k] += q
					return q > 1e-17
				}
				for k := min(mode, m, left); k >= 0 && add(k); k-- {
				}
				for k := mode + 1; k <= min(m, left) && add(k); k++ {
				}
			}
			now, next = next, now
		}
		within := 0.0
		for left := 0; left <= min(m, n); left++ { // the last bin takes what is left
			within += now[left]
		}
		expected += max(0, 1-within)
		if 1-within < 1e-9 {
			break
		}
	}
	return expected
}
