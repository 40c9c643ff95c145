package admin

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
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// certificate makes a certificate for a client, signed by an authority of its own.
func certificate(t *testing.T, name string) (client tls.Certificate, authority *x509.Certificate) {
	t.Helper()
	newKey := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	sign := func(c, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
		if err != nil {
			t.Fatal(err)
		}
		c, err = x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	from, until := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	caKey, key := newKey(), newKey()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + name}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	ca = sign(ca, ca, caKey, caKey)
	leaf := sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca, key, caKey)
	return tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}, ca
}

// Over real connections, with a server that takes certificates but wants none: each of the two ways in is enough, and neither
// of a stranger's.
func TestCertificateOrTokenOverTLS(t *testing.T) {
	d := newDesk(t, "0123456789abcdef")
	anna, ca := certificate(t, "anna")
	stranger, _ := certificate(t, "stranger")
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	s := httptest.NewUnstartedServer(d)
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // what it has to say of the stranger
	s.StartTLS()
	defer s.Close()
	ask := func(cert *tls.Certificate, token string) (status int, err error) {
		c := s.Client()
		tr := c.Transport.(*http.Transport).Clone()
		defer tr.CloseIdleConnections()
		if cert != nil {
			tr.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		}
		r, err := http.NewRequest("POST", s.URL+"/api/v1/targets/stock/circuit", strings.NewReader(`{"state":"closed"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := tr.RoundTrip(r)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode, nil
	}
	if status, err := ask(&anna, ""); status != 200 {
		t.Errorf("certificate: %d, %v", status, err)
	}
	if status, err := ask(nil, "0123456789abcdef"); status != 200 {
		t.Errorf("token: %d, %v", status, err)
	}
	if status, err := ask(nil, ""); status != 401 {
		t.Errorf("neither: %d, %v", status, err)
	}
	if status, err := ask(&stranger, "0123456789abcdef"); err == nil {
		t.Errorf("a stranger's certificate: %d", status)
	}
	ls := d.lines()
	if len(ls) != 3 || !strings.Contains(ls[0], "subject=CN=anna") && !strings.Contains(ls[0], `subject="CN=anna"`) || strings.Contains(ls[1], "subject") {
		t.Errorf("logged %q", ls)
	}
}
