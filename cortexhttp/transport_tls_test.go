package cortexhttp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// certificate is one for 127.0.0.1 or another host, signed by ca or by itself.
func certificate(t *testing.T, host string, until time.Time) (tls.Certificate, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	spec := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-48 * time.Hour),
		NotAfter: until, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	if ip := net.ParseIP(host); ip != nil {
		spec.IPAddresses = []net.IP{ip}
	} else {
		spec.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, spec, spec, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, parsed
}

// F22: after the toolchain had wrapped the verification error in a new type, a permanent error was retried.
func TestUntrustedCertificateIsNotRetried(t *testing.T) {
	tomorrow := time.Now().Add(24 * time.Hour)
	for _, c := range []struct {
		name   string
		host   string
		until  time.Time
		trust  bool
		client tls.ClientAuthType
		found  func(error) bool
	}{
		{"unknown authority", "127.0.0.1", tomorrow, false, 0, is[x509.UnknownAuthorityError]},
		{"expired", "127.0.0.1", time.Now().Add(-24 * time.Hour), true, 0, is[x509.CertificateInvalidError]},
		{"wrong host", "elsewhere.example", tomorrow, true, 0, is[x509.HostnameError]},
		{"ours not accepted", "127.0.0.1", tomorrow, true, tls.RequireAnyClientCert, is[*net.OpError]},
	} {
		cert, parsed := certificate(t, c.host, c.until)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(answerOK))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: c.client}
		srv.StartTLS()
		pool := x509.NewCertPool()
		if c.trust {
			pool.AddCert(parsed)
		}
		for _, method := range []string{"GET", "POST"} {
			e := clientEngine(t)
			base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
			tr, err := NewTransport(TransportConfig{Engine: e, Base: base})
			if err != nil {
				t.Fatal(err)
			}
			var rep Report
			req := get(t, srv.URL).WithContext(WithReport(t.Context(), &rep))
			req.Method = method
			_, err = tr.RoundTrip(req)
			if rep.Attempts != 1 || rep.Reason != cortex.ReasonNotRetryable || !c.found(err) || e.Stats().Failures != 1 {
				t.Errorf("%s, %s: %v, %+v, %+v", c.name, method, err, rep, e.Stats())
			}
			if c.client == 0 && !is[*tls.CertificateVerificationError](err) {
				t.Errorf("%s: %v", c.name, err)
			}
			tr.CloseIdleConnections()
		}
		srv.Close()
	}
}

// F22, the other side of it: a reset during the handshake mends itself, and nothing was sent.
func TestResetDuringTheHandshakeIsRetried(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := httptest.NewUnstartedServer(http.HandlerFunc(answerOK))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.Listener.Close()
		srv.Listener = &resetFirst{Listener: ln, n: 2}
		srv.EnableHTTP2 = true
		srv.StartTLS()
		pool := x509.NewCertPool()
		pool.AddCert(srv.Certificate())
		tr, err := NewTransport(TransportConfig{Engine: clientEngine(t),
			Base: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}})
		if err != nil {
			t.Fatal(err)
		}
		var rep Report
		req := request(t, WithReport(t.Context(), &rep), method, "x")
		req.URL = get(t, srv.URL).URL
		resp, err := tr.RoundTrip(req)
		if status, _ := finish(t, resp, err); status != 200 || rep.Attempts != 3 {
			t.Errorf("%s: status %d, %+v", method, status, rep)
		}
		tr.CloseIdleConnections()
		srv.Close()
	}
}

// resetFirst resets its first n connections.
type resetFirst struct {
	net.Listener
	n int
}

func (l *resetFirst) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.n == 0 {
			return c, err
		}
		l.n--
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}
