package model

import "math"

// A retryLaw is what becomes of attempts that fail with probability p: attempts for each call, and the share of calls answered.
type retryLaw struct {
	retries int
	budget  float64 // retries for each call; negative = without
}

// attempts for each call.
func (l retryLaw) attempts(p float64) float64 {
	a := amplification(p, l.retries)
	if l.budget >= 0 {
		a = 1 + min(a-1, l.budget)
	}
	return a
}

// goodput is the share of the calls of which an attempt succeeds; a budget lets that share of the retries through that it pays for.
func (l retryLaw) goodput(p float64) float64 {
	wanted := amplification(p, l.retries) - 1
	share := 1.0
	if l.budget >= 0 && wanted > l.budget {
		share = l.budget / wanted
	}
	return 1 - p + share*(p-math.Pow(p, float64(l.retries+1)))
}

// A chain is the birth–death chain on the number of attempts n in a system of c servers with room for c+K. What arrives at n is
// λ·A(p(n)): the calls and, at once, the retries of those that will time out. n at its largest is full: attempts are refused.
type chain struct {
	servers, room  int
	lambda, mu     float64 // calls a second; of one server
	timeout        float64
	law            retryLaw
	late           []float64 // p(n): an attempt that finds n is not answered in time, or is refused
	up, down       []float64 // rates at n
	collapsed      []bool    // at n: fewer than half of the calls that arrive are answered
	stationary     []float64 // logarithms, not normalised
	modes, valleys []int     // local maxima and minima of the stationary distribution
}

func newChain(servers, queue int, lambda, mu, timeout float64, law retryLaw) *chain {
	c := &chain{servers: servers, room: servers + queue, lambda: lambda, mu: mu, timeout: timeout, law: law}
	c.late = c.lateAfter(timeout)
	c.up = c.arrivals(c.late)
	c.down = make([]float64, c.room+1)
	c.collapsed = make([]bool, c.room+1)
	for n := range c.down {
		c.down[n] = mu * float64(min(n, servers))
		c.collapsed[n] = law.goodput(c.late[n]) < 0.5
	}
	c.balance()
	return c
}

// lateAfter is, for every n, the chance that an attempt that finds n in the system is not through after t seconds: n−c+1 departures,
// then its own service. The departures of c busy servers are a Poisson process of rate cμ of which each, once the attempt is in
// service, is its own with probability 1/c. So P = P(M < m) + Σ_{k≥m} P(M = k)·(1−1/c)^(k−m) with M ~ Poisson(cμt), m = max(0, n−c+1):
// only positive terms, summed from the far end.
func (c *chain) lateAfter(t float64) []float64 {
	late := make([]float64, c.room+1)
	late[c.room] = 1
	if t <= 0 {
		for n := range late {
			late[n] = 1
		}
		return late
	}
	x := float64(c.servers) * c.mu * t
	stay := 1 - 1/float64(c.servers)
	far := max(c.room-c.servers, int(x+12*math.Sqrt(x)+40))
	pmf := func(k int) float64 { return math.Exp(float64(k)*math.Log(x) - x - lnFactorial(k)) }
	waiting := make([]float64, c.room-c.servers+1) // by m, that m departures take longer
	below := 0.0
	for m := range waiting {
		waiting[m] = below
		below = min(1, below+pmf(m))
	}
	served := 0.0
	for k := far; k >= 0; k-- {
		served = pmf(k) + stay*served
		if k < len(waiting) {
			waiting[k] = min(1, waiting[k]+served)
		}
	}
	for n := range c.room {
		late[n] = waiting[max(0, n-c.servers+1)]
	}
	return late
}

// arrivals are the rates at which attempts join, given how many of them will fail.
func (c *chain) arrivals(late []float64) []float64 {
	up := make([]float64, c.room+1)
	for n := range c.room {
		up[n] = c.lambda * c.law.attempts(late[n])
	}
	return up
}

// balance works out the stationary distribution by detailed balance, π(n+1)/π(n) = up(n)/down(n+1), and its extremes.
func (c *chain) balance() {
	c.stationary = make([]float64, c.room+1)
	for n := range c.room {
		c.stationary[n+1] = c.stationary[n] + math.Log(c.up[n]) - math.Log(c.down[n+1])
	}
	rising := true
	for n := range c.room + 1 {
		up := n < c.room && c.up[n] > c.down[n+1]
		switch {
		case rising && !up:
			c.modes = append(c.modes, n)
		case !rising && up:
			c.valleys = append(c.valleys, n)
		}
		rising = up
	}
}

// wells are the two metastable states: the lowest mode at which calls are answered and the highest at which they are not, −1 where
// there is none, and the barrier, the least likely state between them.
func (c *chain) wells() (healthy, collapsed, barrier int) {
	healthy, collapsed, barrier = -1, -1, -1
	for _, m := range c.modes {
		if c.collapsed[m] {
			collapsed = m
		} else if healthy < 0 {
			healthy = m
		}
	}
	if healthy >= 0 && collapsed > healthy {
		for _, v := range c.valleys {
			if v > healthy && v < collapsed && (barrier < 0 || c.stationary[v] < c.stationary[barrier]) {
				barrier = v
			}
		}
	}
	return healthy, collapsed, barrier
}

// within is the stationary distribution given that n is between from and to. Where these are the ends of a well with a high barrier it
// is the well's quasi-stationary distribution, but for a relative error of the order of the rate at which the well is left.
func (c *chain) within(from, to int) []float64 {
	x := make([]float64, c.room+1)
	sum := math.Inf(-1)
	for n := from; n <= to; n++ {
		sum = addLog(sum, c.stationary[n])
	}
	for n := from; n <= to; n++ {
		x[n] = math.Exp(c.stationary[n] - sum)
	}
	return x
}

// passage is the logarithm of the mean time in seconds to get from one n to another: the sum of the mean times of its steps, which up
// are e(n) = (1 + down(n)·e(n−1))/up(n), and down d(n) = (1 + up(n)·d(n+1))/down(n). They exceed what a float holds.
func (c *chain) passage(from, to int) float64 {
	total, step := math.Inf(-1), math.Inf(-1)
	for n := 0; from < to && n < to; n++ {
		step = addLog(0, math.Log(c.down[n])+step) - math.Log(c.up[n])
		if n >= from {
			total = addLog(total, step)
		}
	}
	for n := c.room; from > to && n > to; n-- {
		step = addLog(0, math.Log(c.up[n])+step) - math.Log(c.down[n])
		if n <= from {
			total = addLog(total, step)
		}
	}
	return total
}

// chance that something whose mean time has the logarithm ln happens within t seconds. The time to leave a metastable state is
// exponential.
func chance(ln, t float64) float64 { return -math.Expm1(-math.Exp(math.Log(t) - ln)) }

// addLog is ln(e^a + e^b).
func addLog(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

const (
	chunk = 600   // uniformised steps at a time: e^−600 is still a float
	tiny  = 1e-18 // mass and weight that are not followed further
	still = 1e-14 // what changes less than this in a chunk has settled
)

// A stroll moves distributions on by uniformisation; it keeps what it needs for that.
type stroll struct{ sum, was, up, down, stay []float64 }

func newStroll(states int) *stroll {
	all := make([]float64, 5*states)
	part := func(i int) []float64 { return all[i*states : (i+1)*states] }
	return &stroll{part(0), part(1), part(2), part(3), part(4)}
}

// evolve moves x on by t seconds at these rates: x·e^(Qt) = Σ Poisson(k; qt)·x·(I + Q/q)^k. All terms are positive. Only the stretch of
// states that has mass is worked on, and only until it has settled.
func (s *stroll) evolve(x, up, down []float64, t float64) {
	q := 0.0
	for n := range x {
		q = max(q, up[n]+down[n])
	}
	if q == 0 {
		return
	}
	for n := range x {
		s.up[n], s.down[n] = up[n]/q, down[n]/q
		s.stay[n] = max(0, 1-s.up[n]-s.down[n])
	}
	lo, hi := trim(x, 0, len(x)-1)
	for t > 0 {
		dt := min(t, chunk/q)
		t -= dt
		mean := q * dt
		clear(s.sum)
		copy(s.was, x)
		weight := math.Exp(-mean)
		for k := 0; ; k++ {
			if weight > tiny {
				for n := lo; n <= hi; n++ {
					s.sum[n] += weight * x[n]
				}
			} else if float64(k) > mean {
				break
			}
			lo, hi = s.step(x, lo, hi)
			weight *= mean / float64(k+1)
		}
		copy(x, s.sum)
		change := 0.0
		for n := range x {
			change += math.Abs(x[n] - s.was[n])
		}
		if change < still {
			return
		}
		lo, hi = trim(x, 0, len(x)-1)
	}
}

// step is x·(I + Q/q) in place for states lo to hi; it returns the stretch that then has mass.
func (s *stroll) step(x []float64, lo, hi int) (from, to int) {
	from, to = max(lo-1, 0), min(hi+1, len(x)-1)
	before := 0.0 // what comes from below
	for n := from; n <= to; n++ {
		was := x[n]
		next := was*s.stay[n] + before
		if n+1 < len(x) {
			next += x[n+1] * s.down[n+1]
		}
		x[n], before = next, was*s.up[n]
	}
	return trim(x, from, to)
}

// trim makes the stretch from lo to hi shorter by what has next to no mass at its ends, which becomes 0.
func trim(x []float64, lo, hi int) (int, int) {
	for lo < hi && x[lo] < tiny {
		x[lo] = 0
		lo++
	}
	for hi > lo && x[hi] < tiny {
		x[hi] = 0
		hi--
	}
	return lo, hi
}
