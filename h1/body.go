package h1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"sync"
	"sync/atomic"
	"time"
)

func mime(h http.Header) textproto.MIMEHeader { return textproto.MIMEHeader(h) }

// reply is the state of a response's body.
type reply struct {
	frame  frame
	keep   bool
	phase  phase
	left   int64 // of the body, or of the chunk
	budget int   // for what chunks carry besides data

	mu     sync.Mutex // held while it is read
	err    error      // how it ended
	closed atomic.Bool
}

type phase uint8

const (
	chunkSize phase = iota
	chunkData
	chunkEnd // CRLF
	chunkTrailer
)

// chunkBudget is how much the lines with the sizes of chunks may be out of proportion to the data.
const chunkBudget = 16 << 10

// Read and Close make the exchange its response's body.

func (x *exchange) Read(p []byte) (int, error) {
	r := &x.reply
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed.Load():
		return 0, http.ErrBodyReadAfterClose
	case r.err != nil:
		return 0, r.err
	case x.canceled.Load():
		return 0, x.ended(net.ErrClosed)
	case len(p) == 0:
		return 0, nil
	}
	n, err := x.readBody(p)
	if err != nil {
		err = x.ended(err)
	}
	return n, err
}

// Close does not wait for a Read that is under way; it makes it fail.
func (x *exchange) Close() error {
	r := &x.reply
	if r.closed.Swap(true) {
		return nil
	}
	if !r.mu.TryLock() {
		x.release(false)
		return nil
	}
	defer r.mu.Unlock()
	if r.err == nil {
		x.ended(x.skip())
	}
	return nil
}

// skip takes the rest of the body from the buffer. The error is io.EOF if all of it was there.
func (x *exchange) skip() error {
	x.c.frozen = true
	defer func() { x.c.frozen = false }()
	var scratch [512]byte
	for {
		if _, err := x.readBody(scratch[:]); err != nil {
			return err
		}
	}
}

// ended is called once, when the body has ended with err; it returns what the reader is told.
func (x *exchange) ended(err error) error {
	r := &x.reply
	if err == io.EOF {
		clean := r.keep && x.c.buffered() == 0 && x.c.err == nil
		r.err = err
		x.release(clean)
		return err
	}
	x.release(false)
	switch {
	case r.closed.Load():
		err = http.ErrBodyReadAfterClose
	case x.canceled.Load():
		err = context.Cause(x.req.Context())
	default:
		x.mu.Lock()
		if x.bodyErr != nil {
			err = x.bodyErr
		}
		x.mu.Unlock()
	}
	if m, ok := errors.AsType[malformed](err); ok {
		err = x.fail(OpResponse, m)
	}
	r.err = err
	return err
}

func (x *exchange) readBody(p []byte) (int, error) {
	r, c := &x.reply, x.c
	switch r.frame {
	case frameClose:
		return c.take(p)
	case frameChunked:
		n, err := x.readChunked(p)
		if err == io.EOF && r.phase != chunkTrailer {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	if int64(len(p)) > r.left {
		p = p[:r.left]
	}
	n, err := c.take(p)
	r.left -= int64(n)
	switch {
	case err == io.EOF && r.left > 0:
		err = io.ErrUnexpectedEOF
	case err == nil && r.left == 0:
		err = io.EOF // at once, so that the connection is free
	}
	return n, err
}

// take reads from the buffer, and past it if there is nothing in it. p must not reach beyond the body.
func (c *conn) take(p []byte) (int, error) {
	if c.r == c.w {
		if len(p) >= readBuffer/4 {
			return c.read(p)
		}
		// Few bytes are wanted: with a read for each of them more time would go by in the kernel than anywhere else.
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.buf[c.r:c.w])
	c.r += n
	return n, nil
}

// readChunked blocks only as long as it has no data. io.EOF in the phase chunkTrailer is the end of the body.
func (x *exchange) readChunked(p []byte) (n int, err error) {
	r, c := &x.reply, x.c
	for {
		switch r.phase {
		case chunkSize:
			if n > 0 && bytes.IndexByte(c.buf[c.r:c.w], '\n') < 0 {
				return n, nil
			}
			line, err := c.chunkLine()
			if err != nil {
				return n, err
			}
			size, err := parseChunkSize(line)
			if err != nil {
				return n, err
			}
			r.budget += len(line) - 16
			if r.budget > 0 && size < chunkBudget {
				r.budget -= 2 * int(size)
			} else {
				r.budget = 0
			}
			if r.budget = max(r.budget, 0); r.budget > chunkBudget {
				return n, malformed("its chunks carry more than data")
			}
			r.left, r.phase = size, chunkData
			if size == 0 {
				r.phase = chunkTrailer
			}
		case chunkData:
			if n == len(p) || n > 0 && c.buffered() == 0 {
				return n, nil
			}
			q := p[n:]
			if int64(len(q)) > r.left {
				q = q[:r.left]
			}
			m, err := c.take(q)
			n += m
			if r.left -= int64(m); r.left == 0 {
				r.phase = chunkEnd
			}
			if err != nil {
				return n, err
			}
		case chunkEnd:
			for c.buffered() < 2 {
				if n > 0 {
					return n, nil
				}
				if err := c.fill(); err != nil {
					return n, err
				}
			}
			if c.buf[c.r] != '\r' || c.buf[c.r+1] != '\n' {
				return n, malformed("a chunk is not of its size")
			}
			c.r += 2
			r.phase = chunkSize
		case chunkTrailer:
			if n > 0 && !bytes.HasPrefix(c.buf[c.r:c.w], []byte("\r\n")) {
				return n, nil
			}
			if err := x.readTrailer(); err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return n, err
			}
			return n, io.EOF
		}
	}
}

func (x *exchange) readTrailer() error {
	s, lines, err := x.c.section(int(x.t.cfg.ResponseHeaderLimit), true)
	if err != nil || lines == 0 {
		return err
	}
	trailer := make(http.Header, lines)
	if err := parseFields(s, trailer, make([]string, lines)); err != nil {
		return err
	}
	for key, values := range trailer {
		if framing(key) {
			continue
		}
		if x.resp.Trailer == nil {
			x.resp.Trailer = make(http.Header, len(trailer))
		}
		x.resp.Trailer[key] = values
	}
	return nil
}

// parseChunkSize takes the size from the line, whose extensions are nobody's business.
func parseChunkSize(line []byte) (int64, error) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	} else {
		line = bytes.TrimRight(line, " \t")
	}
	if len(line) == 0 || len(line) > 15 {
		return 0, malformed("the size of a chunk")
	}
	var n int64
	for _, b := range line {
		switch {
		case '0' <= b && b <= '9':
			b -= '0'
		case 'a' <= b && b <= 'f':
			b -= 'a' - 10
		case 'A' <= b && b <= 'F':
			b -= 'A' - 10
		default:
			return 0, malformed("the size of a chunk")
		}
		n = n<<4 | int64(b)
	}
	return n, nil
}

// upgraded is the body of a 101: the connection, and first what was read ahead of it.
type upgraded struct {
	nc    net.Conn
	mu    sync.Mutex
	ahead []byte
}

func (u *upgraded) Read(p []byte) (int, error) {
	u.mu.Lock()
	if len(u.ahead) > 0 {
		n := copy(p, u.ahead)
		u.ahead = u.ahead[n:]
		u.mu.Unlock()
		return n, nil
	}
	u.ahead = nil
	u.mu.Unlock()
	return u.nc.Read(p)
}

func (u *upgraded) Write(p []byte) (int, error) { return u.nc.Write(p) }

func (u *upgraded) Close() error { return u.nc.Close() }

// SetWriteDeadline is that of the connection.
func (u *upgraded) SetWriteDeadline(t time.Time) error { return u.nc.SetWriteDeadline(t) }

// CloseWrite ends what is written, where the connection can do that.
func (u *upgraded) CloseWrite() error {
	if c, ok := u.nc.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}
