package h1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"
)

// over runs one exchange over a tape.
func over(t *testing.T, cfg Config, req *http.Request, answer string) (*Transport, *tape, *http.Response, error) {
	tp := &tape{data: []byte(answer), piece: 1 << 20}
	cfg.Dial = func(context.Context, string, string) (net.Conn, error) { return tp, nil }
	tr := newTransport(t, cfg)
	resp, err := tr.RoundTrip(req)
	return tr, tp, resp, err
}

// Every one of these would leave two parties of different minds about where a message ends, or is no HTTP.
func TestMalformedResponses(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, answer := range []string{
		ok + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		ok + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		ok + "Content-Length: +5\r\n\r\nhello", ok + "Content-Length: -5\r\n\r\nhello", ok + "Content-Length: 5, 5\r\n\r\nhello",
		ok + "Content-Length: 0x5\r\n\r\nhello", ok + "Content-Length: 5 5\r\n\r\nhello", ok + "Content-Length:\r\n\r\nhello",
		ok + "Content-Length: 9223372036854775808\r\n\r\nhello",
		ok + "Transfer-Encoding: gzip\r\n\r\n", ok + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", ok + "Transfer-Encoding: \r\n\r\n",
		"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nTrailer: transfer-encoding\r\n\r\n0\r\n\r\n",
		ok + "A: b\rContent-Length: 5\r\n\r\nhello", ok + "A: b\r\n c\r\n\r\n", ok + " A: b\r\n\r\n", ok + "A : b\r\n\r\n", ok + "A b: c\r\n\r\n",
		ok + "A\r\n\r\n", ok + ": b\r\n\r\n", ok + "A: \x00\r\n\r\n", ok + "A: \x7f\r\n\r\n", ok + "\xe4: b\r\n\r\n",
		"HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000 OK\r\n\r\n", "HTTP/1.1 +20 OK\r\n\r\n", "HTTP/1.1 099 OK\r\n\r\n", "HTTP/1.1\r\n\r\n",
		"HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.11 200 OK\r\n\r\n", "http/1.1 200 OK\r\n\r\n", "HTTP/1.1  200 OK\r\n\r\n", "HTTP/1.1\t200 OK\r\n\r\n",
		"HTTP/1.1 200 O\x00K\r\n\r\n", "\r\n" + ok + "\r\n", "SSH-2.0-x\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		ok + "A: " + strings.Repeat("x", 4096) + "\r\n\r\n", ok + strings.Repeat("x", 1<<20),
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("A:b\r\n", 1001) + "\r\n",
		strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim+1) + okAnswer,
	} {
		cfg := Config{ResponseHeaderLimit: 4096}
		if strings.Contains(answer, "A:b") {
			cfg.ResponseHeaderLimit = 0
		}
		_, tp, _, err := over(t, cfg, newRequest(t, "GET", "a", nil), answer)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Op != OpResponse || e.RequestUnsent() || e.Stale() || !tp.closed {
			t.Errorf("%.80q: %v, closed %v", answer, err, tp.closed)
		}
	}
}

func TestMalformedBodies(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for body, want := range map[string]string{
		"5\r\nhelloX\r\n0\r\n\r\n": "hello", "5\nhello\r\n0\r\n\r\n": "", "5\r\nhello\n0\r\n\r\n": "hello", "5\rX\r\nhello": "",
		"-5\r\nhello\r\n0\r\n\r\n": "", "+5\r\nhello\r\n0\r\n\r\n": "", "0x5\r\nhello\r\n0\r\n\r\n": "", "\r\n": "", " 5\r\nhello\r\n0\r\n\r\n": "",
		"8000000000000000\r\nhello": "", "10000000000000005\r\nhello": "", "g\r\n": "", "5;" + strings.Repeat("x", 5000) + "\r\nhello\r\n0\r\n\r\n": "",
		"0\r\nA: b\n\r\n": "", "0\r\nA: b\r\n c\r\n\r\n": "", "0\r\nA b\r\n\r\n": "", "0\r\n\n": "",
		strings.Repeat("1;"+strings.Repeat("x", 4000)+"\r\na\r\n", 10) + "0\r\n\r\n": "aaaa",
	} {
		_, tp, resp, err := over(t, Config{}, newRequest(t, "GET", "a", nil), head+body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if e, ok := errors.AsType[*Error](err); !ok || e.Op != OpResponse || string(got) != want || !tp.closed {
			t.Errorf("%.60q: %q, %v, closed %v", body, got, err, tp.closed)
		}
	}
}

// F53c: a body that is cut short is no good answer.
func TestBodyCutShort(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789":                    "0123456789",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n01234":              "01234",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234":              "01234",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n":          "01234",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n":     "01234",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\nA: b": "01234",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n":                        "",
	} {
		_, tp, resp, err := over(t, Config{}, newRequest(t, "GET", "a", nil), answer)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		if err != io.ErrUnexpectedEOF || string(got) != want || !tp.closed {
			t.Errorf("%q: %q, %v", answer, got, err)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err != io.ErrUnexpectedEOF {
			t.Error(err)
		}
	}
}

func TestAnswerCutShort(t *testing.T) {
	for _, answer := range []string{"H", "HTTP/1.1 200 OK\r\nContent", "HTTP/1.1 100 Continue\r\n\r\n"} {
		_, _, _, err := over(t, Config{}, newRequest(t, "GET", "a", nil), answer)
		if e, ok := errors.AsType[*Error](err); !ok || e.Op != OpRead || e.Stale() || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%q: %v", answer, err)
		}
	}
}

func TestTrailer(t *testing.T) {
	_, tp, resp, err := over(t, Config{}, newRequest(t, "GET", "a", nil), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"+
		"Trailer: x-sum, Grpc-Status\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nOther: 2\r\ncontent-length: 3\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if s := fmt.Sprint(resp.Trailer, resp.Header); s != "map[Grpc-Status:[] X-Sum:[]] map[]" {
		t.Error(s)
	}
	io.Copy(io.Discard, resp.Body)
	if s := fmt.Sprint(resp.Trailer); s != "map[Grpc-Status:[] Other:[2] X-Sum:[1]]" || tp.closed {
		t.Error(s)
	}
}

func TestInterimResponses(t *testing.T) {
	var codes []int
	var link string
	first := 0
	refuse := error(nil)
	req := newRequest(t, "GET", "a", nil)
	req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotFirstResponseByte: func() { first++ },
		Got100Continue:       func() { t.Error("nobody expected it") },
		Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			codes = append(codes, code)
			link += h.Get("Link")
			return refuse
		},
	}))
	const answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + okAnswer
	_, _, resp, err := over(t, Config{}, req, answer)
	if err != nil || resp.StatusCode != 200 || fmt.Sprint(codes) != "[100 103]" || link != "</a>" || first != 1 || len(resp.Header) != 1 {
		t.Fatal(err, codes, link, first)
	}
	resp.Body.Close()
	refuse = errors.New("refused")
	if _, tp, _, err := over(t, Config{}, req, answer); !errors.Is(err, refuse) || !tp.closed {
		t.Fatal(err)
	}
}

// A connection goes back only where nothing is left on it, and nothing is left to be doubted.
func TestWhatIsKept(t *testing.T) {
	for _, c := range []struct {
		method, answer string
		kept           bool
	}{
		{"GET", okAnswer, true},
		{"GET", okAnswer + "x", false},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true},
		{"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nx", false},
		{"GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", false},
		{"GET", "HTTP/1.1 200 OK\r\n\r\nok", false},
		{"GET", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false},
		{"GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", true},
		{"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true},
		{"GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nx", false},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", true},
		{"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", false},
		{"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", true},
		{"HEAD", "HTTP/1.1 200 OK\r\n\r\n", true},
		{"GET", "HTTP/1.1 204 No Content\r\n\r\n", true},
		{"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", true},
		{"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", false},
		{"GET", "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", false},
		{"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n", true},
		{"GET", "HTTP/1.1 304 Not Modified\r\n\r\nok", false},
	} {
		tr, tp, resp, err := over(t, Config{}, newRequest(t, c.method, "a", nil), c.answer)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if kept := tr.idleCount() == 1; kept != c.kept || kept == tp.closed {
			t.Errorf("%s %q: kept %v, closed %v", c.method, c.answer, kept, tp.closed)
		}
		resp.Body.Close()
	}
	for _, set := range []func(r *http.Request){func(r *http.Request) { r.Close = true }, func(r *http.Request) { r.Header.Set("Connection", "close") }} {
		req := newRequest(t, "GET", "a", nil)
		set(req)
		tr, tp, resp, err := over(t, Config{}, req, okAnswer)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if tr.idleCount() != 0 || !tp.closed {
			t.Error("kept, though the request forbids it")
		}
	}
}

// A body that is closed early costs the connection, unless the rest of it is there already.
func TestCloseBeforeTheEnd(t *testing.T) {
	for answer, kept := range map[string]bool{
		okAnswer: true,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n":     true,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n":              false,
		"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + strings.Repeat("x", 10000): false,
		"HTTP/1.1 200 OK\r\n\r\nok": false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nmalformed\r\n": false,
	} {
		tr, tp, resp, err := over(t, Config{}, newRequest(t, "GET", "a", nil), answer)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if got := tr.idleCount() == 1; got != kept || got == tp.closed {
			t.Errorf("%.60q: kept %v", answer, got)
		}
		if _, err := resp.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
			t.Error(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Close is for whoever wants a Read under way to end, and never hits the connection's next exchange.
func TestCloseDuringRead(t *testing.T) {
	leaks(t)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			head, err := readHead(r)
			if err != nil {
				return
			}
			if strings.HasPrefix(head, "POST") {
				io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok")
				continue
			}
			io.WriteString(c, okAnswer)
		}
	})
	tr := newTransport(t, Config{})
	resp, err := tr.RoundTrip(newRequest(t, "POST", addr, nil))
	if err != nil {
		t.Fatal(err)
	}
	began := make(chan struct{})
	ended := make(chan error)
	go func() {
		b := make([]byte, 10)
		resp.Body.Read(b)
		close(began)
		_, err := resp.Body.Read(b)
		ended <- err
	}()
	<-began
	time.Sleep(5 * time.Millisecond) // into the Read, most likely
	resp.Body.Close()
	if err := <-ended; err != http.ErrBodyReadAfterClose {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				resp, err := tr.RoundTrip(newRequest(t, "GET", addr, nil))
				if err != nil {
					t.Error(err)
					return
				}
				var both sync.WaitGroup
				both.Go(func() { io.ReadAll(resp.Body) })
				resp.Body.Close()
				both.Wait()
			}
		})
	}
	wg.Wait()
}

// F51: after a 101 the connection is the caller's, and what the server said with it is not lost.
func TestUpgrade(t *testing.T) {
	leaks(t)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		readHead(r)
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nwelcome")
		io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{r}) // splice keeps pipes for later, which looks like a leak
		io.WriteString(c, "bye")
	})
	ctx, cancel := context.WithCancel(t.Context())
	req := newRequest(t, "GET", addr, nil).WithContext(ctx)
	req.Header.Set("Connection", "keep-alive, Upgrade")
	req.Header.Set("Upgrade", "echo")
	tr := newTransport(t, Config{})
	resp, err := tr.RoundTrip(req)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(err)
	}
	cancel() // which is over with the request
	tr.CloseIdleConnections()
	time.Sleep(5 * time.Millisecond)
	rw := resp.Body.(io.ReadWriteCloser)
	want := "welcome"
	for range 3 {
		b := make([]byte, len(want))
		if _, err := io.ReadFull(rw, b); err != nil || string(b) != want {
			t.Fatalf("%q, %v", b, err)
		}
		want = "message"
		if _, err := io.WriteString(rw, want); err != nil {
			t.Fatal(err)
		}
	}
	if err := rw.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(rw); err != nil || string(b) != "messagebye" {
		t.Fatalf("%q, %v", b, err)
	}
	rw.Close()
}

// A panic of the caller's leaves nothing open.
func TestCallerPanics(t *testing.T) {
	leaks(t)
	addr := serve(t, answering(okAnswer))
	for name, set := range map[string]func(r *http.Request) *http.Request{
		"body": func(r *http.Request) *http.Request {
			r.Body, r.ContentLength = io.NopCloser(readerFunc(func([]byte) (int, error) { panic("body") })), 5
			return r
		},
		"hook": func(r *http.Request) *http.Request {
			return r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { panic("hook") }}))
		},
	} {
		tr := newTransport(t, Config{})
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			tr.RoundTrip(set(newRequest(t, "POST", addr, nil)))
		}()
		if n := tr.idleCount(); n != 0 {
			t.Errorf("%s: %d idle", name, n)
		}
	}
}

// F37: the body is there when RoundTrip has long returned.
func TestBodyIsReadLater(t *testing.T) {
	leaks(t)
	const size = 1 << 20
	piece := strings.Repeat("x", size/8)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			if _, err := readHead(r); err != nil {
				return
			}
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
			for range 8 {
				time.Sleep(time.Millisecond)
				io.WriteString(c, piece)
			}
		}
	})
	tr := newTransport(t, Config{})
	for range 20 {
		if _, body := fetch(t, tr, newRequest(t, "GET", addr, nil)); len(body) != size {
			t.Fatal(len(body))
		}
	}
}
