package cortexhttp

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/limit"
)

// DefaultMaxTimeout bounds what [HeaderTimeout] may ask for unless told otherwise.
const DefaultMaxTimeout = time.Minute

// errCallerDeadline is the cause of a context that ended with the time its caller was willing to wait.
var errCallerDeadline = fmt.Errorf("cortexhttp: the caller waits no longer (%s): %w", HeaderTimeout, context.DeadlineExceeded)

// HandlerConfig describes a guard in front of a handler. Exactly one of Engine and Select is needed; the zero value of every
// other field is its documented default. The functions are called once a request, before it is admitted (Outcome: when it
// is over), and must be safe for concurrent use.
type HandlerConfig struct {
	// Engine guards the handler: its pressure is that of the requests in flight in this process. It must not be the engine
	// of a target that the handler calls. Its attempt timeout does not cut requests, but says what is taken for hanging: a
	// handler that by nature takes longer wants a greater Timeout.Max, or DisableTimeout.
	Engine *cortex.Engine
	// Select picks the engine by request, for instance from a [cortex.Registry] by route or tenant. A nil engine without an
	// error lets the request pass unguarded; with an error it is answered 500.
	Select func(*http.Request) (*cortex.Engine, error)

	// Priority is a request's priority, clamped to the engine's levels. nil: [HeaderPriority] if the peer is in Trust and
	// sent it once and well formed, else Default.
	Priority func(*http.Request) cortex.Priority
	// Default is the priority of requests that have none; nil: half of the engine's levels.
	Default *cortex.Priority
	// Trust are the networks of the peers whose HeaderPriority is believed, and whose expired HeaderTimeout may count as a
	// failure of this process. nil: loopback; empty: nobody. A proxy in one of them speaks for all its clients: it must set
	// or remove these fields itself.
	Trust []netip.Prefix

	// Exempt requests are never refused and never counted; nil: [IsHealthCheck]. Besides health checks it serves requests
	// that stay open by nature, such as long polls; event streams and upgrades need no exemption.
	Exempt func(*http.Request) bool

	// MaxTimeout bounds the time that HeaderTimeout may give a request; 1 min. It is taken from anybody: the deadline of the
	// request's context, and so of the calls made for it, only ever gets shorter by it.
	MaxTimeout time.Duration

	// Outcome is what an answer of that status says of the process's health. nil: 504 is a timeout, other 5xx a failure
	// except 501 and 505, 429 throttled, 408 and 499 neutral, all else a success. It is not asked for answers that carry
	// HeaderReason (neutral: a guard below has judged them), for those with a gRPC status (which is judged instead), and where
	// the client left (neutral).
	Outcome func(status int) cortex.Outcome

	// HidePressure leaves HeaderPressure and the numbers of refusals out of answers: for clients that are none of their
	// business. Refusals still say their reason and when to ask again.
	HidePressure bool

	// ProblemTypes is the base of the URIs that tell kinds of refusals apart; [ProblemTypes].
	ProblemTypes string
}

// handler is next under a guard.
type handler struct {
	cfg    HandlerConfig
	next   http.Handler
	levels int // of Engine
	clock  func() time.Duration
	said   atomic.Pointer[pressureLine]
	refuse [limit.MaxLevels + 1]atomic.Pointer[refusedAnswer]
}

// pressureLine is a value of HeaderPressure with the moment it was made.
type pressureLine struct {
	at   time.Duration
	text string
}

// pressureAge is how long a reported pressure is used again.
const pressureAge = 10 * time.Millisecond

// refusedAnswer is the answer to a refusal, which engines share between the calls refused at about the same time: a storm
// of refusals must not cost more than writing them.
type refusedAnswer struct {
	to *cortex.Rejection
	*answer
}

// NewHandler returns next behind a guard that sheds requests by priority on the pressure of this process.
//
// A request is asked for its priority and admitted by the engine, or answered by [WriteRejection] without any work done. One
// whose caller has given up already ([HeaderTimeout] of 0 or less, or an ended context) is answered 504 or 503 without
// asking the engine. An admitted request carries in its context
//
//   - the retry mark, where [HeaderAttempt] says that its sender may retry: calls made for it are then not retried here. It
//     is taken from anybody, since a forged one makes this process do less;
//   - the deadline, where HeaderTimeout gives one.
//
// Its outcome is known when the handler is done: from the status, neutral where the client left, a failure where the handler
// panicked. Where a caller's deadline passes before, that counts at once, while the request stays in flight until its handler is
// done: it is work that nobody waits for any more, and holds this process all the same. Event streams, upgrades and tunnels
// are judged when they begin. The permit is freed whatever happens.
// Panics are neither caught nor changed. All answers report the pressure in [HeaderPressure].
//
// The handler's ResponseWriter flushes, hijacks and reads from files if that of the server does, and works with
// [http.ResponseController]. The error is a [*cortex.ConfigError].
func NewHandler(cfg HandlerConfig, next http.Handler) (http.Handler, error) {
	h := &handler{next: next}
	switch {
	case next == nil:
		return nil, &cortex.ConfigError{Field: "next", Value: next, Want: "the handler to be guarded"}
	case cfg.Engine == nil && cfg.Select == nil:
		return nil, &cortex.ConfigError{Field: "HandlerConfig.Engine", Value: nil, Want: "an engine, or Select"}
	case cfg.Engine != nil && cfg.Select != nil:
		return nil, &cortex.ConfigError{Field: "HandlerConfig.Select", Value: "set", Want: "nil together with Engine"}
	case cfg.MaxTimeout < 0:
		return nil, &cortex.ConfigError{Field: "HandlerConfig.MaxTimeout", Value: cfg.MaxTimeout, Want: "0 (the default, 1m) or more"}
	}
	if cfg.Engine != nil {
		c := cfg.Engine.Config()
		h.levels, h.clock = c.Levels, c.Now
	}
	if cfg.Trust == nil {
		cfg.Trust = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	}
	for i, p := range cfg.Trust {
		if !p.IsValid() || p.Addr().Is4In6() {
			return nil, &cortex.ConfigError{Field: fmt.Sprintf("HandlerConfig.Trust[%d]", i), Value: p,
				Want: "a network such as 10.0.0.0/8 or fd00::/8; IPv4 ones as IPv4"}
		}
	}
	cfg.Trust = slices.Clone(cfg.Trust)
	if cfg.Default != nil {
		cfg.Default = new(*cfg.Default)
	}
	if cfg.Exempt == nil {
		cfg.Exempt = IsHealthCheck
	}
	if cfg.MaxTimeout == 0 {
		cfg.MaxTimeout = DefaultMaxTimeout
	}
	if cfg.Outcome == nil {
		cfg.Outcome = statusOutcome
	}
	if cfg.ProblemTypes == "" {
		cfg.ProblemTypes = ProblemTypes
	}
	h.cfg = cfg
	return h, nil
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.cfg.Exempt(r) {
		h.next.ServeHTTP(w, r)
		return
	}
	engine := h.cfg.Engine
	if engine == nil {
		var err error
		if engine, err = h.cfg.Select(r); err != nil {
			WriteProblem(w, r, Problem{Status: http.StatusInternalServerError, Detail: "There is no guard for this request."})
			return
		}
		if engine == nil {
			h.next.ServeHTTP(w, r)
			return
		}
	}
	h.guard(engine, w, r)
}

func (h *handler) guard(engine *cortex.Engine, w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	left, limited := CallerTimeout(r.Header)
	if h.late(engine, w, r, limited && left <= 0) {
		return
	}
	x, xw := newExchange(w)
	x.h, x.engine, x.method = h, engine, r.Method
	known := ctx // what the engine may learn of deadlines from
	if limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, min(left, h.cfg.MaxTimeout), errCallerDeadline)
		defer cancel()
		if PeerTrusted(r, h.cfg.Trust) {
			known = ctx
		} else {
			x.forged = true
		}
	}
	x.ctx = ctx
	var err error
	if x.permit, err = engine.Admit(known, h.priority(engine, r)); err != nil {
		h.reject(engine, w, r, err.(*cortex.Rejection))
		return
	}
	defer x.end()
	if limited && !x.forged {
		// A handler that hangs does not mind its context. That its caller has gone counts now; the work stays in flight until it ends.
		defer context.AfterFunc(ctx, func() { x.permit.Abandoned(x.ctx.Err()) })()
	}
	if v, ok := single(r.Header, HeaderAttempt); ok {
		if attempt, retries, ok := ParseAttempt(v); ok && retries > 0 {
			ctx = cortex.WithRetryMark(ctx, cortex.RetryMark{Attempt: attempt})
		}
	}
	if ctx != r.Context() {
		r = r.WithContext(ctx)
	}
	h.next.ServeHTTP(xw, r)
	x.returned = true
}

// priority is the request's own, where it may have one.
func (h *handler) priority(engine *cortex.Engine, r *http.Request) cortex.Priority {
	if h.cfg.Priority != nil {
		return h.cfg.Priority(r)
	}
	levels := h.levels
	if levels == 0 { // by Select
		levels = engine.Config().Levels
	}
	if v, ok := single(r.Header, HeaderPriority); ok && PeerTrusted(r, h.cfg.Trust) {
		if p, ok := ParsePriority(v, levels); ok {
			return p
		}
	}
	if h.cfg.Default != nil {
		return *h.cfg.Default
	}
	return cortex.Priority(levels / 2)
}

// late answers a request whose caller has given up before it began.
func (h *handler) late(engine *cortex.Engine, w http.ResponseWriter, r *http.Request, passed bool) bool {
	p := Problem{Status: http.StatusGatewayTimeout, Reason: cortex.ReasonDeadline.String(),
		Detail: "The time that the caller waits was over before the work began."}
	if !passed {
		switch r.Context().Err() {
		case nil:
			return false
		case context.Canceled: // nobody reads it, but logs do
			p = Problem{Status: http.StatusServiceUnavailable, Reason: cortex.ReasonCancelled.String()}
		}
	}
	p.Type = problemType(h.cfg.ProblemTypes, p.Reason)
	h.answer(engine, w, r, problemAnswer(p))
	return true
}

func (h *handler) reject(engine *cortex.Engine, w http.ResponseWriter, r *http.Request, rej *cortex.Rejection) {
	slot := &h.refuse[min(max(rej.Priority, 0), limit.MaxLevels)]
	a := slot.Load()
	if a == nil || a.to != rej {
		p := RejectionProblem(rej)
		p.Type = problemType(h.cfg.ProblemTypes, p.Reason)
		if h.cfg.HidePressure {
			p.Detail, p.Readings = "", nil
		}
		a = &refusedAnswer{rej, problemAnswer(p)}
		slot.Store(a)
	}
	h.answer(engine, w, r, a.answer)
}

func (h *handler) answer(engine *cortex.Engine, w http.ResponseWriter, r *http.Request, a *answer) {
	if text := h.pressureText(engine); text != "" {
		w.Header()[HeaderPressure] = []string{text}
	}
	a.write(w, r)
}

// pressureText is what HeaderPressure says now; empty where it is hidden.
func (h *handler) pressureText(engine *cortex.Engine) string {
	if h.cfg.HidePressure {
		return ""
	}
	if h.clock == nil { // by Select: one line cannot serve them all
		return FormatPressure(engine.Pressure())
	}
	now := h.clock()
	if l := h.said.Load(); l != nil && now-l.at < pressureAge {
		return l.text
	}
	l := &pressureLine{now, FormatPressure(engine.Pressure())}
	h.said.Store(l)
	return l.text
}
