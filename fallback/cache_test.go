package fallback

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

const s = time.Second

// clock is set by hand.
type clock struct{ now time.Duration }

func (c *clock) read() time.Duration { return c.now }

func length(v string) int64 { return int64(len(v)) }

func mustNew[T any](t *testing.T, c CacheConfig[T]) *Cache[T] {
	t.Helper()
	cache, err := NewCache(c)
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

func TestAgeLimitIsExact(t *testing.T) {
	var clk clock
	c := mustNew(t, CacheConfig[string]{Now: clk.read})
	c.Put("k", "v")
	for _, x := range []struct {
		at, maxAge time.Duration
		ok         bool
	}{
		{0, 0, true}, {0, -1, false}, {10 * s, 10 * s, true}, {10*s + 1, 10 * s, false}, {10*s + 1, 10*s + 1, true},
		{20 * s, 0, false}, {20 * s, math.MaxInt64, true}, {20 * s, math.MinInt64, false},
	} {
		clk.now = x.at
		v, age, ok := c.Get("k", x.maxAge)
		if ok != x.ok || ok && (v != "v" || age != x.at) || !ok && (v != "" || age != 0) {
			t.Errorf("at %v, at most %v old: %q, %v, %v, want ok = %v", x.at, x.maxAge, v, age, ok, x.ok)
		}
	}
	c.Put("k", "w")
	if v, age, ok := c.Get("k", 0); !ok || v != "w" || age != 0 {
		t.Errorf("after a new Put: %q, %v, %v", v, age, ok)
	}
}

// F31: an answer put before the clock was set back must neither have a negative age nor stay fresh for the eight hours.
func TestClockSetBackKeepsAging(t *testing.T) {
	clk := clock{now: 10 * time.Hour}
	c := mustNew(t, CacheConfig[string]{Now: clk.read})
	c.Put("k", "v")
	clk.now += 3 * s
	c.Get("other", 0) // any call tells the time
	clk.now -= 8 * time.Hour
	if _, age, ok := c.Get("k", time.Minute); !ok || age != 3*s {
		t.Errorf("right after: age %v, %v, want 3s", age, ok)
	}
	clk.now += 60 * s
	if _, age, ok := c.Get("k", time.Minute); ok {
		t.Errorf("63 s after Put: still served, age %v", age)
	}
	clk.now += 8 * time.Hour
	if _, age, ok := c.Get("k", math.MaxInt64); !ok || age != 8*time.Hour+63*s {
		t.Errorf("set forward again: age %v, %v", age, ok)
	}
}

func TestJumpAcrossAllOfTimeEmptiesTheCache(t *testing.T) {
	for _, jumps := range [][]time.Duration{
		{math.MinInt64, math.MaxInt64},           // one step that does not fit
		{0, math.MaxInt64, 0, math.MaxInt64 - 1}, // two that fit, and a sum that does not
	} {
		var clk clock
		c := mustNew(t, CacheConfig[string]{Now: clk.read, Size: length})
		for i, at := range jumps {
			clk.now = at
			if _, _, ok := c.Get("k", math.MaxInt64); ok != (i > 0 && i < len(jumps)-1) {
				t.Errorf("%v, reading %d: served %v", jumps, i, ok)
			}
			if i == 0 {
				c.Put("k", "v")
			}
		}
		if c.Len() != 0 || c.Bytes() != 0 {
			t.Errorf("%v: %d entries, %d bytes held", jumps, c.Len(), c.Bytes())
		}
		c.Put("k", "w")
		clk.now -= s
		c.Get("k", 0)
		clk.now += s
		if _, age, ok := c.Get("k", s); !ok || age != s {
			t.Errorf("%v: afterwards age %v, %v, want 1s", jumps, age, ok)
		}
	}
}

func TestAnswerLargerThanTheBoundIsNotKept(t *testing.T) {
	c := mustNew(t, CacheConfig[string]{MaxBytes: 10, Size: length})
	c.Put("a", "1234")
	c.Put("b", "1234")
	if c.Len() != 2 || c.Bytes() != 10 {
		t.Fatalf("%d entries, %d bytes, want 2 and 10", c.Len(), c.Bytes())
	}
	c.Put("c", "1234567890") // 11 with its key
	if c.Len() != 2 || c.Bytes() != 10 {
		t.Errorf("an answer too large drove others out: %d entries, %d bytes", c.Len(), c.Bytes())
	}
	c.Put("a", "1234567890")
	if _, _, ok := c.Get("a", time.Hour); ok || c.Bytes() != 5 {
		t.Errorf("the answer before the last is still served, %d bytes", c.Bytes())
	}
	c.Put("d", "123456789") // 10 with its key: the whole cache
	if v, _, ok := c.Get("d", time.Hour); !ok || v != "123456789" || c.Len() != 1 || c.Bytes() != 10 {
		t.Errorf("an answer of exactly the bound: %q, %v, %d entries, %d bytes", v, ok, c.Len(), c.Bytes())
	}
	if c.Put(strings.Repeat("k", 11), ""); c.Len() != 1 {
		t.Errorf("a key larger than the bound was kept")
	}
}

func TestAbsurdSizesAreHarmless(t *testing.T) {
	c := mustNew(t, CacheConfig[int64]{MaxBytes: math.MaxInt64, Size: func(v int64) int64 { return v }})
	for _, v := range []int64{math.MinInt64, -1, 0, math.MaxInt64 - 1, math.MaxInt64} {
		c.Put("kk", v)
		c.Put("k", v)
		c.Put("small", 0)
		sum := int64(0)
		for e := c.recent.Front(); e != nil; e = e.Next() {
			sum += e.Value.(*entry[int64]).bytes
		}
		if c.Bytes() < 5 || c.Bytes() != sum {
			t.Errorf("size %d: %d bytes counted, %d held", v, c.Bytes(), sum)
		}
		if _, _, ok := c.Get("small", time.Hour); !ok {
			t.Errorf("size %d: the answer put last is not held", v)
		}
	}
}

func TestEntriesAreBoundedWithoutSize(t *testing.T) {
	c := mustNew(t, CacheConfig[[]byte]{})
	for i := range 100_000 {
		c.Put(fmt.Sprint(i), nil)
	}
	if c.Len() != 1000 || c.Bytes() != 0 || len(c.entries) != 1000 {
		t.Errorf("%d entries (%d indexed), %d bytes, want 1000 and 0", c.Len(), len(c.entries), c.Bytes())
	}
}

func TestNewCacheRefuses(t *testing.T) {
	for _, x := range []struct {
		cfg   CacheConfig[string]
		field string
	}{
		{CacheConfig[string]{MaxEntries: -1}, "MaxEntries"},
		{CacheConfig[string]{MaxBytes: -1, Size: length}, "MaxBytes"},
		{CacheConfig[string]{MaxBytes: 1}, "Size"},
	} {
		_, err := NewCache(x.cfg)
		var ce *ConfigError
		if !errors.As(err, &ce) || ce.Field != x.field || !strings.HasPrefix(err.Error(), x.field+": ") {
			t.Errorf("%+v: error %v, want one that names %s", x.cfg, err, x.field)
		}
	}
}

func TestProcessClockIsTheDefault(t *testing.T) {
	c := mustNew(t, CacheConfig[int]{})
	c.Put("k", 1)
	if _, age, ok := c.Get("k", time.Hour); !ok || age < 0 {
		t.Errorf("age %v, %v", age, ok)
	}
}

// naive is a cache as a slice, most recent first.
type naive struct {
	maxEntries int
	maxBytes   int64
	list       []naiveEntry
}

type naiveEntry struct {
	key, value string
	put        time.Duration
}

func (n *naive) bytes() (sum int64) {
	for _, e := range n.list {
		sum += int64(len(e.key) + len(e.value))
	}
	return sum
}

func (n *naive) take(key string) (naiveEntry, bool) {
	for i, e := range n.list {
		if e.key == key {
			n.list = append(append([]naiveEntry{}, n.list[:i]...), n.list[i+1:]...)
			return e, true
		}
	}
	return naiveEntry{}, false
}

func (n *naive) push(e naiveEntry) { n.list = append([]naiveEntry{e}, n.list...) }

func (n *naive) put(key, value string, now time.Duration) {
	n.take(key)
	if int64(len(key)+len(value)) > n.maxBytes {
		return
	}
	n.push(naiveEntry{key, value, now})
	for len(n.list) > n.maxEntries || n.bytes() > n.maxBytes {
		n.list = n.list[:len(n.list)-1]
	}
}

func (n *naive) get(key string, maxAge, now time.Duration) (string, time.Duration, bool) {
	for _, e := range n.list {
		if e.key == key && now-e.put <= maxAge {
			n.take(key)
			n.push(e)
			return e.value, now - e.put, true
		}
	}
	return "", 0, false
}

func TestCacheAgainstNaiveLRU(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		clk := clock{now: -20 * s}
		n := &naive{maxEntries: 1 + rnd.IntN(12), maxBytes: 1 + rnd.Int64N(120)}
		c := mustNew(t, CacheConfig[string]{MaxEntries: n.maxEntries, MaxBytes: n.maxBytes, Size: length, Now: clk.read})
		for step := range 3000 {
			clk.now += time.Duration(rnd.IntN(3)) * s
			key := fmt.Sprint("k", rnd.IntN(20))
			switch rnd.IntN(10) {
			case 0, 1, 2, 3:
				v := strings.Repeat("v", rnd.IntN(40))
				c.Put(key, v)
				n.put(key, v, clk.now)
			case 4:
				c.Delete(key)
				n.take(key)
			default:
				maxAge := time.Duration(rnd.IntN(20)-1) * s
				v, age, ok := c.Get(key, maxAge)
				wv, wage, wok := n.get(key, maxAge, clk.now)
				if v != wv || age != wage || ok != wok {
					t.Fatalf("seed %d, step %d: Get(%s, %v) = %q, %v, %v, want %q, %v, %v", seed, step, key, maxAge, v, age, ok, wv, wage, wok)
				}
			}
			if c.Len() != len(n.list) || c.Len() != len(c.entries) || c.Bytes() != n.bytes() {
				t.Fatalf("seed %d, step %d: %d entries (%d indexed), %d bytes, want %d and %d", seed, step,
					c.Len(), len(c.entries), c.Bytes(), len(n.list), n.bytes())
			}
		}
	}
}

// Meant for the race detector; the bounds must hold at every moment and the sums at the end.
func TestConcurrentUse(t *testing.T) {
	c := mustNew(t, CacheConfig[string]{MaxEntries: 50, MaxBytes: 1000, Size: length})
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 6))
			for range 3000 {
				key := fmt.Sprint("k", rnd.IntN(100))
				switch rnd.IntN(4) {
				case 0:
					c.Put(key, key+strings.Repeat("v", rnd.IntN(60)))
				case 1:
					c.Delete(key)
				default:
					if v, age, ok := c.Get(key, time.Hour); ok && (age < 0 || !strings.HasPrefix(v, key)) {
						t.Errorf("%s: %q, age %v", key, v, age)
					}
				}
				if n, b := c.Len(), c.Bytes(); n > 50 || b > 1000 {
					t.Errorf("%d entries, %d bytes", n, b)
				}
			}
		})
	}
	wg.Wait()
	sum := int64(0)
	for key, e := range c.entries {
		sum += int64(len(key)) + length(e.Value.(*entry[string]).value)
	}
	if sum != c.Bytes() || len(c.entries) != c.Len() {
		t.Errorf("%d bytes in %d entries, %d and %d counted", sum, len(c.entries), c.Bytes(), c.Len())
	}
}
