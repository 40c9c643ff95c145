// Command celery runs a Celery worker against an API with a quota, once as workers usually are and once with a guard that it asks before each
// attempt and each retry, and shows both side by side.
//
//	go run ./examples/celery
//
// It needs redis-server, and a python3 with celery and redis: apt-get install redis-server python3-celery python3-redis.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	campaign  = 120
	passwords = 24

	busy = 100 * time.Millisecond // late, on a machine with time to spare it is a few
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	plain, guarded, err := both(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "celery:", err)
		os.Exit(1)
	}
	show(os.Stdout, plain, guarded)
}

// A result is what the API saw.
type result struct {
	delivered, attempts, throttled, broken int
	rate                                   float64         // messages of the campaign a second, until the last
	passwords                              []time.Duration // from the queue to the API, sorted
	late                                   time.Duration   // the producer at most: a machine that is too busy to measure on
}

func (r result) otp(q float64) time.Duration {
	if len(r.passwords) == 0 {
		return 0
	}
	return r.passwords[int(q*float64(len(r.passwords)-1))]
}

func (r result) share() float64 { return 100 * float64(r.throttled) / float64(max(1, r.attempts)) }

func show(w io.Writer, plain, guarded result) {
	fmt.Fprintf(w, "%d messages of a campaign and %d one-time passwords; the API takes 25 a second, and nothing from 3 s to 5 s\n\n", campaign, passwords)
	fmt.Fprintf(w, "%-36s %16s %16s\n", "", "by itself", "asks CORTEX")
	row := func(name, form string, a, b any) {
		fmt.Fprintf(w, "%-36s %16s %16s\n", name, fmt.Sprintf(form, a), fmt.Sprintf(form, b))
	}
	row("delivered", "%d", plain.delivered, guarded.delivered)
	row("messages of the campaign a second", "%.1f", plain.rate, guarded.rate)
	row("attempts at the API", "%d", plain.attempts, guarded.attempts)
	row("  throttled (429)", "%.0f %%", plain.share(), guarded.share())
	row("  unavailable (503)", "%d", plain.broken, guarded.broken)
	for _, c := range []struct {
		name string
		q    float64
	}{{"passwords, median time to deliver", 0.5}, {"  19 in 20 within", 0.95}, {"  longest", 1}} {
		row(c.name, "%.2f s", plain.otp(c.q).Seconds(), guarded.otp(c.q).Seconds())
	}
	if late := max(plain.late, guarded.late); late > busy {
		fmt.Fprintf(w, "\nThe machine was busy: a password was sent %.1f s late. The times say little.\n", late.Seconds())
	}
}

// both runs the worker without and with the guard, at the same time, each with a Redis and an API of its own.
func both(ctx context.Context) (plain, guarded result, err error) {
	python, err := needed()
	if err != nil {
		return plain, guarded, err
	}
	dir, err := os.MkdirTemp("", "cortex-celery-")
	if err != nil {
		return plain, guarded, err
	}
	defer os.RemoveAll(dir)
	built := sync.OnceValues(func() (string, error) { return build(ctx, dir) })
	var errPlain, errGuarded error
	var wg sync.WaitGroup
	wg.Go(func() { built() })
	wg.Go(func() { plain, errPlain = run(ctx, python, built, false) })
	wg.Go(func() { guarded, errGuarded = run(ctx, python, built, true) })
	wg.Wait()
	return plain, guarded, errors.Join(errPlain, errGuarded)
}

var errMissing = errors.New("missing: apt-get install redis-server python3-celery python3-redis")

// needed finds a Python that has what the worker needs.
func needed() (python string, err error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return "", errMissing
	}
	for _, python := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(python, "-c", "import celery, redis").Run() == nil {
			return python, nil
		}
	}
	return "", errMissing
}

// run sends everything once.
func run(ctx context.Context, python string, built func() (string, error), guarded bool) (r result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp("", "cortex-celery-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	broker, stop, err := redis(ctx, dir)
	if err != nil {
		return r, err
	}
	defer stop()
	a := newAPI(campaign + passwords)
	apiURL, stopAPI, err := serve(&http.Server{Handler: a})
	if err != nil {
		return r, err
	}
	defer stopAPI()
	env := append(os.Environ(), "BROKER_URL="+broker, "API_URL="+apiURL+"/v17.0/1/messages", "CORTEX_URL=", "PYTHONDONTWRITEBYTECODE=1")
	guardAddress, _, err := freeAddress()
	if err != nil {
		return r, err
	}
	if guarded {
		env = append(env, "CORTEX_URL=http://"+guardAddress)
	}

	tasks := here()
	var log tail
	start := func(args ...string) (*exec.Cmd, error) {
		c := exec.CommandContext(ctx, python, args...)
		c.Dir, c.Env, c.Stdout, c.Stderr = tasks, env, &log, &log
		c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // a warm shutdown
		c.WaitDelay = 5 * time.Second
		return c, c.Start()
	}
	// A worker for each queue, as one does whose passwords must not wait behind newsletters. Four
	// processes for these: beside a compiler, two did not begin anything for seconds.
	ended := make(chan error, 2)
	workers := 0
	defer func() {
		cancel()
		for range workers {
			<-ended
		}
	}()
	for queue, processes := range map[string]string{"otp": "4", "campaign": "4"} {
		w, err := start("-m", "celery", "-A", "tasks", "worker", "--hostname", queue+"@%h", "--queues", queue, "--concurrency", processes,
			"--loglevel", "error", "--without-gossip", "--without-mingle", "--without-heartbeat")
		if err != nil {
			return r, err
		}
		workers++
		go func() { ended <- w.Wait() }()
	}
	failed := func(what string, err error) error {
		return fmt.Errorf("%s: %w\n%s", what, err, log.last(2000))
	}
	binary, err := built() // beside the start of Python; both wait for it, so that they run at the same time
	if err != nil {
		return r, err
	}
	if guarded {
		stopGuard, err := guard(ctx, dir, binary, guardAddress)
		if err != nil {
			return r, err
		}
		defer stopGuard()
	}
	for _, step := range []struct {
		args []string
		done chan struct{}
	}{{[]string{"warm-up"}, a.ready}, {[]string{fmt.Sprint(campaign), fmt.Sprint(passwords)}, a.all}} {
		producer := exec.CommandContext(ctx, python, append([]string{"produce.py"}, step.args...)...)
		producer.Dir, producer.Env = tasks, env
		producer.Stderr = &log
		out, err := producer.Output()
		if err != nil {
			return r, failed("producer", err)
		}
		if said := strings.TrimSpace(string(out)); said != "" {
			late, err := strconv.ParseFloat(said, 64)
			if err != nil {
				return r, failed("producer", err)
			}
			r.late = time.Duration(late * float64(time.Second))
		}
		select {
		case <-step.done:
		case err := <-ended:
			workers--
			return r, failed("a worker ended", fmt.Errorf("%v", err))
		case <-ctx.Done():
			return r, failed(fmt.Sprintf("%d of %d messages were delivered", a.result().delivered, a.want), ctx.Err())
		}
	}
	late := r.late
	r = a.result()
	r.late = late
	return r, nil
}

// tail keeps what the workers write.
type tail struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.b.Write(p)
}

func (t *tail) last(n int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.b.String()
	return s[max(0, len(s)-n):]
}

func (a *api) result() result {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := result{delivered: len(a.delivered), attempts: a.attempts, throttled: a.throttled, broken: a.broken,
		rate: float64(a.sent) / max(a.last.Seconds(), 1e-3)}
	for id, d := range a.delivered {
		if strings.HasPrefix(id, "otp-") {
			r.passwords = append(r.passwords, d)
		}
	}
	slices.Sort(r.passwords)
	return r
}

func serve(s *http.Server) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	return "http://" + l.Addr().String(), func() { s.Close(); <-done }, nil
}

// here is the directory of this example's source.
func here() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(file)
}

// redis starts a server of its own, which keeps nothing.
func redis(ctx context.Context, dir string) (url string, stop func(), err error) {
	address, port, err := freeAddress()
	if err != nil {
		return "", nil, err
	}
	stop, err = process(ctx, address, exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "no", "--dir", dir))
	return "redis://" + address + "/0", stop, err
}

// build builds the program from this source.
func build(ctx context.Context, dir string) (binary string, err error) {
	binary = filepath.Join(dir, "cortex")
	// Without debugging information it is linked in half the time.
	c := exec.CommandContext(ctx, "go", "build", "-ldflags=-w", "-o", binary, "./cmd/cortex")
	c.Dir = filepath.Join(here(), "..", "..")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// guard starts cortex serve with nothing but the port of the decision service.
func guard(ctx context.Context, dir, binary, address string) (stop func(), err error) {
	file := filepath.Join(dir, "cortex.yaml")
	// timeout: a message whose attempt is cut may have been sent, and is sent again; a second is no long time to wait for that not to happen.
	config := fmt.Sprintf(`admin: { enabled: false }
decisions: { listen: %q, template: { timeout: { min: 1s }, retry: { base_delay: 100ms, max_delay: 2s } } }
`, address)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return process(ctx, address, exec.CommandContext(ctx, binary, "serve", "--config", file))
}

func freeAddress() (address, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer l.Close()
	_, port, err = net.SplitHostPort(l.Addr().String())
	return l.Addr().String(), port, err
}

// process starts a server and waits until it listens.
func process(ctx context.Context, address string, c *exec.Cmd) (stop func(), err error) {
	if err := c.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); c.Wait() }()
	stop = func() { c.Process.Kill(); <-ended }
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return stop, nil
		}
		select {
		case <-ended:
			return nil, fmt.Errorf("%s ended at once", filepath.Base(c.Path))
		case <-ctx.Done():
			stop()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
