package cortex

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// On the same calls, clock and seed, engines with 1, 2 and 8 stripes decide alike, to the last bit of every number that they show:
// how many processors there are is no part of the law. The calls go through a brownout, a hang, an outage, an overload and
// the ways out of them; the timeout is the engine's own, for its float sums are the likeliest to depend on an order.
func TestDecisionsDoNotDependOnTheNumberOfStripes(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(6) {
		c := Config{Profile: Profile(seed / 4 % 2), ShedSignal: ShedSignal(seed / 3 % 2), Deadline: 3 * time.Second}
		c.Backoff.Base = 50 * time.Millisecond
		c.Breaker.Threshold = 0.9
		for what, n := range compareStripes(t, seed, c) {
			seen[what] += n
		}
	}
	for _, what := range []string{"admitted", "by credit", ReasonShed.String(), ReasonCircuitOpen.String(), "retry", "timed out", "failed", "transitions"} {
		if seen[what] < 10 {
			t.Errorf("%s: %d times in all: the test shows nothing (%v)", what, seen[what], seen)
		}
	}
}

func compareStripes(t *testing.T, seed uint64, c Config) map[string]int {
	r := rand.New(rand.NewPCG(seed, 7))
	var now time.Duration
	var engines [3]*Engine
	for i, n := range []int{1, 2, 8} {
		engines[i] = engineWith(t, n, c, &now)
	}
	seen := map[string]int{}
	// same runs f on every engine, each on a stripe of its own choice, and wants the same from all.
	same := func(what string, f func(i int, e *Engine) string) string {
		var got [3]string
		for i, e := range engines {
			onStripe(r.Uint32N(8))
			got[i] = f(i, e)
		}
		if got[0] != got[1] || got[1] != got[2] {
			t.Fatalf("seed %d, %s at %v:\n%s\n%s\n%s", seed, what, now, got[0], got[1], got[2])
		}
		return got[0]
	}
	type happening struct {
		at time.Duration
		do func()
	}
	var future []happening
	later := func(at time.Duration, do func()) { future = append(future, happening{at, do}) }
	type workers struct{ free [8]time.Duration }
	var target workers // a FIFO queue before eight workers

	var attempt func(prio Priority, start time.Duration, n int)
	attempt = func(prio Priority, start time.Duration, n int) {
		var permits [3]*Permit
		said := same("admission", func(i int, e *Engine) string {
			before := e.stripes[0].credit
			p, err := e.AdmitRetry(bg, prio, n)
			if err != nil {
				return err.(*Rejection).Reason.String() + err.Error()
			}
			if i == 0 && before > 0 && e.stripes[0].credit == before-1 {
				seen["by credit"]++
			}
			permits[i] = &p
			return fmt.Sprint("admitted", p.Timeout(), p.isProbe())
		})
		if permits[0] == nil {
			for _, r := range []Reason{ReasonShed, ReasonCircuitOpen, ReasonCircuitEmergency} {
				if len(said) >= len(r.String()) && said[:len(r.String())] == r.String() {
					seen[r.String()]++
				}
			}
			return
		}
		seen["admitted"]++
		service := time.Duration(20 * float64(time.Millisecond) * r.ExpFloat64())
		o := Success
		phase := int(now/(4*time.Second)) % 8
		switch phase {
		case 1: // brownout
			service *= 4
		case 3:
			if r.IntN(10) > 0 { // hang
				service = 10 * time.Second
			}
		case 5:
			if r.IntN(20) > 0 {
				o, service = Failed, 2*time.Millisecond
			} else if r.IntN(3) == 0 {
				o = Throttled
			}
		}
		end := now + service
		if o == Success && phase != 3 {
			w := 0
			for i := range target.free {
				if target.free[i] < target.free[w] {
					w = i
				}
			}
			end = max(now, target.free[w]) + service
			target.free[w] = end
		}
		if limit := permits[0].Timeout(); end-now > limit {
			end, o = now+limit, TimedOut
		}
		later(end, func() {
			same("result", func(i int, e *Engine) string { return fmt.Sprint(permits[i].Record(o)) })
			if o == Success {
				return
			}
			seen[map[Outcome]string{Failed: "failed", TimedOut: "timed out", Throttled: "throttled"}[o]]++
			var d Decision
			same("decision", func(i int, e *Engine) string {
				d = e.Decide(Failure{Class: Class{Outcome: o, Retryable: true}, Priority: prio, Attempt: n, Deadline: start + 3*time.Second - now})
				return fmt.Sprintf("%+v", d)
			})
			if d.Retry {
				seen["retry"]++
				later(now+d.Delay, func() { attempt(prio, start, n+1) })
			}
		})
	}
	next := time.Duration(0)
	for now < 32*time.Second {
		soonest := -1
		for i, h := range future {
			if h.at <= next && (soonest < 0 || h.at < future[soonest].at) {
				soonest = i
			}
		}
		if soonest >= 0 {
			h := future[soonest]
			future = append(future[:soonest], future[soonest+1:]...)
			now = max(now, h.at)
			h.do()
			continue
		}
		now = next
		gap := 4 * time.Millisecond // 250 a second of the 400 that the target can do
		if now/(4*time.Second) == 6 {
			gap = time.Millisecond // overload
		}
		next = now + time.Duration(float64(gap)*r.ExpFloat64())
		if r.IntN(200) == 0 {
			same("pressure", func(_ int, e *Engine) string { return fmt.Sprintf("%+v", e.Pressure()) })
		}
		attempt(Priority(r.IntN(11)), now, 0)
	}
	same("pressure at the end", func(_ int, e *Engine) string { return fmt.Sprintf("%+v", e.Pressure()) })
	same("counts at the end", func(_ int, e *Engine) string { return fmt.Sprintf("%+v", e.Stats()) })
	if engines[0].Pressure() != engines[2].Pressure() || engines[0].Stats() != engines[2].Stats() || engines[1].rng != engines[2].rng {
		t.Errorf("seed %d: not the same at the end", seed)
	}
	seen["transitions"] = int(engines[0].Stats().Transitions)
	if st := engines[0].Pressure().Circuit; c.Profile == Adaptive && st != breaker.Closed {
		t.Errorf("seed %d: the circuit is %v at the end", seed, st)
	}
	return seen
}

// One goroutine that makes all the calls pays for no choice of a stripe, not even where two clash on the only one.
func TestOneStripeLeavesThePoolAlone(t *testing.T) {
	made := affinity.New
	affinity = sync.Pool{New: func() any {
		t.Error("a stripe was chosen")
		return made()
	}}
	defer func() { affinity = sync.Pool{New: made} }()
	var now time.Duration
	e := engineWith(t, 1, Config{}, &now)
	if len(e.stripes) != 1 {
		t.Fatalf("%d stripes", len(e.stripes))
	}
	for range 100 {
		p, err := e.Admit(bg, 5)
		if err != nil {
			t.Fatal(err)
		}
		now += 300 * time.Microsecond
		p.Record(Success)
	}
	for range 2 * clashes {
		e.lockTaken(&e.stripes[0])
		e.stripes[0].mu.Unlock()
	}
}

func TestStripesOfTheConfig(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8} {
		e, err := New(Config{Stripes: n})
		if err != nil || len(e.stripes) != n || int(e.stripeMask) != n-1 {
			t.Errorf("%d: %v", n, err)
		}
	}
	if e, err := New(Config{}); err != nil || len(e.stripes) < 1 || len(e.stripes) > maxStripes {
		t.Error(err)
	}
}

// With one priority level the article's floor stays 0 up to a pressure of 1: it was no reason to withhold credit in an emergency,
// and calls entered by it without opening the circuit.
func TestCreditDoesNotHideAnEmergency(t *testing.T) {
	var now time.Duration
	e := engineWith(t, 1, Config{Profile: Article, Levels: 1, Weights: Weights{F: 0.9, C: 0.1}, Breaker: breaker.Config{Threshold: 0.9999}}, &now)
	for range 30 {
		p, err := e.Admit(bg, 1)
		if err != nil {
			t.Fatal(err)
		}
		p.Record(Failed)
	}
	now += time.Second
	if q := e.Pressure(); q.CPS < 0.8 || q.Circuit != breaker.Closed { // a tick, which may give credit
		t.Fatalf("%+v", q)
	}
	p, err := e.Admit(bg, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.Record(Neutral)
	if st := e.Pressure().Circuit; st != breaker.Open {
		t.Errorf("the circuit is %v", st)
	}
}
