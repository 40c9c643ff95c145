package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"strconv"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/fallback"
)

// rewrite makes the request to the target of the one that came in. The endpoint is picked for each attempt, later.
func rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In.Context())
	if key := x.route.priority.header; key != "" && !x.trusted {
		delete(p.Out.Header, key)
	}
	if _, ok := x.Context.Deadline(); !ok { // then the transport does not overwrite what cannot be read
		delete(p.Out.Header, cortexhttp.HeaderTimeout)
	}
	forward(p, x.trusted)
}

// private reports whether a request header is one that guards use among themselves. From others than trusted peers they go no
// further: the target may trust the gateway's address. HeaderAttempt stays, it can only take retries away from its sender.
// key is in canonical form.
func private(key string) bool {
	return own(key) && key != cortexhttp.HeaderAttempt || key == cortexhttp.HeaderPriority
}

// forward tells the target on whose behalf the request is made. What peers in front of this one said of that is believed if
// the peer is trusted.
func forward(p *httputil.ProxyRequest, trusted bool) {
	// Queries that Go's parser does not take are the target's affair: nothing here depends on them.
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	if !trusted {
		for key := range p.Out.Header {
			if private(key) {
				delete(p.Out.Header, key)
			}
		}
		p.SetXForwarded()
		return
	}
	p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
	p.SetXForwarded()
	for _, key := range [...]string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := p.In.Header[key]; len(v) > 0 {
			p.Out.Header[key] = v
		}
	}
}

// passOn is called with the target's answer, once its header is there.
func passOn(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	x.upload.renew()
	// What a gateway below says of this answer (that it refused, that it is a fallback, that it is not to be tried again)
	// is still true here. Its attempts and its pressure are its own affair.
	delete(res.Header, cortexhttp.HeaderAttempts)
	delete(res.Header, cortexhttp.HeaderPressure)
	if x.report.Reason != cortex.ReasonNone && res.StatusCode >= 500 && !x.triedAgain() {
		if a, ok := x.route.fallback.answer(x.in, nil); ok {
			substitute(x.in, res, a)
			x.fellBack(a)
			x.tell(res.Header, true)
			x.status = res.StatusCode
			return nil
		}
	}
	x.tell(res.Header, false)
	x.status = res.StatusCode
	if res.StatusCode == http.StatusSwitchingProtocols {
		x.upgraded = true
		x.gateway.upgraded.add()
		return nil // its body is a connection
	}
	x.answer, x.body = res, res.Body
	if x.keep, x.public = x.route.fallback.stores(x.in, res); x.keep && res.ContentLength > 0 {
		if x.keep = x.reserve(res.ContentLength); x.keep {
			x.copied = make([]byte, 0, res.ContentLength)
		}
	}
	res.Body = x
	return nil
}

// failed is called where there is no answer of the target.
func failed(w http.ResponseWriter, out *http.Request, err error) {
	x := exchangeOf(out.Context())
	x.gateway.log.Debug("call failed", "target", x.target.Name, "route", x.route.path, "attempts", x.report.Attempts,
		"reason", x.report.Reason.String(), "error", err)
	late := x.upload.late() // net/http then cancels the context of the request, as if the client had gone
	if x.gone() && !late {
		x.status = statusClientGone
		w.WriteHeader(x.status) // should anybody listen: it is no success
		return
	}
	if a, ok := x.route.fallback.answer(x.in, err); ok && !late && !x.upload.failed() && !x.triedAgain() {
		x.fellBack(a)
		fill(w.Header(), a)
		x.tell(w.Header(), true)
		x.status = a.Value.status
		w.WriteHeader(x.status)
		if x.in.Method != http.MethodHead && bodyAllowed(x.status) {
			w.Write(a.Value.body) // the client may have gone; there is nobody else to tell
		}
		return
	}
	p := x.problem(err)
	if late {
		p.Status, p.Detail = http.StatusRequestTimeout, "The rest of the request's body did not come in time."
		p.Reason = ""
		x.report.Reason = cortex.ReasonNone // which would be that the caller gave up
		w.Header().Set("Connection", "close")
	} else {
		x.upload.renew()
	}
	x.tell(w.Header(), false)
	x.status = p.Status
	cortexhttp.WriteProblem(w, x.in, p)
}

// problem is the answer to a call that has none: 503 where a guard refused it, 504 where time ran out, 502 where there was no
// connection or it broke. What the error says in detail (addresses, for one) is for the log, not for clients.
func (x *exchange) problem(err error) cortexhttp.Problem {
	if r := x.report.Rejection; r != nil {
		p := cortexhttp.RejectionProblem(r)
		p.Attempts = x.report.Attempts
		return p
	}
	p := cortexhttp.Problem{Status: http.StatusBadGateway, Attempts: x.report.Attempts}
	if x.report.Reason != cortex.ReasonNone {
		p.Reason = x.report.Reason.String()
	}
	switch {
	case x.upload.failed():
		p.Status, p.Detail = http.StatusBadRequest, "The body of the request broke off, or is malformed."
	case x.report.TimedOut:
		p.Status, p.Detail = http.StatusGatewayTimeout, "The target did not answer in time."
	case errors.Is(err, context.DeadlineExceeded):
		p.Status, p.Detail = http.StatusGatewayTimeout, "The time that the caller gave ran out."
	case x.report.ConnectFailed:
		p.Detail = "There is no connection to the target."
	default:
		p.Detail = "The connection to the target broke."
	}
	return p
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
		x.target.traffic.cacheFallbacks.Add(1)
	} else {
		x.target.traffic.staticFallbacks.Add(1)
	}
}

// tell writes what the client is to know of the gateway into the header of an answer. x.report is that of the whole call.
func (x *exchange) tell(h http.Header, substituted bool) {
	h[cortexhttp.HeaderAttempts] = attemptsValue(x.report.Attempts)
	switch x.report.Reason {
	case cortex.ReasonNone:
	case cortex.ReasonNotRetryable, cortex.ReasonRetriedAbove, cortex.ReasonDoNotRetry:
		// Nothing was refused here and no retries ran out. Where a gateway below says why, that is the reason.
		if len(h[cortexhttp.HeaderReason]) == 0 {
			h[cortexhttp.HeaderReason] = []string{x.report.Reason.String()}
		}
	default:
		h[cortexhttp.HeaderReason] = []string{x.report.Reason.String()}
		if !substituted && (x.report.Attempts > 1 || x.report.Reason == cortex.ReasonBudget) {
			h[cortexhttp.HeaderRetry] = []string{"no"}
		}
	}
	if x.trusted {
		h[cortexhttp.HeaderPressure] = x.target.pressureHeader(x.arrived)
	}
}

// small are the values of HeaderAttempts that nearly all answers have; they are shared, so that they cost nothing.
var small = func() (s [8][]string) {
	for i := range s {
		s[i] = []string{strconv.Itoa(i)}
	}
	return s
}()

func attemptsValue(n int) []string {
	if n >= 0 && n < len(small) {
		return small[n]
	}
	return []string{strconv.Itoa(n)}
}
