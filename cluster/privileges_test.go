package cluster_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

// A user of Redis who may do what docs/cluster.md lists, and nothing else.
func TestLeastPrivileges(t *testing.T) {
	doc, err := os.ReadFile("../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	var rules []any
	for line := range strings.Lines(string(doc)) {
		if strings.HasPrefix(line, "A user of Redis needs") || strings.HasPrefix(line, "`exact` `+zadd") {
			for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(line, -1) {
				for w := range strings.FieldsSeq(m[1]) {
					if w[0] == '+' || w[0] == '~' {
						rules = append(rules, strings.Replace(w, "prefix", "cortex", 1))
					}
				}
			}
		}
	}
	if len(rules) < 10 {
		t.Fatalf("rules in the document: %v", rules)
	}
	s := startRedis(t)
	if err := s.db.Do(bg, append([]any{"ACL", "SETUSER", "fleet", "on", ">word", "resetkeys", "-@all"}, rules...)...).Err(); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []cluster.Sharing{cluster.Counts, cluster.Exact} {
		var all []*instance
		for range 2 {
			all = append(all, join(t, "redis://fleet:word@"+s.addr(), func(c *cluster.Config, e *cortex.Config) { c.Mode, e.Name = mode, string(mode) }))
		}
		together(t, all)
		open(t, all)
		eventually(t, 20e9, "the circuits close", func() bool {
			n := 0
			for _, i := range all {
				i.call(cortex.Success)
				if i.engine.Pressure().Circuit == breaker.Closed {
					n++
				}
			}
			return n == len(all)
		})
		for _, i := range all {
			if x := i.Status().Targets[0]; x.Exchange.OK < 5 || x.Mode != cluster.Fleet { // a busy machine may be late now and then
				t.Errorf("%+v", x)
			}
			i.Close()
		}
	}
}

// The list named commands that no script had any more, or lacked one of a script that is rare.
func TestPrivilegesAreThoseOfTheScripts(t *testing.T) {
	doc, err := os.ReadFile("../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		if strings.HasPrefix(line, "A user of Redis needs") || strings.HasPrefix(line, "`exact` `+zadd") {
			line, _, _ = strings.Cut(line, "a cluster client")
			for _, m := range regexp.MustCompile(`\+([a-z]+)`).FindAllStringSubmatch(line, -1) {
				listed[m[1]] = true
			}
		}
	}
	used := map[string]bool{"ping": true, "eval": true, "evalsha": true}
	for _, file := range []string{"sync.lua", "exact.lua"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(string(text), -1) {
			used[strings.ToLower(m[1])] = true
		}
	}
	if !maps.Equal(listed, used) {
		t.Errorf("listed %v, used %v", slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(used)))
	}
}
