package gateway

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/seed-a29ca62a/cortex/config"
)

// route is what the table finds for a request.
type route struct {
	config   *config.Route
	path     string
	target   *Target
	methods  []string // none = every method
	priority priorityRule
	fallback ladder
	shadow   bool
}

func (r *route) takes(method string) bool {
	return len(r.methods) == 0 || slices.Contains(r.methods, method)
}

// table finds the route of a request: the longest path that is a prefix of whole segments of the request's, among those with
// the same path one that lists the request's method, and passing over those that list others. It asks a map once for every
// segment of the request that is not longer than the longest path there is: the number of routes does not matter, and neither
// does the length of what a client sends.
type table struct {
	byPath  map[string][]*route // without the slash at the end: "" is "/"
	longest int                 // of the keys
}

func newTable(routes []*route) *table {
	t := &table{byPath: make(map[string][]*route, len(routes))}
	for _, r := range routes {
		key := strings.TrimSuffix(r.path, "/")
		t.byPath[key] = append(t.byPath[key], r)
		t.longest = max(t.longest, len(key))
	}
	for _, same := range t.byPath {
		slices.SortStableFunc(same, func(a, b *route) int { return cmp.Compare(rank(a), rank(b)) })
	}
	return t
}

// rank puts routes that list methods before those that take all.
func rank(r *route) int {
	if len(r.methods) > 0 {
		return 0
	}
	return 1
}

// find returns the route for a request, or nil. p is the decoded path; dot segments and repeated slashes in it are resolved
// for the match (and forwarded as they are): otherwise "/public/../admin" would be a way into the target of "/admin" under the
// priority of "/public". It does not allocate for a path that is clean.
func (t *table) find(method, p string) *route {
	for key, more := t.first(p), true; more; key, more = parent(key) {
		for _, r := range t.byPath[key] {
			if r.takes(method) {
				return r
			}
		}
	}
	return nil
}

// allowed lists the methods of the routes for a path; empty where one takes all, or no route has the path.
func (t *table) allowed(p string) []string {
	var methods []string
	for key, more := t.first(p), true; more; key, more = parent(key) {
		for _, r := range t.byPath[key] {
			if len(r.methods) == 0 {
				return nil
			}
			methods = append(methods, r.methods...)
		}
	}
	slices.Sort(methods)
	return slices.Compact(methods)
}

// first is the longest key that a path can have.
func (t *table) first(p string) string {
	if t.longest == 0 {
		return ""
	}
	p = matched(p)
	if len(p) <= t.longest {
		return p
	}
	if p[t.longest] == '/' {
		return p[:t.longest]
	}
	return p[:strings.LastIndexByte(p[:t.longest], '/')]
}

// parent is the key of the path one segment shorter, if there is one.
func parent(key string) (string, bool) {
	if key == "" {
		return "", false
	}
	return key[:strings.LastIndexByte(key, '/')], true
}

// matched is the path that routes are matched against, without a slash at its end.
func matched(p string) string {
	if p == "" || p[0] != '/' { // "*" of OPTIONS
		return ""
	}
	if p = path.Clean(p); p == "/" {
		return ""
	}
	return p
}
