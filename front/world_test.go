package front

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A world is a server on a network in memory, for a synctest bubble: time is virtual, and the bubble fails the test if a goroutine
// is left at its end.
type world struct {
	t     *testing.T
	front *Server
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	log   lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func inWorld(t *testing.T, limits Limits, handler http.HandlerFunc, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, conns: make(chan net.Conn), done: make(chan struct{})}
		w.front = New(Config{Handler: handler, Limits: limits, ErrorLog: log.New(&w.log, "", 0)})
		served := make(chan error, 1)
		go func() { served <- w.front.Serve(w) }()
		test(w)
		w.front.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		synctest.Wait()
		if n, c := w.front.Connections(), w.front.Clients(); n != 0 || c != 0 {
			t.Errorf("at the end there are %d connections of %d clients", n, c)
		}
	})
}

func (w *world) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *world) Close() error {
	w.once.Do(func() { close(w.done) })
	return nil
}

func (w *world) Addr() net.Addr { return address("front.test:80") }

type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

type pipe struct {
	net.Conn
	remote address
}

func (p pipe) RemoteAddr() net.Addr { return p.remote }

// A client is one end of a connection to the server, which can say what it likes.
type client struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

// dial connects from that address; net.Pipe has no buffer: what a client does not take stays with the server.
func (w *world) dial(from string) *client {
	w.t.Helper()
	here, there := net.Pipe()
	select {
	case w.conns <- pipe{there, address(from)}:
	case <-w.done:
		w.t.Fatal("the server takes no connections any more")
	}
	return &client{Conn: here, t: w.t, r: bufio.NewReader(here)}
}

func (c *client) say(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("to say %.40q: %v", s, err)
	}
}

// answer reads an answer of HTTP/1.1.
func (c *client) answer() (*http.Response, string) {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	res.Body.Close()
	return res, string(b)
}

// ended waits for the server to close, and returns what it said before.
func (c *client) ended() string {
	c.t.Helper()
	b, err := io.ReadAll(c.r)
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		c.t.Fatal(err)
	}
	return string(b)
}

func hello(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }

func (w *world) wantStats(want Stats) {
	w.t.Helper()
	got := w.front.Stats()
	got.Accepted = want.Accepted
	if got != want {
		w.t.Errorf("stats are %+v, want %+v", got, want)
	}
}

func TestSlowHeaders(t *testing.T) {
	const idle, header = time.Minute, 10 * time.Second
	request := "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, c := range []struct {
		name   string
		before bool // a whole request comes first
		say    []string
		every  time.Duration // between them
		after  time.Duration // the end, from the first on; for idle ones from the answer on
		status int           // 0 = no answer
	}{
		{"nothing at all", false, nil, 0, header, 0},
		{"one byte", false, []string{"G"}, 0, header, 408},
		{"half a header", false, []string{"GET / HTTP/1.1\r\nHost: a\r\n"}, 0, header, 408},
		{"dribbled", false, strings.Split(request, ""), time.Second, header, 408},
		{"half a preface of HTTP/2", false, []string{"PRI * HTT"}, 0, header, 408},
		{"idle", true, nil, 0, idle, 0},
		{"one byte after a request", true, []string{"G"}, 0, header, 408},
		{"three bytes after a request", true, []string{"G", "E", "T"}, time.Second, header, 408},
		{"half a header after a request", true, []string{"GET / HTTP/1.1\r\n"}, 0, header, 408},
		{"dribbled after a request", true, strings.Split(request, ""), time.Second, header, 408},
	} {
		t.Run(c.name, func(t *testing.T) {
			inWorld(t, Limits{ReadHeaderTimeout: header, IdleTimeout: idle, WriteTimeout: 5 * time.Second, H2C: true}, hello, func(w *world) {
				k := w.dial("192.0.2.1:1")
				defer k.Close()
				if c.before {
					k.say(request)
					if res, _ := k.answer(); res.StatusCode != 200 {
						t.Fatal(res.Status)
					}
				}
				began := time.Now()
				said := make(chan bool)
				go func() {
					defer close(said)
					for i, s := range c.say {
						if i > 0 {
							time.Sleep(c.every)
						}
						if _, err := io.WriteString(k, s); err != nil {
							return
						}
					}
				}()
				text := k.ended()
				<-said
				// "GET" after a request begins when its first byte is there, at once; the deadline of net/http's for the fourth is later.
				if took := time.Since(began); took < c.after || took > c.after+5*time.Second {
					t.Errorf("ended after %v, want %v", took, c.after)
				}
				want := Stats{}
				if c.status != 0 {
					want.SlowHeaders = 1
					if !strings.HasPrefix(text, fmt.Sprintf("HTTP/1.1 %d ", c.status)) || !strings.Contains(text, "Connection: close") {
						t.Errorf("%q", text)
					}
					if res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil); err != nil {
						t.Error(err)
					} else if b, err := io.ReadAll(res.Body); err != nil || int64(len(b)) != res.ContentLength {
						t.Errorf("%q, %v", b, err)
					}
				} else if text != "" {
					t.Errorf("%q, want silence", text)
				}
				w.wantStats(want)
			})
		})
	}
}

// The rest of a header whose begin came with the request before it.
func TestSlowHeaderBehindAPipelinedRequest(t *testing.T) {
	inWorld(t, Limits{ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}, hello, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		go io.WriteString(k, "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost")
		if res, _ := k.answer(); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
		began := time.Now()
		if text := k.ended(); !strings.HasPrefix(text, "HTTP/1.1 408 ") {
			t.Errorf("%q", text)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Error(took)
		}
	})
}

// The first byte of a header that comes while the request before it is still being answered.
func TestSlowHeaderThatBeginsDuringAnAnswer(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Second); hello(w, r) }
	inWorld(t, Limits{ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}, slow, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		for range 2 { // the second time the rest comes in time
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			synctest.Wait()
			k.say("G")
			if res, _ := k.answer(); res.StatusCode != 200 {
				t.Fatal(res.Status)
			}
			time.Sleep(5 * time.Second)
			k.say("ET / HTTP/1.1\r\nHost: a\r\n\r\n")
			k.answer()
		}
		k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		synctest.Wait()
		k.say("G")
		k.answer()
		began := time.Now()
		if text := k.ended(); !strings.HasPrefix(text, "HTTP/1.1 408 ") || time.Since(began) != 10*time.Second {
			t.Errorf("%q after %v", text, time.Since(began))
		}
	})
}

// A slow handler and a slow body are not slow headers.
func TestSlowBodyGetsNo408(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second))
			_, err := io.ReadAll(r.Body)
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() {
				panic(err)
			}
			w.Header().Set("Connection", "close")
		} else {
			time.Sleep(time.Hour)
		}
		io.WriteString(w, "done")
	}
	inWorld(t, Limits{ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, WriteTimeout: time.Second}, handler, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, body := k.answer(); body != "done" {
			t.Error(body)
		}
		k.say("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
		if _, body := k.answer(); body != "done" {
			t.Error(body)
		}
		if text := k.ended(); text != "" {
			t.Error(text)
		}
		w.wantStats(Stats{})
	})
}

func TestSlowReaders(t *testing.T) {
	const patience = 8 * time.Second
	big := strings.Repeat("x", 100<<10)
	t.Run("takes nothing", func(t *testing.T) {
		var ended chan error // of the bubble
		inWorld(t, Limits{WriteTimeout: patience}, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.WriteString(w, big)
			<-r.Context().Done()
			ended <- err
		}, func(w *world) {
			ended = make(chan error, 1)
			k := w.dial("192.0.2.1:1")
			defer k.Close()
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			began := time.Now()
			if err := <-ended; err == nil {
				t.Error("the handler was not told")
			}
			if took := time.Since(began); took < patience || took > patience*5/4 {
				t.Error(took)
			}
			w.wantStats(Stats{SlowReaders: 1})
		})
	})
	// One look at the end of the whole patience saw that something was taken in it, not when: the client got up to two and a half times as much.
	t.Run("takes a little and then nothing", func(t *testing.T) {
		var ended chan error // of the bubble
		inWorld(t, Limits{WriteTimeout: patience}, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.WriteString(w, big)
			<-r.Context().Done()
			ended <- err
		}, func(w *world) {
			ended = make(chan error, 1)
			k := w.dial("192.0.2.1:1")
			defer k.Close()
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			time.Sleep(patience / 3)
			if _, err := k.Read(make([]byte, 256)); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if err := <-ended; err == nil {
				t.Error("the handler was not told")
			}
			if took := time.Since(began); took < patience || took > patience*5/4 {
				t.Error(took)
			}
			w.wantStats(Stats{SlowReaders: 1})
		})
	})
	t.Run("takes a little now and then", func(t *testing.T) {
		inWorld(t, Limits{WriteTimeout: patience}, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, big) }, func(w *world) {
			k := w.dial("192.0.2.1:1")
			defer k.Close()
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			n, b := 0, make([]byte, 256)
			for n < len(big) {
				time.Sleep(patience - time.Millisecond)
				m, err := k.Read(b)
				if err != nil {
					t.Fatalf("cut after %d bytes: %v", n, err)
				}
				n += m
			}
			go io.Copy(io.Discard, k)
			w.wantStats(Stats{})
		})
	})
	t.Run("is sent something once an hour", func(t *testing.T) {
		inWorld(t, Limits{WriteTimeout: patience}, func(w http.ResponseWriter, r *http.Request) {
			for range 5 {
				io.WriteString(w, "tick")
				w.(http.Flusher).Flush()
				time.Sleep(time.Hour)
			}
		}, func(w *world) {
			k := w.dial("192.0.2.1:1")
			defer k.Close()
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			if _, body := k.answer(); body != "tickticktickticktick" {
				t.Error(body)
			}
		})
	})
	t.Run("the limit is taken away", func(t *testing.T) {
		inWorld(t, Limits{WriteTimeout: patience}, hello, func(w *world) {
			k := w.dial("192.0.2.1:1")
			defer k.Close()
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			k.answer()
			w.front.SetLimits(Limits{})
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			time.Sleep(time.Hour)
			if _, body := k.answer(); body != "hello" {
				t.Error(body)
			}
		})
	})
	t.Run("the handler's own deadline", func(t *testing.T) {
		var failed chan error // of the bubble
		inWorld(t, Limits{WriteTimeout: patience}, func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
			_, err := io.WriteString(w, big)
			failed <- err
		}, func(w *world) {
			failed = make(chan error, 1)
			k := w.dial("192.0.2.1:1")
			defer k.Close()
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			began := time.Now()
			if err := <-failed; err == nil || time.Since(began) != time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			w.wantStats(Stats{})
		})
	})
}

func TestUpgradedConnections(t *testing.T) {
	const patience = 8 * time.Second
	echo := func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			if _, err := io.WriteString(c, line); err != nil {
				return
			}
		}
	}
	inWorld(t, Limits{ReadHeaderTimeout: time.Second, IdleTimeout: time.Second, WriteTimeout: patience}, echo, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		k.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		if res, err := http.ReadResponse(k.r, nil); err != nil || res.StatusCode != 101 {
			t.Fatal(res, err)
		}
		for range 3 {
			time.Sleep(24 * time.Hour)
			k.say("hello\n")
			if line, err := k.r.ReadString('\n'); line != "hello\n" {
				t.Fatalf("%q, %v", line, err)
			}
		}
		if n := w.front.Connections(); n != 1 {
			t.Errorf("%d connections, want the upgraded one", n)
		}
		// It takes nothing although there is something for it.
		k.say("more\n")
		began := time.Now()
		for w.front.Connections() > 0 {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < patience || took > patience*5/4+time.Second {
			t.Error(took)
		}
		w.wantStats(Stats{SlowReaders: 1})
	})
}
