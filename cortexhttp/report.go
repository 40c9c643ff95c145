package cortexhttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// A Report tells what a [Transport] did for one call. The caller makes it, hands it down with [WithReport] or
// TransportConfig.Report and reads it once RoundTrip has returned; it is not written later, and must not be shared by calls that overlap.
type Report struct {
	// Attempts is how many attempts were made at the target, those included that Hidden counts. 0: none was admitted.
	Attempts int
	// Hidden is how many of them net/http made by itself, on another connection than the kept-alive one that turned out dead.
	Hidden int
	// Reason says why a call that failed was not tried again; ReasonNone for a good answer and for one that finds fault with
	// the request.
	Reason cortex.Reason
	// Rejection is this guard's own refusal of the call or of a retry, else nil.
	Rejection *cortex.Rejection
	// TimedOut is set where the last attempt had no response headers within its timeout or before the caller's deadline,
	// ConnectFailed where it had no connection to the target; both, where connecting took too long. Neither is, where what was
	// waited for is the caller's own body.
	TimedOut, ConnectFailed bool
	// ReplaySkipped says why a failed call whose request could have been sent again was not, or would not have been in shadow
	// mode: its body could not.
	ReplaySkipped ReplaySkip

	// Shadow is set where TransportConfig.Shadow had the call pass whatever the engine said, which stands in the fields below.
	// Reason and Rejection say only what was done, and the engine did nothing.
	Shadow bool
	// WouldRefuse is the refusal that the call would have met, else nil. Its one attempt was made without a permit.
	WouldRefuse *cortex.Rejection
	// WouldCut is set where the attempt would have been cut by its timeout. It counts as TimedOut, whatever came in the end.
	WouldCut bool
	// WouldRetry is set where the call would have been tried again, after WouldDelay. Where it failed and would not have been,
	// WouldReason says why.
	WouldRetry  bool
	WouldDelay  time.Duration
	WouldReason cortex.Reason
}

// ReplaySkip says why a request body could not be sent again whole.
type ReplaySkip uint8

// Reasons why a body is not replayed.
const (
	ReplayNotSkipped   ReplaySkip = iota
	ReplayBodyTooLarge            // more of it was sent than TransportConfig.MaxReplayBytes
	ReplayBodyInUse               // the attempt that failed was still reading it
	ReplayBodyFailed              // reading it, or getting it anew from GetBody, gave an error
	ReplayNoMemory                // TransportConfig.Memory refused to keep what was sent of it
	replaySkips
)

var replaySkipNames = [replaySkips]string{"", "BODY_TOO_LARGE", "BODY_IN_USE", "BODY_FAILED", "NO_MEMORY"}

func (s ReplaySkip) String() string {
	if s < replaySkips {
		return replaySkipNames[s]
	}
	return fmt.Sprintf("ReplaySkip(%d)", uint8(s))
}

// MarshalText makes it its name in JSON.
func (s ReplaySkip) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

type reportKey struct{}

// WithReport returns a context whose call fills r in, where TransportConfig.Report does not say otherwise.
func WithReport(ctx context.Context, r *Report) context.Context {
	return context.WithValue(ctx, reportKey{}, r)
}

func reportFrom(ctx context.Context) *Report {
	r, _ := ctx.Value(reportKey{}).(*Report)
	return r
}

// An AttemptResult tells of one attempt that is over.
type AttemptResult struct {
	// Request is what was sent, as Prepare returned it. It must not be changed, nor used once the function has returned.
	Request *http.Request
	Attempt int    // 0 is the original
	Host    string // host and port it was sent to
	Status  int    // of the answer; 0 where there was none
	Err     error  // that there was no answer, or that it broke off; nil otherwise
	Outcome cortex.Outcome
	Latency time.Duration // until the response headers, or the error; the upload included
	Hidden  int           // replays that net/http made by itself within it
}
