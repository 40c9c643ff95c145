package front

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Where an HTTP/1 connection is. Of HTTP/2 it means nothing: no read has a deadline there.
const (
	phaseNew     = iota // no byte has come
	phaseHeader         // of a request's header something has come
	phaseHandler        // a request is being answered, or the connection was hijacked, or is to be closed
	phaseIdle           // net/http will set the deadline for the next request to begin
	phaseWaiting        // and has done so
)

// conn is a connection from its accept to its end.
type conn struct {
	net.Conn
	server     *Server
	generation *generation // guarded by server.mu
	client     *peer       // nil for what has no address
	over       bool        // it is one too many of its client: its requests are answered 429
	encrypted  bool
	closed     atomic.Bool
	phase      atomic.Uint32
	early      atomic.Bool // net/http, which looks for the client to go away by reading one byte, has got one of the next request
	line       bool        // the first line of the header that comes is complete; touched by reads only

	// net/http sets deadlines far more often than they change.
	mu        sync.Mutex
	readDue   time.Time // the deadline that is set
	writeDue  time.Time // the deadline that is set, ours or the user's
	writeUser time.Time // the user's

	streams streamCounts
	lengths fieldLines  // Content-Length
	codings fieldLines  // Transfer-Encoding
	http2   atomic.Bool // it is one of HTTP/2, for sure
}

type connKey struct{}

// connContext lets the handler find the connection of a request.
func connContext(ctx context.Context, nc net.Conn) context.Context {
	if c := connOf(nc); c != nil {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

func connOf(nc net.Conn) *conn {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, _ := nc.(*conn)
	return c
}

// connState follows what net/http does with a connection.
func connState(nc net.Conn, state http.ConnState) {
	switch state {
	case http.StateIdle:
		if c := connOf(nc); c != nil {
			c.phase.Store(phaseIdle)
		}
	case http.StateHijacked:
		if c := connOf(nc); c != nil {
			c.phase.Store(phaseHandler)
		}
	}
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.encrypted && !c.http2.Load() {
		c.lengths.scan(p[:n], lengthLine)
		c.codings.scan(p[:n], codingLine)
	}
	switch {
	case c.phase.Load() != phaseHandler:
		c.noteRead(p[:n], err)
	case n == 1 && len(p) == 1:
		c.early.Store(true)
	}
	return n, err
}

// noteRead follows a header as it comes.
func (c *conn) noteRead(p []byte, err error) {
	phase := c.phase.Load()
	if len(p) > 0 {
		switch phase {
		case phaseNew, phaseWaiting:
			c.phase.CompareAndSwap(phase, phaseHeader)
			c.line = bytes.IndexByte(p, '\n') >= 0
			// For less than four bytes net/http would go on waiting for as long as for an idle connection.
			if d := c.server.limits.Load().ReadHeaderTimeout; phase == phaseWaiting && len(p) < 4 && d > 0 {
				c.setRead(time.Now().Add(d))
			}
		case phaseHeader:
			c.line = c.line || bytes.IndexByte(p, '\n') >= 0
		}
		return
	}
	if phase == phaseHeader && err != nil && errors.Is(err, os.ErrDeadlineExceeded) && !c.closed.Load() {
		c.phase.Store(phaseHandler) // net/http may ask again, and then closes without a word
		c.server.stats.slowHeaders.Add(1)
		if !c.encrypted { // no answer is on its way: no handler runs
			c.SetWriteDeadline(time.Now().Add(answerTimeout))
			c.write([]byte(answer408))
		}
	}
}

// answerTimeout is for an answer that fits into any socket's buffer, unless the client has taken none of those before.
const answerTimeout = time.Second

const (
	answer408 = "HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 43\r\nConnection: close\r\n\r\n" +
		"The header of the request came too slowly.\n"
	answer414 = "HTTP/1.1 414 Request URI Too Long\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 34\r\nConnection: close\r\n\r\n" +
		"The request's target is too long.\n"
)

// Write is net.Conn's, with a deadline that is renewed as long as the client takes something.
func (c *conn) Write(p []byte) (int, error) {
	if c.phase.Load() == phaseHeader && !c.encrypted && bytes.HasPrefix(p, []byte("HTTP/1.1 431 ")) {
		// No handler runs: net/http has given up on a header. This is the goroutine that reads, too.
		if !c.line && c.server.limits.Load().MaxURLBytes > 0 {
			c.server.stats.url414.Add(1)
			_, err := c.write([]byte(answer414))
			return len(p), err
		}
		c.server.stats.header431.Add(1)
	}
	return c.write(p)
}

func (c *conn) write(p []byte) (int, error) {
	patience := c.server.limits.Load().WriteTimeout
	if patience <= 0 {
		c.mu.Lock()
		c.setWrite(c.writeUser) // none of ours is left where there was one before a change of the limits
		c.mu.Unlock()
		return c.Conn.Write(p)
	}
	written := 0
	took := time.Now() // when the client last took something, or up to a quarter of patience later
	for now := took; ; now = time.Now() {
		c.renewWrite(now, patience/8)
		n, err := c.Conn.Write(p[written:])
		written += n
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || c.closed.Load() || c.userExpired() {
			return written, err
		}
		switch ended := time.Now(); {
		case n > 0:
			took = ended
		case ended.Sub(took) >= patience:
			c.server.stats.slowReaders.Add(1)
			c.cut()
			return written, err
		}
	}
}

// renewWrite sees to it that a write that begins now is looked at after a step or two. A single look at the end of the whole
// patience would not tell when in it the client took something.
func (c *conn) renewWrite(now time.Time, step time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	least := now.Add(step)
	if !c.writeUser.IsZero() && c.writeUser.Before(least) {
		c.setWrite(c.writeUser)
		return
	}
	if c.writeDue.Before(least) {
		c.setWrite(least.Add(step)) // so that the next writes need not set it
	}
}

// setWrite sets a deadline if it is not set. c.mu is held.
func (c *conn) setWrite(t time.Time) error {
	if c.writeDue.Equal(t) {
		return nil
	}
	c.writeDue = t
	return c.Conn.SetWriteDeadline(t)
}

// userExpired reports whether the deadline that passed is not ours.
func (c *conn) userExpired() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.writeUser.IsZero() && !c.writeUser.After(time.Now())
}

// cut ends a connection whose client does not deserve more of it.
func (c *conn) cut() {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		l.SetLinger(0)
	}
	c.Close()
}

func (c *conn) setRead(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.IsZero() && c.readDue.IsZero() {
		return nil
	}
	c.readDue = t
	return c.Conn.SetReadDeadline(t)
}

// SetReadDeadline is net.Conn's. After a request, net/http first sets how long the connection may be idle; when four bytes of the
// next one are there, how long its header may take.
func (c *conn) SetReadDeadline(t time.Time) error {
	switch c.phase.Load() {
	case phaseIdle:
		if !c.early.Swap(false) {
			c.phase.CompareAndSwap(phaseIdle, phaseWaiting)
			break
		}
		if d := c.server.limits.Load().ReadHeaderTimeout; c.phase.CompareAndSwap(phaseIdle, phaseHeader) && d > 0 {
			t = time.Now().Add(d)
		}
	case phaseWaiting:
		if c.phase.CompareAndSwap(phaseWaiting, phaseHeader) {
			c.line = true // they came together with the request before, the line perhaps, too
		}
	}
	return c.setRead(t)
}

// SetWriteDeadline is net.Conn's. Ours stays in force beside it.
func (c *conn) SetWriteDeadline(t time.Time) error {
	patience := c.server.limits.Load().WriteTimeout
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.writeUser
	c.writeUser = t
	switch {
	case patience <= 0:
		return c.setWrite(t)
	case t.IsZero():
		if before.IsZero() {
			return nil
		}
		return c.setWrite(time.Now().Add(patience / 4))
	case c.writeDue.IsZero() || t.Before(c.writeDue):
		return c.setWrite(t)
	}
	return nil
}

func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// CloseWrite lets net/http end its side first, where what the client has still sent would make a reset of the close.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

func (c *conn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		defer c.server.gone(c)
	}
	return c.Conn.Close()
}
