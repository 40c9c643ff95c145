package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A connection of HTTP/2 that had something to do all the time was never made anew: what the DNS said since then did not matter.
func TestBusyConnectionsOfHTTP2GetOld(t *testing.T) {
	for _, scheme := range []string{"h2c", "https"} {
		t.Run(scheme, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := newOpsAuthority(t)
				var seen [2]atomic.Int64
				place := func(i int) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						seen[i].Add(1)
						if r.URL.Path != "/stream" {
							time.Sleep(50 * time.Millisecond)
							return
						}
						for range 40 {
							io.WriteString(w, ".")
							w.(http.Flusher).Flush()
							time.Sleep(time.Second)
						}
					})
				}
				w.serveAs(scheme, "up.test:443", place(0), a)
				if scheme == "https" {
					w.serveTLS("moved.test:443", place(1), a.pair("moved", "up.test"))
				} else {
					w.serveAs(scheme, "moved.test:443", place(1), a)
				}
				tls := ""
				if scheme == "https" {
					tls = ", tls: {ca: " + a.file + "}"
				}
				var moved, cut atomic.Bool
				var dials atomic.Int64
				o := w.operate(endpointsOf(scheme+"://up.test:443", "timeout: {enabled: false}\nretry: {max_retries: 0}\nbalance: {resolve: 0s}\ntransport: {max_age: 10s, dial_timeout: 1s"+tls+"}"), func(o *Options) {
					next := o.Dial
					o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
						dials.Add(1)
						if cut.Load() {
							return nil, errors.New("cut off")
						}
						if moved.Load() {
							addr = "moved.test:443"
						}
						return next(ctx, network, addr)
					}
				})
				c := w.h2Client(stranger)
				w.get(c, "http://gateway.test:80/") // so that there is one connection
				stream := make(chan answer, 1)
				go func() { stream <- w.get(c, "http://gateway.test:80/stream") }()
				var bad atomic.Int64
				load := func(d time.Duration) {
					var calls sync.WaitGroup
					for range 20 {
						calls.Go(func() {
							for end := time.Now().Add(d); time.Now().Before(end); {
								if x := w.get(c, "http://gateway.test:80/"); x.status != 200 || x.err != nil {
									bad.Add(1)
								}
							}
						})
					}
					calls.Wait()
				}
				load(9 * time.Second)
				if n := dials.Load(); n != 1 || seen[1].Load() != 0 {
					t.Errorf("%d connections were made before their time", n)
				}
				moved.Store(true)
				load(5 * time.Second)
				before := seen[0].Load()
				load(3 * time.Second)
				if seen[1].Load() == 0 || seen[0].Load() != before {
					t.Errorf("%d requests went where the name was before", seen[0].Load()-before)
				}
				if n := o.conns.to("up.test:443") + o.conns.to("moved.test:443"); n != 2 {
					t.Errorf("%d connections are open, want that of the stream and another", n)
				}
				load(30 * time.Second)
				if n := dials.Load(); n != 5 {
					t.Errorf("%d connections were made in 47 s", n)
				}
				if x := <-stream; x.err != nil || len(x.body) != 40 {
					t.Errorf("the stream: %+v", x)
				}
				time.Sleep(5 * time.Second)
				if n, m := o.conns.to("up.test:443"), o.conns.to("moved.test:443"); n != 0 || m != 1 {
					t.Errorf("%d and %d connections are open in the end", n, m)
				}
				if n := bad.Load(); n != 0 {
					t.Errorf("%d requests failed", n)
				}
				// The first that finds no way leaves the others where they are for as long as a connection may take.
				cut.Store(true)
				time.Sleep(10 * time.Second)
				load(900 * time.Millisecond)
				if n := bad.Load(); n != 1 {
					t.Errorf("%d requests failed, want the first", n)
				}
				cut.Store(false)
				time.Sleep(time.Second)
				bad.Store(0)
				load(time.Second)
				if n := bad.Load(); n != 0 {
					t.Errorf("%d requests failed when there was a way again", n)
				}
			})
		})
	}
}

// A request that had just been given a transport whose time then ended found its connection closed, and made one for itself.
func TestTransportOfTheTimeBeforeWaitsForWhoHasJustTakenIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serveAs("h2c", "up.test:80", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), nil)
		var dials int
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			return w.dialFrom("gateway.test")(ctx, network, addr)
		}
		a := newAging(10*time.Second, time.Second, dial, func(dial dialer) *http.Transport {
			tr := &http.Transport{DialContext: dial, Protocols: new(http.Protocols)}
			tr.Protocols.SetUnencryptedHTTP2(true)
			return tr
		})
		get := func(by http.RoundTripper) {
			t.Helper()
			r, _ := http.NewRequest("GET", "http://up.test/", nil)
			res, err := by.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
		get(a)
		before := a.current.Load()
		time.Sleep(10 * time.Second)
		get(a)
		if now := a.current.Load(); now == before || dials != 2 {
			t.Fatalf("%d connections, the same transport: %v", dials, now == before)
		}
		get(before)
		if dials != 2 {
			t.Errorf("%d connections were made", dials)
		}
		time.Sleep(3 * time.Second)
		if n := before.open.Load(); n != 0 {
			t.Errorf("%d connections of the transport before are still open", n)
		}
		a.CloseIdleConnections()
	})
}
