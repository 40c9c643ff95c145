package cortex_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

// F15: listeners may use the engine, from whichever of many goroutines delivers, and see every transition in its order.
func TestListenersMayUseTheEngine(t *testing.T) {
	bothProfiles(t, func(t *testing.T, c cortex.Config) {
		var e *cortex.Engine
		var inside atomic.Int32
		var changes []cortex.StateChange
		decisions := 0
		use := func() {
			if inside.Add(1) != 1 {
				t.Error("two listeners at a time")
			}
			e.Pressure()
			e.Stats()
			e.ObserveRemote(0)
			if p, err := e.Admit(bg, 9); err == nil {
				p.Release()
			}
			// No verdict: a probe from in here must not close the circuit under the test.
			_, _ = cortex.Do(context.Background(), e, func(context.Context) (int, error) { return 0, cortex.Permanent(errBoom) })
			e.Decide(cortex.Failure{Err: cortex.Permanent(errBoom)})
			inside.Add(-1)
		}
		c.OnStateChange = func(s cortex.StateChange) {
			changes = append(changes, s)
			if s.To == breaker.Closed {
				use()
			} else { // an attempt from in here could be a probe, whose end is the next change, and so on
				e.Pressure()
				e.Stats()
			}
		}
		c.OnDecision = func(d cortex.DecisionEvent) {
			decisions++
			if decisions%10 == 0 {
				use() // not each time: a listener that causes a decision at every decision never ends
			}
		}
		c.Name = "ledger"
		e, clock := virtual(t, c)
		for range 5 {
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					for n := 0; n < 5 || e.Pressure().Circuit == breaker.Closed && n < 1000; n++ {
						if p, err := e.Admit(bg, 9); err == nil {
							p.Record(cortex.Failed)
							e.Decide(cortex.Failure{Err: errBoom, Priority: 9})
						}
						clock.advance(ms)
					}
				})
			}
			wg.Wait()
			if s := e.Pressure().Circuit; s == breaker.Closed {
				t.Fatalf("still %v", s)
			}
			for range 100 {
				clock.advance(time.Second)
				if p, err := e.Admit(bg, 10); err == nil {
					p.Record(cortex.Success)
				}
			}
			if s := e.Pressure().Circuit; s != breaker.Closed {
				t.Fatalf("still %v", s)
			}
		}
		at := breaker.Closed
		seen := map[[2]breaker.State]int{}
		gen := uint32(0)
		for i, s := range changes {
			if s.From != at || s.To == at || s.Generation < gen || s.Target != "ledger" {
				t.Fatalf("change %d is %+v while the circuit was %v", i, s, at)
			}
			at, gen = s.To, s.Generation
			seen[[2]breaker.State{s.From, s.To}]++
		}
		if at != breaker.Closed || seen[[2]breaker.State{breaker.Closed, breaker.Open}] < 5 || seen[[2]breaker.State{breaker.Open, breaker.HalfOpen}] < 5 ||
			seen[[2]breaker.State{breaker.Closed, breaker.HalfOpen}] != 0 {
			t.Errorf("changes: %v", seen)
		}
		if decisions == 0 {
			t.Error("no decision was told")
		}
	})
}

// A listener that panics is caught, logged through the injected logger only, and does not keep the others from being told.
func TestListenerThatPanicsIsCaughtAndLogged(t *testing.T) {
	var log bytes.Buffer
	told := 0
	e, clock := virtual(t, cortex.Config{Name: "ledger", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		OnStateChange: func(cortex.StateChange) { told++; panic("listener's own fault") },
		OnDecision:    func(cortex.DecisionEvent) { told++; panic("listener's own fault") }})
	attempts(t, e, clock, 43, ms, cortex.Failed)
	refusal(t, e, 5)
	if told != 2 {
		t.Errorf("%d events told, want the opening and the refusal", told)
	}
	if n := strings.Count(log.String(), "listener's own fault"); n != 2 {
		t.Errorf("%d panics logged in\n%s", n, &log)
	}
	if !strings.Contains(log.String(), "from=closed to=open") || !strings.Contains(log.String(), "target=ledger") {
		t.Errorf("the transition is not in\n%s", &log)
	}
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 5).Record(cortex.Success)
	if s := e.Pressure().Circuit; s != breaker.Closed {
		t.Errorf("%v", s)
	}
}

// A listener that ends its goroutine takes the call that delivered with it, but no lock and no other event.
func TestListenerThatEndsItsGoroutine(t *testing.T) {
	var told []breaker.State
	e, clock := virtual(t, cortex.Config{OnStateChange: func(s cortex.StateChange) {
		told = append(told, s.To)
		if len(told) == 1 {
			runtime.Goexit()
		}
	}})
	attempts(t, e, clock, 42, ms, cortex.Failed)
	p := admit(t, e, 5)
	clock.advance(ms)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Record(cortex.Failed)
		t.Error("Goexit did not end the goroutine")
	}()
	<-done
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 5).Record(cortex.Success)
	if len(told) != 3 || told[0] != breaker.Open || told[1] != breaker.HalfOpen || told[2] != breaker.Closed {
		t.Errorf("told %v", told)
	}
}

// A listener that blocks holds the one call that delivers. The others go on, and what waits for it is bounded: what does not fit
// is counted.
func TestBlockedListenerHoldsNobodyElse(t *testing.T) {
	block, entered := make(chan struct{}), make(chan struct{})
	var told atomic.Int64
	e, clock := virtual(t, cortex.Config{OnDecision: func(cortex.DecisionEvent) {
		if told.Add(1) == 1 {
			close(entered)
			<-block
		}
	}})
	attempts(t, e, clock, 43, ms, cortex.Failed)
	var wg sync.WaitGroup
	wg.Go(func() { refuse(e) })
	<-entered
	const more = 5000
	for range more {
		if !refuse(e) {
			t.Fatal("an open circuit admitted a call")
		}
	}
	s := e.Stats()
	if s.Dropped != more-1024 {
		t.Errorf("%d of %d events dropped, 1,024 may wait", s.Dropped, more)
	}
	close(block)
	wg.Wait()
	refuse(e) // whoever comes next delivers what the bound on one delivery left
	if n := told.Load(); n != 1+1024+1 {
		t.Errorf("%d events told", n)
	}
	if d := e.Stats().Dropped; d != s.Dropped {
		t.Errorf("%d dropped after %d", d, s.Dropped)
	}
}

func refuse(e *cortex.Engine) bool {
	p, err := e.Admit(bg, 5)
	if err == nil {
		p.Release()
	}
	return err != nil
}

// A refusal and a decision are told with the numbers they were made on.
func TestDecisionsAreToldWithTheirNumbers(t *testing.T) {
	var told []cortex.DecisionEvent
	e, clock := virtual(t, cortex.Config{Name: "ledger", OnDecision: func(d cortex.DecisionEvent) { told = append(told, d) }})
	d := e.Decide(cortex.Failure{Err: errBoom, Priority: 3, Attempt: 1})
	n := e.Decide(cortex.Failure{Err: cortex.Permanent(errBoom), Priority: 99, Attempt: 2})
	attempts(t, e, clock, 43, ms, cortex.Failed)
	r := refusal(t, e, 7)
	want := []cortex.DecisionEvent{{Target: "ledger", Priority: 3, Attempt: 1, Decision: d}, {Target: "ledger", Priority: 10, Attempt: 2, Decision: n}}
	if len(told) != 3 || told[0] != want[0] || told[1] != want[1] {
		t.Fatalf("told %+v", told)
	}
	last := told[2]
	if last.Refusal != r || last.Priority != 7 || last.Decision.Reason != cortex.ReasonCircuitOpen || last.Decision.CPS != r.CPS ||
		last.Decision.Signals != r.Signals || last.Decision.Circuit != breaker.Open {
		t.Errorf("told %+v", last)
	}
	if r.Target != "ledger" || r.Priority != 7 || r.RetryAfter <= 0 || r.RetryAfter > 120*ms || r.Signals.C != 1 || !near(r.CPS, 0.5) {
		t.Errorf("%+v", r)
	}
	if text := r.Error(); !strings.Contains(text, "ledger") || !strings.Contains(text, "CIRCUIT_OPEN") || !strings.Contains(text, "priority 7") {
		t.Error(text)
	}
}

func TestArticleAnnouncesHalfOpen(t *testing.T) {
	var seen []breaker.State
	e, clock := virtual(t, cortex.Config{Profile: cortex.Article, OnStateChange: func(s cortex.StateChange) { seen = append(seen, s.To) }})
	attempts(t, e, clock, 1, ms, cortex.Failed)
	clock.advance(120 * time.Second)
	p := admit(t, e, 10)
	n := testing.AllocsPerRun(100, func() { e.Admit(bg, 10) })
	if n > 0 {
		t.Errorf("%v allocations a refusal while half-open", n)
	}
	p.Record(cortex.Success)
	if len(seen) != 3 || seen[1] != breaker.HalfOpen {
		t.Errorf("states told: %v", seen)
	}
}
