package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// raw is a connection to the gateway on which a test writes what it likes.
func (w *world) raw(text string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	c, err := w.dialFrom(stranger)(w.t.Context(), "tcp", "gateway.test:80")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		w.t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

func swallow(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	io.WriteString(w, "whole")
}

// Uploads that just stopped were never cut, as net/http's transport waits for a body without end: forty of them filled the
// limit of a healthy target for as long as their clients liked.
func TestStalledUploadIsCut(t *testing.T) {
	for name, head := range map[string]string{"length": "Content-Length: 100\r\n\r\nabc", "chunks": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
		"from the first byte": "Content-Length: 100\r\n\r\n"} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", http.HandlerFunc(swallow))
			g := w.gateway("server: {body_timeout: 7s}\n" + one("", "fallback: {static: {status: 202}}"))
			began := time.Now()
			_, br := w.raw("PUT / HTTP/1.1\r\nHost: h\r\n" + head)
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			text, _ := io.ReadAll(res.Body)
			if res.StatusCode != 408 || !res.Close || res.Header.Get("Content-Type") != "application/problem+json" || res.Header.Get("Cortex-Reason") != "" {
				t.Errorf("%s: %+v %s", name, res, text)
			}
			if d := time.Since(began); d != 7*time.Second {
				t.Errorf("%s: cut after %v", name, d)
			}
			if _, err := br.ReadByte(); err != io.EOF {
				t.Errorf("%s: the connection is still there: %v", name, err)
			}
			synctest.Wait()
			if s := g.Targets()[0].Engine.Stats(); s.Neutral != 1 || s.Attempts != 1 {
				t.Errorf("%s: a client's fault is booked as the target's: %+v", name, s)
			}
			if p := g.Targets()[0].Engine.Pressure(); p.InFlight != 0 {
				t.Errorf("%s: %d attempts are left", name, p.InFlight)
			}
		})
	}
}

// The same where nobody reads the body: net/http does, before it sends the answer.
func TestStalledUploadThatNobodyReadsIsCut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.gateway("server: {body_timeout: 7s}\ntargets: {up: {endpoints: [http://up.test:80]}}\nroutes: [{path: /api}]\n")
		began := time.Now()
		_, br := w.raw("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc")
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 404 || !res.Close {
			t.Errorf("%+v, %v", res, err)
		}
		if d := time.Since(began); d > 7*time.Second {
			t.Errorf("after %v", d)
		}
	})
}

// What is slow is no stall; and neither the time for the answer nor the next request on the connection is bounded by it.
func TestSlowUploadAndItsConnectionLive(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			time.Sleep(20 * time.Second) // virtual
			io.WriteString(w, "whole")
		}))
		w.gateway("server: {body_timeout: 7s, min_body_rate: 0B}\n" + one("timeout: {enabled: false}", ""))
		c, br := w.raw("")
		for range 2 {
			for _, part := range []string{"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n", "a", "b", "c", "d"} {
				io.WriteString(c, part)
				time.Sleep(6 * time.Second)
			}
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(res.Body); res.StatusCode != 200 || string(text) != "whole" || err != nil || res.Close {
				t.Errorf("%+v %q %v", res, text, err)
			}
			time.Sleep(20 * time.Second) // idle
		}
	})
}

// A client that breaks off its own request's body is no failure of the target.
func TestBrokenUploadIsNeutral(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
		g := w.gateway(one(retrying, ""))
		for range 20 {
			c, err := w.dialFrom(stranger)(t.Context(), "tcp", "gateway.test:80")
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(c, "PUT / HTTP/1.1\r\nHost: gateway.test\r\nContent-Length: 1000\r\n\r\nten bytes.")
			c.Close()
			synctest.Wait()
		}
		e := g.Targets()[0].Engine
		if s := e.Stats(); s.Failures+s.Timeouts != 0 || s.Neutral != 20 || s.Retries != 0 {
			t.Errorf("%+v", s)
		}
		if p := e.Pressure(); p.InFlight != 0 || p.Circuit.String() != "closed" || p.State != cortex.Healthy {
			t.Errorf("%+v", p)
		}
	})
}

// A malformed body is the client's fault and gets a 400, no fallback and no retry.
func TestMalformedUploadIsABadRequest(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
		g := w.gateway(one(retrying, "fallback: {static: {status: 202}}"))
		c, err := w.dialFrom(stranger)(t.Context(), "tcp", "gateway.test:80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "PUT / HTTP/1.1\r\nHost: gateway.test\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\nnot a length\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != 400 {
			t.Errorf("answer %+v, %v", res, err)
		}
		if s := g.Targets()[0].Engine.Stats(); s.Failures+s.Timeouts+s.Retries != 0 {
			t.Errorf("%+v", s)
		}
	})
}
