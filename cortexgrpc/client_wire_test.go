package cortexgrpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

// deed is what a rawServer does with a stream.
type deed int

const (
	answers deed = iota
	refuses      // RST_STREAM, REFUSED_STREAM
	goes         // GOAWAY that says nothing was processed
	leaves       // closes the connection
)

// rawServer speaks HTTP/2 frame by frame, to do what a good server does only at the wrong moment.
type rawServer struct {
	addr    string
	deeds   []deed // by stream; answers beyond
	streams atomic.Int64
}

func serveRaw(t *testing.T, deeds ...deed) *rawServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &rawServer{addr: l.Addr().String(), deeds: deeds}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.conn(c)
		}
	}()
	return r
}

func (r *rawServer) conn(c net.Conn) {
	defer c.Close()
	frame := func(kind, flags byte, stream uint32, payload ...byte) {
		h := []byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 0}
		binary.BigEndian.PutUint32(h[5:], stream)
		c.Write(append(h, payload...))
	}
	const data, headers, reset, settings, goaway = 0, 1, 3, 4, 7
	if _, err := io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	frame(settings, 0, 0)
	h := make([]byte, 9)
	for {
		if _, err := io.ReadFull(c, h); err != nil {
			return
		}
		length := int64(h[0])<<16 | int64(h[1])<<8 | int64(h[2])
		io.CopyN(io.Discard, c, length)
		stream := binary.BigEndian.Uint32(h[5:])
		switch {
		case h[3] == settings && h[4] == 0:
			frame(settings, 1, 0)
		case h[3] == headers:
			n := int(r.streams.Add(1)) - 1
			what := answers
			if n < len(r.deeds) {
				what = r.deeds[n]
			}
			switch what {
			case refuses:
				frame(reset, 0, stream, 0, 0, 0, 7)
			case goes:
				frame(goaway, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
				return
			case leaves:
				return
			case answers:
				text := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
				b := []byte{0x88} // :status 200
				b = append(append(append(b, 0), text("content-type")...), text("application/grpc")...)
				frame(headers, 4, stream, b...)
				frame(data, 0, stream, 0, 0, 0, 0, 0) // an empty message
				b = append(append([]byte{0}, text("grpc-status")...), text("0")...)
				frame(headers, 5, stream, b...)
			}
		}
	}
}

func dialReal(t *testing.T, addr string, creds credentials.TransportCredentials, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+addr, append(opts, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// What the target says it did not process is sent again, whatever the method; what it may have processed only if that may be
// repeated. gRPC's own transparent retries are seen and charged.
func TestTransparentRetriesAreSeen(t *testing.T) {
	for _, c := range []struct {
		name    string
		deeds   []deed
		method  string
		streams int64
		retries uint64 // charged
		code    codes.Code
	}{
		{"answered", nil, methodDo, 1, 0, codes.OK},
		{"refused once: gRPC's own retry", []deed{refuses}, methodDo, 2, 1, codes.OK},
		{"refused twice: its and ours", []deed{refuses, refuses}, methodDo, 3, 2, codes.OK},
		{"gone away", []deed{goes}, methodDo, 2, 1, codes.OK},
		{"the connection breaks, not repeatable", []deed{leaves}, methodDo, 1, 0, codes.Unavailable},
		{"the connection breaks, repeatable", []deed{leaves}, methodGet, 2, 1, codes.OK},
		{"refused for ever", []deed{refuses, refuses, refuses, refuses, refuses, refuses}, methodDo, 4, 3, codes.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := serveRaw(t, c.deeds...)
			e := engine(t, cortex.Config{Name: "raw", MaxRetries: 2, Backoff: backoff.Config{Base: time.Millisecond}})
			cl, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: e, Repeatable: func(m string) bool { return m == methodGet }})
			if err != nil {
				t.Fatal(err)
			}
			cc := dialReal(t, r.addr, insecure.NewCredentials(), cl.DialOptions()...)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			_, err = call(ctx, cc, c.method, 1)
			if status.Code(err) != c.code {
				t.Errorf("%v", err)
			}
			if n := r.streams.Load(); n != c.streams {
				t.Errorf("%d streams", n)
			}
			if n := e.Stats().Retries; n != c.retries {
				t.Errorf("%d retries charged", n)
			}
			idle(t, e)
		})
	}
}

// Where nothing listens, nothing was processed. It needs the stats handler to be known.
func TestNoConnectionIsRetriedWhateverTheMethod(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	e := engine(t, cortex.Config{Name: "nobody", Backoff: backoff.Config{Base: time.Millisecond}})
	cl, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: e})
	if err != nil {
		t.Fatal(err)
	}
	_, err = call(t.Context(), dialReal(t, addr, insecure.NewCredentials(), cl.DialOptions()...), methodDo, 1)
	if s := e.Stats(); status.Code(err) != codes.Unavailable || s.Attempts != 4 || s.Failures != 4 {
		t.Errorf("%v: %+v", err, s)
	}
	_, err = dialReal(t, addr, insecure.NewCredentials(), cl.DialOptions()...).NewStream(t.Context(), streamBoth, methodBoth)
	if s := e.Stats(); status.Code(err) != codes.Unavailable || s.Attempts != 8 {
		t.Errorf("stream: %v: %+v", err, s)
	}
	_, err = call(t.Context(), dialReal(t, addr, insecure.NewCredentials(), grpc.WithUnaryInterceptor(cl.UnaryInterceptor)), methodDo, 1)
	if s := e.Stats(); status.Code(err) != codes.Unavailable || s.Attempts != 9 {
		t.Errorf("without the stats handler: %v: %+v", err, s)
	}
	// Two clients, one above the other: the upper one retries, and knows too that nothing was sent.
	upper := engine(t, cortex.Config{Name: "upper", Backoff: backoff.Config{Base: time.Millisecond}})
	above, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: upper, Repeatable: func(m string) bool { return m == methodGet }})
	if err != nil {
		t.Fatal(err)
	}
	_, err = call(t.Context(), dialReal(t, addr, insecure.NewCredentials(), append(above.DialOptions(), cl.DialOptions()...)...), methodGet, 1)
	if s := upper.Stats(); status.Code(err) != codes.Unavailable || s.Attempts != 4 || e.Stats().Attempts != 13 {
		t.Errorf("two clients: %v: %+v, %+v", err, s, e.Stats())
	}
	idle(t, e)
	idle(t, upper)
}

// F22: no retry mends a certificate that is not accepted.
func TestDistrustedCertificateIsNotRetried(t *testing.T) {
	srv := httptest.NewUnstartedServer(nil)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	e := engine(t, cortex.Config{Name: "tls", Backoff: backoff.Config{Base: time.Millisecond}})
	cl, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: e})
	if err != nil {
		t.Fatal(err)
	}
	cc := dialReal(t, srv.Listener.Addr().String(), credentials.NewTLS(&tls.Config{RootCAs: x509.NewCertPool()}), cl.DialOptions()...)
	_, err = call(t.Context(), cc, methodDo, 1)
	if s := e.Stats(); status.Code(err) != codes.Unavailable || s.Attempts != 1 || s.Failures != 1 {
		t.Errorf("%v: %+v", err, s)
	}
}
