package model

import "math"

// A breakerRule is that of a breaker that counts failures over a window, opens at half of them and asks with one probe every sleep seconds.
type breakerRule struct{ window, sleep float64 }

// detection is how long calls fail before the rule has seen half of its window fail: the first failure is a timeout late; then
// λ(1+r) failures a second come in, and the window still holds λ successes for each second before: (1+r)·t = W − t.
func (b breakerRule) detection(timeout float64, retries int) float64 {
	return timeout + b.window/float64(2+retries)
}

// A fate is where the chain is at the horizon after a trigger.
type fate struct {
	collapsed float64 // chance that fewer than half of the calls that arrive are answered; an open circuit is that, too
	size      float64 // mean of n
}

// trigger starts the chain in its healthy state, stops all service for hang seconds and lets it run for horizon seconds more. While
// nothing is served, an attempt that comes h seconds before the end is late if the rest of it, or the queue after it, is too long.
func (c *chain) trigger(hang, horizon float64, breaker *breakerRule) fate {
	_, _, barrier := c.wells()
	if barrier < 0 {
		barrier = c.room
	}
	b := board{c: c, closed: c.within(0, barrier), open: make([]float64, c.room+1), hang: hang, stroll: newStroll(c.room + 1)}
	if breaker == nil {
		b.run(0, hang+horizon)
	} else {
		b.guarded(*breaker, hang+horizon)
	}
	f := fate{}
	for n := range b.closed {
		f.size += float64(n) * (b.closed[n] + b.open[n])
		f.collapsed += b.open[n]
		if c.collapsed[n] {
			f.collapsed += b.closed[n]
		}
	}
	f.collapsed = min(1, f.collapsed)
	return f
}

// A board holds the mass behind a closed and behind an open circuit.
type board struct {
	c            *chain
	closed, open []float64
	hang         float64
	stroll       *stroll
}

// guarded runs to the horizon with a breaker. Its clocks are as good as fixed, so they are ticks: at each detection time what is in a
// state in which half of the attempts fail opens; at each sleep after the first of them a probe closes where it is answered in time.
func (b *board) guarded(rule breakerRule, end float64) {
	detect := rule.detection(b.c.timeout, b.c.law.retries)
	now, look, probe := 0.0, detect, detect+rule.sleep
	for now < end {
		next := min(look, probe, end)
		b.run(now, next)
		now = next
		if now == look {
			late := b.late(now)
			for n, x := range b.closed {
				if late[n] >= 0.5 {
					b.open[n] += x
					b.closed[n] = 0
				}
			}
			look += detect
		}
		if now == probe {
			late := b.late(now)
			for n, x := range b.open {
				b.closed[n] += x * (1 - late[n])
				b.open[n] = x * late[n]
			}
			probe += rule.sleep
		}
	}
}

// late is the chance of an attempt that finds n at a moment not to be answered in time.
func (b *board) late(now float64) []float64 {
	if now < b.hang {
		return b.c.lateAfter(b.c.timeout - (b.hang - now))
	}
	return b.c.late
}

// run moves the mass on from one moment to another: nothing leaves before the end of the hang, nothing comes while the circuit is open.
func (b *board) run(from, to float64) {
	none := make([]float64, b.c.room+1)
	const slices = 32 // of the last timeout before the end of the hang, in which the chance to be late changes
	cuts := []float64{from}
	for i := range slices + 1 {
		if t := b.hang - b.c.timeout*float64(slices-i)/slices; t > from && t < to {
			cuts = append(cuts, t)
		}
	}
	cuts = append(cuts, to)
	for i, t := range cuts[1:] {
		dt := t - cuts[i]
		if middle := cuts[i] + dt/2; middle < b.hang {
			up := b.c.arrivals(b.late(middle))
			b.stroll.evolve(b.closed, up, none, dt)
			continue
		}
		b.stroll.evolve(b.closed, b.c.up, b.c.down, dt)
		b.stroll.evolve(b.open, none, b.c.down, dt)
	}
}

// proportion is the exact interval of a rate of which k of n were seen (Clopper and Pearson 1934): each end leaves alpha outside.
func proportion(k, n int, alpha float64) (lo, hi float64) {
	solve := func(f func(p float64) bool) float64 { // f is true below the answer
		lo, hi := 0.0, 1.0
		for range 60 {
			if m := (lo + hi) / 2; f(m) {
				lo = m
			} else {
				hi = m
			}
		}
		return (lo + hi) / 2
	}
	hi = 1
	if k > 0 {
		lo = solve(func(p float64) bool { return binomialTail(n, p, k) < alpha })
	}
	if k == 0 {
		hi = -math.Expm1(math.Log(alpha) / float64(n)) // 3/n, roughly
	} else if k < n {
		hi = solve(func(p float64) bool { return binomialLower(n, p, k) > alpha })
	}
	return lo, hi
}
