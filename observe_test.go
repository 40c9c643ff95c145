package cortex

import (
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

func TestObservedAttemptsCountLikeOthers(t *testing.T) {
	now := time.Hour
	e := newObserved(t, Config{}, &now)
	for range 500 {
		now += 10 * time.Millisecond
		if !e.Observe(5, 0, Success, 80*time.Millisecond) {
			t.Fatal("a success in calm times does not count")
		}
	}
	p, s := e.Pressure(), e.Stats()
	if s.Calls != 500 || s.Attempts != 500 || s.Successes != 500 || p.InFlight != 0 {
		t.Errorf("stats %+v, in flight %d", s, p.InFlight)
	}
	if p.P99 < 70*time.Millisecond || p.P99 > 100*time.Millisecond {
		t.Errorf("P99 %v", p.P99)
	}
	if p.Tokens < 10 {
		t.Errorf("successes earned nothing: %v tokens", p.Tokens)
	}
	if p.BaselineSojourn < 60*time.Millisecond || p.BaselineSojourn > 110*time.Millisecond {
		t.Errorf("by Little's law an attempt takes %v", p.BaselineSojourn)
	}
}

func TestObservedFailuresOpenTheCircuitAndAnObservedSuccessIsAProbe(t *testing.T) {
	for _, profile := range []Profile{Adaptive, Article} {
		now := time.Hour
		e := newObserved(t, Config{Profile: profile}, &now)
		for range 200 {
			now += 10 * time.Millisecond
			e.Observe(5, 0, Failed, 5*time.Millisecond)
		}
		p := e.Pressure()
		if p.Circuit != breaker.Open {
			t.Fatalf("%v: circuit %v after 200 failures", profile, p.Circuit)
		}
		if e.Observe(5, 0, Success, time.Millisecond) {
			t.Errorf("%v: a success counted at %v, %v before a probe is due", profile, p.Circuit, p.NextProbe)
		}
		for range 1000 {
			now += 100 * time.Millisecond
			e.Observe(9, 1, Success, 5*time.Millisecond)
		}
		if p := e.Pressure(); p.Circuit != breaker.Closed || p.InFlight != 0 {
			t.Errorf("%v: after 100 s of successes the circuit is %v, %d in flight", profile, p.Circuit, p.InFlight)
		}
	}
}

func TestRecordTookKeepsTheCallersLatency(t *testing.T) {
	for _, tc := range []struct{ told, want time.Duration }{
		{50 * time.Millisecond, 50 * time.Millisecond}, {-1, 0}, {time.Hour, 900 * time.Millisecond},
	} {
		now := time.Hour
		e := newObserved(t, Config{}, &now)
		for i := range 300 {
			p, err := e.Admit(t.Context(), 5)
			if err != nil {
				t.Fatal(err)
			}
			now += 900 * time.Millisecond
			if i%2 == 0 { // nobody knew how it was
				p.Pause()
			}
			if !p.RecordTook(Success, tc.told) || p.RecordTook(Failed, tc.told) || p.Record(Failed) {
				t.Fatal("an outcome is to count once")
			}
		}
		now += 20 * time.Millisecond
		if p := e.Pressure(); p.P99 < tc.want*8/10 || p.P99 > tc.want*12/10+time.Millisecond || p.InFlight != 0 {
			t.Errorf("told %v: P99 %v, want %v; %d in flight", tc.told, p.P99, tc.want, p.InFlight)
		}
	}
	new(Permit).RecordTook(Success, 0)
}

func newObserved(t *testing.T, c Config, now *time.Duration) *Engine {
	t.Helper()
	c.Now = func() time.Duration { return *now }
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// What is told in lumps, a batch of reports a second, is no queue: calls that are admitted beside it are not shed for it.
func TestObservedLumpsShedNothing(t *testing.T) {
	for _, took := range []time.Duration{20 * time.Millisecond, time.Second, 20 * time.Second} {
		now := time.Hour
		e := newObserved(t, Config{}, &now)
		refused, worst := 0, 0.0
		for ms := range 60_000 {
			now += time.Millisecond
			if ms%10 == 0 { // a call of 5 ms
				p, err := e.Admit(t.Context(), 0)
				if err != nil {
					refused++
					continue
				}
				now += 5 * time.Millisecond
				p.Record(Success)
			}
			if ms%1000 == 999 {
				for range 1000 {
					e.Observe(0, 0, Success, took)
				}
				worst = max(worst, e.Pressure().CPS)
			}
		}
		if refused > 0 || worst > 0.3 {
			t.Errorf("reports of %v: %d of 6,000 calls refused, the score was up to %.2f", took, refused, worst)
		}
	}
}
