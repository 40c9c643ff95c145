package model

import (
	"fmt"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// BreakerInput is what [Breaker] depends on.
type BreakerInput struct {
	Failures, Successes int     // what the breaker has seen, each 0 to 100,000
	Threshold           float64 // of the article's rule on the posterior mean, 0.01 to 0.99
	FailureRate         float64 // of a healthy target, 0 to 0.49
	Theta               float64 // failure probability that the posterior is asked about, 0.01 to 0.99
	// What a check costs, if it was measured: of a closed circuit, and of one that is open and probes. 0 is not measured.
	CheckClosed, CheckProbing time.Duration
}

// DefaultBreaker is the claim's case: one failure, nothing else.
func DefaultBreaker() BreakerInput {
	return BreakerInput{Failures: 1, Successes: 0, Threshold: 0.5, FailureRate: 0.01, Theta: 0.5}
}

func posteriorMean(f, s int) float64 { return float64(f+1) / float64(f+s+2) }

// everTrips is the probability that the failures ever outnumber the successes, which is when the mean exceeds 1/2, for calls
// that fail at rate p < 1/2: the walk that goes up with p and down with 1−p ever reaches +1.
func everTrips(p float64) float64 { return p / (1 - p) }

// tripsWithin is the probability that it does so within n calls, walk by walk: the height's distribution, with what has reached
// +1 taken out.
func tripsWithin(p float64, n int) float64 {
	at, next := make([]float64, n+2), make([]float64, n+2) // at[d]: probability to be d below 0
	at[0] = 1
	tripped := 0.0
	for step := range n {
		clear(next[:step+2])
		for d := 0; d <= step; d++ {
			if at[d] < 1e-300 {
				continue
			}
			if d == 0 {
				tripped += at[d] * p
			} else {
				next[d-1] += at[d] * p
			}
			next[d+1] += at[d] * (1 - p)
		}
		at, next = next, at
	}
	return tripped
}

// straightFailures is how many failures in a row open the product's adaptive circuit, asked of the circuit itself; 0 if it
// takes more than it remembers.
func straightFailures(timedOut bool) int {
	b, err := breaker.New(breaker.Config{})
	if err != nil {
		return 0
	}
	for n := 1; n <= 64; n++ {
		if b.Failure(time.Duration(n)*time.Millisecond, timedOut, 0, 0) {
			return n
		}
	}
	return 0
}

// Breaker tells what one failure does to the article's circuit, and what the adaptive one waits for.
func Breaker(in BreakerInput) (Report, error) {
	err := firstError(intWithin("failures", in.Failures, 0, 100_000), intWithin("successes", in.Successes, 0, 100_000), within("threshold", in.Threshold, 0.01, 0.99),
		within("failure-rate", in.FailureRate, 0, 0.49), within("theta", in.Theta, 0.01, 0.99))
	if err != nil {
		return Report{}, err
	}
	c, err := breaker.Config{}.Normalize()
	if err != nil {
		return Report{}, err
	}
	b, err := breaker.New(breaker.Config{Article: true, Threshold: in.Threshold})
	if err != nil {
		return Report{}, err
	}
	mean, trips := posteriorMean(in.Failures, in.Successes), b.MeanTrips(uint64(in.Failures), uint64(in.Successes))
	r := Report{
		Model: "breaker",
		Claim: fmt.Sprintf("%s and %s move the mean of the Beta(1,1) posterior to 2/3", plural(in.Failures, "failure", "failures"), plural(in.Successes, "success", "successes")),
		Formula: []string{
			"mean = (f+1)/(f+s+2); the article's circuit opens when it exceeds the threshold",
			"P(θ > x | f, s) = 1 − I_x(f+1, s+1) = P(Bin(f+s+1, x) ≤ f)",
			"calls failing at rate p trip an empty window at once with probability p, and ever with p/(1−p): a random walk that reaches +1",
			fmt.Sprintf("the adaptive circuit opens when P(θ > θ*) ≥ %s: θ* is %s, or %s if at least half of the failures are timeouts", short(c.Confidence), short(c.ThetaFast), short(c.ThetaSlow)),
		},
		Inputs: []Input{{Name: "failures", Value: in.Failures}, {Name: "successes", Value: in.Successes}, {Name: "threshold", Value: in.Threshold},
			{"failure-rate", in.FailureRate, "of a healthy target"}, {Name: "theta", Value: in.Theta}},
	}
	seen := Table{Title: "What the outcomes say", Columns: []Column{{"failures", ""}, {"successes", ""}, {"posterior mean", ""}, {"article trips", ""},
		{"P(θ > " + short(in.Theta) + ")", ""}, {"P(θ > " + short(c.ThetaSlow) + ")", ""}, {"P(θ > " + short(c.ThetaFast) + ")", ""}}}
	row := func(f, s int) {
		seen.Rows = append(seen.Rows, []any{f, s, posteriorMean(f, s), b.MeanTrips(uint64(f), uint64(s)), posteriorAbove(f, s, in.Theta),
			posteriorAbove(f, s, c.ThetaSlow), posteriorAbove(f, s, c.ThetaFast)})
	}
	slow, fast := straightFailures(true), straightFailures(false)
	for _, fs := range [][2]int{{1, 0}, {4, 0}, {slow, 0}, {fast, 0}} {
		if fs != [2]int{in.Failures, in.Successes} {
			row(fs[0], fs[1])
		}
	}
	row(in.Failures, in.Successes)

	walk := Table{Title: "A healthy target trips the article's circuit at a threshold of 0.5", Columns: []Column{{"failure rate p", ""}, {"at its first call", ""},
		{"within 10", ""}, {"within 100", ""}, {"within 1000", ""}, {"ever, p/(1−p)", ""}}}
	for _, p := range with([]float64{0.001, 0.01, 0.05}, in.FailureRate) {
		walk.Rows = append(walk.Rows, []any{p, p, tripsWithin(p, 10), tripsWithin(p, 100), tripsWithin(p, 1000), everTrips(p)})
	}
	rule := Table{Title: "What the adaptive circuit waits for", Columns: []Column{{"failures in a row", ""}, {"θ*", ""}, {"failures", ""}, {"P(θ > θ*)", ""}, {"by chance at p = " + short(in.FailureRate), ""}}}
	rule.Rows = [][]any{
		{"errors that come back fast", c.ThetaFast, fast, posteriorAbove(fast, 0, c.ThetaFast), math.Pow(in.FailureRate, float64(fast))},
		{"timeouts", c.ThetaSlow, slow, posteriorAbove(slow, 0, c.ThetaSlow), math.Pow(in.FailureRate, float64(slow))},
	}
	r.Tables = []Table{seen, walk, rule}

	switch {
	case math.Abs(mean-2.0/3) < 1e-9 && trips:
		r.Verdict = Holds
		r.Because = fmt.Sprintf("but it is a trap. That is above %s, so the article's circuit opens. A target that fails %s of its calls opens it at the first call with probability %s, and with probability %s before the mean settles.",
			short(in.Threshold), percent(in.FailureRate), short(in.FailureRate), short(everTrips(in.FailureRate)))
	case math.Abs(mean-2.0/3) < 1e-9:
		r.Verdict, r.Because = Holds, fmt.Sprintf("with a threshold of %s the article's circuit stays closed.", short(in.Threshold))
	default:
		r.Verdict = False
		r.Because = fmt.Sprintf("the mean is %s, and the article's circuit %s.", short(mean), map[bool]string{true: "opens", false: "stays closed"}[trips])
	}
	r.Notes = []string{fmt.Sprintf("One window that forgets starts the walk anew: the article's chance is per quiet period, not per lifetime. The adaptive circuit takes %d fast errors or %d timeouts in a row.", fast, slow)}
	r.Panels = []plot.Panel{straightChart(c, in.Successes, slow, fast)}
	if in.CheckClosed > 0 && in.CheckProbing > 0 {
		claimed := func(name string, got, claim time.Duration) []any {
			return []any{name, float64(claim) / 1e6, float64(got) / 1e6, float64(claim) / float64(got)}
		}
		r.Tables = append(r.Tables, Table{Title: "A check, measured on this machine", Columns: []Column{{"circuit", ""}, {"claimed", "ms"}, {"measured", "ms"}, {"times cheaper", ""}},
			Rows: [][]any{claimed("closed: admit and record", in.CheckClosed, 50*time.Microsecond), claimed("open: refuse or probe", in.CheckProbing, 2*time.Millisecond)}})
	} else {
		r.Notes = append(r.Notes, "“A check costs 0.05 ms, 2 ms half-open” is measured by `go run ./ratios` in bench/, or here with --measure.")
	}
	return r, nil
}

// straightChart shows how fast failures in a row, after some successes, convince each rule.
func straightChart(c breaker.Config, successes, slow, fast int) plot.Chart {
	chart := plot.Chart{Title: "What failures in a row prove", X: "failures in a row", Y: "probability", YMin: 0, YMax: 1.02}
	if successes > 0 {
		chart.X += fmt.Sprintf(" after %d successes", successes)
	}
	last := fast + 10
	add := func(name string, f func(failures int) float64) {
		s := plot.Series{Name: name}
		for n := range last + 1 {
			s.X, s.Y = append(s.X, float64(n)), append(s.Y, f(n))
		}
		chart.Series = append(chart.Series, s)
	}
	add("posterior mean", func(n int) float64 { return posteriorMean(n, successes) })
	for _, x := range []float64{0.5, c.ThetaSlow, c.ThetaFast} {
		add("P(θ > "+short(x)+")", func(n int) float64 { return posteriorAbove(n, successes, x) })
	}
	chart.Series = append(chart.Series, plot.Series{Name: "confidence asked for", X: []float64{0, float64(last)}, Y: []float64{c.Confidence, c.Confidence}, Dashed: true})
	if successes == 0 {
		chart.Bands = []plot.Band{{From: float64(slow), To: float64(slow), Label: fmt.Sprintf("%d timeouts", slow)}, {From: float64(fast), To: float64(fast), Label: fmt.Sprintf("%d errors", fast)}}
	}
	return chart
}
