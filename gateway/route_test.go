package gateway

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
)

func tableOf(specs ...string) *table { // "path" or "METHOD,METHOD path"
	var routes []*route
	for _, s := range specs {
		r := &route{path: s}
		if methods, p, ok := strings.Cut(s, " "); ok {
			r.path, r.methods = p, strings.Split(methods, ",")
		}
		routes = append(routes, r)
	}
	return newTable(routes)
}

func TestRouteLongestPrefixOfWholeSegments(t *testing.T) {
	tb := tableOf("/", "/api", "/api/v1", "/api/v1/pay", "/static")
	for p, want := range map[string]string{
		"/":                   "/",
		"":                    "/",
		"*":                   "/",
		"/x":                  "/",
		"/api":                "/api",
		"/api/":               "/api",
		"/apix":               "/",
		"/api/v":              "/api",
		"/api/v1":             "/api/v1",
		"/api/v1/":            "/api/v1",
		"/api/v10":            "/api",
		"/api/v1/pay":         "/api/v1/pay",
		"/api/v1/pay/1":       "/api/v1/pay",
		"/api/v1/payer":       "/api/v1",
		"/API":                "/",
		"//api//v1":           "/api/v1",
		"/static/../api/v1/x": "/api/v1", // not the way into /api under the name of /static
		"/api/v1/..":          "/api",
		"/../api":             "/api",
		"/api/v1/pay/../../":  "/api",
		"/./api/./v1/.":       "/api/v1",
	} {
		if r := tb.find("GET", p); r == nil || r.path != want {
			t.Errorf("%q: %+v, want %s", p, r, want)
		}
	}
}

func TestRouteWithoutRoot(t *testing.T) {
	tb := tableOf("/a/b", "/c")
	for p, want := range map[string]bool{"/": false, "": false, "/a": false, "/a/b": true, "/a/bc": false, "/c/d": true, "/a/b/c/d/e": true} {
		if got := tb.find("GET", p) != nil; got != want {
			t.Errorf("%q: %v", p, got)
		}
	}
}

func TestRouteByMethod(t *testing.T) {
	tb := tableOf("/", "POST,PUT /orders", "/orders", "GET /orders/list", "DELETE /only")
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/orders", "/orders"},
		{"POST", "/orders/1", "POST /orders"},
		{"PUT", "/orders", "POST /orders"},
		{"GET", "/orders/list", "GET /orders/list"},
		{"POST", "/orders/list", "POST /orders"}, // the longer path does not take it
		{"DELETE", "/only", "DELETE /only"},
		{"GET", "/only", "/"},
	} {
		r := tb.find(c.method, c.path)
		if r == nil {
			t.Errorf("%s %s: none", c.method, c.path)
			continue
		}
		got := r.path
		if len(r.methods) > 0 {
			got = r.methods[0] + " " + got
		}
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.method, c.path, got, c.want)
		}
	}
	none := tableOf("POST,PUT /orders", "DELETE /orders")
	if r := none.find("GET", "/orders"); r != nil {
		t.Errorf("a route that does not take the method: %+v", r)
	}
	if got := none.allowed("/orders/1"); !slices.Equal(got, []string{"DELETE", "POST", "PUT"}) {
		t.Errorf("allowed %v", got)
	}
	if got := none.allowed("/x"); len(got) != 0 {
		t.Errorf("allowed on no route %v", got)
	}
}

// The table against asking every route.
func TestRouteAgainstNaiveSearch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	segment := func() string { return []string{"a", "b", "ab", "abc", "x"}[rng.IntN(5)] }
	random := func(depth int) string {
		p := ""
		for range rng.IntN(depth + 1) {
			p += "/" + segment()
		}
		return p
	}
	for range 200 {
		seen := map[string]bool{}
		var specs []string
		for range 1 + rng.IntN(20) {
			p := random(4)
			if p == "" {
				p = "/"
			}
			if !seen[p] {
				seen[p] = true
				specs = append(specs, p)
			}
		}
		tb := tableOf(specs...)
		for range 200 {
			p := random(6)
			switch rng.IntN(4) {
			case 0:
				p += "/"
			case 1:
				p += "/../" + segment()
			case 2:
				p = "/" + p
			}
			clean := path.Clean("/" + p)
			want := ""
			for _, s := range specs {
				if (s == "/" || clean == s || strings.HasPrefix(clean, s+"/")) && len(s) > len(want) {
					want = s
				}
			}
			got := ""
			if r := tb.find("GET", p); r != nil {
				got = r.path
			}
			if got != want {
				t.Fatalf("routes %q, path %q: %q, want %q", specs, p, got, want)
			}
		}
	}
}

func thousandRoutes() *table {
	var specs []string
	for i := range 1000 {
		specs = append(specs, fmt.Sprintf("/service-%d/v%d/things", i, i%3))
	}
	return tableOf(specs...)
}

func TestRouteDoesNotAllocate(t *testing.T) {
	tb := thousandRoutes()
	if n := testing.AllocsPerRun(100, func() {
		if tb.find("GET", "/service-700/v1/things/17/parts") == nil {
			t.Fatal("not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A path of many slashes must not make the gateway search for long: what is longer than any route is cut off first.
func TestRouteOfHugePathIsCheap(t *testing.T) {
	tb := tableOf("/a/b/c")
	looked := 0
	for key, more := tb.first(strings.Repeat("/x", 500_000)), true; more; key, more = parent(key) {
		looked++
	}
	if looked > 4 {
		t.Errorf("%d look-ups", looked)
	}
}

func BenchmarkRoute1000(b *testing.B) {
	tb := thousandRoutes()
	b.ReportAllocs()
	for b.Loop() {
		tb.find("GET", "/service-700/v1/things/17/parts")
	}
}
