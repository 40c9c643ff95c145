// Package admin is the admin port: health, readiness, metrics and the state of every target.
//
//	GET /healthz                  200 while the process lives
//	GET /readyz                   200 while it takes traffic, 503 while it drains
//	GET /metrics                  Prometheus text format, every name with the prefix cortex_guard_
//	GET /api/v1/targets           the targets in brief, as JSON
//	GET /api/v1/targets/{name}    all there is to know of one
//
// It only reads, and it is never shed: it is where an operator looks when everything else is refused. It asks for no
// credentials, so it belongs on the loopback interface or behind something that does.
package admin

import (
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// A Target is one guarded target as the admin port shows it.
type Target struct {
	Name      string
	Engine    *cortex.Engine
	Endpoints []string // URLs
	// Traffic, if set, returns what the target's clients got so far. It is called on every scrape, from several goroutines.
	Traffic func() Traffic
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
}

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

type admin struct {
	targets func() []Target
	ready   func() bool
}

// New returns the handler of the admin port. targets lists the targets there are at the moment, ready reports whether the
// daemon takes traffic; both are called for every request that needs them and must be safe for concurrent use.
func New(targets func() []Target, ready func() bool) http.Handler {
	a := &admin{targets: targets, ready: ready}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET /metrics", a.metrics)
	mux.HandleFunc("GET /api/v1/targets", a.list)
	mux.HandleFunc("GET /api/v1/targets/{name}", a.show)
	return mux
}

func (a *admin) readyz(w http.ResponseWriter, _ *http.Request) {
	if a.ready() {
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
