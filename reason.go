package cortex

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// Reason says why a call or a retry was refused.
type Reason uint8

// Reasons, in the order of the checks that give them.
const (
	ReasonNone             Reason = iota
	ReasonNotRetryable            // check 1: the error is not one that a retry can mend
	ReasonRetriedAbove            // check 1: a layer above retries already (see [WithRetryMark])
	ReasonDoNotRetry              // check 1: the server said not to
	ReasonMaxRetries              // check 2
	ReasonCircuitEmergency        // check 3: pressure forced the circuit open
	ReasonCircuitOpen             // check 3: the circuit is open already
	ReasonShed                    // check 4: priority below the floor
	ReasonBudget                  // check 4: no token left for a retry
	ReasonDeadline                // check 5: the delay does not fit before the caller's deadline
	ReasonCancelled               // the caller gave up
	reasons
)

var reasonNames = [reasons]string{"", "NOT_RETRYABLE", "RETRIED_ABOVE", "DO_NOT_RETRY", "MAX_RETRIES_EXCEEDED",
	"CIRCUIT_OPEN_EMERGENCY", "CIRCUIT_OPEN", "SHED_LOW_PRIORITY", "BUDGET_EXHAUSTED", "DEADLINE", "CANCELLED"}

func (r Reason) String() string {
	if r < reasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// MarshalText makes a reason its name in JSON.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Reasons lists every reason for which an engine refuses, for metrics with a bounded label. [ReasonCancelled] is not among them:
// there it was the caller that gave up.
func Reasons() []Reason {
	rs := make([]Reason, 0, reasons-1)
	for r := ReasonNone + 1; r < reasons; r++ {
		if r != ReasonCancelled {
			rs = append(rs, r)
		}
	}
	return rs
}

// What errors.Is finds in refusals and failed calls.
var (
	ErrRejected  = errors.New("cortex: rejected")                                    // any refusal of a call or a retry
	ErrOpen      = errors.New("cortex: circuit open")                                // ReasonCircuitOpen, ReasonCircuitEmergency
	ErrShed      = errors.New("cortex: shed: priority below the floor")              // ReasonShed
	ErrBudget    = errors.New("cortex: retry budget exhausted")                      // ReasonBudget
	ErrExhausted = errors.New("cortex: maximum of retries reached")                  // ReasonMaxRetries
	ErrDeadline  = errors.New("cortex: no time for another attempt before deadline") // ReasonDeadline
)

func (r Reason) is(target error) bool {
	switch target {
	case ErrOpen:
		return r == ReasonCircuitOpen || r == ReasonCircuitEmergency
	case ErrShed:
		return r == ReasonShed
	case ErrBudget:
		return r == ReasonBudget
	case ErrExhausted:
		return r == ReasonMaxRetries
	case ErrDeadline:
		return r == ReasonDeadline
	}
	return false
}

// A Rejection is the refusal of an attempt before it was made. It is shared between the calls refused at about the same time:
// its numbers are at most 100 ms old, and it must not be modified.
type Rejection struct {
	Target     string
	Reason     Reason
	Priority   Priority
	Floor      Priority // calls of a priority below it are shed
	CPS        float64
	Evidence   float64
	Signals    Signals
	Circuit    breaker.State
	Forced     bool          // an operator has forced the circuit open or closed
	RetryAfter time.Duration // when it is worth asking again; an estimate, > 0
}

func (r *Rejection) Error() string {
	var b strings.Builder
	b.WriteString("cortex: ")
	if r.Target != "" {
		b.WriteString(r.Target)
		b.WriteString(": ")
	}
	s, circuit := r.Signals, r.Circuit.String()
	if r.Forced {
		circuit += " (forced)"
	}
	fmt.Fprintf(&b, "%s: priority %d, floor %d, cps %.4f (F %.2f L %.2f Q %.2f B %.2f C %.1f), circuit %s, try again in %v",
		r.Reason, r.Priority, r.Floor, r.CPS, s.F, s.L, s.Q, s.B, s.C, circuit, r.RetryAfter.Round(time.Millisecond))
	return b.String()
}

// Is reports whether target is [ErrRejected] or the sentinel of the reason.
func (r *Rejection) Is(target error) bool { return target == ErrRejected || r.Reason.is(target) }

// A CallError is a guarded call that failed for good. It wraps the error of the last attempt and, where a retry was refused
// before it was made, the refusal.
type CallError struct {
	Target   string
	Attempts int    // attempts made, ≥ 1
	Reason   Reason // why there was no further attempt
	Err      error  // of the last attempt
	Refusal  *Rejection
	Cause    error // why the caller gave up, from its context; nil if it did not
}

func (c *CallError) Error() string {
	name := c.Target
	if name != "" {
		name += ": "
	}
	n := "1 attempt"
	if c.Attempts != 1 {
		n = fmt.Sprintf("%d attempts", c.Attempts)
	}
	return fmt.Sprintf("cortex: %s%v (%s, no further: %s)", name, c.Err, n, c.Reason)
}

// Unwrap returns the error of the last attempt, and the refusal and the caller's own reason, if any.
func (c *CallError) Unwrap() []error {
	errs := []error{c.Err}
	if c.Refusal != nil {
		errs = append(errs, c.Refusal)
	}
	if c.Cause != nil {
		errs = append(errs, c.Cause)
	}
	return errs
}

// Is reports whether target is the sentinel of the reason.
func (c *CallError) Is(target error) bool { return c.Reason.is(target) }

// Timeout reports whether the last attempt timed out, as net.Error does.
func (c *CallError) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.As(c.Err, &t) && t.Timeout()
}

// A ConfigError names the field of a [Config] that cannot be used and says what would be right.
type ConfigError struct {
	Field string
	Value any
	Want  string
	Err   error // from a part's own check, else nil
}

func (c *ConfigError) Error() string {
	if c.Err != nil {
		return fmt.Sprintf("cortex: config: %s.%v", c.Field, c.Err)
	}
	return fmt.Sprintf("cortex: config: %s: %v: want %s", c.Field, c.Value, c.Want)
}

func (c *ConfigError) Unwrap() error { return c.Err }
