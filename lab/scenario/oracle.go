package scenario

import (
	"math"
	"slices"
	"time"
)

// An Interval of the run.
type Interval struct{ From, To time.Duration }

// Incidents are the stretches in which calls cannot all be answered or something is wrong: faults, and load beyond the healthy
// capacity. They are in order and do not touch. A few errors are the ordinary noise of a healthy target, and no incident.
func (s *Scenario) Incidents() []Interval {
	var all []Interval
	for _, f := range s.Faults {
		if noise := f.Kind == Error && f.Probability < 0.1; f.From < s.Duration && !noise {
			all = append(all, Interval{f.From, min(f.To, s.Duration)})
		}
	}
	mu := float64(s.Downstream.Workers) / s.Downstream.Service.Mean.Seconds()
	s.pieces(func(from, to time.Duration) {
		if s.Callers.Count == 0 && s.Rate(from) > mu {
			all = append(all, Interval{from, to})
		}
	})
	slices.SortFunc(all, func(a, b Interval) int { return int(min(max(a.From-b.From, -1), 1)) })
	var merged []Interval
	for _, x := range all {
		if n := len(merged); n > 0 && x.From <= merged[n-1].To {
			merged[n-1].To = max(merged[n-1].To, x.To)
		} else {
			merged = append(merged, x)
		}
	}
	return merged
}

// Outage is the first stretch in which calls arrive and nothing can be answered; the zero Interval: there is none.
func (s *Scenario) Outage() Interval {
	var first Interval
	s.pieces(func(from, to time.Duration) {
		if first.To != 0 && first.To != from || s.Rate(from) == 0 || !s.FullOutage(from) {
			return
		}
		if first.To == 0 {
			first.From = from
		}
		first.To = to
	})
	return first
}

// FullOutage reports whether nothing can be answered at t.
func (s *Scenario) FullOutage(t time.Duration) bool {
	f := s.at(Error, t)
	return s.Capacity(t) == 0 || f != nil && f.Probability >= 1
}

// attemptsWithin is how many attempts a call has time for while each takes what the fault's errors take.
func (s *Scenario) attemptsWithin(f *Fault) int {
	n := s.Client.MaxRetries + 1
	lost := f.Latency
	if s.Client.Timeout > 0 {
		lost = min(lost, s.Client.Timeout)
	}
	if lost > 0 {
		n = min(n, int((s.Deadline-1)/lost)+1)
	}
	return n
}

// Oracle is the share of the offered calls that could be answered: ∫ min(λ, μ(t)) dt, filled from the highest priority down; where
// attempts fail with a probability f whatever the load, a call with time for k retries comes to 1 − f^(k+1). byPriority has the order of
// s.Priorities. What retries carry across the end of a fault is not in it, so a policy may come to a little more.
func (s *Scenario) Oracle() (all float64, byPriority []float64) {
	good := make([]float64, len(s.Priorities))
	offered := 0.0
	s.pieces(func(from, to time.Duration) {
		dt := (to - from).Seconds()
		lambda := s.Rate(from)
		mu := s.Capacity(from)
		offered += lambda * dt
		pass, attempts := 1.0, 1.0
		if f := s.at(Error, from); f != nil {
			pass = 1 - math.Pow(f.Probability, float64(s.attemptsWithin(f)))
			attempts = pass // of those that take a worker, per call: failures take none
		}
		left := mu
		for i, p := range s.Priorities {
			want := lambda * p.Share
			served := want
			if need := want * attempts; need > left {
				served = want * left / need
			}
			left -= served * attempts
			good[i] += served * pass * dt
		}
	})
	if offered == 0 {
		return 0, make([]float64, len(good))
	}
	byPriority = make([]float64, len(good))
	for i, g := range good {
		all += g / offered
		byPriority[i] = g / (offered * s.Priorities[i].Share)
	}
	return all, byPriority
}
