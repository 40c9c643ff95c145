package decision

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// clock is a time that tests move.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Duration  { return time.Duration(c.ns.Load()) }
func (c *clock) add(d time.Duration) { c.ns.Add(int64(d)) }

// A world is a service on a real port, with a clock of its own.
type world struct {
	*clock
	t        *testing.T
	url      string
	registry *cortex.Registry
	service  *service
	client   *http.Client
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	w := &world{clock: &clock{}, t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	w.add(time.Hour)
	w.registry = cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{Now: w.now, Stripes: 1} }, 100)
	c := Config{Others: w.registry, Now: w.now}
	for _, f := range change {
		f(&c)
	}
	h := New(c)
	w.service = h.(*service)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(h, nil)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		s.Close()
		<-done
	})
	w.url = "http://" + l.Addr().String()
	return w
}

// post makes a call as a program without any library would: it returns the status and the answer.
func (w *world) post(method, body string, header ...string) (int, map[string]any) {
	w.t.Helper()
	r, err := http.NewRequest("POST", w.url+"/cortex.v1.DecisionService/"+method, bytes.NewReader([]byte(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		w.t.Fatalf("%s %s: %d %s: %v", method, body, resp.StatusCode, b, err)
	}
	return resp.StatusCode, out
}

// ask is post that must go well.
func (w *world) ask(method, body string) map[string]any {
	w.t.Helper()
	status, out := w.post(method, body)
	if status != 200 {
		w.t.Fatalf("%s %s: %d %v", method, body, status, out)
	}
	return out
}

func (w *world) engine(target string) *cortex.Engine {
	w.t.Helper()
	e, err := w.registry.Engine(target)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func ptr[T any](v T) *T { return &v }

var background = context.Background()

// withKnown gives the service targets that are there anyway.
func withKnown(engines ...*cortex.Engine) func(*Config) {
	return func(c *Config) {
		c.Known = func(name string) *cortex.Engine {
			for _, e := range engines {
				if e.Name() == name {
					return e
				}
			}
			return nil
		}
		c.All = func() iter.Seq[*cortex.Engine] { return slices.Values(engines) }
	}
}

// direct is a service without a port.
type direct struct{ http.Handler }

func newHandler(tb testing.TB) direct {
	return direct{New(Config{Others: cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{Stripes: 1} }, 100)})}
}

func (d direct) serve(method string, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/cortex.v1.DecisionService/"+method, bytes.NewReader(body))
	r.Host = "localhost"
	r.Header.Set("Content-Type", "application/json")
	rec := httptest.NewRecorder()
	d.ServeHTTP(rec, r)
	return rec
}

// open is how many attempts wait for their report.
func (w *world) open() int {
	s, _ := StatsOf(w.service)
	return s.Tokens
}
