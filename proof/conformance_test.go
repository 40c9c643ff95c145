package proof

import (
	"fmt"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
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
			valid(t, text)
			plain := plainServer(t, hello, c.tls, cert, key)
			theirs := h2spec(t, plain, c.tls)
			gateway := serve(t, text).addr
			ours := h2spec(t, gateway, c.tls)
			t.Logf("the standard library's server over %s: %v", c.name, theirs)
			t.Logf("the gateway over %s: %v", c.name, ours)
			for _, f := range ours.failed {
				// Some tests race with answers on their way, at either server.
				if !slices.Contains(theirs.failed, f) && passes(t, gateway, c.tls, f) == 0 && passes(t, plain, c.tls, f) == tries {
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

const tries = 5

// passes asks a test again and counts how often it passes.
func passes(t *testing.T, address string, secure bool, name string) (n int) {
	t.Helper()
	for range tries {
		n += h2spec(t, address, secure, name).passed
	}
	t.Logf("%s: %s passes %d of %d more times", address, name, n, tries)
	return n
}

// h2spec runs all of its tests, or the one that is named, against an address, several at a time.
func h2spec(t *testing.T, address string, secure bool, only ...string) verdict {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config{Host: host, Path: "/", Timeout: time.Second, MaxHeaderLen: 4000, TLS: secure, Insecure: true}
	c.Port, _ = strconv.Atoi(port)
	var v verdict
	var mu sync.Mutex
	var wg sync.WaitGroup
	room := make(chan struct{}, 8)
	for name, tc := range h2specTests(generic.Spec(), http2.Spec(), hpack.Spec()) {
		if len(only) > 0 && only[0] != name {
			continue
		}
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			own := c
			conn, err := spec.Dial(&own)
			if err == nil {
				err = tc.Run(&own, conn)
				conn.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			switch err {
			case nil:
				v.passed++
			case spec.ErrSkipped:
				v.skipped++
			default:
				v.failed = append(v.failed, name)
			}
		})
	}
	wg.Wait()
	slices.Sort(v.failed)
	return v
}

// h2specTests are the tests of groups by section, number and what they are about.
func h2specTests(groups ...*spec.TestGroup) iter.Seq2[string, *spec.TestCase] {
	return func(yield func(string, *spec.TestCase) bool) {
		for _, g := range groups {
			for i, tc := range g.Tests {
				if !yield(fmt.Sprintf("%s/%d %s", g.ID(), i+1, tc.Desc), tc) {
					return
				}
			}
			for name, tc := range h2specTests(g.Groups...) {
				if !yield(name, tc) {
					return
				}
			}
		}
	}
}
