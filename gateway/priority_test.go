package gateway

import (
	"math"
	"net/http"
	"net/netip"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
)

func TestPriorityOfHeader(t *testing.T) {
	p := newPriorityRule(config.Priority{Default: 5, Header: "X-Priority", Tiers: map[string]int{"gold": 9, "bulk": 1, "beyond": 99}}, 10)
	for value, want := range map[string]cortex.Priority{
		"0": 0, "7": 7, "10": 10, "11": 10, "-1": 0, "99999999999999999999999": 10, "gold": 9, "bulk": 1, "beyond": 10, " 7 ": 7,
		"": 5, "high": 5, "7.5": 5, "1e1": 5, "+7": 5, "7,9": 5, "0x7": 5, "NaN": 5, "GOLD": 5,
	} {
		if got := p.of(http.Header{"X-Priority": {value}}); got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
	if got := p.of(http.Header{}); got != 5 {
		t.Errorf("none: %d", got)
	}
	if got := p.of(http.Header{"X-Priority": {"9", "2"}}); got != 5 {
		t.Errorf("two: %d", got)
	}
}

func TestPriorityIsClampedToLevels(t *testing.T) {
	for _, c := range []struct{ n, levels, want int }{{5, 10, 5}, {11, 10, 10}, {-3, 10, 0}, {5, 3, 3}, {math.MaxInt, 31, 31}, {math.MinInt, 31, 0}} {
		if p := newPriorityRule(config.Priority{Default: c.n}, c.levels); p.standard != cortex.Priority(c.want) {
			t.Errorf("%d of %d: %d", c.n, c.levels, p.standard)
		}
	}
}

func TestPriorityTrustsTheConnectionOnly(t *testing.T) {
	p := newPriorityRule(config.Priority{Header: "X-Priority",
		Trust: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}, 10)
	for addr, want := range map[string]bool{"10.1.2.3:99": true, "[::ffff:10.1.2.3]:99": true, "[fd00::1]:99": true, "11.0.0.1:99": false,
		"192.0.2.1:1": false, "10.1.2.3": false, "": false, "@": false} {
		r := &http.Request{RemoteAddr: addr, Header: http.Header{"X-Forwarded-For": {"10.1.2.3"}}}
		if got := p.trusts(r); got != want {
			t.Errorf("%q: %v", addr, got)
		}
	}
	nobody := newPriorityRule(config.Priority{}, 10)
	if nobody.trusts(&http.Request{RemoteAddr: "127.0.0.1:1"}) {
		t.Error("trust in nobody trusts")
	}
}
