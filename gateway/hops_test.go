package gateway

import (
	"net/http"
	"strings"
	"testing"
)

// A request that says how far it goes was passed on with the number as it came, so that it went too far.
func TestMaxForwards(t *testing.T) {
	inProtocols(t, one("", ""), func() http.Handler { return &counter{next: echoHeader} },
		func(t *testing.T, w *world, _ *Server, c *http.Client, h http.Handler) {
			up := h.(*counter)
			for _, q := range []struct {
				method, sent string
				want         string // at the target; empty = it gets no request
				status       int    // of the gateway's own answer
			}{
				{"OPTIONS", "1", "0", 0}, {"OPTIONS", "10", "9", 0}, {"TRACE", "007", "6", 0}, {"OPTIONS", "99999999999999999999999999", "99999998", 0},
				{"OPTIONS", "0", "", 204}, {"OPTIONS", "000", "", 204}, {"TRACE", "0", "", 405},
				{"OPTIONS", "", "", 400}, {"OPTIONS", "-1", "", 400}, {"OPTIONS", "+1", "", 400}, {"TRACE", "1.5", "", 400}, {"TRACE", "1,2", "", 400},
				{"TRACE", "0x1", "", 400}, {"OPTIONS", "1|1", "", 400},
				{"GET", "0", "0", 0}, {"GET", "x", "x", 0}, {"POST", "5", "5", 0},
			} {
				before := up.n.Load()
				r, _ := http.NewRequest(q.method, "http://gateway.test:80/", nil)
				r.Header["Max-Forwards"] = strings.Split(q.sent, "|")
				a := send(c, r)
				if q.status == 0 {
					if v := got(t, a)["Max-Forwards"]; len(v) != 1 || v[0] != q.want {
						t.Errorf("%s with %q: the target got %q, want %q", q.method, q.sent, v, q.want)
					}
					continue
				}
				if a.status != q.status || up.n.Load() != before || a.header.Get("X-Request-Id") == "" || q.status == 405 && a.header.Get("Allow") != "OPTIONS" {
					t.Errorf("%s with %q: %+v, %d requests at the target", q.method, q.sent, a, up.n.Load()-before)
				}
			}
			r, _ := http.NewRequest("OPTIONS", "http://gateway.test:80/x", nil)
			if v, ok := got(t, send(c, r))["Max-Forwards"]; ok {
				t.Errorf("none was sent, the target got %q", v)
			}
		})
}

// What a route lists is what the gateway can say of its target.
func TestMaxForwardsSaysWhatRoutesTake(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.gateway("targets:\n  up:\n    endpoints: [http://up.test:80]\nroutes:\n  - {path: /few, target: up, methods: [GET, OPTIONS]}\n  - {path: /few, target: up, methods: [PUT]}\n  - {path: /none, target: up, methods: [GET]}\n")
		c := w.client(stranger)
		if a := w.do(c, "OPTIONS", "http://gateway.test:80/few", "", "Max-Forwards", "0"); a.status != 204 || a.header.Get("Allow") != "GET, OPTIONS, PUT" || a.body != "" {
			t.Errorf("%+v", a)
		}
		if a := w.do(c, "OPTIONS", "http://gateway.test:80/none", "", "Max-Forwards", "0"); a.status != 405 || a.header.Get("Allow") != "GET" {
			t.Errorf("no route takes it: %+v", a)
		}
		if a := w.do(c, "OPTIONS", "http://gateway.test:80/else", "", "Max-Forwards", "0"); a.status != 404 {
			t.Errorf("no route has the path: %+v", a)
		}
	})
}

// A client that names the field in Connection would have taken away the bound that the next proxy goes by.
func TestMaxForwardsIsOfNoConnection(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", echoHeader)
		w.gateway(one("", ""))
		h := got(t, w.do(w.client(stranger), "OPTIONS", "http://gateway.test:80/", "", "Max-Forwards", "3", "Connection", "Max-Forwards"))
		if h.Get("Max-Forwards") != "2" {
			t.Errorf("the target got %v", h)
		}
	})
}
