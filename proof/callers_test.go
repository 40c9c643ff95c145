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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// callers make calls of many kinds at an even rate, straight to the gateway and over a link that may be ill, and judge each answer.
type callers struct {
	straight, linked string // addresses of the gateway
	number           int64  // of these callers, of all
	http1, http2     *http.Client
	serial           atomic.Int64
	inFlight         atomic.Int64
	calls            sync.WaitGroup

	mu     sync.Mutex
	tally  map[string]int // by kind, link and what became of it
	wrong  []string       // what must not be; bounded
	broken int            // answers over the straight link that were cut off in the middle
	posts  map[string]int // status of every POST without a key, by id; 0 = none came
	keyed  map[string]int // and with one
}

var crowds atomic.Int64

func newCallers(straight, linked string) *callers {
	c := &callers{number: crowds.Add(1), straight: straight, linked: linked, tally: map[string]int{}, posts: map[string]int{}, keyed: map[string]int{}}
	plain := new(http.Protocols)
	plain.SetHTTP1(true)
	c.http1 = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 100, IdleConnTimeout: kept, Protocols: plain, DisableCompression: true}}
	two := new(http.Protocols)
	two.SetUnencryptedHTTP2(true)
	c.http2 = &http.Client{Timeout: patience, Transport: &http.Transport{Protocols: two, DisableCompression: true}}
	return c
}

const (
	patience = 30 * time.Second // of a client: longer than any bound of the gateway's
	crowd    = 1500             // calls in flight at most
	// kept is how long a client keeps a connection that idles: shorter than the server's 5 s. A POST that meets a connection just being closed
	// has no answer, and nobody may repeat it.
	kept = 2 * time.Second
)

// run makes calls until ctx ends, and returns when the last has ended.
func (c *callers) run(ctx context.Context, rate int) {
	begin := time.Now()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			c.calls.Wait()
			return
		case <-time.After(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate)))):
		}
		if c.inFlight.Load() >= crowd {
			c.note("not sent: too many in flight", "")
			continue
		}
		c.inFlight.Add(1)
		c.calls.Go(func() {
			defer c.inFlight.Add(-1)
			c.call(int(c.serial.Add(1)))
		})
	}
}

func (c *callers) close() {
	c.http1.CloseIdleConnections()
	c.http2.CloseIdleConnections()
}

// call makes the nth call. The kinds come in a fixed rotation.
func (c *callers) call(n int) {
	id := fmt.Sprintf("call-%d-%d", c.number, n)
	address, ill := c.straight, n%2 == 0
	if ill {
		address = c.linked
	}
	client, version := c.http1, ""
	if n/2%5 == 0 {
		client, version = c.http2, " h2c"
	}
	var kind, method, path, key string
	var body []byte
	want := "answer to " + id
	switch k := n / 2 % 50; {
	case k == 1:
		kind, path = "upgrade", "/upgrade"
	case k == 2 || k == 27:
		kind, method, path, want = "events", "GET", "/events", ""
		for i := range events {
			want += fmt.Sprintf("data: event %d of %s\n\n", i, id)
		}
	case k == 3 || k == 28:
		kind, method, path, body, want = "upload", "PUT", "/upload", large, checksum(large)
	case k == 4 || k == 29:
		kind, method, path, want = "download", "GET", "/download", string(large)
	case k%2 == 0:
		kind, method, path = "get", "GET", "/get"
	case k%4 == 1:
		kind, method, path, body = "post", "POST", "/post", []byte("the body of "+id)
	default:
		kind, method, path, body, key = "post with key", "POST", "/post", []byte("the body of "+id), id
	}
	name := kind + version + " straight"
	if ill {
		name = kind + version + " over the link"
	}
	var a result
	if kind == "upgrade" {
		a = echo(address, id)
	} else {
		a = exchange(client, method, "http://"+address+path, id, key, body)
	}
	c.judge(name, id, ill, want, a)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch kind {
	case "post":
		c.posts[id] = a.status
	case "post with key":
		c.keyed[id] = a.status
	}
}

// result is what became of a call.
type result struct {
	status int // 0 = no answer
	header http.Header
	body   string
	err    error // before the answer, or in it
}

func exchange(client *http.Client, method, url, id, key string, body []byte) (a result) {
	r, err := http.NewRequest(method, url, nil)
	if body != nil {
		r, err = http.NewRequest(method, url, bytes.NewReader(body))
	}
	if err != nil {
		return result{err: err}
	}
	r.Header.Set("X-Id", id)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	res, err := client.Do(r)
	if err != nil {
		return result{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return result{status: res.StatusCode, header: res.Header, body: string(b), err: err}
}

// echo upgrades a connection and has three lines echoed.
func echo(address, id string) (a result) {
	c, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		return result{err: err}
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "GET /upgrade HTTP/1.1\r\nHost: chaos\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX-Id: %s\r\n\r\n", id)
	b := bufio.NewReader(c)
	res, err := http.ReadResponse(b, nil)
	if err != nil {
		return result{err: err}
	}
	a = result{status: res.StatusCode, header: res.Header}
	if a.status != http.StatusSwitchingProtocols {
		io.Copy(io.Discard, res.Body)
		return a
	}
	for i := range 3 {
		line := fmt.Sprintf("line %d of %s\n", i, id)
		if _, a.err = io.WriteString(c, line); a.err != nil {
			return a
		}
		var got string
		if got, a.err = b.ReadString('\n'); a.err != nil {
			return a
		}
		if got != line {
			a.body = fmt.Sprintf("%q came back as %q", line, got)
			return a
		}
		time.Sleep(pace)
	}
	a.body = "answer to " + id
	return a
}

// judge says what is right: a whole answer of the target's, or a clear refusal. Only where the link to the client is ill, or the
// answer had begun, may a connection break.
func (c *callers) judge(name, id string, ill bool, want string, a result) {
	switch {
	case a.status == 0 && ill:
		c.note(name+": its link broke", "")
	case a.status == 0:
		c.note(name+": no answer", fmt.Sprintf("%s %s: %v", name, id, a.err))
	case a.err != nil:
		c.note(fmt.Sprintf("%s: %d, broken off", name, a.status), "")
		if !ill {
			c.mu.Lock()
			c.broken++
			c.mu.Unlock()
		}
		if errors.Is(a.err, context.DeadlineExceeded) && !ill {
			c.note(name+": hung", fmt.Sprintf("%s %s: hung in the middle: %v", name, id, a.err))
		}
	case a.status < 300:
		wrong := ""
		if a.body != want {
			wrong = fmt.Sprintf("%s %s: another body: %.200q", name, id, a.body)
		}
		c.note(fmt.Sprintf("%s: %d", name, a.status), wrong)
	default:
		reason := a.header.Get("Cortex-Reason")
		wrong := ""
		// The gateway's own answers say why in their body, the guard's in a field too.
		if reason == "" && a.header.Get("Content-Type") != "application/problem+json" && !ill {
			wrong = fmt.Sprintf("%s %s: %d without a reason: %v %.200q", name, id, a.status, a.header, a.body)
		}
		if a.status >= 400 && a.status < 500 && a.status != http.StatusTooManyRequests && !ill {
			wrong = fmt.Sprintf("%s %s: blamed with %d: %v", name, id, a.status, a.header)
		}
		c.note(strings.TrimSpace(fmt.Sprintf("%s: %d %s", name, a.status, reason)), wrong)
	}
}

func (c *callers) note(what, wrong string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally[what]++
	if wrong != "" && len(c.wrong) < 50 {
		c.wrong = append(c.wrong, wrong)
	}
}

func (c *callers) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for what, n := range c.tally {
		lines = append(lines, fmt.Sprintf("%7d  %s", n, what))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[9:], b[9:]) })
	return strings.Join(lines, "\n")
}

// good is how many calls over a link got what they wanted, of how many; of all where it is empty.
func (c *callers) good(where string) (good, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, n := range c.tally {
		if !strings.Contains(what, where) {
			continue
		}
		all += n
		if strings.HasSuffix(what, ": 200") || strings.HasSuffix(what, ": 101") {
			good += n
		}
	}
	return good, all
}
