package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"
)

// tape is a connection whose peer says what is on it, in pieces, whatever it is asked.
type tape struct {
	data   []byte
	piece  int
	closed bool
}

func (t *tape) Read(p []byte) (int, error) {
	if t.closed {
		return 0, net.ErrClosed
	}
	if len(t.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, t.data[:min(len(t.data), t.piece)])
	t.data = t.data[n:]
	return n, nil
}

func (t *tape) Write(p []byte) (int, error)      { return len(p), nil }
func (t *tape) Close() error                     { t.closed = true; return nil }
func (t *tape) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (t *tape) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (t *tape) SetDeadline(time.Time) error      { return nil }
func (t *tape) SetReadDeadline(time.Time) error  { return nil }
func (t *tape) SetWriteDeadline(time.Time) error { return nil }

// heard is what came of a response.
type heard struct {
	Refused bool
	Status  string
	Proto   string
	Header  http.Header
	Length  int64
	Coding  []string
	Close   bool
	Body    string
	Cut     bool
	Trailer http.Header
	Kept    bool // the connection may be used again
	Left    int  // bytes after the response
}

func hearOwn(t *testing.T, method string, data []byte, piece, read int) heard {
	tp := &tape{data: data, piece: piece}
	tr, err := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return tp, nil }, ResponseHeaderLimit: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	req, _ := http.NewRequest(method, "http://tape/", nil)
	req.Header.Set("Upgrade", "any")
	req.Header.Set("Connection", "upgrade")
	resp, err := tr.RoundTrip(req)
	if err != nil {
		if e, ok := errors.AsType[*Error](err); !ok || e.RequestUnsent() {
			t.Fatalf("error %v", err)
		}
		if !tp.closed {
			t.Fatal("connection left open after an error")
		}
		return heard{Refused: true}
	}
	h := heard{Status: resp.Status, Proto: resp.Proto, Header: resp.Header, Length: resp.ContentLength, Coding: resp.TransferEncoding, Close: resp.Close}
	if resp.StatusCode == 101 {
		resp.Body.Close()
		return h
	}
	var body []byte
	b := make([]byte, read)
	for err == nil {
		var n int
		n, err = resp.Body.Read(b)
		body = append(body, b[:n]...)
	}
	h.Body, h.Cut, h.Trailer = string(body), err != io.EOF, resp.Trailer
	resp.Body.Close()
	h.Kept = len(tr.pool.hosts["tape:80"]) == 1
	if h.Kept == tp.closed {
		t.Fatalf("in the pool: %v, closed: %v", h.Kept, tp.closed)
	}
	h.Left = len(tp.data)
	return h
}

func hearStd(method string, data []byte) heard {
	src := bytes.NewReader(data)
	br := bufio.NewReader(src)
	req, _ := http.NewRequest(method, "http://tape/", nil)
	var resp *http.Response
	for {
		var err error
		if resp, err = http.ReadResponse(br, req); err != nil {
			return heard{Refused: true}
		}
		if resp.StatusCode >= 200 || resp.StatusCode == 101 {
			break
		}
	}
	h := heard{Status: resp.Status, Proto: resp.Proto, Header: resp.Header, Length: resp.ContentLength, Coding: resp.TransferEncoding, Close: resp.Close}
	if resp.StatusCode == 101 {
		return h
	}
	body, err := io.ReadAll(resp.Body)
	h.Body, h.Cut, h.Trailer = string(body), err != nil, resp.Trailer
	h.Left = br.Buffered() + src.Len()
	return h
}

var seeds = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello!",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
	"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nTrailer: A, b\r\n\r\n5;x=y\r\nhello\r\n1 \r\n!\r\n000\r\nA: 1\r\nC: 2\r\nContent-Length: 3\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nhello\r\n0\r\n\r\n",
	"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 200 OK\r\n\r\nup to the end",
	"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n",
	"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 101 Switching Protocols\r\nUpgrade: any\r\nConnection: upgrade\r\n\r\nbytes",
	"HTTP/1.1 101 Switching Protocols\r\n\r\nbytes",
	"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1  200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 +20 Signed\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
	"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nA: b\rc\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nA: b\x00c\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\n: no name\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nset-cookie: a\r\nSet-Cookie: b\r\nx-Empty:\r\ncontent-length:\t2 \r\nPragma: no-cache\r\n\r\nok",
	"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n", "GET / HTTP/1.1\r\n\r\n",
}

var methods = [...]string{"GET", "HEAD", "POST", "OPTIONS"}

// What this package makes of a response is what net/http makes of it, or it refuses it.
func FuzzResponse(f *testing.F) {
	for i, s := range seeds {
		f.Add([]byte(s), uint8(0), uint8(i))
		f.Add([]byte(s), uint8(1), uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, method, piece uint8) {
		if len(data) > 32<<10 {
			return
		}
		m := methods[int(method)%len(methods)]
		whole := hearOwn(t, m, data, 1<<20, 512)
		parts := hearOwn(t, m, data, 1+int(piece), 1+int(piece)%7)
		whole.Left, parts.Left = 0, 0
		if parts.Kept && !whole.Kept { // what follows the response had not been read yet
			parts.Kept = false
		}
		if !reflect.DeepEqual(whole, parts) {
			t.Fatalf("%q\nat once    %+v\nin pieces  %+v", data, whole, parts)
		}
		if whole.Refused {
			return
		}
		std := hearStd(m, data)
		if std.Refused {
			t.Fatalf("%q\nnet/http refuses it; here %+v", data, whole)
		}
		if whole.Kept && (std.Close || std.Left > 0 || std.Cut) {
			t.Fatalf("%q\nthe connection was kept, though %+v", data, std)
		}
		// Where the body fails here, net/http may be content; never the other way round.
		if whole.Cut {
			if len(std.Body) < len(whole.Body) || std.Body[:len(whole.Body)] != whole.Body {
				t.Fatalf("%q\nhere %+v\nstd  %+v", data, whole, std)
			}
			whole.Cut, whole.Body, whole.Trailer = std.Cut, std.Body, std.Trailer
		}
		for _, h := range []http.Header{std.Trailer, whole.Trailer} {
			for key := range h {
				if framing(key) {
					delete(h, key)
				}
			}
		}
		if len(std.Trailer) == 0 {
			std.Trailer = whole.Trailer
		}
		if p := std.Header["Pragma"]; len(p) > 0 && p[0] == "no-cache" && whole.Header["Cache-Control"] == nil {
			delete(std.Header, "Cache-Control")
		}
		if std.Close && std.Header["Connection"] == nil { // net/http takes it away with all the names that are in it
			delete(whole.Header, "Connection")
		}
		for key, values := range whole.Header { // trailing white space is taken away on both sides
			for i := range values {
				values[i] = textproto.TrimString(values[i])
			}
			whole.Header[key] = values
		}
		whole.Kept, std.Kept, std.Left = false, false, 0
		if !reflect.DeepEqual(whole, std) {
			t.Fatalf("%q\nhere %+v\nstd  %+v", data, whole, std)
		}
	})
}

// scribe is a tape that keeps what is written.
type scribe struct {
	tape
	wrote []byte
}

func (s *scribe) Write(p []byte) (int, error) { s.wrote = append(s.wrote, p...); return len(p), nil }

// Whatever stands in a request's parts, a server reads from the wire that one request, with those parts, or nothing was sent.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "example.com", "/", "a=b", "X-A", "v", "body")
	f.Add("POST", "[::1]:80", "/a b", "", "content-length", "3", "")
	f.Add("GET /", "a\r\nb: c", "/\r\n", "q HTTP/1.1", "A\r\nB", "v\r\nC: d", "x")
	f.Add("M", "h", "*", "\x7f", "Transfer-Encoding", "chunked", "0\r\n\r\nGET / HTTP/1.1\r\n\r\n")
	f.Add("OPTIONS", "h:", "*", "", "Connection", "close", "")
	f.Add("PUT", "", "", "", "host", " ", "")
	f.Fuzz(func(t *testing.T, method, host, path, query, key, value, body string) {
		s := &scribe{tape: tape{data: []byte("HTTP/1.1 204 No Content\r\n\r\n"), piece: 100}}
		tr, err := New(Config{Dial: func(context.Context, string, string) (net.Conn, error) { return s, nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.CloseIdleConnections()
		req := &http.Request{Method: method, Host: host, URL: &url.URL{Scheme: "http", Host: "a", Path: path, RawQuery: query},
			Header: http.Header{key: {value}}}
		if body != "" {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		}
		if _, err := tr.RoundTrip(req); err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || !e.RequestUnsent() || len(s.wrote) > 0 {
				t.Fatalf("%v, %q", err, s.wrote)
			}
			return
		}
		if textproto.CanonicalMIMEHeaderKey(key) == "Expect" {
			return // the answer comes before the body
		}
		r := bufio.NewReader(bytes.NewReader(s.wrote))
		got, err := http.ReadRequest(r)
		if err != nil {
			// Go's server wants a target that its parser of URLs takes; that is no matter of where lines begin.
			if bytes.Count(s.wrote[:bytes.Index(s.wrote, []byte("\r\n\r\n"))], []byte("\n")) > 3 {
				t.Fatalf("%v, %q", err, s.wrote)
			}
			return
		}
		b, err := io.ReadAll(got.Body)
		if err != nil || string(b) != body || r.Buffered() > 0 {
			t.Fatalf("%q %v, %d left: %q", b, err, r.Buffered(), s.wrote)
		}
		want := method
		if want == "" {
			want = "GET"
		}
		if got.Method != want || got.RequestURI != req.URL.RequestURI() || host != "" && !strings.HasPrefix(host, "[") && got.Host != host {
			t.Fatalf("%q", s.wrote)
		}
		name := textproto.CanonicalMIMEHeaderKey(key)
		if framing(key) || name == "Host" || name == "User-Agent" || name == "Connection" || name == "Pragma" {
			return
		}
		if v := got.Header[name]; len(v) != 1 || v[0] != trim(value) {
			t.Fatalf("%q: %q", v, s.wrote)
		}
	})
}
