package cortexhttp

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// overloaded is an engine with a full queue: the article's law sheds priorities below 7 with certainty, at a CPS of 0.70.
var overloaded = cortex.Config{
	Name: "api", Profile: cortex.Article, Weights: cortex.Weights{F: 0.1, Q: 0.7, B: 0.1, C: 0.1},
	Queue: func() (float64, float64) { return 10, 10 },
}

// handClock is an engine's clock moved by hand.
type handClock struct{ ns atomic.Int64 }

func (c *handClock) now() time.Duration      { return time.Duration(c.ns.Load()) }
func (c *handClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// testClock is the time of all engines here that do not bring their own.
var testClock handClock

func serverEngine(t testing.TB, c cortex.Config) *cortex.Engine {
	t.Helper()
	if c.Now == nil {
		c.Now = testClock.now
	}
	e, err := cortex.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func guardHandler(t testing.TB, c HandlerConfig, next http.HandlerFunc) http.Handler {
	t.Helper()
	h, err := NewHandler(c, next)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// ask sends a request from a peer, with header lines "Name: value".
func ask(h http.Handler, method, path, peer string, lines ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	r.RemoteAddr = peer
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	stranger  = "192.0.2.1:1234"
	neighbour = "127.0.0.1:1234"
)

func answerOK(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok")) }

func mustNotRun(t *testing.T) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }
}

func wantStats(t *testing.T, e *cortex.Engine, want cortex.Stats) {
	t.Helper()
	testClock.advance(time.Millisecond) // engines collect what happened once in that time
	got := e.Stats()
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"calls", got.Calls, want.Calls}, {"attempts", got.Attempts, want.Attempts}, {"successes", got.Successes, want.Successes},
		{"failures", got.Failures, want.Failures}, {"timeouts", got.Timeouts, want.Timeouts},
		{"throttled", got.Throttled, want.Throttled}, {"neutral", got.Neutral, want.Neutral},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
	if n := e.Pressure().InFlight; n != 0 {
		t.Errorf("%d left in flight", n)
	}
}

func TestHandlerRefusesWithAProblem(t *testing.T) {
	h := guardHandler(t, HandlerConfig{Engine: serverEngine(t, overloaded)}, mustNotRun(t))
	w := ask(h, "GET", "/pay", neighbour, "X-Priority: 3")
	if w.Code != 503 {
		t.Fatalf("status %d, want 503", w.Code)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json", "Cache-Control": "no-store", "Retry-After": "1",
		HeaderReason: "SHED_LOW_PRIORITY", HeaderPressure: "0.7000;q=1.0000;shed=0.0000;state=PRESSURED",
	} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"type": ProblemTypes + "shed-low-priority", "title": "Shed under pressure", "status": 503.0,
		"detail": "Calls of a priority below 7 are shed at the moment; this one has 3.",
		"reason": "SHED_LOW_PRIORITY", "retry_after_ms": 1000.0,
		"target": "api", "priority": 3.0, "floor": 7.0, "cps": 0.7, "evidence": 0.7778, "state": "PRESSURED", "circuit": "closed",
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s: %v, want %v", k, got[k], v)
		}
	}
	signals, _ := got["signals"].(map[string]any)
	if len(signals) != 5 || signals["Q"] != 1.0 || signals["F"] != 0.0 {
		t.Errorf("signals: %v", got["signals"])
	}
}

func TestHidePressureKeepsNumbersToItself(t *testing.T) {
	e := serverEngine(t, overloaded)
	h := guardHandler(t, HandlerConfig{Engine: e, HidePressure: true}, answerOK)
	w := ask(h, "GET", "/pay", neighbour, "X-Priority: 3")
	body := w.Body.String()
	for _, secret := range []string{"cps", "signals", "floor", "0.7", "below 7", "api\""} {
		if strings.Contains(body, secret) {
			t.Errorf("refusal tells %q: %s", secret, body)
		}
	}
	if !strings.Contains(body, "SHED_LOW_PRIORITY") || w.Header().Get("Retry-After") != "1" {
		t.Errorf("refusal does not say why and until when: %v %s", w.Header(), body)
	}
	ok := ask(h, "GET", "/pay", neighbour, "X-Priority: 9")
	for _, w := range []*httptest.ResponseRecorder{w, ok} {
		if v := w.Header().Values(HeaderPressure); len(v) > 0 {
			t.Errorf("answer %d reports %q", w.Code, v)
		}
	}
}

// The body of a refusal is kept for those to come, but not beyond the numbers it tells.
func TestRefusalTellsTheNumbersOfItsMoment(t *testing.T) {
	var clock handClock
	fill := 1.0
	c := overloaded
	c.Now, c.Queue = clock.now, func() (float64, float64) { return fill, 1 }
	h := guardHandler(t, HandlerConfig{Engine: serverEngine(t, c)}, mustNotRun(t))
	for _, want := range []string{`"cps":0.7,`, `"cps":0.63,`} {
		if body := ask(h, "GET", "/pay", stranger).Body.String(); !strings.Contains(body, want) {
			t.Errorf("want %s in %s", want, body)
		}
		fill = 0.9
		clock.advance(time.Second)
	}
}

// A header that raises one's own priority is honoured from trusted networks only, in one well-formed line.
func TestPriorityIsBelievedFromTrustedPeersOnly(t *testing.T) {
	lan := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct {
		name   string
		config HandlerConfig
		peer   string
		lines  []string
		passes bool // the floor is 7
	}{
		{"trusted, high", HandlerConfig{}, neighbour, []string{"X-Priority: 7"}, true},
		{"trusted, low", HandlerConfig{}, neighbour, []string{"X-Priority: 6"}, false},
		{"trusted, none sent", HandlerConfig{}, neighbour, nil, false}, // 5
		{"IPv6 loopback", HandlerConfig{}, "[::1]:80", []string{"X-Priority: 7"}, true},
		{"stranger", HandlerConfig{}, stranger, []string{"X-Priority: 10"}, false},
		{"stranger says forwarded", HandlerConfig{}, stranger, []string{"X-Priority: 10", "X-Forwarded-For: 127.0.0.1",
			"Forwarded: for=127.0.0.1", "X-Real-Ip: 127.0.0.1"}, false},
		{"stranger in a default above", HandlerConfig{Default: new(cortex.Priority(8))}, stranger, []string{"X-Priority: 0"}, true},
		{"loopback not in trust", HandlerConfig{Trust: lan}, neighbour, []string{"X-Priority: 10"}, false},
		{"in trust", HandlerConfig{Trust: lan}, "10.1.2.3:80", []string{"X-Priority: 10"}, true},
		{"in trust, as IPv6", HandlerConfig{Trust: lan}, "[::ffff:10.1.2.3]:80", []string{"X-Priority: 10"}, true},
		{"nobody trusted", HandlerConfig{Trust: []netip.Prefix{}}, neighbour, []string{"X-Priority: 10"}, false},
		{"unix socket", HandlerConfig{}, "@", []string{"X-Priority: 10"}, false},
		{"two lines", HandlerConfig{}, neighbour, []string{"X-Priority: 10", "X-Priority: 10"}, false},
		{"a list", HandlerConfig{}, neighbour, []string{"X-Priority: 10, 10"}, false},
		{"junk", HandlerConfig{}, neighbour, []string{"X-Priority: highest"}, false},
		{"a float", HandlerConfig{}, neighbour, []string{"X-Priority: 9.5"}, false},
		{"beyond the top", HandlerConfig{}, neighbour, []string{"X-Priority: 11"}, true},
		{"beyond 64 bits", HandlerConfig{}, neighbour, []string{"X-Priority: 18446744073709551616"}, true}, // 0 if it wraps
		{"below 0", HandlerConfig{Default: new(cortex.Priority(9))}, neighbour, []string{"X-Priority: -1"}, false},
		{"default 0 is not no default", HandlerConfig{Default: new(cortex.Priority(0))}, stranger, nil, false},
		{"function decides alone", HandlerConfig{Priority: func(*http.Request) cortex.Priority { return 9 }}, stranger,
			[]string{"X-Priority: 0"}, true},
		{"function out of range", HandlerConfig{Priority: func(*http.Request) cortex.Priority { return 1 << 40 }}, stranger, nil, true},
		{"function far below", HandlerConfig{Priority: func(*http.Request) cortex.Priority { return -1 << 40 }}, stranger, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Engine = serverEngine(t, overloaded)
			w := ask(guardHandler(t, c.config, answerOK), "GET", "/pay", c.peer, c.lines...)
			if passed := w.Code == 200; passed != c.passes {
				t.Errorf("status %d, body %s", w.Code, w.Body)
			}
		})
	}
}

func TestParsePriority(t *testing.T) {
	for _, c := range []struct {
		value  string
		levels int
		want   cortex.Priority
		ok     bool
	}{
		{"0", 10, 0, true}, {"10", 10, 10, true}, {"11", 10, 10, true}, {"9", 4, 4, true}, {"-1", 10, 0, true}, {"-0", 10, 0, true},
		{"9223372036854775808", 10, 10, true}, {"-9223372036854775809", 10, 0, true}, {strings.Repeat("9", 5000), 10, 10, true},
		{"3", -1, 0, true}, {"", 10, 0, false}, {"-", 10, 0, false}, {"+3", 10, 0, false}, {" 3", 10, 0, false}, {"3 ", 10, 0, false},
		{"03", 10, 0, false}, {"0x3", 10, 0, false}, {"3e0", 10, 0, false}, {"1_0", 10, 0, false}, {"--3", 10, 0, false}, {"3\n", 10, 0, false},
	} {
		if got, ok := ParsePriority(c.value, c.levels); got != c.want || ok != c.ok {
			t.Errorf("ParsePriority(%.30q, %d) = %d, %v; want %d, %v", c.value, c.levels, got, ok, c.want, c.ok)
		}
	}
}

func TestPeerTrusted(t *testing.T) {
	trust := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::1/128")}
	for peer, want := range map[string]bool{
		"10.0.0.1:80": true, "[::ffff:10.0.0.1]:80": true, "[fe80::1%eth0]:80": true, "[::1]:80": true,
		"11.0.0.1:80": false, "[::2]:80": false, "[::ffff:11.0.0.1]:80": false,
		"10.0.0.1": false, "": false, "@": false, "/run/api.sock": false, "localhost:80": false, "10.0.0.1:http": false,
		"10.0.0.1, 8.8.8.8": false, "010.0.0.1:80": false,
	} {
		if got := PeerTrusted(&http.Request{RemoteAddr: peer}, trust); got != want {
			t.Errorf("PeerTrusted(%q) = %v", peer, got)
		}
	}
	if PeerTrusted(&http.Request{RemoteAddr: "10.0.0.1:80"}, nil) {
		t.Error("trusted by nobody")
	}
}

// F65: a breaker around the health RPC takes the instance out of service.
func TestHealthChecksPassWhateverThePressure(t *testing.T) {
	open := serverEngine(t, cortex.Config{})
	broken := guardHandler(t, HandlerConfig{Engine: open}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	for range 100 {
		ask(broken, "GET", "/pay", stranger)
	}
	for name, e := range map[string]*cortex.Engine{"open circuit": open, "shed": serverEngine(t, overloaded)} {
		h := guardHandler(t, HandlerConfig{Engine: e}, answerOK)
		if w := ask(h, "GET", "/pay", stranger); w.Code != 503 {
			t.Fatalf("%s: work answered %d, want 503", name, w.Code)
		}
		testClock.advance(time.Millisecond)
		calls := e.Stats().Calls
		for _, path := range []string{"/healthz", "/readyz", "/livez", "/health", "/grpc.health.v1.Health/Check",
			"/grpc.health.v1.Health/Watch", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
			"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"} {
			if w := ask(h, "POST", path, stranger); w.Code != 200 {
				t.Errorf("%s: %s answered %d", name, path, w.Code)
			}
		}
		for _, path := range []string{"/healthz/../pay", "/healthz/pay", "/grpc.health.v1.Health/../pay.Pay/Send", "/grpc.health.v1.HealthX/Check", "//healthz"} {
			r := httptest.NewRequest("GET", "/", nil)
			r.URL.Path = path
			if w := httptest.NewRecorder(); true {
				if h.ServeHTTP(w, r); w.Code != 503 {
					t.Errorf("%s: %s passed as a health check", name, path)
				}
			}
		}
		testClock.advance(time.Millisecond)
		if n := e.Stats().Calls - calls; n != 5 {
			t.Errorf("%s: %d calls counted, want 5: health checks are none", name, n)
		}
	}
}

func TestExemptIsTheUsersToSay(t *testing.T) {
	e := serverEngine(t, overloaded)
	h := guardHandler(t, HandlerConfig{Engine: e, Exempt: func(r *http.Request) bool { return r.URL.Path == "/poll" }}, answerOK)
	for path, want := range map[string]int{"/poll": 200, "/healthz": 503} {
		if w := ask(h, "GET", path, stranger); w.Code != want {
			t.Errorf("%s answered %d, want %d", path, w.Code, want)
		}
	}
}

// F72(c): when everybody claims the highest priority, shedding still works, and by chance among equals.
func TestAllOfHighestPriorityAreStillShed(t *testing.T) {
	var clock handClock
	e := serverEngine(t, cortex.Config{Now: clock.now, Rand: rand.NewPCG(1, 2),
		Queue: func() (float64, float64) { return 1, 1 }}) // 20 % over what sheds nothing
	h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, _ *http.Request) { clock.advance(time.Millisecond / 4) })
	var codes [600]int
	refused := 0
	for i := range 1000 {
		w := ask(h, "GET", "/pay", neighbour, "X-Priority: 10")
		codes[w.Code]++
		if w.Code == 503 {
			refused++
			clock.advance(time.Millisecond / 4)
		}
		if i > 100 && refused == i+1 {
			t.Fatal("nobody gets through")
		}
	}
	if codes[200]+codes[503] != 1000 || refused < 100 || refused > 350 {
		t.Errorf("of 1000 at the highest priority %d were shed", refused)
	}
}

func TestSelectPicksTheEngine(t *testing.T) {
	busy, idle := serverEngine(t, overloaded), serverEngine(t, cortex.Config{Name: "idle"})
	h := guardHandler(t, HandlerConfig{Select: func(r *http.Request) (*cortex.Engine, error) {
		switch r.URL.Path {
		case "/busy":
			return busy, nil
		case "/idle":
			return idle, nil
		case "/free":
			return nil, nil
		}
		return nil, errors.New("secret: no such tenant")
	}}, answerOK)
	for path, want := range map[string]int{"/busy": 503, "/idle": 200, "/free": 200, "/other": 500} {
		w := ask(h, "GET", path, stranger)
		if w.Code != want {
			t.Errorf("%s answered %d, want %d", path, w.Code, want)
		}
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s tells its error to the world", path)
		}
		if reports := w.Header().Get(HeaderPressure) != ""; reports != (path == "/busy" || path == "/idle") {
			t.Errorf("%s: pressure %q", path, w.Header().Get(HeaderPressure))
		}
	}
	if w := ask(h, "GET", "/busy", neighbour, "X-Priority: 7"); w.Code != 200 {
		t.Errorf("priority 7 answered %d", w.Code)
	}
	wantStats(t, idle, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1})
}

func TestNewHandlerNamesTheField(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	pick := func(*http.Request) (*cortex.Engine, error) { return e, nil }
	next := http.HandlerFunc(answerOK)
	for _, c := range []struct {
		field  string
		config HandlerConfig
		next   http.Handler
	}{
		{"next", HandlerConfig{Engine: e}, nil},
		{"HandlerConfig.Engine", HandlerConfig{}, next},
		{"HandlerConfig.Select", HandlerConfig{Engine: e, Select: pick}, next},
		{"HandlerConfig.MaxTimeout", HandlerConfig{Engine: e, MaxTimeout: -1}, next},
		{"HandlerConfig.Trust[1]", HandlerConfig{Engine: e, Trust: []netip.Prefix{netip.MustParsePrefix("::1/128"), {}}}, next},
		{"HandlerConfig.Trust[0]", HandlerConfig{Engine: e, Trust: []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.0/104")}}, next},
	} {
		h, err := NewHandler(c.config, c.next)
		ce, ok := errors.AsType[*cortex.ConfigError](err)
		if h != nil || !ok || ce.Field != c.field {
			t.Errorf("want an error of %s, got %v", c.field, err)
		}
	}
}

func TestConfigIsNotSharedWithItsOwner(t *testing.T) {
	trust := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	standard := new(cortex.Priority(0))
	h := guardHandler(t, HandlerConfig{Engine: serverEngine(t, overloaded), Trust: trust, Default: standard}, answerOK)
	trust[0], *standard = netip.MustParsePrefix("0.0.0.0/0"), 10
	if w := ask(h, "GET", "/pay", stranger, "X-Priority: 10"); w.Code != 503 {
		t.Errorf("answered %d: the configuration changed behind its back", w.Code)
	}
}

func TestHandlerUnderConcurrency(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Panic") != "" {
			panic(http.ErrAbortHandler)
		}
		w.Write([]byte("ok"))
	})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				func() {
					defer func() { recover() }()
					lines := []string{"X-Priority: 10", "Cortex-Timeout-Ms: 60000", "Cortex-Attempt: 1;retries=3"}
					if i%50 == g {
						lines = append(lines, "Panic: now")
					}
					ask(h, "GET", "/pay", neighbour, lines...)
				}()
			}
		})
	}
	wg.Wait()
	wantStats(t, e, cortex.Stats{Calls: 1600, Attempts: 1600, Successes: 1568, Failures: 32})
}
