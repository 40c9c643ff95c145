package balance

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"
)

// world is a pool in virtual time, and calls that arrive at random at members that behave as they are told.
type world struct {
	t      testing.TB
	p      *Pool
	now    time.Duration
	next   time.Duration // call
	rnd    *rand.Rand
	ends   ends
	n      int
	events []string

	behave  func(m *Member, now time.Duration) (Outcome, time.Duration)
	retries int
	// What came of it.
	picked, failed map[string]int // by host
	lost           int            // calls whose last attempt failed
	blamed         int
}

type end struct {
	at, latency time.Duration
	n           int
	m           *Member
	o           Outcome
	left        int // retries
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func hosts(weights ...int) []Endpoint {
	var list []Endpoint
	for i, w := range weights {
		list = append(list, Endpoint{URL: &url.URL{Scheme: "http", Host: string(rune('a' + i))}, Weight: w})
	}
	return list
}

func newWorld(t testing.TB, seed uint64, cfg Config) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 4)), picked: map[string]int{}, failed: map[string]int{}}
	cfg.Now = func() time.Duration { return w.now }
	cfg.Rand = w.rnd.Float64
	cfg.OnEvent = func(e Event) {
		w.events = append(w.events, fmt.Sprintf("%v %s %s", w.now.Round(time.Millisecond), e.Kind, e.Member.URL().Host))
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.p = p
	w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Success, w.about(10 * time.Millisecond) }
	return w
}

func (w *world) about(d time.Duration) time.Duration {
	return time.Duration(float64(d) * w.rnd.ExpFloat64())
}

func (w *world) begin(tried *Member, left int) {
	m := w.p.Pick(tried)
	if s := w.p.set.Load(); m.out() && !s.failOpen {
		w.t.Fatalf("%v: %s is out and got a call", w.now, m.URL())
	}
	if tried == m && len(w.p.set.Load().slots) > 1 {
		w.t.Fatalf("%v: %s again, though there are others", w.now, m.URL())
	}
	w.picked[m.URL().Host]++
	m.Begin()
	o, d := w.behave(m, w.now)
	w.n++
	heap.Push(&w.ends, end{w.now + d, d, w.n, m, o, left})
}

// run has calls arrive at a rate until a time, and checks what must always hold.
func (w *world) run(until time.Duration, perSecond float64) {
	w.t.Helper()
	for {
		next := max(w.next, w.now)
		for len(w.ends) > 0 && w.ends[0].at <= min(next, until) {
			e := heap.Pop(&w.ends).(end)
			w.now = e.at
			e.m.End(e.o, e.latency)
			if e.o == Failed || e.o == TimedOut {
				w.failed[e.m.URL().Host]++
				if w.p.Blames(e.m) {
					w.blamed++
				}
				if e.left > 0 {
					w.begin(e.m, e.left-1)
				} else {
					w.lost++
				}
			}
			w.invariants()
		}
		if next > until {
			w.now = until
			return
		}
		w.now = next
		w.begin(nil, w.retries)
		w.next = next + time.Duration(w.rnd.ExpFloat64()/perSecond*1e9)
	}
}

func (w *world) invariants() {
	w.t.Helper()
	ejected := 0
	for _, m := range w.p.members {
		if m.ejected {
			ejected++
		}
		if m.inFlight.Load() < 0 {
			w.t.Fatalf("%v: %d in flight at %s", w.now, m.inFlight.Load(), m.URL())
		}
	}
	if ejected > w.p.mayEject() {
		w.t.Fatalf("%v: %d of %d ejected", w.now, ejected, len(w.p.members))
	}
}

func (w *world) of(host string) *Member {
	for _, m := range w.p.members {
		if m.URL().Host == host {
			return m
		}
	}
	w.t.Fatalf("no %s", host)
	return nil
}

func (w *world) reset() {
	clear(w.picked)
	clear(w.failed)
	w.lost, w.blamed = 0, 0
}

func (w *world) all() int { return w.picked["a"] + w.picked["b"] + w.picked["c"] + w.picked["d"] }

func (w *world) share(host string) float64 { return float64(w.picked[host]) / float64(w.all()) }

var ejecting = Config{Endpoints: hosts(1, 1, 1, 1), Eject: Eject{Enabled: true}, SlowStart: 10 * time.Second}

// each runs a simulation with several seeds and loads.
func each(t *testing.T, f func(t *testing.T, seed uint64, rate float64)) {
	for _, rate := range []float64{20, 200, 2000} {
		for seed := uint64(1); seed <= 3 && (seed == 1 || rate < 1000); seed++ {
			t.Run(fmt.Sprintf("%v calls a second/%d", rate, seed), func(t *testing.T) { f(t, seed, rate) })
		}
	}
}

func TestAFailingEndpointIsEjectedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, seed uint64, rate float64) {
		w := newWorld(t, seed, ejecting)
		w.retries = 1
		w.run(20*time.Second, rate)
		w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
			if m.URL().Host == "a" {
				return Failed, time.Millisecond
			}
			return Success, w.about(10 * time.Millisecond)
		}
		w.reset()
		for w.now < 30*time.Second && !w.of("a").ejected {
			w.run(w.now+10*time.Millisecond, rate)
		}
		if n := w.failed["a"]; n < 5 || n > 8 && rate <= 200 || n > 20 { // good answers that were under way interrupt the row
			t.Errorf("ejected after %d failures", n)
		}
		w.run(140*time.Second, rate)
		if s := w.share("a"); s > 0.02 {
			t.Errorf("it got %.2f %% of the attempts in two minutes: %q", 100*s, w.events)
		}
		if w.lost != 0 {
			t.Errorf("%d calls were lost although there is a retry", w.lost)
		}
		if w.blamed < w.failed["a"]/4 { // the first of each row count, until the others have answered
			t.Errorf("%d of %d failures blamed on it", w.blamed, w.failed["a"])
		}
		for _, h := range []string{"b", "c", "d"} {
			if w.of(h).total != 0 {
				t.Errorf("%s was ejected", h)
			}
		}
	})
}

func TestAHangingEndpointStarvesAndIsEjected(t *testing.T) {
	each(t, func(t *testing.T, seed uint64, rate float64) {
		w := newWorld(t, seed, ejecting)
		w.retries = 1
		hang := func(m *Member, _ time.Duration) (Outcome, time.Duration) {
			if m.URL().Host == "a" {
				return TimedOut, time.Second
			}
			return Success, w.about(10 * time.Millisecond)
		}
		w.run(20*time.Second, rate)
		w.behave = hang
		w.reset()
		w.run(21*time.Second, rate) // nothing is known of it yet but what is in flight
		if s := w.share("a"); s > 0.25 && rate <= 20 || s > 0.03 && rate >= 200 {
			t.Errorf("it got %.1f %% before its first timeout", 100*s)
		}
		for w.now < 60*time.Second && !w.of("a").ejected {
			w.run(w.now+10*time.Millisecond, rate)
		}
		if took := w.now - 20*time.Second; took > 6*time.Second && rate <= 20 || took > 3100*time.Millisecond && rate >= 200 {
			t.Errorf("ejected after %v", took)
		}
		w.run(140*time.Second, rate)
		if s := w.share("a"); s > 0.01+0.5/rate {
			t.Errorf("it got %.2f %% of the attempts in two minutes: %q", 100*s, w.events)
		}
		if w.lost != 0 {
			t.Errorf("%d calls were lost although there is a retry", w.lost)
		}
	})
}

func TestAnEndpointThatFailsEverySecondCallIsFound(t *testing.T) {
	each(t, func(t *testing.T, seed uint64, rate float64) {
		w := newWorld(t, seed, ejecting)
		w.run(20*time.Second, rate)
		w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
			if m.URL().Host == "a" && w.rnd.Float64() < 0.5 || w.rnd.Float64() < 0.01 {
				return Failed, time.Millisecond
			}
			return Success, w.about(10 * time.Millisecond)
		}
		w.reset()
		for w.now < 100*time.Second && !w.of("a").ejected {
			w.run(w.now+10*time.Millisecond, rate)
		}
		// 20 of its attempts are needed, half of them bad; those of the good past are forgotten after two rounds.
		if took := w.now - 20*time.Second; took > 22*time.Second {
			t.Errorf("ejected after %v", took)
		}
		w.run(200*time.Second, rate)
		for _, h := range []string{"b", "c", "d"} {
			if w.of(h).total != 0 {
				t.Errorf("%s was ejected: %q", h, w.events)
			}
		}
	})
}

func TestIfAllFailAlikeNobodyIsEjectedAndAllFailuresCount(t *testing.T) {
	each(t, func(t *testing.T, seed uint64, rate float64) {
		for _, past := range []float64{0, 0.02} {
			for _, d := range []time.Duration{time.Millisecond, time.Second} {
				w := newWorld(t, seed, ejecting)
				w.retries = 1
				w.behave = func(*Member, time.Duration) (Outcome, time.Duration) {
					if w.rnd.Float64() < past {
						return Failed, time.Millisecond
					}
					return Success, w.about(100 * time.Millisecond)
				}
				w.run(20*time.Second, rate)
				w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Failed, w.about(d) }
				w.reset()
				w.run(40*time.Second, rate)
				if len(w.events) > 0 {
					t.Errorf("past %v: %q", past, w.events)
				}
				if n := w.failed["a"] + w.failed["b"] + w.failed["c"] + w.failed["d"]; w.blamed > n/500 {
					t.Errorf("past %v: %d of %d failures were blamed on endpoints", past, w.blamed, n)
				}
			}
		}
	})
}

// A target of which a part of all calls fails has no ill endpoint, however long one looks.
func TestEqualRatesEjectNobody(t *testing.T) {
	for _, rate := range []float64{0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8} {
		cfg := ejecting
		w := newWorld(t, 7, cfg)
		w.behave = func(*Member, time.Duration) (Outcome, time.Duration) {
			if w.rnd.Float64() < rate {
				return Failed, w.about(10 * time.Millisecond)
			}
			return Success, w.about(10 * time.Millisecond)
		}
		w.run(200*time.Second, 500)
		n := w.failed["a"] + w.failed["b"] + w.failed["c"] + w.failed["d"]
		if len(w.events) > 0 || w.blamed > n/100 {
			t.Errorf("rate %v: %q; %d of %d failures blamed on endpoints", rate, w.events, w.blamed, n)
		}
	}
}

// With few members and many calls chance has many chances. And when both fail at once, the less busy one gets all calls for
// a moment, while the other has only what it answers from before.
func TestTwoThatAreAlikeStayInTheLoad(t *testing.T) {
	for seed := range uint64(5) {
		cfg := ejecting
		cfg.Endpoints = hosts(1, 1)
		w := newWorld(t, seed, cfg)
		w.behave = func(*Member, time.Duration) (Outcome, time.Duration) {
			if w.rnd.Float64() < 0.15 {
				return Failed, w.about(10 * time.Millisecond)
			}
			return Success, w.about(100 * time.Millisecond)
		}
		w.run(10*time.Second, 2000)
		for _, health := range []time.Duration{time.Second, 10 * time.Second, 25 * time.Second} {
			w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Success, w.about(100 * time.Millisecond) }
			w.run(w.now+health, 2000)
			w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Failed, time.Millisecond }
			w.run(w.now+time.Second, 2000)
		}
		if len(w.events) > 0 {
			t.Errorf("seed %d: %q", seed, w.events)
		}
	}
}

// What fails beyond the share that may be ejected is the target's illness: the engine must see it.
func TestEndpointsThatFallIllOneAfterTheOther(t *testing.T) {
	w := newWorld(t, 3, ejecting)
	w.behave = func(m *Member, now time.Duration) (Outcome, time.Duration) {
		h := m.URL().Host
		if h == "a" || h == "b" && now > 40*time.Second || h == "c" && now > 50*time.Second || h == "d" && now > 60*time.Second {
			return Failed, time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	w.run(50*time.Second, 200)
	if !w.of("b").ejected && w.of("b").total == 0 || w.of("a").total == 0 {
		t.Fatalf("%q", w.events)
	}
	w.reset()
	w.run(59*time.Second, 200)
	if w.of("c").ejected && w.of("a").ejected && w.of("b").ejected {
		t.Error("three of four are out")
	}
	w.run(61*time.Second, 200)
	w.reset()
	w.run(100*time.Second, 200)
	n := w.failed["a"] + w.failed["b"] + w.failed["c"] + w.failed["d"]
	if w.blamed > n/100 || n != w.all() && n < 7000 {
		t.Errorf("all are ill: %d of %d failures were blamed on endpoints", w.blamed, n)
	}
}

func TestAReturningEndpointsShareRises(t *testing.T) {
	w := newWorld(t, 5, ejecting)
	w.run(10*time.Second, 1000)
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if m.URL().Host == "a" {
			return Failed, time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	for !w.of("a").ejected {
		w.run(w.now+time.Millisecond, 1000)
	}
	w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Success, w.about(10 * time.Millisecond) }
	w.reset()
	until := w.of("a").until
	w.run(until-time.Millisecond, 1000)
	if w.picked["a"] != 0 {
		t.Error("it got calls while it was ejected")
	}
	for i := range 12 {
		w.reset()
		w.run(until+time.Duration(i+1)*time.Second, 1000)
		f := min(1, leastShare+(1-leastShare)*(float64(i)+0.5)/10)
		want := f / (3 + f)
		if s := w.share("a"); s < want*0.6-0.01 || s > want*1.3+0.01 {
			t.Errorf("second %d: share %.3f, want about %.3f", i, s, want)
		}
	}
}

func TestEjectionsGetLongerAndAreForgotten(t *testing.T) {
	cfg := ejecting
	cfg.Eject.MaxTime = 12 * time.Second
	w := newWorld(t, 9, cfg)
	ill := true
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if ill && m.URL().Host == "a" {
			return Failed, time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	a := w.of("a")
	next := func() time.Duration {
		n := a.total
		for a.total == n {
			w.run(w.now+10*time.Millisecond, 500)
		}
		return a.lasted
	}
	for i, want := range []time.Duration{5, 10, 12, 12, 12} {
		if got := next(); got > want*time.Second || got < want*time.Second*9/10 {
			t.Errorf("ejection %d lasts %v, want %d s or up to a tenth less", i+1, got, want)
		}
	}
	ill = false
	w.run(w.now+5*time.Minute, 100)
	ill = true
	if got := next(); got > 5*time.Second {
		t.Errorf("after a long health it lasts %v", got)
	}
}

func TestFailuresFromBeforeAnEjectionDoNotEjectAgain(t *testing.T) {
	w := newWorld(t, 1, ejecting)
	w.run(20*time.Second, 1000)
	a := w.of("a")
	for range 30 {
		a.Begin()
	}
	for range 10 { // load it gets none of: it looks busy
		a.Begin()
		a.End(Failed, time.Millisecond)
		w.run(w.now+10*time.Millisecond, 1000)
	}
	if !a.ejected {
		t.Fatal("not ejected")
	}
	w.run(a.until+time.Millisecond, 1000)
	for range 30 { // hung for as long as the ejection
		a.End(TimedOut, 6*time.Second)
		w.run(w.now+20*time.Millisecond, 1000)
	}
	if a.total != 1 {
		t.Errorf("%q", w.events)
	}
}

func TestTheOnlyEndpointIsNeverOut(t *testing.T) {
	cfg := ejecting
	cfg.Endpoints, cfg.Eject.MaxShare = hosts(1), 1
	w := newWorld(t, 1, cfg)
	w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Failed, time.Millisecond }
	w.run(20*time.Second, 100)
	if len(w.events) > 0 || w.blamed > 0 {
		t.Errorf("%q, %d blamed", w.events, w.blamed)
	}
}

func TestOneOfTwoIsEjectedWhateverTheShare(t *testing.T) {
	cfg := ejecting
	cfg.Endpoints, cfg.Eject.MaxShare = hosts(1, 1), 0.1
	w := newWorld(t, 1, cfg)
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if m.URL().Host == "a" {
			return Failed, time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	w.run(20*time.Second, 100)
	if w.of("a").total == 0 || w.of("b").total != 0 {
		t.Errorf("%q", w.events)
	}
}

func TestThrottledAndNeutralSayNothing(t *testing.T) {
	w := newWorld(t, 1, ejecting)
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if m.URL().Host == "a" {
			return []Outcome{Throttled, Neutral}[w.rnd.IntN(2)], time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	w.run(20*time.Second, 100)
	if len(w.events) > 0 {
		t.Errorf("%q", w.events)
	}
	// They do not interrupt a row either.
	a := w.of("a")
	for i := range 40 {
		a.Begin()
		a.End([]Outcome{Failed, Throttled, Neutral}[i%3], time.Millisecond)
		w.run(w.now+100*time.Millisecond, 100)
	}
	if a.total == 0 {
		t.Error("failures with throttles in between do not eject")
	}
}

// Those of which nothing but the share keeps them from being ejected do not get the load of a healthy one.
func TestAnIllEndpointThatMayNotBeEjectedGetsASmallShare(t *testing.T) {
	cfg := ejecting
	cfg.Eject.MaxShare = 0.25
	w := newWorld(t, 1, cfg)
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if h := m.URL().Host; h == "a" || h == "b" {
			return Failed, time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	w.run(5*time.Second, 500)
	w.reset()
	w.run(120*time.Second, 500)
	if s := w.share("a") + w.share("b"); s > 0.2 {
		t.Errorf("two ill endpoints, one of them ejected, got %.1f %%", 100*s)
	}
}

// A row that began while others were well still is long when they are not: what they did then is no evidence any more.
func TestARowThatOutlastsTheHealthOfTheOthers(t *testing.T) {
	cfg := ejecting
	cfg.Eject.Failures = 100
	w := newWorld(t, 1, cfg)
	w.run(20*time.Second, 500)
	w.behave = func(m *Member, now time.Duration) (Outcome, time.Duration) {
		if m.URL().Host == "a" || now > 20060*time.Millisecond {
			return Failed, w.about(10 * time.Millisecond)
		}
		return Success, w.about(10 * time.Millisecond)
	}
	w.run(21*time.Second, 500)
	w.reset()
	w.run(40*time.Second, 500)
	if len(w.events) > 0 || w.blamed > 0 {
		t.Errorf("%q, %d blamed", w.events, w.blamed)
	}
}

// Three of four are ill, two may be ejected: the third's failures are the target's, and it is not put in their place.
func TestNoMoreAreBlamedThanMayBeEjected(t *testing.T) {
	cfg := ejecting
	cfg.Eject.BaseTime = time.Hour
	cfg.Eject.MaxTime = time.Hour
	w := newWorld(t, 1, cfg)
	w.run(20*time.Second, 500)
	ill := "a"
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if strings.Contains(ill, m.URL().Host) {
			return Failed, w.about(10 * time.Millisecond)
		}
		return Success, w.about(10 * time.Millisecond)
	}
	for _, ill = range []string{"a", "ab", "abc"} {
		w.run(w.now+10*time.Second, 500)
	}
	if len(w.events) != 2 || !w.of("a").ejected || !w.of("b").ejected {
		t.Errorf("%q", w.events)
	}
	w.reset()
	w.run(w.now+10*time.Second, 500)
	if w.blamed > 0 || w.failed["c"] < 100 {
		t.Errorf("%d of %d failures blamed", w.blamed, w.failed["c"])
	}
}

// Others that answer in half a minute look busy and have few results: one that fails at once must not take all the load meanwhile.
func TestAFailingEndpointBesideSlowOnes(t *testing.T) {
	w := newWorld(t, 1, ejecting)
	w.retries = 1
	w.behave = func(*Member, time.Duration) (Outcome, time.Duration) { return Success, w.about(30 * time.Second) }
	w.run(100*time.Second, 50)
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if m.URL().Host == "a" {
			return Failed, time.Millisecond
		}
		return Success, w.about(30 * time.Second)
	}
	for !w.of("a").ejected && w.now < 120*time.Second {
		w.run(w.now+10*time.Millisecond, 50)
	}
	if took := w.now - 100*time.Second; took > 3*time.Second {
		t.Errorf("ejected after %v", took)
	}
}
