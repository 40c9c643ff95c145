package front

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// A client that opens streams and cancels them right away makes work that no limit of streams bounds, since a cancelled stream
// counts no more (CVE-2023-44487). Its connection is cut.
const (
	// rightAway is how soon after its begin a stream must have been cancelled to count. A client that waits longer than this gets
	// no more work done by cancelling than by taking the answers; and clients with deadlines have longer ones.
	rightAway = 10 * time.Millisecond

	// manyResets of streams cancelled right away, in resetWindow, are abuse if they are two thirds of its streams there: a browser
	// that leaves a page cancels a hundred at a time, a client that hedges its calls no more than half of them.
	manyResets  = 500
	resetWindow = 10 * time.Second
)

// streamCounts counts the streams of a connection. It is safe for concurrent use.
type streamCounts struct {
	mu              sync.Mutex
	since           time.Time
	streams, resets int
}

// ended counts a stream, and reports whether the connection is to be cut: once for a connection.
func (n *streamCounts) ended(now time.Time, cancelled bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resets < 0 {
		return false
	}
	if now.Sub(n.since) > resetWindow {
		n.since, n.streams, n.resets = now, 0, 0
	}
	n.streams++
	if cancelled {
		n.resets++
	}
	if n.resets >= manyResets && 3*n.resets > 2*n.streams {
		n.resets = -1
		return true
	}
	return false
}

// http2Buffer is what net/http's writer of HTTP/2 keeps before it sends. Writes that fit into it do not wait for the client.
const http2Buffer = 4 << 10

// writePiece is what the client must have room for within the timeout.
const writePiece = 32 << 10

// stream is the writer of a request of HTTP/2. It resets the stream where its client leaves its window shut: the connection
// itself makes progress then and tells nothing.
type stream struct {
	http.ResponseWriter
	server   *Server
	over     context.Context // of the request: done when its client has cancelled it
	patience time.Duration
	buffered int // bytes, at most, that the client may not have got room for yet; touched by writers only

	mu    sync.Mutex
	began time.Time // of the write that is under way; zero = none
	timer *time.Timer
	armed bool
	done  bool
	until time.Time // the handler's own deadline
}

// Unwrap is for http.ResponseController.
func (s *stream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *stream) Write(p []byte) (int, error) {
	if s.buffered += len(p); s.buffered < http2Buffer {
		return s.ResponseWriter.Write(p)
	}
	written := 0
	for {
		piece := p[written:min(len(p), written+writePiece)]
		s.begin()
		n, err := s.ResponseWriter.Write(piece)
		s.took()
		written += n
		if err != nil || written == len(p) {
			return written, err
		}
	}
}

func (s *stream) WriteString(p string) (int, error) {
	if s.buffered+len(p) < http2Buffer {
		s.buffered += len(p)
		return io.WriteString(s.ResponseWriter, p)
	}
	return s.Write([]byte(p))
}

func (s *stream) Flush() { s.FlushError() }

// FlushError is for http.ResponseController.
func (s *stream) FlushError() error {
	s.begin()
	err := http.NewResponseController(s.ResponseWriter).Flush()
	s.took()
	if err == nil {
		s.buffered = 0
	}
	return err
}

// SetWriteDeadline is for http.ResponseController. Ours stays in force beside it.
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = t
	return http.NewResponseController(s.ResponseWriter).SetWriteDeadline(t)
}

// begin is for the begin of a write that may have to wait for the client.
func (s *stream) begin() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = now
	if s.armed {
		return // it will look again when it fires
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(s.patience, s.look)
	} else {
		s.timer.Reset(s.patience)
	}
}

func (s *stream) took() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Time{}
}

// look is called by the timer: it need not be set anew for each write that way.
func (s *stream) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.done || s.began.IsZero() {
		return
	}
	if left := s.patience - time.Since(s.began); left > 0 {
		s.armed = true
		s.timer.Reset(left)
		return
	}
	s.server.stats.slowStreams.Add(1)
	setWriteDeadline(s.ResponseWriter, time.Unix(1, 0)) // resets the stream
}

// end is for the end of the handler. What is left in its buffer is written by net/http then, which the timer cannot watch.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.buffered == 0 || s.over.Err() != nil { // net/http would keep the deadline of a stream that is gone
		return
	}
	due := time.Now().Add(s.patience)
	if !s.until.IsZero() && s.until.Before(due) {
		due = s.until
	}
	setWriteDeadline(s.ResponseWriter, due)
}

// setWriteDeadline is http.ResponseController's, without making one.
func setWriteDeadline(w http.ResponseWriter, t time.Time) {
	if d, ok := w.(interface{ SetWriteDeadline(time.Time) error }); ok {
		d.SetWriteDeadline(t)
	}
}
