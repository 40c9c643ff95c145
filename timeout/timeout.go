// Package timeout derives the timeout of an attempt from the latencies seen: 2 × p99.9 of the successes, between a minimum and
// a maximum, with a bootstrap value until there are enough of them.
//
//	t, err := timeout.New(timeout.Config{Min: 50 * time.Millisecond, Max: 5 * time.Second})
//	...
//	limit := t.Refresh(now)                      // before an attempt: give it this long
//	t.Observe(now, window.Bucket(latency), 1)    // it succeeded
//	t.ObserveTimeouts(now, 1)                    // it was given up
//
// What a timed-out attempt would have taken is not known, only that it is more than the timeout in force. Left out, such
// attempts pull the estimate down: the survivors are the fast ones, the timeout shrinks to fit them, more attempts die of it.
// Taken as samples, each round of them sets a timeout of twice the last. So:
//
//   - While more than 1 % of the attempts of late time out, the target is in trouble or the timeout is wrong, and the latencies
//     cannot tell which: the value is frozen.
//   - At 1 % and below, timeouts are samples at the value that was in force. They count only once 10 s have passed without a
//     freeze, so that the first timeouts of an outage leave no trace.
//   - Only a success makes the value shrink. Timeouts alone, or time, let it stay or grow.
//   - A frozen value that is too short for a slow but healthy target grows by half, at most every 10 s and up to the maximum:
//     when most attempts have been timing out, or when the successes crowd just below the timeout. That is slow enough to cost
//     little in an outage, and it is undone by the first estimate after the freeze: as soon as no more than 1 % time out.
//   - A few attempts that are given the longer [Timeout.Extended] look beyond the value in force. One that succeeds there proves
//     it too short, and raises it at once ([Timeout.Late]): a target that has become slow is not one that is gone.
//
// "Of late" is the last 10 s or so, "latencies seen" those of the last minute or so, both fading exponentially; where the
// traffic is too thin for that, the last 10 attempts and the last 1,000 successes.
//
// All times are durations since one arbitrary origin on a monotonic axis, passed in by the caller. Nothing here is safe for
// concurrent use: the owner's mutex guards it.
package timeout

import (
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/window"
)

const (
	quantile = 0.999 // DESIGN 3.5

	refreshEvery = 100 * time.Millisecond

	// latencyMemory must gather some 1,000 successes for a p99.9 to mean something. Where it does not, the histogram fades no
	// further than keepSamples.
	latencyMemory = 60 * time.Second
	keepSamples   = 1000

	// shareMemory and keepAttempts are the same for the share of timeouts.
	shareMemory  = 10 * time.Second
	keepAttempts = 10

	freezeShare = 0.01 // above this share of timeouts the value is frozen
	growShare   = 0.5  // above this share a frozen value may grow

	// crowd: a p99.9 of successes above 3/4 of the timeout is the visible edge of a distribution that the timeout cuts off.
	// Healthy answers beside calls that hang do not look like that, as the timeout is a multiple of their p99.9. (With a
	// Multiplier below 4/3 they do, for one step of growth.)
	crowd = 0.75

	// growth by growFactor needs evidence that spans growEvery and is more than a coincidence of two slow calls.
	growFactor   = 1.5
	growEvery    = 10 * time.Second
	growTimeouts = 3

	// extendFactor is how much slower than usual a target may have become to be found out at once.
	extendFactor = 8
	// lateFor is how long a raise holds by itself; by then the estimate has samples of the slow kind.
	lateFor = 10 * time.Second
	// A late success raises the value only beside so many timeouts, and such a share of them, within about burstMemory: alone it
	// is an outlier of the tail.
	burstTimeouts = 3
	burstShare    = 0.02
	burstMemory   = time.Second

	// pendingFor is how long timeouts wait for a freeze before they count as samples.
	pendingFor = 10 * time.Second
)

// Timeout is the adaptive timeout of the attempts at one target. Make one with New.
//
// Time only goes forward: a call with an earlier time than a previous one is taken as made at that latest time.
type Timeout struct {
	cfg     Config
	current time.Duration // within [cfg.Min, cfg.Max]
	usual   time.Duration // current without what Late has raised

	now   time.Duration // latest time seen
	asOf  time.Duration // the decayed numbers are as of here
	due   time.Duration // Refresh computes nothing before
	fresh bool          // new samples since the last estimate
	known bool          // the value has been estimated: until then it is the bootstrap value, which knows nothing of the target

	hist  [window.Buckets]float64 // latencies of successes and committed timeouts, decayed
	total float64                 // sum over hist
	keep  float64                 // total does not decay below this

	succeeded, timedOut float64 // attempts of late, decayed

	// Timeouts that are no samples yet, fading like samples, the longest value that was in force for them, and since when they
	// wait.
	pending       float64
	pendingBucket int
	pendingSince  time.Duration

	// While frozen: since when the evidence for growth is collected, how many timeouts it has, and the latest of them.
	frozen      bool
	growSince   time.Duration
	growCount   float64
	lastTimeout time.Duration

	burst, burstOK float64 // timeouts and successes of the last second or so
	burstAt        time.Duration

	raised      time.Duration // by Late; the value does not fall below it before raisedUntil
	raisedUntil time.Duration
}

// New returns a Timeout at its bootstrap value. The error is that of Config.Normalize.
func New(c Config) (*Timeout, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, err
	}
	return &Timeout{
		cfg:     c,
		current: c.Bootstrap,
		usual:   c.Bootstrap,
		keep:    max(keepSamples, 2*float64(c.MinSamples)),
	}, nil
}

// Current returns the timeout in force, within [Min, Max].
func (t *Timeout) Current() time.Duration { return t.current }

// Usual returns the timeout without what [Timeout.Late] has raised for the moment: what is usual for this target.
func (t *Timeout) Usual() time.Duration { return t.usual }

// Extended returns the timeout of an attempt that is to find out whether the value in force is too short: eight times as long,
// at least Bootstrap, at most Max.
func (t *Timeout) Extended() time.Duration {
	return clampTime(extendFactor*float64(t.current), max(t.current, t.cfg.Bootstrap), t.cfg.Max)
}

// Cutting reports whether so many attempts were cut within the last second or so that it is no accident.
func (t *Timeout) Cutting(now time.Duration) bool {
	t.advance(now)
	if t.burst < burstTimeouts {
		return false // it only fades
	}
	t.fadeBurst()
	return t.burst >= max(burstTimeouts, burstShare*(t.burst+t.burstOK))
}

// Late tells of a success that took longer than the timeout in force, from an attempt that had more time. Where others have
// just been cut by it, the value rises at once to [Timeout.Extended], or a multiple of that latency if that is longer, and Late
// reports true: those timeouts were of our own making. Less would not do: the work that was cut is still being done, and
// what queues behind it takes longer than the one that was seen. The success is to be given to Observe as well.
func (t *Timeout) Late(now, latency time.Duration) bool {
	if latency <= t.current || !t.Cutting(now) {
		return false
	}
	t.raised = clampTime(t.cfg.Multiplier*float64(latency), t.Extended(), t.cfg.Max)
	t.raisedUntil = addTime(t.now, lateFor)
	t.current = t.raised
	if !t.known {
		t.usual = t.raised
	}
	t.burst = 0
	return true
}

func (t *Timeout) fadeBurst() {
	if dt := t.now - t.burstAt; dt > 0 {
		k := remains(dt, burstMemory, 0)
		t.burst, t.burstOK = faded(t.burst, k), faded(t.burstOK, k)
		t.burstAt = t.now
	}
}

// Samples returns the number of latencies that the estimate rests on. Once there are more than 1,000 (or twice MinSamples, if
// that is more) old ones fade with a time constant of 60 s.
func (t *Timeout) Samples() uint64 {
	if t.total >= math.MaxUint64 {
		return math.MaxUint64
	}
	return uint64(t.total)
}

// Observe counts n successful attempts with latencies of the given bucket (see window.Bucket; one out of range is moved to the
// nearest). Failures must not be given here, whatever their latency: fast ones would shorten the timeout.
func (t *Timeout) Observe(now time.Duration, latencyBucket int, n uint64) {
	t.advance(now)
	if n == 0 {
		return
	}
	t.sample(latencyBucket, float64(n))
	t.count(n)
}

// CountSuccesses counts successes whose latencies are not to be learned from, because the target is in trouble: they weigh
// against the timeouts, and a value that was raised stays.
func (t *Timeout) CountSuccesses(now time.Duration, n uint64) {
	t.advance(now)
	if t.now < t.raisedUntil {
		t.raisedUntil = addTime(t.now, lateFor)
	}
	t.count(n)
}

func (t *Timeout) count(n uint64) {
	t.succeeded += float64(n)
	t.fadeBurst()
	t.burstOK += float64(n)
}

// ObserveTimeouts counts n attempts that were given up after the timeout in force. Attempts that ended for another limit, like
// the caller's own deadline, say nothing about it and must not be given here.
func (t *Timeout) ObserveTimeouts(now time.Duration, n uint64) {
	t.advance(now)
	if n == 0 {
		return
	}
	t.timedOut += float64(n)
	t.lastTimeout = t.now
	t.fadeBurst()
	t.burst += float64(n)
	if t.share() > freezeShare {
		t.freeze()
		t.growCount += float64(n)
		return
	}
	if t.pending == 0 {
		t.pendingSince, t.pendingBucket = t.now, 0
	}
	t.pending += float64(n)
	t.pendingBucket = max(t.pendingBucket, window.Bucket(t.current))
}

// Refresh brings the timeout up to date and returns it. It computes at most every 100 ms and costs next to nothing otherwise,
// so it may be called before every attempt.
func (t *Timeout) Refresh(now time.Duration) time.Duration {
	if now < t.due {
		return t.current
	}
	t.advance(now)
	t.due = addTime(t.now, refreshEvery)
	if t.share() > freezeShare {
		t.freeze()
		t.grow()
		return t.current
	}
	t.frozen = false
	if t.pending > 0 && t.now-t.pendingSince >= pendingFor {
		t.sample(t.pendingBucket, t.pending)
		t.pending = 0
	}
	if t.fresh && t.total >= float64(t.cfg.MinSamples) {
		t.estimate()
	}
	if t.raised > 0 && t.now >= t.raisedUntil {
		t.raised, t.current = 0, t.usual
	}
	return t.current
}

// freeze starts a freeze, if there is none yet. Timeouts that wait to become samples turn out to be its beginning.
func (t *Timeout) freeze() {
	if t.frozen {
		return
	}
	t.frozen = true
	t.pending = 0
	t.growSince, t.growCount = t.now, 0
}

// grow raises a frozen value that seems too short. The evidence starts anew after every step, as every one changes what there
// is to see.
func (t *Timeout) grow() {
	if t.lastTimeout-t.growSince < growEvery || t.growCount < growTimeouts {
		return
	}
	if t.share() <= growShare && !t.crowded() {
		return
	}
	t.current = clampTime(growFactor*float64(t.current), t.current, t.cfg.Max)
	t.usual = t.current
	t.growSince, t.growCount = t.now, 0
}

// crowded reports whether the successes reach close to the timeout in force.
func (t *Timeout) crowded() bool {
	return t.total >= float64(t.cfg.MinSamples) && float64(t.p999()) >= crowd*float64(t.current)
}

// estimate sets the value from the histogram. Timeouts cannot lower it: as samples they are at or above the value that was in
// force and so at or above the percentile, and fading moves no percentile.
func (t *Timeout) estimate() {
	p := t.p999()
	next := clampTime(t.cfg.Multiplier*float64(p), t.cfg.Min, t.cfg.Max)
	// The last bucket stands for everything above the scale (64 s): a latency there is a lower bound, no reason to shrink.
	top := window.Bucket(p) == window.Buckets-1
	if next > t.usual || !top {
		t.usual = next
	}
	t.current = t.usual
	if t.now < t.raisedUntil {
		t.current = max(t.current, t.raised)
	}
	t.fresh, t.known = false, true
}

// p999 returns the 99.9th percentile of the histogram, interpolated inside its bucket. It counts from above, where the answer
// is near.
func (t *Timeout) p999() time.Duration {
	rest := (1 - quantile) * t.total
	b := window.Buckets - 1
	for b > 0 && (t.hist[b] == 0 || t.hist[b] < rest) {
		rest -= t.hist[b]
		b--
	}
	lo, hi := window.Bounds(b)
	return hi - time.Duration(min(rest/t.hist[b], 1)*float64(hi-lo))
}

func (t *Timeout) sample(bucket int, n float64) {
	t.hist[min(max(bucket, 0), window.Buckets-1)] += n
	t.total += n
	t.fresh = true
}

// share returns the share of timeouts among the attempts of late, 0 without any.
func (t *Timeout) share() float64 {
	if t.timedOut == 0 {
		return 0
	}
	return t.timedOut / (t.timedOut + t.succeeded)
}

// advance lets what was counted fade. Both memories fade less where that would leave too little to judge by; scaling a whole
// histogram changes no quantile, and scaling both kinds of attempt no share.
func (t *Timeout) advance(now time.Duration) {
	t.now = max(t.now, now)
	dt := t.now - t.asOf
	if dt < refreshEvery {
		return
	}
	t.asOf = t.now

	if n := t.succeeded + t.timedOut; n > keepAttempts {
		k := remains(dt, shareMemory, keepAttempts/n)
		t.succeeded = faded(t.succeeded, k)
		t.timedOut = faded(t.timedOut, k)
	}
	if t.total > t.keep {
		k := remains(dt, latencyMemory, t.keep/t.total)
		t.pending = faded(t.pending, k)
		total := 0.0
		for b, n := range &t.hist {
			n = faded(n, k)
			t.hist[b] = n
			total += n
		}
		t.total = total
	}
}

// remains returns the part of a number that is left after dt, at least least.
func remains(dt, memory time.Duration, least float64) float64 {
	return max(math.Exp(-dt.Seconds()/memory.Seconds()), least)
}

// faded returns n × k, and 0 where that is next to nothing: multiplied on, it would end as a denormal for good.
func faded(n, k float64) float64 {
	if n *= k; n < 1e-6 {
		return 0
	}
	return n
}

// clampTime converts nanoseconds to a duration within [lo, hi]. It compares before it converts, as a conversion of what does
// not fit is not defined.
func clampTime(ns float64, lo, hi time.Duration) time.Duration {
	switch {
	case !(ns > float64(lo)):
		return lo
	case ns >= float64(hi):
		return hi
	}
	return time.Duration(ns)
}

func addTime(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
