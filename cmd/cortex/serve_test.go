//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
)

// asProgram makes the test binary the command itself, for tests of it as a process.
const asProgram = "CORTEX_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A daemon is cortex serve as a process of its own.
type daemon struct {
	t           *testing.T
	cmd         *exec.Cmd
	addr, admin string

	mu    sync.Mutex
	log   bytes.Buffer
	ended chan struct{}
	err   error
}

const patience = 20 * time.Second // the machine is shared

// start runs cortex serve and waits until it listens. prefix is a shell's command before it, empty = none.
func start(t *testing.T, prefix, path string, env ...string) *daemon {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, ended: make(chan struct{})}
	d.cmd = exec.Command("sh", "-c", prefix+` exec "$0" serve --config "$1"`, exe, path)
	d.cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	r, w := io.Pipe()
	d.cmd.Stderr, d.cmd.Stdout = w, w
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	addrs := make(chan string, 2)
	go func() {
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			d.mu.Lock()
			d.log.Write(append(lines.Bytes(), '\n'))
			d.mu.Unlock()
			var l struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &l) == nil && (l.Msg == "listening" || l.Msg == "admin port") {
				addrs <- l.Address
			}
		}
	}()
	go func() {
		d.err = d.cmd.Wait()
		w.Close()
		close(d.ended)
	}()
	t.Cleanup(func() {
		d.cmd.Process.Kill()
		<-d.ended
		if t.Failed() {
			t.Logf("the log:\n%s", d.text())
		}
	})
	for _, a := range []*string{&d.addr, &d.admin} {
		select {
		case *a = <-addrs:
		case <-d.ended:
			return d
		case <-time.After(patience):
			t.Fatal("it does not listen")
		}
	}
	return d
}

func (d *daemon) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

func (d *daemon) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code.
func (d *daemon) exit() int {
	d.t.Helper()
	select {
	case <-d.ended:
	case <-time.After(patience):
		d.t.Fatal("it does not end")
	}
	var e *exec.ExitError
	if errors.As(d.err, &e) {
		return e.ExitCode()
	}
	return 0
}

// get returns the status and the body of an answer.
func (d *daemon) get(url string) (int, string) {
	d.t.Helper()
	res, err := http.Get("http://" + url)
	if err != nil {
		d.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// until polls until f is true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// answering is a configuration whose one route answers with a text.
func answering(text, more string) string {
	return more + `
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
log: {format: json}
targets: {none: {endpoints: ['http://127.0.0.1:1'], retry: {max_retries: 0}, limit: {min: 100}}}
routes: [{path: /, target: none, fallback: {static: {status: 200, body: ` + text + `}}}]
`
}

// swap makes the files of a directory others at once, as Kubernetes does with a ConfigMap.
func swap(t *testing.T, dir, name, text string) {
	t.Helper()
	data := filepath.Join(dir, ".."+name)
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(data, "cortex.yaml"), text)
	link := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(".."+name, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// A real process: a ConfigMap that is swapped, a file with a mistake, SIGHUP, SIGTERM, and what systemd hears of it.
func TestServeTakesUpChangesAndSignals(t *testing.T) {
	dir := t.TempDir()
	swap(t, dir, "1", answering("one", "reload: {interval: 100ms}"))
	path := filepath.Join(dir, "cortex.yaml")
	if err := os.Symlink(filepath.Join("..data", "cortex.yaml"), path); err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	d := start(t, "", path, "NOTIFY_SOCKET="+socket.LocalAddr().String())
	says := func(text string) func() bool {
		return func() bool { _, body := d.get(d.addr + "/"); return body == text }
	}
	if !says("one")() {
		t.Fatal("not the first configuration")
	}
	swap(t, dir, "2", answering("two", "reload: {interval: 100ms}"))
	until(t, "the swapped ConfigMap", says("two"))

	failed := func() bool {
		_, body := d.get(d.admin + "/api/v1/server")
		return strings.Contains(body, `"failed": 1`) && strings.Contains(body, "relaod")
	}
	swap(t, dir, "3", answering("three", "relaod: {interval: 100ms}"))
	until(t, "the mistake on the admin port", failed)
	if !says("two")() {
		t.Error("a file with a mistake is in force")
	}
	swap(t, dir, "4", answering("four", "reload: {watch: false}"))
	until(t, "the ConfigMap without the mistake", says("four"))
	swap(t, dir, "5", answering("five", "reload: {watch: false}"))
	d.signal(syscall.SIGHUP)
	until(t, "SIGHUP", says("five"))

	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var heard []string
	socket.SetReadDeadline(time.Now().Add(patience))
	for b := make([]byte, 4096); ; {
		n, err := socket.Read(b)
		if err != nil {
			t.Fatalf("%v after %q", err, heard)
		}
		text := string(b[:n])
		word, _, _ := strings.Cut(text, "\n")
		heard = append(heard, word)
		switch {
		case word == "RELOADING=1" && !strings.Contains(text, "\nMONOTONIC_USEC="):
			t.Errorf("systemd would not believe %q", text)
		case len(heard) == 1 && !strings.Contains(text, "STATUS=listening on "+d.addr):
			t.Errorf("at the start %q", text)
		}
		if word == "STOPPING=1" {
			break
		}
	}
	want := []string{"READY=1"}
	for range 4 {
		want = append(want, "RELOADING=1", "READY=1")
	}
	if want = append(want, "STOPPING=1"); !slices.Equal(heard, want) {
		t.Errorf("systemd heard %q, want %q", heard, want)
	}
}

// What changes between the reading of the file and the first look at it is a change.
func TestServeSeesChangesFromTheStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cortex.yaml")
	write(t, path, answering("one", "reload: {interval: 100ms}"))
	follow := newFollower(path)
	f, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	s, err := gateway.Listen(f, gateway.Options{Load: func() (*config.File, error) { return config.Load(path) }})
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, answering("two", "reload: {interval: 100ms}"))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- follow.run(ctx, s) }()
	d := &daemon{t: t}
	until(t, "the change", func() bool { _, body := d.get(s.Addr().String() + "/"); return body == "two" })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Watching knew nothing of reloads on the admin port: reload.watch, turned on there, watched nothing, and a file that went from A to B and
// back was taken for A that is in force.
func TestWatchingKnowsOfReloadsThatOthersAskFor(t *testing.T) {
	const watched = "reload: {interval: 200ms}"
	path := filepath.Join(t.TempDir(), "cortex.yaml")
	write(t, path, answering("one", "reload: {watch: false}"))
	follow := newFollower(path)
	read := func() (*config.File, error) { return config.Load(path) }
	f, err := read()
	if err != nil {
		t.Fatal(err)
	}
	s, err := gateway.Listen(f, gateway.Options{Load: follow.reading(read)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- follow.run(ctx, s) }()
	d := &daemon{t: t}
	says := func(text string) func() bool {
		return func() bool { _, body := d.get(s.Addr().String() + "/"); return body == text }
	}
	until(t, "the start", says("one"))
	reload := func() {
		r, err := http.NewRequest("POST", "http://"+s.AdminAddr().String()+"/api/v1/reload", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 {
			t.Fatalf("POST reload: %s", res.Status)
		}
	}
	write(t, path, answering("two", watched))
	reload()
	write(t, path, answering("three", watched))
	until(t, "the first change after watching was turned on", says("three"))
	write(t, path, answering("four", watched))
	reload()
	write(t, path, answering("three", watched))
	until(t, "the change back", says("three"))
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// SIGTERM lets a call under way end; what does not end in time is cut, and the exit code says so.
func TestServeDrainsOnTerm(t *testing.T) {
	for _, patient := range []bool{true, false} {
		arrived, goOn := make(chan struct{}), make(chan struct{})
		up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(arrived)
			select {
			case <-goOn:
			case <-r.Context().Done():
			}
			io.WriteString(w, "whole")
		}))
		timeout := "300ms"
		if patient {
			timeout = "1m"
		}
		path := filepath.Join(t.TempDir(), "cortex.yaml")
		write(t, path, strings.Replace(answering("x", "drain: {timeout: "+timeout+"}"), "['http://127.0.0.1:1'],", "['"+up.URL+"'], timeout: {enabled: false},", 1))
		d := start(t, "", path)
		type result struct {
			body string
			err  error
		}
		got := make(chan result, 1)
		go func() {
			res, err := http.Get("http://" + d.addr + "/")
			if err != nil {
				got <- result{err: err}
				return
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			got <- result{string(b), err}
		}()
		<-arrived
		d.signal(syscall.SIGTERM)
		until(t, "readiness to go", func() bool {
			res, err := http.Get("http://" + d.admin + "/readyz")
			if err != nil {
				return !patient // it may have ended
			}
			res.Body.Close()
			return res.StatusCode == 503
		})
		if patient {
			close(goOn)
		}
		code, r := d.exit(), <-got
		if patient && (code != 0 || r.body != "whole" || r.err != nil) {
			t.Errorf("a call that ended in time: exit code %d, %+v", code, r)
		}
		if !patient && (code != 1 || r.err == nil || !strings.Contains(d.text(), "cut off")) {
			t.Errorf("a call that did not end in time: exit code %d, %+v", code, r)
		}
		up.Close()
	}
}

// Too few file descriptors for what is configured: it does not start, and says what would do.
func TestServeNeedsDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cortex.yaml")
	write(t, path, answering("x", "server: {max_connections: 1000}"))
	d := start(t, "ulimit -n 500;", path)
	if code := d.exit(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if text := d.text(); !strings.Contains(text, "server.max_connections: 1000 connections may need 2064 file descriptors") || !strings.Contains(text, "ulimit -n") ||
		!strings.Contains(text, "218 at most") {
		t.Errorf("it says %q", text)
	}
	write(t, path, answering("x", "server: {max_connections: 200}"))
	d = start(t, "ulimit -n 500;", path)
	if code, body := d.get(d.addr + "/"); code != 200 || body != "x" {
		t.Errorf("with as many as there are: %d %q", code, body)
	}
	// A reload that asks for more than there are is refused, too.
	write(t, path, answering("y", "server: {max_connections: 1000}"))
	d.signal(syscall.SIGHUP)
	until(t, "the reload to be refused", func() bool {
		_, body := d.get(d.admin + "/api/v1/server")
		return strings.Contains(body, "server.max_connections")
	})
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// SIGHUP while it drains kills nothing.
func TestServeSurvivesHangUpWhileDraining(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cortex.yaml")
	write(t, path, answering("one", "drain: {delay: 700ms}"))
	d := start(t, "", path)
	d.signal(syscall.SIGTERM)
	until(t, "readiness to go", func() bool { code, _ := d.get(d.admin + "/readyz"); return code == 503 })
	for range 5 {
		d.signal(syscall.SIGHUP)
		time.Sleep(10 * time.Millisecond)
	}
	if code, body := d.get(d.addr + "/"); code != 200 || body != "one" {
		t.Errorf("in the delay: %d %q", code, body)
	}
	if code := d.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A drain of an hour ends at a second SIGTERM.
func TestServeEndsAtASecondSignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cortex.yaml")
	write(t, path, answering("one", "drain: {delay: 1h}"))
	d := start(t, "", path)
	d.signal(syscall.SIGTERM)
	until(t, "readiness to go", func() bool { code, _ := d.get(d.admin + "/readyz"); return code == 503 })
	d.signal(syscall.SIGTERM)
	if code := d.exit(); code != 0 {
		t.Errorf("exit code %d with nothing in flight", code)
	}
}
