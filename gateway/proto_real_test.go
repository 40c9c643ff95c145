package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// Protocols are tested on real ports: what goes over the wire is the point. A test has the time of slowness to hang in, none waits for it.
const slowness = 20 * time.Second

// pki is an authority with a certificate of 127.0.0.1 in files.
type pki struct {
	ca, cert, key string // paths
	pool          *x509.CertPool
	pair          tls.Certificate
}

func newPKI(t testing.TB) *pki {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	template := func(n int64) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	}
	ca := template(1)
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := template(2)
	leaf.IPAddresses, leaf.DNSNames, leaf.KeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"}, x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	must(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) (path string, text []byte) {
		path, text = filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		must(os.WriteFile(path, text, 0o600))
		return path, text
	}
	p := &pki{pool: x509.NewCertPool()}
	var caPEM, certPEM, keyPEM []byte
	p.ca, caPEM = write("ca.pem", "CERTIFICATE", caDER)
	p.cert, certPEM = write("cert.pem", "CERTIFICATE", der)
	p.key, keyPEM = write("key.pem", "PRIVATE KEY", keyDER)
	p.pool.AppendCertsFromPEM(caPEM)
	p.pair, err = tls.X509KeyPair(certPEM, keyPEM)
	must(err)
	return p
}

// upstreams are the protocols of targets: what of them the configuration says, and how they are served.
var upstreams = []string{"http", "h2c", "h2", "https/1.1"}

// realUpstream serves a handler and returns the configuration of a target that it is.
func realUpstream(t testing.TB, p *pki, protocol string, h http.Handler) (target string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0), DisableGeneralOptionsHandler: true}
	scheme := "http"
	switch protocol {
	case "http":
		s.Protocols.SetHTTP1(true)
	case "h2c":
		scheme = "h2c"
		s.Protocols.SetUnencryptedHTTP2(true)
	case "h2":
		scheme = "https"
		s.Protocols.SetHTTP2(true)
		s.Protocols.SetHTTP1(true)
	case "https/1.1":
		scheme = "https"
		s.Protocols.SetHTTP1(true)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if scheme == "https" {
			s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{p.pair}}
			s.ServeTLS(ln, "", "")
		} else {
			s.Serve(ln)
		}
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	target = "endpoints: ['" + scheme + "://" + ln.Addr().String() + "']\n"
	if scheme == "https" {
		target += "transport: {tls: {ca: " + p.ca + "}}\n"
	}
	return target
}

// realGateway runs a gateway on a real port.
func realGateway(t testing.TB, yaml string) *Server {
	t.Helper()
	return realGatewayLogging(t, yaml, nil)
}

func realGatewayLogging(t testing.TB, yaml string, logger *slog.Logger) *Server {
	t.Helper()
	f, err := config.Parse("test.yaml", []byte("listen: 127.0.0.1:0\nadmin: {enabled: false}\n"+yaml))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(f, Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		go stop()
		s.Close() // what a failed test has left must not be waited for
		<-done
	})
	return s
}

// target is the configuration of a gateway with one target and one route.
func target(target, route string) string {
	return "targets:\n  up:\n" + indent(4, target) + "routes:\n  - path: /\n    target: up\n" + indent(4, route)
}

func frontTLS(p *pki) string { return "tls: {cert: " + p.cert + ", key: " + p.key + "}\n" }

// clients are the protocols of clients.
var clients = []string{"http/1.1", "h2c", "https/1.1", "h2"}

func encrypted(client string) bool { return client == "https/1.1" || client == "h2" }

func isHTTP2(protocol string) bool { return protocol == "h2" || protocol == "h2c" }

// realClient speaks one protocol alone. Its base URL is that of the gateway.
func realClient(t testing.TB, p *pki, protocol string, s *Server) (c *http.Client, base string) {
	t.Helper()
	tr := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols), ExpectContinueTimeout: slowness}
	base = "http://"
	switch protocol {
	case "http/1.1":
		tr.Protocols.SetHTTP1(true)
	case "h2c":
		tr.Protocols.SetUnencryptedHTTP2(true)
	case "https/1.1":
		tr.Protocols.SetHTTP1(true)
	case "h2":
		tr.Protocols.SetHTTP2(true)
	}
	if encrypted(protocol) {
		base = "https://"
		tr.TLSClientConfig = &tls.Config{RootCAs: p.pool}
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: slowness, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		base + s.Addr().String()
}

// eachProtocol runs a test with every protocol of a client and every one of a target. handler is that of the target.
func eachProtocol(t *testing.T, handler http.Handler, lines string, test func(t *testing.T, c *http.Client, base string, s *Server, client, up string)) {
	t.Helper()
	p := newPKI(t)
	for _, up := range upstreams {
		spec := realUpstream(t, p, up, handler) + lines
		plain, secure := realGateway(t, target(spec, "")), realGateway(t, frontTLS(p)+target(spec, ""))
		for _, client := range clients {
			s := plain
			if encrypted(client) {
				s = secure
			}
			t.Run(client+" to "+up, func(t *testing.T) {
				c, base := realClient(t, p, client, s)
				test(t, c, base, s, client, up)
			})
		}
	}
}

// idle waits until nothing is in flight at the target.
func idle(t *testing.T, s *Server) {
	t.Helper()
	eventually(t, "nothing in flight", func() bool { return s.Gateway().Targets()[0].calls.Load() == 0 })
}

// eventually waits for something that is about to be.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(slowness); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

var errOnPurpose = errors.New("on purpose")
