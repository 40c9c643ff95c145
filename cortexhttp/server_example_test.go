package cortexhttp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// Protect a handler: under pressure the least important requests are refused first, with the reason and the time to come back.
func ExampleNewHandler() {
	busy := 8.0 // of 8 workers
	engine, err := cortex.New(cortex.Config{
		Name:  "orders",
		Queue: func() (current, capacity float64) { return busy, 8 },
		// The article's law makes a short example: it sheds by the score alone. Leave these two out for the adaptive one.
		Profile: cortex.Article,
		Weights: cortex.Weights{F: 0.2, L: 0.1, Q: 0.6, B: 0.1},
	})
	if err != nil {
		panic(err)
	}
	orders := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "ordered") })
	handler, err := cortexhttp.NewHandler(cortexhttp.HandlerConfig{
		Engine: engine,
		Trust:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, // may set X-Priority
	}, orders)
	if err != nil {
		panic(err)
	}

	order := func(from, priority string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "/orders", nil)
		r.RemoteAddr = from
		r.Header.Set(cortexhttp.HeaderPriority, priority)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	fmt.Println("a neighbour's important one:", order("10.0.0.7:4711", "9").Code)
	fmt.Println("what a stranger calls important:", order("203.0.113.9:4711", "10").Code)

	w := order("10.0.0.7:4711", "2")
	var problem cortexhttp.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
		panic(err)
	}
	fmt.Println(w.Header().Get(cortexhttp.HeaderReason), "-", problem.Detail)
	fmt.Println("pressure", problem.CPS, problem.State, "- try again after", w.Header().Get("Retry-After"), "s")
	// Output:
	// a neighbour's important one: 200
	// what a stranger calls important: 503
	// SHED_LOW_PRIORITY - Calls of a priority below 6 are shed at the moment; this one has 2.
	// pressure 0.6 PRESSURED - try again after 1 s
}

// Named tiers: who a request belongs to decides, not what it says of itself. N tiers want N+1 levels, so that at a pressure
// of 0.72 the floor is 3 of 5: the tiers 1 and 2 are shed and payments flow.
func ExampleHandlerConfig_tiers() {
	tiers := map[string]cortex.Priority{"batch": 1, "browse": 2, "checkout": 3, "payment": 4}
	routes := map[string]string{"/report": "batch", "/catalog": "browse", "/cart": "checkout", "/pay": "payment"}
	engine, err := cortex.New(cortex.Config{
		Name:    "shop",
		Levels:  len(tiers) + 1,
		Profile: cortex.Article, // sheds by the score alone, which makes a short example
		Weights: cortex.Weights{F: 0.1, L: 0.1, Q: 0.72, B: 0.08},
		Queue:   func() (current, capacity float64) { return 30, 30 },
	})
	if err != nil {
		panic(err)
	}
	handler, err := cortexhttp.NewHandler(cortexhttp.HandlerConfig{
		Engine: engine,
		Priority: func(r *http.Request) cortex.Priority {
			return tiers[routes[r.URL.Path]] // 0, shed first, for what is not listed
		},
	}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	if err != nil {
		panic(err)
	}
	for _, path := range []string{"/report", "/catalog", "/cart", "/pay", "/healthz"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /report 503
	// /catalog 503
	// /cart 200
	// /pay 200
	// /healthz 200
}
