package balance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	lookupTimeout = 10 * time.Second
	firstRetry    = time.Second // after a failed lookup; twice as long after each further one, up to Resolve
)

// ErrNoAddress is the error of a lookup that found none.
var ErrNoAddress = errors.New("balance: the answer has no address")

// resolve looks an endpoint's host up until the context ends.
func (p *Pool) resolve(ctx context.Context, endpoint int) {
	for wait, retry := time.Duration(0), firstRetry; sleep(ctx, wait); {
		addrs, err := p.lookup(ctx, endpoint)
		if ctx.Err() != nil {
			return
		}
		if wait = p.jitter(p.cfg.Resolve); err != nil {
			wait = min(wait, p.jitter(retry))
			retry = min(2*retry, p.cfg.Resolve)
		} else {
			retry = firstRetry
		}
		p.resolved(endpoint, addrs, err)
	}
}

func (p *Pool) lookup(ctx context.Context, endpoint int) (addrs []netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("balance: Lookup panicked: %v", v)
		}
	}()
	found, err := p.cfg.Lookup(ctx, p.cfg.Endpoints[endpoint].URL.Hostname())
	if err != nil {
		return nil, err
	}
	if addrs = usable(found); len(addrs) == 0 {
		return nil, ErrNoAddress
	}
	return addrs, nil
}

// usable is what gets load of an answer: the addresses of the first one's family, each once, in order, not too many.
func usable(found []netip.Addr) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range found {
		a = a.Unmap()
		if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || len(addrs) > 0 && a.Is4() != addrs[0].Is4() {
			continue
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	return addrs[:min(len(addrs), MaxAddresses)]
}

// resolved makes an endpoint's members those of the addresses. Without any it leaves them.
func (p *Pool) resolved(endpoint int, addrs []netip.Addr, err error) {
	now := p.cfg.Now()
	p.mu.Lock()
	defer p.unlock()
	e := p.cfg.Endpoints[endpoint]
	if err != nil {
		p.tell(Event{Kind: LookupFailed, Endpoint: e.URL, Err: err})
		return
	}
	old := p.groups[endpoint]
	if slices.EqualFunc(old, addrs, func(m *Member, a netip.Addr) bool { return m.addr == a }) {
		return
	}
	first := !old[0].addr.IsValid()
	weight := float64(e.Weight) / float64(len(addrs))
	group := make([]*Member, 0, len(addrs))
	for _, a := range addrs {
		i := slices.IndexFunc(old, func(m *Member) bool { return m.addr == a })
		if i >= 0 {
			old[i].weight = weight
			group = append(group, old[i])
			continue
		}
		m := newMember(p, endpoint, e.URL, a, weight)
		if !first {
			m.comeBack(now)
		} else { // it may be new itself
			m.slow, m.slowFrom = old[0].slow, old[0].slowFrom
		}
		group = append(group, m)
		p.tell(Event{Kind: Added, Member: m})
	}
	for _, m := range old {
		if !slices.Contains(group, m) {
			m.removed, m.removedAt = true, now
			p.leaving = append(p.leaving, m)
			if m.stopCheck != nil {
				m.stopCheck()
			}
			p.tell(Event{Kind: Removed, Member: m})
		}
	}
	p.bury(now)
	p.groups[endpoint] = group
	p.regroup()
	p.rebuild(now)
	p.watch()
}

// regroup makes the list of members anew.
func (p *Pool) regroup() {
	p.members = slices.Concat(p.groups...)
}
