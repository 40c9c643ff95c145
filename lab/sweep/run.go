package sweep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/parallel"
	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// MaxDraws bounds a sweep.
const MaxDraws = 100_000

// Options say what to run.
type Options struct {
	Seed     uint64
	First    int // index of the first draw
	Draws    int
	Policies []policy.Policy
	Strict   bool // judge by the strict oracle; see Settings
	Parallel int  // draws at a time; 0 = processors
	Progress func(done, total int)
}

// An OptionError says which option cannot be used and what would be right.
type OptionError struct {
	Option string
	Value  any
	Want   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s: %v: want %s", e.Option, e.Value, e.Want)
}

// A Score is what one policy made of a draw. Shares are in [0,1].
type Score struct {
	Policy     string  `json:"policy"`
	Goodput    float64 `json:"goodput"`
	Efficiency float64 `json:"efficiency"` // goodput ÷ the oracle's; not capped: it may be above 1
	Top        float64 `json:"top"`        // goodput of the highest priority
	Before     float64 `json:"before"`     // share of the calls before the fault that was refused; 0 in a cold start
	InFault    float64 `json:"in_fault"`   // attempts a call offered, in the incidents

	TransitionsPerMinute float64 `json:"transitions_per_minute"`
}

// An Outcome is a draw and what became of it.
type Outcome struct {
	Draw   Draw
	Best   Setting // of the oracle
	Oracle Score
	Scores []Score // in the order of the policies
}

// Run runs the draws, each under the oracle and every policy. Outcomes come in the order of the draws, the same whatever Parallel is.
// When ctx ends it returns the draws that are done and the context's error.
func Run(ctx context.Context, o Options) ([]Outcome, error) {
	if o.Draws < 1 || o.Draws > MaxDraws || o.First < 0 || o.First > MaxDraws-o.Draws {
		return nil, &OptionError{"sweep", o.Draws, fmt.Sprintf("from 1 to %d draws", MaxDraws)}
	}
	if len(o.Policies) == 0 {
		return nil, &OptionError{"policy", "none", "at least one"}
	}
	all := make([]Outcome, o.Draws)
	done := make([]bool, o.Draws)
	err := parallel.Each(ctx, o.Draws, o.Parallel, o.Progress, func(i int) error {
		x, err := judge(ctx, Make(o.Seed, o.First+i), o.Policies, o.Strict)
		if err == nil {
			err = ctx.Err() // it may have been cut short
		}
		if err != nil {
			return err
		}
		all[i], done[i] = x, true
		return nil
	})
	if err != nil && !errors.Is(err, ctx.Err()) {
		return nil, err
	}
	var out []Outcome
	for i, ok := range done {
		if ok {
			out = append(out, all[i])
		}
	}
	return out, err
}

// judge runs one draw under everything.
func judge(ctx context.Context, d Draw, policies []policy.Policy, strict bool) (Outcome, error) {
	x := Outcome{Draw: d, Oracle: Score{Goodput: math.Inf(-1)}}
	for _, set := range Settings(strict) {
		s, err := score(ctx, d, "oracle", Oracle(set))
		if err != nil {
			return x, err
		}
		if s.Goodput > x.Oracle.Goodput {
			x.Oracle, x.Best = s, set
		}
	}
	x.Oracle.Efficiency = 1
	for _, p := range policies {
		s, err := score(ctx, d, p.Name, p.Make)
		if err != nil {
			return x, err
		}
		if x.Oracle.Goodput > 0 {
			s.Efficiency = s.Goodput / x.Oracle.Goodput
		}
		x.Scores = append(x.Scores, s)
	}
	return x, nil
}

func score(ctx context.Context, d Draw, name string, m sim.Maker) (Score, error) {
	c := &counted{}
	w, err := sim.New(sim.Options{Scenario: d.Scenario, Seed: uint64(d.Index), Stop: func() bool { return ctx.Err() != nil },
		Guard: func(env sim.Env) (sim.Guard, error) {
			g, err := m(env)
			c.Guard, c.now, c.until = g, env.Now, d.From
			return c, err
		}})
	if err != nil {
		return Score{}, fmt.Errorf("draw %s, policy %s: %w", d.Scenario.Name, name, err)
	}
	r := w.Run()
	s := Score{Policy: name, Goodput: r.Goodput, InFault: r.InFault, Top: r.GoodByPriority[0],
		TransitionsPerMinute: r.Transitions / d.Scenario.Duration.Minutes()}
	if c.calls > 0 {
		s.Before = float64(c.refused) / float64(c.calls)
	}
	return s, nil
}

// counted counts what a guard refuses before the fault.
type counted struct {
	sim.Guard
	now            func() time.Duration
	until          time.Duration
	calls, refused int
}

func (c *counted) Admit(a *sim.Attempt) cortex.Reason {
	r := c.Guard.Admit(a)
	if a.Number == 0 && c.now() < c.until {
		c.calls++
		if r != cortex.ReasonNone {
			c.refused++
		}
	}
	return r
}

func (c *counted) Transitions() int {
	if s, ok := c.Guard.(sim.Switch); ok {
		return s.Transitions()
	}
	return 0
}
