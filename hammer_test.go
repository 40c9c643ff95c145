package cortex_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
)

// Everything at once, from many goroutines, with random outcomes, in phases of calm, errors and overload. Afterwards nothing is in
// flight and the books balance: every call was admitted or refused, every attempt ended in one way.
func TestBooksBalanceAfterTheStorm(t *testing.T) {
	for name, c := range map[string]cortex.Config{
		"adaptive":             {},
		"adaptive, E gated":    {ShedSignal: cortex.ShedByPressure},
		"adaptive, no circuit": {Limit: limit.Config{Off: limit.Circuit}},
		"adaptive, no reset":   {Limit: limit.Config{Off: limit.GenerationReset}},
		"article":              {Profile: cortex.Article, Breaker: breaker.Config{Threshold: 0.3}},
	} {
		t.Run(name, func(t *testing.T) {
			var events, admitted, refused, retried, counted, stale, retriesRefused atomic.Uint64
			var ended [6]atomic.Uint64
			c.OnStateChange = func(cortex.StateChange) { events.Add(1) }
			c.Breaker.ThetaFast, c.Breaker.ThetaSlow, c.Breaker.Confidence = 0.4, 0.4, 0.8
			c.Breaker.OpenFor, c.Breaker.ProbeEvery = 20*ms, 20*ms
			c.Queue = func() (float64, float64) { return 1, 10 }
			e, clock := virtual(t, c)
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 3))
					var flight []*cortex.Permit
					end := func(p *cortex.Permit, o cortex.Outcome) {
						if r.IntN(8) == 0 {
							p.Answered()
						}
						if p.Record(o) {
							counted.Add(1)
							ended[o].Add(1)
						} else {
							stale.Add(1)
						}
					}
					for i := range 2500 {
						clock.advance(time.Duration(r.IntN(200)) * time.Microsecond)
						bad := i/500%2 == 1
						switch k := r.IntN(20); {
						case k < 10:
							p, err := e.Admit(bg, cortex.Priority(r.IntN(11)))
							if err != nil {
								refused.Add(1)
								break
							}
							admitted.Add(1)
							flight = append(flight, &p)
						case k < 16 || len(flight) > 30:
							if len(flight) == 0 {
								break
							}
							j := r.IntN(len(flight))
							o := cortex.Success
							if bad && r.IntN(10) > 0 || r.IntN(20) == 0 {
								o = cortex.Outcome(r.IntN(5))
								if r.IntN(3) > 0 {
									o = cortex.Failed
								}
							}
							end(flight[j], o)
							flight = append(flight[:j], flight[j+1:]...)
						case k == 16:
							d := e.Decide(cortex.Failure{Class: cortex.Class{Outcome: cortex.Failed, Retryable: true}, Priority: 9})
							if d.Retry && r.IntN(2) == 0 {
								e.Refund(d)
							} else if d.Retry {
								p, err := e.AdmitRetry(bg, 9, 1)
								if err != nil {
									retriesRefused.Add(1)
								} else {
									retried.Add(1)
									end(&p, cortex.Success)
								}
							}
						case k == 17:
							sane(t, e.Pressure())
						case k == 18:
							if s := e.Stats(); s.Successes > s.Attempts || s.Attempts > s.Calls+s.Retries {
								t.Errorf("%+v", s)
							}
						case k == 19:
							e.ObserveRemote(float64(r.IntN(2)) * 0.2)
						}
					}
					for _, p := range flight {
						end(p, cortex.Success)
					}
				})
			}
			wg.Wait()
			s := e.Stats()
			if n := e.Pressure().InFlight; n != 0 {
				t.Errorf("%d in flight", n)
			}
			atAdmission := s.Rejected(cortex.ReasonShed) + s.Rejected(cortex.ReasonCircuitOpen) + s.Rejected(cortex.ReasonCircuitEmergency)
			if s.Calls != admitted.Load()+refused.Load() {
				t.Errorf("%d calls, %d admitted and %d refused", s.Calls, admitted.Load(), refused.Load())
			}
			if s.Attempts != admitted.Load()+retried.Load() {
				t.Errorf("%d attempts, %d admitted and %d retried", s.Attempts, admitted.Load(), retried.Load())
			}
			if atAdmission < refused.Load()+retriesRefused.Load() { // those of Decide come on top
				t.Errorf("%d refusals counted of %d", atAdmission, refused.Load())
			}
			sum := s.Successes + s.Failures + s.Timeouts + s.Throttled + s.Neutral
			if sum != counted.Load() || s.Stale != stale.Load() || sum+s.Stale != s.Attempts || s.Lost != 0 {
				t.Errorf("%d outcomes and %d stale of %d attempts: %+v", counted.Load(), stale.Load(), s.Attempts, s)
			}
			for o, n := range map[cortex.Outcome]uint64{cortex.Success: s.Successes, cortex.Failed: s.Failures, cortex.TimedOut: s.Timeouts,
				cortex.Throttled: s.Throttled, cortex.Neutral: s.Neutral} {
				if n != ended[o].Load() {
					t.Errorf("%v: %d counted of %d", o, n, ended[o].Load())
				}
			}
			if s.Dropped != 0 || (s.Transitions > 0) != (events.Load() > 0) {
				t.Errorf("%d transitions, %d told, %d dropped", s.Transitions, events.Load(), s.Dropped)
			}
			if name != "adaptive, no circuit" && s.Transitions == 0 {
				t.Error("the circuit never moved: the test shows little")
			}
		})
	}
}

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

func TestStatsAreASnapshot(t *testing.T) {
	e, clock := virtual(t, cortex.Config{})
	attempts(t, e, clock, 43, ms, cortex.Failed)
	before := e.Stats()
	refusal(t, e, 5)
	if n := before.Rejected(cortex.ReasonCircuitOpen); n != 0 {
		t.Errorf("stats taken before the refusal count %d", n)
	}
}
