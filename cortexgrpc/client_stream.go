package cortexgrpc

import (
	"cmp"
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// StreamInterceptor is a [grpc.StreamClientInterceptor].
func (c *Client) StreamInterceptor(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption) (_ grpc.ClientStream, final error) {
	l, err := c.begin(ctx, method)
	if err == nil && l.engine == nil {
		return streamer(ctx, desc, cc, method, opts...)
	}
	opts, ends := takeEndings(opts)
	if ends != nil {
		final = errAbandoned // where something panics
		defer func() {
			if final != nil {
				ends.run(final)
			}
		}()
	}
	if err != nil {
		return nil, err
	}
	s := &clientStream{call: l, desc: desc, cc: cc, streamer: streamer, opts: opts, ends: ends, whole: true, sending: make(lock, 1)}
	if l.above || l.set.retries == 0 || c.cfg.MaxReplayBytes < 0 {
		s.whole = false
	}
	s.sending.take()
	defer s.sending.leave()
	if err := s.open(nil); err != nil {
		return nil, err
	}
	if ends != nil {
		stop := context.AfterFunc(ctx, s.left)
		s.mu.Lock()
		s.unwatch = stop
		s.mu.Unlock()
	}
	return s, nil
}

// clientStream is a stream whose attempts may change until the first of the answer.
type clientStream struct {
	call     *call
	desc     *grpc.StreamDesc
	cc       *grpc.ClientConn
	streamer grpc.Streamer
	opts     []grpc.CallOption
	ends     *endings

	// sending is held while something is sent, and while a failed attempt is replaced: what the next one is sent again must
	// not be mixed with what comes new.
	sending lock
	closed  bool  // CloseSend was called
	final   error // the call's

	received bool // RecvMsg has returned something

	mu        sync.Mutex
	cur       *streamAttempt // its stream is set
	committed bool           // to cur
	sent      bool           // something was
	whole     bool           // and is all in kept
	kept      []any
	bytes     int
	unwatch   func() bool // ends waiting for the end of the caller's context; nil: nobody does
}

// lock is a mutex that is held over waits.
type lock chan struct{}

func (l lock) take()  { l <- struct{}{} }
func (l lock) leave() { <-l }

type streamAttempt struct {
	*attempt
	stream grpc.ClientStream
}

// open makes attempts until one has a stream on which all was sent that was kept; failed is the one before, nil for the
// original. The error is the call's. sending is held.
func (s *clientStream) open(failed *attempt) error {
	defer s.call.finish()
	for {
		if failed != nil {
			if err := s.call.again(failed, s.replayable(failed)); err != nil {
				return err
			}
		}
		a, err := s.call.admit()
		if err != nil {
			return err
		}
		if s.start(a) {
			return nil
		}
		failed = a
	}
}

// start opens the stream of an attempt and reports whether there is one. The attempt is over otherwise.
func (s *clientStream) start(a *attempt) bool {
	began := false
	defer func() {
		if !began {
			a.close()
		}
	}()
	a.stream, a.last = true, make(chan struct{})
	a.start(s.call)
	if s.call.made > 1 {
		forget(s.opts)
	}
	opts := append(s.opts[:len(s.opts):len(s.opts)], grpc.Trailer(&a.trailer), grpc.OnFinish(func(err error) {
		a.finish(err)
		if s.ends != nil && err != nil && s.cc != nil && s.cc.GetState() == connectivity.Shutdown {
			go s.left() // gRPC may hold what that needs
		}
	}))
	stream, err := s.streamer(a.ctx, s.desc, s.cc, s.call.method, opts...)
	if err != nil {
		a.finish(err)
		return false
	}
	if s.desc.ClientStreams && !s.closed { // what follows is the caller's time
		a.disarm()
		a.permit.Pause()
	}
	s.mu.Lock()
	again := s.kept
	s.mu.Unlock()
	for _, m := range again {
		if stream.SendMsg(m) != nil {
			break // RecvMsg tells why
		}
	}
	if s.closed {
		stream.CloseSend()
	}
	s.mu.Lock()
	s.cur = &streamAttempt{a, stream}
	s.mu.Unlock()
	began = true
	return true
}

// replayable reports whether another attempt could take the place of this one, which failed. Below a layer that retries nothing is kept here:
// what that layer has kept counts.
func (s *clientStream) replayable(a *attempt) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.committed && !a.header.Load() && (s.whole || !s.sent || s.call.above)
}

func (s *clientStream) current() *streamAttempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// commit tells that something of the answer has reached the caller, or that no retry is wanted any more.
func (s *clientStream) commit() {
	s.mu.Lock()
	s.committed, s.whole, s.kept = true, false, nil
	s.mu.Unlock()
}

// keep keeps a message for the next attempt, if there can be one. sending is held.
func (s *clientStream) keep(m any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = true
	if !s.whole {
		return
	}
	if n, known := size(m); known && s.bytes+n <= s.call.c.cfg.MaxReplayBytes {
		s.kept = append(s.kept, m) // gRPC forbids to change it once it is sent
		s.bytes += n
		return
	}
	s.whole, s.kept = false, nil
}

// size is the encoded size of a message.
func size(m any) (int, bool) {
	const overhead = 64 // of keeping a message at all
	switch m := m.(type) {
	case proto.Message:
		return proto.Size(m) + overhead, true
	case protoadapt.MessageV1:
		return proto.Size(protoadapt.MessageV2Of(m)) + overhead, true
	}
	return 0, false
}

// end tells that the stream is over, with the call's error. No lock is held.
func (s *clientStream) end(err error) {
	if s.ends == nil {
		return
	}
	s.mu.Lock()
	stop := s.unwatch
	s.unwatch = nil
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	s.ends.run(err)
}

// left ends a stream whose caller's context is over, or whose connection is closed: nobody may read its end any more.
func (s *clientStream) left() {
	s.sending.take() // while it is being opened
	s.sending.leave()
	for !s.ends.over.Load() {
		a := s.current()
		if a == nil { // it was not
			return
		}
		t := time.NewTimer(finishTime)
		select {
		case <-a.done():
			t.Stop()
		case <-t.C: // an interceptor below that does not pass the call's options on
			s.end(status.FromContextError(cmp.Or(s.call.ctx.Err(), context.Canceled)).Err())
			return
		}
		if a.err == nil {
			s.end(nil)
			return
		}
		s.replace(a)
	}
}

func (s *clientStream) SendMsg(m any) error {
	err := s.send(m)
	if err != nil && err != io.EOF { // gRPC has ended the stream
		s.end(err)
	}
	return err
}

func (s *clientStream) send(m any) error {
	s.sending.take()
	defer s.sending.leave()
	a := s.current()
	s.keep(m)
	err := a.stream.SendMsg(m)
	if s.desc.ClientStreams && !a.header.Load() { // where the target answers each message, it has had no time before this one
		a.permit.Resume()
		a.permit.Pause()
	}
	switch {
	case err == nil:
		return nil
	case err == io.EOF && s.final == nil && s.mayReplace(a):
		return nil // it is kept for the attempt that RecvMsg makes
	}
	s.commit() // whoever is told that sending is over sends nothing to another attempt
	return err
}

// mayReplace reports whether another attempt may take the place of one whose stream is over. sending is held.
func (s *clientStream) mayReplace(a *streamAttempt) bool {
	if !s.replayable(a.attempt) {
		return false
	}
	if md, _ := a.stream.Header(); md != nil { // does not wait: the stream is over
		return false
	}
	return s.ended(a) && a.v.class.Retryable && (s.call.repeatable || a.v.untouched) && !s.call.above
}

// ended waits for what an attempt ended with whose stream is over, and reports whether it is known. gRPC may be about to tell, on another
// goroutine.
func (s *clientStream) ended(a *streamAttempt) bool {
	select {
	case <-a.done():
		return true
	default:
	}
	t := time.NewTimer(finishTime)
	defer t.Stop()
	select {
	case <-a.done():
		return true
	case <-s.call.ctx.Done():
	case <-t.C: // an interceptor below that does not pass the call's options on
	}
	return false
}

// finishTime is how long after its end a stream may take to say what it ended with.
const finishTime = time.Second

func (s *clientStream) CloseSend() error {
	s.sending.take()
	defer s.sending.leave()
	a := s.current()
	err := a.stream.CloseSend()
	if s.desc.ClientStreams && !s.closed { // now it is for the target to answer
		a.permit.Resume()
		a.arm(s.call.limit(a.given))
	}
	s.closed = true
	return err
}

func (s *clientStream) RecvMsg(m any) error {
	for {
		a := s.current()
		err := a.stream.RecvMsg(m)
		if err == nil || err == io.EOF && s.desc.ServerStreams {
			if !s.received {
				s.received = true
				s.commit()
				a.begun()
			}
			if err == io.EOF || !s.desc.ServerStreams {
				a.finish(nil)
				s.end(nil)
			}
			return err
		}
		a.finish(err)
		if a.err == nil { // asked again after the end
			return err
		}
		if err := s.replace(a); err != nil {
			return err
		}
	}
}

func (s *clientStream) Header() (metadata.MD, error) {
	for {
		a := s.current()
		md, err := a.stream.Header()
		if md != nil || err != nil {
			s.commit()
			a.begun()
			if err != nil {
				s.end(err)
			}
			return md, err
		}
		// There is none: the stream is over.
		if !s.ended(a) || a.err == nil || s.replace(a) != nil {
			return nil, nil // RecvMsg tells
		}
	}
}

// replace puts another attempt in the place of one that failed. The error is the call's, which is over then.
func (s *clientStream) replace(failed *streamAttempt) error {
	err := s.next(failed)
	if err != nil {
		s.end(err)
	}
	return err
}

func (s *clientStream) next(failed *streamAttempt) error {
	s.sending.take()
	defer s.sending.leave()
	if s.final != nil {
		return s.final
	}
	if s.current() != failed { // it was replaced already
		return nil
	}
	if !failed.seen.Load() { // no stats handler has told; the stream is over, so that this does not wait
		if md, _ := failed.stream.Header(); md != nil {
			failed.header.Store(true)
		}
	}
	failed.close()
	s.final = s.open(failed.attempt)
	return s.final
}

// Trailer is there once RecvMsg has returned an error.
func (s *clientStream) Trailer() metadata.MD { return s.current().stream.Trailer() }

// Context is that of the stream; as in gRPC, there is no retry once it was asked for.
func (s *clientStream) Context() context.Context {
	s.commit()
	return s.current().stream.Context()
}
