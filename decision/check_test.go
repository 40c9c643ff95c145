package decision

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// What is wrong is said by the name of the field, and with what would be right.
func TestRequestsAreChecked(t *testing.T) {
	w := newWorld(t)
	const ok = `"target":"a","priority":5`
	for _, tc := range []struct{ method, body, want string }{
		{"Admit", ``, "the body is empty"},
		{"Admit", `[]`, "AdmitRequest has target, priority, attempt, deadline_ms"},
		{"Admit", `{"target":`, "AdmitRequest has"},
		{"Admit", `{` + ok + `} {}`, "AdmitRequest has"},
		{"Admit", `{"priority":5}`, "target: missing: want the name"},
		{"Admit", `{"target":null,"priority":5}`, "target: missing"},
		{"Admit", `{"target":"","priority":5}`, "target: \"\": not a name"},
		{"Admit", `{"target":"a b","priority":5}`, "target: \"a b\": not a name: want up to 63 letters"},
		{"Admit", `{"target":"../a","priority":5}`, "not a name"},
		{"Admit", `{"target":"(overflow)","priority":5}`, "not a name"},
		{"Admit", `{"target":"` + strings.Repeat("a", 64) + `","priority":5}`, "not a name"},
		{"Admit", `{"target":7,"priority":5}`, "target"},
		{"Admit", `{"target":"a"}`, "priority: missing: want a number from 0"},
		{"Admit", `{"target":"a","priority":-1}`, "priority: -1: out of range: want from 0 to 31"},
		{"Admit", `{"target":"a","priority":32}`, "priority: 32: out of range"},
		{"Admit", `{"target":"a","priority":"high"}`, "invalid value for int32 field priority"},
		{"Admit", `{"target":"a","priority":1.5}`, "priority"},
		{"Admit", `{"target":"a","priority":1e99}`, "priority"},
		{"Admit", `{"target":"a","prio":5}`, `unknown field "prio"`},
		{"Admit", `{"target":"a","target":"b","priority":5}`, "duplicate field"},
		{"Admit", `{` + ok + `,"deadline_ms":1,"deadlineMs":2}`, "duplicate field"},
		{"Admit", `{` + ok + `,"attempt":1001}`, "attempt: 1001: out of range"},
		{"Admit", `{` + ok + `,"deadline_ms":0}`, "deadline_ms: 0: out of range: want from 1"},
		{"Report", `{}`, "outcome: missing: want one of success, failure, timeout, throttled, neutral"},
		{"Report", `{"outcome":"ok"}`, `outcome: "ok": want one of success`},
		{"Report", `{"outcome":"success"}`, "token: missing: want a token of Admit's, or the target"},
		{"Report", `{"outcome":"success","token":"x"}`, "token: not a token"},
		{"Report", `{"outcome":"success","token":"AAAAAAAAAAAAAAAAAAAAAA","target":"a"}`, "target: given together with token"},
		{"Report", `{"outcome":"success","token":"AAAAAAAAAAAAAAAAAAAAAA","priority":1}`, "priority: or attempt given together with token"},
		{"Report", `{"outcome":"success","target":"a"}`, "latency_ms: missing"},
		{"Report", `{"outcome":"success","target":"a","latency_ms":-1}`, "latency_ms: -1: out of range"},
		{"Report", `{"outcome":"success","target":"a","latency_ms":"NaN"}`, "latency_ms: NaN: out of range"},
		{"Report", `{"outcome":"success","target":"a","latency_ms":"Infinity"}`, "latency_ms: +Inf: out of range"},
		{"Report", `{"outcome":"success","target":"a","latency_ms":1e300}`, "out of range"},
		{"ReportBatch", `{}`, "reports: 0 of them: want from 1 to 1000"},
		{"ReportBatch", `{"reports":[{"outcom":"success"}]}`, `unknown field "outcom"`},
		{"Decide", `{` + ok + `}`, "attempt: missing: want the number"},
		{"Decide", `{` + ok + `,"attempt":0}`, "error: missing"},
		{"Decide", `{` + ok + `,"attempt":0,"error":{}}`, "error: nothing in it"},
		{"Decide", `{` + ok + `,"attempt":0,"error":{"http_status":503}}`, "latency_ms: missing"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"http_status":200}}`, "error.http_status: 200: out of range: want from 400 to 599"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"grpc_code":0}}`, "error.grpc_code: 0: out of range"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"class":"success"}}`, "error.class: \"success\": want one of failure, timeout"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"http_status":503,"grpc_code":4}}`, "error: more than one"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"status":503}}`, "error {http_status, grpc_code, class, message, retryable}"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"message":"` + strings.Repeat("x", 5000) + `"}}`, "error.message: too long"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"http_status":503},"retry_after_ms":-1}`, "retry_after_ms: -1"},
		{"Decide", `{` + ok + `,"attempt":0,"latency_ms":1,"error":{"http_status":503},"retry_after":7}`, "retry_after"},
		{"Decide", `{` + ok + `,"attempt":0,"error":{"http_status":503},"recorded":true,"token":"AAAAAAAAAAAAAAAAAAAAAA"}`, "recorded: given together with token"},
		{"List", `{"limit":0}`, "limit: 0: out of range"},
	} {
		status, out := w.post(tc.method, tc.body)
		message, _ := out["message"].(string)
		if status != 400 || out["code"] != "invalid_argument" || !strings.Contains(message, tc.want) {
			t.Errorf("%s %.80s: %d %v\nwant %s", tc.method, tc.body, status, out, tc.want)
		}
		if len(message) > 800 {
			t.Errorf("%s %.80s: a message of %d bytes", tc.method, tc.body, len(message))
		}
	}
	if n := w.registry.Len(); n != 0 {
		t.Errorf("requests that were refused made %d engines", n)
	}
}

func TestAViolationSaysItsField(t *testing.T) {
	w := newWorld(t)
	_, out := w.post("Admit", `{"target":"a","priority":99}`)
	detail := out["details"].([]any)[0].(map[string]any)
	seen, _ := json.Marshal(detail["debug"])
	if detail["type"] != "cortex.v1.FieldViolation" || !strings.Contains(string(seen), `"priority"`) {
		t.Errorf("%v", out)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	w := newWorld(t)
	status, out := w.post("Admit", `{"target":"a","priority":5`+strings.Repeat(" ", maxBody)+`}`)
	if status != 429 || out["code"] != "resource_exhausted" {
		t.Errorf("%d %v", status, out)
	}
}

func TestUnknownTargetsAreRefusedWhereThatIsConfigured(t *testing.T) {
	known := newWorld(t).engine("stock")
	w := newWorld(t, withKnown(known), func(c *Config) { c.Others = nil })
	if a := w.ask("Admit", `{"target":"stock","priority":5}`); a["allowed"] != true || known.Pressure().InFlight != 1 {
		t.Errorf("%v", a)
	}
	for _, call := range []struct{ method, body string }{
		{"Admit", `{"target":"other","priority":5}`},
		{"Report", `{"target":"other","outcome":"success","latency_ms":1}`},
		{"ReportBatch", `{"reports":[{"target":"other","outcome":"success","latency_ms":1}]}`},
		{"Decide", `{"target":"other","priority":5,"attempt":0,"latency_ms":1,"error":{"http_status":500}}`},
	} {
		if status, out := w.post(call.method, call.body); status != 404 || out["code"] != "not_found" || !strings.Contains(out["message"].(string), "target: \"other\": no such target") {
			t.Errorf("%s: %d %v", call.method, status, out)
		}
	}
}

func TestGuarded(t *testing.T) {
	for _, tc := range []struct {
		listen       string
		token, certs bool
		ok           bool
	}{
		{"127.0.0.1:9096", false, false, true}, {"[::1]:9096", false, false, true}, {"localhost:0", false, false, true},
		{"0.0.0.0:9096", false, false, false}, {":9096", false, false, false}, {"10.1.2.3:9096", false, false, false},
		{":9096", true, false, true}, {":9096", false, true, true},
	} {
		if err := Guarded(tc.listen, tc.token, tc.certs); (err == nil) != tc.ok || err != nil && !errors.Is(err, ErrExposed) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"target":"a","priority":5}`, `{"reports":[{"token":"AAAAAAAAAAAAAAAAAAAAAA","outcome":"success"}]}`, `{"after":"\ud800"}`,
		`{"target":"a","priority":5,"attempt":0,"error":{"http_status":503},"retry_after":"9999999999999999999","latency_ms":1}`, `{"targets":["a"]}`} {
		for m := range 5 {
			f.Add(uint8(m), []byte(s))
		}
	}
	w := newHandler(f)
	f.Fuzz(func(t *testing.T, m uint8, body []byte) {
		method := []string{"Admit", "Report", "ReportBatch", "Decide", "List"}[m%5]
		rec := w.serve(method, body)
		var out map[string]any
		if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil {
			t.Fatalf("%s %q: %d %q", method, body, rec.Code, rec.Body)
		}
		switch rec.Code {
		case 200:
		case 400:
			if out["code"] != connect.CodeInvalidArgument.String() || out["message"] == "" {
				t.Errorf("%s %q: %v", method, body, out)
			}
		default:
			t.Errorf("%s %q: %d %v", method, body, rec.Code, out)
		}
	})
}
