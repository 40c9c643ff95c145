package balance

import (
	"net/url"
	"testing"
)

// A call that fails at one place after the other comes to all of them before it comes to one again.
func TestPickComesToAllMembers(t *testing.T) {
	var es []Endpoint
	for _, h := range []string{"a", "b", "c", "d"} {
		es = append(es, Endpoint{URL: &url.URL{Scheme: "http", Host: h + ".test:80"}})
	}
	p, err := New(Config{Endpoints: es})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		var tried []*Member
		seen := map[*Member]bool{}
		for range es {
			m := p.Pick(tried...)
			if seen[m] {
				t.Fatal("tried again before all were tried")
			}
			seen[m] = true
			tried = append(tried, m)
		}
		if m := p.Pick(tried...); m == tried[len(tried)-1] {
			t.Fatal("tried twice in a row")
		}
	}
}
