// Package demo shows the guard at work in one process: an upstream that fails on a timeline behind the gateway, and the same
// upstream under the same load behind a plain proxy with three retries.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
)

// Options of a demonstration.
type Options struct {
	Out      io.Writer
	Terminal bool // redraw a live table instead of printing a line a second

	net network // the zero value is loopback
}

// network is where the servers of a demonstration listen and are reached.
type network struct {
	listen func() (net.Listener, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Result is what came out, for the summary and for tests.
type Result struct {
	Guarded, Plain Side
}

// Side is one of the two proxies.
type Side struct {
	Goodput    float64
	ByPriority map[int]float64
	Attempts   int64           // that reached the upstream
	Calls      int64           // offered
	Recovery   []time.Duration // after each fault, to the first second with ≥ 95 % success; negative = not before the next
}

// side is a running proxy with its upstream.
type side struct {
	name     string
	upstream *upstream
	tally    *tally
	url      string
}

// Run plays the timeline and prints what happens. It returns early, with what there is, when ctx ends.
func Run(ctx context.Context, o Options) (*Result, error) {
	length := time.Duration(0)
	for _, p := range timeline {
		length += p.length
	}
	guarded := &side{name: "cortex", upstream: newUpstream(), tally: newTally(length)}
	plain := &side{name: "3 retries", upstream: newUpstream(), tally: newTally(length)}
	if o.net.listen == nil {
		o.net.listen = func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	}
	running := servers{net: o.net}
	defer running.stop()
	defer guarded.upstream.stop()
	defer plain.upstream.stop()
	engine, err := running.guard(guarded)
	if err != nil {
		return nil, err
	}
	if err := running.plain(plain); err != nil {
		return nil, err
	}
	client := &http.Client{Transport: running.transport()}

	fmt.Fprintf(o.Out, "An upstream with %d workers of %v hangs, recovers, and turns slow, under %d calls/s with a deadline of %v.\n"+
		"The same load goes through CORTEX and through a plain proxy (timeout %v, %d retries, exponential backoff).\n\n",
		workers, serviceTime, callRate, callDeadline, plainTimeout, plainRetries)
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		load(ctx, client, []string{guarded.url, plain.url}, []*tally{guarded.tally, plain.tally}, start, length)
	}()
	play(ctx, o, start, engine, guarded, plain)
	<-done
	res := &Result{Guarded: guarded.result(), Plain: plain.result()}
	summary(o.Out, res)
	return res, nil
}

// play follows the timeline and shows each second.
func play(ctx context.Context, o Options, start time.Time, engine *cortex.Engine, guarded, plain *side) {
	screen := &screen{out: o.Out, terminal: o.Terminal}
	screen.head()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	current, ends := 0, timeline[0].length
	lastG, lastP := int64(0), int64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		at := time.Since(start).Round(time.Second)
		g, p := guarded.upstream.attempts.Load(), plain.upstream.attempts.Load()
		screen.row(at, timeline[current].name, engine.Pressure(), g-lastG, p-lastP, guarded.tally, plain.tally)
		lastG, lastP = g, p
		if at < ends {
			continue
		}
		if current++; current == len(timeline) {
			return
		}
		ends += timeline[current].length
		guarded.upstream.set(timeline[current])
		plain.upstream.set(timeline[current])
	}
}

func (s *side) result() Side {
	r := Side{ByPriority: map[int]float64{}, Attempts: s.upstream.attempts.Load()}
	good := int64(0)
	for i, t := range tiers {
		n := s.tally.offered[i].Load()
		k := s.tally.good[i].Load()
		r.Calls += n
		good += k
		if n > 0 {
			r.ByPriority[t.priority] = float64(k) / float64(n)
		}
	}
	if r.Calls > 0 {
		r.Goodput = float64(good) / float64(r.Calls)
	}
	at := time.Duration(0)
	for i, p := range timeline {
		if i > 0 && !p.hang && p.factor == 1 { // a fault has just ended
			r.Recovery = append(r.Recovery, s.recovery(int(at/time.Second), int((at+p.length)/time.Second)))
		}
		at += p.length
	}
	return r
}

func (s *side) recovery(from, to int) time.Duration {
	for i := from; i < to; i++ {
		if v, ok := s.tally.rate(i, i+1); ok && v >= 0.95 {
			return time.Duration(i-from) * time.Second
		}
	}
	return -1
}

// servers are the listeners of a demonstration.
type servers struct {
	net     network
	running []*http.Server
	closers []func()
}

func (s *servers) stop() {
	for _, srv := range s.running {
		srv.Close()
	}
	for _, f := range s.closers {
		f()
	}
}

func (s *servers) transport() *http.Transport {
	t := &http.Transport{MaxIdleConnsPerHost: 1000, MaxIdleConns: 2000, DialContext: s.net.dial}
	s.closers = append(s.closers, t.CloseIdleConnections)
	return t
}

func (s *servers) listen(h http.Handler) (string, error) {
	l, err := s.net.listen()
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	s.running = append(s.running, srv)
	go srv.Serve(l) //nolint:errcheck // ends with Close
	return "http://" + l.Addr().String(), nil
}

func (s *servers) guard(side *side) (*cortex.Engine, error) {
	up, err := s.listen(side.upstream)
	if err != nil {
		return nil, err
	}
	f, err := config.Upstream(up, "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g, err := gateway.New(f, gateway.Options{Dial: s.net.dial})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, g.Close)
	targets := g.Targets()
	if len(targets) != 1 {
		return nil, errors.New("demo: expected one target")
	}
	side.url, err = s.listen(g)
	return targets[0].Engine, err
}

func (s *servers) plain(side *side) error {
	up, err := s.listen(side.upstream)
	if err != nil {
		return err
	}
	u, err := url.Parse(up)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(u) },
		Transport: retrier{s.transport()},
		ErrorLog:  log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	side.url, err = s.listen(proxy)
	return err
}

// screen prints the seconds: on a terminal the last ones as a table that moves, elsewhere a line each.
type screen struct {
	out      io.Writer
	terminal bool
	rows     []string
	drawn    int
}

const liveRows = 12

func (s *screen) head() {
	fmt.Fprintf(s.out, "%4s  %-8s │ %-31s │ %-15s\n", "", "", "cortex", "3 retries")
	fmt.Fprintf(s.out, "%4s  %-8s │ %5s %-9s %7s %7s │ %7s %7s\n", "time", "upstream", "cps", "circuit", "tries/s", "good", "tries/s", "good")
}

func (s *screen) row(at time.Duration, name string, p cortex.Pressure, guarded, plain int64, g, pl *tally) {
	second := int(at / time.Second)
	// What arrived in the last second is not answered yet: the second before the deadline's length is whole.
	row := fmt.Sprintf("%3ds  %-8s │ %5.2f %-9s %7d %7s │ %7d %7s", second, name, p.CPS, p.Circuit, guarded, share(g, second), plain, share(pl, second))
	if !s.terminal {
		fmt.Fprintln(s.out, row)
		return
	}
	if s.rows = append(s.rows, row); len(s.rows) > liveRows {
		s.rows = s.rows[1:]
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	for _, r := range s.rows {
		b.WriteString("\x1b[2K" + r + "\n")
	}
	s.drawn = len(s.rows)
	io.WriteString(s.out, b.String()) //nolint:errcheck // nothing to be done about a terminal that has gone
}

// share is the rate of good answers in the last second among the calls that are over.
func share(t *tally, second int) string {
	v, ok := t.rate(second-1, second)
	if !ok {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

func summary(w io.Writer, r *Result) {
	fmt.Fprintf(w, "\n%-26s %10s %10s\n", "", "cortex", "3 retries")
	line := func(name string, value func(Side) string) {
		fmt.Fprintf(w, "%-26s %10s %10s\n", name, value(r.Guarded), value(r.Plain))
	}
	line("answered in time", func(s Side) string { return percent(s.Goodput) })
	for _, t := range tiers {
		line(fmt.Sprintf("  priority %d (%s)", t.priority, t.name), func(s Side) string { return percent(s.ByPriority[t.priority]) })
	}
	line("attempts at the upstream", func(s Side) string { return fmt.Sprint(s.Attempts) })
	line("attempts per call", func(s Side) string {
		if s.Calls == 0 {
			return "none"
		}
		return fmt.Sprintf("%.2f", float64(s.Attempts)/float64(s.Calls))
	})
	for i, name := range []string{"recovered after the hang", "recovered after slowness"} {
		line(name, func(s Side) string {
			if i >= len(s.Recovery) || s.Recovery[i] < 0 {
				return "never"
			}
			return "≤ " + (s.Recovery[i] + time.Second).String()
		})
	}
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
