package scenario

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

func rig(t testing.TB, change func(*Scenario)) *Scenario {
	t.Helper()
	s := Rig()
	change(s)
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// random makes a scenario whose times are whole tenths of a second, with faults of every kind over each other.
func random(t testing.TB, r *rand.Rand) *Scenario {
	tenths := func(n int) time.Duration { return time.Duration(r.IntN(n)) * 100 * time.Millisecond }
	return rig(t, func(s *Scenario) {
		s.Duration = time.Second + tenths(150)
		s.Client = Client{Timeout: []time.Duration{0, 50 * time.Millisecond, time.Second}[r.IntN(3)], MaxRetries: r.IntN(4)}
		s.Arrivals = Arrivals{Steps: []Step{{tenths(20), 1000 * r.Float64()}, {2*time.Second + tenths(100), 2000 * r.Float64()}}, Scale: 0.5 + r.Float64()}
		if r.IntN(3) == 0 {
			s.Arrivals = Arrivals{}
			for range 1 + r.IntN(20) {
				s.Arrivals.Trace = append(s.Arrivals.Trace, float64(r.IntN(1500)))
			}
		}
		for k := range Kind(len(kinds)) {
			for at := tenths(60); r.IntN(2) == 0; {
				f := Fault{From: at, To: at + 100*time.Millisecond + tenths(60), Kind: k, Factor: 1 + 3*r.Float64(), Fraction: r.Float64(), Probability: 0.05 + 0.95*r.Float64(),
					Limit: 800 * r.Float64(), Latency: []time.Duration{0, 40 * time.Millisecond, 2 * time.Second}[r.IntN(3)]}
				if k == Error && r.IntN(3) == 0 {
					f.Probability = 1
				}
				if k == Capacity && r.IntN(3) == 0 {
					f.Fraction = 0
				}
				s.Faults = append(s.Faults, f)
				at = f.To + tenths(3)
			}
		}
	})
}

// The oracle, the incidents and the outage against an integration in steps of 10 ms that knows nothing of pieces.
func TestOracleAgainstANaiveOne(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	outages := 0
	for n := range 150 {
		s := random(t, r)
		in := func(k Kind, at time.Duration) *Fault {
			for i, f := range s.Faults {
				if f.Kind == k && at >= f.From && at < f.To {
					return &s.Faults[i]
				}
			}
			return nil
		}
		const step = 10 * time.Millisecond
		offered, good := 0.0, make([]float64, 4)
		var outage Interval
		over := false
		for at := time.Duration(0); at < s.Duration; at += step {
			lambda := 0.0
			if i := int(at / time.Second); len(s.Arrivals.Trace) > 0 {
				if i < len(s.Arrivals.Trace) {
					lambda = s.Arrivals.Trace[i]
				}
			} else {
				for _, st := range s.Arrivals.Steps {
					if at >= st.From {
						lambda = st.Rate * s.Arrivals.Scale
					}
				}
			}
			workers, each := 14.0, 0.020
			if f := in(Capacity, at); f != nil {
				workers = math.Round(14 * f.Fraction)
			}
			if f := in(Slow, at); f != nil {
				each *= f.Factor
			}
			patience := 3 * time.Second
			if s.Client.Timeout > 0 {
				patience = s.Client.Timeout
			}
			if f := in(Hang, at); f != nil {
				each = f.Latency.Seconds()
				if f.Latency >= patience {
					workers = 0
				}
			}
			mu := workers / each
			if f := in(Throttle, at); f != nil {
				mu = min(mu, f.Limit)
			}
			if in(Crash, at) != nil {
				mu = 0
			}
			pass := 1.0
			if f := in(Error, at); f != nil {
				attempts, spent := 0, time.Duration(0)
				for attempts <= s.Client.MaxRetries && spent < 3*time.Second {
					attempts++
					spent += min(f.Latency, patience)
				}
				pass = 1 - math.Pow(f.Probability, float64(attempts))
			}
			share := 1.0 // of what would pass
			dt := step.Seconds()
			offered += lambda * dt
			room := mu
			for i, p := range s.Priorities {
				if want := lambda * p.Share * pass; want > 0 {
					share = min(1, room/want)
					good[i] += want * share * dt
					room = max(0, room-want)
				}
			}
			dead := lambda > 0 && (mu == 0 || pass == 0)
			switch {
			case dead && outage.To == 0:
				outage = Interval{at, at + step}
			case dead && !over:
				outage.To = at + step
			case outage.To != 0:
				over = true
			}
			wrong := lambda > 14/0.020
			for _, f := range s.Faults {
				wrong = wrong || at >= f.From && at < f.To && !(f.Kind == Error && f.Probability < 0.1)
			}
			found := 0
			for _, i := range s.Incidents() {
				if at >= i.From && at < i.To {
					found++
				}
			}
			if found > 1 || (found == 1) != wrong {
				t.Fatalf("%d: at %v in %d incidents of %v, wrong %v: %+v", n, at, found, s.Incidents(), wrong, s)
			}
		}
		all, by := s.Oracle()
		if math.Abs(s.Offered()-offered) > 1e-6*(1+offered) {
			t.Fatalf("%d: %v calls, want %v: %+v", n, s.Offered(), offered, s)
		}
		sum := 0.0
		for i, g := range good {
			sum += g
			if offered > 0 && math.Abs(by[i]-g/offered/s.Priorities[i].Share) > 1e-6 {
				t.Fatalf("%d: priority %d has %v, want %v: %+v", n, s.Priorities[i].Priority, by[i], g/offered/s.Priorities[i].Share, s)
			}
		}
		if offered > 0 && math.Abs(all-sum/offered) > 1e-6 {
			t.Fatalf("%d: oracle %v, want %v: %+v", n, all, sum/offered, s)
		}
		if got := s.Outage(); got != outage {
			t.Fatalf("%d: outage %v, want %v: %+v", n, got, outage, s)
		}
		if outage.To > 0 {
			outages++
		}
		for i, x := range s.Incidents() {
			if x.From >= x.To || x.To > s.Duration || i > 0 && x.From <= s.Incidents()[i-1].To {
				t.Fatalf("%d: incidents %v", n, s.Incidents())
			}
		}
	}
	if outages < 20 || outages > 145 {
		t.Errorf("%d of 150 with an outage", outages)
	}
}

// A slow fault grows over its onset, and the oracle with it.
func TestOnset(t *testing.T) {
	s := rig(t, func(s *Scenario) {
		s.Arrivals.Steps[0].Rate = 700
		s.Faults = []Fault{{From: 20 * time.Second, To: 100 * time.Second, Kind: Slow, Factor: 3, Onset: 40 * time.Second}}
	})
	for at, want := range map[time.Duration]float64{19: 1, 20: 1, 30: 1.5, 40: 2, 60: 3, 99: 3, 100: 1} {
		if f := s.SlowFactor(at * time.Second); f != want {
			t.Errorf("at %v s: %v, want %v", int(at), f, want)
		}
	}
	all, _ := s.Oracle()
	if want := (40 + 40*math.Log(3)/2 + 40.0/3) / 120; math.Abs(all-want) > 1e-3 { // ∫ dt/(1 + 2t/40)
		t.Errorf("oracle %v, want %v", all, want)
	}
}

// What cannot be used is named by its field, with what would be right; nothing panics.
func TestValidate(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	fault := func(f Fault) func(*Scenario) {
		return func(s *Scenario) {
			if f.To == 0 {
				f.To = time.Second
			}
			s.Faults = []Fault{f}
		}
	}
	rate := func(r float64) func(*Scenario) { return func(s *Scenario) { s.Arrivals.Steps[0].Rate = r } }
	for _, c := range []struct {
		field  string
		change func(*Scenario)
	}{
		{"name", func(s *Scenario) { s.Name = "" }},
		{"duration", func(s *Scenario) { s.Duration = 999 * time.Millisecond }},
		{"duration", func(s *Scenario) { s.Duration = MaxDuration + 1 }},
		{"deadline", func(s *Scenario) { s.Deadline = time.Microsecond }},
		{"deadline", func(s *Scenario) { s.Deadline = -1 }},
		{"seeds", func(s *Scenario) { s.Seeds = -1 }},
		{"hops", func(s *Scenario) { s.Hops = 9 }},
		{"client.timeout", func(s *Scenario) { s.Client.Timeout = 1 }},
		{"client.timeout", func(s *Scenario) { s.Client.Timeout = -1 }},
		{"client.max_retries", func(s *Scenario) { s.Client.MaxRetries = 101 }},
		{"client.base_delay", func(s *Scenario) { s.Client.BaseDelay = -1 }},
		{"priorities", func(s *Scenario) { s.Priorities = []Share{{32, 1}} }},
		{"priorities", func(s *Scenario) { s.Priorities = []Share{{-1, 1}} }},
		{"priorities.5", func(s *Scenario) { s.Priorities = []Share{{5, 1}, {5, 1}} }},
		{"priorities.5", func(s *Scenario) { s.Priorities = []Share{{5, nan}} }},
		{"priorities.5", func(s *Scenario) { s.Priorities = []Share{{5, inf}} }},
		{"priorities.5", func(s *Scenario) { s.Priorities = []Share{{5, 0}} }},
		{"arrivals", func(s *Scenario) { s.Arrivals.Steps = nil }},
		{"arrivals", func(s *Scenario) { s.Arrivals.Trace = []float64{1} }},
		{"arrivals", func(s *Scenario) { s.Callers = Callers{Count: 1, Think: time.Second} }},
		{"arrivals", func(s *Scenario) { s.Duration = 24 * time.Hour; s.Arrivals.Steps[0].Rate = 1e5 }},
		{"arrivals[0].rate", rate(-1)}, {"arrivals[0].rate", rate(nan)}, {"arrivals[0].rate", rate(inf)}, {"arrivals[0].rate", rate(1e7)},
		{"arrivals.scale", func(s *Scenario) { s.Arrivals.Scale = nan }},
		{"arrivals.scale", func(s *Scenario) { s.Arrivals.Scale = -1 }},
		{"arrivals[0].from", func(s *Scenario) { s.Arrivals.Steps[0].From = -1 }},
		{"arrivals[1].from", func(s *Scenario) { s.Arrivals.Steps = []Step{{1, 1}, {1, 2}} }},
		{"arrivals.trace line 2", func(s *Scenario) { s.Arrivals = Arrivals{Trace: []float64{1, nan}} }},
		{"callers.count", func(s *Scenario) { s.Callers = Callers{Count: -1} }},
		{"callers.think", func(s *Scenario) { s.Callers = Callers{Count: 1} }},
		{"downstream.workers", func(s *Scenario) { s.Downstream.Workers = 0 }},
		{"downstream.queue", func(s *Scenario) { s.Downstream.Queue = -1 }},
		{"downstream.service.distribution", func(s *Scenario) { s.Downstream.Service.Distribution = 9 }},
		{"downstream.service.mean", func(s *Scenario) { s.Downstream.Service.Mean = 0 }},
		{"downstream.service.sigma", func(s *Scenario) { s.Downstream.Service.Sigma = nan }},
		{"downstream.service.alpha", func(s *Scenario) { s.Downstream.Service = Service{Distribution: Pareto, Mean: 1e6, Alpha: 1} }},
		{"faults[0].kind", fault(Fault{Kind: 9})},
		{"faults[0].from", fault(Fault{From: -1})},
		{"faults[0].to", fault(Fault{From: 2, To: 2})},
		{"faults[0].latency", fault(Fault{Latency: -1})},
		{"faults[0].factor", fault(Fault{Kind: Slow})},
		{"faults[0].factor", fault(Fault{Kind: Slow, Factor: nan})},
		{"faults[0].onset", fault(Fault{Kind: Slow, Factor: 2, Onset: 2 * time.Second})},
		{"faults[0].fraction", fault(Fault{Kind: Capacity, Fraction: 1.1})},
		{"faults[0].probability", fault(Fault{Kind: Error})},
		{"faults[0].probability", fault(Fault{Kind: Error, Probability: nan})},
		{"faults[0].limit", fault(Fault{Kind: Throttle})},
		{"faults[0].retry_after", fault(Fault{Kind: Throttle, Limit: 1, RetryAfter: -1})},
		{"faults[1].from", func(s *Scenario) { s.Faults = []Fault{{From: 5, To: 9}, {From: 8, To: 10}} }},
	} {
		s := Rig()
		c.change(s)
		err := s.Validate()
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != c.field || fe.Want == "" {
			t.Errorf("%s: %v", c.field, err)
		}
	}
}

// Defaults are filled in, shares are made to sum up to one, from the highest priority down; validating again changes nothing.
func TestDefaults(t *testing.T) {
	s := &Scenario{Name: "least", Duration: time.Second, Arrivals: Arrivals{Steps: []Step{{0, 1}}}, Downstream: Downstream{Workers: 1, Service: Service{Mean: 1e6, Sigma: 1}},
		Priorities: []Share{{1, 3}, {8, 1}}, Faults: []Fault{{To: 1, Kind: Hang}, {To: 1, Kind: Error, Probability: 1}}}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	if s.Deadline != 3*time.Second || s.Seeds != 10 || s.Hops != 1 || s.Arrivals.Scale != 1 || s.Client.BaseDelay != 100*time.Millisecond || s.Downstream.Queue != 2000 ||
		s.Faults[0].Latency != 5*time.Second || s.Faults[1].Latency != 5*time.Millisecond {
		t.Errorf("%+v", s)
	}
	if want := []Share{{8, 0.25}, {1, 0.75}}; !reflect.DeepEqual(s.Priorities, want) {
		t.Errorf("%+v", s.Priorities)
	}
	before := fmt.Sprintf("%+v", s)
	if err := s.Validate(); err != nil || fmt.Sprintf("%+v", s) != before {
		t.Errorf("%v: %+v, was %s", err, s, before)
	}
	s.Priorities = nil
	if err := s.Validate(); err != nil || !reflect.DeepEqual(s.Priorities, []Share{{cortex.Priority(5), 1}}) {
		t.Errorf("%+v, %v", s.Priorities, err)
	}
}

// The suite is complete, its names are found, and each caller has a copy of its own.
func TestBuiltins(t *testing.T) {
	seen := map[string]bool{}
	for i, s := range append(Builtin(), Extra()...) {
		if i < 12 && s.Name != fmt.Sprintf("S%d", i+1) || seen[s.Name] || s.Title == "" {
			t.Errorf("scenario %d is %q, %q", i, s.Name, s.Title)
		}
		seen[s.Name] = true
		a, err := Find(strings.ToLower(s.Name))
		if err != nil || !reflect.DeepEqual(a, s) {
			t.Errorf("%s: %v", s.Name, err)
			continue
		}
		if len(a.Faults) > 0 {
			a.Faults[0].Factor = -7
		}
		a.Priorities[0].Share = -7
		if b, _ := Find(s.Name); !reflect.DeepEqual(b, s) {
			t.Errorf("%s changes with a copy of it", s.Name)
		}
	}
	if _, err := Find("S13"); err == nil {
		t.Error("there is no S13")
	}
}

// Errors that take a while leave time for fewer attempts than there are retries.
func TestOracleOfSlowErrors(t *testing.T) {
	for _, c := range []struct {
		latency, timeout time.Duration
		attempts         float64
	}{
		{5 * time.Millisecond, 345 * time.Millisecond, 4},
		{2 * time.Second, time.Second, 3}, // at 0, 1 and 2 s of 3
		{2 * time.Second, time.Second - 1, 4},
		{2 * time.Second, 0, 2},
		{time.Minute, 0, 1},
	} {
		s := rig(t, func(s *Scenario) {
			s.Client.Timeout = c.timeout
			s.Faults = []Fault{{To: time.Hour, Kind: Error, Probability: 0.5, Latency: c.latency}}
		})
		if all, _ := s.Oracle(); math.Abs(all-(1-math.Pow(0.5, c.attempts))) > 1e-9 {
			t.Errorf("%v after %v: %v, want that of %v attempts", c.latency, c.timeout, all, c.attempts)
		}
	}
}
