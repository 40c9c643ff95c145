package balance

import (
	"net/netip"
	"slices"
	"time"
)

// Inherit has the pool go on where another one with the same clock stands: an endpoint of the same URL keeps its addresses, ejections, slow
// start, results of checks, counters, and what is in flight. An endpoint that the other does not have begins slowly beside those that it
// has. Where Config allows of something no more (ejection, checks, lookups), what it has done ends. It is for a pool that is not used yet,
// before Start. The other one is left as it is, and its attempts may go on: they count in both.
func (p *Pool) Inherit(from *Pool) {
	now := p.cfg.Now()
	groups, leaving, buried, round, fresh := from.estate()
	p.mu.Lock()
	defer p.unlock()
	p.round, p.fresh = round, fresh
	heirs := make([]int, len(groups)) // of the other's endpoints, from 1; 0 = none
	for i, e := range p.cfg.Endpoints {
		j := slices.IndexFunc(from.cfg.Endpoints, func(o Endpoint) bool { return o.URL.String() == e.URL.String() })
		if j < 0 {
			continue
		}
		heirs[j] = i + 1
		p.buried[i] = buried[j]
		old := groups[j]
		if old[0].addr.IsValid() && p.cfg.Resolve == 0 {
			for k := range old {
				leaving = append(leaving, &old[k])
			}
			continue // of which address its name is now, nobody knows
		}
		p.groups[i] = nil
		for k := range old {
			m := newMember(p, i, e.URL, old[k].addr, float64(e.Weight)/float64(len(old)))
			m.inherit(&old[k], from, now)
			p.groups[i] = append(p.groups[i], m)
		}
	}
	if slices.Max(heirs) > 0 {
		for i, group := range p.groups {
			if !slices.Contains(heirs, i+1) {
				group[0].comeBack(now)
			}
		}
	}
	for _, m := range leaving { // their attempts end as those of members do that were removed here
		if i := heirs[m.endpoint]; i > 0 {
			gone := newMember(p, i-1, p.cfg.Endpoints[i-1].URL, netip.Addr{}, 0)
			gone.load, gone.total, gone.removed, gone.removedAt = m.load, m.total, true, now
			p.leaving = append(p.leaving, gone)
		}
	}
	p.regroup()
	p.rebuild(now)
}

// estate is what there is to inherit, in copies.
func (p *Pool) estate() (groups [][]Member, leaving []*Member, buried []Counters, round time.Duration, fresh bool) {
	p.mu.Lock()
	defer p.unlock()
	for _, group := range p.groups {
		members := make([]Member, len(group))
		for i, m := range group {
			members[i] = *m
		}
		groups = append(groups, members)
	}
	for _, m := range p.leaving {
		gone := *m
		leaving = append(leaving, &gone)
	}
	return groups, leaving, slices.Clone(p.buried), p.round, p.fresh
}

// inherit makes a member what one of another pool is. p.mu is held.
func (m *Member) inherit(o *Member, from *Pool, now time.Duration) {
	c := &m.p.cfg
	m.load = o.load
	m.slow, m.slowFrom = o.slow, o.slowFrom
	m.lasted, m.ejections, m.total, m.returned, m.back = o.lasted, o.ejections, o.total, o.returned, o.back
	m.now, m.then = o.now, o.then
	switch {
	case !o.ejected:
	case c.Eject.Enabled:
		m.ejected, m.until = true, min(o.until, now+c.Eject.MaxTime)
	default:
		m.streak.Store(0)
		m.comeBack(now)
	}
	if !o.checkedOut && o.checks == 0 {
		return
	}
	if was := from.cfg.Check; c.Check != nil && was != nil && c.Check.Of == was.Of {
		m.checkedOut, m.checks = o.checkedOut, o.checks
	} else if o.checkedOut {
		m.streak.Store(0)
		m.comeBack(now)
	}
}
