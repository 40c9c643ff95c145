// Package scenario says what a run of the laboratory is made of: load, clients, a downstream and faults on a timeline; and what an
// oracle would make of it.
package scenario

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/limit"
)

// A Scenario is one experiment. [Scenario.Validate] fills in defaults; a validated scenario is read only.
type Scenario struct {
	Name     string
	Title    string        // one line for people
	Duration time.Duration // calls arrive for so long; the run ends a deadline later
	Deadline time.Duration // of a call, attempts and waits together; default 3 s
	Seeds    int           // runs, unless the caller says otherwise; default 10

	Arrivals   Arrivals
	Callers    Callers // a closed loop instead of Arrivals
	Priorities []Share // from the highest priority down; default: all at 5

	Client     Client
	Downstream Downstream
	Faults     []Fault

	// Hops is the number of tiers, each with its own guard and retries, that a call goes through to the downstream; default 1. Tiers
	// but the last do no work of their own.
	Hops int
	// Mark carries the retry mark from tier to tier, for guards that know it.
	Mark bool
}

// Arrivals is the load of an open system: calls come whatever becomes of them.
type Arrivals struct {
	Steps   []Step
	Trace   []float64 // calls in each second, in its place; after its end nothing arrives
	File    string    // where Trace was read from
	Scale   float64   // multiplies every rate; default 1
	Process Process
}

// A Step is a rate from a moment on.
type Step struct {
	From time.Duration
	Rate float64 // calls a second
}

// Process is how arrivals are spaced.
type Process uint8

// Processes of arrival.
const (
	Poisson  Process = iota
	Constant         // evenly
)

func (p Process) String() string {
	if p == Constant {
		return "constant"
	}
	return "poisson"
}

// Callers are the users of a closed system: each makes a call, waits for its end, thinks, and makes the next one.
type Callers struct {
	Count int
	Think time.Duration // mean, exponential
}

// A Share of the calls has that priority.
type Share struct {
	Priority cortex.Priority
	Share    float64
}

// Client is what the callers' guards are told.
type Client struct {
	Timeout    time.Duration // of an attempt; 0 = adaptive: the guard's own
	MaxRetries int
	BaseDelay  time.Duration // of a backoff; default 100 ms
}

// Downstream is the model of a target: workers, a FIFO queue, work that is done although its client has gone.
type Downstream struct {
	Workers int
	Service Service
	Queue   int  // places to wait; beyond it an attempt is refused at once; default 2,000
	Cancels bool // work whose client has gone is dropped from the queue
}

// Distribution of service times.
type Distribution uint8

// Distributions of service times.
const (
	Lognormal Distribution = iota
	Exponential
	Fixed  // "constant"
	Pareto // α > 1
)

var distributions = [...]string{"lognormal", "exponential", "constant", "pareto"}

func (d Distribution) String() string {
	if int(d) < len(distributions) {
		return distributions[d]
	}
	return fmt.Sprintf("Distribution(%d)", uint8(d))
}

// Service is the time a worker takes for an attempt.
type Service struct {
	Distribution Distribution
	Mean         time.Duration
	Sigma        float64 // lognormal: of the logarithm
	Alpha        float64 // pareto: the tail's exponent, > 1
}

// Kind of a fault.
type Kind uint8

// Kinds of faults.
const (
	Hang     Kind = iota // an attempt that starts service takes Latency
	Slow                 // service takes Factor times as long
	Capacity             // Fraction of the workers is left
	Error                // with Probability an attempt fails after Latency, without taking a worker
	Throttle             // beyond Limit a second, with a burst of a tenth of it or ten: 429 with RetryAfter
	Crash                // connections are refused at once, and what was under way is lost
)

var kinds = [...]string{"hang", "slow", "capacity", "error", "throttle", "crash"}

func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// A Fault is what is wrong with the downstream from From to To. Faults of a kind must not overlap.
type Fault struct {
	From, To    time.Duration
	Kind        Kind
	Latency     time.Duration // hang (default 5 s), error (default 5 ms)
	Factor      float64       // slow, ≥ 1
	Onset       time.Duration // slow: grows to Factor over so long
	Fraction    float64       // capacity: of the workers, that are left, in [0,1]
	Probability float64       // error, in [0,1]
	Limit       float64       // throttle: attempts a second
	RetryAfter  time.Duration // throttle: the hint; 0 = none
}

// A FieldError says which field of a scenario cannot be used and what would be right.
type FieldError struct {
	Field string
	Value any
	Want  string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s: %v: want %s", e.Field, e.Value, e.Want) }

func bad(field string, value any, want string, args ...any) error {
	return &FieldError{Field: field, Value: value, Want: fmt.Sprintf(want, args...)}
}

// Bounds of what a run may be asked for: they keep its memory and its time sensible.
const (
	MaxDuration = 31 * 24 * time.Hour
	MaxRate     = 1e6 // calls a second
	MaxWorkers  = 100_000
	MaxQueue    = 1_000_000
	MaxCallers  = 1_000_000
	MaxHops     = 8
	MaxCalls    = 1e9
)

// Validate fills in defaults and checks the rest; the error is a [*FieldError].
func (s *Scenario) Validate() error {
	if s.Deadline == 0 {
		s.Deadline = 3 * time.Second
	}
	if s.Seeds == 0 {
		s.Seeds = 10
	}
	if s.Hops == 0 {
		s.Hops = 1
	}
	if s.Arrivals.Scale == 0 {
		s.Arrivals.Scale = 1
	}
	if s.Client.BaseDelay == 0 {
		s.Client.BaseDelay = 100 * time.Millisecond
	}
	if len(s.Priorities) == 0 {
		s.Priorities = []Share{{5, 1}}
	}
	if s.Downstream.Queue == 0 {
		s.Downstream.Queue = 2000
	}
	switch {
	case s.Name == "":
		return bad("name", `""`, "a name")
	case s.Duration < time.Second || s.Duration > MaxDuration:
		return bad("duration", s.Duration, "from 1s to %v", MaxDuration)
	case s.Deadline < time.Millisecond || s.Deadline > time.Hour:
		return bad("deadline", s.Deadline, "from 1ms to 1h")
	case s.Seeds < 1 || s.Seeds > 10_000:
		return bad("seeds", s.Seeds, "from 1 to 10000")
	case s.Hops < 1 || s.Hops > MaxHops:
		return bad("hops", s.Hops, "from 1 to %d", MaxHops)
	case s.Client.Timeout < 0 || s.Client.Timeout > time.Hour || s.Client.Timeout > 0 && s.Client.Timeout < time.Millisecond:
		return bad("client.timeout", s.Client.Timeout, "from 1ms to 1h, or adaptive")
	case s.Client.MaxRetries < 0 || s.Client.MaxRetries > 100:
		return bad("client.max_retries", s.Client.MaxRetries, "from 0 to 100")
	case s.Client.BaseDelay < time.Millisecond || s.Client.BaseDelay > time.Hour:
		return bad("client.base_delay", s.Client.BaseDelay, "from 1ms to 1h")
	}
	if err := s.validateLoad(); err != nil {
		return err
	}
	if err := s.Downstream.validate(); err != nil {
		return err
	}
	for i := range s.Faults {
		if err := s.Faults[i].validate(fmt.Sprintf("faults[%d]", i)); err != nil {
			return err
		}
		for j, o := range s.Faults[:i] {
			if f := s.Faults[i]; o.Kind == f.Kind && o.From < f.To && f.From < o.To {
				return bad(fmt.Sprintf("faults[%d].from", i), f.From, "no overlap with faults[%d], which is a %v too", j, f.Kind)
			}
		}
	}
	return nil
}

func (s *Scenario) validateLoad() error {
	sum := 0.0
	for i, p := range s.Priorities {
		switch {
		case p.Priority < 0 || p.Priority > limit.MaxLevels:
			return bad("priorities", p.Priority, "priorities from 0 to %d", limit.MaxLevels)
		case !(p.Share > 0 && p.Share <= 1e9):
			return bad(fmt.Sprintf("priorities.%d", p.Priority), p.Share, "a share above 0")
		case slices.ContainsFunc(s.Priorities[:i], func(o Share) bool { return o.Priority == p.Priority }):
			return bad(fmt.Sprintf("priorities.%d", p.Priority), p.Share, "each priority once")
		}
		sum += p.Share
	}
	slices.SortFunc(s.Priorities, func(a, b Share) int { return int(b.Priority) - int(a.Priority) })
	for i := range s.Priorities {
		s.Priorities[i].Share /= sum
	}
	c := s.Callers
	if c.Count != 0 || c.Think != 0 {
		switch {
		case c.Count < 1 || c.Count > MaxCallers:
			return bad("callers.count", c.Count, "from 1 to %d", MaxCallers)
		case c.Think < time.Millisecond || c.Think > 24*time.Hour:
			return bad("callers.think", c.Think, "from 1ms to 24h")
		case len(s.Arrivals.Steps)+len(s.Arrivals.Trace) > 0:
			return bad("arrivals", "set", "arrivals or callers, not both")
		}
		return nil
	}
	a := s.Arrivals
	if !(a.Scale > 0 && a.Scale <= MaxRate) {
		return bad("arrivals.scale", a.Scale, "more than 0")
	}
	if (len(a.Steps) > 0) == (len(a.Trace) > 0) {
		return bad("arrivals", "", "steps of {from, rate}, or {trace: FILE}, or callers")
	}
	for i, st := range a.Steps {
		f := fmt.Sprintf("arrivals[%d]", i)
		switch {
		case !(st.Rate >= 0 && st.Rate*a.Scale <= MaxRate):
			return bad(f+".rate", st.Rate, "from 0 to %g a second", float64(MaxRate))
		case st.From < 0:
			return bad(f+".from", st.From, "0s or later")
		case i > 0 && st.From <= a.Steps[i-1].From:
			return bad(f+".from", st.From, "later than the step before, %v", a.Steps[i-1].From)
		}
	}
	for i, n := range a.Trace {
		if !(n >= 0 && n*a.Scale <= MaxRate) {
			return bad(fmt.Sprintf("arrivals.trace line %d", i+1), n, "a count from 0 to %g", float64(MaxRate))
		}
	}
	if n := s.Offered(); n > MaxCalls {
		return bad("arrivals", fmt.Sprintf("%.3g calls", n), "at most %.3g", float64(MaxCalls))
	}
	return nil
}

func (d *Downstream) validate() error {
	v := d.Service
	mean := v.Mean.Seconds()
	switch {
	case d.Workers < 1 || d.Workers > MaxWorkers:
		return bad("downstream.workers", d.Workers, "from 1 to %d", MaxWorkers)
	case d.Queue < 1 || d.Queue > MaxQueue:
		return bad("downstream.queue", d.Queue, "from 1 to %d", MaxQueue)
	case int(v.Distribution) >= len(distributions):
		return bad("downstream.service.distribution", v.Distribution, "lognormal, exponential, constant or pareto")
	case !(mean >= 1e-6 && mean <= 3600):
		return bad("downstream.service.mean", v.Mean, "from 1µs to 1h")
	case v.Distribution == Lognormal && !(v.Sigma > 0 && v.Sigma <= 5):
		return bad("downstream.service.sigma", v.Sigma, "above 0, up to 5")
	case v.Distribution == Pareto && !(v.Alpha > 1 && v.Alpha <= 100):
		return bad("downstream.service.alpha", v.Alpha, "above 1 (below it there is no mean), up to 100")
	}
	return nil
}

func (f *Fault) validate(at string) error {
	if f.Latency == 0 {
		switch f.Kind {
		case Hang:
			f.Latency = 5 * time.Second
		case Error:
			f.Latency = 5 * time.Millisecond
		}
	}
	switch {
	case int(f.Kind) >= len(kinds):
		return bad(at+".kind", f.Kind, "hang, slow, capacity, error, throttle or crash")
	case f.From < 0:
		return bad(at+".from", f.From, "0s or later")
	case f.To <= f.From:
		return bad(at+".to", f.To, "later than from, %v", f.From)
	case f.Latency < 0 || f.Latency > time.Hour:
		return bad(at+".latency", f.Latency, "from 0s to 1h")
	case f.Kind == Slow && !(f.Factor >= 1 && f.Factor <= 1e6):
		return bad(at+".factor", f.Factor, "from 1 to 1e6")
	case f.Onset < 0 || f.Onset > f.To-f.From:
		return bad(at+".onset", f.Onset, "from 0s to the fault's length")
	case f.Kind == Capacity && !(f.Fraction >= 0 && f.Fraction <= 1):
		return bad(at+".fraction", f.Fraction, "from 0 to 1: what is left of the workers")
	case f.Kind == Error && !(f.Probability > 0 && f.Probability <= 1):
		return bad(at+".probability", f.Probability, "above 0, up to 1")
	case f.Kind == Throttle && !(f.Limit > 0 && f.Limit <= MaxRate):
		return bad(at+".limit", f.Limit, "attempts a second, more than 0")
	case f.RetryAfter < 0 || f.RetryAfter > time.Hour:
		return bad(at+".retry_after", f.RetryAfter, "from 0s to 1h")
	}
	return nil
}

// at is the fault of a kind in force at t; nil = none.
func (s *Scenario) at(k Kind, t time.Duration) *Fault {
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Kind == k && t >= f.From && t < f.To {
			return f
		}
	}
	return nil
}

// factorAt is what a slow fault multiplies a service time with at t.
func (f *Fault) factorAt(t time.Duration) float64 {
	if f.Onset <= 0 || t-f.From >= f.Onset {
		return f.Factor
	}
	return 1 + (f.Factor-1)*float64(t-f.From)/float64(f.Onset)
}

// Rate is the offered load at t in calls a second. Of a closed system it is what its callers make while calls take no time.
func (s *Scenario) Rate(t time.Duration) float64 {
	if c := s.Callers; c.Count > 0 {
		return float64(c.Count) / (c.Think + s.Downstream.Service.Mean).Seconds()
	}
	a := &s.Arrivals
	if len(a.Trace) > 0 {
		if i := int(t / time.Second); t >= 0 && i < len(a.Trace) {
			return a.Trace[i] * a.Scale
		}
		return 0
	}
	rate := 0.0
	for _, st := range a.Steps {
		if st.From > t {
			break
		}
		rate = st.Rate * a.Scale
	}
	return rate
}

// Offered is the expected number of calls of a run.
func (s *Scenario) Offered() float64 {
	n := 0.0
	s.pieces(func(from, to time.Duration) { n += s.Rate(from) * (to - from).Seconds() })
	return n
}

// pieces walks the run in stretches in which neither load nor faults change; slow onsets are cut in tenths of a second.
func (s *Scenario) pieces(f func(from, to time.Duration)) {
	cuts := []time.Duration{0, s.Duration}
	add := func(t time.Duration) {
		if t > 0 && t < s.Duration {
			cuts = append(cuts, t)
		}
	}
	for _, st := range s.Arrivals.Steps {
		add(st.From)
	}
	for i := range s.Arrivals.Trace {
		add(time.Duration(i) * time.Second)
	}
	if n := len(s.Arrivals.Trace); n > 0 {
		add(time.Duration(n) * time.Second)
	}
	for _, x := range s.Faults {
		add(x.From)
		add(x.To)
		for t := x.From; t < x.From+x.Onset; t += max(100*time.Millisecond, x.Onset/1000) {
			add(t)
		}
		add(x.From + x.Onset)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	for i, t := range cuts[1:] {
		f(cuts[i], t)
	}
}

// Capacity is the rate of attempts that the downstream can answer at t, in answers a second, were they all successes: workers over
// the mean service time, the throttle's limit, nothing in a crash. Work that hangs for longer than its client waits is no answer.
func (s *Scenario) Capacity(t time.Duration) float64 {
	if s.at(Crash, t) != nil {
		return 0
	}
	workers, mean := float64(s.Downstream.Workers), s.Downstream.Service.Mean.Seconds()
	if f := s.at(Capacity, t); f != nil {
		workers = float64(workersLeft(s.Downstream.Workers, f.Fraction))
	}
	if f := s.at(Slow, t); f != nil {
		mean *= f.factorAt(t)
	}
	patience := s.Deadline
	if s.Client.Timeout > 0 {
		patience = min(patience, s.Client.Timeout)
	}
	if f := s.at(Hang, t); f != nil {
		if f.Latency >= patience {
			return 0
		}
		mean = math.Max(f.Latency.Seconds(), 1e-6)
	}
	mu := workers / mean
	if f := s.at(Throttle, t); f != nil {
		mu = math.Min(mu, f.Limit)
	}
	return mu
}

func workersLeft(n int, fraction float64) int { return int(math.Round(float64(n) * fraction)) }

// WorkersAt is the number of workers at t.
func (s *Scenario) WorkersAt(t time.Duration) int {
	if f := s.at(Capacity, t); f != nil {
		return workersLeft(s.Downstream.Workers, f.Fraction)
	}
	return s.Downstream.Workers
}

// InForce returns the fault of a kind at t.
func (s *Scenario) InForce(k Kind, t time.Duration) (Fault, bool) {
	if f := s.at(k, t); f != nil {
		return *f, true
	}
	return Fault{}, false
}

// SlowFactor is what service times are multiplied with at t.
func (s *Scenario) SlowFactor(t time.Duration) float64 {
	if f := s.at(Slow, t); f != nil {
		return f.factorAt(t)
	}
	return 1
}
