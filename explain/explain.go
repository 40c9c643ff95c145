// Package explain works out one decision on given numbers, with the engine's own code, and shows every step of it.
package explain

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

// Input is the situation to explain. Use [Defaults] and change what is to differ.
type Input struct {
	Profile       cortex.Profile
	Weights       cortex.Weights
	FailureRate   float64       // F, in [0,1]
	P99, Baseline time.Duration // L is made of them; no baseline means L = 0
	Queue         float64       // fill of the queue; Q is cut to 1
	QueueCapacity float64       // > 0
	Burn          float64       // B, in [0,1]
	Circuit       breaker.State
	Priority      int
	Levels        int
	Attempt       int // that failed; 0 is the original
	MaxRetries    int
	Backoff       backoff.Config
	Retryable     bool
	Tokens        float64
	RetryAfter    time.Duration // hint of the server
	Deadline      time.Duration // time left; 0 = no deadline
}

// Defaults is a healthy target and a first failure, under the defaults of the engine.
func Defaults() Input {
	return Input{QueueCapacity: 100, Priority: cortex.DefaultLevels / 2, Levels: cortex.DefaultLevels,
		MaxRetries: cortex.DefaultMaxRetries, Retryable: true, Tokens: 10}
}

// Explanation is a decision with all that led to it.
type Explanation struct {
	Profile  cortex.Profile `json:"profile"`
	Signals  Signals        `json:"signals"`
	Weights  Signals        `json:"weights"`
	CPS      float64        `json:"cps"`
	Evidence float64        `json:"evidence"`
	State    cortex.State   `json:"state"`
	Floor    int            `json:"floor"`
	Checks   []Check        `json:"checks"`
	Decision Decision       `json:"decision"`
}

// Signals are five values by the letters of the design.
type Signals struct {
	F float64 `json:"F"`
	L float64 `json:"L"`
	Q float64 `json:"Q"`
	B float64 `json:"B"`
	C float64 `json:"C"`
}

// Check is one of the five checks and what it saw.
type Check struct {
	Number int            `json:"check"`
	Name   string         `json:"name"`
	Result string         `json:"result"` // passed, refused, not reached
	Reason cortex.Reason  `json:"reason"` // of a refusal
	Saw    map[string]any `json:"saw"`
	text   string
}

// Decision is what came out.
type Decision struct {
	Retry      bool          `json:"retry"`
	Reason     cortex.Reason `json:"reason"` // empty when retry
	DelayMinMS float64       `json:"delay_min_ms"`
	DelayMaxMS float64       `json:"delay_max_ms"`
}

func (in Input) validate() error {
	for _, f := range []struct {
		name string
		v    float64
		max  float64
	}{{"failure rate", in.FailureRate, 1}, {"burn", in.Burn, 1}, {"queue", in.Queue, math.MaxFloat64},
		{"tokens", in.Tokens, math.MaxFloat64}} {
		if math.IsNaN(f.v) || f.v < 0 || f.v > f.max {
			if f.max == 1 {
				return fmt.Errorf("%s: %v is not from 0 to 1", f.name, f.v)
			}
			return fmt.Errorf("%s: %v is not a number from 0", f.name, f.v)
		}
	}
	switch {
	case !(in.QueueCapacity > 0) || math.IsInf(in.QueueCapacity, 0):
		return fmt.Errorf("queue: a capacity of %v; write it as current/capacity, such as 30/100", in.QueueCapacity)
	case in.Levels < 1 || in.Levels > limit.MaxLevels:
		return fmt.Errorf("levels: %d is not from 1 to %d", in.Levels, limit.MaxLevels)
	case in.Priority < 0 || in.Priority > in.Levels:
		return fmt.Errorf("priority: %d is not from 0 to %d", in.Priority, in.Levels)
	case in.Attempt < 0:
		return fmt.Errorf("attempt: %d is negative; 0 is the original", in.Attempt)
	case in.MaxRetries < 0:
		return fmt.Errorf("max retries: %d is negative", in.MaxRetries)
	case in.P99 < 0 || in.Baseline < 0 || in.RetryAfter < 0 || in.Deadline < 0:
		return fmt.Errorf("p99, baseline, retry after and deadline cannot be negative")
	}
	return nil
}

// Explain works the decision out.
func Explain(in Input) (*Explanation, error) {
	if err := in.validate(); err != nil {
		return nil, err
	}
	law, err := in.Backoff.Normalize()
	if err != nil {
		return nil, err
	}
	if in.Weights == (cortex.Weights{}) {
		in.Weights = cortex.DefaultWeights
	}
	q := math.Min(1, in.Queue/in.QueueCapacity)
	s := cortex.Situation{Profile: in.Profile, Weights: in.Weights, Levels: in.Levels, Circuit: in.Circuit, Armed: true,
		Signals: cortex.Signals{F: in.FailureRate, L: cortex.LatencyDeviation(float64(in.P99), float64(in.Baseline)), Q: q,
			B: in.Burn, C: in.Circuit.Pressure()},
		Priority: cortex.Priority(in.Priority), Attempt: in.Attempt, MaxRetries: in.MaxRetries, Retryable: in.Retryable,
		Tokens: in.Tokens, Price: 1, Backoff: law, RetryAfter: in.RetryAfter, Remaining: in.Deadline}
	shed := 0.0
	if in.Profile == cortex.Adaptive {
		// Without a history the shed fraction is the proportional part alone, and all priorities are as frequent.
		shed = limit.Shed(q)
		n := float64(in.Levels + 1)
		s.RefuseProbability = limit.RefuseProbability(float64(in.Priority)/n, float64(in.Priority+1)/n, shed)
		s.Floor = cortex.Priority(min(in.Levels, int(shed*n)))
		s.Price = limit.Price(s.Signals.L, q, 0, 0)
	}
	d := s.Decide(func() float64 { return 0.5 }) // a lottery is refused from even odds on
	return in.explanation(s, d, shed), nil
}

func (in Input) explanation(s cortex.Situation, d cortex.Decision, shed float64) *Explanation {
	sig := d.Signals
	x := &Explanation{Profile: in.Profile, Signals: Signals(sig), Weights: Signals(in.Weights), CPS: d.CPS, Evidence: d.Evidence,
		State: d.State, Floor: int(d.Floor), Decision: Decision{Retry: d.Retry, Reason: d.Reason}}
	if d.Retry {
		x.Decision.DelayMinMS, x.Decision.DelayMaxMS = ms(d.DelayMin), ms(d.DelayMax)
	}
	critical := in.Priority >= in.Levels-1
	lottery := map[string]any{"priority": in.Priority, "floor": int(d.Floor), "tokens": in.Tokens, "price": s.Price}
	text := fmt.Sprintf("priority %d, floor %d; %g tokens, a retry costs %.2f", in.Priority, d.Floor, in.Tokens, s.Price)
	if in.Profile == cortex.Adaptive {
		lottery["shed"] = shed
		lottery["refuse_probability"] = s.RefuseProbability
		text = fmt.Sprintf("priority %d, shed fraction %.2f (floor %d), refused with probability %.2f; %g tokens, a retry costs %.2f",
			in.Priority, shed, d.Floor, s.RefuseProbability, in.Tokens, s.Price)
	}
	delay := map[string]any{"base_ms": ms(s.Backoff.Base), "max_ms": ms(s.Backoff.Max), "factor": 1 + 10*d.CPS, "attempt": in.Attempt}
	delayText := fmt.Sprintf("%s law, base %v × 2^%d × (1 + 10 × %.4f), at most %v", s.Backoff.Law, s.Backoff.Base, in.Attempt, d.CPS,
		s.Backoff.Max)
	if in.RetryAfter > 0 {
		delay["retry_after_ms"] = ms(in.RetryAfter)
		delayText += fmt.Sprintf(", the server asks for %v", in.RetryAfter)
	}
	if in.Deadline > 0 {
		delay["deadline_ms"] = ms(in.Deadline)
		delayText += fmt.Sprintf(", %v left", in.Deadline)
	}
	pressure, what := d.CPS, "cps"
	if in.Profile == cortex.Adaptive {
		pressure, what = d.Evidence, "evidence"
	}
	saw := []Check{
		{Name: "retryable", Saw: map[string]any{"retryable": in.Retryable}, text: fmt.Sprintf("retryable: %v", in.Retryable)},
		{Name: "max_retries", Saw: map[string]any{"attempt": in.Attempt, "max_retries": in.MaxRetries},
			text: fmt.Sprintf("attempt %d of at most %d retries", in.Attempt, in.MaxRetries)},
		{Name: "circuit", Saw: map[string]any{"circuit": in.Circuit.String(), what: pressure, "threshold": 0.8, "emergency": d.Emergency, "critical": critical},
			text: fmt.Sprintf("circuit %s, %s %.4f of 0.80%s", in.Circuit, what, pressure, emergency(d.Emergency, critical))},
		{Name: "shed_and_budget", Saw: lottery, text: text},
		{Name: "delay", Saw: delay, text: delayText},
	}
	for i := range saw {
		saw[i].Number = i + 1
		saw[i].Result = d.Checks[i].String()
		if d.Checks[i] == cortex.Refused {
			saw[i].Reason = d.Reason
		}
	}
	x.Checks = saw
	return x
}

func emergency(is, critical bool) string {
	switch {
	case is && critical:
		return ": opens the circuit; a critical priority passes"
	case is:
		return ": opens the circuit"
	}
	return ""
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// WriteText shows the explanation to a person.
func (x *Explanation) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "profile %s\n\n", x.Profile)
	fmt.Fprintf(&b, "  signal                weight × value\n")
	for _, r := range []struct {
		letter, name string
		w, v         float64
	}{{"F", "failure rate", x.Weights.F, x.Signals.F}, {"L", "latency", x.Weights.L, x.Signals.L}, {"Q", "queue", x.Weights.Q, x.Signals.Q},
		{"B", "budget burn", x.Weights.B, x.Signals.B}, {"C", "circuit", x.Weights.C, x.Signals.C}} {
		fmt.Fprintf(&b, "  %s  %-16s    %.4g × %.4f = %.4f\n", r.letter, r.name, r.w, r.v, r.w*r.v)
	}
	fmt.Fprintf(&b, "\n  CPS %.4f   %s   floor %d   evidence %.4f (the score without C)\n\n", x.CPS, x.State, x.Floor, x.Evidence)
	for _, c := range x.Checks {
		mark := "·"
		switch c.Result {
		case "passed":
			mark = "✓"
		case "refused":
			mark = "✗"
		}
		fmt.Fprintf(&b, "  %s %d  %s\n", mark, c.Number, c.text)
		if c.Reason != cortex.ReasonNone {
			fmt.Fprintf(&b, "       refused: %s\n", c.Reason)
		}
	}
	if x.Decision.Retry {
		fmt.Fprintf(&b, "\n→ retry after a random delay from %s to %s\n", duration(x.Decision.DelayMinMS), duration(x.Decision.DelayMaxMS))
	} else {
		fmt.Fprintf(&b, "\n→ no retry: %s\n", x.Decision.Reason)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func duration(ms float64) string { return time.Duration(ms * float64(time.Millisecond)).String() }
