package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func cli(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodes(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.yaml")
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	write(t, good, "targets:\n  a:\n    endpoints: [http://127.0.0.1:9000]\n")
	write(t, bad, "targets:\n  a:\n    endpoints: [http://127.0.0.1:9000]\n    timeout: { max: 5 }\n    retries: 3\n")
	for _, c := range []struct {
		args []string
		code int
		says string // in what goes to stderr
	}{
		{[]string{"version"}, 0, ""},
		{[]string{"explain"}, 0, ""},
		{[]string{"completion", "bash"}, 0, ""},
		{[]string{"validate", "--config", good}, 0, ""},
		{[]string{"validate", "--config", bad}, 2, "bad.yaml:4:16: targets.a.timeout.max"},
		{[]string{"validate", "--config", bad}, 2, "bad.yaml:5:"},
		{[]string{"validate", "--config", filepath.Join(t.TempDir(), "none.yaml")}, 2, "none.yaml"},
		{[]string{"validate"}, 2, "config"},
		{[]string{"serve"}, 2, "--upstream"},
		{[]string{"serve", "--config", good, "--upstream", "http://127.0.0.1:1"}, 2, "exclude"},
		{[]string{"serve", "--config", good, "--listen", "127.0.0.1:0"}, 2, "--listen"},
		{[]string{"serve", "--upstream", "nonsense"}, 2, "upstream"},
		{[]string{"serve", "--config", good, "--decisions", "127.0.0.1:0"}, 2, "--decisions"},
		{[]string{"serve", "--decisions", "127.0.0.1:0", "--listen", "127.0.0.1:0"}, 2, "--listen"},
		{[]string{"serve", "--decisions", ":0"}, 2, "--decisions: :0: refused beyond loopback"},
		{[]string{"nonsense"}, 2, "nonsense"},
		{[]string{"explain", "--nonsense"}, 2, "nonsense"},
		{[]string{"explain", "--profile", "x"}, 2, "adaptive or article"},
		{[]string{"explain", "--queue", "30"}, 2, "30/100"},
		{[]string{"explain", "--queue", "30/0"}, 2, "30/100"},
		{[]string{"explain", "--circuit", "ajar"}, 2, "half-open"},
		{[]string{"explain", "--failure-rate", "1.5"}, 2, "0 to 1"},
		{[]string{"explain", "--failure-rate", "NaN"}, 2, "0 to 1"},
		{[]string{"explain", "--burn", "-0.1"}, 2, "0 to 1"},
		{[]string{"explain", "--priority", "11"}, 2, "0 to 10"},
		{[]string{"explain", "--levels", "0"}, 2, "levels"},
		{[]string{"explain", "--attempt", "-1"}, 2, "attempt"},
		{[]string{"explain", "--max-retries", "-1"}, 2, "retries"},
		{[]string{"explain", "--max-delay", "100ms"}, 2, "Max"},
		{[]string{"explain", "--base-delay", "0"}, 2, "above 0"},
		{[]string{"explain", "--format", "xml"}, 2, "text or json"},
		{[]string{"explain", "surplus"}, 2, "surplus"},
	} {
		code, _, stderr := cli(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("cortex %s: exit %d and %q, want %d and %q in it", strings.Join(c.args, " "), code, stderr, c.code, c.says)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEveryCommandShowsAnExample(t *testing.T) {
	for _, c := range newRoot().Commands() {
		if c.Example == "" || c.Short == "" {
			t.Errorf("cortex %s has no example or no description", c.Name())
		}
	}
}

// explained is the documented JSON of cortex explain.
type explained struct {
	Signals struct {
		F, L, Q, B, C float64
	} `json:"signals"`
	CPS      float64 `json:"cps"`
	Evidence float64 `json:"evidence"`
	State    string  `json:"state"`
	Floor    int     `json:"floor"`
	Checks   []struct {
		Check  int            `json:"check"`
		Name   string         `json:"name"`
		Result string         `json:"result"`
		Reason string         `json:"reason"`
		Saw    map[string]any `json:"saw"`
	} `json:"checks"`
	Decision struct {
		Retry      bool    `json:"retry"`
		Reason     string  `json:"reason"`
		DelayMinMS float64 `json:"delay_min_ms"`
		DelayMaxMS float64 `json:"delay_max_ms"`
	} `json:"decision"`
}

func explainJSON(t *testing.T, args string) explained {
	t.Helper()
	code, out, stderr := cli(t, append([]string{"explain", "--format", "json"}, strings.Fields(args)...)...)
	if code != 0 {
		t.Fatalf("explain %s: exit %d: %s", args, code, stderr)
	}
	var x explained
	d := json.NewDecoder(strings.NewReader(out))
	if err := d.Decode(&x); err != nil {
		t.Fatalf("explain %s: %v in %s", args, err, out)
	}
	if len(x.Checks) != 5 {
		t.Fatalf("explain %s: %d checks", args, len(x.Checks))
	}
	return x
}

// Worked out by hand from DESIGN 3.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		args     string
		cps      float64
		state    string
		floor    int
		retry    bool
		reason   string
		max      float64 // ms
		refusing int     // number of the check that refuses, 0 = none
	}{
		{"--profile article", 0, "HEALTHY", 0, true, "", 500, 0},
		{"--profile article --failure-rate 0.5 --p99 400ms --baseline 100ms --queue 30/100 --burn 0.2", 0.425, "ELEVATED", 4, true, "", 2625, 0},
		{"--profile article --failure-rate 0.5 --p99 400ms --baseline 100ms --queue 30/100 --burn 0.2 --priority 3", 0.425, "ELEVATED", 4, false, "SHED_LOW_PRIORITY", 0, 4},
		{"--profile article --retryable=false", 0, "HEALTHY", 0, false, "NOT_RETRYABLE", 0, 1},
		{"--profile article --attempt 3", 0, "HEALTHY", 0, false, "MAX_RETRIES_EXCEEDED", 0, 2},
		{"--profile article --attempt 2", 0, "HEALTHY", 0, true, "", 2000, 0},
		{"--profile article --circuit open --priority 10", 0.2, "HEALTHY", 2, false, "CIRCUIT_OPEN", 0, 3},
		{"--profile article --failure-rate 1 --p99 4s --baseline 1s --queue 1/1 --burn 1 --priority 8", 0.8, "EMERGENCY", 8, false, "CIRCUIT_OPEN_EMERGENCY", 0, 3},
		{"--profile article --failure-rate 1 --p99 4s --baseline 1s --queue 1/1 --burn 1 --priority 9", 0.8, "EMERGENCY", 8, true, "", 4500, 0},
		{"--profile article --failure-rate 1 --p99 4s --baseline 1s --queue 1/1 --burn 1 --circuit half-open --priority 9", 0.9, "EMERGENCY", 9, true, "", 5000, 0},
		{"--profile article --failure-rate 1 --p99 4s --baseline 1s --queue 1/1 --burn 1 --circuit open --priority 10", 1, "EMERGENCY", 10, false, "CIRCUIT_OPEN", 0, 3},
		{"--profile article --tokens 0.5", 0, "HEALTHY", 0, false, "BUDGET_EXHAUSTED", 0, 4},
		{"--profile article --base-delay 100ms --attempt 2 --max-delay 300ms", 0, "HEALTHY", 0, true, "", 300, 0},
		// CPS 0.72 of 5 levels: tiers 1 and 2 are shed, tier 4 flows.
		{"--profile article --levels 5 --failure-rate 1 --p99 4s --baseline 1s --queue 70/100 --burn 0.7666666667 --priority 2", 0.72, "PRESSURED", 3, false, "SHED_LOW_PRIORITY", 0, 4},
		{"--profile article --levels 5 --failure-rate 1 --p99 4s --baseline 1s --queue 70/100 --burn 0.7666666667 --priority 4", 0.72, "PRESSURED", 3, true, "", 4100, 0},
		{"", 0, "HEALTHY", 0, true, "", 500, 0},
		{"--tokens 0.5", 0, "HEALTHY", 0, true, "", 500, 0},                                     // a retry costs 0.02 where nothing looks like load
		{"--tokens 0.5 --queue 50/100", 0.075, "HEALTHY", 0, false, "BUDGET_EXHAUSTED", 0, 4},   // and 1 where something does
		{"--queue 75/100 --priority 0", 0.1125, "HEALTHY", 2, false, "SHED_LOW_PRIORITY", 0, 4}, // a quarter is shed: 0, 1 and most of 2
		{"--queue 75/100 --priority 3", 0.1125, "HEALTHY", 2, true, "", 1062.5, 0},
		{"--failure-rate 1 --p99 4s --baseline 1s --queue 1/1 --priority 5", 0.65, "PRESSURED", 5, false, "CIRCUIT_OPEN_EMERGENCY", 0, 3}, // evidence 0.8125
		{"--retry-after 2s", 0, "HEALTHY", 0, true, "", 2400, 0},
		{"--retry-after 2s --deadline 1s", 0, "HEALTHY", 0, false, "DEADLINE", 0, 5},
	} {
		x := explainJSON(t, c.args)
		if x.CPS != c.cps || x.State != c.state || x.Floor != c.floor {
			t.Errorf("%s: cps %v %s floor %d, want %v %s %d", c.args, x.CPS, x.State, x.Floor, c.cps, c.state, c.floor)
		}
		if x.Decision.Retry != c.retry || x.Decision.Reason != c.reason || x.Decision.DelayMaxMS != c.max {
			t.Errorf("%s: %+v, want %v %q %v", c.args, x.Decision, c.retry, c.reason, c.max)
		}
		for i, ch := range x.Checks {
			want := "passed"
			switch {
			case i+1 == c.refusing:
				want = "refused"
			case c.refusing > 0 && i+1 > c.refusing:
				want = "not reached"
			}
			if ch.Check != i+1 || ch.Result != want || len(ch.Saw) == 0 {
				t.Errorf("%s: check %d: %+v, want %s", c.args, i+1, ch, want)
			}
		}
	}
}

func TestExplainForPeople(t *testing.T) {
	_, out, _ := cli(t, "explain", "--failure-rate", "0.5")
	for _, want := range []string{"failure rate", "CPS 0.1500", "HEALTHY", "✓ 5", "→ retry after a random delay from 0s to 1.25s"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
}

func TestValidateEffectiveIsAConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, "targets:\n  a:\n    endpoints: [http://127.0.0.1:9000]\n    breaker: {}\n")
	code, out, stderr := cli(t, "validate", "--config", path, "--effective")
	if code != 0 || !strings.Contains(out, "max_retries: 3") {
		t.Fatalf("exit %d: %s\n%s", code, stderr, out)
	}
	again := filepath.Join(t.TempDir(), "b.yaml")
	write(t, again, out)
	if code, out2, stderr := cli(t, "validate", "--config", again, "--effective"); code != 0 || out2 != out {
		t.Errorf("exit %d: %s\n%s", code, stderr, out2)
	}
}

// validate told nothing of the decision service and the fleet, and that there is no directory for the log came out at the start.
func TestValidateTellsOfDecisionsClusterAndLog(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	const target = "targets: {a: {endpoints: ['http://127.0.0.1:9000']}}\n"
	for _, c := range []struct {
		yaml string
		code int
		says string
	}{
		{target, 0, "a.yaml: ok, 1 targets, 1 routes\n"},
		{"decisions: {listen: '127.0.0.1:9096'}\n", 0, "ok, 0 targets, 0 routes, decisions on 127.0.0.1:9096\n"},
		{target + "decisions: {listen: '127.0.0.1:9096'}\ncluster: {redis: {url: 'redis://127.0.0.1:6379'}}\n", 0,
			"ok, 1 targets, 1 routes, decisions on 127.0.0.1:9096, cluster by redis://127.0.0.1:6379\n"},
		{target + "access_log: {path: " + dir + "/access.log}\n", 0, "ok"},
		{target + "access_log: {path: '-'}\n", 0, "ok"},
		{target + "access_log: {path: " + dir + "/none/access.log}\n", 2, "access_log.path"},
		{target + "access_log: {path: " + path + "/access.log}\n", 2, "access_log.path"},
		{target + "access_log: {path: " + dir + "}\n", 2, "access_log.path"},
	} {
		write(t, path, c.yaml)
		code, out, stderr := cli(t, "validate", "--config", path)
		if code != c.code || !strings.Contains(out+stderr, c.says) {
			t.Errorf("%s: exit %d: %s%s", c.yaml, code, out, stderr)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "access.log")); err == nil {
		t.Error("validate makes the log")
	}
}

// What is wrong with TLS to Redis came out at the start, or never.
func TestValidateTellsOfTLSWithRedis(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	for redis, says := range map[string]string{
		"{url: 'rediss://h', tls: {ca: " + dir + "/none.pem}}":                "cluster.redis.tls: tlsfile: " + dir + "/none.pem: cannot be read",
		"{url: 'rediss://h', tls: {cert: " + dir + "/c, key: " + dir + "/k}}": dir + "/k: cannot be read",
		"{url: 'rediss://h', tls: {key: k}}":                                  "a.yaml:2:44: cluster.redis.tls.key: without cert: want both or none",
		"{url: 'redis://h', tls: {ca: c}}":                                    "a.yaml:2:37: cluster.redis.tls: the url is not over TLS: want rediss",
	} {
		write(t, path, "decisions: {}\ncluster: {redis: "+redis+"}\n")
		code, out, stderr := cli(t, "validate", "--config", path)
		if code != 2 || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit %d: %s%s", redis, code, out, stderr)
		}
	}
}

// serve, end to end: a call passes, the admin port answers, a signal drains it.
func TestServe(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") })) //nolint:errcheck
	defer up.Close()
	front, admin, decisions := freePort(t), freePort(t), freePort(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan int)
	var errs bytes.Buffer
	go func() {
		done <- run(ctx, []string{"serve", "--upstream", up.URL, "--listen", front, "--admin", admin, "--decisions", decisions}, io.Discard, &errs)
	}()
	get := func(url string) string {
		for {
			resp, err := http.Get(url)
			if err != nil {
				select {
				case code := <-done:
					t.Fatalf("serve ended with %d: %s", code, errs.String())
				case <-time.After(time.Millisecond): // it is about to listen
					continue
				}
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			return string(b)
		}
	}
	if got := get("http://" + front + "/"); got != "hello" {
		t.Errorf("the gateway answered %q", got)
	}
	if got := get("http://" + admin + "/api/v1/targets/upstream"); !strings.Contains(got, `"cps"`) {
		t.Errorf("the admin port answered %q", got)
	}
	if got := get("http://" + decisions + "/openapi.json"); !strings.Contains(got, `"openapi"`) {
		t.Errorf("the decision service answered %q", got)
	}
	if got := get("http://" + admin + "/metrics"); !strings.Contains(got, "cortex_guard_") {
		t.Errorf("the metrics are %q", got)
	}
	stop()
	if code := <-done; code != 0 {
		t.Errorf("exit %d: %s", code, errs.String())
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
