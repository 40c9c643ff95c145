package limit

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// A plant is a target of a fixed capacity under an offered load, as a fluid: what is admitted and cannot be served stays in flight.
// The limiter closes the loop.
type plant struct {
	l                       *Limiter
	offered, capacity, idle float64 // calls a second, calls a second, s of service
	timeout                 time.Duration
	tick                    time.Duration
	limit429                float64 // successes a second beyond which the target answers 429, at once

	now                         time.Duration
	n                           float64 // in flight
	owedOK, owedIn, owedTooMuch float64
	shed                        float64
}

func (p *plant) run(length time.Duration, each func()) {
	dt := p.tick.Seconds()
	for end := p.now + length; p.now < end; {
		p.now += p.tick
		in := p.offered * (1 - p.shed) * dt
		over := 0.0
		if p.limit429 > 0 {
			over = math.Max(0, in-p.limit429*dt)
		}
		served := math.Min(p.n*dt/p.idle, p.capacity*dt) // without a queue each takes its service time
		p.n += in - over - served
		p.owedOK += served
		p.owedIn += p.offered * dt
		p.owedTooMuch += over
		s := Sample{Now: p.now, InFlight: int64(math.Round(p.n)), Area: p.n * dt, Success: uint64(p.owedOK), Throttled: uint64(p.owedTooMuch),
			Timeout: p.timeout, P99: time.Duration(3 * p.idle * 1e9), Calm: p.shed == 0, Gauge: -1,
			Offered: &[MaxLevels + 1]uint64{5: uint64(p.owedIn)}}
		p.owedOK -= float64(s.Success)
		p.owedIn -= float64(s.Offered[5])
		p.owedTooMuch -= float64(s.Throttled)
		p.l.Advance(s)
		p.shed = p.l.ShedFraction(p.l.Q(s.InFlight), false)
		if each != nil {
			each()
		}
	}
}

// overload warms a target of that service time up at half its capacity and then offers twice of it. It returns the queue pressure
// and the shed fraction it settles at, the highest Q on the way, and the time until Q stays within 0.05 of its end.
func overload(t *testing.T, service time.Duration, off Ingredients) (q, shed, peak float64, settled, tauStar time.Duration) {
	t.Helper()
	p := &plant{l: mustNew(t, off, false), idle: service.Seconds(), timeout: 20 * service, tick: max(service/20, 100*time.Microsecond)}
	p.capacity = 20 / p.idle
	p.offered = p.capacity / 2
	p.run(max(3*time.Second, 200*service), nil)
	if p.shed != 0 {
		t.Errorf("%v: shed %v at half the capacity", service, p.shed)
	}
	tau := p.l.tau
	p.offered = 2 * p.capacity
	var qs []float64
	p.run(max(time.Duration(60*tau*1e9), 4*time.Second), func() { qs = append(qs, p.l.Q(int64(math.Round(p.n)))) })
	for _, v := range qs {
		peak = math.Max(peak, v)
	}
	q, shed = qs[len(qs)-1], p.shed
	for i := len(qs) - 1; i >= 0; i-- {
		if math.Abs(qs[i]-q) > 0.05 {
			settled = time.Duration(i) * p.tick
			break
		}
	}
	return q, shed, peak, settled, time.Duration(tau * 1e9)
}

// 1.2 PI control of the shed fraction: at twice the capacity half is shed and Q comes to rest at its set-point, at which the mean
// sojourn is τ*. One pair of gains is right from 1 ms to 1 s services, because Ki scales with 1/τ*: ζ = 0.56, ωn = 0.9/τ*. (Below
// τ* = 160 ms Ki is at its bound of 5 a second: then it takes that second.)
func TestShedFractionSettlesWhateverTheServiceTime(t *testing.T) {
	for _, service := range []time.Duration{ms, 20 * ms, 200 * ms, time.Second} {
		q, shed, peak, settled, tau := overload(t, service, 0)
		if math.Abs(q-0.5) > 0.05 || math.Abs(shed-0.5) > 0.05 {
			t.Errorf("%v: settles at Q = %.3f, shed %.3f; want 0.5 and 0.5", service, q, shed)
		}
		if peak > 1.1 || settled > max(15*tau, 1500*ms) {
			t.Errorf("%v: peak Q = %.2f, settled after %v at τ* = %v", service, peak, settled, tau)
		}
	}
}

// Without the integral the proportional part holds the load alone, at the price of a longer queue: s = Q − 0.5.
func TestIntegralSwitchedOffLeavesALongerQueue(t *testing.T) {
	q, shed, _, _, _ := overload(t, 20*ms, Integral)
	if math.Abs(shed-0.5) > 0.05 || math.Abs(q-1) > 0.05 {
		t.Errorf("Q = %.3f, shed %.3f; want 1 and 0.5", q, shed)
	}
}

// The proportional part by itself is the fuse: at Q = 1.5 everything is refused, instantly.
func TestProportionalPartIsTheFuse(t *testing.T) {
	l, f := mustNew(t, 0, false), healthy()
	f.run(l, 10*time.Second)
	for q, want := range map[float64]float64{0: 0, 0.5: 0, 0.75: 0.25, 1: 0.5, 1.5: 1, 7: 1} {
		if got := l.ShedFraction(q, false); math.Abs(got-want) > 1e-9 {
			t.Errorf("shed %v at Q = %v, want %v", got, q, want)
		}
		if got := Shed(q); math.Abs(got-want) > 1e-9 {
			t.Errorf("Shed(%v) = %v, want %v", q, got, want)
		}
	}
	// Critical calls see less queue pressure: the overshoot of a capacity lost at once does not reach them.
	for _, q := range []float64{0, 0.5, 1, 1.3, 1.8, 2.5, 7} {
		if got, want := l.ShedFraction(q, true), l.ShedFraction(q-criticalSlack, false); math.Abs(got-want) > 1e-9 || got > l.ShedFraction(q, false) {
			t.Errorf("shed %v of the critical calls at Q = %v, want %v", got, q, want)
		}
	}
	if l.ShedFraction(1, true) != 0 || l.ShedFraction(3, true) != 1 {
		t.Errorf("critical calls: shed %v at Q = 1, %v at 3", l.ShedFraction(1, true), l.ShedFraction(3, true))
	}
	if q := mustNew(t, AdaptiveLimit, false).Q(1_000_000); q != 0 {
		t.Errorf("Q = %v without a limit", q)
	}
}

// φ never reaches 1, and a pause makes it fade: nobody waits for a controller that nobody feeds.
func TestIntegralIsBoundedAndFades(t *testing.T) {
	p := &plant{l: mustNew(t, 0, false), idle: 0.02, capacity: 1000, offered: 500, timeout: 400 * ms, tick: ms}
	p.run(5*time.Second, nil)
	p.offered, p.capacity = 1000, 0 // it stops answering
	p.run(time.Minute, nil)
	if p.l.phi != 0.98 {
		t.Errorf("φ = %v", p.l.phi)
	}
	// 3 s without a call: e^−3, and at most 100 ms of integration at the next.
	p.l.Advance(Sample{Now: p.now + 3*time.Second, Offered: &[MaxLevels + 1]uint64{5: 1}, Gauge: -1, Timeout: 400 * ms})
	if want := 0.98 * math.Exp(-3); p.l.phi > want*1.01 {
		t.Errorf("φ = %v after 3 s of silence, want at most %v", p.l.phi, want)
	}
}

// 1.2 The fraction is mapped through the observed distribution of priorities, lowest first. The mix is the one of the scenarios.
func TestShedFractionTakesTheLowestFirst(t *testing.T) {
	l := mustNew(t, 0, false)
	l.Advance(Sample{Now: time.Second, Offered: &[MaxLevels + 1]uint64{2: 200, 5: 400, 7: 300, 9: 100}, Gauge: -1})
	for _, c := range []struct {
		shed  float64
		want  map[int]float64
		floor int
	}{
		{0, map[int]float64{0: 0, 2: 0, 5: 0, 7: 0, 9: 0, 10: 0}, 0},
		{0.1, map[int]float64{0: 1, 2: 0.5, 5: 0, 7: 0, 9: 0, 10: 0}, 2},
		{0.2, map[int]float64{0: 1, 1: 1, 2: 1, 3: 0, 5: 0, 9: 0, 10: 0}, 5},
		{0.4, map[int]float64{2: 1, 3: 1, 5: 0.5, 7: 0, 9: 0, 10: 0}, 5},
		{0.75, map[int]float64{2: 1, 5: 1, 7: 0.5, 9: 0, 10: 0}, 7},
		{0.95, map[int]float64{2: 1, 5: 1, 7: 1, 9: 0.5, 10: 0}, 9},
		{1, map[int]float64{0: 1, 2: 1, 5: 1, 7: 1, 9: 1}, 10},
	} {
		for p, want := range c.want {
			if got := l.RefuseProbability(p, c.shed); math.Abs(got-want) > 1e-9 {
				t.Errorf("shed %v: priority %d is refused with %v, want %v", c.shed, p, got, want)
			}
		}
		if got := l.Floor(c.shed); got != c.floor {
			t.Errorf("shed %v: floor %d, want %d", c.shed, got, c.floor)
		}
	}
}

// Whatever the mix, the fraction that is refused is the fraction that was to be shed; a lower priority never fares better.
func TestShedFractionIsExactForAnyMix(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for range 2000 {
		l, err := New(Config{Levels: 1 + r.IntN(MaxLevels)}, false)
		if err != nil {
			t.Fatal(err)
		}
		var by [MaxLevels + 1]uint64
		sum := 0.0
		for p := range by[:l.cfg.Levels+1] {
			if r.IntN(3) > 0 {
				by[p] = r.Uint64N(1000)
				sum += float64(by[p])
			}
		}
		if sum == 0 {
			continue
		}
		l.Advance(Sample{Now: time.Second, Offered: &by, Gauge: -1})
		shed, refused, last := r.Float64(), 0.0, 1.0
		for p := range l.cfg.Levels + 1 {
			prob := l.RefuseProbability(p, shed)
			if prob > last+1e-12 {
				t.Fatalf("%v: priority %d fares worse than one below it", by, p)
			}
			last = prob
			refused += prob * float64(by[p]) / sum
		}
		if math.Abs(refused-shed) > 1e-9 {
			t.Fatalf("%v: %v refused, %v to be shed", by, refused, shed)
		}
		if f := l.Floor(shed); f > 0 && l.RefuseProbability(f-1, shed) < 1-1e-9 && by[f-1] > 0 {
			t.Fatalf("%v, shed %v: priority %d is below the floor and not shed whole", by, shed, f-1)
		}
	}
}

// The mix is that of the last 20 s or so.
func TestPriorityMixFades(t *testing.T) {
	l := mustNew(t, 0, false)
	l.Advance(Sample{Now: time.Second, Offered: &[MaxLevels + 1]uint64{2: 1000}, Gauge: -1})
	l.Advance(Sample{Now: 21 * time.Second, Offered: &[MaxLevels + 1]uint64{9: 1000}, Gauge: -1})
	share := math.Exp(-1) / (1 + math.Exp(-1)) // of what came 20 s before
	if got, want := l.RefuseProbability(9, 0.5), (0.5-share)/(1-share); math.Abs(got-want) > 1e-9 {
		t.Errorf("%v, want %v", got, want)
	}
}

// A target that answers so many calls a second and refuses the rest with 429: the guard admits nearly as many as that, few of them in
// vain, at any rate, and lets go soon after the limit has gone: in about as many answers.
func TestThrottledTargetIsGivenWhatItTakes(t *testing.T) {
	for _, limit := range []float64{1, 10, 300, 3000} {
		p := &plant{l: mustNew(t, 0, false), idle: 0.01, capacity: 100 * limit, offered: 2 * limit, timeout: time.Second, tick: 2 * ms}
		p.run(time.Duration(150/limit*1e9)+2*time.Second, nil)
		if p.shed != 0 {
			t.Errorf("%v a second: %v shed without a 429", limit, p.shed)
		}
		p.limit429 = limit
		answers := func(n float64) time.Duration { return time.Duration(n / limit * 1e9) }
		p.run(answers(300)+2*time.Second, nil)
		admitted, n := 0.0, 0.0
		p.run(answers(1000)+2*time.Second, func() {
			admitted += p.offered * (1 - p.shed)
			n++
			if p.l.Headroom(0) > 0 {
				t.Fatalf("%v a second: room for more without a look at the law", limit)
			}
		})
		most := 1.15
		if limit < 5 { // the seconds count as well: a guard of so few calls would be half a minute finding out that a limit has gone
			most = 1.5
		}
		if a := admitted / n / limit; a < 0.92 || a > most {
			t.Errorf("%v a second: %.3f of it admitted", limit, a)
		}
		p.limit429 = 0
		p.run(answers(100)+3*time.Second, nil)
		if p.shed > 0 || p.l.Headroom(0) == 0 {
			t.Errorf("%v a second: still %v shed after 100 answers without a 429", limit, p.shed)
		}
	}
}

// A few 429s among many answers, or among too few, are no limit.
func TestRare429sShedNobody(t *testing.T) {
	for _, every := range []int{2, 30} { // the former ends before there are enough of them
		l := mustNew(t, 0, false)
		for i := range 2000 {
			s := Sample{Now: time.Duration(i+1) * 10 * ms, Success: 1, Timeout: time.Minute, Gauge: -1, Offered: &[MaxLevels + 1]uint64{5: 1}}
			if i%every == 1 && (every > 2 || i < 4) {
				s.Success, s.Throttled = 0, 1
			}
			if every == 2 && i >= 4 {
				s.Success = 0
			}
			l.Advance(s)
			if got := l.ShedFraction(0, false); got > 0 {
				t.Fatalf("every %d., call %d: %v shed", every, i, got)
			}
		}
	}
}

// A load that is steadily a twentieth above a target's limit is refused exactly once in 21 answers. The rises between two refusals then
// outweighed the fall, the admitted rate went to 1e77 with nothing to bound it, and when the load grew nothing was shed.
func TestThrottledOnceInAFewAnswersLeavesTheRateBounded(t *testing.T) {
	for every := uint64(15); every <= 30; every++ {
		l := mustNew(t, 0, false)
		now := time.Duration(0)
		answer := func(throttled bool) {
			now += 10 * ms
			s := Sample{Now: now, Offered: &[MaxLevels + 1]uint64{5: 1}, Timeout: time.Second, Calm: true, Gauge: -1}
			if s.Throttled = 1; !throttled {
				s.Throttled, s.Success = 0, 1
			}
			l.Advance(s)
		}
		for i := range uint64(1_000) {
			answer(i%2 == 0)
		}
		for i := range uint64(100_000) {
			answer(i%every == 0)
			if l.throttle.rate > 2*l.OfferedRate() {
				t.Fatalf("one in %d refused: %g/s admitted of %v/s", every, l.throttle.rate, l.OfferedRate())
			}
		}
		for i := range 20 {
			answer(i%2 == 0)
		}
		if l.ShedFraction(0, false) == 0 {
			t.Errorf("one in %d refused, then every other: nothing is shed after 20 answers", every)
		}
	}
}

// Where nobody could pass to tell that a limit has gone, it would last for ever: two tiers of this law, the lower of which refused
// everything, once did that to each other.
func TestTotalThrottleStillLetsATwentiethThrough(t *testing.T) {
	p := &plant{l: mustNew(t, 0, false), idle: 0.01, capacity: 1000, offered: 40, timeout: time.Second, tick: 2 * ms}
	p.run(5*time.Second, nil)
	p.limit429 = 1e-6
	p.run(time.Minute, nil)
	if p.shed > 0.951 || p.shed < 0.9 {
		t.Errorf("shed %v", p.shed)
	}
	p.limit429 = 0
	p.run(40*time.Second, nil)
	if p.shed > 0 {
		t.Errorf("still %v shed 40 s later", p.shed)
	}
}

// A user's own queue sheds above 80 % of its fill; the greater error counts.
func TestGaugeShedsAboveItsMark(t *testing.T) {
	for _, c := range []struct{ gauge, want float64 }{{-1, 0}, {0, 0}, {0.8, 0}, {0.9, 0.1}, {1, 0.2}, {math.NaN(), 0}, {2, 0}, {math.Inf(1), 0}} {
		l := mustNew(t, 0, false)
		l.Advance(Sample{Now: ms, Offered: &[MaxLevels + 1]uint64{5: 1}, Gauge: c.gauge})
		if got := l.ShedFraction(0, false); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("a fill of %v: shed %v, want %v", c.gauge, got, c.want)
		}
	}
}

// What the target's own guard sheds is followed even where nothing is wrong here, and the greater of the two counts.
func TestRemoteShareIsFollowed(t *testing.T) {
	for _, off := range []Ingredients{0, AdaptiveLimit} {
		l, f := mustNew(t, off, false), healthy()
		f.run(l, 5*time.Second)
		if l.Headroom(0) == 0 {
			t.Errorf("%b: no room at rest", off)
		}
		l.Advance(Sample{Now: f.now + ms, Remote: 0.3, Success: 1, Offered: &[MaxLevels + 1]uint64{5: 1}, InFlight: 1, Timeout: time.Second, Gauge: -1})
		if got := l.ShedFraction(0, false); got != 0.3 {
			t.Errorf("%b: shed %v", off, got)
		}
		if got := l.ShedFraction(1.2, false); off == 0 && got <= 0.6 {
			t.Errorf("%b: shed %v at Q = 1.2", off, got)
		}
		if room := l.Headroom(0); room != 0 {
			t.Errorf("%b: room for %d without a look at the law", off, room)
		}
	}
}

// ShedByPressure: the evidence around 0.40, gated by Q below 0.3, with a fuse from 0.75.
func TestShedByPressure(t *testing.T) {
	for _, c := range []struct{ evidence, q, want float64 }{
		{0.40, 0.5, 0}, {0.40 + 0.1875/2, 0.5, 0.5}, {1, 0.5, 1}, {1, 0.3, 1},
		{1, 0.2, 0},                             // failures that do not come with a queue shed nobody
		{0, 1, 0.5}, {0, 1.25, 1}, {0, 0.75, 0}, // the fuse
	} {
		l, err := New(Config{Off: WarmUp | Integral}, true)
		if err != nil {
			t.Fatal(err)
		}
		l.Advance(Sample{Now: ms, Offered: &[MaxLevels + 1]uint64{5: 1}, Evidence: c.evidence, Gauge: -1})
		if got := l.ShedFraction(c.q, false); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("E = %v, Q = %v: shed %v, want %v", c.evidence, c.q, got, c.want)
		}
		if l.Headroom(0) != 0 {
			t.Error("room without a look at the law, which looks at more than the number in flight")
		}
	}
}

// 1.5 The price of a retry: 0.02 when failures do not depend on load, up to 1 when anything looks like it.
func TestPriceOfARetry(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct{ latency, q, slow, phi, want float64 }{
		{0, 0, 0, 0, 0.02}, {0.2, 0.25, 0, 0.02, 0.02}, {0.35, 0, 0, 0, 0.51}, {0.5, 0, 0, 0, 1}, {1, 0, 0, 0, 1},
		{0, 0.375, 0, 0, 0.51}, {0, 0.5, 0, 0, 1}, {0, 9, 0, 0, 1}, {0, 0, 0.5, 0, 0.51}, {0, 0, 1, 0, 1}, {0, 0, 0, 0.021, 1},
		{0.35, 0.375, 0.5, 0, 0.51}, {-1, -1, -1, -1, 0.02}, {nan, nan, nan, nan, 0.02}, {nan, 0.5, nan, nan, 1},
		{math.Inf(1), 0, 0, 0, 1}, {0, math.Inf(-1), 0, 0, 0.02},
	} {
		if got := Price(c.latency, c.q, c.slow, c.phi); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("Price(%v, %v, %v, %v) = %v, want %v", c.latency, c.q, c.slow, c.phi, got, c.want)
		}
	}
	if p := mustNew(t, LoadPrice, false).Price(0, 0, 0); p != 1 {
		t.Errorf("price %v with the law switched off", p)
	}
	if p := mustNew(t, 0, false).Price(0, 0, 0); p != 0.02 {
		t.Errorf("price %v at rest", p)
	}
}

// Headroom is what may enter before anybody could be refused: it never promises what the law would not.
func TestHeadroomPromisesNothingTheLawRefuses(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	promised := 0
	for seed := range 200 {
		l, err := New(Config{Max: r.IntN(3) * 40, Off: Ingredients(r.IntN(1<<14) & r.IntN(1<<14))}, seed%5 == 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 300 {
			n := int64(r.IntN(60))
			l.Advance(Sample{Now: time.Duration(i+1) * 20 * ms, InFlight: n, Area: float64(n) * 0.02, Success: uint64(r.IntN(40)),
				Failure: uint64(r.IntN(2)), ErrorArea: 0.01, Throttled: uint64(r.IntN(2)) * uint64(r.IntN(3)),
				Offered: &[MaxLevels + 1]uint64{5: uint64(r.IntN(40))}, Timeout: time.Second, P99: 50 * ms, Calm: true,
				Gauge: float64(r.IntN(3))*0.5 - 0.5, Remote: float64(r.IntN(8)/7) * 0.3, Evidence: r.Float64()})
			if i%50 == 49 {
				l.Restart(0)
			}
			room := l.Headroom(n)
			if room > 0 && room < math.MaxInt32 {
				promised++
			}
			for _, k := range []int64{1, room/2 + 1, room} {
				if k < 1 || k > room {
					continue
				}
				// The k-th to enter finds n + k − 1 in flight.
				if shed := max(l.ShedFraction(l.Q(n+k-1), false), l.ShedFraction(l.Q(n+k-1), true)); shed > 0 {
					t.Fatalf("limiter %d, off %b: room for %d, and number %d may be shed (%v)", seed, l.cfg.Off, room, k, shed)
				}
			}
		}
	}
	if promised < 1000 {
		t.Errorf("room was promised %d times: the test shows little", promised)
	}
}

// What passed in an earlier episode is no calm of this one: the second limit would be let go of at once.
func TestThrottleForgetsTheCalmOfTheLastEpisode(t *testing.T) {
	var l throttle
	play := func(ok, refused uint64, n int) {
		for range n {
			l.advance(&Sample{Success: ok, Throttled: refused}, 0.01, 100)
		}
	}
	play(1, 1, 200)
	play(1, 0, 4000)
	if l.rate != 0 {
		t.Fatalf("rate %v after 4,000 answers without a 429", l.rate)
	}
	for i := 0; l.rate == 0; i++ {
		if play(0, 1, 1); i > 1000 {
			t.Fatal("429s without an end, and no limit")
		}
	}
	if l.run != 0 || l.calm != 0 {
		t.Errorf("run %v, calm %v as the limit is found", l.run, l.calm)
	}
}
