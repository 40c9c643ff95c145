package tlsfile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// serve sends back what comes on a connection; it ends with the test.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				c := tls.Server(nc, config)
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Minute))
				b := make([]byte, 1)
				for {
					if _, err := c.Read(b); err != nil {
						return
					}
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			})
		}
	})
	return l.Addr().String()
}

// exchange sends a byte and gets it back: with TLS 1.3 that is when a client knows that it was let in.
func exchange(c net.Conn) error {
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func call(config *tls.Config, addr string) (tls.ConnectionState, error) {
	c, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer c.Close()
	err = exchange(c)
	return c.ConnectionState(), err
}

func TestNewConnectionsSeeNewFilesAndOldOnesLiveOn(t *testing.T) {
	ca := newAuthority(t, "ca")
	d := newDir(t)
	put := func() {
		cert, key := ca.issue("a.test", nil)
		d.write("cert.pem", cert)
		d.write("key.pem", key)
	}
	put()
	s, err := LoadServer(ServerFiles{Cert: d.file("cert.pem"), Key: d.file("key.pem"), ALPN: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, s.Config())
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	client := &tls.Config{RootCAs: roots, ServerName: "a.test", NextProtos: []string{"http/1.1"}}

	old, err := tls.Dial("tcp", addr, client)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := exchange(old); err != nil {
		t.Fatal(err)
	}
	first := old.ConnectionState()
	if first.NegotiatedProtocol != "http/1.1" {
		t.Errorf("ALPN %q", first.NegotiatedProtocol)
	}
	if changed, err := s.Reload(); changed || err != nil {
		t.Errorf("nothing was changed: %v, %v", changed, err)
	}

	// A new certificate with the old key is an error, and all stays as it is.
	_, key := ca.issue("a.test", nil)
	d.write("key.pem", key)
	if changed, err := s.Reload(); changed || !errors.Is(err, errMismatch) {
		t.Errorf("half of a pair: %v, %v", changed, err)
	}
	if err := os.Remove(d.file("key.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reload(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no key: %v", err)
	}
	st, err := call(client, addr)
	if err != nil || !st.PeerCertificates[0].Equal(first.PeerCertificates[0]) {
		t.Errorf("after a failed reload: %v, another certificate: %v", err, st)
	}

	put()
	if changed, err := s.Reload(); !changed || err != nil {
		t.Fatalf("a new pair: %v, %v", changed, err)
	}
	st, err = call(client, addr)
	if err != nil || st.PeerCertificates[0].Equal(first.PeerCertificates[0]) {
		t.Errorf("after a reload: %v, or the old certificate", err)
	}
	if err := exchange(old); err != nil {
		t.Errorf("the connection from before the reload: %v", err)
	}
}

// Kubernetes exchanges a symbolic link to the directory; the paths stay.
func TestReloadAfterTheSwapOfADirectory(t *testing.T) {
	ca := newAuthority(t, "ca")
	d := newDir(t)
	swap := func(version string) {
		cert, key := ca.issue("a.test", nil)
		if err := os.Mkdir(d.file(version), 0o700); err != nil {
			t.Fatal(err)
		}
		d.write(filepath.Join(version, "tls.crt"), cert)
		d.write(filepath.Join(version, "tls.key"), key)
		if err := os.Symlink(version, d.file("tmp")); err != nil {
			t.Skip(err)
		}
		if err := os.Rename(d.file("tmp"), d.file("..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap("1")
	f := ServerFiles{Cert: d.file("..data/tls.crt"), Key: d.file("..data/tls.key")}
	s, err := LoadServer(f)
	if err != nil {
		t.Fatal(err)
	}
	swap("2")
	if changed, err := s.Reload(); !changed || err != nil {
		t.Error(changed, err)
	}
	if got, want := s.Files(), []string{f.Cert, f.Key}; !slices.Equal(got, want) {
		t.Error(got)
	}
}

func TestMutualTLSAndItsReload(t *testing.T) {
	ca, ca2, stranger := newAuthority(t, "ca"), newAuthority(t, "ca2"), newAuthority(t, "stranger")
	d := newDir(t)
	cert, key := ca.issue("server.test", nil)
	d.write("cert.pem", cert)
	d.write("key.pem", key)
	d.write("ca.pem", ca.pem)
	put := func(a *authority) {
		c, k := a.issue("client", nil)
		d.write("ccert.pem", c)
		d.write("ckey.pem", k)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			d.write("cca.pem", ca.pem)
			put(ca)
			s, err := LoadServer(ServerFiles{Cert: d.file("cert.pem"), Key: d.file("key.pem"), ClientCA: d.file("cca.pem"), MinVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			c, err := LoadClient(ClientFiles{CA: d.file("ca.pem"), Cert: d.file("ccert.pem"), Key: d.file("ckey.pem"), ServerName: "server.test"})
			if err != nil {
				t.Fatal(err)
			}
			if got := c.Files(); len(got) != 3 {
				t.Error(got)
			}
			addr := serve(t, s.Config())
			config := func() *tls.Config {
				config := c.Config().Clone()
				config.MaxVersion = version
				return config
			}
			before := config()
			if st, err := call(before, addr); err != nil || st.Version != version {
				t.Fatalf("%v, %s", err, tls.VersionName(st.Version))
			}
			if st, err := call(before, addr); err != nil || !st.DidResume {
				t.Errorf("%v, resumed: %v; the test of what resumption does is void", err, st.DidResume)
			}
			none, err := LoadClient(ClientFiles{CA: d.file("ca.pem"), ServerName: "server.test"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := call(none.Config(), addr); err == nil {
				t.Error("a client without a certificate was let in")
			}

			// The client's authority is taken away: no session from before helps.
			d.write("cca.pem", ca2.pem)
			if changed, err := s.Reload(); !changed || err != nil {
				t.Fatal(changed, err)
			}
			if st, err := call(before, addr); err == nil {
				t.Errorf("a client of an authority that is trusted no more was let in; resumed: %v", st.DidResume)
			}
			put(ca2)
			if changed, err := c.Reload(); !changed || err != nil {
				t.Fatal(changed, err)
			}
			if _, err := call(config(), addr); err != nil {
				t.Errorf("the client's new certificate: %v", err)
			}

			// And so of the server's.
			d.write("cca.pem", ca2.pem)
			d.write("ca.pem", stranger.pem)
			defer d.write("ca.pem", ca.pem)
			if changed, err := c.Reload(); !changed || err != nil {
				t.Fatal(changed, err)
			}
			var unknown x509.UnknownAuthorityError
			if _, err := call(config(), addr); !errors.As(err, &unknown) {
				t.Errorf("a server of an authority that is trusted no more: %v", err)
			}
		})
	}
}

func TestMinimumVersion(t *testing.T) {
	ca := newAuthority(t, "ca")
	d := newDir(t)
	cert, key := ca.issue("a.test", nil)
	f := ServerFiles{Cert: d.write("cert.pem", cert), Key: d.write("key.pem", key)}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	for _, c := range []struct {
		least, client uint16
		good          bool
	}{
		{0, tls.VersionTLS11, false}, {0, tls.VersionTLS12, true}, {tls.VersionTLS12, tls.VersionTLS12, true},
		{tls.VersionTLS13, tls.VersionTLS12, false}, {tls.VersionTLS13, tls.VersionTLS13, true},
	} {
		f.MinVersion = c.least
		s, err := LoadServer(f)
		if err != nil {
			t.Fatal(err)
		}
		_, err = call(&tls.Config{RootCAs: roots, ServerName: "a.test", MinVersion: tls.VersionTLS10, MaxVersion: c.client}, serve(t, s.Config()))
		if (err == nil) != c.good {
			t.Errorf("at least %x, client %x: %v", c.least, c.client, err)
		}
	}
}

// The name of the server is checked, also where it is an IP address, of which a handshake does not tell.
func TestDialTLSChecksTheName(t *testing.T) {
	ca := newAuthority(t, "ca")
	d := newDir(t)
	cert, key := ca.issue("a.test", func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	s, err := LoadServer(ServerFiles{Cert: d.write("cert.pem", cert), Key: d.write("key.pem", key), ALPN: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, s.Config())
	_, port, _ := net.SplitHostPort(addr)
	there := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	d.write("ca.pem", ca.pem)
	for _, c := range []struct {
		host, name string
		good       bool
	}{
		{"127.0.0.1", "", true}, {"127.0.0.2", "", false}, {"a.test", "", true}, {"b.test", "", false},
		{"b.test", "a.test", true}, {"a.test", "b.test", false}, {"::1", "", false},
	} {
		client, err := LoadClient(ClientFiles{CA: d.file("ca.pem"), ServerName: c.name, ALPN: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		nc, err := client.DialTLS(there)(context.Background(), "tcp", net.JoinHostPort(c.host, port))
		var wrong x509.HostnameError
		if c.good && err != nil || !c.good && !errors.As(err, &wrong) {
			t.Errorf("%s as %q: %v", c.host, c.name, err)
		}
		if err == nil {
			if got := nc.(*tls.Conn).ConnectionState().NegotiatedProtocol; got != "h2" {
				t.Errorf("ALPN %q", got)
			}
			nc.Close()
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client, err := LoadClient(ClientFiles{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.DialTLS(nil)(ctx, "tcp", addr); err == nil {
		t.Error("connected after the end of the context")
	}
	if _, err := client.DialTLS(nil)(context.Background(), "tcp", addr); err == nil {
		t.Error("the system's authorities know that of this test")
	}
}

// Reloads and handshakes at the same time: each handshake sees a whole pair.
func TestReloadUnderLoad(t *testing.T) {
	ca := newAuthority(t, "ca")
	d := newDir(t)
	put := func() {
		cert, key := ca.issue("a.test", nil)
		d.write("cert.pem", cert)
		d.write("key.pem", key)
	}
	put()
	d.write("ca.pem", ca.pem)
	s, err := LoadServer(ServerFiles{Cert: d.file("cert.pem"), Key: d.file("key.pem")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := LoadClient(ClientFiles{CA: d.file("ca.pem"), ServerName: "a.test"})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go web.Serve(tls.NewListener(l, s.Config()))
	defer web.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			tr := &http.Transport{DialTLSContext: c.DialTLS(nil), DisableKeepAlives: true}
			client := &http.Client{Transport: tr, Timeout: time.Minute}
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := client.Get("https://" + l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
			}
		})
	}
	for range 50 {
		put()
		if _, err := s.Reload(); err != nil {
			t.Error(err)
		}
		if _, err := c.Reload(); err != nil {
			t.Error(err)
		}
		s.Warnings()
	}
	close(stop)
	wg.Wait()
}
