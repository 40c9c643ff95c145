package sim

import (
	"context"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// A Guard is what stands between a client and its target: the state of one policy. It is used by one goroutine.
type Guard interface {
	// Admit is asked before every attempt, the original (Number 0) and retries; ReasonNone lets it go.
	Admit(a *Attempt) cortex.Reason
	// Timeout of an admitted attempt; the call's deadline cuts it in any case. 0 = the deadline alone.
	Timeout(a *Attempt) time.Duration
	// Done is told how an admitted attempt ended.
	Done(a *Attempt, o cortex.Outcome)
	// Retry is asked after Done for an attempt that failed.
	Retry(a *Attempt, f Failure) Verdict
}

// Failure is how an attempt failed.
type Failure struct {
	Outcome    cortex.Outcome
	Retryable  bool
	RetryAfter time.Duration // the target's hint; 0 = none
}

// Verdict on a failed attempt.
type Verdict struct {
	Retry  bool
	Delay  time.Duration
	Reason cortex.Reason // why not
}

// Snapshotter is a guard with a score.
type Snapshotter interface{ Pressure() cortex.Pressure }

// Switch is a guard with a circuit: how often it changed state, in substance.
type Switch interface{ Transitions() int }

// RemoteObserver is a guard that takes in what a guard at the target's door reports.
type RemoteObserver interface{ ObserveRemote(shed float64) }

// Env is what a guard is made for.
type Env struct {
	Scenario  *scenario.Scenario
	Now       func() time.Duration
	Seed      [2]uint64 // of the guard's own random source
	Tier      int       // 0 is the callers'
	Instance  int
	Instances int
	Truth     func() Truth // of the target: for yardsticks only, a client cannot know
}

// Maker makes a guard.
type Maker func(Env) (Guard, error)

// A Call is what a caller wants answered.
type Call struct {
	Priority cortex.Priority
	Start    time.Duration
	Deadline time.Duration // a moment, not a span
	Marked   bool          // a layer above retries
	Previous time.Duration // delay before the newest attempt
	Own      any           // of whoever takes over the calls, see Options.Begin

	number   int
	tier     int
	instance int
	parent   *Attempt
	meter    callMeter
}

// An Attempt is one try of a call.
type Attempt struct {
	Call   *Call
	Number int // 0 is the original
	Start  time.Duration
	Due    time.Duration // when its client gives up
	Permit cortex.Permit // for guards that are engines
	Mine   int64         // the guard's own

	done   func(Failure) // of Send
	door   cortex.Permit
	refs   int8 // client and target
	over   bool // its client has its answer or has gone
	queued bool // waits at the target
	slot   int  // in target.serving, or number in the queue
	begun  time.Duration
	gen    uint32
	work   uint32 // generation of its work
	fail   Failure
	ctx    attemptContext
}

// attemptContext has ended when the call's deadline has passed: it is how an engine tells its own timeout from its caller's.
type attemptContext struct {
	context.Context
	expired bool
}

func (c *attemptContext) Err() error {
	if c.expired {
		return context.DeadlineExceeded
	}
	return nil
}

// Context is the attempt's, for a guard that wants one.
func (a *Attempt) Context() context.Context { return &a.ctx }
