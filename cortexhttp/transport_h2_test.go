package cortexhttp

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed-a29ca62a/cortex"
)

// Frames of HTTP/2 (RFC 9113), as far as a server needs them that does nothing but what a test tells it.
const (
	frameData      = 0
	frameHeaders   = 1
	frameReset     = 3
	frameSettings  = 4
	framePing      = 6
	frameGoAway    = 7
	flagEnd        = 1 // of a stream
	flagAck        = 1
	flagEndHeaders = 4

	codeNo       = 0
	codeProtocol = 1
	codeInternal = 2
	codeRefused  = 7
	codeCalm     = 11
)

type frame struct {
	kind, flags byte
	stream      uint32
	payload     []byte
}

func writeFrame(w io.Writer, kind, flags byte, stream uint32, payload ...byte) error {
	head := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	_, err := w.Write(append(binary.BigEndian.AppendUint32(head, stream), payload...))
	return err
}

func readFrame(r io.Reader) (frame, error) {
	var head [9]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: head[3], flags: head[4], stream: binary.BigEndian.Uint32(head[5:]) &^ (1 << 31)}
	f.payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
	_, err := io.ReadFull(r, f.payload)
	return f, err
}

func word(v ...uint32) (b []byte) {
	for _, x := range v {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

// rawServer is an HTTP/2 server that has something done at the header of its first request, and, if that was not the end
// of it, at the end of its body. Others it answers 200.
type rawServer struct {
	atHeader, atEnd func(w io.Writer, stream uint32) (done bool)
	wg              sync.WaitGroup
	mu              sync.Mutex
	conns           []net.Conn
	requests        int
	answered        int
	sums            [][32]byte // of the bodies of answered requests
}

func (s *rawServer) serve(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.mu.Unlock()
		s.wg.Go(func() { s.conn(c) })
	}
}

// close ends it, with the connections that the client keeps to a server that went away.
func (s *rawServer) close(ln net.Listener) {
	ln.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *rawServer) conn(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if _, err := io.ReadFull(br, preface); err != nil {
		return
	}
	// The pipe has no buffer: whoever writes must not keep the reader waiting.
	out := make(chan []byte, 100)
	defer close(out)
	s.wg.Go(func() {
		for b := range out {
			if _, err := c.Write(b); err != nil {
				c.Close()
			}
		}
	})
	w := writerFunc(func(b []byte) { out <- bytes.Clone(b) })
	writeFrame(w, frameSettings, 0, 0)
	bodies := map[uint32]*bytes.Buffer{}
	first := map[uint32]bool{}
	for {
		f, err := readFrame(br)
		if err != nil {
			return
		}
		switch f.kind {
		case frameSettings:
			if f.flags&flagAck == 0 {
				writeFrame(w, frameSettings, flagAck, 0)
			}
		case framePing:
			if f.flags&flagAck == 0 {
				writeFrame(w, framePing, flagAck, 0, f.payload...)
			}
		case frameHeaders:
			s.mu.Lock()
			s.requests++
			first[f.stream] = s.requests == 1
			s.mu.Unlock()
			bodies[f.stream] = &bytes.Buffer{}
			if first[f.stream] && s.atHeader != nil && s.atHeader(w, f.stream) {
				delete(bodies, f.stream)
				continue
			}
		case frameData:
			if b := bodies[f.stream]; b != nil {
				b.Write(f.payload)
			}
		case frameReset:
			delete(bodies, f.stream)
		}
		if (f.kind == frameHeaders || f.kind == frameData) && f.flags&flagEnd != 0 && bodies[f.stream] != nil {
			body := bodies[f.stream]
			delete(bodies, f.stream)
			if first[f.stream] && s.atEnd != nil && s.atEnd(w, f.stream) {
				if s.atEnd(closeConn{}, 0) {
					return
				}
				continue
			}
			s.mu.Lock()
			s.answered++
			s.sums = append(s.sums, sha256.Sum256(body.Bytes()))
			s.mu.Unlock()
			writeFrame(w, frameHeaders, flagEndHeaders|flagEnd, f.stream, 0x88) // :status 200
		}
	}
}

// closeConn is asked of atEnd to know if the connection is to be closed.
type closeConn struct{ io.Writer }

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func reset(code uint32) func(io.Writer, uint32) bool {
	return func(w io.Writer, stream uint32) bool {
		if _, asked := w.(closeConn); asked {
			return false
		}
		writeFrame(w, frameReset, 0, stream, word(code)...)
		return true
	}
}

// goAway leaves the connection after the streams up to last; what it has above that was not processed.
func goAway(last func(stream uint32) uint32, code uint32, closes bool) func(io.Writer, uint32) bool {
	return func(w io.Writer, stream uint32) bool {
		if _, asked := w.(closeConn); asked {
			return closes
		}
		writeFrame(w, frameGoAway, 0, 0, append(word(last(stream), code), "] after Request.Body was written"...)...)
		return true
	}
}

// F60: a graceful shutdown became 'cannot retry after body was written', or an empty replay.
func TestWhatHTTP2DidNotProcessIsReplayedForEveryMethod(t *testing.T) {
	none := func(uint32) uint32 { return 0 }
	this := func(stream uint32) uint32 { return stream }
	for _, c := range []struct {
		name     string
		atHeader func(io.Writer, uint32) bool
		atEnd    func(io.Writer, uint32) bool
		safe     bool
	}{
		{"refused at the header", reset(codeRefused), nil, true},
		{"refused at the end", nil, reset(codeRefused), true},
		{"going away at the header", goAway(none, codeNo, false), nil, true},
		{"going away at the end", nil, goAway(none, codeNo, false), true},
		{"going away in anger", nil, goAway(none, codeCalm, false), true},
		{"going away after this one, closed", nil, goAway(this, codeNo, true), false},
		{"internal error", nil, reset(codeInternal), false},
		{"protocol error", nil, reset(codeProtocol), false},
		{"cancelled by a proxy", nil, reset(8), false},
		{"connection closed", nil, func(w io.Writer, _ uint32) bool { return true }, false},
	} {
		for _, r := range []struct{ method, body string }{{"POST", "bytes"}, {"POST", "stream"}, {"PUT", "stream"}, {"GET", ""}, {"POST", ""}} {
			synctest.Test(t, func(t *testing.T) {
				name := c.name + ", " + r.method + " " + r.body
				srv := &rawServer{atHeader: c.atHeader, atEnd: c.atEnd}
				pn := newPipeNet()
				srv.wg.Go(func() { srv.serve(pn) })
				protos := new(http.Protocols)
				protos.SetUnencryptedHTTP2(true)
				base := &http.Transport{DialContext: pn.dial, Protocols: protos}
				e := clientEngine(t)
				tr, err := NewTransport(TransportConfig{Engine: e, Base: base})
				if err != nil {
					t.Fatal(err)
				}
				data := strings.Repeat("0123456789abcdef", 256)
				var rep Report
				var body io.Reader
				switch r.body {
				case "bytes":
					body = strings.NewReader(data)
				case "stream":
					body = struct{ io.Reader }{strings.NewReader(data)}
				default:
					data = ""
				}
				req, err := http.NewRequestWithContext(WithReport(t.Context(), &rep), r.method, "http://target/", body)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := tr.RoundTrip(req)
				if err == nil {
					finish(t, resp, err)
				}
				again := c.safe || r.method != "POST"
				if r.body == "" && c.name == "protocol error" {
					again = true // net/http does that by itself
				}
				srv.mu.Lock()
				if again {
					if err != nil || srv.requests != 2 || srv.answered != 1 || srv.sums[0] != sha256.Sum256([]byte(data)) || rep.Attempts != 2 {
						t.Errorf("%s: %v, %d requests, %d answered, %+v", name, err, srv.requests, srv.answered, rep)
					}
				} else if err == nil || srv.requests != 1 || srv.answered != 0 || rep.Attempts != 1 || rep.Reason != cortex.ReasonNotRetryable {
					t.Errorf("%s: %v, %d requests, %d answered, %+v", name, err, srv.requests, srv.answered, rep)
				}
				srv.mu.Unlock()
				if r.body != "" && rep.Hidden != 0 {
					t.Errorf("%s: net/http replayed a body by itself", name)
				}
				tr.CloseIdleConnections()
				srv.close(pn)
			})
		}
	}
}

// The texts of net/http's HTTP/2 are compared whole: a peer can put words into a GOAWAY, but not into these.
func TestNotProcessedIsNotTalkedInto(t *testing.T) {
	for text, want := range map[string]bool{
		"http2: Transport received Server's graceful shutdown GOAWAY":                                               true,
		"stream error: stream ID 7; REFUSED_STREAM; received from peer":                                             true,
		"stream error: stream ID 7; REFUSED_STREAM":                                                                 false,
		"stream error: stream ID 7; INTERNAL_ERROR; received from peer":                                             false,
		"stream error: stream ID 7; PROTOCOL_ERROR; received from peer":                                             false,
		"stream error: stream ID x; REFUSED_STREAM; received from peer":                                             false,
		"http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM":                                    true,
		"http2: Transport: cannot retry err [http2: client conn not usable] after Request.Body was written; define": true,
		"http2: Transport: cannot retry err [stream error: stream ID 1; REFUSED_STREAM; received from peer] after Request.Body was written; define Request.GetBody to avoid this error": true,
		"http2: Transport: cannot retry err [stream error: stream ID 1; PROTOCOL_ERROR; received from peer] after Request.Body was written; define Request.GetBody to avoid this error": false,
		`http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug="stream error: stream ID 1; REFUSED_STREAM; received from peer"`:                  false,
		"EOF": false, "": false,
	} {
		if _, got := notProcessed(textError(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

type textError string

func (e textError) Error() string { return string(e) }
