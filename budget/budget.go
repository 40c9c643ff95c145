// Package budget is the token bucket that retries draw from.
//
// Successes earn tokens, a retry costs some, and while the target fails there is nothing to earn: so retries can never be
// more than a share of the successes plus what the bucket holds. A retry is charged when it is decided on, before it waits;
// else a thousand of them would wait together on the strength of one token. A little income per second keeps the bucket from
// running dry for good where traffic is thin:
//
//	b, err := budget.New(budget.Config{})
//	...
//	b.Earn(now, 1)             // a call succeeded
//	if b.Spend(now, price) {   // a call failed: may it be retried?
//		...                    // wait, then retry; b.Refund(now, price) if the retry is never sent
//	}
//
// Time is passed in, as a duration since an arbitrary origin of a monotonic clock.
package budget

import (
	"fmt"
	"math"
	"time"
)

// Defaults of a [Config].
const (
	DefaultRatio        = 0.1
	DefaultCapacity     = 10.0
	DefaultMinPerSecond = 0.2
	DefaultReserve      = 2.0
)

const (
	maxCapacity = 1e9 // up to here a float64 still counts hundredths of a token without loss
	// Ten successes at 0.1 are 0.9999999999999999 tokens. As a share of the price, so that no price is ever free.
	roundingSlack = 1e-9

	slots = 10 // of a second each
	// A time this much earlier than the last is a clock that was set back. Anything less are readings of concurrent callers
	// that arrived out of order: to restart the clock from those would earn the same stretch of time again and again.
	setBack = slots * time.Second
)

// A Config says how tokens are earned. The zero value is the documented default.
type Config struct {
	// Ratio is the number of tokens that a success earns, from 0 to 1; zero means 0.1.
	Ratio float64
	// Capacity is the most tokens the bucket holds unless [Bucket.SetCapacity] raises it, from 1 (the price of a retry at
	// most) to 1e9; zero means 10.
	Capacity float64
	// MinPerSecond is the income in tokens per second while the bucket holds fewer than Reserve. Zero means 0.2; negative
	// means none.
	MinPerSecond float64
	// Reserve is up to how many tokens MinPerSecond fills, at most Capacity; zero means 2, or Capacity if that is less.
	Reserve float64
}

// A ConfigError names the field of a [Config] that cannot be used and says what would be right.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v: want %s", e.Field, e.Value, e.Want) }

// Normalize returns c with its defaults filled in, or a [*ConfigError] for a number that is out of its range, NaN or infinite.
func (c Config) Normalize() (Config, error) {
	if c.Ratio == 0 {
		c.Ratio = DefaultRatio
	}
	if c.Capacity == 0 {
		c.Capacity = DefaultCapacity
	}
	if c.MinPerSecond == 0 {
		c.MinPerSecond = DefaultMinPerSecond
	}
	if !(c.Ratio > 0 && c.Ratio <= 1) {
		return c, &ConfigError{Field: "Ratio", Value: c.Ratio, Want: "tokens per success, from 0 to 1"}
	}
	if !(c.Capacity >= 1 && c.Capacity <= maxCapacity) {
		return c, &ConfigError{Field: "Capacity", Value: c.Capacity, Want: "tokens, from 1 (the price of a retry) to 1e9"}
	}
	if !finite(c.MinPerSecond) {
		return c, &ConfigError{Field: "MinPerSecond", Value: c.MinPerSecond, Want: "tokens per second, finite; negative for none"}
	}
	if c.Reserve == 0 {
		c.Reserve = min(DefaultReserve, c.Capacity)
	}
	if !(c.Reserve > 0 && c.Reserve <= c.Capacity) {
		return c, &ConfigError{Field: "Reserve", Value: c.Reserve, Want: fmt.Sprintf("tokens, from 0 to Capacity, which is %v", c.Capacity)}
	}
	return c, nil
}

// A Bucket holds the tokens and knows what was spent over the last 10 s: the current second of the clock and the nine before
// it. It is not safe for concurrent use; its owner's lock guards it.
//
// Every method that takes a time first books the income up to it. A time before the last one earns nothing; if it is more than
// 10 s before, the clock was set back, and time goes on from there. A number that is NaN or infinite, and a negative price,
// change nothing.
type Bucket struct {
	cfg      Config
	capacity float64 // ≥ cfg.Capacity
	tokens   float64 // in [0, capacity]
	leased   *lease  // nil: the bucket is its owner's alone

	running bool          // the first time is known
	last    time.Duration // income is booked up to here
	second  int64         // of the clock, that ledger[head] stands for

	head   int
	ledger [slots]entry
	sum    entry // of the ledger; added up anew when it turns, so that rounding cannot accumulate
}

// An entry is what left the bucket within a second.
type entry struct {
	spent   float64
	removed float64 // by a capacity that shrank
}

// New returns a full bucket, or the [*ConfigError] of [Config.Normalize]. Its time begins with the first one it is told.
func New(c Config) (*Bucket, error) {
	c, err := c.Normalize()
	if err != nil {
		return nil, err
	}
	return &Bucket{cfg: c, capacity: c.Capacity, tokens: c.Capacity}, nil
}

// Advance books the income per second up to now and turns the ledger.
func (b *Bucket) Advance(now time.Duration) {
	switch {
	case !b.running:
		b.running = true
		b.last, b.second = now, wholeSeconds(now)
	case now > b.last:
		d := now - b.last
		if d < 0 { // the difference does not fit a Duration
			d = math.MaxInt64
		}
		if b.cfg.MinPerSecond > 0 && b.tokens < b.cfg.Reserve && b.leased == nil {
			b.tokens = min(b.cfg.Reserve, b.tokens+b.cfg.MinPerSecond*d.Seconds())
		}
		b.last = now
		b.turn(wholeSeconds(now))
	case now < b.last:
		if d := b.last - now; d > setBack || d < 0 {
			// What was spent stays in the ledger and ages from now on.
			b.last, b.second = now, wholeSeconds(now)
		}
	}
}

func (b *Bucket) turn(second int64) {
	if second == b.second {
		return
	}
	for range min(second-b.second, slots) {
		b.head = (b.head + 1) % slots
		b.ledger[b.head] = entry{}
	}
	b.second = second
	b.addUp()
}

func (b *Bucket) addUp() {
	b.sum = entry{}
	for _, e := range b.ledger {
		b.sum.spent += e.spent
		b.sum.removed += e.removed
	}
}

// Earn books that many successes, at Ratio tokens each. What does not fit the capacity is lost. A leased bucket keeps them for the one that
// it is a part of; see [Bucket.Settle].
func (b *Bucket) Earn(now time.Duration, successes uint64) {
	b.Advance(now)
	if b.leased != nil {
		b.leased.earned = min(b.leased.earned+float64(successes)*b.cfg.Ratio, maxCapacity)
		return
	}
	b.tokens = min(b.capacity, b.tokens+float64(successes)*b.cfg.Ratio)
}

// Spend takes price tokens for a retry and reports true, or changes nothing and reports false if there are not as many. Call
// it when the retry is decided on, not when it is sent. A price of 0 is always paid; one that is no price (NaN, infinite,
// negative) never.
func (b *Bucket) Spend(now time.Duration, price float64) bool {
	b.Advance(now)
	if !finite(price) || price < 0 || b.tokens+price*roundingSlack < price {
		return false
	}
	b.tokens = max(0, b.tokens-price)
	b.ledger[b.head].spent += price
	b.sum.spent += price
	return true
}

// Refund returns the price of a retry that was charged but never sent. When it was charged is not known: the newest spending
// in the ledger is taken back first.
func (b *Bucket) Refund(now time.Duration, price float64) {
	b.Advance(now)
	if !finite(price) || price <= 0 {
		return
	}
	if b.tokens += price; b.leased == nil {
		b.tokens = min(b.capacity, b.tokens)
	}
	for i := range slots {
		e := &b.ledger[(b.head+slots-i)%slots]
		back := min(price, e.spent)
		e.spent -= back
		price -= back
	}
	b.addUp()
}

// SetCapacity sets the most tokens that the bucket holds: at least Config.Capacity, at most 1e9. Growing adds no tokens; those
// above a capacity that shrinks are gone.
func (b *Bucket) SetCapacity(tokens float64) {
	if !finite(tokens) {
		return
	}
	b.capacity = min(max(tokens, b.cfg.Capacity), maxCapacity)
	if b.leased == nil {
		b.keep(b.capacity)
	}
}

// AtLeast raises the bucket to that many tokens, as far as its capacity allows, unless it holds more: after a circuit has
// closed, a retry must be possible. A leased bucket has what it was granted.
func (b *Bucket) AtLeast(tokens float64) {
	if finite(tokens) && b.leased == nil {
		b.tokens = max(b.tokens, min(tokens, b.capacity))
	}
}

// keptMost of what a capacity is above the least one is kept for critical calls.
const keptMost = 0.2

// Kept returns the tokens that only critical calls may spend, where they are that share of all: without it the many retries of what
// matters less leave none for the few that matter most. It is 0 in a bucket of the configured size, where a lone caller of any
// priority must be able to retry.
func (b *Bucket) Kept(critical float64) float64 {
	if l := b.leased; l != nil {
		return min(keptMost, 2*critical) * max(0, l.most-b.cfg.Capacity/float64(max(l.guards, 1)))
	}
	return min(keptMost, 2*critical) * max(0, b.capacity-b.cfg.Capacity)
}

// Tokens returns the tokens in the bucket as of the last time it was told, from 0 to its capacity.
func (b *Bucket) Tokens() float64 { return b.tokens }

// Spent returns the tokens that were spent over the last 10 s and not refunded, as of the last time the bucket was told.
func (b *Bucket) Spent() float64 { return b.sum.spent }

// Burn returns the signal B of DESIGN 3.1: of the tokens there were to spend over the last 10 s (those in the bucket at its
// start plus those added), the share that was spent. In [0,1]; 0 when there were none.
//
// No token is created or lost on the way, so those at the start plus those added are the ones that left the bucket plus the
// ones still in it: no income needs to be booked to know them.
func (b *Bucket) Burn() float64 { return share(b.sum.spent, b.held()+b.sum.removed) }

// BurnNow returns B as the adaptive law has it: spent in 10 s ÷ (spent in 10 s + tokens now). In [0,1]; 0 when
// both are 0. It differs from [Bucket.Burn] only in the 10 s after the capacity shrank below the tokens held.
func (b *Bucket) BurnNow() float64 { return share(b.sum.spent, b.held()) }

// held are the tokens in the bucket, and its part of those in the one that it shares.
func (b *Bucket) held() float64 {
	if b.leased != nil {
		return b.tokens + b.leased.others
	}
	return b.tokens
}

func share(part, rest float64) float64 {
	if part <= 0 {
		return 0
	}
	return part / (part + rest)
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// wholeSeconds rounds down, for times before the origin too: rounding towards 0 would make one second two seconds long.
func wholeSeconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d%time.Second < 0 {
		n--
	}
	return n
}
