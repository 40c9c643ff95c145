package cortexhttp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// attemptTimeout is the error of an attempt that had no response headers in time.
type attemptTimeout struct {
	after time.Duration
	what  string // that was waited for; empty: the response headers
}

func (e *attemptTimeout) Error() string {
	if e.what != "" {
		return fmt.Sprintf("cortexhttp: %s %v", e.what, e.after)
	}
	return fmt.Sprintf("cortexhttp: no response headers within the attempt timeout of %v", e.after)
}

// Timeout and Is make it a timeout for those who look for one the ways of package net.
func (e *attemptTimeout) Timeout() bool { return true }

func (e *attemptTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// errStale is the error of a request with a body that met a dead kept-alive connection.
var errStale = errors.New("cortexhttp: the kept-alive connection had been closed by the target")

// closedIdle is net/http's error for a connection that was closed while it was idle: that says nothing of the target.
const closedIdle = "http: server closed idle connection"

// refuseRewind is the GetBody of requests over HTTP/1. net/http calls it to send a request again: where it found that nothing
// was written to a kept-alive connection, or that the request is idempotent. That is for the engine to decide.
func refuseRewind() (io.ReadCloser, error) { return nil, errStale }

// classify makes a class of the error of an attempt that neither its caller nor its timeout ended, and says whether nothing
// of the request can have been processed, and whether a retry is out of the question.
func (a *attempt) classify(c *call, err error) (class cortex.Class, untouched, forbidden bool) {
	neutral := cortex.Class{Outcome: cortex.Neutral}
	switch {
	case c.body != nil && c.body.failure() != nil: // the caller's fault
		return neutral, false, false
	case below(err):
		return c.set.classify(err), false, !leftToUs(err)
	case errors.Is(err, errStale):
		return cortex.Class{Outcome: cortex.Neutral, Retryable: true}, true, false
	case err.Error() == closedIdle:
		return cortex.Class{Outcome: cortex.Neutral, Retryable: true}, a.unwritten(c), false
	case distrusted(err):
		return cortex.Class{Outcome: cortex.Failed}, false, false
	case a.unconnected(err) && exhausted(err):
		return cortex.Class{Outcome: cortex.Neutral, Retryable: true}, true, false
	case a.unconnected(err):
		return c.set.classify(err), true, false
	case c.t.std && a.asked.Load() == 0, faulty(err): // the request itself is at fault: no host, an invalid header, or one too large
		return neutral, false, false
	case unsent(err):
		if a.reused.Load() {
			return cortex.Class{Outcome: cortex.Neutral, Retryable: true}, true, false
		}
		return c.set.classify(err), true, false
	}
	if refused, unprocessed := notProcessed(err); unprocessed {
		class = cortex.Class{Outcome: cortex.Neutral, Retryable: true}
		if refused {
			class.Outcome = cortex.Failed
		}
		return class, true, false
	}
	return c.set.classify(err), a.unwritten(c), false
}

// below reports whether the error is that of a guard in the base transport.
func below(err error) bool {
	if _, ok := errors.AsType[*cortex.CallError](err); ok {
		return true
	}
	_, ok := errors.AsType[*cortex.Rejection](err)
	return ok
}

// leftToUs reports whether the guard below made no retries because this one does.
func leftToUs(err error) bool {
	e, ok := errors.AsType[*cortex.CallError](err)
	return ok && e.Reason == cortex.ReasonRetriedAbove
}

func faulty(err error) bool {
	_, ok := RequestFault(err)
	return ok
}

// unconnected reports whether the attempt failed before it had a connection. Where it had one for a part of its time, some
// base may have used it.
func (a *attempt) unconnected(err error) bool {
	return a.got.Load() == 0 && (a.asked.Load() > 0 || dialError(err))
}

// exhausted reports whether this machine, and not the target, had nothing left to connect with: file descriptors, ports, buffers. It
// must not open the circuit of a target that is well.
func exhausted(err error) bool {
	for _, no := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// unsent reports whether the base knows that nothing of the request was written to any connection.
func unsent(err error) bool {
	e, ok := errors.AsType[interface {
		error
		RequestUnsent() bool
	}](err)
	return ok && e.RequestUnsent()
}

// unwritten reports whether the request's header was not even written whole to a connection's buffer. It is known of HTTP/1
// alone: over HTTP/2 the hook is called after the header is on its way.
func (a *attempt) unwritten(c *call) bool {
	return !c.repeatable && a.plain && a.wrote.Load() == 0
}

func dialError(err error) bool {
	if e, ok := errors.AsType[*net.OpError](err); ok && (e.Op == "dial" || e.Op == "proxyconnect" || e.Op == "socks connect") {
		return true
	}
	_, ok := errors.AsType[*net.DNSError](err)
	return ok
}

// distrusted reports whether the target's certificate was not accepted, or ours not by the target: no retry can mend that.
func distrusted(err error) bool {
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "remote error" && e.Err != nil {
		return strings.Contains(e.Err.Error(), "certificate") // the type of alerts is not exported
	}
	return is[*tls.CertificateVerificationError](err) || is[x509.UnknownAuthorityError](err) || is[x509.HostnameError](err) ||
		is[x509.CertificateInvalidError](err) || is[x509.SystemRootsError](err) || is[x509.ConstraintViolationError](err) ||
		is[x509.InsecureAlgorithmError](err) || is[x509.UnhandledCriticalExtension](err)
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// notProcessed reports whether an HTTP/2 peer said that it did nothing with the request, and whether by refusing this stream
// or by going away. The errors of net/http's HTTP/2 have no exported types. Its texts are compared whole where the
// peer could have put something in: a GOAWAY's debug data stands in quotes in another error.
func notProcessed(err error) (refused, ok bool) {
	s := err.Error()
	if rest, found := strings.CutPrefix(s, "http2: Transport: cannot retry err ["); found {
		s, _, _ = strings.Cut(rest, "] after Request.Body was written")
	}
	switch s {
	case "http2: Transport received Server's graceful shutdown GOAWAY", "http2: client conn not usable":
		return false, true
	}
	if strings.HasPrefix(s, "http2: Transport received GOAWAY from server ErrCode:") { // of streams above the last one processed
		return true, true
	}
	if rest, found := strings.CutPrefix(s, "stream error: stream ID "); found {
		return true, rest[digits(rest):] == "; REFUSED_STREAM; received from peer"
	}
	return false, false
}
