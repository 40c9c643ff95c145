package gateway

import (
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cluster"
	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/tlsfile"
)

const (
	// mostShared bounds the engines of the decision service that share: each is a script and some fields an exchange.
	mostShared = 1000
	// shareEvery is the time between looks for engines that the decision service has made or dropped.
	shareEvery = time.Second
)

// A fleet is the gateway's part in its fleet: the engines that share what they see with those of other instances. nil: there is none.
type fleet struct {
	cluster *cluster.Cluster
	log     *slog.Logger
	secrets redisSecrets
	stop    chan struct{}
	done    sync.WaitGroup

	mu     sync.Mutex
	joined map[string]*cortex.Engine // by name
	closed bool
}

// redisSecrets are what was read of files to reach Redis.
type redisSecrets struct {
	passwords [2]string       // that it was given; "" is none
	tls       *tlsfile.Client // nil = the system's authorities, or no TLS
	paths     tlsfile.ClientFiles
}

// newFleet begins to share, as yet nothing. Redis need not be there.
func newFleet(c *config.Cluster, now func() time.Duration, log *slog.Logger) (*fleet, error) {
	if c == nil {
		return nil, nil
	}
	cc, secrets, err := clusterConfig(c)
	if err != nil {
		return nil, err
	}
	cc.Now, cc.Logger = now, log
	f := &fleet{log: log, secrets: secrets, stop: make(chan struct{}), joined: map[string]*cortex.Engine{}}
	if f.cluster, err = cluster.New(cc); err != nil {
		return nil, fmt.Errorf("gateway: cluster: %w", err)
	}
	f.warn()
	return f, nil
}

// checkCluster reports what of the block cannot be used.
func checkCluster(c *config.Cluster) error {
	if c == nil {
		return nil
	}
	cc, _, err := clusterConfig(c)
	if err != nil {
		return err
	}
	client, err := cluster.Connect(cc.URL, cc.Timeout, cc.TLS)
	if err != nil {
		return fmt.Errorf("gateway: cluster.redis.url: %w", err)
	}
	return client.Close()
}

// clusterConfig is a block with what its files hold.
func clusterConfig(c *config.Cluster) (cc cluster.Config, secrets redisSecrets, err error) {
	passwords, err := readPasswords(c)
	if err != nil {
		return cc, secrets, err
	}
	secrets.passwords = passwords
	cc = cluster.Config{URL: c.Redis.URL, Prefix: c.Prefix, Interval: c.Interval, Timeout: c.Redis.Timeout, Mode: cluster.Counts, Window: c.Window}
	if c.Exact {
		cc.Mode = cluster.Exact
	}
	if t := c.Redis.TLS; t != (config.TransportTLS{}) {
		secrets.paths = tlsfile.ClientFiles{CA: t.CA, Cert: t.Cert, Key: t.Key, ServerName: t.ServerName}
		if secrets.tls, err = loadRedisTLS(secrets.paths); err != nil {
			return cc, secrets, err
		}
		cc.TLS = secrets.tls.Config
	}
	if p := passwords[0]; p != "" {
		scheme, rest, _ := strings.Cut(cc.URL, "://")
		cc.URL = scheme + "://" + url.UserPassword(c.Redis.Username, p).String() + "@" + rest
	}
	if p := passwords[1]; p != "" {
		cc.URL += "?sentinel_password=" + url.QueryEscape(p)
	}
	return cc, secrets, nil
}

func loadRedisTLS(paths tlsfile.ClientFiles) (*tlsfile.Client, error) {
	t, err := tlsfile.LoadClient(paths)
	if err != nil {
		return nil, fmt.Errorf("gateway: cluster.redis.tls: %w", err)
	}
	return t, nil
}

func readPasswords(c *config.Cluster) (passwords [2]string, err error) {
	for i, file := range []struct{ key, path string }{
		{"cluster.redis.password_file", c.Redis.PasswordFile}, {"cluster.redis.sentinel_password_file", c.Redis.SentinelPasswordFile}} {
		if file.path == "" {
			continue
		}
		if passwords[i], err = config.ReadPassword(file.path); err != nil {
			return passwords, fmt.Errorf("gateway: %s: %w", file.key, err)
		}
	}
	return passwords, nil
}

// check reports whether the certificates, as their files are now, could be read anew. Nothing of it is in force before remind.
func (f *fleet) check() error {
	if f == nil || f.secrets.tls == nil {
		return nil
	}
	_, err := loadRedisTLS(f.secrets.paths)
	return err
}

// remind has new connections to Redis made with the certificates that there are now, and says where the passwords in force are not those of
// the files any more.
func (f *fleet) remind(c *config.Cluster) {
	if f == nil || c == nil {
		return
	}
	if t := f.secrets.tls; t != nil {
		if _, err := t.Reload(); err != nil { // changed since check
			f.log.Error("certificates: those in force stay", "key", "cluster.redis.tls", "error", err)
		}
		f.warn()
	}
	if p, err := readPasswords(c); err != nil {
		f.log.Warn("cluster: the password in force stays", "error", err)
	} else if p != f.secrets.passwords {
		f.log.Warn("cluster: the password in force stays: a restart takes up the new one")
	}
}

// warn tells of certificates that will be refused, or not work for long.
func (f *fleet) warn() {
	if f.secrets.tls == nil {
		return
	}
	for _, w := range f.secrets.tls.Warnings() {
		f.log.Warn("certificate", "key", "cluster.redis.tls", "file", w.File, "warning", w.Reason)
	}
}

// watch shares anew, again and again, until the fleet is left.
func (f *fleet) watch(share func()) {
	f.done.Go(func() {
		t := time.NewTicker(shareEvery)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				share()
			case <-f.stop:
				return
			}
		}
	})
}

// share has those engines in the fleet and no others: all of the configuration's, and of the rest as many as there is room for, those first
// that are in it.
func (f *fleet) share(configured, others iter.Seq[*cortex.Engine]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	want := make(map[string]*cortex.Engine, len(f.joined))
	for e := range configured {
		want[e.Name()] = e
	}
	room := len(want) + mostShared
	var fresh []*cortex.Engine
	for e := range others {
		switch name := e.Name(); {
		case want[name] != nil || name == cortex.Overflow: // that one has other targets in each instance
		case f.joined[name] == e && len(want) < room:
			want[name] = e
		default:
			fresh = append(fresh, e)
		}
	}
	for _, e := range fresh {
		if len(want) == room {
			break
		}
		if want[e.Name()] == nil {
			want[e.Name()] = e
		}
	}
	for name, e := range f.joined {
		if want[name] != e {
			f.cluster.Leave(e)
			delete(f.joined, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if f.joined[name] != nil {
			continue
		}
		if err := f.cluster.Guard(want[name]); err != nil {
			f.log.Error("cluster: a target decides alone", "target", name, "error", err)
			continue
		}
		f.joined[name] = want[name]
	}
}

// close leaves the fleet. It waits for Redis no longer than for one round trip.
func (f *fleet) close() {
	if f == nil {
		return
	}
	f.mu.Lock()
	was := f.closed
	f.closed = true
	f.mu.Unlock()
	if was {
		return
	}
	close(f.stop)
	f.done.Wait()
	f.cluster.Close()
}

// status tells how each target fares; nil where there is no fleet.
func (f *fleet) status() (all *cluster.Status, of map[string]*cluster.TargetStatus) {
	if f == nil {
		return nil, nil
	}
	s := f.cluster.Status()
	of = make(map[string]*cluster.TargetStatus, len(s.Targets))
	for i := range s.Targets {
		of[s.Targets[i].Target] = &s.Targets[i]
	}
	return &s, of
}

// share has the engines that there are in the fleet.
func (g *Gateway) share() {
	if g.fleet != nil {
		g.fleet.share(g.engines(), g.otherEngines())
	}
}
