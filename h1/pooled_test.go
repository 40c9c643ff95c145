package h1

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
)

// What failed before anything was sent gave its connection back and then looked at it, when it was somebody else's already. The
// race detector sees it.
func TestConnectionGivenBackIsNotLookedAt(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	defer s.Close()
	tr, err := New(Config{Dial: new(net.Dialer).DialContext})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				method, body := "GET", io.Reader(nil)
				switch i % 3 {
				case 1:
					ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { cancel() }})
				case 2:
					method, body = "POST", io.MultiReader(strings.NewReader("a"), failing{})
				}
				r, err := http.NewRequestWithContext(ctx, method, s.URL, body)
				if err != nil {
					t.Error(err)
					return
				}
				if body != nil {
					r.ContentLength = 2
				}
				if res, err := tr.RoundTrip(r); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				} else if i%3 == 0 {
					t.Errorf("%d: %v", g, err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the body is at fault") }
