package config_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/config"
)

// sample is the file of DESIGN 6, as printed there.
const sample = `listen: 127.0.0.1:8080
admin: { listen: 127.0.0.1:9095 }
targets:
  payments:
    endpoints: [http://127.0.0.1:9000]
    profile: adaptive                  # or article
    retry: { max_retries: 3, base_delay: 100ms, max_delay: 30s }
    timeout: { min: 50ms, max: 5s, bootstrap: 1s }
routes:
  - path: /                            # longest prefix wins
    target: payments
    priority: { header: X-Priority, trust: [127.0.0.0/8], default: 5 }
    fallback: { static: { status: 202, body: '{"status":"pending"}', content_type: application/json } }
`

// everything sets every key, none to its default.
const everything = `
name: edge-1
listen: "[::1]:80"
tls: {cert: tls/cert.pem, key: "/etc/cortex/a key", client_ca: ca.pem, min_version: "1.3"}
admin: {enabled: false, listen: ":81", token_file: /run/secrets/token, tls: {cert: c, key: k}}
decisions: {listen: "[::]:82", token_file: /run/secrets/decisions, tls: {cert: c, key: k, client_ca: ca.pem}, unknown: refuse, max_targets: 7,
  max_tokens: 8, max_watches: 9, template: {profile: article, levels: 4, retry: {max_retries: 0, base_delay: 20ms}, remote: {trust: 0}}}
cluster: {redis: {url: "rediss+sentinel://s1:26380,[fd00::2],s3/main/3", username: cortex, password_file: /run/secrets/redis,
    sentinel_password_file: "sentinel password", timeout: 20ms,
    tls: {ca: redis.pem, cert: me.pem, key: me.key, server_name: redis.internal}}, prefix: "shop:eu", interval: 100ms, mode: exact, window: 30s}
log: {level: debug, format: json}
access_log: {path: /var/log/cortex.log, sample: 0.01, errors: 0}
reload: {watch: false, interval: 100ms}
memory: {limit: 1GiB}
drain: {delay: 3s, timeout: 0s}
server: {read_header_timeout: 1s, body_timeout: 1h, idle_timeout: 30s, max_header_bytes: 1MiB,
  write_timeout: 1s, max_header_fields: 50, max_url_bytes: 1KiB, max_body_bytes: 0B, min_body_rate: 0B, http2: false, h2c: false,
  max_streams: 7, max_connections: 10000, connections_per_client: 0}
targets:
  ledger:
    endpoints: ["https://a.example:8443/base/path", http://10.0.0.1, {url: "h2c://[fe80::1%25eth0]:81", weight: 3}]
    profile: article
    levels: 5
    weights: {F: 0.2, L: 0.3, Q: 0.25, B: 0.05, C: 0.2}
    retry: {max_retries: 0, backoff: decorrelated, base_delay: 10ms, max_delay: 1m30s, non_idempotent: true, replay_limit: 0B}
    budget: {ratio: 0.25, capacity: 2.5, min_per_second: 0}
    breaker: {open_for: 20s, probe_every: 2s, probes_to_close: 3, max_probes: 2, threshold: 0.25,
      theta_fast: 0.8, theta_slow: 0.6, confidence: 0.95, probe_share: 0.05}
    timeout: {enabled: false, min: 10ms, max: 2s, bootstrap: 200ms}
    deadline: 3s
    limit: {min: 4, max: 400}
    concurrency: 10
    shed: {signal: pressure}
    remote: {trust: 0}
    balance: {eject: {enabled: false, failures: 1, max_share: 1, base_time: 1m, max_time: 1h}, slow_start: 0s,
      check: {path: "/up now", interval: 100ms, timeout: 100ms, healthy: 1, unhealthy: 1}, resolve: 0s}
    transport: {dial_timeout: 1s, max_idle_per_host: 7, idle_timeout: 1h1m, max_age: 0s,
      tls: {ca: ca.pem, cert: me.pem, key: "5", server_name: ledger.internal}}
  9: {endpoints: ["http://[fd00::1]:9"], weights: read-heavy}
routes:
  - {path: /a/b/, target: ledger, methods: [GET, M-SEARCH]}
  - path: /a/b
    target: ledger
    methods: [POST]
    priority: {default: 1, header: x-tier, trust: ["fd00::/8"], tiers: {gold: 4, "null": 0}}
    fallback:
      cache: {max_age: 1h, max_entries: 5, max_bytes: 2MiB, credentials: [x-my-key, X-Badge]}
      static: {status: 503, body: "a: 'b' \"c\"\r\n\t# d\n\n  é \x01\u2028\ufeff", content_type: "text/plain; charset=latin1"}
  - {path: "/ü & x", target: 9, priority: 3, shadow: true}
`

const target = "targets: {a: {endpoints: [http://127.0.0.1:9000]}}\n"

func parse(t *testing.T, text string) *config.File {
	t.Helper()
	f, err := config.Parse("t.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return f
}

func TestDesignSampleLoads(t *testing.T) {
	f := parse(t, sample)
	if f.Listen != "127.0.0.1:8080" || !f.Admin.Enabled || f.Admin.Listen != "127.0.0.1:9095" {
		t.Errorf("addresses: %+v", f)
	}
	p := f.Target("payments")
	if p == nil || len(p.Endpoints) != 1 || p.Endpoints[0].URL.String() != "http://127.0.0.1:9000" {
		t.Fatalf("target: %+v", p)
	}
	c, err := f.Engine("payments")
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "payments" || c.Profile != cortex.Adaptive || c.MaxRetries != 3 || c.Backoff.Base != 100*time.Millisecond ||
		c.Timeout.Bootstrap != time.Second {
		t.Errorf("engine: %+v", c)
	}
	r := f.Routes[0]
	if len(f.Routes) != 1 || r.Path != "/" || r.Target != "payments" || r.Priority.Header != "X-Priority" ||
		r.Priority.Default != 5 || fmt.Sprint(r.Priority.Trust) != "[127.0.0.0/8]" || r.Fallback.Cache != nil {
		t.Errorf("route: %+v", r)
	}
	if want := (config.Static{Status: 202, Body: `{"status":"pending"}`, ContentType: "application/json"}); *r.Fallback.Static != want {
		t.Errorf("static answer: %+v, want %+v", *r.Fallback.Static, want)
	}
}

func TestEverythingIsReadAsWritten(t *testing.T) {
	f := parse(t, everything)
	l := f.Target("ledger")
	c := l.Engine
	for name, got := range map[string]struct{ got, want any }{
		"name": {f.Name, "edge-1"},
		"tls":  {*f.TLS, config.TLS{Cert: "tls/cert.pem", Key: "/etc/cortex/a key", ClientCA: "ca.pem", MinVersion: tls.VersionTLS13}},
		"admin": {f.Admin, config.Admin{Listen: ":81", TokenFile: "/run/secrets/token",
			TLS: &config.TLS{Cert: "c", Key: "k", MinVersion: tls.VersionTLS12}}},
		"decisions": {[]any{f.Decisions.Listen, f.Decisions.TokenFile, *f.Decisions.TLS, f.Decisions.Create, f.Decisions.MaxTargets, f.Decisions.MaxTokens,
			f.Decisions.MaxWatches}, []any{"[::]:82", "/run/secrets/decisions", config.TLS{Cert: "c", Key: "k", ClientCA: "ca.pem",
			MinVersion: tls.VersionTLS12}, false, 7, 8, 9}},
		"template": {[]any{f.Decisions.Template.Profile, f.Decisions.Template.Levels, f.Decisions.Template.DisableRetries, f.Decisions.Template.Backoff.Base,
			f.Decisions.Template.DistrustRemote, f.Decisions.Template.Name}, []any{cortex.Article, 4, true, 20 * time.Millisecond, true, ""}},
		"cluster": {*f.Cluster, config.Cluster{Prefix: "shop:eu", Interval: 100 * time.Millisecond, Exact: true, Window: 30 * time.Second,
			Redis: config.Redis{URL: "rediss+sentinel://s1:26380,[fd00::2],s3/main/3", Username: "cortex", PasswordFile: "/run/secrets/redis",
				SentinelPasswordFile: "sentinel password", Timeout: 20 * time.Millisecond,
				TLS: config.TransportTLS{CA: "redis.pem", Cert: "me.pem", Key: "me.key", ServerName: "redis.internal"}}}},
		"access log": {*f.AccessLog, config.AccessLog{Path: "/var/log/cortex.log", Sample: 0.01}},
		"reload":     {f.Reload, config.Reload{Interval: 100 * time.Millisecond}},
		"memory":     {f.Memory, config.Memory{Limit: 1 << 30}},
		"drain":      {f.Drain, config.Drain{Delay: 3 * time.Second}},
		"server": {f.Server, config.Server{ReadHeaderTimeout: time.Second, BodyTimeout: time.Hour, IdleTimeout: 30 * time.Second,
			WriteTimeout: time.Second, MaxHeaderBytes: 1 << 20, MaxHeaderFields: 50, MaxURLBytes: 1 << 10, MaxStreams: 7, MaxConnections: 10000}},
		"endpoints": {fmt.Sprint(l.Endpoints), "[{https://a.example:8443/base/path 1} {http://10.0.0.1 1} {h2c://[fe80::1%25eth0]:81 3}]"},
		"balance": {l.Balance, config.Balance{Eject: config.Eject{Failures: 1, MaxShare: 1, BaseTime: time.Minute, MaxTime: time.Hour},
			Check: &config.Check{Path: "/up now", Interval: 100 * time.Millisecond, Timeout: 100 * time.Millisecond, Healthy: 1, Unhealthy: 1}}},
		"log": {fmt.Sprint(f.Log), "{DEBUG json}"},
		"transport": {l.Transport, config.Transport{DialTimeout: time.Second, MaxIdlePerHost: 7, IdleTimeout: time.Hour + time.Minute,
			TLS: config.TransportTLS{CA: "ca.pem", Cert: "me.pem", Key: "5", ServerName: "ledger.internal"}}},
		"profile":         {c.Profile, cortex.Article},
		"no retries":      {[]any{c.MaxRetries, c.DisableRetries}, []any{0, true}},
		"no income":       {c.Budget.MinPerSecond < 0, true},
		"no trust":        {[]any{c.RemoteTrust, c.DistrustRemote}, []any{0.0, true}},
		"no timeout":      {c.DisableTimeout, true},
		"no replay":       {l.ReplayLimit, int64(0)},
		"non-idempotent":  {l.NonIdempotent, true},
		"weights":         {c.Weights, cortex.Weights{F: 0.2, L: 0.3, Q: 0.25, B: 0.05, C: 0.2}},
		"preset":          {f.Target("9").Engine.Weights, cortex.ReadHeavyWeights},
		"shed":            {c.ShedSignal, cortex.ShedByPressure},
		"path":            {f.Routes[0].Path, "/a/b"},
		"default of five": {f.Routes[0].Priority.Default, 2},
		"header":          {f.Routes[1].Priority.Header, "X-Tier"},
		"tiers":           {f.Routes[1].Priority.Tiers, map[string]int{"gold": 4, "null": 0}},
		"shadow":          {[]bool{f.Routes[1].Shadow, f.Routes[2].Shadow}, []bool{false, true}},
		"scalar":          {f.Routes[2].Priority, config.Priority{Default: 3, Trust: f.Routes[0].Priority.Trust}},
		"cache":           {*f.Routes[1].Fallback.Cache, config.Cache{MaxAge: time.Hour, MaxEntries: 5, MaxBytes: 2 << 20, Credentials: []string{"X-My-Key", "X-Badge"}}},
		"body":            {f.Routes[1].Fallback.Static.Body, "a: 'b' \"c\"\r\n\t# d\n\n  é \x01\u2028\ufeff"},
	} {
		if !reflect.DeepEqual(got.got, got.want) {
			t.Errorf("%s: %+v, want %+v", name, got.got, got.want)
		}
	}
}

// What is printed as effective is what is in force: it parses to the same, and to the same text again.
func TestEffectiveParsesToItself(t *testing.T) {
	for _, text := range []string{sample, everything, target, strings.Replace(target, "]}", "], profile: article}", 1)} {
		f := parse(t, text)
		once, err := f.Effective()
		if err != nil {
			t.Fatal(err)
		}
		g := parse(t, string(once))
		if !reflect.DeepEqual(f, g) {
			t.Errorf("not equal:\n%+v\n%+v\nof\n%s", f, g, once)
		}
		twice, err := g.Effective()
		if err != nil || string(twice) != string(once) {
			t.Errorf("%v: printed again:\n%s\nwas\n%s", err, twice, once)
		}
	}
}

// F07: an empty breaker block, or none, switched the breaker off because its thresholds were then 0.
func TestEmptyBreakerBlockMeansDefaults(t *testing.T) {
	for _, profile := range []string{"adaptive", "article"} {
		text := "targets: {a: {endpoints: [http://127.0.0.1:9000], profile: " + profile + ", breaker: {}, retry: , timeout: }}\n"
		f := parse(t, text)
		want, err := breaker.Config{Article: profile == "article"}.Normalize()
		if err != nil {
			t.Fatal(err)
		}
		c, err := f.Engine("a")
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(c.Breaker, want) {
			t.Errorf("%s: %+v, want %+v", profile, c.Breaker, want)
		}
		if c.DisableRetries || c.DisableTimeout || c.MaxRetries != cortex.DefaultMaxRetries {
			t.Errorf("%s: an empty block switched something off: %+v", profile, c)
		}
		effective, err := f.Effective()
		if err != nil {
			t.Fatal(err)
		}
		lines := []string{"open_for: 100ms", "probe_every: 1s", "theta_fast: 0.9", "theta_slow: 0.7", "confidence: 0.99"}
		if profile == "article" {
			lines = []string{"open_for: 30s", "probe_every: 5s", "threshold: 0.5\n"}
		}
		for _, line := range lines {
			if !strings.Contains(string(effective), "      "+line) {
				t.Errorf("%s: no %q in\n%s", profile, line, effective)
			}
		}
	}
}

func TestEnginesAreAcceptedByTheCore(t *testing.T) {
	for _, text := range []string{sample, everything, target} {
		f := parse(t, text)
		for _, tg := range f.Targets {
			c, err := f.Engine(tg.Name)
			if err != nil {
				t.Fatal(err)
			}
			e, err := cortex.New(c)
			if err != nil {
				t.Errorf("%s: %v", tg.Name, err)
			} else if e.Name() != tg.Name {
				t.Errorf("engine %q of target %q", e.Name(), tg.Name)
			}
		}
	}
	_, err := parse(t, everything).Engine("ledgr")
	if err == nil || err.Error() != "config: no target ledgr: there are ledger, 9" {
		t.Errorf("unknown target: %v", err)
	}
}

func TestWithoutRoutesAllGoesToTheOneTarget(t *testing.T) {
	want := []config.Route{{Path: "/", Target: "a", Priority: config.Priority{Default: 3,
		Trust: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}}}}
	if f := parse(t, strings.Replace(target, "]}", "], levels: 7}", 1)); !reflect.DeepEqual(f.Routes, want) {
		t.Errorf("%+v, want %+v", f.Routes, want)
	}
}

// Without a priority header nobody was trusted, nor could be: deadlines and forwarded addresses were ignored on such routes.
func TestTrustNeedsNoPriorityHeader(t *testing.T) {
	for text, want := range map[string]string{
		target:                         "[127.0.0.0/8 ::1/128]",
		target + "routes: [{path: /}]": "[127.0.0.0/8 ::1/128]",
		target + "routes: [{path: /, priority: 3}]":                     "[127.0.0.0/8 ::1/128]",
		target + "routes: [{path: /, priority: {trust: [10.0.0.0/8]}}]": "[10.0.0.0/8]",
	} {
		f := parse(t, text)
		if got := fmt.Sprint(f.Routes[0].Priority.Trust); got != want {
			t.Errorf("%s: trusts %s, want %s", text, got, want)
		}
		effective, err := f.Effective()
		if err != nil {
			t.Fatal(err)
		}
		if again := parse(t, string(effective)); !reflect.DeepEqual(again, f) {
			t.Errorf("%s: printed as\n%s", text, effective)
		}
	}
}

func TestPriorityHeaderIsTrustedFromLoopbackUnlessSaidOtherwise(t *testing.T) {
	f := parse(t, target+"routes: [{path: /, priority: {header: X-Priority}}]")
	if p := f.Routes[0].Priority; fmt.Sprint(p.Trust) != "[127.0.0.0/8 ::1/128]" || p.Default != 5 {
		t.Errorf("%+v", p)
	}
}

// What looks close to a problem and is none.
func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"highest priority":       target + "routes: [{path: /, priority: 10}]",
		"highest tier":           target + "routes: [{path: /, priority: {header: a, tiers: {x: 10, y: 0}}}]",
		"any free port twice":    "listen: :0\nadmin: {listen: 'localhost:0'}\n" + target,
		"one port, two hosts":    "listen: 127.0.0.1:80\nadmin: {listen: 127.0.0.2:80}\n" + target,
		"admin off":              "listen: :9095\nadmin: {enabled: false}\n" + target,
		"same port, other host":  "listen: :9000\ntargets: {a: {endpoints: [http://10.0.0.1:9000]}}",
		"http and https":         "targets: {a: {endpoints: [http://h, https://h, 'http://h/x', 'https://h:80']}}",
		"one path, two methods":  target + "routes: [{path: /, methods: [GET]}, {path: /, methods: [POST]}, {path: /}]",
		"empty blocks":           "admin:\nlog: {}\ndrain: # nothing\n" + target,
		"quoted duration":        "drain: {timeout: '5s'}\n" + target,
		"anchor nobody asks for": "log: &x {level: info}\n" + target,
		"204 without a body":     target + "routes: [{path: /, fallback: {static: {status: 204}}}]",
	} {
		if _, err := config.Parse("t.yaml", []byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := parse(t, "targets: {a: {endpoints: [http://h], remote: {trust: -0.0}}}").Engine("a")
	if err != nil || math.Signbit(c.RemoteTrust) {
		t.Errorf("trust of −0: %v, %v", c.RemoteTrust, err)
	}
}

func TestUpstreamIsTheSameWithoutAFile(t *testing.T) {
	f, err := config.Upstream("http://127.0.0.1:9000", "127.0.0.1:1", "[::1]:2")
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, `
listen: 127.0.0.1:1
admin: {listen: "[::1]:2"}
targets: {upstream: {endpoints: [http://127.0.0.1:9000]}}
routes: [{path: /, priority: {header: X-Priority}}]`)
	if !reflect.DeepEqual(f, want) {
		t.Errorf("%+v\nwant\n%+v", f, want)
	}
	f, err = config.Upstream("http://127.0.0.1:9000", "", "")
	if err != nil || f.Listen != "127.0.0.1:8080" || f.Admin.Listen != "127.0.0.1:9095" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestFlagsForDecisions(t *testing.T) {
	f, err := config.Flags("", "", "", "127.0.0.1:9")
	if want := parse(t, "decisions: {listen: '127.0.0.1:9'}"); err != nil || !reflect.DeepEqual(f, want) {
		t.Errorf("%+v, %v, want\n%+v", f, err, want)
	}
	f, err = config.Flags("http://127.0.0.1:9000", "127.0.0.1:1", "127.0.0.1:2", "[::1]:3")
	want := parse(t, "listen: 127.0.0.1:1\nadmin: {listen: '127.0.0.1:2'}\ndecisions: {listen: '[::1]:3'}\n"+
		"targets: {upstream: {endpoints: [http://127.0.0.1:9000]}}\nroutes: [{path: /, priority: {header: X-Priority}}]")
	if err != nil || !reflect.DeepEqual(f, want) {
		t.Errorf("%+v, %v, want\n%+v", f, err, want)
	}
	_, err = config.Flags("", "", "", ":9096")
	if err == nil || err.Error() != "--decisions: :9096: refused beyond loopback without a token_file or tls.client_ca: want one of these, or an address such as 127.0.0.1:9096" {
		t.Error(err)
	}
}

func TestUpstreamProblemsNameTheFlag(t *testing.T) {
	for _, c := range []struct{ upstream, listen, admin, want string }{
		{"", "x", "y:z", `--upstream: "": neither http, https nor h2c: want http://host:port, https://host:port or h2c://host:port, perhaps with a path
--listen: x: not an address: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces
--admin: y:z: not a port from 0 to 65535: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces`},
		{"http://h", "", ":2", "--admin: :2: refused beyond loopback without a token_file or tls.client_ca: want one of these, or an address such as 127.0.0.1:9095"},
		{"http://h", ":80", "127.0.0.1:80", "--admin: 127.0.0.1:80: the same port as listen, :80: want another"},
		{"{a: [*x", "", "", "--upstream: {a: [*x: not a URL: want http://host:port, https://host:port or h2c://host:port, perhaps with a path"},
	} {
		_, err := config.Upstream(c.upstream, c.listen, c.admin)
		if err == nil || err.Error() != c.want {
			t.Errorf("%q %q %q:\n%v\nwant\n%s", c.upstream, c.listen, c.admin, err, c.want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cortex.yaml")
	if err := os.WriteFile(path, []byte("listen: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(path)
	var problems config.Errors
	if !errors.As(err, &problems) || len(problems) != 2 || problems[0].File != path || problems[0].Line != 1 {
		t.Errorf("a file with problems: %v", err)
	}
	if err := os.WriteFile(path, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(path); err != nil {
		t.Error(err)
	}
	if _, err := config.Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if _, err := config.Load(dir); err == nil || errors.As(err, &problems) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := os.Stat("/dev/zero"); err == nil {
		if _, err := config.Load("/dev/zero"); err == nil || !strings.Contains(err.Error(), "larger than 1MiB") {
			t.Errorf("a file without end: %v", err)
		}
	}
}
