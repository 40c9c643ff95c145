package tlsfile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ClientFiles are the files of a client.
type ClientFiles struct {
	CA         string   // PEM: the authorities that are trusted, in place of the system's; empty = the system's
	Cert, Key  string   // PEM: the certificate that is shown, with its chain, and its private key; both empty = none
	ServerName string   // that the server's certificate must be for; empty = the host that is connected to
	ALPN       []string // protocols that are offered, the preferred one first
}

// A Client is the TLS configuration of a client. It is safe for concurrent use.
//
// The authorities of a [tls.Config] cannot be changed, and a check of one's own in place of crypto/tls's would not know what name
// is expected of a server that is reached by its IP address. So there is a new configuration after each change: take Config for
// each new connection, or let DialTLS do so. That is what [http.Transport.DialTLSContext] is for.
type Client struct {
	files   ClientFiles
	reload  sync.Mutex
	current atomic.Pointer[clientState]
}

type clientState struct {
	config   *tls.Config
	pair     *pair
	trusted  []*x509.Certificate
	raw      [][]byte
	loadedAs []Warning
}

// sessions is how many TLS sessions are kept for resumption; each is of one server name.
const sessions = 64

// LoadClient reads the files, if there are any. The error is a [*FileError], or several, joined.
func LoadClient(f ClientFiles) (*Client, error) {
	f.ALPN = slices.Clone(f.ALPN)
	c := &Client{files: f}
	if _, err := c.Reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload reads the files again and reports whether they have changed. On an error, which is like that of LoadClient, what was
// there stays in force. After a change pooled connections, which go on as they are, can be closed when they are idle.
func (c *Client) Reload() (changed bool, err error) {
	c.reload.Lock()
	defer c.reload.Unlock()
	st, err := c.read()
	if err != nil {
		return false, err
	}
	old := c.current.Load()
	if old != nil && same(old.raw, st.raw) {
		kept := *old
		kept.loadedAs = st.loadedAs
		c.current.Store(&kept)
		return false, nil
	}
	c.current.Store(st)
	return true, nil
}

func (c *Client) read() (*clientState, error) {
	st := &clientState{config: &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: c.files.ServerName,
		NextProtos: c.files.ALPN,
		// A new one each time: a session that was made under other authorities or with another certificate is not resumed.
		ClientSessionCache: tls.NewLRUClientSessionCache(sessions),
	}}
	var errs []error
	if c.files.CA != "" {
		pool, certs, raw, err := authorities(c.files.CA)
		errs = append(errs, err)
		st.config.RootCAs, st.trusted = pool, certs
		st.raw = append(st.raw, raw)
	}
	if c.files.Cert != "" || c.files.Key != "" {
		p, err := readPair(c.files.Cert, c.files.Key)
		errs = append(errs, err)
		if err == nil {
			st.pair = p
			st.raw = append(st.raw, p.raw...)
			st.loadedAs = append(st.loadedAs, p.warnings...)
			// Not Certificates: of those crypto/tls shows none if the server's list of authorities does not have its issuer, and
			// the server's refusal is then about a certificate that is missing.
			st.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &p.tls, nil }
			if !usable(p.certs[0], x509.ExtKeyUsageClientAuth) {
				st.loadedAs = append(st.loadedAs, Warning{c.files.Cert, "the certificate is not for clients (extended key usage): servers will refuse it"})
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return st, nil
}

// Config returns the configuration in force, for one new connection. It is shared: clone it before a change. Where ServerName is
// empty in it, it must be set to the host, as [tls.Dialer] and net/http's transport do by themselves.
func (c *Client) Config() *tls.Config { return c.current.Load().config }

// DialTLS returns a function for [http.Transport.DialTLSContext]: it connects by dial (nil = [net.Dialer]) and makes the handshake
// with the files in force; the context bounds both. The connection is a [*tls.Conn], so that HTTP/2 is found by ALPN.
func (c *Client) DialTLS(dial func(ctx context.Context, network, address string) (net.Conn, error)) func(ctx context.Context, network, address string) (net.Conn, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		config := c.Config()
		if config.ServerName == "" {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, &net.OpError{Op: "dial", Net: network, Err: err}
			}
			config = config.Clone()
			config.ServerName = host
		}
		nc, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		t := tls.Client(nc, config)
		if err := t.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		return t, nil
	}
}

// Files are the paths that the configuration is made of, for somebody who watches them.
func (c *Client) Files() []string { return paths(c.files.CA, c.files.Cert, c.files.Key) }

// Warnings are about the files in force, at this time.
func (c *Client) Warnings() []Warning { return c.warnings(time.Now()) }

func (c *Client) warnings(now time.Time) []Warning {
	st := c.current.Load()
	ws := slices.Clone(st.loadedAs)
	if st.pair != nil {
		ws = append(ws, validity(c.files.Cert, st.pair.certs, now)...)
	}
	return append(ws, authorityWarnings(c.files.CA, st.trusted, now)...)
}
