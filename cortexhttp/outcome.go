package cortexhttp

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// ClassOf is what the default rule makes of a response, by its status and header:
//
//   - 2xx, 3xx and 101 are successes;
//   - 429 is throttled, retryable, with the server's hint ([RetryAfter]). So is a 503 with which a guard below sheds
//     ([HeaderReason]); one with which it says that its circuit is open is neutral and not retryable: failing fast is the
//     point of opening, and there is no load to take off. Neither speaks against the target. A [Transport] whose engine has Config.DistrustRemote takes both for
//     an ordinary 503: a target could otherwise keep its circuit closed by that field;
//   - 408 (the server closed a connection it took for idle; RFC 9110, 15.5.9) and 425 (it will not risk a replay; RFC 8470)
//     are neutral and retryable;
//   - other 4xx, 501, 505, 506, 508 and 510 find fault with the request, or with the way that it took: neutral, not retryable;
//   - a fallback that a guard below gave ([HeaderFallback]) is no success of the target's, whatever its status below 400 says:
//     throttled where [HeaderReason] says that the guard shed the call, else neutral. Neither is retryable;
//   - 504 is a timeout, every other 5xx and what is no status at all (RFC 9110, 15) a failure; retryable.
//
// A gRPC answer (HTTP status 200, Content-Type application/grpc) goes by its Grpc-Status, where that is in the header already:
// 0 is a success; 14 (unavailable) a failure, but neutral and not retryable where a guard below says that its circuit is open, 4 (deadline exceeded) a timeout and 8 (resource exhausted) throttled, these
// retryable; 2, 13 and 15 (unknown, internal, data loss) failures; the others neutral.
//
// Whether a retryable answer is retried depends on the request too. now is the wall-clock time that dates are compared with.
func ClassOf(resp *http.Response, now time.Time) cortex.Class {
	return classOf(resp, func() time.Time { return now }, true)
}

// classOf is ClassOf; trusted says that what the guard below gives as its reason is believed.
func classOf(resp *http.Response, now func() time.Time, trusted bool) cortex.Class {
	if isFallback(resp) {
		if refused, open := guardRefusal(resp.Header); refused && !open && trusted {
			return cortex.Class{Outcome: cortex.Throttled}
		}
		return cortex.Class{Outcome: cortex.Neutral}
	}
	if isGRPC(resp) {
		if c, ok := grpcClass(resp.Header, trusted); ok {
			return c
		}
	}
	switch s := resp.StatusCode; {
	case s >= 200 && s < 400 || s == http.StatusSwitchingProtocols:
		return cortex.Class{Outcome: cortex.Success}
	case s == http.StatusTooManyRequests:
		return withHint(cortex.Class{Outcome: cortex.Throttled, Retryable: true}, resp.Header, now())
	case s == http.StatusServiceUnavailable:
		c := cortex.Class{Outcome: cortex.Failed, Retryable: true}
		if refused, open := guardRefusal(resp.Header); refused && trusted {
			c = cortex.Class{Outcome: cortex.Throttled, Retryable: true}
			if open {
				c = cortex.Class{Outcome: cortex.Neutral}
			}
		}
		return withHint(c, resp.Header, now())
	case s == http.StatusRequestTimeout || s == http.StatusTooEarly:
		return withRetryAfter(cortex.Class{Outcome: cortex.Neutral, Retryable: true}, resp.Header, now())
	case s >= 400 && s < 500,
		s == http.StatusNotImplemented, s == http.StatusHTTPVersionNotSupported,
		s == http.StatusVariantAlsoNegotiates, s == http.StatusLoopDetected, s == http.StatusNotExtended:
		return cortex.Class{Outcome: cortex.Neutral}
	case s == http.StatusGatewayTimeout:
		return withRetryAfter(cortex.Class{Outcome: cortex.TimedOut, Retryable: true}, resp.Header, now())
	}
	return withRetryAfter(cortex.Class{Outcome: cortex.Failed, Retryable: true}, resp.Header, now())
}

func withHint(c cortex.Class, h http.Header, now time.Time) cortex.Class {
	c.RetryAfter, _ = RetryAfter(h, now)
	return c
}

func withRetryAfter(c cortex.Class, h http.Header, now time.Time) cortex.Class {
	c.RetryAfter, _ = retryAfterField(h, now)
	return c
}

// isFallback reports whether a guard below answered in the target's stead, with something that looks good.
func isFallback(resp *http.Response) bool {
	s := resp.StatusCode
	return s >= 200 && s < 400 && len(resp.Header[HeaderFallback]) > 0
}

// guardRefusal reports whether a guard below refused the call, instead of passing on what its target answered, and whether
// it did so because its circuit is open.
func guardRefusal(h http.Header) (refused, open bool) {
	v, _ := single(h, HeaderReason)
	switch v {
	case cortex.ReasonCircuitOpen.String(), cortex.ReasonCircuitEmergency.String():
		return true, true
	case cortex.ReasonShed.String():
		return true, false
	}
	return false, false
}

// forbidsRetry reports whether the server says not to try again.
func forbidsRetry(h http.Header) bool {
	for _, v := range h[HeaderRetry] {
		if strings.EqualFold(strings.TrimSpace(v), "no") {
			return true
		}
	}
	return false
}

// A StatusError stands for an answer that was dropped because it was to be followed by another attempt, which was not made
// then: the wait for it was cut short, or the circuit opened. [cortex.CallError] wraps it.
type StatusError struct {
	StatusCode int
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("cortexhttp: the target answered %d %s", e.StatusCode, http.StatusText(e.StatusCode))
}

// bodyless reports whether nothing follows the response's header.
func bodyless(method string, resp *http.Response) bool {
	return resp.Body == nil || resp.Body == http.NoBody || method == http.MethodHead ||
		resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified
}
