package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
	"github.com/seed-a29ca62a/cortex/config"
)

// Every URL that a configuration may have is one that can be used, whatever is in its password.
func TestClusterURLsAreUsable(t *testing.T) {
	dir := t.TempDir()
	const odd = `p@ss:w/o?r#d %2F&é`
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte(odd), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"redis://127.0.0.1:6379", "redis://h", "redis://h/15", "redis://[::1]:1/3", "rediss://h:6380/0", "redis+cluster://a,b:7000,[fd00::1]:7001",
		"rediss+cluster://a", "redis+sentinel://a,b,c/main", "redis+sentinel://a:26379/main/2", "rediss+sentinel://a/main", "redis+unix:///run/redis.sock"} {
		for _, user := range []string{"", "password_file: " + file, "username: co:rt@ex, password_file: " + file, "sentinel_password_file: " + file} {
			if strings.HasPrefix(user, "sentinel") && !strings.Contains(url, "sentinel") {
				continue
			}
			f, err := config.Parse("t.yaml", []byte("decisions: {}\ncluster: {redis: {url: '"+url+"', "+user+"}}\n"))
			if err != nil {
				t.Errorf("%s %s: %v", url, user, err)
				continue
			}
			cc, _, err := clusterConfig(f.Cluster)
			if err != nil {
				t.Fatal(err)
			}
			c, err := cluster.Connect(cc.URL, cc.Timeout, cc.TLS)
			if err != nil {
				t.Errorf("%s %s: %v", url, user, err)
				continue
			}
			if one, ok := c.(*redis.Client); ok && strings.Contains(user, "password_file") && !strings.HasPrefix(user, "sentinel") {
				if o := one.Options(); o.Password != odd || strings.Contains(user, "username") != (o.Username == "co:rt@ex") {
					t.Errorf("%s %s: %q %q", url, user, o.Username, o.Password)
				}
			}
			c.Close()
			if err := checkCluster(f.Cluster); err != nil {
				t.Error(err)
			}
		}
	}
	f, err := config.Parse("t.yaml", []byte("decisions: {}\ncluster: {redis: {url: 'redis://h', password_file: "+file+"x}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(f); err == nil || !strings.Contains(err.Error(), "gateway: cluster.redis.password_file: ") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// nowhere is the configuration of a fleet whose Redis is not there.
const nowhere = "cluster: {redis: {url: 'redis://127.0.0.1:1', timeout: 1ms}, interval: 10ms}\n"

// Whatever the targets, those that there are share, with the engines that they have, and nothing is left of others; Redis is not needed for that.
func TestEnginesJoinAndLeaveWithTheirTargets(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	const top = anyPorts + "decisions: {listen: '127.0.0.1:0'}\n" + nowhere
	target := func(name, more string) string {
		return name + ": {endpoints: ['http://127.0.0.1:1']" + more + "}"
	}
	d := startDaemon(t, top+"targets: {"+target("a", "")+", "+target("b", "")+"}\nroutes: [{path: /, target: a}]\n")
	g := d.Gateway()
	check := func(want ...string) {
		t.Helper()
		g.fleet.mu.Lock()
		got := slices.Sorted(maps.Keys(g.fleet.joined))
		for name, e := range g.fleet.joined {
			if configured := g.engine(name); configured != nil && configured != e {
				t.Errorf("%s: not the engine that is in force", name)
			}
		}
		g.fleet.mu.Unlock()
		all, of := g.fleet.status()
		if !slices.Equal(got, want) || len(all.Targets) != len(want) || len(of) != len(want) {
			t.Errorf("%q share, of %d: want %q", got, len(all.Targets), want)
		}
	}
	check("a", "b")
	b := g.engine("b")
	if err := d.reload(top + "targets: {" + target("a", ", levels: 5") + ", " + target("b", ", transport: {dial_timeout: 1s}") + ", " + target("c", "") +
		"}\nroutes: [{path: /, target: a}]\n"); err != nil {
		t.Fatal(err)
	}
	check("a", "b", "c")
	if g.engine("b") != b || g.fleet.joined["b"] != b {
		t.Error("b has another engine")
	}
	d.ask("Admit", `{"target":"made","priority":5}`)
	d.ask("Admit", `{"target":"c","priority":5}`)
	g.share() // as it does each second
	check("a", "b", "c", "made")
	if err := d.reload(top + "targets: {" + target("made", "") + "}\n"); err != nil {
		t.Fatal(err)
	}
	check("made")
	if d.adminJSON("/api/v1/server")["cluster"].(map[string]any)["mode"] != "alone" {
		t.Error("a fleet without its Redis")
	}
	for v := (map[string]any)(nil); v == nil || v["error"] == nil; {
		v = d.adminJSON("/api/v1/targets/made")["cluster"].(map[string]any)
	}
	if m := d.metric(`cluster_mode{target="made",mode="alone"}`); m != "1" {
		t.Errorf("metric: %q", m)
	}
	d.end()
	if err := g.fleet.cluster.Guard(b); !errors.Is(err, cluster.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > goroutines; {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), goroutines, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

// Of the engines that clients name, a bounded number shares, and those that do go on.
func TestSharedEnginesOfTheDecisionServiceAreBounded(t *testing.T) {
	f, err := newFleet(&config.Cluster{Prefix: "t", Interval: time.Minute, Window: time.Minute, Redis: config.Redis{URL: "redis://127.0.0.1:1",
		Timeout: time.Millisecond}}, nil, newGateway(&config.File{}, Options{}).logger)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	engines := func(from, to int) []*cortex.Engine {
		var es []*cortex.Engine
		for i := from; i < to; i++ {
			e, err := cortex.New(cortex.Config{Name: fmt.Sprint("t", i), Stripes: 1})
			if err != nil {
				t.Fatal(err)
			}
			es = append(es, e)
		}
		return es
	}
	configured, made := engines(0, 3), engines(2, mostShared+10) // the first of those has a target's name
	overflow, err := cortex.New(cortex.Config{Name: cortex.Overflow, Stripes: 1})
	if err != nil {
		t.Fatal(err)
	}
	f.share(slices.Values(configured), slices.Values(append([]*cortex.Engine{overflow}, made...)))
	before := maps.Clone(f.joined)
	if len(before) != mostShared+3 || before["t2"] != configured[2] || before[cortex.Overflow] != nil {
		t.Fatalf("%d share", len(before))
	}
	slices.Reverse(made)
	f.share(slices.Values(configured), slices.Values(made))
	if !maps.Equal(before, f.joined) {
		t.Error("others share than before")
	}
	f.share(slices.Values(configured[:1]), slices.Values(made[:10]))
	if len(f.joined) != 11 {
		t.Errorf("%d share", len(f.joined))
	}
	f.close()
	f.close()
	f.share(slices.Values(configured), slices.Values(made))
	if len(f.joined) != 11 {
		t.Error("shares after its end")
	}
}

func TestChangedPasswordIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("old s3cret")
	d := startDaemon(t, anyPorts+"cluster: {redis: {url: 'redis://127.0.0.1:1', password_file: "+file+"}}\ntargets: {a: {endpoints: ['http://127.0.0.1:1']}}\n")
	const said = "a restart takes up the new one"
	if err := d.Reload(); err != nil || strings.Contains(d.log.String(), said) {
		t.Errorf("%v\n%s", err, d.log)
	}
	write("new s3cret")
	if err := d.Reload(); err != nil || !strings.Contains(d.log.String(), said) {
		t.Errorf("%v\n%s", err, d.log)
	}
	if strings.Contains(d.log.String(), "s3cret") {
		t.Error("a password is in the log")
	}
	_, yaml, _ := d.get(d.AdminAddr(), "/api/v1/config")
	if strings.Contains(yaml, "s3cret") || !strings.Contains(yaml, "password_file") {
		t.Errorf("%s", yaml)
	}
}

// A redisServer is a real one of this test's own.
type redisServer struct {
	t    *testing.T
	port int
	args []string
	cmd  *exec.Cmd
}

// startRedis starts one; with args, which are for TLS, on a port that speaks nothing else.
func startRedis(t *testing.T, args ...string) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
			t.Fatal(err)
		}
		t.Skipf("%v (Debian: apt-get install redis-server)", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	r := &redisServer{t: t, port: l.Addr().(*net.TCPAddr).Port, args: args}
	r.start()
	t.Cleanup(r.kill)
	return r
}

func (r *redisServer) start() {
	r.t.Helper()
	port := []string{"--port", fmt.Sprint(r.port)}
	if len(r.args) > 0 { // for TLS alone
		port = []string{"--port", "0", "--tls-port", fmt.Sprint(r.port)}
	}
	r.cmd = exec.Command("redis-server", append(append(port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", r.t.TempDir(),
		"--requirepass", "s3cret"), r.args...)...)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	until(r.t, "redis-server answers", func() bool {
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", r.port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (r *redisServer) kill() {
	if r.cmd != nil {
		r.cmd.Process.Kill()
		r.cmd.Wait()
		r.cmd = nil
	}
}

// until waits for what is to come by itself.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came that %s", what)
		}
	}
}

// Two gateways on one Redis: what fails behind one opens at the other, programs that ask for decisions included; without Redis both go on, with it
// they find together again; a reload leaves them together.
func TestFleetOfGatewaysOnRealRedis(t *testing.T) {
	r := startRedis(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			w.WriteHeader(500)
		}
	}))
	defer up.Close()
	yaml := func(levels int) string {
		return anyPorts + "decisions: {listen: '127.0.0.1:0'}\n" +
			fmt.Sprintf("cluster: {redis: {url: 'redis://127.0.0.1:%d', password_file: %s, timeout: 1s}, interval: 50ms}\n", r.port, password) +
			fmt.Sprintf("targets: {up: {endpoints: [%s], levels: %d, retry: {max_retries: 0}, breaker: {open_for: 100ms, probe_every: 100ms}}}\n", up.URL, levels)
	}
	a, b := startDaemon(t, yaml(10)), startDaemon(t, yaml(10))
	view := func(d *daemon) map[string]any { return d.adminJSON("/api/v1/targets/up")["cluster"].(map[string]any) }
	together := func() bool {
		return view(a)["mode"] == "fleet" && view(b)["mode"] == "fleet" && view(a)["instances"] == 2.0 && view(b)["instances"] == 2.0
	}
	until(t, "both see two", together)
	if n := b.metric(`cluster_instances{target="up"}`); n != "2" {
		t.Errorf("metric: %q", n)
	}
	for range 20 {
		for _, d := range []*daemon{a, b} {
			if status, _, _ := d.get(d.Addr(), "/"); status != 200 {
				t.Fatalf("%d", status)
			}
		}
	}

	broken.Store(true)
	circuit := func(d *daemon) breaker.State { return d.Gateway().engine("up").Pressure().Circuit }
	until(t, "the circuit of B opens though all that fails is behind A", func() bool {
		a.get(a.Addr(), "/")
		return circuit(b) != breaker.Closed
	})
	if _, v := b.ask("Decide", `{"target":"up","priority":5,"attempt":0,"error":{"http_status":500},"latency_ms":4}`); v["retry"] == true {
		t.Errorf("B decides for programs as if it were alone: %v", v)
	}
	broken.Store(false)
	until(t, "both circuits close", func() bool {
		a.get(a.Addr(), "/")
		b.get(b.Addr(), "/")
		return circuit(a) == breaker.Closed && circuit(b) == breaker.Closed
	})

	// A target that nobody has configured: what a program tells A is known at B.
	for _, d := range []*daemon{a, b} {
		if _, v := d.ask("Admit", `{"target":"mails","priority":5}`); v["allowed"] != true {
			t.Fatalf("%v", v)
		}
		d.Gateway().share() // as it does each second
	}
	until(t, "the circuit of mails opens at B", func() bool {
		if status, _ := a.ask("ReportBatch", failures("mails", 100)); status != 200 {
			t.Fatalf("%d", status)
		}
		_, v := b.ask("Admit", `{"target":"mails","priority":5}`)
		return v["circuit"] == "open"
	})

	r.kill()
	until(t, "both know that they are alone", func() bool {
		for _, d := range []*daemon{a, b} {
			if status, _, _ := d.get(d.Addr(), "/"); status != 200 {
				t.Fatalf("without Redis: %d", status)
			}
		}
		return view(a)["mode"] == "alone" && view(b)["mode"] == "alone" && view(a)["error"] != nil
	})
	r.start()
	until(t, "both are together again", together)

	before := b.Gateway().engine("up")
	if err := b.reload(yaml(5)); err != nil { // another engine
		t.Fatal(err)
	}
	if b.Gateway().engine("up") == before {
		t.Fatal("the engine is the one before")
	}
	until(t, "both are together after a reload", together)
	a.end()
	until(t, "B sees that A has gone", func() bool { return view(b)["instances"] == 1.0 })
	b.end()
	if strings.Contains(a.log.String()+b.log.String(), "s3cret") {
		t.Error("a password is in the log")
	}
	c := redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", r.port), Password: "s3cret", Protocol: 2})
	defer c.Close()
	if clients, err := c.Info(context.Background(), "clients").Result(); err != nil || !strings.Contains(clients, "connected_clients:1\r") {
		t.Errorf("connections are left: %v %s", err, clients)
	}
}
