package h1

import (
	"io"
	"strconv"
	"sync"
	"time"
)

// sendBuffers are what bodies go through that are not sent by the caller.
var sendBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// startSender has the body sent by a goroutine of its own.
func (x *exchange) startSender() {
	x.taken = true
	x.mu.Lock()
	x.senderOver = false
	x.mu.Unlock()
	x.done = make(chan struct{})
	go x.send(x.c, x.body, x.done)
}

func (x *exchange) send(c *conn, body io.ReadCloser, done chan struct{}) {
	defer close(done)
	b := sendBuffers.Get().(*[]byte)
	fault, err := x.copyBody(c, body, *b)
	sendBuffers.Put(b)
	body.Close()
	if fault != nil {
		err = fault
	}
	x.wrote(err)

	x.mu.Lock()
	x.senderOver = true
	x.bodyErr = fault
	if fault == nil {
		x.writeErr = err
	}
	x.dirty = x.dirty || err != nil
	if x.late != nil {
		x.late.Stop()
	}
	put := x.readerOver && !x.dirty
	switch {
	case put:
	case x.readerOver || fault != nil: // the server must not take what it got for the whole
		c.close()
	case err != nil && !x.answered:
		c.nc.SetReadDeadline(time.Now().Add(lastWords))
	}
	x.mu.Unlock()
	if put {
		x.t.pool.put(c)
	}
}

// copyBody sends the body. fault is the body's, err the connection's.
func (x *exchange) copyBody(c *conn, body io.Reader, b []byte) (fault, err error) {
	if x.out.length < 0 {
		return x.copyChunks(c, body, b)
	}
	left := x.out.length
	held, idle := 0, 0 // the last piece waits in b for the end of the body
	for {
		room := b[held:]
		if held == 0 && int64(len(room)) > left {
			room = room[:left]
		} else if held == 0 {
			room = room[:len(room)-1]
		}
		n, rerr := body.Read(room)
		if n > 0 {
			idle = 0
			if held > 0 {
				return errBodyLong, nil
			}
			if left -= int64(n); left == 0 {
				held = n
			} else if rerr == nil {
				if _, err := c.nc.Write(b[:n]); err != nil {
					return nil, err
				}
			}
		} else if idle++; rerr == nil && idle == 100 {
			return io.ErrNoProgress, nil
		}
		switch {
		case rerr == nil:
		case rerr != io.EOF:
			return rerr, nil
		case left > 0:
			return errBodyShort, nil
		default:
			_, err := c.nc.Write(b[:held])
			return nil, err
		}
	}
}

// chunkRoom is what the line with the size of a chunk needs in front of it.
const chunkRoom = 16

func (x *exchange) copyChunks(c *conn, body io.Reader, b []byte) (fault, err error) {
	for idle := 0; ; {
		n, rerr := body.Read(b[chunkRoom : len(b)-2])
		if rerr != nil && rerr != io.EOF {
			return rerr, nil
		}
		var piece []byte
		if n > 0 {
			idle = 0
			var line [chunkRoom]byte
			size := append(strconv.AppendInt(line[:0], int64(n), 16), "\r\n"...)
			start := chunkRoom - len(size)
			copy(b[start:], size)
			end := chunkRoom + n
			b[end], b[end+1] = '\r', '\n'
			piece = b[start : end+2]
		} else if idle++; rerr == nil {
			if idle == 100 {
				return io.ErrNoProgress, nil
			}
			continue
		}
		if rerr == io.EOF {
			if piece, err = appendTrailer(piece, x.req.Trailer); err != nil {
				return err, nil
			}
		}
		if _, err := c.nc.Write(piece); err != nil || rerr == io.EOF {
			return nil, err
		}
	}
}
