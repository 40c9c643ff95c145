package demo

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// phase is a stretch of the timeline.
type phase struct {
	name   string
	length time.Duration
	hang   bool    // nothing is answered before the phase is over
	factor float64 // service time × this
}

// timeline is what happens to both upstreams, about 30 s in all.
var timeline = []phase{
	{name: "healthy", length: 5 * time.Second, factor: 1},
	{name: "HANG", length: 7 * time.Second, hang: true, factor: 1},
	{name: "healthy", length: 7 * time.Second, factor: 1},
	{name: "SLOW ×4", length: 6 * time.Second, factor: 4},
	{name: "healthy", length: 5 * time.Second, factor: 1},
}

const (
	workers     = 4
	serviceTime = 25 * time.Millisecond
)

// upstream is a service with a fixed number of workers and a queue. Like most, it does not notice that a client has gone:
// abandoned work is still done, which is what makes a storm outlive its cause.
type upstream struct {
	mu       sync.Mutex
	phase    phase
	over     chan struct{} // closed when the phase ends
	stopped  chan struct{} // closed when the demonstration ends: nothing is worked on any more
	slots    chan struct{}
	attempts atomic.Int64
	working  sync.WaitGroup
}

func newUpstream() *upstream {
	return &upstream{phase: timeline[0], over: make(chan struct{}), stopped: make(chan struct{}), slots: make(chan struct{}, workers)}
}

func (u *upstream) set(p phase) {
	u.mu.Lock()
	defer u.mu.Unlock()
	close(u.over)
	u.phase, u.over = p, make(chan struct{})
}

// stop ends the work in progress.
func (u *upstream) stop() {
	close(u.stopped)
	u.working.Wait()
}

func (u *upstream) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	u.attempts.Add(1)
	u.working.Add(1)
	defer u.working.Done()
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	case <-u.stopped:
		return
	}
	u.mu.Lock()
	p, over := u.phase, u.over
	u.mu.Unlock()
	if p.hang {
		select {
		case <-over:
		case <-u.stopped:
			return
		}
	}
	time.Sleep(time.Duration(float64(serviceTime) * p.factor))
	w.Write([]byte("ok\n")) //nolint:errcheck // the client may have gone
}
