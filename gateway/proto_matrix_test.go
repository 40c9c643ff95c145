package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestBodiesPassBothWays(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		w.Header().Set("X-Length", strconv.FormatInt(r.ContentLength, 10))
		w.Header().Set("X-Error", fmt.Sprint(err))
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		}
		w.Write(b)
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, size := range []int{0, 1, 4 << 10, 100_000, 1 << 20} {
			want := bytes.Repeat([]byte("0123456789abcdef\n"), size/17+1)[:size]
			for _, known := range []bool{true, false} {
				for _, path := range []string{"/length", "/chunks"} {
					r, _ := http.NewRequest("POST", base+path, struct{ io.Reader }{bytes.NewReader(want)})
					length := int64(-1)
					if known {
						r.ContentLength, length = int64(size), int64(size)
						if size == 0 {
							r.Body = http.NoBody
						}
					}
					res, err := c.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || !bytes.Equal(got, want) || res.Header.Get("X-Error") != "<nil>" {
						t.Errorf("%d bytes, %s: got %d, %v, upstream %s", size, path, len(got), err, res.Header.Get("X-Error"))
					}
					if v := res.Header.Get("X-Length"); v != fmt.Sprint(length) {
						t.Errorf("%d bytes, known %v: the target was told %s", size, known, v)
					}
					if path == "/length" && res.ContentLength != int64(size) {
						t.Errorf("%d bytes: Content-Length %d", size, res.ContentLength)
					}
				}
			}
		}
	})
}

func TestTrailersPassBothWays(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/unannounced" {
			w.Header().Set("Trailer", "X-Announced, X-Sum")
		}
		if r.URL.Path == "/short" {
			w.Header().Set("Content-Type", "text/plain")
		} else {
			http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(200)
			http.NewResponseController(w).Flush()
		}
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
		sum := r.Trailer.Get("X-Sum")
		if r.URL.Path == "/unannounced" {
			w.Header().Set(http.TrailerPrefix+"X-Announced", "yes")
			w.Header().Set(http.TrailerPrefix+"X-Sum", sum)
			return
		}
		w.Header().Set("X-Announced", "yes")
		w.Header().Set("X-Sum", sum)
		w.Header().Set(http.TrailerPrefix+"X-More", "more")
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, path := range []string{"/announced", "/unannounced", "/short"} {
			r, _ := http.NewRequest("POST", base+path, io.MultiReader(strings.NewReader("some "), strings.NewReader("body")))
			r.Trailer = http.Header{"X-Sum": {"s3"}}
			r.Header.Set("Te", "trailers")
			res, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(b) != "some body" {
				t.Errorf("%s: %q, %v", path, b, err)
			}
			if got := res.Trailer; got.Get("X-Announced") != "yes" || got.Get("X-Sum") != "s3" || path == "/announced" && got.Get("X-More") != "more" {
				t.Errorf("%s: trailer %v", path, got)
			}
		}
	})
}

// A retried request has its trailers, too.
func TestTrailersOfRequestsAreReplayed(t *testing.T) {
	var n atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if n.Add(1)%2 == 1 {
			w.WriteHeader(503)
			return
		}
		fmt.Fprintf(w, "%s %s", b, r.Trailer.Get("X-Sum"))
	})
	eachProtocol(t, h, retrying, func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		r, _ := http.NewRequest("PUT", base+"/", io.MultiReader(strings.NewReader("body")))
		r.Trailer = http.Header{"X-Sum": {"s3"}}
		if a := send(c, r); a.body != "body s3" {
			t.Errorf("%+v", a)
		}
	})
}

// HEAD, 204 and 304 have no body, and HEAD the length that GET would have.
func TestAnswersWithoutBodyAreFramedAsSuch(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/length":
			w.Header().Set("Content-Length", "12345")
		case "/204":
			w.WriteHeader(204)
			return
		case "/304":
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
			return
		case "/chunks":
			http.NewResponseController(w).Flush()
			return
		case "/200":
			return
		case "/205":
			w.WriteHeader(205)
			return
		}
		if r.Method != "HEAD" {
			w.Write(make([]byte, 12345))
		}
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for range 2 { // the second on a connection that has served the first
			for _, q := range []struct {
				method, path string
				status       int
				length       int64
			}{
				{"HEAD", "/length", 200, 12345}, {"GET", "/length", 200, 12345}, {"GET", "/204", 204, 0}, {"HEAD", "/204", 204, 0}, {"DELETE", "/204", 204, 0},
				{"GET", "/304", 304, 0}, {"HEAD", "/304", 304, 0}, {"GET", "/200", 200, 0}, {"GET", "/205", 205, 0}, {"HEAD", "/chunks", 200, -1}, {"GET", "/chunks", 200, -1},
			} {
				r, _ := http.NewRequest(q.method, base+q.path, nil)
				res, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(res.Body)
				res.Body.Close()
				want := 0
				if q.length > 0 && q.method != "HEAD" {
					want = int(q.length)
				}
				if res.StatusCode != q.status || err != nil || len(b) != want {
					t.Errorf("%s %s: %d, %d bytes, %v", q.method, q.path, res.StatusCode, len(b), err)
				}
				if q.status == 204 && len(res.Header["Content-Length"])+len(res.TransferEncoding) > 0 {
					t.Errorf("%s %s: a 204 with %v %v", q.method, q.path, res.Header["Content-Length"], res.TransferEncoding)
				}
				if q.length > 0 && res.ContentLength != q.length {
					t.Errorf("%s %s: length %d", q.method, q.path, res.ContentLength)
				}
				if q.status == 304 && res.Header.Get("Etag") != `"x"` {
					t.Errorf("%s %s: %v", q.method, q.path, res.Header)
				}
			}
		}
	})
}

func TestEarlyHintsPassBetweenAllProtocols(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.Header().Set("Cortex-Reason", "spoofed")
		w.WriteHeader(103)
		w.Header().Set("Link", "</b.css>; rel=preload")
		w.WriteHeader(103)
		w.Header().Del("Link")
		w.Header().Del("Cortex-Reason")
		w.Header().Set("X-Final", "yes")
		io.WriteString(w, "done")
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h.Get("Link"), h.Get("Cortex-Reason")))
			return nil
		}})
		r, _ := http.NewRequestWithContext(ctx, "GET", base+"/", nil)
		a := send(c, r)
		if a.body != "done" || a.header.Get("X-Final") != "yes" || a.header.Get("Link") != "" {
			t.Errorf("%+v", a)
		}
		if want := []string{"103</a.css>; rel=preload", "103</b.css>; rel=preload"}; !slices.Equal(hints, want) {
			t.Errorf("hints %q", hints)
		}
	})
}

// F56, between all protocols. Bodies of up to 256 KiB are ones that net/http's server reads when they are closed: a client that waited to be told
// to send hung until body_timeout.
func TestExpectContinueBetweenAllProtocols(t *testing.T) {
	for _, size := range []int64{100, 10 << 10, 200 << 10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) { expectations(t, size) })
	}
}

func expectations(t *testing.T, size int64) {
	var n atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/401":
			w.WriteHeader(401)
			return
		case "/close":
			breakOff(w)
		case "/503":
			if n.Add(1)%2 == 1 {
				w.WriteHeader(503)
				return
			}
		}
		m, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", m, err)
	})
	eachProtocol(t, h, retrying, func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		whole := fmt.Sprint(size, " <nil>")
		for _, q := range []struct {
			method, path string
			status       int
			body         string
			unread       bool // the client need not send its body
		}{
			{"PUT", "/401", 401, "", true}, {"PUT", "/", 200, whole, false}, {"POST", "/", 200, whole, false}, {"PUT", "/503", 200, whole, false}, {"POST", "/close", 502, "", true},
		} {
			// net/http's server of HTTP/2 answers Expect itself, and does not tell: there the body is asked for at once.
			if isHTTP2(client) && q.path == "/503" && size > 10<<10 {
				continue // more of it may have been sent than can be replayed
			}
			q.unread = q.unread && !isHTTP2(client)
			var read atomic.Int64
			r, _ := http.NewRequest(q.method, base+q.path, &countReader{io.LimitReader(zeros{}, size), &read})
			r.ContentLength = size
			r.Header.Set("Expect", "100-continue")
			a := send(c, r)
			if a.err != nil || a.status != q.status || q.body != "" && a.body != q.body {
				t.Errorf("%s %s: %d %q %v", q.method, q.path, a.status, a.body, a.err)
			}
			if a.took > 3*time.Second { // one second is what a target may take to say 100
				t.Errorf("%s %s: took %v", q.method, q.path, a.took)
			}
			if q.unread && read.Load() > 0 {
				t.Errorf("%s %s: %d bytes were uploaded for nothing", q.method, q.path, read.Load())
			}
		}
	})
}

// breakOff ends a connection of HTTP/1, or a stream of HTTP/2, at once: net/http's server first reads what is left of a body.
func breakOff(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		c.Close()
	}
	panic(http.ErrAbortHandler)
}

// A refusal by the guard itself is as fast to a client that waits with its body.
func TestRefusalDoesNotWaitForTheBody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(500))
		_, stop, done := w.server(one("", ""))
		openCircuit(t, w, w.client(stranger), "http://gateway.test:80/")
		for _, size := range []int64{100, 10 << 10, 200 << 10, 1 << 20} {
			c := w.client(stranger)
			c.Transport.(*http.Transport).ExpectContinueTimeout = time.Hour
			r, _ := http.NewRequest("PUT", "http://gateway.test:80/", io.LimitReader(zeros{}, size))
			r.ContentLength = size
			r.Header.Set("Expect", "100-continue")
			if a := send(c, r); a.status != 503 && a.status != 500 || a.took > time.Millisecond {
				t.Errorf("%d bytes: %d after %v, %v", size, a.status, a.took, a.err)
			}
		}
		stop()
		<-done
	})
}

type countReader struct {
	io.Reader
	n *atomic.Int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// A target may answer while it is still being sent to, and the client read that before it says more. Over HTTP/1.1 net/http's server
// took what it had of the body for itself when the answer began, and the target got a body with a hole in it.
func TestAnswerDuringUpload(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		rc.EnableFullDuplex()
		w.WriteHeader(200)
		rc.Flush()
		buf := make([]byte, 1000)
		for {
			n, err := r.Body.Read(buf)
			w.Write(buf[:n])
			rc.Flush()
			if err != nil {
				return
			}
		}
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		pr, pw := io.Pipe()
		ctx, cancel := context.WithTimeout(t.Context(), slowness)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "POST", base+"/", pr)
		defer pw.Close()
		go pw.Write([]byte("first"))
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		say := func(what string) {
			t.Helper()
			b := make([]byte, len(what))
			if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != what {
				t.Fatalf("echo of %q: %q, %v", what, b, err)
			}
		}
		say("first")
		for i := range 5 {
			text := fmt.Sprintf("message %d", i)
			if _, err := io.WriteString(pw, text); err != nil {
				t.Fatal(err)
			}
			say(text)
		}
		pw.Close()
		if b, err := io.ReadAll(res.Body); len(b) > 0 || err != nil {
			t.Errorf("rest %q, %v", b, err)
		}
	})
}

// The same with much of it on its way: not a byte is lost.
func TestLongAnswerDuringLongUpload(t *testing.T) {
	size := int64(8 << 20)
	if raced {
		size = 2 << 20
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		sum := sha256.New()
		n, err := io.Copy(io.MultiWriter(sum, w), r.Body)
		fmt.Fprintf(w, "\n%d %v %x", n, err, sum.Sum(nil))
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, known := range []bool{false, true} {
			sum := sha256.New()
			r, _ := http.NewRequest("POST", base+"/", io.TeeReader(io.LimitReader(&counting{}, size), sum))
			if known {
				r.ContentLength = size
			}
			res, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			got := sha256.New()
			if _, err := io.CopyN(got, res.Body, size); err != nil {
				t.Errorf("known %v: %v", known, err)
			}
			rest, err := io.ReadAll(res.Body)
			res.Body.Close()
			if want := fmt.Sprintf("\n%d <nil> %x", size, sum.Sum(nil)); string(rest) != want || err != nil || !bytes.Equal(got.Sum(nil), sum.Sum(nil)) {
				t.Errorf("known %v: %q, want %q, %v", known, rest, want, err)
			}
		}
	})
}

// counting is an endless body in which every place is another.
type counting struct{ n uint32 }

func (c *counting) Read(p []byte) (int, error) {
	n := len(p) &^ 3
	for i := 0; i < n; i += 4 {
		c.n++
		p[i], p[i+1], p[i+2], p[i+3] = byte(c.n>>24), byte(c.n>>16), byte(c.n>>8), byte(c.n)
	}
	return n, nil
}

// F53c: what breaks off arrives as broken, in every protocol.
func TestBrokenAnswersBreakInAllProtocols(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "1000")
		}
		io.WriteString(w, "ten bytes.")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	eachProtocol(t, h, retrying, func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, path := range []string{"/length", "/chunks"} {
			g := s.Gateway()
			before := g.trafficOf(g.Targets()[0])
			r, _ := http.NewRequest("GET", base+path, nil)
			a := send(c, r)
			if a.err == nil {
				t.Errorf("%s: a whole answer: %+v", path, a)
			}
			idle(t, s)
			if tr := g.trafficOf(g.Targets()[0]); tr.BrokenAnswers != before.BrokenAnswers+1 || tr.ClientAborts != before.ClientAborts {
				t.Errorf("%s: %+v", path, tr)
			}
		}
	})
}

// F53a: a client that leaves takes its call with it, in every protocol.
func TestClientThatLeavesCancelsInAllProtocols(t *testing.T) {
	begun, ended := make(chan struct{}, 10), make(chan struct{}, 10)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			w.Write(make([]byte, 100))
			http.NewResponseController(w).Flush()
		}
		begun <- struct{}{}
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		ended <- struct{}{}
		panic(http.ErrAbortHandler) // a clean end could still arrive
	})
	eachProtocol(t, h, "timeout: {enabled: false}\n"+retrying, func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, path := range []string{"/header", "/body"} {
			g := s.Gateway()
			tg := g.Targets()[0]
			before, stats := g.trafficOf(tg), tg.Engine.Stats()
			ctx, cancel := context.WithCancel(t.Context())
			r, _ := http.NewRequestWithContext(ctx, "GET", base+path, nil)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if res, err := c.Do(r); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			<-begun
			if path == "/body" {
				time.Sleep(20 * time.Millisecond) // let the header through; either way the call ends
			}
			cancel()
			<-done
			select {
			case <-ended:
			case <-time.After(slowness):
				t.Fatalf("%s: the target's request goes on", path)
			}
			idle(t, s)
			after := tg.Engine.Stats()
			if tr := g.trafficOf(tg); tr.ClientAborts != before.ClientAborts+1 || tr.BrokenAnswers != before.BrokenAnswers {
				t.Errorf("%s: %+v", path, tr)
			}
			if after.Failures+after.Timeouts != stats.Failures+stats.Timeouts || after.Retries != stats.Retries {
				t.Errorf("%s: %+v", path, after)
			}
		}
	})
}
