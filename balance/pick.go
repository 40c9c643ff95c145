package balance

import (
	"math"
	"slices"
	"time"
)

const (
	never = time.Duration(math.MaxInt64)
	// leastShare is where a slow start begins: enough calls to learn that a member is ill still, few enough that they do not
	// matter.
	leastShare = 0.1
	// draws bounds the search for a member that was not tried and not put back for its slow start.
	draws = 8
)

// A set is who may be picked. It is replaced as a whole and never changed.
type set struct {
	slots    []slot
	alias    []alias // nil: all have the same weight
	slow     bool    // some slot is
	failOpen bool    // all are out
	members  int
	wake     time.Duration // something ends here: a slow start, an ejection
}

type slot struct {
	m        *Member
	weight   float64
	slow     bool
	slowFrom time.Duration
}

// alias is a cell of Walker's table: a draw of two steps from any distribution.
type alias struct {
	keep  float64 // of [0, 1), the part that is this slot's
	other int32   // whose the rest is
}

// Pick returns the member for the next attempt, never nil: of two random ones in the load, that with fewer attempts in flight by
// its weight. It is another than those that were tried, the last one last, as long as there is one in the load, or else another than
// the last. Members that are out are picked only if all are.
func (p *Pool) Pick(tried ...*Member) *Member {
	s := p.set.Load()
	if len(s.slots) == 1 && s.wake == never {
		return s.slots[0].m
	}
	return p.pick(s, tried)
}

func (p *Pool) pick(s *set, before []*Member) *Member {
	var now time.Duration
	if s.wake != never {
		now = p.cfg.Now()
		if now >= s.wake {
			s = p.wake(now)
		}
	}
	n := len(s.slots)
	if n == 1 {
		return s.slots[0].m
	}
	var tried *Member
	if k := len(before); k > 0 {
		if tried = before[k-1]; k > 1 {
			if m := p.untried(s, now, before); m != nil {
				return m
			}
		}
	}
	i, j := s.draw(p.cfg.Rand())
	a := &s.slots[i]
	if s.slow || a.m == tried {
		for range draws {
			if a.m != tried && (!a.slow || p.cfg.Rand() < p.share(a, now)) {
				break
			}
			i, j = s.draw(p.cfg.Rand())
			a = &s.slots[i]
		}
		if a.m == tried {
			i, j = j, i
			a = &s.slots[i]
		}
	}
	b := &s.slots[j]
	if b.m == tried {
		return a.m
	}
	wa, wb := a.weight, b.weight
	if s.slow {
		wa *= p.share(a, now)
		wb *= p.share(b, now)
	}
	// The first is drawn by weight, so that at rest the shares are as configured. The second gets the call if it is less loaded
	// even with it: one of small weight is not flooded for being idle.
	if float64(b.m.inFlight.Load()+1)*wa <= float64(a.m.inFlight.Load())*wb {
		return b.m
	}
	return a.m
}

// untried is the least loaded of those that were not tried, or nil. It looks at all of them: few calls come to a third attempt.
func (p *Pool) untried(s *set, now time.Duration, tried []*Member) *Member {
	var best *Member
	var least, alike float64
	for i := range s.slots {
		a := &s.slots[i]
		if slices.Contains(tried, a.m) {
			continue
		}
		load := float64(a.m.inFlight.Load()+1) / (a.weight * p.share(a, now))
		switch {
		case best == nil || load < least:
			best, least, alike = a.m, load, 1
		case load == least: // any of those that are alike
			if alike++; p.cfg.Rand()*alike < 1 {
				best = a.m
			}
		}
	}
	return best
}

// draw makes two different slots, the first by weight, of a number in [0, 1). There must be two slots.
func (s *set) draw(r float64) (int, int) {
	n := len(s.slots)
	r *= float64(n)
	i := min(int(r), n-1)
	r -= float64(i)
	if s.alias != nil {
		if a := s.alias[i]; r >= a.keep && a.keep < 1 {
			i = int(a.other)
			r = (r - a.keep) / (1 - a.keep)
		} else {
			r /= a.keep
		}
	}
	j := i + 1 + min(int(r*float64(n-1)), n-2)
	if j >= n {
		j -= n
	}
	return i, j
}

// share is how much of its weight a slot has.
func (p *Pool) share(s *slot, now time.Duration) float64 {
	if !s.slow {
		return 1
	}
	return share(now-s.slowFrom, p.cfg.SlowStart)
}

func share(since, whole time.Duration) float64 {
	if since >= whole {
		return 1
	}
	return leastShare + (1-leastShare)*max(0, float64(since)/float64(whole))
}

// wake does what is due. Who finds that another does it goes on with what there is.
func (p *Pool) wake(now time.Duration) *set {
	if p.mu.TryLock() {
		if now >= p.set.Load().wake {
			p.rebuild(now)
		}
		p.unlock()
	}
	return p.set.Load()
}

// rebuild ends what is due to end, and makes the set anew. The lock is held.
func (p *Pool) rebuild(now time.Duration) {
	ejected := 0
	for _, m := range p.members {
		if m.ejected && now >= m.until {
			p.restore(m, now)
		}
		if m.ejected {
			ejected++
		}
		if m.slow && now-m.slowFrom >= p.cfg.SlowStart {
			m.slow = false
		}
	}
	// There may be fewer members than there were.
	for ; ejected > p.mayEject(); ejected-- {
		var first *Member
		for _, m := range p.members {
			if m.ejected && (first == nil || m.until < first.until) {
				first = m
			}
		}
		p.restore(first, now)
	}

	s := &set{members: len(p.members), wake: never}
	for _, m := range p.members {
		if m.ejected {
			s.wake = min(s.wake, m.until)
		}
		if !m.out() {
			s.slots = append(s.slots, slot{m: m})
		}
	}
	if len(s.slots) == 0 {
		s.failOpen = true
		for _, m := range p.members {
			s.slots = append(s.slots, slot{m: m})
		}
	}
	equal := true
	for i := range s.slots {
		t := &s.slots[i]
		t.weight, t.slow, t.slowFrom = t.m.weight, t.m.slow, t.m.slowFrom
		equal = equal && t.weight == s.slots[0].weight
		if t.slow {
			s.slow = true
			s.wake = min(s.wake, t.slowFrom+p.cfg.SlowStart)
		}
	}
	if !equal {
		s.alias = aliases(s.slots)
	}
	if old := p.set.Load(); old != nil {
		same := len(old.slots) == len(s.slots)
		for i := 0; same && i < len(s.slots); i++ {
			same = s.slots[i].m == old.slots[i].m
		}
		if !same {
			p.remark(s)
		}
	}
	p.set.Store(s)
}

// aliases is Vose's way to make the table.
func aliases(slots []slot) []alias {
	n := len(slots)
	sum := 0.0
	for _, s := range slots {
		sum += s.weight
	}
	table := make([]alias, n)
	part := make([]float64, n)
	var small, large []int
	for i, s := range slots {
		part[i] = s.weight / sum * float64(n)
		if part[i] < 1 {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		table[s] = alias{keep: part[s], other: int32(l)}
		part[l] -= 1 - part[s]
		if part[l] < 1 {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	for _, i := range append(small, large...) { // what rounding has left
		table[i] = alias{keep: 1, other: int32(i)}
	}
	return table
}
