package cortex

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// A told is one attempt as an observer sees it who hears of everything.
type told struct {
	p       *Permit
	entered time.Duration // when it was last put in flight
	epoch   uint32
	past    time.Duration // in flight before that
	segment time.Duration // how much of that since entered
	flies   bool

	paused, arrived, answered, abandoned, done bool
}

func (o *told) land(now time.Duration) {
	if o.flies {
		o.flies, o.segment = false, now-o.entered
		o.past += o.segment
	}
}

// open reports that nothing was said that ends what is said of the latency.
func (o *told) open() bool { return !o.answered && !o.done }

// Whatever is called on permits, in whatever order: the number in flight, ∫N dt and the work that goes on for nobody are those of a list, to
// the nanosecond, and nothing is left at the end. What was abandoned and then paused or answered was work for nobody for ever.
func TestBooksBalanceWhateverIsCalledOnAPermit(t *testing.T) {
	const life = 2 * time.Second
	seen := map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		var clock time.Duration
		e := engineWith(t, 1<<(seed%4), Config{PermitLife: life, DisableTimeout: true, Profile: Profile(seed % 2)}, &clock)
		now := e.now() // the clock of an engine does not begin at 0
		var all []*told
		epoch := uint32(0)
		turn := func() { // with the engine's ticks
			if epoch == uint32(e.last/life) {
				return
			}
			epoch = uint32(e.last / life)
			for _, o := range all {
				if o.flies && epoch-o.epoch > 1 {
					o.land(e.last)
					seen["written off"]++
				}
			}
		}
		did := "nothing"
		call := func(what string, says bool, f func(), means func()) {
			did = what
			f()
			if says {
				seen[what]++
				means()
			}
			turn()
		}
		use := func(o *told) {
			p := o.p
			end := func() {
				o.land(now)
				o.done = true
			}
			switch r.IntN(14) {
			case 0, 1, 2:
				call("Arrived(true)", o.open() && !o.paused && !o.arrived && !o.abandoned, func() { p.Arrived(true) }, func() {
					o.land(now)
					o.arrived = true
				})
			case 3, 4, 5:
				call("Arrived(false)", o.open() && o.arrived && !o.abandoned && epoch-o.epoch <= 1, func() { p.Arrived(false) }, func() {
					o.arrived, o.flies, o.epoch = false, true, epoch
					o.past -= o.segment
				})
			case 6:
				call("Answered", o.open(), p.Answered, func() {
					o.land(now)
					o.answered = true
				})
			case 7, 8:
				call("Pause", o.open() && !o.paused && !o.arrived, p.Pause, func() {
					o.land(now)
					o.paused = true
				})
			case 9, 10:
				call("Resume", o.open() && o.paused, p.Resume, func() { o.paused, o.flies, o.entered, o.epoch = false, true, now, epoch })
			case 11:
				call("Abandoned", !o.done, func() { p.Abandoned(errors.New("gone")) }, func() { o.abandoned = true })
			case 12:
				took := time.Duration(r.IntN(1e9))
				call("RecordTook", !o.done, func() { p.RecordTook(Outcome(r.IntN(5)), took) }, func() {
					if want := min(took, now-p.start); o.open() && !o.arrived && !o.abandoned && p.latency != want {
						t.Fatalf("seed %d: the latency is %v, want %v", seed, p.latency, want)
					}
					end()
				})
			default:
				call("Record", !o.done, func() { p.Record(Outcome(r.IntN(5))) }, func() {
					if o.open() && o.arrived && o.segment > 0 && p.latency != o.segment {
						t.Fatalf("seed %d: the latency is %v, and the answer arrived after %v", seed, p.latency, o.segment)
					}
					end()
				})
			}
		}
		check := func() {
			t.Helper()
			inFlight, orphans, residence := int64(0), int64(0), time.Duration(0)
			for _, o := range all {
				residence += o.past
				if o.flies {
					inFlight++
					residence += now - o.entered
				}
				if o.abandoned && o.open() && !o.paused && !o.arrived {
					orphans++
				}
			}
			gotOrphans, sum := int64(0), time.Duration(0)
			for i := range e.stripes {
				gotOrphans += e.stripes[i].orphans
				sum += e.stripes[i].done - e.stripes[i].starts
			}
			n := e.countInFlight()
			if got := sum + time.Duration(n)*now; n != inFlight || gotOrphans != orphans || got != residence {
				t.Fatalf("seed %d at %v, after %s: %d in flight, %d for nobody, ∫N dt %v; want %d, %d, %v", seed, now, did,
					n, gotOrphans, got, inFlight, orphans, residence)
			}
			if usable := usableCredit(e); usable > 0 && usable+n > e.inFlight+e.room() {
				t.Fatalf("seed %d at %v, after %s: credit for %d beside %d in flight; there was room for %d beside %d", seed, now, did, usable, n, e.room(), e.inFlight)
			}
		}
		for range 1500 {
			switch k := r.IntN(10); {
			case k == 0:
				did = "a wait"
				clock += []time.Duration{1, time.Millisecond, 7 * time.Millisecond, 300 * time.Millisecond}[r.IntN(4)]
				if r.IntN(40) == 0 {
					clock += []time.Duration{life, 2 * life, 5 * life}[r.IntN(3)]
				}
				now = e.now()
				e.Pressure()
				turn()
			case k == 1 || len(all) == 0:
				did = "Admit"
				onStripe(r.Uint32N(16))
				p, err := e.Admit(bg, 10)
				turn()
				if err == nil {
					all = append(all, &told{p: &p, entered: p.start, epoch: epoch, flies: true})
				}
			default:
				use(all[max(0, len(all)-1-r.IntN(5))]) // the last few: many things happen to each
			}
			check()
		}
		for _, o := range all {
			o.p.Release()
			o.land(now)
			o.done = true
		}
		did = "the end"
		turn()
		check()
		if n := e.countInFlight(); n != 0 {
			t.Errorf("seed %d: %d in flight at the end", seed, n)
		}
	}
	for _, what := range []string{"Arrived(true)", "Arrived(false)", "Answered", "Pause", "Resume", "Abandoned", "RecordTook", "Record", "written off"} {
		if seen[what] < 20 {
			t.Errorf("%s meant something %d times: the test shows nothing", what, seen[what])
		}
	}
}
