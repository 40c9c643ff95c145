package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A client that took nothing, a 103 above all, held up every other call on the connection of HTTP/2 to the target: the one goroutine that reads
// from there wrote to it.
func TestClientThatTakesNoHintsHoldsUpNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serveH2C("up.test:80", 1<<20, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hints" {
				w.Header().Set("Link", "</a.css>; rel=preload")
				for range 3 * maxHints {
					w.WriteHeader(103)
				}
			}
			io.WriteString(w, "done")
		}))
		s, stop, done := w.server(strings.Replace(one("timeout: {enabled: false}", ""), "http://up", "h2c://up", 1))
		if a := w.get(w.client(stranger), "http://gateway.test:80/"); a.body != "done" { // makes the connection
			t.Fatalf("%+v", a)
		}
		deaf, _ := w.raw("GET /hints HTTP/1.1\r\nHost: gateway.test\r\n\r\n")
		synctest.Wait()
		began := time.Now()
		for range 3 {
			if a := w.get(w.client(stranger), "http://gateway.test:80/"); a.body != "done" || time.Since(began) > 0 {
				t.Errorf("%+v after %v", a, time.Since(began))
			}
		}
		deaf.Close()
		synctest.Wait()
		if n := s.gateway.Targets()[0].Engine.Pressure().InFlight; n != 0 {
			t.Errorf("%d in flight", n)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A client that named Expect in Connection got a 103 from one goroutine while reading its body wrote its 100 from another, into one buffer.
func TestNoHintsBesideTheServersOwnContinue(t *testing.T) {
	for _, connection := range []string{"", "Connection: Expect\r\n"} {
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Link", "</a.css>; rel=preload")
				w.WriteHeader(103)
				b, _ := io.ReadAll(r.Body)
				w.Write(b)
			}))
			_, stop, done := w.server(one("", ""))
			c, br := w.raw("PUT / HTTP/1.1\r\nHost: gateway.test\r\n" + connection + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
			defer c.Close()
			for _, want := range []int{100, 200} {
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Fatal(err)
				}
				if res.StatusCode != want {
					t.Errorf("%q: %d, want %d", connection, res.StatusCode, want)
				}
				if want == 100 {
					io.WriteString(c, "hello")
				}
			}
			c.Close()
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
