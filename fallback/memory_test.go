package fallback

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// purse is a Memory that knows when its holders miscount.
type purse struct {
	t     *testing.T
	mu    sync.Mutex
	limit int64
	used  int64
}

func (p *purse) Reserve(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n < 0 || n > p.limit-p.used {
		return false
	}
	p.used += n
	return true
}

func (p *purse) Release(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used -= n; n < 0 || p.used < 0 {
		p.t.Errorf("Release(%d) leaves %d in use", n, p.used)
	}
}

// An answer takes 10 bytes here: one of its key, nine of itself.
func nine(string) int64 { return 9 }

func TestMemoryIsShared(t *testing.T) {
	m := &purse{t: t, limit: 45}
	a := mustNew(t, CacheConfig[string]{Size: nine, Memory: m})
	b := mustNew(t, CacheConfig[string]{Size: nine, Memory: m})
	check := func(step string, used int64, inA, inB string) {
		t.Helper()
		for _, c := range []struct {
			cache *Cache[string]
			want  string
		}{{a, inA}, {b, inB}} {
			got := ""
			for _, key := range []string{"1", "2", "3", "4", "5"} {
				if _, _, ok := c.cache.Get(key, math.MaxInt64); ok {
					got += key
				}
			}
			if got != c.want {
				t.Errorf("%s: %q held, want %q", step, got, c.want)
			}
		}
		if m.used != used || a.Bytes()+b.Bytes() != used {
			t.Errorf("%s: %d reserved, %d and %d held, want %d", step, m.used, a.Bytes(), b.Bytes(), used)
		}
	}
	for _, key := range []string{"1", "2", "3"} {
		a.Put(key, "")
	}
	b.Put("1", "")
	check("all fit", 40, "123", "1")
	a.Put("4", "") // gives up its own oldest, not the other's
	check("no room", 40, "234", "1")
	a.Put("3", "again") // what is replaced makes its own room
	check("replaced", 40, "234", "1")
	b.Put("2", "")
	b.Put("3", "")
	check("the smaller cache", 40, "234", "3")
	m.limit = 20 // a reload
	b.Put("4", "")
	check("the limit fell: not kept, and the rest is given up", 30, "234", "")
	a.Put("5", "")
	check("the limit fell: kept when enough was given up", 20, "45", "")
	a.Delete("4")
	check("deleted", 10, "5", "")
	a.Close()
	check("closed", 0, "", "")
	a.Put("1", "") // by a request that began before
	a.Close()
	check("put after it was closed", 0, "", "")
	b.Put("1", "")
	check("the other lives on", 10, "", "1")
}

func TestMemoryOfWhatIsForgottenAfterAnAge(t *testing.T) {
	m := &purse{t: t, limit: 100}
	clk := time.Duration(math.MinInt64)
	c := mustNew(t, CacheConfig[string]{Size: nine, Memory: m, Now: func() time.Duration { return clk }})
	c.Put("1", "")
	clk = math.MaxInt64 // the step does not fit
	if c.Get("1", math.MaxInt64); c.Len() != 0 || m.used != 0 {
		t.Errorf("%d answers, %d bytes reserved", c.Len(), m.used)
	}
}

func TestMemoryNeedsSize(t *testing.T) {
	_, err := NewCache(CacheConfig[string]{Memory: &purse{t: t}})
	var ce *ConfigError
	if !errors.As(err, &ce) || ce.Field != "Size" {
		t.Fatalf("%v", err)
	}
}

// Whatever two caches do at the same time, what is reserved is what they hold, and never more than the limit.
func TestMemoryUnderContention(t *testing.T) {
	m := &purse{t: t, limit: 2000}
	size := func(v string) int64 { return int64(len(v)) }
	caches := []*Cache[string]{
		mustNew(t, CacheConfig[string]{Size: size, Memory: m, MaxEntries: 50}),
		mustNew(t, CacheConfig[string]{Size: size, Memory: m, MaxBytes: 1500}),
	}
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(i)))
			for range 3000 {
				c := caches[r.IntN(2)]
				key := fmt.Sprint(r.IntN(100))
				switch r.IntN(4) {
				case 0:
					c.Get(key, math.MaxInt64)
				case 1:
					c.Delete(key)
				default:
					c.Put(key, string(make([]byte, r.IntN(300))))
				}
			}
		})
	}
	all.Wait()
	if held := caches[0].Bytes() + caches[1].Bytes(); held != m.used || held > m.limit {
		t.Errorf("%d held, %d reserved, the limit is %d", held, m.used, m.limit)
	}
	for _, c := range caches {
		c.Close()
	}
	if m.used != 0 {
		t.Errorf("%d reserved by closed caches", m.used)
	}
}
