package gateway

import (
	"io"
	"net/http"
	"testing"
)

// Where a client sent a character that has to be escaped, all of its path was escaped anew: an escaped slash, which is none, became one.
func TestEscapesOfAPathStayBesideWhatHasToBeEscaped(t *testing.T) {
	s := realGateway(t, target(realUpstream(t, nil, "http", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Path", r.RequestURI)
	})), ""))
	for sent, want := range map[string]string{
		"/a%2fb": "/a%2fb", "/a%2fb<": "/a%2fb%3C", "/a%2fb|c?q=<%2f": "/a%2fb%7Cc?q=<%2f", "/%C3%A9/\xc3\xa9%2F": "/%C3%A9/%C3%A9%2F",
		"/a\"b": "/a%22b", "/%41%2e": "/%41%2e", "/": "/", "/a?": "/a?", "/[x]": "/[x]", "/a%2f^%25": "/a%2f%5E%25",
	} {
		c, br := rawConn(t, nil, "http/1.1", s)
		io.WriteString(c, "GET "+sent+" HTTP/1.1\r\nHost: h\r\n\r\n")
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get("X-Path"); got != want {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
		c.Close()
	}
}
