package sim

import (
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// A bin is a tenth of a second. A call belongs to the bin it arrived in, an attempt to the one it reached the target in. A bin is
// closed when all its calls have ended, a deadline later: what looks at bins looks at closed ones only, so that a ring of them serves a
// run of any length.
const (
	bin           = 100 * time.Millisecond
	binsPerSecond = 10
	steadyBins    = 3 * binsPerSecond // of ≥ 95 % success make a recovery
	healthyAfter  = 5 * time.Second   // a downstream is healthy again so long after an incident
)

type binCount struct {
	offered, good, attempts uint32
}

// secondCount is what became of the calls that arrived in a second, by class.
type secondCount struct {
	refused, served [maxClasses]uint32
}

const maxClasses = 32

type callMeter struct {
	class   int
	healthy bool
}

// meter measures a run while it goes on.
type meter struct {
	s         *scenario.Scenario
	incidents []scenario.Interval
	at        int // incidents[at] is the first that is not over

	bins    []binCount // ring
	first   int        // oldest open bin
	seconds []secondCount
	total   []classCount
	latency histogram

	attempts, attemptsInFault, offeredInFault int
	healthyOffered, falseRejections           int
	beforeHint                                int
	inversions                                int
	rejections                                [64]int

	last         time.Duration // the last incident's end, 0 = none
	window       [steadyBins]binCount
	windowSum    binCount
	recovered    time.Duration // -1 = not (yet)
	offeredAfter int           // the last incident
	outage       scenario.Interval
	detectBins   int
	detectWindow []uint32
	detectSum    uint32
	detected     time.Duration
	rate10       [binsPerSecond]uint32
	rateSum      uint32
	peak         float64 // attempts a second after the last incident ÷ capacity
	sinceSecond  uint32
	seconds1     float64 // within incidents: number, sum and squares of the attempts a second
	sum1, sq1    float64

	sample     time.Duration
	nextSample time.Duration
	since      Sample
	cohorts    []ClassSample // by sample of arrival, then priority
}

type classCount struct{ offered, good int }

// A Sample is what happened since the sample before; see Options.Observe.
type Sample struct {
	Offered  int
	Attempts int
	ByClass  []ClassSample
}

// ClassSample is what happened to the calls of one priority: Offered arrived, Good were answered.
type ClassSample struct{ Offered, Good int }

func (m *meter) init(s *scenario.Scenario, samples int) {
	m.s = s
	m.incidents = s.Incidents()
	if n := len(m.incidents); n > 0 {
		m.last = m.incidents[n-1].To
	}
	m.bins = make([]binCount, int(s.Deadline/bin)+8)
	m.seconds = make([]secondCount, int(s.Deadline/time.Second)+4)
	m.total = make([]classCount, len(s.Priorities))
	m.recovered, m.detected = -1, -1
	m.outage = s.Outage()
	rate := s.Rate(m.outage.From)
	m.detectBins = binsPerSecond
	if rate > 0 {
		m.detectBins = min(600, max(binsPerSecond, int(math.Ceil(20/rate*binsPerSecond))))
	}
	m.detectWindow = make([]uint32, m.detectBins)
	if samples > 0 {
		m.sample = max(1, s.Duration/time.Duration(samples))
		m.nextSample = m.sample
		m.cohorts = make([]ClassSample, int(s.Duration/m.sample)*len(s.Priorities))
	} else {
		m.nextSample = math.MaxInt64
	}
	m.since.ByClass = make([]ClassSample, len(s.Priorities))
}

// Sample is what happened since the last one; it is only valid in Options.Observe.
func (w *World) Sample() Sample { return w.meter.since }

// Cohorts are, after the run, the calls that arrived between one sample and the next and what became of them in the end, by
// priority: what Sample counts as answered may have arrived before.
func (w *World) Cohorts() [][]ClassSample {
	m, n := &w.meter, len(w.meter.total)
	var all [][]ClassSample
	for i := 0; i < len(m.cohorts); i += n {
		all = append(all, m.cohorts[i:i+n])
	}
	return all
}

// cohort is where a call that arrived at start is counted; nil where nothing is sampled.
func (m *meter) cohort(start time.Duration, class int) *ClassSample {
	n := len(m.total)
	if len(m.cohorts) == 0 {
		return nil
	}
	return &m.cohorts[min(int(start/m.sample), len(m.cohorts)/n-1)*n+class]
}

func (m *meter) sampleDue(t time.Duration) bool { return t >= m.nextSample }

func (m *meter) sampled() {
	if m.nextSample += m.sample; m.nextSample > m.s.Duration {
		m.nextSample = math.MaxInt64
	}
	m.since.Offered, m.since.Attempts = 0, 0
	clear(m.since.ByClass)
}

// inIncident tells whether something is wrong at now, and whether the downstream is healthy: not, and not lately.
func (m *meter) inIncident(now time.Duration) (wrong, healthy bool) {
	for m.at < len(m.incidents) && now >= m.incidents[m.at].To+healthyAfter {
		m.at++
	}
	healthy = true
	for i := m.at; i < len(m.incidents) && now >= m.incidents[i].From; i++ {
		healthy = false
		if now < m.incidents[i].To {
			wrong = true
		}
	}
	return wrong, healthy
}

func (m *meter) binAt(t time.Duration) *binCount {
	m.close(t)
	return &m.bins[int(t/bin)%len(m.bins)]
}

// close closes the bins whose calls have all ended by now.
func (m *meter) close(now time.Duration) {
	for open := int((now - m.s.Deadline) / bin); m.first < open; m.first++ {
		i := m.first % len(m.bins)
		m.closed(m.first, m.bins[i])
		m.bins[i] = binCount{}
		if (m.first+1)%binsPerSecond == 0 {
			s := &m.seconds[m.first/binsPerSecond%len(m.seconds)]
			m.closedSecond(s)
			*s = secondCount{}
		}
	}
}

// closed looks at the bins in their order.
func (m *meter) closed(n int, b binCount) {
	from := time.Duration(n) * bin
	to := from + bin
	if from >= m.s.Duration {
		return
	}
	old := &m.window[n%steadyBins]
	m.windowSum.offered += b.offered - old.offered
	m.windowSum.good += b.good - old.good
	*old = b
	if m.last > 0 && from >= m.last {
		m.offeredAfter += int(b.offered)
	}
	if start := to - steadyBins*bin; m.recovered < 0 && m.last > 0 && start >= m.last && m.windowSum.offered > 0 &&
		float64(m.windowSum.good) >= 0.95*float64(m.windowSum.offered) { // no call is no proof
		m.recovered = start - m.last
	}
	if m.outage.To > 0 && m.detected < 0 && from >= m.outage.From && to <= m.outage.To {
		k := int((from-m.outage.From)/bin) % m.detectBins
		m.detectSum += b.attempts - m.detectWindow[k]
		m.detectWindow[k] = b.attempts
		length := time.Duration(m.detectBins) * bin
		if start := to - length; start >= m.outage.From && float64(m.detectSum) < 0.1*m.s.Rate(start)*length.Seconds() {
			m.detected = start - m.outage.From
		}
	}
	r := &m.rate10[n%binsPerSecond]
	m.rateSum += b.attempts - *r
	*r = b.attempts
	if start := to - time.Second; m.last > 0 && start >= m.last {
		if mu := m.s.Capacity(start); mu > 0 {
			m.peak = max(m.peak, float64(m.rateSum)/mu)
		}
	}
	m.sinceSecond += b.attempts
	if (n+1)%binsPerSecond == 0 {
		for _, i := range m.incidents {
			if to-time.Second >= i.From+2*time.Second && to <= i.To { // after its first moment
				v := float64(m.sinceSecond)
				m.seconds1++
				m.sum1 += v
				m.sq1 += v * v
			}
		}
		m.sinceSecond = 0
	}
}

// closedSecond counts the calls that were served in a second in which a higher priority was refused.
func (m *meter) closedSecond(s *secondCount) {
	refused := false
	for i := range m.total { // from the highest priority
		if refused {
			m.inversions += int(s.served[i])
		}
		refused = refused || s.refused[i] > 0
	}
}

func (m *meter) offered(c *Call, now time.Duration) {
	wrong, healthy := m.inIncident(now)
	c.meter.healthy = healthy
	m.binAt(now).offered++
	m.total[c.meter.class].offered++
	m.since.Offered++
	m.since.ByClass[c.meter.class].Offered++
	if k := m.cohort(c.Start, int(c.meter.class)); k != nil {
		k.Offered++
	}
	if wrong {
		m.offeredInFault++
	}
	if healthy {
		m.healthyOffered++
	}
}

func (m *meter) attempt(now time.Duration) {
	m.attempts++
	m.since.Attempts++
	m.binAt(now).attempts++
	if wrong, _ := m.inIncident(now); wrong {
		m.attemptsInFault++
	}
}

// refused counts an attempt that the guard did not let go.
func (m *meter) refused(c *Call, attempt int, r cortex.Reason) {
	m.retryRefused(r)
	if attempt > 0 || c.tier > 0 {
		return
	}
	m.seconds[int(c.Start/time.Second)%len(m.seconds)].refused[c.meter.class]++
	if c.meter.healthy {
		m.falseRejections++
	}
}

func (m *meter) retryRefused(r cortex.Reason) { m.rejections[int(r)&(len(m.rejections)-1)]++ }

func (m *meter) finished(c *Call, ok bool, now time.Duration) {
	if !ok {
		return
	}
	m.total[c.meter.class].good++
	m.since.ByClass[c.meter.class].Good++
	if k := m.cohort(c.Start, int(c.meter.class)); k != nil {
		k.Good++
	}
	m.latency.add(now - c.Start)
	m.bins[int(c.Start/bin)%len(m.bins)].good++
	m.seconds[int(c.Start/time.Second)%len(m.seconds)].served[c.meter.class]++
}

// histogram of latencies from a microsecond up, in steps of at most 1/128: a step is an exponent and the first bits after it.
type histogram struct {
	n    int
	bins [44 << stepBits]uint32
}

const (
	stepBits = 7
	oneStep  = 1023 << stepBits // of 1.0
)

func (h *histogram) add(d time.Duration) {
	h.n++
	i := 0
	if us := float64(d) / 1e3; us > 1 {
		i = min(len(h.bins)-1, int(math.Float64bits(us)>>(52-stepBits))-oneStep)
	}
	h.bins[i]++
}

// quantile is the upper end of the step in which the q-th value lies.
func (h *histogram) quantile(q float64) time.Duration {
	left := int(math.Ceil(q * float64(h.n)))
	for i, n := range h.bins {
		if left -= int(n); left <= 0 && h.n > 0 {
			return time.Duration(math.Float64frombits(uint64(i+1+oneStep)<<(52-stepBits)) * 1e3)
		}
	}
	return 0
}
