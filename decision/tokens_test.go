package decision

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

func TestATokenThatIsNeverReportedExpires(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Others = nil
	}, func(c *Config) {
		now := c.Now
		c.Others = cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{Now: now, PermitLife: 30 * time.Second, Stripes: 1} }, 10)
	})
	tokens := map[int]string{}
	for i := range 10 {
		a := w.ask("Admit", `{"target":"a","priority":5}`)
		tokens[i] = a["token"].(string)
		if a["token_life_ms"] != 30000.0 {
			t.Fatalf("%v", a)
		}
		w.add(time.Second)
	}
	w.add(20*time.Second - 1) // the first of them has a nanosecond left
	if n := w.open(); n != 10 {
		t.Errorf("%d open", n)
	}
	if r := w.ask("Report", `{"token":"`+tokens[0]+`","outcome":"success"}`); r["counted"] != true {
		t.Errorf("in its last moment: %v", r)
	}
	w.add(time.Second + 1)
	if r := w.ask("Report", `{"token":"`+tokens[1]+`","outcome":"failure"}`); r["counted"] != false || r["reason"] != "TOKEN_UNKNOWN" {
		t.Errorf("too late: %v", r)
	}
	w.add(time.Minute)
	list := w.ask("List", `{}`)["targets"].([]any)
	if n := w.open(); n != 0 || list[0].(map[string]any)["in_flight"] != 0.0 {
		t.Errorf("%d open, %v", n, list)
	}
	e, _ := w.service.Others.Engine("a")
	if s := e.Stats(); s.Failures+s.Timeouts != 0 || s.Successes != 1 {
		t.Errorf("tokens that expired say something of the target: %+v", s)
	}
}

// A worker died with more attempts under way than its target takes at a time: all others were refused, critical ones too, until the tokens
// expired ten minutes later; and refusals let none expire.
func TestWorkersThatDiedBlockedTheirTarget(t *testing.T) {
	w := newWorld(t)
	good := func(n, priority int) (allowed int) {
		for range n {
			a := w.ask("Admit", fmt.Sprintf(`{"target":"a","priority":%d}`, priority))
			w.add(20 * time.Millisecond)
			if a["allowed"] == true {
				allowed++
				w.ask("Report", `{"token":"`+a["token"].(string)+`","outcome":"success"}`)
			}
		}
		return allowed
	}
	good(200, 5)
	for range 40 {
		w.ask("Admit", `{"target":"a","priority":5}`)
	}
	if n := good(20, 1); n > 10 {
		t.Errorf("%d of 20 allowed while 40 are under way", n)
	}
	w.add(6 * time.Second)
	good(20, 5)
	if n := good(20, 5); n < 20 {
		t.Errorf("%d of 20 allowed when those that died should have been reported long ago; %+v", n, w.engine("a").Pressure())
	}
}

// A report that comes after the attempt has ceased to count as in flight counts, with the latency that it took.
func TestAReportAfterItsGrace(t *testing.T) {
	w := newWorld(t)
	a := w.ask("Admit", `{"target":"a","priority":5}`)
	w.add(time.Minute)
	w.ask("Admit", `{"target":"b","priority":5}`)
	if n := w.engine("a").Pressure().InFlight; n != 0 || w.open() != 2 {
		t.Errorf("%d in flight, %d open", n, w.open())
	}
	if r := w.ask("Report", `{"token":"`+a["token"].(string)+`","outcome":"failure"}`); r["counted"] != true {
		t.Errorf("%v", r)
	}
	if s := w.engine("a").Stats(); s.Failures != 1 || w.engine("a").Pressure().InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// Clients that take tokens and never report cost a bounded memory, and others nothing.
func TestOpenTokensAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxTokens = 5 })
	for i := range 20 {
		a := w.ask("Admit", `{"target":"a","priority":5}`)
		if a["allowed"] != true || (a["token"] != "") != (i < 5) {
			t.Errorf("%d: %v", i, a)
		}
	}
	if n := w.engine("a").Pressure().InFlight; n != 5 || w.open() != 5 {
		t.Errorf("%d in flight, %d open", n, w.open())
	}
	w.add(11 * time.Minute)
	if a := w.ask("Admit", `{"target":"a","priority":5}`); a["token"] == "" {
		t.Errorf("there is room again: %v", a)
	}
	if s, ok := StatsOf(w.service); !ok || s.Tokens != 1 || s.Expired != 5 || s.Full != 15 || s.Watches != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTokensAtOnce(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				a, err := w.service.Admit(background, &pb.AdmitRequest{Target: ptr("a"), Priority: ptr(int32(9))})
				if err != nil || !a.Allowed {
					t.Errorf("%v %v", a, err)
					return
				}
				counted := make(chan bool, 2)
				for range 2 {
					go func() {
						r, err := w.service.Report(background, &pb.ReportRequest{Token: &a.Token, Outcome: ptr("success")})
						counted <- err == nil && r.Counted
					}()
				}
				if x, y := <-counted, <-counted; x == y {
					t.Errorf("of two reports of a token %v and %v counted", x, y)
				}
			}
		})
	}
	wg.Wait()
	if n := w.open(); n != 0 || w.engine("a").Stats().Successes != 1600 {
		t.Errorf("%d open, %+v", n, w.engine("a").Stats())
	}
}

// F88: whoever can name a target could make one for each call.
func TestTenThousandTargetsAreAsManyAsTheRegistryHolds(t *testing.T) {
	w := newWorld(t)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	at := uint64(0)
	for i := range 10_000 {
		if i == 500 {
			at = heap()
		}
		target := fmt.Sprintf("t%d", i)
		// Half of them are never reported: engines in use do not make room, and further targets share one.
		a, err := w.service.Admit(background, &pb.AdmitRequest{Target: &target, Priority: ptr(int32(5))})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 && a.Token != "" {
			w.service.Report(background, &pb.ReportRequest{Token: &a.Token, Outcome: ptr("success")})
		}
		w.service.Decide(background, &pb.DecideRequest{Target: &target, Priority: ptr(int32(5)), Attempt: ptr(int32(0)), LatencyMs: ptr(1.0),
			Error: &pb.Error{Message: ptr("no " + strings.Repeat("x", i%100))}})
	}
	if n := w.registry.Len(); n > 100 {
		t.Errorf("%d engines", n)
	}
	evicted, overflowed := w.registry.Counts()
	if evicted+overflowed < 9000 {
		t.Errorf("%d evicted, %d overflowed", evicted, overflowed)
	}
	if grown := int64(heap()) - int64(at); grown > 8<<20 {
		t.Errorf("the heap has grown by %d KiB since the 500th", grown>>10)
	}
	if list := w.ask("List", `{}`)["targets"].([]any); len(list) > 101 {
		t.Errorf("%d targets listed", len(list))
	}
}

// Attempts that nobody reported kept the engines of their targets for the life of their tokens, long after these had made room for others: with
// names that are made up, as many engines as there are tokens.
func TestLostAttemptsKeptEnginesThatHadMadeRoom(t *testing.T) {
	w := newWorld(t)
	for i := range 20 * 100 { // the registry holds 100
		target := fmt.Sprintf("t%d", i)
		if _, err := w.service.Admit(background, &pb.AdmitRequest{Target: &target, Priority: ptr(int32(5))}); err != nil {
			t.Fatal(err)
		}
		w.add(100 * time.Millisecond) // the last is not made before the first is lost
	}
	if evicted, _ := w.registry.Counts(); evicted < 1500 {
		t.Fatalf("%d evicted", evicted)
	}
	held := map[*cortex.Engine]bool{}
	for _, a := range w.service.tokens.byID {
		held[a.engine] = true
	}
	if len(held) > 200 {
		t.Errorf("%d engines are held, of which the registry knows %d", len(held), w.registry.Len())
	}
	if s, _ := StatsOf(w.service); s.Tokens > 200 || s.Tokens+int(s.Expired) != 2000 {
		t.Errorf("%+v", s)
	}
}

func TestWhatIsNoToken(t *testing.T) {
	var id tokenID
	for i := range id {
		id[i] = byte(i * 17)
	}
	if got, ok := parseToken(id.String()); !ok || got != id {
		t.Errorf("%v %v", got, ok)
	}
	for _, s := range []string{"", "A", strings.Repeat("A", 21), strings.Repeat("A", 23), strings.Repeat("A", 21) + "=", strings.Repeat("\n", 22),
		strings.Repeat("A", 21) + "\n", strings.Repeat("+", 22)} {
		if id, ok := parseToken(s); ok {
			t.Errorf("%q is %v", s, id)
		}
	}
}

// One whose grace goes beyond its life ends with its life.
func TestATokenEndsWithItsLifeWhateverItsGrace(t *testing.T) {
	s := tokens{max: 10, byID: map[tokenID]*attempt{}}
	if a := new(attempt); !s.add(a, 0, 900*time.Millisecond, time.Second) || a.counts <= a.expires {
		t.Fatalf("%+v", a)
	}
	s.expire(time.Second - 1)
	if len(s.byID) != 1 {
		t.Error("it ended before")
	}
	s.expire(time.Second)
	if len(s.byID) != 0 || s.expired != 1 {
		t.Errorf("%d are open", len(s.byID))
	}
}
