package gateway

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
)

// Frames of HTTP/2 (RFC 9113), as far as a server needs them that answers and refuses.
const (
	h2Data     = 0
	h2Headers  = 1
	h2Reset    = 3
	h2Settings = 4
	h2Ping     = 6
	h2GoAway   = 7
	h2End      = 1 // of a stream; of SETTINGS and PING: an acknowledgement
	h2AllOfIt  = 4 // END_HEADERS
)

func frameOf(kind, flags byte, stream uint32, payload ...byte) []byte {
	b := []byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

func words(v ...uint32) (b []byte) {
	for _, x := range v {
		b = binary.BigEndian.AppendUint32(b, x)
	}
	return b
}

// refusingServer does what it is told to with its first request, and answers all others.
type refusingServer struct {
	first func(stream uint32) (say []byte, hangUp bool) // when the request is whole

	mu       sync.Mutex
	requests int
	applied  int
	bodies   []int
}

func (s *refusingServer) serve(t *testing.T) (address string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			conns = append(conns, c)
			s.mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				s.conn(c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		s.mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		s.mu.Unlock()
		wg.Wait()
	})
	return ln.Addr().String()
}

func (s *refusingServer) conn(c net.Conn) {
	br := bufio.NewReader(c)
	if _, err := io.CopyN(io.Discard, br, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	c.Write(frameOf(h2Settings, 0, 0))
	lengths := map[uint32]int{}
	for {
		var head [9]byte
		if _, err := io.ReadFull(br, head[:]); err != nil {
			return
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(br, payload); err != nil {
			return
		}
		kind, flags, stream := head[3], head[4], binary.BigEndian.Uint32(head[5:])
		switch kind {
		case h2Settings, h2Ping:
			if flags&h2End == 0 {
				if kind == h2Settings {
					payload = nil
				}
				c.Write(frameOf(kind, h2End, 0, payload...))
			}
			continue
		case h2Headers:
			lengths[stream] = 0
		case h2Data:
			lengths[stream] += len(payload)
		default:
			continue
		}
		if flags&h2End == 0 {
			continue
		}
		s.mu.Lock()
		s.requests++
		first := s.requests == 1
		s.mu.Unlock()
		if first {
			say, hangUp := s.first(stream)
			c.Write(say)
			if hangUp {
				s.mu.Lock()
				s.applied++
				s.mu.Unlock()
				return
			}
			continue
		}
		s.mu.Lock()
		s.applied++
		s.bodies = append(s.bodies, lengths[stream])
		s.mu.Unlock()
		c.Write(append(frameOf(h2Headers, h2AllOfIt, stream, 0x88), // :status: 200
			frameOf(h2Data, h2End, stream, []byte(strconv.Itoa(lengths[stream]))...)...))
	}
}

// F60, from end to end: what an HTTP/2 target says it did not process is sent again, a POST too, whole and once. What it may have processed
// is not.
func TestRequestsThatHTTP2TargetsDidNotProcess(t *testing.T) {
	p := newPKI(t)
	reset := func(stream uint32) ([]byte, bool) { return frameOf(h2Reset, 0, stream, words(7)...), false }
	before := func(uint32) ([]byte, bool) { return frameOf(h2GoAway, 0, 0, words(0, 0)...), false }
	calm := func(uint32) ([]byte, bool) { return frameOf(h2GoAway, 0, 0, words(0, 11)...), false }
	covers := func(stream uint32) ([]byte, bool) { return frameOf(h2GoAway, 0, 0, words(stream, 0)...), true }
	for _, q := range []struct {
		name, method string
		first        func(uint32) ([]byte, bool)
		status       int
		requests     int
	}{
		{"REFUSED_STREAM", "POST", reset, 200, 2}, {"REFUSED_STREAM", "GET", reset, 200, 2},
		{"GOAWAY", "POST", before, 200, 2}, {"GOAWAY", "GET", before, 200, 2}, {"GOAWAY with an error", "POST", calm, 200, 2},
		{"GOAWAY of later ones", "POST", covers, 502, 1}, {"GOAWAY of later ones", "GET", covers, 200, 2},
	} {
		for _, client := range []string{"http/1.1", "h2c"} {
			t.Run(q.name+" "+q.method+" by "+client, func(t *testing.T) {
				up := &refusingServer{first: q.first}
				s := realGateway(t, target("endpoints: ['h2c://"+up.serve(t)+"']\n"+retrying, ""))
				c, base := realClient(t, p, client, s)
				var body io.Reader
				length := 0
				if q.method == "POST" {
					length = 4 << 10
					body = bytes.NewReader(make([]byte, length))
				}
				r, _ := http.NewRequest(q.method, base+"/", body)
				a := send(c, r)
				if a.status != q.status || q.status == 200 && a.body != strconv.Itoa(length) {
					t.Errorf("%+v", a)
				}
				if q.status == 502 && proxyStatusOf(t, a.header) != "connection_terminated" {
					t.Errorf("%q", a.header["Proxy-Status"])
				}
				up.mu.Lock()
				defer up.mu.Unlock()
				applied := 1
				if q.name == "GOAWAY of later ones" && q.method == "GET" {
					applied = 2
				}
				if up.requests != q.requests || up.applied != applied {
					t.Errorf("%d requests, %d applied", up.requests, up.applied)
				}
			})
		}
	}
}

// What is malformed in an answer by HTTP/2 is told from a connection that broke.
func TestMalformedAnswerOfHTTP2(t *testing.T) {
	p := newPKI(t)
	for name, say := range map[string][]byte{
		"no status":         {},
		"upper case":        {0x88, 0x00, 0x01, 'X', 0x01, '1'},
		"connection header": append([]byte{0x88, 0x00, 0x0a}, "connection\x05close"...),
	} {
		up := &refusingServer{first: func(stream uint32) ([]byte, bool) { return frameOf(h2Headers, h2AllOfIt|h2End, stream, say...), false }}
		s := realGateway(t, target("endpoints: ['h2c://"+up.serve(t)+"']\nretry: {max_retries: 0}", ""))
		c, base := realClient(t, p, "http/1.1", s)
		r, _ := http.NewRequest("GET", base+"/", nil)
		a := send(c, r)
		if name == "connection header" {
			if a.status == 200 && a.header.Get("Connection") != "" { // it may be taken, and goes no further
				t.Errorf("%s: %+v", name, a)
			}
			continue
		}
		if a.status != 502 || proxyStatusOf(t, a.header) != "http_protocol_error" {
			t.Errorf("%s: %+v", name, a)
		}
	}
}
