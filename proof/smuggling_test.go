package proof

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// next is what an attacker hides in a request: it must never be taken for one.
const next = "GET /smuggled HTTP/1.1\r\nHost: victim\r\nX-Evil: 1\r\n\r\n"

// A shape is a request that two readers might understand differently. In its bytes, /SHAPE stands for its own path.
type shape struct {
	name, bytes string

	must   string // "refused", or "one": exactly one request goes on; empty = either
	body   string // of the one request that may go on
	closes bool   // also where it goes on, the connection has to end with its answer (RFC 9112 section 6.1)
}

func post(fields, body string) string {
	return "POST /SHAPE HTTP/1.1\r\nHost: shapes\r\n" + fields + "\r\n" + body
}

func get(fields string) string { return "GET /SHAPE HTTP/1.1\r\nHost: shapes\r\n" + fields + "\r\n" }

func chunked(fields string) string { return post(fields, "3\r\nabc\r\n0\r\n\r\n") }

func shapes() []shape {
	both := fmt.Sprintf("Content-Length: %d\r\n", len("0\r\n\r\n")+len(next))
	s := []shape{
		{name: "plain GET", bytes: get(""), must: "one"},
		{name: "plain POST", bytes: post("Content-Length: 3\r\n", "abc"), must: "one", body: "abc"},
		{name: "plain chunked POST", bytes: chunked("Transfer-Encoding: chunked\r\n"), must: "one", body: "abc"},
		{name: "CL.TE", bytes: post(both+"Transfer-Encoding: chunked\r\n", "0\r\n\r\n"+next), closes: true},
		{name: "TE.CL", bytes: post("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "33\r\n"+next[:51]+"\r\n0\r\n\r\n"), closes: true, body: next[:51]},
		{name: "CL.TE, with CL: 0", bytes: post("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"), closes: true, body: "abc"},

		{name: "CL.CL, different", bytes: post("Content-Length: 3\r\nContent-Length: 0\r\n", "abc"), must: "refused"},
		{name: "CL.CL, equal", bytes: post("Content-Length: 3\r\nContent-Length: 3\r\n", "abc"), body: "abc"},
		{name: "CL: 3, 3", bytes: post("Content-Length: 3, 3\r\n", "abc"), body: "abc"},
		{name: "CL: 1,1", bytes: post("Content-Length: 1,1\r\n", "a"), body: "a"},
		{name: "CL: 1, 2", bytes: post("Content-Length: 1, 2\r\n", "ab"), must: "refused"},
		{name: "CL: leading zeros", bytes: post("Content-Length: 0003\r\n", "abc"), body: "abc"},
	}
	for _, v := range []string{"+3", "-3", "0x3", "3.0", "3e0", "3 3", "\"3\"", "3;", "３", "", "99999999999999999999", "9223372036854775808",
		"18446744073709551619", "4294967299 ", "3\x00", "3\v", "\v3", "1_0", "03f"} {
		s = append(s, shape{name: fmt.Sprintf("CL: %q", v), bytes: post("Content-Length: "+v+"\r\n", "abc"), must: "refused"})
	}
	s[len(s)-6].must = "" // 4 GiB are a length like any other: the body never comes
	for _, v := range []string{"Chunked", "CHUNKED", "chunked ", "\tchunked", "chunked\t"} {
		s = append(s, shape{name: fmt.Sprintf("TE: %q", v), bytes: chunked("Transfer-Encoding:" + v + "\r\n"), body: "abc"})
	}
	for _, v := range []string{"chunked, identity", "identity, chunked", "identity", "gzip, chunked", "chunked, chunked", "chunked,", ",chunked",
		"xchunked", "chunked;q=1", "\"chunked\"", "'chunked'", "chunk\x00ed", "\vchunked", "chunked\x0b", "x", "", "chun\tked", "ch\xaaunked",
		"chunked\r\n gzip"} {
		s = append(s,
			shape{name: fmt.Sprintf("TE: %q", v), bytes: chunked("Transfer-Encoding: " + v + "\r\n"), must: "refused"},
			shape{name: fmt.Sprintf("CL and TE: %q", v), bytes: post(both+"Transfer-Encoding: "+v+"\r\n", "0\r\n\r\n"+next), must: "refused"})
	}
	return append(s, []shape{
		{name: "TE in a folded line", bytes: chunked("Transfer-Encoding:\r\n chunked\r\n"), body: "abc"},
		{name: "CL and TE in a folded line", bytes: post(both+"Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"+next), closes: true},
		{name: "TE.TE, two fields, equal", bytes: chunked("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), must: "refused"},
		{name: "TE.TE, two fields, second unknown", bytes: chunked("Transfer-Encoding: chunked\r\nTransfer-encoding: cow\r\n"), must: "refused"},
		{name: "TE.TE, two fields, first unknown", bytes: chunked("Transfer-Encoding: cow\r\nTransfer-encoding: chunked\r\n"), must: "refused"},
		{name: "TE.TE, second empty", bytes: chunked("Transfer-Encoding: chunked\r\nTransfer-Encoding:\r\n"), must: "refused"},
		{name: "TE with a space before the colon", bytes: post(both+"Transfer-Encoding : chunked\r\n", "0\r\n\r\n"+next), must: "refused"},
		{name: "TE with a tab before the colon", bytes: post(both+"Transfer-Encoding\t: chunked\r\n", "0\r\n\r\n"+next), must: "refused"},
		{name: "TE behind a space", bytes: post(both+" Transfer-Encoding: chunked\r\n", "0\r\n\r\n"+next), must: "refused"},
		{name: "TE in an underscore's disguise", bytes: post("Content-Length: 3\r\nTransfer_Encoding: chunked\r\n", "abc"), body: "abc"},
		{name: "TE with NUL in its name", bytes: post(both+"Transfer-Encoding\x00: chunked\r\n", "0\r\n\r\n"+next), must: "refused"},
		{name: "CL with a space before the colon", bytes: post("Content-Length : 3\r\n", "abc"), must: "refused"},
		{name: "TE hidden behind a bare CR", bytes: post(both+"X: y\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+next), must: "refused"},
		{name: "TE hidden behind a bare LF", bytes: post(both+"X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"+next), closes: true},
		{name: "field lines that end in a bare LF", bytes: "GET /SHAPE HTTP/1.1\nHost: shapes\n\n"},
		{name: "head that ends in LF CR LF", bytes: "GET /SHAPE HTTP/1.1\r\nHost: shapes\r\nX: y\n\r\n"},
		{name: "bare CR in a value", bytes: get("X: a\rb\r\n"), must: "refused"},
		{name: "bare CR before a field", bytes: get("\rX: a\r\n"), must: "refused"},
		{name: "bare CR in the request line", bytes: "GET /SHAPE\rx HTTP/1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "NUL in a value", bytes: get("X: a\x00b\r\n"), must: "refused"},
		{name: "NUL in a name", bytes: get("X\x00: a\r\n"), must: "refused"},
		{name: "DEL in a value", bytes: get("X: a\x7fb\r\n"), must: "refused"},
		{name: "field without a colon", bytes: get("X\r\n"), must: "refused"},
		{name: "field without a name", bytes: get(": x\r\n"), must: "refused"},
		{name: "folded line", bytes: get("X: a\r\n b\r\n")},
		{name: "folded line first", bytes: "GET /SHAPE HTTP/1.1\r\n X: a\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "folded Host", bytes: "GET /SHAPE HTTP/1.1\r\nHost:\r\n shapes\r\n\r\n"},
		{name: "non-ASCII name", bytes: get("Xé: a\r\n"), must: "refused"},

		{name: "absolute form with another Host", bytes: "GET http://other/SHAPE HTTP/1.1\r\nHost: shapes\r\n\r\n"},
		{name: "absolute form with user", bytes: "GET http://a@other/SHAPE HTTP/1.1\r\nHost: shapes\r\n\r\n"},
		{name: "absolute form of another scheme", bytes: "GET ftp://other/SHAPE HTTP/1.1\r\nHost: shapes\r\n\r\n"},
		{name: "no Host", bytes: "GET /SHAPE HTTP/1.1\r\n\r\n", must: "refused"},
		{name: "two Hosts", bytes: get("Host: other\r\n"), must: "refused"},
		{name: "two Hosts, equal", bytes: get("Host: shapes\r\n"), must: "refused"},
		{name: "Host with a space", bytes: "GET /SHAPE HTTP/1.1\r\nHost: a b\r\n\r\n", must: "refused"},
		{name: "Host with a path", bytes: "GET /SHAPE HTTP/1.1\r\nHost: a/b\r\n\r\n"},
		{name: "Host with a user", bytes: "GET /SHAPE HTTP/1.1\r\nHost: a@b\r\n\r\n"},
		{name: "Host with a comma", bytes: "GET /SHAPE HTTP/1.1\r\nHost: a,b\r\n\r\n"},
		{name: "empty Host", bytes: "GET /SHAPE HTTP/1.1\r\nHost:\r\n\r\n"},

		{name: "HTTP/1.0 with TE", bytes: "POST /SHAPE HTTP/1.0\r\nHost: shapes\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", closes: true}, // HTTP/1.0 knows no codings
		{name: "HTTP/1.0 with CL and TE, kept alive", bytes: "POST /SHAPE HTTP/1.0\r\nHost: shapes\r\nConnection: keep-alive\r\n" + both + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next, closes: true, body: "0\r\n\r\n" + next},
		{name: "HTTP/0.9", bytes: "GET /SHAPE\r\n", must: "refused"},
		{name: "HTTP/1.2", bytes: "GET /SHAPE HTTP/1.2\r\nHost: shapes\r\n\r\n"},
		{name: "HTTP/2.0 in a request line", bytes: "GET /SHAPE HTTP/2.0\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "version with a sign", bytes: "GET /SHAPE HTTP/+1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "version in lower case", bytes: "GET /SHAPE http/1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "two spaces in the request line", bytes: "GET  /SHAPE HTTP/1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "space in the target", bytes: "GET /SHAPE /smuggled HTTP/1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "tab in the request line", bytes: "GET\t/SHAPE HTTP/1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "method with a colon", bytes: "GE:T /SHAPE HTTP/1.1\r\nHost: shapes\r\n\r\n", must: "refused"},
		{name: "non-ASCII target", bytes: "GET /SHAPE/é HTTP/1.1\r\nHost: shapes\r\n\r\n"},
		{name: "fragment in the target", bytes: "GET /SHAPE#/smuggled HTTP/1.1\r\nHost: shapes\r\n\r\n"},
		{name: "GET with a length and a request for a body", bytes: "GET /SHAPE/late HTTP/1.1\r\nHost: shapes\r\n" + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(next)) + next, body: next},
		{name: "HEAD with a chunked body", bytes: "HEAD /SHAPE HTTP/1.1\r\nHost: shapes\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", body: "abc"},

		{name: "chunk extension", bytes: post("Transfer-Encoding: chunked\r\n", "3;a=b\r\nabc\r\n0\r\n\r\n"), body: "abc"},
		{name: "chunk extension, quoted line end", bytes: post("Transfer-Encoding: chunked\r\n", "3;a=\"\r\n\"\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk extension of 1 MB", bytes: post("Transfer-Encoding: chunked\r\n", "3;a="+strings.Repeat("x", 1<<20)+"\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk extensions of 1 MB in all", bytes: post("Transfer-Encoding: chunked\r\n", strings.Repeat("1;a="+strings.Repeat("x", 1000)+"\r\na\r\n", 1000)+"0\r\n\r\n"), must: "refused"},
		{name: "chunk extension with a bare LF", bytes: post("Transfer-Encoding: chunked\r\n", "3;a\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk extension with a bare CR", bytes: post("Transfer-Encoding: chunked\r\n", "3;\rxx\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk line with a bare LF", bytes: post("Transfer-Encoding: chunked\r\n", "3\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk line with a bare CR", bytes: post("Transfer-Encoding: chunked\r\n", "3\rabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk ended by LF", bytes: post("Transfer-Encoding: chunked\r\n", "3\r\nabc\n0\r\n\r\n"), must: "refused"},
		{name: "chunk without its end", bytes: post("Transfer-Encoding: chunked\r\n", "3\r\nabcX\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk size with a sign", bytes: post("Transfer-Encoding: chunked\r\n", "+3\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk size below 0", bytes: post("Transfer-Encoding: chunked\r\n", "-3\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk size in 0x", bytes: post("Transfer-Encoding: chunked\r\n", "0x3\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk size that overflows", bytes: post("Transfer-Encoding: chunked\r\n", "10000000000000003\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk size of many zeros", bytes: post("Transfer-Encoding: chunked\r\n", "00000003\r\nabc\r\n0\r\n\r\n"), body: "abc"},
		{name: "chunk size with spaces", bytes: post("Transfer-Encoding: chunked\r\n", " 3\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "chunk size empty", bytes: post("Transfer-Encoding: chunked\r\n", "\r\nabc\r\n0\r\n\r\n"), must: "refused"},
		{name: "last chunk ended by LF", bytes: post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\n"), body: "abc"},
		{name: "trailers that frame", bytes: post("Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n", "3\r\nabc\r\n0\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\nHost: other\r\n\r\n"), body: "abc"},
		{name: "trailers that route", bytes: post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\nHost: other\r\nAuthorization: x\r\nConnection: close\r\n\r\n"), body: "abc"},
		{name: "trailer with a bare CR", bytes: post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\nX: a\rb\r\n\r\n"), body: "abc"},
		{name: "trailer without an end", bytes: post("Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\nX-A: "+strings.Repeat("x", 1<<20)+"\r\n\r\n"), body: "abc"},

		{name: "Connection names Content-Length", bytes: post("Connection: Content-Length\r\nContent-Length: 3\r\n", "abc"), body: "abc"},
		{name: "Connection names Host and X-Forwarded-For", bytes: get("Connection: close, Host, X-Forwarded-For\r\n")},
		{name: "Upgrade to h2c", bytes: get("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n")},
		{name: "Upgrade with a hidden request", bytes: get("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\n")},
		{name: "Expect of something else", bytes: post("Expect: 200-ok\r\nContent-Length: 3\r\n", "abc"), body: "abc"},
	}...)
}

// Whatever is sent, the upstream sees nothing of it or exactly one request that can be read in one way, and what the next client
// of the same connection gets is the answer to its own request.
func TestSmuggling(t *testing.T) {
	rec := newRecorder(t)
	g := serve(t, fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
server: {read_header_timeout: 2s, body_timeout: 1s}
targets: {up: {endpoints: [http://%s], retry: {max_retries: 0}}}
routes: [{path: /, target: up}]
`, rec.addr()))
	counts := map[string]int{}
	for i, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			became := trySmuggling(t, g, rec, i, s)
			counts[became]++
			t.Log(became)
		})
	}
	t.Logf("%d shapes: %v", len(shapes()), counts)
	blameless(t, g)
	settled, ok := g.settles(10*time.Second, func(f footprint) bool { return f.sockets < 80 })
	if !ok {
		t.Errorf("connections left: %v", settled)
	}
}

// blameless fails if anything that clients sent was counted against the target, whose circuit they could then open.
func blameless(t *testing.T, g *child) {
	t.Helper()
	for name, n := range g.series() {
		if n > 0 && strings.HasPrefix(name, "cortex_guard_outcomes_total") && (strings.Contains(name, `"failure`) || strings.Contains(name, "timed")) {
			t.Errorf("malformed requests count against the target: %s %v", name, n)
		}
	}
}

// trySmuggling sends a shape, then a canary on the same connection as far as it is still there.
func trySmuggling(t *testing.T, g *child, rec *recorder, i int, s shape) string {
	rec.take()
	path, canary := fmt.Sprintf("/shape-%d", i), fmt.Sprintf("/canary-%d", i)
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(6 * time.Second))
	io.WriteString(c, strings.Replace(s.bytes, "/SHAPE", path, 1)) // an error means that it was refused early
	b := bufio.NewReader(c)
	method, _, _ := strings.Cut(s.bytes, " ")
	first, err := readAnswer(b, method)
	closed := err != nil || first.Close
	if err == nil {
		// What is left of the connection is somebody else's: a proxy in front may use it for several clients.
		io.WriteString(c, "GET "+canary+" HTTP/1.1\r\nHost: canary\r\n\r\n")
		second, err := readAnswer(b, "GET")
		switch {
		case err != nil: // closed
			closed = true
		case closed:
			t.Errorf("an answer after the one that said it was the last: %v", second.Status)
		case second.Header.Get("Seen") != canary && second.StatusCode == 200:
			t.Errorf("poisoned: the next client got the answer to %q", second.Header.Get("Seen"))
		case second.StatusCode != 200 && first.StatusCode < 400:
			t.Errorf("poisoned: the next client got %s", second.Status)
		}
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no answer, and no end of the connection")
	}

	var shaped []recorded
	for _, x := range rec.take() {
		switch {
		case strings.HasPrefix(x.target, "/canary-"): // of an earlier shape too, whose connection was poisoned
		case strings.HasPrefix(x.target, "/shape-") && strings.Contains(x.fault, "breaks off") && !strings.HasPrefix(x.target, path):
			// of an earlier shape, as below; the end of its connection came late
		case x.fault != "" && strings.Contains(x.fault, "breaks off") && first != nil && first.StatusCode >= 400:
			// The gateway cut its own request when the client's turned out to be malformed: nobody took it for whole.
		case x.fault != "":
			t.Errorf("the upstream saw what can be read in two ways: %v", x)
		case strings.Contains(x.target, "smuggled") && !strings.HasPrefix(x.target, path):
			t.Errorf("the upstream saw the hidden request: %v", x)
		default:
			shaped = append(shaped, x)
		}
	}
	refused := first == nil || first.StatusCode >= 400
	switch {
	case len(shaped) > 1:
		t.Errorf("the upstream saw %d requests: %v", len(shaped), shaped)
	case len(shaped) == 1 && refused:
		t.Errorf("refused, but the upstream saw %v", shaped[0])
	case len(shaped) == 1:
		if string(shaped[0].body) != s.body {
			t.Errorf("the upstream saw another body: %v, want %q", shaped[0], s.body)
		}
		if s.must == "refused" {
			t.Errorf("went on as %v, want it refused", shaped[0])
		}
		if s.closes && !closed {
			t.Errorf("framed twice, and the connection stays open behind it: %v", shaped[0])
		}
	case !refused:
		t.Errorf("%s, without the upstream", first.Status)
	}
	if first != nil && refused && (first.StatusCode == http.StatusInternalServerError || first.StatusCode == http.StatusBadGateway) {
		t.Errorf("refused as if it were the target's fault: %s", first.Status)
	}
	if s.must == "one" && len(shaped) != 1 {
		t.Errorf("did not go on: %v", first)
	}
	if refused && !closed && strings.Contains(s.bytes, next) {
		t.Errorf("refused with %s, and the connection stays open with a hidden request in it", first.Status)
	}
	switch {
	case first == nil:
		return "closed without an answer"
	case refused:
		return first.Status[:3]
	}
	return "went on as one"
}

// readAnswer reads one answer and its body; of interim ones, the one after.
func readAnswer(b *bufio.Reader, method string) (*http.Response, error) {
	for {
		r, err := http.ReadResponse(b, &http.Request{Method: method})
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
		r.Body.Close()
		if r.StatusCode >= 200 || r.StatusCode == http.StatusSwitchingProtocols {
			return r, err
		}
	}
}
