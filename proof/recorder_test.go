package proof

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A recorder is an upstream that reads requests by the letter of RFC 9112 and keeps the bytes of every one. Whatever two readers
// might take for different requests is a fault.
type recorder struct {
	listener net.Listener

	mu   sync.Mutex
	seen []recorded
}

// recorded is one request as it arrived.
type recorded struct {
	method, target, version string
	fields                  []string // "name: value", as they came
	body                    []byte   // without its chunks
	raw                     []byte
	fault                   string // why it is not one unambiguous request; empty = it is
}

func (r recorded) String() string {
	s := fmt.Sprintf("%q", r.raw[:min(len(r.raw), 600)])
	if r.fault != "" {
		s += " (" + r.fault + ")"
	}
	return s
}

// values are those of a field, whatever its case.
func (r recorded) values(name string) (vs []string) {
	for _, f := range r.fields {
		if n, v, _ := strings.Cut(f, ":"); strings.EqualFold(n, name) {
			vs = append(vs, strings.TrimSpace(v))
		}
	}
	return vs
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{listener: listenLocal(t)}
	t.Cleanup(func() { r.listener.Close() })
	go func() {
		for {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r
}

func (r *recorder) addr() string { return r.listener.Addr().String() }

// take returns what was recorded since it was last called.
func (r *recorder) take() []recorded {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seen
	r.seen = nil
	return s
}

func (r *recorder) add(x recorded) {
	r.mu.Lock()
	r.seen = append(r.seen, x)
	r.mu.Unlock()
}

func (r *recorder) serve(c net.Conn) {
	defer c.Close()
	tee := &teeConn{Conn: c}
	b := bufio.NewReader(tee)
	for {
		x, err := readStrictly(b, tee)
		if err != nil && len(x.raw) == 0 {
			return // an idle connection was closed
		}
		if err != nil {
			x.fault = err.Error()
		} else if n := b.Buffered(); n > 0 {
			rest, _ := b.Peek(n)
			x.fault = fmt.Sprintf("bytes behind its end: %.200q", rest)
		}
		if strings.HasSuffix(x.target, "/late") { // whose answer gives what follows the request the time to arrive
			c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if rest, err := b.Peek(1); err == nil {
				x.fault = fmt.Sprintf("bytes behind its end: %q", rest)
			}
			c.SetReadDeadline(time.Time{})
		}
		r.add(x)
		if x.fault != "" {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		body := fmt.Sprintf("seen %s %s %d", x.method, x.target, len(x.body))
		if x.method == "HEAD" {
			body = ""
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nSeen: %s\r\n\r\n%s", len(body), x.target, body)
	}
}

// teeConn keeps what was read since it was last cut.
type teeConn struct {
	net.Conn
	all []byte
}

func (t *teeConn) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.all = append(t.all, p[:n]...)
	return n, err
}

// readStrictly reads one request. It takes no line that does not end in CR LF, no control characters, no folded line, no name with
// anything but token characters in it, and no two ways to tell where the body ends.
func readStrictly(b *bufio.Reader, tee *teeConn) (x recorded, err error) {
	defer func() {
		end := len(tee.all) - b.Buffered()
		x.raw = bytes.Clone(tee.all[:end])
		tee.all = bytes.Clone(tee.all[end:])
	}()
	line, err := strictLine(b)
	if err != nil {
		return x, err
	}
	parts := strings.Split(line, " ")
	if len(parts) != 3 || !isToken(parts[0]) || parts[1] == "" || parts[2] != "HTTP/1.1" {
		return x, fmt.Errorf("request line %q", line)
	}
	x.method, x.target, x.version = parts[0], parts[1], parts[2]
	for {
		if line, err = strictLine(b); err != nil {
			return x, err
		}
		if line == "" {
			break
		}
		name, _, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return x, fmt.Errorf("field line %q", line)
		}
		x.fields = append(x.fields, line)
	}
	if hosts := x.values("Host"); len(hosts) != 1 || hosts[0] == "" {
		return x, fmt.Errorf("hosts %q", hosts)
	}
	lengths, codings := x.values("Content-Length"), x.values("Transfer-Encoding")
	switch {
	case len(lengths)+len(codings) > 1:
		return x, fmt.Errorf("framed twice: Content-Length %q, Transfer-Encoding %q", lengths, codings)
	case len(codings) == 1:
		if codings[0] != "chunked" {
			return x, fmt.Errorf("Transfer-Encoding %q", codings[0])
		}
		x.body, err = strictChunks(b)
	case len(lengths) == 1:
		n, bad := strconv.ParseUint(lengths[0], 10, 62)
		if bad != nil || lengths[0][0] == '+' {
			return x, fmt.Errorf("Content-Length %q", lengths[0])
		}
		var body bytes.Buffer
		if _, err = io.CopyN(&body, b, int64(n)); err != nil {
			err = fmt.Errorf("a body that breaks off: %w", err)
		}
		x.body = body.Bytes()
	}
	return x, err
}

func strictLine(b *bufio.Reader) (string, error) {
	s, err := b.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("a line that breaks off: %.100q: %w", s, err)
	}
	line, ok := strings.CutSuffix(s, "\r\n")
	if !ok {
		return "", fmt.Errorf("a bare LF ends %.100q", s)
	}
	for i := 0; i < len(line); i++ {
		if c := line[i]; c < ' ' && c != '\t' || c == 0x7f {
			return "", fmt.Errorf("a control character in %.100q", s)
		}
	}
	return line, nil
}

func strictChunks(b *bufio.Reader) (body []byte, err error) {
	for {
		line, err := strictLine(b)
		if err != nil {
			return body, err
		}
		n, err := strconv.ParseUint(line, 16, 31)
		if err != nil {
			return body, fmt.Errorf("chunk line %.100q", line)
		}
		if n == 0 {
			break
		}
		chunk := make([]byte, n)
		if _, err := io.ReadFull(b, chunk); err != nil {
			return body, fmt.Errorf("a chunk that breaks off: %w", err)
		}
		body = append(body, chunk...)
		if end, err := strictLine(b); err != nil || end != "" {
			return body, fmt.Errorf("a chunk without its end: %q", end)
		}
	}
	for {
		line, err := strictLine(b)
		if err != nil || line == "" {
			return body, err
		}
		name, _, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) {
			return body, fmt.Errorf("trailer line %q", line)
		}
		for _, framing := range []string{"Content-Length", "Transfer-Encoding", "Host", "Authorization", "Trailer", "Connection"} {
			if strings.EqualFold(name, framing) {
				return body, fmt.Errorf("trailer %q", line)
			}
		}
	}
}

func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}
