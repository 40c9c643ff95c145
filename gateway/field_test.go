package gateway

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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// Regression tests for what went wrong in other gateways; the numbers are those of the project's field cases.

const retrying = "retry: {max_retries: 3, base_delay: 1ms}"

// F20: "circuit open" is not retryable, and the gateway's own 503 can be told from the target's.
func TestOpenCircuitOfGatewayBelowIsNotRetried(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(500)}
		w.serve("up.test:80", up)
		w.gatewayAt("inner.test:80", one("retry: {max_retries: 0}", ""))
		c := w.client(stranger)
		openCircuit(t, w, c, "http://inner.test:80/")
		outer := w.gateway(strings.ReplaceAll(one("retry: {max_retries: 5, base_delay: 1s}", ""), "up.test", "inner.test"))
		before := up.n.Load()
		a := w.get(c, "http://gateway.test:80/")
		if n := up.n.Load() - before; n > 1 { // a probe may be due
			t.Errorf("the target was called %d times", n)
		}
		s := outer.Targets()[0].Engine.Stats()
		if a.status != 503 || a.header.Get("Cortex-Attempts") != "1" || s.Retries != 0 {
			t.Errorf("answer %+v, %d retries", a, s.Retries)
		}
		if a.took > 5*time.Millisecond {
			t.Errorf("took %v", a.took)
		}
		if p := outer.Targets()[0].Engine.Pressure(); s.Failures != 0 || p.Signals.F != 0 {
			t.Errorf("the refusal was taken for a failure of the target: %+v", s)
		}
		if !strings.HasPrefix(a.header.Get("Content-Type"), "application/problem+json") {
			t.Errorf("Content-Type %q", a.header.Get("Content-Type"))
		}
	})
}

// F48: a POST that the target may have processed is not sent again.
func TestPostIsNotRepeatedAfterTheTargetMayHaveTakenIt(t *testing.T) {
	for _, c := range []struct {
		name, method, target string
		header               []string
		handler              func(n int64) http.Handler // of the n-th request
		status               int
		count                int64
	}{
		{"hang POST", "POST", "", nil, func(int64) http.Handler { return hang }, 504, 1},
		{"hang PATCH", "PATCH", "", nil, func(int64) http.Handler { return hang }, 504, 1},
		{"hang then PUT", "PUT", "", nil, onlyFirst(hang), 200, 2},
		{"hang then GET", "GET", "", nil, onlyFirst(hang), 200, 2},
		{"503 POST", "POST", "", nil, onlyFirst(status(503)), 503, 1},
		{"503 PATCH", "PATCH", "", nil, onlyFirst(status(503)), 503, 1},
		{"503 PUT", "PUT", "", nil, onlyFirst(status(503)), 200, 2},
		{"503 DELETE", "DELETE", "", nil, onlyFirst(status(503)), 200, 2},
		{"503 POST with key", "POST", "", []string{"Idempotency-Key", "k1"}, onlyFirst(status(503)), 200, 2},
		{"503 POST opted in", "POST", "retry: {base_delay: 1ms, non_idempotent: true}", nil, onlyFirst(status(503)), 200, 2},
		{"cut POST", "POST", "", nil, onlyFirst(abort), 502, 1},
		{"cut PUT", "PUT", "", nil, onlyFirst(abort), 200, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var n atomic.Int64
				var bodies sync.Map
				w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					i := n.Add(1)
					b, _ := io.ReadAll(r.Body)
					bodies.Store(i, string(b))
					c.handler(i).ServeHTTP(w, r)
				}))
				target := c.target
				if target == "" {
					target = retrying
				}
				w.gateway(one(target, ""))
				body := ""
				if c.method != "GET" {
					body = strings.Repeat("order ", 500)
				}
				a := w.do(w.client(stranger), c.method, "http://gateway.test:80/", body, c.header...)
				if a.status != c.status || n.Load() != c.count {
					t.Errorf("status %d, %d requests; want %d, %d", a.status, n.Load(), c.status, c.count)
				}
				bodies.Range(func(i, b any) bool {
					if b != body {
						t.Errorf("request %d had a body of %d bytes, want %d", i, len(b.(string)), len(body))
					}
					return true
				})
			})
		})
	}
}

// F48: where no connection was made, every method is safe to try again.
func TestRefusedConnectionIsRetriedForEveryMethod(t *testing.T) {
	for _, method := range []string{"GET", "POST", "PATCH"} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &counter{next: status(200)}
			w.serve("up.test:80", up)
			w.gateway(strings.ReplaceAll(one(retrying, ""), "[http://up.test:80]", "[http://none.test:80, http://up.test:80]"))
			c := w.client(stranger)
			for range 4 {
				if a := w.do(c, method, "http://gateway.test:80/", "x"); a.status != 200 {
					t.Errorf("%s: %+v", method, a)
				}
			}
			if up.n.Load() != 4 {
				t.Errorf("%s: %d requests", method, up.n.Load())
			}
		})
	}
}

var abort = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })

func onlyFirst(h http.Handler) func(n int64) http.Handler {
	return func(n int64) http.Handler {
		if n == 1 {
			return h
		}
		return status(200)
	}
}

// F50: a kept-alive connection that the target has closed meanwhile gives no error.
func TestStaleConnectionGivesNoError(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(200)}
		w.serveBy("up.test:80", &http.Server{Handler: up, IdleTimeout: time.Second})
		g := w.gateway(one("", ""))
		c := w.client(stranger)
		for i := range 60 {
			method := []string{"GET", "POST"}[i%2]
			if a := w.do(c, method, "http://gateway.test:80/", ""); a.status != 200 {
				t.Fatalf("%s number %d: %+v", method, i, a)
			}
			time.Sleep(time.Second + time.Duration(i-30)*time.Millisecond) // virtual: around the idle timeout
		}
		if up.n.Load() != 60 {
			t.Errorf("%d requests at the target", up.n.Load())
		}
		if s := g.Targets()[0].Engine.Stats(); s.Failures != 0 {
			t.Errorf("stale connections were taken for failures: %+v", s)
		}
	})
}

// echo upgrades a connection and sends back what comes, until it is told to stop.
func echo(stop <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "echo" {
			http.Error(w, "no upgrade", 400)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		go func() {
			<-stop
			c.Close()
		}()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nCortex-Attempts: 9\r\n\r\n")
		io.Copy(c, rw)
	})
}

// upgrade opens an upgraded connection through the gateway.
func upgrade(t *testing.T, w *world) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	c, err := w.dialFrom(stranger)(t.Context(), "tcp", "gateway.test:80")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: gateway.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, br, res
}

// F51: upgrades pass, also after a retry; then neither silence nor an end of the target's is a matter of retries.
func TestUpgradePasses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stop := make(chan struct{})
		w.serve("up.test:80", echo(stop))
		g := w.gateway(strings.ReplaceAll(one(retrying, ""), "[http://up.test:80]", "[http://up.test:80, {url: 'http://none.test:80', weight: 1000}]"))
		c, br, res := upgrade(t, w) // the first endpoint tried refuses the connection
		defer c.Close()
		if res.StatusCode != 101 || res.Header.Get("Upgrade") != "echo" || res.Header.Get("Cortex-Attempts") != "2" {
			t.Fatalf("answer %+v", res)
		}
		say := func(s string) {
			t.Helper()
			io.WriteString(c, s)
			b := make([]byte, len(s))
			if _, err := io.ReadFull(br, b); err != nil || string(b) != s {
				t.Fatalf("echo of %q: %q, %v", s, b, err)
			}
		}
		say("one")
		time.Sleep(30 * time.Second) // virtual
		say("two")
		time.Sleep(10 * time.Minute)
		say("three")
		e := g.Targets()[0].Engine
		if p := e.Pressure(); p.InFlight != 0 || p.Signals.L != 0 || p.Signals.F != 0 {
			t.Errorf("the silent connection counts as a slow call: %+v", p)
		}
		close(stop)
		if _, err := br.ReadByte(); err == nil {
			t.Error("the target's end does not arrive")
		}
		synctest.Wait()
		if s := e.Stats(); s.Attempts != 2 || s.Failures != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// F52: events arrive when they are sent, silence is no timeout, and nothing is lost at the end.
func TestServerSentEventsArriveAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 5 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				http.NewResponseController(w).Flush()
				time.Sleep(200 * time.Millisecond)
			}
			time.Sleep(30 * time.Second)
			io.WriteString(w, "data: late\n\n")
			http.NewResponseController(w).Flush()
			io.WriteString(w, "tail..7")
		}))
		g := w.gateway(one("timeout: {max: 5s}", ""))
		res, err := w.client(stranger).Get("http://gateway.test:80/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if ct := res.Header.Get("Content-Type"); ct != "text/event-stream" {
			t.Errorf("Content-Type %q", ct)
		}
		began := time.Now()
		br := bufio.NewReader(res.Body)
		for i := range 5 {
			line, err := br.ReadString('\n')
			br.ReadString('\n')
			if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
				t.Fatalf("event %d: %q, %v", i, line, err)
			}
			if at := time.Since(began); at != time.Duration(i)*200*time.Millisecond {
				t.Errorf("event %d after %v", i, at)
			}
		}
		rest, err := io.ReadAll(br)
		if string(rest) != "data: late\n\ntail..7" || err != nil {
			t.Errorf("rest %q, %v", rest, err)
		}
		if s := g.Targets()[0].Engine.Stats(); s.Attempts != 1 || s.Timeouts != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// F53a: a client that leaves while the target hangs ends the attempt, and there is no other.
func TestClientThatLeavesEndsTheCall(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		var ended atomic.Int64
		up := &counter{next: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			hang(rw, r)
			ended.Store(int64(time.Since(began)))
		})}
		w.serve("up.test:80", up)
		g := w.gateway(one("retry: {max_retries: 5, base_delay: 10ms}\ntimeout: {enabled: false}", ""))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://gateway.test:80/", nil)
		if a := send(w.client(stranger), r); !errors.Is(a.err, context.DeadlineExceeded) {
			t.Errorf("answer %+v", a)
		}
		synctest.Wait()
		if at := time.Duration(ended.Load()); at != time.Second {
			t.Errorf("the attempt ended after %v", at)
		}
		time.Sleep(time.Minute)
		tg := g.Targets()[0]
		s := tg.Engine.Stats()
		if up.n.Load() != 1 || s.Retries != 0 || s.Neutral != 1 || s.Failures+s.Timeouts != 0 {
			t.Errorf("%d requests, %+v", up.n.Load(), s)
		}
		if tr := g.trafficOf(tg); tr.ClientAborts != 1 || tr.BrokenAnswers != 0 {
			t.Errorf("%+v", tr)
		}
	})
}

// F53b: so does one that leaves in the middle of a download, without a word in the log.
func TestClientThatLeavesDuringDownloadIsNeutral(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 10_000)); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}))
		g := w.gateway(one("", ""))
		res, err := w.client(stranger).Get("http://gateway.test:80/")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, make([]byte, 50_000)); err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		synctest.Wait()
		time.Sleep(time.Second)
		tg := g.Targets()[0]
		if tr := g.trafficOf(tg); tr.ClientAborts != 1 || tr.BrokenAnswers != 0 {
			t.Errorf("%+v", tr)
		}
		if s := tg.Engine.Stats(); s.Failures+s.Timeouts != 0 || tg.Engine.Pressure().InFlight != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// F53c, F21: an answer that the target breaks off is a failure of the target, and no whole answer for the client.
func TestBrokenAnswerIsAnAbortedTransfer(t *testing.T) {
	for _, chunked := range []bool{false, true} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &counter{next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if !chunked {
					w.Header().Set("Content-Length", "1000")
				}
				io.WriteString(w, "ten bytes.")
				http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})}
			w.serve("up.test:80", up)
			g := w.gateway(one(retrying, "fallback: {cache: {}, static: {status: 202, body: pending}}"))
			a := w.get(w.client(stranger), "http://gateway.test:80/")
			if a.err == nil {
				t.Errorf("chunked %v: the client has a whole answer: %+v", chunked, a)
			}
			if chunked && a.body != "ten bytes." {
				t.Errorf("what was flushed is %q", a.body)
			}
			tg := g.Targets()[0]
			s := tg.Engine.Stats()
			if s.Failures != 1 || s.Successes != 0 || up.n.Load() != 1 {
				t.Errorf("chunked %v: %+v, %d requests", chunked, s, up.n.Load())
			}
			if tr := g.trafficOf(tg); tr.BrokenAnswers != 1 || tr.ClientAborts != 0 || tr.CacheEntries != 0 {
				t.Errorf("chunked %v: %+v", chunked, tr)
			}
		})
	}
}

// F54: trailers pass, announced or not; a gRPC status in the trailer of an empty answer is seen by the retry rule.
func TestTrailersPass(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: sequence(
			grpcAnswer("message", "0"),
			grpcAnswer("", "14"), grpcAnswer("message", "0"),
			grpcAnswer("message", "14"),
		)}
		w.serve("up.test:80", up)
		w.gateway(one(retrying, ""))
		c := w.client(stranger)
		for i, want := range []struct {
			body, status, announced string
			attempts                int64
		}{{"message", "0", "yes", 1}, {"message", "0", "yes", 2}, {"message", "14", "yes", 1}} {
			before := up.n.Load()
			r, _ := http.NewRequest("GET", "http://gateway.test:80/", nil)
			r.Header.Set("Te", "trailers")
			res, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(b) != want.body || res.Trailer.Get("Grpc-Status") != want.status || res.Trailer.Get("X-Announced") != want.announced {
				t.Errorf("call %d: %q, %v, trailer %v", i, b, err, res.Trailer)
			}
			if n := up.n.Load() - before; n != want.attempts {
				t.Errorf("call %d: %d attempts, want %d", i, n, want.attempts)
			}
		}
	})
}

func grpcAnswer(body, status string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "X-Announced")
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
		io.WriteString(w, body)
		w.Header().Set("X-Announced", "yes")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", status)
	})
}

// F56: Expect: 100-continue neither hangs nor panics, and a body that nobody wants is not sent.
func TestExpectContinue(t *testing.T) {
	const size = 1 << 20
	whole := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", n, err)
	})
	for _, c := range []struct {
		name     string
		up       http.Handler
		method   string
		status   int
		body     string
		attempts string
	}{
		{"refused at once", status(401), "PUT", 401, "Unauthorized", "1"},
		{"accepted", whole, "PUT", 200, fmt.Sprint(size, " <nil>"), "1"},
		{"503 before the body", sequence(status(503), whole), "PUT", 200, fmt.Sprint(size, " <nil>"), "2"},
		{"closed", abort, "POST", 502, "", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.serve("up.test:80", c.up)
				w.gateway(one(retrying, ""))
				tr := w.client(stranger).Transport.(*http.Transport)
				tr.ExpectContinueTimeout = time.Hour // the client waits for the 100
				r, _ := http.NewRequest(c.method, "http://gateway.test:80/", io.LimitReader(zeros{}, size))
				r.ContentLength = size
				r.Header.Set("Expect", "100-continue")
				a := send(&http.Client{Transport: tr}, r)
				if a.err != nil || a.status != c.status || c.body != "" && a.body != c.body {
					t.Errorf("answer %d %q %v", a.status, a.body, a.err)
				}
				if got := a.header.Get("Cortex-Attempts"); got != c.attempts {
					t.Errorf("%s attempts, want %s", got, c.attempts)
				}
				if a.took > time.Second {
					t.Errorf("took %v", a.took)
				}
			})
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// F59: dropped answers of failed attempts leave no connection behind, whatever their body.
func TestDroppedAnswersLeaveNoConnections(t *testing.T) {
	for name, body := range map[string]func(w http.ResponseWriter){
		"empty":   func(http.ResponseWriter) {},
		"short":   func(w http.ResponseWriter) { w.Write(make([]byte, 1024)) },
		"endless": func(w http.ResponseWriter) { io.Copy(w, zeros{}) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var n atomic.Int64
				w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if n.Add(1)%3 != 0 {
						w.WriteHeader(503)
						body(w)
					}
				}))
				w.gateway(one("retry: {base_delay: 1ms}\nbudget: {capacity: 1000}", ""))
				c := w.client(stranger)
				for i := range 100 {
					if a := w.get(c, "http://gateway.test:80/"); a.status != 200 {
						t.Fatalf("call %d: %+v", i, a)
					}
				}
				synctest.Wait()
				if open := w.open.Load(); open > 2*2 { // client to gateway, gateway to target; both ends of each
					t.Errorf("%d ends of connections open", open)
				}
			})
		})
	}
}

// The chain of gateways keeps what the innermost one says: a refusal stays one, a fallback is marked to the end.
func TestWhatAGatewayBelowSaysPasses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.gatewayAt("inner.test:80", `
targets: {none: {endpoints: [http://none.test:80], retry: {max_retries: 0}}}
routes:
  - {path: /, target: none}
  - {path: /balance, target: none, fallback: {static: {status: 200, body: unknown}}}
`)
		g := w.gateway(strings.ReplaceAll(one("", "fallback: {cache: {}}"), "up.test", "inner.test"))
		c := w.client(stranger)
		if a := w.get(c, "http://gateway.test:80/balance"); a.status != 200 || a.header.Get("Cortex-Fallback") != "static" {
			t.Errorf("fallback %+v", a)
		}
		openCircuit(t, w, c, "http://inner.test:80/")
		if a := w.get(c, "http://gateway.test:80/"); a.status != 503 || a.header.Get("Cortex-Reason") != "CIRCUIT_OPEN" || a.header.Get("Retry-After") == "" {
			t.Errorf("refusal %+v", a)
		}
		if tr := g.trafficOf(g.Targets()[0]); tr.CacheEntries != 0 {
			t.Errorf("a fallback was kept as a good answer: %+v", tr)
		}
	})
}

func TestEarlyHintsPass(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			w.WriteHeader(200)
		}))
		w.gateway(one("", ""))
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, fmt.Sprint(code, h.Get("Link")))
			return nil
		}})
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://gateway.test:80/", nil)
		if a := send(w.client(stranger), r); a.status != 200 || len(hints) != 1 || hints[0] != "103</style.css>; rel=preload" {
			t.Errorf("answer %+v, hints %v", a, hints)
		}
	})
}

// F07: a breaker that is not configured, or configured with nothing, acts by its defaults.
func TestEmptyBreakerBlockIsTheDefault(t *testing.T) {
	for _, block := range []string{"", "breaker: {}", "breaker:"} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &counter{next: status(500)}
			w.serve("up.test:80", up)
			// One caller that waits between its retries would see too few failures a minute.
			g := w.gateway(one(block+"\nretry: {max_retries: 0}", ""))
			c := w.client(stranger)
			const calls = 2 * 60 * 50
			for range calls { // 50 a second for two minutes
				w.get(c, "http://gateway.test:80/")
				time.Sleep(20 * time.Millisecond) // virtual
			}
			if s := g.Targets()[0].Engine.Stats(); s.Rejected(cortex.ReasonCircuitOpen) < calls/2 || up.n.Load() > calls/10 {
				t.Errorf("%q: %d of %d calls reached the dead target, %d were refused", block, up.n.Load(), calls, s.Rejected(cortex.ReasonCircuitOpen))
			}
		})
	}
}
