package demo

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	callRate     = 100 // calls a second to each side: 62 % of what the upstream can do
	callDeadline = 3 * time.Second
)

// tier is a kind of call.
type tier struct {
	name     string
	priority int
	share    float64
}

var tiers = []tier{{"money", 9, 0.1}, {"login", 7, 0.3}, {"search", 5, 0.4}, {"analytics", 2, 0.2}}

// tally counts the calls of one side.
type tally struct {
	offered, good [4]atomic.Int64
	mu            sync.Mutex
	second        []bin
}

// bin is one second of arrivals.
type bin struct{ offered, good int }

func newTally(length time.Duration) *tally {
	return &tally{second: make([]bin, int(length/time.Second)+2)}
}

func (t *tally) add(i int, at time.Duration, good bool) {
	t.offered[i].Add(1)
	if good {
		t.good[i].Add(1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := &t.second[min(int(at/time.Second), len(t.second)-1)]
	b.offered++
	if good {
		b.good++
	}
}

// rate is the share of good answers among the calls that arrived in the seconds [from, to); ok is false without any.
func (t *tally) rate(from, to int) (float64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, k := 0, 0
	for i := max(from, 0); i < to && i < len(t.second); i++ {
		n += t.second[i].offered
		k += t.second[i].good
	}
	if n == 0 {
		return 0, false
	}
	return float64(k) / float64(n), true
}

// load offers calls at a constant rate, each to every side at once, until the timeline ends.
func load(ctx context.Context, client *http.Client, urls []string, tallies []*tally, start time.Time, length time.Duration) {
	rng := rand.New(rand.NewPCG(1, 2)) // the same calls in every run
	var calls sync.WaitGroup
	defer calls.Wait()
	ticker := time.NewTicker(time.Second / callRate)
	defer ticker.Stop()
	for sent := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		at := time.Since(start)
		if at >= length {
			return
		}
		for ; sent < int(at.Seconds()*callRate); sent++ {
			i := pick(rng.Float64())
			for side, url := range urls {
				calls.Go(func() { tallies[side].add(i, at, call(ctx, client, url, tiers[i].priority)) })
			}
		}
	}
}

func pick(u float64) int {
	for i, t := range tiers {
		if u -= t.share; u < 0 {
			return i
		}
	}
	return len(tiers) - 1
}

func call(ctx context.Context, client *http.Client, url string, priority int) bool {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	r.Header.Set("X-Priority", strconv.Itoa(priority))
	resp, err := client.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}
