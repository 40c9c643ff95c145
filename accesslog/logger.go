// Package accesslog writes one line of JSON for each call.
package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// backlog bounds the lines that wait to be written, in bytes. As much again may just be being written.
	backlog = 1 << 20
	// chunk is how much is waited for before it is written, every how long at most.
	chunk = 32 << 10
	every = 250 * time.Millisecond
	// patience is how long Close waits for a disk.
	patience = 5 * time.Second
)

// ErrClosed is the error of a Logger that was closed.
var ErrClosed = errors.New("accesslog: the log is closed")

// Config describes a [Logger].
type Config struct {
	// Path is the file that lines are appended to; it is made with mode 0640 where there is none. "-" is the standard output.
	Path string
	// Sample is the share of the calls that were answered well that are logged ([Entry.Good]), Errors that of all others; both
	// from 0 to 1.
	Sample, Errors float64
	// Rand is a source of uniform numbers in [0,1) for the samples, safe for concurrent use; nil: math/rand/v2. It is not asked where a
	// share is 0 or 1.
	Rand func() float64
	// OnError is told when writing fails, the first time and whenever it had worked in between; nil: nobody. It is called
	// on the goroutine that writes and must not wait for the Logger.
	OnError func(error)
}

// A ConfigError names the field of a [Config] that cannot be used and says what would be right.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("accesslog: %s: %v: want %s", e.Field, e.Value, e.Want)
}

// A Logger writes entries to a file. It never keeps a caller waiting for the disk: lines are kept in memory until a goroutine
// of the logger's has written them, at most a quarter of a second, and where more than 1 MiB of them waits they are dropped, and
// counted. It is safe for concurrent use.
type Logger struct {
	cfg  Config
	open func() (io.WriteCloser, error)

	lines sync.Pool // of *[]byte

	mu      sync.Mutex
	waiting []byte
	spare   []byte
	next    io.WriteCloser // what Reopen has opened
	stats   Stats
	closed  bool

	dirty, full chan struct{} // there is something to write; there is a chunk of it
	stop, done  chan struct{}

	// Of the goroutine that writes.
	file    io.WriteCloser
	torn    bool // the last line was written in part
	failing bool
}

// Stats count lines since the logger was opened. Calls that were not in the sample have none.
type Stats struct {
	Written uint64
	Dropped uint64 // because too much was waiting already, or the logger was closed
	Failed  uint64 // because the file could not be written
	Err     error  // why, the last time that it could not; nil once it can be again
}

// Open returns a logger that writes to the file of the configuration. The error is a [*ConfigError], or that of opening the
// file. The logger must be closed.
func Open(c Config) (*Logger, error) {
	open := func() (io.WriteCloser, error) {
		// Not to wait in opening a pipe that nobody reads: there it is an error.
		f, err := os.OpenFile(c.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o640)
		if err != nil {
			return nil, fmt.Errorf("accesslog: %w", err)
		}
		return f, nil
	}
	switch c.Path {
	case "":
		return nil, &ConfigError{Field: "Path", Value: `""`, Want: `the name of a file, or "-" for the standard output`}
	case "-":
		open = func() (io.WriteCloser, error) { return standardOutput{os.Stdout}, nil }
	}
	return newLogger(c, open)
}

type standardOutput struct{ io.Writer }

func (standardOutput) Close() error { return nil } // others may write to it

func newLogger(c Config, open func() (io.WriteCloser, error)) (*Logger, error) {
	for _, share := range [...]struct {
		field string
		v     float64
	}{{"Sample", c.Sample}, {"Errors", c.Errors}} {
		if !(share.v >= 0 && share.v <= 1) {
			return nil, &ConfigError{Field: share.field, Value: share.v, Want: "a share from 0 to 1"}
		}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	file, err := open()
	if err != nil {
		return nil, err
	}
	l := &Logger{cfg: c, open: open, file: file, dirty: make(chan struct{}, 1), full: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{})}
	l.lines.New = func() any { return new([]byte) }
	go l.run()
	return l, nil
}

// Log writes an entry, if it is in the sample. It does not keep it.
func (l *Logger) Log(e *Entry) {
	share := l.cfg.Errors
	if e.Good() {
		share = l.cfg.Sample
	}
	if share < 1 && (share == 0 || l.cfg.Rand() >= share) {
		return
	}
	line := l.lines.Get().(*[]byte)
	*line = e.append((*line)[:0])
	l.add(*line)
	l.lines.Put(line)
}

func (l *Logger) add(line []byte) {
	l.mu.Lock()
	before := len(l.waiting)
	after := before + len(line)
	if l.closed || after > backlog {
		l.stats.Dropped++
		l.mu.Unlock()
		return
	}
	l.waiting = append(l.waiting, line...)
	l.mu.Unlock()
	if before == 0 {
		signal(l.dirty)
	}
	if before < chunk && after >= chunk {
		signal(l.full)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is told already
	}
}

// Reopen opens the file by its name again, for a log that is rotated by renaming it. What was logged before goes to the old
// file or the new one, whole lines in any case. With an error the old one stays in use.
func (l *Logger) Reopen() error {
	file, err := l.open()
	if err != nil {
		return err
	}
	l.mu.Lock()
	old := l.next // of a Reopen that the writer has not seen yet
	if l.closed {
		old, err = file, ErrClosed
	} else {
		l.next = file
	}
	l.mu.Unlock()
	signal(l.dirty) // so that the old file is let go of, even where nothing is logged
	if old != nil {
		old.Close()
	}
	return err
}

// Stats returns the counts so far.
func (l *Logger) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Close writes what waits and closes the file. Where that takes longer than 5 s it is not waited for, and the error says so. What
// is logged later is dropped.
func (l *Logger) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.stop)
	}
	l.mu.Unlock()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-l.done:
		return l.Stats().Err
	case <-timeout.C:
		return fmt.Errorf("accesslog: the file has taken nothing for %v, the last lines are not written", patience)
	}
}

// run writes what waits until the logger is closed.
func (l *Logger) run() {
	defer close(l.done)
	timer := time.NewTimer(every)
	defer timer.Stop()
	for stopped := false; !stopped; {
		select {
		case <-l.dirty:
			timer.Reset(every)
			select {
			case <-timer.C:
			case <-l.full:
			case <-l.stop:
				stopped = true
			}
		case <-l.stop:
			stopped = true
		}
		l.flush()
	}
	l.file.Close()
}

func (l *Logger) flush() {
	l.mu.Lock()
	lines, next := l.waiting, l.next
	l.waiting, l.spare, l.next = l.spare[:0], nil, nil
	l.mu.Unlock()
	if next != nil {
		l.file.Close()
		l.file, l.torn = next, false
	}
	if len(lines) > 0 {
		l.write(lines)
	}
	l.mu.Lock()
	l.spare = lines[:0]
	l.mu.Unlock()
}

// write writes whole lines. Where a part of one was written before an error, the next write ends it, so that only that one is lost.
func (l *Logger) write(lines []byte) {
	var err error
	if l.torn {
		_, err = l.file.Write([]byte{'\n'})
	}
	n := 0
	if err == nil {
		l.torn = false
		if n, err = l.file.Write(lines); err == nil && n < len(lines) {
			err = io.ErrShortWrite
		}
		n = min(max(n, 0), len(lines))
		l.torn = n > 0 && lines[n-1] != '\n'
	}
	written, failed := bytes.Count(lines[:n], []byte{'\n'}), bytes.Count(lines[n:], []byte{'\n'})
	l.mu.Lock()
	l.stats.Written += uint64(written)
	l.stats.Failed += uint64(failed)
	l.stats.Err = err
	l.mu.Unlock()
	if err != nil && !l.failing && l.cfg.OnError != nil {
		l.cfg.OnError(fmt.Errorf("accesslog: %w", err))
	}
	l.failing = err != nil
}
