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
	"syscall"
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
	Name      string // of this gateway, as it calls itself in Via and Proxy-Status: a token of up to 63 characters
	Listen    string // host:port of the gateway
	TLS       *TLS   // of that port; nil = plain text
	Admin     Admin
	Decisions *Decisions // nil = none
	Cluster   *Cluster   // nil = every instance decides by what it sees itself
	Log       Log
	AccessLog *AccessLog // nil = none
	Drain     Drain
	Reload    Reload
	Memory    Memory
	Server    Server

	// In the order of the file, at least one of each; none of either where there is the decision service alone, and then no port at Listen.
	Targets []Target
	Routes  []Route
}

// Admin is the port for metrics, the state of targets and operations.
type Admin struct {
	Enabled   bool
	Listen    string // host:port; beyond the loopback interface only with a TokenFile or a TLS.ClientCA
	TokenFile string // whose content, without the space around it, is the bearer token that requests must carry; empty = none
	TLS       *TLS   // nil = plain text
}

// TLS is the server's side of TLS. Here and elsewhere a relative path is relative to the working directory, and what is in a file is read
// by the gateway, at its start and at each reload; see [File.Paths].
type TLS struct {
	Cert, Key  string // PEM files
	ClientCA   string // PEM file of the authorities that clients must have a certificate of; empty = none is asked for
	MinVersion uint16 // tls.VersionTLS12 or tls.VersionTLS13
}

// AccessLog is one line of JSON for each call.
type AccessLog struct {
	Path   string  // a file, opened anew on SIGHUP; "-" is the standard output
	Sample float64 // share of the calls that were answered well that are logged, from 0 to 1
	Errors float64 // the same of all others
}

// Reload says when the file is read again without being asked for.
type Reload struct {
	Watch    bool          // when it, or a file that it names, changes
	Interval time.Duration // between looks
}

// Memory bounds what all routes together keep.
type Memory struct {
	Limit int64 // bytes of request bodies for retries and of cached answers
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
	WriteTimeout      time.Duration // without a byte of an answer taken

	MaxHeaderBytes  int64
	MaxHeaderFields int   // lines of a request's header
	MaxURLBytes     int64 // of a request's target
	MaxBodyBytes    int64 // of a request's body; 0 = no limit
	MinBodyRate     int64 // bytes a second that a body must have on average while it is waited for; 0 = none

	HTTP2                bool // over TLS
	H2C                  bool // without
	MaxStreams           int  // at a time on a connection, HTTP/2
	MaxConnections       int  // at a time; 0 = as many as there are file descriptors for
	ConnectionsPerClient int  // at a time of a client address (IPv6: of a /64); 0 = no limit
}

// A Target is one downstream with its own engine.
type Target struct {
	Name      string
	Endpoints []Endpoint // at least one, all different

	// Engine is the guard's configuration, as [cortex.Config.WithDefaults] returned it, without functions.
	Engine cortex.Config

	NonIdempotent bool  // retry methods that are not idempotent too
	ReplayLimit   int64 // bytes of a request's body that are kept for a retry; 0 = none

	Balance   Balance
	Transport Transport
}

// An Endpoint is one place where a target is.
type Endpoint struct {
	URL    *url.URL // http, https or h2c (HTTP/2 without TLS), with a host, perhaps with a base path, without a query
	Weight int      // relative to the other endpoints' share of the load, from 1 to 1000
}

// Balance says how the load is spread over a target's endpoints.
type Balance struct {
	Eject     Eject
	SlowStart time.Duration // in which the share of an endpoint that has come back rises to its whole; 0 = at once
	Check     *Check        // nil = none
	Resolve   time.Duration // between lookups of host names, all of whose addresses get load; 0 = only when connecting
}

// Eject takes endpoints out of the load that fail where the others do not.
type Eject struct {
	Enabled  bool
	Failures int           // in a row
	MaxShare float64       // of the endpoints that may be out at a time, above 0 to 1; all of them ill = all of them used
	BaseTime time.Duration // for which the first ejection lasts; each further one as much longer
	MaxTime  time.Duration // at least BaseTime
}

// Check asks each endpoint how it is, by GET.
type Check struct {
	Path      string        // from the root of the endpoint's host, without a query, not escaped
	Interval  time.Duration // between checks
	Timeout   time.Duration // at most Interval
	Healthy   int           // good checks in a row that put it back
	Unhealthy int           // bad checks in a row that take it out
}

// Transport is how connections to the endpoints are made and kept.
type Transport struct {
	DialTimeout    time.Duration
	MaxIdlePerHost int
	IdleTimeout    time.Duration // of a connection in the pool
	MaxAge         time.Duration // of a connection: older ones are not used again; 0 = any
	TLS            TransportTLS
}

// TransportTLS is the client's side of TLS, for https endpoints and for Redis: a target without any such endpoint has none of it.
type TransportTLS struct {
	CA         string // PEM file of the authorities that are trusted in place of the system's; empty = the system's
	Cert, Key  string // PEM files of what the gateway shows of itself (mTLS); empty = nothing
	ServerName string // that the certificate must be for; empty = the host that is connected to
}

// A Route sends the requests below a path to a target. The longest path wins; of two routes with the same path, the one that lists
// the request's method. A route that lists methods passes over all others.
type Route struct {
	Path     string   // a prefix of whole segments: "/api" is /api and /api/x, not /apix; no slash at its end unless it is "/"
	Target   string   // of File.Targets
	Methods  []string // in capitals; none = every method
	Priority Priority
	Fallback Fallback
	Shadow   bool // decide and record, but refuse, retry and cut nothing
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

	Credentials []string // fields of requests, in canonical form, that say who asks, beside those that are known
}

// Static is an answer that is always the same.
type Static struct {
	Status      int // from 200 to 599
	Body        string
	ContentType string
}

// Load reads and parses a file. The error is [Errors], or that of the operating system.
func Load(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // or opening a pipe would wait for who writes to it, and all reloads with it
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
	return Flags(upstream, listen, admin, "")
}

// Flags is the configuration of a program without a file: that of [Upstream], and the decision service at an address. Either may be empty,
// and is left out then.
func Flags(upstream, listen, admin, decisions string) (*File, error) {
	const name = "upstream"
	root := &yaml.Node{Kind: yaml.MappingNode}
	add := func(key string, v *yaml.Node) { root.Content = append(root.Content, mapping(key, v).Content...) }
	if upstream != "" || decisions == "" {
		list := &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{textNode(upstream)}}
		add("targets", mapping(name, mapping("endpoints", list)))
		route := mapping("path", textNode("/"))
		route.Content = append(route.Content, mapping("priority", mapping("header", textNode("X-Priority"))).Content...)
		add("routes", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{route}})
	}
	if listen != "" {
		add("listen", textNode(listen))
	}
	for _, port := range []struct{ key, address string }{{"admin", admin}, {"decisions", decisions}} {
		if port.address != "" {
			add(port.key, mapping("listen", textNode(port.address)))
		}
	}

	d := newDecoder("")
	f := d.parse(root)
	if len(d.Problems) == 0 {
		return f, nil
	}
	flags := map[string]string{"listen": "--listen", "admin.listen": "--admin", "decisions.listen": "--decisions", "targets." + name + ".endpoints[0]": "--upstream"}
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
