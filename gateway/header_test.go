package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// What strangers say in a proxy's name does not reach the target, nor under names that CGI and WSGI take for the same.
func TestSpoofedNamesOfStrangersAreTakenAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var got http.Header
		w.serve("up.test:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }))
		w.gateway(one("", ""))
		spoofed := []string{"X-Real-IP", "X-Forwarded-Port", "X-Forwarded-Prefix", "X_Forwarded_For", "X_Real_IP", "X_Forwarded-Proto", "Cortex_Timeout_Ms",
			"X_Priority", "X_Request_Id"}
		kept := []string{"X_Custom", "X-Custom", "X-Forwarder", "X-Real-Estate"}
		var sent []string
		for _, key := range append(append([]string{}, spoofed...), kept...) {
			sent = append(sent, key, "6.6.6.6")
		}
		w.get(w.client(stranger), "http://gateway.test:80/", sent...)
		for _, key := range spoofed {
			if v := got.Values(key); len(v) > 0 {
				t.Errorf("%s: %q reaches the target", key, v)
			}
		}
		for _, key := range kept {
			if got.Get(key) != "6.6.6.6" {
				t.Errorf("%s does not", key)
			}
		}
		w.get(w.client(trusted), "http://gateway.test:80/", sent...)
		for _, key := range append(spoofed[:3:3], kept...) {
			if got.Get(key) != "6.6.6.6" {
				t.Errorf("%s of a trusted peer does not reach the target", key)
			}
		}
	})
}

// The route's own priority header passed from strangers by the name that CGI and WSGI take for the same.
func TestPriorityHeaderOfStrangersWithUnderscores(t *testing.T) {
	for _, header := range []string{"X-Tier", "X_Tier", "X-My-Tier"} {
		inWorld(t, func(t *testing.T, w *world) {
			var got http.Header
			w.serve("up.test:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() }))
			w.gateway(one("", "priority: {header: "+header+", trust: [127.0.0.0/8]}"))
			for from, passes := range map[string]bool{stranger: false, trusted: true} {
				dashed := strings.ReplaceAll(header, "_", "-")
				names := []string{header, dashed, strings.ReplaceAll(header, "-", "_"), strings.Replace(dashed, "-", "_", 1)}
				var sent []string
				for _, name := range names {
					sent = append(sent, name, "9")
				}
				w.get(w.client(from), "http://gateway.test:80/", sent...)
				for _, name := range names {
					if there := len(got.Values(name)) > 0; there != passes {
						t.Errorf("header %s, from %s: %s there: %v", header, from, name, there)
					}
				}
			}
		})
	}
}

// A target's own X-Request-Id took the place of the one in the log.
func TestRequestIDOfTheTargetIsNotTheClients(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var there string
		w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			there = r.Header.Get("X-Request-Id")
			rw.Header()["X-Request-Id"] = []string{"mine", "and another"}
		}))
		w.gateway(one("", ""))
		a := w.get(w.client(stranger), "http://gateway.test:80/")
		if v := a.header["X-Request-Id"]; len(v) != 1 || v[0] != there || there == "" {
			t.Errorf("%q, the target has %q", v, there)
		}
	})
}

// A length of a body that there cannot be made clients of HTTP/2 wait for it, or give up the stream.
func TestAnswersWithoutABodyHaveNoLength(t *testing.T) {
	for _, c := range []struct {
		status int
		http2  bool
	}{{204, true}, {204, false}, {304, true}, {304, false}} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				k, b, err := http.NewResponseController(rw).Hijack()
				if err != nil {
					panic(err)
				}
				defer k.Close()
				fmt.Fprintf(b, "HTTP/1.1 103 Hints\r\nContent-Length: 5\r\n\r\nHTTP/1.1 %d X\r\nContent-Length: 5\r\nConnection: close\r\nEtag: \"a\"\r\n\r\n", c.status)
				b.Flush()
			}))
			w.serveBoth("both.test:80", w.gatewayAt("plain.test:80", one("", "")))
			client := w.client(stranger)
			if c.http2 {
				client = w.h2client(stranger)
			}
			res, err := client.Get("http://both.test:80/")
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if _, kept := res.Header["Content-Length"]; res.StatusCode != c.status || len(b) > 0 || err != nil || kept || res.Header.Get("Etag") != `"a"` {
				t.Errorf("%+v: %d %q %v %v", c, res.StatusCode, b, err, res.Header)
			}
		})
	}
}

// Of several protocols that a client takes the target chooses: that was a 502. h2c in such a list would be a way past the gateway.
func TestTargetChoosesOfTheProtocolsOfAnUpgrade(t *testing.T) {
	for _, c := range []struct{ asked, passes, got string }{
		{"Upgrade: websocket, x/1", "websocket, x/1", "websocket"},
		{"Upgrade: x/1, websocket", "x/1, websocket", "WebSocket"},
		{"Upgrade: x/1\r\nUpgrade: websocket", "x/1, websocket", "websocket"},
		{"Upgrade: tls/1, x/1", "tls/1, x/1", "tls/1, x/1"},
		{"Upgrade: h2c, websocket", "websocket", "websocket"},
		{"Upgrade: websocket, H2C", "websocket", "h2c"},
		{"Upgrade: websocket, x/1", "websocket, x/1", "y"},
		{"Upgrade: websocket, x/1", "websocket, x/1", "websocket, y"},
		{"Upgrade: websocket, x y", "", ""},
		{"Upgrade: h2c, ,", "", ""},
	} {
		inWorld(t, func(t *testing.T, w *world) {
			var passed []string
			w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if passed = r.Header["Upgrade"]; len(passed) == 0 {
					return
				}
				k, b, err := http.NewResponseController(rw).Hijack()
				if err != nil {
					panic(err)
				}
				defer k.Close()
				fmt.Fprintf(b, "HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nhello", c.got)
				b.Flush()
			}))
			w.gateway(one("", ""))
			k, br := w.raw("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\n" + c.asked + "\r\n\r\n")
			defer k.Close()
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			want := 101
			switch {
			case c.got == "":
				want = 200
			case !offered(c.passes, c.got):
				want = 502
			}
			if res.StatusCode != want || strings.Join(passed, "|") != c.passes {
				t.Errorf("%q: the target saw %q and chose %q: %d, want %d", c.asked, passed, c.got, res.StatusCode, want)
			}
			if want == 101 {
				if b, err := io.ReadAll(br); string(b) != "hello" || err != nil {
					t.Errorf("%q: %q, %v", c.asked, b, err)
				}
			}
		})
	}
}
