package tlsfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ServerFiles are the files of a server.
type ServerFiles struct {
	Cert, Key  string   // PEM: the certificate, first, with those of its authorities; its private key
	ClientCA   string   // PEM: the authorities of clients, each of which must then show a certificate; empty = none is asked for
	MinVersion uint16   // tls.VersionTLS12 or tls.VersionTLS13; 0 = TLS 1.2
	ALPN       []string // protocols that are offered, the preferred one first
}

// A Server is the TLS configuration of a server. It is safe for concurrent use.
type Server struct {
	files   ServerFiles
	reload  sync.Mutex
	current atomic.Pointer[serverState]
}

type serverState struct {
	config   *tls.Config
	pair     *pair
	clients  []*x509.Certificate
	raw      [][]byte
	loadedAs []Warning // at the time of reading; those about time are made when they are asked for
}

// LoadServer reads the files. The error is a [*FileError], or several, joined.
func LoadServer(f ServerFiles) (*Server, error) {
	switch f.MinVersion {
	case 0:
		f.MinVersion = tls.VersionTLS12
	case tls.VersionTLS12, tls.VersionTLS13:
	default:
		return nil, fmt.Errorf("tlsfile: minimum version %s: it must be TLS 1.2 or TLS 1.3", tls.VersionName(f.MinVersion))
	}
	f.ALPN = slices.Clone(f.ALPN)
	s := &Server{files: f}
	if _, err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again and reports whether they have changed. On an error, which is like that of LoadServer, what was
// there stays in force.
func (s *Server) Reload() (changed bool, err error) {
	s.reload.Lock()
	defer s.reload.Unlock()
	st, err := s.read()
	if err != nil {
		return false, err
	}
	old := s.current.Load()
	if old != nil && same(old.raw, st.raw) {
		kept := *old
		kept.loadedAs = st.loadedAs // a mode may have changed
		s.current.Store(&kept)
		return false, nil
	}
	s.current.Store(st)
	return true, nil
}

func (s *Server) read() (*serverState, error) {
	p, err := readPair(s.files.Cert, s.files.Key)
	var pool *x509.CertPool
	var certs []*x509.Certificate
	var raw []byte
	if s.files.ClientCA != "" {
		var errCA error
		pool, certs, raw, errCA = authorities(s.files.ClientCA)
		err = errors.Join(err, errCA)
	}
	if err != nil {
		return nil, err
	}
	c := &tls.Config{Certificates: []tls.Certificate{p.tls}, MinVersion: s.files.MinVersion, NextProtos: s.files.ALPN}
	if pool != nil {
		// A client that resumes a session is checked against the authorities of now, too: crypto/tls does that.
		c.ClientCAs, c.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	st := &serverState{config: c, pair: p, clients: certs, raw: append(p.raw, raw), loadedAs: p.warnings}
	leaf := p.certs[0]
	if len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.URIs) == 0 {
		st.loadedAs = append(st.loadedAs, Warning{s.files.Cert, "the certificate has no subject alternative name: clients of today do not look at its common name and will refuse it"})
	}
	if !usable(leaf, x509.ExtKeyUsageServerAuth) {
		st.loadedAs = append(st.loadedAs, Warning{s.files.Cert, "the certificate is not for servers (extended key usage): clients will refuse it"})
	}
	return st, nil
}

func usable(c *x509.Certificate, as x509.ExtKeyUsage) bool {
	return len(c.ExtKeyUsage)+len(c.UnknownExtKeyUsage) == 0 ||
		slices.Contains(c.ExtKeyUsage, as) || slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageAny)
}

// Config returns the configuration for a listener. It is good for ever: each handshake gets what is in force.
func (s *Server) Config() *tls.Config {
	return &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().config, nil },
		MinVersion:         s.files.MinVersion,
		NextProtos:         slices.Clone(s.files.ALPN),
	}
}

// Files are the paths that the configuration is made of, for somebody who watches them.
func (s *Server) Files() []string { return paths(s.files.Cert, s.files.Key, s.files.ClientCA) }

// Warnings are about the files in force, at this time.
func (s *Server) Warnings() []Warning { return s.warnings(time.Now()) }

func (s *Server) warnings(now time.Time) []Warning {
	st := s.current.Load()
	ws := slices.Clone(st.loadedAs)
	ws = append(ws, validity(s.files.Cert, st.pair.certs, now)...)
	return append(ws, authorityWarnings(s.files.ClientCA, st.clients, now)...)
}

// NotAfter is when the certificate in force expires.
func (s *Server) NotAfter() time.Time { return s.current.Load().pair.certs[0].NotAfter }

func paths(files ...string) []string {
	return slices.DeleteFunc(files, func(f string) bool { return f == "" })
}
