package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/front"
	"github.com/seed-a29ca62a/cortex/tlsfile"
)

// secrets are what the ports need of files: certificates, and the tokens of the admin port and of the decision service.
type secrets struct {
	log                     *slog.Logger
	front, admin, decisions atomic.Pointer[tlsfile.Server] // nil = plain text
	bearer, decisionsBearer atomic.Pointer[string]         // nil = none
}

func newSecrets(f *config.File, log *slog.Logger) (*secrets, error) {
	s := &secrets{log: log}
	commit, err := s.load(f)
	if err != nil {
		return nil, err
	}
	commit()
	return s, nil
}

// load reads the files of a configuration. Nothing of it is in force before commit is called.
func (s *secrets) load(f *config.File) (commit func(), err error) {
	frontTLS, err := loadTLS("tls", f.TLS, front.ALPN(f.Server.HTTP2))
	if err != nil {
		return nil, err
	}
	var adminTLS, decisionsTLS *tlsfile.Server
	var token, decisionsToken *string
	if f.Admin.Enabled {
		if adminTLS, err = loadTLS("admin.tls", f.Admin.TLS, front.ALPN(false)); err != nil {
			return nil, err
		}
		if token, err = loadToken("admin.token_file", f.Admin.TokenFile); err != nil {
			return nil, err
		}
	}
	if c := f.Decisions; c != nil {
		if decisionsTLS, err = loadTLS("decisions.tls", c.TLS, front.ALPN(true)); err != nil {
			return nil, err
		}
		if decisionsToken, err = loadToken("decisions.token_file", c.TokenFile); err != nil {
			return nil, err
		}
	}
	return func() {
		s.front.Store(frontTLS)
		s.admin.Store(adminTLS)
		s.decisions.Store(decisionsTLS)
		s.bearer.Store(token)
		s.decisionsBearer.Store(decisionsToken)
		for key, t := range map[string]*tlsfile.Server{"tls": frontTLS, "admin.tls": adminTLS, "decisions.tls": decisionsTLS} {
			if t == nil {
				continue
			}
			for _, w := range t.Warnings() {
				s.log.Warn("certificate", "key", key, "file", w.File, "warning", w.Reason)
			}
		}
	}, nil
}

func loadTLS(key string, c *config.TLS, alpn []string) (*tlsfile.Server, error) {
	if c == nil {
		return nil, nil
	}
	t, err := tlsfile.LoadServer(tlsfile.ServerFiles{Cert: c.Cert, Key: c.Key, ClientCA: c.ClientCA, MinVersion: c.MinVersion, ALPN: alpn})
	if err != nil {
		return nil, fmt.Errorf("gateway: %s: %w", key, err)
	}
	return t, nil
}

// loadToken reads a token; nil where there is no file for it.
func loadToken(key, path string) (*string, error) {
	if path == "" {
		return nil, nil
	}
	t, err := config.ReadToken(path)
	if err != nil {
		return nil, fmt.Errorf("gateway: %s: %w", key, err)
	}
	return &t, nil
}

// token is the function that tells the admin port of its token.
func (s *secrets) token() func() string { return bearer(&s.bearer) }

// bearer is a function that tells a port of its token, nil where there is none. There is one for as long as the server
// runs, or there is none: see fixed.
func bearer(p *atomic.Pointer[string]) func() string {
	if p.Load() == nil {
		return nil
	}
	return func() string {
		if t := p.Load(); t != nil {
			return *t
		}
		return ""
	}
}

var errNoTLS = errors.New("gateway: no certificate")

// current is a configuration that is good for ever: each handshake gets what is in force.
func current(p *atomic.Pointer[tlsfile.Server]) *tls.Config {
	t := p.Load()
	if t == nil {
		return nil
	}
	c := t.Config()
	c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if t := p.Load(); t != nil {
			return t.Config().GetConfigForClient(h)
		}
		return nil, errNoTLS
	}
	return c
}

func (s *secrets) frontTLS() *tls.Config { return current(&s.front) }
func (s *secrets) adminTLS() *tls.Config { return current(&s.admin) }
