package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
)

func problemsOf(text string) string {
	_, err := config.Parse("t.yaml", []byte(text))
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestDecisionProblems(t *testing.T) {
	for text, want := range map[string]string{
		"decisions: {listen: ':9096'}": "t.yaml:1:13: decisions.listen: :9096: refused beyond loopback without a token_file or tls.client_ca: " +
			"want one of these, or an address such as 127.0.0.1:9096",
		"decisions: {listen: ':9096', tls: {cert: c, key: k}}": "t.yaml:1:13: decisions.listen: :9096: refused beyond loopback without a token_file or " +
			"tls.client_ca: want one of these, or an address such as 127.0.0.1:9096",
		"decisions: {listen: ':9096', tokn_file: t}":                         "t.yaml:1:30: decisions.tokn_file: unknown key: did you mean token_file?",
		"decisions: {listen: ':9096', token_file: t}":                        "",
		"decisions: {listen: ':9096', tls: {cert: c, key: k, client_ca: a}}": "",
		"decisions: {listen: '127.0.0.1:8080'}":                              "t.yaml:1:13: decisions.listen: 127.0.0.1:8080: the same port as listen, 127.0.0.1:8080: want another",
		"decisions: {listen: 'localhost:9095'}":                              "t.yaml:1:13: decisions.listen: localhost:9095: the same port as admin.listen, 127.0.0.1:9095: want another",
		"admin: {enabled: false}\ndecisions: {listen: 'localhost:9095'}":     "",
		"decisions: {listen: '127.0.0.1:9000'}": "t.yaml:2:27: targets.a.endpoints[0]: http://127.0.0.1:9000: the decision service, which listens on 127.0.0.1:9000: " +
			"want the address of the service",
		"decisions: {unknown: ask}":        "t.yaml:1:13: decisions.unknown: ask: unknown: want one of create, refuse",
		"decisions: {max_targets: 0}":      "t.yaml:1:13: decisions.max_targets: 0: out of range: want a whole number from 1 to 100000",
		"decisions: {max_targets: 100001}": "t.yaml:1:13: decisions.max_targets: 100001: out of range: want a whole number from 1 to 100000",
		"decisions: true":                  "t.yaml:1:1: decisions: true: want a block of keys",
		"decisions: {tls: {}}": "t.yaml:1:13: decisions.tls.cert: missing: want the path of a PEM file with the certificate and what leads to its authority\n" +
			"t.yaml:1:13: decisions.tls.key: missing: want the path of a PEM file with the certificate's private key",
		"decisions: {template: {endpoints: [http://h]}}":                  "t.yaml:1:24: decisions.template.endpoints: unknown key: want one of profile, levels, weights, retry, budget, breaker, timeout, deadline, limit, concurrency, shed, remote",
		"decisions: {template: {retry: {non_idempotent: true}}}":          "t.yaml:1:32: decisions.template.retry.non_idempotent: unknown key: want one of max_retries, backoff, base_delay, max_delay",
		"decisions: {template: {timeout: {min: 2s, max: 1s}}}":            "t.yaml:1:43: decisions.template.timeout.max: 1s: below min 2s: want at least that",
		"decisions: {template: {retry: {base_delay: 5s, max_delay: 1s}}}": "t.yaml:1:48: decisions.template.retry.max_delay: 1s: want at least base_delay",
		"decisions:": "",
	} {
		got := problemsOf(text + "\n" + target)
		if strings.Contains(text, "timeout: {min") || strings.Contains(text, "base_delay: 5s") { // in whatever words, in its place
			if !strings.HasPrefix(got, "t.yaml:1:") || !strings.Contains(got, ": decisions.template.") || strings.Contains(got, "\n") {
				t.Errorf("%s:\n%s", text, got)
			}
			continue
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
}

func TestDecisionsMayBeAllThereIs(t *testing.T) {
	for text, want := range map[string]string{
		"decisions: {}":                                    "",
		"decisions: {}\ntargets: {}":                       "",
		"decisions: {listen: '127.0.0.1:8080'}":            "", // nothing else is there
		"admin: {listen: '127.0.0.1:8080'}\ndecisions: {}": "",
		"decisions: {unknown: refuse}":                     "t.yaml:1:13: decisions.unknown: refuse: there are no targets that would not be: want targets, or create",
		"decisions: {}\nroutes: [{path: /}]":               "t.yaml:2:1: routes: without targets: want targets, or no routes either",
		"cluster: {redis: {url: 'redis://h'}}":             "t.yaml:1:1: targets: missing: want at least one target with endpoints",
		"decisions: {}\ntargets: {a: {}}":                  "t.yaml:2:11: targets.a.endpoints: missing: want at least one URL such as http://127.0.0.1:9000",
	} {
		if got := problemsOf(text); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
	f := parse(t, "decisions: {template: {levels: 3}}")
	if len(f.Targets) != 0 || len(f.Routes) != 0 || f.Decisions.Template.Levels != 3 || !f.Decisions.Create {
		t.Errorf("%+v", f)
	}
	text, err := f.Effective()
	if err != nil {
		t.Fatal(err)
	}
	if again := parse(t, string(text)); again.Decisions.Template.Levels != 3 {
		t.Errorf("printed as\n%s", text)
	}
	c := f.Decisions.Template
	c.Name = "made"
	if _, err := cortex.New(c); err != nil {
		t.Error(err)
	}
}

func TestClusterURLs(t *testing.T) {
	for _, good := range []string{
		"redis://127.0.0.1:6379", "redis://redis.internal", "redis://h/0", "redis://h:1/15", "redis://[::1]:6379/3", "rediss://h:6380/0",
		"redis+cluster://a,b:7000,[fd00::1]:7001", "rediss+cluster://a", "redis+sentinel://a,b,c/main", "redis+sentinel://a:26379/main/2",
		"rediss+sentinel://a/main", "redis+unix:///run/redis.sock",
	} {
		f := parse(t, "cluster: {redis: {url: '"+good+"'}}\n"+target)
		want := config.Cluster{Prefix: "cortex", Interval: 250 * time.Millisecond, Window: time.Minute,
			Redis: config.Redis{URL: good, Timeout: 50 * time.Millisecond}}
		if *f.Cluster != want {
			t.Errorf("%s: %+v", good, *f.Cluster)
		}
	}
	for _, tls := range []string{"", "{}", "{ca: a}", "{cert: b, key: c}", "{server_name: h.example}", "{server_name: 10.0.0.1}", "{ca: a, cert: b, key: c, server_name: s}"} {
		parse(t, "cluster: {redis: {url: 'rediss+cluster://a,b', tls: "+tls+"}}\n"+target)
	}
	parse(t, "cluster: {redis: {url: 'redis://h', tls: {}}}\n"+target) // nothing is asked for
	for bad, want := range map[string]string{
		"redis://:s3cret@h":                    "redis://…@h: a user or password does not belong here: want username and password_file beside it",
		"redis://user:s3cret@h/0?x=y":          "redis://…@h/0?…: a user or password does not belong here: want username and password_file beside it",
		"redis+sentinel://u:s3cret@h/m":        "…@h/m: a user or password does not belong here: want username and password_file beside it",
		"redis+sentinel://h/m?password=s3cret": "redis+sentinel://h/m?…: a query, a fragment or an escape does not belong here: ",
		"h:6379":                               "h:6379: not a URL: ",
		"http://h":                             "http://h: none of the schemes there are: ",
		"redis+cluster+x://h":                  "redis+cluster+x://h: none of the schemes there are: ",
		"redis://":                             "redis://: not a host and a port: ",
		"redis://h:":                           "redis://h:: not a host and a port: ",
		"redis://h:0":                          "redis://h:0: not a host and a port: ",
		"redis://h:65536":                      "redis://h:65536: not a host and a port: ",
		"redis://a,b":                          "redis://a,b: too many hosts: ",
		"redis://h/x":                          "redis://h/x: not the number of a database: ",
		"redis://h/01":                         "redis://h/01: not the number of a database: ",
		"redis://h/-1":                         "redis://h/-1: not the number of a database: ",
		"redis+cluster://a,,b":                 "redis+cluster://a,,b: not a host and a port: ",
		"redis+cluster://a/1":                  "redis+cluster://a/1: a cluster has no databases: ",
		"redis+sentinel://a":                   "redis+sentinel://a: the name of the master is missing: ",
		"redis+sentinel://a/m/x":               "redis+sentinel://a/m/x: not the number of a database: ",
		"redis+unix://run/redis.sock":          "redis+unix://run/redis.sock: not the path of a socket: ",
		"rediss+unix:///run/redis.sock":        "rediss+unix:///run/redis.sock: none of the schemes there are: ",
		"redis+unix:///run/../redis.sock":      "redis+unix:///run/../redis.sock: not the path of a socket: ",
	} {
		got := problemsOf("cluster: {redis: {url: '" + bad + "'}}\n" + target)
		if want = "t.yaml:1:19: cluster.redis.url: " + want; !strings.HasPrefix(got, want) || strings.Contains(got, "\n") || strings.Contains(got, "s3cret") {
			t.Errorf("%s:\n%s\nwant\n%s", bad, got, want)
		}
	}
}

func TestClusterProblems(t *testing.T) {
	const redis = "redis: {url: 'redis://h'}, "
	for text, want := range map[string]string{
		"{}":          "t.yaml:1:1: cluster.redis.url: missing: want where Redis is, such as redis://127.0.0.1:6379",
		"{redis: {}}": "t.yaml:1:11: cluster.redis.url: missing: want where Redis is, such as redis://127.0.0.1:6379",
		"{redis: {url: 'redis://h', password: s3cret}}":                 "t.yaml:1:37: cluster.redis.password: unknown key: did you mean password_file?",
		"{redis: {url: 'redis://h', username: u}}":                      "t.yaml:1:37: cluster.redis.username: without password_file: want both, or a password_file alone",
		"{redis: {url: 'redis://h', sentinel_password_file: f}}":        "t.yaml:1:37: cluster.redis.sentinel_password_file: there are no sentinels: want a url redis+sentinel://…, or password_file",
		"{redis: {url: 'redis://h', tls: {ca: c}}}":                     "t.yaml:1:37: cluster.redis.tls: the url is not over TLS: want rediss in place of redis there, or no tls",
		"{redis: {url: 'redis+sentinel://h/m', tls: {server_name: s}}}": "t.yaml:1:48: cluster.redis.tls: the url is not over TLS: want rediss in place of redis there, or no tls",
		"{redis: {url: 'redis+unix:///s', tls: {ca: c}}}":               "t.yaml:1:43: cluster.redis.tls: the url is not over TLS: want rediss in place of redis there, or no tls",
		"{redis: {url: 'rediss://h', tls: {key: k}}}":                   "t.yaml:1:44: cluster.redis.tls.key: without cert: want both or none",
		"{redis: {url: 'rediss://h', tls: {cert: c}}}":                  "t.yaml:1:44: cluster.redis.tls.cert: without key: want both or none",
		"{redis: {url: 'rediss://h', tls: {client_ca: c}}}":             "t.yaml:1:44: cluster.redis.tls.client_ca: unknown key: want one of ca, cert, key, server_name",
		"{redis: {url: 'rediss://h', tls: {ca: ''}}}":                   "t.yaml:1:44: cluster.redis.tls.ca: \"\": not a file: want its path",
		"{redis: {url: 'rediss://h', tls: {server_name: 'h:1'}}}":       "t.yaml:1:44: cluster.redis.tls.server_name: h:1: not a host name: want one such as payments.internal, without a port",
		"{" + redis + "interval: 1500us}":                               "t.yaml:1:38: cluster.interval: 1500us: out of range: want a duration from 10ms to 1m in whole milliseconds",
		"{" + redis + "interval: 10500us}":                              "t.yaml:1:38: cluster.interval: 10500us: a part of a millisecond: want a duration from 10ms to 1m in whole milliseconds",
		"{" + redis + "mode: shared}":                                   "t.yaml:1:38: cluster.mode: shared: unknown: want one of counts, exact",
		"{" + redis + "prefix: 'a b'}":                                  "t.yaml:1:38: cluster.prefix: a b: not a prefix: want up to 64 letters, digits and ._:-",
		"{" + redis + "prefix: 'a{b}'}":                                 "t.yaml:1:38: cluster.prefix: a{b}: not a prefix: want up to 64 letters, digits and ._:-",
		"{" + redis + "prefix: '" + strings.Repeat("x", 65) + "'}":      "t.yaml:1:38: cluster.prefix: " + strings.Repeat("x", 60) + "…: not a prefix: want up to 64 letters, digits and ._:-",
	} {
		if got := problemsOf("cluster: " + text + "\n" + target); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
}

func TestPathsOfDecisionsAndCluster(t *testing.T) {
	f := parse(t, "decisions: {token_file: t, tls: {cert: c, key: k, client_ca: a}}\n"+
		"cluster: {redis: {url: 'rediss+sentinel://h/m', username: u, password_file: p, sentinel_password_file: s, tls: {ca: rca, cert: rc, key: rk}}}\n"+target)
	if got, want := f.Paths(), []string{"t", "c", "k", "a", "p", "s", "rca", "rc", "rk"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestReadPassword(t *testing.T) {
	path := filepath.Join(t.TempDir(), "password")
	for content, want := range map[string]string{
		"geheim\n": "geheim", " p@ss word é \r\n": "p@ss word é", "": "config: password file FILE: want a password: there is none",
		"a\nb":                    "config: password file FILE: want one line of text, the password, and nothing else",
		"\xff":                    "config: password file FILE: want one line of text, the password, and nothing else",
		strings.Repeat("x", 1025): "config: password file FILE: want a password of at most 1024 bytes and nothing else",
		strings.Repeat("x", 1024): strings.Repeat("x", 1024),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := config.ReadPassword(path)
		if err != nil {
			got += strings.ReplaceAll(err.Error(), path, "FILE")
		}
		if got != want {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
	if _, err := config.ReadPassword(path + "-"); !os.IsNotExist(err) && !strings.Contains(err.Error(), "config: password file: open "+path) {
		t.Error(err)
	}
}
