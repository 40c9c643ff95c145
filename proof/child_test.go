package proof

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// program is the path of the program under proof, built once for a run of the tests.
var program string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

// buildAndRun builds the program of the module above, by that module's own go.sum. CORTEX_PROGRAM names one that is built already.
func buildAndRun(m *testing.M) int {
	if program = os.Getenv("CORTEX_PROGRAM"); program != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "cortex-proof-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "cortex")
	build := exec.Command("go", "build", "-o", program, "./cmd/cortex")
	build.Dir = ".."
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "proof: the program does not build:", err)
		return 1
	}
	return m.Run()
}

// required reports whether what is missing is a failure.
func required() bool { return os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" }

// slow reports whether the long form of a test is asked for.
func slow() bool { return os.Getenv("CORTEX_SLOW") == "1" }

// missing skips a test for what is not there, or fails it where everything has to be.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if required() {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// valid ends a test whose configuration the program does not take.
func valid(t *testing.T, text string) {
	t.Helper()
	path := writeConfig(t, text)
	if out, err := exec.Command(program, "validate", "--config", path).CombinedOutput(); err != nil {
		t.Fatalf("the configuration is refused: %s", bytes.TrimSpace(out))
	}
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cortex.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A child is a running `cortex serve`.
type child struct {
	t           *testing.T
	cmd         *exec.Cmd
	config      string // path of its file
	addr, admin string

	mu     sync.Mutex
	lines  []string // of its log; the oldest are dropped
	counts map[string]int
	dump   bytes.Buffer // what is not a log line, bounded
	ended  chan struct{}
	err    error // of Wait, once ended is closed
}

// watched are the patterns whose log lines are counted.
var watched = map[string]*regexp.Regexp{
	"reload":         regexp.MustCompile(`(?i)msg="?[^"]*\breload(ed)?\b`),
	"refused reload": regexp.MustCompile(`(?i)level=(ERROR|WARN) msg="?[^"]*\breload(ed)?\b`),
	// Not what a dump of goroutines says of one that runs a deferred function: "runtime/panic.go:615".
	"panic": regexp.MustCompile(`^panic: |^fatal error: |^time=.*(?i:\bpanic\b)`),
}

var portLine = regexp.MustCompile(`msg="?(listening|admin port)"? .*?address=(\S+)`)

// collects lets the collector run at twice what is live, in place of the gateway's five times: what is measured at the end is then what is
// held, more than what waits to be collected.
const collects = "GOGC=100"

// serve starts the program with a configuration, in which both ports should be 0, and waits until it listens. It is stopped at
// the end of the test, which fails if it had panicked.
func serve(t *testing.T, text string, env ...string) *child {
	t.Helper()
	c := &child{t: t, config: writeConfig(t, text), counts: map[string]int{}, ended: make(chan struct{})}
	c.cmd = exec.Command(program, "serve", "--config", c.config)
	c.cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	c.cmd.Env = append(c.cmd.Env, env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ports := make(chan [2]string, 2)
	go func() {
		c.read(stderr, ports)
		c.err = c.cmd.Wait()
		close(c.ended)
	}()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		<-c.ended
		if n := c.count("panic"); n > 0 {
			t.Errorf("the gateway panicked %d times:\n%s", n, c.tail(40))
		} else if t.Failed() {
			t.Logf("the end of the gateway's log:\n%s", c.tail(15))
		}
	})
	for deadline := time.After(20 * time.Second); c.addr == "" || c.admin == ""; {
		select {
		case p := <-ports:
			if p[0] == "listening" {
				c.addr = p[1]
			} else {
				c.admin = p[1]
			}
		case <-c.ended:
			t.Fatalf("the gateway did not start: %v\n%s", c.err, c.tail(20))
		case <-deadline:
			t.Fatalf("the gateway does not listen:\n%s", c.tail(20))
		}
	}
	return c
}

func (c *child) read(r io.Reader, ports chan<- [2]string) {
	b := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := b.ReadString('\n')
		if line = strings.TrimRight(line, "\n"); line != "" {
			c.note(line)
			if m := portLine.FindStringSubmatch(line); m != nil {
				select {
				case ports <- [2]string{m[1], m[2]}:
				default:
				}
			}
		}
		if err != nil {
			return
		}
	}
}

const keptLines = 500

func (c *child) note(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, re := range watched {
		if re.MatchString(line) {
			c.counts[name]++
		}
	}
	if !strings.HasPrefix(line, "time=") {
		if c.dump.Len() < 16<<20 {
			c.dump.WriteString(line + "\n")
		}
		return
	}
	if len(c.lines) == keptLines {
		c.lines = c.lines[keptLines/2:]
	}
	c.lines = append(c.lines, line)
}

func (c *child) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[name]
}

// tail is the end of the log.
func (c *child) tail(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := strings.Join(c.lines[max(0, len(c.lines)-n):], "\n")
	if d := c.dump.Bytes(); len(d) > 0 && !bytes.HasPrefix(d, []byte("SIGQUIT")) {
		s += "\n" + string(d[:min(len(d), 4000)])
	}
	return s
}

func (c *child) alive() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// exit waits for the end and returns the exit code, -1 if it does not end.
func (c *child) exit(within time.Duration) int {
	select {
	case <-c.ended:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		return -1
	}
}

var goroutineHead = regexp.MustCompile(`(?m)^goroutine \d+ .*\[([^\],]+)`)
var createdBy = regexp.MustCompile(`(?m)^created by (\S+)`)

// goroutines ends the process by SIGQUIT, at which Go's runtime writes down every goroutine. It returns their number and how many
// were created by each function.
func (c *child) goroutines() (n int, by map[string]int) {
	c.t.Helper()
	c.cmd.Process.Signal(syscall.SIGQUIT)
	if c.exit(20*time.Second) == -1 {
		c.t.Fatal("the gateway does not end at SIGQUIT")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n = len(goroutineHead.FindAllIndex(c.dump.Bytes(), -1))
	by = map[string]int{}
	for _, m := range createdBy.FindAllSubmatch(c.dump.Bytes(), -1) {
		by[string(m[1])]++
	}
	return n, by
}

// rewrite replaces the configuration file at once, as a ConfigMap's swap does.
func (c *child) rewrite(text string) {
	c.t.Helper()
	next := c.config + ".next"
	err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, c.config))
	if err != nil {
		c.t.Fatal(err)
	}
}

// reload rewrites the file, sends SIGHUP and waits until the log says what became of it.
func (c *child) reload(text string) error {
	c.t.Helper()
	c.rewrite(text)
	before := c.count("reload")
	if err := c.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); c.count("reload") == before; time.Sleep(500 * time.Microsecond) {
		if !c.alive() {
			return errors.New("SIGHUP ended the process")
		}
		if time.Now().After(deadline) {
			return errors.New("no log line about a reload within 5 s")
		}
	}
	return nil
}

// A footprint is what a process holds of the system.
type footprint struct {
	rss     int64 // bytes
	fds     int
	sockets int
}

func (f footprint) String() string {
	return fmt.Sprintf("RSS %.1f MiB, %d descriptors, %d of them sockets", mib(f.rss), f.fds, f.sockets)
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func (c *child) footprint() footprint {
	c.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", c.cmd.Process.Pid)
	var f footprint
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		c.t.Fatalf("the gateway is gone: %v\n%s", err, c.tail(40))
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			f.rss = kib << 10
		}
	}
	entries, _ := os.ReadDir(proc + "fd")
	f.fds = len(entries)
	for _, e := range entries {
		if to, _ := os.Readlink(proc + "fd/" + e.Name()); strings.HasPrefix(to, "socket:") {
			f.sockets++
		}
	}
	return f
}

// A peak follows the resident memory of a process.
type peak struct {
	stop func()
	most int64
}

// watchPeak takes a reading every 20 ms until stop.
func (c *child) watchPeak() *peak {
	p := &peak{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && c.alive() {
			if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", c.cmd.Process.Pid)); err == nil {
				if f := strings.Fields(string(b)); len(f) > 1 {
					pages, _ := strconv.ParseInt(f[1], 10, 64)
					p.most = max(p.most, pages*int64(os.Getpagesize()))
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	p.stop = func() { cancel(); <-done }
	return p
}

// settles waits until ok says so of the footprint, and returns the last one.
func (c *child) settles(within time.Duration, ok func(footprint) bool) (footprint, bool) {
	c.t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		f := c.footprint()
		if ok(f) {
			return f, true
		}
		if time.Now().After(deadline) {
			return f, false
		}
	}
}

// series are the metrics, by name and labels.
func (c *child) series() map[string]float64 {
	c.t.Helper()
	r, err := http.Get("http://" + c.admin + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	m := map[string]float64{}
	for s := bufio.NewScanner(r.Body); s.Scan(); {
		if i := strings.LastIndexByte(s.Text(), ' '); i > 0 && s.Text()[0] != '#' {
			m[s.Text()[:i]], _ = strconv.ParseFloat(s.Text()[i+1:], 64)
		}
	}
	return m
}

// listenLocal opens a port on loopback.
func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// upstream serves a handler on loopback until the test ends, and returns its address.
func upstream(t *testing.T, h http.Handler) string {
	t.Helper()
	l := listenLocal(t)
	s := &http.Server{Handler: h}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}
