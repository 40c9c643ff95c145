package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

func TestForceACircuit(t *testing.T) {
	d := newDesk(t, "")
	e := d.targets[0].Engine
	const path = "/api/v1/targets/stock/circuit"
	before := "auto"
	for _, tc := range []struct {
		word    string
		forcing breaker.Forcing
		state   string
	}{
		{"open", breaker.ForcedOpen, "open"}, {"open", breaker.ForcedOpen, "open"}, {"closed", breaker.ForcedClosed, "closed"},
		{"auto", breaker.Automatic, "closed"}, {"open", breaker.ForcedOpen, "open"}, {"auto", breaker.Automatic, "open"},
	} {
		w := d.ask("POST", path, `{"state":"`+tc.word+`"}`)
		var got struct{ Name, Before, Forcing, State string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if got.Name != "stock" || got.Before != before || got.Forcing != tc.word || got.State != tc.state {
			t.Errorf("%s: %+v", tc.word, got)
		}
		if p := e.Pressure(); p.Forcing != tc.forcing {
			t.Errorf("%s: the engine is %v", tc.word, p.Forcing)
		}
		want := fmt.Sprintf(`level=INFO msg="admin: operation" remote=192.0.2.1:1234 method=POST path=%s operation=circuit target=stock `+
			`before=%s after=%s status=200 result=done`, path, before, tc.word)
		if ls := d.lines(); len(ls) != 1 || !strings.HasSuffix(ls[0], want) {
			t.Errorf("logged %q, want %q", ls, want)
		}
		before = tc.word

		_, body := get(t, d, "GET", "/api/v1/targets/stock")
		var full struct{ Circuit struct{ Forcing string } }
		if err := json.Unmarshal([]byte(body), &full); err != nil || full.Circuit.Forcing != tc.word {
			t.Errorf("GET says %+v, %v", full, err)
		}
		_, body = get(t, d, "GET", "/metrics")
		if !strings.Contains(body, `cortex_guard_circuit_forced{target="stock",state="`+tc.word+`"} 1`) {
			t.Errorf("%s: not in the metrics", tc.word)
		}
	}
	if w := d.ask("POST", "/api/v1/targets/nope/circuit", `{"state":"open"}`); w.Code != 404 {
		t.Errorf("a target that is not there: %d", w.Code)
	}
	if ls := d.lines(); len(ls) != 1 || !strings.Contains(ls[0], "level=WARN") || !strings.Contains(ls[0], "target=nope") || !strings.HasSuffix(ls[0], "result=refused") {
		t.Errorf("logged %q", ls)
	}
}

func TestForcedOpenReachesTheCalls(t *testing.T) {
	d := newDesk(t, "")
	d.ask("POST", "/api/v1/targets/stock/circuit", `{"state":"open"}`)
	if _, err := d.targets[0].Engine.Admit(t.Context(), 9); !errors.Is(err, cortex.ErrOpen) {
		t.Errorf("a call: %v", err)
	}
}

func TestBodiesAreReadStrictly(t *testing.T) {
	d := newDesk(t, "")
	d.level.Set(slog.LevelWarn)
	for _, tc := range []struct {
		body   string
		status int
		says   string
	}{
		{`{"level":"info"}`, 200, ""},
		{" {\n\"level\" : \"error\" } \n", 200, ""},
		{`{"level":"warn"}`, 200, ""},
		{``, 400, `{"level":"debug"}`},
		{`null`, 400, `want one such as {"level":"debug"}`},
		{`[]`, 400, `no JSON object`},
		{`"debug"`, 400, `no JSON object`},
		{`{}`, 400, `level: missing`},
		{`{"level":"verbose"}`, 400, `level: "verbose": want one of debug, info, warn, error`},
		{`{"level":"DEBUG"}`, 400, `want one of debug`},
		{`{"level":4}`, 400, `level: no string`},
		{`{"level":null}`, 400, `level: no string`},
		{`{"level":{"a":"b"}}`, 400, `level: no string`},
		{`{"Level":"debug"}`, 400, `"Level": unknown key: want {"level":"debug"}`},
		{`{"level":"debug","for":"1h"}`, 400, `"for": unknown key`},
		{`{"level":"debug","level":"debug"}`, 400, `given twice`},
		{`{"level":"debug"`, 400, `no JSON`},
		{`{"level":"debug",}`, 400, `no JSON`},
		{`{"level":"debug"}{}`, 400, `something behind`},
		{`{"level":"debug"} x`, 400, `something behind`},
		{`level=debug`, 400, `no JSON object`},
		{`{"` + strings.Repeat("x", 1000) + `":""}`, 400, `unknown key`},
		{`{"level":"debug"` + strings.Repeat(" ", maxBody) + `}`, 413, "4096 bytes"},
		{strings.Repeat("[", maxBody), 400, "no JSON object"},
		{`{"level":` + strings.Repeat("[", 4000), 400, "no JSON"},
	} {
		for _, method := range []string{"POST", "PUT"} {
			w := d.ask(method, "/api/v1/log", tc.body)
			if w.Code != tc.status {
				t.Errorf("%.60q: %d %s", tc.body, w.Code, w.Body)
			}
			if tc.status == 200 {
				continue
			}
			var p struct{ Detail string }
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Header().Get("Content-Type") != "application/problem+json" ||
				!strings.Contains(p.Detail, tc.says) || len(p.Detail) > 300 {
				t.Errorf("%.60q: %s", tc.body, w.Body)
			}
			if l := d.level.Level(); l != slog.LevelWarn {
				t.Fatalf("%.60q: the level is %v", tc.body, l)
			}
		}
	}
}

func TestLogLevel(t *testing.T) {
	d := newDesk(t, "")
	if _, body := get(t, d, "GET", "/api/v1/log"); !strings.Contains(body, `"level": "info"`) {
		t.Error(body)
	}
	if w := d.ask("PUT", "/api/v1/log", `{"level":"error"}`); w.Code != 200 || d.level.Level() != slog.LevelError {
		t.Errorf("%d, %v", w.Code, d.level.Level())
	}
	if _, body := get(t, d, "GET", "/api/v1/log"); !strings.Contains(body, `"level": "error"`) {
		t.Error(body)
	}
	d.ask("POST", "/api/v1/drain", "")
	// Turning the log down hides neither that nor what comes after.
	ls := d.lines()
	if len(ls) != 2 || !strings.Contains(ls[0], "operation=log before=info after=error") || !strings.Contains(ls[1], "operation=drain before=ready after=draining status=202") {
		t.Errorf("logged %q", ls)
	}
}

func TestDrain(t *testing.T) {
	d := newDesk(t, "")
	for i, body := range []string{"", "{}", " { } "} {
		if w := d.ask("POST", "/api/v1/drain", body); w.Code != 202 || d.drained.Load() != int64(i+1) {
			t.Errorf("%q: %d, drained %d", body, w.Code, d.drained.Load())
		}
	}
	for _, body := range []string{`{"now":true}`, "now", "{}{}"} {
		if w := d.ask("POST", "/api/v1/drain", body); w.Code != 400 || d.drained.Load() != 3 {
			t.Errorf("%q: %d, drained %d", body, w.Code, d.drained.Load())
		}
	}
}

func TestReload(t *testing.T) {
	d := newDesk(t, "")
	if w := d.ask("POST", "/api/v1/reload", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"reloaded": true`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	d.lines()
	d.reload = func() error {
		return errors.New("cortex.yaml:1:1: listen: 5: want an address\ncortex.yaml:9:3: targets: missing\n")
	}
	w := d.ask("POST", "/api/v1/reload", "{}")
	var p struct {
		Type, Title, Detail string
		Status              int
		Problems            []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 422 || p.Status != 422 || p.Type == "" || p.Title == "" || p.Detail == "" ||
		w.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if len(p.Problems) != 2 || p.Problems[1] != "cortex.yaml:9:3: targets: missing" {
		t.Errorf("problems %q", p.Problems)
	}
	ls := d.lines()
	if len(ls) != 1 || !strings.Contains(ls[0], "level=WARN") || !strings.Contains(ls[0], "listen: 5") || !strings.Contains(ls[0], "(and 1 more)") ||
		!strings.HasSuffix(ls[0], "result=failed") {
		t.Errorf("logged %q", ls)
	}
	d.reload = func() error { return errors.New("") }
	if w := d.ask("POST", "/api/v1/reload", ""); w.Code != 422 || !strings.Contains(w.Body.String(), "without a reason") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// An operation whose function panics is in the log before the panic goes on.
func TestPanicIsAudited(t *testing.T) {
	d := newDesk(t, "")
	d.reload = func() error { panic("boom") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
		}()
		d.ask("POST", "/api/v1/reload", "")
	}()
	if ls := d.lines(); len(ls) != 1 || !strings.HasSuffix(ls[0], "operation=reload status=0 result=panicked") {
		t.Errorf("logged %q", ls)
	}
}

func TestConfigInForce(t *testing.T) {
	d := newDesk(t, "")
	res, body := get(t, d, "GET", "/api/v1/config")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/yaml" || body != "listen: 127.0.0.1:8080\n" {
		t.Errorf("%d %s %s", res.StatusCode, res.Header.Get("Content-Type"), body)
	}
	if len(d.lines()) != 0 {
		t.Error("reading is logged")
	}
	d = newDesk(t, "", func(c *Config) { c.Control.ConfigYAML = func() ([]byte, error) { return nil, io.ErrUnexpectedEOF } })
	if res, _ := get(t, d, "GET", "/api/v1/config"); res.StatusCode != 500 {
		t.Errorf("%d", res.StatusCode)
	}
}

func TestWhatADaemonCannotDo(t *testing.T) {
	d := newDesk(t, "", func(c *Config) { c.Control = Control{} })
	for _, path := range []string{"POST /api/v1/drain", "POST /api/v1/reload", "GET /api/v1/config", "GET /api/v1/log", "PUT /api/v1/log",
		"GET /api/v1/server"} {
		method, path, _ := strings.Cut(path, " ")
		if w := d.ask(method, path, "{}"); w.Code != 501 || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: %d", method, path, w.Code)
		}
	}
}

func TestOtherMethodsAreToldWhichThereAre(t *testing.T) {
	d := newDesk(t, "")
	for path, allow := range map[string]string{
		"/api/v1/drain": "POST", "/api/v1/reload": "POST", "/api/v1/targets/stock/circuit": "POST", "/api/v1/log": "GET, HEAD, POST, PUT",
		"/api/v1/config": "GET, HEAD", "/metrics": "GET, HEAD",
	} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			if strings.Contains(allow, method) {
				continue
			}
			w := d.ask(method, path, "")
			if w.Code != 405 || w.Header().Get("Allow") != allow || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: %d, Allow %q, %s", method, path, w.Code, w.Header().Get("Allow"), w.Header().Get("Content-Type"))
			}
			if ls := d.lines(); method != "GET" && (len(ls) != 1 || !strings.Contains(ls[0], "result=refused")) {
				t.Errorf("%s %s: logged %q", method, path, ls)
			}
		}
	}
	for _, path := range []string{"/api", "/api/v1/targets/", "/api/v1/targets/stock/circuit/", "/metrics/"} {
		w := d.ask("GET", path, "")
		if w.Code != 404 || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestWhatClientsWriteIsCutInTheLog(t *testing.T) {
	d := newDesk(t, "")
	d.ask("POST", "/"+strings.Repeat("a", 10000)+"%0Alevel=INFO%20msg=forged", "{}")
	if ls := d.lines(); len(ls) != 1 || len(ls[0]) > 600 {
		t.Errorf("logged %q", ls)
	}
	d.ask("POST", "/x%0Alevel=INFO%20msg=forged", "{}")
	if ls := d.lines(); len(ls) != 1 {
		t.Errorf("logged %q", ls)
	}
}
