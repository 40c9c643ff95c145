package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Links that are slow, cut, reset or half-open, endpoints that die or hang, and reloads, all at random: every call is answered or
// refused with a reason, no POST is done twice, and afterwards the process holds no more than before.
//
// CORTEX_CHAOS is for how many seconds (default 30), CORTEX_CHAOS_SEED what is drawn (default: at random, and printed).
func TestChaos(t *testing.T) {
	seconds := environment(t, "CORTEX_CHAOS", 30)
	seed := uint64(environment(t, "CORTEX_CHAOS_SEED", int(rand.Uint32())))
	t.Logf("CORTEX_CHAOS=%d CORTEX_CHAOS_SEED=%d", seconds, seed)
	random := rand.New(rand.NewPCG(seed, 0))

	l := newLedger()
	var ends []*endpoint
	var links []*link
	var urls []string
	for i := range 4 {
		e := newEndpoint(t, l)
		k := newLink(t, fmt.Sprintf("endpoint %d", i), e.addr)
		ends, links, urls = append(ends, e), append(links, k), append(urls, "http://"+k.addr)
	}
	// The server's bounds are short, so that what hangs is found before the test ends.
	const server = "{read_header_timeout: 3s, body_timeout: 3s, idle_timeout: 5s, write_timeout: 3s, h2c: true, connections_per_client: 0}"
	text := func(timeout string) string {
		return fmt.Sprintf(`
listen: 127.0.0.1:0
admin: {listen: '127.0.0.1:0'}
server: %s
targets:
  calls:
    endpoints: [%s]
    retry: {base_delay: 20ms}
    timeout: {min: %s, max: 2s, bootstrap: 1s}
    deadline: 8s
    limit: {min: 50}
    transport: {dial_timeout: 1s, idle_timeout: 3s}
  streams:
    endpoints: [%[2]s]
    timeout: {min: 1s, max: 5s, bootstrap: 2s}
    deadline: 15s
    limit: {min: 50}
    transport: {dial_timeout: 1s, idle_timeout: 3s}
routes:
  - {path: /, target: calls}
  - {path: /events, target: streams}
  - {path: /upgrade, target: streams}
  - {path: /upload, target: streams}
  - {path: /download, target: streams}
`, server, strings.Join(urls, ", "), timeout)
	}
	g := serve(t, text("200ms"), collects)
	front := newLink(t, "client", g.addr)

	calm := func(what string, d time.Duration) (good, all int) {
		c := newCallers(g.addr, front.addr)
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		c.run(ctx, 100)
		c.close()
		good, all = c.good("")
		t.Logf("%s: %d of %d calls are good", what, good, all)
		for _, w := range c.wrong {
			t.Errorf("%s: %s", what, w)
		}
		return good, all
	}
	if good, all := calm("before", 2*time.Second); good < all*9/10 {
		t.Fatal("it does not work without chaos either")
	}
	before, _ := g.settles(15*time.Second, func(f footprint) bool { return f.sockets <= 4 })
	t.Logf("before: %v", before)

	c := newCallers(g.addr, front.addr)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	m := &mischief{t: t, random: random, ends: ends, links: append(links, front, front), gateway: g, text: text, done: map[string]int{}}
	ended := make(chan struct{})
	go func() { defer close(ended); m.run(ctx) }()
	p := g.watchPeak()
	c.run(ctx, 300)
	<-ended
	m.heal()
	p.stop()
	c.close()
	t.Logf("what was done: %v", m.done)
	t.Logf("what became of %d calls:\n%v", c.serial.Load(), c)

	for _, w := range c.wrong {
		t.Error(w)
	}
	m.never(l, c)
	for where, least := range map[string]float64{"straight": 0.3, "over the link": 0.1} {
		if good, all := c.good(where); float64(good) < least*float64(all) {
			t.Errorf("%s, only %d of %d calls were good: nothing is shown by that", where, good, all)
		}
	}
	series := g.series()
	aborted := series[`cortex_guard_broken_answers_total{target="calls"}`] + series[`cortex_guard_broken_answers_total{target="streams"}`]
	t.Logf("answers that broke off on the straight link: %d; that the gateway knows of, on both: %v", c.broken, aborted)

	settled, ok := g.settles(30*time.Second, func(f footprint) bool { return f.fds <= before.fds+10 && f.rss <= before.rss+48<<20 })
	t.Logf("after: %v; peak RSS %.1f MiB", settled, mib(p.most))
	if !ok {
		t.Errorf("descriptors + 10, RSS + 48 MiB: before %v, after %v", before, settled)
	}
	for try := 0; ; try++ { // circuits, ejections and limits need a moment
		good, all := calm("afterwards", 2*time.Second)
		if good >= all*95/100 {
			break
		}
		if try == 10 {
			t.Errorf("it does not recover")
			break
		}
	}
	quiesces(t, g)
	n, by := g.goroutines()
	ref := serve(t, text("200ms"), collects)
	r := newCallers(ref.addr, ref.addr)
	fresh, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	r.run(fresh, 100)
	r.close()
	quiesces(t, ref)
	if m, freshBy := ref.goroutines(); n > m+10 {
		t.Errorf("%d goroutines, in a fresh process %d:\n%v\n%v", n, m, by, freshBy)
	} else {
		t.Logf("%d goroutines, in a fresh process %d", n, m)
	}
}

func environment(t *testing.T, key string, standard int) int {
	t.Helper()
	s := os.Getenv(key)
	if s == "" {
		return standard
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q: want a whole number", key, s)
	}
	return n
}

// mischief does one thing after the other, some of them at a time, and undoes them.
type mischief struct {
	t       *testing.T
	random  *rand.Rand
	ends    []*endpoint
	links   []*link
	gateway *child
	text    func(timeout string) string

	reloads int // done
	undo    []due
	done    map[string]int
}

type due struct {
	at   time.Time
	undo func()
}

func (m *mischief) run(ctx context.Context) {
	for ctx.Err() == nil {
		if len(m.undo) < 4 {
			what, undo := m.one()
			m.done[what]++
			m.undo = append(m.undo, due{time.Now().Add(m.between(200*time.Millisecond, 3*time.Second)), undo})
		}
		select {
		case <-ctx.Done():
		case <-time.After(m.between(50*time.Millisecond, 800*time.Millisecond)):
		}
		rest := m.undo[:0]
		for _, d := range m.undo {
			if time.Now().After(d.at) {
				d.undo()
			} else {
				rest = append(rest, d)
			}
		}
		m.undo = rest
	}
}

func (m *mischief) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(m.random.Int64N(int64(hi-lo)))
}

func (m *mischief) one() (what string, undo func()) {
	e := m.ends[m.random.IntN(len(m.ends))]
	switch m.random.IntN(10) {
	case 0:
		e.kill()
		return "endpoint killed", func() { e.revive(m.t) }
	case 1:
		e.pause()
		return "endpoint paused", e.resume
	case 2:
		return "link cut", m.links[m.random.IntN(len(m.links))].cut()
	case 3:
		m.reload()
		return "reload", func() {}
	}
	if what, undo = m.links[m.random.IntN(len(m.links))].poison(m.random); what == "" {
		return "nothing", func() {}
	}
	return what, undo
}

// reload changes the file and sends SIGHUP.
func (m *mischief) reload() {
	m.reloads++
	text := m.text(fmt.Sprintf("%dms", 200+m.reloads%5))
	if m.random.IntN(4) == 0 {
		text = "targets: 5\n"
	}
	if err := m.gateway.reload(text); err != nil {
		m.t.Errorf("reload: %v", err)
	}
}

// heal undoes everything.
func (m *mischief) heal() {
	for _, d := range m.undo {
		d.undo()
	}
	for _, e := range m.ends {
		e.resume()
	}
	for _, k := range m.links {
		k.heal()
		if k.replaced > 0 {
			m.t.Logf("%s: toxiproxy locked itself up %d times", k.name, k.replaced)
		}
		k.replaced = 0
	}
	for _, e := range m.ends { // what is left of those connections
		e.kill()
		e.revive(m.t)
	}
	if m.reloads > 0 {
		if err := m.gateway.reload(m.text("200ms")); err != nil {
			m.t.Errorf("the last reload: %v", err)
		}
	}
}

// never checks what must not happen to a POST, whatever else does.
func (m *mischief) never(l *ledger, c *callers) {
	m.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	twice, lost, retried := 0, 0, 0
	for id, status := range c.posts {
		if l.begun[id] > 1 {
			twice++
			m.t.Errorf("%s, a POST without a key, reached the upstreams %d times, %d of them whole; its client got %d", id, l.begun[id], l.whole[id], status)
		}
		if status == 200 && l.whole[id] != 1 {
			lost++
			m.t.Errorf("%s, a POST that got 200, reached the upstreams %d times", id, l.whole[id])
		}
	}
	for id, status := range c.keyed {
		if l.begun[id] > 1 {
			retried++
		}
		if status == 200 && l.whole[id] == 0 {
			lost++
			m.t.Errorf("%s, a POST with a key that got 200, never reached the upstreams", id)
		}
	}
	for _, s := range l.strays {
		m.t.Errorf("another body at the upstream: %s", s)
	}
	m.t.Logf("%d POSTs without a key: %d reached the upstreams twice; %d with one: %d were tried again; %d answers out of thin air",
		len(c.posts), twice, len(c.keyed), retried, lost)
}
