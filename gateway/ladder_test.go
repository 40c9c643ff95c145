package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/quota"
)

func cacheLadder(t *testing.T, c config.Cache, now func() time.Duration) ladder {
	t.Helper()
	g := &Gateway{options: Options{Now: now}, memory: quota.New(1 << 30)}
	l, err := g.newLadder(config.Fallback{Cache: &c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func header(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return h
}

func TestWhatIsStored(t *testing.T) {
	l := cacheLadder(t, config.Cache{MaxAge: time.Minute}, nil)
	none := header()
	for _, c := range []struct {
		name            string
		method          string
		request, answer http.Header
		status          int
		length          int64
		stores, public  bool
	}{
		{"plain", "GET", none, none, 200, 10, true, false},
		{"public", "GET", none, header("Cache-Control", "public, max-age=5"), 200, -1, true, true},
		{"HEAD", "HEAD", none, none, 200, 10, false, false},
		{"POST", "POST", none, none, 200, 10, false, false},
		{"404", "GET", none, none, 404, 10, false, false},
		{"206", "GET", none, none, 206, 10, false, false},
		{"304", "GET", none, none, 304, 0, false, false},
		{"500", "GET", none, none, 500, 10, false, false},
		{"too long", "GET", none, none, 200, maxStored + 1, false, false},
		{"at the limit", "GET", none, none, 200, maxStored, true, false},
		{"no-store", "GET", none, header("Cache-Control", "no-store"), 200, 10, false, false},
		{"No-Store in a list", "GET", none, header("Cache-Control", "max-age=5 ,  No-Store"), 200, 10, false, false},
		{"second line", "GET", none, header("Cache-Control", "max-age=5", "Cache-Control", "private"), 200, 10, false, false},
		{"private with fields", "GET", none, header("Cache-Control", `private="Set-Cookie, X"`), 200, 10, false, false},
		{"no-cache", "GET", none, header("Cache-Control", "no-cache"), 200, 10, false, false},
		{"must-revalidate", "GET", none, header("Cache-Control", "must-revalidate"), 200, 10, false, false},
		{"proxy-revalidate", "GET", none, header("Cache-Control", "proxy-revalidate"), 200, 10, false, false},
		{"quoted only", "GET", none, header("Cache-Control", `ext="a, no-store, b"`), 200, 10, true, false},
		{"quoted quote", "GET", none, header("Cache-Control", `ext="\", no-store"`), 200, 10, true, false},
		{"similar word", "GET", none, header("Cache-Control", "no-store-ever"), 200, 10, true, false},
		{"request says no-store", "GET", header("Cache-Control", "no-store"), none, 200, 10, false, false},
		{"Set-Cookie", "GET", none, header("Set-Cookie", "a=b"), 200, 10, false, false},
		{"Set-Cookie, public", "GET", none, header("Set-Cookie", "a=b", "Cache-Control", "public"), 200, 10, false, false},
		{"cookie", "GET", header("Cookie", "a=b"), none, 200, 10, false, false},
		{"cookie, public", "GET", header("Cookie", "a=b"), header("Cache-Control", "public"), 200, 10, true, true},
		{"authorization", "GET", header("Authorization", "Bearer x"), none, 200, 10, false, false},
		{"authorization, public", "GET", header("Authorization", "Bearer x"), header("Cache-Control", "public"), 200, 10, true, true},
		{"varies by encoding", "GET", none, header("Vary", "accept-encoding"), 200, 10, true, false},
		{"varies by language", "GET", none, header("Vary", "Accept-Encoding, Accept-Language"), 200, 10, false, false},
		{"varies by language, second line", "GET", none, header("Vary", "Accept-Encoding", "Vary", "Accept-Language"), 200, 10, false, false},
		{"varies by everything", "GET", none, header("Vary", "*"), 200, 10, false, false},
		{"a fallback of a gateway below", "GET", none, header("Cortex-Fallback", "static"), 200, 10, false, false},
		{"empty vary", "GET", none, header("Vary", ", ,"), 200, 10, true, false},
	} {
		r := httptest.NewRequest(c.method, "http://x.test/", nil)
		r.Header = c.request
		stores, public := l.stores(r, &http.Response{StatusCode: c.status, Header: c.answer, ContentLength: c.length})
		if stores != c.stores || stores && public != c.public {
			t.Errorf("%s: stores %v, public %v; want %v, %v", c.name, stores, public, c.stores, c.public)
		}
	}
	withBody := httptest.NewRequest("GET", "http://x.test/", strings.NewReader("x"))
	if ok, _ := l.stores(withBody, &http.Response{StatusCode: 200}); ok {
		t.Error("a GET whose body is part of the question is stored")
	}
	if ok, _ := (&ladder{}).stores(httptest.NewRequest("GET", "/", nil), &http.Response{StatusCode: 200}); ok {
		t.Error("a ladder without cache stores")
	}
}

// Alice's answer, which she got by her X-Api-Key, was the fallback of a client without one.
func TestAnswersByKeyAreNobodyElses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &outage{bad: status(500), good: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/public") {
				w.Header().Set("Cache-Control", "public")
			}
			io.WriteString(w, "of "+r.Header.Get("Who"))
		})}
		w.serve("up.test:80", up)
		yaml := func(more string) string {
			return one("retry: {max_retries: 0}\nlimit: {min: 100}\n", "fallback: {cache: {max_age: 1h"+more+"}}")
		}
		o := w.operate(yaml(", credentials: [x-my-key]"), nil)
		c := w.client(stranger)
		get := func(path, field, who string) answer {
			r, err := http.NewRequest("GET", "http://gateway.test:80"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Who", who)
			if field != "" {
				r.Header.Set(field, who)
			}
			return send(c, r)
		}
		fields := []string{"X-Api-Key", "api-key", "X_Api_Key", "X-Auth-Token", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token", "X-Auth-Request-User", "X-My-Key", "Authorization", "Cookie"}
		for i, field := range fields {
			get(fmt.Sprint("/", i), field, "alice")
			get(fmt.Sprint("/open/", i), "", "all")
			get(fmt.Sprint("/public/", i), field, "alice")
		}
		get("/unknown", "X-Your-Key", "alice")
		up.down.Store(true)
		for i, field := range fields {
			for path, want := range map[string]int{"/": 500, "/open/": 500, "/public/": 200} {
				if a := get(fmt.Sprint(path, i), field, "bob"); min(a.status, 500) != want { // 503, when the circuit has opened
					t.Errorf("%s, %s: bob gets %d %q", field, path, a.status, a.body)
				}
			}
			for path, want := range map[string]int{"/": 500, "/open/": 200, "/public/": 200} {
				if a := get(fmt.Sprint(path, i), "", "mallory"); min(a.status, 500) != want { // 503, when the circuit has opened
					t.Errorf("%s, %s: without credentials: %d %q", field, path, a.status, a.body)
				}
			}
		}
		// What was kept before a field was known to be one is not for everybody.
		if a := get("/unknown", "", "mallory"); a.status != 200 {
			t.Errorf("a field that nobody named: %d", a.status)
		}
		o.reload(yaml(", credentials: [x-my-key, x-your-key]"))
		if a := get("/unknown", "", "mallory"); a.status < 500 {
			t.Errorf("after the field was named: %d %q", a.status, a.body)
		}
	})
}

func TestStoreKeysTellRequestsApart(t *testing.T) {
	request := func(url, encoding string) *http.Request {
		r := httptest.NewRequest("GET", url, nil)
		if encoding != "" {
			r.Header.Set("Accept-Encoding", encoding)
		}
		return r
	}
	same := storeKey(request("http://x.test/a?b=1", ""))
	if got := storeKey(request("http://X.TEST/a?b=1", "")); got != same {
		t.Errorf("the case of a host matters: %q", got)
	}
	for _, other := range []*http.Request{request("http://y.test/a?b=1", ""), request("http://x.test/a?b=2", ""), request("http://x.test/a", ""),
		request("http://x.test/A?b=1", ""), request("http://x.test/a%3Fb=1", ""), request("http://x.test/a/?b=1", ""),
		request("http://x.test/a?b=1", "gzip"), request("http://x.test/%61?b=1", "br")} {
		if storeKey(other) == same {
			t.Errorf("%s %v has the same key", other.URL, other.Header)
		}
	}
}

// outage is an upstream that answers well until it is told to fail.
type outage struct {
	down atomic.Bool
	good http.Handler
	bad  http.Handler
}

func (o *outage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if o.down.Load() {
		o.bad.ServeHTTP(w, r)
		return
	}
	o.good.ServeHTTP(w, r)
}

const cached = "fallback: {cache: {max_age: 1m}}"

func TestLastGoodAnswerIsServedWithinItsAge(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		up := &outage{bad: status(500), good: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/x-balance")
			w.Header().Set("Cortex-Retry", "no")
			w.Header().Set("Age", "5")
			io.WriteString(w, "balance of "+r.URL.RawQuery)
		})}
		w.serve("up.test:80", up)
		g := w.gateway(one("retry: {max_retries: 1, base_delay: 1ms}", cached))
		c := w.client(stranger)
		if a := w.get(c, "http://gateway.test:80/b?me"); a.status != 200 || a.header.Get("Cortex-Fallback") != "" {
			t.Fatalf("answer %+v", a)
		}
		up.down.Store(true)
		time.Sleep(12 * time.Second)
		a := w.get(c, "http://gateway.test:80/b?me")
		if a.status != 200 || a.body != "balance of me" || a.header.Get("Content-Type") != "text/x-balance" {
			t.Errorf("fallback %+v", a)
		}
		for key, want := range map[string]string{"Cortex-Fallback": "cache;age=12", "Age": "17", "Cortex-Attempts": "2",
			"Cortex-Reason": "MAX_RETRIES_EXCEEDED", "Cortex-Retry": "", "Content-Length": "13"} {
			if v := a.header.Get(key); v != want {
				t.Errorf("%s %q, want %q", key, v, want)
			}
		}
		if a := w.do(c, "HEAD", "http://gateway.test:80/b?me", ""); a.status != 200 || a.body != "" || a.header.Get("Cortex-Fallback") == "" || a.header.Get("Content-Length") != "13" {
			t.Errorf("HEAD %+v", a)
		}
		if a := w.get(c, "http://gateway.test:80/b?you"); a.status != 500 {
			t.Errorf("another question: %+v", a)
		}
		if a := w.get(c, "http://gateway.test:80/b?me", "Cookie", "s=1"); a.status != 500 {
			t.Errorf("with a cookie: %+v", a)
		}
		if a := w.do(c, "POST", "http://gateway.test:80/b?me", "x"); a.status != 500 {
			t.Errorf("POST: %+v", a)
		}
		time.Sleep(49 * time.Second)
		if a := w.get(c, "http://gateway.test:80/b?me"); a.status != 500 {
			t.Errorf("older than a minute: %+v", a)
		}
		if tr := g.trafficOf(g.Targets()[0]); tr.CacheFallbacks != 2 || tr.CacheEntries != 1 || tr.CacheBytes < 13 || tr.Answers[5] != 4 {
			t.Errorf("%+v", tr)
		}
		if s := g.Targets()[0].Engine.Stats(); s.Successes != 1 {
			t.Errorf("a fallback counts as a success: %+v", s)
		}
	})
}

func TestFallbackInEveryKindOfTrouble(t *testing.T) {
	for name, bad := range map[string]http.Handler{"final 5xx": status(502), "hang": hang, "cut": abort} {
		inWorld(t, func(t *testing.T, w *world) {
			up := &outage{bad: bad, good: status(200)}
			w.serve("up.test:80", up)
			w.gateway(one("retry: {max_retries: 0}", "fallback: {cache: {}, static: {status: 202, body: pending, content_type: text/plain}}"))
			c := w.client(stranger)
			w.get(c, "http://gateway.test:80/")
			up.down.Store(true)
			if a := w.get(c, "http://gateway.test:80/"); a.status != 200 || a.body != "OK" || !strings.HasPrefix(a.header.Get("Cortex-Fallback"), "cache;age=") {
				t.Errorf("%s: from the cache: %+v", name, a)
			}
			a := w.do(c, "POST", "http://gateway.test:80/", "x")
			if a.status != 202 || a.body != "pending" || a.header.Get("Content-Type") != "text/plain" || a.header.Get("Cortex-Fallback") != "static" {
				t.Errorf("%s: static: %+v", name, a)
			}
			for i := 0; !strings.HasPrefix(a.header.Get("Cortex-Reason"), "CIRCUIT_OPEN"); i++ { // some may be shed before it opens
				if a = w.do(c, "POST", "http://gateway.test:80/", "x"); a.status != 202 || i > 1000 {
					t.Fatalf("%s: static: %+v", name, a)
				}
			}
			if n := a.header.Get("Cortex-Attempts"); n != "0" {
				t.Errorf("%s: %s attempts by an open circuit", name, n)
			}
		})
	}
}

func TestClientFaultsHaveNoFallback(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for _, code := range []int{400, 401, 404, 409, 422, 429, 501} {
			s := w.serve("up.test:80", status(code))
			addr := fmt.Sprintf("gateway-%d.test:80", code)
			w.gatewayAt(addr, one("retry: {max_retries: 0}", "fallback: {static: {status: 202, body: pending}}"))
			if a := w.get(w.client(stranger), "http://"+addr+"/"); a.status != code || a.header.Get("Cortex-Fallback") != "" {
				t.Errorf("%d: %+v", code, a)
			}
			s.Close()
		}
	})
}

// A fallback in the middle of a chain hid the failure from the layer that makes the retries: the call was never tried again.
func TestFallbackDoesNotHideFailureFromTheLayerThatRetries(t *testing.T) {
	for name, bad := range map[string]http.Handler{"answer": status(503), "broken": abort} {
		for _, method := range []string{"GET", "PUT", "POST"} {
			for mark, want := range map[string]int{"": 202, "0;retries=0": 202, "0;retries=3": 0, "2;retries=3": 0, "3;retries=3": 202, "4;retries=3": 202} {
				inWorld(t, func(t *testing.T, w *world) {
					w.serve("up.test:80", bad)
					w.gateway(one("retry: {base_delay: 1ms}", "fallback: {static: {status: 202, body: pending}}"))
					body := ""
					if method != "GET" {
						body = "x"
					}
					a := w.do(w.client(stranger), method, "http://gateway.test:80/", body, "Cortex-Attempt", mark)
					if want == 0 && (a.status < 500 || a.header.Get("Cortex-Fallback") != "" || a.header.Get("Cortex-Retry") != "") || want != 0 && a.status != want {
						t.Errorf("%s, %s, mark %q: %d %v", name, method, mark, a.status, a.header)
					}
				})
			}
		}
	}
}

func TestStaticWithoutBody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.gateway(one("retry: {max_retries: 0}", "fallback: {static: {status: 204}}"))
		for _, method := range []string{"GET", "HEAD", "POST"} {
			a := w.do(w.client(stranger), method, "http://gateway.test:80/", "")
			if a.err != nil || a.status != 204 || a.header.Get("Content-Length") != "" || a.header.Get("Cortex-Fallback") != "static" {
				t.Errorf("%s: %+v", method, a)
			}
		}
	})
}

// What is longer than the bound passes whole and is not kept, whether it says so at its beginning or not.
func TestLongAnswersPassWithoutBeingStored(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range maxStored/1000 + 1 {
				w.Write(make([]byte, 1000))
			}
		}))
		g := w.gateway(one("", cached))
		if a := w.get(w.client(stranger), "http://gateway.test:80/"); len(a.body) != (maxStored/1000+1)*1000 {
			t.Errorf("%d bytes, %v", len(a.body), a.err)
		}
		if tr := g.trafficOf(g.Targets()[0]); tr.CacheEntries != 0 {
			t.Errorf("%+v", tr)
		}
	})
}

func TestCacheIsBoundedByBytes(t *testing.T) {
	l := cacheLadder(t, config.Cache{MaxAge: time.Minute, MaxEntries: 1000, MaxBytes: 100_000}, nil)
	for i := range 1000 {
		r := httptest.NewRequest("GET", "http://x.test/"+strings.Repeat("p", i), nil)
		l.put(storeKey(r), header("X", strings.Repeat("h", 500)), make([]byte, 1000), true)
		if b := l.cache.Bytes(); b > 100_000 {
			t.Fatalf("%d bytes", b)
		}
	}
	if n := l.cache.Len(); n < 10 || n > 100 {
		t.Errorf("%d entries in 100,000 bytes: headers and keys must count", n)
	}
}
