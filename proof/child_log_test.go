package proof

import "testing"

// A dump of goroutines caught one of them in a deferred function, "/usr/local/go/src/runtime/panic.go:615": that is no panic.
func TestDumpIsNoPanic(t *testing.T) {
	for _, c := range []struct {
		line string
		want bool
	}{
		{"panic: runtime error: index out of range [3] with length 3", true},
		{"fatal error: concurrent map writes", true},
		{`time=2026-11-30T15:36:50.537Z level=ERROR msg="http: panic serving 127.0.0.1:1: boom"`, true},
		{`time=2026-11-30T15:36:50.537Z level=ERROR msg="panic in reload" panic=boom`, true},
		{"SIGQUIT: quit", false},
		{"\t/usr/local/go/src/runtime/panic.go:615 +0x132", false},
		{"runtime.gopanic({0x1, 0x2})", false},
		{"time=2026-11-30T15:36:50.537Z level=INFO msg=reloaded", false},
	} {
		if got := watched["panic"].MatchString(c.line); got != c.want {
			t.Errorf("%q counts as a panic: %v, want %v", c.line, got, c.want)
		}
	}
}
