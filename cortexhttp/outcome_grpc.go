package cortexhttp

import (
	"net/http"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// isGRPC reports whether a response's outcome is in its Grpc-Status and not in its HTTP status.
func isGRPC(resp *http.Response) bool {
	if resp.StatusCode != http.StatusOK {
		return false
	}
	v := resp.Header["Content-Type"]
	return len(v) > 0 && strings.HasPrefix(v[0], "application/grpc")
}

// grpcClass is what the status of a gRPC answer says; h is its header (an answer without messages) or its trailer. ok is
// false where there is none; trusted says that a guard below is believed. The pushback of gRPC's retry design (A6) is a hint, or
// forbids the retry.
func grpcClass(h http.Header, trusted bool) (c cortex.Class, ok bool) {
	v, ok := single(h, "Grpc-Status")
	if !ok {
		return c, false
	}
	switch v {
	case "0":
		return cortex.Class{Outcome: cortex.Success}, true
	case "14": // Unavailable
		c = cortex.Class{Outcome: cortex.Failed, Retryable: true}
		if _, open := guardRefusal(h); open && trusted {
			return cortex.Class{Outcome: cortex.Neutral}, true // as a 503 that says so
		}
	case "4": // DeadlineExceeded
		c = cortex.Class{Outcome: cortex.TimedOut, Retryable: true}
	case "8": // ResourceExhausted
		c = cortex.Class{Outcome: cortex.Throttled, Retryable: true}
	case "2", "13", "15": // Unknown, Internal, DataLoss
		return cortex.Class{Outcome: cortex.Failed}, true
	default:
		return cortex.Class{Outcome: cortex.Neutral}, true
	}
	if ms, there := single(h, "Grpc-Retry-Pushback-Ms"); there {
		n, valid := saturatedNumber(ms)
		c.Retryable = valid // negative or malformed: do not retry
		c.RetryAfter = saturate(n, time.Millisecond)
	}
	return c, true
}

// grpcOutcomeOf is the outcome of a gRPC answer that came to its end with that trailer; without a status it did not.
func grpcOutcomeOf(trailer http.Header) cortex.Outcome {
	c, ok := grpcClass(trailer, false)
	if !ok {
		return cortex.Failed
	}
	return c.Outcome
}
