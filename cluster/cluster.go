package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
)

// Defaults of a [Config].
const (
	DefaultPrefix   = "cortex"
	DefaultInterval = 250 * time.Millisecond
	DefaultTimeout  = 50 * time.Millisecond
	DefaultWindow   = time.Minute
)

// Sharing is how outcomes are kept in Redis.
type Sharing string

const (
	Counts Sharing = "counts" // added up in slots of an interval: the same cost whatever the load
	Exact  Sharing = "exact"  // one member a call in sorted sets, as the article has it
)

const (
	patience  = 4 // intervals without an exchange, after which a guard is alone; the engine's own
	leaseTerm = 6 // intervals that the right to probe is kept in the store after it was given or renewed
	leaseSafe = 3 // of them in which a guard starts no probe on it any more: those that are under way are told of meanwhile
	mostWait  = 2 * time.Second
	// connectTimeout is how long an exchange may take that has to make a connection first; no other one waits for it.
	connectTimeout = 2 * time.Second
	idleAfter      = time.Minute // without anything to report, after which a target is exchanged in every eighth interval only
	idleEvery      = 8
	askedLong      = time.Minute // where hardly anybody is asked for anything, who was asked last within this may probe
	leastCycle     = 0.25        // of an interval between two exchanges
)

// A Config says where a fleet meets.
type Config struct {
	// URL of Redis 7: redis:// and rediss:// for one server, redis+cluster:// and rediss+cluster:// for a cluster, redis+sentinel:// for a
	// master that sentinels know; see [Connect].
	URL string
	// TLS has the configuration of a new connection over TLS, to a server or a sentinel; it is asked for each, so that certificates may change,
	// and must be safe for concurrent use: the method Config of a tlsfile.Client is. Where ServerName is empty it is the host that is connected
	// to. What it returns is not changed. nil: the system's authorities, TLS 1.2 or newer. Only with a URL rediss….
	TLS func() *tls.Config
	// Client is used instead of URL, and not closed. It must not repeat commands by itself (MaxRetries −1): a repeated exchange is known as
	// such, but what it was granted is lost. It should heed contexts (ContextTimeoutEnabled).
	Client redis.UniversalClient
	// Prefix of all keys; "" is "cortex". Fleets that have nothing to do with each other need different ones. Letters, digits and ._:- only.
	Prefix string
	// Mode is [Counts] or, for small loads and comparison, [Exact]; it must be the same for all instances.
	Mode Sharing
	// Window of mode Exact, from a second to an hour; zero is a minute, the article's.
	Window time.Duration
	// Interval between two exchanges, from 10 ms to a minute, in whole milliseconds; zero is 250 ms. It must be the same for all instances.
	Interval time.Duration
	// Timeout of one round trip, up to 10 s; zero is 50 ms. No call waits for it.
	Timeout time.Duration
	// Logger hears when guards join their fleet and when they are alone: one line for all that change, four at once and then one in 10 s at
	// most, the newest state always. nil is silent.
	Logger *slog.Logger
	// OnEvent is told of each change of each target, on the goroutine of the exchanges, without a lock held. It should return soon,
	// and not call Close, which waits for it.
	OnEvent func(Event)
	// Now is a monotonic clock; nil is the process's.
	Now func() time.Duration
	// Rand is used for the instance's name, its moment in the interval and the back-off. nil is the process's.
	Rand rand.Source
}

func (c *Config) normalize() error {
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if c.Mode == "" {
		c.Mode = Counts
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	switch {
	case len(c.Prefix) > 64 || !plain(c.Prefix):
		return &ConfigError{"Prefix", strconv.Quote(c.Prefix), "letters, digits and ._:- only, at most 64"}
	case c.Interval < 10*time.Millisecond || c.Interval > time.Minute || c.Interval%time.Millisecond != 0:
		return &ConfigError{"Interval", c.Interval, "10ms to 1m, in whole milliseconds"}
	case c.Timeout < time.Millisecond || c.Timeout > 10*time.Second:
		return &ConfigError{"Timeout", c.Timeout, "1ms to 10s"}
	case c.Mode != Counts && c.Mode != Exact:
		return &ConfigError{"Mode", strconv.Quote(string(c.Mode)), "counts or exact"}
	case c.Window < time.Second || c.Window > time.Hour:
		return &ConfigError{"Window", c.Window, "1s to 1h"}
	case (c.URL == "") == (c.Client == nil):
		return &ConfigError{"URL", Redacted(c.URL), "either URL or Client"}
	case c.TLS != nil && c.Client != nil:
		return &ConfigError{"TLS", "with Client", "it with URL only: a client has its own"}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		start := time.Now()
		c.Now = func() time.Duration { return time.Since(start) }
	}
	if c.Rand == nil {
		c.Rand = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	return nil
}

func plain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}

// A Cluster is one instance's part in its fleets. All methods are safe for concurrent use.
type Cluster struct {
	cfg      Config
	client   redis.UniversalClient
	instance string
	cancel   context.CancelFunc
	done     chan struct{}
	changed  chan struct{} // there is a first guard
	urgent   chan struct{} // a guard has something to tell that cannot wait

	work sync.WaitGroup
	late chan reply // of what is made behind

	mu      sync.Mutex
	closed  bool
	members []*member
	guarded uint64 // engines, ever
	syncs   uint64
	reloads uint64

	// The goroutine's own.
	rand   *rand.Rand
	phase  time.Duration // of the exchanges in an interval of the server's
	offset time.Duration // of the server's clock to ours
	known  bool          // offset is
	last   time.Duration // exchange
	behind bool          // one is being made behind
	news   news
}

// New begins to share. The error is a [*ConfigError]: that Redis cannot be reached is none, see [Cluster.Status]. Close it when done.
func New(cfg Config) (*Cluster, error) {
	if err := cfg.normalize(); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, client: cfg.Client, done: make(chan struct{}), changed: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
		late: make(chan reply, 1), rand: rand.New(cfg.Rand)}
	if c.client == nil {
		var err error
		if c.client, err = Connect(cfg.URL, cfg.Timeout, cfg.TLS); err != nil {
			return nil, err
		}
	}
	c.instance = strconv.FormatUint(c.rand.Uint64(), 36)
	// All at the same moment would be a burst for Redis; at the ends of an interval what is late falls into the next.
	c.phase = time.Duration((0.1 + 0.7*c.rand.Float64()) * float64(cfg.Interval))
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go c.run(ctx)
	return c, nil
}

// ErrClosed is returned by [Cluster.Guard] after Close.
var ErrClosed = errors.New("the cluster is closed")

// Guard lets an engine share with those of the same name in other instances, until Leave or Close. The error is [ErrClosed], or that there is
// one of that name in this instance already. Engines of the article's profile report, and are told nothing.
func (c *Cluster) Guard(e *cortex.Engine) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	for _, m := range c.members {
		if m.name == e.Name() {
			return fmt.Errorf("target %q shares its pressure already: one engine a target and instance", m.name)
		}
	}
	now := c.cfg.Now()
	m := &member{engine: e, name: e.Name(), keys: keysOf(c.cfg.Prefix, e.Name()), mode: Alone, since: now, heard: now, asked: now - askedLong}
	m.seq = c.guarded << 32 // an engine that comes in the place of another one does not repeat the numbers of its exchanges
	c.guarded++
	m.join(now, c.cfg.Interval, c.wake)
	c.members = append(c.members, m)
	select {
	case c.changed <- struct{}{}:
	default:
	}
	return nil
}

// Leave ends what Guard began: the engine is on its own again. What it reported last is still counted; the right to probe, if it has it,
// goes to others when its time is over. It reports whether the engine was there.
func (c *Cluster) Leave(e *cortex.Engine) bool {
	c.mu.Lock()
	i := slices.IndexFunc(c.members, func(m *member) bool { return m.engine == e })
	if i < 0 {
		c.mu.Unlock()
		return false
	}
	m := c.members[i]
	c.members = slices.Delete(slices.Clone(c.members), i, i+1)
	c.mu.Unlock()
	m.leave()
	return true
}

// Close ends the sharing; all engines are on their own again. It gives back the right to probe, waiting for Redis no longer than Timeout.
func (c *Cluster) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.done
		return nil
	}
	c.closed = true
	members := c.members
	c.mu.Unlock()
	c.cancel()
	<-c.done
	c.work.Wait()
	c.goodbye(members)
	for _, m := range members {
		m.leave()
	}
	if c.cfg.Client == nil {
		return c.client.Close()
	}
	return nil
}

// Status tells how it fares. It costs a lock and an allocation, and asks nobody.
func (c *Cluster) Status() Status {
	now := c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Instance: c.instance, Mode: Fleet, Syncs: c.syncs, Reloads: c.reloads, Targets: make([]TargetStatus, 0, len(c.members))}
	for _, m := range c.members {
		t := m.status
		t.Target, t.Mode, t.Since = m.name, m.mode, now-m.since
		if m.viewed {
			t.ViewAge = now - m.covered
		}
		t.Prober = now < m.until
		if m.mode == Alone {
			s.Mode, t.Seen = Alone, 0
		}
		s.Targets = append(s.Targets, t)
	}
	if len(c.members) == 0 {
		s.Mode = Alone
	}
	return s
}

func (c *Cluster) run(ctx context.Context) {
	defer close(c.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	credit, early := earlyMost, false
	for {
		urgent := c.urgent
		if credit < 1 {
			urgent = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			credit, early = min(credit+1, earlyMost), false
		case r := <-c.late:
			c.behind = false
			for _, m := range r.members {
				m.busyBehind = false
			}
			if ctx.Err() == nil {
				c.settle(r)
				c.after(r.members)
			}
			continue
		case <-urgent:
			// Each guard that sees failures wakes its instance again and again: some exchanges between two intervals when they begin, and
			// then one an interval.
			credit, early = credit-1, true
			if d := c.last + c.cfg.Interval/earlyPart - c.cfg.Now(); d > 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(d):
				}
			}
		}
		c.mu.Lock()
		members := slices.Clone(c.members)
		c.mu.Unlock()
		if len(members) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-c.changed:
			}
			timer.Reset(0)
			continue
		}
		c.last = c.cfg.Now()
		select { // what it was is told now
		case <-c.urgent:
		default:
		}
		c.exchange(ctx, members)
		timer.Reset(c.wait(early))
	}
}

// wake asks for an exchange before the next interval.
func (c *Cluster) wake() {
	select {
	case c.urgent <- struct{}{}:
	default:
	}
}

// Exchanges between two intervals: as many in a row at most, so close together at the closest.
const (
	earlyMost = 10
	earlyPart = 20
)

// wait is how long until the next exchange: each instance has its moment in each interval of the server's clock, so that what it counts
// falls into every slot once.
func (c *Cluster) wait(early bool) time.Duration {
	d := c.cfg.Interval
	if !c.known {
		return d
	}
	server := c.cfg.Now() + c.offset
	in := (server - c.phase) % d
	if in < 0 {
		in += d
	}
	next := d - in
	if !early && float64(next) < leastCycle*float64(d) { // a little too soon, it has been already
		next += d
	}
	return next
}

// exchange makes one round trip for all members that are due.
func (c *Cluster) exchange(ctx context.Context, members []*member) {
	start := c.cfg.Now()
	var due, slow []*member
	for _, m := range members {
		report := m.engine.TakeReport()
		patient := !m.ever || m.tried > 1
		if start < m.retryAt || m.busyBehind || patient && c.behind {
			// What nobody hears of is not told later as if it were new.
			c.locked(func() { m.status.Exchange.Skipped++ })
			continue
		}
		if m.idle(&report, start) {
			continue
		}
		m.prepare(c, &report, start)
		if patient {
			slow = append(slow, m)
		} else {
			due = append(due, m)
		}
	}
	if len(slow) > 0 {
		c.behind = true
		for _, m := range slow {
			m.busyBehind = true
		}
		c.work.Go(func() { c.late <- c.talk(ctx, slow, max(c.cfg.Timeout, connectTimeout)) })
	}
	if len(due) > 0 {
		c.settle(c.talk(ctx, due, c.cfg.Timeout))
	}
	c.after(members)
}

// A reply is what came back of a round trip.
type reply struct {
	members        []*member
	sent, received time.Duration
	again          bool // a script had to be sent
}

func (c *Cluster) locked(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// talk sends what is prepared. The first exchanges, and those after failures, are made behind the others and may take longer: to find a master, to shake
// hands and to log in takes more than an exchange.
func (c *Cluster) talk(ctx context.Context, members []*member, timeout time.Duration) reply {
	var calls []*call
	for _, m := range members {
		calls = append(calls, m.calls...)
	}
	r := reply{members: members, sent: c.cfg.Now()}
	c.send(ctx, calls, timeout, false)
	r.received = c.cfg.Now()
	if calls = slices.DeleteFunc(calls, func(k *call) bool { return !k.unknown() }); len(calls) > 0 && ctx.Err() == nil {
		// Those were not run, whatever else is in doubt.
		c.locked(func() { c.reloads++ })
		c.send(ctx, calls, timeout, true)
		r.again = true
	}
	return r
}

// errLate is why an answer is of no use.
var errLate = errors.New("the answer of Redis came later than Timeout allows")

// settle takes in what came back.
func (c *Cluster) settle(r reply) {
	draw := 0.5 + 0.5*c.rand.Float64()
	now := c.cfg.Now()
	for _, m := range r.members {
		a, err := m.answer()
		if err == nil && r.received-r.sent > c.cfg.Timeout { // there is a connection now: the next is in time, or this is what it takes
			m.tried = 0
			err = errLate
		}
		if err != nil {
			m.failed(c, err, now, draw)
			continue
		}
		if !r.again {
			c.offset, c.known = a.now-(r.sent+r.received)/2, true
		}
		m.ever = true
		m.succeeded(c, &a, r.sent, now)
	}
}

// send makes one round trip. Where a script is not known it is sent whole.
func (c *Cluster) send(ctx context.Context, calls []*call, timeout time.Duration, whole bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pipe := c.client.Pipeline()
	for _, k := range calls {
		if k.again = whole; whole {
			k.cmd = pipe.Eval(ctx, k.source, k.keys, k.args...)
		} else {
			k.cmd = pipe.EvalSha(ctx, k.hash, k.keys, k.args...)
		}
	}
	_, err := pipe.Exec(ctx)
	c.locked(func() { c.syncs++ })
	if err != nil {
		for _, k := range calls { // a command that was never sent has no error of its own
			if k.cmd.Err() == nil && k.cmd.Val() == nil {
				k.cmd.SetErr(err)
			}
		}
	}
}

// after follows changes of mode, and tells of them.
func (c *Cluster) after(members []*member) {
	now := c.cfg.Now()
	for _, m := range members {
		was, mode := m.mode, Fleet
		switch {
		case m.err != nil && now-m.heard > patience*c.cfg.Interval:
			mode = Alone
		case m.err != nil || !m.viewed: // not known yet
			continue
		}
		if mode == was && (mode == Fleet || m.said) {
			continue
		}
		ev := Event{Target: m.name, Mode: mode, Err: m.err}
		c.locked(func() {
			m.mode, m.since, m.said = mode, now, true
			ev.Instances = m.status.Seen
		})
		if mode == Alone {
			ev.Instances = 0
		}
		c.news.add(ev)
		if c.cfg.OnEvent != nil {
			c.cfg.OnEvent(ev)
		}
	}
	if c.news.changes == 0 {
		return
	}
	alone, all := 0, 0
	c.locked(func() {
		all = len(c.members)
		for _, m := range c.members {
			if m.said && m.mode == Alone {
				alone++
			}
		}
	})
	c.news.tell(c.cfg.Logger, now, alone, all)
}

// goodbye gives back the right to probe.
func (c *Cluster) goodbye(members []*member) {
	var calls []*call
	for _, m := range members {
		if m.held {
			// What it says of the budget, while it is one of the fleet: saying nothing would be a budget that holds nothing, for all.
			b := m.engine.TakeBudget()
			b.Want = 0
			// Then the engine, so that it sends no more probes as one of the fleet.
			m.leave()
			r := m.request(c, orderLeave)
			r.epoch, r.budget = m.status.Epoch, b
			calls = append(calls, &call{script: syncScript, keys: m.keys, args: r.args()})
		}
	}
	if len(calls) > 0 {
		c.send(context.Background(), calls, c.cfg.Timeout, false)
	}
}
