package cortexhttp

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"

	"github.com/seed-a29ca62a/cortex"
)

// exchange is one request under the guard, and the ResponseWriter its handler gets. It is not pooled: a handler that kept it
// beyond its return would then write into somebody else's answer.
type exchange struct {
	w        http.ResponseWriter
	h        *handler
	engine   *cortex.Engine
	permit   cortex.Permit
	ctx      context.Context // the handler's
	method   string
	header   http.Header // of the answer, once it began: asking the server for it again costs a copy
	status   int
	began    bool // the answer's header is on its way, or the connection was taken over
	judged   bool
	returned bool // the handler returned by itself
	forged   bool // the deadline of ctx is that of a peer that is not trusted
	pressure [1]string
}

// newExchange returns an exchange and the form of it that offers the handler what w offers, so that a handler which looks
// for http.Flusher or http.Hijacker is not told more than the truth.
func newExchange(w http.ResponseWriter) (*exchange, http.ResponseWriter) {
	switch {
	case !offers[http.Flusher](w):
		x := &exchange{w: w}
		return x, x
	case !offers[http.Hijacker](w): // HTTP/2
		x := &flushExchange{exchange{w: w}}
		return &x.exchange, x
	}
	x := &connExchange{flushExchange{exchange{w: w}}}
	return &x.exchange, x
}

// offers reports whether w, or a writer it wraps, is a T.
func offers[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}

func (x *exchange) Header() http.Header { return x.w.Header() }

// Unwrap is for http.ResponseController, which finds there what is not passed on here.
func (x *exchange) Unwrap() http.ResponseWriter { return x.w }

func (x *exchange) WriteHeader(status int) {
	if !x.began && (status >= 200 || status == http.StatusSwitchingProtocols) { // other 1xx are not the answer
		x.begin(status)
	}
	x.w.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	x.beginOK()
	return x.w.Write(b)
}

func (x *exchange) WriteString(s string) (int, error) {
	x.beginOK()
	return io.WriteString(x.w, s)
}

func (x *exchange) beginOK() {
	if !x.began {
		x.begin(http.StatusOK)
	}
}

// begin is called once, before the header of the answer is written. An answer that goes on until somebody leaves is judged
// by its beginning: its length is no latency, its number no queue, and its end, which most often is the client leaving, says
// nothing.
func (x *exchange) begin(status int) {
	x.began, x.status, x.header = true, status, x.w.Header()
	if text := x.h.pressureText(x.engine); text != "" {
		// In the place of what a handler copied from an answer of its own target: it speaks of the guard that answers.
		x.pressure[0] = text
		x.header[HeaderPressure] = x.pressure[:]
	}
	if endless(x.method, status, x.header) {
		x.judge(false)
	}
}

// end is deferred around the handler: it returned, panicked, or ended its goroutine. A panic passes through untouched, with
// its stack, http.ErrAbortHandler among them.
func (x *exchange) end() {
	defer x.permit.Release() // whatever an outcome rule of the user's does
	if x.returned {
		x.beginOK() // the server writes it
	}
	x.judge(!x.returned)
}

// judge gives the permit its outcome, the first time.
func (x *exchange) judge(aborted bool) {
	if x.judged {
		return
	}
	x.judged = true
	switch err := x.ctx.Err(); {
	case err == nil && aborted:
		x.permit.Record(cortex.Failed)
	case err == nil:
		x.permit.Record(x.outcome())
	case x.forged && context.Cause(x.ctx) == errCallerDeadline:
		x.permit.Release()
	default: // who ended the request decides, not what became of it; a deadline only if it left time for the work
		x.permit.Done(err)
	}
}

func (x *exchange) outcome() cortex.Outcome {
	if len(x.header[HeaderReason]) > 0 || len(x.header[HeaderFallback]) > 0 { // of a guard below, which has judged already
		return cortex.Neutral
	}
	if o, ok := grpcOutcome(x.header); ok {
		return o
	}
	return x.h.cfg.Outcome(x.status)
}

// flushExchange is an exchange over a writer that flushes.
type flushExchange struct{ exchange }

func (x *flushExchange) Flush() { x.FlushError() }

// FlushError is for http.ResponseController.
func (x *flushExchange) FlushError() error {
	x.beginOK()
	return http.NewResponseController(x.w).Flush()
}

// connExchange is an exchange over HTTP/1: the connection can be taken over, and bodies go from file to socket.
type connExchange struct{ flushExchange }

func (x *connExchange) ReadFrom(src io.Reader) (int64, error) {
	x.beginOK()
	if to, ok := x.w.(io.ReaderFrom); ok {
		return to.ReadFrom(src)
	}
	return io.Copy(struct{ io.Writer }{x.w}, src)
}

func (x *connExchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if !x.began {
		x.began, x.status = true, http.StatusSwitchingProtocols // or what takes its place: it is not seen here
	}
	x.judge(false)
	return conn, rw, nil
}
