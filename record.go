package cortex

import (
	"context"
	"errors"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/window"
)

// times of an attempt when its outcome was known. Those of the permit may move on meanwhile: an attempt that was abandoned can still
// be paused, answered and ended, under its stripe's lock and not the engine's.
type times struct {
	start, latency, now time.Duration
}

// record is the part of Record that is not a plain success.
func (e *Engine) record(p *Permit, o Outcome, at times) bool {
	now := at.now
	e.mu.Lock()
	defer e.unlock()
	if !p.isProbe() && p.gen != e.gen && e.cfg.Profile == Adaptive && !e.off(limit.GenerationReset) {
		e.stats.Stale++ // the circuit changed between the two locks
		return false
	}
	if p.isProbe() {
		if used := e.probeDone(p, o, at); !used {
			e.stats.Stale++
			return false
		}
	}
	switch o {
	case Success:
		e.stats.Successes++
		if e.timeout.Late(now, at.latency) {
			e.refreshTimeout(now)
		}
	case Failed:
		e.stats.Failures++
	case TimedOut:
		e.stats.Timeouts++
	case Throttled:
		e.stats.Throttled++
	default:
		e.stats.Neutral++
	}
	if !p.isProbe() || e.cfg.Profile == Article {
		e.count(o, p, at)
		if e.fleet != nil && o == Success {
			e.fleet.out.Latency[bucketOf(at.latency)]++
		}
	}
	return true
}

// count takes an outcome other than a plain success into the statistics and trips the circuit if it must. e.mu is held.
func (e *Engine) count(o Outcome, p *Permit, at times) {
	now, latency := at.now, at.latency
	article := e.cfg.Profile == Article
	e.rolling.Advance(now)
	if o == TimedOut {
		if cut := p.given > 0 || latency >= e.timeout.Current(); cut && latency >= time.Duration(p.given)<<givenShift {
			e.observeCut(now) // else it was the caller's own limit, which says nothing of ours
		}
		if !article && e.quick.beside(at.start, latency) {
			o = Failed
			e.quick.slow = now
		}
	}
	switch o {
	case Success:
		e.pending.Success++
		e.success++
		e.silence = silence{since: now}
		e.rolling.Add(now, window.Counts{Success: 1})
		e.rolling.AddLatency(now, bucketOf(latency), 1)
		if e.inFleet() == nil {
			e.learnTimeout(now, bucketOf(latency), 1)
		}
	case Failed:
		e.pending.Failure++
		e.rolling.Add(now, window.Counts{Failure: 1})
		e.errorArea += latency
		if article { // the article's window holds the latency of every attempt: fast failures pull its P99 down
			e.rolling.AddLatency(now, bucketOf(latency), 1)
		}
	case TimedOut:
		e.pending.Timeout++
		e.rolling.Add(now, window.Counts{Timeout: 1})
		e.rolling.AddLatency(now, bucketOf(latency), 1)
	case Throttled:
		if !e.remote.refuses(now, e.cfg.RemoteTrust) { // else the target's own guard has said how much it sheds: nothing is left to infer
			e.pending.Throttled++
		}
		e.rolling.Add(now, window.Counts{Throttled: 1})
		e.errorArea += latency
		return
	default:
		return
	}
	if o == Success || e.circuit(now) != breaker.Closed || e.neverOpens {
		return
	}
	e.gatherSuccesses()
	if e.fleet != nil {
		e.alarm()
	}
	c := e.rolling.Counts(spanAll)
	if article {
		if e.breaker.MeanTrips(c.Failures(), c.Success) {
			e.trip(now)
		}
		return
	}
	if o == TimedOut {
		e.silence.timedOut(now)
		if p.soft && latency >= time.Duration(p.given)<<givenShift {
			e.cut++
			return // only an attempt that was given more time can tell a target that hangs from a slow one
		}
		e.silence.patient++
		if e.fleet != nil {
			e.fleet.out.Patient++
		}
	}
	trips := e.breaker.Failure(now, o == TimedOut, e.success, c.Success)
	if trips || e.silence.patient >= straightTimeouts && now-e.silence.since >= e.timeout.Extended() {
		e.trip(now)
	}
}

// silence is what happened since the last success.
type silence struct {
	since    time.Duration
	last     time.Duration // the newest timeout
	timeouts int
	patient  int // of attempts with the extended timeout
}

// timedOut counts a timeout. Those far from each other do not add up: a dozen have to come within a minute, as for the circuit.
func (s *silence) timedOut(now time.Duration) {
	const horizon = time.Minute
	if now-s.last > horizon {
		s.timeouts = 0
	}
	if now-s.last > horizon/straightTimeouts {
		s.patient = 0
	}
	s.last = now
	s.timeouts++
}

// straightTimeouts without a success between them are enough by the circuit's rule, P(θ > 0.7 | 12 failures) ≥ 0.99, where
// nothing came back for as long as the most patient attempt waits: the successes among the last 64 outcomes are from before.
const straightTimeouts = 12

// probeDone gives a probe's outcome to the circuit; it enters no window of the adaptive profile.
func (e *Engine) probeDone(p *Permit, o Outcome, at times) bool {
	r := breaker.ProbeReleased
	switch o {
	case Success:
		r = breaker.ProbeSucceeded
	case Failed:
		r = breaker.ProbeFailed
	case TimedOut:
		r = breaker.ProbeTimedOut
	case Throttled:
		r = breaker.ProbeThrottled
	}
	used, _ := e.breaker.ProbeDone(at.now, p.probe, r, at.latency, e.offeredRate())
	e.announce(at.now)
	return used
}

// classify decides what the error of an attempt says. Who ended the attempt decides, not the text of the error: drivers do
// not always wrap the context's.
func (e *Engine) classify(ctx context.Context, err error, took time.Duration) Class {
	if ctx != nil && ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && took >= e.longWait() {
			return Class{Outcome: TimedOut}
		}
		return Class{Outcome: Neutral}
	}
	return e.cfg.Classify(err)
}

// longWait is how long an attempt must have been under way for its caller's own deadline to speak against the target.
func (e *Engine) longWait() time.Duration {
	e.mu.Lock()
	_, b99 := e.baseline()
	e.mu.Unlock()
	if b99 > 0 {
		return b99
	}
	return min(e.cfg.Timeout.Bootstrap, time.Duration(e.timeoutNow.Load()))
}
