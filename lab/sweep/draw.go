// Package sweep judges policies on random systems that nobody tuned for, against a clairvoyant oracle that is run in the same
// simulator on the same system.
package sweep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// A Draw is one random system with one fault. Its runs have its index as their seed, so that
//
//	cortex sim --scenario sweep-7-12 --seed 12
//
// is what draw 12 of the sweep with seed 7 was.
type Draw struct {
	Seed     uint64 // of the sweep
	Index    int
	Kind     string             // of the fault: one of Kinds
	Cold     bool               // begins inside the fault
	From, To time.Duration      // of the fault
	Scenario *scenario.Scenario // validated; its name is sweep-SEED-INDEX
}

// Kinds of faults that are drawn, each as often as the others.
func Kinds() []string {
	return []string{"hang", "slow", "capacity", "error", "throttle", "crash", "spike"}
}

const (
	maxCalls  = 250_000 // a draw: what does not fit is cut from the calm stretches, then from the fault
	calm      = 20.0    // seconds before a fault, at least
	calmCalls = 300     // and calls, at least: a window of 60 s at 5/s
	after     = 25.0    // seconds after a fault, at least
	minFault  = 3.0     // seconds
	maxFault  = 60.0

	// Mean service times that make a system: shorter ones are below the 2 ms that a refusal takes here with timeouts of 3 × as long,
	// longer ones leave no room for even one attempt of an ordinary length in the deadline. λ, ρ and workers are drawn again.
	minMean  = 0.001
	maxMean  = 2.0
	maxShare = 0.25 // of the deadline
)

// Make draws system number index of a seed; the same one on every machine.
func Make(seed uint64, index int) Draw {
	r := rand.New(rand.NewPCG(seed, uint64(index)))
	d := Draw{Seed: seed, Index: index}
	s := &scenario.Scenario{Name: Name(seed, index), Seeds: 1}

	deadline := uniform(r, 1, 10)
	var lambda, rho, mean float64
	var workers int
	for {
		lambda, rho = logUniform(r, 5, 3000), uniform(r, 0.3, 0.9)
		workers = int(math.Round(logUniform(r, 2, 200)))
		mean = rho * float64(workers) / lambda
		if mean >= minMean && mean <= min(maxMean, maxShare*deadline) {
			break
		}
	}
	lambda = round(lambda, 3)
	s.Deadline = seconds(deadline)
	s.Downstream = scenario.Downstream{Workers: workers, Service: service(r, mean), Queue: 2000}
	if r.Float64() < 0.4 {
		s.Downstream.Queue = int(math.Round(logUniform(r, 20, 5000)))
	}
	s.Client = scenario.Client{MaxRetries: 3, BaseDelay: 100 * time.Millisecond}
	if patience := logUniform(r, 3, 30) * mean; r.Float64() >= 0.3 {
		s.Client.Timeout = min(seconds(patience), s.Deadline)
	}
	s.Priorities = priorities(r)

	d.Kind = Kinds()[r.IntN(len(Kinds()))]
	f, load, text := fault(r, d.Kind, lambda, workers)
	d.Cold = r.Float64() < 0.1
	before, length, rest := timeline(r, lambda, load, d.Cold)
	d.From, d.To = seconds(before), seconds(before)+seconds(length)
	s.Duration = d.To + seconds(rest)
	s.Arrivals = scenario.Arrivals{Scale: 1, Steps: []scenario.Step{{From: 0, Rate: lambda}}}
	if d.Kind == "spike" {
		high := round(lambda*load, 3)
		if d.Cold {
			s.Arrivals.Steps = []scenario.Step{{From: 0, Rate: high}, {From: d.To, Rate: lambda}}
		} else {
			s.Arrivals.Steps = append(s.Arrivals.Steps, scenario.Step{From: d.From, Rate: high}, scenario.Step{From: d.To, Rate: lambda})
		}
	} else {
		f.From, f.To = d.From, d.To
		if onset := uniform(r, 0.2, 1); d.Kind == "slow" && !d.Cold && r.Float64() < 0.4 {
			f.Onset = seconds(onset * (f.To - f.From).Seconds())
			text += fmt.Sprintf(" over %v", f.Onset)
		}
		s.Faults = []scenario.Fault{f}
	}
	if d.Cold {
		text += ", from the start"
	}
	s.Title = fmt.Sprintf("%s for %.3g s; %.4g/s, ρ %.2f", text, length, lambda, rho)
	if err := s.Validate(); err != nil {
		panic(fmt.Sprintf("%s: %v", s.Name, err)) // a test makes thousands
	}
	d.Scenario = s
	return d
}

// Name of a draw.
func Name(seed uint64, index int) string { return fmt.Sprintf("sweep-%d-%d", seed, index) }

// Find makes the draw of that name; false if it is not the name of one.
func Find(name string) (Draw, bool) {
	rest, ok := strings.CutPrefix(strings.ToLower(name), "sweep-")
	if !ok {
		return Draw{}, false
	}
	a, b, _ := strings.Cut(rest, "-")
	seed, err := strconv.ParseUint(a, 10, 64)
	if err != nil {
		return Draw{}, false
	}
	index, err := strconv.Atoi(b)
	if err != nil || index < 0 || index >= MaxDraws {
		return Draw{}, false
	}
	return Make(seed, index), true
}

func service(r *rand.Rand, mean float64) scenario.Service {
	v := scenario.Service{Mean: seconds(mean)}
	switch u := r.Float64(); {
	case u < 0.6:
		v.Distribution, v.Sigma = scenario.Lognormal, round(uniform(r, 0.3, 1.5), 3)
	case u < 0.8:
		v.Distribution = scenario.Exponential
	default:
		v.Distribution, v.Alpha = scenario.Pareto, round(uniform(r, 1.8, 3.5), 3)
	}
	return v
}

// priorities are one class in a quarter of the systems, else two to five, with shares that a broken stick gives, none below a fiftieth.
func priorities(r *rand.Rand) []scenario.Share {
	levels := [...]cortex.Priority{9, 7, 5, 3, 1}
	if r.Float64() < 0.25 {
		return []scenario.Share{{Priority: 5, Share: 1}}
	}
	n := 2 + r.IntN(4)
	first := r.IntN(len(levels) - n + 1)
	all := make([]scenario.Share, n)
	for i := range all {
		all[i] = scenario.Share{Priority: levels[first+i], Share: round(max(0.02, r.ExpFloat64()), 3)}
	}
	return all
}

// fault draws a fault's strength; load is what it multiplies the arrivals with.
func fault(r *rand.Rand, kind string, lambda float64, workers int) (f scenario.Fault, load float64, text string) {
	load = 1
	switch kind {
	case "hang":
		f.Kind, f.Latency = scenario.Hang, seconds(logUniform(r, 1, 20))
		text = fmt.Sprintf("hang of %v", f.Latency)
	case "slow":
		f.Kind, f.Factor = scenario.Slow, round(logUniform(r, 1.5, 10), 3)
		text = fmt.Sprintf("slow × %.3g", f.Factor)
	case "capacity":
		f.Kind, f.Fraction = scenario.Capacity, round(uniform(r, 0.1, 0.7), 3)
		if math.Round(float64(workers)*f.Fraction) < 1 {
			f.Fraction = 1 / float64(workers)
		}
		text = fmt.Sprintf("%.3g of the workers left", f.Fraction)
	case "error":
		f.Kind, f.Probability, f.Latency = scenario.Error, round(uniform(r, 0.2, 1.2), 3), seconds(logUniform(r, 0.001, 0.5))
		f.Probability = min(1, f.Probability) // a fifth are blackouts
		text = fmt.Sprintf("%.3g %% errors after %v", 100*f.Probability, f.Latency)
	case "throttle":
		f.Kind, f.Limit = scenario.Throttle, round(lambda*uniform(r, 0.2, 0.9), 3)
		text = fmt.Sprintf("429 beyond %.4g/s", f.Limit)
		if r.Float64() < 0.7 {
			f.RetryAfter = time.Second
			text += ", Retry-After 1 s"
		}
	case "crash":
		f.Kind, text = scenario.Crash, "crash"
	case "spike":
		load = round(uniform(r, 1.5, 4), 3)
		text = fmt.Sprintf("load × %.3g", load)
	}
	return f, load, text
}

// timeline draws the seconds before, in and after a fault. What goes beyond maxCalls is taken from the calm stretches down to their
// least, then from the fault.
func timeline(r *rand.Rand, lambda, load float64, cold bool) (before, length, rest float64) {
	least := max(calm, calmCalls/lambda)
	before, length, rest = least+uniform(r, 0, 40), uniform(r, minFault, maxFault), after+uniform(r, 0, 20)
	if cold {
		before, least = 0, 0
	}
	left := maxCalls/lambda - load*length // seconds of calm that calls are left for
	if spare := before + rest - least - after; left < before+rest && spare > 0 {
		k := max(0, left-least-after) / spare
		before, rest = least+k*(before-least), after+k*(rest-after)
	}
	if left < before+rest {
		length = max(minFault, (maxCalls/lambda-before-rest)/load)
	}
	return before, length, rest
}

func uniform(r *rand.Rand, lo, hi float64) float64 { return lo + (hi-lo)*r.Float64() }

func logUniform(r *rand.Rand, lo, hi float64) float64 {
	return math.Exp(uniform(r, math.Log(lo), math.Log(hi)))
}

// round keeps so many digits after the point: what is printed is what is run.
func round(x float64, digits int) float64 {
	k := math.Pow10(digits)
	return math.Round(x*k) / k
}

// seconds are rounded to microseconds, as files are read by people.
func seconds(s float64) time.Duration { return time.Duration(math.Round(s*1e6)) * time.Microsecond }
