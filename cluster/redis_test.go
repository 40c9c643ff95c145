package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// missing ends a test whose server is not installed.
func missing(t testing.TB, what string, err error) {
	t.Helper()
	if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("%s: %v (Debian: apt-get install redis-server redis-sentinel)", what, err)
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A server is a real redis-server of this test's own.
type server struct {
	tb   testing.TB
	port int
	args []string
	dir  string
	cmd  *exec.Cmd
	out  *logBuffer
	db   *redis.Client
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{tb: t, port: freePort(t), args: args, dir: t.TempDir(), out: &logBuffer{}}
	s.start()
	s.db = redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1, Protocol: 2})
	t.Cleanup(func() {
		s.db.Close()
		s.kill()
	})
	s.ready()
	return s
}

func (s *server) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.port) }
func (s *server) url() string  { return "redis://" + s.addr() }

func (s *server) start() {
	s.tb.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		missing(s.tb, "redis-server", err)
	}
	args := append([]string{"--port", fmt.Sprint(s.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--logfile", "", "--repl-diskless-sync-delay", "0"}, s.args...)
	s.cmd = exec.Command(program, args...)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
}

// ready waits until the server answers.
func (s *server) ready() {
	s.tb.Helper()
	eventually(s.tb, 10*time.Second, "redis-server answers", func() bool {
		err := s.db.Ping(bg).Err()
		return err == nil || redis.HasErrorPrefix(err, "NOAUTH")
	})
}

func (s *server) kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

func (s *server) restart() {
	s.kill()
	s.start()
	s.ready()
}

var bg = context.Background()

// eventually fails the test where cond does not come true in time.
func eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	end := time.Now().Add(within)
	for !cond() {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

const (
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
)

func signal(t testing.TB, cmd *exec.Cmd, s os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
