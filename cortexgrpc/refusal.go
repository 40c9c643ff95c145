package cortexgrpc

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-a29ca62a/cortex"
)

// ErrorDomain is the domain of the google.rpc.ErrorInfo in the status of a refusal; its reason is the name of the
// [cortex.Reason]. It tells a guard's own UNAVAILABLE from the target's.
const ErrorDomain = "cortex"

// refusalError is the error of a call that a guard refused: a *cortex.Rejection, and a status.
type refusalError struct {
	rej    *cortex.Rejection
	hidden bool // its numbers are nobody's business
	once   sync.Once
	st     *status.Status
}

func (e *refusalError) Error() string { return e.rej.Error() }
func (e *refusalError) Unwrap() error { return e.rej }

// GRPCStatus is made for those who ask: most callers only look what kind of an error it is.
func (e *refusalError) GRPCStatus() *status.Status {
	e.once.Do(func() { e.st = rejectionStatus(e.rej, e.hidden) })
	return e.st
}

// RejectionStatus is the status that a refusal has on the wire: RESOURCE_EXHAUSTED where the call was shed, DEADLINE_EXCEEDED where
// there was no time for it, else UNAVAILABLE; with a google.rpc.ErrorInfo (domain "cortex", the reason's name, and the numbers
// behind it) and a google.rpc.RetryInfo.
func RejectionStatus(rej *cortex.Rejection) *status.Status { return rejectionStatus(rej, false) }

func rejectionStatus(rej *cortex.Rejection, hidden bool) *status.Status {
	code := codes.Unavailable
	switch rej.Reason {
	case cortex.ReasonShed:
		code = codes.ResourceExhausted
	case cortex.ReasonDeadline:
		code = codes.DeadlineExceeded
	}
	text := "cortex: " + rej.Reason.String()
	info := &errdetails.ErrorInfo{Reason: rej.Reason.String(), Domain: ErrorDomain}
	if !hidden {
		text = rej.Error()
		info.Metadata = map[string]string{
			"target":   rej.Target,
			"priority": strconv.Itoa(int(rej.Priority)),
			"floor":    strconv.Itoa(int(rej.Floor)),
			"cps":      fmt.Sprintf("%.4f", rej.CPS),
			"state":    cortex.StateOf(rej.CPS).String(),
			"circuit":  rej.Circuit.String(),
		}
	}
	st := status.New(code, text)
	wait := max(rej.RetryAfter, time.Millisecond)
	if full, err := st.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
		return full
	}
	return st // without details: a target's name that is not UTF-8
}

// details are what the details of a status and the trailer beside it say to a guard.
type details struct {
	refused cortex.Reason // by a guard below; ReasonNone: it is the target's own answer
	own     bool          // by that at the target's door, and none further below
	wait    time.Duration // of RetryInfo
}

func detailsOf(st *status.Status, trailer metadata.MD) details {
	var d details
	if name, ok := single(trailer, MetadataReason); ok {
		d.refused = refusalReason(name)
		d.own = d.refused != cortex.ReasonNone
	}
	if len(st.Proto().GetDetails()) == 0 {
		return d
	}
	for _, m := range st.Details() {
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			if r := refusalReason(m.GetReason()); m.GetDomain() == ErrorDomain && r != cortex.ReasonNone {
				d.refused = r
			}
		case *errdetails.RetryInfo:
			if w := m.GetRetryDelay(); w != nil && w.IsValid() {
				d.wait = max(d.wait, w.AsDuration()) // saturates
			}
		}
	}
	return d
}

// refusalReason is the reason of that name, where it is one for which a guard refuses a call without trying.
func refusalReason(name string) cortex.Reason {
	for _, r := range [...]cortex.Reason{cortex.ReasonCircuitOpen, cortex.ReasonCircuitEmergency, cortex.ReasonShed} {
		if name == r.String() {
			return r
		}
	}
	return cortex.ReasonNone
}
