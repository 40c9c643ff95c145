package balance

import (
	"math"
	"time"
)

// Evidence. A member's failures are its own illness only if the others are well meanwhile. Three questions are asked at each failure:
//
//   - Are the others well now? Since the member's failures in a row began, the others have had at least wellResults good answers, to
//     attempts that began since then. What they did before says nothing: when the whole target falls ill, everybody's past is
//     good, and for a while so are the answers to what was in flight already, above all at a member that is busier and so gets
//     no new attempts. So the evidence comes one round trip later. Where that takes longer than patience, twice Failures in a row,
//     or a rate of failures, eject on such answers too: a member that fails at once would take all the load of others that answer
//     in minutes. But they do not blame.
//   - Is the row too long for chance? If the member were like the others, which fail at the rate q, a row of k has the
//     probability q^k. Failures in a row eject if it is below 1 in 1e7: with q at 1 % 4 do, and Failures (5) is the bound; at 10 % it
//     is 7, at 20 % 10, at 50 % 24. Without this, a target of which 20 % fails would lose healthy members every few
//     seconds at 1,000 calls a second. q is the worse of two: in the last one to two rounds, and in the others' newest results,
//     recent of them or more. Since the row began there are fewer, so that less is asked of those alone.
//   - Or is its rate too high for chance? Of at least rateResults attempts in one to two rounds it fails rateLeast or more, three
//     times as much as the others, who fail at most rateOthers, and the difference is rateSigmas standard deviations. Of four
//     members one that fails at 50 % is found after some 20 attempts, of two after 40: less would find the unlucky.
//
// Each decision is cheap and rare: a success looks at none of this.
const (
	roundTime   = 10 * time.Second
	wellResults = 3
	patience    = time.Second
	recent      = 32
	wellRate    = 0.5 // at which the others fail at most, for m to be ejected
	blameRate   = 0.2 // and for m to be blamed
	rateResults = 20
	rateLeast   = 0.4
	rateOthers  = 0.2
	rateSigmas  = 5

	ejectLog    = -16.1 // ln 1e-7
	ejectLogNow = -9    // 5 in a row, while 3 of the others were good
	blameLog    = -6.9  // ln 1e-3
	blameLogNow = -4    // 2 in a row, while 3 of the others were good
)

// counts are results of one member or several.
type counts struct{ good, bad uint64 }

func (c counts) add(d counts) counts { return counts{c.good + d.good, c.bad + d.bad} }
func (c counts) sub(d counts) counts { return counts{c.good - d.good, c.bad - d.bad} }

// rate is which share is bad, as far as so few results can tell: without any it is a half, after 10 good ones 1 in 22.
func (c counts) rate() float64 { return (float64(c.bad) + 0.5) / (float64(c.good+c.bad) + 1) }

// A mark is what others had at some time, and what was in flight there.
type mark struct {
	counts
	inFlight uint64
}

// since is what has come since a mark, of attempts that began after it: as many as were in flight then may be good answers from
// before.
func (c mark) since(m mark) counts {
	d := c.sub(m.counts)
	d.good -= min(d.good, m.inFlight)
	return d
}

func (m *Member) mark() mark { return mark{m.counts(), uint64(max(0, m.inFlight.Load()))} }

// sum is what all in the load but one have.
func sum(s *set, but *Member) mark {
	var all mark
	for i := range s.slots {
		if m := s.slots[i].m; m != but {
			o := m.mark()
			all.counts = all.add(o.counts)
			all.inFlight += o.inFlight
		}
	}
	return all
}

func (m *Member) counts() counts {
	return counts{m.good.Load(), m.failed.Load() + m.timedOut.Load()}
}

// failed is called after each failure of m.
func (p *Pool) failed(m *Member, latency time.Duration) {
	streak := m.streak.Add(1)
	members := p.set.Load().members
	if !p.cfg.Eject.Enabled || members < 2 {
		return
	}
	if often := int64(1 + members/64); streak > 2 && streak%often != 0 {
		return // in large sets not each time: a decision looks at all members
	}
	now, r := p.cfg.Now(), p.cfg.Rand()
	p.mu.Lock()
	if !m.removed {
		p.judge(m, now, latency, r)
	}
	p.unlock()
}

// judge decides what a failure of m says. The lock is held.
func (p *Pool) judge(m *Member, now, latency time.Duration, r float64) {
	p.turn(now)
	s := p.set.Load()
	if m.returned && now-latency < m.back && !m.out() {
		// It began before the ejection that is over: a late word of what is known.
		m.streak.Store(0)
		m.blamed.Store(true)
		return
	}
	if s.failOpen {
		m.blamed.Store(false)
		return
	}
	streak := float64(m.streak.Load())
	all := sum(s, m)
	if streak <= 1 {
		m.row, m.rowAt = all, now
	}
	if d := all.since(m.newer); d.good+d.bad >= recent {
		m.older, m.newer = m.newer, all
	}
	row, since := all.since(m.row), all.since(m.older)
	if m.out() { // a call that was under way
		m.blamed.Store(since.good >= since.bad)
		return
	}
	q := max(p.othersRate(s, m), since.rate())
	var chance, chanceNow float64 // logarithms
	if row.good >= wellResults {
		chance, chanceNow = streak*math.Log(q), streak*math.Log(row.rate())
	}
	partly := p.partlyIll(s, m, since, false)
	ill := partly || streak >= float64(p.cfg.Eject.Failures) && chance <= ejectLog && chanceNow <= ejectLogNow && q <= wellRate
	if old := all.sub(m.row.counts); now-m.rowAt >= patience && streak >= float64(2*p.cfg.Eject.Failures) {
		ill = ill || old.good >= wellResults && max(p.othersRate(s, m), old.rate()) <= blameRate
	}
	if p.fresh || now-p.round >= patience {
		ill = ill || p.partlyIll(s, m, all.sub(m.older.counts), true)
	}
	own := partly || streak >= 2 && chance <= blameLog && chanceNow <= blameLogNow && q <= blameRate

	// Those that may be ejected may be blamed. What fails beyond that share is the target's matter too.
	ejected, blamed := 0, 0
	for _, o := range p.members {
		if o.ejected {
			ejected++
		}
		if o != m && (o.out() || o.blamed.Load()) {
			blamed++
		}
	}
	m.blamed.Store(own && blamed < p.mayEject())
	switch {
	case !ill:
	case ejected < p.mayEject() && len(s.slots) > 1:
		p.eject(m, now, r)
	case p.cfg.SlowStart > 0 && (!m.slow || now-m.slowFrom > p.cfg.SlowStart/10):
		// It may not be ejected. A small share it may have, like one that comes back.
		m.comeBack(now)
		p.rebuild(now)
	}
}

// turn begins a new round if it is time.
func (p *Pool) turn(now time.Duration) {
	if now-p.round < roundTime {
		return
	}
	p.fresh = now-p.round <= 2*roundTime
	p.round = now
	for _, m := range p.members {
		m.then, m.now = m.now, m.mark()
	}
}

// othersRate is at which rate the others fail, in this round and the one before.
func (p *Pool) othersRate(s *set, m *Member) float64 {
	var c counts
	for i := range s.slots {
		if o := s.slots[i].m; o != m {
			c = c.add(o.counts().sub(o.then.counts))
		}
	}
	return c.rate()
}

// partlyIll reports whether m's rate of failures is what the others' is not. With old, answers from before count too.
func (p *Pool) partlyIll(s *set, m *Member, since counts, old bool) bool {
	begin := func(o *Member) mark {
		if p.fresh {
			return o.then
		}
		return o.now
	}
	mine := m.counts().sub(begin(m).counts)
	n := float64(mine.good + mine.bad)
	rate := float64(mine.bad) / n
	if n < rateResults || rate < rateLeast || since.bad > since.good {
		return false
	}
	var c counts
	for i := range s.slots {
		if o := s.slots[i].m; o != m {
			if old {
				c = c.add(o.counts().sub(begin(o).counts))
			} else {
				c = c.add(o.mark().since(begin(o)))
			}
		}
	}
	// The usual test of two shares: what would the difference be by chance if both had the same?
	k, q := float64(c.good+c.bad), c.rate()
	both := counts{c.good + mine.good, c.bad + mine.bad}.rate()
	return k >= rateResults && q <= rateOthers && q <= rate/3 && rate-q >= rateSigmas*math.Sqrt(both*(1-both)*(1/n+1/k))
}

// mayEject is how many members may be ejected at a time.
func (p *Pool) mayEject() int {
	n := len(p.members)
	if n < 2 {
		return 0
	}
	return max(1, int(p.cfg.Eject.MaxShare*float64(n)+1e-9))
}

// remark begins the evidence anew, for other others.
func (p *Pool) remark(s *set) {
	all := sum(s, nil)
	for _, m := range p.members {
		others := all
		if own := m.mark(); !m.out() || s.failOpen {
			others.counts = others.sub(own.counts)
			others.inFlight -= min(others.inFlight, own.inFlight)
		}
		m.row, m.older, m.newer = others, others, others
	}
}

// eject takes m out. The lock is held.
func (p *Pool) eject(m *Member, now time.Duration, r float64) {
	if m.returned {
		// Their number is halved for each stretch of health as long as the last ejection and what it takes to find out.
		for well := now - m.back; m.ejections > 0; m.ejections /= 2 {
			if well -= m.lasted + p.cfg.SlowStart + p.cfg.Eject.BaseTime; well < 0 {
				break
			}
		}
	}
	m.ejections++
	m.total++
	d := p.cfg.Eject.MaxTime
	if m.ejections <= int(d/p.cfg.Eject.BaseTime) {
		d = time.Duration(m.ejections) * p.cfg.Eject.BaseTime
	}
	d -= time.Duration(r * float64(d) / 10) // members that fell ill together do not come back together
	m.ejected, m.until, m.lasted = true, now+d, d
	m.blamed.Store(true)
	p.tell(Event{Kind: Ejected, Member: m, For: d})
	p.rebuild(now)
}

// restore ends an ejection. The lock is held, and rebuild to come.
func (p *Pool) restore(m *Member, now time.Duration) {
	m.ejected, m.returned, m.back = false, true, now
	m.streak.Store(0)
	m.blamed.Store(false)
	m.then, m.now = m.mark(), m.mark()
	m.comeBack(now)
	p.tell(Event{Kind: Returned, Member: m})
}

// Blames reports whether m's latest failure was m's own illness, and says nothing of the target: m is out, or fails in a way that
// cannot be chance, while the others answer. It is for the caller of [Member.End], right after it, to keep that failure from the
// target's own count.
//
// The default is that failures count. It is false if ejection is off; for the only member; for the first failure of a row; without good
// answers of the others since then; when all are out; and for members beyond the share that may be ejected. When the whole
// target fails at once, the others have no good answers and all failures count. When members fall ill one after
// the other, those beyond MaxShare count. What this can hide is bounded: of equal members, of which each call fails with the same
// probability, about one failure in a hundred.
func (p *Pool) Blames(m *Member) bool {
	return m.blamed.Load() && p.cfg.Eject.Enabled && !p.set.Load().failOpen
}
