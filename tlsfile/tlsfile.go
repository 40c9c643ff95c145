// Package tlsfile makes TLS configurations of PEM files, anew when these change.
//
//	s, err := tlsfile.LoadServer(tlsfile.ServerFiles{Cert: "tls.crt", Key: "tls.key"})
//	…
//	l = tls.NewListener(l, s.Config()) // once, for good
//	…
//	changed, err := s.Reload()         // new connections see the new files; on an error all stays as it was
//
// Connections that there are go on with what they were made with: a reload drops none. Errors name the file and say what would
// be right; they never hold anything of a private key. What works today but will not for long, or is careless, is a [Warning].
package tlsfile

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// maxBytes is the largest file that is read: a bundle of all authorities of the web has a quarter of it.
const maxBytes = 1 << 20

// expiresSoon is how long before its end a certificate is warned of. Automatic renewal has been late for half of the time of
// 90-day certificates by then, and there is time to act.
const expiresSoon = 7 * 24 * time.Hour

// A FileError says what is wrong with a file.
type FileError struct {
	File   string // its path; for a file that is not given, "cert" or the like
	Reason string // what is wrong, and what would be right
	Err    error  // of the system or of the parser, if there is one; never of a private key's parser
}

func (e *FileError) Error() string {
	s := "tlsfile: " + e.File + ": " + e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *FileError) Unwrap() error { return e.Err }

// A Warning is about a file that is used nevertheless.
type Warning struct {
	File   string
	Reason string
}

func (w Warning) String() string { return w.File + ": " + w.Reason }

// read reads a file.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // or opening a pipe would wait for who writes to it
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err // the path is said already
		}
		return nil, &FileError{File: path, Reason: "cannot be read", Err: err}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, &FileError{File: path, Reason: "cannot be read", Err: err}
	}
	if len(b) > maxBytes {
		return nil, &FileError{File: path, Reason: fmt.Sprintf("is larger than %d bytes: it must hold PEM blocks only", maxBytes)}
	}
	return b, nil
}

// certificates are those of a file, at least one.
func certificates(path string, b []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	other := ""
	for rest := b; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			other = block.Type
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, &FileError{File: path, Reason: fmt.Sprintf("certificate %d cannot be parsed", len(certs)+1), Err: err}
		}
		certs = append(certs, c)
	}
	switch {
	case len(certs) > 0:
		return certs, nil
	case strings.HasSuffix(other, "PRIVATE KEY"):
		return nil, &FileError{File: path, Reason: "holds a private key where a certificate should be: are the two files exchanged?"}
	}
	return nil, &FileError{File: path, Reason: `holds no certificate: it must have a PEM block "BEGIN CERTIFICATE"`}
}

// privateKey is the key of a file. Its errors hold nothing of the content.
func privateKey(path string, b []byte) (crypto.Signer, error) {
	other := ""
	for rest := b; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			if other == "" && block.Type == "CERTIFICATE" {
				other = block.Type
			}
			continue
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
			return nil, &FileError{File: path, Reason: "the private key is encrypted: it must be stored without a passphrase (openssl pkey -in … -out …)"}
		}
		var key any
		var err error
		if key, err = x509.ParsePKCS8PrivateKey(block.Bytes); err != nil {
			if key, err = x509.ParsePKCS1PrivateKey(block.Bytes); err != nil {
				key, err = x509.ParseECPrivateKey(block.Bytes)
			}
		}
		signer, ok := key.(crypto.Signer)
		if err != nil || !ok {
			return nil, &FileError{File: path, Reason: "the private key cannot be used: it must be RSA, ECDSA or Ed25519 in PKCS #8, PKCS #1 or SEC 1"}
		}
		return signer, nil
	}
	if other != "" {
		return nil, &FileError{File: path, Reason: "holds a certificate where a private key should be: are the two files exchanged?"}
	}
	return nil, &FileError{File: path, Reason: `holds no private key: it must have a PEM block "BEGIN PRIVATE KEY"`}
}

// errMismatch marks the one error that may be the work of somebody who exchanges two files one after the other.
var errMismatch = errors.New("the public keys differ")

// A pair is a certificate with its chain and its key.
type pair struct {
	tls      tls.Certificate
	certs    []*x509.Certificate
	raw      [][]byte // of both files
	warnings []Warning
}

// readPair reads a certificate and its key, again if they do not belong together: they may just have been exchanged, and one is
// an old one.
func readPair(certFile, keyFile string) (*pair, error) {
	p, err := readPairOnce(certFile, keyFile)
	if errors.Is(err, errMismatch) {
		p, err = readPairOnce(certFile, keyFile)
	}
	return p, err
}

func readPairOnce(certFile, keyFile string) (*pair, error) {
	if certFile == "" || keyFile == "" {
		missing, there := "cert", keyFile
		if keyFile == "" {
			missing, there = "key", certFile
		}
		return nil, &FileError{File: missing, Reason: fmt.Sprintf("is not given: a certificate and its private key go together (%q)", there)}
	}
	certPEM, err1 := read(certFile)
	keyPEM, err2 := read(keyFile)
	p := &pair{raw: [][]byte{certPEM, keyPEM}}
	if err1 == nil {
		p.certs, err1 = certificates(certFile, certPEM)
	}
	var key crypto.Signer
	if err2 == nil {
		key, err2 = privateKey(keyFile, keyPEM)
	}
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if !belongs(key, p.certs[0]) {
		for i, c := range p.certs[1:] {
			if belongs(key, c) {
				return nil, &FileError{File: certFile, Reason: fmt.Sprintf(
					"the certificate of the private key is number %d: it must be the first, before those of its authorities", i+2)}
			}
		}
		return nil, &FileError{File: keyFile, Reason: "the private key is not that of the certificate in " + certFile, Err: errMismatch}
	}
	p.tls.PrivateKey = key
	p.tls.Leaf = p.certs[0]
	for _, c := range p.certs {
		p.tls.Certificate = append(p.tls.Certificate, c.Raw)
	}
	if i, err := os.Stat(keyFile); err == nil && runtime.GOOS != "windows" && i.Mode().Perm()&0o004 != 0 {
		p.warnings = append(p.warnings, Warning{keyFile, fmt.Sprintf("everybody on this machine may read the private key (mode %04o): chmod 600", i.Mode().Perm())})
	}
	return p, nil
}

func belongs(key crypto.Signer, c *x509.Certificate) bool {
	public, ok := c.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(key.Public())
}

// validity warns of certificates that are not valid now, or not for long.
func validity(path string, certs []*x509.Certificate, now time.Time) []Warning {
	var ws []Warning
	for i, c := range certs {
		what := fmt.Sprintf("certificate %d (%s)", i+1, name(c))
		switch {
		case now.Before(c.NotBefore):
			ws = append(ws, Warning{path, what + " is not valid before " + c.NotBefore.UTC().Format(time.RFC3339) + ": peers will refuse it until then"})
		case now.After(c.NotAfter):
			ws = append(ws, Warning{path, what + " expired at " + c.NotAfter.UTC().Format(time.RFC3339) + ": peers will refuse it"})
		case c.NotAfter.Sub(now) < expiresSoon && c.NotAfter.Sub(c.NotBefore) > 2*expiresSoon:
			ws = append(ws, Warning{path, what + " expires at " + c.NotAfter.UTC().Format(time.RFC3339)})
		}
	}
	return ws
}

// name is short and cannot break a line of a log.
func name(c *x509.Certificate) string {
	s := c.Subject.CommonName
	if s == "" && len(c.DNSNames) > 0 {
		s = c.DNSNames[0]
	}
	if s == "" {
		return "serial " + c.SerialNumber.Text(16)
	}
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return fmt.Sprintf("%q", s)
}

// authorities reads the certificates that are trusted.
func authorities(path string) (*x509.CertPool, []*x509.Certificate, []byte, error) {
	b, err := read(path)
	if err != nil {
		return nil, nil, nil, err
	}
	certs, err := certificates(path, b)
	if err != nil {
		return nil, nil, nil, err
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool, certs, b, nil
}

// authorityWarnings are about certificates that are trusted.
func authorityWarnings(path string, certs []*x509.Certificate, now time.Time) []Warning {
	ws := validity(path, certs, now)
	for i, c := range certs {
		if !c.IsCA && c.Version == 3 {
			ws = append(ws, Warning{path, fmt.Sprintf("certificate %d (%s) is not that of an authority: it will be good for itself only", i+1, name(c))})
		}
	}
	return ws
}

// same reports whether what was read is what is in force.
func same(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
