package gateway

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// No connection of a client is dropped by a reload, whatever it changes: kept ones, streams, those that were upgraded.
func TestReloadDropsNoConnection(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		end := make(chan struct{})
		w.serve("up.test:80", echo(end))
		w.serve("b.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/b/events" {
				return
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 10 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				time.Sleep(time.Second)
			}
		}))
		const b = "  b: {endpoints: ['http://b.test:80'], balance: {resolve: 0s}}\n"
		const route = "  - {path: /b, target: b}\n"
		yaml := strings.Replace(one("", ""), "routes:\n", b+"routes:\n", 1) + route
		o := w.operate(yaml, nil)

		tunnel, br, res := upgrade(t, w)
		defer tunnel.Close()
		defer close(end)
		if res.StatusCode != 101 {
			t.Fatalf("%+v", res)
		}
		said := func(text string) {
			t.Helper()
			io.WriteString(tunnel, text)
			got := make([]byte, len(text))
			if _, err := io.ReadFull(br, got); err != nil || string(got) != text {
				t.Fatalf("the upgraded connection: %q, %v", got, err)
			}
		}
		said("before")
		conns := new(census)
		clients := map[string]*http.Client{}
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			tr := &http.Transport{DialContext: conns.dial(w.dialFrom(stranger))}
			if proto == "HTTP/2.0" {
				tr.Protocols = new(http.Protocols)
				tr.Protocols.SetUnencryptedHTTP2(true)
			}
			defer tr.CloseIdleConnections()
			clients[proto] = &http.Client{Transport: tr}
		}
		events := make(chan answer, 2)
		for _, c := range clients {
			go func() { events <- w.get(c, "http://gateway.test:80/b/events") }()
		}
		time.Sleep(10 * time.Millisecond)
		for _, c := range clients { // beside the stream: HTTP/1 takes a second connection
			w.get(c, "http://gateway.test:80/b")
		}
		for i := range 8 {
			next := yaml
			switch i % 4 {
			case 0:
				next = fmt.Sprintf("server: {idle_timeout: %ds, max_streams: %d, max_header_bytes: %dKiB}\n", 100+i, 100+i, 32+i) + yaml
			case 1:
				next = strings.Replace(strings.Replace(yaml, b, "", 1), route, "", 1) // b is gone, and what it streams is not
			case 2:
				next = "server: {connections_per_client: 20, h2c: false}\n" + yaml
			}
			o.reload(next)
			said(fmt.Sprint("after ", i))
			for proto, c := range clients {
				before := conns.to("gateway.test:80")
				a := w.get(c, "http://gateway.test:80/b")
				want := 200
				if i%4 == 1 {
					want = 400 // by the other route
				}
				if a.status != want || a.err != nil {
					t.Errorf("reload %d, %s: %+v", i, proto, a)
				}
				if n := conns.to("gateway.test:80"); n != before {
					t.Errorf("reload %d, %s: %d connections, then %d", i, proto, before, n)
				}
			}
			time.Sleep(time.Second)
		}
		for range clients {
			if a := <-events; a.status != 200 || strings.Count(a.body, "data: ") != 10 || a.err != nil {
				t.Errorf("a stream: %+v", a)
			}
		}
		said("in the end")
	})
}
