package decision

import (
	"container/heap"
	"crypto/rand"
	"encoding/base64"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// An attempt is one that was admitted and has not been reported yet.
type attempt struct {
	id      tokenID
	target  string // not the engine: the target may have another one by the time of the report
	permit  cortex.Permit
	expires time.Duration
	at      int // in the heap
}

// tokenID cannot be guessed: whoever could would release the attempts of others.
type tokenID [16]byte

var tokenText = base64.RawURLEncoding

func (t tokenID) String() string { return tokenText.EncodeToString(t[:]) }

func parseToken(s string) (t tokenID, ok bool) {
	if tokenText.DecodedLen(len(s)) != len(t) || tokenText.EncodedLen(len(t)) != len(s) {
		return t, false
	}
	n, err := tokenText.Decode(t[:], []byte(s))
	return t, err == nil && n == len(t)
}

// tokens are the attempts that are open, a bounded number of them. One that is not reported during the life of its target's permits
// is released without an outcome: with whichever request comes next, for no goroutine waits for that.
type tokens struct {
	max int

	mu      sync.Mutex
	byID    map[tokenID]*attempt
	byTime  byExpiry
	expired uint64 // not reported in time
	full    uint64 // admitted without a token
}

// expiredAtOnce bounds what one request does for those that were forgotten.
const expiredAtOnce = 256

// add gives an attempt a token, or reports that there is no room for another.
func (t *tokens) add(a *attempt, now, life time.Duration) bool {
	rand.Read(a.id[:]) // it does not fail
	a.expires = now + life
	t.expire(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.byID) >= t.max {
		t.full++
		return false
	}
	t.byID[a.id] = a
	heap.Push(&t.byTime, a)
	return true
}

// take returns the attempt of a token, once; nil: it was reported before, has expired, or never was.
func (t *tokens) take(id tokenID, now time.Duration) *attempt {
	t.expire(now)
	t.mu.Lock()
	a := t.byID[id]
	late := a != nil && a.expires <= now
	if a != nil {
		delete(t.byID, id)
		heap.Remove(&t.byTime, a.at)
		if late {
			t.expired++
		}
	}
	t.mu.Unlock()
	if late {
		a.permit.Release()
		return nil
	}
	return a
}

// find is take that leaves it there.
func (t *tokens) find(id tokenID) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// expire releases those whose time has come.
func (t *tokens) expire(now time.Duration) {
	var due [expiredAtOnce]*attempt
	n := 0
	t.mu.Lock()
	for ; n < len(due) && len(t.byTime) > 0 && t.byTime[0].expires <= now; n++ {
		due[n] = heap.Pop(&t.byTime).(*attempt)
		delete(t.byID, due[n].id)
		t.expired++
	}
	t.mu.Unlock()
	for _, a := range due[:n] {
		a.permit.Release()
	}
}

// byExpiry is a heap.
type byExpiry []*attempt

func (h byExpiry) Len() int           { return len(h) }
func (h byExpiry) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h byExpiry) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *byExpiry) Push(x any) {
	a := x.(*attempt)
	a.at = len(*h)
	*h = append(*h, a)
}
func (h *byExpiry) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return a
}
