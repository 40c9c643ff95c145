package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/h1"
	"github.com/seed-a29ca62a/cortex/tlsfile"
)

// bases are the transports that make a target's attempts: one of our own for HTTP/1.1 without TLS, the standard library's for
// all else. Each https endpoint has its own, because the name that its certificate must be for goes with the transport.
type bases struct {
	plain  *h1.Transport        // for http endpoints; nil = there are none
	h2c    *aging               // for h2c endpoints; nil = there are none
	secure map[*url.URL]*secure // by endpoint

	config config.Transport
	heir   atomic.Pointer[bases] // that goes on with those of them that it has, too; nil = none
	over   atomic.Bool           // there will be none
}

type secure struct {
	*aging
	upgrades *h1.Transport // for requests to change the protocol, which HTTP/2 does not know
	files    *tlsfile.Client
	paths    tlsfile.ClientFiles // that those are of
}

// CloseIdleConnections closes those of both.
func (s *secure) CloseIdleConnections() {
	s.aging.CloseIdleConnections()
	s.upgrades.CloseIdleConnections()
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// newBases makes the transports of a target. dial makes its connections; nil: TCP. Those of the target before, which may be nil, go on where
// they would be the same.
func newBases(c *config.Target, dial dialer, before *bases) (*bases, error) {
	if before == nil {
		before = new(bases)
	}
	if dial == nil {
		dial = (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}}).DialContext
	}
	t := c.Transport
	b := &bases{config: t}
	same := withoutTLS(before.config) == withoutTLS(t)
	for _, e := range c.Endpoints {
		switch e.URL.Scheme {
		case "h2c":
			if b.h2c != nil {
				continue
			}
			if same {
				b.h2c = before.h2c
			}
			if b.h2c == nil {
				b.h2c = newAging(t.MaxAge, t.DialTimeout, dial, func(dial dialer) *http.Transport {
					s := newStandard(t, dial)
					s.Protocols = new(http.Protocols)
					s.Protocols.SetUnencryptedHTTP2(true)
					return s
				})
			}
		case "https":
			f := tlsfile.ClientFiles{CA: t.TLS.CA, Cert: t.TLS.Cert, Key: t.TLS.Key, ServerName: t.TLS.ServerName, ALPN: []string{"h2", "http/1.1"}}
			if f.ServerName == "" {
				f.ServerName = e.URL.Hostname() // also where it is reached by an address that was looked up
			}
			files, err := tlsfile.LoadClient(f)
			if err != nil {
				return nil, err
			}
			if b.secure == nil {
				b.secure = make(map[*url.URL]*secure)
			}
			if s := before.to(e.URL); s != nil && before.config == t {
				b.secure[e.URL] = s
				continue
			}
			s := newAging(t.MaxAge, t.DialTimeout, dial, func(dial dialer) *http.Transport {
				s := newStandard(t, dial)
				s.DialTLSContext = within(t.DialTimeout, files.DialTLS(dial))
				return s
			})
			up, err := newPlain(t, dialHTTP1(files, dial))
			if err != nil {
				return nil, err
			}
			b.secure[e.URL] = &secure{s, up, files, f}
		default:
			if b.plain != nil {
				continue
			}
			if b.plain = before.plain; same && b.plain != nil {
				continue
			}
			var err error
			if b.plain, err = newPlain(t, dial); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

// to is the transport to an https endpoint, or nil.
func (b *bases) to(endpoint *url.URL) *secure {
	for u, s := range b.secure {
		if u.String() == endpoint.String() {
			return s
		}
	}
	return nil
}

func withoutTLS(t config.Transport) config.Transport {
	t.TLS = config.TransportTLS{}
	return t
}

// orNever is a time in the words of package h1, where 0 is the default.
func orNever(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func newPlain(c config.Transport, dial dialer) (*h1.Transport, error) {
	return h1.New(h1.Config{Dial: dial, DialTimeout: c.DialTimeout, MaxIdlePerHost: c.MaxIdlePerHost, IdleTimeout: c.IdleTimeout,
		MaxAge: orNever(c.MaxAge), ExpectContinueTimeout: time.Second, OnArrival: cortexhttp.Arrived})
}

func newStandard(c config.Transport, dial dialer) *http.Transport {
	return &http.Transport{ // no proxy of the environment: a gateway goes where its configuration says
		DialContext:           within(c.DialTimeout, dial),
		ForceAttemptHTTP2:     true, // to https endpoints that offer it
		DisableCompression:    true, // answers pass as they are
		MaxIdleConnsPerHost:   c.MaxIdlePerHost,
		IdleConnTimeout:       c.IdleTimeout,
		ExpectContinueTimeout: time.Second,
		// A connection to an endpoint that is gone without a word is found out by a PING.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
	}
}

// dialHTTP1 makes TLS connections that offer HTTP/1.1 alone. The files name a server.
func dialHTTP1(files *tlsfile.Client, dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := files.Config().Clone()
		c.NextProtos = []string{"http/1.1"}
		t := tls.Client(nc, c)
		if err := t.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, err
		}
		return t, nil
	}
}

// within bounds how long a connection may take.
func within(d time.Duration, dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return dial(ctx, network, address)
	}
}

// RoundTrip sends a request to the endpoint of its exchange.
func (b *bases) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.roundTrip(r)
	if err != nil {
		return nil, err
	}
	if s := res.StatusCode; s >= 200 && s <= 999 || s == http.StatusSwitchingProtocols && len(r.Header["Upgrade"]) > 0 {
		return res, nil
	}
	res.Body.Close()
	return nil, fmt.Errorf("%w: status %d", errMalformed, res.StatusCode)
}

// errMalformed is what is wrong with an answer that the standard transport takes.
var errMalformed = errors.New("gateway: malformed answer")

func (b *bases) roundTrip(r *http.Request) (*http.Response, error) {
	r = withTrailer(r)
	switch e := exchangeOf(r.Context()).member.Endpoint(); e.Scheme {
	case "h2c":
		return b.h2c.RoundTrip(withoutUpgrade(r))
	case "https":
		if len(r.Header["Upgrade"]) > 0 {
			return b.secure[e].upgrade(r)
		}
		return b.secure[e].RoundTrip(r)
	}
	return b.plain.RoundTrip(r)
}

// upgrade sends a request to change the protocol. The transport knows plain HTTP alone, its connections are encrypted.
func (s *secure) upgrade(r *http.Request) (*http.Response, error) {
	r = r.WithContext(r.Context())
	u := *r.URL
	if u.Scheme = "http"; u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "443")
	}
	r.URL = &u
	return s.upgrades.RoundTrip(r)
}

// withoutUpgrade is a request as a target gets it that cannot change the protocol, and may answer as if it did not want to
// (RFC 9110, 7.8). The header itself stays: the next attempt may be at another endpoint.
func withoutUpgrade(r *http.Request) *http.Request {
	if len(r.Header["Upgrade"]) == 0 {
		return r
	}
	r = r.WithContext(r.Context())
	r.Header = maps.Clone(r.Header)
	delete(r.Header, "Upgrade")
	delete(r.Header, "Connection")
	return r
}

// HTTP1 makes it a [cortexhttp.StandardBase].
func (b *bases) HTTP1() bool { return b.h2c == nil }

// Look has the transports that can tell of answers that have come and were not read.
func (b *bases) Look() {
	if b.plain != nil {
		b.plain.Look()
	}
}

// check reports whether the files of certificates, as they are now, could be read anew. Nothing of it is in force before reload.
func (b *bases) check() error {
	for _, s := range b.secure {
		if _, err := tlsfile.LoadClient(s.paths); err != nil {
			return err
		}
	}
	return nil
}

// reload reads the files of certificates anew. Connections that there are stay, idle ones are closed where something has changed.
func (b *bases) reload() error {
	for _, s := range b.secure {
		changed, err := s.files.Reload()
		if err != nil {
			return err
		}
		if changed {
			s.CloseIdleConnections()
		}
	}
	return nil
}

// CloseIdleConnections closes those of all transports, but for those that an heir goes on with.
func (b *bases) CloseIdleConnections() {
	heir := new(bases)
	for h := b.heir.Load(); h != nil; h = h.heir.Load() {
		heir = h
	}
	if heir.over.Load() {
		heir = new(bases)
	}
	if b.plain != nil && b.plain != heir.plain {
		b.plain.CloseIdleConnections()
	}
	if b.h2c != nil && b.h2c != heir.h2c {
		b.h2c.CloseIdleConnections()
	}
	for u, s := range b.secure {
		if s != heir.to(u) {
			s.CloseIdleConnections()
		}
	}
}
