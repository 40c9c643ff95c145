package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"sync"
)

// hints are the target's answers of the 1xx kind on their way to the client. The transport of HTTP/2 tells of them in the goroutine that reads for all
// calls on a connection: to write there would have a client that takes nothing hold up all the others. So each exchange that has hints
// writes them in a goroutine of its own, which is over before the answer is written.
type hints struct {
	mu      sync.Mutex
	over    bool // there can be no more, the answer is there
	waiting []hint
	writing chan struct{} // closed when the goroutine is done; nil: there is none
}

type hint struct {
	code   int
	header http.Header
}

// maxHints are kept for a client that takes them slowly. They are advice, what is more is dropped.
const maxHints = 8

// hint passes an answer of the 1xx kind on, as 103 (Early Hints). The server itself says 100 when the body is asked for.
func (x *exchange) hint(code int, h textproto.MIMEHeader) error {
	if code == http.StatusSwitchingProtocols { // HTTP/2 has none; for our server it would be the answer
		return fmt.Errorf("%w: status %d", errMalformed, code)
	}
	if code == http.StatusContinue || !x.in.ProtoAtLeast(1, 1) || x.expects {
		return nil // the server's own 100, which reading the body writes, must not come between
	}
	out := http.Header(maps.Clone(h))
	hopByHop(out)
	delete(out, "Content-Length")
	maps.DeleteFunc(out, func(key string, _ []string) bool { return own(key) })
	x.hints.mu.Lock()
	defer x.hints.mu.Unlock()
	if x.hints.over || len(x.hints.waiting) == maxHints {
		return nil
	}
	x.hints.waiting = append(x.hints.waiting, hint{code, out})
	if x.hints.writing == nil {
		x.hints.writing = make(chan struct{})
		go x.writeHints(x.hints.writing)
	}
	return nil
}

func (x *exchange) writeHints(done chan struct{}) {
	defer close(done)
	for {
		x.hints.mu.Lock()
		if len(x.hints.waiting) == 0 {
			x.hints.writing = nil
			x.hints.mu.Unlock()
			return
		}
		next := x.hints.waiting[0]
		x.hints.waiting = x.hints.waiting[1:]
		x.hints.mu.Unlock()
		out := x.w.Header()
		before := maps.Clone(out) // such as that the connection ends with the answer
		clear(out)
		maps.Copy(out, next.header)
		x.w.WriteHeader(next.code)
		clear(out)
		maps.Copy(out, before)
	}
}

// hintsOver says that the writer belongs to the answer now, and waits until that is so.
func (x *exchange) hintsOver() {
	x.hints.mu.Lock()
	x.hints.over = true
	writing := x.hints.writing
	x.hints.mu.Unlock()
	if writing != nil {
		<-writing
	}
}
