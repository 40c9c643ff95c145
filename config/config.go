// Package config is the one YAML file of the gateway: strict, with line numbers and defaults.
//
//	f, err := config.Load("cortex.yaml")
//	if err != nil {
//		... // one line for every problem there is: "cortex.yaml:12:7: targets.payments.timeout.max: 5: missing unit: …"
//	}
//	engine, err := f.Engine("payments")
//
// A key that is left out has its default, a block that is empty has all of its defaults, and a key that is not known is an error:
// a misspelt setting would be noticed during the next outage only. Durations and sizes carry their unit. What a key means, its
// range and its default stand in docs/configuration.md; [File.Effective] prints what is in force.
package config

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/strictyaml"
	"go.yaml.in/yaml/v3"
)

// Bounds of a file, beside its size of 1 MiB.
const (
	MaxTargets   = 1000
	MaxRoutes    = 1000
	MaxEndpoints = 100 // of one target
)

// A File is a checked configuration with every default filled in. It is plain data: two files that mean the same are deeply
// equal. Change it and it is no longer checked.
type File struct {
	Listen string // host:port of the gateway
	Admin  Admin
	Log    Log
	Drain  Drain
	Server Server

	Targets []Target // in the order of the file, at least one
	Routes  []Route  // in the order of the file, at least one
}

// Admin is the port for metrics and the state of targets.
type Admin struct {
	Enabled bool
	Listen  string // host:port
}

// Log says what is logged and how.
type Log struct {
	Level  slog.Level
	Format string // "text" or "json"
}

// Drain is what happens on the way to a stop.
type Drain struct {
	Delay   time.Duration // not ready, but still accepting: the time that balancers need to look away
	Timeout time.Duration // then, for requests in flight; what is left is cut
}

// Server bounds what clients may do to the gateway.
type Server struct {
	ReadHeaderTimeout time.Duration
	BodyTimeout       time.Duration // without a byte of a request's body
	IdleTimeout       time.Duration
	MaxHeaderBytes    int64
}

// A Target is one downstream with its own engine.
type Target struct {
	Name      string
	Endpoints []*url.URL // at least one, all different; http or https, with a host, perhaps with a base path, without a query

	// Engine is the guard's configuration, as [cortex.Config.WithDefaults] returned it, without functions.
	Engine cortex.Config

	NonIdempotent bool  // retry methods that are not idempotent too
	ReplayLimit   int64 // bytes of a request's body that are kept for a retry; 0 = none

	Transport Transport
}

// Transport is how connections to the endpoints are made and kept.
type Transport struct {
	DialTimeout    time.Duration
	MaxIdlePerHost int
	IdleTimeout    time.Duration // of a connection in the pool
}

// A Route sends the requests below a path to a target. The longest path wins; of two routes with the same path, the one that lists
// the request's method. A route that lists methods passes over all others.
type Route struct {
	Path     string   // a prefix of whole segments: "/api" is /api and /api/x, not /apix; no slash at its end unless it is "/"
	Target   string   // of File.Targets
	Methods  []string // in capitals; none = every method
	Priority Priority
	Fallback Fallback
}

// Priority says how the priority of a request is found.
type Priority struct {
	Default int            // from 0 to the target's levels
	Header  string         // in canonical form; empty = every request has the default
	Trust   []netip.Prefix // clients that are believed what they say of their requests, with or without Header
	Tiers   map[string]int // names that the header may hold in place of a number
}

// Fallback is what a client gets when a call is refused or fails for good: from the cache, else the static answer, else an error.
type Fallback struct {
	Cache  *Cache  // nil = none
	Static *Static // nil = none
}

// Cache keeps the last good answers to GET requests of a route.
type Cache struct {
	MaxAge     time.Duration
	MaxEntries int
	MaxBytes   int64
}

// Static is an answer that is always the same.
type Static struct {
	Status      int // from 200 to 599
	Body        string
	ContentType string
}

// Load reads and parses a file. The error is [Errors], or that of the operating system.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a configuration; name stands for it in messages. The error is [Errors], all that are to be found.
func Parse(name string, data []byte) (*File, error) {
	d := newDecoder(name)
	f := d.parse(d.document(data))
	if len(d.Problems) > 0 {
		return nil, d.Errors()
	}
	return f, nil
}

// Upstream is the configuration of a gateway without a file, in front of one URL, as target "upstream": everything has its
// default, and the header X-Priority is honoured from the machine itself. An empty listen or admin means the default address. The
// error is [Errors], whose keys are the flags --upstream, --listen and --admin.
func Upstream(upstream, listen, admin string) (*File, error) {
	const name = "upstream"
	list := &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{textNode(upstream)}}
	root := mapping("targets", mapping(name, mapping("endpoints", list)))
	if listen != "" {
		root.Content = append(root.Content, mapping("listen", textNode(listen)).Content...)
	}
	if admin != "" {
		root.Content = append(root.Content, mapping("admin", mapping("listen", textNode(admin))).Content...)
	}
	route := mapping("path", textNode("/"))
	route.Content = append(route.Content, mapping("priority", mapping("header", textNode("X-Priority"))).Content...)
	root.Content = append(root.Content, mapping("routes", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{route}}).Content...)

	d := newDecoder("")
	f := d.parse(root)
	if len(d.Problems) == 0 {
		return f, nil
	}
	flags := map[string]string{"listen": "--listen", "admin.listen": "--admin", "targets." + name + ".endpoints[0]": "--upstream"}
	for i, p := range d.Problems {
		if flag, ok := flags[p.Key]; ok {
			d.Problems[i].Key = flag
		}
	}
	return nil, d.Errors()
}

func mapping(key string, v *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode(key), v}}
}

// Effective returns the whole configuration as YAML, every default written out. It parses to a deeply equal File.
func (f *File) Effective() ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(f.block().write()); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return b.Bytes(), nil
}

// Target returns the target of that name, or nil.
func (f *File) Target(name string) *Target {
	for i := range f.Targets {
		if f.Targets[i].Name == name {
			return &f.Targets[i]
		}
	}
	return nil
}

// Engine returns the configuration of a target's engine, its name set, for [cortex.New]: listeners, logger and the like are the
// caller's to add.
func (f *File) Engine(target string) (cortex.Config, error) {
	t := f.Target(target)
	if t == nil {
		return cortex.Config{}, fmt.Errorf("config: no target %s: there are %s", show(target), strictyaml.OneOf(f.targetNames()))
	}
	return t.Engine, nil
}

func (f *File) targetNames() []string {
	names := make([]string, len(f.Targets))
	for i, t := range f.Targets {
		names[i] = t.Name
	}
	return names
}
