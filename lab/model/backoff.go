package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// BackoffInput is what [Backoff] depends on.
type BackoffInput struct {
	Law          string        // whose base and ceiling are judged: a name that backoff.ParseLaw reads
	Base, Max    time.Duration // of every law but pressure, 1 ms to 1 h
	PressureBase time.Duration // of the pressure law, 1 ms to 1 h; cut at Max
	CPS          []float64     // pressures at which the pressure law is shown, each 0 to 1
	Attempts     int           // rows of the schedule, 1 to 30
	Recovery     Recovery      // how long an outage lasts
	AttemptCost  float64       // of a wasted attempt, 0 to 1e6; not 0 with SecondCost
	SecondCost   float64       // of a second lost after the recovery, 0 to 1e6
	Factor       float64       // a setting is right that costs at most so many times the best one, 1.01 to 100
	Paths        int           // draws of the jitter, 2 to 2,000
	Seed         uint64        // of the jitter
}

// A Recovery is a distribution of the length of outages.
type Recovery struct {
	Kind  string        // exponential, lognormal, uniform (0 to twice the mean), constant or pareto
	Mean  time.Duration // 1 ms to 24 h
	Sigma float64       // of the lognormal's logarithm, 0.05 to 5
	Alpha float64       // tail exponent of the Pareto, 1.05 to 100
}

// DefaultBackoff is the claim's case: 100 ms to 30 s, for outages of 30 s in the mean, a wasted attempt being as bad as a second
// lost.
func DefaultBackoff() BackoffInput {
	return BackoffInput{Law: "exponential", Base: backoff.DefaultBase, Max: backoff.DefaultMax, PressureBase: backoff.DefaultPressureBase, CPS: []float64{0, 0.3, 0.7},
		Attempts: 10, Recovery: Recovery{Kind: "exponential", Mean: 30 * time.Second, Sigma: 1, Alpha: 2}, AttemptCost: 1, SecondCost: 1, Factor: 2, Paths: 100, Seed: 1}
}

// A Range is a cell of a table: from and to, in seconds.
type Range struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

func (r Range) String() string {
	if r.From == r.To {
		return seconds(r.To)
	}
	from, to := seconds(r.From), seconds(r.To)
	if r.From == 0 {
		from = "0"
	}
	for _, unit := range []string{" ms", " s", " min"} {
		if cut(from, unit) != from && cut(to, unit) != to {
			from = cut(from, unit)
			break
		}
	}
	return from + "–" + to
}

func cut(s, suffix string) string {
	if len(s) > len(suffix) && s[len(s)-len(suffix):] == suffix {
		return s[:len(s)-len(suffix)]
	}
	return s
}

// survival is P(D > t), and residual E[max(0, D − t)], of the length D of an outage, in seconds.

func (r Recovery) survival(t float64) float64 {
	m := r.Mean.Seconds()
	if t <= 0 {
		return 1
	}
	switch r.Kind {
	case "lognormal":
		return normalTail((math.Log(t) - r.mu()) / r.Sigma)
	case "uniform":
		return max(0, 1-t/(2*m))
	case "constant":
		return one(t < m)
	case "pareto":
		return min(1, math.Pow(r.scale()/t, r.Alpha))
	}
	return math.Exp(-t / m)
}

func (r Recovery) residual(t float64) float64 {
	m := r.Mean.Seconds()
	if t <= 0 {
		return m
	}
	switch r.Kind {
	case "lognormal":
		z := (math.Log(t) - r.mu()) / r.Sigma
		return max(0, m*normalTail(z-r.Sigma)-t*normalTail(z))
	case "uniform":
		return max(0, 2*m-t) * max(0, 2*m-t) / (4 * m)
	case "constant":
		return max(0, m-t)
	case "pareto":
		if s := r.scale(); t > s {
			return math.Pow(s/t, r.Alpha) * t / (r.Alpha - 1)
		}
		return m - t
	}
	return m * math.Exp(-t/m)
}

func (r Recovery) mu() float64    { return math.Log(r.Mean.Seconds()) - r.Sigma*r.Sigma/2 }
func (r Recovery) scale() float64 { return r.Mean.Seconds() * (r.Alpha - 1) / r.Alpha }

func (r Recovery) validate() error {
	err := firstError(durationWithin("mean", r.Mean, time.Millisecond, 24*time.Hour), within("sigma", r.Sigma, 0.05, 5), within("alpha", r.Alpha, 1.05, 100))
	switch r.Kind {
	case "exponential", "lognormal", "uniform", "constant", "pareto":
	default:
		err = firstError(err, &InputError{"recovery", r.Kind, "exponential, lognormal, uniform, constant or pareto"})
	}
	return err
}

// A waiter is a law with its scale, at a pressure.
type waiter struct {
	backoff.Config
	cps float64
}

// streams are the draws of the jitter that all laws are judged with: row by path, column by attempt. Paths come in pairs of
// mirrored draws, so that what one waits too long the other waits too short.
type streams [][]float64

const (
	drawnSteps  = 256 // per path, then they repeat
	searchPaths = 20  // of the draws, with which the best setting is looked for
	longSteps   = 32  // attempts from which a law at its ceiling may be taken for a renewal process
)

func newStreams(paths int, seed uint64) streams {
	rng := rand.New(rand.NewPCG(seed, 0x6261636b))
	out := make(streams, paths)
	for i := range out {
		out[i] = make([]float64, drawnSteps)
		for j := range out[i] {
			if i%2 == 1 {
				out[i][j] = math.Nextafter(1-out[i-1][j], 0)
				continue
			}
			out[i][j] = rng.Float64()
		}
	}
	return out
}

// expect returns the expected number of attempts wasted in an outage, the first one (which found it) not counted, and the
// expected time from the recovery to the attempt that succeeds. With t_n the time of the n-th retry and d_n the wait before
// the next, they are Σ_{n≥1} P(D > t_n) and Σ_{n≥0} E[d_n]·P(D > t_n) − E[D], t_0 = 0: exact in D, drawn in the jitter.
func (w waiter) expect(rec Recovery, draws streams) (wasted, lost float64) {
	steady, square := w.steady(draws)
	for _, u := range draws {
		t, previous := 0.0, time.Duration(0)
		alive := 1.0
		for n := 0; ; n++ {
			lo, hi := w.Bounds(backoff.Input{Attempt: n, CPS: w.cps, Previous: previous})
			lost += alive * (lo + hi).Seconds() / 2
			d := lo + time.Duration(u[n%drawnSteps]*float64(hi-lo))
			previous = d
			t += d.Seconds()
			alive = rec.survival(t)
			wasted += alive
			if alive >= 1e-9 && n < longSteps {
				continue
			}
			left := rec.residual(t)
			if alive < 1e-9 && left < 1e-9*rec.Mean.Seconds() {
				break
			}
			// Far from the end at its ceiling, a law is a renewal process: it makes (D−t)/μ + E[d²]/2μ² − 1 more attempts.
			if n >= longSteps && (left > 20*steady*alive || n >= 100_000) {
				rest := max(0, left/steady+(square/(2*steady*steady)-1)*alive)
				wasted += rest
				lost += steady * (alive + rest)
				break
			}
		}
	}
	n := float64(len(draws))
	return wasted / n, max(0, lost/n-rec.Mean.Seconds())
}

// steady returns the mean of the delay and of its square, in seconds, once the law is at its ceiling.
func (w waiter) steady(draws streams) (mean, square float64) {
	lo, hi := w.Bounds(backoff.Input{Attempt: 1000, CPS: w.cps, Previous: w.Max})
	if w.Law != backoff.Decorrelated {
		a, b := lo.Seconds(), hi.Seconds()
		return (a + b) / 2, (a*a + a*b + b*b) / 3
	}
	previous, n := w.Max, 0
	for _, u := range draws[:min(len(draws), 20)] {
		for _, x := range u {
			lo, hi := w.Bounds(backoff.Input{Attempt: 1000, Previous: previous})
			previous = lo + time.Duration(x*float64(hi-lo))
			mean += previous.Seconds()
			square += previous.Seconds() * previous.Seconds()
			n++
		}
	}
	return mean / float64(n), square / float64(n)
}

// setting is a base and a ceiling with what they cost for each mean recovery.
type setting struct {
	base, max time.Duration
	cost      []float64
}

// ladder is 1, 2 and 5 in every decade from 1 ms to 1 h: the cost is flat around its minimum.
func ladder() []time.Duration {
	var out []time.Duration
	for unit := time.Millisecond; unit <= time.Hour; unit *= 10 {
		for _, m := range []time.Duration{1, 2, 5} {
			if d := m * unit; d <= time.Hour {
				out = append(out, d)
			}
		}
	}
	return out
}

// recoveries are the mean outages that a setting is judged by, 100 ms to 10 min.
func recoveries() []time.Duration {
	s := time.Second
	return []time.Duration{s / 10, s / 2, s, 2 * s, 5 * s, 10 * s, 30 * s, 60 * s, 300 * s, 600 * s}
}

// Backoff shows the retry schedule of every law, what each wastes and loses in outages of a given length, and which base and
// ceiling cost least.
func Backoff(in BackoffInput) (Report, error) {
	law, errLaw := backoff.ParseLaw(in.Law)
	err := firstError(durationWithin("base", in.Base, time.Millisecond, time.Hour), durationWithin("max", in.Max, in.Base, time.Hour),
		durationWithin("pressure-base", in.PressureBase, time.Millisecond, time.Hour), countWithin("cps", len(in.CPS), 1, 5), intWithin("attempts", in.Attempts, 1, 30), in.Recovery.validate(),
		within("attempt-cost", in.AttemptCost, 0, 1e6), within("second-cost", in.SecondCost, 0, 1e6), within("factor", in.Factor, 1.01, 100), intWithin("paths", in.Paths, 2, 2000))
	for _, c := range in.CPS {
		err = firstError(err, within("cps", c, 0, 1))
	}
	if err == nil && errLaw != nil {
		err = &InputError{"law", in.Law, "pressure, exponential, full-jitter, equal-jitter or decorrelated"}
	}
	if err == nil && in.AttemptCost+in.SecondCost < 1e-6 {
		err = &InputError{"attempt-cost", in.AttemptCost, "a cost above 0 for an attempt or for a second"}
	}
	if err != nil {
		return Report{}, err
	}
	in.PressureBase = min(in.PressureBase, in.Max)
	r := Report{
		Model: "backoff",
		Claim: fmt.Sprintf("%v to %v is the right base and ceiling of the %s delay", in.Base, in.Max, law),
		Formula: []string{
			"retry n at t_n, the sum of the delays before it; outage of length D: wasted = Σ P(D > t_n), lost = E[first t_n ≥ D] − E[D]",
			fmt.Sprintf("cost = wasted × %s + seconds lost × %s", short(in.AttemptCost), short(in.SecondCost)),
		},
		Inputs: []Input{{Name: "law", Value: law.String()}, {Name: "base", Value: in.Base}, {Name: "max", Value: in.Max}, {Name: "pressure-base", Value: in.PressureBase}, {Name: "cps", Value: in.CPS},
			{Name: "attempts", Value: in.Attempts}, {Name: "recovery", Value: in.Recovery.Kind}, {Name: "mean", Value: in.Recovery.Mean}},
	}
	switch in.Recovery.Kind {
	case "lognormal":
		r.Inputs = append(r.Inputs, Input{Name: "sigma", Value: in.Recovery.Sigma})
	case "pareto":
		r.Inputs = append(r.Inputs, Input{Name: "alpha", Value: in.Recovery.Alpha})
	}
	r.Inputs = append(r.Inputs, Input{Name: "attempt-cost", Value: in.AttemptCost}, Input{Name: "second-cost", Value: in.SecondCost}, Input{"factor", in.Factor, "of the best cost, up to which a setting is right"},
		Input{Name: "paths", Value: in.Paths}, Input{Name: "seed", Value: in.Seed})

	draws := newStreams(in.Paths+in.Paths%2, in.Seed)
	cost := func(wasted, lost float64) float64 { return wasted*in.AttemptCost + lost*in.SecondCost }
	laws, names := in.laws()
	schedule := Table{Title: "Delay after each failed attempt", Columns: []Column{{"attempt", ""}}}
	for _, name := range names {
		schedule.Columns = append(schedule.Columns, Column{Name: name})
	}
	widest := make([]time.Duration, len(laws)) // delay before, at its longest
	for n := range in.Attempts {
		row := []any{n}
		for i, w := range laws {
			lo, hi := w.Bounds(backoff.Input{Attempt: n, CPS: w.cps, Previous: widest[i]})
			widest[i] = hi
			row = append(row, Range{lo.Seconds(), hi.Seconds()})
		}
		schedule.Rows = append(schedule.Rows, row)
	}
	mean := in.Recovery.Mean.Seconds()
	byLaw := Table{Title: fmt.Sprintf("An outage of %s in the mean (%s)", seconds(mean), in.Recovery.Kind), Columns: []Column{{"law", ""}, {"attempts wasted", ""}, {"lost after it", "s"},
		{"lost, share of the outage", ""}, {"cost", ""}}}
	for i, w := range laws {
		wasted, lost := w.expect(in.Recovery, draws)
		byLaw.Rows = append(byLaw.Rows, []any{names[i], wasted, lost, lost / mean, cost(wasted, lost)})
	}

	// The judged law at every base and ceiling, for every mean outage and the user's own, which comes last.
	judged := func(base, ceiling time.Duration) waiter {
		return waiter{backoff.Config{Law: law, Base: base, Max: ceiling}, in.CPS[0]}
	}
	means := append(recoveries(), in.Recovery.Mean)
	at := func(base, ceiling, m time.Duration, draws streams) (wasted, lost float64) {
		rec := in.Recovery
		rec.Mean = m
		return judged(base, ceiling).expect(rec, draws)
	}
	var grid []setting
	best := make([]int, len(means))
	for _, base := range ladder() {
		for _, ceiling := range ladder() {
			if ceiling < base {
				continue
			}
			s := setting{base: base, max: ceiling}
			for i, m := range means {
				s.cost = append(s.cost, cost(at(base, ceiling, m, draws[:min(len(draws), searchPaths)])))
				if len(grid) == 0 || s.cost[i] < grid[best[i]].cost[i]*(1-1e-9) {
					best[i] = len(grid)
				}
			}
			grid = append(grid, s)
		}
	}
	base := in.Base
	if law == backoff.Pressure {
		base = in.PressureBase
		r.Claim = fmt.Sprintf("%v to %v is the right base and ceiling of the %s delay", base, in.Max, law)
	}
	tuning := Table{Title: fmt.Sprintf("%v to %v against the best base and ceiling for each mean outage", base, in.Max), Columns: []Column{{"mean", ""}, {"wasted", ""},
		{"lost", "s"}, {"cost", ""}, {"best base", ""}, {"ceiling", ""}, {"cost", ""}, {"ratio", ""}, {"right", ""}}}
	var right []time.Duration
	given := setting{base: base, max: in.Max}
	for i, m := range recoveries() {
		wasted, lost := at(base, in.Max, m, draws)
		b := grid[best[i]]
		b.cost[i] = cost(at(b.base, b.max, m, draws))
		c := cost(wasted, lost)
		given.cost = append(given.cost, c)
		ok := c <= b.cost[i]*in.Factor
		if ok {
			right = append(right, m)
		}
		tuning.Rows = append(tuning.Rows, []any{seconds(m.Seconds()), wasted, lost, c, b.base.String(), b.max.String(), b.cost[i], ratio(c, b.cost[i]), ok})
	}
	worst := func(s setting) float64 {
		w := 0.0
		for i := range recoveries() {
			if b := grid[best[i]].cost[i]; b > 0 { // an outage known to the instant can be met for nothing
				w = max(w, ratio(s.cost[i], b))
			}
		}
		return w
	}
	robust := grid[0]
	for _, s := range grid {
		if worst(s) < worst(robust)*(1-1e-9) {
			robust = s
		}
	}
	all := Table{Title: "One setting for all of them", Columns: []Column{{"setting", ""}, {"base", ""}, {"ceiling", ""}, {"worst ratio", ""}}}
	all.Rows = [][]any{{"as given", base.String(), in.Max.String(), worst(given)}, {"smallest worst ratio", robust.base.String(), robust.max.String(), worst(robust)}}
	r.Tables = []Table{schedule, byLaw, tuning, all}

	mine := grid[best[len(means)-1]]
	numbers := fmt.Sprintf("For %s the best is %v to %v.", seconds(mean), mine.base, mine.max)
	switch {
	case len(right) == len(recoveries()):
		r.Verdict, r.Because = Holds, fmt.Sprintf("it costs at most %s times the best for every mean outage of %s to %s. %s", short(in.Factor), seconds(recoveries()[0].Seconds()), seconds(600), numbers)
	case len(right) == 0:
		r.Verdict, r.Because = False, fmt.Sprintf("it costs more than %s times the best for every mean outage. %s", short(in.Factor), numbers)
	default:
		r.Verdict, r.Because = HoldsOnlyIf, fmt.Sprintf("outages last %s in the mean: there it costs at most %s times the best. %s", spans(right), short(in.Factor), numbers)
	}
	if worst(given) > worst(robust)*1.05 {
		r.Because += fmt.Sprintf(" Not knowing, %v to %v is never worse than %s times the best; as given it is %s.", robust.base, robust.max, short(worst(robust)), short(worst(given)))
	}
	r.Notes = []string{
		"A single caller without a limit on retries, whose failed attempts take no time. A herd wants more jitter, not less waiting: see jitter.",
		"When outages have no memory (exponential) a constant delay is best, and √(2 × mean × attempt cost / second cost) about its length; what growth buys is that the mean need not be known.",
	}
	if in.Recovery.Kind == "constant" {
		r.Notes = append(r.Notes, "An outage whose length is known is met by one retry at its end; the best shown are those of the ladder 1, 2, 5.")
	}
	r.Panels = in.backoffPanels(law, grid, best, given, robust)
	return r, nil
}

// ratio is a/b, 1 for 0/0.
func ratio(a, b float64) float64 {
	if a <= b {
		return 1
	}
	return a / b
}

// spans writes the recoveries that are right as ranges of neighbours.
func spans(right []time.Duration) string {
	all, out := recoveries(), ""
	in := func(i int) bool {
		if i < 0 || i >= len(all) {
			return false
		}
		for _, m := range right {
			if m == all[i] {
				return true
			}
		}
		return false
	}
	for i := 0; i < len(all); i++ {
		if !in(i) {
			continue
		}
		j := i
		for in(j + 1) {
			j++
		}
		if out != "" {
			out += " or "
		}
		if out += seconds(all[i].Seconds()); j > i {
			out += " to " + seconds(all[j].Seconds())
		}
		i = j
	}
	return out
}

// laws are those of package backoff, the pressure law at every pressure.
func (in BackoffInput) laws() (laws []waiter, names []string) {
	for _, l := range []backoff.Law{backoff.Exponential, backoff.FullJitter, backoff.EqualJitter, backoff.Decorrelated} {
		laws = append(laws, waiter{Config: backoff.Config{Law: l, Base: in.Base, Max: in.Max}})
		names = append(names, l.String())
	}
	for _, c := range in.CPS {
		laws = append(laws, waiter{backoff.Config{Law: backoff.Pressure, Base: in.PressureBase, Max: in.Max}, c})
		names = append(names, "pressure "+short(c))
	}
	return laws, names
}

func (in BackoffInput) backoffPanels(law backoff.Law, grid []setting, best []int, given, robust setting) []plot.Panel {
	chart := plot.Chart{Title: "Cost by the mean length of an outage (" + in.Recovery.Kind + ")", X: "mean outage, s", Y: "cost ÷ the best for that mean", LogX: true, LogY: true}
	line := func(name string, costs []float64) {
		s := plot.Series{Name: name}
		for i, m := range recoveries() {
			s.X, s.Y = append(s.X, m.Seconds()), append(s.Y, ratio(costs[i], grid[best[i]].cost[i]))
		}
		chart.Series = append(chart.Series, s)
	}
	line(fmt.Sprintf("%s, %v to %v", law, given.base, given.max), given.cost)
	line(fmt.Sprintf("%s, %v to %v: smallest worst ratio", law, robust.base, robust.max), robust.cost)
	mine := grid[best[len(best)-1]]
	line(fmt.Sprintf("%s, %v to %v: best for %s", law, mine.base, mine.max, seconds(in.Recovery.Mean.Seconds())), mine.cost)

	steps := ladder()
	heat := plot.HeatMap{Title: fmt.Sprintf("Cost by base and ceiling, mean outage of %s", seconds(in.Recovery.Mean.Seconds())), X: "base, s", Y: "ceiling, s", LogX: true, LogY: true,
		Label: "cost ÷ the best", Min: 1, Max: 4}
	at := map[[2]time.Duration]float64{}
	last := len(best) - 1
	for _, s := range grid {
		at[[2]time.Duration{s.base, s.max}] = ratio(s.cost[last], grid[best[last]].cost[last])
	}
	for _, ceiling := range steps {
		heat.Xs, heat.Ys = append(heat.Xs, ceiling.Seconds()), append(heat.Ys, ceiling.Seconds())
		var row []float64
		for _, base := range steps {
			if v, ok := at[[2]time.Duration{base, ceiling}]; ok {
				row = append(row, v)
			} else {
				row = append(row, math.NaN())
			}
		}
		heat.Z = append(heat.Z, row)
	}
	return []plot.Panel{chart, heat}
}
