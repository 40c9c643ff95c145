package cortexhttp_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// busyBase answers each request when this process comes to it, with what the kernel knows before.
type busyBase struct {
	known func(ctx context.Context) // when it is looked
	run   func(ctx context.Context) // what goes on, up to the end of the answer's header
	ctx   atomic.Pointer[context.Context]
}

func (b *busyBase) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	b.ctx.Store(&ctx)
	b.run(ctx)
	if err := context.Cause(r.Context()); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func (b *busyBase) Look() {
	if b.known != nil {
		b.known(*b.ctx.Load())
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// The attempt's timeout passed while the answer lay in the kernel, and a healthy target was blamed for it.
func TestAnAnswerThatLiesUnreadIsNotTimedOut(t *testing.T) {
	const ms = time.Millisecond
	arrived := func(ctx context.Context) { cortexhttp.Arrived(ctx, true) }
	for name, c := range map[string]struct {
		base    *busyBase
		within  time.Duration // the engine's deadline
		cut     time.Duration // 0: it is answered
		latency time.Duration
	}{
		"told at once": {base: &busyBase{run: func(ctx context.Context) {
			pause(ctx, 20*ms)
			arrived(ctx)
			pause(ctx, 1500*ms)
		}}, latency: 20 * ms},
		"found when the time is up": {base: &busyBase{known: arrived, run: func(ctx context.Context) { pause(ctx, 1500*ms) }}, latency: time.Second},
		"a header without an end": {base: &busyBase{run: func(ctx context.Context) {
			arrived(ctx)
			pause(ctx, time.Minute)
		}}, cut: 2 * time.Second},
		"nor does it go on beyond the deadline": {base: &busyBase{run: func(ctx context.Context) {
			arrived(ctx)
			pause(ctx, time.Minute)
		}}, within: 1500 * ms, cut: 1500 * ms},
		"which may be before the timeout": {base: &busyBase{run: func(ctx context.Context) {
			arrived(ctx)
			pause(ctx, time.Minute)
		}}, within: 700 * ms, cut: 700 * ms},
		"what came was not the answer": {base: &busyBase{run: func(ctx context.Context) {
			arrived(ctx)
			cortexhttp.Arrived(ctx, false)
			pause(ctx, time.Minute)
		}}, cut: time.Second},
		"nothing came": {base: &busyBase{run: func(ctx context.Context) { pause(ctx, time.Minute) }}, cut: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, err := cortex.New(cortex.Config{DisableRetries: true, Deadline: c.within})
				if err != nil {
					t.Fatal(err)
				}
				var told cortexhttp.AttemptResult
				tr, err := cortexhttp.NewTransport(cortexhttp.TransportConfig{Engine: e, Base: c.base,
					OnAttempt: func(a cortexhttp.AttemptResult) { told = a }})
				if err != nil {
					t.Fatal(err)
				}
				req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://target/", nil)
				began := time.Now()
				_, err = tr.RoundTrip(req)
				took := time.Since(began)
				s := e.Stats()
				if c.cut > 0 {
					if !errors.Is(err, context.DeadlineExceeded) || took != c.cut || s.Timeouts != 1 {
						t.Errorf("%v after %v, %+v", err, took, s)
					}
					return
				}
				if err != nil || s.Successes != 1 || told.Latency != c.latency {
					t.Errorf("%v, latency %v, %+v", err, told.Latency, s)
				}
			})
		})
	}
	cortexhttp.Arrived(t.Context(), true) // of no attempt
}
