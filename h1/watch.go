package h1

import (
	"sync/atomic"
	"time"
)

const (
	// watchFrom is how long an answer takes that makes one look where the others are.
	watchFrom = time.Millisecond
	// watchGap is how often that is done, at most, and by how much what is told may be late.
	watchGap = 2 * time.Millisecond
	// watchFor is how long it goes on when answers are fast again.
	watchFor = 100 * time.Millisecond
)

// pace says when the watch is to look. It is made of clock readings that are there anyway.
type pace struct {
	until, due atomic.Int64 // since origin
}

var origin = time.Now()

func sinceOrigin(t time.Time) int64 { return int64(t.Sub(origin)) }

// took takes in an exchange from its connection to the end of its answer.
func (p *pace) took(from, to time.Time) {
	if to.Sub(from) < watchFrom {
		return
	}
	if until := sinceOrigin(to) + int64(watchFor); until-p.until.Load() > int64(watchGap) { // seldom written, for all processors read it
		p.until.Store(until)
	}
}

// now reports whether it is time to look.
func (p *pace) now(t time.Time) bool {
	now := sinceOrigin(t)
	due := p.due.Load()
	return now < p.until.Load() && now >= due && p.due.CompareAndSwap(due, now+int64(watchGap))
}

// arrive tells that the answer is there unread, or that what was there was not all of it.
func (x *exchange) arrive(here bool) {
	if x.arrived.Load() != here && x.arrived.CompareAndSwap(!here, here) {
		x.t.cfg.OnArrival(x.req.Context(), here)
	}
}

// found is arrive for an exchange whose connection had something to read, on another goroutine than its own.
func (x *exchange) found(c *conn) {
	x.arrive(true)
	x.mu.Lock()
	moved := x.c != c
	x.mu.Unlock()
	switch {
	case !x.arrived.Load(): // its own was faster to take it back than this one to tell it
		x.t.cfg.OnArrival(x.req.Context(), false)
	case moved: // that was the end of the connection, and it waits on another
		x.arrive(false)
	}
}
