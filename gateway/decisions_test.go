package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// A daemon is a server on real ports, as `cortex serve` runs it, with a configuration that can be changed.
type daemon struct {
	*Server
	t    testing.TB
	log  *opsBuffer
	done chan error
	stop context.CancelFunc

	mu   sync.Mutex
	yaml string
}

const anyPorts = "listen: '127.0.0.1:0'\nadmin: {listen: '127.0.0.1:0'}\n"

func startDaemon(t testing.TB, yaml string) *daemon {
	t.Helper()
	d := &daemon{t: t, log: new(opsBuffer), done: make(chan error, 1), yaml: yaml}
	f, err := d.read()
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(f); err != nil {
		t.Fatal(err)
	}
	if d.Server, err = Listen(f, Options{Load: d.read, Logger: slog.New(slog.NewTextHandler(d.log, nil))}); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	go func() { d.done <- d.Run(ctx) }()
	t.Cleanup(d.end)
	return d
}

func (d *daemon) read() (*config.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return config.Parse("cortex.yaml", []byte(d.yaml))
}

func (d *daemon) reload(yaml string) error {
	d.mu.Lock()
	d.yaml = yaml
	d.mu.Unlock()
	return d.Reload()
}

// end stops the daemon, which must have been in order.
func (d *daemon) end() {
	if d.stop == nil {
		return
	}
	d.stop()
	if err := <-d.done; err != nil {
		d.t.Errorf("Run: %v\n%s", err, d.log)
	}
	d.stop = nil
	http.DefaultClient.CloseIdleConnections()
}

// ask makes a call of the decision service as a program without a library does.
func (d *daemon) ask(method, body string, header ...string) (int, map[string]any) {
	d.t.Helper()
	return postJSON(d.t, http.DefaultClient, "http://"+d.DecisionsAddr().String()+"/cortex.v1.DecisionService/"+method, body, header...)
}

func postJSON(t testing.TB, c *http.Client, url, body string, header ...string) (int, map[string]any) {
	t.Helper()
	r, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		if r.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			r.Host = header[i+1]
		}
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var v map[string]any
	if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
		t.Fatalf("%s: %d: %v", url, res.StatusCode, err)
	}
	return res.StatusCode, v
}

func (d *daemon) get(addr net.Addr, path string) (int, string, http.Header) {
	d.t.Helper()
	res, err := http.Get("http://" + addr.String() + path)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

func (d *daemon) adminJSON(path string) map[string]any {
	d.t.Helper()
	status, body, _ := d.get(d.AdminAddr(), path)
	var v map[string]any
	if err := json.Unmarshal([]byte(body), &v); err != nil || status != 200 {
		d.t.Fatalf("%s: %d %q", path, status, body)
	}
	return v
}

func (d *daemon) metric(series string) string {
	d.t.Helper()
	_, body, _ := d.get(d.AdminAddr(), "/metrics")
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(line, "cortex_guard_"+series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// failures is a batch of reports.
func failures(target string, n int) string {
	one := fmt.Sprintf(`{"target":%q,"priority":5,"outcome":"failure","latency_ms":3}`, target)
	return `{"reports":[` + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + `]}`
}

// What a program reports of a target is what the gateway knows of it, and the other way round; targets that are not in the configuration are
// made; after a reload the engines are still those.
func TestDecisionServiceAndGatewayAreOne(t *testing.T) {
	calls := counter{next: status(200)}
	up := httptest.NewServer(&calls)
	defer up.Close()
	target := "targets: {up: {endpoints: [" + up.URL + "], breaker: {open_for: 1h, probe_every: 1h}}}\n"
	d := startDaemon(t, anyPorts+"decisions: {listen: '127.0.0.1:0', max_targets: 2, template: {levels: 3}}\n"+target)
	if status, _, _ := d.get(d.Addr(), "/"); status != 200 {
		t.Fatalf("through the gateway: %d", status)
	}
	status, a := d.ask("Admit", `{"target":"up","priority":5}`)
	if status != 200 || a["allowed"] != true || a["token"] == nil {
		t.Fatalf("Admit: %d %v", status, a)
	}
	if status, r := d.ask("Report", fmt.Sprintf(`{"token":%q,"outcome":"success","latencyMs":2}`, a["token"])); status != 200 || r["counted"] != true {
		t.Errorf("Report: %d %v", status, r)
	}
	if s := d.Gateway().Targets()[0].Engine.Stats(); s.Successes != 2 || s.Calls != 2 {
		t.Errorf("%+v", s)
	}
	if status, _ := d.ask("ReportBatch", failures("up", 1000)); status != 200 {
		t.Fatalf("ReportBatch: %d", status)
	}
	if !strings.Contains(d.log.String(), `msg="decisions port" address=`+d.DecisionsAddr().String()) {
		t.Errorf("the log does not say the address:\n%s", d.log)
	}
	before := calls.n.Load()
	if status, _, h := d.get(d.Addr(), "/"); status != 503 || h.Get("Cortex-Reason") == "" || calls.n.Load() != before {
		t.Errorf("through the gateway, after failures were reported: %d %v", status, h)
	}
	status, c := d.ask("Decide", `{"target":"up","priority":5,"attempt":0,"error":{"http_status":503},"latency_ms":4}`)
	if status != 200 || c["retry"] == true || c["circuit"] != "open" {
		t.Errorf("Decide: %d %v", status, c)
	}

	for _, name := range []string{"mails", "sms", "push"} { // of which the last has no room but that of the first
		if status, a := d.ask("Admit", `{"target":"`+name+`","priority":3}`); status != 200 || a["allowed"] != true {
			t.Errorf("%s: %d %v", name, status, a)
		} else if status, _ := d.ask("Report", fmt.Sprintf(`{"token":%q,"outcome":"success"}`, a["token"])); status != 200 {
			t.Errorf("%s: Report: %d", name, status)
		}
	}
	if status, v := d.ask("Admit", `{"target":"mails","priority":5}`); status != 200 { // clamped to the template's levels
		t.Errorf("%d %v", status, v)
	}
	_, l := d.ask("List", `{}`)
	if n := len(l["targets"].([]any)); n != 3 {
		t.Errorf("%d targets: %v", n, l)
	}
	view := d.adminJSON("/api/v1/server")["decisions"].(map[string]any)
	if view["targets"] != 2.0 || view["evicted"].(float64) < 1 || view["open_tokens"] != 1.0 {
		t.Errorf("%v", view)
	}
	if n := d.metric(`decision_requests_total{method="ReportBatch",result="ok"}`); n != "1" {
		t.Errorf("batches counted: %q", n)
	}
	if made := d.adminJSON("/api/v1/targets/mails"); made["made"] != true || made["levels"] != 3.0 {
		t.Errorf("%v", made)
	}
	if n := d.metric(`calls_total{target="mails"}`); n != "" {
		t.Errorf("a target that a client has named is a series: %q", n)
	}

	// A reload that gives a made target to the gateway, and changes the template.
	if err := d.reload(anyPorts + "decisions: {listen: '127.0.0.1:0', max_targets: 2, template: {levels: 7}}\n" +
		strings.TrimSuffix(target, "}\n") + ", mails: {endpoints: [" + up.URL + "]}}\nroutes: [{path: /, target: up}]\n"); err != nil {
		t.Fatal(err)
	}
	if v := d.adminJSON("/api/v1/targets/mails"); v["made"] == true || v["levels"] != 10.0 {
		t.Errorf("%v", v)
	}
	if _, c := d.ask("Admit", `{"target":"up","priority":5}`); c["allowed"] == true {
		t.Errorf("the reload forgot that the circuit is open: %v", c)
	}
	d.ask("Admit", `{"target":"new","priority":5}`)
	if v := d.adminJSON("/api/v1/targets/new"); v["levels"] != 7.0 {
		t.Errorf("not by the new template: %v", v)
	}
	if n := len(d.adminJSON("/api/v1/targets")["targets"].([]any)); n != 4 && n != 3 {
		t.Errorf("%d targets on the admin port", n)
	}
}

func TestUnknownTargetsAreRefused(t *testing.T) {
	d := startDaemon(t, anyPorts+"decisions: {listen: '127.0.0.1:0', unknown: refuse}\ntargets: {up: {endpoints: ['http://127.0.0.1:1']}}\n")
	if status, v := d.ask("Admit", `{"target":"other","priority":5}`); status != 404 || v["code"] != "not_found" {
		t.Errorf("%d %v", status, v)
	}
	if status, _ := d.ask("Admit", `{"target":"up","priority":5}`); status != 200 {
		t.Errorf("%d", status)
	}
}

func TestDecisionServiceAlone(t *testing.T) {
	d := startDaemon(t, anyPorts+"decisions: {listen: '127.0.0.1:0'}\n")
	if d.Addr() != nil || d.DecisionsAddr() == nil {
		t.Fatalf("%v %v", d.Addr(), d.DecisionsAddr())
	}
	if status, v := d.ask("Admit", `{"target":"graph-api","priority":5}`); status != 200 || v["allowed"] != true {
		t.Errorf("%d %v", status, v)
	}
	if v := d.adminJSON("/api/v1/targets/graph-api"); v["made"] != true {
		t.Errorf("%v", v)
	}
	if status, v := postJSON(t, http.DefaultClient, "http://"+d.AdminAddr().String()+"/api/v1/targets/graph-api/circuit", `{"state":"open"}`); status != 200 {
		t.Errorf("%d %v", status, v)
	}
	if _, v := d.ask("Admit", `{"target":"graph-api","priority":5}`); v["allowed"] == true {
		t.Errorf("%v", v)
	}
	// With targets there would be a port to open.
	err := d.reload(anyPorts + "decisions: {listen: '127.0.0.1:0'}\ntargets: {up: {endpoints: ['http://127.0.0.1:1']}}\n")
	if !errors.Is(err, ErrRestart) || !strings.Contains(err.Error(), "a change of targets, from none or to none, needs a restart") {
		t.Errorf("%v", err)
	}
	if err := d.reload(anyPorts + "decisions: {listen: '127.0.0.1:0', template: {levels: 4}}\n"); err != nil {
		t.Error(err)
	}
}

func TestWhatOfDecisionsNeedsARestart(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := newOpsAuthority(t)
	cert, key, _ := a.issue("me", "localhost")
	const target = "targets: {up: {endpoints: ['http://127.0.0.1:1']}}\n"
	d := startDaemon(t, anyPorts+"decisions: {listen: '127.0.0.1:0'}\n"+target)
	files := fmt.Sprintf("cert: %s, key: %s", cert, key)
	for decisions, want := range map[string]string{
		"": "decisions, from none or to none,", "decisions: {listen: '127.0.0.1:9'}": "decisions.listen",
		"decisions: {listen: '127.0.0.1:0', token_file: " + token + "}":                       "decisions.token_file, from none or to none,",
		"decisions: {listen: '127.0.0.1:0', tls: {" + files + "}}":                            "decisions.tls",
		"decisions: {listen: '127.0.0.1:0', tls: {" + files + ", client_ca: " + a.file + "}}": "decisions.tls, decisions.tls.client_ca, from none or to none,",
		"decisions: {listen: '127.0.0.1:0', unknown: refuse}":                                 "decisions.unknown",
		"decisions: {listen: '127.0.0.1:0', max_targets: 3, max_tokens: 5, max_watches: 4}":   "decisions.max_targets, decisions.max_tokens, decisions.max_watches",
		"decisions: {listen: '127.0.0.1:0'}\ncluster: {redis: {url: 'redis://127.0.0.1:1'}}":  "cluster",
	} {
		err := d.reload(anyPorts + decisions + "\n" + target)
		if err == nil || err.Error() != "gateway: a change of "+want+" needs a restart: the configuration in force stays" {
			t.Errorf("%s: %v", decisions, err)
		}
	}
	if status, _ := d.ask("Admit", `{"target":"up","priority":5}`); status != 200 {
		t.Errorf("%d", status)
	}
}

// The token is read anew, and is asked for; without it nothing is told.
func TestTokenOfDecisions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "first-0123456789", "second-0123456789"
	write(first)
	yaml := anyPorts + "decisions: {listen: '127.0.0.1:0', token_file: " + file + "}\n"
	d := startDaemon(t, yaml)
	try := func(token string) int {
		status, _ := d.ask("List", `{}`, "Authorization", "Bearer "+token)
		return status
	}
	if a, b := try(first), try(second); a != 200 || b != 401 {
		t.Errorf("%d %d", a, b)
	}
	write(second)
	if err := d.Reload(); err != nil {
		t.Fatal(err)
	}
	if a, b := try(first), try(second); a != 401 || b != 200 {
		t.Errorf("after the change: %d %d", a, b)
	}
	write("short")
	if err := d.Reload(); err == nil || !strings.Contains(err.Error(), "gateway: decisions.token_file: config: token file "+file) {
		t.Errorf("%v", err)
	}
	if try(second) != 200 {
		t.Error("a token that cannot be used took away the one before")
	}
	if n := d.metric(`decision_refused_total{cause="token"}`); n != "2" {
		t.Errorf("refused: %q", n)
	}
	if strings.Contains(d.log.String(), first) || strings.Contains(d.log.String(), second) {
		t.Error("a token is in the log")
	}
}

func TestCertificatesOfDecisions(t *testing.T) {
	a := newOpsAuthority(t)
	cert, key, _ := a.issue("me", "localhost")
	d := startDaemon(t, anyPorts+fmt.Sprintf("decisions: {listen: '127.0.0.1:0', tls: {cert: %s, key: %s, client_ca: %s}}\n", cert, key, a.file))
	url := "https://" + d.DecisionsAddr().String() + "/cortex.v1.DecisionService/List"
	with := func(certs ...tls.Certificate) *http.Client {
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: a.pool(), Certificates: certs}}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	c := with(a.pair("worker", "worker"))
	if status, _ := postJSON(t, c, url, `{}`); status != 200 {
		t.Errorf("%d", status)
	}
	res, err := c.Get("https://" + d.DecisionsAddr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.ProtoMajor != 2 {
		t.Errorf("spoken to in %s", res.Proto)
	}
	if _, err := with().Post(url, "application/json", strings.NewReader("{}")); err == nil {
		t.Error("served without a certificate")
	}
	c.CloseIdleConnections()
}

// In the delay before a stop it still answers and ends connections; then watches end, and what is in flight may.
func TestDecisionServiceDrains(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		f, err := config.Parse("t.yaml", []byte("drain: {delay: 5s, timeout: 10s}\ndecisions: {}\n"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := newServer(f, Options{}, nil, w.listen("admin.test:80"))
		if err != nil {
			t.Fatal(err)
		}
		s.decisions = newDecisions(s, f.Decisions, w.listen("decisions.test:80"))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		ask := func(method string, body []byte) (*http.Response, error) {
			r, err := http.NewRequest("POST", "http://decisions.test:80/cortex.v1.DecisionService/"+method, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			if method == "Watch" {
				r.Header.Set("Content-Type", "application/connect+json")
			}
			return w.client(trusted).Do(r)
		}
		watch, err := ask("Watch", []byte("\x00\x00\x00\x00\x02{}"))
		if err != nil || watch.StatusCode != 200 {
			t.Fatal(watch, err)
		}
		ended := make(chan string, 1)
		go func() {
			b, err := io.ReadAll(bufio.NewReader(watch.Body))
			watch.Body.Close()
			ended <- fmt.Sprint(string(b), err)
		}()
		synctest.Wait()
		began := time.Now()
		stop()
		time.Sleep(4 * time.Second)
		res, err := ask("List", []byte("{}"))
		if err != nil || res.StatusCode != 200 || !res.Close {
			t.Fatalf("in the delay: %+v %v", res, err)
		}
		res.Body.Close()
		if got := <-ended; !strings.Contains(got, `"unavailable"`) {
			t.Errorf("the watch ended with %s", got)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d < 5*time.Second || d > 6*time.Second {
			t.Errorf("stopped after %v", d)
		}
		if _, err := ask("List", []byte("{}")); err == nil {
			t.Error("still there")
		}
	})
}

// A port that is taken is named, and those that were opened before it are free again.
func TestDecisionsPortThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	yaml := "listen: '127.0.0.1:0'\nadmin: {listen: '" + free.Addr().String() + "'}\ndecisions: {listen: '" + taken.Addr().String() + "'}\n" + nowhere
	f, err := config.Parse("t.yaml", []byte(yaml+"targets: {up: {endpoints: ['http://127.0.0.1:1']}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Listen(f, Options{}); s != nil || err == nil || !strings.HasPrefix(err.Error(), "gateway: decisions.listen: listen tcp "+taken.Addr().String()) {
		t.Fatalf("%v %v", s, err)
	}
	again, err := net.Listen("tcp", free.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

// Close without a drain ends streams, too, and what the fleet and the service had begun.
func TestCloseCutsWatches(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	d := startDaemon(t, anyPorts+"decisions: {listen: '127.0.0.1:0'}\n"+nowhere)
	res, err := http.Post("http://"+d.DecisionsAddr().String()+"/cortex.v1.DecisionService/Watch", "application/connect+json",
		strings.NewReader("\x00\x00\x00\x00\x02{}"))
	if err != nil {
		t.Fatal(err)
	}
	if n := d.metric("decision_watches"); n != "1" {
		t.Errorf("%q watches", n)
	}
	d.Close()
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	d.end()
	d.Close()
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
}

func TestConnectionsToDecisionsAreBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := bounded(l, 2)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })}
	go s.Serve(b)
	defer s.Close()
	dial := func() (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_, err = bufio.NewReader(c).ReadString('\n')
		return c, err
	}
	one, err1 := dial()
	two, err2 := dial()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if three, err := dial(); err == nil {
		t.Error("one too many was served")
	} else {
		three.Close()
	}
	one.Close()
	for {
		c, err := dial()
		if c.Close(); err == nil {
			break
		}
	}
	two.Close()
}
