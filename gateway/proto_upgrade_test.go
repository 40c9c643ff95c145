package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// talker upgrades connections and sends back what comes. At "bye" it closes, at the client's half of the end it says "end".
func talker(ended *atomic.Int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.Header.Get("Upgrade")
		if r.ProtoMajor != 1 || asked == "" {
			w.WriteHeader(http.StatusUpgradeRequired)
			fmt.Fprintf(w, "%s %q %q", r.Proto, asked, r.Header.Get("Connection"))
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer ended.Add(1)
		defer c.Close()
		if r.URL.Path == "/other" {
			asked = "another"
		}
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Mine: yes\r\n\r\n", asked)
		for {
			line, err := rw.ReadString('\n')
			if line == "bye\n" {
				return
			}
			io.WriteString(c, line)
			if err != nil {
				io.WriteString(c, "end")
				return
			}
		}
	})
}

// rawConn is a connection to a gateway on which a test writes what it likes.
func rawConn(t *testing.T, p *pki, client string, s *Server) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if encrypted(client) {
		c = tls.Client(c, &tls.Config{RootCAs: p.pool, ServerName: "127.0.0.1"})
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(slowness))
	return c, bufio.NewReader(c)
}

// F51 on real ports: every kind of target that can, every kind of client that can, and the ways in which it ends. A target by https that
// speaks HTTP/2 got the request over HTTP/2, where it is an error.
func TestUpgradesInAllProtocols(t *testing.T) {
	p := newPKI(t)
	for _, up := range []string{"http", "https/1.1", "h2"} {
		var ended atomic.Int64
		spec := realUpstream(t, p, up, talker(&ended)) + retrying
		for _, client := range []string{"http/1.1", "https/1.1"} {
			t.Run(client+" to "+up, func(t *testing.T) {
				front := ""
				if encrypted(client) {
					front = frontTLS(p)
				}
				s := realGateway(t, front+target(spec, ""))
				open := func() (net.Conn, *bufio.Reader) {
					t.Helper()
					c, br := rawConn(t, p, client, s)
					// What is sent ahead of the answer must not be lost.
					io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, upgrade\r\nUpgrade: talk/1\r\n\r\nahead\n")
					res, err := http.ReadResponse(br, nil)
					if err != nil {
						t.Fatal(err)
					}
					if res.StatusCode != 101 || res.Header.Get("Upgrade") != "talk/1" || res.Header.Get("X-Mine") != "yes" || res.Header.Get("Cortex-Attempts") != "1" {
						b, _ := io.ReadAll(res.Body)
						t.Fatalf("%+v %s", res, b)
					}
					for _, line := range []string{"ahead\n", "one\n", "two\n"} {
						if line != "ahead\n" {
							io.WriteString(c, line)
						}
						if got, err := br.ReadString('\n'); got != line {
							t.Fatalf("echo of %q: %q, %v", line, got, err)
						}
					}
					return c, br
				}
				over := func(n int64) {
					t.Helper()
					eventually(t, "the target's connection is over", func() bool { return ended.Load() == n })
					idle(t, s)
				}
				n := ended.Load()

				c, br := open() // the target closes first
				io.WriteString(c, "bye\n")
				if b, err := io.ReadAll(br); len(b) > 0 || err != nil {
					t.Errorf("after the target's end: %q, %v", b, err)
				}
				c.Close()
				over(n + 1)

				c, br = open() // the client's half first
				io.WriteString(c, "last")
				c.(interface{ CloseWrite() error }).CloseWrite()
				if b, err := io.ReadAll(br); string(b) != "lastend" || err != nil {
					t.Errorf("after the client's half: %q, %v", b, err)
				}
				over(n + 2)

				c, _ = open() // the client first
				c.Close()
				over(n + 3)

				_, br = open() // the server
				s.Close()
				if b, err := io.ReadAll(br); len(b) > 0 {
					t.Errorf("after the server's end: %q, %v", b, err)
				}
				over(n + 4)
				tg := s.Gateway().Targets()[0]
				if st := tg.Engine.Stats(); st.Attempts != 4 || st.Retries != 0 || st.Failures+st.Timeouts != 0 {
					t.Errorf("%+v", st)
				}
			})
		}
	}
}

// A client that neither says anything nor closes when its target has closed held its connections for ever.
func TestClientThatStaysAfterTheTargetsEnd(t *testing.T) {
	p := newPKI(t)
	var ended atomic.Int64
	s := realGateway(t, "server: {idle_timeout: 50ms}\n"+target(realUpstream(t, p, "http", talker(&ended)), ""))
	c, br := rawConn(t, p, "http/1.1", s)
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: talk/1\r\n\r\nbye\n")
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%+v, %v", res, err)
	}
	if b, err := io.ReadAll(br); len(b) > 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	idle(t, s) // and c is not closed yet
}

// A target by HTTP/2 alone cannot change the protocol: it gets the request as one that does not ask for it, and so does everybody from a
// client of HTTP/1.0.
func TestUpgradesThatCannotBe(t *testing.T) {
	p := newPKI(t)
	for _, up := range []string{"h2c", "http"} {
		var ended atomic.Int64
		s := realGateway(t, target(realUpstream(t, p, up, talker(&ended))+retrying, ""))
		version := "HTTP/1.1"
		want := "HTTP/2.0 \"\" \"\""
		if up == "http" {
			version, want = "HTTP/1.0", "HTTP/1.1 \"\" \"\""
		}
		c, br := rawConn(t, p, "http/1.1", s)
		io.WriteString(c, "GET /ws "+version+"\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: talk/1\r\n\r\n")
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(res.Body); res.StatusCode != 426 || string(b) != want {
			t.Errorf("%s: %d %q", up, res.StatusCode, b)
		}
	}
}

// A target that changes to something else than was asked for, or unasked, gets no connection.
func TestSwitchToAnotherProtocolIsRefused(t *testing.T) {
	p := newPKI(t)
	var ended atomic.Int64
	s := realGateway(t, target(realUpstream(t, p, "http", talker(&ended))+retrying, ""))
	c, br := rawConn(t, p, "http/1.1", s)
	io.WriteString(c, "GET /other HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: talk/1\r\n\r\n")
	res, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	if v := res.Header.Get("Proxy-Status"); res.StatusCode != 502 || !strings.Contains(v, "error=http_upgrade_failed") {
		t.Errorf("%d, Proxy-Status %q", res.StatusCode, v)
	}
	eventually(t, "the target's connection is closed", func() bool { return ended.Load() == 1 })
	// The client's connection is none of that of the target: it goes on.
	io.WriteString(c, "GET /other HTTP/1.1\r\nHost: h\r\n\r\n")
	if res, err = http.ReadResponse(br, nil); err != nil || res.StatusCode != 426 {
		t.Errorf("the next request: %+v, %v", res, err)
	}
}

func TestUnaskedSwitchIsRefused(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer c.Close()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		}))
		w.gateway(one(retrying, ""))
		a := w.get(w.client(stranger), "http://gateway.test:80/")
		if a.status != 502 || !strings.Contains(a.header.Get("Proxy-Status"), "error=http_protocol_error") {
			t.Errorf("%+v", a)
		}
	})
}

// F51: through the whole server with its limits, a connection may be silent for days, whatever the timeouts are.
func TestSilentUpgradeLivesThroughTheServersLimits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stop := make(chan struct{})
		defer close(stop)
		w.serve("up.test:80", echo(stop))
		s, end, done := w.server("server: {read_header_timeout: 1s, body_timeout: 1s, idle_timeout: 1s, write_timeout: 1s}\n" +
			one("timeout: {min: 10ms, max: 100ms, bootstrap: 50ms}\ndeadline: 1s\ntransport: {idle_timeout: 1s}", ""))
		c, br, res := upgrade(t, w)
		if res.StatusCode != 101 {
			t.Fatalf("%+v", res)
		}
		for _, silence := range []time.Duration{0, 2 * time.Second, time.Hour, 48 * time.Hour} {
			time.Sleep(silence)
			io.WriteString(c, "hello")
			b := make([]byte, 5)
			if _, err := io.ReadFull(br, b); err != nil || string(b) != "hello" {
				t.Fatalf("after %v: %q, %v", silence, b, err)
			}
		}
		c.Close()
		synctest.Wait()
		tg := s.Gateway().Targets()[0]
		if st := tg.Engine.Stats(); st.Attempts != 1 || st.Failures+st.Timeouts != 0 || tg.calls.Load() != 0 {
			t.Errorf("%+v, %d calls", st, tg.calls.Load())
		}
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
