package h1

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// The defaults of [Config].
const (
	DefaultDialTimeout           = 10 * time.Second
	DefaultMaxIdlePerHost        = 128
	DefaultIdleTimeout           = 55 * time.Second
	DefaultMaxAge                = 10 * time.Minute
	DefaultExpectContinueTimeout = time.Second
	DefaultResponseHeaderLimit   = 1 << 20
)

// Config describes a [Transport]. The zero value of every field is its documented default.
type Config struct {
	// Dial makes a connection; network is "tcp". nil: that of a [net.Dialer]. It must mind ctx, and be safe for concurrent use.
	// A connection that is a [syscall.Conn] is looked into before it is used again, which tells those that are dead; hiding
	// that in a wrapper costs replays.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds Dial, by its context; 10 s. Negative: only the request's context does.
	DialTimeout time.Duration

	// MaxIdlePerHost is how many idle connections are kept for a host:port; 128. Negative: none. Those in use are not bounded.
	MaxIdlePerHost int
	// IdleTimeout is how long a connection may be idle before it is closed; 55 s. Negative: without end. Keep it below that of
	// the servers: a connection that the server closes just when a request is sent makes that request fail, unless it can be
	// sent again.
	IdleTimeout time.Duration
	// MaxAge is the age from which on a connection serves no further request, so that changes of DNS are followed; 10 min.
	// Negative: none. A request or response under way is not cut.
	MaxAge time.Duration

	// ExpectContinueTimeout is how long a request with Expect: 100-continue waits for the server's 100 or final status before its
	// body is sent nonetheless; 1 s. Negative: not at all.
	ExpectContinueTimeout time.Duration
	// ResponseHeaderLimit bounds the bytes of a response's header section, and of its trailer section; 1 MiB. The
	// number of fields in each is bounded by 1,000, that of 1xx responses to a request by 256.
	ResponseHeaderLimit int64

	// OnArrival is told that the response to the request with that context has arrived, or its beginning, and lies in the kernel
	// because the process was too busy to read it; and with false that what had come was not the header of the final response, or
	// not all of it. It is called from other goroutines than the request's, also after RoundTrip has returned, by at most two at a time, and must not block. nil: nobody is.
	//
	// Only arrivals on TCP connections on Linux are seen, only where answers take longer than a millisecond, and two milliseconds late at
	// most as long as the transport has anything to do: it looks when it has, without a goroutine or a timer.
	OnArrival func(ctx context.Context, here bool)
}

// A Transport is an [http.RoundTripper] for plain http:// URLs. It keeps connections for further requests and is safe for
// concurrent use.
type Transport struct {
	cfg  Config
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	pool pool

	watch *watch // nil: there is none
}

// New returns a transport. The error names the field of the Config that is out of its range.
func New(cfg Config) (*Transport, error) {
	if cfg.ResponseHeaderLimit < 0 || cfg.ResponseHeaderLimit > 1<<30 {
		return nil, fmt.Errorf("h1: Config.ResponseHeaderLimit = %d: want 1 to %d, or 0 for the default", cfg.ResponseHeaderLimit, 1<<30)
	}
	t := &Transport{cfg: cfg, dial: cfg.Dial}
	if t.dial == nil {
		t.dial = (&net.Dialer{}).DialContext
	}
	orElse(&t.cfg.DialTimeout, DefaultDialTimeout)
	orElse(&t.cfg.MaxIdlePerHost, DefaultMaxIdlePerHost)
	orElse(&t.cfg.IdleTimeout, DefaultIdleTimeout)
	orElse(&t.cfg.MaxAge, DefaultMaxAge)
	orElse(&t.cfg.ExpectContinueTimeout, DefaultExpectContinueTimeout)
	orElse(&t.cfg.ResponseHeaderLimit, DefaultResponseHeaderLimit)
	if t.cfg.OnArrival != nil {
		t.watch = theWatch()
	}
	t.pool = pool{most: t.cfg.MaxIdlePerHost, idle: t.cfg.IdleTimeout, age: t.cfg.MaxAge}
	return t, nil
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// CloseIdleConnections closes all connections that are idle. Those in use are closed when they become idle. Connections made
// later are kept as before.
func (t *Transport) CloseIdleConnections() { t.pool.closeIdle() }

// RoundTrip sends the request and returns the response to it. Errors are of type [*Error]; those of reading the response's body
// are the connection's own, [io.ErrUnexpectedEOF] where it was cut short, and [context.Cause] of the request's context
// where that had ended. The request's body is closed in any case, possibly after RoundTrip has returned a response. RoundTrip does
// not return an error before a Read of that body that is under way has ended.
//
// The request's context ends the exchange until the response's body was read to its end or closed. It does no longer after a
// 101: the body then is an io.ReadWriteCloser, with a CloseWrite and a SetWriteDeadline, and the connection its caller's.
//
// A request is sent a second time, over a new connection, if one that had been kept alive turns out to be dead before a
// byte of the response is there, and
//
//   - not a byte of the request was sent, or
//   - its method is GET, HEAD, OPTIONS or TRACE, or it has an Idempotency-Key or X-Idempotency-Key,
//
// and it has no body, or GetBody gives it again; an error of GetBody is then that of RoundTrip. A body without GetBody is
// sent again only if not a byte of the request was sent, and all of the body is at hand still.
//
// A response's body must be read to its end or closed, as ever. Its Close may be called while a Read is under way. If the rest of
// a body that is closed is not there yet, the connection is closed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x := &exchange{t: t, req: req, senderOver: true}
	defer x.unwind()
	resp, err := x.roundTrip()
	x.closeBody()
	x.returned = true
	return resp, err
}

// buffers are what requests are put together in, before one Write takes all of it.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// largestBuffer is kept for further requests.
const largestBuffer = 64 << 10

func putBuffer(b *[]byte) {
	if cap(*b) <= largestBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// Look tells [Config].OnArrival at once of what has arrived, before a decision that depends on it.
func (t *Transport) Look() { t.watch.sweep() }

// HTTP1 reports that all requests go over HTTP/1, for [github.com/seed-a29ca62a/cortex/cortexhttp.StandardBase].
func (t *Transport) HTTP1() bool { return true }
