package cortex_test

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

// B1
func TestRefusalsBetweenHungProbesDoNotAllocate(t *testing.T) {
	var changes []cortex.StateChange
	e, clock := virtual(t, cortex.Config{OnStateChange: func(s cortex.StateChange) { changes = append(changes, s) }})
	attempts(t, e, clock, 43, 5*ms, cortex.Failed)
	refusal(t, e, 5)
	clock.advance(e.Pressure().NextProbe)
	admit(t, e, 5) // never returns
	for e.Pressure().Circuit == breaker.HalfOpen {
		clock.advance(10 * ms)
	}
	if n := testing.AllocsPerRun(100, func() { e.Admit(nil, 5) }); n > 0 {
		t.Errorf("%v allocations a refusal", n)
	}
	if n := len(changes); n == 0 || changes[n-1].To != breaker.Open {
		t.Errorf("the circuit is open, the last change told is %+v", changes)
	}
}

// B4
func TestStatsAreAsOfNow(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	e.Pressure()
	clock.advance(10 * ms)
	e.Pressure() // the tick
	for range 5 {
		admit(t, e, 5).Record(cortex.Success)
	}
	if s := e.Stats(); s.Calls != 5 || s.Attempts != 5 || s.Successes != 5 {
		t.Errorf("%+v", s)
	}
}

// B5
func TestStatsAreASnapshot(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	attempts(t, e, clock, 43, ms, cortex.Failed)
	before := e.Stats()
	refusal(t, e, 5)
	if n := before.Rejected(cortex.ReasonCircuitOpen); n != 0 {
		t.Errorf("stats taken before the refusal count %d", n)
	}
}

// B6
func TestNothingButThrottledAnswersShed(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	shed := 0.0
	for range 1000 {
		if p, err := e.Admit(nil, 5); err == nil {
			clock.advance(5 * ms)
			p.Record(cortex.Throttled)
		} else {
			clock.advance(5 * ms)
		}
		shed = max(shed, e.Pressure().Shed)
	}
	if shed == 0 {
		t.Error("every answer for 5 s was a 429 and nothing was ever shed")
	}
}

// B8
func TestEvidenceOfCircuitOnlyWeights(t *testing.T) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
	}()
	cortex.Weights{C: 1}.Evidence(cortex.Signals{F: 1})
	cortex.Situation{Weights: cortex.Weights{C: 1}, Retryable: true, MaxRetries: 3}.Decide(func() float64 { return 0 })
}

// B16
func TestSwitchedOffCircuitRefusesNoRetry(t *testing.T) {
	full := func() (float64, float64) { return 0.7, 1 }
	e, clock := virtual(t, cortex.Config{Queue: full, Limit: limit.Config{Off: limit.Circuit}})
	for range 18 {
		admit(t, e, 5)
	}
	clock.advance(1200 * ms)
	if p := e.Pressure(); p.Evidence < 0.7 {
		t.Fatalf("evidence %v", p.Evidence)
	}
	for range 2 {
		admit(t, e, 5)
	}
	d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.TimedOut, Retryable: true}, Priority: 5})
	t.Log(d)
	if d.Reason == cortex.ReasonCircuitEmergency {
		t.Error(d.Reason)
	}
}

// B25
func TestPermitTimeoutIsSafeBesideRecord(t *testing.T) {
	e, _ := virtual(t, cortex.Config{})
	for range 50 {
		p := admit(t, e, 5)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if i%2 == 0 {
					p.Timeout()
				} else {
					p.Record(cortex.TimedOut)
				}
			})
		}
		wg.Wait()
	}
}

// B26
// What is asked for often stays when a scan passes by.
func TestRegistryKeepsWhatIsUsed(t *testing.T) {
	r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 10)
	hot := engineOf(t, r, "hot")
	for i := range 500 {
		engineOf(t, r, fmt.Sprint("scan ", i))
		if engineOf(t, r, "hot") != hot {
			t.Fatalf("gone after %d other targets", i+1)
		}
	}
}

// B27
func TestDeadlineLongPast(t *testing.T) {
	d := cortex.Situation{Retryable: true, MaxRetries: 3, Tokens: 1, Remaining: math.MinInt64, Cost: time.Second}.Decide(func() float64 { return 0.5 })
	if d.Reason != cortex.ReasonDeadline {
		t.Errorf("%+v", d)
	}
}
