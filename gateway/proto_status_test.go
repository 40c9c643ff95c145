package gateway

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A status that is none made net/http's server panic; an interim 101, which HTTP/2 does not have, went out as the answer itself.
func TestStatusesThatAreNone(t *testing.T) {
	p := newPKI(t)
	status := func(code string) []byte { return append([]byte{0x08, byte(len(code))}, code...) } // :status
	for name, answers := range map[string]func(stream uint32) []byte{
		"h2 099": func(n uint32) []byte { return frameOf(h2Headers, h2AllOfIt|h2End, n, status("099")...) },
		"h2 42":  func(n uint32) []byte { return frameOf(h2Headers, h2AllOfIt|h2End, n, status("42")...) },
		"h2 0":   func(n uint32) []byte { return frameOf(h2Headers, h2AllOfIt|h2End, n, status("0")...) },
		"h2 1000": func(n uint32) []byte {
			return frameOf(h2Headers, h2AllOfIt|h2End, n, status("1000")...)
		},
		"h2 -200": func(n uint32) []byte { return frameOf(h2Headers, h2AllOfIt|h2End, n, status("-200")...) },
		"h2 interim 101": func(n uint32) []byte {
			return append(frameOf(h2Headers, h2AllOfIt, n, status("101")...), frameOf(h2Headers, h2AllOfIt|h2End, n, 0x88)...)
		},
		"http 099": nil, "http 000": nil, "http 42": nil, "http 1000": nil,
		"https/1.1 099": nil, "https/1.1 000": nil, "https/1.1 42": nil, "https/1.1 1000": nil,
	} {
		for _, client := range []string{"http/1.1", "h2c"} {
			for _, path := range []string{"/", "/healthz"} { // guarded and not
				t.Run(name+" to "+client+path, func(t *testing.T) {
					kind, code, _ := strings.Cut(name, " ")
					var spec string
					if kind == "h2" {
						up := &refusingServer{first: func(n uint32) ([]byte, bool) { return answers(n), false }}
						spec = "endpoints: ['h2c://" + up.serve(t) + "']\n"
					} else {
						spec = realUpstream(t, p, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							c, _, err := http.NewResponseController(w).Hijack()
							if err != nil {
								panic(err)
							}
							defer c.Close()
							fmt.Fprintf(c, "HTTP/1.1 %s What\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", code)
						}))
					}
					var text syncBuffer
					s := realGatewayLogging(t, target(spec+"retry: {max_retries: 0}", ""), slog.New(slog.NewTextHandler(&text, nil)))
					c, base := realClient(t, p, client, s)
					r, _ := http.NewRequest("GET", base+path, nil)
					a := send(c, r)
					if a.status != 502 || path == "/" && proxyStatusOf(t, a.header) != "http_protocol_error" {
						t.Errorf("%+v", a)
					}
					if log := text.String(); strings.Contains(log, "panic") {
						t.Errorf("%s", log)
					}
				})
			}
		}
	}
}

// What a request asks for, and of whom, is the same on the other side, whatever lies between.
func TestRequestLinePassesBetweenAllProtocols(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s|%s|%s|%s", r.Method, r.RequestURI, r.Host, r.Header.Get("X-Forwarded-Proto"), r.Header.Get("X-Forwarded-Host"), strings.Join(r.Header["Cookie"], "&"))
	})
	eachProtocol(t, h, "", func(t *testing.T, c *http.Client, base string, s *Server, client, up string) {
		for _, q := range []struct{ method, uri string }{
			{"GET", "/"}, {"GET", "/a%2Fb//c/../d;v=1?x=1;y=%41&z&&"}, {"PROPFIND", "/x?"}, {"DELETE", "/%C3%A4"}, {"M-SEARCH", "/" + strings.Repeat("a", 5000)},
		} {
			r, _ := http.NewRequest(q.method, base+"/", nil)
			r.URL.Opaque = q.uri
			r.Host = "shop.test:81"
			r.Header["Cookie"] = []string{"a=1; b=2"}
			proto := "http"
			if encrypted(client) {
				proto = "https"
			}
			host := "shop.test:81"
			if up == "h2" || up == "https/1.1" { // for which its certificate is
				host = s.Gateway().Targets()[0].config.Endpoints[0].URL.Host
			}
			if a, want := send(c, r), fmt.Sprintf("%s %s %s|%s|shop.test:81|a=1; b=2", q.method, q.uri, host, proto); a.body != want {
				t.Errorf("%+v, want %s", a, want)
			}
		}
	})
}

// F56, a thousand times: whatever a target does with a body that is asked for, nothing touches it once the answer is there. It is for the race
// detector to see.
func TestManyExpectationsAtOnce(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/0": // at once
			w.WriteHeader(401)
		case "/1": // in the middle
			io.ReadFull(r.Body, make([]byte, 1000))
			w.Header().Set("Connection", "close")
			w.WriteHeader(413)
		case "/2":
			breakOff(w)
		default:
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		}
	})
	p := newPKI(t)
	const size = 64 << 10
	body := make([]byte, size)
	for _, up := range []string{"http", "h2c", "https/1.1"} {
		var text syncBuffer
		s := realGatewayLogging(t, target(realUpstream(t, p, up, h)+"retry: {max_retries: 1, base_delay: 1ms}\nbreaker: {threshold: 0.99}\nprofile: article\nconcurrency: 1000\ntimeout: {enabled: false}", ""),
			slog.New(slog.NewTextHandler(&text, nil)))
		var bad atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				c, base := realClient(t, p, []string{"http/1.1", "h2c"}[i%2], s)
				for j := range 40 {
					r, _ := http.NewRequest("PUT", fmt.Sprintf("%s/%d", base, (i+j)%4), bytes.NewReader(body))
					r.Header.Set("Expect", "100-continue")
					a := send(c, r)
					if a.took > slowness/2 {
						t.Errorf("%s %d by %d: %v %d %v", up, (i+j)%4, i%2, a.took, a.status, a.err)
						return
					}
					if (i+j)%4 == 3 && a.status == 200 && a.body != fmt.Sprint(size) || a.err != nil && (i+j)%4 == 3 {
						bad.Add(1)
						t.Errorf("%+v", a)
					}
				}
			})
		}
		wg.Wait()
		idle(t, s)
		if log := text.String(); strings.Contains(log, "panic") {
			t.Errorf("%s: %s", up, log)
		}
	}
}
