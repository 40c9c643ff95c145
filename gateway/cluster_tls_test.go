package gateway

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/tlsfile"
)

// Only a restart took up new certificates for Redis. And before: no authority but the system's was trusted, and no certificate shown.
func TestRedisCertificatesAreTakenUpWithoutARestart(t *testing.T) {
	first, second, mine := newOpsAuthority(t), newOpsAuthority(t), newOpsAuthority(t)
	cert, key, _ := first.issue("redis", "redis.test")
	args := func(cert, key, ca string) []string {
		return []string{"--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca, "--tls-auth-clients", "yes"}
	}
	r := startRedis(t, args(cert, key, first.file)...)
	copied := func(name, from string) string {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		return mine.write(name, content)
	}
	install := func(a *opsAuthority) (ca, cert, key string) {
		c, k, _ := a.issue("gateway", "gateway.test")
		return copied("redis-ca.pem", a.file), copied("gateway.crt", c), copied("gateway.key", k)
	}
	ca, myCert, myKey := install(first)
	password := mine.write("password", []byte("s3cret"))
	up := httptest.NewServer(nil)
	defer up.Close()
	d := startDaemon(t, anyPorts+fmt.Sprintf("cluster: {redis: {url: 'rediss://127.0.0.1:%d', password_file: %s, timeout: 2s, "+
		"tls: {ca: %s, cert: %s, key: %s, server_name: redis.test}}, interval: 50ms}\n", r.port, password, ca, myCert, myKey)+
		fmt.Sprintf("targets: {up: {endpoints: [%s]}}\n", up.URL))
	view := func() map[string]any { return d.adminJSON("/api/v1/targets/up")["cluster"].(map[string]any) }
	together := func() bool { return view()["mode"] == "fleet" }
	until(t, "it shares over TLS", together)

	// Half of a rotation is none: nothing of the reload is in force.
	mine.write("redis-ca.pem", []byte("junk"))
	if err := d.Reload(); err == nil || !strings.Contains(err.Error(), "gateway: cluster.redis.tls: tlsfile: "+ca+": holds no certificate") {
		t.Fatalf("%v", err)
	}
	copied("redis-ca.pem", first.file)

	r.kill()
	cert, key, _ = second.issue("redis", "redis.test")
	r.args = args(cert, key, second.file)
	r.start()
	until(t, "it is alone, and says why", func() bool {
		why, _ := view()["error"].(string)
		return view()["mode"] == "alone" && strings.Contains(why, "want the authority that issued the server's certificate in tls.ca")
	})
	if status, _, _ := d.get(d.Addr(), "/"); status != 404 { // that of the endpoint
		t.Errorf("without its fleet: %d", status)
	}
	install(second)
	if err := d.Reload(); err != nil {
		t.Fatal(err)
	}
	until(t, "it shares with the new certificates", together)
	if strings.Contains(d.log.String(), "s3cret") || strings.Contains(d.log.String(), "PRIVATE") {
		t.Error("a secret is in the log")
	}
}

// What of the files cannot be used is said before anything is started, and the watcher knows them.
func TestRedisCertificatesAreChecked(t *testing.T) {
	a, other := newOpsAuthority(t), newOpsAuthority(t)
	cert, key, _ := a.issue("gateway", "gateway.test")
	_, wrong, _ := other.issue("gateway", "gateway.test")
	none := filepath.Join(a.dir, "none.pem")
	for tls, want := range map[string]string{
		"{ca: " + a.file + ", cert: " + cert + ", key: " + key + "}": "",
		"{server_name: redis.test}":                                  "",
		"{ca: " + none + "}":                                         none + ": cannot be read: no such file or directory",
		"{ca: " + key + "}":                                          key + ": holds a private key where a certificate should be: are the two files exchanged?",
		"{cert: " + cert + ", key: " + wrong + "}":                   wrong + ": the private key is not that of the certificate in " + cert,
		"{cert: " + none + ", key: " + key + "}":                     none + ": cannot be read: no such file or directory",
	} {
		f, err := config.Parse("t.yaml", []byte("decisions: {}\ncluster: {redis: {url: 'rediss+sentinel://h/m', tls: "+tls+"}}\n"))
		if err != nil {
			t.Fatal(err)
		}
		err = Check(f)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", tls, err)
			}
			continue
		}
		if file, ok := errors.AsType[*tlsfile.FileError](err); !ok || !strings.HasPrefix(err.Error(), "gateway: cluster.redis.tls: tlsfile: "+want) {
			t.Errorf("%s: %v, %v", tls, err, file)
		}
		if _, err := Listen(f, Options{}); err == nil {
			t.Errorf("%s: it starts", tls)
		}
	}
}
