// Package balance knows the endpoints of one target: which of them gets the next attempt, and which are out of the load.
//
// A [Pool] picks the less loaded of two random members. A member is one address of an endpoint, or its host name as long as no
// address of it is known. A member that fails while the others are well is ejected for a time, and comes back slowly. If all
// fail alike, that is the target's illness, not theirs: nobody is ejected. If all are out, all are used.
//
// The package knows nothing of HTTP beyond URLs. Whoever sends the attempts says how they ended ([Member.End]), and makes the
// checks ([Config.Probe]).
package balance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// MaxAddresses is how many addresses of an endpoint get load: of more, the lowest.
const MaxAddresses = 64

// Config describes a [Pool]. The functions must be safe for concurrent use; none is called with a lock held.
type Config struct {
	// Endpoints are where the target is: at least one.
	Endpoints []Endpoint

	Eject Eject
	// SlowStart is the time in which the share of a member that has come back, or is new, rises from a tenth to its whole;
	// 0 = at once. At process start, and at the first lookup, nobody is slow.
	SlowStart time.Duration
	// Check is how members are asked how they are, between Start and Close; nil = not. It needs Probe.
	Check *Check
	// Resolve is the time between lookups of an endpoint's host name, between Start and Close, give or take a tenth;
	// 0 = no lookups: host names are members. Addresses and localhost are not looked up.
	Resolve time.Duration

	// Probe asks a member how it is; nil is a good answer. It must return when its context ends, which is after Check.Timeout.
	// What it returns later than that is a bad answer, and so is a panic.
	Probe func(ctx context.Context, m *Member) error
	// Lookup finds the addresses of a host; nil: that of [net.DefaultResolver]. It must return when its context ends. Where an
	// answer has both IPv4 and IPv6, only the family of its first address gets load: resolvers put first what can be
	// reached from here (RFC 6724), and an address that cannot would only fail. Otherwise the order says nothing.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// OnEvent is told what has changed; nil: nobody. It is called by whoever found the change, an End or Pick among them: it
	// should be short. It may call the pool, but not Close.
	OnEvent func(Event)

	// Now is a monotonic clock; nil: the process's. Background work waits by timers of package time.
	Now func() time.Duration
	// Rand is uniform in [0, 1); nil: [rand.Float64].
	Rand func() float64
}

// An Endpoint is one place where a target is.
type Endpoint struct {
	URL *url.URL // with a host, perhaps with a base path. It is not changed, and must not be
	// Weight is relative to the other endpoints' share of the load, from 1; 0 = 1. The addresses of an endpoint share it, so
	// that an endpoint with more of them does not get more.
	Weight int
}

// Eject takes members out of the load that fail where the others do not.
type Eject struct {
	Enabled  bool
	Failures int           // in a row; 0 = 5. More are asked for where the others fail too, or have few results
	MaxShare float64       // of the members that may be ejected at a time, above 0 to 1, but one of two or more may always; 0 = 0.5
	BaseTime time.Duration // for which the first ejection lasts; each further one as much longer; 0 = 5 s
	MaxTime  time.Duration // of an ejection; 0 = 5 min, or BaseTime if that is longer
}

// Check says how members are asked how they are.
type Check struct {
	Of        string        // what Probe asks for: what was found by asking for something else is not inherited
	Interval  time.Duration // between the start of checks of a member, give or take a tenth; 0 = 10 s
	Timeout   time.Duration // of a check; 0 = 2 s
	Healthy   int           // good checks in a row that put a member back; 0 = 2
	Unhealthy int           // bad checks in a row that take it out; 0 = 3
}

// A ConfigError says which field of a [Config] cannot be used, and what would do.
type ConfigError struct {
	Field string // such as "Eject.MaxShare"
	Value any
	Want  string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("balance: %s is %v: want %s", e.Field, e.Value, e.Want)
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Endpoints) == 0 {
		return c, &ConfigError{"Endpoints", "empty", "at least one"}
	}
	c.Endpoints = append([]Endpoint(nil), c.Endpoints...)
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if e.URL == nil || e.URL.Hostname() == "" {
			return c, &ConfigError{fmt.Sprintf("Endpoints[%d].URL", i), e.URL, "a URL with a host"}
		}
		if e.Weight == 0 {
			e.Weight = 1
		}
		if e.Weight < 0 {
			return c, &ConfigError{fmt.Sprintf("Endpoints[%d].Weight", i), e.Weight, "1 or more"}
		}
	}
	if c.SlowStart < 0 {
		return c, &ConfigError{"SlowStart", c.SlowStart, "0 or more"}
	}
	if c.Resolve < 0 {
		return c, &ConfigError{"Resolve", c.Resolve, "0 or more"}
	}
	e := &c.Eject
	if e.Failures == 0 {
		e.Failures = 5
	}
	if e.MaxShare == 0 {
		e.MaxShare = 0.5
	}
	if e.BaseTime == 0 {
		e.BaseTime = 5 * time.Second
	}
	if e.MaxTime == 0 {
		e.MaxTime = max(5*time.Minute, e.BaseTime)
	}
	switch {
	case e.Failures < 0:
		return c, &ConfigError{"Eject.Failures", e.Failures, "1 or more"}
	case !(e.MaxShare > 0 && e.MaxShare <= 1):
		return c, &ConfigError{"Eject.MaxShare", e.MaxShare, "above 0, up to 1"}
	case e.BaseTime < 0:
		return c, &ConfigError{"Eject.BaseTime", e.BaseTime, "more than 0"}
	case e.MaxTime < e.BaseTime:
		return c, &ConfigError{"Eject.MaxTime", e.MaxTime, "BaseTime or more"}
	}
	if c.Check != nil {
		k := *c.Check
		c.Check = &k
		if k.Interval == 0 {
			c.Check.Interval = 10 * time.Second
		}
		if k.Timeout == 0 {
			c.Check.Timeout = 2 * time.Second
		}
		if k.Healthy == 0 {
			c.Check.Healthy = 2
		}
		if k.Unhealthy == 0 {
			c.Check.Unhealthy = 3
		}
		switch {
		case c.Probe == nil:
			return c, &ConfigError{"Probe", "nil", "a function, or no Check"}
		case k.Interval < 0:
			return c, &ConfigError{"Check.Interval", k.Interval, "more than 0"}
		case k.Timeout < 0:
			return c, &ConfigError{"Check.Timeout", k.Timeout, "more than 0"}
		case k.Healthy < 0:
			return c, &ConfigError{"Check.Healthy", k.Healthy, "1 or more"}
		case k.Unhealthy < 0:
			return c, &ConfigError{"Check.Unhealthy", k.Unhealthy, "1 or more"}
		}
	}
	if c.Lookup == nil {
		c.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if c.Now == nil {
		c.Now = func() time.Duration { return time.Since(origin) }
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c, nil
}

// origin is that of the clock of all pools, so that one can inherit from another.
var origin = time.Now()

// A Pool is the members of one target. It is safe for concurrent use.
type Pool struct {
	cfg Config
	set atomic.Pointer[set]

	mu      sync.Mutex // for what follows and the guarded part of members; not held while user code runs
	groups  [][]*Member
	members []*Member  // of all groups in order: by endpoint, then by address
	leaving []*Member  // removed, perhaps with attempts in flight
	buried  []Counters // of members before those, by endpoint
	round   time.Duration
	fresh   bool // the round before this one was not much longer than a round
	events  []Event

	life    sync.Mutex // for Start and Close
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	closed  bool
}

// New returns a pool, in which every endpoint is one member for the time being. The error is a [*ConfigError].
func New(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Pool{cfg: cfg, buried: make([]Counters, len(cfg.Endpoints))}
	now := cfg.Now()
	p.round = now
	for i, e := range cfg.Endpoints {
		p.groups = append(p.groups, []*Member{newMember(p, i, e.URL, netip.Addr{}, float64(e.Weight))})
	}
	p.regroup()
	p.rebuild(now)
	return p, nil
}

// Start begins the checks and lookups that are configured; without any it does nothing. They end with the context or Close,
// whichever is first. Only the first call has an effect.
func (p *Pool) Start(ctx context.Context) {
	p.life.Lock()
	defer p.life.Unlock()
	if p.ctx != nil || p.closed {
		return
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	if p.cfg.Resolve > 0 {
		for i, e := range p.cfg.Endpoints {
			if isName(e.URL.Hostname()) {
				p.running.Go(func() { p.resolve(p.ctx, i) })
			}
		}
	}
	if p.cfg.Check != nil {
		p.mu.Lock()
		p.watch()
		p.mu.Unlock()
	}
}

// Close ends the checks and lookups, and returns when they have ended. The pool can be used as before, as the members were
// last known.
func (p *Pool) Close() {
	p.life.Lock()
	p.closed = true
	if p.cancel != nil {
		p.cancel()
	}
	p.life.Unlock()
	p.running.Wait()
}

// unlock gives up the lock and tells what has happened under it.
func (p *Pool) unlock() {
	events := p.events
	p.events = nil
	p.mu.Unlock()
	for _, e := range events {
		p.cfg.OnEvent(e)
	}
}

func (p *Pool) tell(e Event) {
	if p.cfg.OnEvent != nil {
		p.events = append(p.events, e)
	}
}
