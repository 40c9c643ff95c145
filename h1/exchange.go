package h1

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxInterim bounds the 1xx responses to a request.
	maxInterim = 256
	// lateSender is how long a request body may still be sent when the response is over.
	lateSender = 50 * time.Millisecond
	// lastWords is how long a response is waited for when the request could not be written whole. What the server said before it
	// cut the connection is here by then.
	lastWords = 100 * time.Millisecond
)

// exchange is a request and its response, and the response's body.
//
// Two sides may hold its connection: the reader of the response, and the sender of a body where there is one. The last of them to
// be over gives it to the pool, if nothing forbids that; whatever forbids it closes it, at the latest when the reader is over.
type exchange struct {
	t     *Transport
	req   *http.Request
	out   outgoing
	trace *httptrace.ClientTrace
	resp  http.Response

	wire     *[]byte // the header, and the body of an inline request
	inline   bool    // the body, if any, is sent by the caller
	whole    bool    // wire is
	body     io.ReadCloser
	taken    bool // the sender closes body
	sent     bool // a byte was handed to the kernel
	returned bool
	stop     func() bool // of the hook on the context

	done chan struct{} // closed when the sender is over; nil: there is none

	mu         sync.Mutex
	c          *conn
	readerOver bool
	senderOver bool
	dirty      bool  // the connection is not to be used again
	answered   bool  // the header of the final response is there
	bodyErr    error // the request's body is at fault
	writeErr   error
	late       *time.Timer
	canceled   atomic.Bool

	since   atomic.Int64 // when it got its connection, since origin
	arrived atomic.Bool  // as last told

	reply reply
}

func (x *exchange) roundTrip() (*http.Response, error) {
	x.body = x.req.Body
	if err := x.out.check(x.req); err != nil {
		return nil, x.fail(OpRequest, err)
	}
	x.inline = x.out.length >= 0 && x.out.length <= inlineBody && !x.out.expect
	x.trace = httptrace.ContextClientTrace(x.req.Context())
	for try := 0; ; try++ {
		if err := x.connect(try > 0); err != nil {
			return nil, x.fail(OpDial, err)
		}
		resp, err := x.attempt()
		if err == nil {
			return resp, nil
		}
		if try > 0 || !x.again(err) {
			return nil, err
		}
	}
}

// connect gets the exchange a connection, a new one if it has to be fresh.
func (x *exchange) connect(fresh bool) error {
	if ctx := x.req.Context(); ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if x.trace != nil && x.trace.GetConn != nil {
		x.trace.GetConn(x.out.addr)
	}
	if err := x.obtain(fresh); err != nil {
		return err
	}
	if x.trace != nil && x.trace.GotConn != nil {
		x.trace.GotConn(httptrace.GotConnInfo{Conn: x.c.nc, Reused: x.c.served, WasIdle: x.c.served, IdleTime: x.c.idleFor})
	}
	return nil
}

func (x *exchange) obtain(fresh bool) error {
	var c *conn
	x.arrive(false) // that was the end of the connection before
	if !fresh {
		c = x.t.pool.get(x.out.addr)
	}
	ctx := x.req.Context()
	if c == nil {
		dctx := ctx
		if d := x.t.cfg.DialTimeout; d > 0 {
			var cancel context.CancelFunc
			dctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		gen := x.t.pool.generation()
		nc, err := x.t.dial(dctx, "tcp", x.out.addr)
		if err == nil && nc == nil {
			err = errNoConn
		}
		if err != nil {
			return err
		}
		c = newConn(nc, x.out.addr, gen)
		c.taken = c.born
		x.t.watch.enter(c)
	}
	if c.watch != nil {
		x.since.Store(sinceOrigin(c.taken))
		c.watch.look(c.taken)
	}
	x.mu.Lock()
	x.c, x.readerOver, x.dirty, x.answered, x.bodyErr, x.writeErr = c, false, false, false, nil, nil
	x.mu.Unlock()
	x.arrive(false) // what was found on the one before meanwhile
	if ctx.Done() != nil {
		x.stop = context.AfterFunc(ctx, x.cancel)
	}
	return nil
}

// cancel is called when the context ends before the reader is over.
func (x *exchange) cancel() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.canceled.Store(true)
	if !x.readerOver {
		x.dirty = true
		x.c.close()
	}
}

// abort closes the connection unless it is the exchange's no longer.
func (x *exchange) abort() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.readerOver || !x.senderOver {
		x.dirty = true
		x.c.close()
	}
}

// release says that the reader is over. clean: the response was read to its end, and the connection may be used again.
func (x *exchange) release(clean bool) {
	if x.stop != nil {
		x.stop()
	}
	x.mu.Lock()
	if x.readerOver {
		x.mu.Unlock()
		return
	}
	x.readerOver = true
	x.dirty = x.dirty || !clean
	c, dirty, put := x.c, x.dirty, x.senderOver
	c.waiting.Store(nil)
	if !dirty && !put {
		x.late = time.AfterFunc(lateSender, x.abort)
	}
	x.mu.Unlock()
	switch {
	case dirty:
		c.close()
	case put:
		x.t.pool.put(c)
	}
}

// fail makes the error that RoundTrip returns.
func (x *exchange) fail(op string, err error) *Error {
	e := &Error{Op: op, Addr: x.out.addr, Err: err, sent: x.sent}
	if x.c != nil && op != OpDial {
		e.Reused = x.c.served
	}
	if ctx := x.req.Context(); ctx.Err() != nil {
		e.Err = context.Cause(ctx)
	}
	return e
}

// stale is fail for a connection that had been idle and gave no byte of a response.
func (x *exchange) stale(op string, err error) *Error {
	e := x.fail(op, err)
	e.stale = e.Reused && x.req.Context().Err() == nil
	return e
}

// again reports whether the request is sent a second time after the error, which it may change.
func (x *exchange) again(err error) bool {
	e, ok := err.(*Error)
	if !ok || !e.stale || x.sent && !replayable(x.req) {
		return false
	}
	if x.body == nil || x.body == http.NoBody {
		return true
	}
	get := x.req.GetBody
	if get == nil {
		return !x.sent && (x.whole || !x.taken)
	}
	body, gerr := get()
	if gerr != nil {
		e.Err = gerr
		return false
	}
	if x.whole {
		body.Close()
		return true
	}
	x.closeBody()
	x.body, x.taken = body, false
	return true
}

func (x *exchange) closeBody() {
	if x.body != nil && !x.taken {
		x.taken = true
		x.body.Close()
	}
}

// unwind ends what RoundTrip leaves behind where it panics.
func (x *exchange) unwind() {
	if x.wire != nil {
		putBuffer(x.wire)
		x.wire = nil
	}
	if x.returned {
		return
	}
	if x.c != nil {
		x.release(false)
	}
	x.closeBody()
}

// attempt sends the request over the connection and awaits its response.
func (x *exchange) attempt() (*http.Response, error) {
	if x.wire == nil {
		if err := x.prepare(); err != nil {
			return nil, err
		}
	}
	if x.req.Context().Err() != nil {
		e := x.fail(OpWrite, nil) // first: from the pool the connection goes to others
		x.release(true)           // of it nothing was used
		return nil, e
	}
	if x.c.received = false; x.c.watch != nil {
		x.c.waiting.Store(x)
	}
	n, err := x.c.nc.Write(*x.wire)
	if err == nil && n < len(*x.wire) {
		err = io.ErrShortWrite
	}
	if n > 0 {
		x.sent = true
		if x.trace != nil && x.trace.WroteHeaders != nil {
			x.trace.WroteHeaders()
		}
	}
	if x.inline || err != nil {
		x.wrote(err)
	}
	if err != nil {
		if n <= 0 {
			x.release(false)
			return nil, x.stale(OpWrite, err)
		}
		// The server may have said why.
		x.writeErr = err
		x.c.nc.SetReadDeadline(time.Now().Add(lastWords))
	}
	waits := false
	if !x.inline && err == nil {
		if d := x.t.cfg.ExpectContinueTimeout; x.out.expect && d > 0 {
			waits = true
			x.c.nc.SetReadDeadline(time.Now().Add(d))
			if x.trace != nil && x.trace.Wait100Continue != nil {
				x.trace.Wait100Continue()
			}
		} else {
			x.startSender()
		}
	}
	return x.await(waits)
}

func (x *exchange) wrote(err error) {
	if x.trace != nil && x.trace.WroteRequest != nil {
		x.trace.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
}

// prepare puts together what the caller sends. A body that takes its time may have outlasted the connection.
func (x *exchange) prepare() error {
	x.wire = buffers.Get().(*[]byte)
	*x.wire = x.out.appendHead((*x.wire)[:0], x.req)
	if !x.inline {
		return nil
	}
	if x.out.length > 0 {
		began := time.Now()
		b, err := readWhole(*x.wire, x.body, int(x.out.length))
		*x.wire = b
		x.closeBody()
		if err != nil {
			e := x.fail(OpRequest, err) // first: from the pool the connection goes to others
			x.release(true)
			return e
		}
		if x.c.served && time.Since(began) > time.Millisecond && x.c.stale() {
			x.release(false) // without a word to the hooks: nothing was sent over it
			if x.req.Context().Err() == nil {
				if err := x.obtain(false); err != nil {
					return x.fail(OpDial, err)
				}
			}
		}
	}
	x.whole = true
	return nil
}

// readWhole appends the body to b. It must have size bytes.
func readWhole(b []byte, body io.Reader, size int) ([]byte, error) {
	start := len(b)
	if room := start + size + 1; cap(b) < room {
		b = append(make([]byte, 0, room), b...)
	}
	b = b[:start+size+1] // of which the last is for what should not be there
	for n, idle := 0, 0; ; {
		m, err := body.Read(b[start+n:])
		if n += m; n > size {
			return b[:start], errBodyLong
		}
		switch {
		case err == io.EOF && n == size:
			return b[:start+size], nil
		case err == io.EOF:
			return b[:start], errBodyShort
		case err != nil:
			return b[:start], err
		}
		if m > 0 {
			idle = 0
		} else if idle++; idle == 100 {
			return b[:start], io.ErrNoProgress
		}
	}
}

// await reads responses up to the final one. waits: the request's body waits for the first.
func (x *exchange) await(waits bool) (*http.Response, error) {
	c, resp := x.c, &x.resp
	interim := 0
	for {
		head, lines, err := x.head(interim == 0)
		if err != nil {
			if waits && errors.Is(err, os.ErrDeadlineExceeded) && !x.canceled.Load() {
				waits = false
				c.nc.SetReadDeadline(time.Time{})
				x.startSender()
				continue
			}
			return nil, x.unanswered(err, interim > 0 || c.buffered() > 0)
		}
		if lines == 0 {
			return nil, x.reject(malformed("it begins with an empty line"))
		}
		*resp = http.Response{}
		f, keep, err := parseResponse(head, lines, x.req, resp)
		if err != nil {
			return nil, x.reject(err)
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return x.final(f, keep, waits)
		}
		if interim++; interim > maxInterim {
			return nil, x.reject(errTooManyInterim)
		}
		goOn := waits && resp.StatusCode == http.StatusContinue
		if goOn && x.trace != nil && x.trace.Got100Continue != nil {
			x.trace.Got100Continue()
		}
		if x.trace != nil && x.trace.Got1xxResponse != nil {
			if err := x.trace.Got1xxResponse(resp.StatusCode, mime(resp.Header)); err != nil {
				return nil, x.reject(err)
			}
		}
		if goOn { // now that the client behind a proxy has its 100, whose server else would send one of its own
			waits = false
			c.nc.SetReadDeadline(time.Time{})
			x.startSender()
		}
	}
}

// head reads a header section.
func (x *exchange) head(first bool) (string, int, error) {
	c := x.c
	if first && c.buffered() == 0 && x.trace != nil && x.trace.GotFirstResponseByte != nil {
		if err := c.fill(); err != nil {
			return "", 0, err
		}
		x.trace.GotFirstResponseByte()
	}
	return c.section(int(x.t.cfg.ResponseHeaderLimit), false)
}

// unanswered is the error where no response came; begun: there was some of one.
func (x *exchange) unanswered(err error, begun bool) *Error {
	x.mu.Lock()
	bodyErr, writeErr := x.bodyErr, x.writeErr // of before: closing the connection makes errors of its own
	x.mu.Unlock()
	x.end()
	switch {
	case bodyErr != nil && x.req.Context().Err() == nil:
		return x.fail(OpRequest, bodyErr)
	case err == errHeaderTooLarge || err == errTooManyFields:
		return x.fail(OpResponse, err)
	case writeErr != nil && begun:
		return x.fail(OpWrite, writeErr)
	case writeErr != nil:
		return x.stale(OpWrite, writeErr)
	case begun:
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return x.fail(OpRead, err)
	}
	return x.stale(OpRead, err)
}

// reject is the error where a response is not to be trusted.
func (x *exchange) reject(err error) *Error {
	x.end()
	return x.fail(OpResponse, err)
}

// end closes the connection, and waits for the sender: the request is the caller's again when RoundTrip returns an error.
func (x *exchange) end() {
	x.release(false)
	if x.done != nil {
		<-x.done
	}
}

// final makes resp, whose header is there, what RoundTrip returns.
func (x *exchange) final(f frame, keep, waits bool) (*http.Response, error) {
	c, resp := x.c, &x.resp
	c.waiting.Store(nil)
	x.mu.Lock()
	x.answered = true
	if waits || x.writeErr != nil {
		keep = false
		c.nc.SetReadDeadline(time.Time{})
	}
	x.mu.Unlock()
	keep = keep && !x.out.close
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols:
		return x.upgrade()
	case f == frameNone:
		resp.Body = http.NoBody
		x.release(keep && c.buffered() == 0 && c.err == nil)
		return resp, nil
	}
	x.reply.frame, x.reply.keep = f, keep
	if f == frameLength {
		x.reply.left = resp.ContentLength
	}
	resp.Body = x
	return resp, nil
}

// upgrade gives the connection to the caller.
func (x *exchange) upgrade() (*http.Response, error) {
	if !x.out.upgrade || !upgrades(x.resp.Header) {
		return nil, x.reject(malformed("101 where no upgrade was asked for, or without its header"))
	}
	if x.stop != nil {
		x.stop()
	}
	x.mu.Lock()
	ok := x.senderOver && !x.dirty
	x.readerOver = x.readerOver || ok
	x.mu.Unlock()
	if !ok {
		return nil, x.reject(malformed("101 before the body of the request was sent"))
	}
	x.c.watch.leave(x.c)
	x.resp.Body = &upgraded{nc: x.c.nc, ahead: x.c.buf[x.c.r:x.c.w]}
	return &x.resp, nil
}
