package gateway

import (
	"io"
	"maps"
	"net/http"
	"strings"
)

// What comes after a message's body may be merged with its header by who reads it, without anybody having looked at it in between. So
// nothing passes there that the gateway, or who takes the message, decides by (RFC 9110, 6.5.1).

// neverTrailing are fields that no trailer passes with: of the connection, of framing and routing, of the content's form, and those that say
// whose message it is.
var neverTrailing = names("Connection Proxy-Connection Keep-Alive Te Trailer Transfer-Encoding Upgrade Http2-Settings Content-Length Host",
	"Set-Cookie Via Forwarded X-Request-Id Content-Encoding Content-Type Content-Range Content-Location")

// neverTrailingRequests are those that a request's does not pass with, beside them: of authentication, and what modifies
// a request. In an answer that is for the client to judge; with gRPC a trailer's names are the application's.
var neverTrailingRequests = names("Authorization Proxy-Authorization Proxy-Authenticate Www-Authenticate Cookie User-Agent",
	"Cache-Control Expect Max-Forwards Pragma Range If-Match If-None-Match If-Modified-Since If-Unmodified-Since If-Range",
	"Idempotency-Key Traceparent Tracestate", "Age Date Expires Location Retry-After Vary Warning")

func names(lists ...string) map[string]bool {
	m := make(map[string]bool)
	for _, list := range lists {
		for _, name := range strings.Fields(list) {
			m[name] = true
		}
	}
	return m
}

// announced are the names of the request's trailer that may reach the target, nil for none: those that its header has announced and that
// say nothing of whose request it is and how it is to be treated, whoever sends it. Transports add the values, see trailed. It is to be
// called before the request's header is changed.
func (x *exchange) announced() http.Header {
	if x.upload == nil {
		return nil
	}
	var t http.Header
	for name := range x.in.Trailer {
		key := folded(name)
		if name == "" || neverTrailing[key] || neverTrailingRequests[key] || own(key) || private(key) || spoofed(key) || key == folded(x.route.priority.header) ||
			hasToken(x.in.Header["Connection"], name) {
			continue
		}
		if t == nil {
			t = make(http.Header)
		}
		t[name] = nil
	}
	return t
}

// trailed is the body of one attempt's request that has a trailer. Its transport reads the trailer once it has read the end of the body; each
// attempt has one of its own, as the transport of the one before may still be reading that.
type trailed struct {
	io.ReadCloser
	upload  *upload
	trailer http.Header
}

// withTrailer is the request of an attempt, with a trailer of its own if it has one.
func withTrailer(r *http.Request) *http.Request {
	if len(r.Trailer) == 0 || r.Body == nil || r.Body == http.NoBody {
		return r
	}
	r = r.WithContext(r.Context())
	r.Trailer = maps.Clone(r.Trailer)
	r.Body = &trailed{r.Body, exchangeOf(r.Context()).upload, r.Trailer}
	return r
}

func (t *trailed) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		came := t.upload.came()
		for key := range t.trailer {
			if values := came[key]; len(values) > 0 {
				t.trailer[key] = values
			}
		}
	}
	return n, err
}

// came is the client's trailer, if all of the body was read.
func (u *upload) came() http.Header {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.trailer
}

// bare takes from the trailer of an answer what must not be in one. What a gateway or guard below says there of the call (that it
// refused it, that it is not to be tried again) passes as it does in the header, and so does all that gRPC has.
func (t *Target) bare(trailer http.Header) {
	for name := range trailer {
		if t.fromBelow(name) {
			continue
		}
		if key := folded(name); neverTrailing[key] || own(key) || !token(name) {
			delete(trailer, name)
		}
	}
}

// token is RFC 9110, 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// folded is the name of a header as those know it for whom "_" and "-" are the same, in canonical form if name is.
func folded(name string) string {
	if strings.IndexByte(name, '_') < 0 {
		return name
	}
	return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
}
