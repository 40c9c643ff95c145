package config

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// file is the path of a file that is read, not given unless its key is.
func file(p *string) text[string] {
	return text[string]{p: p, want: "the path of a file", parse: parseFile, show: itself, unset: true}
}

func parseFile(s string) (string, string) {
	switch {
	case s == "" || s == "-":
		return "", "not a file: want its path"
	case strings.Contains(s, pemMark):
		return "", "not a path: want that of a file that holds this"
	case strings.HasPrefix(s, "~"):
		return "", "~ is known to the shell alone: want the whole path"
	case strings.HasSuffix(s, "/"):
		return "", "a directory: want a file in it"
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", "want a path without control characters"
	case len(s) > 4096:
		return "", "longer than 4096 bytes, which no path is"
	}
	return s, ""
}

// parseLog takes what parseFile takes, and - for the standard output.
func parseLog(s string) (string, string) {
	if s == "-" {
		return s, ""
	}
	return parseFile(s)
}

func (t *TLS) block() block {
	return block{
		{key: "cert", value: file(&t.Cert)},
		{key: "key", value: file(&t.Key)},
		{key: "client_ca", value: file(&t.ClientCA)},
		{key: "min_version", value: choice[uint16]{&t.MinVersion, []uint16{tls.VersionTLS12, tls.VersionTLS13},
			func(v uint16) string { return strings.TrimPrefix(tls.VersionName(v), "TLS ") }}},
	}
}

func (a *AccessLog) block() block {
	return block{
		{key: "path", value: text[string]{p: &a.Path, want: "the path of a file, or - for the standard output", parse: parseLog, show: itself}},
		{key: "sample", value: number{p: &a.Sample, hi: 1}},
		{key: "errors", value: number{p: &a.Errors, hi: 1}},
	}
}

// serverTLS checks the block of a port; nil is not given.
func (d *decoder) serverTLS(t *TLS, key string) {
	if t != nil {
		d.missing(key, "cert", "the path of a PEM file with the certificate and what leads to its authority")
		d.missing(key, "key", "the path of a PEM file with the certificate's private key")
	}
}

// together reports one of two keys without the other.
func (d *decoder) together(block, a, b string) {
	if d.Given(block+"."+a) == d.Given(block+"."+b) {
		return
	}
	if d.Given(block + "." + b) {
		a, b = b, a
	}
	d.Problem(d.At(block+"."+a), "without %s: want both or none", b)
}

// guarded refuses a port for operators and trusted programs that anyone could get at; block is its block of keys.
func (d *decoder) guarded(block, listen, tokenFile string, c *TLS, example string) {
	if tokenFile != "" || c != nil && c.ClientCA != "" {
		return
	}
	// Not where one of the keys that this goes by was refused, or one that is unknown may be a misspelt one of them.
	for _, p := range d.Problems {
		key, ours := strings.CutPrefix(p.Key, block+".")
		if !ours && p.Key != block {
			continue
		}
		switch key {
		case block, "enabled", "listen", "token_file", "tls", "tls.client_ca":
			return
		}
		if !d.Given(p.Key) {
			return
		}
	}
	if host, _, _ := net.SplitHostPort(listen); !loopbackHost(host) {
		d.Problem(d.At(block+".listen"), "%s: refused beyond loopback without a token_file or tls.client_ca: want one of these, "+
			"or an address such as %s", show(listen), example)
	}
}

// loopbackHost reports whether only this machine gets to a host, as far as that can be seen without a resolver.
func loopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(host, "localhost")
}

// Paths returns every file that the gateway reads because this configuration names it, each once and as it is written there:
// certificates, keys, authorities, tokens and passwords. They are for a watcher to look at; the file of the configuration itself is not
// among them, nor is the access log. A relative path is relative to the working directory.
func (f *File) Paths() []string {
	var all []string
	add := func(paths ...string) {
		for _, p := range paths {
			if p != "" && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	server := func(t *TLS) {
		if t != nil {
			add(t.Cert, t.Key, t.ClientCA)
		}
	}
	server(f.TLS)
	if f.Admin.Enabled {
		add(f.Admin.TokenFile)
		server(f.Admin.TLS)
	}
	if c := f.Decisions; c != nil {
		add(c.TokenFile)
		server(c.TLS)
	}
	if c := f.Cluster; c != nil {
		t := c.Redis.TLS
		add(c.Redis.PasswordFile, c.Redis.SentinelPasswordFile, t.CA, t.Cert, t.Key)
	}
	for i := range f.Targets {
		t := f.Targets[i].Transport.TLS
		add(t.CA, t.Cert, t.Key)
	}
	return all
}

// Bounds of a token, in bytes.
const (
	minToken = 16
	maxToken = 1024
)

// A TokenError is a token file, or one of a password, whose content cannot be used. It never holds any of that content.
type TokenError struct {
	Path string
	Want string // what would be right

	what string // kind of file
}

func (e *TokenError) Error() string {
	return fmt.Sprintf("config: %s file %s: want %s", e.what, e.Path, e.Want)
}

// ReadToken reads the bearer token that a file holds: 16 to 1,024 bytes of printable ASCII without spaces; space around it, such as
// the end of the line, is no part of it. The error is a [*TokenError], or that of the operating system, which names the file too.
func ReadToken(path string) (string, error) {
	const what = "token"
	token, err := readSecret(what, path)
	if err != nil {
		return "", err
	}
	refuse := func(want string) (string, error) { return "", &TokenError{path, want, what} }
	switch {
	case token == "":
		return refuse(fmt.Sprintf("a token of at least %d bytes: there is none", minToken))
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return refuse("one token of printable ASCII, without spaces, and nothing else")
	case len(token) < minToken:
		return refuse(fmt.Sprintf("a token of at least %d bytes, which nobody guesses: openssl rand -hex 32 makes one", minToken))
	}
	return token, nil
}

// ReadPassword reads the password that a file holds: up to 1,024 bytes of one line, in UTF-8; space around it, such as the end of the line,
// is no part of it. The error is a [*TokenError], or that of the operating system, which names the file too.
func ReadPassword(path string) (string, error) {
	const what = "password"
	p, err := readSecret(what, path)
	switch {
	case err != nil:
		return "", err
	case p == "":
		return "", &TokenError{path, "a password: there is none", what}
	case !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl):
		return "", &TokenError{path, "one line of text, the password, and nothing else", what}
	}
	return p, nil
}

// readSecret is what a file holds, without the space around it.
func readSecret(what, path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // as in Load
	if err != nil {
		return "", fmt.Errorf("config: %s file: %w", what, err)
	}
	defer f.Close()
	const most = 4 << 10 // with space around it
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return "", fmt.Errorf("config: %s file: %w", what, err)
	}
	secret := strings.TrimSpace(string(data))
	if len(data) > most || len(secret) > maxToken {
		return "", &TokenError{path, fmt.Sprintf("a %s of at most %d bytes and nothing else", what, maxToken), what}
	}
	return secret, nil
}
