package gateway

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// upload is the body of a client's request. Its errors are the client's fault, which the error of the transport does not
// tell; and transports wait for a body without end, so that here is where a client that sends no more of one, or too
// little of it, or too much, is found out. Of requests without a body it is nil, whose methods do nothing.
type upload struct {
	io.ReadCloser
	conn     *http.ResponseController
	request  *http.Request // as it came in
	patience time.Duration // without a byte; 0 = without end
	rate     int64         // bytes a second of waiting that have to come on average, beside patience; 0 = any
	limit    int64         // bytes; 0 = any number
	streams  bool          // HTTP/2: the body is a stream of its own, whose silence holds nothing but itself

	mu      sync.Mutex
	closed  bool
	reading bool
	idle    chan struct{} // closed when nobody reads any more; nil = nobody waits for that
	due     time.Time     // when the patience is over
	read    int64
	waited  time.Duration // for what was read
	expired bool          // while the body was read
	broken  bool          // it gave an error
	long    bool          // it was longer than limit

	malformed bool // it gave an error that is no end of its connection
	trailer   http.Header
	over      bool // the connection's deadline is net/http's again
}

// errTooLong is the error of reading a body that is longer than the gateway takes.
var errTooLong = errors.New("gateway: the request's body is longer than server.max_body_bytes")

// newUpload bounds how long the server waits for the body of r, and how much of it there may be: also where the handler does
// not read it, as the server then does. What a gRPC client streams may be silent, and is bounded message by message at the target.
func (s *state) newUpload(w http.ResponseWriter, r *http.Request) *upload {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength == 0 { // of HTTP/2, where it is not NoBody; over HTTP/1.1 it would go out as chunks
		r.Body = http.NoBody
		return nil
	}
	u := &upload{ReadCloser: r.Body, conn: http.NewResponseController(w), request: r, streams: r.ProtoMajor >= 2}
	if !u.streams || !grpcContent(r.Header) {
		u.patience, u.rate, u.limit = s.server.BodyTimeout, s.server.MinBodyRate, s.server.MaxBodyBytes
	}
	u.renew()
	return u
}

// renew gives the client the whole time anew.
func (u *upload) renew() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.extend(time.Now())
}

// answered says that the target's answer has begun: a client may want to read some of it before it says more. Over HTTP/1 that
// client holds a connection of the target; over HTTP/2 it holds a stream of its own connection. early says that the body is not
// over, so that a connection of HTTP/1 is to be closed after the answer.
func (u *upload) answered() (early bool) {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || u.expired {
		return false
	}
	if u.streams {
		if u.patience > 0 {
			u.patience, u.rate = 0, 0
			u.conn.SetReadDeadline(time.Time{})
		}
		return false
	}
	// Or net/http's server takes for itself what of the body it can get before it writes the answer: the target would get a body
	// with a hole in it. What is left of the body after the answer it then reads without minding errors.
	u.conn.EnableFullDuplex()
	u.extend(time.Now())
	return true
}

// extend is renew with u.mu held.
func (u *upload) extend(now time.Time) {
	if u.over || u.expired || u.patience <= 0 {
		return
	}
	left := u.patience
	if u.rate > 0 {
		left = min(left, u.allowed()-u.waited)
	}
	u.due = now.Add(max(left, time.Millisecond))
	u.conn.SetReadDeadline(u.due) // a writer that cannot is none of a server's
}

// allowed is for how long a body of which so much has come may have been waited for.
func (u *upload) allowed() time.Duration {
	return u.patience + time.Duration(float64(u.read)/float64(u.rate)*float64(time.Second))
}

// Close ends reading. That of net/http's server of HTTP/1 would read what is left of a body, up to 256 KiB, and wait for it: also of a
// client that waits in turn to be told to go on. The server closes it once the answer is out.
func (u *upload) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	u.closed = true
	if u.streams {
		return u.ReadCloser.Close() // ends a Read under way, too
	}
	return nil
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	if u.over && u.streams { // the end was read
		u.mu.Unlock()
		return 0, io.EOF
	}
	if u.over { // the end was read, or the connection may be at the next request
		u.mu.Unlock()
		return u.ReadCloser.Read(p)
	}
	began := time.Now()
	u.extend(began)
	u.reading = true
	u.mu.Unlock()
	n, err := u.ReadCloser.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	if u.idle != nil {
		close(u.idle)
		u.idle = nil
	}
	if u.rate > 0 {
		u.waited += time.Since(began)
	}
	u.read += int64(n)
	if u.limit > 0 && u.read > u.limit {
		u.broken, u.long = true, true
		return int(max(int64(n)-(u.read-u.limit), 0)), errTooLong
	}
	switch {
	case err == nil || err == http.ErrBodyReadAfterClose:
	case err == io.EOF:
		// From now on the server reads ahead to see if the client goes away; a deadline would look like that.
		if !u.over && !u.expired && u.patience > 0 {
			u.conn.SetReadDeadline(time.Time{})
		}
		u.over = true
		u.trailer = u.request.Trailer
	default:
		u.broken = true
		u.malformed = !cutOff(err)
		u.expired = u.expired || errors.Is(err, os.ErrDeadlineExceeded)
	}
	return n, err
}

// end is for the end of the handler: the server reads what is left of a body, and then sets deadlines of its own.
func (u *upload) end() {
	if u == nil {
		return
	}
	u.mu.Lock()
	u.extend(time.Now())
	u.over = true
	if !u.streams {
		u.closed = true // a transport that still sends must not touch the body any more: it is the server's
		u.mu.Unlock()
		return // which waits for a Read that is under way, when the answer is out
	}
	// A transport may still be reading, which net/http's server of HTTP/2 does not expect once the handler is over: it panics where
	// the credit for what was read meets the end of the stream.
	if !u.closed {
		u.closed = true
		u.ReadCloser.Close()
	}
	if !u.reading {
		u.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	u.idle = idle
	u.mu.Unlock()
	<-idle
}

// late reports whether the client let the time pass. It can be known before Read returns.
func (u *upload) late() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expired = u.expired || u.reading && u.patience > 0 && !time.Now().Before(u.due)
	return u.expired
}

// failed reports whether the client's body gave an error.
func (u *upload) failed() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.broken
}

// cutOff reports whether an error of reading a body says that its connection has ended.
func cutOff(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

// wrong reports whether the client's body is no body, though the client is there: net/http ends the request's context all the same.
func (u *upload) wrong() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.malformed || u.long
}

// tooLong reports whether there was more of it than the gateway takes.
func (u *upload) tooLong() bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.long
}

// bytes is how much of it has come.
func (u *upload) bytes() int64 {
	if u == nil {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.read
}

// hangUp closes a client's connection after the answer, rather than to read what nobody wants. Over HTTP/2 the stream alone ends,
// as it does by itself; the header would have the client's other requests find another connection.
func hangUp(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close")
	}
}

// limited reports whether there is a bound on how much of it there may be.
func (u *upload) limited() bool { return u != nil && u.limit > 0 }
