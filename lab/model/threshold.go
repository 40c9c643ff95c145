package model

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// ThresholdInput is what [Threshold] depends on. An outage is a time in which calls fail at a rate higher than in health; the
// breaker sees Samples outcomes and says whether it is one.
type ThresholdInput struct {
	Rule    string  // posterior: the Beta(1,1) mean (f+1)/(n+2) > threshold, the breaker's; share: f/n ≥ threshold
	Samples int     // outcomes that the breaker sees, 1 to 10,000
	Healthy float64 // failure rate in health, 0 to 1, below that of every outage in the mean
	Prior   float64 // share of the time that is an outage, 0 to 1, both excluded
	Mix     string  // kinds of outages and their weights, such as full=2,uniform=1
	// The kinds: full outages fail at rate Full; uniform ones at a rate evenly from UniformFrom to UniformTo; partial ones at a
	// Beta-distributed rate of mean Partial and of Concentration a+b (higher is narrower, 0 is always the mean).
	Full                   float64
	UniformFrom, UniformTo float64
	Partial, Concentration float64
	Step                   float64 // between thresholds, 0.001 to 0.25
}

// DefaultThreshold is the case behind the claim's numbers: 20 outcomes, 2 % failures in health, an outage 10 % of the time.
func DefaultThreshold() ThresholdInput {
	return ThresholdInput{Rule: "posterior", Samples: 20, Healthy: 0.02, Prior: 0.1, Mix: "full=1,uniform=1,partial=1", Full: 0.8, UniformFrom: 0.1, UniformTo: 1,
		Partial: 0.3, Concentration: 17, Step: 0.05}
}

// pmf of the number of failures among n outcomes, by what is known of the failure rate.

func pmfAt(n int, p float64) []float64 {
	out := make([]float64, n+1)
	for k := range out {
		out[k] = binomialPMF(n, p, k)
	}
	return out
}

// pmfUniform is that of a rate evenly from a to b: ∫ C(n,k) x^k (1−x)^(n−k) dx = P(Bin(n+1, x) ≥ k+1) / (n+1), from a to b.
func pmfUniform(n int, a, b float64) []float64 {
	if b-a < 1e-9 {
		return pmfAt(n, (a+b)/2)
	}
	tails := func(x float64) []float64 { // P(Bin(n+1, x) ≥ k) for every k
		p := pmfAt(n+1, x)
		for k := n; k >= 0; k-- {
			p[k] += p[k+1]
		}
		return p
	}
	lo, hi := tails(a), tails(b)
	out := make([]float64, n+1)
	for k := range out {
		out[k] = max(0, hi[k+1]-lo[k+1]) / (float64(n+1) * (b - a))
	}
	return out
}

// pmfBeta is that of a Beta(a,b) rate, the beta-binomial.
func pmfBeta(n int, a, b float64) []float64 {
	out := make([]float64, n+1)
	for k := range out {
		out[k] = math.Exp(lnChoose(n, k) + lnBeta(float64(k)+a, float64(n-k)+b) - lnBeta(a, b))
	}
	return out
}

// quality is how well a rule tells outages from health.
type quality struct{ precision, recall, f1 float64 }

// judge works out the quality of tripping at k failures or more.
func judge(outage, healthy []float64, prior float64, k int) quality {
	hit, alarm := 0.0, 0.0
	for i := len(outage) - 1; i >= max(0, k); i-- { // from the small terms up
		hit += outage[i]
		alarm += healthy[i]
	}
	tp, fp, fn := prior*hit, (1-prior)*alarm, prior*max(0, 1-hit)
	q := quality{precision: math.NaN(), recall: tp / (tp + fn), f1: 2 * tp / (2*tp + fp + fn)}
	if tp+fp > 0 {
		q.precision = tp / (tp + fp)
	}
	return q
}

// failuresFor is the number of failures among n from which the rule trips at threshold t; n+1 if it never does.
func failuresFor(rule string, n int, t float64) int {
	trips := func(f int) bool { return float64(f) >= t*float64(n)*(1-1e-12) }
	if rule == "posterior" { // asked of the breaker itself
		b, err := breaker.New(breaker.Config{Article: true, Threshold: t})
		if err != nil {
			return n + 1
		}
		trips = func(f int) bool { return b.MeanTrips(uint64(f), uint64(n-f)) }
	}
	k := search(0, n+1, func(f int) bool { return f == 0 || !trips(f-1) }) // the first that trips
	return k
}

// A verdictOn is how the thresholds compare for one kind of outage.
type verdictOn struct {
	name             string
	best             float64 // the threshold with the best F1
	bestQ, half      quality // there and at 0.5
	plateau          [2]float64
	above, below     float64 // P(outage | k failures) at the boundary of the best rule, and one failure below
	all              []quality
	outcomes, health []float64 // the distributions that were compared
	prior            float64
	thresholds       []float64
}

const plateauWithin = 0.01 // of the best F1

func (in ThresholdInput) compare(name string, outage, healthy []float64, prior float64) verdictOn {
	v := verdictOn{name: name, outcomes: outage, health: healthy, prior: prior}
	for i := 1; ; i++ {
		t := math.Round(float64(i)*in.Step*1e9) / 1e9
		if t > 1-1e-9 {
			break
		}
		q := judge(outage, healthy, prior, failuresFor(in.Rule, in.Samples, t))
		v.thresholds, v.all = append(v.thresholds, t), append(v.all, q)
		if q.f1 > v.bestQ.f1+1e-12 {
			v.best, v.bestQ = t, q
		}
	}
	v.half = judge(outage, healthy, prior, failuresFor(in.Rule, in.Samples, 0.5))
	v.plateau = [2]float64{v.best, v.best}
	at := 0
	for i, t := range v.thresholds {
		if t == v.best {
			at = i
		}
	}
	for i := at; i >= 0 && v.all[i].f1 >= v.bestQ.f1-plateauWithin; i-- {
		v.plateau[0] = v.thresholds[i]
	}
	for i := at; i < len(v.all) && v.all[i].f1 >= v.bestQ.f1-plateauWithin; i++ {
		v.plateau[1] = v.thresholds[i]
	}
	posterior := func(k int) float64 {
		if k < 0 || k > in.Samples { // trips on anything, or on nothing
			return math.NaN()
		}
		o, h := prior*outage[k], (1-prior)*healthy[k]
		return o / (o + h)
	}
	k := in.bestK(outage, healthy, prior)
	v.above, v.below = posterior(k), posterior(k-1)
	return v
}

// bestK is the number of failures from which to trip for the best F1, whatever threshold gives it.
func (in ThresholdInput) bestK(outage, healthy []float64, prior float64) int {
	best, at := -1.0, 0
	for k := 0; k <= in.Samples; k++ {
		if q := judge(outage, healthy, prior, k); q.f1 > best+1e-12 {
			best, at = q.f1, k
		}
	}
	return at
}

// Threshold tells how well the breaker's rule finds outages, by its threshold.
func Threshold(in ThresholdInput) (Report, error) {
	err := firstError(intWithin("samples", in.Samples, 1, 10_000), within("healthy", in.Healthy, 0, 0.99), within("prior", in.Prior, 1e-6, 1-1e-6),
		within("full", in.Full, 0, 1), within("uniform-from", in.UniformFrom, 0, 1), within("uniform-to", in.UniformTo, in.UniformFrom, 1),
		within("partial", in.Partial, 0.001, 0.999), within("step", in.Step, 0.001, 0.25))
	if err == nil && in.Rule != "posterior" && in.Rule != "share" {
		err = &InputError{"rule", in.Rule, "posterior or share"}
	}
	if err == nil && in.Concentration != 0 {
		err = within("concentration", in.Concentration, 0.1, 1e6)
	}
	if err == nil && in.Samples > 2000 && in.Step < 0.01 {
		err = &InputError{"step", in.Step, "0.01 or more with more than 2000 samples"}
	}
	if err != nil {
		return Report{}, err
	}
	for _, c := range []struct {
		name string
		mean float64
	}{{"full", in.Full}, {"uniform-to", (in.UniformFrom + in.UniformTo) / 2}, {"partial", in.Partial}} {
		if c.mean <= in.Healthy {
			return Report{}, &InputError{c.name, c.mean, fmt.Sprintf("a mean failure rate above that of health, %s", short(in.Healthy))}
		}
	}
	weights, err := parseMix(in.Mix)
	if err != nil {
		return Report{}, err
	}
	healthy := pmfAt(in.Samples, in.Healthy)
	partial := pmfAt(in.Samples, in.Partial)
	if in.Concentration > 0 {
		partial = pmfBeta(in.Samples, in.Partial*in.Concentration, (1-in.Partial)*in.Concentration)
	}
	pmfs := [len(outageKinds)][]float64{pmfAt(in.Samples, in.Full), pmfUniform(in.Samples, in.UniformFrom, in.UniformTo), partial}
	descriptions := [len(outageKinds)]string{
		fmt.Sprintf("full: %s of the calls fail", percent(in.Full)),
		fmt.Sprintf("uniform: %s to %s fail", percent(in.UniformFrom), percent(in.UniformTo)),
		fmt.Sprintf("partial: %s fail in the mean", percent(in.Partial)),
	}
	mix, kinds := make([]float64, in.Samples+1), []string{}
	for i, w := range weights {
		if w > 0 {
			kinds = append(kinds, outageKinds[i])
		}
		for k := range mix {
			mix[k] += w * pmfs[i][k]
		}
	}
	mixed := in.compare("the mix: "+strings.Join(kinds, ", "), mix, healthy, in.Prior)
	rows := []verdictOn{}
	for i := range pmfs {
		rows = append(rows, in.compare(descriptions[i], pmfs[i], healthy, in.Prior))
	}
	const low = 0.2 // of the symmetric case
	symmetric := in.compare("symmetric: 80 % fail, 20 % in health, prior 0.5", pmfAt(in.Samples, 1-low), pmfAt(in.Samples, low), 0.5)
	rows = append(rows, symmetric, mixed)

	rule := "trip if (f+1)/(n+2) > threshold: the mean of the Beta(1,1) posterior of f failures among n outcomes"
	if in.Rule == "share" {
		rule = "trip if f/n ≥ threshold: f failures among n outcomes"
	}
	r := Report{
		Model: "threshold",
		Claim: "a threshold of 50 % maximises F1",
		Formula: []string{rule,
			"recall = P(trip | outage), precision = π·recall / (π·recall + (1−π)·P(trip | health)), F1 = 2 / (1/precision + 1/recall), prior π",
			"P(trip | ·) is the binomial tail in n, averaged over the outage's failure rate",
		},
		Inputs: []Input{{Name: "rule", Value: in.Rule}, {Name: "samples", Value: in.Samples}, {"healthy", in.Healthy, "failure rate in health"}, {"prior", in.Prior, "share of the time that is an outage"},
			{Name: "mix", Value: in.Mix}, {"full", in.Full, "failure rate"}, {Name: "uniform-from", Value: in.UniformFrom}, {Name: "uniform-to", Value: in.UniformTo},
			{"partial", in.Partial, "mean failure rate"}, {"concentration", in.Concentration, "of the Beta distribution, 0 is no spread"}, {Name: "step", Value: in.Step}},
	}
	t := Table{Title: "The best threshold by kind of outage", Columns: []Column{{"outages", ""}, {"best", ""}, {"F1", ""}, {"precision", ""}, {"recall", ""},
		{"F1 within 0.01", ""}, {"F1 at 0.5", ""}}}
	for _, v := range rows {
		t.Rows = append(t.Rows, []any{v.name, v.best, v.bestQ.f1, v.bestQ.precision, v.bestQ.recall, fmt.Sprintf("%s to %s", short(v.plateau[0]), short(v.plateau[1])), v.half.f1})
	}
	by := Table{Title: "The mix, by threshold", Columns: []Column{{"threshold", ""}, {"failures to trip", ""}, {"precision", ""}, {"recall", ""}, {"F1", ""}}}
	every := max(1, int(math.Ceil(0.05/in.Step-1e-9)))
	for i, th := range mixed.thresholds {
		if (i+1)%every == 0 {
			q := mixed.all[i]
			k := any(failuresFor(in.Rule, in.Samples, th))
			if k == in.Samples+1 {
				k = "never"
			}
			by.Rows = append(by.Rows, []any{th, k, q.precision, q.recall, q.f1})
		}
	}
	r.Tables = []Table{t, by}

	fits := func(v verdictOn) bool { return v.half.f1 >= v.bestQ.f1-plateauWithin }
	var where []string
	for _, v := range rows[:len(rows)-1] {
		if fits(v) {
			name, _, _ := strings.Cut(v.name, ":")
			where = append(where, name)
		}
	}
	numbers := fmt.Sprintf("For the mix the best is %s with F1 %.3f, against %.3f at 0.5.", short(mixed.best), mixed.bestQ.f1, mixed.half.f1)
	switch {
	case fits(mixed):
		r.Verdict, r.Because = Holds, fmt.Sprintf("for the mix F1 is %.3f at 0.5, the best %.3f.", mixed.half.f1, mixed.bestQ.f1)
	case len(where) > 0:
		r.Verdict, r.Because = HoldsOnlyIf, fmt.Sprintf("the outages are of the kind %s. %s", strings.Join(where, " or "), numbers)
	default:
		r.Verdict, r.Because = False, "it is not, for any kind of outage here. "+numbers
	}
	best := fmt.Sprintf("the best rule trips from a probability of %s on and not at %s", short(mixed.above), short(mixed.below))
	switch {
	case math.IsNaN(mixed.below):
		best = "the best rule trips on anything"
	case math.IsNaN(mixed.above):
		best = "the best rule trips on nothing"
	}
	r.Notes = []string{
		fmt.Sprintf("If what is compared with the threshold is the calibrated probability of an outage, the best threshold is half the best F1, so never above 0.5: here %s, and %s.",
			short(mixed.bestQ.f1/2), best),
		"The numbers people quote assume 20 outcomes and the breaker's rule, 2 % failures in health, an outage 10 % of the time; full outages in which 80 % fail; partial ones of a Beta distribution with mean 0.3 and concentration 17 (standard deviation 0.11).",
	}
	f1s := plot.Chart{Title: "F1 by kind of outage", X: "threshold", Y: "F1", YMin: 0, YMax: 1.02}
	for _, v := range rows {
		s := plot.Series{X: v.thresholds}
		s.Name, _, _ = strings.Cut(v.name, ":")
		for _, q := range v.all {
			s.Y = append(s.Y, q.f1)
		}
		s.Dashed = v.name == symmetric.name
		f1s.Series = append(f1s.Series, s)
	}
	p, c, f := plot.Series{Name: "precision", X: mixed.thresholds}, plot.Series{Name: "recall", X: mixed.thresholds}, plot.Series{Name: "F1", X: mixed.thresholds}
	for _, q := range mixed.all {
		p.Y, c.Y, f.Y = append(p.Y, q.precision), append(c.Y, q.recall), append(f.Y, q.f1)
	}
	r.Panels = []plot.Panel{f1s, plot.Chart{Title: "The mix", X: "threshold", Y: "share", YMin: 0, YMax: 1.02, Series: []plot.Series{p, c, f}}}
	return r, nil
}

var outageKinds = [...]string{"full", "uniform", "partial"}

// parseMix reads weights by kind and makes them sum to 1.
func parseMix(s string) (out [len(outageKinds)]float64, err error) {
	bad := &InputError{"mix", strconv.Quote(s), "kinds with weights, such as full=2,uniform=1; kinds are full, uniform and partial, weights from 0 to 1e6, not all 0"}
	sum := 0.0
	for _, part := range strings.Split(s, ",") {
		name, weight, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return out, bad
		}
		w, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
		if err != nil || !(w >= 0 && w <= 1e6) {
			return out, bad
		}
		known := false
		for i, k := range outageKinds {
			if k == strings.TrimSpace(name) {
				out[i] += w
				known = true
			}
		}
		if !known {
			return out, bad
		}
		sum += w
	}
	if !(sum > 1e-12) {
		return out, bad
	}
	for i := range out {
		out[i] /= sum
	}
	return out, nil
}
