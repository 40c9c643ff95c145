package gateway

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A tunnel whose target stopped reading held both connections for ever: blocked in a write to the target, its copy did not see that
// the client had reset its own.
func TestTunnelToTargetThatStopsReadingEnds(t *testing.T) {
	const patience = 8 * time.Second
	for name, takes := range map[string]time.Duration{"takes nothing": 0, "takes something for a while": 20 * time.Second} {
		inWorld(t, func(t *testing.T, w *world) {
			goOn := make(chan struct{})
			var read atomic.Int64
			w.serve("up.test:80", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				c, _, err := http.NewResponseController(rw).Hijack()
				if err != nil {
					panic(err)
				}
				defer c.Close()
				io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
				for began := time.Now(); time.Since(began) < takes; time.Sleep(patience / 2) {
					n, _ := c.Read(make([]byte, 1000))
					read.Add(int64(n))
				}
				<-goOn
			}))
			g := w.gateway("server: {write_timeout: 8s}\n" + one("", ""))
			c, _, res := upgrade(t, w)
			if res.StatusCode != 101 {
				t.Fatalf("%s: %+v", name, res)
			}
			began := time.Now()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				io.Copy(c, endless{})
			}()
			if takes > 0 {
				time.Sleep(takes)
				if read.Load() < 3000 {
					t.Errorf("%s: a target that takes something was cut after %d bytes", name, read.Load())
				}
			} else {
				time.Sleep(time.Second)
				c.Close() // which nobody sees
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := g.upgraded.wait(ctx); err != nil {
				t.Fatalf("%s: the tunnel is still there", name)
			}
			if d := time.Since(began); d < takes || d > takes+patience*5/4 {
				t.Errorf("%s: it ended after %v", name, d)
			}
			close(goOn)
			<-sent
			synctest.Wait()
		})
	}
}

// endless is what has no end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// The access log had what a tunnel's target sent and not what its client did: a chat of which one side was silent.
func TestAccessLogCountsBothSidesOfATunnel(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		stop := make(chan struct{})
		w.serve("up.test:80", echo(stop))
		path := filepath.Join(t.TempDir(), "access.log")
		o := w.operate("access_log: {path: "+path+"}\n"+one("", ""), nil)
		c, br, res := upgrade(t, w)
		if res.StatusCode != 101 {
			t.Fatalf("%+v", res)
		}
		for _, say := range []string{"one", "two and a half"} {
			io.WriteString(c, say)
			if _, err := io.ReadFull(br, make([]byte, len(say))); err != nil {
				t.Fatal(err)
			}
		}
		c.Close()
		close(stop)
		synctest.Wait()
		o.s.Close()
		ls := logLines(t, path)
		if len(ls) != 1 || ls[0]["status"] != 101.0 || ls[0]["bytes_in"] != 17.0 || ls[0]["bytes_out"] != 17.0 {
			t.Errorf("%v", ls)
		}
	})
}
