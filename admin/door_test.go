package admin

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A desk is an admin port with one target, everything an operator can do, and a log to read.
type desk struct {
	http.Handler
	clock   *clock
	log     *bytes.Buffer // a handler's writes are under its own lock
	level   *slog.LevelVar
	token   atomic.Pointer[string]
	drained atomic.Int64
	reload  func() error
	targets []Target
}

func newDesk(t *testing.T, token string, change ...func(*Config)) *desk {
	t.Helper()
	d := &desk{clock: &clock{}, log: &bytes.Buffer{}, level: &slog.LevelVar{}, reload: func() error { return nil }}
	d.clock.add(time.Hour)
	d.targets = []Target{{Name: "stock", Engine: engine(t, "stock", d.clock)}}
	c := Config{
		Targets: func() []Target { return d.targets },
		Ready:   func() bool { return d.drained.Load() == 0 },
		Log:     slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: d.level})),
		Now:     d.clock.read,
		Control: Control{
			Drain:      func() { d.drained.Add(1) },
			Reload:     func(context.Context) error { return d.reload() },
			Level:      d.level.Level,
			SetLevel:   d.level.Set,
			ConfigYAML: func() ([]byte, error) { return []byte("listen: 127.0.0.1:8080\n"), nil },
		},
	}
	if token != "" {
		d.token.Store(&token)
		c.Token = func() string { return *d.token.Load() }
	}
	for _, f := range change {
		f(&c)
	}
	d.Handler = New(c)
	return d
}

// ask makes a request of the machine's own user, changed by header lines such as "Host: x".
func (d *desk) ask(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:9095"
	if method == "POST" || method == "PUT" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range header {
		k, v, _ := strings.Cut(h, ": ")
		switch {
		case k == "Host":
			r.Host = v
		case v == "":
			r.Header.Del(k)
		default:
			r.Header.Add(k, v)
		}
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

// lines takes what was logged so far.
func (d *desk) lines() []string {
	text := strings.TrimSpace(d.log.String())
	d.log.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func TestToken(t *testing.T) {
	const token = "0123456789abcdef0123456789abcdef"
	d := newDesk(t, token)
	for _, path := range []string{"/metrics", "/api/v1/targets", "/api/v1/targets/stock", "/api/v1/config", "/api/v1/log", "/nowhere"} {
		for name, tc := range map[string]struct {
			header []string
			ok     bool
		}{
			"none":           {nil, false},
			"right":          {[]string{"Authorization: Bearer " + token}, true},
			"scheme in caps": {[]string{"Authorization: BEARER " + token}, true},
			"wrong":          {[]string{"Authorization: Bearer 0123456789abcdef0123456789abcdee"}, false},
			"short":          {[]string{"Authorization: Bearer 0123456789abcdef"}, false},
			"empty":          {[]string{"Authorization: Bearer "}, false},
			"bare":           {[]string{"Authorization: " + token}, false},
			"basic":          {[]string{"Authorization: Basic " + token}, false},
			"twice":          {[]string{"Authorization: Bearer wrong", "Authorization: Bearer " + token}, false},
		} {
			w := d.ask("GET", path, "", tc.header...)
			if (w.Code != 401) != tc.ok {
				t.Errorf("%s, token %s: %d", path, name, w.Code)
			}
			if !tc.ok && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer ") {
				t.Errorf("%s, token %s: no challenge", path, name)
			}
			if !tc.ok && w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s, token %s: %s", path, name, w.Body)
			}
		}
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		if w := d.ask("GET", path, "", "Host: gateway.example"); w.Code != 200 {
			t.Errorf("%s without the token: %d", path, w.Code)
		}
		if w := d.ask("POST", path, "{}"); w.Code != 401 {
			t.Errorf("POST %s without the token: %d", path, w.Code)
		}
	}
	// With a token the port may be reached by whatever name.
	if w := d.ask("GET", "/metrics", "", "Host: gateway.example:9095", "Authorization: Bearer "+token); w.Code != 200 {
		t.Errorf("by name: %d", w.Code)
	}
	if w := d.ask("POST", "/api/v1/drain", ""); w.Code != 401 || d.drained.Load() != 0 {
		t.Errorf("an operation without the token: %d, drained %d", w.Code, d.drained.Load())
	}
	if strings.Contains(d.log.String(), "0123456789") {
		t.Errorf("a token is in the log:\n%s", d.log)
	}
}

func TestTokenMayChangeAndMayNotBeEmpty(t *testing.T) {
	d := newDesk(t, "the first token, long enough")
	with := func(token string) int { return d.ask("GET", "/metrics", "", "Authorization: Bearer "+token).Code }
	if s := with("the first token, long enough"); s != 200 {
		t.Errorf("first: %d", s)
	}
	second := "the second token, as long"
	d.token.Store(&second)
	if a, b := with("the first token, long enough"), with(second); a != 401 || b != 200 {
		t.Errorf("after the change: first %d, second %d", a, b)
	}
	none := ""
	d.token.Store(&none)
	for _, token := range []string{"", " ", second} {
		if s := with(token); s != 401 {
			t.Errorf("while there is no token, %q: %d", token, s)
		}
	}
}

func TestClientCertificateIsAsGoodAsTheToken(t *testing.T) {
	d := newDesk(t, "0123456789abcdef")
	ask := func(state *tls.ConnectionState, origin string) int {
		r := httptest.NewRequest("POST", "/api/v1/log", strings.NewReader(`{"level":"info"}`))
		r.Header.Set("Content-Type", "application/json")
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		r.TLS = state
		w := httptest.NewRecorder()
		d.ServeHTTP(w, r)
		return w.Code
	}
	anna := &x509.Certificate{Subject: pkix.Name{CommonName: "anna", Organization: []string{"operators"}}}
	if s := ask(&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{anna}}}, ""); s != 200 {
		t.Errorf("a verified certificate: %d", s)
	}
	if ls := d.lines(); len(ls) != 1 || !strings.Contains(ls[0], `subject="CN=anna,O=operators"`) {
		t.Errorf("logged %q", ls)
	}
	if s := ask(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{anna}}, ""); s != 401 {
		t.Errorf("a certificate that nobody has verified: %d", s)
	}
	// The browser shows the certificate whatever page asks it to.
	if s := ask(&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{anna}}}, "https://elsewhere.example"); s != 403 {
		t.Errorf("from another origin: %d", s)
	}
}

// Without credentials the port is the machine's own, but a web page that its user looks at runs there too.
func TestWebPagesAreKeptOut(t *testing.T) {
	d := newDesk(t, "")
	for host, ok := range map[string]bool{
		"localhost": true, "localhost:9095": true, "LOCALHOST:9095": true, "127.0.0.1:9095": true, "127.0.0.1": true, "[::1]:9095": true,
		"[::1]": true, "[fe80::1%eth0]:9095": true, "": true,
		"evil.example": false, "evil.example:9095": false, "localhost.evil.example": false, "127.0.0.1.evil.example:9095": false,
		"localhost.": false, "0x7f000001": false, "127.1": false, "2130706433": false,
	} {
		for _, ask := range []struct{ method, path, body string }{
			{"GET", "/metrics", ""}, {"GET", "/api/v1/config", ""}, {"GET", "/", ""}, {"POST", "/api/v1/log", `{"level":"info"}`},
		} {
			w := d.ask(ask.method, ask.path, ask.body, "Host: "+host)
			if (w.Code != 403) != ok {
				t.Errorf("%s %s at Host %q: %d", ask.method, ask.path, host, w.Code)
			}
		}
		if w := d.ask("GET", "/readyz", "", "Host: "+host); w.Code != 200 {
			t.Errorf("/readyz at Host %q: %d: probes have names", host, w.Code)
		}
	}
	for name, header := range map[string][]string{
		"origin":     {"Origin: https://evil.example"},
		"null":       {"Origin: null"},
		"other port": {"Origin: http://localhost:3000"},
		"fetch site": {"Sec-Fetch-Site: cross-site"},
		"same site":  {"Sec-Fetch-Site: same-site"},
	} {
		w := d.ask("POST", "/api/v1/drain", "{}", header...)
		if w.Code != 403 || d.drained.Load() != 0 {
			t.Errorf("%s: %d, drained %d", name, w.Code, d.drained.Load())
		}
	}
	// A form needs no leave of the port to be sent, but cannot say that it is JSON.
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp"} {
		if w := d.ask("POST", "/api/v1/drain", "{}", "Content-Type: ", "Content-Type: "+kind); w.Code != 415 || d.drained.Load() != 0 {
			t.Errorf("as %q: %d, drained %d", kind, w.Code, d.drained.Load())
		}
	}
	for _, header := range []string{"Origin: http://localhost:9095", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none", "X-Nothing: x"} {
		if w := d.ask("POST", "/api/v1/drain", "{}", header); w.Code != 202 {
			t.Errorf("%s: %d", header, w.Code)
		}
	}
}

const doorBurst = 10 // lines at once, of a [door.Ration]

func TestFloodOfGuessesIsNoFloodOfLines(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		d := newDesk(t, "0123456789abcdef")
		guess := func() { d.ask(method, "/api/v1/log", `{"level":"debug"}`, "Authorization: Bearer guess-guess-guess") }
		for range 1000 {
			guess()
		}
		if n := len(d.lines()); n != doorBurst {
			t.Errorf("%s: %d lines at once, want %d", method, n, doorBurst)
		}
		for range 50 {
			d.clock.add(100 * time.Millisecond)
			for range 100 {
				guess()
			}
		}
		ls := d.lines()
		if n := len(ls); n < 4 || n > 6 {
			t.Errorf("%s: %d lines in 5 s", method, n)
		}
		if !strings.Contains(ls[0], "unlogged_before=1") || strings.Contains(strings.Join(ls, ""), "guess-guess") {
			t.Errorf("%s: %s", method, ls[0])
		}
		d.clock.add(time.Hour)
		for range 50 {
			guess()
		}
		if n := len(d.lines()); n != doorBurst {
			t.Errorf("%s: %d lines after an hour of silence", method, n)
		}
		w := d.ask("GET", "/metrics", "", "Authorization: Bearer 0123456789abcdef")
		if !strings.Contains(w.Body.String(), `cortex_guard_admin_refused_total{cause="token"} 6050`) {
			t.Errorf("%s: not all are counted", method)
		}
	}
}

func TestEverythingAtOnce(t *testing.T) {
	d := newDesk(t, "0123456789abcdef")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				token := "Authorization: Bearer 0123456789abcdef"
				if i == 0 {
					token = "Authorization: Bearer wrong"
				}
				d.ask("POST", "/api/v1/targets/stock/circuit", `{"state":"open"}`, token)
				d.ask("POST", "/api/v1/targets/stock/circuit", `{"state":"auto"}`, token)
				d.ask("PUT", "/api/v1/log", `{"level":"warn"}`, token)
				d.ask("GET", "/metrics", "", token)
				d.ask("GET", "/api/v1/targets", "", token)
			}
		})
	}
	wg.Wait()
}
