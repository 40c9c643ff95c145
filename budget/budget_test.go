package budget

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const s = time.Second

func mustNew(t *testing.T, c Config) *Bucket {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

// drain empties the bucket at now.
func drain(t *testing.T, b *Bucket, now time.Duration) {
	t.Helper()
	b.Advance(now)
	if !b.Spend(now, b.Tokens()) || b.Tokens() != 0 {
		t.Fatalf("%v tokens left after all were spent", b.Tokens())
	}
}

// F66 (a): retries that wait are charged when they are decided on, so a thousand failures at once cannot share one token.
func TestParallelFailuresCannotOverdraw(t *testing.T) {
	const calls, reserve = 1000, 3
	b := mustNew(t, Config{Ratio: 0.2, Capacity: 0.2 * calls, Reserve: reserve})
	retries := 0
	for i := range calls { // all are decided on before the first of the retries is sent
		if b.Spend(time.Duration(i)*time.Microsecond, 1) {
			retries++
		}
	}
	if retries != 200 {
		t.Errorf("%d retries of %d failures, want the 200 that the bucket held", retries, calls)
	}
	if total := calls + retries; total > 1200+reserve {
		t.Errorf("%d attempts at the target, want at most 1,203", total)
	}
	// The target stays down: from here on only the income per second pays.
	for at := s; at <= 61*s; at += 10 * time.Millisecond {
		if b.Spend(at, 1) {
			retries++
		}
	}
	if retries != 200+12 {
		t.Errorf("%d retries after a minute, want 200 and 0.2 a second", retries)
	}
}

// F66 (b): a fifth of one request a second is no whole token.
func TestLoneFailureMayRetry(t *testing.T) {
	b := mustNew(t, Config{Ratio: 0.2, Reserve: 3})
	drain(t, b, 0)
	now := time.Duration(0)
	for range 10 { // one request a second, all well, but the bucket was empty
		now += s
		b.Earn(now, 1)
	}
	if !b.Spend(now, 1) {
		t.Errorf("refused with %v tokens", b.Tokens())
	}
}

// F66 (c): with nothing but failures there is still the reserve.
func TestReserveIsThereWhenEverythingFails(t *testing.T) {
	b := mustNew(t, Config{Ratio: 0.2, Reserve: 3})
	drain(t, b, 0)
	now := 15 * s // 0.2 a second make 3 tokens
	retries := 0
	for range 6 {
		if b.Spend(now, 1) {
			retries++
		}
	}
	if retries != 3 {
		t.Errorf("%d retries of 6 failures, want 3", retries)
	}
}

func TestIncomeStopsAtReserve(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		at   time.Duration
		want float64
	}{
		{"filling", Config{}, 5 * s, 1},
		{"full", Config{}, 10 * s, 2},
		{"a year", Config{}, 365 * 24 * time.Hour, 2},
		{"the end of time", Config{}, math.MaxInt64, 2},
		{"faster, higher", Config{MinPerSecond: 3, Reserve: 4}, s, 3},
		{"none", Config{MinPerSecond: -1}, time.Hour, 0},
		{"small bucket", Config{Capacity: 1}, time.Hour, 1},
	} {
		b := mustNew(t, c.cfg)
		drain(t, b, 0)
		b.Advance(c.at)
		if !near(b.Tokens(), c.want) {
			t.Errorf("%s: %v tokens after %v, want %v", c.name, b.Tokens(), c.at, c.want)
		}
	}
	// Above the reserve time adds nothing, and takes nothing.
	b := mustNew(t, Config{})
	b.Advance(0)
	b.Advance(time.Hour)
	if b.Tokens() != 10 {
		t.Errorf("%v tokens after an idle hour, want 10", b.Tokens())
	}
}

// The clock's origin is arbitrary: what the first reading says is no time that has passed.
func TestFirstReadingEarnsNothing(t *testing.T) {
	for _, start := range []time.Duration{math.MinInt64, -s / 2, 0, 1000 * time.Hour, math.MaxInt64} {
		b := mustNew(t, Config{})
		drain(t, b, start)
		if b.Tokens() != 0 || b.Spent() != 10 {
			t.Errorf("start %v: %v tokens, %v spent", start, b.Tokens(), b.Spent())
		}
	}
}

// F31: after the clock was set back the bucket was not refilled until the old time had come again.
func TestClockSetBackKeepsRefilling(t *testing.T) {
	for _, jump := range []time.Duration{-8 * time.Hour, -11 * s, 8 * time.Hour} {
		b := mustNew(t, Config{})
		drain(t, b, 5*s)
		now := 5*s + jump
		b.Advance(now)
		want := 0.0
		if jump > 0 {
			want = 2
		}
		if !near(b.Tokens(), want) {
			t.Errorf("jump %v: %v tokens, want %v", jump, b.Tokens(), want)
		}
		b.Advance(now + 10*s)
		if !near(b.Tokens(), 2) {
			t.Errorf("10 s after a jump of %v: %v tokens, want 2", jump, b.Tokens())
		}
		if b.Spent() != 0 {
			t.Errorf("10 s after a jump of %v: still %v spent", jump, b.Spent())
		}
	}
}

// A difference of two readings need not fit a Duration.
func TestJumpAcrossAllOfTime(t *testing.T) {
	b := mustNew(t, Config{})
	drain(t, b, math.MinInt64)
	b.Advance(math.MaxInt64)
	if b.Tokens() != 2 || b.Spent() != 0 {
		t.Errorf("forward: %v tokens, %v spent, want 2 and 0", b.Tokens(), b.Spent())
	}
	drain(t, b, math.MaxInt64)
	b.Advance(math.MinInt64)
	if b.Tokens() != 0 || b.Spent() != 2 {
		t.Errorf("back: %v tokens, %v spent, want 0 and 2", b.Tokens(), b.Spent())
	}
	b.Advance(math.MinInt64 + 20*s)
	if !near(b.Tokens(), 2) || b.Spent() != 0 {
		t.Errorf("20 s later: %v tokens, %v spent, want 2 and 0", b.Tokens(), b.Spent())
	}
}

// F31: readings of concurrent callers arrive out of order; the same stretch of time must not be paid for twice.
func TestReadingsOutOfOrderEarnOnce(t *testing.T) {
	b := mustNew(t, Config{})
	drain(t, b, 100*s)
	for range 1000 {
		b.Advance(100 * s)
		b.Advance(101 * s)
		b.Advance(92 * s)
	}
	if !near(b.Tokens(), 0.2) {
		t.Errorf("%v tokens after one second, want 0.2", b.Tokens())
	}
}

// Ten times 0.1 is 0.9999999999999999: a token earned must be a token.
func TestTenSuccessesPayOneRetry(t *testing.T) {
	b := mustNew(t, Config{MinPerSecond: -1})
	drain(t, b, 0)
	for i := range 10 {
		if b.Spend(0, 1) {
			t.Fatalf("a retry after %d successes", i)
		}
		b.Earn(0, 1)
	}
	if !b.Spend(0, 1) {
		t.Errorf("refused with %v tokens", b.Tokens())
	}
	if b.Tokens() != 0 {
		t.Errorf("%v tokens left, want exactly 0", b.Tokens())
	}
	for _, price := range []float64{1e-9, 1e-300, math.SmallestNonzeroFloat64} {
		if b.Spend(0, price) {
			t.Errorf("an empty bucket paid %v", price)
		}
	}
}

func TestSpentForgetsAfterTenSeconds(t *testing.T) {
	b := mustNew(t, Config{MinPerSecond: -1})
	for i := range 5 { // a token in each of the seconds 0 to 4
		b.Spend(time.Duration(i)*s+s/2, 1)
	}
	for _, c := range []struct {
		at   time.Duration
		want float64
	}{{9 * s, 5}, {10*s - 1, 5}, {10 * s, 4}, {12*s + s/2, 2}, {14*s - 1, 1}, {14 * s, 0}, {1000 * s, 0}} {
		b.Advance(c.at)
		if b.Spent() != c.want {
			t.Errorf("at %v: %v spent, want %v", c.at, b.Spent(), c.want)
		}
	}
}

func TestBurnByHand(t *testing.T) {
	b := mustNew(t, Config{MinPerSecond: -1})
	check := func(what string, burn, now float64) {
		t.Helper()
		if !near(b.Burn(), burn) || !near(b.BurnNow(), now) {
			t.Errorf("%s: Burn %v, BurnNow %v, want %v and %v", what, b.Burn(), b.BurnNow(), burn, now)
		}
	}
	check("untouched", 0, 0)
	b.Spend(s, 4)
	check("4 of 10", 0.4, 0.4)
	b.Earn(2*s, 20) // 2 tokens
	check("4 of 10+2", 4.0/12, 4.0/12)
	b.Earn(3*s, 1000) // 2 fit
	check("what overflows was never there to spend", 4.0/14, 4.0/14)
	b.Refund(4*s, 4)
	check("a refund undoes the spending", 0, 0)
	b.Spend(5*s, 10)
	check("all of it", 1, 1)
	b.Advance(15 * s)
	check("none to spend, none spent", 0, 0)
	b.SetCapacity(100)
	b.AtLeast(100)
	b.Spend(16*s, 50)
	check("half", 0.5, 0.5)
	b.SetCapacity(10) // 40 of the 50 are gone
	check("of the 100 there were, of the 60 there are", 0.5, 50.0/60)
}

func TestRefundTakesTheNewestSpendingBack(t *testing.T) {
	b := mustNew(t, Config{MinPerSecond: -1})
	b.Spend(0, 2)
	b.Spend(3*s, 1)
	b.Refund(4*s, 2)
	if b.Tokens() != 9 || b.Spent() != 1 {
		t.Errorf("%v tokens, %v spent, want 9 and 1", b.Tokens(), b.Spent())
	}
	b.Advance(10 * s) // only the spending at 0 was left
	if b.Spent() != 0 {
		t.Errorf("%v spent at 10 s, want 0", b.Spent())
	}
	b.Refund(10*s, 50) // more than was ever charged
	if b.Tokens() != 10 || b.Spent() != 0 {
		t.Errorf("%v tokens, %v spent, want 10 and 0", b.Tokens(), b.Spent())
	}
}

func TestCapacity(t *testing.T) {
	b := mustNew(t, Config{MinPerSecond: -1})
	b.SetCapacity(50)
	if b.Tokens() != 10 {
		t.Errorf("growing made %v tokens of 10", b.Tokens())
	}
	b.Earn(0, 1000)
	if b.Tokens() != 50 {
		t.Errorf("%v tokens, want the new capacity of 50", b.Tokens())
	}
	b.SetCapacity(3)
	if b.Tokens() != 10 {
		t.Errorf("%v tokens, want Config.Capacity, below which it never shrinks", b.Tokens())
	}
	b.SetCapacity(math.MaxFloat64)
	b.Earn(0, math.MaxUint64)
	if b.Tokens() != 1e9 {
		t.Errorf("%v tokens, want the 1e9 that can be counted", b.Tokens())
	}
}

func TestAtLeast(t *testing.T) {
	b := mustNew(t, Config{})
	drain(t, b, 0)
	for _, c := range []struct{ tokens, want float64 }{{1, 1}, {0.5, 1}, {-3, 1}, {math.NaN(), 1}, {math.Inf(1), 1}, {99, 10}} {
		if b.AtLeast(c.tokens); b.Tokens() != c.want {
			t.Errorf("AtLeast(%v): %v tokens, want %v", c.tokens, b.Tokens(), c.want)
		}
	}
}

func TestBadNumbersChangeNothing(t *testing.T) {
	b := mustNew(t, Config{})
	b.Spend(0, 4)
	before := *b
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -math.MaxFloat64} {
		if b.Spend(0, x) {
			t.Errorf("Spend(%v) was paid", x)
		}
		b.Refund(0, x)
		b.AtLeast(x)
		b.SetCapacity(x)
		if *b != before {
			t.Fatalf("%v: %+v became %+v", x, before, *b)
		}
	}
	if b.Spend(0, math.MaxFloat64) || *b != before {
		t.Errorf("a price beyond the bucket changed it")
	}
	if !b.Spend(0, 0) || *b != before {
		t.Errorf("a price of 0 was not free")
	}
}

func TestNormalize(t *testing.T) {
	got, err := Config{}.Normalize()
	if want := (Config{Ratio: 0.1, Capacity: 10, MinPerSecond: 0.2, Reserve: 2}); err != nil || got != want {
		t.Errorf("zero Config: %+v, %v, want %+v", got, err, want)
	}
	for _, c := range []Config{{}, {MinPerSecond: -7}, {Capacity: 1}, {Ratio: 1, Capacity: 1e9, Reserve: 1e9}} {
		once, err := c.Normalize()
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if twice, err := once.Normalize(); err != nil || twice != once {
			t.Errorf("a second Normalize changed %+v to %+v, %v", once, twice, err)
		}
	}
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		cfg   Config
		field string
	}{
		{Config{Ratio: -0.1}, "Ratio"}, {Config{Ratio: 1.1}, "Ratio"}, {Config{Ratio: nan}, "Ratio"}, {Config{Ratio: inf}, "Ratio"},
		{Config{Capacity: -1}, "Capacity"}, {Config{Capacity: 0.5}, "Capacity"}, {Config{Capacity: 2e9}, "Capacity"},
		{Config{Capacity: nan}, "Capacity"}, {Config{Capacity: inf}, "Capacity"},
		{Config{MinPerSecond: nan}, "MinPerSecond"}, {Config{MinPerSecond: inf}, "MinPerSecond"}, {Config{MinPerSecond: -inf}, "MinPerSecond"},
		{Config{Reserve: -1}, "Reserve"}, {Config{Reserve: 11}, "Reserve"}, {Config{Reserve: nan}, "Reserve"}, {Config{Reserve: inf}, "Reserve"},
	} {
		_, err := New(c.cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != c.field || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%+v: error %v, want one that names %s", c.cfg, err, c.field)
		}
	}
}

// oracle is the bucket as a list of what happened, in whole units of 1e-6 tokens, with every sum formed anew from the list.
// Its capacity, prices and times are such that nothing is ever rounded.
type oracle struct {
	capacity, least, reserve, ratio int64
	perMilli                        int64
	nowMilli                        int64
	events                          []event
}

type event struct{ second, added, spent, removed int64 }

func (o *oracle) tokens() int64 {
	n := o.least // starts full
	for _, e := range o.events {
		n += e.added - e.spent - e.removed
	}
	return n
}

func (o *oracle) book(e event) {
	e.second = floorDiv(o.nowMilli, 1000)
	o.events = append(o.events, e)
}

func (o *oracle) advance(milli int64) {
	switch d := milli - o.nowMilli; {
	case d > 0:
		income := max(0, min(o.reserve-o.tokens(), d*o.perMilli))
		o.nowMilli = milli
		o.book(event{added: income})
	case d < -10_000:
		shift := floorDiv(milli, 1000) - floorDiv(o.nowMilli, 1000)
		for i := range o.events {
			o.events[i].second += shift
		}
		o.nowMilli = milli
	}
}

func (o *oracle) earn(n int64) { o.book(event{added: min(o.capacity-o.tokens(), n*o.ratio)}) }

func (o *oracle) spend(price int64) bool {
	if o.tokens() < price {
		return false
	}
	o.book(event{spent: price})
	return true
}

func (o *oracle) refund(price int64) {
	fits := min(price, o.capacity-o.tokens())
	undone := int64(0)
	for i := len(o.events) - 1; i >= 0 && undone < price; i-- {
		if e := &o.events[i]; o.inWindow(*e) {
			back := min(price-undone, e.spent)
			e.spent -= back
			undone += back
		}
	}
	o.book(event{added: fits - undone}) // taking spending back has returned that much already
}

func (o *oracle) setCapacity(c int64) {
	o.capacity = max(c, o.least)
	o.book(event{removed: max(0, o.tokens()-o.capacity)})
}

func (o *oracle) atLeast(n int64) { o.book(event{added: max(0, min(n, o.capacity)-o.tokens())}) }

func (o *oracle) inWindow(e event) bool { return e.second > floorDiv(o.nowMilli, 1000)-10 }

// burn is the article's: tokens at the start of the window plus those added since, and the share spent.
func (o *oracle) burn() (spent, burn, burnNow float64) {
	opening, added, out := o.least, int64(0), int64(0)
	for _, e := range o.events {
		if o.inWindow(e) {
			added += e.added
			out += e.spent
		} else {
			opening += e.added - e.spent - e.removed
		}
	}
	share := func(of int64) float64 {
		if out == 0 {
			return 0
		}
		return float64(out) / float64(of)
	}
	return float64(out) / 1e6, share(opening + added), share(out + o.tokens())
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func TestBucketAgainstOracle(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		start := rnd.Int64N(40_000) - 20_000 // around the origin, so that seconds below 0 count too
		o := &oracle{capacity: 10e6, least: 10e6, reserve: 2e6, ratio: 100_000, perMilli: 200, nowMilli: start}
		b := mustNew(t, Config{})
		milli := start
		b.Advance(time.Duration(milli) * time.Millisecond)
		for step := range 600 {
			switch r := rnd.IntN(100); {
			case r < 60:
				milli += rnd.Int64N(300)
			case r < 63:
				milli += rnd.Int64N(15_000)
			case r < 70:
				milli -= rnd.Int64N(2_000)
			case r < 71:
				milli -= rnd.Int64N(40_000)
			}
			now := time.Duration(milli) * time.Millisecond
			o.advance(milli)
			price := []int64{20_000, 1_000_000, rnd.Int64N(1_000_000), rnd.Int64N(20_000_000)}[rnd.IntN(4)]
			switch rnd.IntN(12) {
			case 0, 1, 2, 3:
				if got, want := b.Spend(now, float64(price)/1e6), o.spend(price); got != want {
					t.Fatalf("seed %d, step %d: Spend(%v) = %v, want %v", seed, step, price, got, want)
				}
			case 4, 5, 6, 7:
				n := rnd.Int64N(40)
				b.Earn(now, uint64(n))
				o.earn(n)
			case 8:
				b.Refund(now, float64(price)/1e6)
				o.refund(price)
			case 9:
				c := rnd.Int64N(60_000_000)
				b.Advance(now)
				b.SetCapacity(float64(c) / 1e6)
				o.setCapacity(c)
			case 10:
				b.Advance(now)
				b.AtLeast(float64(price) / 1e6)
				o.atLeast(price)
			case 11:
				b.Advance(now)
			}
			spent, burn, burnNow := o.burn()
			if !near(b.Tokens(), float64(o.tokens())/1e6) || !near(b.Spent(), spent) || !near(b.Burn(), burn) || !near(b.BurnNow(), burnNow) {
				t.Fatalf("seed %d, step %d: tokens %v, spent %v, burn %v, now %v; want %v, %v, %v, %v", seed, step,
					b.Tokens(), b.Spent(), b.Burn(), b.BurnNow(), float64(o.tokens())/1e6, spent, burn, burnNow)
			}
			if b.Tokens() < 0 || b.Tokens() > b.capacity || b.Burn() > 1 || b.BurnNow() > 1 {
				t.Fatalf("seed %d, step %d: out of range: %+v", seed, step, *b)
			}
		}
	}
}

// A million small prices: the sum of the ledger must be what is in it, and the bucket never below zero.
func TestNoDrift(t *testing.T) {
	b := mustNew(t, Config{MinPerSecond: -1})
	now := time.Duration(0)
	for range 1_000_000 {
		now += 100 * time.Microsecond
		b.Earn(now, 1)
		b.Spend(now, 0.1)
	}
	if math.Abs(b.Tokens()-10) > 0.1+1e-9 || b.Tokens() < 0 {
		t.Errorf("%v tokens, want about 10", b.Tokens())
	}
	b.Advance(now + 10*s)
	if b.Spent() != 0 {
		t.Errorf("%v spent in 10 s without a retry", b.Spent())
	}
}

func BenchmarkEarn(bench *testing.B) {
	b, _ := New(Config{})
	now := time.Duration(0)
	bench.ReportAllocs()
	for bench.Loop() {
		now += time.Microsecond
		b.Earn(now, 1)
	}
}

// Where most calls fail and all are retried, those that matter most must find tokens; where there are none of them, nothing is kept, nor
// in a bucket of the configured size.
func TestTokensKeptForCriticalCalls(t *testing.T) {
	b := mustNew(t, Config{})
	if got := b.Kept(1); got != 0 {
		t.Errorf("%v kept of the least capacity", got)
	}
	b.SetCapacity(410)
	for critical, want := range map[float64]float64{0: 0, 0.01: 8, 0.1: 80, 0.5: 80, 1: 80} {
		if got := b.Kept(critical); !near(got, want) {
			t.Errorf("critical calls %v of all: %v kept, want %v", critical, got, want)
		}
	}
}
