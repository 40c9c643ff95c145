package accesslog

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var full = Entry{
	Time:      time.Date(2026, 11, 30, 12, 0, 0, 123_999_999, time.FixedZone("", 3600)),
	RequestID: "01JDZ", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	Client: "192.0.2.1:4711", Protocol: "HTTP/1.1", Method: "POST", Host: "api.example", Path: "/orders/7",
	Route: "/orders/", Target: "orders", Endpoint: "10.0.0.7:8080", Priority: 7, Attempts: 2, CPS: 0.42135,
	Reason: "BUDGET_EXHAUSTED", Fallback: "static", Shadow: "SHED_LOW_PRIORITY", Error: "upstream_5xx",
	Status: 503, BytesIn: 1234, BytesOut: 56, Duration: 1234567 * time.Microsecond, Upstream: 999 * time.Nanosecond,
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name  string
		entry Entry
		want  string
	}{
		{"all", full, `{"time":"2026-11-30T11:00:00.123Z","request_id":"01JDZ","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736",` +
			`"client":"192.0.2.1:4711","protocol":"HTTP/1.1","method":"POST","host":"api.example","path":"/orders/7",` +
			`"route":"/orders/","target":"orders","endpoint":"10.0.0.7:8080","priority":7,"attempts":2,"cps":0.4214,` +
			`"reason":"BUDGET_EXHAUSTED","fallback":"static","shadow":"SHED_LOW_PRIORITY","error":"upstream_5xx",` +
			`"status":503,"bytes_in":1234,"bytes_out":56,"duration_ms":1234.567,"upstream_ms":0.000}`},
		{"least", Entry{}, `{"time":"0001-01-01T00:00:00.000Z","status":0,"bytes_in":0,"bytes_out":0,"duration_ms":0.000}`},
		{"no secrets", Entry{Host: "user:pass@word@api.example", Path: "/a?token=secret"},
			`{"time":"0001-01-01T00:00:00.000Z","host":"api.example","path":"/a","status":0,"bytes_in":0,"bytes_out":0,"duration_ms":0.000}`},
		{"escapes", Entry{Path: "/\"\\\n\x00\x7f\xff\u2028é😀\u0085<&>"},
			`{"time":"0001-01-01T00:00:00.000Z","path":"/\"\\\u000a\u0000\u007f\ufffd\u2028é😀\u0085<&>","status":0,"bytes_in":0,"bytes_out":0,"duration_ms":0.000}`},
		{"numbers that say nothing", Entry{Target: "t", CPS: math.NaN(), Duration: -5, Upstream: -1, BytesIn: -1, Priority: -2},
			`{"time":"0001-01-01T00:00:00.000Z","target":"t","priority":-2,"attempts":0,"cps":0.0000,"status":0,"bytes_in":-1,"bytes_out":0,"duration_ms":0.000}`},
		{"unguarded", Entry{Target: "t", Unguarded: true, Priority: 3, Attempts: 1, CPS: 1, Status: 200},
			`{"time":"0001-01-01T00:00:00.000Z","target":"t","status":200,"bytes_in":0,"bytes_out":0,"duration_ms":0.000}`},
		{"numbers too large", Entry{Target: "t", CPS: math.Inf(1), Duration: math.MaxInt64},
			`{"time":"0001-01-01T00:00:00.000Z","target":"t","priority":0,"attempts":0,"cps":1.0000,"status":0,"bytes_in":0,"bytes_out":0,"duration_ms":9223372036854.775}`},
	} {
		if got := string(c.entry.append(nil)); got != c.want+"\n" {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestLongTextsAreCutBetweenRunes(t *testing.T) {
	for _, c := range []struct {
		text string
		want int
	}{
		{strings.Repeat("a", 256), 256}, {strings.Repeat("a", 257), 256}, {strings.Repeat("é", 200), 256},
		{"a" + strings.Repeat("é", 200), 255}, {"a" + strings.Repeat("😀", 100), 253}, {strings.Repeat("\x80", 300), 252 * 3},
	} {
		var line struct{ Path string }
		e := Entry{Path: c.text}
		if err := json.Unmarshal(e.append(nil), &line); err != nil || len(line.Path) != c.want {
			t.Errorf("%d bytes of %q…: %d, want %d; %v", len(c.text), c.text[:4], len(line.Path), c.want, err)
		}
	}
}

func TestGood(t *testing.T) {
	for _, c := range []struct {
		entry Entry
		want  bool
	}{
		{Entry{Status: 200}, true}, {Entry{Status: 101}, true}, {Entry{Status: 302}, true}, {Entry{Status: 404}, true},
		{Entry{Status: 500}, false}, {Entry{Status: 503}, false}, {Entry{Status: StatusClientGone}, false},
		{Entry{Status: 413, Error: "body_too_large"}, false}, {Entry{Status: 200, Error: "broke_off"}, false},
		{Entry{Status: 200, Fallback: "cache"}, false}, {Entry{Status: 429, Reason: "DO_NOT_RETRY"}, false},
		{Entry{Status: 200, Shadow: "CIRCUIT_OPEN"}, false},
	} {
		if got := c.entry.Good(); got != c.want {
			t.Errorf("%+v: good is %t", c.entry, got)
		}
	}
}

// Whatever a client sends, it is one line of JSON, which says what it sent as far as it fits.
func FuzzEntry(f *testing.F) {
	f.Add("/a b", "api.example", "GET", "id", int64(200), int64(1e9), 0.5, int64(0))
	f.Add("/\"\\\n\r\x00\xff\xc0\u2028", "u:p@h", "\x1b[31m", "😀", int64(-1), int64(-1), math.Inf(-1), int64(1)<<62)
	f.Add(strings.Repeat("é", 300), strings.Repeat("\xf0\x9f", 200), "", "\u0085", int64(1)<<40, int64(math.MaxInt64), math.NaN(), int64(-1)<<40)
	f.Fuzz(func(t *testing.T, path, host, method, id string, status, d int64, cps float64, at int64) {
		e := Entry{Time: time.Unix(at%(1<<37), at), RequestID: id, TraceID: path, Client: host, Protocol: id, Method: method, Host: host,
			Path: path, Route: method, Target: id, Endpoint: path, Priority: int(status), Attempts: int(d), CPS: cps, Reason: host,
			Fallback: id, Shadow: method, Error: path, Status: int(status), BytesIn: d, BytesOut: status,
			Duration: time.Duration(d), Upstream: time.Duration(status)}
		line := e.append(nil)
		body, ended := bytes.CutSuffix(line, []byte{'\n'})
		if !ended || bytes.ContainsFunc(body, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 }) {
			t.Fatalf("not one line: %q", line)
		}
		if !utf8.Valid(body) || !json.Valid(body) {
			t.Fatalf("not valid: %q", body)
		}
		var got struct {
			RequestID string `json:"request_id"`
			Host      string
			Path      string
			Method    string
			Status    int64
			BytesIn   int64 `json:"bytes_in"`
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		bare, _, _ := strings.Cut(path, "?")
		for _, c := range [][2]string{{got.RequestID, id}, {got.Method, method}, {got.Path, bare}, {got.Host, host[strings.LastIndexByte(host, '@')+1:]}} {
			if want := decoded(t, c[1]); c[0] != want && (len(c[1]) <= maxText || !strings.HasPrefix(want, strings.TrimRight(c[0], "\ufffd"))) {
				t.Fatalf("%q, sent was %q", c[0], c[1])
			}
		}
		if got.Status != status || got.BytesIn != d {
			t.Fatalf("%+v of %s", got, body)
		}
		if strings.Contains(got.Path, "?") || strings.Contains(got.Host, "@") {
			t.Fatalf("%+v", got)
		}
	})
}

// decoded is a text as encoding/json hands it on.
func decoded(t *testing.T, s string) (out string) {
	b, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}
