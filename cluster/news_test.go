package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	list []slog.Record
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
	return nil
}

// newest is the last line's level and number of targets, and how many lines there are.
func (l *lines) newest() (level slog.Level, targets int64, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.list) == 0 {
		return 0, 0, 0
	}
	r := l.list[len(l.list)-1]
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "targets" {
			targets = a.Value.Int64()
		}
		return true
	})
	return r.Level, targets, len(l.list)
}

// Field case 74: a Redis that came and went wrote a line for each target and change: 500 targets and a change a second were 30,000 a minute.
func TestFlappingRedisFloodedTheLog(t *testing.T) {
	const targets = 500
	l := &lines{}
	log := slog.New(l)
	var n news
	down := errors.New("connection refused")
	for now := time.Duration(0); now < time.Minute; now += time.Second {
		alone := 0
		for i := range targets {
			ev := Event{Target: fmt.Sprint(i), Mode: Fleet, Instances: 3}
			if now/time.Second%2 == 0 {
				ev = Event{Target: fmt.Sprint(i), Mode: Alone, Err: down}
				alone++
			}
			n.add(ev)
		}
		n.tell(log, now, alone, targets)
		n.tell(log, now, alone, targets)
		if level, k, lines := l.newest(); now == 0 && (lines != 1 || level != slog.LevelWarn || k != targets) {
			t.Fatalf("the first change: %d lines, %v, %d targets", lines, level, k)
		}
	}
	if _, _, k := l.newest(); k > 10 {
		t.Errorf("%d lines in a minute", k)
	}
	// It stays as it is now, which is told although nothing changes any more.
	_, _, before := l.newest()
	n.tell(log, time.Minute+newsEvery, 0, targets)
	if level, k, lines := l.newest(); lines != before+1 || level != slog.LevelInfo || k != targets {
		t.Errorf("at last: %d lines more, %v, %d targets", lines-before, level, k)
	}
	n.tell(log, time.Hour, 0, targets)
	if _, _, k := l.newest(); k != before+1 {
		t.Errorf("%d lines of nothing", k-before-1)
	}
}

// One line says of all targets that there is no Redis.
func TestNoRedisIsOneLine(t *testing.T) {
	l := &lines{}
	c, err := New(Config{URL: "redis://127.0.0.1:1", Interval: 100 * time.Millisecond, Logger: slog.New(l)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	for i := range 50 {
		e, err := cortex.New(cortex.Config{Name: fmt.Sprint("target ", i)})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Guard(e); err != nil {
			t.Fatal(err)
		}
	}
	for ; ; time.Sleep(2 * time.Millisecond) {
		level, targets, n := l.newest()
		took := time.Since(start)
		if n > newsBurst+int(took/newsEvery) { // some guards may be made so late that they are alone later
			t.Fatalf("%d lines in %v", n, took)
		}
		if level == slog.LevelWarn && targets == 50 {
			break
		}
		if took > 30*time.Second {
			t.Fatalf("%d lines, the last of %d targets", n, targets)
		}
	}
}
