//go:build unix

package gateway

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/config"
)

// A disk that is full, or a pipe that nobody reads, costs lines, and the calls nothing.
func TestBlockedAccessLogSlowsNoCall(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no named pipes here: ", err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	paths := []string{pipe}
	if _, err := os.Stat("/dev/full"); err == nil {
		paths = append(paths, "/dev/full")
	}
	for _, path := range paths {
		f, err := config.Parse("cortex.yaml", []byte("access_log: {path: "+path+"}\n"+one("balance: {resolve: 0s}", "")))
		if err != nil {
			t.Fatal(err)
		}
		log := new(opsBuffer)
		g, err := New(f, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		g.Targets()[0].Engine.Force(breaker.ForcedOpen)
		const calls = 20_000
		var slowest time.Duration
		for range calls {
			s := &sink{h: http.Header{}}
			began := time.Now()
			g.ServeHTTP(s, httptest.NewRequest("GET", "http://127.0.0.1/"+strings.Repeat("x", 250), nil))
			slowest = max(slowest, time.Since(began))
			if s.status != 503 {
				t.Fatalf("%s: status %d", path, s.status)
			}
		}
		if slowest > 2*time.Second { // the machine is shared; a pipe that was waited for would be for ever
			t.Errorf("%s: a call took %v", path, slowest)
		}
		if path == pipe {
			if n := g.access.Load().Stats().Dropped; n < 1000 {
				t.Errorf("%s: %d lines dropped", path, n)
			}
			go io.Copy(io.Discard, reader) // or Close would wait for its patience
		}
		g.Close()
		if n := strings.Count(log.String(), "access log"); path != pipe && n != 1 {
			t.Errorf("%s: %d lines of trouble in the log:\n%s", path, n, log.String())
		}
	}
}
