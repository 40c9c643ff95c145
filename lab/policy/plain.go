package policy

import (
	"time"

	"github.com/seed-a29ca62a/cortex/lab/sim"
)

// hystrix is the breaker of that library by its defaults: open when at least 20 calls in 10 s ended and half of them failed; after 5 s
// one probe decides.
type hystrix struct {
	slots       [10]struct{ ok, failed, second int64 }
	open        bool
	since       time.Duration // opened, or the probe that is under way
	transitions int
}

const (
	hystrixVolume = 20
	hystrixSleep  = 5 * time.Second
	isProbe       = 1 // in Attempt.Mine
)

func (h *hystrix) admit(now time.Duration, a *sim.Attempt) bool {
	if !h.open {
		return true
	}
	if now-h.since < hystrixSleep { // since the opening, or since the last probe began: one that never returns is replaced
		return false
	}
	h.since = now
	a.Mine = isProbe
	return true
}

func (h *hystrix) done(now time.Duration, a *sim.Attempt, ok bool) {
	second := int64(now / time.Second)
	s := &h.slots[second%10]
	if s.second != second {
		s.ok, s.failed, s.second = 0, 0, second
	}
	if ok {
		s.ok++
	} else {
		s.failed++
	}
	if h.open {
		if a.Mine == isProbe {
			if ok {
				h.open = false
				h.transitions++
				clear(h.slots[:])
			} else {
				h.since = now
			}
		}
		return
	}
	var n, failed int64
	for _, s := range h.slots {
		if second-s.second < 10 {
			n += s.ok + s.failed
			failed += s.failed
		}
	}
	if n >= hystrixVolume && 2*failed >= n {
		h.open, h.since = true, now
		h.transitions++
	}
}

// bucket is a retry budget: a tenth of a retry for each success, at most ten.
type bucket struct{ tenths int }

const (
	bucketRetry = 10 // tenths
	bucketMax   = 10 * bucketRetry
)

func (b *bucket) earn() { b.tenths = min(bucketMax, b.tenths+1) }

func (b *bucket) spend() bool {
	if b.tenths < bucketRetry {
		return false
	}
	b.tenths -= bucketRetry
	return true
}

// sre is the client-side throttle of the SRE book, chapter 21: an attempt is refused with the probability
// max(0, (requests − K·accepts)/(requests + 1)), counted over two minutes.
type sre struct {
	slots             [120]struct{ requests, accepts int64 }
	requests, accepts int64
	second            int64
}

const sreK = 2

// turn drops what is older than the window.
func (s *sre) turn(now time.Duration) {
	for t := int64(now / time.Second); s.second < t; {
		if t-s.second > int64(len(s.slots)) {
			s.second = t - int64(len(s.slots))
		}
		s.second++
		x := &s.slots[s.second%int64(len(s.slots))]
		s.requests -= x.requests
		s.accepts -= x.accepts
		x.requests, x.accepts = 0, 0
	}
}

func (s *sre) admit(now time.Duration, draw float64) bool {
	s.turn(now)
	refuse := draw < float64(s.requests-sreK*s.accepts)/float64(s.requests+1)
	s.slots[s.second%int64(len(s.slots))].requests++
	s.requests++
	return !refuse
}

func (s *sre) accept(now time.Duration) {
	s.turn(now)
	s.slots[s.second%int64(len(s.slots))].accepts++
	s.accepts++
}
