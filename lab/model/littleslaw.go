package model

import (
	"fmt"
	"math"
	"time"

	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// LittlesLawInput is what [LittlesLaw] depends on.
type LittlesLawInput struct {
	Threads    int           // in the pool, 1 to 1,000,000
	Slow, Fast time.Duration // how long a slow and a fast call takes, 1 µs to 24 h
	SlowShare  float64       // share of the calls that are slow, 0 to 1
	Rate       float64       // calls per second, 0 to 1e9
}

// DefaultLittlesLaw is the claim's case: 100 threads, calls of 5 s, with 1 % of them slow.
func DefaultLittlesLaw() LittlesLawInput {
	return LittlesLawInput{Threads: 100, Slow: 5 * time.Second, Fast: 50 * time.Millisecond, SlowShare: 0.01, Rate: 500}
}

func meanService(slow, fast, share float64) float64 { return share*slow + (1-share)*fast }

// LittlesLaw tells how many calls per second a pool of threads can make when some of the calls are slow.
func LittlesLaw(in LittlesLawInput) (Report, error) {
	err := firstError(intWithin("threads", in.Threads, 1, 1_000_000), durationWithin("slow", in.Slow, time.Microsecond, 24*time.Hour),
		durationWithin("fast", in.Fast, time.Microsecond, 24*time.Hour), within("slow-share", in.SlowShare, 0, 1), within("rate", in.Rate, 0, 1e9))
	if err == nil && in.Fast > in.Slow {
		err = &InputError{"fast", in.Fast, fmt.Sprintf("a duration up to that of a slow call, %v", in.Slow)}
	}
	if err != nil {
		return Report{}, err
	}
	slow, fast, threads := in.Slow.Seconds(), in.Fast.Seconds(), float64(in.Threads)
	saturation := func(share float64) float64 { return threads / meanService(slow, fast, share) }
	claimed := threads / slow
	r := Report{
		Model: "littles-law",
		Claim: fmt.Sprintf("%d threads and slow calls of %v: the pool saturates at %s calls/s", in.Threads, in.Slow, short(claimed)),
		Formula: []string{
			"N = λ·E[S]: threads in use = calls per second × mean time of a call",
			"saturation = threads / E[S], E[S] = x·slow + (1 − x)·fast with a share x of slow calls",
		},
		Inputs: []Input{{Name: "threads", Value: in.Threads}, {Name: "slow", Value: in.Slow}, {Name: "fast", Value: in.Fast}, {Name: "slow-share", Value: in.SlowShare},
			{"rate", in.Rate, "calls/s"}},
	}
	t := Table{Title: "Saturation by the share of slow calls", Columns: []Column{{"slow share", ""}, {"E[S]", "s"}, {"saturation", "calls/s"},
		{"threads used at " + short(in.Rate) + "/s", ""}, {"fits", ""}}}
	for _, x := range with([]float64{0, 0.001, 0.01, 0.1, 0.5, 1}, in.SlowShare) {
		used := in.Rate * meanService(slow, fast, x)
		t.Rows = append(t.Rows, []any{x, meanService(slow, fast, x), saturation(x), min(used, threads), used < threads})
	}
	r.Tables = []Table{t}
	got := saturation(in.SlowShare)
	switch {
	case got <= claimed*1.005:
		r.Verdict, r.Because = Holds, fmt.Sprintf("with a slow share of %s it saturates at %s calls/s.", percent(in.SlowShare), short(got))
	default:
		r.Verdict = HoldsOnlyIf
		r.Because = fmt.Sprintf("every call is slow. With %s slow, E[S] is %s and the pool saturates at %s calls/s.", percent(in.SlowShare), seconds(meanService(slow, fast, in.SlowShare)), short(got))
	}
	r.Notes = []string{"A mean: at the point of saturation the queue already grows without bound, and bursts fill the pool earlier. What a hang does is to raise x to 1 for as long as it lasts."}
	chart := plot.Chart{Title: fmt.Sprintf("Saturation of %d threads", in.Threads), X: "share of slow calls", Y: "calls/s", LogX: true, LogY: true, Series: []plot.Series{
		logCurve("saturation", 1e-4, 1, 300, saturation)}}
	if in.Rate > 0 {
		chart.Series = append(chart.Series, plot.Series{Name: "offered", X: []float64{1e-4, 1}, Y: []float64{in.Rate, in.Rate}, Dashed: true})
	}
	if in.SlowShare >= 1e-4 && !math.IsNaN(got) {
		chart.Series = append(chart.Series, plot.Series{Name: "here", Dots: true, X: []float64{in.SlowShare}, Y: []float64{got}})
	}
	r.Panels = []plot.Panel{chart}
	return r, nil
}
