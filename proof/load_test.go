package proof

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bystander measures what another client sees: calls at an even rate, each on its own, over kept-alive connections.
type bystander struct {
	p50, p99 time.Duration
	calls    int
	failed   int // not answered with 200
	why      string
}

func (b bystander) String() string {
	s := fmt.Sprintf("%d calls, p50 %v, p99 %v", b.calls, b.p50.Round(10*time.Microsecond), b.p99.Round(10*time.Microsecond))
	if b.failed > 0 {
		s += fmt.Sprintf(", %d failed, such as: %s", b.failed, b.why)
	}
	return s
}

func measure(url string, rate int, d time.Duration) bystander {
	tr := &http.Transport{MaxIdleConnsPerHost: 32}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	times := make([]time.Duration, int(d.Seconds()*float64(rate)))
	var failed atomic.Int64
	var why atomic.Value
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range times {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate))))
		wg.Go(func() {
			t := time.Now()
			r, err := client.Get(url)
			if err == nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
			switch {
			case err != nil:
				failed.Add(1)
				why.Store(err.Error())
			case r.StatusCode != 200:
				failed.Add(1)
				why.Store(fmt.Sprint(r.Status, r.Header))
			}
			times[i] = time.Since(t)
		})
	}
	wg.Wait()
	slices.Sort(times)
	reason, _ := why.Load().(string)
	return bystander{why: reason, p50: times[len(times)/2], p99: times[len(times)*99/100], calls: len(times), failed: int(failed.Load())}
}

// noise is what a p99 may be longer by for reasons that have nothing to do with the gateway.
const noise = 10 * time.Millisecond

// undisturbed measures another client without and during an attack, which runs until stop is closed. No call of it may fail, and its
// p99 may be twice as long at most. What a client that goes straight to the upstream loses at the same time is the machine's doing,
// on which attackers, upstream and others work too, and is allowed for. There are three tries.
func undisturbed(t *testing.T, g *child, up string, attack func(stop <-chan struct{})) {
	t.Helper()
	const rate = 100
	length := 1200 * time.Millisecond
	if slow() {
		length = 5 * time.Second
	}
	both := func() (through, straight bystander) {
		var wg sync.WaitGroup
		wg.Go(func() { through = measure("http://"+g.addr+"/bystander", rate, length) })
		wg.Go(func() { straight = measure("http://"+up+"/bystander", rate, length) })
		wg.Wait()
		return through, straight
	}
	measure("http://"+g.addr+"/bystander", rate, time.Second/5) // warm
	for try := 1; ; try++ {
		before, control := both()
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { defer close(done); attack(stop) }()
		time.Sleep(time.Second)
		during, controlDuring := both()
		held := g.footprint()
		close(stop)
		<-done
		t.Logf("without: %v; straight to the upstream: %v\nduring:  %v; straight to the upstream: %v; the gateway: %v", before, control, during, controlDuring, held)
		machine := max(0, controlDuring.p99-control.p99)
		late := during.p99 > max(2*before.p99, before.p99+noise)+2*machine
		if during.failed == 0 && !late {
			return
		}
		if try == 3 {
			t.Errorf("another client was disturbed")
			return
		}
	}
}

// served measures another client during an attack, which runs until stop is closed. No call of it may fail.
func served(t *testing.T, g *child, _ string, attack func(stop <-chan struct{})) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { defer close(done); attack(stop) }()
	time.Sleep(time.Second)
	during := measure("http://"+g.addr+"/bystander", 100, 2*time.Second)
	close(stop)
	<-done
	t.Logf("during: %v", during)
	if during.failed > 0 {
		t.Errorf("another client was not served: %v", during)
	}
}

// bounded runs an attack and fails if the gateway's memory grew by more than the limit at its peak, or anything stayed behind.
func bounded(t *testing.T, g *child, limit int64, attack func()) {
	t.Helper()
	measure("http://"+g.addr+"/bystander", 500, 250*time.Millisecond) // so that what a working gateway takes is there
	before := g.footprint()
	p := g.watchPeak()
	attack()
	p.stop()
	after, ok := g.settles(15*time.Second, func(f footprint) bool { return f.fds <= before.fds+40 })
	t.Logf("before: %v; after: %v; peak RSS %.1f MiB", before, after, mib(p.most))
	if p.most > before.rss+limit {
		t.Errorf("memory grew by %.1f MiB, want at most %.0f MiB", mib(p.most-before.rss), mib(limit))
	}
	if !ok {
		t.Errorf("descriptors stay: %v, before %v", after, before)
	}
	if b := measure("http://"+g.addr+"/bystander", 100, 200*time.Millisecond); b.failed > 0 {
		t.Errorf("afterwards: %v", b)
	}
}

const growth = 64 << 20 // bytes that abuse may cost at most

// A watchedConn counts when the other side ends it.
type watchedConn struct {
	net.Conn
	closed atomic.Bool // from this side
	cut    *atomic.Int64
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !c.closed.Swap(true) {
		c.cut.Add(1)
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// dialWatched dials TCP and has the connections counted that the other side ends.
func dialWatched(cut *atomic.Int64) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watchedConn{Conn: c, cut: cut}, nil
	}
}
