package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stream is one kind of call that clients make, at a steady rate whatever becomes of them.
type stream struct {
	name     string
	method   string
	rate     int // calls a second
	deadline time.Duration
}

var streams = []stream{
	{"settlement (4)", "delegation.Settle", 80, 800 * time.Millisecond},
	{"profile (2)", "delegation.UpdateProfile", 80, time.Second},
	{"analytics (1)", "delegation.Analyse", 120, time.Second},
}

// counts is what became of calls.
type counts struct{ ok, shed, failed atomic.Int64 }

func (c *counts) add(err error) {
	switch {
	case err == nil:
		c.ok.Add(1)
	case status.Code(err) == codes.ResourceExhausted || status.Code(err) == codes.Unavailable:
		c.shed.Add(1)
	default:
		c.failed.Add(1)
	}
}

// share is how many of the calls were answered, in percent.
func (c *counts) share() float64 {
	ok, all := float64(c.ok.Load()), float64(c.ok.Load()+c.shed.Load()+c.failed.Load())
	if all == 0 {
		return 100
	}
	return 100 * ok / all
}

// phases of a run.
type phases struct{ healthy, slow, after time.Duration }

func (p phases) length() time.Duration { return p.healthy + p.slow + p.after }

// result is what a run came to: by stream, for each second by when calls began, and in all.
type result struct {
	seconds [][]counts // by second and stream
	total   []counts   // by stream
	fault   []counts   // of those that began while the query was slow
	busiest atomic.Int64
}

func newResult(p phases) *result {
	r := &result{total: make([]counts, len(streams)), fault: make([]counts, len(streams))}
	for range int((p.length() + time.Second - 1) / time.Second) {
		r.seconds = append(r.seconds, make([]counts, len(streams)))
	}
	return r
}

// run loads a system through the phases.
func (r *result) run(s *system, p phases) {
	var wg sync.WaitGroup
	began := time.Now()
	at := func(d time.Duration, f func()) { wg.Go(func() { time.Sleep(time.Until(began.Add(d))); f() }) }
	at(p.healthy, func() { s.slow.Store(true) })
	at(p.healthy+p.slow, func() { s.slow.Store(false) })
	for i, st := range streams {
		wg.Go(func() {
			every := time.Second / time.Duration(st.rate)
			for t := time.Duration(0); t < p.length(); t += every {
				time.Sleep(time.Until(began.Add(t)))
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), st.deadline)
					defer cancel()
					_, err := call(ctx, s.door, st.method, int64(t))
					r.seconds[t/time.Second][i].add(err)
					r.total[i].add(err)
					if t >= p.healthy && t < p.healthy+p.slow {
						r.fault[i].add(err)
					}
				})
				if n := int64(len(s.workers)); n > r.busiest.Load() {
					r.busiest.Store(n)
				}
			}
		})
	}
	wg.Wait()
}
