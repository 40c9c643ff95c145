package gateway

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/seed-a29ca62a/cortex/config"
)

// state is what the gateway makes of one configuration. It does not change: a reload makes another and puts it in its place,
// and requests go on under the one that they began with.
type state struct {
	file    *config.File
	name    string    // in Proxy-Status
	via     [3]string // what is added to Via, by major version
	server  config.Server
	table   *table
	targets []*Target // in the order of the configuration
	byName  map[string]*Target
	routes  []*route
}

// build makes the state for a configuration, out of what is the same in the one before, which may be nil. What is new has neither
// begun any work nor touched the old until [state.start].
func (g *Gateway) build(f *config.File, before *state) (s *state, err error) {
	s = &state{file: f, name: structured(f.Name), server: f.Server, byName: make(map[string]*Target, len(f.Targets))}
	for major, version := range [...]string{"1.0", "1.1", "2.0"} {
		s.via[major] = version + " " + f.Name + " (" + g.mark + ")"
	}
	defer func() {
		if err != nil {
			s.discard(before)
		}
	}()
	for i := range f.Targets {
		c := &f.Targets[i]
		t, err := g.newTarget(c, before.target(c.Name))
		if err != nil {
			return s, fmt.Errorf("gateway: target %s: %w", c.Name, err)
		}
		s.targets = append(s.targets, t)
		s.byName[c.Name] = t
	}
	for i := range f.Routes {
		c := &f.Routes[i]
		t := s.byName[c.Target]
		if t == nil {
			return s, fmt.Errorf("gateway: route %s: there is no target %q", c.Path, c.Target)
		}
		l, err := g.newLadder(c.Fallback, before.route(c))
		if err != nil {
			return s, fmt.Errorf("gateway: route %s: fallback: %w", c.Path, err)
		}
		s.routes = append(s.routes, &route{config: c, path: c.Path, target: t, methods: c.Methods, fallback: l, shadow: c.Shadow,
			priority: newPriorityRule(c.Priority, t.Engine.Config().Levels)})
	}
	s.table = newTable(s.routes)
	return s, nil
}

// target is the target of that name, or nil.
func (s *state) target(name string) *Target {
	if s == nil {
		return nil
	}
	return s.byName[name]
}

// route is the route for the same requests as that of a configuration, to the same target, or nil.
func (s *state) route(c *config.Route) *route {
	if s == nil {
		return nil
	}
	for _, r := range s.routes {
		if r.path == c.Path && r.target.Name == c.Target && reflect.DeepEqual(r.methods, c.Methods) {
			return r
		}
	}
	return nil
}

// discard lets go of a state that does not come into force.
func (s *state) discard(kept *state) {
	for _, t := range s.targets {
		if k := kept.target(t.Name); k != t {
			t.retire(k)
		}
	}
}

// inherit has what is new in s take over what is known of its endpoints. It is to be called as late as it can be, before s is in force.
func (s *state) inherit(before *state) {
	for _, t := range s.targets {
		if old := before.target(t.Name); old != nil && old != t {
			t.inherit(old)
		}
	}
}

// start begins the work of what is new in s and ends that of what was in the state before only.
func (s *state) start(before *state) {
	for _, t := range s.targets {
		old := before.target(t.Name)
		if old != t {
			t.start()
		}
		if old == nil {
			continue
		}
		if err := t.base.reload(); err != nil { // changed since build, which has checked them
			t.logger.Error("certificates: those in force stay", "target", t.Name, "error", err)
		}
	}
	if before == nil {
		return
	}
	for _, t := range before.targets {
		if heir := s.byName[t.Name]; heir != t {
			t.retire(heir)
		}
	}
	caches := make(map[*cache]bool, len(s.routes))
	for _, r := range s.routes {
		caches[r.fallback.cache] = true
	}
	for _, r := range before.routes {
		if c := r.fallback.cache; c != nil && !caches[c] {
			c.Close()
		}
	}
}

// cached is what the caches of a target's routes hold.
func (s *state) cached(t *Target) (entries int, bytes int64) {
	for _, r := range s.routes {
		if c := r.fallback.cache; c != nil && r.target == t {
			entries += c.Len()
			bytes += c.Bytes()
		}
	}
	return entries, bytes
}

// ErrRestart is the error of a configuration that differs from the one in force in what only a new process can take up.
var ErrRestart = errors.New("needs a restart")

// fixed reports what of a configuration cannot be changed while the ports are open.
func fixed(now, next *config.File) error {
	var keys []string
	for _, c := range []struct {
		key  string
		same bool
	}{
		{"listen", now.Listen == next.Listen},
		{"tls", (now.TLS == nil) == (next.TLS == nil)},
		{"admin.enabled", now.Admin.Enabled == next.Admin.Enabled},
		{"admin.listen", now.Admin.Listen == next.Admin.Listen},
		{"admin.token_file, from none or to none,", (now.Admin.TokenFile == "") == (next.Admin.TokenFile == "")},
		{"admin.tls", (now.Admin.TLS == nil) == (next.Admin.TLS == nil)},
		{"admin.tls.client_ca, from none or to none,", asks(now.Admin.TLS) == asks(next.Admin.TLS)},
		{"targets, from none or to none,", (len(now.Targets) == 0) == (len(next.Targets) == 0)},
		{"decisions, from none or to none,", (now.Decisions == nil) == (next.Decisions == nil)},
		{"cluster", reflect.DeepEqual(now.Cluster, next.Cluster)},
		{"log.format", now.Log.Format == next.Log.Format},
	} {
		if !c.same {
			keys = append(keys, c.key)
		}
	}
	if a, b := now.Decisions, next.Decisions; a != nil && b != nil {
		for _, c := range []struct {
			key  string
			same bool
		}{
			{"decisions.listen", a.Listen == b.Listen},
			{"decisions.token_file, from none or to none,", (a.TokenFile == "") == (b.TokenFile == "")},
			{"decisions.tls", (a.TLS == nil) == (b.TLS == nil)},
			{"decisions.tls.client_ca, from none or to none,", asks(a.TLS) == asks(b.TLS)},
			{"decisions.unknown", a.Create == b.Create},
			{"decisions.max_targets", a.MaxTargets == b.MaxTargets},
			{"decisions.max_tokens", a.MaxTokens == b.MaxTokens},
			{"decisions.max_watches", a.MaxWatches == b.MaxWatches},
		} {
			if !c.same {
				keys = append(keys, c.key)
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return fmt.Errorf("gateway: a change of %s %w: the configuration in force stays", strings.Join(keys, ", "), ErrRestart)
}

// asks reports whether a port asks for certificates of clients.
func asks(c *config.TLS) bool { return c != nil && c.ClientCA != "" }
