package cortexhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// Who counts attempts under way, from Prepare to OnAttempt, must be told of the end of each of them, and once.
func TestEachPreparedAttemptIsToldOfOnce(t *testing.T) {
	eachHTTP1(t, testEachPreparedAttemptIsToldOfOnce)
}

func testEachPreparedAttemptIsToldOfOnce(t *testing.T, set func(*TransportConfig, *http.Server)) {
	type call struct {
		method, body string
		handler      http.HandlerFunc
		change       func(*TransportConfig)
		engine       func(*cortex.Config)
		do           func(*http.Response) // with the answer; nil = it is read to its end and closed
		cancel       time.Duration        // after which the caller gives up; 0 = never
		want         []cortex.Outcome
	}
	slow := func(w http.ResponseWriter, r *http.Request) {
		w.Write(make([]byte, 100))
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
		w.Write(make([]byte, 100))
	}
	hang := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	closeIt := func(r *http.Response) { r.Body.Close() }
	for name, c := range map[string]call{
		"good":                  {handler: answerOK, want: []cortex.Outcome{cortex.Success}},
		"closed unread":         {handler: slow, do: closeIt, want: []cortex.Outcome{cortex.Success}},
		"closed, twice":         {handler: slow, do: func(r *http.Response) { r.Body.Close(); r.Body.Close() }, want: []cortex.Outcome{cortex.Success}},
		"no body":               {method: "HEAD", handler: answerOK, want: []cortex.Outcome{cortex.Success}},
		"204":                   {handler: statusSequence(204), want: []cortex.Outcome{cortex.Success}},
		"404":                   {handler: statusSequence(404), want: []cortex.Outcome{cortex.Neutral}},
		"tried again":           {handler: statusSequence(503, 502, 200), want: []cortex.Outcome{cortex.Failed, cortex.Failed, cortex.Success}},
		"with a body":           {method: "PUT", body: "hello", handler: statusSequence(503, 200), want: []cortex.Outcome{cortex.Failed, cortex.Success}},
		"failed for good":       {handler: statusSequence(503), engine: noRetries, want: []cortex.Outcome{cortex.Failed}},
		"cut":                   {handler: hang, engine: noRetries, want: []cortex.Outcome{cortex.TimedOut}},
		"given up":              {handler: hang, cancel: 500 * time.Millisecond, want: []cortex.Outcome{cortex.Neutral}},
		"given up in the body":  {handler: slow, cancel: 5 * time.Second, want: []cortex.Outcome{cortex.Neutral}},
		"closed while it reads": {handler: slow, do: func(r *http.Response) { time.AfterFunc(time.Second, func() { r.Body.Close() }); io.ReadAll(r.Body) }, want: []cortex.Outcome{cortex.Success}},
		"broke off": {handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "9")
			w.Write([]byte("x"))
		}, want: []cortex.Outcome{cortex.Failed}},
		"no header of an answer": {handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, engine: noRetries,
			want: []cortex.Outcome{cortex.Failed}},
		"upgrade": {handler: func(w http.ResponseWriter, r *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			c.Close()
		}, do: closeIt, want: []cortex.Outcome{cortex.Success}},
		"panic in Base": {change: func(c *TransportConfig) {
			c.Base = roundTripper(func(*http.Request) (*http.Response, error) { panic("base") })
		}, want: []cortex.Outcome{cortex.Neutral}},
		"panic in Outcome": {handler: answerOK, change: func(c *TransportConfig) {
			c.Outcome = func(*http.Response) (cortex.Class, bool) { panic("outcome") }
		}, want: []cortex.Outcome{cortex.Neutral}},
		"panic in Classify": {change: func(c *TransportConfig) {
			c.Base = roundTripper(func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
		}, engine: func(c *cortex.Config) { c.Classify = func(error) cortex.Class { panic("classify") } }, want: []cortex.Outcome{cortex.Neutral}},
		"panic in OnAttempt": {handler: answerOK, change: func(c *TransportConfig) {
			tell := c.OnAttempt
			c.OnAttempt = func(r AttemptResult) { tell(r); panic("told") }
		}, want: []cortex.Outcome{cortex.Success}},
		"Prepare fails": {handler: answerOK, change: func(c *TransportConfig) {
			c.Prepare = func(*http.Request, int) (*http.Request, error) { return nil, errors.New("no endpoint") }
		}},
		"Prepare fails for a retry": {handler: statusSequence(503), change: func(c *TransportConfig) {
			prepare := c.Prepare
			c.Prepare = func(r *http.Request, n int) (*http.Request, error) {
				if n > 0 {
					return nil, errors.New("no endpoint")
				}
				return prepare(r, n)
			}
		}, want: []cortex.Outcome{cortex.Failed}},
		"watched": {handler: statusSequence(503), change: shadowed, want: []cortex.Outcome{cortex.Failed}},
		"watched, over time": {handler: func(w http.ResponseWriter, r *http.Request) { time.Sleep(3 * time.Second) }, change: shadowed,
			want: []cortex.Outcome{cortex.TimedOut}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			under := map[*http.Request]int{}
			if c.engine == nil {
				c.engine = func(*cortex.Config) {}
			}
			w := newWorld(t, clientEngine(t, attemptsCutAfter(time.Second), c.engine), c.handler, set, func(cfg *TransportConfig, _ *http.Server) {
				tell := cfg.OnAttempt
				cfg.Prepare = func(r *http.Request, n int) (*http.Request, error) {
					mu.Lock()
					defer mu.Unlock()
					under[r]++
					return r, nil
				}
				cfg.OnAttempt = func(r AttemptResult) {
					mu.Lock()
					under[r.Request]--
					mu.Unlock()
					tell(r)
				}
				if c.change != nil {
					c.change(cfg)
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel > 0 {
				time.AfterFunc(c.cancel, cancel)
			}
			method := c.method
			if method == "" {
				method = "GET"
			}
			req := request(t, ctx, method, c.body)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			func() {
				defer func() { recover() }()
				resp, err := w.transport.RoundTrip(req)
				switch {
				case err != nil:
				case c.do != nil:
					c.do(resp)
				default:
					io.ReadAll(resp.Body)
					resp.Body.Close()
				}
			}()
			synctest.Wait()
			for r, n := range under {
				if n != 0 || r == nil {
					t.Errorf("%s: %d of an attempt are under way", name, n)
				}
			}
			if len(under) != len(c.want) {
				t.Errorf("%s: %d attempts", name, len(under))
			}
			w.wantOutcomes(c.want...)
			if t.Failed() {
				t.Fatal(name)
			}
			if n := w.engine.Pressure().InFlight; n != 0 {
				t.Errorf("%s: %d in flight", name, n)
			}
			time.Sleep(time.Minute)
		})
	}
}

func shadowed(c *TransportConfig) { c.Shadow = func(*http.Request) bool { return true } }
