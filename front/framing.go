package front

import (
	"bytes"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
)

// A request that says its length twice, by Content-Length and by Transfer-Encoding, is read by its coding here and may have been read
// by its length by a proxy in front of us: what follows on the connection may then be somebody else's request, smuggled in. RFC 9112, 6.1
// has the connection closed after the answer. net/http goes on with it, and takes the length out of the header; so it is looked for in what
// comes over the connection.

// fieldLines counts the lines that begin with a name, in what comes over a connection of HTTP/1. It counts those in bodies too: it may
// count too many, never too few.
type fieldLines struct {
	at    int // of the line, that have come
	seen  atomic.Int64
	known int64 // that belong to requests; touched by handlers only, of which there is one at a time
}

const (
	lengthLine = "\ncontent-length"
	codingLine = "\ntransfer-encoding"
)

// scan counts the lines that begin with line, which begins with a line end and is in small letters.
func (l *fieldLines) scan(p []byte, line string) {
	for i := 0; i < len(p); {
		if l.at == 0 {
			j := bytes.IndexByte(p[i:], '\n')
			if j < 0 {
				return
			}
			i += j + 1
			l.at = 1
			continue
		}
		c := p[i]
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		switch {
		case c == line[l.at]:
			if l.at++; l.at == len(line) {
				l.seen.Add(1)
				l.at = 0
			}
		case c == '\n':
			l.at = 1
		default:
			l.at = 0
		}
		i++
	}
}

// doubtful reports whether a request of HTTP/1 may have two lengths, so that its connection must not be used again. Where TLS hides what
// came, every request with a transfer coding may; and in HTTP/1.0, where net/http does not mind a coding, every one with a body.
func (c *conn) doubtful(r *http.Request) bool {
	if len(r.TransferEncoding) > 0 {
		c.codings.known++
		return c.encrypted || c.lengths.seen.Load() > c.lengths.known
	}
	n := len(r.Header["Content-Length"])
	c.lengths.known += int64(n)
	return r.ProtoMinor == 0 && n > 0 && (c.encrypted || c.codings.seen.Load() > c.codings.known)
}

// malformed says what is wrong with a request that net/http lets pass though it cannot be passed on with one meaning, "" for
// nothing: HTTP/2 carries what HTTP/1 has no form for.
func malformed(r *http.Request) string {
	switch {
	case !token(r.Method):
		return "The request's method is no token."
	case r.Host == "" && r.ProtoAtLeast(1, 1), !hostname(r.Host):
		return "The request's host is none."
	case r.URL != nil && (r.URL.Opaque != "" || r.URL.Path == "*" && r.Method != http.MethodOptions):
		// "x:http://h/p" would go to the target as what is behind its first colon, which no route has seen.
		return "The request's target is none."
	}
	for name := range r.Trailer {
		if name != "" && !token(name) { // of "a,,b" over HTTP/2
			return "The request's Trailer is no list of names."
		}
	}
	if r.ProtoMajor >= 2 {
		if v := r.Header["Content-Length"]; len(v) > 1 || len(v) == 1 && strings.Trim(v[0], "0123456789") != "" {
			return "The request's Content-Length is not one number."
		}
	}
	return ""
}

// token is RFC 9110, 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// hostname is host and port as in RFC 3986, 3.2: a name or an IPv6 address in brackets. An empty one is HTTP/1.0's: no URL of http and
// https is without a host (RFC 9110, 4.2), so that nobody has a reason to send an empty one (RFC 9112, 3.2).
func hostname(s string) bool {
	if s == "" {
		return true
	}
	var port string
	if rest, v6 := strings.CutPrefix(s, "["); v6 {
		address, after, closed := strings.Cut(rest, "]")
		if ip, err := netip.ParseAddr(address); !closed || err != nil || !ip.Is6() || !name(strings.ReplaceAll(address, ":", "")) {
			return false
		}
		if after == "" {
			return true
		}
		if port, v6 = strings.CutPrefix(after, ":"); !v6 {
			return false
		}
	} else {
		var host string
		if host, port, _ = strings.Cut(s, ":"); host == "" || !name(host) {
			return false
		}
	}
	if port == "" {
		return true
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// name is the characters of a host's name, or of an address's zone.
func name(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c == '%' && (i+2 >= len(s) || !hexadecimal(s[i+1]) || !hexadecimal(s[i+2])) {
			return false
		}
		if !alphanumeric(c) && strings.IndexByte("-._~!$&'()*+,;=%", c) < 0 {
			return false
		}
	}
	return true
}

func hexadecimal(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
