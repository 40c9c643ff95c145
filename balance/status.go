package balance

import (
	"fmt"
	"net/url"
	"slices"
	"time"
)

// State is whether a member gets load.
type State uint8

const (
	StateHealthy    State = iota
	StateEjected          // for its failures
	StateCheckedOut       // for bad checks, whether or not it is ejected too
	StateRemoved          // not a member any more
)

func (s State) String() string {
	names := [...]string{"healthy", "ejected", "checked out", "removed"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// A Status is what is known of a member. The numbers are since it became one.
type Status struct {
	Endpoint *url.URL // as configured
	URL      *url.URL // where it is
	Weight   float64
	State    State
	For      time.Duration // how long an ejection lasts still, else 0
	Share    float64       // of its weight that it has in its slow start, up to 1; 0 if it is out
	FailOpen bool          // it gets load although it is out, since all are
	Blamed   bool          // see [Pool.Blames]
	InFlight int64
	Row      int64 // failures in a row

	Counters
}

// Counters are what has happened so far.
type Counters struct {
	Success, Failed, TimedOut, Throttled, Neutral uint64 // attempts that have ended
	Ejections                                     uint64
}

// Ended is how many attempts have.
func (c Counters) Ended() uint64 { return c.Success + c.Failed + c.TimedOut + c.Throttled + c.Neutral }

func (c *Counters) add(d Counters) {
	c.Success += d.Success
	c.Failed += d.Failed
	c.TimedOut += d.TimedOut
	c.Throttled += d.Throttled
	c.Neutral += d.Neutral
	c.Ejections += d.Ejections
}

func (m *Member) counters() Counters {
	return Counters{Success: m.good.Load(), Failed: m.failed.Load(), TimedOut: m.timedOut.Load(), Throttled: m.throttled.Load(),
		Neutral: m.neutral.Load(), Ejections: m.total}
}

// A Total is what is known of an endpoint: the sum over its members, also over those that lookups do not find any more. Its
// Counters never go down.
type Total struct {
	Endpoint *url.URL
	Members  int
	Out      int // of those, how many are ejected or checked out
	InFlight int64
	Counters
}

// Totals is the total of each endpoint, in the order of the configuration.
func (p *Pool) Totals() []Total {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.unlock()
	if now >= p.set.Load().wake {
		p.rebuild(now)
	}
	p.bury(now)
	list := make([]Total, len(p.groups))
	for i, group := range p.groups {
		t := Total{Endpoint: p.cfg.Endpoints[i].URL, Members: len(group), Counters: p.buried[i]}
		for _, m := range group {
			if m.out() {
				t.Out++
			}
			t.InFlight += m.inFlight.Load()
			t.add(m.counters())
		}
		list[i] = t
	}
	for _, m := range p.leaving {
		list[m.endpoint].InFlight += m.inFlight.Load()
		list[m.endpoint].add(m.counters())
	}
	return list
}

// grace is for those who have picked a member, but not begun yet.
const grace = time.Minute

// bury adds members that are removed, and at rest, to what is kept of them.
func (p *Pool) bury(now time.Duration) {
	p.leaving = slices.DeleteFunc(p.leaving, func(m *Member) bool {
		if m.inFlight.Load() != 0 || now-m.removedAt < grace {
			return false
		}
		p.buried[m.endpoint].add(m.counters())
		return true
	})
}

// Snapshot is the status of every member, by endpoint as configured, then by address.
func (p *Pool) Snapshot() []Status {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.unlock()
	if now >= p.set.Load().wake {
		p.rebuild(now)
	}
	list := make([]Status, 0, len(p.members))
	for _, m := range p.members {
		list = append(list, p.status(m, now))
	}
	return list
}

// Status is the member's own.
func (m *Member) Status() Status {
	now := m.p.cfg.Now()
	m.p.mu.Lock()
	defer m.p.unlock()
	return m.p.status(m, now)
}

func (p *Pool) status(m *Member, now time.Duration) Status {
	s := Status{Endpoint: m.Endpoint(), URL: m.url, Weight: m.weight, InFlight: m.inFlight.Load(), Row: m.streak.Load(),
		Blamed: p.Blames(m), Counters: m.counters()}
	if m.ejected {
		s.State, s.For = StateEjected, max(0, m.until-now)
	}
	if m.checkedOut {
		s.State = StateCheckedOut
	}
	switch {
	case m.removed:
		s.State = StateRemoved
	case m.out():
		s.FailOpen = p.set.Load().failOpen
	case m.slow:
		s.Share = share(now-m.slowFrom, p.cfg.SlowStart)
	default:
		s.Share = 1
	}
	return s
}
