package cortexhttp

import (
	"encoding/json"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

func TestProblemGoesThereAndBack(t *testing.T) {
	rej := &cortex.Rejection{Target: "ledger", Reason: cortex.ReasonCircuitOpen, Priority: 5, Floor: 3, CPS: 0.7213, Evidence: 0.6516,
		Signals: cortex.Signals{F: 0.9, L: 1, Q: 0.25, B: 0.1, C: 1}, Circuit: breaker.Open, RetryAfter: 1234567 * time.Microsecond}
	w := httptest.NewRecorder()
	WriteRejection(w, httptest.NewRequest("GET", "/", nil), rej)
	var got Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := Problem{Type: ProblemTypes + "circuit-open", Title: "The circuit is open", Status: 503,
		Detail: "Nothing but probes is let through until one of them succeeds.", Reason: "CIRCUIT_OPEN", RetryAfterMS: 1235,
		Readings: &Readings{Target: "ledger", Priority: 5, Floor: 3, CPS: 0.7213, Evidence: 0.6516, State: "PRESSURED", Circuit: "open", Signals: rej.Signals}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back %+v %+v\nwant %+v %+v", got, got.Readings, want, want.Readings)
	}
	if got := w.Header().Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After %q, want 2: whole seconds, rounded up", got)
	}
	if got := w.Header().Get("Content-Length"); got != strconv.Itoa(w.Body.Len()) {
		t.Errorf("Content-Length %q for %d bytes", got, w.Body.Len())
	}
	if w.Body.Len() > 0 && w.Body.Bytes()[w.Body.Len()-1] != '\n' {
		t.Error("no newline at the end")
	}
}

func TestRetryAfterIsAWholeNumberOfSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{
		math.MinInt64: "1", -time.Second: "1", 0: "1", 1: "1", time.Second: "1", time.Second + 1: "2", 1500 * time.Millisecond: "2",
		30 * time.Second: "30", math.MaxInt64: "9223372037",
	} {
		w := httptest.NewRecorder()
		WriteRejection(w, nil, &cortex.Rejection{Reason: cortex.ReasonShed, RetryAfter: d})
		if got := w.Header().Get("Retry-After"); got != want {
			t.Errorf("%v: Retry-After %q, want %q", d, got, want)
		}
	}
}

func TestProblemSurvivesAnything(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, p := range map[string]Problem{
		"empty":            {},
		"low status":       {Status: 200},
		"huge status":      {Status: 1 << 40},
		"strange status":   {Status: 599},
		"negative numbers": {Status: 503, RetryAfterMS: math.MinInt64, Attempts: -1},
		"not numbers": {Status: 503, Reason: "SHED_LOW_PRIORITY", Readings: &Readings{CPS: nan, Evidence: inf,
			Signals: cortex.Signals{F: inf, L: -inf, Q: nan, B: 1e300, C: -1}}},
		"not text":   {Status: 503, Detail: "\xff\x00<script>", Reason: "A\r\nB: C"},
		"longest":    {Status: 503, RetryAfterMS: math.MaxInt64},
		"no refusal": RejectionProblem(nil),
		"zero":       RejectionProblem(&cortex.Rejection{}),
	} {
		w := httptest.NewRecorder()
		WriteProblem(w, httptest.NewRequest("GET", "/", nil), p)
		var got map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Errorf("%s: %v in %q", name, err, w.Body)
			continue
		}
		if w.Code < 400 || w.Code > 599 || got["status"] != float64(w.Code) || got["title"] == "" || got["type"] == "" {
			t.Errorf("%s: status %d, body %s", name, w.Code, w.Body)
		}
		if v := w.Header().Get("Retry-After"); v != "" {
			if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 1 {
				t.Errorf("%s: Retry-After %q", name, v)
			}
		}
	}
}

func TestProblemTellsWhatWasGiven(t *testing.T) {
	w := httptest.NewRecorder()
	h := w.Header()
	for _, key := range []string{"Content-Encoding", "Content-Range", "Etag", "Last-Modified", "Content-Length", "Content-Type"} {
		h.Set(key, "of another body")
	}
	h.Set("X-Request-Id", "7")
	WriteProblem(w, httptest.NewRequest("GET", "/", nil), Problem{Type: "https://example.org/p", Title: "No connection", Status: 502,
		Detail: "refused", Instance: "/log/7", Attempts: 3})
	want := `{"type":"https://example.org/p","title":"No connection","status":502,"detail":"refused","instance":"/log/7","attempts":3}` + "\n"
	if got := w.Body.String(); got != want {
		t.Errorf("body %s", got)
	}
	for key, want := range map[string]string{"Content-Encoding": "", "Content-Range": "", "Etag": "", "Last-Modified": "",
		"Content-Type": "application/problem+json", "Content-Length": strconv.Itoa(len(want)), "X-Request-Id": "7",
		"X-Content-Type-Options": "nosniff", HeaderReason: "", "Retry-After": ""} {
		if got := h.Get(key); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

func TestEveryReasonHasATitle(t *testing.T) {
	seen := map[string]cortex.Reason{}
	for _, r := range cortex.Reasons() {
		title := problemTitle(r.String(), 503)
		if other, there := seen[title]; there || title == http.StatusText(http.StatusServiceUnavailable) {
			t.Errorf("%s: title %q, also of %s", r, title, other)
		}
		seen[title] = r
	}
}

func TestHeadGetsTheHeaderOfARefusalAlone(t *testing.T) {
	srv := httptest.NewServer(guardHandler(t, HandlerConfig{Engine: serverEngine(t, overloaded)}, mustNotRun(t)))
	defer srv.Close()
	get := do(t, srv.Client(), "GET", srv.URL)
	head := do(t, srv.Client(), "HEAD", srv.URL) // on the same connection: a body would be taken for the next answer
	again := do(t, srv.Client(), "GET", srv.URL)
	if get.StatusCode != 503 || head.StatusCode != 503 || again.StatusCode != 503 {
		t.Fatalf("statuses %d, %d, %d", get.StatusCode, head.StatusCode, again.StatusCode)
	}
	for _, key := range []string{"Content-Length", "Content-Type", "Retry-After", HeaderReason, HeaderPressure} {
		if g, h := get.Header.Get(key), head.Header.Get(key); g == "" || g != h {
			t.Errorf("%s: GET %q, HEAD %q", key, g, h)
		}
	}
	w := httptest.NewRecorder()
	WriteRejection(w, httptest.NewRequest("HEAD", "/", nil), &cortex.Rejection{})
	if w.Body.Len() > 0 {
		t.Errorf("body for HEAD: %q", w.Body)
	}
}

func FuzzProblem(f *testing.F) {
	f.Add("", "", "", 503, int64(0), 0.5, 0.5)
	f.Add("CIRCUIT_OPEN", "d\xff", "/x", 504, int64(1500), math.NaN(), math.Inf(1))
	f.Add("\r\n", "<>&", "\x00", -1, int64(math.MaxInt64), -1.0, 2.0)
	f.Fuzz(func(t *testing.T, reason, detail, target string, status int, after int64, cps, q float64) {
		w := httptest.NewRecorder()
		WriteProblem(w, httptest.NewRequest("GET", "/", nil), Problem{Status: status, Reason: reason, Detail: detail, RetryAfterMS: after,
			Readings: &Readings{Target: target, CPS: cps, Signals: cortex.Signals{Q: q}}})
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatalf("%v in %q", err, w.Body)
		}
		if p.Status != w.Code || w.Code < 400 || w.Code > 599 || !(p.CPS >= 0 && p.CPS <= 1) || !(p.Signals.Q >= 0 && p.Signals.Q <= 1) {
			t.Fatalf("status %d, %+v, %+v", w.Code, p, p.Readings)
		}
	})
}
