package tlsfile

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestErrorsNameTheFileAndSayWhatWouldBeRight(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert, key := ca.issue("a.test", nil)
	cert2, key2 := ca.issue("b.test", nil)
	x, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	xder, err := x509.MarshalPKCS8PrivateKey(x)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, b []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}) }
	for _, c := range []struct {
		name          string
		cert, key, ca []byte // nil = there is no such file
		file, says    string
	}{
		{"no cert", nil, key, ca.pem, "cert.pem", "cannot be read"},
		{"no key", cert, nil, ca.pem, "key.pem", "cannot be read"},
		{"no authority", cert, key, nil, "ca.pem", "cannot be read"},
		{"empty cert", []byte{}, key, ca.pem, "cert.pem", "BEGIN CERTIFICATE"},
		{"empty key", cert, []byte{}, ca.pem, "key.pem", "BEGIN PRIVATE KEY"},
		{"empty authority", cert, key, []byte("\n"), "ca.pem", "BEGIN CERTIFICATE"},
		{"exchanged, cert", key, key, ca.pem, "cert.pem", "exchanged"},
		{"exchanged, key", cert, cert, ca.pem, "key.pem", "exchanged"},
		{"authority is a key", cert, key, key2, "ca.pem", "private key"},
		{"key of another", cert, key2, ca.pem, "key.pem", "is not that of the certificate in"},
		{"leaf is second", slices.Concat(cert2, cert), key, ca.pem, "cert.pem", "number 2"},
		{"broken cert", encode("CERTIFICATE", []byte("abc")), key, ca.pem, "cert.pem", "certificate 1 cannot be parsed"},
		{"broken second cert", slices.Concat(cert, encode("CERTIFICATE", []byte("abc"))), key, ca.pem, "cert.pem", "certificate 2 cannot be parsed"},
		{"broken key", cert, encode("PRIVATE KEY", []byte("abc")), ca.pem, "key.pem", "cannot be used"},
		{"key of no signature", cert, encode("PRIVATE KEY", xder), ca.pem, "key.pem", "cannot be used"},
		{"encrypted key", cert, encode("ENCRYPTED PRIVATE KEY", []byte("abc")), ca.pem, "key.pem", "encrypted"},
		{"old encrypted key", cert, []byte("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nYWJj\n-----END RSA PRIVATE KEY-----\n"), ca.pem, "key.pem", "encrypted"},
		{"huge", bytes.Repeat([]byte("x"), maxBytes+1), key, ca.pem, "cert.pem", "larger than"},
		{"huge key", cert, bytes.Repeat([]byte("x"), maxBytes+1), ca.pem, "key.pem", "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDir(t)
			for name, b := range map[string][]byte{"cert.pem": c.cert, "key.pem": c.key, "ca.pem": c.ca} {
				if b != nil {
					d.write(name, b)
				}
			}
			_, err := LoadServer(ServerFiles{Cert: d.file("cert.pem"), Key: d.file("key.pem"), ClientCA: d.file("ca.pem")})
			var f *FileError
			if !errors.As(err, &f) {
				t.Fatalf("%v is no FileError", err)
			}
			if f.File != d.file(c.file) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q of %s, want that it says %q of %s", err, f.File, c.says, c.file)
			}
			if (f.Reason == "cannot be read") != errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v: the cause is lost", err)
			}
		})
	}
}

func TestAllFilesThatAreWrongAreNamed(t *testing.T) {
	d := newDir(t)
	_, err := LoadServer(ServerFiles{Cert: d.file("c"), Key: d.file("k"), ClientCA: d.file("a")})
	for _, name := range []string{"c", "k", "a"} {
		if err == nil || !strings.Contains(err.Error(), d.file(name)+":") {
			t.Errorf("%v, want a word of %s", err, name)
		}
	}
	for _, f := range []ServerFiles{{Cert: "c"}, {Key: "k"}, {}} {
		if _, err := LoadServer(f); err == nil || !strings.Contains(err.Error(), "is not given") {
			t.Errorf("%+v: %v", f, err)
		}
	}
	if _, err := LoadClient(ClientFiles{Cert: "c"}); err == nil || !strings.Contains(err.Error(), "key: is not given") {
		t.Error(err)
	}
	if _, err := LoadServer(ServerFiles{Cert: "c", Key: "k", MinVersion: 0x0302}); err == nil || !strings.Contains(err.Error(), "TLS 1.1") {
		t.Error(err)
	}
}

// What is in a private key's file must not be found in an error: a file may be broken in its last byte only.
func TestErrorsHoldNothingOfAPrivateKey(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert, key := ca.issue("a.test", nil)
	_, other := ca.issue("b.test", nil)
	block, _ := pem.Decode(key)
	for name, b := range map[string][]byte{
		"cut":          pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: block.Bytes[:len(block.Bytes)-1]}),
		"flipped":      pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: append([]byte{0x31}, block.Bytes[1:]...)}),
		"not PEM":      bytes.ReplaceAll(key, []byte("-----"), []byte("---")),
		"of another":   other,
		"as cert, too": slices.Concat(cert, other),
	} {
		d := newDir(t)
		c, k := d.write("cert.pem", cert), d.write("key.pem", b)
		_, err := LoadServer(ServerFiles{Cert: c, Key: k})
		_, err2 := LoadServer(ServerFiles{Cert: k, Key: c})
		_, err3 := LoadClient(ClientFiles{CA: k, Cert: c, Key: k})
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		text := errors.Join(err, err2, err3).Error()
		p, _ := pem.Decode(b)
		if p == nil {
			p = block
		}
		base := base64.StdEncoding.EncodeToString(p.Bytes)
		for i := 0; i+8 <= len(base); i += 4 {
			if strings.Contains(text, base[i:i+8]) {
				t.Errorf("%s: %q has %q of the key", name, text, base[i:i+8])
			}
		}
		if strings.Contains(err.Error(), "asn1") {
			t.Errorf("%s: %q has what the parser said of the key", name, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	ca := newAuthority(t, "ca")
	has := func(ws []Warning, file, says string) bool {
		return slices.ContainsFunc(ws, func(w Warning) bool { return w.File == file && strings.Contains(w.Reason, says) })
	}
	for _, c := range []struct {
		name   string
		change func(*x509.Certificate)
		says   string // "" = nothing
	}{
		{"good", nil, ""},
		{"expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "expired at"},
		{"not yet valid", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }, "is not valid before"},
		{"expires soon", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-80*24*time.Hour), time.Now().Add(24*time.Hour)
		}, "expires at"},
		{"short-lived by design", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(24 * time.Hour) }, ""},
		{"no names", func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = nil, nil }, "subject alternative name"},
		{"for clients only", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "not for servers"},
		{"for anything", func(c *x509.Certificate) { c.ExtKeyUsage = nil }, ""},
	} {
		d := newDir(t)
		cert, key := ca.issue("a.test\nevil", c.change)
		d.write("cert.pem", cert)
		d.write("key.pem", key)
		s, err := LoadServer(ServerFiles{Cert: d.file("cert.pem"), Key: d.file("key.pem")})
		if err != nil {
			t.Errorf("%s: %v: a warning would do", c.name, err)
			continue
		}
		ws := s.Warnings()
		if c.says == "" && len(ws) > 0 || c.says != "" && !has(ws, d.file("cert.pem"), c.says) {
			t.Errorf("%s: %v, want %q", c.name, ws, c.says)
		}
		for _, w := range ws {
			if strings.Contains(w.String(), "\n") {
				t.Errorf("%s: %q breaks the line", c.name, w)
			}
		}
	}

	// It is about the time of the question.
	d := newDir(t)
	cert, key := ca.issue("a.test", nil)
	d.write("cert.pem", cert)
	d.write("key.pem", key)
	d.write("ca.pem", slices.Concat(ca.pem, cert))
	s, err := LoadServer(ServerFiles{Cert: d.file("cert.pem"), Key: d.file("key.pem"), ClientCA: d.file("ca.pem")})
	if err != nil {
		t.Fatal(err)
	}
	if ws := s.warnings(time.Now()); len(ws) != 1 || !has(ws, d.file("ca.pem"), "certificate 2 (\"a.test\") is not that of an authority") {
		t.Error(ws)
	}
	if ws := s.warnings(s.NotAfter().Add(time.Second)); !has(ws, d.file("cert.pem"), "expired") || !has(ws, d.file("ca.pem"), "expired") {
		t.Error(ws)
	}
	if runtime.GOOS != "windows" {
		if err := os.Chmod(d.file("key.pem"), 0o644); err != nil {
			t.Fatal(err)
		}
		if changed, err := s.Reload(); changed || err != nil {
			t.Error(changed, err)
		}
		if ws := s.Warnings(); !has(ws, d.file("key.pem"), "chmod") {
			t.Error(ws)
		}
	}
	c, err := LoadClient(ClientFiles{CA: d.file("ca.pem"), Cert: d.file("cert.pem"), Key: d.file("key.pem")})
	if err != nil {
		t.Fatal(err)
	}
	if ws := c.warnings(s.NotAfter().Add(time.Second)); !has(ws, d.file("cert.pem"), "expired") || !has(ws, d.file("ca.pem"), "expired") {
		t.Error(ws)
	}
}
