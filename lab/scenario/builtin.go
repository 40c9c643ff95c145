package scenario

import (
	"fmt"
	"strings"
	"time"
)

// Builtin returns the scenario suite, S1 to S12, in order; the caller owns it.
func Builtin() []*Scenario { return made(suite) }

// Extra returns the variants that are run beside the suite: harder failures, cold starts inside an incident, trickles.
func Extra() []*Scenario { return made(extras) }

// Find returns the built-in scenario of that name, upper or lower case.
func Find(name string) (*Scenario, error) {
	for _, list := range [][]recipe{suite, extras} {
		for _, r := range list {
			if strings.EqualFold(r.name, name) {
				return r.make(), nil
			}
		}
	}
	return nil, fmt.Errorf("unknown scenario %q: `cortex sim --list` shows them", name)
}

type recipe struct {
	name, title string
	change      func(*Scenario)
}

func made(list []recipe) []*Scenario {
	all := make([]*Scenario, len(list))
	for i, r := range list {
		all[i] = r.make()
	}
	return all
}

func (r recipe) make() *Scenario {
	s := Rig()
	s.Name, s.Title = r.name, r.title
	r.change(s)
	if err := s.Validate(); err != nil {
		panic(fmt.Sprintf("scenario %s: %v", r.name, err)) // built in: a test makes them all
	}
	return s
}

// Rig is the suite's rig without a fault: 50,000 calls in 120 s on 14 workers of 20 ms, ρ = 0.6.
func Rig() *Scenario {
	return &Scenario{
		Name: "rig", Duration: 120 * time.Second, Deadline: 3 * time.Second, Seeds: 10,
		Arrivals:   Arrivals{Steps: []Step{{0, 416.7}}, Scale: 1},
		Priorities: []Share{{9, 0.1}, {7, 0.3}, {5, 0.4}, {2, 0.2}},
		Client:     Client{Timeout: 345 * time.Millisecond, MaxRetries: 3, BaseDelay: 100 * time.Millisecond},
		Downstream: Downstream{Workers: 14, Service: Service{Distribution: Lognormal, Mean: 20 * time.Millisecond, Sigma: 0.8}, Queue: 2000},
		Hops:       1,
	}
}

const (
	faultFrom = 20 * time.Second
	faultTo   = 60 * time.Second
)

func fault(f Fault) func(*Scenario) {
	return func(s *Scenario) {
		if f.To == 0 {
			f.From, f.To = faultFrom, faultTo
		}
		s.Faults = []Fault{f}
	}
}

func all(changes ...func(*Scenario)) func(*Scenario) {
	return func(s *Scenario) {
		for _, c := range changes {
			c(s)
		}
	}
}

func trickle(rate, errors float64, length time.Duration) func(*Scenario) {
	return func(s *Scenario) {
		s.Arrivals.Steps, s.Duration = []Step{{0, rate}}, length
		s.Faults = []Fault{{To: length, Kind: Error, Probability: errors, Latency: 5 * time.Millisecond}}
	}
}

func spike(from time.Duration) func(*Scenario) {
	return func(s *Scenario) {
		s.Arrivals.Steps = []Step{{0, 416.7}, {from, 1250}, {from + faultTo - faultFrom, 416.7}}
		if from == 0 {
			s.Arrivals.Steps = s.Arrivals.Steps[1:]
		}
	}
}

func herd(f Fault) func(*Scenario) {
	f.From, f.To = 20*time.Second, 80*time.Second
	return all(fault(f), func(s *Scenario) {
		s.Arrivals.Steps = nil
		s.Callers = Callers{Count: 1000, Think: 2380 * time.Millisecond}
	})
}

func flapping(s *Scenario) {
	for t := faultFrom; t < faultTo; t += 10 * time.Second {
		s.Faults = append(s.Faults, Fault{From: t, To: t + 5*time.Second, Kind: Error, Probability: 1})
	}
}

func hops(mark bool) func(*Scenario) {
	return all(fault(Fault{Kind: Error, Probability: 1}), func(s *Scenario) { s.Hops, s.Mark = 3, mark })
}

// cold begins inside the incident, without a calm stretch to learn from.
func cold(change func(*Scenario)) func(*Scenario) {
	return all(change, func(s *Scenario) {
		for i := range s.Faults {
			s.Faults[i].From, s.Faults[i].To = 0, s.Faults[i].To-faultFrom
		}
	})
}

var (
	hang     = fault(Fault{Kind: Hang, Latency: 5 * time.Second})
	brownout = fault(Fault{Kind: Slow, Factor: 3})
)

var suite = []recipe{
	{"S1", "article: every attempt hangs 5 s", hang},
	{"S2", "brownout: service time × 3", brownout},
	{"S3", "capacity: half the workers gone", fault(Fault{Kind: Capacity, Fraction: 0.5})},
	{"S4", "partial: 30 % of attempts fail at once", fault(Fault{Kind: Error, Probability: 0.3})},
	{"S5", "blackout: every attempt fails at once", fault(Fault{Kind: Error, Probability: 1})},
	{"S6", "storm: ρ = 0.85, a hang of 5 s, the metastable case",
		all(fault(Fault{From: faultFrom, To: 25 * time.Second, Kind: Hang, Latency: 5 * time.Second}),
			func(s *Scenario) { s.Arrivals.Steps[0].Rate = 595 })},
	{"S7", "flapping: blackout 5 s on, 5 s off", flapping},
	{"S8", "spike: offered load × 3", spike(faultFrom)},
	{"S9", "trickle: 0.05 calls/s, 5 % errors, 24 h", trickle(0.05, 0.05, 24*time.Hour)},
	{"S10", "throttle: 429 beyond 300/s, Retry-After 1 s", fault(Fault{Kind: Throttle, Limit: 300, RetryAfter: time.Second})},
	{"S11", "herd: 1,000 clients in closed loop, 60 s blackout", herd(Fault{Kind: Error, Probability: 1})},
	{"S12", "hops: three tiers that retry, with the retry mark; blackout", hops(true)},
}

var extras = []recipe{
	{"S4-60", "partial: 60 % of attempts fail at once", fault(Fault{Kind: Error, Probability: 0.6})},
	{"S4-90", "partial: 90 % of attempts fail at once", fault(Fault{Kind: Error, Probability: 0.9})},
	{"S3-90", "capacity: nine tenths of 60 workers gone, 400 calls/s of 100 ms", all(fault(Fault{Kind: Capacity, Fraction: 0.1}), func(s *Scenario) {
		s.Arrivals.Steps[0].Rate, s.Client.Timeout = 400, 300*time.Millisecond
		s.Downstream.Workers, s.Downstream.Service = 60, Service{Distribution: Exponential, Mean: 100 * time.Millisecond}
	})},
	{"S4-slow", "partial: half of the attempts fail after 1 s, which is longer than their timeout",
		fault(Fault{Kind: Error, Probability: 0.5, Latency: time.Second})},
	{"S5-50", "blackout at 50 calls/s", all(fault(Fault{Kind: Error, Probability: 1}), func(s *Scenario) { s.Arrivals.Steps[0].Rate = 50 })},
	{"S1-50", "hang at 50 calls/s", all(hang, func(s *Scenario) { s.Arrivals.Steps[0].Rate = 50 })},
	{"two-a-second", "2 calls/s, 2 % errors, an hour", trickle(2, 0.02, time.Hour)},
	{"S11-hang", "herd: 1,000 clients in closed loop, 60 s hang", herd(Fault{Kind: Hang, Latency: 5 * time.Second})},
	{"S12-unmarked", "hops: three tiers that retry, no retry mark; blackout", hops(false)},
	{"slow-onset", "service time grows to × 3 over 120 s", all(fault(Fault{From: faultFrom, To: 140 * time.Second, Kind: Slow, Factor: 3,
		Onset: 120 * time.Second}), func(s *Scenario) { s.Duration = 200 * time.Second })},
	{"cold-S1", "cold start in S1", cold(hang)},
	{"cold-S2", "cold start in S2", cold(brownout)},
	{"cold-S8", "cold start in S8", spike(0)},
}
