package cortex

import (
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
	"github.com/seed-a29ca62a/cortex/window"
)

const (
	tickGap          = time.Millisecond      // estimators advance at most this often
	histogramGap     = 10 * time.Millisecond // latencies are collected and quantiles taken at most this often
	rejectionAge     = 100 * time.Millisecond
	evidenceMin      = 10 // outcomes below which evidence is discounted
	windowMin        = 50 // outcomes that make a window wide enough
	baselineMin      = 200
	rearmBelow       = 5_000 // evidence below which the evidence trip is armed again, in basis points
	strainedFrom     = 0.3   // queue pressure from which attempts are given the extended timeout
	strainedTimeouts = 3     // without a success between them: likewise
	learnBelow       = 0.2   // queue pressure below which latencies are the target's own
	// queueTimeouts is how many of the usual timeouts the in-flight limit reckons with: what waits in a queue is given the
	// extended timeout.
	queueTimeouts = 2
	// Two of lateShare parts of the extended timeout is the least that is late: an answer of a target that is only slow is worth as much as any.
	lateShare = 7
	callCost  = 2 // a retry needs max(B99, 2·W0) to finish
)

// An Engine guards one target. Create it with [New]. All methods are safe for concurrent use.
type Engine struct {
	cfg          Config
	clock        func() time.Duration
	processClock bool // clock is monotonic
	origin       time.Duration
	stripes      []stripe
	stripeMask   uint8

	// Read on every call, written at transitions only.
	refuseUntil atomic.Int64 // the circuit is open and no probe is due before
	rejections  [reasons][limit.MaxLevels + 1]atomic.Pointer[rejection]
	refusedBy   [reasons]atomic.Uint64
	timeoutNow  atomic.Int64
	extended    atomic.Int64 // timeout of the attempts that look beyond it
	strained    atomic.Bool  // there is a queue, or attempts are being cut: what takes long may be waiting
	gauge       gauge
	remote      remoteView
	weights     scale // of cfg

	mu         sync.Mutex
	rng        rand.PCG
	rolling    *window.Rolling
	breaker    *breaker.Breaker
	bucket     *budget.Bucket
	limiter    *limit.Limiter
	timeout    *timeout.Timeout
	last       time.Duration // of the last tick
	lastHist   time.Duration
	gen        uint32
	state      breaker.State   // as last announced
	told       breaker.Forcing // likewise
	neverOpens bool            // forced closed, or without a circuit for an experiment
	armed      bool
	deadline   float64 // s, typical time a caller has; 0 = not known
	article    articleBaseline
	fleet      *fleet // nil: never reported

	// Since the last tick.
	pending   window.Counts
	errorArea time.Duration
	area      time.Duration // ∫N dt since the last tick
	residence time.Duration // ∫N dt since ever, wrapping
	inFlight  int64         // at the last tick
	silence   silence
	quick     quick
	success   uint64 // of this generation, collected
	offered   [limit.MaxLevels + 1]uint64
	inTime    uint64    // successes within the law's target sojourn time
	cut       uint64    // timeouts of attempts that had less than the extended timeout
	late      uint64    // and beyond
	latencies latencies // of successes, on their way from the stripes to the windows

	sig   signals
	stats Stats
	event queue
	log   *slog.Logger
}

// signals are the score's inputs as of the last tick; C is read from the circuit.
type signals struct {
	f, l, b float64
	q       float64 // of the last tick; admission uses the number in flight at the moment
	own     float64 // q without the user's gauge
	slow    float64 // share of timeouts among the failures
	p99     time.Duration
	samples uint64
	span    window.Span
	stalled int64 // attempts in flight presumed timed out
}

// New returns an engine for one target. The error is a [*ConfigError].
func New(c Config) (*Engine, error) {
	processClock := c.Now == nil
	c, err := c.normalize()
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: c, processClock: processClock, clock: c.Now, stripes: newStripes(c.Stripes), rolling: window.New(), armed: true, log: c.Logger,
		weights: c.Weights.scale()}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.stripeMask = uint8(len(e.stripes) - 1)
	e.origin = c.Now() - tickGap // the first call finds the estimators due
	e.rng = *rand.NewPCG(c.Rand.Uint64(), c.Rand.Uint64())
	c.Breaker.Rand = e.random
	if e.breaker, err = breaker.New(c.Breaker); err != nil {
		return nil, part("Breaker", err)
	}
	if e.bucket, err = budget.New(c.Budget); err != nil {
		return nil, part("Budget", err)
	}
	if e.limiter, err = limit.New(c.Limit, c.ShedSignal == ShedByPressure); err != nil {
		return nil, part("Limit", err)
	}
	if e.timeout, err = timeout.New(c.Timeout); err != nil {
		return nil, part("Timeout", err)
	}
	e.neverOpens = e.off(limit.Circuit)
	e.timeoutNow.Store(int64(e.timeout.Current()))
	e.gauge.fill.Store(noGauge)
	return e, nil
}

// Name is the target's name.
func (e *Engine) Name() string { return e.cfg.Name }

// Config is the configuration in force, defaults filled in.
func (e *Engine) Config() Config { return e.cfg }

// now is the engine's time: since shortly before it was made.
func (e *Engine) now() time.Duration {
	if e.processClock { // saves the indirect call
		return monotonic() - e.origin
	}
	return e.clock() - e.origin
}

func (e *Engine) off(i limit.Ingredients) bool { return e.cfg.Limit.Off&i != 0 }

// random is uniform in [0,1), from the engine's own generator; e.mu is held.
func (e *Engine) random() float64 { return float64(e.rng.Uint64()>>11) / (1 << 53) }

func (e *Engine) clampPriority(p Priority) int { return min(max(int(p), 0), e.cfg.Levels) }

func (e *Engine) critical(p int) bool { return p >= e.cfg.Levels-1 }

// advance brings everything to now, if the last tick is old enough: counts of the stripes into windows, estimators, score.
// e.mu is held.
func (e *Engine) advance(now time.Duration) { e.advanceFor(now, nil) }

// advanceFor is advance on behalf of an attempt that wants to enter by that stripe. It enters at once where the tick gives the
// stripe credit: the law would refuse nobody then.
func (e *Engine) advanceFor(now time.Duration, wants *stripe) (entered bool) {
	if now-e.last < tickGap {
		return false
	}
	if e.fleet != nil {
		e.fleet.expire(now)
		e.expireBudget(now)
	}
	s := limit.Sample{Now: now, Gauge: e.gauge.value(), Remote: e.remote.shed(now, e.cfg.RemoteTrust)}
	hist := now-e.lastHist >= histogramGap || e.lastHist == 0
	if hist {
		e.lastHist = now
	}
	starts := e.collect(now, hist)
	e.rolling.Advance(now)
	e.readSignals(now, starts, hist)

	e.bucket.Advance(now)
	e.bucket.Earn(now, e.pending.Success)
	e.refreshTimeout(now)

	if e.cfg.Profile == Article {
		e.sig.b = e.bucket.Burn()
		e.sig.q = float64(e.inFlight) / float64(e.cfg.Concurrency)
	} else {
		e.advanceLaw(s, now)
	}
	e.sig.own = e.sig.q
	strained := e.sig.q >= strainedFrom || e.timeout.Cutting(now) || e.silence.timeouts >= strainedTimeouts
	// An attempt that waits beside others that are answered as fast as usual will not be answered for having more time.
	if strained = strained && !e.quick.active(now, e.timeout.Extended()); strained != e.strained.Load() {
		e.strained.Store(strained)
	}
	e.sig.q = unit(max(e.sig.q, s.Gauge))
	if e.fleet != nil {
		e.fleet.count(e)
	}
	e.pending = window.Counts{}
	e.errorArea = 0
	clear(e.offered[:e.cfg.Levels+1])
	e.last = now
	return e.grant(now, wants)
}

// refreshTimeout writes only what has changed: every call reads it, and a write takes it from the other processors' caches.
func (e *Engine) refreshTimeout(now time.Duration) {
	if t := int64(e.timeout.Refresh(now)); t != e.timeoutNow.Load() {
		e.timeoutNow.Store(t)
	}
	if x := int64(e.timeout.Extended()); x != e.extended.Load() {
		e.extended.Store(x)
	}
}

// advanceLaw feeds the adaptive law.
func (e *Engine) advanceLaw(s limit.Sample, now time.Duration) {
	area := e.area
	s.InFlight = e.inFlight
	s.Area = area.Seconds()
	s.ErrorArea = e.errorArea.Seconds()
	s.Success, s.Failure, s.TimedOut, s.Throttled = e.pending.Success, e.pending.Failure, e.pending.Timeout, e.pending.Throttled
	s.InTime, s.Late, s.Cut = e.inTime, e.late, e.cut
	e.inTime, e.late, e.cut = 0, 0, 0
	s.Offered = &e.offered
	s.Timeout, s.Deadline = e.patience()
	s.Usual = e.quick.active(now, e.timeout.Extended())
	if p, ok := e.rolling.Quantile(e.span(baselineMin), 0.99); ok {
		s.P99 = p
	}
	st := e.circuit(now)
	e.sig.b = e.bucket.BurnNow()
	sig := e.signalsAt(st)
	s.Calm = st == breaker.Closed && e.weights.cps(sig) < 3_000
	if e.cfg.ShedSignal == ShedByPressure {
		s.Evidence = float64(e.weights.evidence(sig)) / one
	}
	e.limiter.Advance(s)
	e.bucket.SetCapacity(e.limiter.Capacity())
	e.sig.q = e.limiter.Q(e.inFlight)
	if f := e.inFleet(); f != nil {
		e.sig.q = f.law.Q()
	}
}

// patience is how long an attempt is waited for, as far as the law reckons with it, and how long callers wait; 0 = no bound.
func (e *Engine) patience() (timeout, deadline time.Duration) {
	if !e.cfg.DisableTimeout {
		timeout = min(queueTimeouts*e.timeout.Usual(), e.timeout.Extended())
	}
	if deadline = time.Duration(e.deadline * float64(time.Second)); deadline == 0 {
		deadline = e.cfg.Deadline
	}
	return timeout, deadline
}

// collect takes what the stripes counted since the last tick and withdraws their credit. It returns the sum of the starts of
// the attempts in flight.
func (e *Engine) collect(now time.Duration, hist bool) (starts time.Duration) {
	epoch := uint32(now / e.cfg.PermitLife)
	var done, in, newest time.Duration
	var n int64
	success := uint64(0)
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		s.credit, s.until = 0, 0
		if s.epoch != epoch {
			e.stats.Lost += uint64(s.turn(epoch, now))
		}
		e.stats.Attempts += s.attempts
		e.stats.Stale += s.stale
		s.attempts, s.stale, s.clashes = 0, 0, 0
		for p := range s.offered[:e.cfg.Levels+1] {
			if k := s.offered[p]; k > 0 {
				e.offered[p] += k
				e.stats.Calls += k
				s.offered[p] = 0
			}
			if s.refused[p].Load() > 0 {
				k := uint64(s.refused[p].Swap(0))
				e.offered[p] += k
				e.stats.Calls += k
				e.refusedBy[ReasonCircuitOpen].Add(k)
			}
		}
		success += s.success
		newest = max(newest, s.last)
		s.success = 0
		if hist {
			s.latencies.moveTo(&e.latencies)
		}
		n += s.inFlight
		in += s.starts
		done += s.done
		s.mu.Unlock()
	}
	if hist {
		if e.fleet != nil {
			e.fleet.countLatencies(&e.latencies)
		}
		e.bookLatencies(newest)
	}
	e.bookSuccesses(success, newest)
	total := done + time.Duration(n)*now - in
	e.area, e.residence = total-e.residence, total
	e.inFlight = n
	return in
}

// gatherSuccesses takes the successes of the stripes before a tick is due: a failure is weighed against all of them.
func (e *Engine) gatherSuccesses() {
	var newest time.Duration
	n := uint64(0)
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		n += s.success
		newest = max(newest, s.last)
		s.success = 0
		s.mu.Unlock()
	}
	e.bookSuccesses(n, newest)
}

// bookSuccesses counts successes, dated when the newest of them happened: by now they may be old.
func (e *Engine) bookSuccesses(n uint64, newest time.Duration) {
	if n == 0 {
		return
	}
	e.pending.Success += n
	e.success += n
	e.stats.Successes += n
	e.rolling.Add(newest, window.Counts{Success: n})
	e.silence = silence{since: newest}
}

// bookLatencies gives the latencies of successes to the windows and the timeout, all stripes' together and in order: what comes
// out, to the last bit, is not to depend on the number of stripes.
func (e *Engine) bookLatencies(newest time.Duration) {
	target := window.Bucket(max(e.limiter.Target(), 2*e.timeout.Extended()/lateShare))
	most := window.Bucket(e.quick.usual)
	usual, all := uint64(0), uint64(0)
	for b, n := range e.latencies.all {
		if b > target {
			e.late += uint64(n)
		} else {
			e.inTime += uint64(n)
		}
		e.rolling.AddLatency(newest, b, uint64(n))
		if e.inFleet() == nil { // else with those of all
			e.learnTimeout(newest, b, uint64(n))
		}
		all += uint64(n)
		if b <= most {
			usual += uint64(n)
		}
	}
	if e.quick.usual > 0 {
		e.quick.add(newest, usual, all)
	}
	if e.limiter.Warm() && !e.limiter.Frozen() && e.sig.f < quickCalm && e.cfg.Profile == Adaptive {
		e.quick.learn(newest, e.rolling)
	}
	e.latencies.clear()
}

// learnTimeout gives the latencies of successes to the adaptive timeout, but not those of an incident, nor those with a queue in
// them. The first would let the next incident go unnoticed for as long; the second would run away: a longer timeout makes a
// higher limit, that a longer queue, that longer latencies. Where they are not learned the extended timeout serves. In the cold start
// all are learned: nothing is known yet of what a queue would be, and a target that takes longer than the bootstrap timeout would
// never be found out.
func (e *Engine) learnTimeout(now time.Duration, bucket int, n uint64) {
	if e.limiter.Frozen() || e.sig.own >= learnBelow && e.limiter.Warm() && e.cfg.Profile == Adaptive {
		e.timeout.CountSuccesses(now, n)
		return
	}
	e.timeout.Observe(now, bucket, n)
}

// grant shares the room in which nothing could be refused among the stripes, until the next tick. The first to enter by it may be
// waiting.
func (e *Engine) grant(now time.Duration, waiting *stripe) (entered bool) {
	room := int64(0)
	if e.circuit(now) == breaker.Closed {
		room = e.room()
	}
	if room <= 0 {
		return false // collect has withdrawn all credit
	}
	each, rest := room/int64(len(e.stripes)), room%int64(len(e.stripes))
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		s.credit = each
		if int64(i) < rest {
			s.credit++
		}
		s.until = now + tickGap
		if s == waiting && s.credit > 0 {
			s.credit--
			s.enter(now)
			entered = true
		}
		s.mu.Unlock()
	}
	return entered
}

func (e *Engine) room() int64 {
	if e.cfg.Profile == Article { // floor 0 sheds nobody
		cps := e.weights.cps(e.signalsAt(breaker.Closed))
		if floorOf(cps, e.cfg.Levels) > 0 || cps >= emergency { // with a single level the first does not follow from the second
			return 0
		}
		return 1 << 30
	}
	if f := e.inFleet(); f != nil {
		if f.law.ShedFraction(false) > 0 {
			return 0
		}
	} else if e.evidenceTrips() {
		return 0
	}
	return e.limiter.Headroom(e.inFlight)
}

// span is the window that signals are taken from.
func (e *Engine) span(atLeast uint64) window.Span {
	if e.cfg.Profile == Article || e.off(limit.ShortWindows) {
		return window.Span60s
	}
	return e.rolling.Shortest(atLeast)
}

// readSignals takes F and L from the windows.
func (e *Engine) readSignals(now, starts time.Duration, hist bool) {
	sig := &e.sig
	sig.span = e.span(windowMin)
	c := e.rolling.Counts(sig.span)
	_, base := e.baseline()
	sig.stalled = 0
	if n := e.inFlight; n > 0 && e.cfg.Profile == Adaptive && !e.cfg.DisableTimeout {
		// Attempts that hang do not count until they return, unless their age speaks first: when the mean age of those in
		// flight has passed the timeout that should have ended them, they are presumed timed out.
		age := now - starts/time.Duration(n)
		if age > max(time.Duration(e.timeoutNow.Load()), 2*base) {
			sig.stalled = n
			c.Timeout += uint64(n)
		}
	}
	sig.samples = c.Total()
	sig.f, sig.slow = 0, 0
	if f := c.Failures(); f > 0 {
		sig.f = float64(f) / float64(c.Total())
		sig.slow = float64(c.Timeout) / float64(f)
	}
	if hist {
		sig.p99, _ = e.rolling.Quantile(sig.span, 0.99)
		if e.cfg.Profile == Article {
			if p50, ok := e.rolling.Quantile(sig.span, 0.50); ok {
				e.article.learn(now, p50)
			}
		}
	}
	if e.cfg.Profile == Article {
		base = e.article.base()
	}
	sig.l = LatencyDeviation(float64(sig.p99), float64(base))
	if sig.stalled > 0 {
		sig.l = 1
	}
	if e.cfg.Profile == Adaptive {
		sig.f = discount(sig.f, sig.samples)
		sig.l = discount(sig.l, e.rolling.Latencies(sig.span)+uint64(sig.stalled))
	}
	if f := e.inFleet(); f != nil {
		sig.f, sig.l, sig.slow = f.sig.f, f.sig.l, f.sig.slow
	}
}

// discount weighs evidence from fewer than ten samples by their number.
func discount(v float64, n uint64) float64 {
	if n < evidenceMin {
		return v * float64(n) / evidenceMin
	}
	return v
}

func (e *Engine) signalsAt(st breaker.State) Signals {
	return Signals{F: e.sig.f, L: e.sig.l, Q: unit(e.sig.q), B: e.sig.b, C: st.Pressure()}
}

// evidenceTrips arms and evaluates the evidence trip of the adaptive profile.
func (e *Engine) evidenceTrips() bool {
	ev := e.weights.evidence(e.signalsAt(breaker.Closed))
	if ev < rearmBelow {
		e.armed = true
	}
	return e.armed && ev >= emergency && !e.off(limit.EvidenceTrip) && !e.neverOpens
}

// articleBaseline is the article's learned baseline: the P50, averaged over a minute, learned in trouble too.
type articleBaseline struct {
	value float64
	last  time.Duration
}

func (b *articleBaseline) learn(now, p50 time.Duration) {
	if b.value == 0 {
		b.value = float64(p50)
	} else if dt := now - b.last; dt > 0 {
		b.value += (float64(p50) - b.value) * min(1, dt.Minutes())
	}
	b.last = now
}

func (b *articleBaseline) base() time.Duration { return time.Duration(b.value) }
