package front

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// start serves on a real socket until the test ends.
func start(t testing.TB, c Config) (*Server, string) {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.ErrorLog = log.New(io.Discard, "", 0)
	s := New(c)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		for i := 0; s.Connections() > 0 && i < 1000; i++ {
			time.Sleep(10 * time.Millisecond)
		}
		if n, c := s.Connections(), s.Clients(); n != 0 || c != 0 {
			t.Errorf("at the end there are %d connections of %d clients", n, c)
		}
	})
	return s, l.Addr().String()
}

func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// caller is a client of net/http for some protocols.
func caller(t testing.TB, pool *x509.CertPool, http1, http2, h2c bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(http1)
	tr.Protocols.SetHTTP2(http2)
	tr.Protocols.SetUnencryptedHTTP2(h2c)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute}
}

func fetch(t testing.TB, c *http.Client, url string) (int, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(b)
}

func TestProtocols(t *testing.T) {
	cert, pool := certificate(t)
	fixed := &tls.Config{Certificates: []tls.Certificate{cert}}
	chosen := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return fixed, nil }}
	for _, c := range []struct {
		tls        *tls.Config
		http2, h2c bool // of the server
		client     string
		want       string // "" = an error
	}{
		{nil, true, false, "http1", "HTTP/1.1"}, {nil, false, true, "http1", "HTTP/1.1"}, {nil, false, true, "h2c", "HTTP/2.0"},
		{nil, true, false, "h2c", ""},
		{fixed, true, false, "http1", "HTTP/1.1"}, {fixed, true, false, "http2", "HTTP/2.0"}, {fixed, false, true, "http2", ""},
		{fixed, false, false, "both", "HTTP/1.1"}, {fixed, true, false, "both", "HTTP/2.0"},
		{chosen, true, false, "both", "HTTP/2.0"}, {chosen, false, false, "both", "HTTP/1.1"},
	} {
		t.Run(fmt.Sprintf("%v %v %v %s", c.tls != nil, c.http2, c.h2c, c.client), func(t *testing.T) {
			_, addr := start(t, Config{TLS: c.tls, Limits: Limits{HTTP2: c.http2, H2C: c.h2c, ReadHeaderTimeout: time.Minute, WriteTimeout: time.Minute},
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })})
			scheme := "http://"
			if c.tls != nil {
				scheme = "https://"
			}
			client := caller(t, pool, c.client == "http1" || c.client == "both", c.client == "http2" || c.client == "both", c.client == "h2c")
			for range 2 {
				res, err := client.Get(scheme + addr)
				if c.want == "" {
					if err == nil {
						res.Body.Close()
						t.Errorf("%s", res.Proto)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if string(b) != c.want {
					t.Errorf("%s, want %s", b, c.want)
				}
			}
		})
	}
}

func TestConnectionsPerClient(t *testing.T) {
	s, addr := start(t, Config{Handler: http.HandlerFunc(hello), Limits: Limits{ConnectionsPerClient: 2}})
	ask := func(c net.Conn) (*http.Response, error) {
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		c.SetReadDeadline(time.Now().Add(time.Minute))
		return http.ReadResponse(bufio.NewReader(c), nil)
	}
	var conns []net.Conn
	for i := range 5 {
		c, err := net.Dial("tcp", addr)
		if err != nil && i == 4 {
			break // reset before it was even seen
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		switch i {
		case 0, 1: // they stay
			if res, err := ask(c); err != nil || res.StatusCode != 200 {
				t.Fatal(res, err)
			}
		case 2, 3: // they are there, and have not asked yet
			for s.Connections() != i+1 {
				time.Sleep(time.Millisecond)
			}
		case 4:
			if res, err := ask(c); err == nil {
				t.Errorf("%v, want a reset", res)
			}
		}
	}
	for _, c := range conns[2:4] {
		res, err := ask(c)
		if err != nil || res.StatusCode != 429 || res.Header.Get("Retry-After") == "" || !res.Close {
			t.Errorf("%v, %v", res, err)
		}
	}
	for s.Connections() != 2 {
		time.Sleep(time.Millisecond)
	}
	conns[0].Close()
	for s.Connections() != 1 {
		time.Sleep(time.Millisecond)
	}
	if status, _ := fetch(t, caller(t, nil, true, false, false), "http://"+addr); status != 200 {
		t.Errorf("after one has gone: %d", status)
	}
	if st := s.Stats(); st.ClientReset != 1 || st.Client429 != 2 {
		t.Errorf("%+v", st)
	}
}

func TestClientOf(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:5": "192.0.2.1", "[::ffff:192.0.2.1]:5": "192.0.2.1", "[2001:db8:1:2:3:4:5:6]:7": "2001:db8:1:2::",
		"[2001:db8:1:2::]:7": "2001:db8:1:2::", "[fe80::1%eth0]:7": "fe80::", "@": "", "a.test:80": "",
	} {
		var a net.Addr = address(addr)
		got := clientOf(a)
		if p, err := netip.ParseAddrPort(addr); err == nil {
			a = net.TCPAddrFromAddrPort(p)
			if other := clientOf(a); other != got {
				t.Errorf("%s: %v as TCPAddr, %v as text", addr, other, got)
			}
		}
		if want == "" && got.IsValid() || want != "" && got.String() != want {
			t.Errorf("%s: %v, want %s", addr, got, want)
		}
	}
	if clientOf(nil).IsValid() {
		t.Error("nil is a client")
	}
}

func TestMaxConnectionsWait(t *testing.T) {
	inWorld(t, Limits{MaxConnections: 1}, hello, func(w *world) {
		first := w.dial("192.0.2.1:1")
		waiting := make(chan *client)
		go func() { waiting <- w.dial("192.0.2.2:1") }()
		synctest.Wait()
		select {
		case <-waiting:
			t.Error("the second connection was accepted")
		default:
		}
		first.Close()
		second := <-waiting
		go func() { waiting <- w.dial("192.0.2.3:1") }()
		synctest.Wait()
		w.front.SetLimits(Limits{MaxConnections: 2})
		third := <-waiting
		for _, k := range []*client{second, third} {
			k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			if _, body := k.answer(); body != "hello" {
				t.Error(body)
			}
			defer k.Close()
		}
		w.wantStats(Stats{Full: 3}) // the third time for the fourth
	})
}

// failing is a listener without a file descriptor for a while.
type failing struct {
	*world
	mu    sync.Mutex
	left  int
	fails error
}

func (f *failing) Accept() (net.Conn, error) {
	f.mu.Lock()
	if f.left > 0 {
		f.left--
		f.mu.Unlock()
		return nil, &net.OpError{Op: "accept", Err: f.fails}
	}
	f.mu.Unlock()
	return f.world.Accept()
}

func TestAcceptErrorsAreWaitedOut(t *testing.T) {
	inWorld(t, Limits{MaxConnections: 10}, hello, func(w *world) {
		f := &failing{world: &world{t: t, conns: make(chan net.Conn), done: make(chan struct{})}, left: 100, fails: syscall.EMFILE}
		served := make(chan error)
		go func() { served <- w.front.Serve(f) }()
		began := time.Now()
		k := f.dial("192.0.2.1:1")
		defer k.Close()
		if took := time.Since(began); took < time.Minute || took > 100*time.Second {
			t.Errorf("100 errors were waited out in %v", took)
		}
		k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		k.answer()
		if n := strings.Count(w.log.String(), "too many open files"); n < 2 || n > 11 {
			t.Errorf("%d lines: %s", n, w.log.String())
		}
		w.wantStats(Stats{AcceptErrors: 100})
		f.world.Close() // and this one is for good
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestHeaderLimits(t *testing.T) {
	limits := Limits{H2C: true, MaxHeaderBytes: 16 << 10, MaxHeaderFields: 20, MaxURLBytes: 100, ReadHeaderTimeout: time.Minute, WriteTimeout: time.Minute}
	s, addr := start(t, Config{Handler: http.HandlerFunc(hello), Limits: limits})
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"good", "GET /" + strings.Repeat("a", 99) + " HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 20) + "\r\n", 200},
		{"target", "GET /" + strings.Repeat("a", 100) + " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
		{"query", "GET /?" + strings.Repeat("a", 100) + " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
		{"huge target", "GET /" + strings.Repeat("a", 100<<10) + " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
		{"lines", "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 21) + "\r\n", 431},
		{"names", "GET / HTTP/1.1\r\nHost: a\r\n" + fmt.Sprintf(strings.Repeat("A%d: b\r\n", 21), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21) + "\r\n", 431},
		{"bytes", "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("b", 100<<10) + "\r\n\r\n", 431},
		{"target, and a body that does not come", "POST /" + strings.Repeat("a", 100) + " HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n", 414},
		{"target, and a body that is waited for", "POST /" + strings.Repeat("a", 100) + " HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n", 414},
	} {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		go io.WriteString(nc, c.request)
		r := bufio.NewReader(nc)
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != c.status || res.Close != (c.status != 200) {
			t.Errorf("%s: %v, %v", c.name, res, err)
		} else if c.status != 200 {
			if _, err := io.ReadAll(res.Body); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if _, err := r.ReadByte(); err == nil || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: not closed: %v", c.name, err)
			}
		}
		nc.Close()
	}
	client := caller(t, nil, false, false, true)
	conns := map[string]bool{}
	for _, c := range []struct {
		path   string
		fields int
		status int
	}{{"/", 1, 200}, {"/" + strings.Repeat("a", 100), 1, 414}, {"/", 30, 431}, {"/", 1, 200}} {
		r, _ := http.NewRequest("GET", "http://"+addr+c.path, nil)
		for range c.fields {
			r.Header.Add("A", "b")
		}
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			GotConn: func(i httptrace.GotConnInfo) { conns[i.Conn.LocalAddr().String()] = true }}))
		res, err := client.Do(r)
		if err != nil || res.StatusCode != c.status {
			t.Fatalf("HTTP/2: %v, %v, want %d", res, err, c.status)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	if len(conns) != 1 {
		t.Errorf("HTTP/2: %d connections: one request's fault is not that of the others", len(conns))
	}
	if st := s.Stats(); st.URL414 != 6 || st.Header431 != 4 {
		t.Errorf("%+v", st)
	}
}

// What handlers can do with a writer they can do through ours.
func TestWritersCanWhatTheyCould(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		w.Header().Set("Link", "</x>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "T")
		if err := errors.Join(conn.EnableFullDuplex(), conn.SetReadDeadline(time.Now().Add(time.Minute)),
			conn.SetWriteDeadline(time.Now().Add(time.Minute)), conn.Flush()); err != nil {
			t.Error(err)
		}
		b := make([]byte, 5)
		for {
			n, err := io.ReadFull(r.Body, b)
			w.Write(b[:n])
			w.(http.Flusher).Flush()
			if err != nil {
				break
			}
		}
		io.WriteString(w, strings.Repeat("x", 200<<10))
		w.Header().Set("T", "end")
	}
	_, addr := start(t, Config{Handler: http.HandlerFunc(handler), Limits: Limits{H2C: true, WriteTimeout: time.Minute}})
	for _, h2 := range []bool{false, true} {
		client := caller(t, nil, !h2, false, h2)
		out, in := io.Pipe()
		r, _ := http.NewRequest("POST", "http://"+addr, out)
		hints := 0
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { hints = code; return nil }}))
		go io.WriteString(in, "hello")
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 5)
		if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "hello" { // before the request is over
			t.Errorf("%q, %v", b, err)
		}
		in.Close()
		rest, err := io.ReadAll(res.Body)
		if err != nil || len(rest) != 200<<10 || res.Trailer.Get("T") != "end" || hints != 103 {
			t.Errorf("%d bytes, %v, trailer %v, hints %d", len(rest), err, res.Trailer, hints)
		}
		res.Body.Close()
	}
}

// Reloads drop no connection and leave nothing behind.
func TestSetLimitsUnderLoad(t *testing.T) {
	limits := Limits{H2C: true, IdleTimeout: time.Minute, WriteTimeout: time.Minute}
	s, addr := start(t, Config{Handler: http.HandlerFunc(hello), Limits: limits})
	old := caller(t, nil, true, false, false)
	fetch(t, old, "http://"+addr)
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			client := caller(t, nil, i%2 == 0, false, i%2 == 1)
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, _ := fetch(t, client, "http://"+addr); status != 200 {
					t.Errorf("%d", status)
					return
				}
				if i > 1 {
					client.CloseIdleConnections()
				}
			}
		})
	}
	for i := range 1000 {
		limits.MaxStreams = 100 + i
		s.SetLimits(limits)
		if i%100 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	close(stop)
	wg.Wait()
	fetch(t, old, "http://"+addr)
	if n := s.Stats().Accepted; n == 0 {
		t.Error(n)
	}
	for i := 0; i < 500 && (runtime.NumGoroutine() > before+3 || s.Connections() > 1); i++ {
		time.Sleep(10 * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.generations); n > 2 || runtime.NumGoroutine() > before+3 {
		t.Errorf("%d generations, %d goroutines, %d before", n, runtime.NumGoroutine(), before)
	}
}

func TestShutdownWaitsForAllGenerations(t *testing.T) {
	inWorld(t, Limits{}, func(w http.ResponseWriter, r *http.Request) { time.Sleep(time.Minute); hello(w, r) }, func(w *world) {
		k := w.dial("192.0.2.1:1")
		defer k.Close()
		k.say("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		synctest.Wait() // net/http drops a request that it has only just read
		w.front.SetLimits(Limits{IdleTimeout: time.Second})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := w.front.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		done := make(chan error)
		go func() { done <- w.front.Shutdown(context.Background()) }()
		if _, body := k.answer(); body != "hello" {
			t.Error(body)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestDescriptors(t *testing.T) {
	for _, c := range []struct {
		limit uint64
		other int
		want  int
	}{{0, 0, 1}, {64, 0, 1}, {1024, 0, 480}, {1024, 100, 430}, {1024, -5, 480}, {1024, 5000, 1}, {1<<64 - 1, 0, maxFromDescriptors}} {
		if got := MaxConnectionsFor(c.limit, c.other); got != c.want {
			t.Errorf("%d, %d: %d, want %d", c.limit, c.other, got, c.want)
		}
	}
	if err := checkDescriptors(1024, 480, 0); err != nil {
		t.Error(err)
	}
	var e *DescriptorError
	if err := checkDescriptors(1024, 481, 0); !errors.As(err, &e) || e.Fits != 480 || e.Need != 1026 {
		t.Error(err)
	}
	if n, ok := DescriptorLimit(); ok && n == 0 {
		t.Error("a limit of 0")
	}
	if err := CheckDescriptors(1, 0); err != nil {
		t.Error(err)
	}
}

// With TLS the handshake is done, so that there can be an answer.
func TestConnectionsPerClientOverTLS(t *testing.T) {
	cert, pool := certificate(t)
	s, addr := start(t, Config{Handler: http.HandlerFunc(hello), TLS: &tls.Config{Certificates: []tls.Certificate{cert}},
		Limits: Limits{HTTP2: true, ConnectionsPerClient: 2, WriteTimeout: time.Minute, ReadHeaderTimeout: time.Minute}})
	for range 2 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for s.Connections() != 2 {
		time.Sleep(time.Millisecond)
	}
	for _, h2 := range []bool{false, true} {
		if status, _ := fetch(t, caller(t, pool, !h2, h2, false), "https://"+addr); status != 429 {
			t.Errorf("%d, HTTP/2: %v", status, h2)
		}
	}
}

// Many connections that come and go at the same time: what is counted is right at the end, which start checks.
func TestConnectionsComeAndGo(t *testing.T) {
	s, addr := start(t, Config{Handler: http.HandlerFunc(hello), Limits: Limits{MaxConnections: 20, ConnectionsPerClient: 15, WriteTimeout: time.Minute}})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 30 {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					continue // reset
				}
				if j%3 > 0 {
					c.SetDeadline(time.Now().Add(time.Minute))
					io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
					if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && res.StatusCode != 200 && res.StatusCode != 429 {
						t.Error(res.Status)
					}
				}
				if n := s.Connections(); n > 20 {
					t.Errorf("%d connections", n)
				}
				c.Close()
				if i == 0 && j%10 == 0 {
					s.SetLimits(Limits{MaxConnections: 20, ConnectionsPerClient: 10 + j/10, WriteTimeout: time.Minute})
				}
			}
		})
	}
	wg.Wait()
}
