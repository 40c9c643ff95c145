package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// sink is a file in memory. A write may be held up or fail.
type sink struct {
	mu     sync.Mutex
	buf    bytes.Buffer
	writes int
	closed bool
	fail   func(p []byte) (int, error) // nil = it works
	gate   chan struct{}               // a write waits for it; nil = it does not
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	gate, fail := s.gate, s.fail
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.closed {
		return 0, os.ErrClosed
	}
	if fail != nil {
		n, err := fail(p)
		s.buf.Write(p[:n])
		return n, err
	}
	return s.buf.Write(p)
}

func (s *sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *sink) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func logTo(t *testing.T, c Config, sinks ...*sink) *Logger {
	t.Helper()
	l, err := newLogger(c, func() (io.WriteCloser, error) {
		if len(sinks) == 0 {
			return nil, os.ErrPermission
		}
		s := sinks[0]
		sinks = sinks[1:]
		return s, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var everything = Config{Sample: 1, Errors: 1}

func TestLinesAreWrittenSoonAndInOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		l := logTo(t, everything, s)
		time.Sleep(time.Hour) // idle, it does nothing
		for range 10 {
			l.Log(&full)
		}
		time.Sleep(every - time.Millisecond)
		synctest.Wait()
		if s.text() != "" {
			t.Errorf("written before its time: %q", s.text())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := strings.Count(s.text(), "\n"); n != 10 || s.writes != 1 {
			t.Errorf("%d lines in %d writes", n, s.writes)
		}
		for range chunk/len(full.append(nil)) + 1 { // a chunk is not waited for
			l.Log(&full)
		}
		synctest.Wait()
		if s.writes != 2 {
			t.Errorf("a full chunk was not written at once")
		}
		l.Log(&full)
		if err := l.Close(); err != nil || !s.closed {
			t.Errorf("%v, closed is %t", err, s.closed)
		}
		got := l.Stats()
		if n := strings.Count(s.text(), "\n"); uint64(n) != got.Written || got.Dropped+got.Failed != 0 {
			t.Errorf("%d lines, %+v", n, got)
		}
		l.Log(&full)
		if got := l.Stats(); got.Dropped != 1 {
			t.Errorf("after it was closed: %+v", got)
		}
		if err := l.Reopen(); err == nil {
			t.Error("a closed log was opened again")
		}
		l.Close()
	})
}

func TestSlowDiskDropsLinesAndKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{gate: make(chan struct{})}
		l := logTo(t, everything, s)
		size := len(full.append(nil))
		began := time.Now()
		l.Log(&full)
		time.Sleep(every)
		synctest.Wait() // the writer hangs now
		for range 3 * backlog / size {
			l.Log(&full)
		}
		if d := time.Since(began); d != every {
			t.Errorf("the callers waited for %v", d-every)
		}
		got := l.Stats()
		if kept := backlog / size; got.Dropped != uint64(3*backlog/size-kept) || len(l.waiting) > backlog || cap(l.waiting) > 2*backlog {
			t.Errorf("%+v with room for %d, %d of %d bytes waiting", got, kept, len(l.waiting), cap(l.waiting))
		}
		if err := l.Close(); err == nil || time.Since(began) != every+patience {
			t.Errorf("Close returned %v after %v", err, time.Since(began)-every)
		}
		close(s.gate)
		synctest.Wait()
		if n := strings.Count(s.text(), "\n"); n != 1+backlog/size || !s.closed {
			t.Errorf("%d lines when the disk was back, closed is %t", n, s.closed)
		}
	})
}

func TestFullDiskCostsWholeLinesAndIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("no space left")
		var told []error
		s := &sink{}
		c := everything
		c.OnError = func(err error) { told = append(told, err) }
		l := logTo(t, c, s)
		say := func(path string, fail func([]byte) (int, error)) {
			s.mu.Lock()
			s.fail = fail
			s.mu.Unlock()
			l.Log(&Entry{Path: path})
			time.Sleep(every)
			synctest.Wait()
		}
		say("/1", nil)
		say("/2", func(p []byte) (int, error) { return len(p) / 2, full }) // torn
		say("/3", func(p []byte) (int, error) { return 0, full })
		if got := l.Stats(); got.Err != full || got.Failed != 2 || got.Written != 1 {
			t.Errorf("%+v", got)
		}
		say("/4", nil)
		say("/5", func(p []byte) (int, error) { return 0, nil }) // against the contract of io.Writer
		say("/6", nil)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := l.Stats(); got.Err != nil || got.Failed != 3 || got.Written != 3 {
			t.Errorf("%+v", got)
		}
		var paths []string
		for line := range strings.Lines(s.text()) {
			var e struct{ Path string }
			if json.Unmarshal([]byte(line), &e) == nil {
				paths = append(paths, e.Path)
			}
		}
		if strings.Join(paths, "") != "/1/4/6" {
			t.Errorf("whole lines: %q of %q", paths, s.text())
		}
		if len(told) != 2 || !errors.Is(told[0], full) || !errors.Is(told[1], io.ErrShortWrite) {
			t.Errorf("told of %q", told)
		}
	})
}

func TestReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := &sink{}, &sink{}, &sink{}
		l := logTo(t, everything, a, b, c)
		l.Log(&Entry{Path: "/1"})
		time.Sleep(every)
		synctest.Wait()
		if err := l.Reopen(); err != nil { // before the writer has looked
			t.Fatal(err)
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every)
		synctest.Wait()
		if !a.closed || !b.closed || c.closed {
			t.Errorf("closed: %t %t %t", a.closed, b.closed, c.closed)
		}
		l.Log(&Entry{Path: "/2"})
		if err := l.Reopen(); !errors.Is(err, os.ErrPermission) {
			t.Errorf("%v", err)
		}
		l.Close()
		if !strings.Contains(a.text(), "/1") || b.text() != "" || !strings.Contains(c.text(), "/2") {
			t.Errorf("%q %q %q", a.text(), b.text(), c.text())
		}
	})
}

func TestSample(t *testing.T) {
	good, bad := &Entry{Status: 200}, &Entry{Status: 502}
	for _, c := range []struct {
		sample, errors float64
		draws          []float64
		want           uint64 // of good, bad, good, bad
	}{
		{0, 0, nil, 0}, {1, 1, nil, 4}, {0, 1, nil, 2}, {1, 0, nil, 2},
		{0.5, 1, []float64{0.4999, 0.5}, 3}, {0.5, 0.25, []float64{0.3, 0.3, 0.5, 0.2499}, 2},
	} {
		s := &sink{}
		l := logTo(t, Config{Sample: c.sample, Errors: c.errors, Rand: func() float64 {
			d := c.draws[0]
			c.draws = c.draws[1:]
			return d
		}}, s)
		for _, e := range []*Entry{good, bad, good, bad} {
			l.Log(e)
		}
		l.Close()
		if got := l.Stats().Written; got != c.want || len(c.draws) != 0 {
			t.Errorf("%+v: %d lines", c, got)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		cfg   Config
		field string
	}{{Config{}, "Path"}, {Config{Path: "-", Sample: 1.1}, "Sample"}, {Config{Path: "-", Errors: -0.1}, "Errors"}} {
		_, err := Open(c.cfg)
		if ce, ok := errors.AsType[*ConfigError](err); !ok || ce.Field != c.field {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
	if _, err := Open(Config{Path: filepath.Join(dir, "none", "log")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	l, err := Open(Config{Path: "-"})
	if err != nil {
		t.Fatal(err)
	}
	l.Reopen()
	l.Close()
	if _, err := os.Stdout.WriteString(""); err != nil {
		t.Errorf("the standard output was closed: %v", err)
	}
}

// A real file, rotated by renaming it while many log: each line is in one of the files, whole and once.
func TestRotationLosesNothing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "access.log")
	l, err := Open(Config{Path: name, Sample: 1, Errors: 1})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	const callers, calls, rotations = 4, 300, 5
	for range callers {
		all.Go(func() {
			for i := range calls {
				l.Log(&Entry{Status: i})
			}
		})
	}
	for i := range rotations {
		if err := os.Rename(name, name+string(rune('a'+i))); err != nil {
			t.Fatal(err)
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(name + "*")
	lines := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			if !json.Valid(line) {
				t.Errorf("%s: %q", f, line)
			}
			lines++
		}
	}
	if st := l.Stats(); lines != callers*calls || len(files) != 1+rotations || st.Written != callers*calls {
		t.Errorf("%d lines in %d files, %+v", lines, len(files), st)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm()&0o027 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

var raceDetector bool

func TestLogDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("pools forget what they hold here")
	}
	l := logTo(t, Config{Errors: 1}, &sink{fail: func(p []byte) (int, error) { return 0, io.ErrClosedPipe }})
	defer l.Close()
	for range 2 * backlog / len(full.append(nil)) { // the buffers grow first
		l.Log(&full)
	}
	if n := testing.AllocsPerRun(1000, func() { l.Log(&full) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkLog(b *testing.B) {
	l, err := newLogger(everything, func() (io.WriteCloser, error) { return standardOutput{io.Discard}, nil })
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Log(&full)
		}
	})
	b.ReportMetric(float64(l.Stats().Dropped)/float64(b.N), "dropped/op")
}
