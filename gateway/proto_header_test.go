package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// echoHeader answers with the header that it got, as JSON.
var echoHeader = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	h := r.Header.Clone()
	h["(host)"] = []string{r.Host}
	h["(encoding)"] = r.TransferEncoding
	json.NewEncoder(w).Encode(h)
})

func got(t *testing.T, a answer) http.Header {
	t.Helper()
	h := http.Header{}
	if err := json.Unmarshal([]byte(a.body), &h); a.err != nil || a.status != 200 || err != nil {
		t.Fatalf("answer %+v, %v", a, err)
	}
	return h
}

// What is said from one end of a connection to the other stays there, in both directions; all else passes as it is.
func TestHopByHopHeadersStay(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			h := rw.Header()
			h["Connection"] = []string{"X-Answer-Hop, keep-alive", "X-Another"}
			h.Set("X-Answer-Hop", "1")
			h.Set("X-Another", "1")
			h.Set("Keep-Alive", "timeout=5")
			h.Set("Proxy-Authenticate", "Basic")
			h.Set("Upgrade", "h3")
			h["Set-Cookie"] = []string{"a=1; Path=/", "b=2"}
			h.Set("Www-Authenticate", "Bearer")
			h.Set("X-End", "1")
			echoHeader.ServeHTTP(rw, r)
		}))
		w.gateway(one("", ""))
		sent := http.Header{"Connection": {"X-Hop , close", "X-Second, x-third"}, "X-Hop": {"1"}, "X-Second": {"1"}, "X-Third": {"1"}, "Keep-Alive": {"1"},
			"Proxy-Connection": {"keep-alive"}, "Proxy-Authorization": {"Basic x"}, "Te": {"gzip, trailers;q=0.5"}, "Trailer": {"X-Later"}, "Upgrade": {"websocket"},
			"Cookie": {"a=1; b=2"}, "Authorization": {"Bearer secret"}, "X-End": {"1", "2"}, "Accept-Encoding": {"br"}, "Http2-Settings": {"AAAA"},
			"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}, "Tracestate": {"a=b"}, "Baggage": {"x=y"}}
		for _, host := range []string{stranger, trusted} {
			r, _ := http.NewRequest("GET", "http://gateway.test:80/", nil)
			r.Header = sent.Clone()
			a := send(w.client(host), r)
			h := got(t, a)
			for _, key := range []string{"Connection", "X-Hop", "X-Second", "X-Third", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "Trailer", "Upgrade", "Http2-Settings", "User-Agent"} {
				if v, ok := h[key]; ok && key != "User-Agent" {
					t.Errorf("%s: the target got %s: %q", host, key, v)
				}
			}
			for key, want := range map[string][]string{"Te": {"trailers"}, "Cookie": sent["Cookie"], "Authorization": sent["Authorization"], "X-End": sent["X-End"],
				"Accept-Encoding": {"br"}, "Traceparent": sent["Traceparent"], "Tracestate": {"a=b"}, "Baggage": {"x=y"}} {
				if !slices.Equal(h[key], want) {
					t.Errorf("%s: the target got %s: %q, want %q", host, key, h[key], want)
				}
			}
			for _, key := range []string{"X-Answer-Hop", "X-Another", "Keep-Alive", "Proxy-Authenticate", "Upgrade"} {
				if v, ok := a.header[key]; ok {
					t.Errorf("%s: the client got %s: %q", host, key, v)
				}
			}
			if v := a.header["Set-Cookie"]; len(v) != 2 || a.header.Get("Www-Authenticate") != "Bearer" || a.header.Get("X-End") != "1" {
				t.Errorf("%s: the client got %v", host, a.header)
			}
		}
		r, _ := http.NewRequest("GET", "http://gateway.test:80/", nil)
		r.Header.Set("User-Agent", "")
		if v := got(t, send(w.client(stranger), r))["User-Agent"]; len(v) > 0 {
			t.Errorf("a client without a name becomes %q", v)
		}
	})
}

// forwardedPair is one of RFC 7239, 4.
var forwardedPair = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+=([!#$%&'*+.^_`|~0-9A-Za-z-]+|\"([^\"\\\\\x00-\x1f]|\\\\.)*\")$")

func TestForwardedSaysOnWhoseBehalf(t *testing.T) {
	for _, c := range []struct {
		from, host    string
		before        []string // pairs of header and value
		forwarded     string
		xFor          string
		xHost, xProto string
	}{
		{stranger, "shop.test", nil, `for=192.0.2.1;host="shop.test";proto=http`, stranger, "shop.test", "http"},
		{stranger, "shop.test:8080", nil, `for=192.0.2.1;host="shop.test:8080";proto=http`, stranger, "shop.test:8080", "http"},
		{"[2001:db8::1]", "shop.test", nil, `for="[2001:db8::1]";host="shop.test";proto=http`, "2001:db8::1", "shop.test", "http"},
		{"[fe80::1%eth0]", "shop.test", nil, `for="[fe80::1]";host="shop.test";proto=http`, "fe80::1%eth0", "shop.test", "http"},
		{stranger, "shop.test", []string{"Forwarded", "for=10.0.0.1", "X-Forwarded-For", "10.0.0.1", "X-Forwarded-Host", "evil", "X-Forwarded-Proto", "https"},
			`for=192.0.2.1;host="shop.test";proto=http`, stranger, "shop.test", "http"},
		{trusted, "shop.test", []string{"Forwarded", `for="[2001:db8::9]"`, "Forwarded", "for=10.0.0.1;proto=https", "X-Forwarded-For", "10.0.0.1, 10.0.0.2",
			"X-Forwarded-For", "10.0.0.3", "X-Forwarded-Host", "www.test", "X-Forwarded-Proto", "https"},
			`for="[2001:db8::9]", for=10.0.0.1;proto=https, for=127.0.0.1;host="shop.test";proto=http`, "10.0.0.1, 10.0.0.2, 10.0.0.3, 127.0.0.1", "www.test", "https"},
		{"[::1]", "[::1]:80", nil, `for="[::1]";host="[::1]:80";proto=http`, "::1", "[::1]:80", "http"},
	} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", echoHeader)
			w.gateway(one("", ""))
			r, _ := http.NewRequest("GET", "http://gateway.test:80/", nil)
			r.Host = c.host
			for i := 0; i < len(c.before); i += 2 {
				r.Header.Add(c.before[i], c.before[i+1])
			}
			h := got(t, send(w.client(c.from), r))
			for key, want := range map[string]string{"Forwarded": c.forwarded, "X-Forwarded-For": c.xFor, "X-Forwarded-Host": c.xHost, "X-Forwarded-Proto": c.xProto, "(host)": c.host} {
				if v := h[key]; len(v) != 1 || v[0] != want {
					t.Errorf("%s %s: %s is %q, want %q", c.from, c.host, key, v, want)
				}
			}
			for element := range strings.SplitSeq(h.Get("Forwarded"), ", ") {
				for pair := range strings.SplitSeq(element, ";") {
					if !forwardedPair.MatchString(pair) {
						t.Errorf("%q is no pair of RFC 7239", pair)
					}
				}
			}
		})
	}
}

func TestViaIsAppended(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", echoHeader)
		g := w.gateway("name: edge\n" + one("", ""))
		for _, host := range []string{stranger, trusted} {
			h := got(t, w.get(w.client(host), "http://gateway.test:80/", "Via", "1.1 a", "Via", "2 b, 1.0 c (x, y)"))
			if v := strings.Join(h["Via"], ", "); v != "1.1 a, 2 b, 1.0 c (x, y), 1.1 edge ("+g.mark+")" {
				t.Errorf("Via %q", v)
			}
		}
		c, br := w.raw("GET / HTTP/1.0\r\nHost: h\r\n\r\n")
		defer c.Close()
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		if !strings.Contains(string(b), `"1.0 edge (`) {
			t.Errorf("a client of HTTP/1.0: %s", b)
		}
	})
}

// A route that leads back, at once or by way of another gateway, ends the request where it comes for the second time.
func TestLoopsAreDetected(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		self := w.gatewayAt("self.test:80", strings.ReplaceAll(one("", ""), "up.test", "self.test"))
		a := w.get(w.client(stranger), "http://self.test:80/")
		if a.status != 508 || !strings.Contains(a.header.Get("Proxy-Status"), "error=proxy_loop_detected") {
			t.Errorf("itself: %+v", a)
		}
		if n := self.Targets()[0].Engine.Stats().Attempts; n != 1 {
			t.Errorf("itself: %d attempts", n)
		}

		first := w.gatewayAt("a.test:80", strings.ReplaceAll(one(retrying, ""), "up.test", "b.test"))
		second := w.gatewayAt("b.test:80", strings.ReplaceAll(one(retrying, ""), "up.test", "a.test"))
		a = w.get(w.client(stranger), "http://a.test:80/")
		if a.status != 508 {
			t.Errorf("by another: %+v", a)
		}
		if n, m := first.Targets()[0].Engine.Stats().Attempts, second.Targets()[0].Engine.Stats().Attempts; n != 1 || m != 1 {
			t.Errorf("by another: %d and %d attempts", n, m)
		}
	})
}

func TestTooManyHopsAreALoop(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		w.gateway(one("", ""))
		c := w.client(trusted)
		hops := func(n int) []string { return slices.Repeat([]string{"1.1 x"}, n) }
		for _, q := range []struct {
			via  []string
			want int
		}{{hops(31), 200}, {hops(32), 508}, {[]string{strings.Join(hops(31), ",")}, 200}, {[]string{strings.Join(hops(32), ", ")}, 508}, {[]string{strings.Join(hops(16), ", "), strings.Join(hops(16), ", ")}, 508}} {
			r, _ := http.NewRequest("GET", "http://gateway.test:80/", nil)
			r.Header["Via"] = q.via
			if a := send(c, r); a.status != q.want {
				t.Errorf("%d lines: %d, want %d", len(q.via), a.status, q.want)
			}
		}
	})
}

func TestRequestIDs(t *testing.T) {
	fresh := regexp.MustCompile("^[0-9a-f]{32}$")
	for _, c := range []struct {
		name, from string
		sent       []string
		kept       bool
	}{
		{"none", stranger, nil, false}, {"a stranger's", stranger, []string{"abc"}, false}, {"a peer's", trusted, []string{"abc-1.2:3"}, true},
		{"a peer's, too long", trusted, []string{strings.Repeat("a", 129)}, false}, {"a peer's, as long as can be", trusted, []string{strings.Repeat("a", 128)}, true},
		{"quotes", trusted, []string{`a"b`}, false}, {"spaces", trusted, []string{"a b"}, false}, {"two", trusted, []string{"a", "b"}, false}, {"empty", trusted, []string{""}, false},
		{"not ASCII", trusted, []string{"a\xe4"}, false}, {"a backslash", trusted, []string{`a\n`}, false},
	} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", echoHeader)
			w.gateway(one("", ""))
			r, _ := http.NewRequest("GET", "http://gateway.test:80/", nil)
			r.Header["X-Request-Id"] = c.sent
			a := send(w.client(c.from), r)
			there, back := got(t, a)["X-Request-Id"], a.header["X-Request-Id"]
			if len(there) != 1 || !slices.Equal(there, back) {
				t.Fatalf("%s: there %q, back %q", c.name, there, back)
			}
			if kept := len(c.sent) > 0 && there[0] == c.sent[0]; kept != c.kept || !kept && !fresh.MatchString(there[0]) {
				t.Errorf("%s: %q", c.name, there)
			}
		})
	}
}

// The decision is told to those who ask and are trusted. Who asks goes no further than here: the target must not learn it from a stranger,
// nor tell a stranger something that looks like it.
func TestExplanationIsForTrustedPeers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var seen []recorded
		var mu sync.Mutex
		w.serve("up.test:80", record(&seen, &mu, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/claims" {
				w.Header().Set("Cortex-Explain", "the target's own")
			}
			w.WriteHeader(200)
		})))
		w.gateway(one("", ""))
		for _, c := range []struct {
			from, sent, path string
			told             bool
		}{{trusted, "1", "/", true}, {trusted, "0", "/", false}, {trusted, "", "/", false}, {stranger, "1", "/", false}, {stranger, "1", "/claims", false}, {trusted, "", "/claims", false}, {trusted, "1", "/claims", true}} {
			a := w.get(w.client(c.from), "http://gateway.test:80"+c.path, "Cortex-Explain", c.sent)
			v := a.header.Get("Cortex-Explain")
			if (v != "") != c.told || strings.Contains(v, "own") {
				t.Errorf("%+v: %q", c, v)
			}
		}
		for _, s := range seen {
			if v := s.header["Cortex-Explain"]; len(v) > 0 {
				t.Errorf("the target is told %q", v)
			}
		}
	})
}

// item is a member of the list that Proxy-Status is (RFC 9209, RFC 9651): a name and its parameters.
var item = regexp.MustCompile("^([A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*|\"[^\"\\\\]+\")" +
	`(; ?[a-z*][a-z0-9_.*-]*(=([A-Za-z*][!#$%&'*+.^_` + "`" + `|~0-9A-Za-z:/-]*|-?[0-9]{1,15}|"([ !#-\[\]-~]|\\["\\])*"|\?[01]))?)*$`)

// kinds are the errors of RFC 9209, 2.3.
var kinds = strings.Fields(`dns_timeout dns_error destination_not_found destination_unavailable destination_ip_prohibited destination_ip_unroutable
	connection_refused connection_terminated connection_timeout connection_read_timeout connection_write_timeout connection_limit_reached
	tls_protocol_error tls_certificate_error tls_alert_received http_request_error http_request_denied http_response_incomplete
	http_response_header_section_size http_response_header_size http_response_body_size http_response_trailer_section_size
	http_response_trailer_size http_response_transfer_coding http_response_content_coding http_response_timeout http_upgrade_failed
	http_protocol_error proxy_internal_response proxy_internal_error proxy_configuration_error proxy_loop_detected`)

// proxyStatusOf checks the syntax of a Proxy-Status and returns the error in its last member.
func proxyStatusOf(t *testing.T, h http.Header) string {
	t.Helper()
	lines := h["Proxy-Status"]
	if len(lines) == 0 {
		t.Errorf("no Proxy-Status")
		return ""
	}
	for _, line := range lines {
		if !item.MatchString(line) {
			t.Errorf("Proxy-Status %q is none of RFC 9209", line)
		}
	}
	_, kind, _ := strings.Cut(lines[len(lines)-1], "; error=")
	kind, _, _ = strings.Cut(kind, ";")
	if kind != "" && !slices.Contains(kinds, kind) {
		t.Errorf("%q is no error of RFC 9209", kind)
	}
	return kind
}

func TestProxyStatusOfEveryKind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		raw := func(text string) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					panic(err)
				}
				defer c.Close()
				io.WriteString(c, text)
			})
		}
		w.serve("slow.test:80", hang)
		w.serve("cut.test:80", abort)
		w.serve("bad.test:80", raw("SSH-2.0-OpenSSH\r\n\r\n"))
		w.serve("smuggle.test:80", raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"))
		w.serve("fails.test:80", status(500))
		w.serve("up.test:80", http.HandlerFunc(swallow))
		stuck := w.listen("stuck.test:80") // nobody accepts
		defer stuck.Close()
		w.gateway(`
name: "9edge"
server: {max_body_bytes: 1KiB, body_timeout: 1s}
targets:
  none: {endpoints: [http://none.test:80], retry: {max_retries: 0}}
  slow: {endpoints: [http://slow.test:80], retry: {max_retries: 0}}
  cut: {endpoints: [http://cut.test:80], retry: {max_retries: 0}}
  bad: {endpoints: [http://bad.test:80], retry: {max_retries: 0}}
  smuggle: {endpoints: [http://smuggle.test:80], retry: {max_retries: 0}}
  fails: {endpoints: [http://fails.test:80], retry: {max_retries: 2, base_delay: 1ms}}
  stuck: {endpoints: [http://stuck.test:80], retry: {max_retries: 0}}
  patient: {endpoints: [http://stuck.test:80], retry: {max_retries: 0}, timeout: {enabled: false}, transport: {dial_timeout: 3s}}
  up: {endpoints: [http://up.test:80]}
routes:
  - {path: /none, target: none}
  - {path: /slow, target: slow}
  - {path: /cut, target: cut}
  - {path: /bad, target: bad}
  - {path: /smuggle, target: smuggle}
  - {path: /fails, target: fails, methods: [GET]}
  - {path: /stuck, target: stuck}
  - {path: /patient, target: patient}
  - {path: /up, target: up}
`)
		c := w.client(stranger)
		for _, q := range []struct {
			method, path string
			body         int
			status       int
			kind         string
		}{
			{"GET", "/none", 0, 502, "connection_refused"},
			{"GET", "/slow", 0, 504, "http_response_timeout"},
			{"GET", "/cut", 0, 502, "connection_terminated"},
			{"GET", "/bad", 0, 502, "http_protocol_error"},
			{"GET", "/smuggle", 0, 502, "http_protocol_error"},
			{"GET", "/stuck", 0, 504, "connection_timeout"},
			{"GET", "/patient", 0, 504, "connection_timeout"},
			{"GET", "/fails", 0, 500, ""},
			{"POST", "/fails", 1, 405, "http_request_denied"},
			{"GET", "/", 0, 404, "destination_not_found"},
			{"PUT", "/up", 2000, 413, "http_request_error"},
		} {
			a := w.do(c, q.method, "http://gateway.test:80"+q.path, strings.Repeat("x", q.body))
			if kind := proxyStatusOf(t, a.header); a.status != q.status || kind != q.kind {
				t.Errorf("%s %s: %d %q, want %d %q: %v", q.method, q.path, a.status, kind, q.status, q.kind, a.header["Proxy-Status"])
			}
		}
		if a := w.get(c, "http://gateway.test:80/fails"); !strings.Contains(a.header.Get("Proxy-Status"), "; received-status=500") {
			t.Errorf("%q", a.header["Proxy-Status"])
		}
		a := openCircuit(t, w, c, "http://gateway.test:80/none")
		if kind := proxyStatusOf(t, a.header); kind != "destination_unavailable" {
			t.Errorf("open circuit: %q", kind)
		}
	})
}

// F50, and that the chain of what proxies say stays whole.
func TestProxyStatusOfTargetsStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Proxy-Status", "inner; error=dns_error")
			w.WriteHeader(502)
		}))
		w.gateway(one("retry: {max_retries: 1, base_delay: 1ms}", ""))
		a := w.get(w.client(stranger), "http://gateway.test:80/")
		v := a.header["Proxy-Status"]
		proxyStatusOf(t, a.header)
		if len(v) != 2 || v[0] != "inner; error=dns_error" || !strings.HasPrefix(v[1], "cortex; received-status=502") {
			t.Errorf("%q", v)
		}
	})
}

// A health check over HTTP/2 was none, as its request had what looked like a body; neither was it one that could be sent again.
func TestGetOverHTTP2HasNoBody(t *testing.T) {
	p := newPKI(t)
	var n atomic.Int64
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/retried" && n.Add(1)%2 == 1 {
			w.WriteHeader(503)
			return
		}
		fmt.Fprintf(w, "%v %d", r.TransferEncoding, r.ContentLength)
	})
	s := realGateway(t, target(realUpstream(t, p, "http", up)+"retry: {base_delay: 1ms, replay_limit: 0B}", ""))
	c, base := realClient(t, p, "h2c", s)
	for path, attempts := range map[string]string{"/": "1", "/retried": "2", "/healthz": ""} {
		r, _ := http.NewRequest("GET", base+path, nil)
		if a := send(c, r); a.body != "[] 0" || a.header.Get("Cortex-Attempts") != attempts {
			t.Errorf("%s: %+v", path, a)
		}
	}
}

// Between the last byte of a hint and the answer nothing of the one may end up in the other.
func TestHintsOfARetriedAttempt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var n atomic.Int64
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			i := n.Add(1)
			w.Header().Set("Link", fmt.Sprintf("</%d.css>", i))
			w.WriteHeader(103)
			w.Header().Del("Link")
			if i == 1 {
				w.WriteHeader(503)
				return
			}
			w.WriteHeader(200)
		}))
		w.gateway(one(retrying, ""))
		a := w.get(w.client(stranger), "http://gateway.test:80/")
		if a.status != 200 || len(a.header["Link"]) > 0 || a.header.Get("Cortex-Attempts") != "2" {
			t.Errorf("%+v", a)
		}
		synctest.Wait()
		time.Sleep(time.Second)
	})
}
