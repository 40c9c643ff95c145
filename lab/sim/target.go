package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// refusal is how long an answer takes that is given without any work: a full queue, a refused connection, a 429.
const refusal = 2 * time.Millisecond

// target is the downstream: workers, a FIFO queue, faults. Work whose client has gone is done all the same.
type target struct {
	w       *World
	d       scenario.Downstream
	service *rand.Rand
	faults  *rand.Rand
	mu      float64 // of the lognormal's logarithm
	workers int

	slow, hang, failing, throttle *scenario.Fault // in force
	crashed                       bool
	tokens                        float64 // of the throttle
	refilled                      time.Duration

	serving []*Attempt
	waiting []*Attempt // a ring; nil = dropped
	head, n int        // of the ring's entries
	first   int        // number of the oldest entry, counted from the run's beginning
	holes   int        // entries that are nil

	door   *door
	wasted float64 // server-seconds
}

func newTarget(w *World, s *scenario.Scenario, seed uint64) *target {
	t := &target{w: w, d: s.Downstream, service: rand.New(rand.NewPCG(seed, streamService)), faults: rand.New(rand.NewPCG(seed, streamFaults)),
		waiting: make([]*Attempt, 64)}
	v := s.Downstream.Service
	t.mu = math.Log(v.Mean.Seconds()) - v.Sigma*v.Sigma/2
	return t
}

// refresh follows the timeline at a moment when faults begin or end.
func (t *target) refresh() {
	now, s := t.w.now, t.w.scenario
	t.workers = s.WorkersAt(now)
	get := func(k scenario.Kind) *scenario.Fault {
		if f, ok := s.InForce(k, now); ok {
			return &f
		}
		return nil
	}
	t.slow, t.hang, t.failing = get(scenario.Slow), get(scenario.Hang), get(scenario.Error)
	if f := get(scenario.Throttle); f == nil || t.throttle == nil || f.From != t.throttle.From {
		t.throttle = f
		if f != nil {
			t.tokens, t.refilled = burst(f.Limit), now
		}
	}
	before := t.crashed
	t.crashed = get(scenario.Crash) != nil
	if t.crashed && !before {
		t.crash()
	}
	t.pump()
}

func burst(limit float64) float64 { return max(10, limit/10) }

// crash loses all that is under way.
func (t *target) crash() {
	lost := append([]*Attempt(nil), t.serving...)
	t.serving = t.serving[:0]
	for _, a := range lost {
		if a.over {
			t.wasted += (t.w.now - a.begun).Seconds()
		}
	}
	for t.n > 0 {
		if a := t.pop(); a != nil {
			lost = append(lost, a)
		}
	}
	for _, a := range lost {
		a.work++
		t.answer(a, Failure{Outcome: cortex.Failed, Retryable: true})
	}
}

// arrive is an attempt at the target's door.
func (t *target) arrive(a *Attempt) {
	if t.door != nil && !t.door.admit(a) {
		return
	}
	t.w.meter.attempt(t.w.now)
	later := func(d time.Duration, o cortex.Outcome, hint time.Duration) {
		a.fail = Failure{Outcome: o, Retryable: true, RetryAfter: hint}
		t.w.after(d, event{kind: evAnswer, what: a, gen: a.gen})
	}
	switch {
	case t.crashed:
		later(refusal, cortex.Failed, 0)
	case t.failing != nil && t.faults.Float64() < t.failing.Probability:
		later(t.failing.Latency, cortex.Failed, 0)
	case t.throttle != nil && !t.allowed():
		later(refusal, cortex.Throttled, t.throttle.RetryAfter)
	case t.n-t.holes >= t.d.Queue:
		later(refusal, cortex.Failed, 0)
	default:
		t.push(a)
		t.pump()
	}
}

func (t *target) allowed() bool {
	now := t.w.now
	t.tokens = min(burst(t.throttle.Limit), t.tokens+(now-t.refilled).Seconds()*t.throttle.Limit)
	t.refilled = now
	if t.tokens < 1 {
		return false
	}
	t.tokens--
	return true
}

func (t *target) push(a *Attempt) {
	if t.n == len(t.waiting) {
		grown := make([]*Attempt, 2*len(t.waiting))
		for i := range t.n {
			grown[i] = t.waiting[(t.head+i)&(len(t.waiting)-1)]
		}
		t.waiting, t.head = grown, 0
	}
	t.waiting[(t.head+t.n)&(len(t.waiting)-1)] = a
	a.queued, a.slot = true, t.first+t.n
	t.n++
}

// pop takes the oldest entry out; nil was dropped.
func (t *target) pop() *Attempt {
	a := t.waiting[t.head]
	t.waiting[t.head] = nil
	t.head = (t.head + 1) & (len(t.waiting) - 1)
	t.first++
	t.n--
	if a == nil {
		t.holes--
	} else {
		a.queued = false
	}
	return a
}

// drop takes work whose client has gone out of the queue.
func (t *target) drop(a *Attempt) {
	t.waiting[(t.head+a.slot-t.first)&(len(t.waiting)-1)] = nil
	a.queued = false
	t.holes++
	for t.n > 0 && t.waiting[t.head] == nil {
		t.pop()
	}
	t.left(a)
}

// pump gives waiting work to free workers.
func (t *target) pump() {
	for len(t.serving) < t.workers && t.n > 0 {
		a := t.pop()
		if a == nil {
			continue
		}
		a.slot, a.begun = len(t.serving), t.w.now
		t.serving = append(t.serving, a)
		t.w.after(t.time(), event{kind: evServed, what: a, gen: a.work})
	}
}

// time that a worker takes for what it begins now.
func (t *target) time() time.Duration {
	if t.hang != nil {
		return t.hang.Latency
	}
	mean := t.d.Service.Mean.Seconds()
	var v float64
	switch t.d.Service.Distribution {
	case scenario.Exponential:
		v = mean * t.service.ExpFloat64()
	case scenario.Fixed:
		v = mean
	case scenario.Pareto:
		alpha := t.d.Service.Alpha
		v = mean * (alpha - 1) / alpha * math.Pow(1-t.service.Float64(), -1/alpha)
	default:
		v = math.Exp(t.mu + t.d.Service.Sigma*t.service.NormFloat64())
	}
	if t.slow != nil {
		v *= t.w.scenario.SlowFactor(t.w.now)
	}
	return time.Duration(min(v, 86400) * 1e9)
}

func (t *target) served(a *Attempt) {
	last := len(t.serving) - 1
	t.serving[a.slot] = t.serving[last]
	t.serving[a.slot].slot = a.slot
	t.serving = t.serving[:last]
	if a.over {
		t.wasted += (t.w.now - a.begun).Seconds()
	}
	t.answer(a, Failure{Outcome: cortex.Success})
	t.pump()
}

// answer ends the target's part in an attempt.
func (t *target) answer(a *Attempt, f Failure) {
	if t.door != nil {
		t.door.done(a, f.Outcome)
	}
	t.w.answered(a, f)
	t.w.release(a)
}

// left ends the target's part in an attempt whose work was dropped.
func (t *target) left(a *Attempt) {
	if t.door != nil {
		t.door.done(a, cortex.Neutral)
	}
	t.w.release(a)
}
