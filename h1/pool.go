package h1

import (
	"sync"
	"time"
)

// pool keeps the idle connections. The last that came in is the first to go out, so that those too many grow old. No
// timer stands behind a connection: one serves the pool, as long as there are idle ones, and what it did not come to is found
// out when the connection is asked for.
type pool struct {
	most      int
	idle, age time.Duration // <= 0: without end

	mu    sync.Mutex
	hosts map[string][]*conn // those of a host in the order in which they became idle
	gen   uint64             // of closeIdle; connections of an earlier one are not kept
	timer *time.Timer
	armed time.Time // when the timer fires; zero: it is not set
}

// due is when the idle connection is to be closed; zero: never.
func (p *pool) due(c *conn) time.Time {
	var due time.Time
	if p.idle > 0 {
		due = c.idleSince.Add(p.idle)
	}
	if p.age > 0 {
		if end := c.born.Add(p.age); due.IsZero() || end.Before(due) {
			due = end
		}
	}
	return due
}

func (p *pool) expired(c *conn, now time.Time) bool {
	due := p.due(c)
	return !due.IsZero() && !now.Before(due)
}

// get takes an idle connection that looks alive, or returns nil.
func (p *pool) get(addr string) *conn {
	for {
		now := time.Now()
		p.mu.Lock()
		list := p.hosts[addr]
		if len(list) == 0 {
			p.mu.Unlock()
			return nil
		}
		last := len(list) - 1
		c := list[last]
		list[last] = nil
		p.hosts[addr] = list[:last]
		p.mu.Unlock()
		if !p.expired(c, now) && !c.stale() {
			c.idleFor, c.taken = now.Sub(c.idleSince), now
			return c
		}
		c.close()
	}
}

// put takes a connection on which nothing is left of the last exchange, or closes it.
func (p *pool) put(c *conn) {
	c.rest()
	now := time.Now()
	c.idleSince = now
	if w := c.watch; w != nil {
		w.took(c.taken, now)
		defer w.look(now)
	}
	p.mu.Lock()
	list := p.hosts[c.addr]
	if c.gen != p.gen || len(list) >= p.most || p.expired(c, now) {
		p.mu.Unlock()
		c.close()
		return
	}
	if p.hosts == nil {
		p.hosts = map[string][]*conn{}
	}
	p.hosts[c.addr] = append(list, c)
	p.arm(p.due(c), now)
	p.mu.Unlock()
}

// arm has the timer fire at due, unless it fires before; p.mu is held.
func (p *pool) arm(due, now time.Time) {
	if due.IsZero() || !p.armed.IsZero() && !due.Before(p.armed) {
		return
	}
	p.armed = due
	if p.timer == nil {
		p.timer = time.AfterFunc(due.Sub(now), p.sweep)
	} else {
		p.timer.Reset(due.Sub(now))
	}
}

// sweep closes what has been idle for too long.
func (p *pool) sweep() {
	now := time.Now()
	var old []*conn
	p.mu.Lock()
	p.armed = time.Time{}
	var next time.Time
	for addr, list := range p.hosts {
		kept := list[:0]
		for _, c := range list {
			if p.expired(c, now) {
				old = append(old, c)
				continue
			}
			kept = append(kept, c)
			if due := p.due(c); next.IsZero() || due.Before(next) {
				next = due
			}
		}
		clear(list[len(kept):])
		if len(kept) == 0 {
			delete(p.hosts, addr)
		} else {
			p.hosts[addr] = kept
		}
	}
	p.arm(next, now)
	p.mu.Unlock()
	for _, c := range old {
		c.close()
	}
}

func (p *pool) closeIdle() {
	p.mu.Lock()
	hosts := p.hosts
	p.hosts = nil
	p.gen++
	if p.timer != nil {
		p.timer.Stop()
	}
	p.armed = time.Time{}
	p.mu.Unlock()
	for _, list := range hosts {
		for _, c := range list {
			c.close()
		}
	}
}

func (p *pool) generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gen
}
