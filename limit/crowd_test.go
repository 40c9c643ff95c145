package limit

import (
	"testing"
	"time"
)

// trickle is a limiter that has seen a healthy target at one call a second.
func trickle(t *testing.T) (*Limiter, func(Sample)) {
	t.Helper()
	l, err := New(Config{}, false)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	tick := func(s Sample) {
		now += time.Second
		s.Now, s.Timeout, s.P99, s.Gauge, s.Calm = now, 345*time.Millisecond, 90*time.Millisecond, -1, true
		s.Offered = &[MaxLevels + 1]uint64{5: 1}
		l.Advance(s)
	}
	for range 200 {
		tick(Sample{Success: 1, InTime: 1, Area: 0.02})
	}
	return l, tick
}

// Many guards of a call a second each on one target that drowns: none has two attempts in flight, but their answers are late.
func TestLateAnswersShedWhereTheNumberInFlightSaysNothing(t *testing.T) {
	l, tick := trickle(t)
	tick(Sample{TimedOut: 1, Area: 0.345})
	if s := l.ShedFraction(0, false); s > 0.2 {
		t.Errorf("one late answer sheds %.2f", s)
	}
	for range 4 {
		tick(Sample{TimedOut: 1, Area: 0.345})
	}
	if s := l.ShedFraction(0, false); s < 0.5 {
		t.Errorf("five timeouts in a row shed %.2f, want most", s)
	}
	for range 10 {
		tick(Sample{Success: 1, InTime: 1, Area: 0.02})
	}
	if s := l.ShedFraction(0, false); s != 0 {
		t.Errorf("%.2f is shed after ten quick answers", s)
	}
	for range 60 {
		tick(Sample{Success: 1, Late: 1, Area: 0.3})
	}
	if s := l.ShedFraction(0, false); s < 0.3 {
		t.Errorf("slow answers alone shed %.2f", s)
	}
	for range 60 {
		tick(Sample{})
	}
	if s := l.ShedFraction(0, false); s != 0 {
		t.Errorf("%.2f is shed after a minute without an answer", s)
	}
}

// Where a guard has enough in flight to see a queue, late answers by themselves shed nothing.
func TestLateAnswersShedNothingWhereTheQueueIsSeen(t *testing.T) {
	l, err := New(Config{}, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		l.Advance(Sample{Now: time.Duration(i+1) * 100 * time.Millisecond, Timeout: 345 * time.Millisecond, P99: 90 * time.Millisecond, Gauge: -1,
			Calm: true, Success: 40, InTime: 40, Area: 0.8, InFlight: 8, Offered: &[MaxLevels + 1]uint64{5: 40}})
	}
	l.Advance(Sample{Now: time.Minute, Timeout: 345 * time.Millisecond, Gauge: -1, TimedOut: 20, Late: 20, InFlight: 8})
	if l.crowd.shed() != 0 {
		t.Errorf("%.2f is shed", l.crowd.shed())
	}
}
