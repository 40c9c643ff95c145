package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex/config"
)

func TestAdminIsNotOpenedBeyondLoopbackWithoutAuthentication(t *testing.T) {
	refused := func(at, address string) string {
		return "t.yaml:1:" + at + ": admin.listen: " + address + ": refused beyond loopback without a token_file or tls.client_ca: " +
			"want one of these, or an address such as 127.0.0.1:9095"
	}
	for _, c := range []struct{ admin, want string }{
		{"{listen: ':9095'}", refused("9", ":9095")},
		{"{listen: '0.0.0.0:9095'}", refused("9", "0.0.0.0:9095")},
		{"{listen: '[::]:9095'}", refused("9", "[::]:9095")},
		{"{listen: '10.0.0.1:9095'}", refused("9", "10.0.0.1:9095")},
		{"{listen: '128.0.0.1:9095'}", refused("9", "128.0.0.1:9095")},
		{"{listen: '[fe80::1%eth0]:9095'}", refused("9", "[fe80::1%eth0]:9095")},
		{"{listen: 'admin.internal:9095'}", refused("9", "admin.internal:9095")},
		{"{listen: 'localhost.example:9095'}", refused("9", "localhost.example:9095")},
		{"{listen: ':9095', tls: {cert: c, key: k}}", refused("9", ":9095")},
		{"{listen: ':9095', tls: {cert: c, key: k, min_version: 1.4}}", refused("9", ":9095") +
			"\nt.yaml:1:49: admin.tls.min_version: 1.4: unknown: did you mean 1.2? want one of 1.2, 1.3"},

		// What was meant to be one of the two is not told to be missing.
		{"{listen: ':9095', tokn_file: t}", "t.yaml:1:26: admin.tokn_file: unknown key: did you mean token_file?"},
		{"{listen: ':9095', token_file: ''}", `t.yaml:1:26: admin.token_file: "": not a file: want its path`},
		{"{listen: ':9095', tls: {cert: c, key: k, client_ac: a}}", "t.yaml:1:49: admin.tls.client_ac: unknown key: did you mean client_ca?"},
		{"{listen: 'nonsense'}", "t.yaml:1:9: admin.listen: nonsense: not an address: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"},

		{"{listen: ':9095', token_file: t}", ""},
		{"{listen: ':9095', tls: {cert: c, key: k, client_ca: a}}", ""},
		{"{listen: ':9095', enabled: false}", ""},
		{"{listen: '127.0.0.1:9095'}", ""},
		{"{listen: '127.255.0.3:9095'}", ""},
		{"{listen: '[::1]:9095'}", ""},
		{"{listen: '[::ffff:127.0.0.1]:9095'}", ""},
		{"{listen: 'LocalHost:9095'}", ""},
	} {
		_, err := config.Parse("t.yaml", []byte("admin: "+c.admin+"\n"+target))
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.admin, got, c.want)
		}
	}
}

func TestGatewayProblems(t *testing.T) {
	const wantName = "not a name: want up to 63 letters, digits and !#$%&'*+-.^_`|~, without spaces"
	for text, want := range map[string]string{
		"name: a b":                        "t.yaml:1:1: name: a b: " + wantName,
		"name: ''":                         `t.yaml:1:1: name: "": ` + wantName,
		"name: é":                          "t.yaml:1:1: name: é: " + wantName,
		"name: " + strings.Repeat("x", 64): "t.yaml:1:1: name: " + strings.Repeat("x", 60) + "…: " + wantName,
		"name:":                            "t.yaml:1:1: name: no value: want a name such as cortex, or leave the key out for the default",

		"tls: {}": "t.yaml:1:1: tls.cert: missing: want the path of a PEM file with the certificate and what leads to its authority\n" +
			"t.yaml:1:1: tls.key: missing: want the path of a PEM file with the certificate's private key",
		"tls: {cert: c}": "t.yaml:1:1: tls.key: missing: want the path of a PEM file with the certificate's private key",
		"tls: true":      "t.yaml:1:1: tls: true: want a block of keys",
		"tls: {cert: c, key: k, min_version: 1.1}": "t.yaml:1:24: tls.min_version: 1.1: unknown: did you mean 1.2? want one of 1.2, 1.3",
		"tls: {cert: certs/, key: ~/k}": "t.yaml:1:7: tls.cert: certs/: a directory: want a file in it\n" +
			"t.yaml:1:21: tls.key: ~/k: ~ is known to the shell alone: want the whole path",
		"tls: {cert: '-', key: 5}": "t.yaml:1:7: tls.cert: -: not a file: want its path\n" +
			"t.yaml:1:18: tls.key: 5: want the path of a file, in quotes if this is it",
		`tls: {cert: "a\0b", key: k}`: `t.yaml:1:7: tls.cert: "a\x00b": want a path without control characters`,
		"admin: {tls: {client_ca: a}}": "t.yaml:1:9: admin.tls.cert: missing: want the path of a PEM file with the certificate and what leads to its authority\n" +
			"t.yaml:1:9: admin.tls.key: missing: want the path of a PEM file with the certificate's private key",

		"access_log: {sample: 1.5}":      "t.yaml:1:14: access_log.sample: 1.5: out of range: want a number from 0 to 1",
		"access_log: {errors: -1}":       "t.yaml:1:14: access_log.errors: -1: out of range: want a number from 0 to 1",
		"access_log: {path: ''}":         `t.yaml:1:14: access_log.path: "": not a file: want its path`,
		"access_log: true":               "t.yaml:1:1: access_log: true: want a block of keys",
		"reload: {interval: 10ms}":       "t.yaml:1:10: reload.interval: 10ms: out of range: want a duration from 100ms to 1h",
		"memory: {limit: 0B}":            "t.yaml:1:10: memory.limit: 0B: out of range: want a size from 1MiB to 1024GiB",
		"memory: {limit: 64}":            "t.yaml:1:10: memory.limit: 64: missing unit: want a size such as 64KiB or 512B",
		"server: {max_body_bytes: 0}":    "t.yaml:1:10: server.max_body_bytes: 0: missing unit: want a size such as 64KiB or 512B",
		"server: {max_streams: 0}":       "t.yaml:1:10: server.max_streams: 0: out of range: want a whole number from 1 to 10000",
		"server: {max_header_fields: 0}": "t.yaml:1:10: server.max_header_fields: 0: out of range: want a whole number from 10 to 10000",
		"server: {max_connections: -1}":  "t.yaml:1:10: server.max_connections: -1: out of range: want a whole number from 0 to 1000000",
		"server: {http2: off}":           "t.yaml:1:10: server.http2: off: want true or false",
		"server: {write_timeout: 0s}":    "t.yaml:1:10: server.write_timeout: 0s: out of range: want a duration from 1s to 1h",
		"listen: '[fe80::1%a b]:80'":     "t.yaml:1:1: listen: [fe80::1%a b]:80: not a host: want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces",
	} {
		if got := problems(t, text+"\n"+target).Error(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", text, got, want)
		}
	}
}

// Whoever takes the key of a path for that of the thing itself must not find it in the log.
func TestKeysAreNotShownInMessages(t *testing.T) {
	const key = `"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIB\n-----END PRIVATE KEY-----\n"`
	for _, text := range []string{
		"tls: {cert: c, key: " + key + "}", "admin: {token_file: " + key + "}", "tls: " + key, "listen: " + key, "name: " + key,
		"tls: {cert: c, key: ' -----BEGIN EC PRIVATE KEY----- MC4CAQAwBQYDK2VwBCIEIB'}", "tls: {cert: c, key: k, " + key + ": x}",
	} {
		got := problems(t, text+"\n"+target).Error()
		if strings.Contains(got, "MC4C") || !strings.Contains(got, "-----BEGIN…") {
			t.Errorf("%s:\n%s", text, got)
		}
	}
}

func TestAccessLogIsOnWithAnEmptyBlock(t *testing.T) {
	if f := parse(t, target); f.AccessLog != nil || f.TLS != nil || f.Admin.TLS != nil || f.Targets[0].Balance.Check != nil {
		t.Errorf("on without being asked for: %+v", f)
	}
	for _, text := range []string{"access_log: {}\n", "access_log:\n"} {
		if f := parse(t, text+target); f.AccessLog == nil || *f.AccessLog != (config.AccessLog{Path: "-", Sample: 1, Errors: 1}) {
			t.Errorf("%s: %+v", text, f.AccessLog)
		}
	}
}

func TestPaths(t *testing.T) {
	const text = `
tls: {cert: tls/cert.pem, key: tls/key.pem, client_ca: clients.pem}
admin: {token_file: token, tls: {cert: tls/cert.pem, key: tls/key.pem, client_ca: operators.pem}}
access_log: {path: access.log}
targets:
  a: {endpoints: [https://a], transport: {tls: {ca: internal.pem, cert: me.pem, key: me.key}}}
  b: {endpoints: [https://b], transport: {tls: {ca: internal.pem, server_name: c}}}
routes: [{path: /, target: a}, {path: /b, target: b}]`
	want := []string{"tls/cert.pem", "tls/key.pem", "clients.pem", "token", "operators.pem", "internal.pem", "me.pem", "me.key"}
	if got := parse(t, text).Paths(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	off := strings.Replace(text, "admin: {", "admin: {enabled: false, ", 1)
	want = slices.DeleteFunc(want, func(s string) bool { return s == "token" || s == "operators.pem" })
	if got := parse(t, off).Paths(); !slices.Equal(got, want) {
		t.Errorf("without the admin port: %q, want %q", got, want)
	}
	if got := parse(t, target).Paths(); got != nil {
		t.Errorf("of none: %q", got)
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	long := strings.Repeat("0123456789abcdef", 64)
	for content, want := range map[string]string{
		"0123456789abcdef":                   "",
		"\ufeff0123456789abcdef":             "one token of printable ASCII, without spaces, and nothing else",
		" \n0123456789abcdef~!@=\r\n\n":      "",
		long + "\n":                          "",
		long + "x":                           "a token of at most 1024 bytes and nothing else",
		"x" + strings.Repeat(" ", 5000):      "a token of at most 1024 bytes and nothing else",
		"":                                   "a token of at least 16 bytes: there is none",
		" \n\t":                              "a token of at least 16 bytes: there is none",
		"s3cr3t-token-ab":                    "a token of at least 16 bytes, which nobody guesses: openssl rand -hex 32 makes one",
		"s3cr3t-token-abc another":           "one token of printable ASCII, without spaces, and nothing else",
		"s3cr3t-token-abc\ns3cr3t-token-abc": "one token of printable ASCII, without spaces, and nothing else",
		"s3cr3t-token-abcdefghé":             "one token of printable ASCII, without spaces, and nothing else",
		"s3cr3t-token-abcdefgh\x00":          "one token of printable ASCII, without spaces, and nothing else",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		token, err := config.ReadToken(path)
		if want == "" {
			if err != nil || token != strings.TrimSpace(content) {
				t.Errorf("%q: %q, %v", content, token, err)
			}
			continue
		}
		var refused *config.TokenError
		if !errors.As(err, &refused) || refused.Path != path || refused.Want != want || token != "" {
			t.Errorf("%q: %q, %v, want %s", content, token, err, want)
		} else if strings.Contains(err.Error(), "s3cr3t") || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: message %q", content, err)
		}
	}
	none := filepath.Join(dir, "none")
	if _, err := config.ReadToken(none); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), none) {
		t.Errorf("no file: %v", err)
	}
	if _, err := config.ReadToken(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a directory: %v", err)
	}
}
