package cortexgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/limit"
)

// errCallerDeadline is the cause of a context that ended with the time its caller was willing to wait.
var errCallerDeadline = fmt.Errorf("cortexgrpc: the caller waits no longer (%s): %w", MetadataTimeout, context.DeadlineExceeded)

// ServerConfig describes a [Server]. Exactly one of Engine and Select is needed; the zero value of every other field is its
// documented default. The functions are called once a call, before it is admitted (Outcome: when it is over), and must be safe for
// concurrent use. method is always the full one, "/package.Service/Method".
type ServerConfig struct {
	// Engine guards the handlers: its pressure is that of the calls in flight in this process. It must not be the engine of a
	// target that they call. Its attempt timeout does not cut calls, but says what is taken for hanging: handlers that by nature
	// take longer want a greater Timeout.Max, or DisableTimeout.
	Engine *cortex.Engine
	// Select picks the engine by method, for instance from a [cortex.Registry] by service. A nil engine without an error lets the
	// call pass unguarded; with an error it is answered INTERNAL.
	Select func(ctx context.Context, method string) (*cortex.Engine, error)

	// Priority is a call's priority, clamped to the engine's levels. nil: [MetadataPriority] if the peer is trusted and sent it
	// once and well formed, else Default.
	Priority func(ctx context.Context, method string) cortex.Priority
	// Default is the priority of calls that have none; nil: half of the engine's levels.
	Default *cortex.Priority
	// Trust are the networks of the peers whose priority is believed, and whose deadlines may count as a failure of this process
	// when they pass. nil: loopback; empty: nobody. A proxy in one of them speaks for all its clients.
	Trust []netip.Prefix
	// TrustPeer decides instead of Trust, for instance by the peer's certificate; nil: Trust.
	TrustPeer func(*peer.Peer) bool

	// Exempt methods are never refused and never counted; nil: [IsHealthCheck].
	Exempt func(method string) bool

	// Outcome is what the error of a handler says of the process's health; nil: [HandlerOutcome]. It is not asked where the
	// caller left, nor for the refusal of a guard below, which has judged already.
	Outcome func(error) cortex.Outcome

	// HidePressure leaves [MetadataPressure] and the numbers of refusals out: for clients that are none of their business.
	HidePressure bool
}

// A Server sheds calls by priority on the pressure of this process.
//
// A call is asked for its priority and admitted by the engine, or refused without any work done: RESOURCE_EXHAUSTED where it is
// shed, UNAVAILABLE where the circuit is open; see [RejectionStatus]. The trailer of a refusal says in
// grpc-retry-pushback-ms when to ask again, or, where the circuit is open, not to: clients of any make that follow gRFC A6
// obey that. One whose caller has given up already is answered DEADLINE_EXCEEDED without asking the engine. An admitted call
// carries in its context
//
//   - the retry mark, where its metadata say that its sender may retry ([MetadataAttempt], or grpc-previous-rpc-attempts): calls made for it are
//     then not retried here;
//   - the deadline, where [MetadataTimeout] gives one that is nearer than gRPC's own;
//   - the priority that it was admitted with, for the calls made for it ([PriorityFrom]).
//
// Its outcome is known when the handler is done. Where a trusted caller's deadline passes before, that counts at once, while the
// call stays in flight until its handler is done: it is work that nobody waits for any more, and holds this process all the same. A
// stream is in flight until its handler sends the first of the answer; where the client streams, the time in which the handler waits for a message is
// none of its own. The permit is freed whatever happens; panics are neither caught nor changed.
//
// Where a handler returns the error of a guarded call that was retried, or whose circuit is open, the trailer forbids the caller
// to try again: only one layer should.
type Server struct {
	cfg    ServerConfig
	levels int // of Engine
	clock  func() time.Duration
	said   atomic.Pointer[pressureLine]
	refuse [limit.MaxLevels + 1]atomic.Pointer[refusalError]
}

// pressureLine is a value of MetadataPressure with the moment it was made.
type pressureLine struct {
	at     time.Duration
	values []string
}

// pressureAge is how long a reported pressure is used again.
const pressureAge = 10 * time.Millisecond

// timeoutSlack is how much nearer MetadataTimeout must be than gRPC's deadline to be worth a timer of its own: they say the same, but for
// the rounding.
const timeoutSlack = 5 * time.Millisecond

// NewServer returns a server's guard. The error is a [*cortex.ConfigError].
func NewServer(cfg ServerConfig) (*Server, error) {
	switch {
	case cfg.Engine == nil && cfg.Select == nil:
		return nil, &cortex.ConfigError{Field: "ServerConfig.Engine", Value: nil, Want: "an engine, or Select"}
	case cfg.Engine != nil && cfg.Select != nil:
		return nil, &cortex.ConfigError{Field: "ServerConfig.Select", Value: "set", Want: "nil together with Engine"}
	}
	if cfg.Trust == nil {
		cfg.Trust = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	}
	for i, p := range cfg.Trust {
		if !p.IsValid() || p.Addr().Is4In6() {
			return nil, &cortex.ConfigError{Field: fmt.Sprintf("ServerConfig.Trust[%d]", i), Value: p,
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
	if cfg.Outcome == nil {
		cfg.Outcome = HandlerOutcome
	}
	s := &Server{cfg: cfg}
	if cfg.Engine != nil {
		c := cfg.Engine.Config()
		s.levels, s.clock = c.Levels, c.Now
	}
	return s, nil
}

// ServerOptions install the interceptors, behind those that are given before.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.UnaryInterceptor),
		grpc.ChainStreamInterceptor(s.StreamInterceptor),
	}
}

// UnaryInterceptor is a [grpc.UnaryServerInterceptor].
func (s *Server) UnaryInterceptor(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	engine, err := s.engine(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if engine == nil {
		return handler(ctx, req)
	}
	x := exchange{s: s, engine: engine, setTrailer: func(md metadata.MD) { grpc.SetTrailer(ctx, md) }}
	if err := x.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	defer x.end()
	reply, err := handler(x.ctx, req)
	x.returned(err)
	return reply, err
}

// StreamInterceptor is a [grpc.StreamServerInterceptor].
func (s *Server) StreamInterceptor(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	engine, err := s.engine(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	if engine == nil {
		return handler(srv, ss)
	}
	x := &serverStream{ServerStream: ss, uploads: info.IsClientStream}
	x.s, x.engine, x.setTrailer = s, engine, ss.SetTrailer
	if err := x.admit(ss.Context(), info.FullMethod); err != nil {
		return err
	}
	defer x.end()
	err = handler(srv, x)
	x.returned(err)
	return err
}

// serverStream tells the permit when the answer begins, and when the handler waits for its client.
type serverStream struct {
	grpc.ServerStream
	exchange
	uploads bool // the client streams
	began   atomic.Bool
}

func (x *serverStream) Context() context.Context { return x.ctx }

func (x *serverStream) begin() {
	if !x.began.Swap(true) {
		x.permit.Answered()
	}
}

func (x *serverStream) SendHeader(md metadata.MD) error {
	err := x.ServerStream.SendHeader(md)
	x.begin()
	return err
}

func (x *serverStream) SendMsg(m any) error {
	err := x.ServerStream.SendMsg(m)
	x.begin()
	return err
}

func (x *serverStream) RecvMsg(m any) error {
	if !x.uploads || x.began.Load() {
		return x.ServerStream.RecvMsg(m)
	}
	x.permit.Pause()
	defer x.permit.Resume()
	return x.ServerStream.RecvMsg(m)
}

// engine is the guard of a method; nil: it passes.
func (s *Server) engine(ctx context.Context, method string) (*cortex.Engine, error) {
	if s.cfg.Exempt(method) {
		return nil, nil
	}
	if s.cfg.Engine != nil {
		return s.cfg.Engine, nil
	}
	e, err := s.cfg.Select(ctx, method)
	if err != nil {
		return nil, status.Error(codes.Internal, "cortexgrpc: there is no guard for this method")
	}
	return e, nil
}

// exchange is one call under the guard.
type exchange struct {
	s          *Server
	engine     *cortex.Engine
	permit     cortex.Permit
	ctx        context.Context // the handler's
	caller     *callerContext
	late       func() bool        // stops the watch on the deadline
	cancel     context.CancelFunc // where the metadata shortened it
	setTrailer func(metadata.MD)
	done       bool // the handler returned
	err        error
}

// callerContext is what the engine may know of a call's context: no deadline that need not be believed, and when it was the
// deadline that ended it. A client whose deadline passes resets the stream, at about the moment at which it passes here; which of the two
// comes first says nothing.
type callerContext struct {
	context.Context
	believed bool
	margin   time.Duration // before the deadline, in which a reset is taken for it
}

func newCallerContext(ctx context.Context, believed bool) *callerContext {
	c := &callerContext{Context: ctx, believed: believed}
	if at, ok := c.Deadline(); ok {
		c.margin = max(timeoutSlack, time.Until(at)/16)
	}
	return c
}

func (c *callerContext) Deadline() (time.Time, bool) {
	if !c.believed {
		return time.Time{}, false
	}
	return c.Context.Deadline()
}

func (c *callerContext) Err() error {
	err := c.Context.Err()
	if err == context.Canceled {
		if at, ok := c.Deadline(); ok && time.Until(at) <= c.margin {
			return context.DeadlineExceeded
		}
	}
	return err
}

// admit takes the call in, or says what it is answered with.
func (x *exchange) admit(ctx context.Context, method string) error {
	if ctx.Err() != nil {
		return x.tooLate(ctx.Err())
	}
	trusted := x.s.trusts(ctx)
	if left, ok := callerTimeout(ctx); ok {
		if left <= 0 {
			return x.tooLate(context.DeadlineExceeded)
		}
		if at, dated := ctx.Deadline(); !dated || left+timeoutSlack < time.Until(at) {
			ctx, x.cancel = context.WithTimeoutCause(ctx, left, errCallerDeadline)
		}
	}
	p := x.s.priority(ctx, x.engine, method, trusted)
	x.caller = newCallerContext(ctx, trusted)
	var err error
	if x.permit, err = x.engine.Admit(x.caller, p); err != nil {
		if x.cancel != nil {
			x.cancel()
		}
		return x.refused(err.(*cortex.Rejection))
	}
	x.ctx = WithPriority(ctx, p)
	if attempt, above := retriesAbove(ctx); above {
		x.ctx = cortex.WithRetryMark(x.ctx, cortex.RetryMark{Attempt: attempt})
	}
	if _, dated := x.caller.Deadline(); dated {
		// A handler that hangs does not mind its context. That its caller has gone counts now; the work stays in flight until it
		// ends.
		x.late = context.AfterFunc(ctx, func() { x.permit.Abandoned(x.caller.Err()) })
	}
	return nil
}

// retriesAbove reads whether the sender of a call makes retries, and which this is.
func retriesAbove(ctx context.Context) (attempt int, above bool) {
	if v, ok := incoming(ctx, MetadataAttempt); ok {
		if attempt, retries, ok := cortexhttp.ParseAttempt(v); ok {
			return attempt, retries > 0
		}
	}
	if v, ok := incoming(ctx, metadataPrevious); ok { // of a client that is none of ours: gRPC's own retries
		if attempt, parameter, ok := cortexhttp.ParseAttempt(v); ok && parameter == 0 && attempt > 0 {
			return attempt, true
		}
	}
	return 0, false
}

func (s *Server) trusts(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return false
	}
	if s.cfg.TrustPeer != nil {
		return s.cfg.TrustPeer(p)
	}
	tcp, ok := p.Addr.(*net.TCPAddr)
	if !ok {
		return cortexhttp.PeerTrusted(&http.Request{RemoteAddr: p.Addr.String()}, s.cfg.Trust)
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	return slices.ContainsFunc(s.cfg.Trust, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// incoming is single for what came with a call, without a copy of it all.
func incoming(ctx context.Context, key string) (string, bool) {
	v := metadata.ValueFromIncomingContext(ctx, key)
	if len(v) != 1 {
		return "", false
	}
	return v[0], true
}

func (s *Server) priority(ctx context.Context, engine *cortex.Engine, method string, trusted bool) cortex.Priority {
	if s.cfg.Priority != nil {
		return s.cfg.Priority(ctx, method)
	}
	levels := s.levels
	if levels == 0 { // by Select
		levels = engine.Config().Levels
	}
	if v, ok := incoming(ctx, MetadataPriority); ok && trusted {
		if p, ok := cortexhttp.ParsePriority(v, levels); ok {
			return p
		}
	}
	if s.cfg.Default != nil {
		return *s.cfg.Default
	}
	return cortex.Priority(levels / 2)
}

// tooLate answers a call whose caller has given up before the work began.
func (x *exchange) tooLate(err error) error {
	reason := cortex.ReasonDeadline
	if err == context.Canceled { // nobody reads it, but logs do
		reason = cortex.ReasonCancelled
	}
	x.tell(metadata.MD{MetadataReason: {reason.String()}})
	return status.Error(status.FromContextError(err).Code(), "cortex: the time that the caller waits was over before the work began")
}

// refused is the answer to a refusal, which engines share between the calls refused at about the same time: a storm of
// refusals must not cost more than writing them.
func (x *exchange) refused(rej *cortex.Rejection) error {
	slot := &x.s.refuse[min(max(rej.Priority, 0), limit.MaxLevels)]
	e := slot.Load()
	if e == nil || e.rej != rej {
		e = &refusalError{rej: rej, hidden: x.s.cfg.HidePressure}
		slot.Store(e)
	}
	md := metadata.MD{MetadataReason: {rej.Reason.String()}, metadataPushback: {"-1"}}
	if rej.Reason == cortex.ReasonShed {
		md[metadataPushback] = []string{strconv.FormatInt(max(1, rej.RetryAfter.Milliseconds()), 10)}
	}
	x.tell(md)
	return e
}

// tell sets the trailer, with the pressure.
func (x *exchange) tell(md metadata.MD) {
	if v := x.s.pressure(x.engine); v != nil {
		if md == nil {
			md = metadata.MD{MetadataPressure: v}
		} else {
			md[MetadataPressure] = v
		}
	}
	if md != nil {
		x.setTrailer(md)
	}
}

// pressure is what MetadataPressure says now; nil where it is hidden.
func (s *Server) pressure(engine *cortex.Engine) []string {
	if s.cfg.HidePressure {
		return nil
	}
	if s.clock == nil { // by Select: one line cannot serve them all
		return []string{cortexhttp.FormatPressure(engine.Pressure())}
	}
	now := s.clock()
	if l := s.said.Load(); l != nil && now-l.at < pressureAge {
		return l.values
	}
	l := &pressureLine{now, []string{cortexhttp.FormatPressure(engine.Pressure())}}
	s.said.Store(l)
	return l.values
}

// returned takes in what the handler returned.
func (x *exchange) returned(err error) {
	x.done, x.err = true, err
	var md metadata.MD
	if err != nil && triedBelow(err) {
		md = metadata.MD{MetadataRetry: {"no"}, metadataPushback: {"-1"}}
	}
	x.tell(md)
}

// triedBelow reports whether the error is that of a guarded call that should not be made again by those above: it was retried, or
// its circuit is open. Where the guard below made no retries because of those above, it is theirs to do.
func triedBelow(err error) bool {
	if errors.Is(err, cortex.ErrOpen) {
		return true
	}
	e, ok := errors.AsType[*cortex.CallError](err)
	return ok && (e.Attempts > 1 || e.Reason == cortex.ReasonDoNotRetry)
}

// end is deferred around the handler: it returned, panicked, or ended its goroutine.
func (x *exchange) end() {
	defer x.permit.Release() // whatever an outcome rule of the user's does
	if x.cancel != nil {
		defer x.cancel()
	}
	if x.late != nil {
		x.late()
	}
	switch err := x.caller.Err(); {
	case err == nil && !x.done:
		x.permit.Record(cortex.Failed)
	case err == nil:
		x.permit.Record(x.outcome())
	case err == context.DeadlineExceeded && !x.caller.believed:
		x.permit.Release()
	default: // who ended the call decides, not what became of it; a deadline only if it left time for the work
		x.permit.Done(err)
	}
}

func (x *exchange) outcome() cortex.Outcome {
	if x.err == nil {
		return cortex.Success
	}
	if errors.Is(x.err, cortex.ErrRejected) {
		return cortex.Neutral // of a guard below, which has judged already
	}
	if st, ok := status.FromError(x.err); ok && detailsOf(st, nil).refused != cortex.ReasonNone {
		return cortex.Neutral
	}
	return x.s.cfg.Outcome(x.err)
}

// HandlerOutcome is what the error of a handler says of the health of the process it runs in, by its status code:
// UNAVAILABLE, UNKNOWN (also of an error that is no status), INTERNAL and DATA_LOSS are failures, DEADLINE_EXCEEDED a timeout,
// RESOURCE_EXHAUSTED throttled, CANCELLED neutral. All others find fault with the request: answers, and as good as OK.
func HandlerOutcome(err error) cortex.Outcome {
	if err == nil {
		return cortex.Success
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err)
	}
	switch c := ClassOf(st, nil); {
	case c.Outcome == cortex.Neutral && st.Code() != codes.Canceled && st.Code() != codes.Unavailable:
		return cortex.Success
	default:
		return c.Outcome
	}
}
