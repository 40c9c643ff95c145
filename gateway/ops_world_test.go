package gateway

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// An operated server is one whose configuration can be changed, with its admin port and its log, in a world.
type operated struct {
	*world
	s     *Server
	level *slog.LevelVar
	log   *opsBuffer
	stop  context.CancelFunc
	done  <-chan error
	conns census // to endpoints

	mu   sync.Mutex
	yaml string
	load func() // before the configuration is read; nil = nothing
}

// operate runs a server in a world; change may alter its options.
func (w *world) operate(yaml string, change func(*Options)) *operated {
	w.t.Helper()
	o := &operated{world: w, yaml: yaml, level: new(slog.LevelVar), log: new(opsBuffer)}
	options := Options{Dial: o.conns.dial(w.dialFrom("gateway.test")), Lookup: noAddress, Level: o.level, Load: o.read,
		Logger: slog.New(slog.NewTextHandler(o.log, &slog.HandlerOptions{Level: o.level}))}
	if change != nil {
		change(&options)
	}
	f, err := o.read()
	if err != nil {
		w.t.Fatal(err)
	}
	o.level.Set(f.Log.Level)
	if o.s, err = newServer(f, options, w.listen("gateway.test:80"), w.listen("admin.test:80")); err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.t.Context())
	c := make(chan error, 1)
	o.stop, o.done = stop, c
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c <- o.s.Run(ctx)
	}()
	w.t.Cleanup(func() {
		stop()
		o.s.Close()
		<-ended
	})
	return o
}

func (o *operated) read() (*config.File, error) {
	o.mu.Lock()
	yaml, load := o.yaml, o.load
	o.mu.Unlock()
	if load != nil {
		load()
	}
	return config.Parse("cortex.yaml", []byte(yaml))
}

func (o *operated) set(yaml string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.yaml = yaml
}

// reload puts another configuration in force.
func (o *operated) reload(yaml string) {
	o.t.Helper()
	o.set(yaml)
	if err := o.s.Reload(); err != nil {
		o.t.Fatalf("reload: %v", err)
	}
}

// admin asks the admin port, as someone on the machine does.
func (o *operated) admin(method, path, body string, header ...string) answer {
	o.t.Helper()
	r, err := http.NewRequest(method, "http://admin.test:80"+path, strings.NewReader(body))
	if err != nil {
		o.t.Fatal(err)
	}
	r.Host = "localhost"
	if method != "GET" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	c := o.client(trusted)
	defer c.CloseIdleConnections()
	return send(c, r)
}

// metric is the value of a series on the admin port, empty if there is none.
func (o *operated) metric(series string) string {
	o.t.Helper()
	for line := range strings.Lines(o.admin("GET", "/metrics", "").body) {
		if v, ok := strings.CutPrefix(line, "cortex_guard_"+series+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	return v
}

type opsBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *opsBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *opsBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// opsAuthority issues certificates.
type opsAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
	file string // of its own certificate
	n    int64
}

func newOpsAuthority(t *testing.T) *opsAuthority {
	t.Helper()
	a := &opsAuthority{t: t, dir: t.TempDir(), n: 1}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * 90 * time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.file = a.write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

func (a *opsAuthority) write(name string, content []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// issue writes a certificate for hosts to files of that name, and returns their paths and its serial number.
func (a *opsAuthority) issue(name string, hosts ...string) (cert, key string, serial int64) {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.n++
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: name}, DNSNames: hosts,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * 90 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, k.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	kd, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.write(name+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		a.write(name+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kd})), a.n
}

func (a *opsAuthority) pair(name string, hosts ...string) tls.Certificate {
	a.t.Helper()
	cert, key, _ := a.issue(name, hosts...)
	c, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

func (a *opsAuthority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// serveAs serves a handler as an http, h2c or https endpoint.
func (w *world) serveAs(scheme, addr string, h http.Handler, a *opsAuthority) {
	w.t.Helper()
	s := &http.Server{Handler: h}
	switch scheme {
	case "h2c":
		s.Protocols = new(http.Protocols)
		s.Protocols.SetUnencryptedHTTP2(true)
	case "https":
		host, _, _ := net.SplitHostPort(addr)
		w.serveTLS(addr, h, a.pair(host, host))
		return
	}
	w.serveBy(addr, s)
}

func (w *world) serveTLS(addr string, h http.Handler, c tls.Certificate) {
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{Certificates: []tls.Certificate{c}}}
	l := w.listen(addr)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ServeTLS(l, "", "")
	}()
	w.t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// A census counts the connections that a dialer has made and that are open.
type census struct {
	mu   sync.Mutex
	open map[string]int
}

func (n *census) dial(next dialer) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := next(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		n.add(addr, 1)
		return &countedConn{Conn: c, gone: sync.OnceFunc(func() { n.add(addr, -1) })}, nil
	}
}

func (n *census) add(addr string, d int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.open == nil {
		n.open = map[string]int{}
	}
	n.open[addr] += d
}

// to is how many connections to an address are open.
func (n *census) to(addr string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open[addr]
}

type countedConn struct {
	net.Conn
	gone func()
}

func (c *countedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}
