package h1

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readBuffer = 4 << 10
	// idleBuffer is the largest that an idle connection keeps.
	idleBuffer = 16 << 10
	maxFields  = 1000
)

// conn is a connection and what was read ahead of it. It belongs to one exchange at a time, or to the pool.
type conn struct {
	nc        net.Conn
	addr      string
	born      time.Time
	taken     time.Time // by the exchange that has it
	gen       uint64    // of the pool
	idleSince time.Time
	idleFor   time.Duration
	served    bool // a request before this one

	watch    *watch                   // nil: nobody wants to know when answers arrive
	watched  int32                    // its file descriptor there
	waiting  atomic.Pointer[exchange] // for the header of its response; seen by the watch
	received bool                     // a part of what it waits for was read

	raw   syscall.RawConn
	probe func(fd uintptr) bool
	dead  bool // what probe found

	buf    []byte
	r, w   int   // buf[r:w] was read ahead
	err    error // of the last Read, which gave bytes too
	frozen bool  // nothing more is to be read
}

func newConn(nc net.Conn, addr string, gen uint64) *conn {
	c := &conn{nc: nc, addr: addr, gen: gen, born: time.Now(), buf: make([]byte, readBuffer)}
	c.prepareProbe()
	return c
}

func (c *conn) close() {
	c.watch.leave(c)
	c.nc.Close()
}

func (c *conn) buffered() int { return c.w - c.r }

// rest readies the connection for the pool.
func (c *conn) rest() {
	c.served = true
	c.r, c.w = 0, 0
	if len(c.buf) > idleBuffer {
		c.buf = make([]byte, readBuffer)
	}
}

// fill reads at least a byte into the buffer, which grows if it is full.
func (c *conn) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.w == len(c.buf) {
		if c.r == 0 {
			c.buf = append(c.buf, make([]byte, len(c.buf))...)
		} else {
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		}
	}
	if c.received {
		if x := c.waiting.Load(); x != nil { // what had arrived was not all of it
			x.arrive(false)
		}
	}
	n, err := c.read(c.buf[c.w:])
	c.w += n
	c.received = true
	return err
}

// read reads past the buffer, which is empty or what comes before. It gives bytes or an error.
func (c *conn) read(p []byte) (int, error) {
	if c.frozen {
		return 0, errNotBuffered
	}
	if c.err != nil {
		return 0, c.err
	}
	for range 100 {
		n, err := c.nc.Read(p)
		if n > 0 {
			c.err = err
			return n, nil
		}
		if err != nil {
			return 0, err // it may be a deadline, after which reading goes on
		}
	}
	return 0, io.ErrNoProgress
}

// section reads lines up to the first empty one, which is taken too, and returns them with the number of lines. Lines that
// end in LF alone are accepted unless it is strict.
func (c *conn) section(limit int, strict bool) (s string, lines int, err error) {
	start, scan := 0, 0 // of the line; of what was not looked at yet
	for {
		b := c.buf[c.r:c.w]
		i := bytes.IndexByte(b[scan:], '\n')
		if i < 0 {
			if len(b) > limit {
				return "", 0, errHeaderTooLarge
			}
			scan = len(b)
			if err := c.fill(); err != nil {
				return "", 0, err
			}
			continue
		}
		end := scan + i
		if strict && (end == 0 || b[end-1] != '\r') {
			return "", 0, malformed("a line of its trailer that ends in LF alone")
		}
		if end == start || end == start+1 && b[start] == '\r' {
			s = string(b[:start])
			c.r += end + 1
			return s, lines, nil
		}
		if lines++; lines > maxFields+1 {
			return "", 0, errTooManyFields
		}
		start, scan = end+1, end+1
		if start > limit {
			return "", 0, errHeaderTooLarge
		}
	}
}

// maxChunkLine bounds the line with a chunk's size and extensions.
const maxChunkLine = 4 << 10

// chunkLine reads a line that ends in CRLF. It is valid until the next call.
func (c *conn) chunkLine() ([]byte, error) {
	scan := 0
	for {
		b := c.buf[c.r:c.w]
		if i := bytes.IndexByte(b[scan:], '\n'); i >= 0 {
			end := scan + i
			if end == 0 || b[end-1] != '\r' || bytes.IndexByte(b[:end-1], '\r') >= 0 || end > maxChunkLine {
				return nil, malformed("the line with the size of a chunk")
			}
			c.r += end + 1
			return b[:end-1], nil
		}
		scan = len(b)
		if scan > maxChunkLine {
			return nil, malformed("the line with the size of a chunk is too long")
		}
		if err := c.fill(); err != nil {
			return nil, err
		}
	}
}
