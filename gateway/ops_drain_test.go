package gateway

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Clients on connections that they keep lose no call by an orderly stop: in the delay they are told to go elsewhere, with
// their answers, and what is under way at its end is answered.
func TestKeptConnectionsEndOrderly(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					time.Sleep(30 * time.Millisecond)
					w.Write(b)
				}))
				o := w.operate("drain: {delay: 2s, timeout: 5s}\n"+one("limit: {min: 100}", ""), nil)
				var end time.Time // of the delay
				var wg sync.WaitGroup
				var mu sync.Mutex
				late, told := 0, 0
				for i := range 10 {
					wg.Go(func() {
						c := w.client(stranger)
						tr := c.Transport.(*http.Transport)
						if proto == "HTTP/2.0" {
							tr.Protocols = new(http.Protocols)
							tr.Protocols.SetUnencryptedHTTP2(true)
						}
						defer tr.CloseIdleConnections()
						time.Sleep(time.Duration(i) * 3 * time.Millisecond)
						for n := 0; ; n++ {
							body := fmt.Sprintf("%d/%d", i, n)
							r, _ := http.NewRequest("POST", "http://gateway.test:80/", strings.NewReader(body))
							if proto == "HTTP/1.1" {
								r.GetBody = nil // it cannot be sent again; a stream that crosses a GOAWAY can and must
							}
							mu.Lock()
							began, last := time.Now(), end
							mu.Unlock()
							res, err := c.Do(r)
							if err != nil {
								if last.IsZero() || began.Before(last) {
									t.Errorf("a call before the end of the delay: %v", err)
								}
								return
							}
							b, err := io.ReadAll(res.Body)
							res.Body.Close()
							if err != nil || res.StatusCode != 200 || string(b) != body || res.Proto != proto {
								t.Errorf("%s %s %q %v", res.Proto, res.Status, b, err)
							}
							mu.Lock()
							if !last.IsZero() {
								late++
								if res.Close {
									told++
								}
							}
							mu.Unlock()
						}
					})
				}
				time.Sleep(time.Second)
				dials := w.dials.Load()
				mu.Lock()
				end = time.Now().Add(2 * time.Second)
				mu.Unlock()
				o.stop()
				wg.Wait()
				if err := <-o.done; err != nil {
					t.Errorf("Run: %v", err)
				}
				if late < 100 {
					t.Errorf("%d calls in the delay", late)
				}
				if proto == "HTTP/1.1" && told < late-10 {
					t.Errorf("%d of %d answers in the delay said that the connection ends", told, late)
				}
				if n := w.dials.Load() - dials; n < 100 {
					t.Errorf("%d connections were made in the delay: clients were not told to go elsewhere", n)
				}
			})
		})
	}
}

// A call that is cut is no answer, least of all one that says that the client has gone.
func TestCutCallIsNoAnswer(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for range 20 {
			inWorld(t, func(t *testing.T, w *world) {
				w.serve("up.test:80", hang)
				o := w.operate("drain: {timeout: 100ms}\n"+one("timeout: {enabled: false}", ""), nil)
				c := w.client(stranger)
				if proto == "HTTP/2.0" {
					p := new(http.Protocols)
					p.SetUnencryptedHTTP2(true)
					c.Transport.(*http.Transport).Protocols = p
				}
				got := make(chan answer)
				go func() { got <- w.do(c, "POST", "http://gateway.test:80/", "x") }()
				time.Sleep(time.Second)
				o.stop()
				if a := <-got; a.err == nil {
					t.Errorf("%s: %+v", proto, a)
				}
				if err := <-o.done; !errors.Is(err, ErrCut) {
					t.Errorf("Run: %v", err)
				}
			})
		}
	}
}
