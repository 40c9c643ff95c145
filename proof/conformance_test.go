package proof

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
)

// The gateway fails nothing of h2spec that net/http's own server, with the same protocol, passes.
func TestHTTP2Conformance(t *testing.T) {
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "hello, h2spec: an answer of some bytes, for the tests of flow control\n")
	})
	up := upstream(t, hello)
	cert, key := selfSigned(t)
	for _, c := range []struct {
		name, config string
		tls          bool
	}{
		{"h2c", "server: {h2c: true}\n", false},
		{"h2", fmt.Sprintf("tls: {cert: %s, key: %s}\n", cert, key), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := fmt.Sprintf("listen: 127.0.0.1:0\nadmin: {listen: '127.0.0.1:0'}\n%stargets: {up: {endpoints: [http://%s]}}\n", c.config, up)
			wired(t, text)
			theirs := h2spec(t, plainServer(t, hello, c.tls, cert, key), c.tls)
			ours := h2spec(t, serve(t, text).addr, c.tls)
			t.Logf("the standard library's server over %s: %v", c.name, theirs)
			t.Logf("the gateway over %s: %v", c.name, ours)
			for _, f := range ours.failed {
				if !slices.Contains(theirs.failed, f) && failsAgain(t, ours.address, c.tls, f) {
					t.Errorf("the gateway fails what net/http's server passes: %s", f)
				}
			}
			if ours.passed == 0 || ours.passed+len(ours.failed)+ours.skipped != theirs.passed+len(theirs.failed)+theirs.skipped {
				t.Errorf("not the same tests were run: %d and %d passed", ours.passed, theirs.passed)
			}
		})
	}
}

// plainServer is net/http's server with one protocol, as it comes.
func plainServer(t *testing.T, h http.Handler, secure bool, cert, key string) string {
	t.Helper()
	l := listenLocal(t)
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(io.Discard, "", 0)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(secure)
	s.Protocols.SetUnencryptedHTTP2(!secure)
	if secure {
		go s.ServeTLS(l, cert, key)
	} else {
		go s.Serve(l)
	}
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

type verdict struct {
	address         string
	passed, skipped int
	failed          []string // section, number and what it is about
}

func (v verdict) String() string {
	s := fmt.Sprintf("%d passed, %d skipped, %d failed", v.passed, v.skipped, len(v.failed))
	for _, f := range v.failed {
		s += "\n\t" + f
	}
	return s
}

// failsAgain reports whether a test fails three more times: some of h2spec's race with the answers on their way.
func failsAgain(t *testing.T, address string, secure bool, failed string) bool {
	t.Helper()
	section, _, _ := strings.Cut(failed, " ")
	for range 3 {
		if v := h2spec(t, address, secure, section); len(v.failed) == 0 {
			t.Logf("%s: passed when asked again", failed)
			return false
		}
	}
	return true
}

// h2spec runs all of its tests, or those of the sections, against an address.
func h2spec(t *testing.T, address string, secure bool, sections ...string) verdict {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	c := &config.Config{Host: host, Path: "/", Timeout: time.Second, MaxHeaderLen: 4000, TLS: secure, Insecure: true, Sections: sections}
	c.Port, _ = strconv.Atoi(port)
	quiet, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	stdout := os.Stdout
	os.Stdout = quiet // where h2spec tells of every test
	defer func() { os.Stdout = stdout }()
	v := verdict{address: address}
	for _, g := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
		v.run(t, c, g)
	}
	return v
}

// run does what TestGroup.Test does, which ends the process where there is no connection.
func (v *verdict) run(t *testing.T, c *config.Config, g *spec.TestGroup) {
	for i, tc := range g.Tests {
		if err := tc.Test(c, i+1); err != nil {
			v.failed = append(v.failed, fmt.Sprintf("%s/%d %s: no connection: %v", g.ID(), i+1, tc.Desc, err))
			continue
		}
		switch {
		case tc.Result == nil:
		case tc.Result.Failed:
			v.failed = append(v.failed, fmt.Sprintf("%s/%d %s", g.ID(), i+1, tc.Desc))
		case tc.Result.Skipped:
			v.skipped++
		default:
			v.passed++
		}
	}
	for _, sub := range g.Groups {
		v.run(t, c, sub)
	}
}
