// Package decision serves the guard to programs that make their calls themselves, such as task queues, services in other languages and
// apps: they ask whether to make an attempt, tell what came of it, and ask whether to try again.
//
//	POST /cortex.v1.DecisionService/Admit         may this attempt be made?
//	POST /cortex.v1.DecisionService/Report        what came of it
//	POST /cortex.v1.DecisionService/ReportBatch   of up to 1,000
//	POST /cortex.v1.DecisionService/Decide        it failed: once more, and when?
//	POST /cortex.v1.DecisionService/Watch         a stream of changes of pressure
//	POST /cortex.v1.DecisionService/List          the pressure of all targets
//	GET  /                                        what there is
//	GET  /openapi.json                            the same for programs, in OpenAPI 3.1
//	GET  /healthz                                 200 while the process lives
//
// All of it is one port and one schema, proto/cortex/v1/decision.proto, for gRPC, gRPC-Web and Connect, whose unary calls are plain JSON over
// HTTP. docs/decisions.md tells what the fields mean.
//
// Requests are checked: a body of at most 1 MiB, in JSON no key that is not known, fields that are missing or out of range named. Errors have
// the codes of gRPC: INVALID_ARGUMENT with a cortex.v1.FieldViolation, NOT_FOUND for a target that is not known, UNAUTHENTICATED,
// PERMISSION_DENIED, RESOURCE_EXHAUSTED for one watch too many, UNAVAILABLE for a stream that ends because the service does.
//
// Who may use the port is decided by package door: whoever has the token or a certificate, and without these whoever is on the machine,
// but no web page.
package decision

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/door"
)

// Defaults of a [Config].
const (
	DefaultMaxTokens  = 100_000
	DefaultMaxWatches = 64
)

// Config is what the service answers from. Its functions are called from several goroutines at a time.
type Config struct {
	// Known returns the engine of a target that is there anyway, as those of a gateway's configuration are, else nil. It is asked first, for
	// every request. nil: there are none.
	Known func(target string) *cortex.Engine
	// All yields those engines, for lists. It must be set where Known is.
	All func() iter.Seq[*cortex.Engine]

	// Others makes the engines of all other targets, within its bound. nil: a target that is not known is refused.
	Others *cortex.Registry

	// Token returns the bearer token that requests must carry, as it is at the moment; nil: none is needed. See [Guarded].
	Token func() string

	// MaxTokens bounds the attempts that are admitted and not yet reported; 100,000, in all about 30 MB. Attempts beyond it are admitted
	// without a token.
	MaxTokens int
	// MaxWatches bounds the streams of Watch that are open; 64.
	MaxWatches int
	// Heartbeat is how long a stream of Watch is quiet at most; 10 s.
	Heartbeat time.Duration

	// Stop is closed when the service is to end: streams end with UNAVAILABLE. nil: they end with their connections.
	Stop <-chan struct{}

	Log *slog.Logger         // requests that were not let in; nil = quiet
	Now func() time.Duration // time since any fixed moment, monotonic, for the life of tokens; nil = the process's
}

// ErrExposed is the error of [Guarded].
var ErrExposed = errors.New("refused beyond loopback without a token or client certificates")

// Guarded says whether the service may listen at an address: anywhere with a token or client certificates, else on the loopback
// interface only, with an error that wraps [ErrExposed].
func Guarded(listen string, token, certificates bool) error {
	if token || certificates || door.Loopback(listen) {
		return nil
	}
	return fmt.Errorf("decision: listen: %q: %w: want one of these, or an address such as 127.0.0.1:9096", listen, ErrExposed)
}

// New returns the handler of the service. See [NewServer] for a server that suits it, which alone bounds how long a client may take over a
// request or an answer, and [StatsOf] for what it counts. It panics on a Config without any target to answer for, for that is a mistake of the program.
func New(c Config) http.Handler {
	if c.Known == nil && c.Others == nil || (c.Known == nil) != (c.All == nil) {
		panic("decision: Config: want Others, or Known with All, or all of them")
	}
	return newService(c)
}
