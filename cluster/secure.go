package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// A TLSError is why there is no TLS with a server or a sentinel. It stands in [TargetStatus].Error and wraps what crypto/tls says; it holds no
// secret.
type TLSError struct {
	Address string // host:port
	Want    string // what would be right, in the words of the gateway's keys cluster.redis; "" = the cause says all there is
	Err     error
}

func (e *TLSError) Error() string {
	s := fmt.Sprintf("TLS with %s: %v", e.Address, e.Err)
	if e.Want != "" {
		s += ": want " + e.Want
	}
	return s
}

// Unwrap has a list, because go-redis takes one layer off what a connection failed with while it was made, and it would be this one.
func (e *TLSError) Unwrap() []error { return []error{e.Err} }

// dialTLS makes connections with the configuration that config has at that time, each within nine tenths of timeout: who waits for it for as
// long as that is to hear why there is none.
func dialTLS(config func() *tls.Config, timeout time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}}
	timeout -= timeout / 10
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		c := config()
		if c.ServerName == "" {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, &net.OpError{Op: "dial", Net: network, Err: err}
			}
			c = c.Clone()
			c.ServerName = host
		}
		nc, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		t := tls.Client(nc, c)
		if err := t.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, &TLSError{address, wantTLS(err), err}
		}
		return &secureConn{t, address}, nil
	}
}

// A secureConn says why the server ended it: with TLS 1.3 it is the first answer that tells a client that its certificate was refused.
type secureConn struct {
	*tls.Conn
	address string
}

func (c *secureConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && alert(err) != "" {
		err = &TLSError{c.address, wantTLS(err), err}
	}
	return n, err
}

// Write reads why, where it is the first to find out that the server has ended the connection.
func (c *secureConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
		return n, err
	}
	c.SetReadDeadline(time.Now().Add(farewell))
	if _, why := c.Read(make([]byte, 1)); why != nil && alert(why) != "" {
		err = why
	}
	return n, err
}

// farewell is how long a connection that is lost is listened to for why: what was said is there already, or it is lost too.
const farewell = 10 * time.Millisecond

// alert is what the other side sent in place of data, "" if it did not.
func alert(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return strings.TrimPrefix(op.Err.Error(), "tls: ")
	}
	return ""
}

// wantTLS is what would be right, where that is known.
func wantTLS(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the authority that issued the server's certificate in tls.ca"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "one of the certificate's names as tls.server_name, or a certificate for this one"
	}
	if c, ok := errors.AsType[x509.CertificateInvalidError](err); ok && c.Reason == x509.Expired {
		return "a certificate of the server that is valid now, and clocks that are right"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "an answer in time: is that the server's tls-port? one without TLS says nothing"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the server's tls-port, or redis in place of rediss in the url"
	}
	switch alert(err) {
	case "certificate required", "handshake failure": // the latter: TLS 1.2
		return "tls.cert and tls.key, if the server asks for a certificate"
	case "unknown certificate authority", "bad certificate", "unsupported certificate", "unknown certificate", "revoked certificate", "expired certificate":
		return "a certificate in tls.cert that the server takes: its authorities, its time and its use for clients count"
	case "protocol version not supported":
		return "a server that speaks TLS 1.2 or newer (tls-protocols)"
	}
	return ""
}
