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
	engine  *cortex.Engine // one that may make room for another, nil: it does not
	counts  time.Duration  // as in flight, until then; once it is lost, when it is looked at again
	expires time.Duration
	lost    bool // it counts no more
	at      int  // in the heap
}

// reportGrace is how much longer than its timeout an attempt counts as in flight that nobody reports, at least. Then it is over, or its worker
// is: what died with many attempts under way would fill the limit of a healthy target until the tokens expire.
const reportGrace = 5 * time.Second

// lookAgain is how often it is looked whether the engine of an attempt that is lost is still there. One that has made room for another would
// stay as long as the token: a thousand of them for each few seconds in which others took their place.
const lookAgain = 5 * time.Second

// due is when something is next to be done about it.
func (a *attempt) due() time.Duration { return min(a.counts, a.expires) }

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
// is released without an outcome: with whichever request comes next, for no goroutine waits for that. It counts as in flight no longer
// than it was given time and some grace; a report that comes later counts all the same.
type tokens struct {
	max  int
	gone func(*attempt) bool // whether the engine has made room for another

	mu      sync.Mutex
	byID    map[tokenID]*attempt
	byTime  byExpiry
	expired uint64 // not reported in time
	full    uint64 // admitted without a token
}

// expiredAtOnce bounds what one request does for those that were forgotten.
const expiredAtOnce = 256

// add gives an attempt that has so much time a token, or reports that there is no room for another. timeout 0 is any time.
func (t *tokens) add(a *attempt, now, timeout, life time.Duration) bool {
	rand.Read(a.id[:]) // it does not fail
	a.expires = now + life
	if a.counts = a.expires; timeout > 0 && timeout < life {
		a.counts = now + timeout + max(timeout, reportGrace)
	}
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

// expire releases those whose time has come, and takes those out of what is in flight that should have been reported.
func (t *tokens) expire(now time.Duration) {
	var due [expiredAtOnce]*attempt
	var over [expiredAtOnce]bool
	n := 0
	t.mu.Lock()
	for ; n < len(due) && len(t.byTime) > 0 && t.byTime[0].due() <= now; n++ {
		a := t.byTime[0]
		due[n], over[n] = a, a.expires <= now || a.lost && a.engine != nil && t.gone(a)
		if !over[n] {
			a.lost, a.counts = true, a.expires
			if a.engine != nil {
				a.counts = now + lookAgain
			}
			heap.Fix(&t.byTime, 0)
			continue
		}
		heap.Pop(&t.byTime)
		delete(t.byID, a.id)
		t.expired++
	}
	t.mu.Unlock()
	for i, a := range due[:n] {
		if over[i] {
			a.permit.Release()
		} else {
			a.permit.Pause()
		}
	}
}

// byExpiry is a heap.
type byExpiry []*attempt

func (h byExpiry) Len() int           { return len(h) }
func (h byExpiry) Less(i, j int) bool { return h[i].due() < h[j].due() }
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
