// Package admin is the admin port: health, readiness, metrics, the state of every target, and what an operator can do about it.
//
//	GET  /                                 a live page for people
//	GET  /healthz, /livez                  200 while the process lives
//	GET  /readyz                           200 while it takes traffic, 503 while it drains
//	GET  /metrics                          Prometheus text format, every name with the prefix cortex_guard_
//	GET  /api/v1/targets                   the targets in brief, as JSON
//	GET  /api/v1/targets/{name}            all there is to know of one
//	POST /api/v1/targets/{name}/circuit    {"state":"open"}, "closed" or "auto": forces its circuit, see [cortex.Engine.Force]
//	GET  /api/v1/server                    connections, limits, memory and reloads of the daemon
//	GET  /api/v1/config                    the configuration in force, as YAML
//	POST /api/v1/reload                    reads the configuration anew: 200, or 422 with its problems
//	POST /api/v1/drain                     begins the orderly stop: 202
//	GET  /api/v1/log                       the level of the log
//	PUT  /api/v1/log                       {"level":"debug"}, "info", "warn" or "error"; POST does too
//
// It is never shed: it is where an operator looks when everything else is refused. Bodies are JSON objects of at most 4 KiB, with
// Content-Type: application/json and no key that is not known. Errors are problems (RFC 9457).
//
// # Who may
//
// Where Config.Token is set, requests must carry the token, Authorization: Bearer. A client certificate that the server has verified
// is as good. /healthz, /livez and /readyz, which say one word, and the page, which knows nothing by itself, need neither. Without
// a token and without certificates the port belongs on the loopback interface, and whoever has an account on the machine may do
// everything; web pages that the machine's user looks at may not: the Host must be localhost or an address, against names that a
// page makes point here, and what browsers say comes from another origin is refused.
//
// Every request that would change something is one line in the log, whatever its level, with who, what, before, after and the
// outcome; also those that were refused, of which a flood is one line a second. The token is in none.
package admin

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cluster"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/decision"
	"github.com/seed-a29ca62a/cortex/door"
)

// Config is what the admin port shows and does. Its functions are called for every request that needs them, from several
// goroutines at a time.
type Config struct {
	Targets func() []Target // those there are at the moment, each with a name of its own
	Ready   func() bool     // whether the daemon takes traffic
	Server  func() Server   // what counts for the daemon as a whole; nil = nothing to show

	// Token returns the bearer token that requests must carry, as it is at the moment; nil: none is needed. While it is empty no
	// token is right.
	Token func() string

	Control Control
	Log     *slog.Logger         // nil = quiet
	Now     func() time.Duration // time since any fixed moment, monotonic, for the rate of lines in the log; nil = the process's
}

// Control is what operations do. One whose function is nil is answered with 501.
type Control struct {
	// Drain begins the orderly stop, and returns without waiting for it. It may be called again.
	Drain func()
	// Reload reads the configuration anew and puts it in force. Each line of its error is one problem, for the operator to read.
	Reload func(context.Context) error
	// Level and SetLevel are those of the log: a [slog.LevelVar]'s methods Level and Set.
	Level    func() slog.Level
	SetLevel func(slog.Level)
	// ConfigYAML is the configuration in force, defaults filled in, without secrets.
	ConfigYAML func() ([]byte, error)
}

// A Target is one guarded target as the admin port shows it.
type Target struct {
	Name      string
	Engine    *cortex.Engine
	Endpoints []string // URLs
	// Members, if set, returns the places behind the endpoints. No two have the same URL and address.
	Members func() []Endpoint
	// Traffic, if set, returns what the target's clients got so far.
	Traffic func() Traffic
	// Fleet is how the target fares in its fleet; nil: it decides alone.
	Fleet *cluster.TargetStatus
	// Made is set for a target that is in no configuration: it was made when a client asked for it. It has no series in the metrics, whose
	// number would be the clients' choice.
	Made bool
}

// Traffic counts the answers to the calls of one target since it was made.
type Traffic struct {
	Answers         [6]uint64 // by class of the status: Answers[2] counts 2xx; Answers[0] is not used
	CacheFallbacks  uint64    // answered with the last good answer
	StaticFallbacks uint64    // answered with the route's static answer
	ClientAborts    uint64    // the client was gone before it had its whole answer
	BrokenAnswers   uint64    // the target broke off after its answer had begun
	ReplaysSkipped  [4]uint64 // failed calls not tried again because their body could not be sent again; by cortexhttp.ReplaySkip − 1
	Durations       Durations
	CacheEntries    int
	CacheBytes      int64
	Shadow          Shadow
}

// Shadow counts what was decided for calls of routes in shadow mode and not done.
type Shadow struct {
	Calls   uint64
	Refused [cortex.ReasonCancelled + 1]uint64 // would have been refused before any attempt, by cortex.Reason; see [ShadowReasons]
	Retried uint64                             // would have been tried again
	Cut     uint64                             // would have been cut by their attempt timeout
}

// ShadowReasons are the reasons for which a call can be refused before any attempt: those of Shadow.Refused that are shown.
var ShadowReasons = [...]cortex.Reason{cortex.ReasonCircuitEmergency, cortex.ReasonCircuitOpen, cortex.ReasonShed}

// DurationBounds are the upper bounds, inclusive, by which [Durations] counts.
var DurationBounds = [...]time.Duration{time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond,
	25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second,
	2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second}

// Durations counts calls by how long they took, up to each of [DurationBounds] and above the bound before it; the last count
// is of those beyond all of them.
type Durations struct {
	Counts [len(DurationBounds) + 1]uint64
	Sum    time.Duration
}

// An Endpoint is one place behind an endpoint of the configuration: one address of it, or its host name as long as none is known.
type Endpoint struct {
	URL       string // as configured
	Address   string // where the host name is looked up: one of at most 64 of the endpoint; else empty
	Weight    int
	State     EndpointState
	InFlight  int64  // attempts
	Attempts  uint64 // attempts, failures and ejections since it was found
	Failures  uint64
	Ejections uint64
}

// EndpointState says whether an endpoint gets load. The zero value is EndpointUp.
type EndpointState uint8

// States of an endpoint.
const (
	EndpointUp         EndpointState = iota // gets its share
	EndpointSlow                            // has come back, and gets a part of its share
	EndpointEjected                         // is out for its failures
	EndpointCheckedOut                      // is out for bad checks
	endpointStates
)

var endpointStateNames = [endpointStates]string{"up", "slow-start", "ejected", "checked-out"}

func (s EndpointState) String() string {
	if s < endpointStates {
		return endpointStateNames[s]
	}
	return "unknown"
}

// MarshalText makes a state its word in JSON.
func (s EndpointState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Server counts for the daemon as a whole, since it started.
type Server struct {
	Reloads     Reloads
	Connections Connections
	Memory      Memory
	// LimitAnswers counts the answers to clients that were over a limit, by status; see [LimitStatuses].
	LimitAnswers     [len(LimitStatuses)]uint64
	AccessLogDropped uint64 // lines that the disk did not take, or not in time

	Fleet     *cluster.Status // nil = there is none
	Decisions *Decisions      // nil = there are none
}

// Decisions is the decision service.
type Decisions struct {
	decision.Stats
	Targets    int    // that were made
	Evicted    uint64 // of them, those that made room for others
	Overflowed uint64 // times that a target had to share one, for there was no room
}

// LimitStatuses are the statuses by which Server.LimitAnswers counts.
var LimitStatuses = [...]int{http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong,
	http.StatusTooManyRequests, http.StatusRequestHeaderFieldsTooLarge}

// Reloads of the configuration, whoever asked for them.
type Reloads struct {
	OK, Failed uint64
	Last       time.Time // of the newest, good or not; zero = there was none
	Problems   []string  // of the newest, if it failed
}

// Connections of clients.
type Connections struct {
	Open    int
	Refused []Count
	Cut     []Count
}

// A Count is how often something happened for one cause. Causes are fixed words of the program, such as "slow_body", all of
// them from the start and each once: they become labels of metrics.
type Count struct {
	Cause string
	N     uint64
}

// Memory is the budget for what all routes together keep, in bytes.
type Memory struct {
	Used, Limit int64
}

type admin struct {
	Config
	mux  *http.ServeMux
	door *door.Door
	kept door.Ration // those that were not let in
}

// New returns the handler of the admin port.
func New(c Config) http.Handler {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		began := time.Now()
		c.Now = func() time.Duration { return time.Since(began) }
	}
	a := &admin{Config: c, mux: http.NewServeMux(), door: door.New("cortex admin", "admin.token_file", c.Token)}
	alive := func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok\n") }
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /{$}":                            a.page,
		"GET /healthz":                        alive,
		"GET /livez":                          alive,
		"GET /readyz":                         a.readyz,
		"GET /metrics":                        a.metrics,
		"GET /api/v1/targets":                 a.list,
		"GET /api/v1/targets/{name}":          a.show,
		"POST /api/v1/targets/{name}/circuit": a.force,
		"GET /api/v1/server":                  a.server,
		"GET /api/v1/config":                  a.config,
		"POST /api/v1/reload":                 a.reload,
		"POST /api/v1/drain":                  a.drain,
		"GET /api/v1/log":                     a.level,
		"PUT /api/v1/log":                     a.setLevel,
		"POST /api/v1/log":                    a.setLevel,
	} {
		a.mux.HandleFunc(pattern, h)
	}
	return a
}

// ServeHTTP lets a request in or not, and serves it.
func (a *admin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refused := a.refuses(r)
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		var done func()
		if w, r, done = a.audited(w, r, refused); done != nil {
			defer done()
		}
	} else if refused != nil {
		a.report(r, refused)
	}
	if refused != nil {
		keepOut(w, r, refused)
		return
	}
	if _, pattern := a.mux.Handler(r); pattern == "" {
		a.nothing(w, r)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// nothing answers what there is no handler for, with what the router has to say of it.
func (a *admin) nothing(w http.ResponseWriter, r *http.Request) {
	said := verdict{header: http.Header{}}
	a.mux.ServeHTTP(&said, r)
	p := cortexhttp.Problem{Status: http.StatusNotFound, Detail: "There is nothing at this path of the admin port."}
	if said.status == http.StatusMethodNotAllowed {
		allow := said.header.Get("Allow")
		w.Header().Set("Allow", allow)
		p = cortexhttp.Problem{Status: said.status, Detail: "This path takes " + allow + "."}
	}
	cortexhttp.WriteProblem(w, r, p)
}

// verdict keeps the status and header of an answer and forgets its body.
type verdict struct {
	header http.Header
	status int
}

func (v *verdict) Header() http.Header         { return v.header }
func (v *verdict) WriteHeader(status int)      { v.status = status }
func (v *verdict) Write(b []byte) (int, error) { return len(b), nil }

func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if a.Ready() {
		say(w, http.StatusOK, "ready\n")
		return
	}
	say(w, http.StatusServiceUnavailable, "draining\n")
}

func say(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write([]byte(text))
}
