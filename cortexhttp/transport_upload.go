package cortexhttp

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// uploadStall is how long a target may take nothing of a request body that waits for it, or Config.Timeout.Max if that is
// longer. The adaptive timeout is that of answers; it says nothing of how fast bodies go over the wire.
const uploadStall = 5 * time.Second

// upload is the sending of a body that the caller still has to provide. How long that takes is no latency of the target's, and
// waiting for it no call in its queue: from the first time that the body is asked for until it is there whole the attempt
// is paused. While the caller's Read is under way nothing but the call's own deadline cuts it, in between a
// target that takes nothing does.
//
// net/http reads a body on goroutines of its own, which go on when RoundTrip has returned an early answer.
type upload struct {
	a      *attempt
	src    *source
	cut    *cutter
	term   term
	stall  time.Duration
	unhook func() bool

	mu      sync.Mutex
	phase   uploadPhase
	armed   bool // the cutter has the attempt, unless its time is up
	reading bool // somebody is inside the caller's Read
	expired bool
	lapsed  bool // expired, but for an attempt that is not to be cut
	callers bool // it expired in the caller's Read
	over    bool // the attempt has its answer or its error
}

type uploadPhase uint8

const (
	uploadConnecting uploadPhase = iota // nothing of the body has been asked for, and no 100 is waited for
	uploadSending
	uploadSent
)

// startUpload makes the attempt one that uploads what is not there yet of the body by r.
func (a *attempt) startUpload(c *call, r *bodyReader) {
	if c.body.there() {
		return
	}
	u := &upload{a: a, src: c.body, cut: &c.t.cut, term: c.term()}
	if c.set.longest > 0 {
		u.stall = max(c.set.longest, uploadStall)
	}
	a.upload, r.upload = u, u
	if strings.EqualFold(c.req.Header.Get("Expect"), "100-continue") {
		a.trace.Wait100Continue = u.await
	}
	u.unhook = context.AfterFunc(a.ctx.Context, u.release)
}

// release closes the body if nobody is going to wait for it any more: net/http's transport, which does not return before its
// read, would.
func (u *upload) release() {
	u.mu.Lock()
	callers := u.callers
	u.mu.Unlock()
	if callers || u.a.call.Err() != nil {
		u.src.abort()
	}
}

// arm starts the timeout of d, 0 for none, unless the call must be over before; u.mu is held.
func (u *upload) arm(d time.Duration) {
	if u.a.free || u.lapsed {
		return
	}
	if d = u.term.limit(d); d > 0 {
		u.a.timeout, u.armed = d, true
		u.cut.add(u.a, d)
	}
}

// disarm stops the timeout; it reports whether it had not passed. u.mu is held.
func (u *upload) disarm() bool {
	if u.armed && !u.cut.remove(u.a) {
		u.pass()
	}
	u.armed = false
	return !u.expired
}

// connect starts the timeout for what comes before the body.
func (u *upload) connect(d time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.arm(d)
}

// await is the hook of a base that waits for a 100. Many targets send none, and a base waits for it longer than the timeout is: that is the
// base's time and not the target's.
func (u *upload) await() {
	u.mu.Lock()
	if u.phase == uploadConnecting && !u.over && !u.expired && u.disarm() {
		u.phase = uploadSending
		u.a.permit.Pause()
		u.arm(u.stall)
	}
	u.mu.Unlock()
	if o := u.a.outer; o != nil && o.Wait100Continue != nil {
		o.Wait100Continue()
	}
}

// enter is called before the caller's Read; it reports whether the attempt has not been cut.
func (u *upload) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || u.expired || u.phase == uploadSent {
		return !u.expired
	}
	if !u.disarm() {
		return false
	}
	if u.phase == uploadConnecting {
		u.phase = uploadSending
		u.a.permit.Pause()
	}
	u.reading = true
	u.arm(0)
	return true
}

// leave is called after it. Once the body is whole, the target's time begins.
func (u *upload) leave(whole bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || u.expired || !u.reading || !u.disarm() {
		return
	}
	u.reading = false
	if whole {
		u.phase = uploadSent
		u.a.permit.Resume()
		if u.lapsed {
			return // its outcome is recorded, perhaps just now
		}
		d := u.a.permit.Timeout()
		u.a.grant(d)
		u.arm(d)
		return
	}
	u.arm(u.stall)
}

// expire cuts the attempt. It comes from the cutter, when it has let go of the attempt.
func (u *upload) expire() {
	u.mu.Lock()
	u.pass()
	u.callers = u.reading && !u.over
	err := u.timeout()
	u.mu.Unlock()
	if u.a.shadow {
		u.a.lapse()
		return
	}
	u.a.cancel(err) // which calls release
}

// pass says that the time is up; u.mu is held.
func (u *upload) pass() {
	if u.a.shadow {
		u.lapsed = true
	} else {
		u.expired = true
	}
}

// callersFault reports whether the time was up in the caller's Read.
func (u *upload) callersFault() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.callers
}

// timeout is the error of an attempt that was cut; u.mu is held.
func (u *upload) timeout() *attemptTimeout {
	e := &attemptTimeout{after: u.a.timeout}
	switch {
	case u.callers:
		e.what = "the request body was not read to its end before the deadline of the call, for the last"
	case u.phase == uploadSending:
		e.what = "the target took nothing of the request body for"
	}
	return e
}

// end says that the attempt has its answer or its error; it reports whether the timeout had not passed.
func (u *upload) end() bool {
	u.unhook()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	return u.disarm() && !u.lapsed
}

// unsent reports whether the attempt ended before the body was there.
func (u *upload) unsent() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.phase == uploadSending
}

// excuse takes from the target what the caller is to be blamed for.
func (u *upload) excuse(v *verdict, expired bool) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if expired {
		v.err = u.timeout()
	}
	switch {
	case expired && u.callers:
		v.class, v.late = cortex.Class{Outcome: cortex.Neutral}, true
	case !expired && u.reading && !v.untouched:
		v.class.Outcome = cortex.Neutral
	}
}
