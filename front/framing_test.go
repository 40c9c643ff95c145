package front

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
)

// The lines are found however the bytes are cut.
func TestLengthLines(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"\n", "\r\n", "Content-Length", "content-length: 3", "content-lengt", "\ncontent-", "x", "\n\n", "CONTENT-LENGTH", "\ncontent\n"}
	for range 2000 {
		var text strings.Builder
		for range rng.IntN(12) {
			text.WriteString(words[rng.IntN(len(words))])
		}
		p := []byte(text.String())
		want := int64(strings.Count(strings.ToLower(text.String()), lengthLine))
		var l fieldLines
		for rest := p; len(rest) > 0; {
			n := 1 + rng.IntN(len(rest))
			l.scan(rest[:n], lengthLine)
			rest = rest[n:]
		}
		if got := l.seen.Load(); got != want {
			t.Fatalf("%q: %d, want %d", p, got, want)
		}
	}
}

// A request with two lengths was answered, and its connection used again: what a proxy in front took for its body was the next request
// (CL.TE). Those with one length keep theirs, in whatever order they come.
func TestRequestsWithTwoLengthsEndTheirConnection(t *testing.T) {
	chunked := "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n"
	length := "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
	both := "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	for _, c := range []struct {
		name  string
		say   []string
		close []bool
	}{
		{"one length each", []string{chunked, length, chunked, length, "GET / HTTP/1.1\r\nHost: h\r\n\r\n", chunked}, make([]bool, 6)},
		{"both", []string{length, chunked, both}, []bool{false, false, true}},
		{"both, in small letters", []string{strings.ToLower(both[len("POST / HTTP/1.1\r\n"):])}, []bool{true}},
		{"1.0", []string{"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na",
			"POST / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na"}, []bool{false, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Limits{}, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }, func(w *world) {
				k := w.dial("192.0.2.1:1")
				defer k.Close()
				for i, text := range c.say {
					if !strings.Contains(text, "HTTP/1") {
						text = "POST / HTTP/1.1\r\n" + text
					}
					go io.WriteString(k, text)
					res, _ := k.answer()
					if res == nil || res.Close != c.close[i] {
						t.Fatalf("request %d: %+v, want closed %v", i, res, c.close[i])
					}
					synctest.Wait()
				}
			})
		})
	}
}

// What a pipelined request says of its length must not pass for that of the one before.
func TestPipelinedRequestWithTwoLengths(t *testing.T) {
	inWorld(t, Limits{}, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		go io.WriteString(k, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"+
			"POST /two HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n")
		if res, _ := k.answer(); res == nil || res.Close {
			t.Fatalf("the first: %+v", res)
		}
		if res, _ := k.answer(); res == nil || !res.Close {
			t.Fatalf("the second: %+v", res)
		}
	})
}

func TestMalformedRequests(t *testing.T) {
	for _, c := range []struct {
		r    http.Request
		good bool
	}{
		{http.Request{Method: "GET", Host: "shop.example:80", ProtoMajor: 1}, true},
		{http.Request{Method: "M-SEARCH", Host: "[::1]:80", ProtoMajor: 2}, true},
		{http.Request{Method: "GET", Host: "", ProtoMajor: 1}, true},
		{http.Request{Method: "GET /smuggled HTTP/1.1", Host: "h", ProtoMajor: 2}, false},
		{http.Request{Method: "", Host: "h", ProtoMajor: 2}, false},
		{http.Request{Method: "GET", Host: "a/b", ProtoMajor: 2}, false},
		{http.Request{Method: "GET", Host: "u@h", ProtoMajor: 2}, false},
		{http.Request{Method: "GET", Host: "a b", ProtoMajor: 2}, false},
		{http.Request{Method: "POST", Host: "h", ProtoMajor: 2, Header: http.Header{"Content-Length": {"3"}}}, true},
		{http.Request{Method: "POST", Host: "h", ProtoMajor: 2, Header: http.Header{"Content-Length": {"3,3"}}}, false},
		{http.Request{Method: "POST", Host: "h", ProtoMajor: 2, Header: http.Header{"Content-Length": {"3", "3"}}}, false},
		{http.Request{Method: "POST", Host: "h", ProtoMajor: 2, Header: http.Header{"Content-Length": {"+3"}}}, false},
	} {
		if what := malformed(&c.r); (what == "") != c.good {
			t.Errorf("%q %q %v: %q", c.r.Method, c.r.Host, c.r.Header, what)
		}
	}
}

// Hosts that are none went to the target, and names of trailers that are none came back as 502.
func TestHostsAndTrailersThatAreNone(t *testing.T) {
	for host, good := range map[string]bool{"a": true, "a:": true, "a:80": true, "a.b-c_d~:65535": true, "xn--a": true, "a%41": true, "[::1]": true, "[::1]:80": true,
		"[fe80::1%25eth0]:80": true, "1.2.3.4:5": true, "a,b": true,
		"": false, ":": false, ":80": false, "a:b": false, "a:b:c": false, "a:1:2": false, "a:-1": false, "a:+1": false, "a:65536": false, "a:80 ": false, "[::1": false,
		"[::1]a": false, "[::1]:x": false, "::1": false, "[]": false, "[1.2.3.4]": false, "[a]": false, "a[]": false, "]": false, "[::1%a b]": false, "%": false, "a%4": false,
		"%zz": false, "a\"b": false, "a@b": false, "\xff": false} {
		for _, major := range []int{1, 2} {
			if what := malformed(&http.Request{Method: "GET", Host: host, ProtoMajor: major, ProtoMinor: 2 - major}); (what == "") != good {
				t.Errorf("HTTP/%d, host %q: %q", major, host, what)
			}
		}
	}
	for key, good := range map[string]bool{"X-A": true, "": true, "A b": false, ":path": false, "X\xff": false, "a/b": false} {
		if what := malformed(&http.Request{Method: "GET", Host: "h", ProtoMajor: 2, Trailer: http.Header{"X": nil, key: nil}}); (what == "") != good {
			t.Errorf("trailer %q: %q", key, what)
		}
	}
}

// A target with a scheme and no slash behind it was routed as one without a path and went out as what stands behind the colon: an absolute-form of
// the client's, past all routes.
func TestRequestTargetsThatAreNone(t *testing.T) {
	for target, good := range map[string]bool{"/": true, "/a:b": true, "http://h/a": true, "http://h": true, "//h/a": true,
		"x:http://h/a": false, "x:@h/": false, "http:a": false, "x:?q": true, "x:*": false, "*": false} {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatal(err)
		}
		if what := malformed(&http.Request{Method: "GET", Host: "h", ProtoMajor: 1, ProtoMinor: 1, URL: u}); (what == "") != good {
			t.Errorf("%q: %q", target, what)
		}
	}
	if what := malformed(&http.Request{Method: "OPTIONS", Host: "h", ProtoMajor: 1, ProtoMinor: 1, URL: &url.URL{Path: "*"}}); what != "" {
		t.Error(what)
	}
	inWorld(t, Limits{}, hello, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		go io.WriteString(k, "GET x:http://h/a HTTP/1.1\r\nHost: h\r\n\r\n")
		if res, body := k.answer(); res.StatusCode != 400 || !res.Close {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	})
}

func BenchmarkLengthLines(b *testing.B) {
	p := bytes.Repeat([]byte("some text of a body, with a line end now and then\n"), 640)
	b.SetBytes(int64(len(p)))
	var l fieldLines
	for b.Loop() {
		l.scan(p, lengthLine)
	}
}
