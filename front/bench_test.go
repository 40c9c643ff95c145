package front

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// BenchmarkServer measures requests over one connection, to the bare server of net/http and to ours in turn: compare them within a
// run only.
//
//	go test -run xxx -bench Server -benchtime 20000x -count 6 ./front
func BenchmarkServer(b *testing.B) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Content-Type"] = []string{"text/plain"}
		io.WriteString(w, "hello")
	})
	limits := Limits{H2C: true, MaxConnections: 1000, ConnectionsPerClient: 100, ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 64 << 10, MaxHeaderFields: 100, MaxURLBytes: 8 << 10}
	bare := func(l net.Listener) func() {
		s := &http.Server{Handler: handler, ReadHeaderTimeout: limits.ReadHeaderTimeout, IdleTimeout: limits.IdleTimeout,
			MaxHeaderBytes: limits.MaxHeaderBytes, Protocols: new(http.Protocols)}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		go s.Serve(l)
		return func() { s.Close() }
	}
	ours := func(l net.Listener) func() {
		s := New(Config{Handler: handler, Limits: limits})
		go s.Serve(l)
		return func() { s.Close() }
	}
	for _, h2 := range []bool{false, true} {
		name := "HTTP1"
		if h2 {
			name = "HTTP2"
		}
		for _, c := range []struct {
			name  string
			serve func(net.Listener) func()
		}{{"bare", bare}, {"front", ours}} {
			b.Run(name+"/"+c.name, func(b *testing.B) {
				l, err := Listen("127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				defer c.serve(l)()
				if h2 {
					client := caller(b, nil, false, false, true)
					b.ReportAllocs()
					for b.Loop() {
						fetch(b, client, "http://"+l.Addr().String())
					}
					return
				}
				nc, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				defer nc.Close()
				request := []byte("GET /some/path HTTP/1.1\r\nHost: a.test\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Request-Id: 0123456789\r\n\r\n")
				answer := make([]byte, 4096)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := nc.Write(request); err != nil {
						b.Fatal(err)
					}
					if _, err := nc.Read(answer); err != nil { // it comes in one piece
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// Reads and writes of a connection do not allocate.
func TestConnDoesNotAllocate(t *testing.T) {
	here, there := net.Pipe()
	defer here.Close()
	s := New(Config{Handler: http.NotFoundHandler(), Limits: Limits{WriteTimeout: time.Minute}})
	c := &conn{Conn: there, server: s}
	c.phase.Store(phaseHandler)
	go io.Copy(io.Discard, here)
	b := make([]byte, 100)
	if n := testing.AllocsPerRun(1000, func() {
		c.Write(b)
		c.SetWriteDeadline(time.Time{})
		c.SetReadDeadline(time.Time{})
	}); n > 0 {
		t.Errorf("%v allocations a write", n)
	}
}
