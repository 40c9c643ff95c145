package cortexhttp

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

var seenPressure = cortex.Pressure{CPS: 0.4213, Evidence: 0.5266, Signals: cortex.Signals{F: 0.2, L: 0.0004, Q: 0.61, B: 1, C: 0.5},
	State: cortex.Elevated, Floor: 4, Shed: 0.12, Circuit: breaker.HalfOpen, InFlight: 12, Limit: 32.25, Tokens: 9.5,
	Timeout: 250*time.Millisecond + time.Microsecond}

func ExampleFormatExplain() {
	fmt.Println(FormatExplain(Explanation{
		Pressure: cortex.Pressure{CPS: 0.12, Evidence: 0.15, Signals: cortex.Signals{F: 0.4}, InFlight: 3, Limit: 24.5, Tokens: 87.2,
			Timeout: 250 * time.Millisecond},
		Priority: 7,
		Report:   &Report{Attempts: 2, Reason: cortex.ReasonBudget},
	}))
	// Output:
	// cps=0.12, evidence=0.15, f=0.4, l=0.0, q=0.0, b=0.0, c=0.0, state=HEALTHY, circuit=closed, priority=7, floor=0, shed=0.0, in-flight=3, limit=24.5, timeout-ms=250, tokens=87.2, attempts=2, reason=BUDGET_EXHAUSTED
}

func TestFormatExplain(t *testing.T) {
	const seen = "cps=0.421, evidence=0.527, f=0.2, l=0.0, q=0.61, b=1.0, c=0.5, state=ELEVATED, circuit=half-open, priority=-1, floor=4, " +
		"shed=0.12, in-flight=12, limit=32.25, timeout-ms=251, tokens=9.5"
	const refused = "cps=0.9, evidence=0.875, f=0.1, l=0.0, q=0.0, b=0.0, c=1.0, state=EMERGENCY, circuit=open, priority=-1, floor=10, " +
		"shed=0.12, in-flight=12, limit=32.25, timeout-ms=251, tokens=9.5"
	rej := &cortex.Rejection{Reason: cortex.ReasonCircuitOpen, CPS: 0.9, Evidence: 0.875, Signals: cortex.Signals{F: 0.1, C: 1}, Floor: 10, Circuit: breaker.Open}
	for _, c := range []struct {
		report *Report
		want   string
	}{
		{nil, seen},
		{&Report{Attempts: 1}, seen + ", attempts=1"},
		{&Report{Attempts: 3, Hidden: 1, Reason: cortex.ReasonNotRetryable, ReplaySkipped: ReplayNoMemory},
			seen + ", attempts=3, hidden=1, reason=NOT_RETRYABLE, replay-skipped=NO_MEMORY"},
		{&Report{Reason: cortex.ReasonCircuitOpen, Rejection: rej}, refused + ", attempts=0, reason=CIRCUIT_OPEN"},
		{&Report{Attempts: 1, Shadow: true}, seen + ", attempts=1, shadow"},
		{&Report{Attempts: 1, Shadow: true, WouldRefuse: rej}, refused + ", attempts=1, shadow, would-refuse=CIRCUIT_OPEN"},
		{&Report{Attempts: 1, Shadow: true, WouldCut: true, WouldRetry: true, WouldDelay: 1500 * time.Microsecond},
			seen + ", attempts=1, shadow, would-cut, would-retry-ms=2"},
		{&Report{Attempts: 1, Shadow: true, WouldReason: cortex.ReasonBudget}, seen + ", attempts=1, shadow, would-reason=BUDGET_EXHAUSTED"},
	} {
		if got := FormatExplain(Explanation{Pressure: seenPressure, Priority: -1, Report: c.report}); got != c.want {
			t.Errorf("\n got %s\nwant %s", got, c.want)
		}
	}
}

func TestExplainTellsOfAnOperatorsOrder(t *testing.T) {
	for forcing, want := range map[breaker.Forcing]string{breaker.Automatic: "circuit=open, priority", breaker.ForcedOpen: "circuit=open, forced=open, priority",
		breaker.ForcedClosed: "circuit=open, forced=closed, priority"} {
		if v := FormatExplain(Explanation{Pressure: cortex.Pressure{Circuit: breaker.Open, Forcing: forcing}}); !strings.Contains(v, want) {
			t.Errorf("%s: %s", forcing, v)
		}
	}
}

// A dictionary of RFC 9651 with the members that are written here: decimals, integers, tokens, and a bare key for true.
var explainGrammar = regexp.MustCompile(`^([a-z*][a-z0-9_.*-]*(=(-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}|[A-Za-z*][!#$%&'*+.^_` + "`" + `|~0-9A-Za-z:/-]*))?(, |$))+$`)

// Whatever the numbers, the value is within the grammar and the bound.
func TestExplainIsAlwaysADictionary(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	number := func() float64 {
		return [...]float64{0, 1, -1, 0.9996, 0.0005, 999999999999.9999, -1e300, math.Inf(1), math.Inf(-1), math.NaN(), r.Float64()}[r.IntN(11)]
	}
	whole := func() int64 { return [...]int64{0, 1, -1, math.MaxInt64, math.MinInt64, 1e15, r.Int64()}[r.IntN(7)] }
	for range 20_000 {
		signals := cortex.Signals{F: number(), L: number(), Q: number(), B: number(), C: number()}
		rej := &cortex.Rejection{Reason: cortex.Reason(r.IntN(256)), CPS: number(), Evidence: number(), Signals: signals, Floor: cortex.Priority(whole()), Circuit: breaker.State(r.IntN(256))}
		x := Explanation{Priority: cortex.Priority(whole()), Pressure: cortex.Pressure{CPS: number(), Evidence: number(), Signals: signals, State: cortex.State(r.IntN(256)),
			Floor: cortex.Priority(whole()), Shed: number(), Circuit: breaker.State(r.IntN(256)), InFlight: int(whole()), Limit: number(), Tokens: number(),
			Timeout: time.Duration(whole()), Forcing: breaker.Forcing(r.IntN(256))}, Report: &Report{Attempts: int(whole()), Hidden: int(whole()), Reason: cortex.Reason(r.IntN(256)),
			ReplaySkipped: ReplaySkip(r.IntN(256)), Shadow: true, WouldCut: r.IntN(2) == 0, WouldRetry: r.IntN(2) == 0, WouldDelay: time.Duration(whole()),
			WouldReason: cortex.Reason(r.IntN(256))}}
		if r.IntN(2) == 0 {
			x.Report.WouldRefuse = rej
		}
		v := FormatExplain(x)
		if !explainGrammar.MatchString(v) || strings.HasSuffix(v, ", ") || len(v) >= maxExplain {
			t.Fatalf("%d bytes: %s", len(v), v)
		}
	}
}

func TestAsksToExplain(t *testing.T) {
	for v, want := range map[string]bool{"1": true, "": false, "0": false, "true": false, "1, 1": false, " 1": false} {
		if got := AsksToExplain(http.Header{HeaderExplain: {v}}); got != want {
			t.Errorf("%q: %t", v, got)
		}
	}
	if AsksToExplain(http.Header{}) || AsksToExplain(http.Header{HeaderExplain: {"1", "1"}}) {
		t.Error("none or two of them are taken for one")
	}
}
