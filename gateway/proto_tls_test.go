package gateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// The port asks for a certificate where client_ca is set: without one that it knows there is not even a handshake.
func TestFrontDemandsCertificates(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	up := &counter{next: status(200)}
	s := realGateway(t, "tls: {cert: "+p.cert+", key: "+p.key+", client_ca: "+p.ca+"}\n"+target(realUpstream(t, p, "http", up), ""))
	for _, client := range []string{"https/1.1", "h2"} {
		for _, q := range []struct {
			name  string
			certs []tls.Certificate
			ok    bool
		}{{"none", nil, false}, {"another authority's", []tls.Certificate{other.pair}, false}, {"good", []tls.Certificate{p.pair}, true}} {
			before := up.n.Load()
			c, base := realClient(t, p, client, s)
			// Sent even if the server does not name its authority.
			c.Transport.(*http.Transport).TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				if len(q.certs) == 0 {
					return new(tls.Certificate), nil
				}
				return &q.certs[0], nil
			}
			r, _ := http.NewRequest("GET", base+"/", nil)
			a := send(c, r)
			if (a.err == nil && a.status == 200) != q.ok || (up.n.Load() == before+1) != q.ok {
				t.Errorf("%s by %s: %+v, %d requests", q.name, client, a, up.n.Load()-before)
			}
		}
	}
}

// tlsUpstream is a target with a TLS configuration of its own.
func tlsUpstream(t *testing.T, c *tls.Config, h http.Handler) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, TLSConfig: c, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ServeTLS(ln, "", "")
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return ln.Addr().String()
}

// Targets by TLS: with a certificate of ours, and what Proxy-Status says where the handshake fails.
func TestTargetsByTLS(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	ok := status(200)
	demands := tlsUpstream(t, &tls.Config{Certificates: []tls.Certificate{p.pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: p.pool}, ok)
	open := tlsUpstream(t, &tls.Config{Certificates: []tls.Certificate{p.pair}}, ok)
	old := tlsUpstream(t, &tls.Config{Certificates: []tls.Certificate{p.pair}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}, ok)
	plain := strings.TrimSuffix(strings.TrimPrefix(realUpstream(t, p, "http", ok), "endpoints: ['http://"), "']\n")
	mute, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for _, q := range []struct {
		name, address, tls string
		status             int
		kinds              string
	}{
		{"good", open, "ca: " + p.ca, 200, ""},
		{"with a certificate", demands, "ca: " + p.ca + ", cert: " + p.cert + ", key: " + p.key, 200, ""},
		{"without one", demands, "ca: " + p.ca, 502, "tls_alert_received connection_terminated"},
		{"one that it does not know", demands, "ca: " + p.ca + ", cert: " + other.cert + ", key: " + other.key, 502, "tls_alert_received connection_terminated"},
		{"an authority that is not ours", open, "ca: " + other.ca, 502, "tls_certificate_error"},
		{"another name", open, "ca: " + p.ca + ", server_name: shop.test", 502, "tls_certificate_error"},
		{"the right name", open, "ca: " + p.ca + ", server_name: localhost", 200, ""},
		{"an old version", old, "ca: " + p.ca, 502, "tls_protocol_error tls_alert_received"},
		{"no TLS at all", plain, "ca: " + p.ca, 502, "tls_protocol_error"},
		{"silence", mute.Addr().String(), "ca: " + p.ca, 504, "connection_timeout"},
	} {
		t.Run(q.name, func(t *testing.T) {
			s := realGateway(t, target("endpoints: ['https://"+q.address+"']\nretry: {max_retries: 0}\ntimeout: {bootstrap: 200ms}\ntransport: {tls: {"+q.tls+"}}", ""))
			c, base := realClient(t, p, "http/1.1", s)
			r, _ := http.NewRequest("GET", base+"/", nil)
			a := send(c, r)
			if a.status != q.status {
				t.Fatalf("%+v", a)
			}
			if q.status == 200 {
				return
			}
			if kind := proxyStatusOf(t, a.header); !strings.Contains(" "+q.kinds+" ", " "+kind+" ") || kind == "" {
				t.Errorf("%q, want one of %s", kind, q.kinds)
			}
			if strings.Contains(a.body, q.address) || strings.Contains(fmt.Sprint(a.header), q.address) {
				t.Errorf("tells addresses: %+v", a)
			}
		})
	}
}

func TestNameThatIsNotFound(t *testing.T) {
	p := newPKI(t)
	s := realGateway(t, target("endpoints: ['http://nowhere.invalid']\nretry: {max_retries: 0}", ""))
	c, base := realClient(t, p, "http/1.1", s)
	r, _ := http.NewRequest("GET", base+"/", nil)
	a := send(c, r)
	if kind := proxyStatusOf(t, a.header); a.status != 502 && a.status != 504 || kind != "dns_error" && kind != "dns_timeout" && kind != "connection_timeout" {
		t.Errorf("%+v", a)
	}
}

// F47: much goes both ways between all protocols, and little of it is held. The first byte is there before the last.
func TestLongStreamsInBoundedMemory(t *testing.T) {
	const size = 64 << 20
	if testing.Short() || raced {
		t.Skip("768 MiB over loopback")
	}
	var most atomic.Int64
	watch := func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if n := int64(m.HeapInuse + m.StackInuse); n > most.Load() {
			most.Store(n)
		}
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "PUT" {
			sum := sha256.New()
			n, err := io.Copy(sum, r.Body)
			fmt.Fprintf(w, "%d %v %x", n, err, sum.Sum(nil))
			return
		}
		io.Copy(w, io.LimitReader(&counting{}, size))
	})
	sum := sha256.New()
	io.Copy(sum, io.LimitReader(&counting{}, size))
	want := sum.Sum(nil)
	p := newPKI(t)
	for _, q := range []struct{ client, up string }{{"http/1.1", "http"}, {"h2c", "h2c"}, {"h2", "h2"}, {"https/1.1", "https/1.1"}, {"h2c", "http"}, {"http/1.1", "h2c"}} {
		t.Run(q.client+" to "+q.up, func(t *testing.T) {
			front := ""
			if encrypted(q.client) {
				front = frontTLS(p)
			}
			s := realGateway(t, front+target(realUpstream(t, p, q.up, h)+retrying, "fallback: {cache: {}}"))
			c, base := realClient(t, p, q.client, s)
			runtime.GC()
			most.Store(0)
			watch()
			before := most.Load()
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
						watch()
					}
				}
			}()
			r, _ := http.NewRequest("PUT", base+"/", io.LimitReader(&counting{}, size))
			if a := send(c, r); a.body != fmt.Sprintf("%d <nil> %x", size, want) {
				t.Errorf("up: %+v", a)
			}
			res, err := c.Get(base + "/")
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.New()
			n, err := io.Copy(sum, res.Body)
			res.Body.Close()
			if n != size || err != nil || !bytes.Equal(sum.Sum(nil), want) {
				t.Errorf("down: %d bytes, %v", n, err)
			}
			close(stop)
			<-stopped
			if grown := most.Load() - before; grown > 32<<20 {
				t.Errorf("%d MiB more of memory in use", grown>>20)
			}
		})
	}
}

// The first piece of a stream is there before the target makes the next, in every protocol.
func TestPiecesArriveAtOnceInAllProtocols(t *testing.T) {
	next := make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "60")
		}
		for i := range 5 {
			fmt.Fprintf(w, "data: %04d\n\n", i)
			http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, path := range []string{"/length", "/chunks"} {
			res, err := c.Get(base + path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				b := make([]byte, 12)
				if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != fmt.Sprintf("data: %04d\n\n", i) {
					t.Fatalf("%s: piece %d: %q, %v", path, i, b, err)
				}
				next <- struct{}{}
			}
			if b, err := io.ReadAll(res.Body); len(b) > 0 || err != nil {
				t.Errorf("%s: %q, %v", path, b, err)
			}
			res.Body.Close()
		}
	})
}
