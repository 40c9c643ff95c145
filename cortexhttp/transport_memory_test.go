package cortexhttp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	shared "github.com/seed-a29ca62a/cortex/quota"
)

// purse is a quota that knows how much of it was used at most.
type purse struct {
	*shared.Quota
	most atomic.Int64
}

func newPurse(limit int64) *purse { return &purse{Quota: shared.New(limit)} }

func (p *purse) Reserve(n int64) bool {
	ok := p.Quota.Reserve(n)
	for used := p.Used(); ; {
		most := p.most.Load()
		if used <= most || p.most.CompareAndSwap(most, used) {
			return ok
		}
	}
}

func (p *purse) use(c *TransportConfig, _ *http.Server) { c.Memory = p }

func TestReplayTakesOfTheMemoryAndGivesItBack(t *testing.T) {
	for _, c := range []struct {
		name           string
		size, declared int64 // of the body; 0 = of unknown length
		limit          int64
		status         int // of the answer, after a 503
		skip           ReplaySkip
		most           int64
	}{
		{"declared length", 10_000, 10_000, 10_000, 200, ReplayNotSkipped, 10_000},
		{"declared length, a byte too little", 10_000, 10_000, 9_999, 503, ReplayNoMemory, 0},
		{"unknown length", 10_000, 0, 1 << 20, 200, ReplayNotSkipped, 24 << 10}, // twice while it grows
		{"unknown length, refused on the way", 30_000, 0, 20_000, 503, ReplayNoMemory, 20_000},
		{"none", 1, 1, 0, 503, ReplayNoMemory, 0},
		{"too large in any case", 70_000, 70_000, 1 << 20, 503, ReplayBodyTooLarge, 0},
		{"of unknown length, which turns out too large", 70_000, 0, 1 << 20, 503, ReplayBodyTooLarge, 128 << 10},
	} {
		for proto, set := range protocols {
			synctest.Test(t, func(t *testing.T) {
				p := newPurse(c.limit)
				var got []int
				w := newWorld(t, clientEngine(t), func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					if got = append(got, len(b)); len(got) == 1 {
						w.WriteHeader(503)
					}
				}, set, p.use)
				var rep Report
				req := request(t, WithReport(t.Context(), &rep), "PUT", strings.Repeat("x", int(c.size)))
				req.ContentLength = max(c.declared, -1)
				resp, err := w.transport.RoundTrip(req)
				if p.Used() != 0 {
					t.Errorf("%s, %s: %d bytes in use with the answer there", c.name, proto, p.Used())
				}
				if status, _ := finish(t, resp, err); status != c.status || rep.ReplaySkipped != c.skip {
					t.Errorf("%s, %s: %d, %+v", c.name, proto, status, rep)
				}
				for _, n := range got {
					if int64(n) != c.size {
						t.Errorf("%s, %s: bodies of %v bytes arrived", c.name, proto, got)
					}
				}
				if p.most.Load() > c.most {
					t.Errorf("%s, %s: %d bytes in use at most", c.name, proto, p.most.Load())
				}
			})
		}
	}
}

// An answer that does not wait for the body ends the call; what goes on being sent is not kept any more.
func TestMemoryIsFreeWithAnEarlyAnswer(t *testing.T) {
	for _, status := range []int{200, 503} {
		synctest.Test(t, func(t *testing.T) {
			p := newPurse(1 << 20)
			w := newWorld(t, clientEngine(t, func(c *cortex.Config) { c.MaxRetries = 1 }), func(w http.ResponseWriter, r *http.Request) {
				io.ReadFull(r.Body, make([]byte, 10))
				w.WriteHeader(status)
				w.(http.Flusher).Flush()
				if status == 200 { // net/http's HTTP/2 sends no more of the body after another
					io.Copy(io.Discard, r.Body)
				}
			}, overHTTP2, p.use)
			pr, pw := io.Pipe()
			go func() {
				for range 10 {
					pw.Write(make([]byte, 10))
					time.Sleep(time.Second)
				}
				pw.Close()
			}()
			resp, err := w.transport.RoundTrip(uploadRequest(t, t.Context(), pr, -1))
			if err != nil {
				t.Fatal(err)
			}
			if p.most.Load() == 0 || p.Used() != 0 {
				t.Errorf("%d: %d bytes in use, %d at most", status, p.Used(), p.most.Load())
			}
			finish(t, resp, nil)
			if p.Used() != 0 {
				t.Errorf("%d: %d bytes in use", status, p.Used())
			}
			time.Sleep(time.Minute) // the upload ends
		})
	}
}

// A replay that is answered before it was sent whole reads on of what is kept: that is held as long, not longer.
func TestMemoryIsHeldWhileAReplayIsStillSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPurse(1 << 20)
		sent := make(chan string, 1)
		var n int
		cfg := TransportConfig{Engine: clientEngine(t), Memory: p, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody}
			if n++; n == 1 {
				io.ReadAll(r.Body)
				r.Body.Close()
				return resp, nil
			}
			go func() {
				time.Sleep(time.Second)
				b, _ := io.ReadAll(r.Body)
				sent <- string(b)
				if p.Used() != 0 { // all of it was read
					t.Errorf("%d bytes in use", p.Used())
				}
				r.Body.Close()
			}()
			resp.StatusCode = 200
			return resp, nil
		})}
		tr, err := NewTransport(cfg)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(request(t, t.Context(), "PUT", "hello"))
		if status, _ := finish(t, resp, err); status != 200 || p.Used() == 0 {
			t.Errorf("%d, %d bytes in use", status, p.Used())
		}
		if got := <-sent; got != "hello" {
			t.Errorf("sent again: %q", got)
		}
		synctest.Wait()
		if p.Used() != 0 {
			t.Errorf("%d bytes in use", p.Used())
		}
	})
}

// Whatever becomes of a call, nothing of it stays: no memory, no attempt in flight, no open body.
func TestNothingStaysOfACallThatPanicsOrIsGivenUp(t *testing.T) {
	type setup struct {
		cfg     TransportConfig
		engine  func(*cortex.Config)
		getBody func() (io.ReadCloser, error)
	}
	for name, change := range map[string]func(s *setup){
		"panic in Base, the body unread": func(s *setup) {
			s.cfg.Base = roundTripper(func(*http.Request) (*http.Response, error) { panic("base") })
		},
		"panic in Base, the body read": func(s *setup) {
			s.cfg.Base = roundTripper(func(r *http.Request) (*http.Response, error) { io.ReadAll(r.Body); panic("base") })
		},
		"panic in Base, in a replay": func(s *setup) {
			base, n := s.cfg.Base, 0
			s.cfg.Base = roundTripper(func(r *http.Request) (*http.Response, error) {
				if n++; n > 1 {
					panic("base")
				}
				return base.RoundTrip(r)
			})
		},
		"panic in Outcome": func(s *setup) {
			s.cfg.Outcome = func(*http.Response) (cortex.Class, bool) { panic("outcome") }
		},
		"panic in OnAttempt": func(s *setup) { s.cfg.OnAttempt = func(AttemptResult) { panic("told") } },
		"panic in Prepare": func(s *setup) {
			s.cfg.Prepare = func(*http.Request, int) (*http.Request, error) { panic("prepare") }
		},
		"error of Prepare": func(s *setup) {
			s.cfg.Prepare = func(*http.Request, int) (*http.Request, error) { return nil, errors.New("no endpoint") }
		},
		"panic in Classify": func(s *setup) {
			s.cfg.Base = roundTripper(func(r *http.Request) (*http.Response, error) { r.Body.Close(); return nil, io.ErrUnexpectedEOF })
			s.engine = func(c *cortex.Config) { c.Classify = func(error) cortex.Class { panic("classify") } }
		},
		"panic in GetBody": func(s *setup) { s.getBody = func() (io.ReadCloser, error) { panic("body") } },
		"given up while it waits": func(s *setup) {
			s.engine = func(c *cortex.Config) { c.Backoff = backoff.Config{Base: time.Hour, Max: time.Hour} }
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPurse(1 << 20)
			var open atomic.Int32
			s := setup{engine: func(*cortex.Config) {}, cfg: TransportConfig{Memory: p, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				io.ReadAll(r.Body)
				r.Body.Close()
				open.Add(1)
				return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: -1, Body: &closeCounter{Reader: strings.NewReader("sorry"), open: &open}}, nil
			})}}
			change(&s)
			s.cfg.Engine = clientEngine(t, s.engine)
			tr, err := NewTransport(s.cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(time.Minute, cancel)
			req := request(t, ctx, "PUT", "x")
			var bodyOpen atomic.Int32
			bodyOpen.Store(1)
			req.Body, req.GetBody = &closeCounter{Reader: strings.NewReader("hello"), open: &bodyOpen}, s.getBody
			func() {
				defer func() {
					if r := recover(); (r != nil) != strings.HasPrefix(name, "panic") {
						t.Errorf("%s: recovered %v", name, r)
					}
				}()
				if resp, err := tr.RoundTrip(req); err == nil {
					t.Errorf("%s: %v", name, resp.Status)
				}
			}()
			synctest.Wait()
			if s.cfg.Engine.Pressure().InFlight != 0 || p.Used() != 0 || open.Load() != 0 || bodyOpen.Load() != 0 {
				t.Errorf("%s: %d in flight, %d bytes in use, %d answers open, %d bodies", name, s.cfg.Engine.Pressure().InFlight, p.Used(),
					open.Load(), bodyOpen.Load())
			}
			if n := tr.cut.due.Len(); n != 0 {
				t.Errorf("%s: %d attempts are to be cut yet", name, n)
			}
		})
	}
}

type closeCounter struct {
	io.Reader
	open *atomic.Int32
	once atomic.Bool
}

func (c *closeCounter) Close() error {
	if !c.once.Swap(true) {
		c.open.Add(-1)
	}
	return nil
}

// What is kept is reserved before, to the byte, however the body comes and wherever memory ends.
func TestSourceHoldsWhatItKeeps(t *testing.T) {
	for _, length := range []int64{-1, 5000} {
		for limit := int64(0); limit < 20_000; limit += 397 {
			for _, step := range []int{1, 100, 511, 4096} {
				p := newPurse(limit)
				s := newSource(io.NopCloser(strings.NewReader(strings.Repeat("x", 5000))), length, 5000, p)
				r, _ := s.open(0)
				buf := make([]byte, step)
				for n, err := 0, error(nil); err == nil; {
					n, err = r.Read(buf)
					_ = n
					if int64(cap(s.kept)) != s.held || s.held != p.Used() || !s.over && int64(len(s.kept)) != s.read {
						t.Fatalf("length %d, limit %d, step %d: %d of %d kept, %d held, %d used, %d read", length, limit, step, len(s.kept),
							cap(s.kept), s.held, p.Used(), s.read)
					}
				}
				if want := map[bool]ReplaySkip{true: ReplayNoMemory}[s.over]; s.replayable(0) != want {
					t.Fatalf("length %d, limit %d: %v, kept is %t", length, limit, s.replayable(0), !s.over)
				}
				if length > 0 && s.over != (limit < length) {
					t.Fatalf("length %d, limit %d: kept is %t", length, limit, !s.over)
				}
				s.finish()
				if p.Used() != 0 {
					t.Fatalf("%d used in the end", p.Used())
				}
				r.Close()
			}
		}
	}
}
