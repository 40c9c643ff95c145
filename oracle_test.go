package cortex

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/limit"
	"github.com/seed-a29ca62a/cortex/timeout"
)

var bg = context.Background()

// engineWith makes an engine with that many stripes on a clock of the test's.
func engineWith(t *testing.T, stripes int, c Config, now *time.Duration) *Engine {
	t.Helper()
	c.Now = func() time.Duration { return *now }
	c.Rand = rand.NewPCG(1, 2)
	c.Stripes = stripes
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// onStripe makes the next admission use that stripe, as far as a sync.Pool can be told.
func onStripe(i uint32) { affinity.Put(&i) }

// A naive is the accounting of attempts in flight done with a list, one entry an attempt.
type naive struct {
	epoch   uint32 // as of the last collection
	entries []*naiveEntry
	admits  uint64
	offered uint64
	lost    uint64
}

type naiveEntry struct {
	permit *Permit
	start  time.Duration
	end    time.Duration // -1: in flight
	epoch  uint32
	over   bool // no longer to be used
}

// collect is what happens at a tick: who has been in flight for more than one whole permit life is written off.
func (n *naive) collect(now, life time.Duration) {
	n.epoch = uint32(now / life)
	for _, en := range n.entries {
		if en.end < 0 && n.epoch-en.epoch > 1 {
			en.end = now
			n.lost++
		}
	}
}

func (n *naive) inFlight() (k int64) {
	for _, en := range n.entries {
		if en.end < 0 {
			k++
		}
	}
	return k
}

// starts is the sum of the starts of those in flight, from which their mean age is taken.
func (n *naive) starts() (sum time.Duration) {
	for _, en := range n.entries {
		if en.end < 0 {
			sum += en.start
		}
	}
	return sum
}

func startsOf(e *Engine) (sum time.Duration) {
	for i := range e.stripes {
		sum += e.stripes[i].starts
	}
	return sum
}

// residence is ∫N dt from the beginning to now.
func (n *naive) residence(now time.Duration) (sum time.Duration) {
	for _, en := range n.entries {
		end := en.end
		if end < 0 {
			end = now
		}
		sum += end - en.start
	}
	return sum
}

// Stripes, number in flight and ∫N dt against the list, under random use: exact to the nanosecond, whatever the stripe, also
// across permits that were written off and results that come back after that.
func TestAccountingAgainstANaiveList(t *testing.T) {
	for seed := range uint64(9) {
		r := rand.New(rand.NewPCG(seed, 4))
		var now time.Duration
		c := Config{PermitLife: 2 * time.Second, Profile: Profile(seed % 2), DisableTimeout: true}
		if seed%3 == 0 {
			c.Limit.Off = limit.AdaptiveLimit | limit.Circuit // nothing is refused: many in flight
		}
		e := engineWith(t, 1<<(seed%4), c, &now)
		var list naive
		area, last := time.Duration(0), e.last
		sync := func() { // the engine has ticked: so does the list, at the same time
			if e.last == last {
				return
			}
			last = e.last
			at := e.last
			list.collect(at, c.PermitLife)
			area += e.area
			if want := list.residence(at); area != want || e.residence != want {
				t.Fatalf("seed %d at %v: ∫N dt is %v, by steps %v, want %v", seed, at, e.residence, area, want)
			}
			if want := list.inFlight(); e.inFlight != want {
				t.Fatalf("seed %d at %v: %d in flight at the tick, want %d", seed, at, e.inFlight, want)
			}
			if e.stats.Lost != list.lost {
				t.Fatalf("seed %d at %v: %d lost, want %d", seed, at, e.stats.Lost, list.lost)
			}
		}
		for range 2000 {
			switch r.IntN(10) {
			case 0, 1, 2, 3:
				onStripe(r.Uint32N(16))
				list.offered++
				p, err := e.Admit(bg, Priority(r.IntN(11)))
				sync()
				if err == nil {
					list.admits++
					list.entries = append(list.entries, &naiveEntry{permit: &p, start: p.start, end: -1, epoch: list.epoch})
				}
			case 4, 5, 6, 7:
				if len(list.entries) == 0 {
					continue
				}
				en := list.entries[r.IntN(len(list.entries))]
				at := e.now()
				if r.IntN(5) == 0 {
					en.permit.Answered()
				} else {
					o := Success
					if r.IntN(4) == 0 {
						o = Outcome(r.IntN(6))
					}
					counted := en.permit.Record(o)
					if en.over && counted {
						t.Fatalf("seed %d: a permit was used twice", seed)
					}
					en.over = true
				}
				if en.end < 0 {
					en.end = at
				}
				sync()
			case 8:
				now += []time.Duration{0, 1, 999 * time.Microsecond, time.Millisecond, 7 * time.Millisecond, 300 * time.Millisecond}[r.IntN(6)]
				if r.IntN(100) == 0 {
					now += []time.Duration{2 * time.Second, 4 * time.Second, time.Hour}[r.IntN(3)]
				}
			case 9:
				e.Pressure()
				sync()
			}
			if got, want := e.countInFlight(), list.inFlight(); got != want {
				t.Fatalf("seed %d at %v: %d in flight, want %d", seed, now, got, want)
			}
			if got, want := startsOf(e), list.starts(); got != want {
				t.Fatalf("seed %d at %v: the starts of those in flight sum to %v, want %v", seed, now, got, want)
			}
		}
		if s := e.Stats(); s.Attempts != list.admits || s.Calls != list.offered {
			t.Errorf("seed %d: %d attempts and %d calls counted, want %d and %d", seed, s.Attempts, s.Calls, list.admits, list.offered)
		}
		if seed%3 == 0 && list.lost == 0 {
			t.Errorf("seed %d: nothing was written off", seed)
		}
	}
}

// The credit invariant: nobody is admitted on a stripe's credit whom the whole law would have refused, and where the law draws
// lots, it draws the same ones. An engine of eight stripes, one of a single stripe and one without any credit, which asks the law
// about every call, are given the same calls; they must decide alike.
func TestFastPathDecidesLikeTheWholeLaw(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 5))
		var now time.Duration
		c := Config{Profile: Profile(seed / 3 % 2), Timeout: timeoutOf(200 * time.Millisecond)}
		c.Breaker.Threshold = 0.8
		engines := []*Engine{engineWith(t, 8, c, &now), engineWith(t, 1, c, &now), engineWith(t, 1, c, &now)}
		type flight struct {
			permits [3]*Permit
			end     time.Duration
			outcome Outcome
		}
		var running []flight
		fast, refused := 0, 0
		// Load by phases: idle, healthy, twice the capacity, failing, slow; and three kinds of target, of which the fastest has
		// dozens of calls between two ticks.
		scale := []time.Duration{time.Millisecond, 100 * time.Microsecond, 20 * time.Microsecond}[seed%3]
		free := time.Duration(0)
		for i := range 15_000 {
			phase := (i / 1500) % 5
			now += time.Duration(float64(scale) * []float64{20, 2, 0.5, 1, 2}[phase] * r.ExpFloat64())
			for k := 0; k < len(running); k++ {
				f := running[k]
				if f.end > now {
					continue
				}
				running = append(running[:k], running[k+1:]...)
				k--
				var used [3]bool
				for j, p := range f.permits {
					used[j] = p.Record(f.outcome)
				}
				if used[0] != used[1] || used[1] != used[2] {
					t.Fatalf("seed %d, call %d: result used %v", seed, i, used)
				}
			}
			prio := Priority(r.IntN(11))
			var permits [3]*Permit
			var reasons [3]string
			stripe := r.Uint32N(8)
			if r.IntN(2) == 0 { // a tick that lets nobody in: the call after it has the whole law to ask, without credit
				for _, e := range engines {
					e.Pressure()
				}
			}
			for j, e := range engines {
				if j == 2 {
					e.stripes[0].credit = 0
				}
				onStripe(stripe)
				before := e.stripes[0].credit
				p, err := e.Admit(bg, prio)
				if err != nil {
					reasons[j] = err.(*Rejection).Reason.String()
				} else {
					permits[j] = &p
				}
				if j == 1 && err == nil && before > 0 && e.stripes[0].credit == before-1 {
					fast++
				}
			}
			if reasons[0] != reasons[1] || reasons[1] != reasons[2] {
				t.Fatalf("seed %d, call %d at %v, priority %d, phase %d: %q", seed, i, now, prio, phase, reasons)
			}
			for j, e := range engines {
				// What may enter by credit, those in flight included, is never more than the law had room for at the tick.
				if usable := usableCredit(e); usable > 0 && usable+e.countInFlight() > e.inFlight+e.room() {
					t.Fatalf("seed %d, call %d at %v, engine %d: credit for %d beside %d in flight; there was room for %d beside %d", seed, i, now, j,
						usable, e.countInFlight(), e.room(), e.inFlight)
				}
			}
			if engines[0].rng != engines[2].rng || engines[1].rng != engines[2].rng {
				t.Fatalf("seed %d, call %d at %v, priority %d, phase %d: lots were drawn by some and not by others", seed, i, now, prio, phase)
			}
			switch {
			case permits[0] == nil:
				refused++
			case phase == 3 && r.IntN(3) > 0:
				running = append(running, flight{permits, now + 3*scale, Failed})
			default:
				service := time.Duration(float64(scale) * r.ExpFloat64())
				if phase == 4 {
					service *= 8
				}
				free = max(free, now) + service
				f := flight{permits, free, Success}
				if free-now > 200*time.Millisecond {
					f.end, f.outcome = now+200*time.Millisecond, TimedOut
				}
				running = append(running, f)
			}
			if r.IntN(50) == 0 {
				shed := float64(r.IntN(2)) * r.Float64()
				failure := Failure{Class: Class{Outcome: Failed, Retryable: true}, Priority: prio}
				var ds [3]string
				for j, e := range engines {
					e.ObserveRemote(shed)
					ds[j] = fmt.Sprint(e.Decide(failure), e.Pressure())
				}
				if ds[0] != ds[1] || ds[1] != ds[2] {
					t.Fatalf("seed %d, call %d: decisions on a failed attempt\n%s\n%s\n%s", seed, i, ds[0], ds[1], ds[2])
				}
			}
		}
		if c.Profile == Adaptive && (fast < 1000 || refused < 150) {
			t.Errorf("seed %d: %d calls took the fast path and %d were refused: the test shows nothing", seed, fast, refused)
		}
		for _, f := range running {
			for _, p := range f.permits {
				p.Release()
			}
		}
		for j, e := range engines {
			if n := e.countInFlight(); n != 0 {
				t.Errorf("seed %d, engine %d: %d in flight at the end", seed, j, n)
			}
		}
	}
}

func timeoutOf(d time.Duration) timeout.Config { return timeout.Config{Min: d, Bootstrap: d, Max: d} }

func usableCredit(e *Engine) (n int64) {
	for i := range e.stripes {
		if s := &e.stripes[i]; s.credit > 0 && e.now() < s.until {
			n += s.credit
		}
	}
	return n
}
