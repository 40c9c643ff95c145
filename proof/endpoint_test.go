package proof

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// An endpoint is an upstream that can be killed and revived, and paused and resumed.
type endpoint struct {
	addr   string
	ledger *ledger

	mu     sync.Mutex
	server *http.Server  // nil while it is dead
	paused chan struct{} // closed when it goes on; nil while it is not paused
}

// A ledger counts what arrived at all endpoints, by the id of the call.
type ledger struct {
	mu     sync.Mutex
	begun  map[string]int // the head arrived
	whole  map[string]int // the body too
	strays []string       // what should not be
}

func newLedger() *ledger { return &ledger{begun: map[string]int{}, whole: map[string]int{}} }

func (l *ledger) count(m map[string]int, id string) {
	l.mu.Lock()
	m[id]++
	l.mu.Unlock()
}

func newEndpoint(t *testing.T, l *ledger) *endpoint {
	t.Helper()
	e := &endpoint{ledger: l}
	e.listen(t, "127.0.0.1:0")
	t.Cleanup(func() { e.resume(); e.kill() })
	return e
}

func (e *endpoint) listen(t *testing.T, address string) {
	var l net.Listener
	var err error
	for range 50 {
		if l, err = net.Listen("tcp", address); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond) // of a port just given up
	}
	if err != nil {
		t.Errorf("the endpoint at %s does not come back: %v", address, err)
		return
	}
	s := &http.Server{Handler: e}
	e.mu.Lock()
	e.addr, e.server = l.Addr().String(), s
	e.mu.Unlock()
	go s.Serve(l)
}

// kill closes the port and cuts every connection.
func (e *endpoint) kill() {
	e.mu.Lock()
	s := e.server
	e.server = nil
	e.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

func (e *endpoint) revive(t *testing.T) {
	e.mu.Lock()
	dead := e.server == nil
	e.mu.Unlock()
	if dead {
		e.listen(t, e.addr)
	}
}

// pause lets it accept and read, and answer nothing.
func (e *endpoint) pause() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.paused == nil {
		e.paused = make(chan struct{})
	}
}

func (e *endpoint) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.paused != nil {
		close(e.paused)
		e.paused = nil
	}
}

func (e *endpoint) wait(r *http.Request) {
	e.mu.Lock()
	p := e.paused
	e.mu.Unlock()
	if p != nil {
		select {
		case <-p:
		case <-r.Context().Done():
		}
	}
}

// large is what up- and downloads are made of: 1 MiB that is the same nowhere.
var large = func() []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < 1<<20; i++ {
		fmt.Fprintf(&b, "line %d of something large\n", i)
	}
	return b.Bytes()[:1<<20]
}()

func checksum(b []byte) string { return fmt.Sprintf("%d bytes, %08x", len(b), crc32.ChecksumIEEE(b)) }

const (
	events = 5 // of a stream
	pace   = 40 * time.Millisecond
)

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("X-Id")
	e.ledger.count(e.ledger.begun, id)
	switch r.URL.Path {
	case "/upgrade":
		e.upgrade(w, r)
		return
	case "/events":
		e.wait(r)
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range events {
			fmt.Fprintf(w, "data: event %d of %s\n\n", i, id)
			http.NewResponseController(w).Flush()
			time.Sleep(pace)
		}
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	e.ledger.count(e.ledger.whole, id)
	if r.URL.Path == "/post" && string(body) != "the body of "+id {
		e.ledger.mu.Lock()
		e.ledger.strays = append(e.ledger.strays, fmt.Sprintf("%s with %.60q", id, body))
		e.ledger.mu.Unlock()
	}
	e.wait(r)
	switch r.URL.Path {
	case "/download":
		w.Write(large)
	case "/upload":
		io.WriteString(w, checksum(body))
	default:
		io.WriteString(w, "answer to "+id)
	}
}

// upgrade echoes lines until the other side ends.
func (e *endpoint) upgrade(w http.ResponseWriter, r *http.Request) {
	e.wait(r)
	if !strings.EqualFold(r.Header.Get("Upgrade"), "echo") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c, b, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	for s := bufio.NewScanner(b); s.Scan(); {
		if _, err := io.WriteString(c, s.Text()+"\n"); err != nil {
			return
		}
	}
}
