package gateway

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// This file is what gRPC wants otherwise than HTTP: the caller's deadline has a field of its own, and answers have a status of their own.

const (
	headerGRPCTimeout  = "Grpc-Timeout"
	headerGRPCStatus   = "Grpc-Status"
	headerGRPCMessage  = "Grpc-Message"
	headerGRPCPushback = "Grpc-Retry-Pushback-Ms"
)

// Status codes of gRPC that the gateway answers with.
const (
	grpcDeadlineExceeded  = 4
	grpcResourceExhausted = 8
	grpcUnimplemented     = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
)

// speaksGRPC reports whether a client reads answers as those of gRPC: over HTTP/2, and not grpc-web, whose clients read HTTP.
func speaksGRPC(r *http.Request) bool { return r.ProtoMajor >= 2 && grpcContent(r.Header) }

// grpcContent reports whether a header is that of a call of gRPC. grpc-web is none: its bodies are whole.
func grpcContent(h http.Header) bool {
	v := h["Content-Type"]
	if len(v) != 1 {
		return false
	}
	rest, ok := strings.CutPrefix(v[0], "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// parseGRPCTimeout reads a value of grpc-timeout: one to eight digits and a unit. Anything else is not ok.
func parseGRPCTimeout(s string) (d time.Duration, ok bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	var unit time.Duration
	switch s[len(s)-1] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, false
	}
	var n time.Duration
	for _, c := range []byte(s[:len(s)-1]) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + time.Duration(c-'0')
	}
	if n > maxGRPCTimeout/unit {
		return maxGRPCTimeout, true
	}
	return n * unit, true
}

// maxGRPCTimeout is longer than any process runs, and can be added to the time of day.
const maxGRPCTimeout = time.Duration(math.MaxInt64) / 4

// formatGRPCTimeout is the value for a time that is left, in the finest unit in which it has eight digits, rounded up: a target that ends
// a call no earlier than the gateway does leaves it to that to say why.
func formatGRPCTimeout(d time.Duration) string {
	const limit = 99999999
	if d <= 0 {
		return "0n"
	}
	for _, u := range [...]struct {
		length time.Duration
		name   byte
	}{{time.Nanosecond, 'n'}, {time.Microsecond, 'u'}, {time.Millisecond, 'm'}, {time.Second, 'S'}, {time.Minute, 'M'}} {
		if n := (d-1)/u.length + 1; n <= limit {
			return string(append(strconv.AppendInt(nil, int64(n), 10), u.name))
		}
	}
	return strconv.FormatInt(int64((d-1)/time.Hour+1), 10) + "H"
}

// takeGRPCTimeout is what a request says of its deadline in gRPC's way. That of a call of gRPC which cannot be read is malformed, and refused as
// servers of gRPC do, in whose answer it would be a failure of theirs. Of other requests, which gateways from JSON to gRPC know it
// from, it is taken away then.
func takeGRPCTimeout(h http.Header) (d time.Duration, ok, malformed bool) {
	v, there := h[headerGRPCTimeout]
	if !there {
		return 0, false, false
	}
	if len(v) == 1 {
		if d, ok = parseGRPCTimeout(v[0]); ok {
			return d, true, false
		}
	}
	if grpcContent(h) {
		return 0, false, true
	}
	delete(h, headerGRPCTimeout)
	return 0, false, false
}

// limit ends the call when its caller waits no longer. In gRPC's field that is believed of everybody, as it can only take time from its
// sender, but as a stranger's: also where a trusted peer sends it, which may pass on what it was told.
func (x *exchange) limit(d time.Duration) context.CancelFunc {
	ctx, cancel := context.WithTimeout(x.Context, d)
	x.Context = ctx
	return cancel
}

// stampGRPC tells the target of an attempt how much time is left for it.
func (x *exchange) stampGRPC(h http.Header) {
	if len(h[headerGRPCTimeout]) == 0 && !grpcContent(h) {
		return
	}
	if due, ok := x.Context.Deadline(); ok {
		h[headerGRPCTimeout] = []string{formatGRPCTimeout(time.Until(due))}
	}
}

// byStranger reports whether the deadline of a call is that of somebody who is not trusted.
func byStranger(r *http.Request) bool { return exchangeOf(r.Context()).strange }

// writeProblem answers a request with a problem: a caller of gRPC with a status, in a header without a body.
func writeProblem(w http.ResponseWriter, r *http.Request, p cortexhttp.Problem) {
	if !speaksGRPC(r) {
		cortexhttp.WriteProblem(w, r, p)
		return
	}
	h := w.Header()
	for _, key := range [...]string{"Content-Encoding", "Content-Length", "Content-Range", "Etag", "Last-Modified", "Allow"} {
		delete(h, key)
	}
	h["Content-Type"] = []string{"application/grpc"}
	h[headerGRPCStatus] = []string{strconv.Itoa(grpcCode(p))}
	text := p.Detail
	if text == "" {
		text = http.StatusText(p.Status)
	}
	if p.Reason != "" {
		h[cortexhttp.HeaderReason] = []string{p.Reason}
		text = p.Reason + ": " + text
	}
	h[headerGRPCMessage] = []string{grpcMessage("cortex: " + text)}
	switch {
	case final(h), p.Reason == cortex.ReasonCircuitOpen.String(), p.Reason == cortex.ReasonCircuitEmergency.String():
		h[headerGRPCPushback] = []string{"-1"} // failing fast is the point of opening
	case p.RetryAfterMS > 0:
		h[headerGRPCPushback] = []string{strconv.FormatInt(p.RetryAfterMS, 10)}
	default: // of the port
		if s, err := strconv.ParseUint(h.Get("Retry-After"), 10, 20); err == nil {
			h[headerGRPCPushback] = []string{strconv.FormatUint(1000*s, 10)}
		}
	}
	w.WriteHeader(http.StatusOK)
}

// grpcCode is the code for a problem.
func grpcCode(p cortexhttp.Problem) int {
	switch p.Status {
	case http.StatusServiceUnavailable:
		if p.Reason == cortex.ReasonShed.String() {
			return grpcResourceExhausted
		}
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return grpcDeadlineExceeded
	case http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge:
		return grpcResourceExhausted // not unavailable: it would be no smaller the next time
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return grpcUnimplemented
	case http.StatusBadRequest, http.StatusLoopDetected:
		return grpcInternal // as gRPC takes a 400
	}
	return grpcUnavailable
}

// grpcMessage escapes a text as gRPC does.
func grpcMessage(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte("0123456789ABCDEF"[c>>4])
			b.WriteByte("0123456789ABCDEF"[c&15])
		}
	}
	return b.String()
}

// final reports whether an answer says that the layer above is to make no retries.
func final(h http.Header) bool {
	v := h[cortexhttp.HeaderRetry]
	return len(v) > 0 && strings.EqualFold(v[0], "no")
}

// finalGRPC says in gRPC's words, in the status that a target gave in its header, that the layer above is to make no retries.
func (x *exchange) finalGRPC(h http.Header) {
	if final(h) && len(h[headerGRPCStatus]) > 0 && speaksGRPC(x.in) {
		h[headerGRPCPushback] = []string{"-1"}
	}
}

// grpcTimeUp ends a stream that has begun, and that its caller's deadline has cut off, with the status that says so, in place of a reset,
// which would be an internal error. It reports whether it did.
func (x *exchange) grpcTimeUp() bool {
	if !speaksGRPC(x.in) || x.gone() || x.Err() != context.DeadlineExceeded {
		return false
	}
	x.broken, x.lapsed = false, true
	h := x.w.Header()
	h[http.TrailerPrefix+headerGRPCStatus] = []string{strconv.Itoa(grpcDeadlineExceeded)}
	h[http.TrailerPrefix+headerGRPCMessage] = []string{grpcMessage("cortex: The time that the caller gave ran out.")}
	return true
}
