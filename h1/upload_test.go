package h1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An answer that comes during the upload is there at once, whatever becomes of the rest.
func TestEarlyAnswer(t *testing.T) {
	for name, answer := range map[string]string{
		"closing": "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
		"keeping": "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
		"empty":   "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
	} {
		for _, known := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				leaks(t)
				addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
					readHead(r)
					io.WriteString(c, answer)
					if name == "closing" {
						c.(*net.TCPConn).CloseWrite()
						return // with bytes unread: a reset follows
					}
					r.ReadByte()
					<-t.Context().Done()
				})
				pr, pw := io.Pipe() // never ends
				go func() {
					for {
						if _, err := pw.Write(make([]byte, 64<<10)); err != nil {
							return
						}
					}
				}()
				body := &counted{Reader: pr}
				req := newRequest(t, "POST", addr, body)
				if known {
					req.ContentLength = 1 << 40
				}
				tr := newTransport(t, Config{})
				resp, got := fetch(t, tr, req)
				if resp.StatusCode < 401 || name != "empty" && got != "no" {
					t.Errorf("%s %q", resp.Status, got)
				}
				eventually(t, "the body is closed", func() bool { _, n := body.count(); return n == 1 })
				if n := tr.idleCount(); n != 0 {
					t.Errorf("%d idle", n)
				}
			})
		}
	}
}

// The connection is used again where the rest of the body is sent soon after the answer.
func TestEarlyAnswerThenTheRest(t *testing.T) {
	leaks(t)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.WriteString(c, okAnswer)
			if n, err := io.Copy(io.Discard, req.Body); err != nil || req.Method == "POST" && n != 100_000 {
				return
			}
		}
	})
	tr := newTransport(t, Config{})
	pr, pw := io.Pipe()
	req := newRequest(t, "POST", addr, pr)
	fetch(t, tr, req)
	if n := tr.idleCount(); n != 0 {
		t.Fatalf("%d idle", n)
	}
	if _, err := pw.Write(make([]byte, 100_000)); err != nil {
		t.Skip("the machine is too busy: ", err)
	}
	pw.Close()
	eventually(t, "the connection is idle", func() bool { return tr.idleCount() == 1 })
	var hooks traced
	fetch(t, tr, hooks.on(newRequest(t, "GET", addr, nil)))
	if hooks.reused != 1 {
		t.Fatal("not used again")
	}
}

// Both sides send much before either reads what the other sends.
func TestFullDuplex(t *testing.T) {
	leaks(t)
	const size = 16 << 20
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 16777216\r\n\r\n")
		c.Write(make([]byte, size-1))
		if n, err := io.Copy(io.Discard, req.Body); n != size || err != nil {
			t.Error(n, err)
		}
		c.Write(make([]byte, 1)) // at the end of the answer nobody would send the rest
	})
	_, body := fetch(t, newTransport(t, Config{}), newRequest(t, "POST", addr, bytes.NewReader(make([]byte, size))))
	if len(body) != size {
		t.Fatal(len(body))
	}
}

// A body that is streamed both ways, message by message.
func TestPingPong(t *testing.T) {
	leaks(t)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		b := make([]byte, 100)
		for {
			n, err := req.Body.Read(b)
			if err != nil {
				io.WriteString(c, "0\r\n\r\n")
				return
			}
			io.WriteString(c, "4\r\n"+string(b[:n])+"\r\n")
		}
	})
	pr, pw := io.Pipe()
	resp, err := newTransport(t, Config{}).RoundTrip(newRequest(t, "POST", addr, pr))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	for range 100 {
		io.WriteString(pw, "ping")
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "ping" {
			t.Fatal(err, b)
		}
	}
	pw.Close()
	if n, err := resp.Body.Read(b); n != 0 || err != io.EOF {
		t.Fatal(n, err)
	}
}

// pipeDial dials pipes, the other ends of which f serves.
func pipeDial(f func(c net.Conn, r *bufio.Reader)) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			defer b.Close()
			f(b, bufio.NewReader(b))
		}()
		return a, nil
	}
}

// F56: what becomes of a body that waits for a 100.
func TestExpectContinue(t *testing.T) {
	for _, c := range []struct {
		name   string
		server func(c net.Conn, r *bufio.Reader)
		wait   time.Duration
		status int // 0: an error
		reads  bool
		after  time.Duration
	}{
		{"100", func(c net.Conn, r *bufio.Reader) {
			io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
			readChunks(r)
			io.WriteString(c, okAnswer)
		}, 0, 200, true, 0},
		{"401", func(c net.Conn, r *bufio.Reader) {
			io.WriteString(c, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
		}, 0, 401, false, 0},
		{"nothing", func(c net.Conn, r *bufio.Reader) {
			readChunks(r)
			io.WriteString(c, okAnswer)
		}, 0, 200, true, time.Second},
		{"half a 100", func(c net.Conn, r *bufio.Reader) {
			io.WriteString(c, "HTTP/1.1 100 Con")
			readChunks(r)
			io.WriteString(c, "tinue\r\n\r\n"+okAnswer)
		}, 0, 200, true, time.Second},
		{"slow", func(c net.Conn, r *bufio.Reader) {
			time.Sleep(30 * time.Second)
			io.WriteString(c, "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n")
		}, time.Minute, 417, false, 30 * time.Second},
		{"not waited", func(c net.Conn, r *bufio.Reader) {
			readChunks(r)
			io.WriteString(c, okAnswer)
		}, -1, 200, true, 0},
		{"close", func(c net.Conn, r *bufio.Reader) {}, 0, 0, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTransport(t, Config{ExpectContinueTimeout: c.wait, Dial: pipeDial(func(conn net.Conn, r *bufio.Reader) {
					if _, err := readHead(r); err == nil {
						c.server(conn, r)
					}
				})})
				body := &counted{Reader: strings.NewReader("hello")}
				req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://a/", body)
				req.Header.Set("Expect", "100-continue")
				var got []int
				continued := 0
				req = req.WithContext(httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					Got100Continue: func() { continued++ },
					Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { got = append(got, code); return nil },
				}))
				began := time.Now()
				resp, err := tr.RoundTrip(req)
				if took := time.Since(began); took != c.after {
					t.Errorf("after %v, want %v", took, c.after)
				}
				switch {
				case c.status == 0 && err == nil || c.status > 0 && err != nil:
					t.Fatal(err)
				case err == nil:
					if resp.StatusCode != c.status {
						t.Error(resp.Status)
					}
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				synctest.Wait()
				if r, n := body.count(); (r > 0) != c.reads || n != 1 {
					t.Errorf("body read %d times, closed %d times", r, n)
				}
				if c.name == "100" && (continued != 1 || len(got) != 2) {
					t.Error(continued, got)
				}
				if n := tr.idleCount(); n != 0 && !c.reads {
					t.Error("the connection was kept though the body was not sent")
				}
			})
		})
	}
}

// readChunks reads up to the last chunk.
func readChunks(r *bufio.Reader) {
	for {
		if line, err := r.ReadString('\n'); err != nil || line == "0\r\n" {
			r.ReadString('\n')
			return
		}
	}
}

// The body of a request may be waited for by a caller that cannot be told to stop; RoundTrip then waits too, and
// says that it was the context that ended.
func TestContextEndsDuringTheUpload(t *testing.T) {
	for _, size := range []int64{10, -1, 1 << 30} {
		synctest.Test(t, func(t *testing.T) {
			tr := newTransport(t, Config{Dial: pipeDial(func(c net.Conn, r *bufio.Reader) { io.Copy(io.Discard, r) })})
			pr, pw := io.Pipe()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			context.AfterFunc(ctx, func() { time.Sleep(time.Second); pw.CloseWithError(errors.New("aborted")) })
			body := &counted{Reader: pr}
			req, _ := http.NewRequestWithContext(ctx, "POST", "http://a/", body)
			req.ContentLength = size
			began := time.Now()
			_, err := tr.RoundTrip(req)
			e, ok := errors.AsType[*Error](err)
			if took := time.Since(began); took != 2*time.Second || !ok {
				t.Errorf("%d: %v, %v", size, took, err)
			}
			if !errors.Is(err, context.DeadlineExceeded) || e.RequestUnsent() != (size == 10) {
				t.Errorf("%d: %v", size, err)
			}
			if _, n := body.count(); n != 1 {
				t.Errorf("%d: closed %d times", size, n)
			}
		})
	}
}

// A body in chunks that fails has no last chunk on the wire.
func TestChunkedBodyFails(t *testing.T) {
	leaks(t)
	whole := make(chan bool, 1)
	addr := serve(t, func(_ int, c net.Conn, r *bufio.Reader) {
		req, err := http.ReadRequest(r)
		if err == nil {
			_, err = io.Copy(io.Discard, req.Body)
		}
		whole <- err == nil
	})
	fault := errors.New("fault")
	for name, body := range map[string]io.Reader{
		"at once":  readerFunc(func([]byte) (int, error) { return 0, fault }),
		"later":    io.MultiReader(strings.NewReader("hello"), readerFunc(func([]byte) (int, error) { return 0, fault })),
		"stuck":    readerFunc(func([]byte) (int, error) { return 0, nil }),
		"trailer":  strings.NewReader("hello"),
		"smuggled": strings.NewReader("hello"),
	} {
		b := &counted{Reader: body}
		req := newRequest(t, "POST", addr, b)
		switch name {
		case "trailer", "smuggled":
			req.Trailer = http.Header{"A": nil}
			b.Reader = io.MultiReader(body, readerFunc(func([]byte) (int, error) {
				if name == "smuggled" {
					req.Trailer["Content-Length"] = []string{"5"}
				} else {
					req.Trailer["A"] = []string{"b\r\nc"}
				}
				return 0, io.EOF
			}))
		}
		_, err := newTransport(t, Config{}).RoundTrip(req)
		if e, ok := errors.AsType[*Error](err); !ok || e.Op != OpRequest || e.RequestUnsent() || (name == "at once" || name == "later") && !errors.Is(err, fault) {
			t.Errorf("%s: %v", name, err)
		}
		if <-whole {
			t.Errorf("%s: the server got a whole request", name)
		}
		if _, n := b.count(); n != 1 {
			t.Errorf("%s: closed %d times", name, n)
		}
	}
}

// A small body that takes its time may find the connection dead. Another takes its place, also for a POST: nothing was sent.
func TestSlowSmallBody(t *testing.T) {
	leaks(t)
	closed, gone := make(chan struct{}), make(chan struct{})
	addr := serve(t, func(n int, c net.Conn, r *bufio.Reader) {
		for i := 0; ; i++ {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			io.Copy(io.Discard, req.Body)
			io.WriteString(c, okAnswer)
			if n == 1 {
				<-closed
				c.Close()
				close(gone)
				return
			}
		}
	})
	tr := newTransport(t, Config{})
	fetch(t, tr, newRequest(t, "GET", addr, nil))
	var hooks traced
	req := hooks.on(newRequest(t, "POST", addr, io.MultiReader(strings.NewReader("he"), readerFunc(func(p []byte) (int, error) {
		close(closed)
		<-gone
		time.Sleep(2 * time.Millisecond) // it is looked into after a millisecond
		return copy(p, "llo"), io.EOF
	}))))
	req.ContentLength = 5
	if resp, _ := fetch(t, tr, req); resp.StatusCode != 200 || hooks.got != 1 || hooks.reused != 1 {
		t.Fatal(resp.Status, hooks)
	}
}
