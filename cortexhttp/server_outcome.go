package cortexhttp

import (
	"net/http"
	"strings"

	"github.com/seed-a29ca62a/cortex"
)

// statusOutcome is what a status that this process answers says of its health. An answer that finds fault with the request
// is one all the same.
func statusOutcome(status int) cortex.Outcome {
	switch status {
	case http.StatusTooManyRequests:
		return cortex.Throttled
	case http.StatusGatewayTimeout:
		return cortex.TimedOut
	case http.StatusRequestTimeout, 499: // the client was slow, or left
		return cortex.Neutral
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported: // of the request, whatever the load
		return cortex.Success
	}
	if status >= 500 {
		return cortex.Failed
	}
	return cortex.Success
}

// grpcOutcome is what the status of a gRPC answer says, whose HTTP status is 200 whatever happened; ok is false for an answer
// that has none.
func grpcOutcome(h http.Header) (o cortex.Outcome, ok bool) {
	if !strings.HasPrefix(h.Get("Content-Type"), "application/grpc") {
		return 0, false
	}
	code := h.Get("Grpc-Status")
	if code == "" {
		code = h.Get(http.TrailerPrefix + "Grpc-Status")
	}
	switch code {
	case "":
		return 0, false
	case "1": // Canceled
		return cortex.Neutral, true
	case "4": // DeadlineExceeded
		return cortex.TimedOut, true
	case "8": // ResourceExhausted
		return cortex.Throttled, true
	case "2", "13", "14", "15": // Unknown, Internal, Unavailable, DataLoss
		return cortex.Failed, true
	}
	return cortex.Success, true
}

// endless tells whether an answer goes on until somebody leaves: an event stream, a tunnel.
func endless(method string, status int, h http.Header) bool {
	if status == http.StatusSwitchingProtocols || (method == http.MethodConnect && status/100 == 2) {
		return true
	}
	const events = "text/event-stream"
	v := h["Content-Type"]
	return len(v) == 1 && len(v[0]) >= len(events) && strings.EqualFold(v[0][:len(events)], events)
}
