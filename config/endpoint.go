package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// endpoints is the list of a target's endpoints.
func endpoints(p *[]Endpoint) value {
	return list[Endpoint]{p: p, most: MaxEndpoints, what: "URLs",
		item:  func(e *Endpoint) value { return endpoint{e} },
		fresh: func() Endpoint { return Endpoint{Weight: 1} }}
}

// endpoint is a URL alone, or a block with its weight.
type endpoint struct{ p *Endpoint }

func (v endpoint) kind() string { return "a URL, or a block of url and weight" }

func (v endpoint) block() block {
	return block{
		{key: "url", value: text[*url.URL]{p: &v.p.URL, want: "a URL such as http://127.0.0.1:9000", parse: parseEndpoint,
			show: (*url.URL).String}},
		{key: "weight", value: count{&v.p.Weight, 1, 1000}},
	}
}

func (v endpoint) read(d *decoder, n *yaml.Node, at place) {
	if n.Kind == yaml.MappingNode {
		v.block().read(d, n, at)
		return
	}
	d.Mark(place{Key: at.Key + ".url", Line: at.Line, Column: at.Column})
	v.block()[0].value.read(d, n, at)
}

func (v endpoint) write() *yaml.Node {
	if v.p.Weight == 1 {
		return v.block()[0].value.write()
	}
	n := v.block().write()
	n.Style = yaml.FlowStyle
	return n
}

func (b *Balance) block() block {
	return block{
		{key: "eject", value: block{
			{key: "enabled", value: toggle{p: &b.Eject.Enabled}},
			{key: "failures", value: count{&b.Eject.Failures, 1, 1000}},
			{key: "max_share", value: number{p: &b.Eject.MaxShare, hi: 1, above: true}},
			{key: "base_time", value: duration{p: &b.Eject.BaseTime, lo: time.Millisecond, hi: day}},
			{key: "max_time", value: duration{p: &b.Eject.MaxTime, lo: time.Millisecond, hi: day}},
		}},
		{key: "slow_start", value: duration{p: &b.SlowStart, hi: time.Hour}},
		{key: "check", value: optional[Check]{&b.Check, newCheck, (*Check).block}},
		{key: "resolve", value: duration{p: &b.Resolve, lo: time.Second, hi: day, orZero: true}},
	}
}

func (c *Check) block() block {
	return block{
		{key: "path", value: text[string]{p: &c.Path, want: "a path such as /healthz", parse: parseCheckPath, show: itself}},
		{key: "interval", value: duration{p: &c.Interval, lo: 100 * time.Millisecond, hi: time.Hour}},
		{key: "timeout", value: duration{p: &c.Timeout, lo: time.Millisecond, hi: time.Hour}},
		{key: "healthy", value: count{&c.Healthy, 1, 100}},
		{key: "unhealthy", value: count{&c.Unhealthy, 1, 100}},
	}
}

func (t *Transport) block() block {
	return block{
		{key: "dial_timeout", value: duration{p: &t.DialTimeout, lo: time.Millisecond, hi: time.Hour}},
		{key: "max_idle_per_host", value: count{&t.MaxIdlePerHost, 1, 100_000}},
		{key: "idle_timeout", value: duration{p: &t.IdleTimeout, lo: time.Millisecond, hi: day}},
		{key: "max_age", value: duration{p: &t.MaxAge, lo: time.Second, hi: day, orZero: true}},
		{key: "tls", value: t.TLS.block()},
	}
}

func (t *TransportTLS) block() block {
	return block{
		{key: "ca", value: file(&t.CA)},
		{key: "cert", value: file(&t.Cert)},
		{key: "key", value: file(&t.Key)},
		{key: "server_name", value: text[string]{p: &t.ServerName, want: "a host name such as payments.internal",
			parse: parseServerName, show: itself, unset: true}},
	}
}

// endpoints checks a target's endpoints with each other and with the gateway's own address, listen; "" is not known.
func (d *decoder) endpoints(t *Target, key, listen string) {
	d.missing(key, "endpoints", "at least one URL such as http://127.0.0.1:9000")
	first := make(map[string]int)
	for i, e := range t.Endpoints {
		item := fmt.Sprintf("%s.endpoints[%d]", key, i)
		d.missing(item, "url", "a URL such as http://127.0.0.1:9000")
		u := e.URL
		if u == nil {
			continue // was refused
		}
		at := d.At(item)
		host := hostPort(u)
		scheme := u.Scheme
		if scheme == "h2c" {
			scheme = "http" // the same place, spoken to in another way
		}
		same := scheme + host + strings.TrimSuffix(u.EscapedPath(), "/")
		if j, ok := first[same]; ok {
			d.Problem(at, "%s: given twice: first as endpoints[%d]", show(u.String()), j)
			continue
		}
		first[same] = i
		if loopbackHost(u.Hostname()) && clash(listen, host) {
			d.Problem(at, "%s: the gateway itself, which listens on %s: want the address of the service", show(u.String()), listen)
		}
	}
}

// balance checks how a target's ejection and checks go together; a default gives way to what is given.
func (d *decoder) balance(b *Balance, key string) {
	e := &b.Eject
	base, most := key+".eject.base_time", key+".eject.max_time"
	if !d.Given(most) {
		e.MaxTime = max(e.MaxTime, e.BaseTime)
	} else if !d.Given(base) {
		e.BaseTime = min(e.BaseTime, e.MaxTime)
	}
	if e.MaxTime < e.BaseTime && !d.Refused[base] && !d.Refused[most] {
		d.Problem(d.At(most), "%s: want at least base_time, which is %s", formatDuration(e.MaxTime), formatDuration(e.BaseTime))
	}
	c := b.Check
	if c == nil {
		return
	}
	d.missing(key+".check", "path", "the path to ask, such as /healthz")
	interval, timeout := key+".check.interval", key+".check.timeout"
	if !d.Given(timeout) {
		c.Timeout = min(c.Timeout, c.Interval)
	} else if !d.Given(interval) {
		c.Interval = max(c.Interval, c.Timeout)
	}
	if c.Timeout > c.Interval && !d.Refused[interval] && !d.Refused[timeout] {
		d.Problem(d.At(timeout), "%s: want at most interval, which is %s", formatDuration(c.Timeout), formatDuration(c.Interval))
	}
}

// transportTLS checks the client's side of TLS against the endpoints it is for.
func (d *decoder) transportTLS(t *Target, key string) {
	c, tls := t.Transport.TLS, key+".transport.tls"
	d.together(tls, "cert", "key")
	if c == (TransportTLS{}) || d.Refused[key+".endpoints"] {
		return
	}
	for _, e := range t.Endpoints {
		if e.URL == nil || e.URL.Scheme == "https" { // one that was refused may have been meant to be
			return
		}
	}
	if len(t.Endpoints) > 0 {
		d.Problem(d.At(tls), "no endpoint of this target is https: want https://host:port there, or no tls")
	}
}

func parseEndpoint(s string) (*url.URL, string) {
	const want = "want http://host:port, https://host:port or h2c://host:port, perhaps with a path"
	u, err := url.Parse(s)
	switch {
	case strings.Contains(s, "@"):
		// Before anything else, so that a password is never part of another message.
		return nil, "a user or password does not belong here: " + want
	case strings.ContainsAny(s, "?#"):
		return nil, "a query or fragment does not belong here: " + want
	case err != nil && strings.Contains(s, "[") && strings.Contains(s, "%") && !strings.Contains(s, "%25"):
		return nil, "not a URL: want the zone of an IPv6 address with %25, as in http://[fe80::1%25eth0]:9000"
	case err != nil:
		return nil, "not a URL: " + want
	case u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "h2c":
		return nil, "neither http, https nor h2c: " + want
	case u.Opaque != "" || u.Hostname() == "" || !isHost(u.Hostname()):
		return nil, "no host: " + want
	case strings.HasSuffix(u.Host, ":") || u.Port() != "" && (!isPort(u.Port()) || u.Port() == "0"):
		return nil, "not a port from 1 to 65535: " + want
	}
	// A path that was not escaped in the one canonical way is, once it was printed: two spellings, one URL.
	if u, err = url.Parse(u.String()); err != nil {
		return nil, "not a URL: " + want
	}
	return u, ""
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

func parseCheckPath(s string) (string, string) {
	switch {
	case !strings.HasPrefix(s, "/") || strings.HasPrefix(s, "//"):
		return "", "not a path: want one that begins with one /"
	case strings.ContainsAny(s, "?#%"):
		return "", "want the path alone, without a query and without escapes"
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", "want a path without control characters"
	}
	return s, ""
}

func parseServerName(s string) (string, string) {
	ip, err := netip.ParseAddr(s)
	if err == nil && ip.Zone() == "" || hostName.MatchString(s) {
		return s, ""
	}
	return "", "not a host name: want one such as payments.internal, without a port"
}
