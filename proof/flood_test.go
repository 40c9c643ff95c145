package proof

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Floods of HTTP/2 frames that cost the sender little: other clients are not disturbed, memory is bounded, the connection is ended.
func TestHTTP2Floods(t *testing.T) {
	var seen atomic.Int64
	up := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/bystander" {
			seen.Add(1)
			select {
			case <-r.Context().Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		io.WriteString(w, "hello")
	}))
	const streams = 100
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
server: {h2c: true, max_streams: %d, max_header_bytes: 64KiB, read_header_timeout: 4s}
targets: {flood: {endpoints: [http://%s], transport: {idle_timeout: 2s}}, up: {endpoints: [http://%[2]s], limit: {min: 100}, transport: {idle_timeout: 2s}}}
routes: [{path: /, target: flood}, {path: /bystander, target: up}]
`, streams, up)
	valid(t, text)

	request := []string{":method", "GET", ":scheme", "http", ":authority", "flood", ":path", "/flood"}
	reset := func(h *h2conn, i uint32) error {
		if err := h.request(2*i+1, nil, request...); err != nil {
			return err
		}
		return h.framer.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
	}
	for _, f := range []struct {
		name   string
		ends   bool                            // the gateway has to end the connection
		silent bool                            // the flooder does not read
		long   bool                            // only where there is time
		holds  int                             // streams that stay open on a connection: each is a call in flight and costs what one does
		burst  uint32                          // rounds of a connection in a millisecond; 10: 40,000 a second
		full   bool                            // they fill the machine that both sides share: others are served all the same, but later
		send   func(h *h2conn, i uint32) error // one round of it
	}{
		{name: "rapid reset", burst: 3, send: reset},
		{name: "rapid reset, 40,000 a second", full: true, send: reset},
		{name: "streams that are never finished", long: true, holds: streams, send: func(h *h2conn, i uint32) error {
			return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: h.encode(request...), EndHeaders: true})
		}},
		{name: "CONTINUATION without end", ends: true, send: func(h *h2conn, i uint32) error {
			block := h.encode("x-field", "a value of no use whatever, again and again")
			if i == 0 {
				return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.encode(request...)})
			}
			return h.framer.WriteContinuation(1, false, block)
		}},
		{name: "empty CONTINUATION without end", long: true, send: func(h *h2conn, i uint32) error {
			if i == 0 {
				return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.encode(request...)})
			}
			return h.framer.WriteContinuation(1, false, nil)
		}},
		{name: "SETTINGS, unread", silent: true, send: func(h *h2conn, _ uint32) error {
			return h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
		}},
		{name: "PING, unread", ends: true, silent: true, send: func(h *h2conn, _ uint32) error { return h.framer.WritePing(false, [8]byte{}) }},
		{name: "empty DATA", long: true, send: func(h *h2conn, i uint32) error {
			if i == 0 {
				return h.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h.encode(":method", "POST", ":scheme", "http",
					":authority", "flood", ":path", "/flood"), EndHeaders: true})
			}
			return h.framer.WriteData(1, false, nil)
		}},
		{name: "window of 0, many answers", long: true, holds: streams, send: func(h *h2conn, i uint32) error {
			if i == 0 {
				return h.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			}
			return h.request(2*i+1, nil, request...)
		}},
		{name: "PRIORITY", long: true, send: func(h *h2conn, i uint32) error {
			return h.framer.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 2*i + 3, Weight: uint8(i)})
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			if f.long && !slow() {
				t.Skip("CORTEX_SLOW=1 runs it")
			}
			g := serve(t, text) // each its own: what one leaves is not the next one's
			connections, burst, others := 4, uint32(10), undisturbed
			if f.burst > 0 {
				burst = f.burst
			}
			if f.full { // then their p99 is 20 to 45 ms
				others = served
			}
			bounded(t, g, growth+int64(connections*f.holds)*256<<10, func() {
				seen.Store(0)
				var rounds, dials, ended atomic.Int64
				send := func(h *h2conn, i uint32) error { rounds.Add(1); return f.send(h, i) }
				others(t, g, up, func(stop <-chan struct{}) {
					var wg sync.WaitGroup
					for range connections {
						wg.Go(func() {
							for more := true; more; {
								dials.Add(1)
								h := dialH2(t, g.addr)
								if !f.silent {
									go io.Copy(io.Discard, h)
								}
								if flood(h, burst, stop, send) {
									ended.Add(1)
								}
								h.Close()
								select { // an attacker comes again
								case <-stop:
									more = false
								case <-time.After(50 * time.Millisecond):
								}
							}
						})
					}
					wg.Wait()
				})
				t.Logf("%d rounds on %d connections, %d of which the gateway ended; the upstream saw %d requests", rounds.Load(), dials.Load(),
					ended.Load(), seen.Load())
				if f.ends && ended.Load() == 0 { // with all its might; what is not read has to fill the sockets first
					h, stop := dialH2(t, g.addr), make(chan struct{})
					rounds.Store(0)
					enough := time.AfterFunc(20*time.Second, func() { close(stop) })
					if !flood(h, 1000, stop, send) {
						t.Errorf("the gateway does not end a connection after %d rounds", rounds.Load())
					} else {
						t.Logf("the gateway ended a connection after %d rounds", rounds.Load())
					}
					enough.Stop()
					h.Close()
				}
			})
		})
	}
}

// flood sends a burst of rounds every millisecond, or as fast as it can if that takes longer, until stop or until the connection
// ends, which it reports.
func flood(h *h2conn, burst uint32, stop <-chan struct{}, send func(h *h2conn, i uint32) error) (ended bool) {
	begin := time.Now()
	for i := uint32(0); i < 1<<29; i++ {
		if err := send(h, i); err != nil {
			return true
		}
		if (i+1)%burst > 0 {
			continue
		}
		h.SetWriteDeadline(time.Now().Add(15 * time.Second))
		if h.out.Flush() != nil {
			return true
		}
		select {
		case <-stop:
			return false
		case <-time.After(time.Until(begin.Add(time.Duration(i/burst) * time.Millisecond))):
		}
	}
	return false
}
