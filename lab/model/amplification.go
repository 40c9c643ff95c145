package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// AmplificationInput is what [Amplification] depends on.
type AmplificationInput struct {
	Retries     int     // after the original attempt, 0 to 100
	FailureRate float64 // of an attempt, 0 to 1
	Budget      float64 // retries per call that a budget allows, 0 to 100; 0 is no budget
}

// DefaultAmplification is the claim's case: 3 retries against a target that is down, a budget of 10 %.
func DefaultAmplification() AmplificationInput {
	return AmplificationInput{Retries: 3, FailureRate: 1, Budget: 0.1}
}

// amplification is the mean number of attempts of a call whose attempts fail independently at rate f, with r retries.
func amplification(f float64, r int) float64 {
	sum, term := 0.0, 1.0
	for range r + 1 { // the sum and not the quotient, which is 0/0 at f = 1
		sum += term
		term *= f
	}
	return sum
}

// withBudget is the same under a budget of b retries per call, as a long-term mean: it caps the retries, not the attempts.
func withBudget(f float64, r int, b float64) float64 {
	return 1 + min(amplification(f, r)-1, b)
}

// safeUtilisation is the utilisation by original attempts alone up to which the whole load fits, whatever fails.
func safeUtilisation(a float64) float64 { return 1 / a }

// Amplification tells how many attempts reach a target for each call when attempts fail and are retried, and how much of the
// target may be used without retries pushing it past its capacity.
func Amplification(in AmplificationInput) (Report, error) {
	if err := firstError(intWithin("retries", in.Retries, 0, 100), within("failure-rate", in.FailureRate, 0, 1), within("budget", in.Budget, 0, 100)); err != nil {
		return Report{}, err
	}
	r := Report{
		Model: "amplification",
		Claim: fmt.Sprintf("%d retries amplify the load of a target %d×", in.Retries, in.Retries+1),
		Formula: []string{
			"A(f) = 1 + f + … + f^r = (1 − f^(r+1)) / (1 − f): attempts for each call at a failure rate f of an attempt, r retries",
			"A(f) = 1 + min(f + … + f^r, β): the same with a budget of β retries for each call",
			"highest safe utilisation = 1 / A(1): what the calls alone may use of the target, if it is to survive that all of them fail",
		},
		Inputs: []Input{{Name: "retries", Value: in.Retries}, {Name: "failure-rate", Value: in.FailureRate}, {"budget", in.Budget, "retries for each call; 0 is none"}},
	}
	table := Table{Title: "Attempts for each call", Columns: []Column{{"failure rate", ""}, {fmt.Sprintf("%d retries", in.Retries), ""}}}
	budget := in.Budget > 0
	if budget {
		table.Columns = append(table.Columns, Column{"with the budget of " + percent(in.Budget), ""})
	}
	for _, f := range with([]float64{0.01, 0.1, 0.3, 0.5, 0.9, 1}, in.FailureRate) {
		row := []any{f, amplification(f, in.Retries)}
		if budget {
			row = append(row, withBudget(f, in.Retries, in.Budget))
		}
		table.Rows = append(table.Rows, row)
	}
	safe := Table{Title: "Highest safe utilisation", Columns: []Column{{"retries or budget", ""}, {"worst amplification", ""}, {"utilisation", ""}}}
	safe.Rows = append(safe.Rows, []any{fmt.Sprintf("%d retries, no budget", in.Retries), float64(in.Retries + 1), safeUtilisation(float64(in.Retries + 1))})
	budgets := []float64{0.1, 0.2}
	if budget && in.Budget != 0.1 && in.Budget != 0.2 {
		budgets = append(budgets, in.Budget)
	}
	for _, b := range budgets {
		a := withBudget(1, in.Retries, b)
		safe.Rows = append(safe.Rows, []any{"budget of " + percent(b), a, safeUtilisation(a)})
	}
	r.Tables = []Table{table, safe}

	got, claimed := amplification(in.FailureRate, in.Retries), float64(in.Retries+1)
	switch {
	case in.Retries == 0:
		r.Verdict, r.Because = Holds, "without retries there is one attempt for each call."
	case in.FailureRate == 1:
		r.Verdict = HoldsOnlyIf
		r.Because = fmt.Sprintf("every attempt fails: %s× at a failure rate of 1, but %s× at 0.5 and %s× at 0.1.", short(got), short(amplification(0.5, in.Retries)), short(amplification(0.1, in.Retries)))
	default:
		r.Verdict = False
		r.Because = fmt.Sprintf("at a failure rate of %s it is %s×; %s× needs a failure rate of 1.", short(in.FailureRate), short(got), short(claimed))
	}
	if budget && in.Retries > 0 {
		a := withBudget(1, in.Retries, in.Budget)
		r.Because += fmt.Sprintf(" With the budget it is never more than %s×.", short(a))
	}
	r.Notes = []string{"Attempts are taken to fail independently and the target's failure rate not to grow with its load. Where it does, A feeds f: see cascade."}

	chart := plot.Chart{Title: "Attempts for each call", X: "failure rate of an attempt", Y: "attempts per call", YMin: 0, YMax: math.NaN()}
	for _, n := range distinct(1, 2, 3, in.Retries) {
		if n > 0 {
			chart.Series = append(chart.Series, curve(plural(n, "retry", "retries"), 0, 1, 200, func(f float64) float64 { return amplification(f, n) }))
		}
	}
	if budget {
		s := curve(fmt.Sprintf("%d retries, budget of %s", in.Retries, percent(in.Budget)), 0, 1, 200, func(f float64) float64 { return withBudget(f, in.Retries, in.Budget) })
		s.Dashed = true
		chart.Series = append(chart.Series, s)
	}
	r.Panels = []plot.Panel{chart}
	return r, nil
}

// curve samples f at n+1 points from lo to hi, evenly.
func curve(name string, lo, hi float64, n int, f func(float64) float64) plot.Series {
	s := plot.Series{Name: name}
	for i := range n + 1 {
		x := lo + (hi-lo)*float64(i)/float64(n)
		s.X, s.Y = append(s.X, x), append(s.Y, f(x))
	}
	return s
}

// logCurve samples f at n+1 points from lo to hi, evenly in the logarithm.
func logCurve(name string, lo, hi float64, n int, f func(float64) float64) plot.Series {
	s := plot.Series{Name: name}
	for i := range n + 1 {
		x := lo * math.Pow(hi/lo, float64(i)/float64(n))
		s.X, s.Y = append(s.X, x), append(s.Y, f(x))
	}
	return s
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// with puts v into an ascending list unless it is there.
func with(list []float64, v float64) []float64 {
	i, found := slices.BinarySearch(list, v)
	if found {
		return list
	}
	return slices.Insert(list, i, v)
}

// distinct drops values that came before.
func distinct(vs ...int) []int {
	var out []int
	for _, v := range vs {
		seen := false
		for _, o := range out {
			seen = seen || o == v
		}
		if !seen {
			out = append(out, v)
		}
	}
	return out
}
