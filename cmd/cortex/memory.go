package main

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// tuneCollector lets the heap grow to five times what is live, unless GOGC says otherwise: a gateway keeps a few megabytes and
// makes garbage with every request, so the collector would run many times a second, for more than the guard itself costs. In a
// container with a bound on its memory the heap does not grow beyond nine tenths of that, unless GOMEMLIMIT says otherwise: the collector
// works harder then, and the process is not killed.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	for _, name := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} { // cgroup 2, 1
		if text, err := os.ReadFile(name); err == nil {
			if n, ok := memoryBound(string(text)); ok {
				debug.SetMemoryLimit(n / 10 * 9)
			}
			return
		}
	}
}

// memoryBound reads what a control group says of its bound in bytes; ok is false where there is none.
func memoryBound(text string) (n int64, ok bool) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return n, err == nil && n > 0 && n < 1<<60 // "max", or the largest number of pages
}
