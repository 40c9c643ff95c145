package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// clock is virtual time for engines.
type clock struct{ now atomic.Int64 }

func (c *clock) add(d time.Duration) { c.now.Add(int64(d)) }
func (c *clock) read() time.Duration { return time.Duration(c.now.Load()) }

func engine(t *testing.T, name string, c *clock) *cortex.Engine {
	t.Helper()
	e, err := cortex.New(cortex.Config{Name: name, Now: c.read})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// trip opens the circuit of an engine by failures.
func trip(t *testing.T, e *cortex.Engine, c *clock) {
	t.Helper()
	for range 1000 {
		p, err := e.Admit(context.Background(), 5)
		c.add(5 * time.Millisecond)
		if err != nil {
			if errors.Is(err, cortex.ErrOpen) {
				return
			}
			continue
		}
		p.Record(cortex.Failed)
	}
	t.Fatal("the circuit did not open")
}

func get(t *testing.T, h http.Handler, method, path string) (*http.Response, string) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r.Host = "127.0.0.1:9095"
	h.ServeHTTP(w, r)
	res := w.Result()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

func fixture(t *testing.T) (http.Handler, *atomic.Bool) {
	c := &clock{}
	payments, stock := engine(t, "payments", c), engine(t, "stock", c)
	for range 20 {
		p, err := payments.Admit(context.Background(), 5)
		if err != nil {
			t.Fatal(err)
		}
		c.add(10 * time.Millisecond)
		p.Record(cortex.Success)
	}
	trip(t, stock, c)
	targets := []Target{
		{Name: "payments", Engine: payments, Endpoints: []string{"http://127.0.0.1:9000"}, Traffic: func() Traffic {
			tr := Traffic{CacheFallbacks: 3, StaticFallbacks: 4, Answers: [6]uint64{2: 20, 5: 1}}
			tr.Durations.Counts[3] = 20
			tr.Durations.Sum = 200 * time.Millisecond
			return tr
		}},
		{Name: "stock", Engine: stock},
	}
	var ready atomic.Bool
	ready.Store(true)
	return New(Config{Targets: func() []Target { return targets }, Ready: ready.Load}), &ready
}

func TestHealthAndReadiness(t *testing.T) {
	h, ready := fixture(t)
	status := func(path string) int { res, _ := get(t, h, "GET", path); return res.StatusCode }
	if s := status("/healthz"); s != 200 {
		t.Errorf("/healthz: %d", s)
	}
	if s := status("/readyz"); s != 200 {
		t.Errorf("/readyz: %d", s)
	}
	ready.Store(false)
	if s := status("/healthz"); s != 200 {
		t.Errorf("/healthz while draining: %d: the process lives", s)
	}
	if s := status("/readyz"); s != 503 {
		t.Errorf("/readyz while draining: %d", s)
	}
}

func TestOnlyReads(t *testing.T) {
	h, _ := fixture(t)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/api/v1/targets", "/api/v1/targets/payments"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			res, _ := get(t, h, method, path)
			if res.StatusCode != 405 || !strings.Contains(res.Header.Get("Allow"), "GET") {
				t.Errorf("%s %s: %d, Allow %q", method, path, res.StatusCode, res.Header.Get("Allow"))
			}
		}
		if res, _ := get(t, h, "HEAD", path); res.StatusCode != 200 {
			t.Errorf("HEAD %s: %d", path, res.StatusCode)
		}
	}
	if res, _ := get(t, h, "GET", "/index.html"); res.StatusCode != 404 {
		t.Errorf("/index.html: %d", res.StatusCode)
	}
}

func TestTargetsInBrief(t *testing.T) {
	h, _ := fixture(t)
	res, body := get(t, h, "GET", "/api/v1/targets")
	if ct := res.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("Content-Type %q", ct)
	}
	var got struct {
		Targets []struct {
			Name, Profile, State, Circuit string
			Endpoints                     []string
			CPS                           float64
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Targets) != 2 || got.Targets[0].Name != "payments" || got.Targets[1].Name != "stock" {
		t.Fatalf("targets %+v", got.Targets)
	}
	if p := got.Targets[0]; p.Profile != "adaptive" || p.State != "HEALTHY" || p.Circuit != "closed" || len(p.Endpoints) != 1 {
		t.Errorf("payments %+v", p)
	}
	if s := got.Targets[1]; s.Circuit != "open" || s.Endpoints == nil {
		t.Errorf("stock %+v", s)
	}
}

func TestNoTargetsAreAnEmptyList(t *testing.T) {
	h := New(Config{Targets: func() []Target { return nil }, Ready: func() bool { return true }})
	if _, body := get(t, h, "GET", "/api/v1/targets"); strings.Contains(body, "null") || !strings.Contains(body, "[]") {
		t.Errorf("body %s", body)
	}
	_, body := get(t, h, "GET", "/metrics")
	if _, err := parse(body); err != nil {
		t.Error(err)
	}
}

func TestTargetInFull(t *testing.T) {
	h, _ := fixture(t)
	_, body := get(t, h, "GET", "/api/v1/targets/payments")
	var d map[string]any
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"name", "endpoints", "profile", "state", "cps", "evidence", "floor", "levels", "shed", "signals", "weights",
		"circuit", "calls", "attempts", "retries", "outcomes", "rejections", "stale", "lost", "bad_input", "fallbacks", "in_flight",
		"limit", "capacity_per_second", "tokens", "price", "timeout_ms", "p99_ms", "samples", "window_ms", "baseline"} {
		if _, ok := d[key]; !ok {
			t.Errorf("no %s", key)
		}
	}
	at := func(path ...string) any {
		v := any(d)
		for _, p := range path {
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v is no object", path)
			}
			if v, ok = m[p]; !ok {
				t.Errorf("no %v", path)
			}
		}
		return v
	}
	if n := at("calls"); n != 20.0 {
		t.Errorf("calls %v", n)
	}
	if n := at("outcomes", "success"); n != 20.0 {
		t.Errorf("successes %v", n)
	}
	if n := at("outcomes", "failure"); n != 0.0 {
		t.Errorf("failures %v", n)
	}
	if w := at("weights", "F"); w != 0.3 {
		t.Errorf("weight of F %v", w)
	}
	for _, s := range []string{"F", "L", "Q", "B", "C"} {
		at("signals", s)
	}
	for _, r := range cortex.Reasons() {
		at("rejections", r.String())
	}
	if n := at("timeout_ms"); n != 1000.0 {
		t.Errorf("timeout_ms %v, want the bootstrap's", n)
	}
	if n := at("fallbacks", "cache"); n != 3.0 {
		t.Errorf("fallbacks.cache %v", n)
	}
	if s := at("circuit", "state"); s != "closed" {
		t.Errorf("circuit %v", s)
	}

	_, body = get(t, h, "GET", "/api/v1/targets/stock")
	if err := json.Unmarshal([]byte(body), &d); err != nil {
		t.Fatal(err)
	}
	if n, ok := at("circuit", "next_probe_ms").(float64); !ok || n <= 0 {
		t.Errorf("next_probe_ms of an open circuit is %v", n)
	}
	if n, ok := at("rejections", "CIRCUIT_OPEN").(float64); !ok || n < 1 {
		t.Errorf("rejections %v", n)
	}
}

func TestUnknownTargetIsAProblem(t *testing.T) {
	h, _ := fixture(t)
	for _, name := range []string{"nope", "pay", "payments%2F", "%22%3Cscript%3E"} {
		res, body := get(t, h, "GET", "/api/v1/targets/"+name)
		if res.StatusCode != 404 || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s", name, res.StatusCode, res.Header.Get("Content-Type"))
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("%s: %s", name, body)
		}
	}
}

func TestMetricsParseStrictly(t *testing.T) {
	h, ready := fixture(t)
	res, body := get(t, h, "GET", "/metrics")
	if ct := res.Header.Get("Content-Type"); ct != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("Content-Type %q", ct)
	}
	fs, err := parse(body)
	if err != nil {
		t.Fatal(err)
	}
	for name := range fs {
		if !strings.HasPrefix(name, "cortex_guard_") {
			t.Errorf("%s: without the prefix", name)
		}
	}
	value := func(name, labels string) float64 {
		f := fs["cortex_guard_"+name]
		if f == nil {
			t.Fatalf("no family %s", name)
		}
		v, ok := f.series["cortex_guard_"+name+labels]
		if !ok {
			t.Errorf("no series %s%s", name, labels)
		}
		return v
	}
	if v := value("calls_total", `{target="payments"}`); v != 20 {
		t.Errorf("calls %v", v)
	}
	if v := value("outcomes_total", `{target="payments",outcome="success"}`); v != 20 {
		t.Errorf("successes %v", v)
	}
	if v := value("answers_total", `{target="payments",code_class="2xx"}`); v != 20 {
		t.Errorf("2xx %v", v)
	}
	if v := value("circuit_state", `{target="stock",state="open"}`); v != 1 {
		t.Errorf("open %v", v)
	}
	if v := value("circuit_state", `{target="stock",state="closed"}`); v != 0 {
		t.Errorf("closed %v", v)
	}
	if v := value("rejections_total", `{target="stock",reason="CIRCUIT_OPEN"}`); v < 1 {
		t.Errorf("rejections %v", v)
	}
	if v := value("ready", ""); v != 1 {
		t.Errorf("ready %v", v)
	}
	ready.Store(false)
	if _, body = get(t, h, "GET", "/metrics"); !strings.Contains(body, "\ncortex_guard_ready 0\n") {
		t.Error("ready while draining")
	}
}

func TestSeriesDoNotDependOnTraffic(t *testing.T) { // F88
	c := &clock{}
	e := engine(t, "a", c)
	h := New(Config{Targets: func() []Target { return []Target{{Name: "a", Engine: e}} }, Ready: func() bool { return true }})
	series := func() int {
		_, body := get(t, h, "GET", "/metrics")
		fs, err := parse(body)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range fs {
			n += len(f.series)
		}
		return n
	}
	before := series()
	for i := range 100 {
		p, err := e.Admit(context.Background(), cortex.Priority(i))
		if err == nil {
			c.add(time.Millisecond)
			p.Done(fmt.Errorf("text number %d", i))
		}
	}
	trip(t, e, c)
	if after := series(); after != before {
		t.Errorf("%d series, then %d", before, after)
	}
}
