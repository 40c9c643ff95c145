// Package quota is a number of bytes that several holders share.
package quota

import (
	"fmt"
	"sync/atomic"
)

// A Quota bounds the bytes that all of its holders have at a time. A holder reserves before it allocates and releases what it
// has let go of. It is safe for concurrent use and lock-free; the zero Quota has a limit of 0. It must not be copied after
// first use.
type Quota struct {
	limit atomic.Int64
	used  atomic.Int64
}

// New returns a quota of limit bytes, none of them in use; a negative limit means 0.
func New(limit int64) *Quota {
	q := new(Quota)
	q.SetLimit(limit)
	return q
}

// Reserve takes n ≥ 0 bytes if all of them are free and reports whether it did. 0 bytes are always free. It panics if n is
// negative.
func (q *Quota) Reserve(n int64) bool {
	if n < 0 {
		panic(fmt.Sprintf("quota: Reserve(%d): a negative number of bytes", n))
	}
	for n > 0 {
		used := q.used.Load()
		if n > q.limit.Load()-used { // neither is negative: the difference fits
			return false
		}
		if q.used.CompareAndSwap(used, used+n) {
			break
		}
	}
	return true
}

// Release gives back n ≥ 0 bytes that were reserved. It panics if n is negative or more than is in use: the holders' count is
// wrong then, and a bound that is not kept must not look like one that is.
func (q *Quota) Release(n int64) {
	if n < 0 {
		panic(fmt.Sprintf("quota: Release(%d): a negative number of bytes", n))
	}
	for n > 0 {
		used := q.used.Load()
		if n > used {
			panic(fmt.Sprintf("quota: Release(%d): only %d bytes are in use", n, used))
		}
		if q.used.CompareAndSwap(used, used-n) {
			break
		}
	}
}

// Used returns the bytes in use. They are more than Limit where that was set to less than was in use already.
func (q *Quota) Used() int64 { return q.used.Load() }

// Limit returns the limit in bytes.
func (q *Quota) Limit() int64 { return q.limit.Load() }

// SetLimit changes the limit; a negative one means 0. What is in use stays so: where it is more than the new limit, nothing
// is reserved until enough was released.
func (q *Quota) SetLimit(limit int64) { q.limit.Store(max(limit, 0)) }
