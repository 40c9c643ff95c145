package balance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bubble makes a pool within a synctest bubble, and a list of its events.
func bubble(t *testing.T, cfg Config) (*Pool, func() []string) {
	var mu sync.Mutex
	var events []string
	cfg.OnEvent = func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Member != nil {
			events = append(events, fmt.Sprintf("%s %s", e.Kind, e.Member.URL().Host))
		} else {
			events = append(events, fmt.Sprintf("%s %s: %v", e.Kind, e.Endpoint.Host, e.Err))
		}
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p, func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		list := events
		events = nil
		return list
	}
}

func urls(list ...string) []Endpoint {
	var out []Endpoint
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil {
			panic(err)
		}
		out = append(out, Endpoint{URL: u})
	}
	return out
}

func members(p *Pool) string {
	var list []string
	for _, s := range p.Snapshot() {
		list = append(list, s.URL.Host)
	}
	return strings.Join(list, " ")
}

func states(p *Pool) string {
	var list []string
	for _, s := range p.Snapshot() {
		list = append(list, s.State.String())
	}
	return strings.Join(list, ", ")
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestChecksTakeOutAndPutBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ill sync.Map
		var probes atomic.Int64
		p, events := bubble(t, Config{Endpoints: urls("http://a", "http://b"), SlowStart: 10 * time.Second, Check: &Check{},
			Probe: func(ctx context.Context, m *Member) error {
				probes.Add(1)
				if _, ok := ill.Load(m.URL().Host); ok {
					return errors.New("ill")
				}
				return nil
			}})
		time.Sleep(time.Minute)
		want(t, "probes before Start", probes.Load(), 0)
		p.Start(t.Context())
		p.Start(t.Context())
		time.Sleep(100 * time.Second)
		if n := probes.Load(); n < 17 || n > 23 {
			t.Errorf("%d checks of two members in 100 s", n)
		}
		ill.Store("a", true)
		time.Sleep(35 * time.Second)
		want(t, "states", states(p), "checked out, healthy")
		want(t, "events", events(), "[checked out a]")
		for range 100 {
			if p.Pick(nil).URL().Host != "b" {
				t.Fatal("a member that is checked out is picked")
			}
		}
		ill.Store("b", true)
		time.Sleep(35 * time.Second)
		want(t, "states", states(p), "checked out, checked out")
		seen := map[string]int{}
		for range 1000 {
			seen[p.Pick(nil).URL().Host]++
		}
		if seen["a"] < 400 || seen["b"] < 400 {
			t.Errorf("all are out: picked %v", seen)
		}
		events()
		ill.Clear()
		time.Sleep(25 * time.Second)
		list := events()
		slices.Sort(list)
		want(t, "events", list, "[checked in a checked in b]")
	})
}

func TestAHangingCheckIsABadOneAndTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		p, events := bubble(t, Config{Endpoints: urls("http://a", "http://b"),
			Check: &Check{Interval: time.Second, Timeout: 3 * time.Second},
			Probe: func(ctx context.Context, m *Member) error {
				if m.URL().Host == "b" {
					panic("b")
				}
				most.Store(max(most.Load(), now.Add(1)))
				defer now.Add(-1)
				<-ctx.Done()
				return nil // too late
			}})
		p.Start(t.Context())
		time.Sleep(20 * time.Second)
		want(t, "states", states(p), "checked out, checked out")
		want(t, "checks at a time", most.Load(), 1)
		list := events()
		slices.Sort(list)
		want(t, "events", list, "[checked out a checked out b]")
		p.Close() // in the midst of a check
		want(t, "checks after Close", now.Load(), 0)
	})
}

// names is a resolver whose answers change.
type names struct {
	mu   sync.Mutex
	addr map[string][]netip.Addr
	err  error
	n    atomic.Int64
}

func (n *names) set(host string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.addr == nil {
		n.addr = map[string][]netip.Addr{}
	}
	n.addr[host] = nil
	for _, a := range addrs {
		n.addr[host] = append(n.addr[host], netip.MustParseAddr(a))
	}
}

func (n *names) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.n.Add(1)
	return n.addr[host], n.err
}

func TestAddressesBecomeMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &names{}
		dns.set("x.test", "10.0.0.2", "10.0.0.1", "10.0.0.2")
		p, events := bubble(t, Config{Endpoints: []Endpoint{
			{URL: &url.URL{Scheme: "https", Host: "x.test:8443", Path: "/base"}, Weight: 6},
			{URL: &url.URL{Scheme: "http", Host: "10.9.9.9:80"}},
			{URL: &url.URL{Scheme: "http", Host: "[fe80::1%eth0]:80"}},
			{URL: &url.URL{Scheme: "http", Host: "localhost:80"}},
		}, Resolve: 30 * time.Second, SlowStart: 10 * time.Second, Lookup: dns.lookup})
		const others = " 10.9.9.9:80 [fe80::1%eth0]:80 localhost:80"
		want(t, "before", members(p), "x.test:8443"+others)
		name := p.members[0]
		name.Begin()
		p.Start(t.Context())
		want(t, "events", events(), "[added 10.0.0.1:8443 added 10.0.0.2:8443 removed x.test:8443]")
		want(t, "after", members(p), "10.0.0.1:8443 10.0.0.2:8443"+others)
		want(t, "lookups", dns.n.Load(), 1)
		name.End(Failed, time.Second) // of one that is gone
		want(t, "in flight", name.Status().InFlight, 0)
		want(t, "state", name.Status().State, StateRemoved)

		m := p.members[0]
		want(t, "URL", m.URL(), "https://10.0.0.1:8443/base")
		want(t, "endpoint", m.Endpoint(), "https://x.test:8443/base")
		s := p.Snapshot()
		want(t, "weight", s[0].Weight, 3)
		want(t, "share after the first lookup", s[0].Share, 1)

		m.Begin()
		m.End(Success, time.Millisecond)
		dns.set("x.test", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		time.Sleep(34 * time.Second)
		want(t, "events", events(), "[added 10.0.0.3:8443]")
		s = p.Snapshot()
		want(t, "what survivors have counted", s[0].Success, 1)
		want(t, "weight", s[0].Weight, 2)
		want(t, "share of a survivor", s[0].Share, 1)
		if s[2].Share >= 1 {
			t.Error("a new address has its whole share at once")
		}
		if m != p.members[0] {
			t.Error("a survivor is another")
		}

		dns.set("x.test", "10.0.0.3", "10.0.0.1", "10.0.0.2") // another order
		time.Sleep(34 * time.Second)
		want(t, "events", events(), "[]")
		dns.set("x.test")
		time.Sleep(34 * time.Second)
		want(t, "members after an empty answer", members(p), "10.0.0.1:8443 10.0.0.2:8443 10.0.0.3:8443"+others)
		events()
		dns.mu.Lock()
		dns.err = errors.New("no such host")
		dns.mu.Unlock()
		time.Sleep(34 * time.Second)
		want(t, "members after a failed one", members(p), "10.0.0.1:8443 10.0.0.2:8443 10.0.0.3:8443"+others)
		if list := events(); len(list) == 0 || list[0] != "lookup failed x.test:8443: no such host" {
			t.Errorf("%q", list)
		}
		dns.mu.Lock()
		dns.err = nil
		dns.mu.Unlock()
		dns.set("x.test", "2001:db8::1", "10.0.0.1")
		time.Sleep(34 * time.Second)
		want(t, "members of the first family", members(p), "[2001:db8::1]:8443"+others)
		p.Close()
		n := dns.n.Load()
		time.Sleep(time.Hour)
		want(t, "lookups after Close", dns.n.Load(), n)
	})
}

// A resolver that is down at the start is asked again soon, and not ever faster.
func TestAFailedLookupIsMadeAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dns := &names{err: errors.New("down")}
		p, _ := bubble(t, Config{Endpoints: urls("http://x.test"), Resolve: time.Hour, Lookup: dns.lookup})
		p.Start(t.Context())
		time.Sleep(100 * time.Second)
		if dns.n.Load() < 6 || dns.n.Load() > 8 {
			t.Errorf("%d lookups in 100 s", dns.n.Load())
		}
		want(t, "members", members(p), "x.test")
	})
}

func TestALookupThatPanicsOrHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		p, events := bubble(t, Config{Endpoints: urls("http://x.test"), Resolve: time.Minute,
			Lookup: func(ctx context.Context, _ string) ([]netip.Addr, error) {
				if n++; n == 1 {
					panic("x")
				}
				<-ctx.Done()
				return nil, ctx.Err()
			}})
		p.Start(t.Context())
		time.Sleep(15 * time.Second)
		want(t, "events", events(), "[lookup failed x.test: balance: Lookup panicked: x lookup failed x.test: context deadline exceeded]")
	})
}

func TestUsableAddresses(t *testing.T) {
	parse := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	for _, c := range []struct{ in, out []netip.Addr }{
		{nil, nil},
		{[]netip.Addr{{}}, nil},
		{parse("0.0.0.0", "::", "224.0.0.1", "ff02::1"), nil},
		{parse("10.0.0.2", "10.0.0.1", "10.0.0.2"), parse("10.0.0.1", "10.0.0.2")},
		{parse("::ffff:10.0.0.2", "10.0.0.2"), parse("10.0.0.2")},
		{parse("10.0.0.2", "2001:db8::1", "10.0.0.1"), parse("10.0.0.1", "10.0.0.2")},
		{parse("::", "2001:db8::2", "10.0.0.1", "2001:db8::1"), parse("2001:db8::1", "2001:db8::2")},
		{parse("fe80::1%b", "fe80::1%a"), parse("fe80::1%a", "fe80::1%b")},
	} {
		if got := usable(c.in); !slices.Equal(got, c.out) {
			t.Errorf("%v: %v, want %v", c.in, got, c.out)
		}
	}
	var many []netip.Addr
	for i := range 500 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, byte(i / 256), byte(i)}))
	}
	rand.Shuffle(len(many), func(i, j int) { many[i], many[j] = many[j], many[i] })
	got := usable(many)
	if len(got) != MaxAddresses || got[63] != netip.MustParseAddr("10.0.0.63") {
		t.Errorf("of 500: %d, up to %v", len(got), got[len(got)-1])
	}
}

func TestHostsOfAddresses(t *testing.T) {
	for _, c := range [][3]string{
		{"10.0.0.1", "", "http://10.0.0.1/"}, {"10.0.0.1", "80", "http://10.0.0.1:80/"},
		{"2001:db8::1", "", "http://[2001:db8::1]/"}, {"2001:db8::1", "80", "http://[2001:db8::1]:80/"},
		{"fe80::1%eth0", "80", "http://[fe80::1%25eth0]:80/"}, {"fe80::1%eth0", "", "http://[fe80::1%25eth0]/"},
	} {
		u := url.URL{Scheme: "http", Host: hostOf(netip.MustParseAddr(c[0]), c[1]), Path: "/"}
		if u.String() != c[2] {
			t.Errorf("%s, port %q: %s, want %s", c[0], c[1], u.String(), c[2])
		}
		if back, err := url.Parse(u.String()); err != nil || back.Hostname() != c[0] || back.Port() != c[1] {
			t.Errorf("%s: %v, %v", u.String(), back, err)
		}
	}
	for host, name := range map[string]bool{"x.test": true, "localhost": false, "LOCALHOST.": false, "a.localhost": false,
		"10.0.0.1": false, "::1": false, "fe80::1%eth0": false, "notlocalhost": true} {
		if isName(host) != name {
			t.Errorf("%s is looked up: %v", host, !name)
		}
	}
}

// Everything at once, for the race detector; in the end the numbers are exact and nothing is left.
func TestHammer(t *testing.T) {
	before := runtime.NumGoroutine()
	var clock atomic.Int64
	dns := func(context.Context, string) ([]netip.Addr, error) {
		var list []netip.Addr
		for range 1 + rand.IntN(8) {
			list = append(list, netip.AddrFrom4([4]byte{10, 0, 0, byte(rand.IntN(12))}))
		}
		if rand.IntN(10) == 0 {
			return nil, errors.New("no answer")
		}
		return list, nil
	}
	probe := func(context.Context, *Member) error {
		if rand.IntN(3) == 0 {
			return errors.New("ill")
		}
		return nil
	}
	var seen sync.Map
	p, err := New(Config{Endpoints: urls("http://x.test", "http://y.test", "http://10.1.1.1"), Resolve: time.Millisecond,
		Check: &Check{Interval: time.Millisecond, Timeout: time.Second, Healthy: 1, Unhealthy: 1}, Probe: probe, Lookup: dns,
		Eject: Eject{Enabled: true, BaseTime: 20 * time.Millisecond}, SlowStart: 20 * time.Millisecond,
		Now:     func() time.Duration { return time.Duration(clock.Add(int64(50 * time.Microsecond))) },
		OnEvent: func(e Event) { seen.Store(e.Kind, e.Member) }})
	if err != nil {
		t.Fatal(err)
	}
	p.Start(context.Background())
	var begun atomic.Int64
	var ms sync.Map
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			var tried *Member
			for range 4000 {
				m := p.Pick(tried)
				ms.Store(m, true)
				m.Begin()
				begun.Add(1)
				o := Success
				if m.addr.IsValid() && m.addr.As4()[3] == 1 || rnd.IntN(20) == 0 {
					o = Outcome(rnd.IntN(5))
				}
				if rnd.IntN(50) == 0 {
					p.Snapshot()
					runtime.Gosched()
				}
				m.End(o, time.Millisecond)
				p.Blames(m)
				tried = m
				if rnd.IntN(2) == 0 {
					tried = nil
				}
			}
		})
	}
	wg.Wait()
	p.Close()
	p.Close()
	p.Start(context.Background()) // too late: nothing
	total := uint64(0)
	ms.Range(func(m, _ any) bool {
		s := m.(*Member).Status()
		if s.InFlight != 0 {
			t.Errorf("%d in flight at %s", s.InFlight, s.URL)
		}
		total += s.Ended()
		return true
	})
	ended := uint64(0)
	for _, s := range p.Totals() {
		ended += s.Ended()
	}
	if ended != total {
		t.Errorf("the totals are %d of %d", ended, total)
	}
	if total != uint64(begun.Load()) {
		t.Errorf("%d attempts counted of %d", total, begun.Load())
	}
	for range 1000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// The members change under load: nobody fails for it, and those that are gone get nothing new.
func TestAddressesChangeUnderLoad(t *testing.T) {
	w := newWorld(t, 2, Config{Endpoints: hosts(1), Eject: Eject{Enabled: true}, SlowStart: 5 * time.Second, Resolve: time.Minute})
	addrs := func(list ...string) (out []netip.Addr) {
		for _, s := range list {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if m.removed {
			t.Error("one that is gone got a call")
		}
		return Success, w.about(50 * time.Millisecond)
	}
	var ever []*Member
	for _, list := range [][]netip.Addr{addrs("10.0.0.1", "10.0.0.2"), addrs("10.0.0.2", "10.0.0.3"), addrs("10.0.0.4"),
		addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")} {
		w.run(w.now+10*time.Second, 500)
		w.p.resolved(0, list, nil)
		ever = append(ever, w.p.members...)
	}
	w.reset()
	w.run(w.now+time.Second, 500)
	if n := w.picked["10.0.0.1"]; n > 80 {
		t.Errorf("a new address got %d calls of 500 in its first second", n)
	}
	w.run(w.now+10*time.Second, 500)
	w.reset()
	w.run(w.now+10*time.Second, 500)
	for _, m := range w.p.members {
		if n := w.picked[m.url.Host]; n < 1100 || n > 1400 {
			t.Errorf("%s has %d of 5000 calls", m.url.Host, n)
		}
	}
	for len(w.ends) > 0 {
		e := w.ends.Pop().(end)
		e.m.End(e.o, e.latency)
	}
	w.now += time.Hour
	if s := w.p.Totals()[0]; s.Ended() != uint64(w.n) || s.InFlight != 0 || s.Members != 4 || len(w.p.leaving) != 0 {
		t.Errorf("%+v of %d attempts, %d leaving", s, w.n, len(w.p.leaving))
	}
	for _, m := range ever {
		if n := m.inFlight.Load(); n != 0 {
			t.Errorf("%d in flight at %s", n, m.url.Host)
		}
	}
}

// With fewer members fewer may be out: those come back that would be first.
func TestFewerAddressesFewerEjected(t *testing.T) {
	w := newWorld(t, 2, Config{Endpoints: hosts(1), Eject: Eject{Enabled: true}, Resolve: time.Minute})
	var list []netip.Addr
	for i := range 4 {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	w.p.resolved(0, list, nil)
	w.behave = func(m *Member, _ time.Duration) (Outcome, time.Duration) {
		if m.addr.As4()[3] < 2 {
			return Failed, time.Millisecond
		}
		return Success, w.about(10 * time.Millisecond)
	}
	for w.p.members[0].ejected != true || w.p.members[1].ejected != true {
		w.run(w.now+10*time.Millisecond, 500)
	}
	w.p.resolved(0, list[:2], nil)
	w.invariants()
	if w.p.set.Load().failOpen {
		t.Error("both of two are out")
	}
}
