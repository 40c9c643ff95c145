package quota

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestReserveAndRelease(t *testing.T) {
	q := New(10)
	steps := []struct {
		do   func() bool
		want bool
		used int64
	}{
		{func() bool { return q.Reserve(0) }, true, 0},
		{func() bool { return q.Reserve(11) }, false, 0},
		{func() bool { return q.Reserve(math.MaxInt64) }, false, 0},
		{func() bool { return q.Reserve(6) }, true, 6},
		{func() bool { return q.Reserve(5) }, false, 6},
		{func() bool { return q.Reserve(4) }, true, 10},
		{func() bool { return q.Reserve(0) }, true, 10},
		{func() bool { return q.Reserve(1) }, false, 10},
		{func() bool { q.SetLimit(5); return q.Reserve(0) }, true, 10}, // over it: what is held stays
		{func() bool { q.Release(4); return q.Reserve(1) }, false, 6},
		{func() bool { q.Release(2); return q.Reserve(1) }, true, 5},
		{func() bool { q.SetLimit(-3); return q.Limit() == 0 }, true, 5},
		{func() bool { q.Release(5); return q.Reserve(1) }, false, 0},
		{func() bool { q.SetLimit(math.MaxInt64); return q.Reserve(math.MaxInt64) }, true, math.MaxInt64},
		{func() bool { return q.Reserve(1) }, false, math.MaxInt64},
		{func() bool { return q.Reserve(math.MaxInt64) }, false, math.MaxInt64},
		{func() bool { q.Release(math.MaxInt64); return true }, true, 0},
	}
	for i, s := range steps {
		if got := s.do(); got != s.want || q.Used() != s.used {
			t.Fatalf("step %d: %t with %d used, want %t with %d", i, got, q.Used(), s.want, s.used)
		}
	}
}

func TestMiscountPanicsAndChangesNothing(t *testing.T) {
	q := New(10)
	q.Reserve(3)
	for name, f := range map[string]func(){
		"release more than is used": func() { q.Release(4) },
		"release a negative number": func() { q.Release(-1) },
		"reserve a negative number": func() { q.Reserve(-1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
		if q.Used() != 3 {
			t.Errorf("%s: %d used, want 3", name, q.Used())
		}
	}
}

// Many holders with a limit that moves: no more is ever held than the largest limit, and at the end nothing is.
func TestExactUnderContention(t *testing.T) {
	const most = 1000
	q := New(most)
	var holders, setter sync.WaitGroup
	stop := make(chan struct{})
	setter.Go(func() {
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				q.SetLimit(most - i%most)
			}
		}
	})
	for i := range 8 {
		holders.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			held := int64(0)
			for range 20_000 {
				if n := r.Int64N(300); r.IntN(2) == 0 && q.Reserve(n) {
					held += n
				} else if n = min(n, held); n > 0 {
					q.Release(n)
					held -= n
				}
				if used := q.Used(); used < held || used > most {
					t.Errorf("%d used, %d of them held here, the limit was never above %d", used, held, most)
					break
				}
			}
			q.Release(held)
		})
	}
	holders.Wait()
	close(stop)
	setter.Wait()
	if q.Used() != 0 {
		t.Fatalf("%d used when all is released", q.Used())
	}
}

func BenchmarkReserve(b *testing.B) {
	q := New(1 << 20)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if q.Reserve(100) {
				q.Release(100)
			}
		}
	})
}
