package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A ConfigError names the field of a [Config] that cannot be used and says what would be right. It holds no password.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v: want %s", e.Field, e.Value, e.Want) }

const wantURL = "redis://[user:password@]host[:port][/db], rediss://… for TLS, redis+cluster://host:port,host:port,… or rediss+cluster://…, " +
	"redis+sentinel://[user:password@]host:port,…/master[/db][?sentinel_password=…], or redis+unix:///path"

// Connect makes a client for a URL as [Config].URL has it, as this package needs it: no command is sent twice, contexts are heeded,
// none is waited for longer than timeout, or 2 s if that is more, and a few connections are enough. go-redis writes a line to the standard error for each connection that fails, through a logger
// that is the process's; the first Connect silences it. Who wants to read them calls redis.SetLogger afterwards. secure is as [Config].TLS has it.
func Connect(address string, timeout time.Duration, secure func() *tls.Config) (redis.UniversalClient, error) {
	o, cluster, err := options(address)
	if err != nil {
		return nil, err
	}
	if secure != nil && o.TLSConfig == nil {
		return nil, &ConfigError{Field: "TLS", Value: Redacted(address), Want: "a URL rediss://…, rediss+cluster://… or rediss+sentinel://…, or no TLS"}
	}
	silence.Do(func() { redis.SetLogger(silent{}) })
	// A script that was sent may have run, whether or not its answer came: nothing is repeated on the client's own account.
	o.MaxRetries, o.MaxRedirects = -1, 2
	// An exchange is bounded by its context; these are for what makes the connection.
	timeout = max(timeout, connectTimeout)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = timeout, timeout, timeout, timeout
	o.DialerRetries = 1
	if of := o.TLSConfig; of != nil {
		if secure == nil {
			secure = func() *tls.Config { return of }
		}
		o.Dialer = dialTLS(secure, timeout)
	}
	o.ContextTimeoutEnabled = true
	o.PoolSize, o.MaxIdleConns = 2, 2
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.FailingTimeoutSeconds = 1
	switch {
	case cluster:
		return redis.NewClusterClient(o.Cluster()), nil
	case o.MasterName != "":
		return redis.NewFailoverClient(o.Failover()), nil
	}
	return redis.NewClient(o.Simple()), nil
}

var silence sync.Once

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// options reads a URL.
func options(address string) (o *redis.UniversalOptions, cluster bool, err error) {
	scheme, rest, ok := strings.Cut(address, "://")
	refuse := func(why string) (*redis.UniversalOptions, bool, error) {
		return nil, false, &ConfigError{Field: "URL", Value: Redacted(address), Want: wantURL + ": " + why}
	}
	if !ok || len(address) > 4096 {
		return refuse("it has no scheme")
	}
	kind, secure := scheme, false
	if s, is := strings.CutPrefix(scheme, "rediss"); is {
		kind, secure = "redis"+s, true
	}
	switch kind {
	case "redis", "unix", "redis+unix":
		if secure && kind != "redis" {
			return refuse("a socket has no TLS")
		}
		if kind == "redis+unix" {
			address = "unix://" + rest
		}
		single, err := redis.ParseURL(address)
		if err != nil {
			return refuse(reasonOf(err))
		}
		return &redis.UniversalOptions{Addrs: []string{single.Addr}, DB: single.DB, Username: single.Username, Password: single.Password,
			TLSConfig: single.TLSConfig}, false, nil
	case "redis+cluster", "redis+sentinel":
	default:
		return refuse("the scheme is unknown")
	}
	// Several hosts are no URL: the first stands for all while it is read as one.
	authority, path, _ := strings.Cut(rest, "/")
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	first := ""
	all := strings.Split(hosts, ",")
	for i, h := range all {
		u, err := url.Parse("redis://" + h)
		if err != nil || u.Hostname() == "" || u.Host != h {
			return refuse("each of the hosts is host:port")
		}
		if u.Port() == "" {
			all[i] = h + map[string]string{"redis+cluster": ":6379", "redis+sentinel": ":26379"}[kind]
		}
		if i == 0 {
			first = h
		}
	}
	u, err := url.Parse("redis://" + user + first + "/" + path)
	if err != nil {
		return refuse(reasonOf(err))
	}
	o = &redis.UniversalOptions{Addrs: all, Username: u.User.Username()}
	o.Password, _ = u.User.Password()
	if secure {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	for key, v := range u.Query() {
		switch {
		case kind == "redis+sentinel" && key == "sentinel_password" && len(v) == 1:
			o.SentinelPassword = v[0]
		case kind == "redis+sentinel" && key == "sentinel_username" && len(v) == 1:
			o.SentinelUsername = v[0]
		default:
			return refuse("a parameter is unknown")
		}
	}
	path = strings.Trim(u.Path, "/")
	if kind == "redis+cluster" {
		if path != "" {
			return refuse("a cluster has no databases")
		}
		return o, true, nil
	}
	master, db, numbered := strings.Cut(path, "/")
	if o.MasterName = master; master == "" {
		return refuse("the name of the master is missing")
	}
	if numbered {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return refuse("the database is a number")
		}
	}
	return o, false, nil
}

// reasonOf is an error of reading a URL without the URL, which may hold a password.
func reasonOf(err error) string {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err.Error()
	}
	return "it cannot be read"
}

// Redacted is a URL without user, password and parameters, for logs.
func Redacted(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok || strings.Trim(scheme, "abcdefghijklmnopqrstuvwxyz+") != "" { // what stands there may be a part of a password
		return "(not a URL)"
	}
	rest, _, _ = strings.Cut(rest, "?")
	authority, path, slash := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(rest, '@'); i >= len(authority) { // a password with a slash in it
		return scheme + "://…"
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = "…@" + authority[i+1:]
	}
	if slash {
		authority += "/" + path
	}
	return scheme + "://" + authority
}
