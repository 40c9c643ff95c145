package breaker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// drive plays the operations encoded in data on one breaker and checks what must hold whatever happens.
func drive(t *testing.T, data []byte) {
	take := func() int {
		if len(data) == 0 {
			return 0
		}
		v := data[0]
		data = data[1:]
		return int(v)
	}
	head := take()
	c := Config{Article: head&1 == 1, MaxProbes: 1 + head>>1&3, ProbesToClose: 1 + head>>3&3}
	if head>>5&1 == 1 {
		c.Rand = func() float64 { return []float64{0, 0.3, 0.999, math.NaN(), -1, 7}[len(data)%6] }
	}
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	steps := []time.Duration{0, 1, ms, 20 * ms, 100 * ms, 300 * ms, s1, 5 * s1, 30 * s1, 70 * s1, -ms, -500 * ms, -time.Hour, 300 * time.Hour, math.MaxInt64, math.MinInt64}
	leases := []time.Duration{0, -1, 1, ms, 100 * ms, s1, time.Minute, math.MaxInt64}
	rates := []float64{0, 5, 500, 1e300, 1e-300, math.NaN(), math.Inf(1), -1}
	var (
		now    time.Duration
		gen    uint32
		cum    uint64
		probes []Probe // every one ever admitted, newest last
		ends   = map[uint64]time.Duration{}
		out    = map[uint64]bool{} // admitted in this generation and not reported
	)
	// elapsed is the model's own idea of time: what the forward steps add up to, beyond the newest instant seen.
	var elapsed, newest time.Duration
	began := false
	tick := func() {
		switch {
		case !began:
			began, newest = true, now
		case now > newest:
			d := uint64(now) - uint64(newest)
			elapsed += time.Duration(min(d, uint64(48*time.Hour)))
			newest = now
		case uint64(newest)-uint64(now) > uint64(time.Second):
			newest = now
		}
	}
	for range 2000 {
		if len(data) == 0 {
			break
		}
		op := take()
		arg := op >> 3
		transition, reset := false, false
		switch op & 7 {
		case 0, 1:
			d := steps[arg%len(steps)]
			if sum := now + d; (sum > now) == (d > 0) {
				now = sum
			} else {
				now = d
			}
		case 2:
			cum += uint64(arg)
			tick()
			if b.Failure(now, arg&1 == 1, cum, uint64(arg)) && b.State(now) != Closed {
				t.Fatal("asked to trip while not closed")
			}
		case 3:
			tick()
			was := b.State(now)
			transition = b.Trip(now, rates[arg%len(rates)])
			if transition == (was == Open || !c.Article && was == HalfOpen || b.Forced() != Automatic) {
				t.Fatalf("Trip from %v: transition %v", was, transition)
			}
		case 4, 5:
			tick()
			was, wait := b.State(now), b.NextProbe(now)
			p, ok := b.TryProbe(now, leases[arg%len(leases)])
			if want := was != Closed && wait == 0 && !(c.Article && was == Open) && b.Forced() != ForcedOpen; ok != want {
				t.Fatalf("%v, next probe in %v: admitted %v", was, wait, ok)
			}
			if !ok {
				break
			}
			if len(probes) > 0 && p.ID <= probes[len(probes)-1].ID {
				t.Fatalf("probe ID %d after %d", p.ID, probes[len(probes)-1].ID)
			}
			probes = append(probes, p)
			lease := leases[arg%len(leases)]
			if lease <= 0 {
				lease = max(b.cfg.OpenFor, time.Second)
			}
			ends[p.ID] = elapsed + min(lease, 10*time.Minute)
			out[p.ID] = true
			if b.State(now) != HalfOpen {
				t.Fatalf("%v with a probe in flight", b.State(now))
			}
		case 6:
			tick()
			p := Probe{ID: uint64(arg) * 1e6}
			if n := len(probes); n > 0 && arg < 30 {
				p = probes[max(0, n-1-arg/6)]
			}
			r := ProbeResult(arg % 6)
			was := b.State(now)
			expected := out[p.ID] && (ends[p.ID] >= elapsed || !c.Article && (r == ProbeSucceeded || r == ProbeThrottled))
			var used bool
			used, transition = b.ProbeDone(now, p, r, steps[arg%len(steps)], rates[arg%len(rates)])
			if used != expected {
				t.Fatalf("probe %d, result %d, lease %v past: used %v, want %v", p.ID, r, elapsed-ends[p.ID], used, expected)
			}
			if transition && (!used || was == Closed) {
				t.Fatalf("transition from %v, used %v", was, used)
			}
			delete(out, p.ID)
		case 7:
			tick()
			switch {
			case arg == 0:
				transition, reset = b.Reset(now), true
			case arg < 4:
				transition = b.Close(now)
			case arg < 13:
				before, order := b.Forced(), Forcing(arg%4)
				transition = b.Force(now, order, rates[arg%len(rates)])
				if order > ForcedClosed {
					order = before
				}
				if b.Forced() != order {
					t.Fatalf("forced %v, want %v", b.Forced(), order)
				}
			}
		}
		tick()
		if moved := b.Generation() - gen; moved > 1 || (moved == 1) != (transition || reset) {
			t.Fatalf("operation %d: generation moved by %d, transition %v", op&7, moved, transition)
		}
		if gen != b.Generation() {
			gen, cum = b.Generation(), 0
			clear(out)
		}
		inFlight := 0
		for id := range out {
			if ends[id] >= elapsed {
				inFlight++
			}
		}
		st, next := b.State(now), b.NextProbe(now)
		if inFlight > c.MaxProbes || inFlight != len(b.slots) {
			t.Fatalf("%d probes in flight, %d slots taken, at most %d allowed", inFlight, len(b.slots), c.MaxProbes)
		}
		if next < 0 || next > 10*time.Minute+1 || st == Closed && next != 0 || c.Article && st == Open && (next == 0) != (b.Forced() == ForcedOpen) {
			t.Fatalf("%v: next probe in %v", st, next)
		}
		if !c.Article && (st == HalfOpen) != (inFlight > 0) && st != Closed {
			t.Fatalf("%v with %d in flight", st, inFlight)
		}
	}
	switch st := b.State(now); b.Forced() {
	case ForcedOpen:
		if st != Open {
			t.Fatalf("forced open, it is %v", st)
		}
	case ForcedClosed:
		if st != Closed {
			t.Fatalf("forced closed, it is %v", st)
		}
	}
	b.Force(now, Automatic, 0)
	// Whatever happened: when it is open and everybody has gone away, it recovers by probes alone.
	for range 10 * c.ProbesToClose {
		if b.State(now) == Closed {
			break
		}
		if now > math.MaxInt64-time.Hour {
			now = 0
		}
		b.State(now)
		now += 10*time.Minute + time.Minute
		b.State(now)
		now += b.NextProbe(now)
		p, ok := b.TryProbe(now, time.Second)
		if !ok {
			t.Fatalf("no probe when due: %v, next in %v", b.State(now), b.NextProbe(now))
		}
		if used, _ := b.ProbeDone(now, p, ProbeSucceeded, ms, 0); !used {
			t.Fatal("a probe's own success was not used")
		}
	}
	if b.State(now) != Closed {
		t.Fatalf("%v after %d successful probes", b.State(now), 10*c.ProbesToClose)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add([]byte{0, 3, 4 << 3, 4, 6 | 1<<3})                          // open, 100 ms, probe, success
	f.Add([]byte{1, 3, 8 << 3, 4, 8 << 3, 8 << 3, 4, 6 | 7<<3})       // article: probe hangs, next one, the first returns
	f.Add([]byte{0, 2, 3, 14 << 3, 4, 15 << 3, 5, 6, 7, 3, 7<<3 | 7}) // to both ends of time
	f.Fuzz(drive)
}

func TestRandomOperations(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 2))
		data := make([]byte, 1+r.IntN(400))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		drive(t, data)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
