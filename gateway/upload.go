package gateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// upload is the body of a client's request. Its errors are the client's fault, which the error of the transport does not
// tell; and net/http's transport waits for a body without end, so that here is where a client that sends no more of one is
// found out. Of requests without a body it is nil, whose methods do nothing.
type upload struct {
	io.ReadCloser
	conn     *http.ResponseController
	patience time.Duration // 0 = without end

	mu      sync.Mutex
	reading bool
	due     time.Time // when the patience is over
	expired bool      // while the body was read
	broken  bool      // it gave an error
	over    bool      // the connection's deadline is net/http's again
}

// newUpload bounds how long the server waits for the body of r: also where the handler does not read it, as the server then does.
func (g *Gateway) newUpload(w http.ResponseWriter, r *http.Request) *upload {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	u := &upload{ReadCloser: r.Body, conn: http.NewResponseController(w), patience: g.patience}
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
	u.extend()
}

// extend is renew with u.mu held.
func (u *upload) extend() {
	if u.over || u.expired || u.patience <= 0 {
		return
	}
	u.due = time.Now().Add(u.patience)
	u.conn.SetReadDeadline(u.due) // a writer that cannot is none of a server's
}

func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	if u.over { // the end was read, or the connection may be at the next request
		u.mu.Unlock()
		return u.ReadCloser.Read(p)
	}
	u.extend()
	u.reading = true
	u.mu.Unlock()
	n, err := u.ReadCloser.Read(p)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	switch {
	case err == nil || err == http.ErrBodyReadAfterClose:
	case err == io.EOF:
		// From now on the server reads ahead to see if the client goes away; a deadline would look like that.
		if !u.over && !u.expired && u.patience > 0 {
			u.conn.SetReadDeadline(time.Time{})
		}
		u.over = true
	default:
		u.broken = true
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
	defer u.mu.Unlock()
	u.extend()
	u.over = true
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
