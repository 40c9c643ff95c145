package cortexhttp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

// countedBody is a body that knows how often it was closed.
type countedBody struct {
	io.Reader
	mu     sync.Mutex
	closes int
}

func (b *countedBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes++
	return nil
}

func (b *countedBody) closed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closes
}

// A model of any number of attempts that read a part or all of a body: what an attempt reads is always a prefix of the body,
// a replay begins at its beginning, and it is refused exactly where what was read is more than may be kept.
func TestReplayIsWholeOrNotAtAll(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		size := rng.IntN(200)
		limit := int64(rng.IntN(200))
		length := int64(-1)
		if size > 0 && rng.IntN(2) == 0 {
			length = int64(size)
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		src := &countedBody{Reader: iotest.OneByteReader(bytes.NewReader(data))}
		if rng.IntN(2) == 0 {
			src.Reader = iotest.DataErrReader(bytes.NewReader(data))
		}
		s := newSource(src, length, limit, nil)
		kept := limit
		if length > limit {
			kept = 0
		}
		most := 0 // that any attempt has read
		for attempt := range 4 {
			r, skip := s.open(0)
			if want := int64(most) > kept; want != (skip == ReplayBodyTooLarge) || !want && skip != ReplayNotSkipped {
				t.Fatalf("round %d attempt %d: size %d limit %d length %d read %d: %v", round, attempt, size, limit, length, most, skip)
			}
			if skip != ReplayNotSkipped {
				break
			}
			part := rng.IntN(size + 2)
			got, err := io.ReadAll(io.LimitReader(r, int64(part)))
			if err != nil || !bytes.Equal(got, data[:min(part, size)]) {
				t.Fatalf("round %d attempt %d: read %d of %d: %v", round, attempt, len(got), part, err)
			}
			most = max(most, len(got))
			if rng.IntN(2) == 0 {
				r.Close()
				r.Close()
			}
		}
		s.finish()
		if s.reader != nil {
			s.reader.Close()
		}
		if n := src.closed(); n != 1 {
			t.Fatalf("round %d: closed %d times", round, n)
		}
		if len(s.kept) > int(limit) || cap(s.kept) > max(2*int(limit), 64) {
			t.Fatalf("round %d: keeps %d (%d) of %d", round, len(s.kept), cap(s.kept), limit)
		}
	}
}

// F45: a body of the limit was counted twice, one above it was cut and replayed.
func TestReplayLimitIsExact(t *testing.T) {
	for _, c := range []struct {
		size int
		want ReplaySkip
	}{{0, ReplayNotSkipped}, {1, ReplayNotSkipped}, {9, ReplayNotSkipped}, {16, ReplayNotSkipped}, {17, ReplayBodyTooLarge}, {90, ReplayBodyTooLarge}} {
		for _, length := range []int64{-1, int64(c.size)} {
			s := newSource(io.NopCloser(strings.NewReader(strings.Repeat("x", c.size))), length, 16, nil)
			r, _ := s.open(0)
			io.Copy(io.Discard, r)
			if got := s.replayable(0); got != c.want {
				t.Errorf("%d bytes, declared %d: %v, want %v", c.size, length, got, c.want)
			}
		}
	}
}

// F56: net/http may still be reading a body when its answer is there already.
func TestReplayDoesNotTouchABodyInUse(t *testing.T) {
	pr, pw := io.Pipe()
	s := newSource(pr, -1, 100, nil)
	old, _ := s.open(0)
	done := make(chan error)
	go func() {
		_, err := old.Read(make([]byte, 10))
		done <- err
	}()
	for s.replayable(0) != ReplayBodyInUse { // until the goroutine is inside
		runtime.Gosched()
	}
	if _, skip := s.open(0); skip != ReplayBodyInUse {
		t.Errorf("opened beside a reader: %v", skip)
	}
	pw.Write([]byte("abc"))
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	fresh, skip := s.open(0)
	if skip != ReplayNotSkipped {
		t.Fatal(skip)
	}
	if n, err := old.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("the old reader reads on: %d, %v", n, err)
	}
	go func() {
		pw.Write([]byte("def"))
		pw.Close()
	}()
	if got, err := io.ReadAll(fresh); string(got) != "abcdef" || err != nil {
		t.Errorf("replay %q, %v", got, err)
	}
	old.Close() // late
	fresh.Close()
	s.finish()
}

// The last bytes were sent, and the client asks if there are more: with the declared length it has them all.
func TestReplayOfDeclaredLengthDoesNotWaitForTheEnd(t *testing.T) {
	pr, pw := io.Pipe()
	s := newSource(pr, 3, 100, nil)
	old, _ := s.open(0)
	go pw.Write([]byte("abc"))
	if _, err := io.ReadFull(old, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		_, err := old.Read(make([]byte, 10))
		done <- err
	}()
	for {
		s.mu.Lock()
		reading := s.reading
		s.mu.Unlock()
		if reading {
			break
		}
		runtime.Gosched()
	}
	fresh, skip := s.open(0)
	if skip != ReplayNotSkipped {
		t.Fatal(skip)
	}
	if got, err := io.ReadAll(fresh); string(got) != "abc" || err != nil {
		t.Errorf("replay %q, %v", got, err)
	}
	fresh.Close()
	s.finish()
	if err := <-done; err == nil { // closing the pipe has freed it
		t.Error("the old reader got something")
	}
}

func TestReplayGivesUpOnABodyThatFails(t *testing.T) {
	broken := errors.New("disk on fire")
	for name, src := range map[string]io.Reader{
		"at once": iotest.ErrReader(broken),
		"midway":  io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)),
	} {
		s := newSource(io.NopCloser(src), -1, 100, nil)
		r, _ := s.open(0)
		if _, err := io.Copy(io.Discard, r); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		if _, skip := s.open(0); skip != ReplayBodyFailed {
			t.Errorf("%s: %v", name, skip)
		}
		if !errors.Is(s.failure(), broken) {
			t.Errorf("%s: failure %v", name, s.failure())
		}
	}
	s := newSource(io.NopCloser(strings.NewReader("abc")), 5, 100, nil)
	r, _ := s.open(0)
	io.Copy(io.Discard, r)
	if s.failure() == nil {
		t.Error("a body shorter than declared is no failure of the caller's")
	}
}

// A body that panics while it is read must not leave the source locked or in use.
func TestReplaySurvivesAPanickingBody(t *testing.T) {
	s := newSource(io.NopCloser(panicReader{}), -1, 100, nil)
	r, _ := s.open(0)
	func() {
		defer func() { recover() }()
		r.Read(make([]byte, 1))
	}()
	if got := s.replayable(0); got != ReplayBodyFailed {
		t.Errorf("%v", got)
	}
	r.Close()
	s.finish()
}

type panicReader struct{}

func (panicReader) Read([]byte) (int, error) { panic("body") }
