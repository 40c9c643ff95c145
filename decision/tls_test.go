package decision

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
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/seed-a29ca62a/cortex"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// authority makes certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.cert, a.key = a.make("authority", true)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) make(name string, ca bool) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: ca, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return c, key
}

func (a *authority) pair(name string) tls.Certificate {
	c, key := a.make(name, false)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key}
}

const anyCode = connect.Code(99)

func TestOverTLSACertificateIsAsGoodAsTheToken(t *testing.T) {
	ca := newAuthority(t)
	h := New(Config{Others: cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 10), Token: func() string { return secret }})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(h, &tls.Config{Certificates: []tls.Certificate{ca.pair("server")}, ClientCAs: ca.pool, ClientAuth: tls.VerifyClientCertIfGiven})
	s.ErrorLog = log.New(io.Discard, "", 0)
	done := make(chan struct{})
	go func() { defer close(done); s.ServeTLS(l, "", "") }()
	t.Cleanup(func() { s.Close(); <-done })
	for name, tc := range map[string]struct {
		with   []tls.Certificate
		option connect.ClientOption
		code   connect.Code
	}{
		"connect, with one":    {[]tls.Certificate{ca.pair("worker")}, connect.WithProtoJSON(), 0},
		"connect, without":     {nil, connect.WithProtoJSON(), connect.CodeUnauthenticated},
		"gRPC, with one":       {[]tls.Certificate{ca.pair("worker")}, connect.WithGRPC(), 0},
		"gRPC, without":        {nil, connect.WithGRPC(), connect.CodeUnauthenticated},
		"another authority's":  {[]tls.Certificate{newAuthority(t).pair("worker")}, connect.WithGRPC(), anyCode}, // the handshake fails, in one of several ways
		"gRPC-Web, with one":   {[]tls.Certificate{ca.pair("worker")}, connect.WithGRPCWeb(), 0},
		"gRPC-Web, without it": {nil, connect.WithGRPCWeb(), connect.CodeUnauthenticated},
	} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.pool, Certificates: tc.with}, ForceAttemptHTTP2: true}
		c := pb.NewDecisionServiceClient(&http.Client{Transport: tr}, "https://"+l.Addr().String(), tc.option)
		a, err := c.Admit(background, &pb.AdmitRequest{Target: ptr("a"), Priority: ptr(int32(9))})
		switch {
		case tc.code == 0 && (err != nil || !a.Allowed):
			t.Errorf("%s: %v %v", name, a, err)
		case tc.code != 0 && err == nil:
			t.Errorf("%s: let in", name)
		case tc.code != 0 && tc.code != anyCode && connect.CodeOf(err) != tc.code:
			t.Errorf("%s: %v", name, err)
		}
		tr.CloseIdleConnections()
	}
}
