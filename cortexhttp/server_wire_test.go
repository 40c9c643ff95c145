package cortexhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// do sends a request and reads the whole answer.
func do(t testing.TB, c *http.Client, method, url string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(b))
	return resp
}

// guardedServer is a guarded handler on a socket.
type guardedServer struct {
	*httptest.Server
	logged  safeBuffer
	serving sync.WaitGroup
}

// stop waits for every request that began: Close alone does not, where the client left first.
func (s *guardedServer) stop() {
	s.Close()
	s.serving.Wait()
}

func server(t *testing.T, e *cortex.Engine, h2 bool, next http.HandlerFunc) *guardedServer {
	t.Helper()
	s := &guardedServer{}
	h := guardHandler(t, HandlerConfig{Engine: e}, next)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serving.Add(1)
		defer s.serving.Done()
		h.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = log.New(&s.logged, "", 0)
	if h2 {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// F17: clients that hang up must not make a healthy server look ill.
func TestClientThatLeavesIsNeutral(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		e := serverEngine(t, cortex.Config{})
		started := make(chan struct{})
		srv := server(t, e, h2, func(w http.ResponseWriter, r *http.Request) {
			started <- struct{}{}
			<-r.Context().Done()
			w.WriteHeader(500) // as handlers do whose query was cancelled
		})
		for range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-started; cancel() }()
			req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
			if _, err := srv.Client().Do(req); !errors.Is(err, context.Canceled) {
				t.Fatalf("h2 %v: %v", h2, err)
			}
		}
		srv.stop()
		wantStats(t, e, cortex.Stats{Calls: 100, Attempts: 100, Neutral: 100})
		if c := e.Pressure().Circuit; c.String() != "closed" {
			t.Errorf("h2 %v: circuit %v", h2, c)
		}
	}
}

// F53: a proxy's abort is re-raised as it is: the client sees a broken transfer, the log no stack; it is a failure, unless it was
// the client that left.
func TestAbortPassesThrough(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		e := serverEngine(t, cortex.Config{})
		started := make(chan struct{}, 1)
		srv := server(t, e, h2, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.Write([]byte("ten bytes."))
			w.(http.Flusher).Flush()
			if r.URL.Path == "/left" {
				started <- struct{}{}
				<-r.Context().Done()
			}
			panic(http.ErrAbortHandler)
		})
		resp, err := srv.Client().Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "ten bytes." {
			t.Errorf("h2 %v: read %q and a clean end", h2, b)
		}
		resp.Body.Close()

		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/left", nil)
		resp, err = srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		<-started
		cancel()
		resp.Body.Close()
		srv.stop()
		wantStats(t, e, cortex.Stats{Calls: 2, Attempts: 2, Failures: 1, Neutral: 1})
		if s := srv.logged.String(); strings.Contains(s, "goroutine") || strings.Contains(s, "superfluous") {
			t.Errorf("h2 %v: logged %s", h2, s)
		}
	}
}

func TestUpgradePassesAndIsNoQueue(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	closed := make(chan struct{})
	srv := server(t, e, false, func(w http.ResponseWriter, r *http.Request) {
		defer close(closed)
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		io.Copy(conn, rw)
	})
	conn := dial(t, srv.URL)
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	for _, m := range []string{"one\n", "two\n", "three\n"} {
		io.WriteString(conn, m)
		if got, err := in.ReadString('\n'); got != m || err != nil {
			t.Fatalf("echo of %q: %q, %v", m, got, err)
		}
	}
	wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1}) // while it is open
	conn.(*net.TCPConn).CloseWrite()
	<-closed
	wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1})
	if s := srv.logged.String(); s != "" {
		t.Errorf("logged %s", s)
	}
}

// The standard proxy takes the connection over through http.ResponseController.
func TestUpgradeThroughAReverseProxy(t *testing.T) {
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, _ := http.NewResponseController(w).Hijack()
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		rw.Flush()
		io.Copy(conn, rw)
	}))
	defer back.Close()
	to, _ := url.Parse(back.URL)
	e := serverEngine(t, cortex.Config{})
	srv := server(t, e, false, httputil.NewSingleHostReverseProxy(to).ServeHTTP)
	conn := dial(t, srv.URL)
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 101 {
		t.Fatalf("%v %v", resp, err)
	}
	io.WriteString(conn, "hello\n")
	if got, err := in.ReadString('\n'); got != "hello\n" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1})
}

func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestEventStreamFlowsAndIsNoQueue(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		e := serverEngine(t, cortex.Config{})
		next, over := make(chan string), make(chan struct{})
		srv := server(t, e, h2, func(w http.ResponseWriter, r *http.Request) {
			defer close(over)
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
			for m := range next {
				fmt.Fprintf(w, "data: %s\n\n", m)
				if err := http.NewResponseController(w).Flush(); err != nil {
					t.Error(err)
				}
			}
			<-r.Context().Done()
		})
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
		go func() { next <- "0" }()
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(resp.Body)
		for i := range 3 { // each arrives before the next is sent
			if i > 0 {
				next <- fmt.Sprint(i)
			}
			if got, err := in.ReadString('\n'); got != fmt.Sprintf("data: %d\n", i) || err != nil {
				t.Fatalf("event %d: %q, %v", i, got, err)
			}
			in.ReadString('\n')
		}
		wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1})
		close(next)
		cancel()
		resp.Body.Close()
		<-over
		srv.stop()
		wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Successes: 1})
	}
}

// F54: trailers pass, announced or not, and a gRPC status in them is the outcome.
func TestTrailersPassAndSpeak(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	srv := server(t, e, true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		if r.URL.Path == "/announced" {
			w.Header().Set("Trailer", "Grpc-Status")
		}
		w.Write([]byte("message"))
		key := http.TrailerPrefix + "Grpc-Status"
		if r.URL.Path == "/announced" {
			key = "Grpc-Status"
		}
		w.Header().Set(key, r.URL.Query().Get("status"))
	})
	for _, path := range []string{"/announced", "/unannounced"} {
		for _, status := range []string{"0", "14", "4", "8", "1", "5"} {
			resp := do(t, srv.Client(), "POST", srv.URL+path+"?status="+status)
			if got := resp.Trailer.Get("Grpc-Status"); got != status || resp.ProtoMajor != 2 {
				t.Errorf("%s: trailer %q, want %q, over %s", path, got, status, resp.Proto)
			}
		}
	}
	srv.stop()
	wantStats(t, e, cortex.Stats{Calls: 12, Attempts: 12, Successes: 4, Failures: 2, Timeouts: 2, Throttled: 2, Neutral: 2})
}

// F56: the guard does not touch the body. A refused client that waits for 100 Continue is not made to send.
func TestExpectContinueIsLeftToTheHandler(t *testing.T) {
	ask := func(url string) (*bufio.Reader, net.Conn) {
		conn := dial(t, url)
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
		return bufio.NewReader(conn), conn
	}
	srv := server(t, serverEngine(t, overloaded), false, mustNotRun(t))
	in, _ := ask(srv.URL)
	if line, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 503 ") {
		t.Errorf("refused: %q, %v", line, err)
	}
	srv = server(t, serverEngine(t, cortex.Config{}), false, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	in, conn := ask(srv.URL)
	if line, err := in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("admitted: %q, %v", line, err)
	}
	in.ReadString('\n')
	io.WriteString(conn, "hello")
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); string(b) != "hello" || err != nil {
		t.Errorf("body %q, %v", b, err)
	}
}

func TestBodilessAnswersStayBodiless(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	srv := server(t, e, false, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.Header().Set("Etag", `"1"`)
			w.WriteHeader(304)
		case "/length":
			w.Header().Set("Content-Length", "5")
			w.Write([]byte("hello"))
		}
	})
	for _, c := range []struct {
		method, path string
		status       int
		length       int64
	}{
		{"GET", "/204", 204, 0}, {"HEAD", "/204", 204, 0}, {"GET", "/304", 304, 0}, {"GET", "/nothing", 200, 0},
		{"HEAD", "/length", 200, 5}, {"GET", "/length", 200, 5},
	} {
		resp := do(t, srv.Client(), c.method, srv.URL+c.path)
		if resp.StatusCode != c.status || resp.ContentLength != c.length && c.status == 200 || len(resp.TransferEncoding) > 0 {
			t.Errorf("%s %s: %d, length %d, %v", c.method, c.path, resp.StatusCode, resp.ContentLength, resp.TransferEncoding)
		}
	}
	srv.stop()
	wantStats(t, e, cortex.Stats{Calls: 6, Attempts: 6, Successes: 6})
	if s := srv.logged.String(); s != "" {
		t.Errorf("logged %s", s)
	}
}

func TestInformationalAnswersAreNotTheAnswer(t *testing.T) {
	e := serverEngine(t, cortex.Config{})
	srv := server(t, e, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(500)
	})
	conn := dial(t, srv.URL)
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	in := bufio.NewReader(conn)
	for _, want := range []struct {
		status   int
		pressure bool
	}{{103, false}, {500, true}} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != want.status || (resp.Header.Get(HeaderPressure) != "") != want.pressure {
			t.Fatalf("want %d: %+v, %v", want.status, resp, err)
		}
	}
	conn.Close()
	srv.stop()
	wantStats(t, e, cortex.Stats{Calls: 1, Attempts: 1, Failures: 1})
}

// Deadlines set through http.ResponseController reach the connection.
func TestResponseControllerReachesTheServer(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		srv := server(t, serverEngine(t, cortex.Config{}), h2, func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			for _, err := range []error{rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{}), rc.EnableFullDuplex(), rc.Flush()} {
				if err != nil {
					t.Errorf("h2 %v: %v", h2, err)
				}
			}
			if _, ok := w.(http.Hijacker); ok == h2 {
				t.Errorf("h2 %v: offers Hijack: %v", h2, ok)
			}
			if _, ok := w.(http.Flusher); !ok {
				t.Errorf("h2 %v: offers no Flush", h2)
			}
			if _, ok := w.(io.ReaderFrom); ok == h2 {
				t.Errorf("h2 %v: offers ReadFrom: %v", h2, ok)
			}
		})
		do(t, srv.Client(), "GET", srv.URL)
	}
}
