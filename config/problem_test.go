package config_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// problems parses what must not parse.
func problems(t *testing.T, text string) config.Errors {
	t.Helper()
	f, err := config.Parse("t.yaml", []byte(text))
	var found config.Errors
	if !errors.As(err, &found) || f != nil || len(found) == 0 {
		t.Fatalf("%v, %v: want problems in\n%.2000s", f, err, text)
	}
	return found
}

// A refused value hid other problems, which came to light one run after the other, or was judged by a default that nobody wrote.
func TestRefusedValueNeitherHidesNorInventsProblems(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string // keys
	}{
		"name of a target": {"targets: {bad name: {levels: 5}}", []string{"targets.bad name", "targets.bad name.endpoints"}},
		"weights": {"targets: {a: {endpoints: [http://h], weights: {F: 2, L: 0.1}}}",
			[]string{"targets.a.weights", "targets.a.weights.F"}},
		"weights, misspelt": {"targets: {a: {endpoints: [http://h], weights: {f: 0.2, L: 0.2, Q: 0.2, B: 0.2, C: 0.2}}}",
			[]string{"targets.a.weights.f"}},
		"listen": {"listen: nonsense\nadmin: {listen: 127.0.0.1:8080}\ntargets: {a: {endpoints: [http://127.0.0.1:8080]}}",
			[]string{"listen"}},
		"admin.listen": {"listen: 127.0.0.1:9095\nadmin: {listen: nonsense}\n" + target, []string{"admin.listen"}},
		"levels":       {"targets: {a: {endpoints: [http://h], levels: 99}}\nroutes: [{path: /, priority: 12}]", []string{"targets.a.levels"}},
		"profile": {"targets: {a: {endpoints: [http://h], profile: artcle, breaker: {confidence: 0.9999999999999}}}",
			[]string{"targets.a.profile"}},
	} {
		var keys []string
		found := problems(t, c.text)
		for _, p := range found {
			keys = append(keys, p.Key)
		}
		if slices.Sort(keys); !slices.Equal(keys, c.want) {
			t.Errorf("%s: problems with %q, want %q:\n%v", name, keys, c.want, found)
		}
	}
}

func TestMessages(t *testing.T) {
	const at = "targets:\n  a:\n    endpoints: [http://127.0.0.1:9000]\n    " // what follows is in line 4, column 5
	const route = target + "routes:\n  - path: /\n    "                       // likewise
	for name, c := range map[string]struct{ text, want string }{
		// F08: "timeout: 600" in the file became 600 ns.
		"bare number for a duration": {at + "breaker: {open_for: 600}",
			"t.yaml:4:15: targets.a.breaker.open_for: 600: missing unit: want a duration such as 5s or 100ms"},
		"quoted number for a duration": {at + `retry: {max_delay: "5"}`,
			"t.yaml:4:13: targets.a.retry.max_delay: 5: missing unit: want a duration such as 5s or 100ms"},
		"0 for a duration": {"drain: {delay: 0}\n" + target,
			"t.yaml:1:9: drain.delay: 0: missing unit: want a duration such as 5s or 100ms"},
		"negative bare number": {at + "deadline: -1.5e3", "t.yaml:4:5: targets.a.deadline: -1.5e3: missing unit: want a duration such as 5s or 100ms"},
		"30ns is too little": {at + "timeout: {max: 30ns}",
			"t.yaml:4:15: targets.a.timeout.max: 30ns: out of range: want a duration from 1ms to 24h"},
		"negative duration":  {at + "deadline: -1s", "t.yaml:4:5: targets.a.deadline: -1s: out of range: want a duration from 0s to 24h"},
		"unknown unit":       {at + "deadline: 1d", "t.yaml:4:5: targets.a.deadline: 1d: not a duration: want one such as 5s, 100ms or 1h30m (units ms, s, m, h)"},
		"endless duration":   {at + "deadline: 99999999999h", "t.yaml:4:5: targets.a.deadline: 99999999999h: not a duration: want one such as 5s, 100ms or 1h30m (units ms, s, m, h)"},
		"list for duration":  {at + "deadline: [1s]", "t.yaml:4:5: targets.a.deadline: a list: want a duration from 0s to 24h"},
		"block for duration": {at + "deadline: {a: 1s}", "t.yaml:4:5: targets.a.deadline: a block of keys: want a duration from 0s to 24h"},
		"no duration":        {at + "deadline:", "t.yaml:4:5: targets.a.deadline: no value: want a duration from 0s to 24h, or leave the key out for the default"},

		"bare number for a size": {at + "retry: {replay_limit: 65536}",
			"t.yaml:4:13: targets.a.retry.replay_limit: 65536: missing unit: want a size such as 64KiB or 512B"},
		"decimal unit": {at + "retry: {replay_limit: 64KB}",
			"t.yaml:4:13: targets.a.retry.replay_limit: 64KB: not a size: want a whole number and a unit, such as 64KiB (units B, KiB, MiB, GiB)"},
		"size too large": {at + "retry: {replay_limit: 99999999999999GiB}",
			"t.yaml:4:13: targets.a.retry.replay_limit: 99999999999999GiB: out of range: want a size from 0B to 64MiB"},
		"size too small": {"server: {max_header_bytes: 1B}\n" + target,
			"t.yaml:1:10: server.max_header_bytes: 1B: out of range: want a size from 1KiB to 16MiB"},

		// F06: what is no number, or not a sensible one.
		"NaN":       {at + "remote: {trust: .nan}", "t.yaml:4:14: targets.a.remote.trust: .nan: not a number: want a number from 0 to 1"},
		"NaN of Go": {at + "remote: {trust: NaN}", "t.yaml:4:14: targets.a.remote.trust: NaN: not a number: want a number from 0 to 1"},
		"infinity":  {at + "budget: {capacity: .inf}", "t.yaml:4:14: targets.a.budget.capacity: .inf: not a number: want a number from 1 to 1000000000"},
		"overflow":  {at + "budget: {capacity: 1e999}", "t.yaml:4:14: targets.a.budget.capacity: 1e999: out of range: want a number from 1 to 1000000000"},
		"explicit 0 where 0 is nothing": {at + "budget: {ratio: 0}",
			"t.yaml:4:14: targets.a.budget.ratio: 0: out of range: want a number above 0 and at most 1"},
		"just outside":    {at + "budget: {ratio: 1.1}", "t.yaml:4:14: targets.a.budget.ratio: 1.1: out of range: want a number above 0 and at most 1"},
		"open upper end":  {at + "breaker: {threshold: 1}", "t.yaml:4:15: targets.a.breaker.threshold: 1: out of range: want a number above 0 and below 1"},
		"negative count":  {at + "retry: {max_retries: -1}", "t.yaml:4:13: targets.a.retry.max_retries: -1: out of range: want a whole number from 0 to 1000"},
		"endless retries": {at + "retry: {max_retries: 2147483647}", "t.yaml:4:13: targets.a.retry.max_retries: 2147483647: out of range: want a whole number from 0 to 1000"},
		"beyond an int":   {at + "levels: 99999999999999999999", "t.yaml:4:5: targets.a.levels: 99999999999999999999: out of range: want a whole number from 1 to 31"},
		"half a retry":    {at + "retry: {max_retries: 1.5}", "t.yaml:4:13: targets.a.retry.max_retries: 1.5: not a whole number: want a whole number from 0 to 1000"},
		"octal":           {at + "levels: 010", "t.yaml:4:5: targets.a.levels: 010: not a whole number: want a whole number from 1 to 31"},
		"hexadecimal":     {at + "levels: 0x1F", "t.yaml:4:5: targets.a.levels: 0x1F: not a number: want a whole number from 1 to 31"},
		"quoted count":    {at + `levels: "5"`, `t.yaml:4:5: targets.a.levels: "5": not a number: want a whole number from 1 to 31`},
		"yes":             {at + "timeout: {enabled: yes}", "t.yaml:4:15: targets.a.timeout.enabled: yes: want true or false"},
		"levels":          {at + "levels: 32", "t.yaml:4:5: targets.a.levels: 32: out of range: want a whole number from 1 to 31"},

		"unknown profile": {at + "profile: adaptve", "t.yaml:4:5: targets.a.profile: adaptve: unknown: did you mean adaptive? want one of adaptive, article"},
		"unknown backoff": {at + "retry: {backoff: linear}",
			"t.yaml:4:13: targets.a.retry.backoff: linear: unknown: want one of pressure, exponential, full-jitter, equal-jitter, decorrelated"},
		"unknown preset": {at + "weights: heavy",
			"t.yaml:4:5: targets.a.weights: heavy: unknown: want a preset (default, read-heavy, transactional) or a block of F, L, Q, B and C"},
		"unknown shed signal": {at + "shed: {signal: cps}", "t.yaml:4:12: targets.a.shed.signal: cps: unknown: want one of queue, pressure"},
		"unknown level":       {"log: {level: WARN}\n" + target, "t.yaml:1:7: log.level: WARN: unknown: did you mean warn? want one of debug, info, warn, error"},

		"weight missing": {at + "weights: {F: 0.5, L: 0.5}", "t.yaml:4:5: targets.a.weights: Q, B, C are missing: want all of F, L, Q, B and C, with a sum of 1"},
		"weights of 1.1": {at + "weights: {F: 0.4, L: 0.2, Q: 0.15, B: 0.15, C: 0.2}", "t.yaml:4:5: targets.a.weights: want a sum of 1 (it is 1.1)"},
		"weights of 0":   {at + "weights: {F: 0, L: 0, Q: 0, B: 0, C: 0}", "t.yaml:4:5: targets.a.weights: all are 0: want a sum of 1"},
		"negative weight": {at + "weights: {F: -0.3, L: 0.5, Q: 0.3, B: 0.3, C: 0.2}",
			"t.yaml:4:15: targets.a.weights.F: -0.3: out of range: want a number from 0 to 1"},
		"weight too fine": {at + "weights: {F: 0.30001, L: 0.2, Q: 0.15, B: 0.15, C: 0.2}",
			"t.yaml:4:15: targets.a.weights.F: 0.30001: want at most four decimals"},

		// How values go together is for the engine to say, in the words of the file.
		"maximum below base": {at + "retry: {base_delay: 2s, max_delay: 1s}",
			"t.yaml:4:29: targets.a.retry.max_delay: 1s: want at least base_delay, which is 2s"},
		"maximum by default below base": {at + "retry: {base_delay: 2m}",
			"t.yaml:4:5: targets.a.retry.max_delay: 30s: want at least base_delay, which is 2m"},
		"a breaker that could not open": {at + "breaker: {theta_fast: 0.99, theta_slow: 0.98}",
			`t.yaml:4:15: targets.a.breaker.theta_fast: 0.99: want between 0.01 and 0.9316 (at confidence 0.99, over 64 outcomes)
t.yaml:4:33: targets.a.breaker.theta_slow: 0.98: want between 0.01 and 0.9316 (at confidence 0.99, over 64 outcomes)`},
		"timeouts crossed": {at + "timeout: {min: 6s}", "t.yaml:4:15: targets.a.timeout.min: 6s is above max 5s; lower min or raise max"},
		"bootstrap outside": {at + "timeout: {max: 2s, bootstrap: 3s}",
			"t.yaml:4:24: targets.a.timeout.bootstrap: 3s is above max 2s; lower bootstrap or raise max"},
		"limits crossed": {at + "limit: {min: 9, max: 3}", "t.yaml:4:21: targets.a.limit.max: 3: want not below min, 9"},
		"no fault of a default beside a misspelt key": {at + "retry: {base_delay: 2m, max_dely: 3m}",
			"t.yaml:4:29: targets.a.retry.max_dely: unknown key: did you mean max_delay?"},

		"no host in an address":  {"listen: 8080\n" + target, "t.yaml:1:1: listen: 8080: not an address: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},
		"address without port":   {"listen: localhost\n" + target, "t.yaml:1:1: listen: localhost: not an address: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},
		"empty address":          {"listen: ''\n" + target, `t.yaml:1:1: listen: "": not an address: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces`},
		"port out of range":      {"listen: :65536\n" + target, "t.yaml:1:1: listen: :65536: not a port from 0 to 65535: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},
		"named port":             {"listen: :http\n" + target, "t.yaml:1:1: listen: :http: not a port from 0 to 65535: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},
		"not a host":             {"listen: \"a b:80\"\n" + target, "t.yaml:1:1: listen: a b:80: not a host: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},
		"admin on the same port": {"listen: :9095\n" + target, "t.yaml:1:1: admin.listen: 127.0.0.1:9095: the same port as listen, :9095: want another"},

		"admin on all interfaces": {"admin: {listen: ':8080'}\n" + target,
			"t.yaml:1:9: admin.listen: :8080: refused beyond loopback without a token_file or tls.client_ca: want one of these, or an address such as 127.0.0.1:9095\n" +
				"t.yaml:1:9: admin.listen: :8080: the same port as listen, 127.0.0.1:8080: want another"},
		"admin by another name": {"admin: {listen: localhost:8080}\n" + target,
			"t.yaml:1:9: admin.listen: localhost:8080: the same port as listen, 127.0.0.1:8080: want another"},
		"port of an endpoint": {"targets: {a: {endpoints: ['http://h:65536', 'https://h:']}}",
			`t.yaml:1:27: targets.a.endpoints[0]: http://h:65536: not a port from 1 to 65535: want http://host:port, https://host:port or h2c://host:port, perhaps with a path
t.yaml:1:45: targets.a.endpoints[1]: https://h:: not a port from 1 to 65535: want http://host:port, https://host:port or h2c://host:port, perhaps with a path`},
		"host of an endpoint": {"targets: {a: {endpoints: ['http:///x', 'http:h']}}",
			`t.yaml:1:27: targets.a.endpoints[0]: http:///x: no host: want http://host:port, https://host:port or h2c://host:port, perhaps with a path
t.yaml:1:40: targets.a.endpoints[1]: http:h: no host: want http://host:port, https://host:port or h2c://host:port, perhaps with a path`},
		"nested too deeply": {"log: " + strings.Repeat("[", 20) + strings.Repeat("]", 20) + "\n" + target,
			"t.yaml:1:1: log: a list: want a block of keys\nt.yaml:1:25: log" + strings.Repeat("[0]", 19) + ": nested too deeply"},

		"no endpoints":   {"targets:\n  a: {}\n", "t.yaml:2:3: targets.a.endpoints: missing: want at least one URL such as http://127.0.0.1:9000"},
		"empty target":   {"targets:\n  a:\n", "t.yaml:2:3: targets.a.endpoints: missing: want at least one URL such as http://127.0.0.1:9000"},
		"zero endpoints": {"targets:\n  a: {endpoints: []}\n", "t.yaml:2:7: targets.a.endpoints: an empty list: want a list of 1 to 100 URLs, or leave the key out"},
		"one endpoint without a list": {"targets:\n  a: {endpoints: http://h}\n",
			"t.yaml:2:7: targets.a.endpoints: http://h: want a list of 1 to 100 URLs"},
		"endpoint twice": {"targets:\n  a: {endpoints: [http://h, 'http://H:80/']}\n",
			"t.yaml:2:29: targets.a.endpoints[1]: http://H:80/: given twice: first as endpoints[0]"},
		"endpoint is the gateway": {"listen: :9000\n" + target,
			"t.yaml:2:27: targets.a.endpoints[0]: http://127.0.0.1:9000: the gateway itself, which listens on :9000: want the address of the service"},
		"not a target's name": {"targets:\n  -a: {endpoints: [http://h]}\n",
			"t.yaml:2:3: targets.-a: not a name: want up to 63 letters, digits and -_. with a letter or digit first"},
		"no targets":             {"listen: :1\n", "t.yaml:1:1: targets: missing: want at least one target with endpoints"},
		"empty targets":          {"log:\ntargets:\n", "t.yaml:2:1: targets: empty: want at least one target with endpoints"},
		"a list of targets":      {"targets: [a]\n", "t.yaml:1:1: targets: a list: want a block of keys"},
		"two targets, no routes": {"targets:\n  a: {endpoints: [http://a]}\n  b: {endpoints: [http://b]}\n", "t.yaml:1:1: routes: missing: there are 2 targets: want a path for each, such as {path: /, target: a}"},

		"unknown target": {route + "target: b", "t.yaml:4:5: routes[0].target: b: no such target: there is a"},
		"misspelt target": {"targets: {payments: {endpoints: [http://a]}, ledger: {endpoints: [http://b]}}\nroutes: [{path: /, target: paymnets}]",
			"t.yaml:2:20: routes[0].target: paymnets: no such target: did you mean payments? there are payments, ledger"},
		"target left out": {"targets: {a: {endpoints: [http://a]}, b: {endpoints: [http://b]}}\nroutes: [{path: /}]",
			"t.yaml:2:10: routes[0].target: missing: want the name of a target: a, b"},
		"no path":            {target + "routes: [{target: a}]", "t.yaml:2:10: routes[0].path: missing: want a path prefix such as / or /api"},
		"route is no block":  {target + "routes: [/api]", "t.yaml:2:10: routes[0]: /api: want a block of keys"},
		"path without slash": {target + "routes: [{path: api}]", "t.yaml:2:11: routes[0].path: api: not a path: want one that begins with /"},
		"wildcard":           {target + "routes: [{path: /api/*}]", "t.yaml:2:11: routes[0].path: /api/*: no wildcards: a path is a prefix, /api is /api and all below it"},
		"path with a query":  {target + "routes: [{path: '/a?b=secret'}]", "t.yaml:2:11: routes[0].path: /a?…: want the path alone, without a query and without escapes"},
		"dots in a path":     {target + "routes: [{path: /a/../b//c}]", "t.yaml:2:11: routes[0].path: /a/../b//c: want it in its shortest form, /b/c"},
		"path twice":         {target + "routes:\n- path: /a\n- path: /b\n- path: /a/\n", "t.yaml:5:3: routes[2].path: /a: given twice: first as routes[0] on line 3"},
		"path and method twice": {target + "routes:\n- {path: /a, methods: [GET, HEAD]}\n- {path: /a}\n- {path: /a, methods: [POST, HEAD]}\n",
			"t.yaml:5:4: routes[2].path: HEAD /a: given twice: first as routes[0] on line 3"},
		"method twice":       {route + "methods: [GET, GET]", "t.yaml:4:20: routes[0].methods[1]: GET: given twice"},
		"method in small":    {route + "methods: [get]", "t.yaml:4:15: routes[0].methods[0]: get: not a method: want one in capitals, such as GET"},
		"no routes in there": {target + "routes: []", "t.yaml:2:1: routes: an empty list: want a list of 1 to 1000 routes, or leave the key out"},

		"priority beyond the levels": {route + "priority: 11", "t.yaml:4:5: routes[0].priority.default: 11: out of range: want from 0 to 10, the levels of target a"},
		"priority beyond any level":  {route + "priority: -1", "t.yaml:4:5: routes[0].priority: -1: out of range: want a whole number from 0 to 31"},
		"priority as a name":         {route + "priority: high", "t.yaml:4:5: routes[0].priority: high: not a number: want a whole number from 0 to 31"},
		"tier beyond the levels": {route + "priority: {header: X-P, tiers: {gold: 12}}",
			"t.yaml:4:37: routes[0].priority.tiers.gold: 12: out of range: want from 0 to 10, the levels of target a"},
		"tier like a number": {route + "priority: {header: X-P, tiers: {1: 2}}",
			"t.yaml:4:37: routes[0].priority.tiers.1: not a name: want up to 63 letters, digits and -_. with a letter first"},
		"tiers without header": {route + "priority: {tiers: {gold: 2}}",
			"t.yaml:4:16: routes[0].priority.tiers: without header: want the name of the header that holds the tier, such as header: X-Priority"},
		"not a header":  {route + "priority: {header: 'X Priority'}", "t.yaml:4:16: routes[0].priority.header: X Priority: not the name of a header: want one such as X-Priority"},
		"not a network": {route + "priority: {header: X-P, trust: [10.0.0.0/33]}", "t.yaml:4:37: routes[0].priority.trust[0]: 10.0.0.0/33: not a network: want one such as 10.0.0.0/8 or fd00::/8"},
		"an address":    {route + "priority: {header: X-P, trust: [10.0.0.1]}", "t.yaml:4:37: routes[0].priority.trust[0]: 10.0.0.1: not a network: want 10.0.0.1/32 for this one address"},
		"host bits":     {route + "priority: {header: X-P, trust: [10.1.2.3/8]}", "t.yaml:4:37: routes[0].priority.trust[0]: 10.1.2.3/8: bits beyond the prefix: want 10.0.0.0/8"},
		"mapped": {route + "priority: {header: X-P, trust: ['::ffff:10.0.0.0/104']}",
			"t.yaml:4:37: routes[0].priority.trust[0]: ::ffff:10.0.0.0/104: an IPv4 network in IPv6 clothes, which no client is in: want it as IPv4"},

		"static without status": {route + "fallback: {static: {body: x}}", "t.yaml:4:16: routes[0].fallback.static.status: missing: want the status to answer with, such as 202 or 503"},
		"status out of range":   {route + "fallback: {static: {status: 100}}", "t.yaml:4:25: routes[0].fallback.static.status: 100: out of range: want a whole number from 200 to 599"},
		"204 with a body":       {route + "fallback: {static: {status: 204, body: x}}", "t.yaml:4:38: routes[0].fallback.static.body: an answer 204 has no body: want none, or another status"},
		"number for a body":     {route + "fallback: {static: {status: 200, body: 5}}", "t.yaml:4:38: routes[0].fallback.static.body: 5: want text, in quotes if this is it"},
		"header injected": {route + `fallback: {static: {status: 200, content_type: "text/plain\r\nX: y"}}`,
			`t.yaml:4:38: routes[0].fallback.static.content_type: "text/plain\r\nX: y": not a media type: want one such as application/json`},

		// The form of the file.
		"empty file":             {"", "t.yaml:1:1: the file is empty: want at least targets"},
		"only comments":          {"# nothing\n\n", "t.yaml:1:1: the file is empty: want at least targets"},
		"empty document":         {"---\n", "t.yaml:1:1: the file is empty: want at least targets"},
		"not a mapping":          {"\n\n- a\n", "t.yaml:3:1: a list: want a block of keys"},
		"two documents":          {target + "---\nlisten: :1\n", "t.yaml:2:1: a second document begins here: want one document only"},
		"key twice":              {target + "listen: :1\nlog: {}\nlisten: :2\n", "t.yaml:4:1: listen: given twice: first on line 2"},
		"block twice":            {at + "retry: {}\n    limit: {}\n    retry: {}", "t.yaml:6:5: targets.a.retry: given twice: first on line 4"},
		"target twice":           {"targets:\n  a: {endpoints: [http://h]}\n  a: {endpoints: [http://h]}\n", "t.yaml:3:3: targets.a: given twice: first on line 2"},
		"alias":                  {"targets:\n  a: &a {endpoints: [http://h]}\n  b: *a\nroutes: [{path: /, target: a}]", "t.yaml:3:3: targets.b: aliases are not supported: write the value out"},
		"alias for a key":        {"listen: &x :1\n*x : 5\n" + target, "t.yaml:2:1: aliases are not supported: write the value out"},
		"unknown alias":          {target + "log: {}\nlisten: *nope\n", "t.yaml:3: aliases are not supported: write the value out"},
		"merge key":              {target + "log: &l {}\nadmin:\n  <<: *l\n", "t.yaml:4:3: admin.<<: merge keys (<<) are not supported: write the keys out"},
		"tag":                    {"listen: !!binary OjE=\n" + target, "t.yaml:1:1: listen: tags are not supported: !!binary: write the value alone\nt.yaml:1:1: listen: OjE=: not an address: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},
		"key of a list":          {target + "? [a]\n: b\n", "t.yaml:2:3: a key must be plain text"},
		"not UTF-8":              {target + "listen: \xff\n", "t.yaml:2:9: not UTF-8: want a file saved as UTF-8"},
		"UTF-16":                 {"\xff\xfel\x00i\x00", "t.yaml:1:1: not UTF-8: want a file saved as UTF-8"},
		"NUL":                    {target + "log: {}\nlisten: \"é\x00\"\n", "t.yaml:3:11: control character U+0000: delete it, or write it as an escape in double quotes"},
		"tab":                    {target + "log:\n\tlevel: info\n", "t.yaml:3: not YAML: found character that cannot start any token: indent with spaces, not tabs"},
		"tab in the value":       {"log: {}\nadmin:\n  listen: |\n\t:80\n", "t.yaml:3: not YAML: found a tab character where an indentation space is expected"},
		"open list":              {"log: {}\nlisten: [1\nadmin: {}\n", "t.yaml:2: not YAML: did not find expected ',' or ']'"},
		"open block":             {"log: {", "t.yaml:1: not YAML: did not find expected node content"},
		"indented wrongly":       {"admin:\n  listen: :1\n enabled: true\n", "t.yaml:3: not YAML: did not find expected key"},
		"no colon":               {"log: {}\nadmin: {}\nlisten :80\nserver: {}\n", "t.yaml:3: not YAML: could not find expected ':'"},
		"first line":             {"listen: a: b\n", "t.yaml:1: not YAML: mapping values are not allowed in this context"},
		"bad escape":             {"log: {}\nlisten: \"\\q\"\n", "t.yaml:2: not YAML: found unknown escape character"},
		"broken second document": {target + "---\n[", "t.yaml:3: not YAML: did not find expected node content"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := problems(t, c.text).Error(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s\nof\n%s", got, c.want, c.text)
			}
		})
	}
}

// F09: a misspelt key left the default in place without a word, inside nested blocks even where the top was strict.
func TestMisspeltKeysAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"top level": {"lisen: :1\n" + target, "t.yaml:1:1: lisen: unknown key: did you mean listen?"},
		"inside retry": {"targets:\n  a:\n    endpoints: [http://h]\n    retry:\n      max_retrys: 2\n",
			"t.yaml:5:7: targets.a.retry.max_retrys: unknown key: did you mean max_retries?"},
		"inside a list element": {target + "routes:\n- path: /\n  priorty: 3\n", "t.yaml:4:3: routes[0].priorty: unknown key: did you mean priority?"},
		"inside a union":        {target + "routes:\n- path: /\n  priority: {headr: X}\n", "t.yaml:4:14: routes[0].priority.headr: unknown key: did you mean header?"},
		"inside an option":      {target + "routes:\n- path: /\n  fallback: {cache: {maxage: 1s}}\n", "t.yaml:4:22: routes[0].fallback.cache.maxage: unknown key: did you mean max_age?"},
		"in other words":        {"targets:\n  a: {endpoints: [http://h], retry: {retries: 2}}\n", "t.yaml:2:38: targets.a.retry.retries: unknown key: did you mean max_retries?"},
		"far from any": {"zzz: 1\n" + target,
			"t.yaml:1:1: zzz: unknown key: want one of name, listen, tls, admin, decisions, cluster, log, access_log, drain, reload, memory, server, targets, routes"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := problems(t, c.text).Error(); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestAllProblemsAreReportedAtOnceByLine(t *testing.T) {
	found := problems(t, `routes:
- {path: /, target: b, priorty: 1}
- {path: x, target: a}
targets:
  a:
    endpoints: [ftp://h, "http://h:0", http://ok]
    retry: {max_retries: many, base_delay: 1}
    limit: {min: 5, max: 2}
    nope: 1
listen: 1
`)
	var got []string
	for _, p := range found {
		got = append(got, fmt.Sprintf("%d %s", p.Line, p.Key))
	}
	want := "2 routes[0].target,2 routes[0].priorty,3 routes[1].path,6 targets.a.endpoints[0],6 targets.a.endpoints[1]," +
		"7 targets.a.retry.max_retries,7 targets.a.retry.base_delay,8 targets.a.limit.max,9 targets.a.nope,10 listen"
	if s := strings.Join(got, ","); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

func TestManyProblemsAreCutShort(t *testing.T) {
	var b strings.Builder
	for i := range 250 {
		fmt.Fprintf(&b, "key%d: 1\n", i)
	}
	found := problems(t, b.String())
	if last := found[len(found)-1]; len(found) != 101 || last.String() != "t.yaml:99:1: and 151 more problems from here on" {
		t.Errorf("%d problems, the last %s", len(found), last)
	}
}

// A password that was put into a URL is refused there; it must not go from the file into the log by way of the message.
func TestSecretsAreNotEchoed(t *testing.T) {
	const secret = "hunter2"
	for _, text := range []string{
		"targets: {a: {endpoints: ['http://me:hunter2@h']}}",
		"targets: {a: {endpoints: ['http://me:hunter2/x@h:1/y']}}",
		"targets: {a: {endpoints: ['me:hunter2@h']}}",
		"targets: {a: {endpoints: ['http://h?token=hunter2']}}",
		"targets: {a: {endpoints: ['http://h/ ?token=hunter2']}}",
		"targets: {a: {endpoints: [{'http://me:hunter2@h': 1}]}}",
		"targets: {'http://me:hunter2@h': {}}",
		"'http://me:hunter2@h': x",
		"'http://me:hunter2@h': x\n'http://me:hunter2@h': x",
		"listen: http://me:hunter2@h",
		target + "routes: [{path: '/?x=hunter2'}]",
		target + "routes: [{path: /, target: 'x:hunter2@h'}]",
		"log: {level: me:hunter2@h}",
	} {
		if got := problems(t, text).Error(); strings.Contains(got, secret) {
			t.Errorf("%s:\n%s", text, got)
		}
	}
	_, err := config.Upstream("http://me:hunter2@h", "x:hunter2@y", "")
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("flags: %v", err)
	}
}

func TestUTF8BOMAndCRLFAreRead(t *testing.T) {
	if f := parse(t, "\ufeff"+strings.ReplaceAll(sample, "\n", "\r\n")); len(f.Targets) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestBounds(t *testing.T) {
	targets := func(n int) string {
		var b strings.Builder
		b.WriteString("routes: [{path: /, target: t0}]\ntargets:\n")
		for i := range n {
			fmt.Fprintf(&b, "  t%d: {endpoints: [http://h]}\n", i)
		}
		return b.String()
	}
	routes := func(n int) string {
		var b strings.Builder
		b.WriteString(target + "routes:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {path: /%d}\n", i)
		}
		return b.String()
	}
	endpoints := func(n int) string {
		var b strings.Builder
		b.WriteString("targets:\n  a:\n    endpoints:\n")
		for i := range n {
			fmt.Fprintf(&b, "    - http://h%d\n", i)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		text func(int) string
		most int
		want string
	}{
		"targets":   {targets, config.MaxTargets, "t.yaml:2:1: targets: 1001 targets: want at most 1000"},
		"routes":    {routes, config.MaxRoutes, "t.yaml:2:1: routes: 1001 routes: want at most 1000"},
		"endpoints": {endpoints, config.MaxEndpoints, "t.yaml:3:5: targets.a.endpoints: 101 URLs: want at most 100"},
	} {
		parse(t, c.text(c.most))
		if got := problems(t, c.text(c.most+1)).Error(); got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
	large := target + "#" + strings.Repeat("x", 1<<20-len(target)-1)
	parse(t, large)
	if got := problems(t, large+"x").Error(); got != "t.yaml:1:1: the file is larger than 1MiB" {
		t.Error(got)
	}
}

// Files that cost a careless reader its memory or its stack: aliases that double (a billion laughs), nesting without end.
func TestBombsAreRefused(t *testing.T) {
	var laughs strings.Builder
	laughs.WriteString("a0: &a0 [x]\n")
	for i := 1; i <= 40; i++ {
		fmt.Fprintf(&laughs, "a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	for name, text := range map[string]string{
		"laughs":        laughs.String(),
		"self":          "a: &a [*a]\n",
		"lists":         strings.Repeat("[", 1<<19),
		"closed lists":  strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"blocks":        strings.Repeat("{a: ", 9000) + strings.Repeat("}", 9000),
		"dashes":        strings.Repeat("- ", 1<<19),
		"keys":          strings.Repeat("? ", 1<<19),
		"same keys":     strings.Repeat("a: 1\n", 1<<17),
		"long key":      strings.Repeat("a", 1000) + ": 1\n",
		"documents":     strings.Repeat("---\n", 1<<16),
		"deep unknowns": "x: " + strings.Repeat("[", 30) + strings.Repeat("]", 30),
	} {
		start := time.Now()
		for _, p := range problems(t, text) {
			if len(p.String()) > 2000 {
				t.Errorf("%s: a message of %d bytes", name, len(p.String()))
			}
		}
		t.Logf("%s: %v", name, time.Since(start))
	}
}
