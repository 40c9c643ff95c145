package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// This file is the way there and back of one request. It is httputil.ReverseProxy's, but for what that does for programs of any
// kind: it copies the header of every request, as somebody may still want the one that came in, and allocates where a gateway,
// which has the exchange at hand, need not.

// forward makes the call at the target, by the transport that rt is, and passes the answer on.
func (x *exchange) forward(rt http.RoundTripper) {
	res, err := rt.RoundTrip(x.outgoing())
	x.hintsOver()
	if err != nil {
		x.failed(err)
		return
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		x.upgrade(res)
		return
	}
	defer res.Body.Close() // also where the client's connection breaks
	hopByHop(res.Header)
	x.judged(res)
	x.pass(res)
}

// outgoing is the request to the target of the one that came in. Its header is that one's, changed in place: nobody asks for the
// original any more. The endpoint is picked for each attempt, later.
func (x *exchange) outgoing() *http.Request {
	x.expects = len(x.in.Header["Expect"]) > 0 // before "Connection: Expect" takes it away
	out := x.in.WithContext(x.callContext())
	x.in.URL.RawPath = escapedPath(x.in.URL.RawPath)
	x.url = *x.in.URL
	out.URL = &x.url
	if x.upload != nil {
		out.Body = x.upload
	}
	out.Close = false
	x.rewrite(out)
	return out
}

// pass writes an answer to the client. It panics with [http.ErrAbortHandler] where the rest of the answer is missing: the client
// must not take it for whole.
func (x *exchange) pass(res *http.Response) {
	h := x.w.Header()
	for key, values := range res.Header {
		h[key] = values
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // or net/http's server makes one up, which may turn somebody's text into a page
	}
	if !bodyAllowed(res.StatusCode) {
		delete(h, "Content-Length") // clients of HTTP/2 would wait for what it says
	}
	x.target.bare(res.Trailer)
	announced := len(res.Trailer)
	if announced > 0 {
		names := make([]string, 0, announced)
		for key := range res.Trailer {
			names = append(names, key)
		}
		h["Trailer"] = []string{strings.Join(names, ", ")}
		if x.in.ProtoMajor == 1 && x.in.ProtoMinor > 0 && x.in.Method != http.MethodHead {
			delete(h, "Content-Length") // of HTTP/2, where it may come with trailers; in HTTP/1.1 only chunks have them
		}
	}
	if err := x.copy(res); err != nil {
		x.faults("answer broke off", err)
		if err == errLapsed || x.grpcTimeUp() {
			return
		}
		panic(http.ErrAbortHandler)
	}
	x.target.bare(res.Trailer)
	if len(res.Trailer) == 0 {
		return
	}
	// A short answer would get a length, and could have no trailer.
	http.NewResponseController(x.w).Flush()
	for key, values := range res.Trailer {
		if len(res.Trailer) != announced {
			key = http.TrailerPrefix + key
		}
		h[key] = values
	}
}

// held is how much of an answer of known length is waited for before its header is passed on. net/http's server would keep as much
// to itself, but with a header in it that cannot be taken back any more.
const held = 4 << 10

// copy passes the status and the body of an answer on, at once where it comes piece by piece.
func (x *exchange) copy(res *http.Response) error {
	if res.Body == http.NoBody {
		x.w.WriteHeader(res.StatusCode)
		return nil
	}
	buf := pool.Get().(*[bufferSize]byte)
	defer pool.Put(buf)
	var flush *http.ResponseController
	n, err := 0, error(nil)
	if res.ContentLength < 0 || eventStream(res.Header) {
		x.w.WriteHeader(res.StatusCode)
		flush = http.NewResponseController(x.w)
		flush.Flush() // the header, to clients that wait for it before they send anything
	} else {
		for n < held && err == nil {
			var more int
			more, err = res.Body.Read(buf[n:])
			n += more
		}
		if err != nil && err != io.EOF && x.timeUp(err) {
			return errLapsed
		}
		x.w.WriteHeader(res.StatusCode)
	}
	for {
		if n > 0 {
			m, failed := x.w.Write(buf[:n])
			x.sent += int64(m)
			if failed != nil {
				return failed
			}
			if flush != nil {
				flush.Flush()
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
		n, err = res.Body.Read(buf[:])
	}
}

// errLapsed is the end of an answer in whose place the client was told that the time ran out.
var errLapsed = errors.New("gateway: the time ran out")

// timeUp answers where the time of a call ran out before anything of the target's answer was passed on. It reports whether it did.
func (x *exchange) timeUp(err error) bool {
	if x.gone() || x.Err() != context.DeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	x.broken, x.lapsed, x.answer, x.status = false, true, nil, http.StatusGatewayTimeout
	h := x.w.Header()
	closing, closes := h["Connection"]
	clear(h)
	if closes {
		h["Connection"] = closing
	}
	x.tell(h, false)
	x.proxyStatus(h, "http_response_timeout", 0, "")
	writeProblem(x.w, x.in, cortexhttp.Problem{Status: x.status, Detail: "The time for the request ran out before the answer was there.", Attempts: x.report.Attempts})
	return true
}

func eventStream(h http.Header) bool {
	v := h["Content-Type"]
	return len(v) > 0 && len(v[0]) >= len("text/event-stream") && strings.EqualFold(v[0][:len("text/event-stream")], "text/event-stream")
}

// buffers that answers are copied through.
const bufferSize = 32 << 10

var pool = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// errSwitched is what is wrong with a 101 that nobody asked for.
var errSwitched = errors.New("gateway: the target switched protocols")

// upgrade makes a tunnel of the client's connection and the target's.
func (x *exchange) upgrade(res *http.Response) {
	asked, got := upgradeTypes(x.in.Header), upgradeTypes(res.Header)
	there, ok := res.Body.(io.ReadWriteCloser)
	if !ok || asked == "" || !offered(asked, got) {
		res.Body.Close()
		x.failed(fmt.Errorf("%w: to %q when %q was asked for", errSwitched, got, asked))
		return
	}
	defer there.Close()
	// The connection is no call any more: whatever ends the call's context must not end it, but for the end of the server.
	here, rw, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		x.failed(fmt.Errorf("gateway: the client's connection cannot be upgraded: %w", err))
		return
	}
	defer here.Close()
	x.upgraded, x.status = true, res.StatusCode
	x.gateway.upgraded.add()
	x.target.foreign(res.Header)
	x.tell(res.Header, false)
	res.Body = nil
	res.Request = nil // of a POST it would write a length, which a 101 has none of (RFC 9110, 8.6)
	if err := res.Write(rw); err != nil {
		x.faults("upgrade", err)
		return
	}
	if err := rw.Flush(); err != nil {
		x.faults("upgrade", err)
		return
	}
	stop := context.AfterFunc(x.in.Context(), func() { // the server is closed
		here.Close()
		there.Close()
	})
	defer stop()
	done := make(chan error, 2)
	// From the connection itself, but for what was read ahead: net/http's reader ends the request's context at the end of one half.
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	up := &patient{Reader: &counted{io.MultiReader(bytes.NewReader(ahead), here), &x.received}, conn: here, patience: x.state.server.IdleTimeout}
	to := promptly(there, x.state.server.WriteTimeout, x.member.Endpoint().Scheme == "https")
	go func() { done <- tunnel(to, up) }()
	go func() {
		err := tunnel(here, &counted{there, &x.sent})
		up.begin()
		done <- err
	}()
	if err := <-done; err == nil { // one side has no more to say, the other may
		<-done
		return
	}
	here.Close()
	there.Close()
	<-done
}

// tunnel copies from one connection to the other, and passes its end on.
func tunnel(to io.Writer, from io.Reader) error {
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return nil
	}
	return errEnded
}

// errEnded is the end of a direction whose other end cannot be told of it but by closing the whole connection.
var errEnded = errors.New("gateway: end of one direction")

// patient is what comes of a client, which may be silent without end until its target has said its last word: then it is as idle as
// one between two requests. Most targets have closed the connection by then, which does not show before something is sent to them.
type patient struct {
	io.Reader
	conn     net.Conn
	patience time.Duration
	begun    atomic.Bool
}

func (p *patient) begin() {
	p.begun.Store(true)
	p.renew()
}

func (p *patient) renew() { p.conn.SetReadDeadline(time.Now().Add(p.patience)) }

func (p *patient) Read(b []byte) (int, error) {
	if p.begun.Load() {
		p.renew()
	}
	return p.Reader.Read(b)
}

// counted counts what is read.
type counted struct {
	io.Reader
	n *int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	*c.n += int64(n)
	return n, err
}

// faults tells of what went wrong with a single call, to those who look for it.
func (x *exchange) faults(what string, err error) {
	x.gateway.logger.Debug(what, "target", x.target.Name, "route", x.route.path, "error", err)
}
