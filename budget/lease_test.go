package budget

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// Many buckets that draw from one, against an account of what went where: no token is made, and all that is spent was in the shared bucket or
// in a bucket when it joined.
func TestLeasesMakeNoTokens(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		guards := 1 + r.IntN(20)
		capacity := 10 + 200*r.Float64()
		pool, joined, earned, spent := 10.0, 0.0, 0.0, 0.0
		var all []*Bucket
		for range guards {
			b := mustNew(t, Config{})
			most := LeaseSize(capacity, uint64(guards))
			b.Lease(0, 0, most, pool, uint64(guards))
			if b.Tokens() > most {
				t.Fatalf("%v tokens after joining, want %v at most", b.Tokens(), most)
			}
			joined += b.Tokens()
			all = append(all, b)
		}
		now := time.Duration(0)
		for range 2000 {
			now += time.Duration(r.IntN(20)) * time.Millisecond
			b := all[r.IntN(guards)]
			switch r.IntN(5) {
			case 0:
				n := r.Uint64N(30)
				b.Earn(now, n)
				earned += 0.1 * float64(n)
			case 1, 2:
				price := r.Float64()
				if b.Spend(now, price) {
					spent += price
				}
			case 3:
				if n := min(r.Float64(), b.Spent()); n > 0 {
					b.Refund(now, n)
					spent -= n
				}
			case 4:
				e, want, surplus := b.Settle(now)
				pool = min(capacity, pool+e+surplus)
				got := min(want, pool)
				pool -= got
				b.Lease(now, got, LeaseSize(capacity, uint64(guards)), pool, uint64(guards))
				b.AtLeast(100)
				b.SetCapacity(1000 * r.Float64())
			}
			if b.Tokens() < 0 || b.BurnNow() < 0 || b.BurnNow() > 1 || b.Kept(0.5) < 0 || b.Kept(0.5) > LeaseSize(capacity, uint64(guards)) {
				t.Fatalf("%+v", b)
			}
			held := pool
			for _, b := range all {
				held += b.Tokens()
			}
			if spent+held > 10+joined+earned+1e-6 {
				t.Fatalf("seed %d: %v spent and %v held of %v", seed, spent, held, 10+joined+earned)
			}
		}
	}
}

func TestLeaseSize(t *testing.T) {
	for _, c := range []struct {
		capacity float64
		guards   uint64
		want     float64
	}{{10, 0, 10}, {10, 1, 10}, {10, 2, 2.5}, {10, 16, 1}, {400, 16, 12.5}, {0, 1, 1}, {10, math.MaxUint64, 1}} {
		if got := LeaseSize(c.capacity, c.guards); got != c.want {
			t.Errorf("%v for %d: %v, want %v", c.capacity, c.guards, got, c.want)
		}
	}
}

func TestLeaseEnds(t *testing.T) {
	b := mustNew(t, Config{})
	b.Lease(0, 0, 2, 8, 4)
	if !b.Leased() || b.Tokens() != 2 {
		t.Fatalf("%+v", b)
	}
	b.Lease(s, 30, 2, 8, 4)
	b.EndLease(s)
	if b.Leased() || b.Tokens() != 10 {
		t.Errorf("%v tokens, want what a bucket of its own holds", b.Tokens())
	}
	b.Spend(s, 5)
	if b.Earn(s, 10); !near(b.Tokens(), 6) {
		t.Errorf("%v tokens", b.Tokens())
	}
	if e, w, u := b.Settle(s); e+w+u != 0 {
		t.Error("a bucket of its own has something to settle")
	}
}
