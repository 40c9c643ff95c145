package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/fallback"
	"github.com/seed-a29ca62a/cortex/h1"
)

// judged decides on the target's answer, of which the header is there: it stays, or a fallback takes its place.
func (x *exchange) judged(res *http.Response) {
	if x.upload.answered() {
		hangUp(x.w, x.in)
	}
	x.upstream = x.gateway.now() - x.arrived
	// What a gateway below says of this answer (that it refused, that it is a fallback, that it is not to be tried again)
	// is still true here.
	below := len(res.Header[cortexhttp.HeaderFallback]) > 0
	x.target.foreign(res.Header)
	if x.report.Reason != cortex.ReasonNone && res.StatusCode >= 500 && !x.triedAgain() {
		if a, ok := x.fallback(nil); ok {
			substitute(x.in, res, a)
			x.fellBack(a)
			if speaksGRPC(x.in) {
				res.Trailer = http.Header{headerGRPCStatus: {"0"}}
			}
			x.tell(res.Header, true)
			x.status = res.StatusCode
			return
		}
	}
	x.tell(res.Header, false)
	x.finalGRPC(res.Header)
	if x.report.Reason != cortex.ReasonNone && res.StatusCode >= 500 {
		x.proxyStatus(res.Header, "", res.StatusCode, x.report.Reason.String())
	}
	x.status = res.StatusCode
	x.answer, x.body = res, res.Body
	if x.keep, x.public = x.route.fallback.stores(x.in, res); below {
		x.keep = false
	} else if x.keep && res.ContentLength > 0 {
		if x.keep = x.reserve(res.ContentLength); x.keep {
			x.copied = make([]byte, 0, res.ContentLength)
		}
	}
	if res.Body != http.NoBody {
		res.Body = x
	}
}

// failed answers where there is no answer of the target.
func (x *exchange) failed(err error) {
	w := x.w
	x.upstream = x.gateway.now() - x.arrived
	x.gateway.logger.Debug("call failed", "target", x.target.Name, "route", x.route.path, "attempts", x.report.Attempts,
		"reason", x.report.Reason.String(), "error", err)
	late := x.upload.late() // net/http then cancels the context of the request, as if the client had gone
	if x.gone() && !late && !x.upload.wrong() {
		x.status = statusClientGone
		w.WriteHeader(x.status) // should anybody listen: it is no success
		return
	}
	_, faulty := cortexhttp.RequestFault(err)
	if a, ok := x.fallback(err); ok && !faulty && !late && !x.upload.failed() && !x.triedAgain() {
		x.fellBack(a)
		fill(w.Header(), a)
		x.tell(w.Header(), true)
		x.status = a.Value.status
		w.WriteHeader(x.status)
		if x.in.Method != http.MethodHead && bodyAllowed(x.status) {
			n, _ := w.Write(a.Value.body) // the client may have gone; there is nobody else to tell
			x.sent += int64(n)
		}
		if speaksGRPC(x.in) {
			w.Header()[http.TrailerPrefix+headerGRPCStatus] = []string{"0"}
		}
		return
	}
	p, kind := x.problem(err)
	if late {
		p.Status, p.Detail, kind = http.StatusRequestTimeout, "The rest of the request's body did not come in time.", "http_request_error"
		p.Reason = ""
		x.report.Reason = cortex.ReasonNone // which would be that the caller gave up
		hangUp(w, x.in)
	} else {
		x.upload.renew()
	}
	x.tell(w.Header(), false)
	x.proxyStatus(w.Header(), kind, 0, p.Reason)
	x.status = p.Status
	switch p.Status {
	case http.StatusRequestTimeout:
		x.gateway.lateBodies.Add(1)
	case http.StatusRequestEntityTooLarge:
		x.gateway.longBodies.Add(1)
	}
	writeProblem(w, x.in, p)
}

// fallback is what the client gets in place of the target's answer. In shadow mode it gets what it would have got without a guard.
func (x *exchange) fallback(cause error) (fallback.Result[*stored], bool) {
	if x.route.shadow {
		return fallback.Result[*stored]{}, false
	}
	a, ok := x.route.fallback.answer(x.in, cause)
	return a, ok && (!speaksGRPC(x.in) || grpcContent(a.Value.header) && a.Value.status == http.StatusOK) // any other would be no answer
}

// problem is the answer to a call that has none, and what RFC 9209 calls the error: 503 where a guard refused it, 504 where time ran out, 502 where there was no
// connection or it broke. What the error says in detail (addresses, for one) is for the log, not for clients.
func (x *exchange) problem(err error) (p cortexhttp.Problem, kind string) {
	if r := x.report.Rejection; r != nil {
		p = cortexhttp.RejectionProblem(r)
		p.Attempts = x.report.Attempts
		if !x.trusted { // the gateway's view of the target is for those who get it in Cortex-Pressure, too
			p.Readings, p.Detail = nil, ""
		}
		if r.Reason == cortex.ReasonShed {
			return p, "http_request_denied"
		}
		return p, "destination_unavailable"
	}
	p = cortexhttp.Problem{Status: http.StatusBadGateway, Attempts: x.report.Attempts}
	if x.report.Reason != cortex.ReasonNone {
		p.Reason = x.report.Reason.String()
	}
	status, faulty := cortexhttp.RequestFault(err)
	switch {
	case x.upload.tooLong():
		p.Status, p.Detail, kind = http.StatusRequestEntityTooLarge, "The body of the request is longer than the gateway takes.", "http_request_error"
		hangUp(x.w, x.in)
	case x.upload.failed():
		p.Status, p.Detail, kind = http.StatusBadRequest, "The body of the request broke off, or is malformed.", "http_request_error"
	case faulty && status == http.StatusRequestHeaderFieldsTooLarge:
		p.Status, p.Detail, kind = status, "The header of the request is larger than the target takes.", "http_request_error"
	case faulty:
		p.Status, p.Detail, kind = status, "The request cannot be passed on: it is malformed.", "http_request_error"
	case errors.Is(err, errSwitched):
		p.Detail, kind = "The target changed to another protocol than it was asked to.", "http_upgrade_failed"
	case x.report.ConnectFailed && (x.report.TimedOut || timedOut(err)):
		p.Status, p.Detail, kind = http.StatusGatewayTimeout, "There was no connection to the target in time.", "connection_timeout"
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsTimeout {
			kind = "dns_timeout"
		}
	case x.report.TimedOut:
		p.Status, p.Detail, kind = http.StatusGatewayTimeout, "The target did not answer in time.", "http_response_timeout"
	case errors.Is(err, context.DeadlineExceeded):
		p.Status, p.Detail, kind = http.StatusGatewayTimeout, "The time that the caller gave ran out.", "http_response_timeout"
	case x.report.ConnectFailed:
		p.Detail, kind = "There is no connection to the target.", connectKind(err)
	case malformed(err):
		p.Detail, kind = "The target's answer is malformed.", "http_protocol_error"
	default:
		p.Detail, kind = "The connection to the target broke.", "connection_terminated"
	}
	return p, kind
}

// timedOut reports whether an error is that of a time that passed.
func timedOut(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return errors.Is(err, context.DeadlineExceeded) || ok && e.Timeout()
}

// connectKind is what RFC 9209 calls the error of a connection that could not be made, as far as it can be told.
func connectKind(err error) string {
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "dns_error"
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "destination_ip_unroutable"
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" {
		return "tls_alert_received"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "tls_certificate_error"
	}
	if e, ok := errors.AsType[*cortex.CallError](err); ok {
		err = e.Err
	}
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.HasPrefix(err.Error(), "tls: ") { // most of them have no type
			return "tls_protocol_error"
		}
	}
	return "destination_unavailable"
}

// malformed reports whether it was the target's answer that could not be understood.
func malformed(err error) bool {
	if e, ok := errors.AsType[*h1.Error](err); ok {
		return e.Op == h1.OpResponse
	}
	s := err.Error()
	return errors.Is(err, errMalformed) || strings.Contains(s, "malformed HTTP") || strings.Contains(s, "PROTOCOL_ERROR")
}

// proxyStatus says in the words of RFC 9209 what became of the request here, after what proxies nearer to the target said. An
// empty kind, a status of 0 and empty details are left out.
func (x *exchange) proxyStatus(h http.Header, kind string, received int, details string) {
	v := x.state.name
	if kind != "" {
		v += "; error=" + kind
	}
	if received > 0 {
		v += "; received-status=" + attemptsValue(received)[0]
	}
	if details != "" {
		v += `; details="` + details + `"`
	}
	h["Proxy-Status"] = append(h["Proxy-Status"], v)
}

// triedAgain reports whether the layer above is likely to try this failed call again. It then needs to see the failure: of a
// fallback it would take it for done. It does not try where a guard says not to.
func (x *exchange) triedAgain() bool {
	switch x.report.Reason {
	case cortex.ReasonRetriedAbove, cortex.ReasonShed,
		cortex.ReasonNotRetryable: // by this layer, as below another it keeps no body; by that one it may be
		return x.retriedAbove
	}
	return false
}

func (x *exchange) fellBack(a fallback.Result[*stored]) {
	if a.Source == fallback.FromCache {
		x.fallbackKind = "cache"
		x.target.traffic.cacheFallbacks.Add(1)
	} else {
		x.fallbackKind = "static"
		x.target.traffic.staticFallbacks.Add(1)
	}
}

// since is how long the exchange has taken so far.
func (x *exchange) since() time.Duration { return x.gateway.now() - x.arrived }
