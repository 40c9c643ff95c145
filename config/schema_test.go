package config

import (
	"flag"
	"fmt"
	"math"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "print the rows of docs/configuration.md, without their sentences")

// A row is a key of the reference.
type row struct{ key, kind, def string }

// inside is the block, with its defaults where it is off.
func (v optional[T]) inside() block {
	if *v.p == nil {
		return v.block(v.fresh())
	}
	return v.block(*v.p)
}

// rows walks the table of keys.
func rows(b block, prefix string) []row {
	var all []row
	for _, e := range b {
		key := prefix + e.key
		switch v := e.value.(type) {
		case block:
			all = append(all, rows(v, key+".")...)
		case interface{ inside() block }:
			all = append(all, row{key, e.value.kind(), ""})
			all = append(all, rows(v.inside(), key+".")...)
		case list[Endpoint]:
			all = append(all, row{key, v.kind(), ""})
			one := v.fresh()
			one.URL = new(url.URL)
			all = append(all, rows(endpoint{&one}.block(), key+"[].")...)
		case priority:
			all = append(all, row{key, v.kind(), ""})
			all = append(all, rows(v.block(), key+".")...)
		default:
			def := "none"
			if n := v.write(); n != nil {
				text, err := yaml.Marshal(n)
				if err != nil {
					panic(err)
				}
				def, _, _ = strings.Cut(strings.TrimSpace(string(text)), " # ")
			}
			all = append(all, row{key, v.kind(), def})
		}
	}
	return all
}

// reference is every section of the reference with its rows.
func reference(t *testing.T) (sections []string, of map[string][]row) {
	t.Helper()
	parse := func(profile string) *File {
		f, err := Parse("", []byte(`{targets: {a: {endpoints: [http://h], profile: `+profile+`}},
			routes: [{path: /, fallback: {cache: , static: {status: 200}}}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	adaptive, article := parse("adaptive"), parse("article")
	of = map[string][]row{
		"## The gateway": rows(adaptive.block(), ""),
		"## A target":    rows(adaptive.Targets[0].block(), ""),
		"## A route":     rows(adaptive.Routes[0].block(), ""),
	}
	for i, r := range rows(article.Targets[0].block(), "") {
		if mine := &of["## A target"][i]; mine.def != r.def && mine.key != "profile" {
			mine.def += ", article " + r.def
		}
	}
	// What has no default of its own, or one that depends.
	said := map[string]string{
		"targets": "required, but with `decisions`", "routes": "`/` to the one target",
		"endpoints": "required", "path": "required", "target": "the one target", "fallback.static.status": "required",
		"methods": "all", "priority.default": "levels / 2", "priority.header": "none", "priority.trust": "[127.0.0.0/8, ::1/128]",
		"decisions": "off", "decisions.token_file": "none", "decisions.tls": "off", "decisions.tls.cert": "required", "decisions.tls.key": "required",
		"decisions.tls.client_ca": "none", "decisions.template": "the engine's", "cluster": "off", "cluster.redis.url": "required",
		"cluster.redis.username": "the default one", "cluster.redis.password_file": "none", "cluster.redis.sentinel_password_file": "none",
		"cluster.redis.tls.ca": "the system's", "cluster.redis.tls.cert": "none", "cluster.redis.tls.key": "none",
		"cluster.redis.tls.server_name": "the host that is connected to",
		"tls":                           "off", "tls.cert": "required", "tls.key": "required", "tls.client_ca": "none",
		"admin.token_file": "none", "admin.tls": "off", "admin.tls.cert": "required", "admin.tls.key": "required",
		"admin.tls.client_ca": "none", "access_log": "off", "endpoints[].url": "required", "balance.check": "off",
		"balance.check.path": "required", "transport.tls.ca": "the system's", "transport.tls.cert": "none",
		"transport.tls.key": "none", "transport.tls.server_name": "the endpoint's host",
		"priority": "", "fallback.static.content_type": "`text/plain; charset=utf-8`", "fallback.cache": "off", "fallback.static": "off",
	}
	for _, section := range of {
		for i := range section {
			if def, ok := said[section[i].key]; ok {
				section[i].def = def
			} else {
				section[i].def = "`" + section[i].def + "`"
			}
		}
	}
	return []string{"## The gateway", "## A target", "## A route"}, of
}

// The reference has a row, with the range and default of the table, and a sentence, for every key, and no others.
func TestReferenceIsComplete(t *testing.T) {
	sections, of := reference(t)
	if *update {
		for _, s := range sections {
			fmt.Printf("%s\n\n| key | value | default | meaning |\n|---|---|---|---|\n", s)
			for _, r := range of[s] {
				fmt.Printf("| `%s` | %s | %s |  |\n", r.key, r.kind, r.def)
			}
			fmt.Println()
		}
	}
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for _, s := range sections {
		_, rest, ok := strings.Cut(doc, s+"\n")
		if !ok {
			t.Fatalf("no section %q", s)
		}
		section, _, _ := strings.Cut(rest, "\n## ")
		want := of[s]
		for _, line := range strings.Split(section, "\n") {
			if !strings.HasPrefix(line, "| `") {
				continue
			}
			cells := strings.Split(strings.Trim(line, "|"), " | ")
			if len(cells) != 4 {
				t.Errorf("%s: %d cells: %s", s, len(cells), line)
				continue
			}
			got := row{strings.Trim(cells[0], " `"), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])}
			if len(want) == 0 || got != want[0] {
				t.Errorf("%s: row\n%+v\nwant, in this place,\n%+v", s, got, want[:min(1, len(want))])
				break
			}
			if strings.TrimSpace(cells[3]) == "" {
				t.Errorf("%s: %s: no sentence", s, got.key)
			}
			want = want[1:]
		}
		if len(want) > 0 {
			t.Errorf("%s: no rows for %+v", s, want)
		}
	}
}

// The examples of the reference are read by the very parser.
func TestReferenceExamplesParse(t *testing.T) {
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(found) == 0 {
		t.Fatal("no examples")
	}
	for _, m := range found {
		if _, err := Parse("docs/configuration.md", []byte(m[1])); err != nil {
			t.Errorf("%v\nin\n%s", err, m[1])
		}
	}
}

// Both ends of every range are accepted by the engine too: a value that the file allows is never refused in the words of Go.
func TestEngineAcceptsTheRangesOfTheTable(t *testing.T) {
	// What has to move along.
	beside := map[string]string{
		"retry.base_delay": "max_delay: 24h", "retry.max_delay": "base_delay: 1ms", "timeout.min": "max: 24h",
		"timeout.max": "min: 1ms", "timeout.bootstrap": "min: 1ms, max: 24h", "limit.max": "min: 1",
		"breaker.confidence": "theta_fast: 0.5, theta_slow: 0.5", "breaker.theta_fast": "confidence: 0.01", "breaker.theta_slow": "confidence: 0.01",
	}
	inside := func(v number) [2]string {
		lo, hi := v.lo, v.hi
		if v.above {
			lo += 1e-3
		}
		if v.below {
			hi -= 1e-3
		}
		return [2]string{formatNumber(lo), formatNumber(hi)}
	}
	ends := func(v value) (e [2]string, ok bool) {
		switch v := v.(type) {
		case duration:
			return [2]string{formatDuration(v.lo), formatDuration(v.hi)}, true
		case size:
			return [2]string{formatSize(v.lo), formatSize(v.hi)}, true
		case count:
			return [2]string{fmt.Sprint(v.lo), fmt.Sprint(v.hi)}, true
		case number:
			return inside(v), true
		case orNone[int]:
			c := v.value.(count)
			return [2]string{fmt.Sprint(c.lo), fmt.Sprint(c.hi)}, true
		case orNone[float64]:
			return inside(v.value.(number)), true
		}
		return e, false
	}
	tried := 0
	var walk func(b block, path []string)
	walk = func(b block, path []string) {
		for _, e := range b {
			if inner, ok := e.value.(block); ok {
				walk(inner, append(slices.Clip(path), e.key))
				continue
			}
			both, ok := ends(e.value)
			if !ok {
				continue
			}
			for _, end := range both {
				text := e.key + ": " + end
				if more := beside[strings.Join(append(slices.Clip(path), e.key), ".")]; more != "" {
					text += ", " + more
				}
				for _, outer := range slices.Backward(path) {
					text = outer + ": {" + text + "}"
				}
				for _, profile := range []string{"adaptive", "article"} {
					file := "targets: {a: {endpoints: [http://h], profile: " + profile + ", " + text + "}}"
					if _, err := Parse("", []byte(file)); err != nil {
						t.Errorf("%s: %v", file, err)
					}
					tried++
				}
			}
		}
	}
	walk((&Target{}).block(), nil)
	if tried < 80 {
		t.Errorf("tried only %d", tried)
	}
}

// Names that the engine knows and the file does not would be out of reach without anyone noticing.
func TestEveryNameOfTheEngineIsOffered(t *testing.T) {
	target := &Target{}
	find := func(field string) value {
		var v value
		var walk func(block)
		walk = func(b block) {
			for _, e := range b {
				if e.field == field {
					v = e.value
				}
				if inner, ok := e.value.(block); ok {
					walk(inner)
				}
			}
		}
		walk(target.block())
		return v
	}
	var laws, profiles []string
	for l := range backoff.Law(math.MaxUint8) {
		if _, err := backoff.ParseLaw(l.String()); err == nil {
			laws = append(laws, l.String())
		}
	}
	for p := range cortex.Profile(math.MaxUint8) {
		if _, err := cortex.ParseProfile(p.String()); err == nil {
			profiles = append(profiles, p.String())
		}
	}
	if got := find("Backoff.Law").(choice[backoff.Law]).names(); !slices.Equal(got, laws) {
		t.Errorf("laws %v, want %v", got, laws)
	}
	if got := find("Profile").(choice[cortex.Profile]).names(); !slices.Equal(got, profiles) {
		t.Errorf("profiles %v, want %v", got, profiles)
	}
	for _, name := range presets {
		if _, err := cortex.PresetWeights(name); err != nil {
			t.Error(err)
		}
	}
}

// Every field that the table names is one of cortex.Config, or a fault in it would be reported without its key.
func TestFieldsOfTheTableExist(t *testing.T) {
	for field := range fieldKeys((&Target{}).block(), "") {
		c := cortex.Config{}
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("%s: %v", field, r)
				}
			}()
			if !clearField(&c, field) {
				t.Errorf("cortex.Config has no field %s", field)
			}
		}()
	}
}
