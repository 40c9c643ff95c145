package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// bar shows on a terminal how far something is, in one line that is drawn again.
type bar struct {
	w     io.Writer // nil: shows nothing
	what  string
	start time.Time
	last  time.Time
}

func newBar(w io.Writer, terminal bool) *bar {
	if !terminal {
		return &bar{}
	}
	return &bar{w: w}
}

// show draws at most ten times a second.
func (b *bar) show(what string, done, total int) {
	if b.w == nil || total < 1 {
		return
	}
	now := time.Now()
	if what != b.what {
		b.what, b.start, b.last = what, now, time.Time{}
	}
	if now.Sub(b.last) < 100*time.Millisecond && done < total {
		return
	}
	b.last = now
	fmt.Fprint(b.w, "\r"+barLine(what, done, total, now.Sub(b.start))+"\x1b[K")
}

func (b *bar) clear() {
	if b.w != nil {
		fmt.Fprint(b.w, "\r\x1b[K")
	}
}

func barLine(what string, done, total int, spent time.Duration) string {
	const width = 30
	full := width * done / total
	line := fmt.Sprintf("%s [%s%s] %d/%d", what, strings.Repeat("█", full), strings.Repeat("░", width-full), done, total)
	if done > 0 && done < total {
		left := time.Duration(float64(spent) * float64(total-done) / float64(done))
		line += fmt.Sprintf("  %v left", left.Round(time.Second))
	}
	return line
}
