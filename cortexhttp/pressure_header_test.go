package cortexhttp

import (
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

func TestFormatPressure(t *testing.T) {
	for _, c := range []struct {
		p    cortex.Pressure
		want string
	}{
		{cortex.Pressure{}, "0.0000;q=0.0000;shed=0.0000;state=HEALTHY"},
		{cortex.Pressure{CPS: 0.4213, Signals: cortex.Signals{Q: 0.61}, Shed: 0.12, State: cortex.Elevated}, "0.4213;q=0.6100;shed=0.1200;state=ELEVATED"},
		{cortex.Pressure{CPS: 1, Signals: cortex.Signals{Q: 1}, Shed: 1, State: cortex.Emergency}, "1.0000;q=1.0000;shed=1.0000;state=EMERGENCY"},
		{cortex.Pressure{CPS: math.NaN(), Signals: cortex.Signals{Q: math.Inf(1)}, Shed: math.Inf(-1), State: 99}, "0.0000;q=1.0000;shed=0.0000;state=EMERGENCY"},
		{cortex.Pressure{CPS: 1.5, Signals: cortex.Signals{Q: -1}, Shed: 0.99999, State: cortex.Pressured}, "1.0000;q=0.0000;shed=1.0000;state=PRESSURED"},
		{cortex.Pressure{CPS: math.MaxFloat64, Shed: math.SmallestNonzeroFloat64}, "1.0000;q=0.0000;shed=0.0000;state=HEALTHY"},
	} {
		if got := FormatPressure(c.p); got != c.want {
			t.Errorf("FormatPressure(%+v) = %q, want %q", c.p, got, c.want)
		}
	}
}

func TestParsePressure(t *testing.T) {
	good := map[string]Reported{
		"0.4213;q=0.6100;shed=0.1200;state=ELEVATED": {CPS: 0.4213, Q: 0.61, Shed: 0.12, State: cortex.Elevated},
		"0;q=1;shed=0.5;state=EMERGENCY":             {Q: 1, Shed: 0.5, State: cortex.Emergency},
		"1.000000;q=0.000001;shed=0;state=HEALTHY":   {CPS: 1, Q: 0.000001},
	}
	for value, want := range good {
		if got, ok := ParsePressure(value); !ok || got != want {
			t.Errorf("ParsePressure(%q) = %+v, %v; want %+v", value, got, ok, want)
		}
	}
	const rest = ";q=0.6100;shed=0.1200;state=ELEVATED"
	for _, value := range []string{
		"", "0.4213", rest, "0.4213" + rest + ";", "0.4213" + rest + " ", " 0.4213" + rest, "0.4213" + rest + rest,
		"1.0001" + rest, "2" + rest, "-0.1" + rest, "+0.1" + rest, "NaN" + rest, "Inf" + rest, "1e-1" + rest, ".5" + rest, "0." + rest,
		"00.5" + rest, "0.1234567" + rest, "0.5.5" + rest, "0,5" + rest, "0x1" + rest, "0." + strings.Repeat("0", 1<<16) + rest,
		"0.4213;shed=0.1200;q=0.6100;state=ELEVATED", "0.4213;q=0.6100;state=ELEVATED", "0.4213; q=0.6100; shed=0.1200; state=ELEVATED",
		"0.4213;q=;shed=0.1200;state=ELEVATED", "0.4213;q=1.5;shed=0.1200;state=ELEVATED", "0.4213;q=0.6100;shed=9;state=ELEVATED",
		"0.4213;q=0.6100;shed=0.1200;state=elevated", "0.4213;q=0.6100;shed=0.1200;state=", "0.4213;q=0.6100;shed=0.1200;state=State(9)",
		"0.4213;q=0.6100;shed=0.1200;state=ELEVATED, 0.9;q=0.9;shed=0.9;state=EMERGENCY",
	} {
		if got, ok := ParsePressure(value); ok || got != (Reported{}) {
			t.Errorf("ParsePressure(%.60q) = %+v, %v", value, got, ok)
		}
	}
}

func FuzzParsePressure(f *testing.F) {
	for _, s := range []string{"0.4213;q=0.6100;shed=0.1200;state=ELEVATED", "1;q=1;shed=1;state=EMERGENCY", "0.5", "", ";q=;shed=;state=",
		"1.0001;q=0;shed=0;state=HEALTHY", "0.9;q=0.9;shed=99999999999999999999;state=HEALTHY", "\xff;q=\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, ok := ParsePressure(s)
		if !ok {
			if r != (Reported{}) {
				t.Fatalf("%q: %+v beside not ok", s, r)
			}
			return
		}
		for _, v := range [...]float64{r.CPS, r.Q, r.Shed} {
			if !(v >= 0 && v <= 1) {
				t.Fatalf("%q: %v out of range", s, v)
			}
		}
		again, ok := ParsePressure(FormatPressure(cortex.Pressure{CPS: r.CPS, Signals: cortex.Signals{Q: r.Q}, Shed: r.Shed, State: r.State}))
		if !ok || again.State != r.State || math.Abs(again.CPS-r.CPS) > 5.01e-5 || math.Abs(again.Q-r.Q) > 5.01e-5 || math.Abs(again.Shed-r.Shed) > 5.01e-5 {
			t.Fatalf("%q: %+v read back as %+v, %v", s, r, again, ok)
		}
	})
}

// What an engine reports is what a client reads, on good answers and refusals, whatever the handler writes or does not.
func TestPressureReachesTheClient(t *testing.T) {
	var clock handClock
	fill := 0.5
	e := serverEngine(t, cortex.Config{Profile: cortex.Article, Weights: overloaded.Weights, Now: clock.now,
		Queue: func() (float64, float64) { return fill, 1 }})
	h := guardHandler(t, HandlerConfig{Engine: e}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/status":
			w.WriteHeader(404)
		case "/body":
			w.Write([]byte("ok"))
		case "/none":
			w.WriteHeader(204)
		case "/flush":
			w.(http.Flusher).Flush()
		case "/copied": // as a proxy copies what its target reports of itself
			w.Header().Add(HeaderPressure, "0.9999;q=0.9999;shed=0.9999;state=EMERGENCY")
			w.WriteHeader(200)
		}
	})
	srv := httptest.NewServer(h)
	defer srv.Close()
	for _, path := range []string{"/status", "/body", "/none", "/flush", "/silent", "/copied"} {
		for _, method := range []string{"GET", "HEAD"} {
			resp := do(t, srv.Client(), method, srv.URL+path)
			v := resp.Header.Values(HeaderPressure)
			if len(v) != 1 {
				t.Fatalf("%s %s: %d lines of %s: %q", method, path, len(v), HeaderPressure, v)
			}
			got, ok := ParsePressure(v[0])
			want := e.Pressure()
			if !ok || got.CPS != want.CPS || got.Q != want.Signals.Q || got.Shed != want.Shed || got.State != want.State {
				t.Errorf("%s %s: read %+v, engine has %+v", method, path, got, want)
			}
			clock.advance(pressureAge)
		}
	}
	fill = 1
	clock.advance(time.Second)
	resp := do(t, srv.Client(), "GET", srv.URL+"/body")
	got, ok := ParsePressure(resp.Header.Get(HeaderPressure))
	if resp.StatusCode != 503 || !ok || got.CPS != 0.7 || got.State != cortex.Pressured {
		t.Errorf("answer %d reports %q", resp.StatusCode, resp.Header.Get(HeaderPressure))
	}
}

func TestReportedPressureIsAtMostTenMillisecondsOld(t *testing.T) {
	var clock handClock
	fill := 0.0
	e := serverEngine(t, cortex.Config{Profile: cortex.Article, Weights: overloaded.Weights, Now: clock.now,
		Queue: func() (float64, float64) { return fill, 1 }})
	h := guardHandler(t, HandlerConfig{Engine: e, Default: new(cortex.Priority(10))}, answerOK)
	clock.advance(time.Second)
	ask(h, "GET", "/", stranger)
	fill = 1
	clock.advance(pressureAge)
	if r, _ := ParsePressure(ask(h, "GET", "/", stranger).Header().Get(HeaderPressure)); r.Q != 1 {
		t.Errorf("Q reported as %v, is 1", r.Q)
	}
}
