package gateway

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// priorityRule tells the priority of a request.
type priorityRule struct {
	standard cortex.Priority
	levels   int
	header   string // in canonical form; empty = every request has the standard priority
	trust    []netip.Prefix
	tiers    map[string]cortex.Priority
}

func newPriorityRule(c config.Priority, levels int) priorityRule {
	p := priorityRule{standard: clamp(c.Default, levels), levels: levels, header: c.Header, trust: c.Trust}
	if len(c.Tiers) > 0 {
		p.tiers = make(map[string]cortex.Priority, len(c.Tiers))
		for name, n := range c.Tiers {
			p.tiers[name] = clamp(n, levels)
		}
	}
	return p
}

func clamp(n, levels int) cortex.Priority { return cortex.Priority(min(max(n, 0), levels)) }

// of returns the priority that a trusted client asked for. One that says nothing, or nothing that can be understood, or two
// things at once, has the standard one: a typing error must neither shed its sender nor put it above the others.
func (p *priorityRule) of(h http.Header) cortex.Priority {
	if p.header == "" {
		return p.standard
	}
	vs := h[p.header]
	if len(vs) != 1 {
		return p.standard
	}
	v := strings.TrimSpace(vs[0])
	if n, ok := p.tiers[v]; ok {
		return n
	}
	if n, ok := cortexhttp.ParsePriority(v, p.levels); ok {
		return n
	}
	return p.standard
}

// trusts reports whether what the request says of itself may be believed. Only the address of the connection counts.
func (p *priorityRule) trusts(r *http.Request) bool {
	return len(p.trust) > 0 && cortexhttp.PeerTrusted(r, p.trust)
}
