package sim

import "time"

// An event is due at a moment; events of the same moment come in the order they were made in.
type event struct {
	at   time.Duration
	seq  uint64
	kind eventKind
	gen  uint32 // of what it is about, when it was made: an older one is void
	what *Attempt
	call *Call
}

type eventKind uint8

const (
	evTimeout eventKind = iota // an attempt's time is over
	evServed                   // a worker has done an attempt's work
	evAnswer                   // an answer that took no worker
	evRefused                  // the door's
	evRetry                    // a call's next attempt
	evCall                     // a caller of a closed loop makes its next call
	evFault                    // faults begin or end
	evSync                     // guards exchange what they know
)

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// A heap4 is a heap with four children a node: flatter than a binary one, and the children share cache lines.
type heap4 []event

func (h *heap4) push(e event) {
	q := append(*h, e)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&q[up]) {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = e
	*h = q
}

func (h *heap4) pop() event {
	q := *h
	top := q[0]
	n := len(q) - 1
	last := q[n]
	q[n] = event{}
	q = q[:n]
	*h = q
	if n == 0 {
		return top
	}
	i := 0
	for {
		first := 4*i + 1
		if first >= n {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, n); c++ {
			if q[c].before(&q[least]) {
				least = c
			}
		}
		if !q[least].before(&last) {
			break
		}
		q[i] = q[least]
		i = least
	}
	q[i] = last
	return top
}

// A ring holds events that come in the order they are due, such as timeouts that are all as long: O(1) where a heap is not.
type ring struct {
	buf        []event
	head, size int
}

func (r *ring) front() *event {
	if r.size == 0 {
		return nil
	}
	return &r.buf[r.head]
}

// push reports whether e fits: it must not be due before the last one.
func (r *ring) push(e event) bool {
	if r.size > 0 && e.at < r.buf[(r.head+r.size-1)&(len(r.buf)-1)].at {
		return false
	}
	if r.size == len(r.buf) {
		grown := make([]event, max(64, 2*len(r.buf)))
		for i := range r.size {
			grown[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.size)&(len(r.buf)-1)] = e
	r.size++
	return true
}

func (r *ring) pop() event {
	e := r.buf[r.head]
	r.buf[r.head] = event{}
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.size--
	return e
}
