package decision

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

func TestAdmitAndReport(t *testing.T) {
	w := newWorld(t)
	a := w.ask("Admit", `{"target":"whatsapp","priority":5}`)
	if a["allowed"] != true || a["reason"] != "" || a["floor"] != 0.0 || a["timeout_ms"] != 1000.0 || a["token"] == "" || a["circuit"] != "closed" ||
		a["retry_after_ms"] != 0.0 || a["token_life_ms"] != 600000.0 {
		t.Errorf("%v", a)
	}
	if n := w.engine("whatsapp").Pressure().InFlight; n != 1 {
		t.Errorf("%d in flight", n)
	}
	w.add(100 * time.Millisecond)
	token := a["token"].(string)
	if r := w.ask("Report", `{"token":"`+token+`","outcome":"success"}`); r["counted"] != true || r["reason"] != "" {
		t.Errorf("%v", r)
	}
	if r := w.ask("Report", `{"token":"`+token+`","outcome":"failure"}`); r["counted"] != false || r["reason"] != "TOKEN_UNKNOWN" {
		t.Errorf("reported again: %v", r)
	}
	if s, p := w.engine("whatsapp").Stats(), w.engine("whatsapp").Pressure(); s.Successes != 1 || s.Failures != 0 || p.InFlight != 0 {
		t.Errorf("%+v %+v", s, p)
	}
}

func TestDeadlineCutsTheTimeout(t *testing.T) {
	w := newWorld(t)
	if a := w.ask("Admit", `{"target":"a","priority":5,"deadline_ms":250}`); a["timeout_ms"] != 250.0 {
		t.Errorf("%v", a)
	}
	if a := w.ask("Admit", `{"target":"a","priority":5,"deadline_ms":60000}`); a["timeout_ms"] != 1000.0 {
		t.Errorf("%v", a)
	}
}

func TestTheCallersLatencyCounts(t *testing.T) {
	w := newWorld(t)
	for range 300 {
		a := w.ask("Admit", `{"target":"a","priority":5}`)
		w.add(500 * time.Millisecond) // the report comes late
		w.ask("Report", fmt.Sprintf(`{"token":%q,"outcome":"success","latency_ms":20.5}`, a["token"]))
	}
	for range 300 {
		w.add(10 * time.Millisecond)
		w.ask("Report", `{"target":"b","outcome":"success","latency_ms":20.5}`)
	}
	w.add(20 * time.Millisecond)
	for _, name := range []string{"a", "b"} {
		p := w.engine(name).Pressure()
		if p.P99 < 15*time.Millisecond || p.P99 > 30*time.Millisecond || w.engine(name).Stats().Successes != 300 {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	w.engine("a").Force(breaker.ForcedOpen)
	a := w.ask("Admit", `{"target":"a","priority":9}`)
	if a["allowed"] != false || a["reason"] != "CIRCUIT_OPEN" || a["retry_after_ms"] != 10000.0 || a["token"] != "" || a["circuit"] != "open" {
		t.Errorf("%v", a)
	}
	d := w.ask("Decide", `{"target":"a","priority":9,"attempt":0,"error":{"http_status":503},"latency_ms":5}`)
	if d["retry"] != false || d["reason"] != "CIRCUIT_OPEN" || d["counted"] != false || d["signals"].(map[string]any)["c"] != 1.0 {
		t.Errorf("%v", d)
	}
	if r := w.ask("Report", `{"target":"a","outcome":"success","latency_ms":5}`); r["counted"] != false || r["reason"] != "STALE" {
		t.Errorf("%v", r)
	}
}

// A client that never asks first, only after a failure: its failures open the circuit, and its successes close it again.
func TestDecideAloneIsEnough(t *testing.T) {
	w := newWorld(t)
	opened := false
	for range 200 {
		w.add(20 * time.Millisecond)
		d := w.ask("Decide", `{"target":"a","priority":2,"attempt":0,"error":{"http_status":500},"latency_ms":30}`)
		if opened = d["circuit"] == "open"; opened {
			break
		}
	}
	if !opened {
		t.Fatal("200 failures did not open the circuit")
	}
	for range 2000 {
		w.add(100 * time.Millisecond)
		w.ask("Report", `{"target":"a","outcome":"success","latency_ms":30,"priority":2}`)
	}
	if p := w.engine("a").Pressure(); p.Circuit != breaker.Closed {
		t.Errorf("%+v", p)
	}
}

func TestDecide(t *testing.T) {
	for name, tc := range map[string]struct {
		fields   string
		retry    bool
		reason   string
		outcome  string
		min, max float64 // delay_ms
	}{
		"503":                {`"error":{"http_status":503}`, true, "", "failure", 0, 4000},
		"504":                {`"error":{"http_status":504}`, true, "", "timeout", 0, 4000},
		"429":                {`"error":{"http_status":429}`, true, "", "throttled", 0, 4000},
		"400":                {`"error":{"http_status":400}`, false, "NOT_RETRYABLE", "neutral", 0, 0},
		"408":                {`"error":{"http_status":408}`, true, "", "neutral", 0, 4000},
		"retry after":        {`"error":{"http_status":429},"retry_after":"7"`, true, "", "throttled", 7000, 14000},
		"retry after ms":     {`"error":{"http_status":429},"retry_after_ms":7000`, true, "", "throttled", 7000, 14000},
		"the longer":         {`"error":{"http_status":429},"retry_after_ms":100,"retry_after":"7"`, true, "", "throttled", 7000, 14000},
		"hint is junk":       {`"error":{"http_status":429},"retry_after":"7 apples"`, true, "", "throttled", 0, 4000},
		"hint is too long":   {`"error":{"http_status":429},"retry_after":"` + strings.Repeat("7", 5000) + `"`, true, "", "throttled", 0, 4000},
		"hint is past":       {`"error":{"http_status":429},"retry_after":"Sun, 06 Nov 1994 08:49:37 GMT"`, true, "", "throttled", 0, 4000},
		"unavailable":        {`"error":{"grpc_code":14}`, true, "", "failure", 0, 4000},
		"invalid argument":   {`"error":{"grpc_code":3}`, false, "NOT_RETRYABLE", "neutral", 0, 0},
		"resource exhausted": {`"error":{"grpc_code":8}`, true, "", "throttled", 0, 4000},
		"class":              {`"error":{"class":"timeout"}`, true, "", "timeout", 0, 4000},
		"neutral":            {`"error":{"class":"neutral"}`, false, "NOT_RETRYABLE", "neutral", 0, 0},
		"message":            {`"error":{"message":"connection refused"}`, true, "", "failure", 0, 4000},
		"message of time":    {`"error":{"message":"HTTPSConnectionPool: Read timed out."}`, true, "", "timeout", 0, 4000},
		"status and message": {`"error":{"http_status":400,"message":"timeout"}`, false, "NOT_RETRYABLE", "neutral", 0, 0},
		"not idempotent":     {`"error":{"http_status":503,"retryable":false}`, false, "NOT_RETRYABLE", "failure", 0, 0},
		"retryable as told":  {`"error":{"http_status":404,"retryable":true}`, false, "NOT_RETRYABLE", "neutral", 0, 0},
		"one too many":       {`"error":{"http_status":503},"max_retries":0`, false, "MAX_RETRIES_EXCEEDED", "failure", 0, 0},
		"no time":            {`"error":{"http_status":503},"deadline_ms":1`, false, "DEADLINE", "failure", 0, 0},
		"no time for hint":   {`"error":{"http_status":429},"deadline_ms":5000,"retry_after":"7"`, false, "DEADLINE", "throttled", 0, 0},
	} {
		w := newWorld(t)
		for i := range 200 { // so that a baseline is known
			w.add(10 * time.Millisecond)
			w.engine("a").Observe(5, 0, cortex.Success, time.Duration(20+i%10)*time.Millisecond)
		}
		d := w.ask("Decide", `{"target":"a","priority":5,"attempt":0,"latency_ms":12.5,`+tc.fields+`}`)
		delay := d["delay_ms"].(float64)
		if d["retry"] != tc.retry || d["reason"] != tc.reason || d["outcome"] != tc.outcome || tc.retry && (delay < tc.min || delay > tc.max) || d["counted"] != true {
			t.Errorf("%s: %v", name, d)
		}
		for _, field := range []string{"cps", "evidence", "floor", "tokens", "price", "delay_ms"} {
			if _, ok := d[field].(float64); !ok {
				t.Errorf("%s: %s is %T in JSON", name, field, d[field])
			}
		}
		for _, sig := range "flqbc" {
			if _, ok := d["signals"].(map[string]any)[string(sig)].(float64); !ok {
				t.Errorf("%s: signal %c is missing: %v", name, sig, d["signals"])
			}
		}
	}
}

func TestAttemptsAreBounded(t *testing.T) {
	w := newWorld(t)
	for attempt, want := range []bool{true, true, true, false} {
		d := w.ask("Decide", fmt.Sprintf(`{"target":"a","priority":5,"attempt":%d,"error":{"http_status":503},"latency_ms":1}`, attempt))
		if d["retry"] != want || !want && d["reason"] != "MAX_RETRIES_EXCEEDED" {
			t.Errorf("attempt %d: %v", attempt, d)
		}
	}
}

func TestAFailureIsRecordedOnce(t *testing.T) {
	w := newWorld(t)
	failures := func() uint64 { return w.engine("a").Stats().Failures }
	const failed = `"target":"a","priority":5,"attempt":0,"error":{"http_status":500}`
	w.ask("Decide", `{`+failed+`,"latency_ms":1}`)
	if failures() != 1 {
		t.Errorf("%d failures after a decision", failures())
	}
	if d := w.ask("Decide", `{`+failed+`,"recorded":true}`); d["counted"] != false || failures() != 1 {
		t.Errorf("%d failures, recorded before: %v", failures(), d)
	}
	token := w.ask("Admit", `{"target":"a","priority":5}`)["token"].(string)
	if status, out := w.post("Decide", `{"target":"b","priority":5,"attempt":0,"error":{"http_status":500},"token":"`+token+`"}`); status != 400 || !strings.Contains(out["message"].(string), "token: of another target") {
		t.Errorf("%d %v", status, out)
	}
	if d := w.ask("Decide", `{`+failed+`,"token":"`+token+`"}`); d["counted"] != true || failures() != 2 || w.engine("a").Pressure().InFlight != 0 {
		t.Errorf("%d failures, by token: %v", failures(), d)
	}
	if d := w.ask("Decide", `{`+failed+`,"token":"`+token+`"}`); d["counted"] != false || failures() != 2 {
		t.Errorf("%d failures, by a used token: %v", failures(), d)
	}
}

// A reload of the configuration may give a target another engine while attempts are under way.
func TestATokenOutlivesTheEngineOfItsTarget(t *testing.T) {
	var now *cortex.Engine
	w := newWorld(t, func(c *Config) {
		c.Known = func(string) *cortex.Engine { return now }
		c.All = func() iter.Seq[*cortex.Engine] { return slices.Values([]*cortex.Engine{now}) }
	})
	before, after := w.engine("before"), w.engine("after")
	now = before
	token := w.ask("Admit", `{"target":"a","priority":5}`)["token"].(string)
	now = after
	d := w.ask("Decide", `{"target":"a","priority":5,"attempt":0,"error":{"http_status":500},"token":"`+token+`"}`)
	if d["counted"] != true || before.Stats().Failures != 1 || before.Pressure().InFlight != 0 || after.Stats().Retries != 1 {
		t.Errorf("%v, %+v, %+v", d, before.Stats(), after.Stats())
	}
}

func TestBatches(t *testing.T) {
	w := newWorld(t)
	token := w.ask("Admit", `{"target":"a","priority":5}`)["token"].(string)
	var b strings.Builder
	for range 997 {
		b.WriteString(`{"target":"a","outcome":"success","latency_ms":3},`)
	}
	w.add(time.Second)
	body := `{"reports":[` + b.String() + `{"token":"` + token + `","outcome":"success"},{"token":"` + token + `","outcome":"success"}%s]}`
	for bad, want := range map[string]string{
		`,{"target":"a","outcome":"good","latency_ms":3}`: "reports[999].outcome",
		`,{"target":"a","outcome":"success"}`:             "reports[999].latency_ms",
		`,{}`:                                             "reports[999].outcome",
		`,{"token":"` + token + `","outcome":"success"},{"token":"` + token + `","outcome":"success"}`: "reports: 1001 of them",
	} {
		if status, out := w.post("ReportBatch", fmt.Sprintf(body, bad)); status != 400 || !strings.Contains(out["message"].(string), want) {
			t.Errorf("%d %v, want %s", status, out, want)
		}
	}
	if n := w.engine("a").Stats().Successes; n != 0 {
		t.Errorf("%d outcomes of batches that were refused have counted", n)
	}
	out := w.ask("ReportBatch", fmt.Sprintf(body, `,{"target":"a","outcome":"neutral","latency_ms":0}`))
	results := out["results"].([]any)
	if out["counted"] != 999.0 || len(results) != 1000 || results[998].(map[string]any)["reason"] != "TOKEN_UNKNOWN" {
		t.Errorf("%v, %d results", out["counted"], len(results))
	}
	if s := w.engine("a").Stats(); s.Successes != 998 || s.Neutral != 1 {
		t.Errorf("%+v", s)
	}
}

func TestPriorityDecidesWhoIsShed(t *testing.T) {
	w := newWorld(t)
	e := w.engine("a")
	for range 3000 { // a warm engine in calm times
		w.add(5 * time.Millisecond)
		e.Observe(5, 0, cortex.Success, 50*time.Millisecond)
	}
	refused := 0
	for i := range 3000 { // attempts that come and do not go
		w.add(time.Millisecond)
		p := 1 + 7*(i%2)
		a := w.ask("Admit", fmt.Sprintf(`{"target":"a","priority":%d}`, p))
		if a["allowed"] == false {
			refused++
			if a["reason"] == "SHED_LOW_PRIORITY" && p == 1 {
				return
			}
		}
	}
	t.Errorf("nothing of priority 1 was shed among 3,000 that hang; %d were refused", refused)
}
