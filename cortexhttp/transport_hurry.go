package cortexhttp

import (
	"context"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// This file keeps callers' deadlines from being taken for failures of targets that are told of them, and end what they do in time.

// grant takes down whether the call's deadline, where it is a stranger's, leaves the target less than the timeout that the engine gives the
// attempt: when it begins, and anew when the target has the request's whole body.
func (a *attempt) grant(timeout time.Duration) {
	if !a.stranger {
		return
	}
	left, _ := untilDeadline(a.call)
	a.rushed.Store(timeout <= 0 || left < timeout)
}

// hurried reports whether the call's deadline leaves the attempt too little time to speak against the target. What a stranger has not
// sent yet may be what the target waited for.
func (a *attempt) hurried() bool {
	if a.stranger && (a.rushed.Load() || a.atDeadline() || a.upload.unsent()) {
		return true
	}
	return a.permit.Hurried()
}

// known is the call's context as the engine is to know it.
func (c *call) known() context.Context {
	if c.stranger {
		return outsider{c.ctx}
	}
	return c.ctx
}

// outsider is a context with the deadline of a stranger, who could set it to anything: for the engine that is one who may leave.
type outsider struct{ context.Context }

func (outsider) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c outsider) Err() error {
	if c.Context.Err() != nil {
		return context.Canceled
	}
	return nil
}

// maxEarly bounds how long before its caller's deadline an attempt may end for that to be taken for the deadline's doing.
const maxEarly = 2 * time.Millisecond

// atDeadline reports whether the deadline of the call is there, or so near that a target which is told of it (grpc-timeout,
// [HeaderTimeout]) may have ended the attempt for it: clocks tick differently, and what is left is told in whole units.
func (a *attempt) atDeadline() bool {
	left, ok := untilDeadline(a.call)
	return ok && left <= maxEarly
}

// deadlineEnded is atDeadline for an attempt that broke off: it waits for what is left, in which nothing can be made of it, so that it
// is judged as one that the deadline itself has ended.
func (a *attempt) deadlineEnded() bool {
	if !a.atDeadline() {
		return false
	}
	<-a.call.Done()
	return true
}

// streamOutcome is the outcome of a gRPC answer that came to its end. One that had begun and that its caller's deadline ended is
// as neutral as one that its caller left.
func (a *attempt) streamOutcome() cortex.Outcome {
	o := grpcOutcomeOf(a.resp.Trailer)
	if o == cortex.TimedOut && (a.atDeadline() || a.hurried()) {
		return cortex.Neutral
	}
	return o
}
