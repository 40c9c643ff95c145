package model

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/plot"
	"github.com/seed-a29ca62a/cortex/lab/policy"
)

// CascadeInput is a system, a load, a trigger and what stands against a cascade.
type CascadeInput struct {
	Servers      int
	Queue        int           // places to wait
	Service      time.Duration // mean, exponential
	Utilisation  float64       // ρ = λ/(cμ), of the calls alone
	Timeout      time.Duration // of an attempt
	Retries      int
	BaseDelay    time.Duration // of the simulator's clients; the chain's retries come at once
	Budget       float64       // retries for each call
	Window       time.Duration // of the breaker
	Sleep        time.Duration // of the breaker, between two probes
	Hang         time.Duration // the trigger: nothing is served for so long
	Horizon      time.Duration // after it
	Runs         int           // of the simulator; 0 = none
	Policies     []string      // that are simulated
	Seed         uint64
	Utilisations []float64 // of the curve
	Dependencies int
}

// DefaultCascade is the rig of the scenario suite with exponential service, and a hang of 5 s.
func DefaultCascade() CascadeInput {
	in := CascadeInput{Servers: 14, Queue: 2000, Service: 20 * time.Millisecond, Utilisation: 0.6, Timeout: 345 * time.Millisecond, Retries: 3,
		BaseDelay: 100 * time.Millisecond, Budget: 0.1, Window: 10 * time.Second, Sleep: 5 * time.Second, Hang: 5 * time.Second,
		Horizon: 25 * time.Second, Runs: 300, Policies: []string{"none", "exponential-jitter", "token-bucket", "hystrix", "cortex-adaptive"}, Seed: 1,
		Dependencies: 20}
	for _, x := range []int{10, 20, 22, 24, 26, 30, 40, 50, 60, 70, 80, 85, 90, 95} {
		in.Utilisations = append(in.Utilisations, float64(x)/100)
	}
	return in
}

func (in *CascadeInput) check() error {
	err := firstError(
		intWithin("servers", in.Servers, 1, 1000), intWithin("queue", in.Queue, 1, 20_000),
		durationWithin("service", in.Service, 10*time.Microsecond, time.Minute), within("utilisation", in.Utilisation, 0.01, 3),
		durationWithin("timeout", in.Timeout, time.Millisecond, time.Minute), intWithin("retries", in.Retries, 1, 20),
		durationWithin("base-delay", in.BaseDelay, time.Millisecond, time.Minute), within("budget", in.Budget, 0, 20),
		durationWithin("window", in.Window, time.Second, 10*time.Minute), durationWithin("sleep", in.Sleep, 100*time.Millisecond, 10*time.Minute),
		durationWithin("hang", in.Hang, 10*time.Millisecond, 10*time.Minute), durationWithin("horizon", in.Horizon, watch, 10*time.Minute),
		intWithin("runs", in.Runs, 0, 1_000_000), intWithin("dependencies", in.Dependencies, 1, 1_000_000),
		countWithin("utilisations", len(in.Utilisations), 0, 200))
	if err != nil {
		return err
	}
	for _, name := range in.Policies {
		if _, err := policy.Find(name); err != nil {
			return &InputError{"policies", name, "names of policies: see cortex sim --help"}
		}
	}
	most := in.Utilisation
	for i, u := range in.Utilisations {
		if err := within("utilisations", u, 0.01, 3); err != nil {
			return err
		}
		if i > 0 && u <= in.Utilisations[i-1] {
			return &InputError{"utilisations", u, "ascending numbers"}
		}
		most = max(most, u)
	}
	rate := float64(in.Servers) / in.Service.Seconds() * (1 + most*float64(in.Retries+1))
	if steps := rate * (in.Hang + in.Horizon).Seconds() * float64(in.Servers+in.Queue); steps > 2e9 {
		return &InputError{"queue", in.Queue, "a smaller or slower system, or a shorter hang and horizon: this would take too long"}
	}
	return nil
}

// rival is one thing that stands against a cascade, as a chain and as a policy of the simulator.
type rival struct {
	name, policy string
	law          retryLaw
	breaker      bool
}

func (in *CascadeInput) rivals() []rival {
	r := fmt.Sprintf("%d retries", in.Retries)
	return []rival{
		{"no retry", "none", retryLaw{0, -1}, false},
		{r, "exponential-jitter", retryLaw{in.Retries, -1}, false},
		{r + ", budget of " + percent(in.Budget), "token-bucket", retryLaw{in.Retries, in.Budget}, false},
		{r + ", breaker", "hystrix", retryLaw{in.Retries, -1}, true},
	}
}

func (in *CascadeInput) chain(utilisation float64, law retryLaw) *chain {
	mu := 1 / in.Service.Seconds()
	return newChain(in.Servers, in.Queue, utilisation*float64(in.Servers)*mu, mu, in.Timeout.Seconds(), law)
}

// collapses is the chance of a rival's chain to be collapsed where the simulator looks: in the middle of what it measures.
func (in *CascadeInput) collapses(r rival, utilisation float64) fate {
	var b *breakerRule
	if r.breaker {
		b = &breakerRule{in.Window.Seconds(), in.Sleep.Seconds()}
	}
	return in.chain(utilisation, r.law).trigger(in.Hang.Seconds(), (in.Horizon - watch/2).Seconds(), b)
}

// Cascade tells whether a hang makes a system collapse for good, by a birth–death chain and by runs of the simulator beside it.
func Cascade(ctx context.Context, in CascadeInput) (Report, error) {
	if err := in.check(); err != nil {
		return Report{}, err
	}
	r := Report{
		Model: "cascade",
		Claim: "a breaker takes the chance of a cascade from 20 % to less than 0.01 %",
		Formula: []string{
			"birth–death chain on n, the attempts in the system: up λ·A(p(n)), down μ·min(n, c), n ≤ c + K",
			"p(n) = P(Erlang(n−c+1, cμ) + Exp(μ) > T)    an attempt that finds n is not answered in time; 1 when the queue is full",
			"A(p) = 1 + p + … + p^r, with a budget at most 1 + β; a call is answered with 1 − p^(r+1)",
			"collapses for good where ρ·A(1) > 1: with r retries from ρ = 1/(1+r) on",
		},
		Inputs: []Input{
			{Name: "servers", Value: in.Servers}, {Name: "queue", Value: in.Queue}, {"service", in.Service, "mean, exponential"},
			{"utilisation", in.Utilisation, "of the calls alone"}, {Name: "timeout", Value: in.Timeout}, {Name: "retries", Value: in.Retries},
			{"base-delay", in.BaseDelay, "in the simulator"}, {"budget", in.Budget, "retries for each call"},
			{"window", in.Window, "of the breaker: opens when half of it failed"}, {"sleep", in.Sleep, "of the breaker, before a probe"},
			{"hang", in.Hang, "nothing is served"}, {"horizon", in.Horizon, "after it"}, {Name: "runs", Value: in.Runs}, {Name: "seed", Value: int(in.Seed)},
		},
		Notes: []string{
			"The chain's retries come at once and see the queue that their first attempt saw; real ones come a timeout and a delay later. So the chain errs on the side of the cascade: it collapses after a hang that is shorter by up to that time, and at up to 5 % less load. Its budget is a share of the calls, the simulator's token bucket one of the successes.",
			"A well's chance to be left within the horizon is that of its quasi-stationary distribution: 1 − e^(−t/τ), with τ the mean first-passage time.",
		},
	}
	r.Tables = []Table{in.wells()}
	after, seen, err := in.after(ctx)
	if err != nil {
		return Report{}, err
	}
	r.Tables = append(r.Tables, after)
	curve, chart, err := in.curve(ctx)
	if err != nil {
		return Report{}, err
	}
	if len(in.Utilisations) > 0 {
		r.Tables = append(r.Tables, curve)
		r.Panels = append(r.Panels, chart)
	}
	r.Tables = append(r.Tables, in.dependencies())
	r.Panels = append([]plot.Panel{in.landscape()}, r.Panels...)
	r.Verdict, r.Because = in.verdict(seen)
	return r, nil
}

// wells is the table of the metastable states.
func (in *CascadeInput) wells() Table {
	t := Table{Title: fmt.Sprintf("Metastable states at ρ = %s", short(in.Utilisation)),
		Columns: []Column{{"", ""}, {"load if all fail", "ρ·A(1)"}, {"healthy", "n"}, {"barrier", "n"}, {"collapsed", "n"},
			{"collapses by itself after", ""}, {"chance within the horizon", ""}, {"comes back after", ""}, {"chance within the horizon", ""}}}
	for _, x := range in.rivals() {
		if x.breaker { // the same wells, but for the time that it is open
			continue
		}
		c := in.chain(in.Utilisation, x.law)
		healthy, collapsed, barrier := c.wells()
		row := []any{x.name, in.Utilisation * x.law.attempts(1)}
		for _, n := range []int{healthy, barrier, collapsed} {
			if n < 0 {
				row = append(row, "–")
			} else {
				row = append(row, n)
			}
		}
		if barrier < 0 {
			row = append(row, "–", math.NaN(), "–", math.NaN())
		} else {
			there, back := c.passage(healthy, collapsed), c.passage(collapsed, healthy)
			row = append(row, longTime(there), chance(there, in.Horizon.Seconds()), longTime(back), chance(back, in.Horizon.Seconds()))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// longTime writes a time of which the logarithm of the seconds is known.
func longTime(ln float64) string {
	const year = 365.25 * 86400
	switch s := math.Exp(ln); {
	case s < 86400:
		return seconds(s)
	case s < 1e4*year:
		return short(s/year) + " years"
	}
	return fmt.Sprintf("10^%.0f years", (ln-math.Log(year))/math.Ln10)
}

// after is the table of what became of the trigger, and the runs that were seen to collapse, by policy.
func (in *CascadeInput) after(ctx context.Context) (Table, map[string]int, error) {
	t := Table{Title: fmt.Sprintf("Collapsed %v after a hang of %v at ρ = %s", in.Horizon, in.Hang, short(in.Utilisation)),
		Columns: []Column{{"", ""}, {"chain", "%"}, {"mean n", ""}, {"simulator", "runs"}, {"share", "%"}, {"95 % from", "%"}, {"to", "%"}}}
	seen := map[string]int{}
	simulated := func(name string) ([]any, error) {
		k, err := in.simulate(ctx, name, in.Utilisation, in.Runs)
		if err != nil {
			return nil, err
		}
		seen[name] = k
		lo, hi := proportion(k, in.Runs, 0.025)
		if k == 0 {
			_, hi = proportion(k, in.Runs, 0.05) // only one end can be missed
		}
		return []any{fmt.Sprintf("%d of %d", k, in.Runs), 100 * float64(k) / float64(in.Runs), 100 * lo, 100 * hi}, nil
	}
	nothing := []any{"–", math.NaN(), math.NaN(), math.NaN()}
	done := map[string]bool{}
	row := func(name, policy string, cells ...any) error {
		end := nothing
		for _, p := range in.Policies {
			if p == policy && in.Runs > 0 && !done[p] {
				done[p] = true
				var err error
				if end, err = simulated(p); err != nil {
					return err
				}
			}
		}
		t.Rows = append(t.Rows, append(append([]any{name}, cells...), end...))
		return nil
	}
	for _, x := range in.rivals() {
		f := in.collapses(x, in.Utilisation)
		if err := row(x.name, x.policy, 100*f.collapsed, f.size); err != nil {
			return t, nil, err
		}
	}
	for _, p := range in.Policies {
		if !done[p] && in.Runs > 0 {
			if err := row(p, p, math.NaN(), math.NaN()); err != nil {
				return t, nil, err
			}
		}
	}
	return t, seen, nil
}

// curve is the chance against the utilisation; the simulator's with retries beside it, with a tenth of the runs each.
func (in *CascadeInput) curve(ctx context.Context) (Table, plot.Chart, error) {
	t := Table{Title: fmt.Sprintf("Chance to be collapsed %v after a hang of %v, %%", in.Horizon, in.Hang), Columns: []Column{{"utilisation", ""}}}
	chart := plot.Chart{Title: t.Title, X: "utilisation by the calls alone", Y: "%", YMin: 0, YMax: 100}
	rivals := in.rivals()
	for _, x := range rivals {
		t.Columns = append(t.Columns, Column{x.name, ""})
		chart.Series = append(chart.Series, plot.Series{Name: x.name})
	}
	runs := (in.Runs + 9) / 10
	if runs > 0 {
		name := fmt.Sprintf("simulator, %d retries", in.Retries)
		t.Columns = append(t.Columns, Column{name, plural(runs, "run", "runs")})
		chart.Series = append(chart.Series, plot.Series{Name: name, Dots: true})
	}
	for _, u := range in.Utilisations {
		row := []any{u}
		add := func(v float64) {
			s := &chart.Series[len(row)-1]
			s.X, s.Y = append(s.X, u), append(s.Y, v)
			row = append(row, v)
		}
		for _, x := range rivals {
			if ctx.Err() != nil {
				return t, chart, ctx.Err()
			}
			add(100 * in.collapses(x, u).collapsed)
		}
		if runs > 0 {
			k, err := in.simulate(ctx, "exponential-jitter", u, runs)
			if err != nil {
				return t, chart, err
			}
			add(100 * float64(k) / float64(runs))
		}
		t.Rows = append(t.Rows, row)
	}
	return t, chart, nil
}

// landscape is the stationary distribution, of which the hollows between the modes are too deep for any but a logarithmic scale.
func (in *CascadeInput) landscape() plot.Chart {
	chart := plot.Chart{Title: fmt.Sprintf("Stationary distribution at ρ = %s", short(in.Utilisation)), X: "attempts in the system, n", Y: "log10 of the probability",
		YMin: math.NaN(), YMax: 0}
	for _, x := range in.rivals() {
		if x.breaker {
			continue
		}
		c := in.chain(in.Utilisation, x.law)
		sum := math.Inf(-1)
		for _, v := range c.stationary {
			sum = addLog(sum, v)
		}
		s := plot.Series{Name: x.name}
		for n, v := range c.stationary {
			s.X, s.Y = append(s.X, float64(n)), append(s.Y, (v-sum)/math.Ln10)
		}
		chart.Series = append(chart.Series, s)
	}
	return chart
}

// claimed chances of a cascade, without and with a breaker.
const (
	claimedWithout = 0.20
	claimedWith    = 1e-4
)

// each is the chance for each of n dependencies that makes the chance of any of them p.
func each(p float64, n int) float64 { return -math.Expm1(math.Log1p(-p) / float64(n)) }

func anyOf(p float64, n int) float64 { return -math.Expm1(float64(n) * math.Log1p(-p)) }

func (in *CascadeInput) dependencies() Table {
	t := Table{Title: "What a chance for all of a service's dependencies means for each", Columns: []Column{{"dependencies", ""}, {"each", "%"}, {"any", "%"}}}
	for _, p := range []float64{0.011, each(claimedWithout, in.Dependencies), each(claimedWith, in.Dependencies)} {
		t.Rows = append(t.Rows, []any{in.Dependencies, 100 * p, 100 * anyOf(p, in.Dependencies)})
	}
	return t
}

func (in *CascadeInput) verdict(seen map[string]int) (Verdict, string) {
	rivals := in.rivals()
	bare, guarded := rivals[1], rivals[3]
	threshold := 1 / bare.law.attempts(1)
	said := func(r rival) (text string, lo, hi float64) {
		p := in.collapses(r, in.Utilisation).collapsed
		text, lo, hi = percent(p)+" by the chain", p, p
		if k, ok := seen[r.policy]; ok {
			lo, hi = proportion(k, in.Runs, 0.025)
			text = fmt.Sprintf("%d of %d runs (by the chain %s)", k, in.Runs, percent(p))
			if k == 0 {
				_, hi = proportion(0, in.Runs, 0.05)
				text += fmt.Sprintf(", which with 95 %% confidence is less than %s", percent(hi))
			}
		}
		return text, lo, hi
	}
	without, lo, hi := said(bare)
	with, _, bound := said(guarded)
	because := fmt.Sprintf("with %s a hang of %v at ρ = %s ends in a collapse in %s; with a breaker in %s. What decides is ρ·A(1) > 1, from ρ = %s on.",
		bare.name, in.Hang, short(in.Utilisation), without, with, short(threshold))
	if lo <= claimedWithout && claimedWithout <= hi && bound <= claimedWith {
		return Holds, because
	}
	because += fmt.Sprintf(" 20 %% can come about as %d dependencies, each with %s.", in.Dependencies, percent(each(claimedWithout, in.Dependencies)))
	return False, "not reproduced as stated: " + because
}
