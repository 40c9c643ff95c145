package cortexhttp

import (
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// DefaultMaxReplayBytes is how much of a request body is kept for a retry unless told otherwise.
const DefaultMaxReplayBytes = 64 << 10

// TransportConfig describes a [Transport]. Exactly one of Engine and Select is needed; the zero value of every other field is
// its documented default. The functions must be safe for concurrent use; a panic in them passes through and leaves nothing
// behind.
type TransportConfig struct {
	// Engine guards everything that goes through the transport.
	Engine *cortex.Engine
	// Select picks the engine by request, for instance from a [cortex.Registry] by host. A nil engine without an error lets
	// the request pass unguarded; with an error it is not sent and RoundTrip returns it.
	Select func(*http.Request) (*cortex.Engine, error)

	// Base makes the attempts, and may know when answers have come that nobody has read yet ([Arrived]); nil: an own clone of [http.DefaultTransport]. It should be net/http's or a [StandardBase], whose
	// hidden replays and connections that were never made are then known for sure. Where an error of it has a method
	// RequestUnsent() bool that returns true, nothing of the request was written, and any request may be sent again.
	Base http.RoundTripper

	// Priority is a call's priority, clamped to the engine's levels; nil: that of its context ([WithPriority]), else half of
	// the levels.
	Priority func(*http.Request) cortex.Priority
	// Report is where a call is told of, nil for nowhere; where the function is nil: where its context says ([WithReport]).
	Report func(*http.Request) *Report
	// SendPriority sends the priority on, in [HeaderPriority].
	SendPriority bool

	// RetryNonIdempotent opts in to retries of requests that may have been processed although their method is not
	// idempotent and they carry no Idempotency-Key; nil: none.
	RetryNonIdempotent func(*http.Request) bool

	// MaxReplayBytes bounds what is kept of a request body without GetBody, while it is sent, so that it could be sent again;
	// 64 KiB. Negative: nothing is kept. A body of which more was sent is not replayed.
	MaxReplayBytes int64
	// Memory bounds what is kept of bodies by all calls together, of other transports too if they are given the same; nil: no
	// bound. What it refuses is not kept, and the call goes on without ([ReplayNoMemory]).
	Memory Memory

	// Shadow says which calls are only watched: the engine decides and records, but the call is made whatever it says, once, with
	// the request as it is, and is not cut. The Report tells what would have been done. nil: none.
	//
	// A call that the engine refuses is made without a permit, and what becomes of it does not reach the engine, which goes on as if it
	// had been refused: behind a circuit that is open it sees the probes alone. The load on the target is that of no guard
	// at all, however: what would have helped is seen only where it is done. An attempt that exceeds its timeout is recorded as
	// timed out at that moment. A retry that would have been made is charged, as it would have been, and not made.
	// RoundTrip returns what Base did, its error not wrapped.
	Shadow func(*http.Request) bool

	// Stranger reports whether the deadline of a request's context is that of somebody who is not trusted, and who could set it to
	// anything; nil: no. Such a deadline ends the call as any other does, but neither the engine learns of it nor, by [HeaderTimeout],
	// the target, and an attempt that it ends, or of which the target says that it was too late for it (504, DEADLINE_EXCEEDED), is neutral: only the attempt's own timeout speaks
	// against the target. Other deadlines do where the caller waited long enough; see [cortex.Permit.Done].
	Stranger func(*http.Request) bool

	// Outcome is a rule on responses; where it is not ok, or nil, [ClassOf] decides. It may read a part of the body, under
	// the attempt's timeout, if it puts a body in place that yields all of it. A retryable class without a hint gets
	// that of Retry-After.
	Outcome func(*http.Response) (c cortex.Class, ok bool)

	// Prepare is called before each attempt, 0 the original, with a deep copy of the request that it may change (its URL to
	// pick an endpoint) and returns; its body must be left alone. With an error the call ends.
	Prepare func(req *http.Request, attempt int) (*http.Request, error)
	// OwnsRequest says that RoundTrip may change the request's header and URL, where they would be copied for the original
	// attempt: nobody else uses them until RoundTrip has returned and, as with every request, its body is closed. It is so behind
	// [net/http/httputil.ReverseProxy], not behind an [http.Client]. Prepare then gets the caller's own header and URL for
	// attempt 0. Each retry starts from the URL as it came in, and from the header as attempt 0 left it: what Prepare
	// does to a header must come out the same when it is done twice (Set, not Add).
	OwnsRequest bool

	// OnAttempt is told, exactly once, of each attempt for which Prepare returned a request, when its outcome is known: for
	// good answers at the end of their body, for upgrades (101) with their header. An attempt that ended in a panic is
	// neutral. Only an answer whose body the caller neither reads to its end nor closes is not told of.
	OnAttempt func(AttemptResult)

	// Excuse reports whether a failed attempt, of which OnAttempt has just been told, says nothing of the target: where one of
	// several endpoints is ill and the others are well, that is the endpoint's illness. It is then neutral for the engine; whether it is
	// retried is not changed by that. nil: all failures count. The request is as in [AttemptResult].
	Excuse func(*http.Request) bool

	// Now is the wall clock that dates in hints are compared with; nil: time.Now.
	Now func() time.Time

	// DisableMark leaves [HeaderAttempt] and [HeaderTimeout] out, for targets that are none of our own.
	DisableMark bool
}

// Memory is a bound on bytes that several holders share, such as a quota.Quota. Its methods are called from many goroutines
// and must not block. Reserve reports whether n bytes are free, and takes them; Release gives n of them back.
type Memory interface {
	Reserve(n int64) bool
	Release(n int64)
}

// A StandardBase is a base that promises to behave as net/http's transport does: it
//
//   - calls the hooks of the request's [net/http/httptrace.ClientTrace] as that does: GetConn before anything else unless the request
//     itself is at fault, GotConn for each connection that the request is put on, WroteHeaders when a connection has all of its header;
//   - sends a request again by itself only on another connection than a kept-alive one that turned out dead, and one with a body only
//     if GetBody gives it anew;
//   - does not mind the request's context any longer once it has returned a 101.
type StandardBase interface {
	http.RoundTripper
	// HTTP1 reports whether all requests with an http URL go over HTTP/1.
	HTTP1() bool
}

// A Transport is an [http.RoundTripper] under the guard. A call is admitted or refused by the engine; its attempts are cut
// by the engine's timeout until their response headers are there, never later; failed ones go through the five checks and
// are made again, as far as that is safe:
//
//   - idempotent requests (GET, HEAD, OPTIONS, TRACE, PUT, DELETE; RFC 9110, 9.2.2), those with an Idempotency-Key or
//     X-Idempotency-Key, and those that RetryNonIdempotent lets;
//   - every request of which nothing can have been processed: no connection was made, or the server says so (HTTP/2
//     REFUSED_STREAM, GOAWAY);
//   - not below a layer that retries already ([cortex.WithRetryMark]), not against [HeaderRetry];
//   - the body is sent again whole, from GetBody or what was kept of it, or not at all.
//
// The outcome of a good answer is known at the end of its body: one that breaks off is a failure, and is not retried. One that
// the caller closes before is judged by its status, or neutral if the caller's context has ended.
//
// RoundTrip returns the last response as it is, whatever its status, unless there was none; else
//
//   - a [*cortex.Rejection] where the engine refused the call,
//   - a [*cortex.CallError] where it failed: it wraps the last attempt's error and, where a retry was admitted by
//     the checks but refused later, the refusal.
//
// net/http's transport sends requests without a body again by itself where a kept-alive connection turns out to be dead, or
// an HTTP/2 server did not process them. That stays: a stale connection says nothing of the target, and must not surface
// as an error where retries are off. Such replays are counted (Report.Hidden), charged to the retry budget and to
// MaxRetries. Requests with a body it does not send again, as long as the engine retries. A server's keep-alive
// time should be longer than IdleConnTimeout of its clients: a POST that meets a connection that the server is just closing
// may have been processed, and fails.
//
// A body without GetBody comes from the caller while it is sent. The attempt's timeout is then that for the connection and,
// anew, for the answer, from the end of the body on. In between the attempt is not in flight, and is cut only if the target takes
// nothing of the body for 5 s or the longest attempt timeout, if that is longer. It is neutral where it ends while the
// caller's Read is under way. Its latency counts from the end of the body.
//
// As with [http.Transport], RoundTrip does not return before a Read of the body that is under way, whatever became of the
// attempt. When the call's context ends, or its engine's Config.Deadline passes, the body is closed at once, on a
// goroutine of its own, which ends the Read of most (a pipe, a connection). One whose Read cannot be ended by Close, as that
// of an HTTP/1 server's request, needs a deadline of its own ([http.ResponseController.SetReadDeadline]).
//
// Everything that net/http supports passes: 1xx answers, upgrades (101 keeps its writable body and is a success),
// trailers, Expect: 100-continue. No goroutine runs for a call that is not at its end. A response body must be read to its end or closed, as ever.
type Transport struct {
	cfg     TransportConfig
	base    http.RoundTripper
	std     bool // base is net/http's transport or promises to be like it: it calls every trace hook
	http1   bool // and speaks HTTP/1 where there is no TLS
	keep    int64
	setting settings // of cfg.Engine
	cut     cutter
}

// settings are what a call needs of its engine's configuration.
type settings struct {
	levels, retries int
	deadline        time.Duration
	longest         time.Duration // attempt timeout; 0 = none
	distrust        bool
	classify        func(error) cortex.Class
}

func settingsOf(e *cortex.Engine) settings {
	c := e.Config()
	s := settings{levels: c.Levels, retries: c.MaxRetries, deadline: c.Deadline, distrust: c.DistrustRemote, classify: c.Classify}
	if c.DisableRetries {
		s.retries = 0
	}
	if !c.DisableTimeout {
		s.longest = c.Timeout.Max
	}
	return s
}

// NewTransport returns a transport. The error is a [*cortex.ConfigError].
func NewTransport(cfg TransportConfig) (*Transport, error) {
	switch {
	case cfg.Engine == nil && cfg.Select == nil:
		return nil, &cortex.ConfigError{Field: "TransportConfig.Engine", Value: nil, Want: "an engine, or Select"}
	case cfg.Engine != nil && cfg.Select != nil:
		return nil, &cortex.ConfigError{Field: "TransportConfig.Select", Value: "set", Want: "nil together with Engine"}
	}
	t := &Transport{cfg: cfg, base: cfg.Base, keep: cfg.MaxReplayBytes}
	if t.base == nil {
		if std, ok := http.DefaultTransport.(*http.Transport); ok {
			t.base = std.Clone()
		} else { // somebody put another in its place
			t.base = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConns: 100,
				IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second}
		}
	}
	switch base := t.base.(type) {
	case *http.Transport:
		t.std = true
		t.http1 = base.Protocols == nil || !base.Protocols.UnencryptedHTTP2()
	case StandardBase:
		t.std, t.http1 = true, base.HTTP1()
	}
	if base, ok := t.base.(interface{ Look() }); ok {
		t.cut.look = base.Look
	}
	if t.keep == 0 {
		t.keep = DefaultMaxReplayBytes
	}
	if t.cfg.Now == nil {
		t.cfg.Now = wallClock
	}
	if cfg.Engine != nil {
		t.setting = settingsOf(cfg.Engine)
	}
	return t, nil
}

// CloseIdleConnections closes those of the base transport, if it can.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
