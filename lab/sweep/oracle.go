package sweep

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// Setting of an oracle: which one is best depends on the system, and the oracle is the best of them on each.
type Setting struct {
	Utilisation float64 `json:"utilisation"` // of the true capacity that is given to whole classes, from the top; 0 = first come, first served
	Queue       float64 `json:"queue"`       // longest wait, as a share of the attempt timeout
	Waits       bool    `json:"waits"`       // holds calls back at a throttle or a full queue until there is room, as no guard can that admits or refuses
}

// Settings that are tried on each draw: the classes from the top up to 0.97 of the true capacity, with queues from short to long. The
// strict ones serve first come, first served, which has more goodput as no class leaves workers idle by chance, and hold calls back.
func Settings(strict bool) []Setting {
	if strict {
		return []Setting{{0, 0.1, true}, {0, 0.35, true}, {0, 0.5, true}, {0, 0.7, true}, {0, 0.85, true}, {0.97, 0.2, true}}
	}
	return []Setting{{0.97, 0.1, false}, {0.97, 0.2, false}, {0.97, 0.35, false}, {0.97, 0.5, false}, {0.97, 0.7, false}, {0.9, 0.2, false}}
}

// Oracle makes a clairvoyant guard: it knows the target's true state, its true capacity, the load by priority and the faults, to come
// as well. It fills the capacity, from the highest priority down if so set, keeps the true queue so short that what it lets in makes its
// timeout, refuses at once in outages, and retries as often as the client may. It does not hold calls back until an outage is over,
// although it could: policies that retry across the end of one may come to more.
func Oracle(set Setting) sim.Maker {
	return func(env sim.Env) (sim.Guard, error) {
		s := env.Scenario
		o := &oracle{env: env, s: s, set: set, rand: rand.New(rand.NewPCG(env.Seed[0], env.Seed[1])), timeout: s.Client.Timeout, patience: patience(s)}
		for _, f := range s.Faults {
			o.cuts = append(o.cuts, f.From, f.To)
			if f.Kind == scenario.Slow && f.Onset > 0 {
				for k := 1.0; k < 10; k++ {
					o.cuts = append(o.cuts, f.From+time.Duration(k/10*float64(f.Onset)))
				}
			}
		}
		return o, nil
	}
}

// patience is how long a client waits for an attempt at most.
func patience(s *scenario.Scenario) time.Duration {
	if t := s.Client.Timeout; t > 0 {
		return min(t, s.Deadline)
	}
	return s.Deadline
}

// toWait marks an attempt that is sent to a full queue, where it costs nothing, for its client to wait and come again.
const toWait = 1

type oracle struct {
	env      sim.Env
	s        *scenario.Scenario
	set      Setting
	rand     *rand.Rand
	timeout  time.Duration // of an attempt; 0 = the deadline alone
	patience time.Duration
	cuts     []time.Duration // when the capacity changes
	row      time.Duration   // until when the throttle's capacity is promised to calls that wait
}

// Admit lets in what will be answered.
func (o *oracle) Admit(a *sim.Attempt) cortex.Reason {
	now := o.env.Now()
	if o.out(now) {
		return cortex.ReasonCircuitOpen
	}
	x := o.env.Truth()
	top := o.top(a, now)
	if f, ok := o.s.InForce(scenario.Throttle, now); ok {
		if x.Tokens < 1 {
			if !o.set.Waits {
				return cortex.ReasonShed
			}
			return o.throttled(a, now, f) // to be told so, and wait
		}
		if !top && x.Tokens < f.Limit/20 {
			return cortex.ReasonShed
		}
	}
	if x.Waiting == 0 && x.InService < o.s.WorkersAt(now) {
		return cortex.ReasonNone // it begins at once: no capacity is left idle, whatever the priority
	}
	if o.set.Waits && x.Waiting >= o.s.Downstream.Queue && a.Number < o.s.Client.MaxRetries {
		a.Mine = toWait
		return cortex.ReasonNone
	}
	if !top || x.Waiting >= o.s.Downstream.Queue {
		return cortex.ReasonShed
	}
	wait := time.Duration(o.set.Queue * float64(min(o.patience, a.Call.Deadline-now)))
	if float64(x.Waiting+1+max(0, x.InService-o.s.WorkersAt(now))) > o.work(now, now+wait) {
		return cortex.ReasonShed
	}
	return cortex.ReasonNone
}

// throttled lets in an attempt that the throttle will turn away if there is a place for its retry: those who wait use the capacity that
// chance would leave unused. A turned away attempt costs nothing.
func (o *oracle) throttled(a *sim.Attempt, now time.Duration, f scenario.Fault) cortex.Reason {
	if a.Number >= o.s.Client.MaxRetries || o.turn(a, now, f) < 0 {
		return cortex.ReasonShed
	}
	return cortex.ReasonNone
}

// turn is when a call that the throttle turns away is next in the row of those that wait, < 0 if that is too late.
func (o *oracle) turn(a *sim.Attempt, now time.Duration, f scenario.Fault) time.Duration {
	at := max(o.row, now+f.RetryAfter) + time.Duration(1e9/f.Limit)
	if at-now > time.Duration(o.set.Queue*float64(a.Call.Deadline-now-o.s.Downstream.Service.Mean)) {
		return -1
	}
	return at
}

// out tells whether nothing that is sent now can be answered.
func (o *oracle) out(now time.Duration) bool {
	if _, ok := o.s.InForce(scenario.Crash, now); ok {
		return true
	}
	if f, ok := o.s.InForce(scenario.Error, now); ok && f.Probability >= 1 {
		return true
	}
	if f, ok := o.s.InForce(scenario.Hang, now); ok {
		return f.Latency >= o.patience
	}
	slow := o.s.SlowFactor(now)
	return slow > 1 && within(o.s.Downstream.Service, o.patience.Seconds()/slow) < hopeless
}

// hopeless is a share of attempts in time that is not worth the workers that the others hold until long after a fault.
const hopeless = 0.05

// within is the share of service times up to t seconds.
func within(v scenario.Service, t float64) float64 {
	mean := v.Mean.Seconds()
	switch v.Distribution {
	case scenario.Exponential:
		return 1 - math.Exp(-t/mean)
	case scenario.Fixed:
		if t >= mean {
			return 1
		}
		return 0
	case scenario.Pareto:
		return max(0, 1-math.Pow(mean*(v.Alpha-1)/v.Alpha/t, v.Alpha))
	default:
		z := (math.Log(t/mean) + v.Sigma*v.Sigma/2) / v.Sigma
		return 0.5 * math.Erfc(-z/math.Sqrt2)
	}
}

// speed is the number of attempts a second that workers finish in time, all busy.
func (o *oracle) speed(now time.Duration) float64 {
	mean := o.s.Downstream.Service.Mean.Seconds() * o.s.SlowFactor(now)
	if f, ok := o.s.InForce(scenario.Hang, now); ok {
		if f.Latency >= o.patience {
			return 0
		}
		mean = math.Max(1e-6, f.Latency.Seconds())
	}
	if _, ok := o.s.InForce(scenario.Crash, now); ok {
		return 0
	}
	return float64(o.s.WorkersAt(now)) / mean
}

// work is how many attempts the workers begin between from and to, all busy.
func (o *oracle) work(from, to time.Duration) float64 {
	sum := 0.0
	for from < to {
		end := to
		for _, c := range o.cuts {
			if c > from && c < end {
				end = c
			}
		}
		sum += o.speed(from) * (end - from).Seconds()
		from = end
	}
	return sum
}

// top tells whether an attempt belongs to what fits into the capacity, filled from the highest priority down. In the class that fits in
// part, chance decides.
func (o *oracle) top(a *sim.Attempt, now time.Duration) bool {
	capacity := o.speed(now)
	perCall := 1.0 // worker-attempts: errors take none
	if f, ok := o.s.InForce(scenario.Error, now); ok {
		perCall = 1 - math.Pow(f.Probability, float64(o.s.Client.MaxRetries+1))
	}
	if f, ok := o.s.InForce(scenario.Throttle, now); ok {
		capacity = min(capacity, f.Limit)
	}
	if o.set.Utilisation == 0 {
		return true
	}
	left := o.set.Utilisation * capacity
	rate := o.s.Rate(now) * perCall
	for _, p := range o.s.Priorities {
		want := rate * p.Share
		if p.Priority == a.Call.Priority {
			return want <= left || o.rand.Float64()*want < left
		}
		left = max(0, left-want)
	}
	return false
}

// Timeout of an attempt.
func (o *oracle) Timeout(*sim.Attempt) time.Duration { return o.timeout }

// Done needs nothing: the truth is there to see.
func (o *oracle) Done(*sim.Attempt, cortex.Outcome) {}

// Retry tries again at once: whether there is room is seen at Admit.
func (o *oracle) Retry(a *sim.Attempt, f sim.Failure) sim.Verdict {
	now := o.env.Now()
	if a.Number >= o.s.Client.MaxRetries {
		return sim.Verdict{Reason: cortex.ReasonMaxRetries}
	}
	if t, ok := o.s.InForce(scenario.Throttle, now); ok && o.set.Waits && f.Outcome == cortex.Throttled {
		at := o.turn(a, now, t)
		if at < 0 {
			return sim.Verdict{Reason: cortex.ReasonShed}
		}
		o.row = at
		return sim.Verdict{Retry: true, Delay: at - now}
	}
	if a.Mine == toWait { // the client's backoff
		d := float64(o.s.Client.BaseDelay) * math.Exp2(float64(a.Number)) * o.rand.Float64()
		return sim.Verdict{Retry: true, Delay: time.Duration(min(d, 3.6e12))}
	}
	return sim.Verdict{Retry: true, Delay: f.RetryAfter}
}
