package balance

import (
	"net/url"
	"time"
)

// State is whether a member gets load.
type State uint8

const (
	Healthy      State = iota
	OutEjected         // for its failures
	OutOfChecks        // for bad checks, whether or not it is ejected too
	RemovedState       // not a member any more
)

func (s State) String() string {
	return [...]string{"healthy", "ejected", "checked out", "removed"}[s]
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

	Success, Failed, TimedOut, Throttled, Neutral uint64 // attempts that have ended
	Ejections                                     uint64
}

// Attempts is how many have begun.
func (s Status) Attempts() uint64 {
	return s.Success + s.Failed + s.TimedOut + s.Throttled + s.Neutral + uint64(max(0, s.InFlight))
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
		Success: m.good.Load(), Failed: m.failed.Load(), TimedOut: m.timedOut.Load(), Throttled: m.throttled.Load(),
		Neutral: m.neutral.Load(), Ejections: m.total, Blamed: p.Blames(m)}
	if m.ejected {
		s.State, s.For = OutEjected, max(0, m.until-now)
	}
	if m.checkedOut {
		s.State = OutOfChecks
	}
	switch {
	case m.removed:
		s.State = RemovedState
	case m.out():
		s.FailOpen = p.set.Load().failOpen
	case m.slow:
		s.Share = share(now-m.slowFrom, p.cfg.SlowStart)
	default:
		s.Share = 1
	}
	return s
}
