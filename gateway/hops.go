package gateway

import (
	"net/http"
	"strings"
)

// maxHops bounds how many proxies a request may have come through.
const maxHops = 32

const headerMaxForwards = "Max-Forwards"

// farthest is the largest value of Max-Forwards that is sent on; of a larger one nobody would see the end.
const farthest = 99_999_999

// looped reports whether a request has been here before, or has come through too many others: a route that leads back to the
// gateway would multiply every request until something breaks.
func (g *Gateway) looped(h http.Header) bool {
	via := h["Via"]
	if len(via) == 0 {
		return false
	}
	hops := len(via)
	for _, line := range via {
		if strings.Contains(line, g.mark) {
			return true
		}
		hops += strings.Count(line, ",")
	}
	return hops >= maxHops
}

// countsHops reports whether a request may say how far it goes (RFC 9110, 7.6.2): of other methods the field means nothing.
func countsHops(r *http.Request) bool {
	return (r.Method == http.MethodOptions || r.Method == http.MethodTrace) && len(r.Header[headerMaxForwards]) > 0
}

// forwards is how many more times a request may be passed on. What is no number bounds nothing, and is not ok.
func forwards(h http.Header) (n int, ok bool) {
	v := h[headerMaxForwards]
	if len(v) != 1 || v[0] == "" {
		return 0, false
	}
	for i := range len(v[0]) {
		c := v[0][i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(10*n+int(c-'0'), farthest)
	}
	return n, true
}

// lastHop answers a request that may go no further, in the target's stead, or cannot be understood. It reports whether it did.
func (g *Gateway) lastHop(s *state, w http.ResponseWriter, r *http.Request) bool {
	n, ok := forwards(r.Header)
	switch {
	case !ok:
		g.problem(s, w, r, http.StatusBadRequest, "http_request_error", "The value of Max-Forwards is no number.")
	case n > 0:
		return false
	case r.Method == http.MethodTrace:
		// An answer would tell what proxies before this one have added, secrets perhaps among it.
		w.Header().Set("Allow", http.MethodOptions)
		g.problem(s, w, r, http.StatusMethodNotAllowed, "http_request_denied", "The gateway itself answers no TRACE.")
	default:
		h := w.Header()
		if methods := s.table.allowed(r.URL.Path); len(methods) > 0 {
			h.Set("Allow", strings.Join(methods, ", "))
		}
		h.Set(headerRequestID, g.newID())
		w.WriteHeader(http.StatusNoContent)
		g.logRefused(h, r, http.StatusNoContent)
	}
	return true
}
