package balance

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// illness makes b fail beside healthy others until it is ejected.
func illness(t *testing.T, p *Pool, b *Member) {
	t.Helper()
	for range 50 {
		for _, m := range p.members {
			m.Begin()
			if m == b {
				m.End(Failed, 0)
			} else {
				m.End(Success, 0)
			}
		}
	}
	if !b.ejected {
		t.Fatal("b is not ejected")
	}
}

func heir(t *testing.T, from *Pool, cfg Config) (*Pool, func() []string) {
	p, events := bubble(t, cfg)
	p.Inherit(from)
	return p, events
}

// A change of anything in a configuration made every endpoint a new one: an ill one got its whole share again.
func TestEndpointsThatStayKeepWhatIsKnownOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Endpoints: urls("http://a", "http://b", "http://c"), SlowStart: time.Minute, Eject: Eject{Enabled: true, BaseTime: time.Minute}}
		p, _ := bubble(t, cfg)
		b := p.members[1]
		illness(t, p, b)
		p.members[0].Begin() // goes on
		left := b.Status().For

		cfg.Endpoints = urls("http://c", "http://new", "http://b", "http://a")
		cfg.Endpoints[3].Weight = 3
		q, events := heir(t, p, cfg)
		want(t, "events", events(), []string{})
		want(t, "states", states(q), "healthy, healthy, ejected, healthy")
		s := q.Snapshot()
		want(t, "shares", []float64{s[0].Share, s[1].Share, s[3].Share}, []float64{1, leastShare, 1})
		want(t, "the ejection's rest", s[2].For, left)
		want(t, "weight", s[3].Weight, 3.0)
		want(t, "ejections", s[2].Ejections, 1)
		want(t, "in flight", s[3].InFlight, 1)
		p.members[0].End(Success, 0)
		want(t, "its end in the old pool", q.Snapshot()[3].Success, p.members[0].Status().Success)
		want(t, "in flight", q.Snapshot()[3].InFlight, 0)
		for range 100 {
			if m := q.Pick(); m.Endpoint().Host == "b" {
				t.Fatal("the ejected one is picked")
			}
		}
		time.Sleep(time.Minute)
		q.Snapshot()
		want(t, "at the ejection's end", events(), []string{"returned b"})
		illness(t, q, q.members[2]) // the second one lasts longer
		if d := q.members[2].Status().For; d < 90*time.Second {
			t.Errorf("the second ejection lasts %v", d)
		}
	})
}

// What a pool does not do any more, nobody would end.
func TestAnHeirWithoutEjectionOrChecksHasNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Endpoints: urls("http://a", "http://b", "http://c"), Eject: Eject{Enabled: true, BaseTime: time.Hour, MaxTime: time.Hour},
			Check: &Check{Of: "/health", Interval: time.Second}, Probe: func(_ context.Context, m *Member) error {
				if m.Endpoint().Host == "c" {
					return errors.New("ill")
				}
				return nil
			}}
		p, _ := bubble(t, cfg)
		p.Start(t.Context())
		illness(t, p, p.members[1])
		time.Sleep(5 * time.Second)
		p.Close()
		want(t, "states", states(p), "healthy, ejected, checked out")

		q, _ := heir(t, p, cfg)
		want(t, "as before", states(q), "healthy, ejected, checked out")
		other := cfg
		other.Check = &Check{Of: "/ready"}
		q, _ = heir(t, p, other)
		want(t, "with checks of something else", states(q), "healthy, ejected, healthy")
		other.Check, other.Probe = nil, nil
		q, _ = heir(t, p, other)
		want(t, "without checks", states(q), "healthy, ejected, healthy")
		other.Eject.MaxTime, other.Eject.BaseTime = time.Minute, time.Minute
		q, _ = heir(t, p, other)
		want(t, "with shorter ejections", q.Snapshot()[1].For, time.Minute)
		other.Eject = Eject{}
		q, _ = heir(t, p, other)
		want(t, "without ejections", states(q), "healthy, healthy, healthy")
		if q.Blames(q.members[1]) {
			t.Error("a failure is blamed on an endpoint where nobody can be ejected")
		}
	})
}

// Looked up again, an endpoint would be one address for a while, and those that it has would begin anew.
func TestAddressesThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(names)
		n.set("x.test", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		n.set("y.test", "10.0.1.1")
		cfg := Config{Endpoints: urls("http://x.test"), Resolve: time.Second, Lookup: n.lookup, SlowStart: time.Minute, Eject: Eject{Enabled: true, BaseTime: time.Minute}}
		p, _ := bubble(t, cfg)
		p.Start(t.Context())
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		illness(t, p, p.members[1])
		p.members[0].Begin()
		n.set("x.test", "10.0.0.2", "10.0.0.3")
		time.Sleep(2 * time.Second) // the first leaves with a call under way
		p.Close()
		before := p.Totals()[0]

		cfg.Endpoints = urls("http://y.test", "http://x.test")
		q, events := heir(t, p, cfg)
		want(t, "members", members(q), "y.test 10.0.0.2 10.0.0.3")
		want(t, "states", states(q), "healthy, ejected, healthy")
		total := q.Totals()[1]
		want(t, "counters", total.Counters, before.Counters)
		want(t, "in flight", total.InFlight, 1)
		q.Start(t.Context())
		time.Sleep(2 * time.Second)
		want(t, "events", events(), []string{"added 10.0.1.1", "removed y.test"})
		if s := q.Snapshot()[0]; s.Share >= 0.5 {
			t.Errorf("the address of a new endpoint has a share of %v", s.Share)
		}
		want(t, "states", states(q), "healthy, ejected, healthy")
		p.leaving[0].End(Success, 0)
		want(t, "its end", q.Totals()[1].Success, before.Success+1)
		q.Close()

		cfg.Resolve = 0
		r, _ := heir(t, q, cfg)
		want(t, "without lookups", members(r), "y.test x.test")
		want(t, "the counters of an endpoint", r.Totals()[1].Success, before.Success+1)
	})
}
