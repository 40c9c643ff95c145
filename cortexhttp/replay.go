package cortexhttp

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// source is a request body without GetBody that may have to be sent again. It is handed on as it comes, never held back;
// what an attempt has read of it is kept, up to a limit, and a later attempt reads that first and then what is left. So a
// replay is whole, or it does not take place.
//
// net/http may read a body after RoundTrip has returned an early answer, and closes it when it likes. Each attempt therefore
// gets a reader of its own, which is shut before the next one is opened.
type source struct {
	limit  int    // bytes kept
	length int64  // declared; -1 = not known
	memory Memory // that they are taken of; nil = no bound

	mu      sync.Mutex
	src     io.ReadCloser
	kept    []byte
	read    int64         // from src
	err     error         // that src ended with: io.EOF or a failure of the caller's
	held    int64         // reserved in memory, for all of kept's capacity
	over    bool          // what was read is not kept, or not any more; kept is empty
	starved bool          // for want of memory
	reading bool          // somebody is inside src.Read
	idle    chan struct{} // closed when they are out of it, if somebody waits
	reader  *bodyReader
	last    bool // no other attempt follows: src is closed with its reader
	closed  bool // src was
}

// newSource returns a source that keeps limit bytes, as far as memory has them; a body that is known to be longer is not kept at all.
func newSource(src io.ReadCloser, length, limit int64, memory Memory) *source {
	if length > limit {
		limit = 0
	}
	return &source{src: src, length: length, limit: int(max(limit, 0)), memory: memory}
}

// bodyReader is what one attempt reads the body by.
type bodyReader struct {
	s      *source
	upload *upload // nil: all of the body is there
	at     int64
	shut   bool
}

func (r *bodyReader) Read(p []byte) (int, error) {
	s := r.s
	s.mu.Lock()
	switch {
	case r.shut:
		s.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	case r.at < s.read: // kept: the reader would not have been opened otherwise
		defer s.mu.Unlock()
		if s.over { // since then: a Read that was under way brought more than there should be
			return 0, io.ErrUnexpectedEOF
		}
		n := copy(p, s.kept[r.at:])
		r.at += int64(n)
		if s.last && r.at == s.read {
			s.forget()
		}
		return n, nil
	case s.err != nil:
		defer s.mu.Unlock()
		return 0, s.err
	case r.upload != nil && !r.upload.enter(): // cut already: not to be kept waiting
		s.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	s.reading = true
	s.mu.Unlock()

	n, err := 0, error(io.ErrUnexpectedEOF)
	defer func() { // also where src panics
		s.mu.Lock()
		s.reading = false
		if s.idle != nil {
			close(s.idle)
			s.idle = nil
		}
		s.keep(p[:n])
		r.at += int64(n)
		if err != nil && s.err == nil {
			s.err = err
		}
		whole := s.whole()
		s.mu.Unlock()
		if r.upload != nil {
			r.upload.leave(whole)
		}
	}()
	n, err = s.src.Read(p)
	return n, err
}

// keep takes in what was read; s.mu is held.
func (s *source) keep(p []byte) {
	s.read += int64(len(p))
	switch {
	case s.over || len(p) == 0:
	case s.last || s.read > int64(s.limit):
		s.forget()
	case !s.grow(len(p)):
		s.starved = true
		s.forget()
	default:
		s.kept = append(s.kept, p...)
	}
}

// grow makes room for n more bytes, which are within the limit, and reports whether there is memory for it. What the new room takes is
// reserved while the old one is still held.
func (s *source) grow(n int) bool {
	need, size := len(s.kept)+n, cap(s.kept)
	if need <= size {
		return true
	}
	if size = max(2*size, 512); s.kept == nil && s.length > 0 {
		size = int(s.length) // not more than the limit
	}
	size = max(need, min(size, s.limit))
	if s.memory != nil && !s.memory.Reserve(int64(size)) {
		return false
	}
	kept := append(make([]byte, 0, size), s.kept...)
	s.release()
	s.kept, s.held = kept, int64(size)
	return true
}

// forget drops what is kept, for good.
func (s *source) forget() {
	s.over, s.kept = true, nil
	s.release()
}

func (s *source) release() {
	if s.memory != nil && s.held > 0 {
		s.memory.Release(s.held)
	}
	s.held = 0
}

func (r *bodyReader) Close() error {
	s := r.s
	s.mu.Lock()
	r.shut = true
	if s.last && r == s.reader {
		s.forget()
	}
	// An earlier attempt's transport may be late.
	return s.closeIf(s.err != nil || s.last && r == s.reader)
}

// closeIf closes src once and unlocks s.mu, which is held.
func (s *source) closeIf(now bool) error {
	now = now && !s.closed
	s.closed = s.closed || now
	s.mu.Unlock()
	if now {
		return s.src.Close() // unblocks a Read under way
	}
	return nil
}

// replayWait is how long an attempt that has its answer already may take to stop reading the body, if it is to be sent again.
// What is in memory is read in no time, what comes from a slow client is not waited for.
const replayWait = 5 * time.Millisecond

// replayable says why the body cannot be sent again. Where an attempt is just reading it, that may change within wait.
func (s *source) replayable(wait time.Duration) ReplaySkip {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settle(wait)
}

// replayableWhole reports whether all of the body has been sent, and can be sent again.
func (s *source) replayableWhole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole() && !s.over
}

// settle is replayable with s.mu held, which it gives away while it waits.
func (s *source) settle(wait time.Duration) ReplaySkip {
	skip := s.skip()
	if skip != ReplayBodyInUse || wait <= 0 {
		return skip
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for passed := false; skip == ReplayBodyInUse && !passed; skip = s.skip() {
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle := s.idle
		s.mu.Unlock()
		select {
		case <-idle:
		case <-timeout.C:
			passed = true
		}
		s.mu.Lock()
	}
	return skip
}

// skip is what settle says at the moment.
func (s *source) skip() ReplaySkip {
	switch {
	case s.err != nil && s.err != io.EOF:
		return ReplayBodyFailed
	case s.starved:
		return ReplayNoMemory
	case s.over:
		return ReplayBodyTooLarge
	case s.whole():
		return ReplayNotSkipped
	case s.reading:
		return ReplayBodyInUse
	}
	return ReplayNotSkipped
}

// whole reports whether all of the body is kept. A client that has sent the declared length may still be waiting for the
// end.
func (s *source) whole() bool { return s.err == io.EOF || s.length > 0 && s.read == s.length }

// there reports whether nothing more has to come from the caller.
func (s *source) there() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole()
}

// abort closes src, so that a Read under way ends.
func (s *source) abort() {
	s.mu.Lock()
	s.closeIf(true)
}

// open returns the body for the next attempt and shuts the reader of the one before.
func (s *source) open(wait time.Duration) (io.ReadCloser, ReplaySkip) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if skip := s.settle(wait); skip != ReplayNotSkipped {
		return nil, skip
	}
	if s.reader != nil {
		s.reader.shut = true
		if s.reading {
			s.err = io.EOF // whole; whoever still waits for the end is left alone with it
		}
	}
	s.reader = &bodyReader{s: s}
	return s.reader, ReplayNotSkipped
}

// skipFor says why the body, of which nothing was kept, could not be sent again if limit bytes had been.
func (s *source) skipFor(limit int64) ReplaySkip {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil && s.err != io.EOF:
		return ReplayBodyFailed
	case s.read > 0 && max(s.read, s.length) > limit:
		return ReplayBodyTooLarge
	case s.reading && !s.whole():
		return ReplayBodyInUse
	}
	return ReplayNotSkipped
}

// cutOff says that nobody will read on: the attempt that did has ended in a panic.
func (s *source) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader != nil {
		s.reader.shut = true
	}
}

// finish says that no other attempt will be made. src is closed now, or by the last attempt's transport when it is done; what is
// kept is dropped now, unless that still has to read of it.
func (s *source) finish() {
	s.mu.Lock()
	s.last = true
	if s.reader == nil || s.reader.shut || s.reader.at >= s.read {
		s.forget()
	}
	s.closeIf(s.reader == nil || s.reader.shut)
}

// failure is the error with which reading the body ended, nil where it did not or came to its end: the caller's doing. A body
// shorter than declared is one.
func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil && s.err != io.EOF:
		return s.err
	case s.err == io.EOF && s.length > 0 && s.read < s.length, s.length > 0 && s.read > s.length:
		return io.ErrUnexpectedEOF
	}
	return nil
}
