package h1

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// pattern is a body that belongs to an id.
func pattern(id, size int) []byte {
	return bytes.Repeat([]byte(fmt.Sprintf("%08d", id)), size/8+1)[:size]
}

// Whatever servers and callers do, nobody gets another's answer, no server another's body, and nothing is left behind.
func TestNothingIsMixedUp(t *testing.T) {
	leaks(t)
	var mixed atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := strconv.Atoi(r.Header.Get("Id"))
		mode := rand.IntN(12)
		w.Header().Set("Id", r.Header.Get("Id"))
		if mode > 1 { // else an early answer
			body, err := io.ReadAll(r.Body)
			if size, _ := strconv.Atoi(r.Header.Get("Size")); err == nil && !bytes.Equal(body, pattern(id, size)) {
				mixed.Add(1)
			}
		}
		size := rand.IntN(20_000)
		w.Header().Set("Size", strconv.Itoa(size))
		body := pattern(id, size)
		switch mode {
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			w.Header().Set("Connection", "close")
		case 4:
			w.Header().Set("Content-Length", strconv.Itoa(size+10)) // cut short
		case 5:
			w.WriteHeader(103)
		case 6, 7:
			w.Header().Set("Content-Length", strconv.Itoa(size))
		case 8:
			time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		case 9:
			w.WriteHeader(204)
			return
		}
		for len(body) > 0 {
			n := min(len(body), 1+rand.IntN(8000))
			w.Write(body[:n])
			body = body[n:]
			if rand.IntN(3) == 0 {
				w.(http.Flusher).Flush()
			}
		}
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.Start()
	defer srv.Close()
	tr := newTransport(t, Config{MaxIdlePerHost: 8})
	var wg sync.WaitGroup
	var good, bad, dropped atomic.Int32
	for w := range 8 {
		wg.Go(func() {
			for i := range 150 {
				id := w*1000 + i
				ctx, cancel := context.WithCancel(t.Context())
				size := 0
				req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL, nil)
				if rand.IntN(2) == 0 {
					size = []int{1, 500, inlineBody, 100_000, 500_000}[rand.IntN(5)]
					req.Method, req.ContentLength = "POST", int64(size)
					var body io.Reader = bytes.NewReader(pattern(id, size))
					if rand.IntN(3) == 0 {
						req.ContentLength = -1
						body = io.MultiReader(body)
					}
					if rand.IntN(5) == 0 {
						req.Header.Set("Expect", "100-continue")
					}
					if rand.IntN(20) == 0 {
						req.Body = io.NopCloser(io.LimitReader(body, int64(size)/2)) // too short, where the length is known
						req.ContentLength = int64(size)
					} else {
						req.Body = io.NopCloser(body)
					}
				}
				req.Header.Set("Id", strconv.Itoa(id))
				req.Header.Set("Size", strconv.Itoa(size))
				if rand.IntN(6) == 0 {
					time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel)
				}
				if rand.IntN(50) == 0 {
					tr.CloseIdleConnections()
				}
				resp, err := tr.RoundTrip(req)
				if err != nil {
					bad.Add(1)
					cancel()
					continue
				}
				if got := resp.Header.Get("Id"); got != strconv.Itoa(id) {
					t.Errorf("%d got the answer of %s", id, got)
				}
				switch rand.IntN(8) {
				case 0:
					dropped.Add(1)
					resp.Body.Close()
				case 1:
					go resp.Body.Close()
					fallthrough
				default:
					body, err := io.ReadAll(resp.Body)
					want, _ := strconv.Atoi(resp.Header.Get("Size"))
					if full := pattern(id, want); err == nil && resp.StatusCode != 204 && !bytes.Equal(body, full) || !strings.HasPrefix(string(full), string(body)) {
						t.Errorf("%d: wrong body of %d bytes, want %d", id, len(body), want)
					}
					if err == nil {
						good.Add(1)
					}
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if n := mixed.Load(); n != 0 {
		t.Errorf("%d requests with a wrong body", n)
	}
	if tr.idleCount() > 8 {
		t.Errorf("%d idle", tr.idleCount())
	}
	t.Logf("%d good, %d failed, %d dropped", good.Load(), bad.Load(), dropped.Load())
	if good.Load() < 200 {
		t.Error("too few good answers for this to mean something")
	}
}
