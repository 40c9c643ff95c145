package cortex

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/window"
)

const spanAll = window.Span60s

func bucketOf(d time.Duration) int { return window.Bucket(d) }

// Pressure is a snapshot of an engine.
type Pressure struct {
	CPS      float64
	Evidence float64 // the score without C, rescaled; what the adaptive circuit trips on
	Signals  Signals
	State    State
	Floor    Priority // calls of a priority below it are shed
	Shed     float64  // share of the offered calls that is shed, lowest priority first

	Circuit    breaker.State
	Forcing    breaker.Forcing // an operator's order to the circuit
	NextProbe  time.Duration   // until a probe may be admitted; 0 when closed, and when forced open, where none will be
	Generation uint32

	InFlight int
	Limit    float64 // attempts in flight at which Q is 1
	Capacity float64 // estimated, successes a second; 0 = not known (article: never)
	Tokens   float64 // retry budget
	Price    float64 // of a retry now

	Timeout          time.Duration // attempt timeout in force; 0 = disabled
	P99              time.Duration // of the window in use
	BaselineP99      time.Duration // what L compares with (article: the learned P50)
	BaselineSojourn  time.Duration
	BaselineInFlight float64
	Warm             bool // false while the cold start lasts
	Samples          uint64
	Window           time.Duration // the window F and L are taken from
}

// Pressure brings the engine to now and returns a snapshot. It costs no allocation and admits nothing; without traffic the
// score decays as time passes.
func (e *Engine) Pressure() Pressure {
	now := e.now()
	e.gauge.poll(e, now)
	e.mu.Lock()
	e.advance(now)
	p := e.pressure(now)
	e.unlock()
	return p
}

func (e *Engine) pressure(now time.Duration) Pressure {
	st := e.circuit(now)
	n := e.countInFlight()
	sig := e.signalsAt(st)
	p := Pressure{Circuit: st, Forcing: e.forcing(), NextProbe: e.breaker.NextProbe(now), Generation: e.gen, InFlight: int(n), Tokens: e.bucket.Tokens(),
		P99: e.sig.p99, Samples: e.sig.samples, Window: e.sig.span.Duration(), Price: 1}
	if !e.cfg.DisableTimeout {
		p.Timeout = time.Duration(e.timeoutNow.Load())
	}
	if e.cfg.Profile == Article {
		sig.Q = unit(max(float64(n)/float64(e.cfg.Concurrency), e.gauge.value()))
		p.Limit = float64(e.cfg.Concurrency)
		p.BaselineP99 = e.article.base()
		p.Warm = true
		p.Floor = Priority(floorOf(e.cfg.Weights.cps(sig), e.cfg.Levels))
	} else {
		law, q := e.law(), e.queuePressure(n)
		sig.Q = unit(max(q, e.gauge.value()))
		p.Limit, p.Capacity = law.Limit(), law.Capacity()
		p.BaselineSojourn, p.BaselineP99, p.BaselineInFlight, p.Warm = law.Baseline()
		p.Shed = e.shedFraction(n, false)
		p.Floor = Priority(law.Floor(p.Shed))
		p.Price = e.price(q)
	}
	cps := e.cfg.Weights.cps(sig)
	p.Signals, p.CPS, p.State = sig, float64(cps)/one, stateOf(cps)
	p.Evidence = e.cfg.Weights.Evidence(sig)
	return p
}

// Stats counts what an engine did since it was made.
type Stats struct {
	Calls       uint64 // first attempts asked for, refused ones included
	Attempts    uint64 // admitted
	Retries     uint64 // decided
	Successes   uint64
	Failures    uint64 // fast ones
	Timeouts    uint64
	Throttled   uint64
	Neutral     uint64
	Stale       uint64 // results of an older generation, in no other count
	Lost        uint64 // attempts whose permit outlived its life
	Transitions uint64 // of the circuit, without the probes of one outage
	Orders      uint64 // of an operator to the circuit, as obeyed by Engine.Force
	BadInput    uint64 // gauge readings and reports that were not numbers
	Dropped     uint64 // events that a blocked listener missed
	rejected    [reasons]uint64
}

// Rejected is how often a call or a retry was refused for that reason.
func (s Stats) Rejected(r Reason) uint64 {
	if r >= reasons {
		return 0
	}
	return s.rejected[r]
}

// Stats returns the counts as of now.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	s := e.stats
	for i := range e.stripes { // what is not collected yet
		st := &e.stripes[i]
		st.mu.Lock()
		s.Attempts += st.attempts
		s.Successes += st.success
		s.Stale += st.stale
		for _, n := range st.offered[:e.cfg.Levels+1] {
			s.Calls += n
		}
		for p := range st.refused[:e.cfg.Levels+1] {
			n := uint64(st.refused[p].Load())
			s.Calls += n
			s.rejected[ReasonCircuitOpen] += n
		}
		st.mu.Unlock()
	}
	for r := range s.rejected {
		s.rejected[r] += e.refusedBy[r].Load()
	}
	s.BadInput += e.gauge.bad.Load() + e.remote.bad.Load()
	s.Dropped = e.event.dropped
	e.unlock()
	return s
}

// gauge holds the last reading of the user's queue.
type gauge struct {
	fill atomic.Uint64 // float bits; noGauge = none
	next atomic.Int64  // when the next reading is due
	bad  atomic.Uint64
}

const (
	gaugeGap = 10 * time.Millisecond
	noGauge  = math.MaxUint64
)

// poll reads the user's gauge if it is due; outside every lock, one caller at a time.
func (g *gauge) poll(e *Engine, now time.Duration) {
	if e.cfg.Queue == nil {
		return
	}
	next := g.next.Load()
	if int64(now) < next || !g.next.CompareAndSwap(next, int64(now+gaugeGap)) {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			g.fill.Store(noGauge)
			g.bad.Add(1)
			e.log.Error("cortex: queue gauge panicked", "target", e.cfg.Name, "panic", r)
		}
	}()
	current, capacity := e.cfg.Queue()
	fill := current / capacity
	if math.IsNaN(fill) || math.IsInf(fill, 0) || fill < 0 || capacity < 0 {
		// Nothing is known: no pressure, and the next good reading counts again.
		g.bad.Add(1)
		g.fill.Store(noGauge)
		return
	}
	g.fill.Store(math.Float64bits(min(1, fill)))
}

func (g *gauge) value() float64 {
	b := g.fill.Load()
	if b == noGauge {
		return -1
	}
	return math.Float64frombits(b)
}

// remoteView is what the target's own guard last said of itself.
type remoteView struct {
	share atomic.Uint64 // float bits of its shed fraction
	at    atomic.Int64
	sheds atomic.Int64 // it has said so lately: until then
	bad   atomic.Uint64
}

// remoteFade is the time constant with which a report loses its weight: without answers there are no reports, and holding
// everything back on an old one would never end.
const remoteFade = time.Second

// ObserveRemote takes in the shed fraction that the target's own guard reports, in [0,1]. Lower priorities are held back
// before sending, by at most Config.RemoteTrust of it; it fades within seconds when no more reports come.
func (e *Engine) ObserveRemote(shed float64) {
	if math.IsNaN(shed) || shed < 0 || shed > 1 {
		e.remote.bad.Add(1)
		return
	}
	now := e.now()
	e.remote.share.Store(math.Float64bits(shed))
	e.remote.at.Store(int64(now))
	if shed > 0 {
		e.remote.sheds.Store(int64(now + remoteFade))
	}
}

// refuses reports whether a throttled answer is put down to the target's own guard, which has said lately that it sheds. One that sheds
// nothing does not answer for the quotas of what is behind it.
func (r *remoteView) refuses(now time.Duration, trust float64) bool {
	return trust > 0 && int64(now) < r.sheds.Load()
}

func (r *remoteView) shed(now time.Duration, trust float64) float64 {
	s := math.Float64frombits(r.share.Load())
	if s == 0 || trust == 0 {
		return 0
	}
	age := max(0, now-time.Duration(r.at.Load()))
	s *= trust * math.Exp(-age.Seconds()/remoteFade.Seconds())
	if s < 0.001 {
		return 0
	}
	return s
}
