package cortexgrpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
)

// DefaultMaxReplayBytes is how much of what a stream sends is kept for a retry unless told otherwise.
const DefaultMaxReplayBytes = 64 << 10

// ClientConfig describes a [Client]. Exactly one of Engine and Select is needed; the zero value of every other field is its
// documented default. method is always the full one, "/package.Service/Method". The functions must be safe for concurrent use; a
// panic in them passes through and leaves nothing behind.
type ClientConfig struct {
	// Engine guards every call.
	Engine *cortex.Engine
	// Select picks the engine by method, for instance from a [cortex.Registry]. A nil engine without an error lets the call pass
	// unguarded; with an error it is not made, and fails with it.
	Select func(ctx context.Context, method string) (*cortex.Engine, error)

	// Priority is a call's priority, clamped to the engine's levels; nil: that of its context ([WithPriority]), else half of the
	// levels.
	Priority func(ctx context.Context, method string) cortex.Priority
	// SendPriority sends the priority on, in [MetadataPriority].
	SendPriority bool

	// Repeatable says which methods may be called again although the first call may have been processed; nil:
	// [DeclaredIdempotent]. It stands in the place of the methods that a retryPolicy in a service config lists, which is not
	// followed.
	Repeatable func(method string) bool

	// MaxReplayBytes bounds what is kept of the messages that a stream sent, so that they could be sent again; 64 KiB. Negative:
	// none are kept. A stream of which more was sent, or a message whose size is not known (no proto.Message), is not retried.
	MaxReplayBytes int

	// Outcome is a rule on what a call ended with; where it is not ok, or nil, [ClassOf] decides. It is not asked for calls that
	// their caller or the attempt's timeout ended.
	Outcome func(method string, st *status.Status, trailer metadata.MD) (c cortex.Class, ok bool)

	// Exempt methods are neither refused nor counted; nil: [IsHealthCheck].
	Exempt func(method string) bool

	// DisableMark leaves [MetadataAttempt] and [MetadataTimeout] out, for targets that are none of our own.
	DisableMark bool
}

// A Client makes the calls of a grpc.ClientConn under the guard. A call is admitted or refused by the engine; a failed attempt goes
// through the five checks and is made again, as far as that is safe:
//
//   - any call of which nothing can have been processed: there was no connection, or the server refused the stream;
//   - the methods of ClientConfig.Repeatable after any failure that [ClassOf] calls retryable;
//   - not below a layer that retries already ([cortex.WithRetryMark]), not against grpc-retry-pushback-ms or [MetadataRetry];
//   - a stream only before anything of the answer has arrived, a header or a message, and as long as all that was sent is kept.
//
// Each unary attempt is cut by the engine's timeout until its answer is there, each attempt at a stream until the first of the
// answer: the header, where the [Client.StatsHandler] is installed, else the first message. Where the client streams, the time counts to
// the end of connecting and, anew, from CloseSend on; in between the target may wait for what the client has to say. A stream that has begun is
// ended by its caller alone. Its outcome is known at its end: one that breaks off has failed, however much came before.
//
// Calls end with OK, with the status as it came where that finds fault with the request, or with
//
//   - an error that wraps a [*cortex.Rejection] where the engine refused the call, whose status is that of [RejectionStatus];
//   - an error that wraps a [*cortex.CallError] where the call failed, and has the status of the last attempt, its details included.
//
// status.FromError, errors.Is and errors.As work on both. grpc.OnFinish is told of the same, once for the call, also where the engine refused
// it; grpc.Header, Trailer and Peer have what the last attempt met, which may be nothing.
//
// Streams hold what they hold by gRPC's rules: their caller reads to the end or ends the context. The permit is free then at the
// latest.
type Client struct {
	cfg     ClientConfig
	setting settings // of cfg.Engine
}

// settings are what a call needs of its engine's configuration.
type settings struct {
	levels, retries int
	deadline        time.Duration
	distrust        bool
	classify        func(error) cortex.Class
}

func settingsOf(e *cortex.Engine) settings {
	c := e.Config()
	s := settings{levels: c.Levels, retries: c.MaxRetries, deadline: c.Deadline, distrust: c.DistrustRemote, classify: c.Classify}
	if c.DisableRetries {
		s.retries = 0
	}
	return s
}

// NewClient returns a client. The error is a [*cortex.ConfigError].
func NewClient(cfg ClientConfig) (*Client, error) {
	switch {
	case cfg.Engine == nil && cfg.Select == nil:
		return nil, &cortex.ConfigError{Field: "ClientConfig.Engine", Value: nil, Want: "an engine, or Select"}
	case cfg.Engine != nil && cfg.Select != nil:
		return nil, &cortex.ConfigError{Field: "ClientConfig.Select", Value: "set", Want: "nil together with Engine"}
	}
	if cfg.Repeatable == nil {
		cfg.Repeatable = DeclaredIdempotent
	}
	if cfg.Exempt == nil {
		cfg.Exempt = IsHealthCheck
	}
	if cfg.MaxReplayBytes == 0 {
		cfg.MaxReplayBytes = DefaultMaxReplayBytes
	}
	c := &Client{cfg: cfg}
	if cfg.Engine != nil {
		c.setting = settingsOf(cfg.Engine)
	}
	return c, nil
}

// DialOptions are all that a connection needs to be guarded: the interceptors, behind those that are given before, the
// [Client.StatsHandler], and the retries of service configs switched off, which would multiply with ours. gRPC's transparent
// retries, of calls that no server has processed, cannot be switched off. They stay, are seen by the stats handler, and count as
// attempts and against the budget if the call was put on a connection before.
func (c *Client) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(c.UnaryInterceptor),
		grpc.WithChainStreamInterceptor(c.StreamInterceptor),
		grpc.WithStatsHandler(c.StatsHandler()),
		grpc.WithDisableRetry(),
	}
}

// UnaryInterceptor is a [grpc.UnaryClientInterceptor].
func (c *Client) UnaryInterceptor(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoker grpc.UnaryInvoker, opts ...grpc.CallOption) (final error) {
	l, err := c.begin(ctx, method)
	if err == nil && l.engine == nil {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	opts, ends := takeEndings(opts)
	if ends != nil {
		final = errAbandoned // where something panics
		defer func() { ends.run(final) }()
	}
	if err != nil {
		return err
	}
	defer l.finish()
	for {
		a, err := l.admit()
		if err != nil {
			return err
		}
		l.unary(a, req, reply, cc, invoker, opts)
		if a.err == nil {
			return nil
		}
		if err := l.again(a, true); err != nil {
			return err
		}
	}
}

// unary makes one attempt.
func (l *call) unary(a *attempt, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts []grpc.CallOption) {
	defer a.close()
	a.start(l)
	if l.made > 1 {
		forget(opts)
	}
	err := invoker(a.ctx, l.method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Trailer(&a.trailer))...)
	a.finish(err)
}

// StatsHandler sees what gRPC does below the interceptors: whether a call was put on a connection at all, how often, and when its
// answer begins. It does nothing for the calls of others. Without it on the connection, calls that met no connection are retried only where
// their method is repeatable, and transparent retries are not counted.
func (c *Client) StatsHandler() stats.Handler { return statsHandler{c} }
