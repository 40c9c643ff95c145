package h1

import (
	"errors"
	"net"
)

// What an [Error] came of.
const (
	// OpRequest: the request is at fault. It is invalid, or its body failed or has another length than was announced. Sending
	// it again does not help.
	OpRequest = "request"
	// OpDial: there is no connection.
	OpDial = "dial"
	// OpWrite: the connection failed while the request was written.
	OpWrite = "write"
	// OpRead: the connection failed before the header of a response was there.
	OpRead = "read"
	// OpResponse: the response is malformed, too large, or leaves doubt where it ends.
	OpResponse = "response"
)

// Error is the error of every RoundTrip that gives no response. If the request's context had ended, it wraps that context's
// cause, whatever else failed.
type Error struct {
	// Op is one of the Op constants: what was going on.
	Op string
	// Addr is the host:port of the server; empty where the request does not name one.
	Addr string
	// Reused says that the connection had served other requests before.
	Reused bool
	// Err is the cause, never nil.
	Err error

	sent  bool // a byte of the request, in this RoundTrip
	stale bool
}

func (e *Error) Error() string {
	var s string
	switch {
	case e.Op == OpDial:
		s = "h1: no connection to " + e.Addr + ": "
	case e.Addr == "":
		s = "h1: " + e.Op + ": "
	case e.stale:
		s = "h1: the kept-alive connection to " + e.Addr + " was dead: "
	default:
		s = "h1: " + e.Op + " (" + e.Addr + "): "
	}
	return s + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Timeout makes it a timeout for those who look for one the way of package net.
func (e *Error) Timeout() bool {
	t, ok := errors.AsType[net.Error](e.Err)
	return ok && t.Timeout()
}

// Temporary is a part of net.Error; it is what Timeout is.
func (e *Error) Temporary() bool { return e.Timeout() }

// RequestUnsent reports whether it is certain that not a single byte of the request was handed to the kernel by this RoundTrip:
// there was no connection, or its first Write took nothing. The request then was not processed, whatever its method.
func (e *Error) RequestUnsent() bool { return !e.sent }

// RequestInvalid reports whether the request is at fault, see [OpRequest], and not the server or the way there.
func (e *Error) RequestInvalid() bool { return e.Op == OpRequest }

// Stale reports whether a connection that had served other requests failed before a byte of the response was there. Most
// often the server had closed it as idle, which says nothing of the server's health.
func (e *Error) Stale() bool { return e.stale }

var (
	errHeaderTooLarge = errors.New("the header of the response is larger than Config.ResponseHeaderLimit")
	errTooManyFields  = errors.New("the header of the response has too many fields")
	errTooManyInterim = errors.New("too many 1xx responses")
	errBodyShort      = errors.New("the body of the request ended before its Content-Length")
	errBodyLong       = errors.New("the body of the request is longer than its Content-Length")
	errNoConn         = errors.New("Config.Dial returned neither a connection nor an error")
	errNotBuffered    = errors.New("not in the buffer")
)

// malformed is what is wrong with a response. It does not quote the server: the text may end up in a log.
type malformed string

func (m malformed) Error() string { return "malformed response: " + string(m) }
