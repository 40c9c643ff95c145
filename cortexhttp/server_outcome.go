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
// that has none. h is the answer's header with what was added to it as trailers.
func grpcOutcome(h http.Header) (o cortex.Outcome, ok bool) {
	if v := h["Content-Type"]; len(v) == 0 || !strings.HasPrefix(v[0], "application/grpc") {
		return 0, false
	}
	const key, trailer = "Grpc-Status", http.TrailerPrefix + "Grpc-Status"
	if code, there := single(h, trailer); there { // not announced
		h = http.Header{key: {code}}
	}
	c, ok := grpcClass(h, false)
	if canceled, _ := single(h, key); ok && c.Outcome == cortex.Neutral && canceled != "1" {
		return cortex.Success, true // finds fault with the request: an answer, as a 404 is
	}
	return c.Outcome, ok
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
