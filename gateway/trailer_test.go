package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// serveH2C serves a handler by HTTP/2 without TLS alone.
func (w *world) serveH2C(addr string, maxHeader int, h http.Handler) {
	s := &http.Server{Handler: h, MaxHeaderBytes: maxHeader, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	w.serveBy(addr, s)
}

// h2client is a client by HTTP/2 alone.
func (w *world) h2client(host string) *http.Client {
	tr := &http.Transport{DialContext: w.dialFrom(host), DisableCompression: true, Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// serveBoth serves a handler by HTTP/1 and by HTTP/2 without TLS.
func (w *world) serveBoth(addr string, h http.Handler) {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	w.serveBy(addr, s)
}

// A trailer named Host, Connection or Upgrade opened the circuit of every target by HTTP/2, and what strangers may not say in a header they
// could say in a trailer. What is left reaches the target, the announced of it, over every protocol and with retries.
func TestTrailersOfRequestsAreNotAWayPastTheHeader(t *testing.T) {
	never := []string{"Host", "Connection", "Upgrade", "Keep-Alive", "Te", "Authorization", "Cookie", "X-Priority", "X-Tier", "X_Tier", "Cortex-Timeout-Ms", "Cortex-Attempt",
		"Cortex_Timeout_Ms", "X-Forwarded-For", "X_Forwarded_For", "X-Real-Ip", "Forwarded", "Via", "X-Request-Id", "Content-Type", "Cache-Control", "X-Of-Connection"}
	kept := []string{"X-Checksum", "Server-Timing"}
	for _, scheme := range []string{"http", "h2c"} {
		for _, from := range []string{stranger, trusted} {
			t.Run(scheme+" "+from, func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					var calls atomic.Int64
					var announced []string
					var got http.Header
					up := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						announced = slices.Sorted(maps.Keys(r.Trailer))
						io.Copy(io.Discard, r.Body)
						got = r.Trailer
						if calls.Add(1) == 1 {
							rw.WriteHeader(503)
						}
					})
					if scheme == "http" {
						w.serve("up.test:80", up)
					} else {
						w.serveH2C("up.test:80", 0, up)
					}
					g := w.gateway(strings.Replace(one(retrying, "priority: {header: X-Tier, trust: [127.0.0.0/8]}"), "http://up", scheme+"://up", 1))
					c, err := w.dialFrom(from)(context.Background(), "tcp", "gateway.test:80")
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					all := append(append([]string{}, never...), kept...)
					go func() {
						fmt.Fprintf(c, "PUT / HTTP/1.1\r\nHost: h\r\nConnection: X-Of-Connection\r\nTransfer-Encoding: chunked\r\nTrailer: %s\r\n\r\n2\r\nok\r\n0\r\n", strings.Join(all, ", "))
						for _, name := range append(all, "X-Unannounced") {
							fmt.Fprintf(c, "%s: 6\r\n", name)
						}
						io.WriteString(c, "\r\n")
					}()
					res, err := http.ReadResponse(bufio.NewReader(c), nil)
					if err != nil || res.StatusCode != 200 || res.Header.Get("Cortex-Attempts") != "2" {
						t.Fatalf("%+v, %v", res, err)
					}
					if want := slices.Sorted(slices.Values(kept)); !slices.Equal(announced, want) || !slices.Equal(slices.Sorted(maps.Keys(got)), want) ||
						got.Get("X-Checksum") != "6" || got.Get("Server-Timing") != "6" {
						t.Errorf("announced %q, trailer %v", announced, got)
					}
					if s := g.Targets()[0].Engine.Stats(); s.Failures != 1 || s.Timeouts > 0 { // the 503
						t.Errorf("%+v", s)
					}
				})
			})
		}
	}
}

// Trailers of answers passed with what only a header may say.
func TestTrailersOfAnswersAreNotAWayPastTheHeader(t *testing.T) {
	never := []string{"Connection", "Keep-Alive", "Host", "Set-Cookie", "Cortex-Pressure", "Cortex-Attempts", "Cortex_Explain", "X-Request-Id", "Via", "Content-Type"}
	kept := []string{"Grpc-Status", "Grpc-Message", "Grpc-Status-Details-Bin", "X-Checksum", "Cortex-Retry", "Cortex-Reason"}
	for _, announce := range []bool{true, false} {
		for _, http2 := range []bool{true, false} {
			t.Run(fmt.Sprintf("announced %v, HTTP/2 %v", announce, http2), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					all := append(append([]string{}, never...), kept...)
					w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						c, b, err := http.NewResponseController(rw).Hijack()
						if err != nil {
							panic(err)
						}
						defer c.Close()
						b.WriteString("HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n")
						if announce {
							b.WriteString("Trailer: a b, " + strings.Join(all, ", ") + "\r\n")
						}
						b.WriteString("\r\n2\r\nok\r\n0\r\n")
						for _, name := range all {
							b.WriteString(name + ": 1\r\n")
						}
						b.WriteString("\r\n")
						b.Flush()
					}))
					g := w.gatewayAt("plain.test:80", one("", ""))
					w.serveBoth("both.test:80", g)
					c := w.client(stranger)
					if http2 {
						c = w.h2client(stranger)
					}
					res, err := c.Get("http://both.test:80/")
					if err != nil {
						t.Fatal(err)
					}
					defer res.Body.Close()
					if b, err := io.ReadAll(res.Body); string(b) != "ok" || err != nil {
						t.Fatalf("%q, %v", b, err)
					}
					if got, want := slices.Sorted(maps.Keys(res.Trailer)), slices.Sorted(slices.Values(kept)); !slices.Equal(got, want) {
						t.Errorf("%q, want %q", got, want)
					}
				})
			})
		}
	}
}

// A client with a header that is larger than a target's HTTP/2 takes opened that target's circuit.
func TestHeadersTooLargeForTheTargetAreTheClientsFault(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serveH2C("up.test:80", 8<<10, status(200))
		g := w.gateway(strings.Replace(one(retrying, "fallback: {static: {status: 200}}"), "http://up", "h2c://up", 1))
		c := w.client(stranger)
		for i := range 50 {
			if a := w.get(c, "http://gateway.test:80/"); a.status != 200 || len(a.header["Cortex-Fallback"]) > 0 {
				t.Fatalf("a good one: %+v", a)
			}
			a := w.get(c, "http://gateway.test:80/", "X-Large", strings.Repeat("a", 9<<10))
			if a.status != 431 || !strings.Contains(a.header.Get("Proxy-Status"), "error=http_request_error") || a.header.Get("Cortex-Attempts") != "1" {
				t.Fatalf("%d: %+v", i, a)
			}
		}
		if s := g.Targets()[0].Engine.Stats(); s.Failures > 0 || s.Timeouts > 0 {
			t.Errorf("%+v", s)
		}
		a := w.get(c, "http://gateway.test:80/healthz", "X-Large", strings.Repeat("a", 9<<10))
		if a.status != 431 || !strings.Contains(a.header.Get("Proxy-Status"), "error=http_request_error") {
			t.Errorf("a health check: %+v", a)
		}
	})
}

// What no transport sends was answered 502, as if the target were at fault; the server of the gateway lets such pass that has no front.
func TestMalformedRequestsAreNotTheTargetsFault(t *testing.T) {
	for _, scheme := range []string{"http", "h2c"} {
		for _, fields := range []string{"Trailer: a b\r\n", "Trailer: :path\r\n"} {
			inWorld(t, func(t *testing.T, w *world) {
				if scheme == "http" {
					w.serve("up.test:80", status(200))
				} else {
					w.serveH2C("up.test:80", 0, status(200))
				}
				g := w.gateway(strings.Replace(one("", ""), "http://up", scheme+"://up", 1))
				c, br := w.raw("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n" + fields + "\r\n0\r\n\r\n")
				defer c.Close()
				res, err := http.ReadResponse(br, nil)
				if err != nil || res.StatusCode != 400 || !strings.Contains(res.Header.Get("Proxy-Status"), "error=http_request_error") {
					t.Errorf("%s, %q: %+v, %v", scheme, fields, res, err)
				}
				if s := g.Targets()[0].Engine.Stats(); s.Failures > 0 {
					t.Errorf("%+v", s)
				}
				c.Close()
				synctest.Wait()
			})
		}
	}
}
