package cortexhttp

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/h1"
)

// A request that the base transport cannot send counted as the target's failure where it was found out late: a client with a header
// larger than the target's HTTP/2 takes opened its circuit.
func TestRequestsThatCannotBeSentDoNotSpeakAgainstTheTarget(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	up.Config.MaxHeaderBytes = 8 << 10
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetHTTP1(true)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	defer up.Close()
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	own, err := h1.New(h1.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer own.CloseIdleConnections()

	for _, b := range []struct {
		name string
		base http.RoundTripper
	}{{"h2c", h2c}, {"HTTP/1", plain}, {"h1", own}} {
		for _, c := range []struct {
			name   string
			change func(r *http.Request)
			want   int // 0 = it passes
		}{
			{"a good one", func(*http.Request) {}, 0},
			{"a large header", func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("a", 9<<10)) }, map[string]int{"h2c": 431}[b.name]},
			{"a large trailer", func(r *http.Request) { r.Trailer = http.Header{"X-Large": {strings.Repeat("a", 9<<10)}} }, map[string]int{"h2c": 431}[b.name]},
			{"a header's name", func(r *http.Request) { r.Header["a b"] = []string{"c"} }, 400},
			{"a header's value", func(r *http.Request) { r.Header["A"] = []string{"b\n"} }, 400},
			{"a trailer's name", func(r *http.Request) { r.Trailer = http.Header{"a b": nil} }, 400},
			{"a trailer that frames", func(r *http.Request) { r.Trailer = http.Header{"Content-Length": nil} }, 400},
			{"a method", func(r *http.Request) { r.Method = "A B" }, 400},
			{"a host", func(r *http.Request) { r.Host = "a b" }, map[string]int{"h2c": 400, "h1": 400}[b.name]},
			{"no host", func(r *http.Request) { r.URL.Host = "" }, 400},
			{"a change of protocol", func(r *http.Request) { r.Header["Upgrade"] = []string{"x"} }, map[string]int{"h2c": 400}[b.name]},
		} {
			t.Run(b.name+"/"+c.name, func(t *testing.T) {
				e, err := cortex.New(cortex.Config{Name: "t"})
				if err != nil {
					t.Fatal(err)
				}
				var report Report
				tr, err := NewTransport(TransportConfig{Engine: e, Base: b.base, Report: func(*http.Request) *Report { return &report }})
				if err != nil {
					t.Fatal(err)
				}
				r, _ := http.NewRequest("POST", up.URL, io.MultiReader(strings.NewReader("abc"))) // of unknown length
				c.change(r)
				res, err := tr.RoundTrip(r)
				if err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
				status, _ := RequestFault(err)
				if status != c.want || (c.want != 0) != (err != nil) {
					t.Errorf("status %d, want %d: %v", status, c.want, err)
				}
				if s := e.Stats(); s.Failures > 0 || s.Timeouts > 0 {
					t.Errorf("it speaks against the target: %+v", s)
				}
				if report.Attempts != 1 {
					t.Errorf("%d attempts", report.Attempts)
				}
			})
		}
	}
}

// What a peer says is not taken for what is wrong with the request.
func TestWordsOfPeersAreNoRequestFault(t *testing.T) {
	for _, err := range []error{nil, io.EOF, &net.OpError{Op: "read", Err: net.ErrClosed},
		fmt.Errorf("malformed HTTP response %q", "invalid Host header"),
		fmt.Errorf("http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR, debug=%q", "invalid Host header")} {
		if status, ok := RequestFault(err); ok {
			t.Errorf("%v: %d", err, status)
		}
	}
}
