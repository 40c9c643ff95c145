package config_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// with is a file of one target with these endpoints and more keys of it.
func with(endpoints, more string) string {
	if more != "" {
		more = ", " + more
	}
	return "targets: {a: {endpoints: [" + endpoints + "]" + more + "}}\n"
}

func TestEndpointsAreURLsOrBlocks(t *testing.T) {
	for text, want := range map[string]string{
		"http://h":                                 "[{http://h 1}]",
		"{url: http://h}":                          "[{http://h 1}]",
		"{weight: 1000, url: https://h/x}":         "[{https://h/x 1000}]",
		"http://h, {url: 'h2c://h:81', weight: 2}": "[{http://h 1} {h2c://h:81 2}]",
		"'http://[::1]:9000'":                      "[{http://[::1]:9000 1}]",
		"'https://[2001:db8::1]'":                  "[{https://[2001:db8::1] 1}]",
		"'http://[fe80::1%25eth0]:9000/base'":      "[{http://[fe80::1%25eth0]:9000/base 1}]",
		"'h2c://[fe80::1%25br-lan.100]'":           "[{h2c://[fe80::1%25br-lan.100] 1}]",
		"'http://[::ffff:10.0.0.1]:80'":            "[{http://[::ffff:10.0.0.1]:80 1}]",
	} {
		f := parse(t, with(text, ""))
		if got := fmt.Sprint(f.Targets[0].Endpoints); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		printed, err := f.Effective()
		if err != nil {
			t.Fatal(err)
		}
		if again := parse(t, string(printed)); !reflect.DeepEqual(f, again) {
			t.Errorf("%s: prints as\n%s", text, printed)
		}
	}
	zone := parse(t, with("'http://[fe80::1%25eth0]:9000'", "")).Targets[0].Endpoints[0].URL
	if zone.Hostname() != "fe80::1%eth0" || zone.Port() != "9000" {
		t.Errorf("zone: host %q, port %q", zone.Hostname(), zone.Port())
	}
}

func TestEndpointProblems(t *testing.T) {
	const wantURL = "want http://host:port, https://host:port or h2c://host:port, perhaps with a path"
	for text, want := range map[string]string{
		"{weight: 2}":                                 "t.yaml:1:27: targets.a.endpoints[0].url: missing: want a URL such as http://127.0.0.1:9000",
		"{url: http://h, weight: 0}":                  "t.yaml:1:43: targets.a.endpoints[0].weight: 0: out of range: want a whole number from 1 to 1000",
		"{url: http://h, wieght: 2}":                  "t.yaml:1:43: targets.a.endpoints[0].wieght: unknown key: did you mean weight?",
		"{url: 'ws://h'}":                             "t.yaml:1:28: targets.a.endpoints[0].url: ws://h: neither http, https nor h2c: " + wantURL,
		"[http://h]":                                  "t.yaml:1:27: targets.a.endpoints[0]: a list: want a URL such as http://127.0.0.1:9000",
		"":                                            "t.yaml:1:15: targets.a.endpoints: an empty list: want a list of 1 to 100 URLs, or leave the key out",
		"'http://[fe80::1%eth0]:90'":                  "t.yaml:1:27: targets.a.endpoints[0]: http://[fe80::1%eth0]:90: not a URL: want the zone of an IPv6 address with %25, as in http://[fe80::1%25eth0]:9000",
		"'http://[fe80::1%25a b]'":                    "t.yaml:1:27: targets.a.endpoints[0]: http://[fe80::1%25a b]: not a URL: " + wantURL,
		"'http://[fe80::1%25a%2fb]'":                  "t.yaml:1:27: targets.a.endpoints[0]: http://[fe80::1%25a%2fb]: not a URL: " + wantURL,
		"'http://[fe80::1%25a;b]'":                    "t.yaml:1:27: targets.a.endpoints[0]: http://[fe80::1%25a;b]: no host: " + wantURL,
		"'http://fd00::1'":                            "t.yaml:1:27: targets.a.endpoints[0]: http://fd00::1: not a URL: " + wantURL,
		"'http://[fd00::1'":                           "t.yaml:1:27: targets.a.endpoints[0]: http://[fd00::1: not a URL: " + wantURL,
		"http://h, {url: 'h2c://h:80', weight: 2}":    "t.yaml:1:37: targets.a.endpoints[1]: h2c://h:80: given twice: first as endpoints[0]",
		"'h2c://[::1]:8080', 'http://localhost:8080'": "t.yaml:1:47: targets.a.endpoints[1]: http://localhost:8080: the gateway itself, which listens on 127.0.0.1:8080: want the address of the service",
		"{url: 'http://user:hunter2@h'}":              "t.yaml:1:28: targets.a.endpoints[0].url: http://…@h: a user or password does not belong here: " + wantURL,
	} {
		if got := problems(t, with(text, "")).Error(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
}

func TestBalanceProblems(t *testing.T) {
	const at = "t.yaml:1:48: targets.a.balance." // the first key of the block
	for text, want := range map[string]string{
		"eject: {max_share: 0}":                        "t.yaml:1:56: targets.a.balance.eject.max_share: 0: out of range: want a number above 0 and at most 1",
		"eject: {failures: 0}":                         "t.yaml:1:56: targets.a.balance.eject.failures: 0: out of range: want a whole number from 1 to 1000",
		"eject: {base_time: 2m, max_time: 1m}":         "t.yaml:1:71: targets.a.balance.eject.max_time: 1m: want at least base_time, which is 2m",
		"slow_start: 2h":                               at + "slow_start: 2h: out of range: want a duration from 0s to 1h",
		"slow_start: 0":                                at + "slow_start: 0: missing unit: want a duration such as 5s or 100ms",
		"resolve: 10ms":                                at + "resolve: 10ms: out of range: want 0s, or a duration from 1s to 24h",
		"check: {}":                                    at + "check.path: missing: want the path to ask, such as /healthz",
		"check: ":                                      at + "check.path: missing: want the path to ask, such as /healthz",
		"check: /healthz":                              at + "check: /healthz: want a block of keys",
		"check: {path: healthz}":                       "t.yaml:1:56: targets.a.balance.check.path: healthz: not a path: want one that begins with one /",
		"check: {path: //h/x}":                         "t.yaml:1:56: targets.a.balance.check.path: //h/x: not a path: want one that begins with one /",
		"check: {path: '/x?key=secret'}":               "t.yaml:1:56: targets.a.balance.check.path: /x?…: want the path alone, without a query and without escapes",
		`check: {path: "/x\r\nHost: y"}`:               `t.yaml:1:56: targets.a.balance.check.path: "/x\r\nHost: y": want a path without control characters`,
		"check: {path: /, interval: 1s, timeout: 2s}":  "t.yaml:1:79: targets.a.balance.check.timeout: 2s: want at most interval, which is 1s",
		"check: {path: /, interval: 1ms, timeout: 2s}": "t.yaml:1:65: targets.a.balance.check.interval: 1ms: out of range: want a duration from 100ms to 1h",
	} {
		if got := problems(t, with("http://h", "balance: {"+text+"}")).Error(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
}

// A default gives way to the value beside it that somebody wrote, and what results prints as itself.
func TestBalanceDefaultsMoveWithTheirNeighbours(t *testing.T) {
	for text, want := range map[string]any{
		"eject: {base_time: 10m}":            config.Eject{Enabled: true, Failures: 5, MaxShare: 0.5, BaseTime: 10 * time.Minute, MaxTime: 10 * time.Minute},
		"eject: {max_time: 1s}":              config.Eject{Enabled: true, Failures: 5, MaxShare: 0.5, BaseTime: time.Second, MaxTime: time.Second},
		"check: {path: /, interval: 200ms}":  config.Check{Path: "/", Interval: 200 * time.Millisecond, Timeout: 200 * time.Millisecond, Healthy: 2, Unhealthy: 3},
		"check: {path: /, timeout: 30s}":     config.Check{Path: "/", Interval: 30 * time.Second, Timeout: 30 * time.Second, Healthy: 2, Unhealthy: 3},
		"check: {path: /up, unhealthy: 100}": config.Check{Path: "/up", Interval: 5 * time.Second, Timeout: time.Second, Healthy: 2, Unhealthy: 100},
	} {
		f := parse(t, with("http://h", "balance: {"+text+"}"))
		var got any = f.Targets[0].Balance.Eject
		if strings.HasPrefix(text, "check") {
			got = *f.Targets[0].Balance.Check
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
		printed, err := f.Effective()
		if err != nil {
			t.Fatal(err)
		}
		if again := parse(t, string(printed)); !reflect.DeepEqual(f, again) {
			t.Errorf("%s: prints as\n%s", text, printed)
		}
	}
}

func TestTransportTLSNeedsHTTPS(t *testing.T) {
	for _, c := range []struct{ endpoints, tls, want string }{
		{"http://h, 'h2c://i'", "{ca: ca.pem}", "t.yaml:1:61: targets.a.transport.tls: no endpoint of this target is https: want https://host:port there, or no tls"},
		{"http://h", "{server_name: x}", "t.yaml:1:50: targets.a.transport.tls: no endpoint of this target is https: want https://host:port there, or no tls"},
		{"https://h", "{cert: c.pem}", "t.yaml:1:57: targets.a.transport.tls.cert: without key: want both or none"},
		{"https://h", "{key: k.pem}", "t.yaml:1:57: targets.a.transport.tls.key: without cert: want both or none"},
		{"https://h", "{server_name: 'h:443'}", "t.yaml:1:57: targets.a.transport.tls.server_name: h:443: not a host name: want one such as payments.internal, without a port"},
		// The refused one may have been meant to be https.
		{"htps://h", "{ca: ca.pem}", "t.yaml:1:27: targets.a.endpoints[0]: htps://h: neither http, https nor h2c: want http://host:port, https://host:port or h2c://host:port, perhaps with a path"},
	} {
		if got := problems(t, with(c.endpoints, "transport: {tls: "+c.tls+"}")).Error(); got != c.want {
			t.Errorf("%s, %s:\n%s\nwant\n%s", c.endpoints, c.tls, got, c.want)
		}
	}
	for _, tls := range []string{"", "{}", "{ca: a}", "{cert: b, key: c}", "{server_name: h.example}", "{server_name: 10.0.0.1}", "{server_name: 'fd00::1'}"} {
		parse(t, with("http://h, https://i", "transport: {tls: "+tls+"}"))
	}
	parse(t, with("http://h", "transport: {tls: {}}"))
}
