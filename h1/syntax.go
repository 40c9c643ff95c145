package h1

import (
	"net/http"
	"strings"
)

const (
	inToken  = 1 << iota // a byte of a method or a field name
	inValue              // of a field value
	inTarget             // of a request's target
	inHost               // of a Host field
)

// class says where a byte may stand.
var class = func() (t [256]uint8) {
	for i := range t {
		c := byte(i)
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if alnum || c > 0 && strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0 {
			t[i] |= inToken
		}
		if c >= ' ' && c != 0x7f || c == '\t' {
			t[i] |= inValue
		}
		if c > ' ' && c != 0x7f {
			t[i] |= inTarget
		}
		if alnum || c > 0 && strings.IndexByte("!$%&'()*+,-.:;=[]_~", c) >= 0 {
			t[i] |= inHost
		}
	}
	return t
}()

func only(s string, c uint8) bool {
	for i := 0; i < len(s); i++ {
		if class[s[i]]&c == 0 {
			return false
		}
	}
	return true
}

func isToken(s string) bool { return s != "" && only(s, inToken) }

// trim takes the optional white space of HTTP from both ends.
func trim(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// hasToken reports whether a field that is a list of tokens has the one given, whatever its case.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for v != "" {
			var item string
			item, v, _ = strings.Cut(v, ",")
			if strings.EqualFold(trim(item), token) {
				return true
			}
		}
	}
	return false
}

// framing reports whether a field says where a message ends. In a request and in a trailer such fields are never passed on.
func framing(key string) bool {
	switch len(key) {
	case len("Trailer"):
		return strings.EqualFold(key, "Trailer")
	case len("Content-Length"):
		return strings.EqualFold(key, "Content-Length")
	case len("Transfer-Encoding"):
		return strings.EqualFold(key, "Transfer-Encoding")
	}
	return false
}

func upgrades(h http.Header) bool {
	return h.Get("Upgrade") != "" && hasToken(h["Connection"], "upgrade")
}
