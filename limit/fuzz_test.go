package limit

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// finite fails unless everything the limiter tells is a number in its range.
func finite(t *testing.T, l *Limiter, inFlight int64) {
	t.Helper()
	q := l.Q(inFlight)
	w0, b99, n0, _ := l.Baseline()
	for name, v := range map[string]float64{"limit": l.Limit(), "Q": q, "capacity": l.Capacity(), "rate": l.OfferedRate(), "N0": n0,
		"τ*": l.tau, "τx": l.tauX, "κ": l.kappa, "throttled rate": l.throttle.rate, "crowd": l.crowd.level} {
		if !(v >= 0) || math.IsInf(v, 0) {
			t.Fatalf("%s = %v of %+v", name, v, *l)
		}
	}
	if !(l.Limit() >= 1) && l.cfg.Max == 0 {
		t.Fatalf("a limit of %v", l.Limit())
	}
	if w0 < 0 || b99 < 0 || l.Headroom(inFlight) < 0 {
		t.Fatalf("W0 %v, B99 %v, room %d", w0, b99, l.Headroom(inFlight))
	}
	for _, critical := range []bool{false, true} {
		shed := l.ShedFraction(q, critical)
		price := l.Price(0.1, q, 0)
		for name, v := range map[string]float64{"shed": shed, "price": price, "φ": l.phi} {
			if !(v >= 0 && v <= 1) {
				t.Fatalf("%s = %v of %+v", name, v, *l)
			}
		}
		for _, p := range []int{math.MinInt, -1, 0, 5, l.cfg.Levels, MaxLevels, MaxLevels + 1, math.MaxInt} {
			if r := l.RefuseProbability(p, shed); !(r >= 0 && r <= 1) {
				t.Fatalf("priority %d is refused with %v", p, r)
			}
		}
		if f := l.Floor(shed); f < 0 || f > l.cfg.Levels {
			t.Fatalf("floor %d", f)
		}
	}
}

// drive plays samples read from data: eight bytes each number, so that NaN, infinities, negatives and overflow are all within
// reach.
func drive(t *testing.T, data []byte) {
	take := func() uint64 {
		var b [8]byte
		data = data[copy(b[:], data):]
		return binary.LittleEndian.Uint64(b[:])
	}
	number := func() float64 { return math.Float64frombits(take()) }
	head := take()
	l, err := New(Config{Levels: int(head % 32), Min: int(head >> 8 % 4), Max: int(head>>16) % 3 * 100, Off: Ingredients(head >> 32)}, head>>24&1 == 1)
	if err != nil {
		t.Fatal(err)
	}
	var now time.Duration
	for n := 0; len(data) > 0 && n < 300; n++ {
		op := take()
		switch op & 7 {
		case 0:
			l.Restart(0)
		case 1:
			l.Tripped(op&8 != 0)
		}
		switch step := time.Duration(take()); {
		case op&16 != 0:
			now = step // anywhere
		case op&32 != 0:
			now += step & (1<<40 - 1)
		default:
			now += step & (1<<21 - 1) // the usual: up to 2 ms
		}
		s := Sample{Now: now, InFlight: int64(take()), Timeout: time.Duration(take()), Deadline: time.Duration(take()), P99: time.Duration(take()),
			Success: take(), Failure: take(), TimedOut: take(), Throttled: take(), Calm: op&64 != 0,
			Area: number(), ErrorArea: number(), Gauge: number(), Evidence: number(), Remote: number(),
			InTime: take(), Late: take(), Cut: take(), Usual: op>>40&1 == 1}
		if op&128 != 0 { // numbers as they come in practice
			s.InFlight &= 1023
			s.Success &= 63
			s.Failure &= 63
			s.TimedOut &= 63
			s.Throttled &= 63
			s.InTime &= 63
			s.Late &= 63
			s.Timeout &= 1<<33 - 1
			s.P99 &= 1<<30 - 1
			s.Area = math.Abs(s.Area)
			if !(s.Area < 10) {
				s.Area = float64(s.InFlight) * 0.001
			}
		}
		if op&256 != 0 {
			s.Offered = &[MaxLevels + 1]uint64{5: op >> 14 % 64}
			s.Offered[op>>9%32] += take()
		}
		l.Advance(s)
		finite(t, l, s.InFlight)
		finite(t, l, int64(op>>20%2000))
	}
}

func FuzzAdvance(f *testing.F) {
	words := func(ws ...uint64) (b []byte) {
		for _, w := range ws {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	nan, inf := math.Float64bits(math.NaN()), math.Float64bits(math.Inf(1))
	f.Add(words(10, 1<<8|2, uint64(ms), 3, 1<<30, 0, 1<<24, 5, 0, 0, 0, 100, nan, nan, nan, nan, nan, 7))
	f.Add(words(10, 1<<8|2, uint64(ms), 3, 1<<30, 0, 1<<24, 5, 0, 0, 0, 100, inf, inf, inf, inf, inf, 7))
	f.Add(words(10, 1<<8|2, uint64(ms), 1<<63, 1<<63, 1<<63, 1<<63, math.MaxUint64, math.MaxUint64, math.MaxUint64, math.MaxUint64, 0, 1<<63, 1<<63, 1<<63, 1<<63, 1<<63, math.MaxUint64))
	f.Add(words(1<<24|10, 16|1<<8, math.MaxInt64, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 1, 1))
	f.Fuzz(drive)
}

func TestRandomSamples(t *testing.T) {
	odd := []uint64{0, 1, 100, 1 << 20, 1 << 33, 1 << 62, 1 << 63, math.MaxInt64, math.MaxUint64, math.Float64bits(math.NaN()), math.Float64bits(math.Inf(1)),
		math.Float64bits(math.Inf(-1)), math.Float64bits(0.01), math.Float64bits(1), math.Float64bits(-1), math.Float64bits(math.MaxFloat64),
		math.Float64bits(math.SmallestNonzeroFloat64)}
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 6))
		var data []byte
		for range 1 + r.IntN(900) {
			w := r.Uint64()
			if r.IntN(2) == 0 {
				w = odd[r.IntN(len(odd))]
			}
			data = binary.LittleEndian.AppendUint64(data, w)
		}
		drive(t, data)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A sample of nonsense is forgotten: two seconds of good ones later the limiter is where it would have been.
func TestNonsenseIsForgotten(t *testing.T) {
	nan := math.NaN()
	for name, spoil := range map[string]func(*Sample){
		"area NaN":           func(s *Sample) { s.Area = nan },
		"area infinite":      func(s *Sample) { s.Area = math.Inf(1) },
		"area negative":      func(s *Sample) { s.Area = -1e9 },
		"error area NaN":     func(s *Sample) { s.ErrorArea = nan },
		"error area -":       func(s *Sample) { s.ErrorArea = -1e9 },
		"in flight negative": func(s *Sample) { s.InFlight = math.MinInt64 },
		"gauge NaN":          func(s *Sample) { s.Gauge = nan },
		"gauge infinite":     func(s *Sample) { s.Gauge = math.Inf(1) },
		"evidence NaN":       func(s *Sample) { s.Evidence = nan },
		"remote NaN":         func(s *Sample) { s.Remote = nan },
		"remote infinite":    func(s *Sample) { s.Remote = math.Inf(1) },
		"P99 negative":       func(s *Sample) { s.P99 = math.MinInt64 },
		"timeout negative":   func(s *Sample) { s.Timeout, s.Deadline = math.MinInt64, math.MinInt64 },
	} {
		for _, byPressure := range []bool{false, true} {
			play := func(spoil func(*Sample)) *Limiter {
				l := mustNew(t, 0, byPressure)
				for i := range 7_000 {
					s := Sample{Now: time.Duration(i+1) * ms, InFlight: 10, Area: 0.010, Success: uint64(i % 2), Timeout: time.Second, P99: 40 * ms,
						Calm: true, Gauge: -1, Offered: &[MaxLevels + 1]uint64{5: uint64(i % 2)}}
					if i == 5_000 && spoil != nil {
						spoil(&s)
					}
					l.Advance(s)
				}
				return l
			}
			got, want := play(spoil), play(nil)
			finite(t, got, 10)
			if !about(got.Limit(), want.Limit(), 0.02) || got.ShedFraction(0.2, false) != 0 {
				t.Errorf("%s: limit %v, want %v; shed %v", name, got.Limit(), want.Limit(), got.ShedFraction(0.2, false))
			}
		}
	}
}

// Time that stands still or goes back changes nothing.
func TestAdvanceIgnoresTimeThatDoesNotPass(t *testing.T) {
	l, f := mustNew(t, 0, false), healthy()
	f.run(l, 5*time.Second)
	before := *l
	for _, back := range []time.Duration{0, ms, time.Hour, math.MaxInt64} {
		l.Advance(Sample{Now: f.now - back, Success: 1e6, Area: 1e6, InFlight: 1e6, Gauge: 1, Remote: 1})
		if *l != before {
			t.Fatalf("%v back: %+v, was %+v", back, *l, before)
		}
	}
}
