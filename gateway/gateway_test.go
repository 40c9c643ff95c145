package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
)

// recorded is what an upstream saw of a request.
type recorded struct {
	method, uri, host, body string
	header                  http.Header
}

func record(into *[]recorded, mu *sync.Mutex, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		*into = append(*into, recorded{r.Method, r.RequestURI, r.Host, string(b), r.Header.Clone()})
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

func TestRequestAndAnswerPassUnchanged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var seen []recorded
		var mu sync.Mutex
		w.serve("up.test:80", record(&seen, &mu, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-Two"] = []string{"a", "b"}
			w.Header().Set("Content-Encoding", "br")
			w.Header().Set("Cortex-Pressure", "0.9000;q=0.0000;shed=0.5000;state=EMERGENCY")
			w.Header().Set("Cortex-Attempts", "77")
			w.Header().Set("Cortex-Fallback", "static")
			w.WriteHeader(201)
			io.WriteString(w, "made")
		})))
		w.gateway(one("", ""))
		const uri = "/a%2Fb//c/../d;v=1?x=1;y=%zz&z"
		r, _ := http.NewRequest("PUT", "http://gateway.test:80/", strings.NewReader("body"))
		r.URL.Opaque = uri
		r.Host = "shop.example"
		r.Header.Set("X-Forwarded-For", "6.6.6.6")
		r.Header.Set("X-Forwarded-Proto", "https")
		a := send(w.client(stranger), r)
		if a.err != nil || a.status != 201 || a.body != "made" {
			t.Fatalf("answer %+v", a)
		}
		if v := a.header["X-Two"]; !slices.Equal(v, []string{"a", "b"}) {
			t.Errorf("X-Two %v", v)
		}
		if v := a.header.Get("Content-Encoding"); v != "br" {
			t.Errorf("Content-Encoding %q", v)
		}
		for key, want := range map[string][]string{"Cortex-Attempts": {"1"}, "Cortex-Pressure": nil, "Cortex-Fallback": {"static"},
			"Cortex-Reason": nil, "Cortex-Retry": nil} {
			if v := a.header[key]; !slices.Equal(v, want) {
				t.Errorf("%s %v, want %v", key, v, want)
			}
		}
		s := seen[0]
		if s.method != "PUT" || s.uri != uri || s.body != "body" {
			t.Errorf("the target saw %s %s %q", s.method, s.uri, s.body)
		}
		if s.host != "shop.example" {
			t.Errorf("Host %q: the client's is kept", s.host)
		}
		for key, want := range map[string]string{"X-Forwarded-For": stranger, "X-Forwarded-Proto": "http", "X-Forwarded-Host": "shop.example"} {
			if got := s.header.Get(key); got != want {
				t.Errorf("%s %q, want %q: what a stranger says of it goes no further", key, got, want)
			}
		}
	})
}

func TestBasePathOfEndpointIsJoined(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var seen []recorded
		var mu sync.Mutex
		w.serve("up.test:80", record(&seen, &mu, sequence(status(503), status(200))))
		w.gateway(strings.ReplaceAll(one("retry: {base_delay: 1ms}", ""), "http://up.test:80", "http://up.test:80/base/v1/"))
		if a := w.get(w.client(stranger), "http://gateway.test:80/a%2Fb?q=1"); a.status != 200 {
			t.Fatalf("answer %+v", a)
		}
		for i, s := range seen {
			if s.uri != "/base/v1/a%2Fb?q=1" {
				t.Errorf("attempt %d: %s", i, s.uri)
			}
		}
		if len(seen) != 2 {
			t.Errorf("%d attempts", len(seen))
		}
	})
}

func TestRetryGoesToAnotherEndpoint(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var hosts []string
		var mu sync.Mutex
		note := func(host string, next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				hosts = append(hosts, host)
				mu.Unlock()
				next.ServeHTTP(w, r)
			})
		}
		w.serve("a.test:80", note("a", status(503)))
		w.serve("b.test:80", note("b", status(200)))
		w.gateway(strings.ReplaceAll(one("retry: {base_delay: 1ms}", ""), "[http://up.test:80]", "[http://a.test:80, http://b.test:80, http://none.test:80]"))
		c := w.client(stranger)
		for i := range 12 {
			if a := w.get(c, "http://gateway.test:80/"); a.status != 200 {
				t.Fatalf("call %d: %+v", i, a)
			}
		}
		for i := 1; i < len(hosts); i++ {
			if hosts[i] == "a" && hosts[i-1] == "a" {
				t.Fatalf("an endpoint that failed was tried again: %v", hosts)
			}
		}
		if n := len(hosts); n < 12 {
			t.Errorf("hosts %v", hosts)
		}
	})
}

func TestRoutesChooseTargets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, name := range []string{"a", "b"} {
			w.serve(name+".test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, name) }))
		}
		w.gateway(`
targets:
  a: {endpoints: [http://a.test:80]}
  b: {endpoints: [http://b.test:80]}
routes:
  - {path: /api, target: a, methods: [GET, PUT]}
  - {path: /api/b, target: b}
`)
		c := w.client(stranger)
		for path, want := range map[string]string{"/api": "a", "/api/x": "a", "/api/b/x": "b", "/api/../api/b": "b"} {
			if a := w.get(c, "http://gateway.test:80"+path); a.body != want {
				t.Errorf("%s: %+v", path, a)
			}
		}
		if a := w.get(c, "http://gateway.test:80/other"); a.status != 404 || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("no route: %+v", a)
		}
		if a := w.do(c, "POST", "http://gateway.test:80/api", "x"); a.status != 405 || a.header.Get("Allow") != "GET, PUT" {
			t.Errorf("method of no route: %+v", a)
		}
	})
}

// openCircuit makes calls to a failing target until its circuit is open.
func openCircuit(t *testing.T, w *world, c *http.Client, url string) answer {
	t.Helper()
	for range 500 {
		if a := w.do(c, "POST", url, ""); a.status == 503 && strings.HasPrefix(a.header.Get("Cortex-Reason"), "CIRCUIT_OPEN") {
			return a
		}
		time.Sleep(2 * time.Millisecond) // virtual
	}
	t.Fatal("the circuit did not open")
	return answer{}
}

func TestRefusalSaysWhy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(500)}
		w.serve("up.test:80", up)
		g := w.gateway(one("", "priority: {header: X-Priority, default: 4, tiers: {money: 7}}"))
		c := w.client(trusted)
		a := openCircuit(t, w, c, "http://gateway.test:80/")
		before := up.n.Load()
		a = w.get(c, "http://gateway.test:80/", "X-Priority", "money")
		if up.n.Load() != before {
			t.Fatal("the refused call reached the target")
		}
		if a.status != 503 || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cortex-Attempts") != "0" {
			t.Errorf("refusal %+v", a)
		}
		if s, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || s < 1 {
			t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
		}
		if p := a.header.Get("Cortex-Pressure"); !strings.Contains(p, "state=") {
			t.Errorf("Cortex-Pressure %q to a trusted peer", p)
		}
		if took := a.took; took > 5*time.Millisecond {
			t.Errorf("refused after %v", took)
		}
		var p struct {
			Reason   string
			Priority int
			CPS      *float64
			Signals  map[string]float64
			Circuit  string
		}
		if err := json.Unmarshal([]byte(a.body), &p); err != nil {
			t.Fatal(err)
		}
		if p.Reason != "CIRCUIT_OPEN" || p.Priority != 7 || p.CPS == nil || len(p.Signals) != 5 || p.Circuit != "open" {
			t.Errorf("problem %s", a.body)
		}
		s := g.Targets()[0].Engine.Stats()
		if n := s.Rejected(cortex.ReasonCircuitOpen) + s.Rejected(cortex.ReasonCircuitEmergency); n < 2 {
			t.Errorf("%d refusals counted", n)
		}
	})
}

func TestPriorityHeaderIsBelievedFromTrustedPeersOnly(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var seen []recorded
		var mu sync.Mutex
		w.serve("up.test:80", record(&seen, &mu, status(500)))
		path := filepath.Join(t.TempDir(), "access.log")
		g := w.gateway("access_log: {path: " + path + "}\n" + one("", "priority: {header: X-Rank, default: 4}"))
		openCircuit(t, w, w.client(stranger), "http://gateway.test:80/")
		for _, host := range []string{trusted, stranger} {
			a := w.get(w.client(host), "http://gateway.test:80/"+host, "X-Rank", "9", "X-Forwarded-For", trusted)
			if got := a.header.Get("Cortex-Pressure") != ""; got != (host == trusted) {
				t.Errorf("%s is told the pressure: %v", host, got)
			}
		}
		g.Close() // writes the log out
		for _, l := range logLines(t, path) {
			if want := map[string]float64{"/" + trusted: 9, "/" + stranger: 4}[l["path"].(string)]; want > 0 && l["priority"] != want {
				t.Errorf("%v, want priority %v", l, want)
			}
		}
	})
}

func TestHeadersOfStrangersAreStripped(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var seen []recorded
		var mu sync.Mutex
		w.serve("up.test:80", record(&seen, &mu, status(200)))
		w.gateway(one("", "priority: {header: X-Rank}"))
		sent := []string{"X-Rank", "9", "X-Priority", "9", "Cortex-Timeout-Ms", "5000", "Cortex-Reason", "x", "Cortex-Pressure", "x",
			"Cortex-Attempt", "1;retries=2", "X-Forwarded-For", "10.0.0.9", "X-Forwarded-Proto", "https", "Connection", "X-Hop", "X-Hop", "1"}
		w.get(w.client(stranger), "http://gateway.test:80/", sent...)
		w.get(w.client(trusted), "http://gateway.test:80/", sent...)
		for _, key := range []string{"X-Rank", "X-Priority", "Cortex-Timeout-Ms", "Cortex-Reason", "Cortex-Pressure", "X-Hop"} {
			if v := seen[0].header[key]; len(v) > 0 {
				t.Errorf("from a stranger %s passes: %v", key, v)
			}
		}
		if v := seen[0].header.Get("Cortex-Attempt"); v != "1;retries=2" {
			t.Errorf("the attempt mark of a stranger is %q: it may only take retries away", v)
		}
		for key, want := range map[string]string{"X-Rank": "9", "X-Priority": "9", "X-Forwarded-For": "10.0.0.9, " + trusted, "X-Forwarded-Proto": "https"} {
			if v := seen[1].header.Get(key); v != want {
				t.Errorf("from a trusted peer %s is %q, want %q", key, v, want)
			}
		}
		if ms, err := strconv.Atoi(seen[1].header.Get("Cortex-Timeout-Ms")); err != nil || ms < 1 || ms > 5000 {
			t.Errorf("the deadline of a trusted peer is told as %q", seen[1].header.Get("Cortex-Timeout-Ms"))
		}
	})
}

func TestNoRetriesBelowALayerThatRetries(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(503)}
		w.serve("up.test:80", up)
		w.gateway(one("retry: {base_delay: 1ms}", ""))
		a := w.get(w.client(stranger), "http://gateway.test:80/", "Cortex-Attempt", "0;retries=3")
		if a.status != 503 || a.header.Get("Cortex-Attempts") != "1" || up.n.Load() != 1 {
			t.Errorf("answer %+v, %d attempts", a, up.n.Load())
		}
		if v := a.header.Get("Cortex-Retry"); v != "" {
			t.Errorf("Cortex-Retry %q: the layer above is to retry", v)
		}
	})
}

func TestTargetsLastAnswerWhenRetriesRanOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Mine", "yes")
			w.WriteHeader(502)
			io.WriteString(w, "own words")
		})}
		w.serve("up.test:80", up)
		w.gateway(one("retry: {max_retries: 2, base_delay: 1ms}", ""))
		a := w.get(w.client(stranger), "http://gateway.test:80/")
		if a.status != 502 || a.body != "own words" || a.header.Get("X-Mine") != "yes" {
			t.Errorf("answer %+v", a)
		}
		for key, want := range map[string]string{"Cortex-Attempts": "3", "Cortex-Reason": "MAX_RETRIES_EXCEEDED", "Cortex-Retry": "no"} {
			if v := a.header.Get(key); v != want {
				t.Errorf("%s %q, want %q", key, v, want)
			}
		}
		if up.n.Load() != 3 {
			t.Errorf("%d attempts", up.n.Load())
		}
	})
}

func TestErrorsAreToldApart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("slow.test:80", hang)
		w.serve("cut.test:80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
		w.gateway(`
targets:
  none: {endpoints: [http://none.test:80], retry: {max_retries: 0}}
  slow: {endpoints: [http://slow.test:80], retry: {max_retries: 0}}
  cut: {endpoints: [http://cut.test:80], retry: {max_retries: 0}}
routes:
  - {path: /none, target: none}
  - {path: /slow, target: slow}
  - {path: /cut, target: cut}
`)
		c := w.client(stranger)
		for path, want := range map[string]int{"/none": 502, "/slow": 504, "/cut": 502} {
			a := w.get(c, "http://gateway.test:80"+path)
			if a.status != want || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cortex-Attempts") != "1" {
				t.Errorf("%s: %+v, want %d", path, a, want)
			}
			if strings.Contains(a.body, ".test") {
				t.Errorf("%s: tells addresses: %s", path, a.body)
			}
		}
	})
}

func TestDeadlineOfTrustedPeerIsKept(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", hang)
		w.gateway(one("", "priority: {header: X-Priority}"))
		for host, want := range map[string]time.Duration{trusted: 200 * time.Millisecond, stranger: time.Second} {
			a := w.do(w.client(host), "POST", "http://gateway.test:80/", "x", "Cortex-Timeout-Ms", "200")
			if a.status != 504 || a.took != want {
				t.Errorf("%s: %d after %v, want 504 after %v", host, a.status, a.took, want)
			}
		}
	})
}

// Time that ran out in a body whose header was still in net/http's buffer gave the client a closed connection without a byte of an answer.
func TestDeadlineInABodyOfWhichNothingIsSentIs504(t *testing.T) {
	for _, c := range []struct{ sent, length, want int }{{0, 100, 504}, {4, 100, 504}, {4095, 10_000, 504}, {4096, 10_000, 200}, {4, -1, 200}} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				rw.Header().Set("Etag", "x")
				if c.length >= 0 {
					rw.Header().Set("Content-Length", strconv.Itoa(c.length))
				}
				rw.Write(make([]byte, c.sent))
				rw.(http.Flusher).Flush()
				hang(rw, r)
			}))
			path := filepath.Join(t.TempDir(), "access.log")
			o := w.operate("access_log: {path: "+path+"}\n"+one("", ""), nil)
			a := w.get(w.client(trusted), "http://gateway.test:80/", "Cortex-Timeout-Ms", "200")
			if a.status != c.want || a.took != 200*time.Millisecond {
				t.Errorf("%+v: %d after %v", c, a.status, a.took)
			}
			if whole := a.err == nil; whole != (c.want == 504) {
				t.Errorf("%+v: %v", c, a.err)
			}
			if c.want == 504 && (a.header.Get("Etag") != "" || a.header.Get("Content-Type") != "application/problem+json" || a.header.Get("Cortex-Attempts") != "1") {
				t.Errorf("%+v: %v", c, a.header)
			}
			o.s.Close()
			for _, l := range logLines(t, path) {
				if l["status"] != float64(c.want) || c.want == 504 && (l["error"] != "timeout" || l["bytes_out"] != float64(len(a.body))) {
					t.Errorf("%+v: %v", c, l)
				}
			}
		})
	}
}

// Trust had to be asked for together with a priority header: without one, a peer's deadline went unheard and what it said of
// its clients was thrown away.
func TestTrustedPeerIsHeardWithoutPriorityHeader(t *testing.T) {
	for _, route := range []string{"", "priority: 3", "priority: {trust: [127.0.0.0/8]}"} {
		inWorld(t, func(t *testing.T, w *world) {
			var seen []recorded
			var mu sync.Mutex
			w.serve("up.test:80", record(&seen, &mu, hang))
			w.gateway(one("", route))
			a := w.get(w.client(trusted), "http://gateway.test:80/", "Cortex-Timeout-Ms", "200", "X-Forwarded-For", "10.0.0.9")
			if a.status != 504 || a.took != 200*time.Millisecond || a.header.Get("Cortex-Pressure") == "" {
				t.Errorf("%q: after %v %+v", route, a.took, a)
			}
			mu.Lock()
			defer mu.Unlock()
			if v := seen[0].header.Get("X-Forwarded-For"); v != "10.0.0.9, "+trusted {
				t.Errorf("%q: X-Forwarded-For %q", route, v)
			}
		})
	}
}

// The preface of HTTP/2 came to the target as a request; a method PRI is nobody's.
func TestPrefaceOfHTTP2IsNotForwarded(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(200)}
		w.serve("up.test:80", up)
		w.gateway(one("", ""))
		_, br := w.raw("PRI * HTTP/2.0\r\n\r\n")
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 505 || !res.Close {
			t.Errorf("%+v, %v", res, err)
		}
		if n := up.n.Load(); n != 0 {
			t.Errorf("%d requests at the target", n)
		}
	})
}

// net/http's server answered OPTIONS * itself, in the name of a target that was not asked.
func TestOptionsOfAllIsTheTargets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serveBy("up.test:80", &http.Server{DisableGeneralOptionsHandler: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", r.Method+" "+r.RequestURI)
		})})
		_, stop, done := w.server(one("", ""))
		_, br := w.raw("OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 200 || res.Header.Get("Allow") != "OPTIONS *" || res.Header.Get("Cortex-Attempts") != "1" {
			t.Errorf("%+v, %v", res, err)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Whoever asked why there was no retry found nothing where the target's own answer was passed on.
func TestReasonIsToldWithTheTargetsOwnAnswer(t *testing.T) {
	for _, c := range []struct{ method, mark, below, want string }{
		{"POST", "", "", "NOT_RETRYABLE"},
		{"GET", "0;retries=3", "", "RETRIED_ABOVE"},
		{"GET", "0;retries=3", "MAX_RETRIES_EXCEEDED", "MAX_RETRIES_EXCEEDED"}, // of a gateway below, which knows better
	} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.below != "" {
					w.Header().Set("Cortex-Reason", c.below)
				}
				w.WriteHeader(500)
			}))
			w.gateway(one("", ""))
			a := w.do(w.client(stranger), c.method, "http://gateway.test:80/", "", "Cortex-Attempt", c.mark)
			if got := a.header.Get("Cortex-Reason"); a.status != 500 || got != c.want {
				t.Errorf("%+v: %d with reason %q", c, a.status, got)
			}
		})
	}
}

// The gateway read the caller's time by other rules than the middleware: beyond 31 bits it was none, below 0 it was none, and
// what could not be read went on to the target.
func TestCallersTimeIsReadAsByTheMiddleware(t *testing.T) {
	for sent, want := range map[string]string{"99999999999999999999": "2147483647", "4000": "4000", "-5": "late", "0": "late", "+5": "", "5s": "", "": "", "0x5": ""} {
		inWorld(t, func(t *testing.T, w *world) {
			var seen []recorded
			var mu sync.Mutex
			w.serve("up.test:80", record(&seen, &mu, status(200)))
			w.gateway(one("", ""))
			a := w.get(w.client(trusted), "http://gateway.test:80/", "Cortex-Timeout-Ms", sent)
			got := "late"
			if len(seen) > 0 {
				got = strings.Join(seen[0].header["Cortex-Timeout-Ms"], "|")
			}
			if got != want || (a.status == 504) != (want == "late") {
				t.Errorf("%q: %d, the target is told %q, want %q", sent, a.status, got, want)
			}
		})
	}
}

func TestConnectIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.gateway(one("", ""))
		c, err := w.dialFrom(stranger)(t.Context(), "tcp", "gateway.test:80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "CONNECT secret.test:22 HTTP/1.1\r\nHost: secret.test:22\r\nConnection: close\r\n\r\n")
		b, _ := io.ReadAll(c)
		if !strings.HasPrefix(string(b), "HTTP/1.1 501 ") {
			t.Errorf("answer %q", b)
		}
	})
}

func TestNewNamesWhatCannotBeUsed(t *testing.T) {
	f, err := config.Upstream("http://127.0.0.1:1", "", "")
	if err != nil {
		t.Fatal(err)
	}
	f.Routes[0].Target = "nope"
	if _, err := New(f, Options{}); err == nil || !strings.Contains(err.Error(), `"nope"`) {
		t.Errorf("unknown target: %v", err)
	}
	f.Routes[0].Target = f.Targets[0].Name
	f.Targets[0].Engine.Levels = -1
	if _, err := New(f, Options{}); err == nil || !strings.Contains(err.Error(), "Levels") {
		t.Errorf("engine: %v", err)
	}
}
