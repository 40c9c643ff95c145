package cortex

import (
	"time"

	"github.com/seed-a29ca62a/cortex/budget"
)

// A BudgetReport settles a guard's account with the retry budget that its fleet shares. All are tokens.
type BudgetReport struct {
	Earned  float64 // by successes since the last report; the shared budget's
	Want    float64 // what the guard lacks of its lease
	Surplus float64 // what it gives up of what it held

	// The shared budget, as this guard knows its fleet: how many tokens it holds at most and at the start, and its income in tokens a
	// second while it holds fewer than Reserve. Income is 0 where there is none.
	Capacity, Initial, Income, Reserve float64
}

// A BudgetGrant is a guard's lease of the shared retry budget.
type BudgetGrant struct {
	Tokens float64       // that were taken out of the shared budget for this guard
	Pool   float64       // that are left in it
	Guards uint64        // that share it
	Span   time.Duration // the interval of grants; after four of them without one the guard has a budget of its own again
}

// TakeBudget returns what the guard earned for the shared retry budget since it was last asked, and what it needs of it. A guard that has no
// lease yet wants one. What was taken is the fleet's, whether or not it arrives. See [Engine.GrantBudget].
func (e *Engine) TakeBudget() BudgetReport {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	e.advance(now)
	c := e.bucket.Config()
	r := BudgetReport{Capacity: max(c.Capacity, e.law().Capacity()), Initial: c.Capacity, Income: max(0, c.MinPerSecond), Reserve: c.Reserve}
	if e.bucket.Leased() {
		r.Earned, r.Want, r.Surplus = e.bucket.Settle(now)
	}
	return r
}

// GrantBudget makes the guard's retry budget a part of its fleet's: it holds the tokens that it was granted and no others, and earns for all. All
// guards together then make no more retries than the shared budget pays for and one lease each ([budget.LeaseSize]), which is what they may
// hold when they join. Retries are decided here as ever: nobody is asked. Where the grants end the guard goes on with what it has and with what
// it earns. No effect on the article's profile, which shares nothing; grants that make no sense are ignored.
func (e *Engine) GrantBudget(g BudgetGrant) {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	if e.cfg.Profile == Article || g.Span <= 0 || !(g.Tokens >= 0) || !(g.Pool >= 0) {
		return
	}
	e.advance(now)
	if e.fleet == nil {
		return
	}
	capacity := max(e.bucket.Config().Capacity, e.law().Capacity())
	e.bucket.Lease(now, g.Tokens, budget.LeaseSize(capacity, g.Guards), g.Pool, g.Guards)
	e.fleet.funded = now + fleetPatience*min(g.Span, fleetSlowest)
}

// expireBudget gives the guard a retry budget of its own where there is no grant any more. e.mu is held.
func (e *Engine) expireBudget(now time.Duration) {
	if e.bucket.Leased() && now > e.fleet.funded {
		e.bucket.EndLease(now)
	}
}

// LeaveFleet ends what [Engine.ObserveFleet] and [Engine.GrantBudget] have begun: the guard decides by what it has seen itself, sends its
// own probes, has a retry budget of its own.
func (e *Engine) LeaveFleet() {
	now := e.now()
	e.mu.Lock()
	defer e.unlock()
	f := e.fleet
	if f == nil {
		return
	}
	e.advance(now)
	f.active = false
	f.lease = lease{}
	if e.bucket.Leased() {
		e.bucket.EndLease(now)
	}
	e.announce(now)
	e.withdraw()
}
