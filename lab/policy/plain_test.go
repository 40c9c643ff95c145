package policy

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/sim"
)

const ms = time.Millisecond

// Each line is what happens to a breaker at a moment: + and - are calls let through that succeed and fail, x a call refused, p and f
// probes that succeed and fail, ? a probe that does not end.
func TestHystrix(t *testing.T) {
	type step struct {
		at    time.Duration
		calls string
	}
	rep := func(s string, n int) string {
		r := ""
		for range n {
			r += s
		}
		return r
	}
	for _, c := range []struct {
		name        string
		steps       []step
		transitions int
	}{
		{"19 calls are too few", []step{{0, rep("-", 18)}, {9 * time.Second, "+"}}, 0},
		{"20 calls of which half fail", []step{{0, rep("+", 10) + rep("-", 10)}, {1, "x"}}, 1},
		{"20 calls of which fewer fail", []step{{0, rep("+", 11) + rep("-", 10)}, {1, "+"}}, 0},
		{"a success closes no window", []step{{0, rep("-", 19)}, {1, "+x"}}, 1}, // 20 calls, 19 failed: judged at any call's end
		{"what is older than 10 s does not count", []step{{0, rep("-", 19)}, {10 * time.Second, "-+"}}, 0},
		{"what is 9 s old counts", []step{{0, rep("-", 19)}, {9999 * ms, "-x"}}, 1},
		{"open for 5 s, then one probe", []step{{0, rep("-", 20)}, {4999 * ms, "xx"}, {5000 * ms, "?x"}}, 1},
		{"a probe that succeeds closes and forgets", []step{{0, rep("-", 20)}, {5000 * ms, "p"}, {5001 * ms, rep("-", 19) + "-x"}}, 3},
		{"a probe that fails opens for 5 s more", []step{{0, rep("-", 20)}, {6000 * ms, "f"}, {10_999 * ms, "x"}, {11_000 * ms, "p+"}}, 2},
		{"a probe that never ends is replaced after 5 s", []step{{0, rep("-", 20)}, {5000 * ms, "?"}, {9999 * ms, "x"}, {10_000 * ms, "p+"}}, 2},
		{"the second day is like the first", []step{{0, rep("-", 19)}, {86400 * time.Second, rep("-", 20) + "x"}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hystrix{}
			for _, s := range c.steps {
				for i, what := range s.calls {
					a := &sim.Attempt{}
					let := h.admit(s.at, a)
					if let == (what == 'x') {
						t.Fatalf("at %v, call %d: let through %v, want %c", s.at, i, let, what)
					}
					if probe := a.Mine == isProbe; probe != (what == 'p' || what == 'f' || what == '?') {
						t.Fatalf("at %v, call %d: a probe %v, want %c", s.at, i, probe, what)
					}
					if what != 'x' && what != '?' {
						h.done(s.at, a, what == '+' || what == 'p')
					}
				}
			}
			if h.transitions != c.transitions {
				t.Errorf("%d transitions, want %d", h.transitions, c.transitions)
			}
		})
	}
}

// What was let through before the circuit opened says nothing about the probe.
func TestHystrixIsClosedByItsProbeAlone(t *testing.T) {
	h := &hystrix{}
	early := &sim.Attempt{}
	h.admit(0, early)
	for range 20 {
		a := &sim.Attempt{}
		h.admit(0, a)
		h.done(0, a, false)
	}
	h.done(1*time.Second, early, true)
	if !h.open || h.transitions != 1 {
		t.Error("closed by a call from before")
	}
}

// Ten successes pay for a retry, exactly, and the purse holds ten retries.
func TestTokenBucket(t *testing.T) {
	b := &bucket{tenths: bucketMax}
	for i := range 10 {
		if !b.spend() {
			t.Fatalf("retry %d of 10 refused", i)
		}
	}
	for i := range 5 {
		if b.spend() {
			t.Fatal("an empty bucket pays")
		}
		for range 10 {
			b.earn()
		}
		if !b.spend() {
			t.Fatalf("ten successes do not pay for retry %d", i)
		}
	}
	for range 1_000_000 {
		b.earn()
	}
	n := 0
	for b.spend() {
		n++
	}
	if n != 10 {
		t.Errorf("a full bucket pays for %d retries", n)
	}
}

// The throttle's formula against one that keeps every call: max(0, (requests − 2·accepts)/(requests + 1)) of the last 120 whole seconds.
func TestThrottleOfTheSREBook(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	type entry struct {
		second int64
		accept bool
	}
	var log []entry
	s := &sre{}
	now := time.Duration(0)
	health := 1.0
	refused := 0
	for i := range 20_000 {
		switch {
		case i%500 == 0:
			health = r.Float64()
			now += time.Duration(r.ExpFloat64() * 60e9) // a pause of any length
		case i%5000 == 1:
			now += 500 * time.Second
		}
		now += time.Duration(r.ExpFloat64() * 50e6)
		second := int64(now / time.Second)
		for len(log) > 0 && second-log[0].second >= 120 {
			log = log[1:]
		}
		requests, accepts := 0, 0
		for _, e := range log {
			if e.accept {
				accepts++
			} else {
				requests++
			}
		}
		want := math.Max(0, (float64(requests)-2*float64(accepts))/(float64(requests)+1))
		u := r.Float64()
		let := s.admit(now, u)
		log = append(log, entry{second, false})
		if let != (u >= want) {
			t.Fatalf("at %v: let through %v at %v of %v (%d requests, %d accepts)", now, let, u, want, requests, accepts)
		}
		if !let {
			refused++
		} else if r.Float64() < health {
			s.accept(now)
			log = append(log, entry{second, true})
		}
	}
	if refused < 1000 {
		t.Errorf("only %d of 20,000 refused: nothing was tested", refused)
	}
}

func guardOf(t *testing.T, name string, s *scenario.Scenario, now *time.Duration) sim.Guard {
	t.Helper()
	p, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	g, err := p.Make(sim.Env{Scenario: s, Now: func() time.Duration { return *now }, Seed: [2]uint64{1, 2}, Instances: 1})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Retries come after 100, 200, 400 ms, with full jitter anywhere below; not before the target's hint, not after the deadline, three times.
func TestPlainRetries(t *testing.T) {
	s := scenario.Rig()
	now := time.Duration(0)
	plain, jittered := guardOf(t, "exponential", s, &now), guardOf(t, "exponential-jitter", s, &now)
	failed := sim.Failure{Outcome: cortex.Failed, Retryable: true}
	call := &sim.Call{Deadline: 3 * time.Second}
	for n, want := range []time.Duration{100 * ms, 200 * ms, 400 * ms} {
		a := &sim.Attempt{Call: call, Number: n}
		if v := plain.Retry(a, failed); v != (sim.Verdict{Retry: true, Delay: want}) {
			t.Errorf("retry %d: %+v", n+1, v)
		}
		sum, least, most := 0.0, time.Hour, time.Duration(0)
		for range 2000 {
			d := jittered.Retry(a, failed).Delay
			sum += float64(d)
			least, most = min(least, d), max(most, d)
		}
		if mean := sum / 2000 / float64(want); math.Abs(mean-0.5) > 0.03 || least > want/50 || most > want || most < want*49/50 {
			t.Errorf("jittered retry %d: from %v to %v, mean %v", n+1, least, most, mean)
		}
	}
	for _, c := range []struct {
		number int
		at     time.Duration
		f      sim.Failure
		want   sim.Verdict
	}{
		{3, 0, failed, sim.Verdict{Reason: cortex.ReasonMaxRetries}},
		{0, 0, sim.Failure{Outcome: cortex.Failed}, sim.Verdict{Reason: cortex.ReasonNotRetryable}},
		{0, 2900 * ms, failed, sim.Verdict{Reason: cortex.ReasonDeadline}},
		{0, 2899 * ms, failed, sim.Verdict{Retry: true, Delay: 100 * ms}},
		{1, 0, sim.Failure{Outcome: cortex.Throttled, Retryable: true, RetryAfter: time.Second}, sim.Verdict{Retry: true, Delay: time.Second}},
		{0, 0, sim.Failure{Outcome: cortex.Throttled, Retryable: true, RetryAfter: 3 * time.Second}, sim.Verdict{Reason: cortex.ReasonDeadline}},
	} {
		now = c.at
		if v := plain.Retry(&sim.Attempt{Call: call, Number: c.number}, c.f); v != c.want {
			t.Errorf("%+v: %+v", c, v)
		}
	}
}

// A retry that there is no time for is not made, so it costs no token.
func TestARetryThatIsNotMadeCostsNoToken(t *testing.T) {
	now := 3 * time.Second
	g := guardOf(t, "token-bucket", scenario.Rig(), &now)
	late, early := &sim.Call{Deadline: now}, &sim.Call{Deadline: time.Minute}
	failed := sim.Failure{Outcome: cortex.TimedOut, Retryable: true}
	for range 100 {
		g.Retry(&sim.Attempt{Call: late}, failed)
	}
	for i := range 10 {
		if v := g.Retry(&sim.Attempt{Call: early}, failed); !v.Retry {
			t.Fatalf("retry %d: %+v", i, v)
		}
	}
	if v := g.Retry(&sim.Attempt{Call: early}, failed); v.Reason != cortex.ReasonBudget {
		t.Errorf("%+v", v)
	}
}

// Every policy makes a guard of every scenario a user may write, at the ends of what is allowed.
func TestEveryPolicyTakesEveryScenario(t *testing.T) {
	for _, change := range []func(*scenario.Scenario){
		func(*scenario.Scenario) {},
		func(s *scenario.Scenario) { s.Client = scenario.Client{} },
		func(s *scenario.Scenario) {
			s.Client = scenario.Client{Timeout: 1 * ms, BaseDelay: 1 * ms}
			s.Deadline = 1 * ms
		},
		func(s *scenario.Scenario) {
			s.Client = scenario.Client{Timeout: time.Hour, MaxRetries: 100, BaseDelay: time.Hour}
			s.Deadline = time.Hour
		},
		func(s *scenario.Scenario) {
			s.Priorities = []scenario.Share{{Priority: 31, Share: 1}, {Priority: 0, Share: 1}}
		},
		func(s *scenario.Scenario) { s.Priorities = []scenario.Share{{Priority: 0, Share: 1}} },
	} {
		s := scenario.Rig()
		change(s)
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, p := range All() {
			if _, err := p.Make(sim.Env{Scenario: s, Now: func() time.Duration { return 0 }, Instances: 1}); err != nil {
				t.Errorf("%s: %v, for %+v", p.Name, err, s.Client)
			}
			if p.Title == "" {
				t.Errorf("%s has no title", p.Name)
			}
		}
	}
	if _, err := Find("hope"); err == nil {
		t.Error("a policy that is not there")
	}
}
