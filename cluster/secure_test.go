package cluster_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cluster"
	"github.com/seed-a29ca62a/cortex/tlsfile"
)

// startSecure is a real redis-server with a port for TLS beside the plain one, and its certificate in the directory that it returns.
func startSecure(t testing.TB, a *authority, name string, args ...string) (s *server, address, dir string) {
	t.Helper()
	dir = t.TempDir()
	cert, key := a.issue(dir, name)
	port := freePort(t)
	s = startRedis(t, append([]string{"--tls-port", fmt.Sprint(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", a.ca}, args...)...)
	return s, fmt.Sprintf("127.0.0.1:%d", port), dir
}

func by(c *tlsfile.Client) func(*cluster.Config, *cortex.Config) {
	return func(cc *cluster.Config, _ *cortex.Config) { cc.TLS, cc.Timeout = c.Config, 2*time.Second }
}

// refused waits until an instance is alone because of TLS, and returns why. It guards its calls all the same.
func refused(t testing.TB, i *instance) *cluster.TLSError {
	t.Helper()
	var why *cluster.TLSError
	eventually(t, 20*time.Second, "it is alone, and says that it is for TLS", func() bool {
		for _, e := range i.heard() {
			if e.Mode == cluster.Fleet {
				t.Fatalf("it shares: %+v", e)
			}
			if errors.As(e.Err, &why) {
				return true
			}
		}
		return strings.HasPrefix(i.Status().Targets[0].Error, "TLS with") && len(i.heard()) > 0 && errors.As(i.heard()[0].Err, &why)
	})
	for range 100 {
		if !i.call(cortex.Success) {
			t.Fatal("an instance that is alone refuses a call")
		}
	}
	if s := i.Status().Targets[0]; s.Mode != cluster.Alone || s.Error == "" || strings.Contains(s.Error, "s3cret") {
		t.Errorf("%+v", s)
	}
	return why
}

// What the instance was given, and what it says of a server that it cannot take, or that does not take it.
func TestTLSWithRedis(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	_, asks, _ := startSecure(t, ours, "127.0.0.1", "--tls-auth-clients", "yes", "--requirepass", "s3cret")
	_, asks12, _ := startSecure(t, ours, "127.0.0.1", "--tls-auth-clients", "yes", "--tls-protocols", "TLSv1.2")
	plain, named, _ := startSecure(t, ours, "redis.test", "--tls-auth-clients", "no")
	old := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = c.NotBefore.Add(-48*time.Hour), time.Now().Add(-time.Hour)
	}
	for name, c := range map[string]struct {
		url   string
		files *tlsfile.Client
		want  []string // of the error; nil: it shares
	}{
		"own authority and certificate":      {"rediss://:s3cret@" + asks, ours.client(ours, ""), nil},
		"the same with TLS 1.2":              {"rediss://" + asks12, ours.client(ours, ""), nil},
		"the name that is said":              {"rediss://" + named, ours.client(nil, "redis.test"), nil},
		"a certificate that nobody asks for": {"rediss://" + named, ours.client(theirs, "redis.test"), nil},

		"wrong authority": {"rediss://:s3cret@" + asks, theirs.client(ours, ""),
			[]string{asks, "certificate signed by unknown authority", "want the authority that issued the server's certificate in tls.ca"}},
		"the system's authorities": {"rediss://" + named, nil, []string{named, "certificate", "want "}},
		"no certificate": {"rediss://:s3cret@" + asks, ours.client(nil, ""),
			[]string{asks, "certificate required", "want tls.cert and tls.key"}},
		"no certificate with TLS 1.2": {"rediss://" + asks12, ours.client(nil, ""),
			[]string{asks12, "handshake failure", "want tls.cert and tls.key"}},
		"certificate of another authority": {"rediss://:s3cret@" + asks, ours.client(theirs, ""),
			[]string{asks, "unknown certificate authority", "want a certificate in tls.cert that the server takes"}},
		"certificate that is over": {"rediss://:s3cret@" + asks, ours.client(ours, "", old),
			[]string{asks, "expired certificate", "want a certificate in tls.cert that the server takes"}},
		"wrong name": {"rediss://" + asks12, ours.client(ours, "other.test"),
			[]string{asks12, "certificate is", "other.test", "want one of the certificate's names as tls.server_name"}},
		"no name": {"rediss://" + named, ours.client(nil, ""),
			[]string{named, "127.0.0.1", "want one of the certificate's names as tls.server_name"}},
		"a port without TLS": {"rediss://" + plain.addr(), ours.client(nil, "redis.test"),
			[]string{plain.addr(), "the server's tls-port"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var i *instance
			if c.files == nil {
				i = join(t, c.url, func(cc *cluster.Config, _ *cortex.Config) { cc.Timeout = 2 * time.Second })
			} else {
				i = join(t, c.url, by(c.files))
			}
			if c.want == nil {
				eventually(t, 20*time.Second, "it shares", func() bool { return i.Status().Mode == cluster.Fleet })
				return
			}
			why := refused(t, i)
			for _, w := range c.want {
				if !strings.Contains(why.Error(), w) {
					t.Errorf("%q\nwant %q in it", why, w)
				}
			}
			if why.Err == nil || why.Address == "" || why.Want == "" || strings.Contains(why.Error(), "s3cret") {
				t.Errorf("%+v", why)
			}
		})
	}
}

// Certificates were those of the start for as long as the process ran.
func TestNewCertificatesAreForNewConnections(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	s, address, dir := startSecure(t, first, "127.0.0.1", "--tls-auth-clients", "yes")
	files := first.client(first, "")
	i := join(t, "rediss://"+address, by(files))
	eventually(t, 20*time.Second, "it shares", func() bool { return i.Status().Mode == cluster.Fleet })

	// The server changes all at once: another authority, and only its clients. The connection that there is goes on.
	replace := func(path string, with []byte) {
		if err := os.WriteFile(path, with, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	second.issue(dir, "127.0.0.1")
	if err := s.db.ConfigSet(bg, "tls-ca-cert-file", second.ca).Err(); err != nil {
		t.Fatal(err)
	}
	ok := i.Status().Targets[0].Exchange.OK
	eventually(t, 20*time.Second, "it goes on", func() bool { return i.Status().Targets[0].Exchange.OK > ok+5 })
	if err := s.db.ClientKillByFilter(bg, "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "it is alone", func() bool {
		st := i.Status().Targets[0]
		return st.Mode == cluster.Alone && strings.Contains(st.Error, "unknown authority")
	})

	ca, err := os.ReadFile(second.ca)
	if err != nil {
		t.Fatal(err)
	}
	replace(first.ca, ca)
	second.issue(filepath.Dir(files.Files()[1]), "instance")
	if changed, err := files.Reload(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	eventually(t, 20*time.Second, "it shares again", func() bool { return i.Status().Mode == cluster.Fleet })
}

// A sentinel and the master that it names, both over TLS alone for those who have a certificate.
func TestTLSWithSentinels(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t, "a"), newAuthority(t, "other")
	_, master, _ := startSecure(t, a, "127.0.0.1", "--tls-auth-clients", "yes", "--tls-replication", "yes")
	dir := t.TempDir()
	cert, key := a.issue(dir, "127.0.0.1")
	port := freePort(t)
	_, masterPort, _ := net.SplitHostPort(master)
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port 0\ntls-port %d\ntls-cert-file %s\ntls-key-file %s\ntls-ca-cert-file %s\ntls-auth-clients yes\ntls-replication yes\n"+
		"bind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %s 1\n", port, cert, key, a.ca, dir, masterPort)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		missing(t, "redis-server", err)
	}
	cmd := exec.Command(program, conf, "--sentinel")
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	url := fmt.Sprintf("rediss+sentinel://127.0.0.1:%d/main", port)
	together(t, []*instance{join(t, url, by(a.client(a, ""))), join(t, url, by(a.client(a, "")))})
	for want, c := range map[string]*tlsfile.Client{"want tls.cert": a.client(nil, ""), "in tls.ca": other.client(a, "")} {
		if why := refused(t, join(t, url, by(c))); !strings.Contains(why.Error(), want) {
			t.Errorf("%v, want %q in it", why, want)
		}
	}
}

// Three nodes that speak TLS, with each other too. All are asked, each over TLS.
func TestTLSWithACluster(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, "a")
	cert, key := a.issue(t.TempDir(), "redis-cli")
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		missing(t, "redis-cli", err)
	}
	create := []string{"--tls", "--cacert", a.ca, "--cert", cert, "--key", key, "--cluster", "create"}
	var nodes []*server
	var addrs []string
	for range 3 {
		bus := freePort(t)
		n, address, _ := startSecure(t, a, "redis.test", "--tls-auth-clients", "yes", "--tls-cluster", "yes", "--cluster-enabled", "yes",
			"--cluster-port", fmt.Sprint(bus))
		nodes, addrs = append(nodes, n), append(addrs, address)
		create = append(create, fmt.Sprintf("%s@%d", address, bus))
	}
	if out, err := exec.Command(cli, append(create, "--cluster-yes", "--insecure")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, n := range nodes {
		eventually(t, 20*time.Second, "the cluster is one", func() bool { return strings.Contains(n.db.ClusterInfo(bg).Val(), "cluster_state:ok") })
	}
	i := join(t, "rediss+cluster://"+addrs[0], by(a.client(a, "redis.test")))
	for n := range 11 {
		e, err := cortex.New(cortex.Config{Name: fmt.Sprint("target ", n)})
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Guard(e); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 30*time.Second, "all targets are shared", func() bool { return i.Status().Mode == cluster.Fleet })
	for _, n := range nodes {
		if n.db.DBSize(bg).Val() == 0 {
			t.Error("a node without keys: the test is void")
		}
	}
	if why := refused(t, join(t, "rediss+cluster://"+strings.Join(addrs, ","), by(a.client(a, "other.test")))); !strings.Contains(why.Want, "tls.server_name") {
		t.Error(why)
	}
}

// A server that knows nothing newer than TLS 1.1 is not spoken to.
func TestOldTLSIsRefused(t *testing.T) {
	a := newAuthority(t, "a")
	cert, key := a.issue(t.TempDir(), "127.0.0.1")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { c.(*tls.Conn).Handshake(); c.Close() }()
		}
	}()
	for _, change := range []func(*cluster.Config, *cortex.Config){by(a.client(nil, "")), func(*cluster.Config, *cortex.Config) {}} {
		if why := refused(t, join(t, "rediss://"+l.Addr().String(), change)); !strings.Contains(why.Error(), "want a server that speaks TLS 1.2 or newer") {
			t.Error(why)
		}
	}
}

func TestTLSNeedsAURLThatHasIt(t *testing.T) {
	secure := func() *tls.Config { return &tls.Config{} }
	for _, url := range []string{"redis://me:s3cret@h", "redis+cluster://a", "redis+sentinel://:s3cret@a/m?sentinel_password=s3cret", "redis+unix:///s"} {
		_, err := cluster.New(cluster.Config{URL: url, TLS: secure})
		if c, ok := errors.AsType[*cluster.ConfigError](err); !ok || c.Field != "TLS" || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", url, err)
		}
	}
	client := redis.NewClient(&redis.Options{})
	defer client.Close()
	if _, err := cluster.New(cluster.Config{Client: client, TLS: secure}); err == nil {
		t.Error("a client with the TLS of another")
	}
}
