package cortex

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Priority says who is shed first: 0 first, Config.Levels (10) last. Those ≥ Levels−1 are critical. A priority outside
// [0, Levels] is clamped at the boundary.
type Priority int

// Outcome is what an attempt said of the target's health.
type Outcome uint8

const (
	// Neutral says nothing of the target's health: the caller cancelled, the request itself was at fault (400, 404, a unique
	// violation), or a guard refused the call.
	Neutral Outcome = iota
	// Success is a good answer.
	Success
	// Failed is an error of the target that came back by itself.
	Failed
	// TimedOut is a failure of the slow kind: no answer within the attempt's timeout.
	TimedOut
	// Throttled is a healthy target that asks for less (429). It never trips the circuit; its share sheds.
	Throttled
)

func (o Outcome) String() string {
	switch o {
	case Neutral:
		return "neutral"
	case Success:
		return "success"
	case Failed:
		return "failure"
	case TimedOut:
		return "timeout"
	case Throttled:
		return "throttled"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Class is what the guard makes of the error of an attempt.
type Class struct {
	Outcome   Outcome
	Retryable bool
	// RetryAfter is the server's hint, a lower bound of the delay before the next attempt; 0 means none.
	RetryAfter time.Duration
}

// Classify is the default classification of an error: nil is a success; an error that carries a class ([WithClass],
// [Permanent]) has that; context.Canceled is neutral; an error that says Timeout() is a timeout; a [*Rejection] of a guard below is
// neutral and not retried here; everything else is a failure. Failures and timeouts are retryable.
func Classify(err error) Class {
	if err == nil {
		return Class{Outcome: Success}
	}
	if c, ok := errors.AsType[*classified](err); ok {
		return c.class
	}
	if _, ok := errors.AsType[*Rejection](err); ok {
		return Class{Outcome: Neutral}
	}
	if errors.Is(err, context.Canceled) {
		return Class{Outcome: Neutral}
	}
	var t interface{ Timeout() bool } // net.Error, os.ErrDeadlineExceeded, context.DeadlineExceeded
	if errors.As(err, &t) && t.Timeout() {
		return Class{Outcome: TimedOut, Retryable: true}
	}
	return Class{Outcome: Failed, Retryable: true}
}

// WithClass returns err carrying a class that [Classify] finds through any wrapping. A nil err stays nil.
func WithClass(err error, c Class) error {
	if err == nil {
		return nil
	}
	return &classified{err, c}
}

// Permanent marks err as one that no retry can mend and that does not speak against the target: a bad request, an expired
// token, a unique violation. A nil err stays nil.
func Permanent(err error) error { return WithClass(err, Class{Outcome: Neutral}) }

type classified struct {
	err   error
	class Class
}

func (c *classified) Error() string { return c.err.Error() }
func (c *classified) Unwrap() error { return c.err }
