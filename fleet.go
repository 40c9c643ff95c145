package cortex

import (
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/window"
)

// A FleetReport is what one guard counted since its last report, or the sum of what several did: plain numbers that add up, for whatever
// carries them between processes. See [Engine.TakeReport].
type FleetReport struct {
	// Epoch is the newest state of the fleet's circuit that the guard knows of: the number of its transitions, so that an even one
	// is closed and an odd one open. Outcomes and latencies are those of this epoch.
	Epoch  uint64
	Guards uint64 // 1, or how many were added up
	// Open is 1 where the guard's circuit is not closed; Probing 1 where one of its probes is under way. Both are 0 where an operator
	// has forced the circuit, see Engine.Force.
	Open, Probing uint64
	InFlight      int64 // attempts, at the end

	Offered [limit.MaxLevels + 1]uint64 // first attempts, by priority
	Asked   uint64                      // attempts that were admitted or shed, retries included

	Success, Failure, Timeout, Throttled uint64
	// Patient are those of Timeout that are evidence for the circuit: they were given all the time there is.
	Patient uint64
	// Cut are those of Timeout that the guard's own attempt timeout ended, and not a shorter limit of their callers'.
	Cut uint64

	Area      time.Duration          // ∫N dt: the time that attempts spent in flight, added up
	ErrorArea time.Duration          // the part of it that ended in fast errors and throttled answers
	Latency   [window.Buckets]uint64 // successes by window.Bucket
}

// Add adds another report. Outcomes of an older epoch than the other's are dropped: the circuit has changed since, and what was
// before is no evidence any more.
func (r *FleetReport) Add(o *FleetReport) {
	r.Guards += o.Guards
	r.InFlight += o.InFlight
	r.Asked += o.Asked
	r.Area += o.Area
	for p, n := range o.Offered {
		r.Offered[p] += n
	}
	if r.Epoch < o.Epoch {
		r.forget()
		r.Epoch = o.Epoch
	}
	if r.Epoch > o.Epoch {
		return
	}
	r.Open += o.Open
	r.Probing += o.Probing
	r.Success += o.Success
	r.Failure += o.Failure
	r.Timeout += o.Timeout
	r.Throttled += o.Throttled
	r.Patient += o.Patient
	r.Cut += o.Cut
	r.ErrorArea += o.ErrorArea
	if o.Success != 0 {
		for b, n := range o.Latency {
			r.Latency[b] += n
		}
	}
}

func (r *FleetReport) forget() {
	r.Open, r.Probing = 0, 0
	r.Success, r.Failure, r.Timeout, r.Throttled, r.Patient, r.Cut, r.ErrorArea = 0, 0, 0, 0, 0, 0, 0
	clear(r.Latency[:])
}

// FleetView is what a guard is told of its fleet; see [Engine.ObserveFleet].
type FleetView struct {
	FleetReport               // of all guards, this one included, added up
	Span        time.Duration // the time that the counts cover
	Age         time.Duration // since its end
	// Prober says that until its next view this guard, and no other one, may send probes while the circuit is open. Whoever merges
	// the reports sees to it that no two guards have it at a time, and that it stays where a probe is under way. Where no probe is heard of
	// for eight intervals and more, the others may send one, too: the guard that has the right may not be asked for anything.
	Prober bool
	// Exclusive says that whoever merges the reports gives the right to guards that are asked for something, for a time, so that nobody else
	// need ever send a probe: not one that waited in vain, not the only one in sight, and not one that has just missed views because it was
	// stopped itself. A guard sends probes of its own only when it has missed the views for four intervals after it first noticed.
	Exclusive bool
	// Lease is how much longer Prober holds from now on, with Exclusive.
	Lease time.Duration
	// Told is the part of the outcomes that [Engine.ObserveOutcomes] was told already.
	Told FleetOutcomes
}

// Patience of a guard in a fleet.
const (
	fleetPatience = 4 // of the usual intervals without a view, after which it goes on alone
	// fleetIdle is after how many intervals in which no probe was heard of guards other than the prober may send one. In a chain of tiers few
	// calls come through while circuits are open, and hardly any to the one guard that waits for one.
	fleetIdle       = 8
	fleetIdleSpread = 16          // guards for which it takes as long again until the last of them may
	fleetIdleMost   = time.Hour   // whatever number of guards the store tells
	fleetSlowest    = time.Minute // interval that is believed
)

// fleet is an engine's part in a fleet: what it reports, and what it makes of what it is told.
type fleet struct {
	out      FleetReport // since the last one
	attempts uint64      // stats at the last report
	shed     uint64

	active   bool
	lease    lease
	guards   uint64
	wake     func()
	funded   time.Duration // the retry budget is the fleet's until then
	seen     time.Duration // of the newest view
	interval time.Duration
	prober   bool
	tried    time.Duration // when a probe of the fleet was last heard of
	idle     time.Duration // without one, after which this guard may send one
	epoch    uint64
	law      *limit.Fleet
	evidence *breaker.Breaker // of the whole fleet's outcomes; never tripped itself
	recent   recent
	sig      signals
	success  uint64 // of this epoch
	silence  silence
}

// TakeReport returns what this guard counted since it was last asked, and starts anew. The first report begins the counting and is
// nearly empty. It is for whatever shares pressure between the guards of one target: take a report of each at an interval, [FleetReport.Add]
// them up, hand the sum to each ([Engine.ObserveFleet]).
func (e *Engine) TakeReport() FleetReport {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	e.advance(now)
	shed := e.refusedBy[ReasonShed].Load()
	f := e.fleet
	if f == nil {
		f = &fleet{attempts: e.stats.Attempts, shed: shed}
		e.fleet = f
	}
	f.expire(now)
	r := f.out
	f.out = FleetReport{}
	r.Epoch, r.Guards = f.epoch, 1
	switch e.circuit(now) {
	case breaker.HalfOpen:
		r.Open, r.Probing = 1, 1
	case breaker.Open:
		r.Open = 1
	}
	r.InFlight = e.countInFlight()
	r.Asked = e.stats.Attempts - f.attempts + shed - f.shed
	f.attempts, f.shed = e.stats.Attempts, shed
	if forced := e.forcing(); forced != breaker.Automatic {
		r.forced(forced)
	}
	return r
}

// ObserveFleet takes in what all guards of the target counted, this one included. The law then acts on the whole fleet: its limit,
// baseline, shed fraction, circuit; what the guard sees itself still sheds at once where it sees enough. A fleet of one, and one that has not
// been heard of for four intervals, is none: the guard decides by what it has seen itself, which it never ceased to learn from. It has no
// effect before the first report, and on the article's profile, which shares nothing. Views that make no sense are ignored.
func (e *Engine) ObserveFleet(v FleetView) {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	f := e.fleet
	if e.cfg.Profile == Article || f == nil || v.Span <= 0 || v.Age < 0 || v.Epoch-f.epoch > 1<<32 && v.Epoch > f.epoch {
		return // nobody to act on it, or junk: no circuit changes as often
	}
	e.advance(now)
	f.lease.renew(&v, now)
	if v.Guards <= 1 {
		f.active = false
		f.adopt(e, &v, now)
		e.announce(now)
		return
	}
	if f.law == nil && !f.make(e) {
		return
	}
	f.interval = min(v.Span, fleetSlowest)
	if f.active {
		f.interval = max(f.interval, min(now-f.seen, fleetSlowest))
	}
	f.seen, f.prober, f.guards = now, v.Prober, v.Guards
	if v.Epoch != f.epoch || v.Probing > 0 || v.Success+v.Failure+v.Timeout+v.Throttled > 0 {
		f.tried = now
	}
	if f.idle == 0 || v.Epoch != f.epoch { // not all at once: the larger the fleet, the longer until the last of them
		spread := 1 + e.random()*float64(v.Guards)/fleetIdleSpread
		f.idle = time.Duration(min(float64(fleetIdle*f.interval)*spread, float64(fleetIdleMost)))
	}
	f.active = true
	f.adopt(e, &v, now)
	if v.Epoch < f.epoch {
		v.forget() // others have not heard of the newest transition yet
	}
	f.learn(e, &v, now)
	v.deduct()
	f.decide(e, &v, now)
}

// decide opens the circuit where the outcomes say so.
func (f *fleet) decide(e *Engine, v *FleetView, now time.Duration) {
	if f.epoch&1 == 0 && f.trips(e, v, now) {
		f.turn()
		e.trip(now)
	}
	e.announce(now)
	e.withdraw()
}

func (f *fleet) make(e *Engine) bool {
	c := e.cfg.Breaker
	c.Rand = nil
	var err error
	if f.law, err = limit.NewFleet(e.cfg.Limit); err != nil {
		return false
	}
	f.evidence, err = breaker.New(c)
	return err == nil
}

// learnTogether gives what all of the fleet saw to the adaptive timeout: a guard of a few calls a second would take minutes to learn how
// long its target takes.
func (e *Engine) learnTogether(v *FleetView, now time.Duration) {
	for b, n := range v.Latency {
		if n > 0 {
			e.learnTimeout(now, b, n)
		}
	}
	if v.Cut > 0 {
		e.timeout.ObserveTimeouts(now, v.Cut)
	}
	e.refreshTimeout(now)
}

// observeCut counts an attempt that the guard's own timeout ended.
func (e *Engine) observeCut(now time.Duration) {
	if e.fleet != nil {
		e.fleet.out.Cut++
	}
	if e.inFleet() == nil {
		e.timeout.ObserveTimeouts(now, 1)
	}
}

// mayProbe reports whether this guard may send a probe: it has the right to, or nobody has used it for a while.
func (f *fleet) mayProbe(now time.Duration) bool {
	if f.lease.exclusive {
		return f.lease.allows(now)
	}
	return !f.active || f.prober || now-f.tried >= f.idle
}

// probeIn is how long until this guard may send a probe, without another view.
func (f *fleet) probeIn(now time.Duration) time.Duration {
	switch {
	case f.lease.exclusive && !f.lease.allows(now):
		return fleetPatience * f.lease.interval
	case f.lease.exclusive, !f.active, f.prober:
		return 0
	}
	return f.tried + f.idle - now
}

// lease is the right to probe where it is exclusive.
type lease struct {
	exclusive bool
	until     time.Duration // this guard has it
	interval  time.Duration
	heard     time.Duration // of the newest view
	silent    time.Duration // when it was first noticed that views are missing; 0: they are not
}

func (l *lease) renew(v *FleetView, now time.Duration) {
	*l = lease{exclusive: v.Exclusive, interval: min(v.Span, fleetSlowest), heard: now}
	if v.Prober {
		l.until = now + min(max(v.Lease, 0), fleetIdleMost)
	}
}

// allows reports whether this guard may send a probe: it has the lease, or there is nobody to ask for it. Time that passed while the process
// was stopped is no silence of the store, so that it is counted from the moment when somebody looks.
func (l *lease) allows(now time.Duration) bool {
	if now-l.heard <= fleetPatience*l.interval {
		return now < l.until
	}
	if l.silent == 0 {
		l.silent = now
	}
	return now-l.silent >= fleetPatience*l.interval
}

// expire ends a membership that nobody has confirmed lately.
func (f *fleet) expire(now time.Duration) {
	if f.active && now-f.seen > fleetPatience*f.interval {
		f.active = false
	}
}

// turn counts a transition of the fleet's circuit.
func (f *fleet) turn() {
	f.epoch++
	f.fresh()
}

// fresh starts with fresh evidence.
func (f *fleet) fresh() {
	f.out.forget()
	f.success = 0
	f.silence = silence{since: f.seen}
	f.tried = f.seen
	if f.law == nil {
		return
	}
	f.evidence.Reset(f.seen)
	if f.epoch&1 == 0 {
		f.recent = recent{}
		f.sig = signals{}
		f.law.Restart()
	}
}

// adopt follows the circuit of the fleet where others have moved it on.
func (f *fleet) adopt(e *Engine, v *FleetView, now time.Duration) {
	if v.Epoch <= f.epoch {
		return
	}
	f.epoch = v.Epoch
	f.fresh()
	if e.forcing() != breaker.Automatic {
		return // an operator's order stands above the fleet
	}
	switch open := f.epoch&1 == 1; {
	case open && e.circuit(now) == breaker.Closed:
		e.trip(now)
	case !open && e.circuit(now) != breaker.Closed:
		e.breaker.Close(now)
		e.announce(now)
	}
}

// learn brings the fleet's estimators and signals up to a view.
func (f *fleet) learn(e *Engine, v *FleetView, now time.Duration) {
	f.recent.add(v, bucketOf(time.Duration(e.timeoutNow.Load())))
	e.learnTogether(v, now)
	f.sig = f.recent.signals(f.law)
	timeout, deadline := e.patience()
	s := limit.FleetSample{Span: v.Span, Age: v.Age, Asked: v.Asked, Sample: limit.Sample{
		Now: now - v.Age, InFlight: v.InFlight, Area: v.Area.Seconds(), ErrorArea: v.ErrorArea.Seconds(),
		Success: v.Success, Failure: v.Failure, TimedOut: v.Timeout, Throttled: v.Throttled,
		Offered: &v.Offered, Timeout: timeout, Deadline: deadline, P99: f.recent.baseline(),
		Gauge: -1,
	}}
	st := e.circuit(now)
	sig := Signals{F: f.sig.f, L: f.sig.l, Q: unit(f.sig.q), B: e.sig.b, C: st.Pressure()}
	s.Calm = st == breaker.Closed && e.weights.cps(sig) < 3_000
	f.law.Advance(s)
	f.sig.q = f.law.Q()
}

// trips reports whether the fleet's outcomes open the circuit.
func (f *fleet) trips(e *Engine, v *FleetView, now time.Duration) bool {
	if e.neverOpens {
		return false
	}
	if 2*v.Open >= v.Guards {
		return true // most have seen enough by themselves
	}
	// The order of what happened in the interval is not known. Failures are taken as spread evenly among the successes.
	failures := v.Failure + v.Patient
	n := min(failures, evidenceSpan)
	trip := false
	for i := range n {
		cum := f.success + uint64(float64(v.Success)*float64(failures-n+i+1)/float64(failures))
		if f.evidence.Failure(now, i*failures < v.Patient*n, cum, cum) {
			trip = true
		}
	}
	f.success += v.Success
	if v.Success > 0 {
		f.silence = silence{since: now}
	}
	for range min(v.Patient, straightTimeouts) {
		f.silence.timedOut(now)
		f.silence.patient++
	}
	if f.law.Settles() && 2*v.Patient >= failures {
		trip = false // they may have waited in the queue that grew before anybody knew
	}
	return trip || f.silence.patient >= straightTimeouts && now-f.silence.since >= e.timeout.Extended()+v.Span
}

const evidenceSpan = 64

// withdraw ends the credit of the stripes, so that the next call is decided by what is known now. e.mu is held.
func (e *Engine) withdraw() {
	for i := range e.stripes {
		s := &e.stripes[i]
		s.mu.Lock()
		s.credit, s.until = 0, 0
		s.mu.Unlock()
	}
}

// inFleet is the fleet this guard acts for; nil where it is alone. e.mu is held.
func (e *Engine) inFleet() *fleet {
	if f := e.fleet; f != nil && f.active {
		return f
	}
	return nil
}

// recent are the fleet's outcomes and latencies of late: of the last second or so, and as much of what was before as it takes to have
// enough of them.
type recent struct {
	success, failure, timeout float64
	hist                      [window.Buckets]float32
	latencies                 float64
}

const (
	recentMemory = time.Second
	recentKeep   = 200 // outcomes
	recentLong   = time.Minute
)

func (r *recent) add(v *FleetView, timeout int) {
	fade := math.Exp(-v.Span.Seconds() / recentLong.Seconds())
	short := math.Exp(-v.Span.Seconds() / recentMemory.Seconds())
	k := max(short, min(fade, recentKeep/max(recentKeep, r.success+r.failure+r.timeout)))
	r.success = r.success*k + float64(v.Success)
	r.failure = r.failure*k + float64(v.Failure)
	r.timeout = r.timeout*k + float64(v.Timeout)
	k = max(short, min(fade, recentKeep/max(recentKeep, r.latencies)))
	sum := 0.0
	for b := range r.hist {
		h := float64(r.hist[b])*k + float64(v.Latency[b])
		if b == timeout {
			h += float64(v.Timeout)
		}
		r.hist[b] = float32(h)
		sum += h
	}
	r.latencies = sum
}

func (r *recent) p99() time.Duration {
	left := 0.99 * r.latencies
	for b, h := range r.hist {
		if left -= float64(h); left <= 0 {
			_, hi := window.Bounds(b)
			return hi
		}
	}
	return 0
}

// baseline is the P99 where there are enough latencies for one, else 0.
func (r *recent) baseline() time.Duration {
	if r.latencies < baselineMin/2 {
		return 0
	}
	return r.p99()
}

func (r *recent) signals(law *limit.Fleet) signals {
	var s signals
	total := r.success + r.failure + r.timeout
	s.samples = uint64(total)
	if f := r.failure + r.timeout; f > 0 && total > 0 {
		s.f = discount(f/total, s.samples)
		s.slow = r.timeout / f
	}
	_, base, _, _ := law.Law().Baseline()
	s.p99 = r.p99()
	s.l = discount(LatencyDeviation(float64(s.p99), float64(base)), uint64(r.latencies))
	s.q = law.Q()
	return s
}

// count takes a tick's counts into the next report. e.mu is held.
func (f *fleet) count(e *Engine) {
	for p, n := range e.offered[:e.cfg.Levels+1] {
		f.out.Offered[p] += n
	}
	f.out.Success += e.pending.Success
	f.out.Failure += e.pending.Failure
	f.out.Timeout += e.pending.Timeout
	f.out.Throttled += e.pending.Throttled
	f.out.Area += e.area
	f.out.ErrorArea += e.errorArea
}

func (f *fleet) countLatencies(l *latencies) {
	for b, n := range l.all {
		f.out.Latency[b] += uint64(n)
	}
}

// law is the estimators that decide: the fleet's, or the guard's own where it is alone. e.mu is held, as for all below.
func (e *Engine) law() *limit.Limiter {
	if f := e.inFleet(); f != nil {
		return f.law.Law()
	}
	return e.limiter
}

// queuePressure is Q with n attempts in flight here.
func (e *Engine) queuePressure(n int64) float64 {
	if f := e.inFleet(); f != nil {
		return f.law.Q()
	}
	return e.limiter.Q(n)
}

// shedFraction is the share of the offered calls to shed with n attempts in flight here.
func (e *Engine) shedFraction(n int64, critical bool) float64 {
	s := e.limiter.ShedFraction(e.limiter.Q(n), critical)
	if f := e.inFleet(); f != nil {
		// What the guard sees itself comes at once, where it sees enough; a queue of the user's own and what the target reports are in it.
		s = max(s, f.law.ShedFraction(critical))
	}
	return s
}

func (e *Engine) refuseProbability(prio int, n int64) float64 {
	return e.law().RefuseProbability(prio, e.shedFraction(n, e.critical(prio)))
}

// baseline is the mean sojourn time and the P99 of healthy operation.
func (e *Engine) baseline() (sojourn, p99 time.Duration) {
	sojourn, p99, _, _ = e.law().Baseline()
	return sojourn, p99
}

func (e *Engine) offeredRate() float64 { return e.law().OfferedRate() }
