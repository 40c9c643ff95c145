package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/backoff"
)

func kinds(mean time.Duration) []Recovery {
	return []Recovery{{Kind: "exponential", Mean: mean}, {Kind: "lognormal", Mean: mean, Sigma: 1.2}, {Kind: "uniform", Mean: mean}, {Kind: "constant", Mean: mean}, {Kind: "pareto", Mean: mean, Alpha: 2.5}}
}

// draw returns an outage of the length that a share u of all outages exceeds, by bisection of survival.
func drawOutage(r Recovery, u float64) float64 {
	lo, hi := 0.0, r.Mean.Seconds()
	for r.survival(hi) > u {
		hi *= 2
	}
	for range 40 {
		if mid := (lo + hi) / 2; r.survival(mid) > u {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

func TestRecoveryHasItsMean(t *testing.T) {
	for _, r := range kinds(20 * time.Second) {
		near(t, r.Kind+": mean", r.residual(0), 20, 1e-9)
		if r.survival(0) != 1 || r.survival(1e12) > 1e-12 {
			t.Errorf("%s: survival %v to %v", r.Kind, r.survival(0), r.survival(1e12))
		}
		for _, from := range []float64{0.5, 5, 25} { // residual is the integral of survival
			const steps = 20_000
			sum, to := 0.0, 20_000.0
			for i := range steps { // evenly in the logarithm
				a := from * math.Pow(to/from, float64(i)/steps)
				b := from * math.Pow(to/from, float64(i+1)/steps)
				sum += (b - a) * r.survival((a+b)/2)
			}
			near(t, fmt.Sprintf("%s from %v", r.Kind, from), r.residual(from), sum, 1e-2)
		}
	}
}

// A constant delay in an outage without memory has a closed form.
func TestConstantDelayInAnOutageWithoutMemory(t *testing.T) {
	draws := newStreams(2, 1)
	for _, d := range []time.Duration{10 * time.Millisecond, time.Second, 10 * time.Second, 100 * time.Second} {
		w := waiter{Config: backoff.Config{Law: backoff.Exponential, Base: d, Max: d}} // at its ceiling it has no jitter
		wasted, lost := w.expect(Recovery{Kind: "exponential", Mean: 10 * time.Second}, draws)
		x := math.Exp(-d.Seconds() / 10)
		near(t, fmt.Sprint("wasted at ", d), wasted, x/(1-x), 2e-3*(1+x/(1-x)))
		near(t, fmt.Sprint("lost at ", d), lost, d.Seconds()/(1-x)-10, 2e-2*d.Seconds())
	}
}

// Every law in every kind of outage, against a caller that waits and tries, drawn.
func TestExpectIsWhatACallerMeets(t *testing.T) {
	in := DefaultBackoff()
	in.Max = 5 * time.Second
	laws, names := in.laws()
	rng := rand.New(rand.NewPCG(3, 3))
	draws := newStreams(200, 5)
	for _, rec := range kinds(4 * time.Second) {
		for i, w := range laws {
			const outages = 3000
			var wasted, lost, lostSquare float64
			for range outages {
				end := drawOutage(rec, 1-rng.Float64())
				at, previous := 0.0, time.Duration(0)
				for n := 0; ; n++ {
					previous = w.Delay(backoff.Input{Attempt: n, CPS: w.cps, Previous: previous}, rng.Float64)
					if at += previous.Seconds(); at >= end {
						break
					}
					wasted++
				}
				lost += at - end
				lostSquare += (at - end) * (at - end)
			}
			wasted, lost = wasted/outages, lost/outages
			gotWasted, gotLost := w.expect(rec, draws)
			se := math.Sqrt((lostSquare/outages - lost*lost) / outages)
			near(t, fmt.Sprintf("%s, %s: wasted", rec.Kind, names[i]), gotWasted, wasted, 0.06*wasted+0.1)
			near(t, fmt.Sprintf("%s, %s: lost", rec.Kind, names[i]), gotLost, lost, 5*se+0.05*lost+0.02)
		}
	}
}

// A law that is far below the length of the outage is taken for a renewal process: not noticeably different, and soon done.
func TestManyAttemptsAreNotCountedOneByOne(t *testing.T) {
	draws := newStreams(200, 1)
	for _, l := range []backoff.Law{backoff.FullJitter, backoff.EqualJitter, backoff.Decorrelated, backoff.Exponential} {
		w := waiter{Config: backoff.Config{Law: l, Base: 10 * time.Millisecond, Max: 40 * time.Millisecond}}
		mean, _ := w.steady(draws)
		wasted, lost := w.expect(Recovery{Kind: "exponential", Mean: 10 * time.Minute}, draws)
		near(t, l.String()+": wasted × mean delay", wasted*mean, 600, 6)
		if lost <= 0 || lost > 0.1 {
			t.Errorf("%v: %v s lost", l, lost)
		}
	}
}

func TestBackoffOfTheClaim(t *testing.T) {
	in := DefaultBackoff()
	r, err := Backoff(in)
	if err != nil || r.Verdict != HoldsOnlyIf || !strings.Contains(r.Because, "60 s to 10 min") {
		t.Fatalf("%v %v %v", r.Verdict, r.Because, err)
	}
	// The article's schedule: 100 ms doubling, with a fifth on top, 30 s at most.
	for n, want := range []Range{{0.1, 0.12}, {0.2, 0.24}, {0.4, 0.48}} {
		if got := r.Tables[0].Rows[n][1].(Range); got != want {
			t.Errorf("attempt %d: %v, want %v", n, got, want)
		}
	}
	if got := r.Tables[0].Rows[9][1].(Range); got.To != 30 {
		t.Errorf("attempt 9: %v", got)
	}
	// The pressure law at CPS 0.7 waits up to 8 times as long.
	if calm, pressed := r.Tables[0].Rows[0][5].(Range), r.Tables[0].Rows[0][7].(Range); pressed.To != 8*calm.To {
		t.Errorf("%v under pressure, %v without", pressed, calm)
	}
	// No better setting on the ladder, for the means in the table.
	best := map[string]float64{}
	for _, row := range r.Tables[2].Rows {
		best[row[0].(string)] = row[6].(float64)
		if row[3].(float64) < row[6].(float64)*(1-1e-9) {
			t.Errorf("as given is better than the best: %v", row)
		}
	}
	draws := newStreams(in.Paths, in.Seed)
	for _, base := range []time.Duration{50 * time.Millisecond, time.Second, 5 * time.Second} {
		w, l := waiter{Config: backoff.Config{Law: backoff.Exponential, Base: base, Max: max(base, 20*time.Second)}}.expect(Recovery{Kind: "exponential", Mean: time.Minute}, draws)
		if w+l < best["60 s"]*0.99 {
			t.Errorf("%v costs %v, the best is said to be %v", base, w+l, best["60 s"])
		}
	}
	// Without memory a constant delay of about √(2·mean·a/b) is best: 7.7 s for 30 s, and the ladder has 5 and 10.
	if !strings.Contains(r.Because, "the best is 10s to 10s") && !strings.Contains(r.Because, "the best is 5s to 10s") {
		t.Error(r.Because)
	}
	in.AttemptCost = 1000 // a wasted attempt is a catastrophe: wait longer
	if r, err := Backoff(in); err != nil || r.Verdict != False {
		t.Errorf("%v %v %v", r.Verdict, r.Because, err)
	}
	in.AttemptCost, in.SecondCost, in.Max = 0, 1, 100*time.Millisecond // only time counts
	if r, err := Backoff(in); err != nil || r.Verdict == Holds {
		t.Errorf("%v %v %v", r.Verdict, r.Because, err)
	}
}

func TestRightRecoveriesInWords(t *testing.T) {
	all := recoveries()
	for _, c := range []struct {
		right []time.Duration
		want  string
	}{{all, "100 ms to 10 min"}, {all[:1], "100 ms"}, {[]time.Duration{all[0], all[1], all[9]}, "100 ms to 500 ms or 10 min"}} {
		if got := spans(c.right); got != c.want {
			t.Errorf("%v: %q, want %q", c.right, got, c.want)
		}
	}
}
