package budget

import "time"

// lease is what a bucket knows of the one that it draws from, where many guards share one.
type lease struct {
	most   float64 // tokens that it is to hold
	others float64 // of the tokens in the shared bucket, an equal part for each guard
	guards uint64
	earned float64 // tokens, not told yet
}

// leasePart is how much of the shared bucket all leases together may hold: the rest is for who needs it.
const leasePart = 0.5

// LeaseSize is how many tokens each of that many guards holds of a shared bucket of that capacity: half of it in equal parts, but at least
// the price of one retry, and a single guard all of it.
func LeaseSize(capacity float64, guards uint64) float64 {
	if guards <= 1 {
		return max(1, capacity)
	}
	return max(1, leasePart*capacity/float64(guards))
}

// Lease makes the bucket a part of one that many guards share, or goes on so: it holds what it was granted and earns nothing for
// itself. tokens are added to those it has, most is how many it is to hold, pool how many are left in the shared bucket, for that many
// guards. What the bucket holds when it joins beyond most is gone: it was its own, and is not another's.
func (b *Bucket) Lease(now time.Duration, tokens, most, pool float64, guards uint64) {
	b.Advance(now)
	if !finite(tokens) || !finite(most) || !finite(pool) || tokens < 0 || most < 0 || pool < 0 {
		return
	}
	if b.leased == nil {
		b.leased = &lease{}
		b.keep(most)
	}
	b.tokens = min(b.tokens+tokens, maxCapacity)
	b.leased.most, b.leased.others, b.leased.guards = most, pool/float64(max(guards, 1)), guards
}

// EndLease makes the bucket its own again, with the tokens that it holds.
func (b *Bucket) EndLease(now time.Duration) {
	b.Advance(now)
	b.leased = nil
	b.keep(b.capacity)
}

// Leased reports whether the bucket is a part of a shared one.
func (b *Bucket) Leased() bool { return b.leased != nil }

// Settle brings a leased bucket's account up to date with the shared one: the tokens that successes have earned since it was last
// asked, which are the shared bucket's from now on, how many it lacks of its lease, and those it holds beyond it, which it gives up.
func (b *Bucket) Settle(now time.Duration) (earned, want, surplus float64) {
	b.Advance(now)
	l := b.leased
	if l == nil {
		return 0, 0, 0
	}
	earned, l.earned = l.earned, 0
	if surplus = b.tokens - l.most; surplus > 0 {
		b.keep(l.most)
		return earned, 0, surplus
	}
	return earned, -surplus, 0
}

// keep takes the tokens out that are more than that many.
func (b *Bucket) keep(most float64) {
	if over := b.tokens - most; over > 0 {
		b.tokens = most
		b.ledger[b.head].removed += over
		b.sum.removed += over
	}
}

// Config is the configuration in force, defaults filled in.
func (b *Bucket) Config() Config { return b.cfg }
