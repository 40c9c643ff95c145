package limit

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// The adaptive law paragraph by paragraph (as docs/law.md and the comments in this package have it), each against numbers worked out from its formulas.

const ms = time.Millisecond

func mustNew(tb testing.TB, off Ingredients, byPressure bool) *Limiter {
	tb.Helper()
	l, err := New(Config{Off: off}, byPressure)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// about reports whether got is within that part of want.
func about(got, want, part float64) bool { return math.Abs(got-want) <= part*math.Abs(want) }

// A flow is a target in a steady state, told in ticks of a millisecond: so many successes a second, each that long in flight.
type flow struct {
	rate    float64 // successes a second
	sojourn float64 // s in flight, per success
	errors  float64 // fast errors a second
	errTime float64 // s, latency of one
	p99     time.Duration
	timeout time.Duration
	trouble bool // CPS ≥ 0.30

	now           time.Duration
	owed, owedErr float64 // fractions of a success
}

func (f *flow) run(l *Limiter, length time.Duration) {
	for end := f.now + length; f.now < end; {
		f.now += ms
		f.owed += f.rate / 1000
		f.owedErr += f.errors / 1000
		n := f.rate*f.sojourn + f.errors*f.errTime
		s := Sample{Now: f.now, InFlight: int64(math.Round(n)), Area: n / 1000, Success: uint64(f.owed), Failure: uint64(f.owedErr),
			Timeout: f.timeout, P99: f.p99, Calm: !f.trouble, Gauge: -1, Offered: new([MaxLevels + 1]uint64)}
		s.ErrorArea = float64(s.Failure) * f.errTime
		s.Offered[5] = s.Success + s.Failure
		f.owed -= float64(s.Success)
		f.owedErr -= float64(s.Failure)
		l.Advance(s)
	}
}

func healthy() *flow {
	return &flow{rate: 500, sojourn: 0.020, p99: 40 * ms, timeout: time.Second}
}

// 1.1 Little's law: limit = μ̂·τ*/Q*, with τ* = max(1.5·W0, W0 + 0.35·(Te − B99)). 500 a second, 20 ms each: W0 = 20 ms,
// N0 = 10, τ* = 20 + 0.35·960 = 356 ms, limit = 500·0.356/0.5 = 356.
func TestLimitIsLittlesLaw(t *testing.T) {
	for _, c := range []struct {
		timeout, deadline time.Duration
		tau, limit        float64
	}{
		{time.Second, 0, 0.356, 356},
		{time.Second, 540 * ms, 0.195, 195}, // Te = min(T, D): 20 + 0.35·500
		{540 * ms, 10 * time.Second, 0.195, 195},
		{100 * ms, 0, 0.041, 41},
	} {
		l, f := mustNew(t, 0, false), healthy()
		f.timeout = c.timeout
		for range 20_000 {
			f.now += ms
			f.owed += 0.5
			s := Sample{Now: f.now, InFlight: 10, Area: 0.010, Success: uint64(f.owed), Timeout: c.timeout, Deadline: c.deadline, P99: f.p99,
				Calm: true, Gauge: -1, Offered: &[MaxLevels + 1]uint64{5: uint64(f.owed)}}
			f.owed -= float64(s.Success)
			l.Advance(s)
		}
		w0, b99, n0, warm := l.Baseline()
		if !warm || !about(w0.Seconds(), 0.020, 0.02) || b99 != 40*ms || !about(n0, 10, 0.02) {
			t.Errorf("%v, %v: baseline %v, %v, %v, warm %v", c.timeout, c.deadline, w0, b99, n0, warm)
		}
		if !about(l.tau, c.tau, 0.02) || !about(l.Limit(), c.limit, 0.03) || !about(l.Capacity(), 500, 0.02) {
			t.Errorf("%v, %v: τ* %v, limit %v, capacity %v", c.timeout, c.deadline, l.tau, l.Limit(), l.Capacity())
		}
		if q := l.Q(10); !about(q, 10/c.limit, 0.03) {
			t.Errorf("Q = %v", q)
		}
		if r := l.OfferedRate(); !about(r, 500, 0.02) {
			t.Errorf("offered %v a second", r)
		}
	}
}

// Without a baseline τ* is 0.3·Te, and a limiter that saw nothing refuses nothing.
func TestLimitOfTheUnknown(t *testing.T) {
	l := mustNew(t, 0, false)
	if l.Limit() < 20 || l.ShedFraction(l.Q(int64(l.Limit())-1), false) != 0 || l.OfferedRate() != 0 || l.Capacity() != 0 {
		t.Errorf("%+v", l)
	}
	l.Advance(Sample{Now: time.Second, Gauge: -1}) // nothing has happened
	if w0, b99, n0, warm := l.Baseline(); w0 != 0 || b99 != 0 || n0 != 0 || warm {
		t.Error(w0, b99, n0, warm)
	}
	l.Advance(Sample{Now: 2 * time.Second, Offered: &[MaxLevels + 1]uint64{5: 1}, InFlight: 1, Timeout: 2 * time.Second, Gauge: -1})
	if !about(l.tau, 0.6, 1e-9) {
		t.Errorf("τ* = %v", l.tau)
	}
}

// 1.1 What comes out under saturation is the capacity; without load nothing is learned about it, it only leaks, by 60 s.
func TestCapacity(t *testing.T) {
	l, f := mustNew(t, 0, false), healthy()
	f.run(l, 20*time.Second)
	// The target halves: 250 a second come out though 200 are in flight, each for 0.8 s. That is above τ*.
	f.rate, f.sojourn, f.trouble = 250, 0.8, true
	f.run(l, 10*time.Second)
	if !about(l.Capacity(), 250, 0.02) {
		t.Errorf("capacity %v under saturation, want 250", l.Capacity())
	}
	// More comes out than was thought possible.
	f.rate, f.sojourn, f.trouble = 900, 0.020, false
	f.run(l, 10*time.Second)
	if !about(l.Capacity(), 900, 0.02) {
		t.Errorf("capacity %v of 900 a second", l.Capacity())
	}
	f.rate = 90
	f.run(l, 60*time.Second)
	if want := 900 / math.E; !about(l.Capacity(), want, 0.05) {
		t.Errorf("capacity %v after a minute of little load, want %v", l.Capacity(), want)
	}
}

// 1.1 The floor max(2, κ·(2·N0 + 3·√N0 + 5)) keeps the workers busy whatever the service time has become. N0 = 10: 34.49.
func TestFloorUnderTheLimit(t *testing.T) {
	const floor = 2*10 + 3*3.16228 + 5
	slow := func(off Ingredients) (*Limiter, *flow) {
		l, f := mustNew(t, off, false), healthy()
		f.run(l, 20*time.Second)
		f.timeout = 60 * ms // no slack: τ* = 30 ms
		f.rate, f.sojourn, f.trouble = 100, 0.1, true
		f.run(l, 10*time.Second)
		return l, f
	}
	l, f := slow(0)
	if !about(l.Limit(), floor, 0.03) {
		t.Errorf("limit %v, want the floor %v: Little's law alone gives %v", l.Limit(), floor, l.mu*l.tau/setPoint)
	}
	if bare, _ := slow(HealthyFloor); !about(bare.Limit(), 100*0.030/0.5, 0.05) {
		t.Errorf("limit %v without the floor, want 6", bare.Limit())
	}

	// κ halves at a trip most of whose failures were timeouts, down to a tenth, and comes back with 30 s.
	l.Tripped(false)
	f.run(l, ms)
	if !about(l.Limit(), floor, 0.03) {
		t.Errorf("limit %v after a trip on fast errors", l.Limit())
	}
	l.Tripped(true)
	f.run(l, ms)
	if !about(l.Limit(), floor/2, 0.03) {
		t.Errorf("limit %v after a trip on timeouts, want %v", l.Limit(), floor/2)
	}
	f.run(l, 30*time.Second)
	if want := floor * (1 - 0.5/math.E); !about(l.Limit(), want, 0.03) {
		t.Errorf("limit %v 30 s later, want %v", l.Limit(), want)
	}
	for range 50 {
		l.Tripped(true)
	}
	f.run(l, ms)
	if !about(l.kappa, 0.1, 0.01) || l.Limit() < 2 {
		t.Errorf("κ = %v, limit %v after 50 trips", l.kappa, l.Limit())
	}
	fixed, g := slow(FloorScale)
	fixed.Tripped(true)
	g.run(fixed, ms)
	if !about(fixed.Limit(), floor, 0.03) {
		t.Errorf("limit %v with κ switched off", fixed.Limit())
	}
}

func TestLimitStaysWithinItsBounds(t *testing.T) {
	for _, c := range []Config{{Min: 50}, {Min: 400}, {Max: 30}, {Min: 1, Max: 1}} {
		l, err := New(c, false)
		if err != nil {
			t.Fatal(err)
		}
		f := healthy()
		for range 100 {
			f.run(l, 100*ms)
			if l.Limit() < float64(l.cfg.Min) || c.Max > 0 && l.Limit() > float64(c.Max) {
				t.Fatalf("%+v: limit %v", c, l.Limit())
			}
		}
	}
	for _, c := range []Config{{Min: -1}, {Max: -1}, {Min: 5, Max: 4}, {Levels: -1}, {Levels: 32}} {
		if _, err := New(c, false); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	if c, err := (Config{}).Normalize(); err != nil || c != (Config{Levels: 10, Min: 2}) {
		t.Errorf("%+v, %v", c, err)
	}
}

// 1.1 Attempts that end as fast errors are no queue: by Little's law their number is rate × latency, and it is subtracted.
func TestErrorsAreNoQueue(t *testing.T) {
	l, f := mustNew(t, 0, false), healthy()
	f.errors, f.errTime = 400, 0.1 // 40 of the 50 in flight
	f.run(l, 20*time.Second)
	if w0, _, n0, _ := l.Baseline(); !about(w0.Seconds(), 0.020, 0.05) || !about(n0, 10, 0.05) {
		t.Errorf("baseline %v, %v in flight; the errors are in it", w0, n0)
	}
	if q, want := l.Q(50), 10/l.Limit(); !about(q, want, 0.1) {
		t.Errorf("Q = %v, want %v", q, want)
	}
	if l.Q(20) != 0 {
		t.Errorf("Q = %v of fewer than are expected to fail", l.Q(20))
	}
	off, g := mustNew(t, ErrorOccupancy, false), healthy()
	g.errors, g.errTime = 400, 0.1
	g.run(off, 20*time.Second)
	if q, want := off.Q(50), 50/off.Limit(); !about(q, want, 1e-9) {
		t.Errorf("Q = %v with the subtraction switched off, want %v", q, want)
	}
}

// cold plays a cold start against a target of independent answers, so that the first to come back are the short ones. It returns
// the share of ticks at which anything would have been shed.
func cold(l *Limiter, rate float64, length, timeout time.Duration, answer func(r *rand.Rand) float64) (shed float64) {
	r := rand.New(rand.NewPCG(1, 2))
	type call struct{ start, end float64 }
	var flight []call
	next := r.ExpFloat64() / rate
	ticks, shedding := 0, 0
	p99 := time.Duration(0)
	for now := 0.001; now < length.Seconds(); now += 0.001 {
		s := Sample{Now: time.Duration(now * 1e9), Timeout: timeout, Calm: true, Gauge: -1, Offered: new([MaxLevels + 1]uint64), P99: p99}
		for ; next < now; next += r.ExpFloat64() / rate {
			s.Offered[5]++
			flight = append(flight, call{next, next + math.Min(answer(r), timeout.Seconds())})
		}
		kept := flight[:0]
		for _, c := range flight {
			s.Area += math.Min(c.end, now) - math.Max(c.start, now-0.001)
			switch {
			case c.end > now:
				kept = append(kept, c)
			case c.end-c.start >= timeout.Seconds()-1e-12:
				s.TimedOut++
			default:
				s.Success++
				p99 = max(p99, time.Duration((c.end-c.start)*1e9))
			}
		}
		flight = kept
		s.InFlight = int64(len(flight))
		l.Advance(s)
		ticks++
		if l.ShedFraction(l.Q(s.InFlight), false) > 0 {
			shedding++
		}
	}
	return float64(shedding) / float64(ticks)
}

// 1.1 Cold start, trap (a): the first completions are the short ones, so that N̄/X looks huge. With the rule nothing is shed.
func TestColdStartShedsNobody(t *testing.T) {
	exponential := func(r *rand.Rand) float64 { return 0.05 * r.ExpFloat64() }
	l := mustNew(t, 0, false)
	if s := cold(l, 1000, 5*time.Second, time.Second, exponential); s != 0 {
		t.Errorf("shedding in %.1f %% of a healthy cold start", 100*s)
	}
	if w0, _, n0, warm := l.Baseline(); !warm || !about(w0.Seconds(), 0.05, 0.1) || !about(n0, 50, 0.2) {
		t.Errorf("learned %v and %v in flight, warm %v", w0, n0, warm)
	}
	if s := cold(mustNew(t, WarmUp, false), 1000, 5*time.Second, time.Second, exponential); s == 0 {
		t.Error("with the rule switched off nothing is shed either: the test shows nothing")
	}
}

// Cold start, trap (b): where some calls time out in peace, W0 must contain their residence, or the target looks busy for ever.
// 5 % take 100 ms and are cut, the others 5 ms: (0.95·5 + 0.05·100)/0.95 = 10.26 ms per success.
func TestBaselineContainsTheResidenceOfTimeouts(t *testing.T) {
	l := mustNew(t, 0, false)
	heavy := func(r *rand.Rand) float64 {
		if r.Float64() < 0.05 {
			return 10
		}
		return 0.005
	}
	if s := cold(l, 300, 30*time.Second, 100*ms, heavy); s > 0.001 {
		t.Errorf("shedding in %.2f %% of the ticks of a healthy target", 100*s)
	}
	if w0, _, _, _ := l.Baseline(); !about(w0.Seconds(), 0.01026, 0.15) {
		t.Errorf("W0 = %v, want 10.26 ms", w0)
	}
	if l.busy() || l.Frozen() {
		t.Error("the target is taken for busy")
	}
}

// Cold start inside an incident: W0 is capped at 0.3·Te, so that the incident is not learned. It takes 100 successes and 3·W0 to end
// where what is in flight grows beyond the target sojourn: waiting longer would only let the queue pass the timeout.
func TestColdStartDoesNotLearnAnIncident(t *testing.T) {
	l, f := mustNew(t, 0, false), healthy()
	f.rate, f.sojourn, f.p99 = 100, 0.9, 990*ms
	f.run(l, 850*ms)
	if _, _, _, warm := l.Baseline(); warm {
		t.Error("warm before 3·W0")
	}
	if l.Limit() < 20 || l.ShedFraction(0.99, false) != 0 || l.ShedFraction(1.2, false) == 0 {
		t.Errorf("limit %v, sheds %v at Q = 0.99 and %v at 1.2", l.Limit(), l.ShedFraction(0.99, false), l.ShedFraction(1.2, false))
	}
	f.run(l, 300*ms)
	if w0, _, _, warm := l.Baseline(); w0 != 300*ms || !warm {
		t.Errorf("W0 = %v, warm %v", w0, warm)
	}
	l, f = mustNew(t, 0, false), healthy()
	f.rate = 10
	f.run(l, 9*time.Second)
	if _, _, _, warm := l.Baseline(); warm {
		t.Error("warm after 90 successes")
	}
	f.run(l, 2*time.Second)
	if _, _, _, warm := l.Baseline(); !warm {
		t.Error("cold after 110 successes")
	}
}

// 1.1 The baseline moves downward with 5 s, upward with 60 s (5 s until there were 2,000 successes), and not at all in trouble.
func TestBaselineTimeConstants(t *testing.T) {
	w0 := func(l *Limiter) float64 { w, _, _, _ := l.Baseline(); return w.Seconds() }
	l, f := mustNew(t, 0, false), healthy()
	f.run(l, 20*time.Second)
	f.sojourn, f.p99 = 0.030, 60*ms
	f.run(l, 60*time.Second)
	if want := 0.030 - 0.010/math.E; !about(w0(l), want, 0.03) {
		t.Errorf("W0 = %v a minute after it rose to 30 ms, want %v", w0(l), want)
	}
	if _, b99, _, _ := l.Baseline(); !about(b99.Seconds(), 0.060-0.020/math.E, 0.03) {
		t.Errorf("B99 = %v", b99)
	}
	from := w0(l)
	f.sojourn = 0.010
	f.run(l, 5*time.Second)
	if want := 0.010 + (from-0.010)/math.E; !about(w0(l), want, 0.1) {
		t.Errorf("W0 = %v 5 s after it fell to 10 ms, want %v", w0(l), want)
	}
	young, g := mustNew(t, 0, false), healthy()
	g.rate = 150
	g.run(young, 3*time.Second) // 450 successes
	g.sojourn = 0.030
	g.run(young, 5*time.Second)
	if want := 0.030 - 0.010/math.E; !about(w0(young), want, 0.06) {
		t.Errorf("young: W0 = %v 5 s after it rose to 30 ms, want %v", w0(young), want)
	}
}

func TestBaselineIsFrozenInTrouble(t *testing.T) {
	for _, c := range []struct {
		name  string
		off   Ingredients
		spoil func(l *Limiter, f *flow)
		moves bool
	}{
		{"calm", 0, func(*Limiter, *flow) {}, true},
		{"pressure", 0, func(_ *Limiter, f *flow) { f.trouble = true }, false},
		{"pressure, switched off", BaselineFreeze, func(_ *Limiter, f *flow) { f.trouble = true }, true},
		{"busy", 0, func(_ *Limiter, f *flow) { f.sojourn = 0.5 }, false},
		{"busy, switched off", BaselineFreeze, func(_ *Limiter, f *flow) { f.sojourn = 0.5 }, true},
	} {
		l, f := mustNew(t, c.off, false), healthy()
		f.run(l, 20*time.Second)
		before, _, n0, _ := l.Baseline()
		f.sojourn = 0.030
		c.spoil(l, f)
		f.run(l, 30*time.Second)
		after, _, n1, _ := l.Baseline()
		if about(after.Seconds(), before.Seconds(), 0.01) == c.moves || about(n1, n0, 0.01) == c.moves {
			t.Errorf("%s: W0 from %v to %v, N0 from %v to %v", c.name, before, after, n0, n1)
		}
		if l.Frozen() == c.moves {
			t.Errorf("%s: frozen %v", c.name, l.Frozen())
		}
	}
}

// 1.4 After a circuit closed, slow start on in-flight: max(2, N0/4), one more for each success, half less for each timeout, not
// below its start, and off once the limit is reached. Rates are forgotten, capacity and baseline kept.
func TestSlowStart(t *testing.T) {
	l, f := mustNew(t, 0, false), healthy()
	f.rate, f.sojourn = 2000, 0.020 // N0 = 40
	f.run(l, 20*time.Second)
	full, capacity := l.Limit(), l.Capacity()
	w0, _, n0, _ := l.Baseline()
	start := n0 / 4
	l.Restart(0)
	if !about(l.Limit(), start, 1e-9) || l.Capacity() != capacity || l.phi != 0 {
		t.Errorf("limit %v at the start, want %v; capacity %v, φ %v", l.Limit(), start, l.Capacity(), l.phi)
	}
	step := func(success, timeouts uint64) float64 {
		f.now += ms
		l.Advance(Sample{Now: f.now, Success: success, TimedOut: timeouts, InFlight: 5, Area: 0.005, Timeout: time.Second, P99: 40 * ms, Gauge: -1})
		return l.Limit()
	}
	if got := step(3, 0); !about(got, start+3, 1e-9) {
		t.Errorf("limit %v after three successes, want %v", got, start+3)
	}
	if got := step(0, 4); !about(got, start+1, 1e-9) {
		t.Errorf("limit %v after four timeouts, want %v", got, start+1)
	}
	if got := step(0, 1000); !about(got, start, 1e-9) {
		t.Errorf("limit %v after many timeouts, want %v", got, start)
	}
	for range 5000 {
		step(1, 0)
	}
	if got := l.Limit(); got < 0.5*full || !math.IsInf(l.cwnd, 1) {
		t.Errorf("limit %v of %v after 5000 successes, window %v", got, full, l.cwnd)
	}
	if w, _, n, _ := l.Baseline(); w != w0 || !about(n, n0, 0.01) {
		t.Errorf("baseline moved from %v, %v to %v, %v", w0, n0, w, n)
	}
	small := mustNew(t, 0, false)
	small.Restart(0)
	if small.Limit() != 2 {
		t.Errorf("limit %v at the start where nothing is known", small.Limit())
	}
	off, g := mustNew(t, SlowStart, false), healthy()
	g.run(off, 20*time.Second)
	before := off.Limit()
	off.Restart(0)
	if off.Limit() != before {
		t.Errorf("limit %v with slow start switched off, %v before", off.Limit(), before)
	}
}

// A pool of 64 clients that starts all at once was refused while no rate was known; a second later twenty hung calls must show.
func TestColdStartTakesABurst(t *testing.T) {
	l := mustNew(t, 0, false)
	var by [MaxLevels + 1]uint64
	by[5] = 64
	l.Advance(Sample{Now: time.Millisecond, InFlight: 64, Offered: &by, Timeout: time.Second, Gauge: -1})
	if s := l.ShedFraction(l.Q(64), false); s != 0 {
		t.Errorf("shed %v of a burst of 64 at the start", s)
	}
	l = mustNew(t, 0, false)
	by[5] = 20
	l.Advance(Sample{Now: time.Millisecond, InFlight: 20, Offered: &by, Timeout: time.Second, Gauge: -1})
	l.Advance(Sample{Now: 1200 * time.Millisecond, InFlight: 20, Area: 24, Timeout: time.Second, Gauge: -1})
	if q := l.Q(20); q < 1 {
		t.Errorf("Q = %v with 20 calls that hang for more than a second", q)
	}
}

// The series for short decays is exp(−x) to half a unit in the last place, up to the x from where math.Exp takes over.
func TestDecayIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	for i := range 200_000 {
		x := math.Exp2(-5 - 30*r.Float64())
		if i < 100 {
			x = 1.0/32 - float64(i)*0x1p-57
		}
		want := 1 + math.Expm1(-x) // rounded once, like the series
		if got := decay(x); math.Abs(got-want) > 0x1p-53 {
			t.Fatalf("decay(%v) = %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, 1.0 / 32: math.Exp(-1.0 / 32), 1: math.Exp(-1), 1e300: 0, math.Inf(1): 0, -1: math.E} {
		if got := decay(x); got != want {
			t.Errorf("decay(%v) = %v, want %v", x, got, want)
		}
	}
	if !math.IsNaN(decay(math.NaN())) {
		t.Error("NaN has become a number")
	}
}
