package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// net/http's server gave an answer without a Content-Type one by its first bytes.
func TestNoContentTypeIsMadeUp(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = nil
		if r.URL.Path == "/chunks" {
			http.NewResponseController(w).Flush()
		}
		io.WriteString(w, "<html><script>")
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, path := range []string{"/", "/chunks"} {
			r, _ := http.NewRequest("GET", base+path, nil)
			if a := send(c, r); a.body != "<html><script>" || len(a.header["Content-Type"]) > 0 {
				t.Errorf("%s: %+v", path, a)
			}
		}
	})
}

// F53: neither a client that leaves nor a target that breaks off is a fault of the gateway's, with a stack in its log.
func TestAbortsAreNoFaultsInTheLog(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 100_000))
		http.NewResponseController(w).Flush()
		if r.URL.Path == "/break" {
			panic(http.ErrAbortHandler)
		}
		<-r.Context().Done()
	})
	p := newPKI(t)
	for _, client := range []string{"http/1.1", "h2c"} {
		var text syncBuffer
		s := realGatewayLogging(t, target(realUpstream(t, p, "http", h)+retrying, ""), slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelInfo})))
		c, base := realClient(t, p, client, s)
		for range 5 {
			r, _ := http.NewRequest("GET", base+"/break", nil)
			if a := send(c, r); a.err == nil {
				t.Errorf("%+v", a)
			}
			res, err := c.Get(base + "/stay")
			if err != nil {
				t.Fatal(err)
			}
			io.ReadFull(res.Body, make([]byte, 1000))
			res.Body.Close()
		}
		idle(t, s)
		if log := text.String(); strings.Contains(log, "panic") || strings.Contains(log, "goroutine") || strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: %s", client, log)
		}
		g := s.Gateway()
		if tr := g.trafficOf(g.Targets()[0]); tr.BrokenAnswers != 5 || tr.ClientAborts != 5 {
			t.Errorf("%s: %+v", client, tr)
		}
	}
}

// A client that leaves in the middle of its upload aborts the target's request: it is never taken for whole, and nobody's failure.
func TestClientThatLeavesDuringUpload(t *testing.T) {
	b := new(bodies)
	eachProtocol(t, b, retrying, func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, known := range []bool{true, false} {
			before, aborted := b.begun.Load(), b.aborted.Load()
			ctx, cancel := context.WithCancel(t.Context())
			pr, pw := io.Pipe()
			r, _ := http.NewRequestWithContext(ctx, "PUT", base+"/", pr)
			if known {
				r.ContentLength = 1 << 20
			}
			done := make(chan error)
			go func() {
				res, err := c.Do(r)
				if err == nil {
					res.Body.Close()
					if res.StatusCode >= 400 { // what it may see before it has closed
						err = errOnPurpose
					}
				}
				done <- err
			}()
			pw.Write(make([]byte, 100_000))
			eventually(t, "the target has the request", func() bool { return b.begun.Load() == before+1 })
			cancel()
			pw.CloseWithError(errOnPurpose)
			if err := <-done; err == nil {
				t.Errorf("known %v: an answer", known)
			}
			eventually(t, "the target's request is aborted", func() bool { return b.aborted.Load() == aborted+1 })
			idle(t, s)
		}
		if n := b.whole.Load(); n != 0 {
			t.Errorf("%d were taken for whole", n)
		}
		tg := s.Gateway().Targets()[0]
		if st := tg.Engine.Stats(); st.Failures+st.Timeouts+st.Retries != 0 || tg.Engine.Pressure().InFlight != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// A health check that asks for another protocol would be a way to a connection past the guard.
func TestUpgradeIsNoHealthCheck(t *testing.T) {
	p := newPKI(t)
	var ended atomic.Int64
	s := realGateway(t, target(realUpstream(t, p, "http", talker(&ended)), ""))
	c, br := rawConn(t, p, "http/1.1", s)
	io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: talk/1\r\n\r\nhello\n")
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("Cortex-Attempts") != "1" {
		t.Fatalf("%+v, %v", res, err)
	}
	if line, err := br.ReadString('\n'); line != "hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	if n := s.Gateway().Targets()[0].Engine.Stats().Attempts; n != 1 {
		t.Errorf("%d guarded attempts", n)
	}
}

// Answers that begin before the upload is over, and end it: the client gets all of them, and the connection to the client is none
// that a second request could be misread on.
func TestEarlyFinalAnswers(t *testing.T) {
	const size = 300 << 10
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 1000))
		w.Header().Set("X-Early", "yes")
		w.Header().Set("Connection", "close") // of HTTP/1.1; or the server reads on before it answers
		w.WriteHeader(422)
		fmt.Fprint(w, "no more of this")
	})
	eachProtocol(t, h, retrying, func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for i := range 6 {
			body := io.LimitReader(zeros{}, size)
			if i%2 == 1 { // slowly
				body = io.MultiReader(io.LimitReader(zeros{}, 2000), &lazy{}, io.LimitReader(zeros{}, 3000))
			}
			r, _ := http.NewRequest("PUT", base+"/", body)
			a := send(c, r)
			// net/http's client of HTTP/1.1 may fail to send before it reads what there is.
			if a.err == nil && (a.status != 422 || a.body != "no more of this" || a.header.Get("X-Early") != "yes") || a.err != nil && isHTTP2(client) {
				t.Errorf("%d: %+v", i, a)
			}
			if a.took > slowness/2 {
				t.Errorf("%d: took %v", i, a.took)
			}
		}
		idle(t, s)
		if st := s.Gateway().Targets()[0].Engine.Stats(); st.Timeouts+st.Retries != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// lazy is an empty body that takes its time.
type lazy struct{}

func (*lazy) Read([]byte) (int, error) {
	time.Sleep(20 * time.Millisecond) // the answer is likely to be first; nothing depends on it
	return 0, io.EOF
}

// After an answer that came before the end of the body net/http's server reads the rest without minding errors: with the deadline over, it took
// what came of the body for the next request.
func TestEarlyAnswerIsTheLastOfItsConnection(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.ReadFull(r.Body, make([]byte, 3))
			w.Header().Set("Connection", "close")
			w.WriteHeader(422)
		})}
		w.serve("up.test:80", up)
		_, stop, done := w.server("server: {body_timeout: 2s}\n" + one("", ""))
		c, br := w.raw("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
		res, err := http.ReadResponse(br, nil)
		if err != nil || res.StatusCode != 422 || !res.Close {
			t.Fatalf("%+v, %v", res, err)
		}
		io.Copy(io.Discard, res.Body)
		time.Sleep(5 * time.Second)
		go io.WriteString(c, "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n") // it would be a part of the body
		if b, err := io.ReadAll(br); len(b) > 0 || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		if n := up.n.Load(); n != 1 {
			t.Errorf("%d requests at the target", n)
		}
		stop()
		<-done
	})
}
