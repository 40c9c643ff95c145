//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain lets this binary be the servers that are measured, as the command is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "upstream" || os.Args[1] == "bare") {
		main()
	}
	os.Exit(m.Run())
}

func startUpstream(t *testing.T) string {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	c, err := start(t.Context(), "", t.TempDir(), "upstream", addr, own, "upstream", "--listen", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.stop)
	return addr
}

func TestUpstreamAnswersWithAsManyBytesAsThePathSays(t *testing.T) {
	addr := startUpstream(t)
	for _, size := range []int{0, 1, 1 << 10, 100 << 10, maxBody} {
		for _, method := range []string{"GET", "POST", "POST"} {
			var body io.Reader
			if method == "POST" {
				body = bytes.NewReader(make([]byte, 100<<10))
			}
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+"/"+number(size), body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK || len(got) != size {
				t.Errorf("%s /%d: %s, %d bytes, %v", method, size, resp.Status, len(got), err)
			}
		}
	}
}

func TestUpstreamTakesRequestsInPiecesAndInBulk(t *testing.T) {
	c, err := net.Dial("tcp", startUpstream(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	const requests = 100
	text := strings.Repeat("POST /7 HTTP/1.1\r\nHost: x\r\ncontent-length:3\r\n\r\nabcGET /300000 HTTP/1.1\r\nHost: x\r\n\r\n", requests)
	go func() { // more answers than the sockets hold, so that the upstream meets one that is full
		for piece := range slices.Chunk([]byte(text), 11) {
			if _, err := c.Write(piece); err != nil {
				return
			}
		}
	}()
	const head = "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: "
	want := strings.Repeat(head+"7\r\n\r\n"+strings.Repeat("x", 7)+head+"300000\r\n\r\n"+strings.Repeat("x", 300000), requests)
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("%d bytes of %d, %v", n, len(want), err)
	}
}

func TestUpstreamBreaksOffWhatItDoesNotUnderstand(t *testing.T) {
	addr := startUpstream(t)
	for _, request := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		"GET /9999999999 HTTP/1.1\r\n\r\n",
		"GET /-1 HTTP/1.1\r\n\r\n",
		"POST /1 HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
		"POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET /1 HTTP/1.1\r\nX: " + strings.Repeat("x", 2*maxHead),
	} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = c.Write([]byte(request))
		if got, err := io.ReadAll(c); len(got) > 0 || os.IsTimeout(err) {
			t.Errorf("%.40q: %q, %v", request, got, err)
		}
		c.Close()
	}
}

func TestChildThatDoesNotStartSaysWhy(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	_, err = start(t.Context(), "", t.TempDir(), "upstream", "127.0.0.1:1", own, "upstream", "--listen", "nonsense")
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("%v", err)
	}
}

func TestChildIsMeasuredWithWhatIsBelowIt(t *testing.T) {
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The shell stays, since something follows: the upstream is its child, as a worker is nginx's.
	c, err := start(t.Context(), "", t.TempDir(), "shell", addr, "sh", "-c", `"$0" upstream --listen `+addr+`; true`, own)
	if err != nil {
		t.Fatal(err)
	}
	all := tree(c.cmd.Process.Pid)
	defer func() {
		for _, pid := range all[1:] {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		c.stop()
	}()
	if len(all) != 2 {
		t.Errorf("processes: %v", all)
	}
	if got := c.memory(); got < 1<<20 || got > 1<<30 {
		t.Errorf("%d bytes", got)
	}
}

func TestProcTexts(t *testing.T) {
	stat := "42 (a) (b) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 0 0 20 0 1 0 100 1000 200"
	if got := cpuOf(stat); got != 1750*time.Millisecond {
		t.Errorf("cpuOf: %v", got)
	}
	if got := memoryOf("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    1234 kB\nThreads:\t1\n"); got != 1234<<10 {
		t.Errorf("memoryOf: %d", got)
	}
	for _, text := range []string{"", "42 (a) S 1"} {
		if cpuOf(text) != 0 || memoryOf(text) != 0 {
			t.Errorf("%q", text)
		}
	}
}

func TestWrkCountsWhatTheUpstreamAnswers(t *testing.T) {
	if _, err := exec.LookPath("wrk"); err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
			t.Fatal(err)
		}
		t.Skip("wrk is missing: apt-get install wrk")
	}
	path := t.TempDir() + "/wrk.lua"
	if err := os.WriteFile(path, scriptFor("POST", 10), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := runWrk(t.Context(), "", path, startUpstream(t), 2, 100, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests < 10 || r.Micros < 9e5 || r.P50 <= 0 || r.P99 < r.P50 || r.Status != 0 || r.Broken != 0 {
		t.Errorf("%+v", r)
	}
}

func TestParseWrk(t *testing.T) {
	r, err := parseWrk([]byte("Running 1s test\n  {text}\n\n" + `{"Requests":100,"Micros":2000000,"P50":10,"P99":20,"Status":40,"Broken":1,"Timeouts":0}` + "\n"))
	if err != nil || r.good() != 30 || r.refused() != 20 || r.P99 != 20 {
		t.Errorf("%+v %v", r, err)
	}
	for _, text := range []string{"", "unable to connect", `{"Requests":1,"Micros":0}`, `{"Requests":1,"Status":2,"Micros":1}`, `{"Requests":`} {
		if _, err := parseWrk([]byte(text)); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// rounds are one second each, with that many answers.
func rounds(answers ...int) (all []measurement) {
	for _, n := range answers {
		all = append(all, measurement{loadResult: loadResult{Requests: n, Micros: 1e6}, cpu: time.Second / 2, memory: 1 << 20})
	}
	return all
}

func TestTheFloorIsAboutMediansOfRatios(t *testing.T) {
	// The machine halves its speed in the second round and stumbles in the third: neither says anything about the gateway.
	measured := map[string][]measurement{"bare": rounds(1000, 500, 1000), "cortex": rounds(1100, 550, 100), "caddy": rounds(1120, 560, 1000)}
	c := &cell{Connections: 64, Bytes: 1 << 10, measured: measured}
	c.summarize()
	if got := c.share("bare"); math.Abs(got-1.1) > 1e-9 {
		t.Errorf("of bare: %v", got)
	}
	r := &result{Rounds: 3, Subjects: []string{"bare", "cortex", "caddy"}, Cells: []*cell{c}}
	if got := r.missed(0); len(got) != 1 || !strings.Contains(got[0], "caddy") {
		t.Errorf("missed: %q", got)
	}
	if got := r.missed(0.1); len(got) != 0 {
		t.Errorf("missed within a tolerance of 0.1: %q", got)
	}
	measured["cortex"][0].Status = 500
	c.summarize()
	if got := r.missed(0.9); len(got) != 1 || !strings.Contains(got[0], "not good") {
		t.Errorf("missed with answers that are not good: %q", got)
	}
	for format, want := range map[string]string{"table": "MISSED", "md": "| 64 × 1 KiB | cortex |", "json": `"cortex_share"`} {
		var b strings.Builder
		if err := r.print(&b, format); err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%s: %v\n%s", format, err, b.String())
		}
		if format == "json" && !json.Valid([]byte(b.String())) {
			t.Errorf("not JSON: %s", b.String())
		}
	}
}

func TestReasonsAreReadOffTheMetrics(t *testing.T) {
	before := reasonsOf("# TYPE cortex_guard_rejections_total counter\n" + `cortex_guard_rejections_total{target="upstream",reason="CIRCUIT_OPEN"} 7
cortex_guard_rejections_total{target="upstream",reason="SHED"} 1e+02
cortex_guard_outcomes_total{target="upstream",outcome="success"} 5
cortex_guard_outcomes_total{target="upstream",outcome="slow"} 2
cortex_guard_calls_total{target="upstream"} 9
cortex_guard_rejections_total{target="upstream",rea`)
	if want := map[string]int{"CIRCUIT_OPEN": 7, "SHED": 100, "success": 5, "slow": 2}; !maps.Equal(before, want) {
		t.Errorf("%v", before)
	}
	now := map[string]int{"CIRCUIT_OPEN": 7, "SHED": 150, "success": 99, "hang": 1}
	if got := more(now, before); !maps.Equal(got, map[string]int{"SHED": 50, "hang": 1}) {
		t.Errorf("%v", got)
	}
}

// The machine may have no time for a subject in a second: that is no reason to give up, and no ratio.
func TestARoundWithoutAnAnswer(t *testing.T) {
	c := &cell{measured: map[string][]measurement{"bare": rounds(1000, 0, 1000), "cortex": rounds(1000, 1000, 0), "caddy": rounds(0, 0, 0)}}
	c.summarize()
	if got := c.share("bare"); got != 0.5 {
		t.Errorf("of bare: %v", got)
	}
	if got := c.share("caddy"); !math.IsNaN(got) {
		t.Errorf("of caddy: %v", got)
	}
	r := &result{Rounds: 3, Subjects: []string{"bare", "cortex", "caddy"}, Cells: []*cell{c}}
	if got := r.missed(0); len(got) != 2 || !strings.Contains(got[0], "of bare") || !strings.Contains(got[1], "no figure of caddy") {
		t.Errorf("missed: %q", got)
	}
	if err := r.print(io.Discard, "json"); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	o, err := parse([]string{"--quick", "--conns", "1,1024", "--only", "bare,cortex"})
	if err != nil || !slices.Equal(o.conns, []int{1, 1024}) || !slices.Equal(o.sizes, []int{1 << 10}) || o.duration != time.Second || o.measures("nginx") {
		t.Errorf("%+v %v", o, err)
	}
	for _, args := range [][]string{{"x"}, {"--rounds", "0"}, {"--duration", "1500ms"}, {"--conns", "0"}, {"--conns", "9,,9"}, {"--size", "-1"},
		{"--method", "PUT"}, {"--only", "envoy"}, {"--check", "--only", "bare,cortex"}, {"--format", "xml"}, {"--tolerance", "1"}, {"--tolerance", "NaN"},
		{"--method", "POST"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

func TestNothingIsStartedForNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := start(ctx, "", t.TempDir(), "sleep", "127.0.0.1:1", "sleep", "60"); err == nil {
		t.Error("no error")
	}
}
