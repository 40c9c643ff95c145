package sim_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// A record of a run, made by watching its guards, from which every measure is worked out again the slow and obvious way.
type record struct {
	t        testing.TB
	s        *scenario.Scenario
	calls    []*callRecord
	open     map[*sim.Call]*callRecord // of the callers' tier
	attempts []time.Duration           // that reached the target
	early    int                       // retries before the target's hint
	answered int                       // attempts of any tier
	lost     int                       // the same, without success
	begun    int
}

type callRecord struct {
	priority cortex.Priority
	start    time.Duration
	end      time.Duration
	ended    bool
	good     bool
	refused  bool // at the first attempt
}

func newRecord(t testing.TB, s *scenario.Scenario) *record {
	return &record{t: t, s: s, open: map[*sim.Call]*callRecord{}}
}

// watch puts the record between the run and guards of that maker.
func (r *record) watch(m sim.Maker) sim.Maker {
	return func(env sim.Env) (sim.Guard, error) {
		g, err := m(env)
		w := &watched{g, r, env}
		if s, ok := g.(sim.Snapshotter); ok {
			return struct {
				*watched
				sim.Snapshotter
			}{w, s}, err
		}
		return w, err
	}
}

type watched struct {
	sim.Guard
	r   *record
	env sim.Env
}

func (w *watched) Transitions() int { return w.Guard.(sim.Switch).Transitions() }

func (w *watched) end(a *sim.Attempt, good bool) {
	if w.env.Tier > 0 {
		return
	}
	c := w.r.open[a.Call]
	if c == nil || c.ended {
		w.r.t.Fatalf("a call that began at %v ends twice", a.Call.Start)
	}
	c.ended, c.good, c.end = true, good, w.env.Now()
	delete(w.r.open, a.Call)
}

func (w *watched) Admit(a *sim.Attempt) cortex.Reason {
	now := w.env.Now()
	if now > a.Call.Deadline {
		w.r.t.Fatalf("an attempt at %v for a call whose deadline was at %v", now, a.Call.Deadline)
	}
	if w.env.Tier == 0 && a.Number == 0 {
		c := &callRecord{priority: a.Call.Priority, start: now}
		w.r.calls = append(w.r.calls, c)
		w.r.open[a.Call] = c
	}
	reason := w.Guard.Admit(a)
	if reason != cortex.ReasonNone {
		if w.env.Tier == 0 {
			w.r.open[a.Call].refused = a.Number == 0
		}
		w.end(a, false)
		return reason
	}
	w.r.begun++
	if w.env.Tier == w.r.s.Hops-1 {
		w.r.attempts = append(w.r.attempts, now)
	}
	return reason
}

func (w *watched) Done(a *sim.Attempt, o cortex.Outcome) {
	w.Guard.Done(a, o)
	if o == cortex.Success {
		w.r.answered++
		w.end(a, true)
	} else {
		w.r.lost++
	}
}

func (w *watched) Retry(a *sim.Attempt, f sim.Failure) sim.Verdict {
	v := w.Guard.Retry(a, f)
	switch {
	case !v.Retry || w.env.Now()+v.Delay >= a.Call.Deadline:
		w.end(a, false)
	case v.Delay < f.RetryAfter:
		w.r.early++
	}
	return v
}

// check compares what a whole run measured with the record.
func (r *record) check(got sim.Result) {
	t, s := r.t, r.s
	t.Helper()
	if len(r.open) > 0 {
		t.Errorf("%d calls never ended", len(r.open))
	}
	if r.begun != r.answered+r.lost {
		t.Errorf("%d attempts began, %d were answered, %d failed or were given up", r.begun, r.answered, r.lost)
	}
	ratio := func(n, of int) float64 {
		if of == 0 {
			return 0
		}
		return float64(n) / float64(of)
	}
	same := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
			t.Errorf("%s: %v, the record says %v", what, got, want)
		}
	}
	count := func(f func(*callRecord) bool) int {
		n := 0
		for _, c := range r.calls {
			if f(c) {
				n++
			}
		}
		return n
	}
	incidents := s.Incidents()
	within := func(at, grace time.Duration) bool {
		return slices.ContainsFunc(incidents, func(i scenario.Interval) bool { return at >= i.From && at < i.To+grace })
	}
	good := func(c *callRecord) bool { return c.good }
	same("calls", float64(got.Calls), float64(len(r.calls)))
	same("goodput", got.Goodput, ratio(count(good), len(r.calls)))
	for i, p := range s.Priorities {
		of := func(c *callRecord) bool { return c.priority == p.Priority }
		same("goodput by priority", got.GoodByPriority[i], ratio(count(func(c *callRecord) bool { return of(c) && c.good }), count(of)))
		same("offered by priority", float64(got.OfferedByClass[i]), float64(count(of)))
	}
	same("attempts", float64(got.Attempts), float64(len(r.attempts)))
	same("amplification", got.Amplification, ratio(len(r.attempts), len(r.calls)))
	attempts := func(from, to time.Duration) (n int) {
		for _, at := range r.attempts {
			if at >= from && at < to {
				n++
			}
		}
		return n
	}
	inFault := 0
	for _, i := range incidents {
		inFault += attempts(i.From, i.To)
	}
	same("amplification in the fault", got.InFault, ratio(inFault, count(func(c *callRecord) bool { return within(c.start, 0) })))
	healthy := func(c *callRecord) bool { return !within(c.start, 5*time.Second) }
	falsely := count(func(c *callRecord) bool { return healthy(c) && c.refused })
	same("refused while healthy", float64(got.RefusedHealthy), float64(falsely))
	same("false rejections", got.FalseRejections, ratio(falsely, count(healthy)))
	same("retries before the hint", float64(got.BeforeHint), float64(r.early))

	inversions := 0
	for second := time.Duration(0); second < s.Duration; second += time.Second {
		in := func(c *callRecord) bool { return c.start >= second && c.start < second+time.Second }
		shed := cortex.Priority(-1) // the highest that was
		for _, c := range r.calls {
			if in(c) && c.refused {
				shed = max(shed, c.priority)
			}
		}
		inversions += count(func(c *callRecord) bool { return in(c) && c.good && c.priority < shed })
	}
	same("inversions", float64(got.Inversions), float64(inversions))

	const bin = 100 * time.Millisecond
	ends := (s.Duration + bin - 1) / bin * bin
	if n := len(incidents); n > 0 {
		last := incidents[n-1].To
		first := (last + bin - 1) / bin * bin
		recovered, seen, peak := time.Duration(-1), 0, 0.0
		for from := first; from+3*time.Second <= ends; from += bin {
			in := func(c *callRecord) bool { return c.start >= from && c.start < from+3*time.Second }
			offered := count(in)
			seen += offered
			if recovered < 0 && offered > 0 && float64(count(func(c *callRecord) bool { return in(c) && c.good })) >= 0.95*float64(offered) {
				recovered = from - last
			}
		}
		after := count(func(c *callRecord) bool { return c.start >= first })
		if want := recovered >= 0 || after == 0 || last+3*time.Second > s.Duration; got.Recovered != want {
			t.Errorf("recovered %v, the record says %v (%v)", got.Recovered, want, recovered)
		}
		same("TTR", got.TTR.Seconds(), max(0, recovered).Seconds())
		for from := first; from+time.Second <= ends; from += bin {
			if mu := s.Capacity(from); mu > 0 {
				peak = max(peak, float64(attempts(from, from+time.Second))/mu)
			}
		}
		same("overshoot", got.Overshoot, peak)
	} else if !got.Recovered || got.TTR != 0 || got.Overshoot != 0 {
		t.Errorf("nothing to recover from: %v, %v, overshoot %v", got.Recovered, got.TTR, got.Overshoot)
	}

	if o := s.Outage(); got.Outage != (o.To > 0) {
		t.Errorf("outage %v, it is %v", got.Outage, o)
	} else if o.To > 0 {
		detected := time.Duration(-1)
		length := time.Second
		if rate := s.Rate(o.From); rate > 0 {
			length = min(time.Minute, max(length, time.Duration(math.Ceil(200/rate))*bin))
		}
		for from := (o.From + bin - 1) / bin * bin; from+length <= min(o.To, ends) && detected < 0; from += bin {
			if float64(attempts(from, from+length)) < 0.1*s.Rate(from)*length.Seconds() {
				detected = from - o.From
			}
		}
		if got.Detected != (detected >= 0) || got.TTD != max(0, detected) {
			t.Errorf("detected %v after %v, the record says %v", got.Detected, got.TTD, detected)
		}
	}

	var latencies []time.Duration
	for _, c := range r.calls {
		if c.good {
			latencies = append(latencies, c.end-c.start)
		}
	}
	if n := len(latencies); n > 0 {
		slices.Sort(latencies)
		want := max(latencies[int(math.Ceil(0.99*float64(n)))-1], time.Microsecond).Seconds()
		if p := got.P99.Seconds(); p < want*(1-1e-6) || p > want*(1+1.0/128)*(1+1e-6) {
			t.Errorf("p99 %v, the record says %v s", got.P99, want)
		}
	}
}
