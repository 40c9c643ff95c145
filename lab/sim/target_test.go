package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

const ms = time.Millisecond

// A bench sends attempts by hand to a target of one worker that takes 100 ms, and writes down what became of them.
type bench struct {
	t   *testing.T
	w   *World
	log []string
}

func newBench(t *testing.T, change func(*scenario.Scenario)) *bench {
	t.Helper()
	s := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Deadline = 20*time.Second, 10*time.Second
		s.Arrivals = scenario.Arrivals{Trace: []float64{0}}
		s.Downstream = scenario.Downstream{Workers: 1, Service: scenario.Service{Distribution: scenario.Fixed, Mean: 100 * ms}}
		change(s)
	})
	w, err := New(Options{Scenario: s, Seed: 1, Begin: func(*Call) {}})
	if err != nil {
		t.Fatal(err)
	}
	w.Poison()
	return &bench{t: t, w: w}
}

// send makes an attempt at a moment; then, if given, is what its client does with a failure.
func (b *bench) send(name string, at, limit time.Duration, then ...func()) *Attempt {
	b.w.Advance(at)
	c := b.w.newCall()
	c.Start, c.Deadline = at, at+b.w.scenario.Deadline
	b.w.meter.offered(c, at)
	return b.w.Send(c, limit, func(f Failure) {
		b.log = append(b.log, fmt.Sprintf("%s %v %v", name, b.w.Now(), f.Outcome))
		if f.Outcome != cortex.Success {
			for _, do := range then {
				do()
			}
		}
		b.w.Finish(c, f.Outcome == cortex.Success)
	})
}

func (b *bench) want(wasted float64, log ...string) {
	b.t.Helper()
	b.w.Advance(40 * time.Second)
	slices.Sort(log)
	slices.Sort(b.log)
	if !slices.Equal(log, b.log) {
		b.t.Errorf("got\n%q\nwant\n%q", b.log, log)
	}
	if calls, attempts, held := b.w.Alive(); calls != 0 || attempts != held {
		b.t.Errorf("%d calls and %d attempts are left, the target has %d", calls, attempts, held)
	}
	if r := b.w.Result(); r.Wasted < wasted-1e-9 || r.Wasted > wasted+1e-9 {
		b.t.Errorf("%v server-seconds wasted, want %v", r.Wasted, wasted)
	}
}

func faults(f ...scenario.Fault) func(*scenario.Scenario) {
	return func(s *scenario.Scenario) { s.Faults = f }
}

func TestWorkIsDoneInOrder(t *testing.T) {
	b := newBench(t, func(*scenario.Scenario) {})
	for i := range 3 {
		b.send(fmt.Sprint(i), time.Duration(i), 0)
	}
	b.send("late", 1000*ms, 0)
	b.want(0, "0 100ms success", "1 200ms success", "2 300ms success", "late 1.1s success")
}

// A client that goes leaves its work behind: it is done, for nothing.
func TestWorkWhoseClientHasGoneIsDoneAllTheSame(t *testing.T) {
	b := newBench(t, func(*scenario.Scenario) {})
	b.send("a", 0, 50*ms)
	b.send("b", 1*ms, 20*ms)
	b.send("c", 2*ms, 0)
	b.want(0.2, "a 50ms timeout", "b 21ms timeout", "c 300ms success")
}

// An answer at the very end of a client's patience is too late, whoever asks, again and again.
func TestAnAnswerAtTheTimeoutIsTooLate(t *testing.T) {
	b := newBench(t, func(*scenario.Scenario) {})
	b.send("a", 0, 100*ms)
	b.send("b", 1000*ms, 100*ms+1)
	b.want(0.1, "a 100ms timeout", "b 1.1s success")
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	b := newBench(t, func(s *scenario.Scenario) { s.Downstream.Queue = 2 })
	for i := range 5 {
		b.send(fmt.Sprint(i), 0, 0)
	}
	b.want(0, "0 100ms success", "1 200ms success", "2 300ms success", "3 2ms failure", "4 2ms failure")
}

// Where the target drops work whose client has gone, its place in the queue is free from that moment on, not only when its turn comes.
func TestCancelledWorkLeavesTheQueueAtOnce(t *testing.T) {
	b := newBench(t, func(s *scenario.Scenario) { s.Downstream.Queue, s.Downstream.Cancels = 3, true })
	b.send("a", 0, 0)
	b.send("b", 0, 0)
	b.send("c", 0, 10*ms)
	b.send("d", 0, 20*ms)
	b.send("full", 0, 0)
	b.send("e", 15*ms, 0)
	b.send("full too", 16*ms, 0)
	b.send("f", 30*ms, 0)
	gone := b.send("g", 150*ms, 0)
	call := gone.Call
	b.w.Abandon(gone)
	b.w.Finish(call, false)
	b.send("in service", 2000*ms, 50*ms)
	b.want(0.1, "a 100ms success", "b 200ms success", "c 10ms timeout", "d 20ms timeout", "full 2ms failure", "e 300ms success",
		"full too 18ms failure", "f 400ms success", "in service 2.05s timeout")
}

// The ring of waiting work survives growth, wrapping round and holes.
func TestTheQueueKeepsItsOrderWithHoles(t *testing.T) {
	b := newBench(t, func(s *scenario.Scenario) { s.Downstream.Cancels, s.Downstream.Service.Mean = true, 1*ms })
	var want []string
	done := 0
	for i := range 500 {
		at := time.Duration(i/10) * 5 * ms
		limit := time.Duration(0)
		if i%3 == 1 {
			limit = time.Microsecond * time.Duration(1+i)
		}
		b.send(fmt.Sprint(i), at, limit)
	}
	b.w.Advance(30 * time.Second)
	last := time.Duration(0)
	for _, line := range b.log {
		var i int
		var at, outcome string
		fmt.Sscan(line, &i, &at, &outcome)
		d, _ := time.ParseDuration(at)
		if d < last {
			t.Fatalf("%s after %v", line, last)
		}
		last = d
		if outcome == "success" {
			if i < done {
				t.Fatalf("%d is served after %d", i, done)
			}
			done = i
		}
		want = append(want, line)
	}
	if len(b.log) != 500 {
		t.Errorf("%d attempts ended", len(b.log))
	}
	b.want(b.w.Result().Wasted, want...)
}

// A crash takes all that is under way with it, in service and in the queue, and answers nothing until its end; a client that tries again
// at that very moment meets it too.
func TestACrashLosesWhatIsUnderWay(t *testing.T) {
	b := newBench(t, faults(scenario.Fault{From: 1050 * ms, To: 2000 * ms, Kind: scenario.Crash}))
	b.send("a", 1000*ms, 0, func() { b.send("again", 1050*ms, 0) })
	b.send("b", 1000*ms, 0)
	b.send("gone", 1001*ms, 10*ms)
	b.send("c", 1500*ms, 0)
	b.send("d", 2001*ms, 0)
	b.want(0, "a 1.05s failure", "again 1.052s failure", "b 1.05s failure", "gone 1.011s timeout", "c 1.502s failure", "d 2.101s success")

	b = newBench(t, faults(scenario.Fault{From: 60 * ms, To: 90 * ms, Kind: scenario.Crash}))
	b.send("gone in service", 0, 20*ms)
	b.want(0.06, "gone in service 20ms timeout")
}

// With no worker left work waits, what is in service goes on, and all is served when they come back.
func TestWithoutWorkersWorkWaits(t *testing.T) {
	b := newBench(t, faults(scenario.Fault{From: 1050 * ms, To: 2000 * ms, Kind: scenario.Capacity, Fraction: 0}))
	b.send("a", 1000*ms, 0)
	b.send("b", 1060*ms, 0)
	b.send("c", 1500*ms, 0)
	b.want(0, "a 1.1s success", "b 2.1s success", "c 2.2s success")
}

// A fault from 0, one in force at the moment a call comes, and one after the end.
func TestFaultsHoldFromTheirBeginningToTheirEnd(t *testing.T) {
	b := newBench(t, faults(scenario.Fault{To: 1000 * ms, Kind: scenario.Error, Probability: 1},
		scenario.Fault{From: 3000 * ms, To: 4000 * ms, Kind: scenario.Error, Probability: 1, Latency: 7 * ms},
		scenario.Fault{From: 3500 * ms, To: 4500 * ms, Kind: scenario.Hang, Latency: 300 * ms},
		scenario.Fault{From: 4200 * ms, To: 4300 * ms, Kind: scenario.Slow, Factor: 2}, // a hang is what it is
		scenario.Fault{From: 6000 * ms, To: 8000 * ms, Kind: scenario.Slow, Factor: 3, Onset: 1000 * ms},
		scenario.Fault{From: time.Hour, To: 2 * time.Hour, Kind: scenario.Crash}))
	for _, at := range []time.Duration{0, 999, 1001, 2899, 3001, 3999, 4250, 4700, 6000, 6500, 7500, 8000} {
		b.send(fmt.Sprint(int(at)), at*ms, 0)
	}
	b.want(0, "0 5ms failure", "999 1.004s failure", "1001 1.101s success", "2899 2.999s success", "3001 3.008s failure", "3999 4.006s failure",
		"4250 4.55s success", "4700 4.8s success", "6000 6.1s success", "6500 6.7s success", "7500 7.8s success", "8000 8.1s success")
}

// A call that arrives at the very moment a fault begins or ends meets what begins.
func TestACallMeetsTheFaultItArrivesWith(t *testing.T) {
	s := valid(t, func(s *scenario.Scenario) {
		s.Duration, s.Arrivals = 4*time.Second, scenario.Arrivals{Trace: []float64{1, 1, 1, 1}, Process: scenario.Constant} // at .5 s
		s.Faults = []scenario.Fault{{From: 1500 * ms, To: 3500 * ms, Kind: scenario.Error, Probability: 1}}
	})
	var log []string
	var w *World
	w, err := New(Options{Scenario: s, Begin: func(c *Call) {
		w.Send(c, 0, func(f Failure) {
			log = append(log, f.Outcome.String())
			w.Finish(c, f.Outcome == cortex.Success)
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := w.Run()
	if want := []string{"success", "failure", "failure", "success"}; !slices.Equal(log, want) {
		t.Errorf("%v, want %v", log, want)
	}
	if r.InFault != 1 || r.Calls != 4 {
		t.Errorf("%+v", r)
	}
}

// Throttles one after the other have each its own limit, and a full burst from the start.
func TestThrottlesBackToBackHaveTheirOwnLimits(t *testing.T) {
	b := newBench(t, func(s *scenario.Scenario) {
		s.Downstream.Service.Mean = 5 * ms
		s.Faults = []scenario.Fault{{To: 1000 * ms, Kind: scenario.Throttle, Limit: 200}, {From: 1000 * ms, To: 2000 * ms, Kind: scenario.Throttle, Limit: 1}}
	})
	var want []string
	served := time.Duration(0)
	for _, f := range b.w.scenario.Faults {
		served = max(served, f.From+ms)
		pass := int(burst(f.Limit))
		for i := range pass + 2 {
			name := fmt.Sprint(f.Limit, "/", i)
			b.send(name, f.From+ms, 0)
			if i < pass {
				served += b.w.scenario.Downstream.Service.Mean
				want = append(want, fmt.Sprint(name, " ", served, " success"))
			} else {
				want = append(want, fmt.Sprint(name, " ", f.From+3*ms, " throttled"))
			}
		}
	}
	b.send("free", 2001*ms, 0)
	b.want(0, append(want, "free 2.006s success")...)
}

// A run is stopped when asked, and says what was measured until then.
func TestARunThatIsStopped(t *testing.T) {
	s := valid(t, faults(scenario.Fault{From: 20 * time.Second, To: 60 * time.Second, Kind: scenario.Error, Probability: 1}))
	asked := 0
	w, err := New(Options{Scenario: s, Guard: func(Env) (Guard, error) { return always{}, nil }, Stop: func() bool { asked++; return asked > 3 }})
	if err != nil {
		t.Fatal(err)
	}
	r := w.Run()
	if at := w.Now(); at < time.Second || at > 20*time.Second || asked != 4 {
		t.Errorf("stopped at %v, asked %d times", at, asked)
	}
	if r.Calls < 500 || r.Goodput < 0.9 || r.Detected { // what was not run shows no outage
		t.Errorf("%+v", r)
	}
}

// always lets everything through and never retries.
type always struct{}

func (always) Admit(*Attempt) cortex.Reason    { return cortex.ReasonNone }
func (always) Timeout(*Attempt) time.Duration  { return 0 }
func (always) Done(*Attempt, cortex.Outcome)   {}
func (always) Retry(*Attempt, Failure) Verdict { return Verdict{} }

func TestOptionsThatMakeNoRun(t *testing.T) {
	s := valid(t, func(s *scenario.Scenario) { s.Hops = 3 })
	if _, err := New(Options{Scenario: s}); err == nil {
		t.Error("a run without guards")
	}
	if _, err := New(Options{Scenario: s, Begin: func(*Call) {}}); err == nil {
		t.Error("calls of somebody else over three tiers")
	}
	if _, err := New(Options{Scenario: s, Guard: func(Env) (Guard, error) { return nil, fmt.Errorf("none left") }}); err == nil {
		t.Error("a run without its guards")
	}
}

// Samples cover the run in equal parts, the last one to its end, also where nothing happens any more.
func TestSamplesCoverTheRun(t *testing.T) {
	for _, rate := range []float64{0.01, 400} {
		s := valid(t, func(s *scenario.Scenario) { s.Duration, s.Arrivals.Steps[0].Rate = 30*time.Second, rate })
		var at []time.Duration
		offered, attempts := 0, 0
		w, err := New(Options{Scenario: s, Guard: func(Env) (Guard, error) { return always{}, nil }, Samples: 40, Observe: func(w *World) {
			at = append(at, w.Now())
			x := w.Sample()
			offered += x.Offered
			attempts += x.Attempts
		}})
		if err != nil {
			t.Fatal(err)
		}
		r := w.Run()
		if len(at) != 40 || at[0] != s.Duration/40 || at[39] != s.Duration {
			t.Errorf("%v/s: samples at %v", rate, at)
		}
		if offered != r.Calls || attempts != r.Attempts {
			t.Errorf("%v/s: %d calls and %d attempts in the samples, %d and %d in the run", rate, offered, attempts, r.Calls, r.Attempts)
		}
	}
}
