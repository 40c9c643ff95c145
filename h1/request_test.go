package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// lines are those of a header section, sorted, since maps have no order; the first stays where it is.
func lines(head string) []string {
	l := strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")
	slices.Sort(l[1:])
	return l
}

func TestRequestOnTheWire(t *testing.T) {
	got := make(chan string, 1)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		var raw bytes.Buffer
		req, err := http.ReadRequest(bufio.NewReader(io.TeeReader(r, &raw)))
		if err != nil {
			return // of the end of the test
		}
		io.Copy(io.Discard, req.Body)
		got <- raw.String()
		c.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"))
	})
	tr := newTransport(t, Config{})
	body := func(s string) io.ReadCloser { return io.NopCloser(io.MultiReader(strings.NewReader(s))) }
	for _, c := range []struct {
		name string
		set  func(r *http.Request)
		want string // HOST stands for the address
	}{
		{"bare", func(r *http.Request) {}, "GET / HTTP/1.1|Host: HOST||"},
		{"no method", func(r *http.Request) { r.Method = "" }, "GET / HTTP/1.1|Host: HOST||"},
		{"host", func(r *http.Request) { r.Host = "example.com:81" }, "GET / HTTP/1.1|Host: example.com:81||"},
		{"zone", func(r *http.Request) { r.Host = "[fe80::1%eth0]:80" }, "GET / HTTP/1.1|Host: [fe80::1]:80||"},
		{"target", func(r *http.Request) { r.URL.Path, r.URL.RawQuery = "/a b", "c=%20&d" }, "GET /a%20b?c=%20&d HTTP/1.1|Host: HOST||"},
		{"star", func(r *http.Request) { r.Method, r.URL.Path = "OPTIONS", "*" }, "OPTIONS * HTTP/1.1|Host: HOST||"},
		{"agent", func(r *http.Request) { r.Header["User-Agent"] = []string{"a", "b"} }, "GET / HTTP/1.1|Host: HOST|User-Agent: a||"},
		{"no agent", func(r *http.Request) { r.Header["User-Agent"] = []string{""} }, "GET / HTTP/1.1|Host: HOST||"},
		{"values", func(r *http.Request) { r.Header["A"] = []string{" x\t", "y", ""} }, "GET / HTTP/1.1|A: |A: x|A: y|Host: HOST||"},
		{"framing fields", func(r *http.Request) {
			for _, k := range []string{"Content-Length", "content-length", "Transfer-Encoding", "TRANSFER-ENCODING", "Trailer", "trailer", "Host", "host"} {
				r.Header[k] = []string{"7"}
			}
		}, "GET / HTTP/1.1|Host: HOST||"},
		{"close", func(r *http.Request) { r.Close = true }, "GET / HTTP/1.1|Connection: close|Host: HOST||"},
		{"close twice", func(r *http.Request) { r.Close = true; r.Header.Set("Connection", "x, Close") },
			"GET / HTTP/1.1|Connection: x, Close|Host: HOST||"},
		{"empty POST", func(r *http.Request) { r.Method = "POST" }, "POST / HTTP/1.1|Content-Length: 0|Host: HOST||"},
		{"empty DELETE", func(r *http.Request) { r.Method = "DELETE" }, "DELETE / HTTP/1.1|Host: HOST||"},
		{"NoBody", func(r *http.Request) { r.Method, r.Body = "PUT", http.NoBody }, "PUT / HTTP/1.1|Content-Length: 0|Host: HOST||"},
		{"length", func(r *http.Request) { r.Method, r.Body, r.ContentLength = "POST", body("hello"), 5 },
			"POST / HTTP/1.1|Content-Length: 5|Host: HOST||hello"},
		{"GET with a body", func(r *http.Request) { r.Body, r.ContentLength = body("hello"), 5 },
			"GET / HTTP/1.1|Content-Length: 5|Host: HOST||hello"},
		{"chunks", func(r *http.Request) { r.Method, r.Body = "POST", body("hello") },
			"POST / HTTP/1.1|Host: HOST|Transfer-Encoding: chunked||5|hello|0||"},
		{"asked for chunks", func(r *http.Request) {
			r.Method, r.Body, r.ContentLength, r.TransferEncoding = "POST", body("hello"), 5, []string{"chunked"}
		}, "POST / HTTP/1.1|Host: HOST|Transfer-Encoding: chunked||5|hello|0||"},
		{"unknown and empty", func(r *http.Request) { r.Method, r.Body = "POST", body("") },
			"POST / HTTP/1.1|Host: HOST|Transfer-Encoding: chunked||0||"},
		{"trailer", func(r *http.Request) {
			r.Method, r.Trailer = "POST", http.Header{"X-Sum": nil, "A": nil}
			r.Body = &counted{Reader: io.MultiReader(strings.NewReader("hello"), readerFunc(func([]byte) (int, error) {
				r.Trailer["X-Sum"] = []string{"5"}
				return 0, io.EOF
			}))}
		}, "POST / HTTP/1.1|Host: HOST|Trailer: A, X-Sum|Transfer-Encoding: chunked||5|hello|0|X-Sum: 5||"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := newRequest(t, "GET", addr, nil)
			c.set(req)
			fetch(t, tr, req)
			head, rest, _ := strings.Cut(<-got, "\r\n\r\n")
			have := strings.Join(lines(head), "|") + "||" + strings.ReplaceAll(rest, "\r\n", "|")
			if want := strings.ReplaceAll(c.want, "HOST", addr); have != want {
				t.Errorf("have %q\nwant %q", have, want)
			}
		})
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestInvalidRequestsAreNotSent(t *testing.T) {
	leaks(t)
	addr := serve(t, func(n int, c net.Conn, r *bufio.Reader) { t.Error("a connection was made") })
	tr := newTransport(t, Config{})
	for name, set := range map[string]func(r *http.Request){
		"no URL":          func(r *http.Request) { r.URL = nil },
		"no Header":       func(r *http.Request) { r.Header = nil },
		"scheme":          func(r *http.Request) { r.URL.Scheme = "https" },
		"no host":         func(r *http.Request) { r.URL.Host = "" },
		"host":            func(r *http.Request) { r.Host = "a\r\nB: c" },
		"host with path":  func(r *http.Request) { r.Host = "a/b" },
		"IDN":             func(r *http.Request) { r.Host = "bücher.example" },
		"method":          func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\nA: b\r\n\r\nGET" },
		"CONNECT":         func(r *http.Request) { r.Method = "CONNECT" },
		"name":            func(r *http.Request) { r.Header["A: b\r\nC"] = []string{"d"} },
		"empty name":      func(r *http.Request) { r.Header[""] = []string{"d"} },
		"name with space": func(r *http.Request) { r.Header["A "] = []string{"d"} },
		"CR":              func(r *http.Request) { r.Header["A"] = []string{"b\rC: d"} },
		"LF":              func(r *http.Request) { r.Header["A"] = []string{"b\nC: d"} },
		"NUL":             func(r *http.Request) { r.Header["A"] = []string{"b\x00"} },
		"agent":           func(r *http.Request) { r.Header["User-Agent"] = []string{"b\r\n\r\nGET"} },
		"query":           func(r *http.Request) { r.URL.RawQuery = "a HTTP/1.1\r\nB: c" },
		"query with space": func(r *http.Request) {
			r.URL.RawQuery = "a HTTP/1.1"
		},
		"opaque":          func(r *http.Request) { r.URL = &url.URL{Scheme: "http", Host: addr, Opaque: "/a\nb"} },
		"trailer":         func(r *http.Request) { r.Trailer = http.Header{"Content-Length": {"1"}} },
		"trailer value":   func(r *http.Request) { r.Trailer = http.Header{"A": {"1\n"}} },
		"coding":          func(r *http.Request) { r.TransferEncoding = []string{"gzip", "chunked"} },
		"length, no body": func(r *http.Request) { r.Body, r.ContentLength = nil, 5 },
	} {
		req := newRequest(t, "POST", addr, nil)
		body := &counted{Reader: strings.NewReader("hello")}
		req.Body, req.ContentLength = body, 5
		set(req)
		_, err := tr.RoundTrip(req)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Op != OpRequest || !e.RequestUnsent() {
			t.Errorf("%s: %v", name, err)
		}
		if _, n := body.count(); n != 1 && req.Body != nil {
			t.Errorf("%s: body closed %d times", name, n)
		}
	}
}

// F43: a body of another length than announced must not look whole to the server, and is the caller's fault.
func TestBodyOfAnotherLength(t *testing.T) {
	leaks(t)
	whole := make(chan bool, 1)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			whole <- false
			return
		}
		n, err := io.Copy(io.Discard, req.Body)
		whole <- err == nil && n == req.ContentLength
	})
	fault := errors.New("fault")
	for _, length := range []int{5, inlineBody, inlineBody + 1, 100_000} {
		for name, body := range map[string]io.Reader{
			"short":   strings.NewReader(strings.Repeat("x", length-1)),
			"long":    strings.NewReader(strings.Repeat("x", length+1)),
			"longer":  strings.NewReader(strings.Repeat("x", 3*length)),
			"bytes":   io.MultiReader(strings.NewReader(strings.Repeat("x", length)), strings.NewReader("y")),
			"failing": io.MultiReader(strings.NewReader(strings.Repeat("x", length-1)), readerFunc(func([]byte) (int, error) { return 0, fault })),
			"late":    io.MultiReader(strings.NewReader(strings.Repeat("x", length)), readerFunc(func([]byte) (int, error) { return 0, fault })),
			"stuck":   readerFunc(func([]byte) (int, error) { return 0, nil }),
		} {
			tr := newTransport(t, Config{})
			b := &counted{Reader: body}
			req := newRequest(t, "POST", addr, b)
			req.ContentLength = int64(length)
			_, err := tr.RoundTrip(req)
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Op != OpRequest || e.RequestUnsent() != (length <= inlineBody) {
				t.Errorf("%s, %d: %v", name, length, err)
			}
			if (name == "failing" || name == "late") && !errors.Is(err, fault) {
				t.Errorf("%s, %d: %v", name, length, err)
			}
			if _, n := b.count(); n != 1 {
				t.Errorf("%s, %d: body closed %d times", name, length, n)
			}
			tr.CloseIdleConnections()
			if <-whole {
				t.Errorf("%s, %d: the server got a whole request", name, length)
			}
		}
	}
}
