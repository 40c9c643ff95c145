package cortexhttp

import (
	"container/heap"
	"sync"
	"time"
)

// cutter ends attempts whose time is up. A timer of its own for each, set and stopped with every call, would cost more than
// the rest of the guard: a timer that is the next one due wakes the thread that waits for the network. Here one timer serves
// all attempts of a transport, and is set again only when it fires, as long as there are any, or for one that is due before.
type cutter struct {
	mu  sync.Mutex
	due dueHeap
	// armed is when the timer fires; past or zero: there is none. Timers are left to fire, never stopped or reset.
	armed time.Time
	look  func() // has the base tell of answers that have come and were not read; nil: it cannot
}

// add has the attempt cut after d.
func (c *cutter) add(a *attempt, d time.Duration) {
	now := processTime()
	a.due = now.Add(d)
	c.mu.Lock()
	heap.Push(&c.due, a)
	if c.due[0] == a {
		c.arm(now)
	}
	c.mu.Unlock()
}

// remove takes the attempt back and reports whether it had not been cut.
func (c *cutter) remove(a *attempt) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.slot == 0 {
		return false
	}
	heap.Remove(&c.due, a.slot-1)
	return true
}

// arm sets a timer for the attempt that is due first, unless one fires by then; c.mu is held.
func (c *cutter) arm(now time.Time) {
	first := c.due[0].due
	if c.armed.After(now) && !c.armed.After(first) {
		return
	}
	c.armed = first
	time.AfterFunc(first.Sub(now), c.fire)
}

func (c *cutter) fire() {
	now := processTime()
	var late []*attempt
	c.mu.Lock()
	if c.look != nil && len(c.due) > 0 && !c.due[0].due.After(now) {
		c.mu.Unlock()
		c.look()
		c.mu.Lock()
	}
	for len(c.due) > 0 && !c.due[0].due.After(now) {
		if c.due[0].spare(now) {
			heap.Fix(&c.due, 0)
			continue
		}
		late = append(late, heap.Pop(&c.due).(*attempt))
	}
	if len(c.due) > 0 {
		c.arm(now)
	}
	c.mu.Unlock()
	for _, a := range late {
		a.expire()
	}
}

// dueHeap is a heap of attempts by when they are due; they know their slots in it, counted from 1.
type dueHeap []*attempt

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].slot, h[j].slot = i+1, j+1
}

func (h *dueHeap) Push(x any) {
	a := x.(*attempt)
	*h = append(*h, a)
	a.slot = len(*h)
}

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	a.slot = 0
	return a
}
