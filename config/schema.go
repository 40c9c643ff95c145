package config

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/fallback"
	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/strictyaml"
	"go.yaml.in/yaml/v3"
)

// Defaults of what is the gateway's own. The engine's defaults are asked of the engine, so that there is one of each.

func newFile() *File {
	return &File{
		Name:   "cortex",
		Listen: "127.0.0.1:8080",
		Admin:  Admin{Enabled: true, Listen: "127.0.0.1:9095"},
		Log:    Log{Level: slog.LevelInfo, Format: "text"},
		Drain:  Drain{Timeout: 10 * time.Second},
		Reload: Reload{Watch: true, Interval: 2 * time.Second},
		Memory: Memory{Limit: 256 << 20},
		Server: Server{ReadHeaderTimeout: 10 * time.Second, BodyTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
			WriteTimeout: 30 * time.Second, MaxHeaderBytes: 64 << 10, MaxHeaderFields: 100, MaxURLBytes: 8 << 10,
			MaxBodyBytes: 1 << 30, MinBodyRate: 256, HTTP2: true, H2C: true, MaxStreams: 250, ConnectionsPerClient: 2048},
	}
}

func newTarget(name string) Target {
	return Target{
		Name:        name,
		ReplayLimit: 64 << 10,
		Balance: Balance{Eject: Eject{Enabled: true, Failures: 5, MaxShare: 0.5, BaseTime: 5 * time.Second, MaxTime: 5 * time.Minute},
			SlowStart: 10 * time.Second, Resolve: 30 * time.Second},
		Transport: Transport{DialTimeout: 5 * time.Second, MaxIdlePerHost: 64, IdleTimeout: 90 * time.Second, MaxAge: 10 * time.Minute},
	}
}

func newTLS() *TLS { return &TLS{MinVersion: tls.VersionTLS12} }

func newAccessLog() *AccessLog { return &AccessLog{Path: "-", Sample: 1, Errors: 1} }

func newCheck() *Check {
	return &Check{Interval: 5 * time.Second, Timeout: time.Second, Healthy: 2, Unhealthy: 3}
}

func newCache() *Cache {
	return &Cache{MaxAge: time.Minute, MaxEntries: fallback.DefaultMaxEntries, MaxBytes: fallback.DefaultMaxBytes}
}

func newStatic() *Static { return &Static{ContentType: "text/plain; charset=utf-8"} }

// loopback is who is trusted unless the file says otherwise.
func loopback() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// The format, block by block. A key is in here or it is unknown.

func (f *File) block() block {
	return block{
		{key: "name", value: text[string]{p: &f.Name, want: "a name such as cortex", parse: parseName, show: itself, bare: true}},
		{key: "listen", value: address(&f.Listen)},
		{key: "tls", value: optional[TLS]{&f.TLS, newTLS, (*TLS).block}},
		{key: "admin", value: block{
			{key: "enabled", value: toggle{p: &f.Admin.Enabled}},
			{key: "listen", value: address(&f.Admin.Listen)},
			{key: "token_file", value: file(&f.Admin.TokenFile)},
			{key: "tls", value: optional[TLS]{&f.Admin.TLS, newTLS, (*TLS).block}},
		}},
		{key: "decisions", value: optional[Decisions]{&f.Decisions, newDecisions, (*Decisions).block}},
		{key: "cluster", value: optional[Cluster]{&f.Cluster, newCluster, (*Cluster).block}},
		{key: "log", value: block{
			{key: "level", value: choice[slog.Level]{&f.Log.Level,
				[]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError},
				func(l slog.Level) string { return strings.ToLower(l.String()) }}},
			{key: "format", value: choice[string]{&f.Log.Format, []string{"text", "json"}, itself}},
		}},
		{key: "access_log", value: optional[AccessLog]{&f.AccessLog, newAccessLog, (*AccessLog).block}},
		{key: "drain", value: block{
			{key: "delay", value: duration{p: &f.Drain.Delay, hi: time.Hour}},
			{key: "timeout", value: duration{p: &f.Drain.Timeout, hi: day}},
		}},
		{key: "reload", value: block{
			{key: "watch", value: toggle{p: &f.Reload.Watch}},
			{key: "interval", value: duration{p: &f.Reload.Interval, lo: 100 * time.Millisecond, hi: time.Hour}},
		}},
		{key: "memory", value: block{
			{key: "limit", value: size{&f.Memory.Limit, 1 << 20, 1 << 40}},
		}},
		{key: "server", value: f.Server.block()},
		{key: "targets", value: targets{&f.Targets}},
		{key: "routes", value: list[Route]{p: &f.Routes, most: MaxRoutes, what: "routes",
			item: func(r *Route) value { return r.block() }}},
	}
}

func (s *Server) block() block {
	return block{
		{key: "read_header_timeout", value: duration{p: &s.ReadHeaderTimeout, lo: time.Millisecond, hi: time.Hour}},
		{key: "body_timeout", value: duration{p: &s.BodyTimeout, lo: time.Second, hi: time.Hour}},
		{key: "idle_timeout", value: duration{p: &s.IdleTimeout, lo: time.Millisecond, hi: day}},
		{key: "write_timeout", value: duration{p: &s.WriteTimeout, lo: time.Second, hi: time.Hour}},
		{key: "max_header_bytes", value: size{&s.MaxHeaderBytes, 1 << 10, 16 << 20}},
		{key: "max_header_fields", value: count{&s.MaxHeaderFields, 10, 10_000}},
		{key: "max_url_bytes", value: size{&s.MaxURLBytes, 128, 1 << 20}},
		{key: "max_body_bytes", value: size{&s.MaxBodyBytes, 0, 1 << 40}},
		{key: "min_body_rate", value: size{&s.MinBodyRate, 0, 1 << 20}},
		{key: "http2", value: toggle{p: &s.HTTP2}},
		{key: "h2c", value: toggle{p: &s.H2C}},
		{key: "max_streams", value: count{&s.MaxStreams, 1, 10_000}},
		{key: "max_connections", value: count{&s.MaxConnections, 0, 1_000_000}},
		{key: "connections_per_client", value: count{&s.ConnectionsPerClient, 0, 1_000_000}},
	}
}

func (t *Target) block() block {
	retry := block{
		{key: "non_idempotent", value: toggle{p: &t.NonIdempotent}},
		{key: "replay_limit", value: size{&t.ReplayLimit, 0, 64 << 20}},
	}
	b := append(block{{key: "endpoints", value: endpoints(&t.Endpoints)}}, engineBlock(&t.Engine, retry)...)
	return append(b, entry{key: "balance", value: t.Balance.block()}, entry{key: "transport", value: t.Transport.block()})
}

// engineBlock are the keys that are the engine's; retry is what else there is in its block of that name.
func engineBlock(c *cortex.Config, retry block) block {
	var adaptive, article string
	if c.Profile == cortex.Article {
		adaptive = "not in force: profile adaptive only"
	} else {
		article = "not in force: profile article only"
	}
	return block{
		{key: "profile", field: "Profile", value: choice[cortex.Profile]{&c.Profile,
			[]cortex.Profile{cortex.Adaptive, cortex.Article}, cortex.Profile.String}},
		{key: "levels", field: "Levels", value: count{&c.Levels, 1, limit.MaxLevels}},
		{key: "weights", field: "Weights", value: weights{&c.Weights}},
		{key: "retry", value: append(block{
			{key: "max_retries", field: "MaxRetries",
				value: orNone[int]{count{&c.MaxRetries, 0, 1000}, &c.MaxRetries, 0, &c.DisableRetries}},
			{key: "backoff", field: "Backoff.Law", value: choice[backoff.Law]{&c.Backoff.Law,
				[]backoff.Law{backoff.Pressure, backoff.Exponential, backoff.FullJitter, backoff.EqualJitter, backoff.Decorrelated},
				backoff.Law.String}},
			{key: "base_delay", field: "Backoff.Base", value: duration{p: &c.Backoff.Base, lo: time.Millisecond, hi: day}},
			{key: "max_delay", field: "Backoff.Max", value: duration{p: &c.Backoff.Max, lo: time.Millisecond, hi: day}},
		}, retry...)},
		{key: "budget", value: block{
			{key: "ratio", field: "Budget.Ratio", value: number{p: &c.Budget.Ratio, hi: 1, above: true}},
			{key: "capacity", field: "Budget.Capacity", value: number{p: &c.Budget.Capacity, lo: 1, hi: 1e9}},
			{key: "min_per_second", field: "Budget.MinPerSecond", value: orNone[float64]{
				number{p: &c.Budget.MinPerSecond, hi: 1e6}, &c.Budget.MinPerSecond, -1, nil}},
		}},
		{key: "breaker", value: block{
			{key: "open_for", field: "Breaker.OpenFor", value: duration{p: &c.Breaker.OpenFor, lo: time.Millisecond, hi: day}},
			{key: "probe_every", field: "Breaker.ProbeEvery", value: duration{p: &c.Breaker.ProbeEvery, lo: time.Millisecond, hi: day}},
			{key: "probes_to_close", field: "Breaker.ProbesToClose", value: count{&c.Breaker.ProbesToClose, 1, 1000}},
			{key: "max_probes", field: "Breaker.MaxProbes", value: count{&c.Breaker.MaxProbes, 1, 64}},
			{key: "threshold", field: "Breaker.Threshold", note: article,
				value: number{p: &c.Breaker.Threshold, hi: 1, above: true, below: true}},
			{key: "theta_fast", field: "Breaker.ThetaFast", note: adaptive,
				value: number{p: &c.Breaker.ThetaFast, lo: 0.01, hi: 1, below: true}},
			{key: "theta_slow", field: "Breaker.ThetaSlow", note: adaptive,
				value: number{p: &c.Breaker.ThetaSlow, lo: 0.01, hi: 1, below: true}},
			{key: "confidence", field: "Breaker.Confidence", note: adaptive,
				value: number{p: &c.Breaker.Confidence, hi: 1, above: true, below: true}},
			{key: "probe_share", field: "Breaker.ProbeShare", note: adaptive,
				value: number{p: &c.Breaker.ProbeShare, hi: 1, above: true}},
		}},
		{key: "timeout", value: block{
			{key: "enabled", value: toggle{p: &c.DisableTimeout, invert: true}},
			{key: "min", field: "Timeout.Min", value: duration{p: &c.Timeout.Min, lo: time.Millisecond, hi: day}},
			{key: "max", field: "Timeout.Max", value: duration{p: &c.Timeout.Max, lo: time.Millisecond, hi: day}},
			{key: "bootstrap", field: "Timeout.Bootstrap", value: duration{p: &c.Timeout.Bootstrap, lo: time.Millisecond, hi: day}},
		}},
		{key: "deadline", field: "Deadline", value: duration{p: &c.Deadline, hi: day}},
		{key: "limit", value: block{
			{key: "min", field: "Limit.Min", note: adaptive, value: count{&c.Limit.Min, 1, 1_000_000}},
			{key: "max", field: "Limit.Max", note: adaptive, value: count{&c.Limit.Max, 0, 1_000_000}},
		}},
		{key: "concurrency", field: "Concurrency", note: article, value: count{&c.Concurrency, 1, 1_000_000}},
		{key: "shed", value: block{
			{key: "signal", field: "ShedSignal", note: adaptive, value: choice[cortex.ShedSignal]{&c.ShedSignal,
				[]cortex.ShedSignal{cortex.ShedByQueue, cortex.ShedByPressure}, cortex.ShedSignal.String}},
		}},
		{key: "remote", value: block{
			{key: "trust", field: "RemoteTrust", value: orNone[float64]{
				number{p: &c.RemoteTrust, hi: 1}, &c.RemoteTrust, 0, &c.DistrustRemote}},
		}},
	}
}

func (r *Route) block() block {
	return block{
		{key: "path", value: text[string]{p: &r.Path, want: "a path prefix such as /api", parse: parsePath, show: itself}},
		{key: "target", value: text[string]{p: &r.Target, want: "the name of a target", parse: anyText, show: itself, bare: true}},
		{key: "methods", value: list[string]{p: &r.Methods, most: 40, what: "HTTP methods",
			item: func(m *string) value {
				return text[string]{p: m, want: "an HTTP method such as GET", parse: parseMethod, show: itself}
			}}},
		{key: "priority", value: priority{&r.Priority}},
		{key: "fallback", value: block{
			{key: "cache", value: optional[Cache]{&r.Fallback.Cache, newCache, (*Cache).block}},
			{key: "static", value: optional[Static]{&r.Fallback.Static, newStatic, (*Static).block}},
		}},
		{key: "shadow", value: toggle{p: &r.Shadow}},
	}
}

func (c *Cache) block() block {
	return block{
		{key: "max_age", value: duration{p: &c.MaxAge, lo: time.Millisecond, hi: 365 * day}},
		{key: "max_entries", value: count{&c.MaxEntries, 1, 10_000_000}},
		{key: "max_bytes", value: size{&c.MaxBytes, 1 << 10, 64 << 30}},
		{key: "credentials", value: list[string]{p: &c.Credentials, most: 100, what: "names of headers",
			item: func(h *string) value {
				return text[string]{p: h, want: "the name of a header such as X-My-Key", parse: parseHeader, show: itself}
			}}},
	}
}

func (s *Static) block() block {
	return block{
		{key: "status", value: count{&s.Status, 200, 599}},
		{key: "body", value: text[string]{p: &s.Body, want: "text", parse: anyText, show: itself}},
		{key: "content_type", value: text[string]{p: &s.ContentType, want: "a media type such as application/json",
			parse: parseContentType, show: itself}},
	}
}

func itself(s string) string            { return s }
func anyText(s string) (string, string) { return s, "" }

// targets is a mapping of names to targets, kept in the order of the file.
type targets struct{ p *[]Target }

func (v targets) kind() string { return fmt.Sprintf("a block of 1 to %d named targets", MaxTargets) }

func (v targets) read(d *decoder, n *yaml.Node, at place) {
	if n.Kind == yaml.MappingNode && len(n.Content)/2 > MaxTargets {
		d.Problem(at, "%d targets: want at most %d", len(n.Content)/2, MaxTargets)
		return
	}
	d.pairs(n, at, func(key, value *yaml.Node) {
		here := at.Child(show(key.Value), key)
		d.Mark(here)
		if !targetName.MatchString(key.Value) {
			d.Problem(here, "not a name: want up to 63 letters, digits and -_. with a letter or digit first")
			delete(d.Refused, here.Key) // its block is as good as any
		}
		t := newTarget(key.Value)
		t.block().read(d, value, here)
		*v.p = append(*v.p, t)
	})
}

func (v targets) write() *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for i := range *v.p {
		t := &(*v.p)[i]
		m.Content = append(m.Content, textNode(t.Name), t.block().write())
	}
	return m
}

// weights is the name of a preset, or all five numbers.
type weights struct{ p *cortex.Weights }

var presets = []string{"default", "read-heavy", "transactional"}

func (v weights) kind() string {
	return "a preset (" + strings.Join(presets, ", ") + ") or a block of F, L, Q, B and C"
}

func (v weights) block() block {
	b := block{}
	for _, f := range []struct {
		key string
		p   *float64
	}{{"F", &v.p.F}, {"L", &v.p.L}, {"Q", &v.p.Q}, {"B", &v.p.B}, {"C", &v.p.C}} {
		b = append(b, entry{key: f.key, field: "Weights." + f.key, value: number{p: f.p, hi: 1}})
	}
	return b
}

func (v weights) read(d *decoder, n *yaml.Node, at place) {
	if n.Kind != yaml.MappingNode {
		s, ok := d.scalar(n, at, v.kind())
		if !ok {
			return
		}
		w, err := cortex.PresetWeights(s)
		if err != nil {
			d.Problem(at, "%s: unknown: want %s", show(s), v.kind())
			return
		}
		*v.p = w
		return
	}
	before := len(d.Problems)
	v.block().read(d, n, at)
	refused := len(d.Problems) - before
	var missing []string
	for _, key := range v.block().keys() {
		if here := at.Key + "." + key; d.Refused[here] {
			before++
		} else if !d.Given(here) {
			missing = append(missing, key)
		}
	}
	if len(missing) > 0 && before == len(d.Problems) { // else there are others, of which one may be the missing one misspelt
		are := "is"
		if len(missing) > 1 {
			are = "are"
		}
		d.Problem(at, "%s %s missing: want all of F, L, Q, B and C, with a sum of 1", strings.Join(missing, ", "), are)
	}
	if refused > 0 || len(missing) > 0 {
		*v.p = cortex.Weights{}
		return
	}
	if *v.p == (cortex.Weights{}) { // which the engine takes for its default
		d.Problem(at, "all are 0: want a sum of 1")
	}
}

func (v weights) write() *yaml.Node {
	n := v.block().write()
	n.Style = yaml.FlowStyle
	return n
}

// priority is a number for all requests of a route, or a block.
type priority struct{ p *Priority }

func (v priority) kind() string { return "a whole number, or a block of keys" }

func (v priority) block() block {
	return block{
		{key: "default", value: count{&v.p.Default, 0, limit.MaxLevels}},
		{key: "header", value: text[string]{p: &v.p.Header, want: "the name of a header such as X-Priority",
			parse: parseHeader, show: itself, unset: true}},
		{key: "trust", value: list[netip.Prefix]{p: &v.p.Trust, most: 1000, what: "networks",
			item: func(p *netip.Prefix) value {
				return text[netip.Prefix]{p: p, want: "a network such as 10.0.0.0/8", parse: parseNetwork, show: netip.Prefix.String}
			}}},
		{key: "tiers", value: tiers{&v.p.Tiers}},
	}
}

func (v priority) read(d *decoder, n *yaml.Node, at place) {
	if n.Kind == yaml.ScalarNode && !strictyaml.IsNull(n) {
		count{&v.p.Default, 0, limit.MaxLevels}.read(d, n, at)
		d.Mark(place{Key: at.Key + ".default", Line: at.Line, Column: at.Column})
		return
	}
	v.block().read(d, n, at)
}

func (v priority) write() *yaml.Node { return v.block().write() }

// tiers is a mapping of names to priorities.
type tiers struct{ p *map[string]int }

const maxTiers = 100

func (v tiers) kind() string {
	return fmt.Sprintf("a block of up to %d names with their priorities", maxTiers)
}

func (v tiers) read(d *decoder, n *yaml.Node, at place) {
	if n.Kind == yaml.MappingNode && len(n.Content)/2 > maxTiers {
		d.Problem(at, "%d tiers: want at most %d", len(n.Content)/2, maxTiers)
		return
	}
	d.pairs(n, at, func(key, value *yaml.Node) {
		here := at.Child(show(key.Value), key)
		d.Mark(here)
		if !tierName.MatchString(key.Value) {
			d.Problem(here, "not a name: want up to 63 letters, digits and -_. with a letter first")
			return
		}
		p := -1
		count{&p, 0, limit.MaxLevels}.read(d, value, here)
		if p < 0 {
			return
		}
		if *v.p == nil {
			*v.p = make(map[string]int)
		}
		(*v.p)[key.Value] = p
	})
}

func (v tiers) write() *yaml.Node {
	if len(*v.p) == 0 {
		return nil
	}
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, name := range slices.Sorted(maps.Keys(*v.p)) {
		p := (*v.p)[name]
		m.Content = append(m.Content, textNode(name), count{p: &p}.write())
	}
	return m
}
