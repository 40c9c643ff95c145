package h1

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// inlineBody is the largest body that is sent by the caller of RoundTrip. With a header it fits into what the kernel takes
// from a connection without its peer's doing.
const inlineBody = 16 << 10

// outgoing is what is made of a request, once.
type outgoing struct {
	addr, host, target string
	length             int64 // of the body; -1: it is sent in chunks
	expect             bool  // the body waits for a 100
	close              bool  // the connection serves no further request
	upgrade            bool
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("invalid request: "+format, args...)
}

// check makes o of a request that can be sent.
func (o *outgoing) check(req *http.Request) error {
	u := req.URL
	switch {
	case u == nil:
		return invalid("no URL")
	case req.Header == nil:
		return invalid("no Header")
	case u.Scheme != "http":
		return invalid("the scheme %q is not supported", u.Scheme)
	case u.Host == "":
		return invalid("no host in its URL")
	case req.Method != "" && !isToken(req.Method):
		return invalid("the method %q", req.Method)
	case req.Method == http.MethodConnect:
		return invalid("the method CONNECT is not supported")
	}
	if o.host = req.Host; o.host == "" {
		o.host = u.Host
	}
	if !only(u.Host, inHost) || !only(o.host, inHost) {
		return invalid("the host %q", o.host)
	}
	o.addr = address(u.Host)
	o.host = withoutZone(o.host)
	if o.target = u.RequestURI(); !only(o.target, inTarget) {
		return invalid("white space or a control character in its URL")
	}
	if err := checkFields(req.Header, "header"); err != nil {
		return err
	}
	if req.Trailer != nil {
		if err := checkFields(req.Trailer, "trailer"); err != nil {
			return err
		}
		for key := range req.Trailer {
			if framing(key) {
				return invalid("the trailer field %q", key)
			}
		}
	}
	o.close = req.Close || hasToken(req.Header["Connection"], "close")
	o.upgrade = upgrades(req.Header)
	if req.Body == nil || req.Body == http.NoBody {
		if req.Body == nil && req.ContentLength != 0 {
			return invalid("ContentLength %d without a body", req.ContentLength)
		}
		return nil
	}
	if o.length = req.ContentLength; o.length <= 0 {
		o.length = -1
	}
	if te := req.TransferEncoding; len(te) > 0 {
		switch {
		case len(te) == 1 && te[0] == "chunked":
			o.length = -1
		case len(te) == 1 && te[0] == "identity":
		default:
			return invalid("the TransferEncoding %q", te)
		}
	}
	o.expect = strings.EqualFold(trim(req.Header.Get("Expect")), "100-continue")
	return nil
}

// address is what is dialed.
func address(host string) string {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || i < strings.LastIndexByte(host, ']') {
		return host + ":80"
	}
	if i == len(host)-1 {
		return host + "80"
	}
	return host
}

// withoutZone is the host without the zone of an IPv6 address, which is of this machine alone.
func withoutZone(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	end := strings.LastIndexByte(host, ']')
	if end < 0 {
		return host
	}
	zone := strings.IndexByte(host[:end], '%')
	if zone < 0 {
		return host
	}
	return host[:zone] + host[end:]
}

// checkFields does not quote values: they may be secrets.
func checkFields(h http.Header, what string) error {
	for key, values := range h {
		if !isToken(key) {
			return invalid("the %s field name %q", what, key)
		}
		for _, v := range values {
			if !only(v, inValue) {
				return invalid("a control character in the value of the %s field %q", what, key)
			}
		}
	}
	return nil
}

// appendHead appends the request's header section.
func (o *outgoing) appendHead(b []byte, req *http.Request) []byte {
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, o.target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, o.host...)
	b = append(b, "\r\n"...)
	for key, values := range req.Header {
		switch {
		case framing(key) || strings.EqualFold(key, "Host"):
			continue
		case key == "User-Agent":
			if len(values) == 0 || trim(values[0]) == "" {
				continue
			}
			values = values[:1]
		}
		for _, v := range values {
			b = appendField(b, key, v)
		}
	}
	if req.Close && !hasToken(req.Header["Connection"], "close") {
		b = append(b, "Connection: close\r\n"...)
	}
	switch {
	case o.length > 0 || o.length == 0 && (method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch):
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, o.length, 10)
		b = append(b, "\r\n"...)
	case o.length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
		if len(req.Trailer) > 0 {
			keys := make([]string, 0, len(req.Trailer))
			for key := range req.Trailer {
				keys = append(keys, http.CanonicalHeaderKey(key))
			}
			slices.Sort(keys)
			b = appendField(b, "Trailer", strings.Join(keys, ", "))
		}
	}
	return append(b, "\r\n"...)
}

func appendField(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, ": "...)
	b = append(b, trim(value)...)
	return append(b, "\r\n"...)
}

// appendTrailer appends the last chunk and the trailer, whose values were filled in while the body was read.
func appendTrailer(b []byte, trailer http.Header) ([]byte, error) {
	b = append(b, "0\r\n"...)
	if len(trailer) > 0 {
		if err := checkFields(trailer, "trailer"); err != nil {
			return b, err
		}
	}
	for key, values := range trailer {
		if framing(key) {
			return b, invalid("the trailer field %q", key)
		}
		for _, v := range values {
			b = appendField(b, key, v)
		}
	}
	return append(b, "\r\n"...), nil
}

// replayable reports whether it does no harm to send the request twice. PUT and DELETE are left to who knows more.
func replayable(req *http.Request) bool {
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	for _, key := range [...]string{"Idempotency-Key", "X-Idempotency-Key"} {
		if v, ok := req.Header[key]; ok && (len(v) == 0 || v[0] != "") {
			return true
		}
	}
	return false
}
