package cluster

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// A member is an engine in its fleet. Only the goroutine of the exchanges touches it, but for what the cluster's lock guards.
type member struct {
	engine *cortex.Engine
	name   string
	keys   []string

	seq     uint64
	fields  []field
	calls   []*call
	asked   time.Duration // for a call, last
	busy    time.Duration // anything to report, last
	quiet   int           // intervals without, counted from a number of its own
	thin    bool          // nobody in the fleet was asked for anything in the last slot
	held    bool          // the right to probe may be this instance's in the store
	slot    uint64        // newest that was seen
	tried   int           // failures in a row
	retryAt time.Duration
	heard   time.Duration // last success
	ever    bool          // there was one
	err     error         // of the last exchange
	said    bool          // what the first mode is
	told    told
	guards  uint64 // as last heard

	acts sync.Mutex // held while the engine is told something
	left bool       // it is to be told nothing more

	busyBehind bool // an exchange of its own is being made behind

	// Guarded by the cluster's lock, written by its goroutine.
	mode    Mode
	since   time.Duration
	until   time.Duration // the engine may begin probes until then
	viewed  bool
	covered time.Duration // end of what the newest view covers, by our clock
	status  TargetStatus
}

// idle reports whether there is nothing to exchange now: nobody has been asked for anything for a while, and nothing is under way.
func (m *member) idle(r *cortex.FleetReport, now time.Duration) bool {
	if r.Asked > 0 || r.InFlight > 0 || r.Open > 0 || r.Area > 0 || m.held || r.Success+r.Failure+r.Timeout+r.Throttled > 0 ||
		slices.ContainsFunc(r.Offered[:], func(n uint64) bool { return n > 0 }) {
		m.busy = now
	}
	if now-m.busy < idleAfter {
		return false
	}
	m.quiet++
	return m.quiet%idleEvery != 0
}

// prepare makes the next request.
func (m *member) prepare(c *Cluster, r *cortex.FleetReport, now time.Duration) {
	calls := uint64(0)
	for _, n := range r.Offered {
		calls += n
	}
	if calls > 0 {
		m.asked = now
	}
	phase := time.Duration(0)
	if c.known {
		phase = (now + c.offset) % c.cfg.Interval
	}
	q := m.request(c, m.order(r, now))
	q.epoch = r.Epoch
	q.budget = m.engine.TakeBudget()
	m.calls = m.calls[:0]
	var exact *call
	if c.cfg.Mode == Exact {
		good, bad, dropped := takeMembers(c.instance, m.seq, r)
		exact = &call{script: exactScript, keys: exactKeys(m.keys), args: exactArgs(c.instance, m.seq, c.cfg.Interval, c.cfg.Window, good, bad)}
		c.locked(func() { m.status.Exchange.Dropped += dropped })
	}
	m.fields = fieldsOf(m.fields[:0], r, phase)
	q.fields = m.fields
	m.calls = append(m.calls, &call{script: syncScript, keys: m.keys, args: q.args()})
	if exact != nil {
		m.calls = append(m.calls, exact)
	}
	if q.order == orderWant || q.order == orderRenew {
		m.held = true // as soon as it is sent
	}
}

// request begins the next one.
func (m *member) request(c *Cluster, o order) request {
	m.seq++
	return request{instance: c.instance, seq: m.seq, interval: c.cfg.Interval, order: o, lease: leaseTerm * c.cfg.Interval}
}

// answer reads what came back.
func (m *member) answer() (a answer, err error) {
	for _, k := range m.calls {
		if err := k.cmd.Err(); err != nil {
			return a, err
		}
	}
	if a, err = parseAnswer(m.calls[0].cmd.Val()); err != nil || len(m.calls) == 1 {
		return a, err
	}
	w, err := parseExact(m.calls[1].cmd.Val(), a.last.Epoch)
	if err != nil {
		return a, err
	}
	a.junk += w.junk
	a.window = &w
	if w.slot != a.slot { // the interval ended between the two
		a.last = slot{}
		return a, nil
	}
	if a.last.Guards > 0 {
		a.last.Add(&w.outcomes)
	}
	return a, nil
}

// order is what is to become of the right to probe. It is given up only when the engine can begin no probe on it any more and none is under way,
// as the report says, which was made after that.
func (m *member) order(r *cortex.FleetReport, now time.Duration) order {
	asked := r.Open > 0 && (now == m.asked || m.thin && now-m.asked < askedLong)
	switch {
	case r.Probing > 0:
		return orderRenew
	case m.held && r.Open == 0: // closed: its engine has given it up
		return orderLeave
	case m.held && now < m.until:
		return orderNone
	case m.held && asked:
		return orderPass
	case m.held:
		return orderLeave
	case asked:
		return orderWant
	}
	return orderNone
}

// failed takes in that an exchange failed: whether it took place is not known.
func (m *member) failed(c *Cluster, err error, now time.Duration, draw float64) {
	m.tried++
	m.err = err
	var a *AnswerError
	c.locked(func() {
		m.status.Exchange.Failed++
		m.status.Error = err.Error()
		if errors.As(err, &a) {
			m.status.Exchange.Junk++
		}
	})
	wait := c.cfg.Interval << min(m.tried, 12)
	if m.tried == 1 { // one may be lost any time
		return
	}
	m.retryAt = now + time.Duration(draw*float64(min(wait, max(mostWait, c.cfg.Interval))))
}

// succeeded takes in an answer.
func (m *member) succeeded(c *Cluster, a *answer, sent, now time.Duration) {
	m.tried, m.err, m.retryAt = 0, nil, 0
	m.heard = now
	interval := c.cfg.Interval
	until := time.Duration(0)
	m.held = a.lease > 0
	if m.held { // counted from before the request was sent: the script ran later
		until = sent + max(0, a.lease-leaseSafe*interval)
	}
	v := cortex.FleetView{FleetReport: a.last.FleetReport, Span: interval, Exclusive: true, Prober: now < until, Lease: max(0, until-now)}
	if a.epoch > v.Epoch { // what is counted in the slot is of a circuit that has changed since
		v.Open, v.Probing, v.Success, v.Failure, v.Timeout, v.Throttled, v.Patient, v.Cut, v.ErrorArea = 0, 0, 0, 0, 0, 0, 0, 0, 0
		clear(v.Latency[:])
		v.Epoch = a.epoch
	}
	fresh := a.slot-1 != m.slot && a.last.Guards > 0
	if a.last.Guards > 0 {
		// Reports end when they are made, on average at this moment of their slot.
		end := time.Duration(a.slot-1)*interval + a.last.phase/time.Duration(a.last.Guards)
		v.Age = max(0, min(a.now-end, 4*interval)) + (now-sent)/2
		calls := uint64(0)
		for _, n := range v.Offered {
			calls += n
		}
		m.thin = calls == 0
		if !a.mine { // a guard that has just come, or was late, is there all the same
			v.Guards++
		}
	}
	c.locked(func() {
		m.until = until
		x := &m.status.Exchange
		x.OK++
		x.Junk += uint64(a.junk)
		x.Received += uint64(a.text)
		m.status.Error = ""
		m.status.Epoch, m.status.Owner = a.epoch, a.owner
		m.status.Pool = a.pool
		m.status.Lease += a.granted
		if a.window != nil {
			m.status.WindowOK, m.status.WindowFailed = a.window.ok, a.window.failed
		}
		if fresh {
			m.status.Seen, m.viewed, m.covered = v.Guards, true, now-v.Age
		}
	})
	m.acts.Lock()
	defer m.acts.Unlock()
	if m.left {
		return
	}
	if fresh {
		m.slot, m.guards = a.slot-1, v.Guards
		if m.told.slot == a.slot-1 && m.told.Epoch == v.Epoch {
			v.Told = m.told.FleetOutcomes
		}
		m.engine.ObserveFleet(v)
	}
	m.tell(a)
	m.engine.GrantBudget(cortex.BudgetGrant{Tokens: a.granted, Pool: a.pool, Guards: m.guards, Span: interval})
}

// join begins to count. Until it is known how many there are, the guard holds the smallest lease of the retry budget.
func (m *member) join(now, interval time.Duration, wake func()) {
	m.guards = manyGuards
	m.quiet = int(now/time.Microsecond) % idleEvery
	m.busy = now
	m.engine.TakeReport()
	m.engine.WatchFleet(wake)
	m.engine.GrantBudget(cortex.BudgetGrant{Guards: m.guards, Span: interval})
}

// tell tells the engine what has come to the slot under way since it was told last.
func (m *member) tell(a *answer) {
	o := a.sofar
	if o.Epoch != a.epoch { // of a circuit that has changed since
		o = cortex.FleetOutcomes{Epoch: a.epoch}
	}
	was := told{}
	if m.told.slot == a.slot && m.told.Epoch == o.Epoch {
		was = m.told
	}
	m.told = told{a.slot, o}
	o.Success -= min(o.Success, was.Success)
	o.Failure -= min(o.Failure, was.Failure)
	o.Patient -= min(o.Patient, was.Patient)
	m.engine.ObserveOutcomes(o)
}

// told is what the engine was told of a slot before it ended.
type told struct {
	slot uint64
	cortex.FleetOutcomes
}

const manyGuards = 1 << 20

func (m *member) leave() {
	m.acts.Lock()
	defer m.acts.Unlock()
	m.left = true
	m.engine.WatchFleet(nil)
	m.engine.LeaveFleet()
}
