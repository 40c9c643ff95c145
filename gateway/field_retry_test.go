package gateway

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/breaker"
)

// The field cases of retries, hints, deadlines and bodies, as those see them who call through the gateway.

// F22: a certificate that is not good is no better at the next attempt.
func TestUntrustedCertificateIsAskedForOnce(t *testing.T) {
	p, other := newPKI(t), newPKI(t)
	var handshakes atomic.Int64
	address := tlsUpstream(t, &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		handshakes.Add(1)
		return &p.pair, nil
	}}, status(200))
	for name, files := range map[string]string{"an authority that is not ours": "ca: " + other.ca, "another name": "ca: " + p.ca + ", server_name: shop.test"} {
		for _, method := range []string{"GET", "POST"} {
			handshakes.Store(0)
			s := realGateway(t, target("endpoints: ['https://"+address+"']\nretry: {max_retries: 4, base_delay: 1ms}\ntimeout: {bootstrap: 5s}\ntransport: {tls: {"+files+"}}", ""))
			c, base := realClient(t, p, "http/1.1", s)
			r, _ := http.NewRequest(method, base+"/", nil)
			a := send(c, r)
			if a.status != 502 || a.header.Get("Cortex-Attempts") != "1" || proxyStatusOf(t, a.header) != "tls_certificate_error" || handshakes.Load() != 1 {
				t.Errorf("%s, %s: %+v, %d handshakes", name, method, a, handshakes.Load())
			}
		}
	}
}

// F34: where the wait that the target asks for does not fit before the caller's deadline, it is not begun.
func TestNoWaitThatEndsBehindTheDeadline(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "10")
			w.WriteHeader(503)
			io.WriteString(w, "own words")
		})}
		w.serve("up.test:80", up)
		w.gateway(one(retrying, ""))
		a := w.get(w.client(trusted), "http://gateway.test:80/", "Cortex-Timeout-Ms", "5000")
		if a.status != 503 || a.body != "own words" || a.header.Get("Retry-After") != "10" || a.header.Get("Cortex-Reason") != "DEADLINE" ||
			a.took > 50*time.Millisecond || up.n.Load() != 1 {
			t.Errorf("%+v, %d requests", a, up.n.Load())
		}
	})
}

// F35: the time for a call bounds its attempts and waits together, however many there may be, and nothing goes on after it.
func TestDeadlineOfTheConfigurationEndsTheRetries(t *testing.T) {
	for name, q := range map[string]struct {
		up     http.Handler
		status int
		least  int64
	}{"fails": {status(503), 503, 3}, "hangs": {hang, 504, 1}, "breaks": {abort, 502, 3}} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &counter{next: q.up}
			w.serve("up.test:80", up)
			g := w.gateway(one("deadline: 5s\nretry: {max_retries: 1000, backoff: exponential, base_delay: 500ms, max_delay: 1s}\n"+
				"budget: {capacity: 1000}\ntimeout: {max: 20s, bootstrap: 20s}", ""))
			a := w.get(w.client(stranger), "http://gateway.test:80/")
			if a.status != q.status || a.took > 5*time.Second || a.took < 3*time.Second || a.header.Get("Cortex-Reason") != "DEADLINE" {
				t.Errorf("%s: %+v", name, a)
			}
			n := up.n.Load()
			if n < q.least {
				t.Errorf("%s: %d requests", name, n)
			}
			time.Sleep(time.Minute)
			if up.n.Load() != n || g.Targets()[0].Engine.Pressure().InFlight != 0 {
				t.Errorf("%s: %d requests after the end", name, up.n.Load()-n)
			}
		})
	}
}

// F39, F40: how long a target asks to be left alone, in all forms in which it may and may not say so, measured at the target.
func TestRetryAfterIsWaitedForAtTheTarget(t *testing.T) {
	in := func(d time.Duration, layout string) func(now time.Time) []string {
		return func(now time.Time) []string { return []string{now.Add(d).UTC().Format(layout)} }
	}
	says := func(values ...string) func(time.Time) []string { return func(time.Time) []string { return values } }
	for _, q := range []struct {
		name  string
		value func(now time.Time) []string
		most  string // retry.max_delay
		want  time.Duration
	}{
		{"seconds", says("120"), "10m", 120 * time.Second},
		{"zero", says("0"), "10m", 0},
		{"negative", says("-5"), "10m", 0},
		{"plus", says("+3"), "10m", 0},
		{"fraction", says("1.5"), "10m", 0},
		{"junk", says("120junk"), "10m", 0},
		{"empty", says(""), "10m", 0},
		{"IMF-fixdate", in(30*time.Second, http.TimeFormat), "10m", 30 * time.Second},
		{"RFC 850", in(30*time.Second, "Monday, 02-Jan-06 15:04:05 GMT"), "10m", 30 * time.Second},
		{"asctime", in(30*time.Second, time.ANSIC), "10m", 30 * time.Second},
		{"past", in(-time.Hour, http.TimeFormat), "10m", 0},
		{"two", says("2", "7"), "10m", 7 * time.Second},
		{"an hour", says("3600"), "10s", 10 * time.Second},
		{"ages", says("9999999999"), "10s", 10 * time.Second},
		{"25 digits", says(strings.Repeat("9", 25)), "10s", 10 * time.Second},
		{"in 2099", says("Thu, 01 Jan 2099 00:00:00 GMT"), "10s", 10 * time.Second},
	} {
		for _, code := range []int{429, 503} {
			inWorld(t, func(t *testing.T, w *world) {
				var mu sync.Mutex
				var at []time.Time
				w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					if at = append(at, time.Now()); len(at) == 1 {
						w.Header()["Retry-After"] = q.value(time.Now())
						w.WriteHeader(code)
					}
				}))
				w.gateway(one("retry: {base_delay: 1ms, max_delay: "+q.most+"}", ""))
				a := w.get(w.client(stranger), "http://gateway.test:80/")
				if a.status != 200 || len(at) != 2 {
					t.Fatalf("%s, %d: %+v, %d requests", q.name, code, a, len(at))
				}
				// What all callers are told is spread by a little.
				if gap := at[1].Sub(at[0]); gap < q.want || gap > q.want+100*time.Millisecond || gap > 10*time.Minute {
					t.Errorf("%s, %d: the second attempt came after %v, want %v", q.name, code, gap, q.want)
				}
			})
		}
	}
}

// F42: a target that throttles for two seconds is not down: no circuit opens, and clients that wait as they are told get everything through.
func TestThrottlingForAMomentIsNoOutage(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		began := time.Now()
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if time.Since(began) < 2*time.Second {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(429)
			}
		}))
		g := w.gateway(one("retry: {base_delay: 10ms}", ""))
		e := g.Targets()[0].Engine
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				c := w.client(stranger)
				for tries := 0; ; tries++ {
					a := w.do(c, "PUT", "http://gateway.test:80/", "message "+strconv.Itoa(i))
					switch {
					case a.status == 200:
						return
					case a.status != 429 && a.header.Get("Cortex-Reason") != "SHED_LOW_PRIORITY" || a.header.Get("Retry-After") != "1" || tries > 10:
						t.Errorf("message %d: %+v", i, a)
						return
					}
					time.Sleep(time.Second)
				}
			})
		}
		wg.Wait()
		if s, p := e.Stats(), e.Pressure(); s.Failures+s.Timeouts != 0 || s.Throttled == 0 || s.Transitions != 0 || p.Circuit != breaker.Closed {
			t.Errorf("%+v, %+v", s, p)
		}
	})
}

// F43, F45: up to the limit a body is sent again whole, above it once and whole, and that is counted.
func TestBodiesAreReplayedUpToTheLimitAndWhole(t *testing.T) {
	const limit = 16 << 10
	for _, size := range []int{0, 1, limit/2 + 1, limit - 1, limit, limit + 1, 90_000} {
		for _, known := range []bool{true, false} {
			inWorld(t, func(t *testing.T, w *world) {
				body := bytes.Repeat([]byte("0123456789abcdefg"), size/17+1)[:size]
				want := fmt.Sprintf("%x", sha256.Sum256(body))
				var mu sync.Mutex
				var got []string
				w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					b, err := io.ReadAll(r.Body)
					mu.Lock()
					defer mu.Unlock()
					if err != nil || known && r.ContentLength != int64(size) {
						t.Errorf("the target was told %d bytes, %v", r.ContentLength, err)
					}
					if got = append(got, fmt.Sprintf("%x", sha256.Sum256(b))); len(got) == 1 {
						w.Header().Set("Connection", "close")
						w.WriteHeader(503)
					}
				}))
				o := w.operate(one("balance: {resolve: 0s}\nretry: {base_delay: 1ms, replay_limit: 16KiB}", ""), nil)
				r, _ := http.NewRequest("PUT", "http://gateway.test:80/", struct{ io.Reader }{bytes.NewReader(body)})
				if known {
					if r.ContentLength = int64(size); size == 0 {
						r.Body = http.NoBody
					}
				}
				a := send(w.client(stranger), r)
				attempts, code, skipped := 2, 200, "0"
				if size > limit {
					attempts, code, skipped = 1, 503, "1"
				}
				if a.status != code || len(got) != attempts {
					t.Errorf("%d bytes, known %v: %+v, %d requests", size, known, a, len(got))
				}
				for i, sum := range got {
					if sum != want {
						t.Errorf("%d bytes, known %v: request %d had another body", size, known, i)
					}
				}
				if v := o.metric(`replays_skipped_total{target="up",reason="BODY_TOO_LARGE"}`); v != skipped {
					t.Errorf("%d bytes, known %v: replays_skipped_total %q, want %s", size, known, v, skipped)
				}
			})
		}
	}
}

// herd is how many callers come at once; fewer under the race detector.
func herd() int {
	if seeds == 1 {
		return 200
	}
	return 1000
}

// F66: of 1,000 calls at once that all fail a few are retried, and the others do not wait to be told that they are not. Where the target hangs
// it is no more than there are tokens; of failures that say nothing of load a token buys 50.
func TestBudgetBoundsTheRetriesOfAHerd(t *testing.T) {
	for name, q := range map[string]struct {
		up   http.Handler
		most uint64 // retries
	}{"fails": {status(503), 200}, "hangs": {hang, 12}} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &counter{next: q.up}
			w.serve("up.test:80", up)
			g := w.gateway(one("retry: {base_delay: 1s}\nlimit: {min: 2000}", ""))
			c := w.client(stranger)
			var later atomic.Int64 // than the timeout
			var wg sync.WaitGroup
			for range herd() {
				wg.Go(func() {
					if a := w.get(c, "http://gateway.test:80/"); a.took > 0 && a.took != time.Second {
						later.Add(1)
					}
				})
			}
			wg.Wait()
			s := g.Targets()[0].Engine.Stats()
			if s.Retries > q.most || up.n.Load() > int64(herd())+int64(q.most) {
				t.Errorf("%s: %d requests at the target, %d retries: %+v", name, up.n.Load(), s.Retries, s)
			}
			if n := later.Load(); n > int64(s.Retries) {
				t.Errorf("%s: %d calls waited for %d retries", name, n, s.Retries)
			}
		})
	}
}

// F69: of three gateways in a row one retries.
func TestGatewaysInARowDoNotMultiply(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &counter{next: status(503)}
		w.serve("up.test:80", up)
		config := one("retry: {max_retries: 3, base_delay: 1ms}", "")
		inner := w.gatewayAt("inner.test:80", config)
		middle := w.gatewayAt("middle.test:80", strings.ReplaceAll(config, "up.test", "inner.test"))
		outer := w.gateway(strings.ReplaceAll(config, "up.test", "middle.test"))
		a := w.get(w.client(stranger), "http://gateway.test:80/")
		if n := up.n.Load(); n != 4 || a.status != 503 || a.header.Get("Cortex-Attempts") != "4" || a.header.Get("Cortex-Retry") != "no" {
			t.Errorf("%d requests at the target, %+v", n, a)
		}
		if o, m, i := outer.Targets()[0].Engine.Stats(), middle.Targets()[0].Engine.Stats(), inner.Targets()[0].Engine.Stats(); o.Retries != 3 || m.Retries != 0 || i.Retries != 0 {
			t.Errorf("retries: %d, %d and %d", o.Retries, m.Retries, i.Retries)
		}
		before := up.n.Load()
		c := w.client(stranger)
		var wg sync.WaitGroup
		for range herd() {
			wg.Go(func() { w.get(c, "http://gateway.test:80/") })
		}
		wg.Wait()
		if n := up.n.Load() - before; n > int64(herd())*6/5 {
			t.Errorf("%d requests at the target for %d calls", n, herd())
		}
	})
}
