package balance

import (
	"errors"
	"math"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"
)

// At rest, and one call after the other, the shares are the weights'.
func TestSharesAreTheWeights(t *testing.T) {
	for _, weights := range [][]int{{1, 1}, {1, 1, 1, 1}, {1, 3}, {1, 9}, {5, 1, 1, 3}, {100, 1, 1}, {7, 7, 1}} {
		for _, load := range []float64{0, 20, 2000} { // calls a second; 0 = one after the other
			w := newWorld(t, 11, Config{Endpoints: hosts(weights...)})
			if load == 0 {
				for range 100_000 {
					m := w.p.Pick(nil)
					m.Begin()
					m.End(Success, 0)
					w.picked[m.URL().Host]++
				}
			} else {
				w.run(time.Duration(1e5/load*1e9), load)
			}
			sum := 0
			for _, x := range weights {
				sum += x
			}
			for i, x := range weights {
				want := float64(x) / float64(sum)
				got := w.share(string(rune('a' + i)))
				slack := 0.01
				if load > 0 {
					slack = 0.15 * want // what is in flight is a whole number
				}
				if math.Abs(got-want) > slack+0.005 {
					t.Errorf("weights %v, load %v: endpoint %d has %.3f of the calls, want %.3f", weights, load, i, got, want)
				}
			}
		}
	}
}

func TestDrawGivesTwoSlotsTheFirstByWeight(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		n := 2 + rnd.IntN(40)
		s := &set{}
		sum := 0.0
		for range n {
			x := math.Exp(rnd.Float64() * 8)
			sum += x
			s.slots = append(s.slots, slot{weight: x})
		}
		s.alias = aliases(s.slots)
		mass := make([]float64, n)
		for i, a := range s.alias {
			mass[i] += a.keep / float64(n)
			mass[a.other] += (1 - a.keep) / float64(n)
		}
		for i := range mass {
			if want := s.slots[i].weight / sum; math.Abs(mass[i]-want) > 1e-9 {
				t.Fatalf("slot %d of %d has %v, want %v", i, n, mass[i], want)
			}
		}
		for k := range 1000 {
			r := rnd.Float64()
			switch k {
			case 0:
				r = 0
			case 1:
				r = 1 - 1.0/(1<<53)
			case 2:
				r = 1 // from a sloppy source
			}
			if i, j := s.draw(r); i == j || min(i, j) < 0 || max(i, j) >= n {
				t.Fatalf("draw(%v) of %d is %d, %d", r, n, i, j)
			}
		}
	}
}

// Of two, or with any weights, a retry goes elsewhere.
func TestPickAvoidsTheTried(t *testing.T) {
	for _, weights := range [][]int{{1, 1}, {1000, 1}, {1000, 1, 1}, {1, 1, 1, 1, 1}} {
		w := newWorld(t, 1, Config{Endpoints: hosts(weights...)})
		for _, tried := range w.p.members {
			for range 1000 {
				if w.p.Pick(tried) == tried {
					t.Fatalf("weights %v: the tried one again", weights)
				}
			}
		}
	}
	w := newWorld(t, 1, Config{Endpoints: hosts(1)})
	if m := w.p.members[0]; w.p.Pick(m) != m {
		t.Error("the only one is not picked again")
	}
}

func TestPickTakesTheLessLoaded(t *testing.T) {
	w := newWorld(t, 1, Config{Endpoints: hosts(1, 1)})
	w.of("a").Begin()
	for range 100 {
		if w.p.Pick(nil) != w.of("b") {
			t.Fatal("the busy one of two is picked")
		}
	}
	w.of("a").End(Neutral, 0)
	w = newWorld(t, 1, Config{Endpoints: hosts(1, 3)}) // 1 of 1 in flight is as much as 3 of 3
	w.of("a").Begin()
	for range 2 {
		w.of("b").Begin()
	}
	for range 100 {
		if w.p.Pick(nil) != w.of("b") {
			t.Fatal("the third call goes to the one with the smaller share")
		}
	}
}

// In-flight numbers are exact whatever the order of beginnings and ends.
func TestInFlightIsExact(t *testing.T) {
	w := newWorld(t, 21, Config{Endpoints: hosts(1, 2, 3), Eject: Eject{Enabled: true, MaxShare: 1}, SlowStart: time.Second})
	open := map[*Member]int64{}
	var list []*Member
	for range 50_000 {
		w.now += time.Duration(w.rnd.IntN(int(20 * time.Millisecond)))
		if len(list) == 0 || w.rnd.IntN(2) == 0 && len(list) < 50 {
			m := w.p.Pick(nil)
			m.Begin()
			open[m]++
			list = append(list, m)
		} else {
			i := w.rnd.IntN(len(list))
			m := list[i]
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			open[m]--
			m.End(Outcome(w.rnd.IntN(5)), time.Duration(w.rnd.IntN(int(time.Second))))
		}
		w.invariants()
		for _, m := range w.p.members {
			if m.inFlight.Load() != open[m] {
				t.Fatalf("%d in flight, want %d", m.inFlight.Load(), open[m])
			}
		}
	}
	attempts := uint64(0)
	for _, s := range w.p.Snapshot() {
		attempts += s.Ended()
	}
	if attempts < 24_000 {
		t.Errorf("%d attempts counted", attempts)
	}
}

func TestConfigThatCannotBe(t *testing.T) {
	u := &url.URL{Scheme: "http", Host: "a"}
	one := []Endpoint{{URL: u}}
	for field, c := range map[string]Config{
		"Endpoints":           {},
		"Endpoints[0].URL":    {Endpoints: []Endpoint{{}}},
		"Endpoints[1].URL":    {Endpoints: []Endpoint{{URL: u}, {URL: &url.URL{Path: "/a"}}}},
		"Endpoints[0].Weight": {Endpoints: []Endpoint{{URL: u, Weight: -1}}},
		"SlowStart":           {Endpoints: one, SlowStart: -1},
		"Resolve":             {Endpoints: one, Resolve: -1},
		"Eject.Failures":      {Endpoints: one, Eject: Eject{Failures: -1}},
		"Eject.MaxShare":      {Endpoints: one, Eject: Eject{MaxShare: math.NaN()}},
		"Eject.BaseTime":      {Endpoints: one, Eject: Eject{BaseTime: -1}},
		"Eject.MaxTime":       {Endpoints: one, Eject: Eject{BaseTime: 2, MaxTime: 1}},
		"Probe":               {Endpoints: one, Check: &Check{}},
	} {
		_, err := New(c)
		var e *ConfigError
		if !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(Config{Endpoints: one}); err != nil {
		t.Error(err)
	}
}

func TestPickAndEndDoNotAllocate(t *testing.T) {
	for _, weights := range [][]int{{1}, {1, 1, 1}, {1, 2, 3}} {
		p, err := New(Config{Endpoints: hosts(weights...), Eject: Eject{Enabled: true}, SlowStart: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(1000, func() {
			m := p.Pick(nil)
			m.Begin()
			m.End(Success, time.Millisecond)
			m = p.Pick(m)
			m.Begin()
			m.End(Failed, time.Millisecond)
		}); n != 0 {
			t.Errorf("%v allocations with weights %v", n, weights)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for name, weights := range map[string][]int{"1": {1}, "2": {1, 1}, "8": {1, 1, 1, 1, 1, 1, 1, 1}, "8 by weight": {1, 2, 3, 4, 5, 6, 7, 8}} {
		p, err := New(Config{Endpoints: hosts(weights...), Eject: Eject{Enabled: true}, SlowStart: time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/pick", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p.Pick(nil)
			}
		})
		b.Run(name+"/pick, begin, end", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := p.Pick(nil)
				m.Begin()
				m.End(Success, time.Millisecond)
			}
		})
	}
}

func TestWords(t *testing.T) {
	_, err := New(Config{})
	for _, c := range [][2]string{
		{err.Error(), "balance: Endpoints is empty: want at least one"},
		{LookupFailed.String(), "lookup failed"}, {Kind(200).String(), "Kind(200)"},
		{StateCheckedOut.String(), "checked out"}, {State(200).String(), "State(200)"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}

// The third attempt goes to those that were not tried, whose slow start counts.
func TestThirdAttemptsMindTheSlowStart(t *testing.T) {
	w := newWorld(t, 1, Config{Endpoints: hosts(1, 1, 1, 1), SlowStart: 10 * time.Second})
	a, b, c, d := w.of("a"), w.of("b"), w.of("c"), w.of("d")
	seen := map[*Member]int{}
	for range 1000 {
		seen[w.p.Pick(a, b)]++
	}
	if seen[c] < 400 || seen[d] < 400 {
		t.Errorf("c %d, d %d of 1000", seen[c], seen[d])
	}
	w.p.mu.Lock()
	c.comeBack(w.now)
	w.p.rebuild(w.now)
	w.p.unlock()
	for range 5 {
		d.Begin()
	}
	if w.p.Pick(a, b) != d {
		t.Error("one that has just come back is picked, though another is less loaded for its share")
	}
	w.now += time.Minute
	if w.p.Pick(a, b) != c {
		t.Error("one whose slow start is over is not picked")
	}
}
