package gateway

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// rewrite makes the header of the request to the target of the one that came in, in place.
func (x *exchange) rewrite(out *http.Request) {
	h := out.Header
	left := 0
	if countsHops(out) {
		left, _ = forwards(h)
	}
	trailers := wantsTrailers(h)
	upgrade := ""
	if len(h["Upgrade"]) > 0 && out.ProtoMajor == 1 && out.ProtoMinor > 0 {
		upgrade = upgradeTypes(h)
	}
	out.Trailer = x.announced()
	hopByHop(h)
	if left > 0 {
		h[headerMaxForwards] = []string{strconv.Itoa(left - 1)}
	}
	if trailers { // gRPC servers insist on it
		h["Te"] = trailersOnly
	}
	if upgrade != "" {
		h["Connection"], h["Upgrade"] = upgradeOnly, []string{upgrade}
	}
	if !x.trusted {
		tier := folded(x.route.priority.header)
		for key := range h {
			if private(key) || spoofed(key) || tier != "" && folded(key) == tier {
				delete(h, key)
			}
		}
	}
	if _, ok := x.Context.Deadline(); !ok { // then the transport does not overwrite what cannot be read
		delete(h, cortexhttp.HeaderTimeout)
	}
	delete(h, cortexhttp.HeaderExplain)
	if !out.ProtoAtLeast(1, 1) {
		delete(h, "Expect") // which means nothing in HTTP/1.0, and would have the body wait (RFC 9110, 10.1.1)
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // none, in place of the transport's own
	}
	x.onBehalf(out)
	if via := x.state.via[viaVersion(out)]; len(h["Via"]) == 0 {
		x.set(h, fieldVia, "Via", via)
	} else {
		h["Via"] = append(h["Via"], via)
	}
	x.set(h, fieldRequestID, headerRequestID, x.id)
}

// The values that the gateway adds to nearly every request have their place in the exchange: a slice of its own for each would
// cost as many allocations as the rest of the gateway.
const (
	fieldVia = iota
	fieldRequestID
	fieldFor
	fieldForwarded
	fieldHost
	fieldProto
	fieldCount
)

// set gives a header one value. A caller that appends to it gets a slice of its own.
func (x *exchange) set(h http.Header, field int, key, value string) {
	x.fields[field] = value
	h[key] = x.fields[field : field+1 : field+1]
}

// viaVersion is the index into state.via of the version that a request came by.
func viaVersion(r *http.Request) int {
	switch {
	case r.ProtoMajor >= 2:
		return 2
	case r.ProtoAtLeast(1, 1):
		return 1
	}
	return 0
}

const headerRequestID = "X-Request-Id"

var (
	trailersOnly = []string{"trailers"}
	upgradeOnly  = []string{"Upgrade"}
)

// onBehalf tells the target on whose behalf the request is made. What peers in front of this one said of that is believed if the
// peer is trusted.
func (x *exchange) onBehalf(out *http.Request) {
	h := out.Header
	client, _, err := net.SplitHostPort(out.RemoteAddr)
	if err != nil {
		client = "" // of a listener without addresses
	}
	proto := "http"
	if out.TLS != nil {
		proto = "https"
	}
	chain, element := client, forwardedElement(client, out.Host, proto)
	if x.trusted {
		if before := h["X-Forwarded-For"]; len(before) > 0 {
			chain = strings.Join(before, ", ") + ", " + client
		}
		if before := h["Forwarded"]; len(before) > 0 {
			element = strings.Join(before, ", ") + ", " + element
		}
	}
	if client == "" && !x.trusted {
		delete(h, "X-Forwarded-For")
	} else if client != "" {
		x.set(h, fieldFor, "X-Forwarded-For", chain)
	}
	x.set(h, fieldForwarded, "Forwarded", element)
	if out.Host != "" && (!x.trusted || len(h["X-Forwarded-Host"]) == 0) { // HTTP/1.0 may have none; a stranger's own is gone by now
		x.set(h, fieldHost, "X-Forwarded-Host", out.Host)
	}
	if !x.trusted || len(h["X-Forwarded-Proto"]) == 0 {
		x.set(h, fieldProto, "X-Forwarded-Proto", proto)
	}
}

// forwardedElement is what RFC 7239 makes of a hop.
func forwardedElement(client, host, proto string) string {
	var b strings.Builder
	b.Grow(len(client) + len(host) + len(proto) + len(`for="[]";host="";proto=`))
	b.WriteString("for=")
	switch {
	case client == "":
		b.WriteString("unknown")
	case strings.Contains(client, ":"): // IPv6
		address, _, _ := strings.Cut(client, "%") // its zone means nothing elsewhere
		b.WriteString(`"[` + address + `]"`)
	default:
		b.WriteString(client)
	}
	if host != "" && !strings.ContainsAny(host, "\"\\") { // a quoted string; net/http has checked the rest of it
		b.WriteString(`;host="` + host + `"`)
	}
	b.WriteString(";proto=" + proto)
	return b.String()
}

// escapedPath is a path as a client sent it, with what cannot be in one escaped, and its own escapes as they are. Package url would take a path
// with a "<" in it as a whole apart and escape it anew: with a "/" where there was a "%2F". An empty one is the default form of another.
func escapedPath(raw string) string {
	var b []byte // nil as long as there is nothing to escape
	for i := range len(raw) {
		c := raw[i]
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("/%-._~!$&'()*+,;=:@[]", c) >= 0 {
			if b != nil {
				b = append(b, c)
			}
			continue
		}
		if b == nil {
			b = append(make([]byte, 0, len(raw)+8), raw[:i]...)
		}
		b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
	}
	if b == nil {
		return raw
	}
	return string(b)
}

// hopByHop removes what a connection's two ends say to each other (RFC 9110, 7.6.1).
func hopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for line != "" {
			var name string
			name, line, _ = strings.Cut(line, ",")
			if name = strings.TrimSpace(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, key := range [...]string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings"} {
		delete(h, key)
	}
}

// wantsTrailers reports whether the client says that it takes trailers.
func wantsTrailers(h http.Header) bool { return hasToken(h["Te"], "trailers") }

// upgradeTypes are the protocols that a header wants to change to, empty for none or what is no list of them. h2c is none: it would be
// the target's HTTP/2 in this connection, past everything here; RFC 9113 has given it up.
func upgradeTypes(h http.Header) string {
	if !hasToken(h["Connection"], "upgrade") {
		return ""
	}
	list := strings.Join(h["Upgrade"], ",")
	if protocol(list) && !strings.EqualFold(list, "h2c") {
		return list
	}
	var types []string
	for e := range strings.SplitSeq(list, ",") {
		switch e = strings.TrimSpace(e); {
		case e == "":
		case !protocol(e):
			return ""
		case !strings.EqualFold(e, "h2c"):
			types = append(types, e)
		}
	}
	return strings.Join(types, ", ")
}

// protocol reports whether s is a protocol with or without a version (RFC 9110, 7.8).
func protocol(s string) bool {
	name, version, versioned := strings.Cut(s, "/")
	return token(name) && (!versioned || token(version))
}

// offered reports whether all that a target changes to, which are layers of protocols, was asked for.
func offered(asked, got string) bool {
	for e := range strings.SplitSeq(got, ",") {
		if !hasToken([]string{asked}, strings.TrimSpace(e)) {
			return false
		}
	}
	return got != ""
}

// hasToken reports whether a comma-separated list has that element.
func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for line != "" {
			var e string
			e, line, _ = strings.Cut(line, ",")
			e, _, _ = strings.Cut(e, ";")
			if strings.EqualFold(strings.TrimSpace(e), token) {
				return true
			}
		}
	}
	return false
}

// private reports whether a request header is one that guards use among themselves. From others than trusted peers they go no
// further: the target may trust the gateway's address. HeaderAttempt stays, it can only take retries away from its sender.
// key is in canonical form.
func private(key string) bool {
	return own(key) && key != cortexhttp.HeaderAttempt || key == cortexhttp.HeaderPriority
}

// spoofed reports whether a request header is one by which proxies tell whose request it is, beside those that the gateway sets anew, or
// one that becomes such a header where names with "_" and "-" are the same, as they are in CGI and WSGI. key is in canonical form.
func spoofed(key string) bool {
	switch {
	case strings.IndexByte(key, '_') >= 0:
		key = folded(key)
		return private(key) || spoofed(key) || key == "Forwarded" || key == headerRequestID
	case strings.HasPrefix(key, "X-Forwarded-"), key == "X-Real-Ip":
		return true
	}
	return false
}

// own reports whether a header is one of the guards'. key is in canonical form.
func own(key string) bool { return strings.HasPrefix(key, "Cortex-") }

// requestID is what a trusted peer calls the request, or a new name for it.
func (x *exchange) requestID() string {
	if v := x.in.Header[headerRequestID]; x.trusted && len(v) == 1 && plainID(v[0]) {
		return v[0]
	}
	return x.gateway.newID()
}

func (g *Gateway) newID() string {
	var b [32]byte
	hex(b[:16], g.random())
	hex(b[16:], g.random())
	return string(b[:])
}

func hex(b []byte, n uint64) {
	for i := range b {
		b[i] = "0123456789abcdef"[n>>60]
		n <<= 4
	}
}

// plainID reports whether a name can be passed on and logged as it is.
func plainID(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// traceID is the trace that a request belongs to (W3C Trace Context), empty where it says none. The field itself passes as it
// is: a gateway that reports no spans of its own must not put itself between a parent and its children.
func traceID(h http.Header) string {
	v := h["Traceparent"]
	if len(v) != 1 || len(v[0]) < 55 || v[0][2] != '-' || v[0][35] != '-' || v[0][52] != '-' || v[0][:2] == "ff" {
		return ""
	}
	id := v[0][3:35]
	zero := true
	for i := range len(id) {
		switch c := id[i]; {
		case c == '0':
		case c >= '1' && c <= '9' || c >= 'a' && c <= 'f':
			zero = false
		default:
			return ""
		}
	}
	if zero {
		return ""
	}
	return id
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
		if x.explain {
			h[cortexhttp.HeaderExplain] = []string{x.explanation()}
		}
	}
	x.set(h, fieldRequestID, headerRequestID, x.id) // the name in the log, whatever the target calls it
}

// foreign takes from an answer what a gateway below says of itself and not of the answer (attempts, pressure, its decision), and whatever
// else of a target could pass for the gateway's own.
func (t *Target) foreign(h http.Header) {
	for key := range h {
		if strings.HasPrefix(key, "Cortex") && !t.fromBelow(key) && own(folded(key)) {
			delete(h, key)
		}
	}
}

// fromBelow reports whether a field of an answer is one by which guards tell all those above: that they refused, that it is a fallback. A
// target that is not believed is no guard, but for that its answer is not to be tried for again: that can only hold calls back from it.
func (t *Target) fromBelow(key string) bool {
	switch key {
	case cortexhttp.HeaderRetry:
		return true
	case cortexhttp.HeaderReason, cortexhttp.HeaderFallback:
		return !t.config.Engine.DistrustRemote
	}
	return false
}

// structured is a name as structured fields have it (RFC 9651): as it is if that is a token, which begins with a letter, else as a string.
func structured(name string) string {
	if name != "" && (name[0] == '*' || name[0]|0x20 >= 'a' && name[0]|0x20 <= 'z') {
		return name
	}
	return `"` + name + `"` // of a token of HTTP, which has neither of the two that would have to be escaped
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
