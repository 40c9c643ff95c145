package proof

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Requests that are too large get the status that says so, take little memory, and do not reach the upstream.
func TestBombs(t *testing.T) {
	var seen, whole atomic.Int64
	up := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/bomb") {
			return
		}
		seen.Add(1)
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			whole.Add(1)
		}
	}))
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
server: {max_header_bytes: 64KiB, max_header_fields: 100, max_url_bytes: 8KiB, max_body_bytes: 1MiB}
targets: {up: {endpoints: [http://%s], limit: {min: 100}, transport: {idle_timeout: 2s}}}
`, up)
	valid(t, text)
	g := serve(t, text)

	head := func(method, target, fields string) string {
		return method + " " + target + " HTTP/1.1\r\nHost: bombs\r\n" + fields + "\r\n"
	}
	var few, many, chunks strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "x-%d: y\r\n", i)
		if i < 200 {
			fmt.Fprintf(&few, "x%d: y\r\n", i)
		}
	}
	for range 40 {
		chunks.WriteString("10000\r\n" + strings.Repeat("x", 1<<16) + "\r\n")
	}
	chunks.WriteString("0\r\n\r\n")
	for _, b := range []struct {
		name, bytes string
		want        []int // statuses that say what is wrong
		begins      bool  // the upstream may see it begin
	}{
		{"one field of 10 MB", head("GET", "/bomb", "X: "+strings.Repeat("x", 10<<20)+"\r\n"), []int{431}, false},
		{"fields of 10 MB in all", head("GET", "/bomb", strings.Repeat("X-Field: "+strings.Repeat("x", 1000)+"\r\n", 10_000)), []int{431}, false},
		{"10,000 fields", head("GET", "/bomb", many.String()), []int{431}, false},
		{"200 short fields", head("GET", "/bomb", few.String()), []int{431}, false},
		{"field name of 1 MB", head("GET", "/bomb", strings.Repeat("x", 1<<20)+": y\r\n"), []int{431, 400}, false},
		{"URL of 1 MB", head("GET", "/bomb/"+strings.Repeat("x", 1<<20), ""), []int{414, 431}, false},
		{"URL of 16 KB", head("GET", "/bomb/"+strings.Repeat("x", 16<<10), ""), []int{414}, false},
		{"query of 16 KB", head("GET", "/bomb?"+strings.Repeat("x", 16<<10), ""), []int{414}, false},
		{"method of 1 MB", head(strings.Repeat("X", 1<<20), "/bomb", ""), []int{400, 414, 431, 501}, false},
		{"declared body of 2 MB", head("POST", "/bomb", "Content-Length: 2097152\r\n") + strings.Repeat("x", 2<<20), []int{413}, false},
		{"declared body of 2 MB that waits", head("POST", "/bomb", "Expect: 100-continue\r\nContent-Length: 2097152\r\n"), []int{413}, false},
		{"declared body of 8 EB", head("POST", "/bomb", "Content-Length: 9223372036854775807\r\n") + "x", []int{413}, false},
		{"chunked body of 2.5 MB", head("POST", "/bomb", "Transfer-Encoding: chunked\r\n") + chunks.String(), []int{413}, true},
	} {
		t.Run(b.name, func(t *testing.T) {
			seen.Store(0)
			whole.Store(0)
			bounded(t, g, growth, func() {
				var wg sync.WaitGroup
				statuses := make([]int, 20)
				for i := range statuses {
					wg.Go(func() { statuses[i] = bomb(g.addr, b.bytes) })
				}
				wg.Wait()
				for _, got := range statuses {
					ok := false
					for _, want := range b.want {
						ok = ok || got == want
					}
					if !ok {
						t.Errorf("statuses %v, want %v", statuses, b.want)
						break
					}
				}
			})
			if whole.Load() > 0 || !b.begins && seen.Load() > 0 {
				t.Errorf("the upstream saw %d, %d of them whole", seen.Load(), whole.Load())
			}
		})
	}
}

// bomb sends bytes and returns the status of the answer, which may come before all is sent; 0 = none came.
func bomb(address, bytes string) int {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return 0
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	go io.WriteString(c, bytes)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	return r.StatusCode
}

// 100,000 of everything that a client can choose: memory stays bounded, and so does the number of series.
func TestDistinctValues(t *testing.T) {
	up := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "public")
		io.WriteString(w, "hello")
	}))
	g := serve(t, fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
targets: {up: {endpoints: [http://%s], limit: {min: 100}, transport: {idle_timeout: 2s}}}
routes: [{path: /, target: up, priority: {header: X-Priority, tiers: {gold: 9}}, fallback: {cache: {max_entries: 100000, max_bytes: 4MiB}}}]
`, up))
	n := 100_000
	if !slow() {
		n = 20_000
	}
	bounded(t, g, growth, func() {
		before := len(g.series())
		var wg sync.WaitGroup
		var bad atomic.Int64
		const workers = 16
		for w := range workers {
			wg.Go(func() {
				c, err := net.Dial("tcp", g.addr)
				if err != nil {
					bad.Add(1)
					return
				}
				defer c.Close()
				b := bufio.NewReader(c)
				for i := w; i < n; i += workers {
					c.SetDeadline(time.Now().Add(20 * time.Second))
					fmt.Fprintf(c, "GET /path/%d?query=%d HTTP/1.1\r\nHost: host-%d.example\r\nX-Priority: tier-%d\r\nX-Request-Id: id-%d\r\n"+
						"Cortex-Attempt: %d;retries=%d\r\nCortex-Timeout-Ms: %d\r\nX-Key-%d: v\r\nIdempotency-Key: k%d\r\nUser-Agent: a%d\r\n"+
						"traceparent: 00-%032x-%016x-01\r\nForwarded: for=%d\r\n\r\n", i, i, i, i, i, i%5, i%7, 10000+i, i, i, i, i+1, i+1, i)
					r, err := readAnswer(b, "GET")
					if err != nil || r.StatusCode != 200 {
						bad.Add(1)
						if err != nil {
							return
						}
					}
				}
			})
		}
		wg.Wait()
		if after := len(g.series()); after != before {
			t.Errorf("%d series, before %d", after, before)
		}
		t.Logf("%d requests, %d not answered with 200, %d series", n, bad.Load(), before)
		if bad.Load() > int64(n)/100 {
			t.Errorf("%d of %d failed", bad.Load(), n)
		}
	})
}
