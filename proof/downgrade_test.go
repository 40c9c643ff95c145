package proof

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// What HTTP/2 can carry and HTTP/1.1 cannot is refused, or goes on as exactly one request of HTTP/1.1.
func TestDowngradeToHTTP1(t *testing.T) {
	rec := newRecorder(t)
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
server: {h2c: true, body_timeout: 1s}
targets: {up: {endpoints: [http://%s], retry: {max_retries: 0}}}
routes: [{path: /, target: up}]
`, rec.addr())
	valid(t, text)
	g := serve(t, text)

	hidden := "x\r\n\r\n" + next
	plain := []string{":method", "GET", ":scheme", "http", ":authority", "shapes", ":path", "/SHAPE"}
	send := []string{":method", "POST", ":scheme", "http", ":authority", "shapes", ":path", "/SHAPE"}
	with := func(base []string, more ...string) []string { return append(append([]string{}, base...), more...) }
	without := func(name string) (fields []string) {
		for i := 0; i < len(plain); i += 2 {
			if plain[i] != name {
				fields = append(fields, plain[i], plain[i+1])
			}
		}
		return fields
	}
	for i, s := range []struct {
		name   string
		fields []string
		body   string // "" = none
		must   string // as in shape
	}{
		{"plain GET", plain, "", "one"},
		{"plain POST", send, "abc", "one"},
		{"POST with its length", with(send, "content-length", "3"), "abc", "one"},
		{"length too small", with(send, "content-length", "1"), "abc" + next, "refused"},
		{"length too large", with(send, "content-length", "10"), "abc", "refused"},
		{"length 0 with a body", with(send, "content-length", "0"), next, "refused"},
		{"length without a body", with(plain, "content-length", "5"), "", ""},
		{"two lengths", with(send, "content-length", "3", "content-length", "1"), "abc", ""},
		{"signed length", with(send, "content-length", "+3"), "abc", ""},
		{"list of lengths", with(send, "content-length", "3,3"), "abc", ""},
		{"transfer-encoding", with(send, "transfer-encoding", "chunked"), "0\r\n\r\n" + next, "refused"},
		{"transfer-encoding with its length", with(send, "content-length", "3", "transfer-encoding", "chunked"), "abc", "refused"},
		{"connection", with(plain, "connection", "close"), "", "refused"},
		{"proxy-connection", with(plain, "proxy-connection", "keep-alive"), "", ""},
		{"upgrade", with(plain, "upgrade", "websocket"), "", "refused"},
		{"te: gzip", with(plain, "te", "gzip"), "", ""},
		{"CR LF in a value", with(plain, "x", hidden), "", "refused"},
		{"LF in a value", with(plain, "x", "a\nb: c"), "", "refused"},
		{"CR in a value", with(plain, "x", "a\rb"), "", "refused"},
		{"NUL in a value", with(plain, "x", "a\x00b"), "", "refused"},
		{"CR LF in a name", with(plain, "x\r\ny", "z"), "", "refused"},
		{"colon in a name", with(plain, "transfer-encoding: chunked\r\nx", "z"), "", "refused"},
		{"space in a name", with(plain, "transfer-encoding ", "chunked"), "", "refused"},
		{"capitals in a name", with(plain, "X-Y", "z"), "", "refused"},
		{"empty name", with(plain, "", "z"), "", "refused"},
		{"CR LF in the path", with(without(":path"), ":path", "/SHAPE HTTP/1.1\r\nHost: a\r\n\r\n"+next), "", "refused"},
		{"space in the path", with(without(":path"), ":path", "/SHAPE /smuggled"), "", ""},
		{"path without a slash", with(without(":path"), ":path", "SHAPE"), "", "refused"},
		{"path that is a URL", with(without(":path"), ":path", "http://other/SHAPE"), "", ""},
		{"empty path", with(without(":path"), ":path", ""), "", "refused"},
		{"no path", without(":path"), "", "refused"},
		{"two paths", with(plain, ":path", "/smuggled"), "", "refused"},
		{"no method", without(":method"), "", "refused"},
		{"CR LF in the method", with(without(":method"), ":method", "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET"), "", "refused"},
		{"space in the method", with(without(":method"), ":method", "GET /smuggled HTTP/1.1"), "", "refused"},
		{"no scheme", without(":scheme"), "", "refused"},
		{"odd scheme", with(without(":scheme"), ":scheme", "gopher://x/"), "", ""},
		{"no authority", without(":authority"), "", ""},
		{"authority with CR LF", with(without(":authority"), ":authority", "a\r\nx: y"), "", "refused"},
		{"authority with a path", with(without(":authority"), ":authority", "a/b"), "", ""},
		{"authority and another host", with(plain, "host", "other"), "", ""},
		{"unknown pseudo-header", with(plain, ":evil", "x"), "", "refused"},
		{"status in a request", with(plain, ":status", "200"), "", "refused"},
		{"pseudo-header behind a field", with([]string{":method", "GET", ":scheme", "http", "x", "y"}, ":authority", "shapes", ":path", "/SHAPE"), "", "refused"},
		{"CONNECT", []string{":method", "CONNECT", ":authority", "shapes:80"}, "", "refused"},
		{"extended CONNECT", with([]string{":method", "CONNECT", ":protocol", "websocket"}, plain[2:]...), "", "refused"},
	} {
		t.Run(s.name, func(t *testing.T) {
			rec.take()
			path := fmt.Sprintf("/shape-%d", i)
			for j := range s.fields {
				s.fields[j] = strings.Replace(s.fields[j], "/SHAPE", path, 1)
			}
			c := dialH2(t, g.addr)
			defer c.Close()
			var body []byte
			if s.body != "" {
				body = []byte(s.body)
			}
			c.request(1, body, s.fields...)
			status, _, err := c.answer(1)
			reset := errors.Is(err, errReset)
			if err == nil || reset { // the connection goes on, and its next request is its own
				c.request(3, nil, ":method", "GET", ":scheme", "http", ":authority", "canary", ":path", "/canary")
				if status, fields, err := c.answer(3); err != nil || status != 200 || !strings.Contains(fmt.Sprint(fields), "/canary") {
					t.Errorf("the next request: %d %v %v", status, fields, err)
				}
			}
			refused := err != nil || status >= 400
			var shaped []recorded
			for _, x := range rec.take() {
				switch {
				case x.target == "/canary":
				case strings.Contains(x.fault, "breaks off") && refused: // cut by the gateway when the client's turned out malformed
				case x.fault != "" || strings.Contains(x.target, "smuggled") && !strings.HasPrefix(x.target, path) || len(x.values("x")) > 1:
					t.Errorf("the upstream saw %v", x)
				case len(x.body) == 0 && refused && strings.HasPrefix(s.name, "length 0"): // its head is whole; what follows is refused
				default:
					shaped = append(shaped, x)
				}
			}
			if len(shaped) > 1 || len(shaped) == 1 && refused {
				t.Errorf("%d %v, and the upstream saw %v", status, err, shaped)
			}
			if len(shaped) == 1 && string(shaped[0].body) != s.body {
				t.Errorf("the upstream saw another body: %v", shaped[0])
			}
			if s.must == "refused" && !refused || s.must == "one" && (refused || len(shaped) != 1) {
				t.Errorf("%d %v, want %s", status, err, s.must)
			}
			if status >= 500 && status != 501 {
				t.Errorf("refused as if it were the target's fault: %d", status)
			}
		})
	}
	blameless(t, g)
}
