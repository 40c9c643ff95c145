package balance

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Outcome is what an attempt said of a member. The values are those of the outcomes of package cortex.
type Outcome uint8

const (
	Neutral   Outcome = iota // says nothing
	Success                  // a good answer
	Failed                   // an error that came back by itself
	TimedOut                 // no answer in time
	Throttled                // a healthy member that asks for less
)

// A Member is one address of an endpoint, or the endpoint by its host name. It stays the same as long as the address does, and
// works to the end of its attempts when it is removed. It is safe for concurrent use.
type Member struct {
	p        *Pool
	endpoint int
	url      *url.URL
	addr     netip.Addr // zero where the URL has a host name
	weight   float64    // guarded by p.mu
	*load

	// Guarded by p.mu.
	removed    bool // at removedAt
	removedAt  time.Duration
	slow       bool // since slowFrom
	slowFrom   time.Duration
	ejected    bool // until
	until      time.Duration
	lasted     time.Duration // the last ejection
	ejections  int           // one after the other, as far as they count still
	total      uint64        // ejections ever
	returned   bool          // from an ejection, at back
	back       time.Duration
	checkedOut bool
	checks     int                // in a row that speak against the state
	stopCheck  context.CancelFunc // nil: not checked
	now, then  mark               // at the start of this round and the one before
	// Of all others in the load: when the failures in a row began, and at two times before now.
	row, older, newer mark
	rowAt             time.Duration
}

// load is what attempts write. A member that comes of one of another pool shares it with that one, whose attempts go on.
type load struct {
	_ [64]byte // it has lines of its own

	inFlight  atomic.Int64
	good      atomic.Uint64
	streak    atomic.Int64 // failures in a row
	failed    atomic.Uint64
	timedOut  atomic.Uint64
	throttled atomic.Uint64
	neutral   atomic.Uint64
	blamed    atomic.Bool

	_ [64]byte
}

func newMember(p *Pool, endpoint int, u *url.URL, addr netip.Addr, weight float64) *Member {
	m := &Member{p: p, endpoint: endpoint, url: u, addr: addr, weight: weight, load: new(load)}
	if addr.IsValid() {
		c := *u
		c.Host = hostOf(addr, u.Port())
		m.url = &c
	}
	return m
}

// hostOf is an address as the host of a URL.
func hostOf(addr netip.Addr, port string) string {
	switch {
	case port != "":
		return net.JoinHostPort(addr.String(), port)
	case addr.Is6():
		return "[" + addr.String() + "]"
	}
	return addr.String()
}

// isName reports whether a host is a name to be looked up. The names of this machine are not: which of its addresses somebody
// listens at is found by dialing, and they do not change.
func isName(host string) bool {
	_, err := netip.ParseAddr(host)
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return err != nil && host != "localhost" && !strings.HasSuffix(host, ".localhost")
}

// URL is where to send to: scheme, address or host name with the port, base path. It must not be changed.
func (m *Member) URL() *url.URL { return m.url }

// Endpoint is the URL that is configured. Its host is what the Host header and TLS's server name say. It must not be changed.
func (m *Member) Endpoint() *url.URL { return m.p.cfg.Endpoints[m.endpoint].URL }

// Addr is the member's address, if it was looked up; else it is invalid.
func (m *Member) Addr() netip.Addr { return m.addr }

// Begin says that an attempt goes to the member. Each Begin needs one End, however the attempt ends.
func (m *Member) Begin() { m.inFlight.Add(1) }

// End says how an attempt ended, and how long it took from Begin on. A failure may eject the member. What goes on for long after a
// good answer (an upgrade, a stream) should End when the answer is there: until then it is no evidence of the member's health, and
// makes it look busy.
func (m *Member) End(o Outcome, latency time.Duration) {
	// It is counted before it is out of flight: totals of removed members are taken when nothing is in flight.
	switch o {
	case Success:
		m.good.Add(1)
		if m.streak.Load() != 0 {
			m.streak.Store(0)
			m.blamed.Store(false)
		}
	case Failed:
		m.failed.Add(1)
	case TimedOut:
		m.timedOut.Add(1)
	case Throttled:
		m.throttled.Add(1)
	default:
		m.neutral.Add(1)
	}
	m.inFlight.Add(-1)
	if o == Failed || o == TimedOut {
		m.p.failed(m, latency)
	}
}

// out reports whether the member gets load only where all are out.
func (m *Member) out() bool { return m.ejected || m.checkedOut }

// comeBack begins the slow start.
func (m *Member) comeBack(now time.Duration) {
	m.slow, m.slowFrom = m.p.cfg.SlowStart > 0, now
}
