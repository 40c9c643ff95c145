package proof

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Slow headers, slow bodies and slow reading, hundreds of connections of each, disturb nobody else and leave nothing.
func TestSlowEverything(t *testing.T) {
	if _, err := exec.LookPath("slowhttptest"); err != nil {
		missing(t, "slowhttptest is not installed: apt-get install slowhttptest")
	}
	long := strings.Repeat("a page that is read slowly\n", 40_000) // 1 MB, more than sockets hold
	up := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/long" {
			io.WriteString(w, long)
			return
		}
		io.WriteString(w, "quick")
	}))
	g := serve(t, fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
server: {read_header_timeout: 4s, body_timeout: 4s}
targets: {slow: {endpoints: [http://%s], transport: {idle_timeout: 2s}}, up: {endpoints: [http://%[1]s], limit: {min: 100}, transport: {idle_timeout: 2s}}}
routes: [{path: /, target: up}, {path: /slow, target: slow}, {path: /long, target: slow}]
`, up))
	connections := 150 // of each
	if slow() {
		connections = 500
	}
	attacks := map[string][]string{
		"slow headers": {"-H", "-u", "http://" + g.addr + "/slow"},
		"slow bodies":  {"-B", "-s", "8192", "-u", "http://" + g.addr + "/slow"},
		"slow reading": {"-X", "-w", "512", "-y", "1024", "-n", "1", "-z", "32", "-u", "http://" + g.addr + "/long"},
	}
	before := g.footprint()
	p := g.watchPeak()
	undisturbed(t, g, up, func(stop <-chan struct{}) {
		var wg sync.WaitGroup
		for name, args := range attacks {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				go func() { <-stop; cancel() }()
				args = append(args, "-c", strconv.Itoa(connections), "-r", strconv.Itoa(connections), "-i", "1", "-x", "10", "-p", "2", "-l", "30")
				for ctx.Err() == nil { // it ends when the gateway has closed all of its connections
					// nice: an attacker has processors of its own
					cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "19", "slowhttptest"}, args...)...)
					cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
					cmd.WaitDelay = 5 * time.Second
					if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
						t.Errorf("%s ended early: %v: %s", name, err, out)
						return
					}
				}
			})
		}
		wg.Wait()
	})
	p.stop()
	after, ok := g.settles(20*time.Second, func(f footprint) bool { return f.fds <= before.fds+40 })
	t.Logf("before: %v; after: %v; peak RSS %.1f MiB", before, after, mib(p.most))
	if !ok {
		t.Errorf("connections stay: %v, before %v", after, before)
	}
	// Each connection costs its buffers and stacks.
	if limit := before.rss + growth + int64(3*connections)*64<<10; p.most > limit {
		t.Errorf("memory: peak of %.1f MiB, want at most %.1f MiB", mib(p.most), mib(limit))
	}
}
