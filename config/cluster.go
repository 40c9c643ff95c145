package config

import (
	"net"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Cluster lets the instances of a fleet share what they see, through Redis.
type Cluster struct {
	Redis    Redis
	Prefix   string        // of all keys: letters, digits and ._:-, at most 64
	Interval time.Duration // between two exchanges, in whole milliseconds
	Exact    bool          // one member a call in sorted sets, in place of counts
	Window   time.Duration // of Exact
}

// Redis is where a fleet meets.
type Redis struct {
	URL                  string // without user, password and parameters
	Username             string // empty = the default one
	PasswordFile         string // empty = none is needed
	SentinelPasswordFile string // of the sentinels themselves; empty = none is needed
	Timeout              time.Duration
	TLS                  TransportTLS // of a rediss URL, alike for sentinels and all nodes
}

// Kinds of a Redis, by the scheme of its URL.
const (
	redisSingle   = "redis"
	redisCluster  = "redis+cluster"
	redisSentinel = "redis+sentinel"
	redisUnix     = "redis+unix"
)

func newCluster() *Cluster {
	return &Cluster{Prefix: "cortex", Interval: 250 * time.Millisecond, Window: time.Minute, Redis: Redis{Timeout: 50 * time.Millisecond}}
}

func (c *Cluster) block() block {
	var exact string
	if !c.Exact {
		exact = "not in force: mode exact only"
	}
	return block{
		{key: "redis", value: block{
			{key: "url", value: text[string]{p: &c.Redis.URL, want: "a URL such as redis://127.0.0.1:6379", parse: parseRedis, show: itself, unset: true}},
			{key: "username", value: text[string]{p: &c.Redis.Username, want: "the name of a user", parse: parseUser, show: itself, bare: true, unset: true}},
			{key: "password_file", value: file(&c.Redis.PasswordFile)},
			{key: "sentinel_password_file", value: file(&c.Redis.SentinelPasswordFile)},
			{key: "timeout", value: duration{p: &c.Redis.Timeout, lo: time.Millisecond, hi: 10 * time.Second}},
			{key: "tls", value: c.Redis.TLS.block()},
		}},
		{key: "prefix", value: text[string]{p: &c.Prefix, want: "a name such as cortex", parse: parsePrefix, show: itself, bare: true}},
		{key: "interval", value: duration{p: &c.Interval, lo: 10 * time.Millisecond, hi: time.Minute, whole: true}},
		{key: "mode", value: choice[bool]{&c.Exact, []bool{false, true}, modeName}},
		{key: "window", note: exact, value: duration{p: &c.Window, lo: time.Second, hi: time.Hour}},
	}
}

func modeName(exact bool) string {
	if exact {
		return "exact"
	}
	return "counts"
}

// cluster checks how the keys of the block go together.
func (d *decoder) cluster(c *Cluster) {
	if c == nil {
		return
	}
	const at = "cluster.redis"
	d.missing(at, "url", "where Redis is, such as redis://127.0.0.1:6379")
	if d.Given(at+".username") && !d.Given(at+".password_file") {
		d.Problem(d.At(at+".username"), "without password_file: want both, or a password_file alone")
	}
	if d.Given(at+".sentinel_password_file") && c.Redis.URL != "" && redisKind(c.Redis.URL) != redisSentinel {
		d.Problem(d.At(at+".sentinel_password_file"), "there are no sentinels: want a url redis+sentinel://…, or password_file")
	}
	d.together(at+".tls", "cert", "key")
	if c.Redis.TLS != (TransportTLS{}) && c.Redis.URL != "" && !strings.HasPrefix(c.Redis.URL, "rediss") {
		d.Problem(d.At(at+".tls"), "the url is not over TLS: want rediss in place of redis there, or no tls")
	}
}

// redisKind is the scheme of a URL, whether or not over TLS.
func redisKind(s string) string {
	scheme, _, _ := strings.Cut(s, "://")
	if rest, ok := strings.CutPrefix(scheme, "rediss"); ok {
		return "redis" + rest
	}
	return scheme
}

var (
	redisPrefix = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)
	masterName  = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

const (
	wantRedis = "want redis://host:port/0, redis+cluster://host:port,host:port, redis+sentinel://host:port,host:port/master/0 (or rediss… of these, " +
		"for TLS), or redis+unix:///path"
	mostHosts = 100
)

// parseRedis reads a URL without passwords: the configuration in force is shown to whoever may see the admin port.
func parseRedis(s string) (string, string) {
	scheme, rest, ok := strings.Cut(s, "://")
	kind := redisKind(s)
	switch {
	case strings.Contains(s, "@"):
		// Before anything else, so that a password is never part of another message.
		return "", "a user or password does not belong here: want username and password_file beside it"
	case strings.ContainsAny(s, "?#%"):
		return "", "a query, a fragment or an escape does not belong here: " + wantRedis
	case !ok:
		return "", "not a URL: " + wantRedis
	case len(s) > 4096 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		return "", "not a URL: " + wantRedis
	case kind == redisUnix && scheme == kind:
		if !strings.HasPrefix(rest, "/") || strings.HasSuffix(rest, "/") || path.Clean(rest) != rest {
			return "", "not the path of a socket: want one such as redis+unix:///run/redis/redis.sock"
		}
		return s, ""
	case kind != redisSingle && kind != redisCluster && kind != redisSentinel:
		return "", "none of the schemes there are: " + wantRedis
	}
	authority, where, _ := strings.Cut(rest, "/")
	hosts := strings.Split(authority, ",")
	if kind == redisSingle && len(hosts) > 1 || len(hosts) > mostHosts {
		return "", "too many hosts: " + wantRedis
	}
	for _, h := range hosts {
		u, err := url.Parse("redis://" + h)
		if err != nil || u.Host != h || u.Path != "" || !isHost(u.Hostname()) || strings.HasSuffix(h, ":") || u.Port() != "" && (!isPort(u.Port()) || u.Port() == "0") {
			return "", "not a host and a port: " + wantRedis
		}
	}
	database := func(s string) bool {
		n, err := strconv.Atoi(s)
		return s == "" || err == nil && strconv.Itoa(n) == s && n >= 0 && n < 1<<16
	}
	switch kind {
	case redisSingle:
		if !database(where) {
			return "", "not the number of a database: " + wantRedis
		}
	case redisCluster:
		if where != "" {
			return "", "a cluster has no databases: " + wantRedis
		}
	case redisSentinel:
		master, db, _ := strings.Cut(where, "/")
		if !masterName.MatchString(master) {
			return "", "the name of the master is missing: " + wantRedis
		}
		if !database(db) {
			return "", "not the number of a database: " + wantRedis
		}
	}
	return s, ""
}

func parseUser(s string) (string, string) {
	if s == "" || len(s) > 256 || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", "not a name: want up to 256 bytes without spaces"
	}
	return s, ""
}

func parsePrefix(s string) (string, string) {
	if !redisPrefix.MatchString(s) {
		return "", "not a prefix: want up to 64 letters, digits and ._:-"
	}
	return s, ""
}

// hostPort is where an endpoint is, in small letters and with its port.
func hostPort(u *url.URL) string { return net.JoinHostPort(strings.ToLower(u.Hostname()), portOf(u)) }
