//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// keptConns is how many idle connections to the upstream each proxy may keep, so that none is made twice.
const keptConns = 4096

// caddyVersion is built from its module, by itself: its 150 dependencies are no business of this module's.
const caddyVersion = "github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9"

// A subject is a proxy that can be put in front of the upstream.
type subject struct {
	name string
	// prepare makes what start runs, before anything is measured. It fails with errMissing where the machine lacks the program.
	prepare func(ctx context.Context, dir string) (program string, err error)
	// config is the text of the file that the program is given; empty = none.
	config string
	args   func(where) []string
}

// A where is the surroundings of a subject: its directory, in which its file is, and addresses.
type where struct{ dir, listen, admin, upstream string }

func (w where) file() string { return filepath.Join(w.dir, "config") }

func (w where) accessLog() string { return filepath.Join(w.dir, "access.log") }

var errMissing = errors.New("not on this machine")

// subjects are loaded in this order and, every other round, in the opposite one.
var subjects = []subject{
	{name: "bare", prepare: self, args: bareArgs("bare")},
	{name: "bare+pool", prepare: self, args: bareArgs("bare+pool")},
	{name: "cortex", prepare: buildCortex, config: cortexConfig,
		args: func(w where) []string { return []string{"serve", "--config", w.file()} }},
	{name: "caddy", prepare: buildCaddy, config: caddyConfig,
		args: func(w where) []string { return []string{"run", "--config", w.file()} }},
	{name: "nginx", prepare: installed("nginx"), config: nginxConfig,
		args: func(w where) []string { return []string{"-p", w.dir, "-e", "stderr", "-c", w.file()} }},
	{name: "haproxy", prepare: installed("haproxy"), config: haproxyConfig,
		args: func(w where) []string { return []string{"-db", "-f", w.file()} }},
}

func self(context.Context, string) (string, error) { return os.Executable() }

func bareArgs(name string) func(where) []string {
	return func(w where) []string { return []string{name, "--listen", w.listen, "--upstream", w.upstream} }
}

// buildCortex builds the command line that this module measures, which lies outside it.
func buildCortex(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/seed-a29ca62a/cortex").Output()
	if err != nil {
		return "", fmt.Errorf("the directory of cortex (run this in bench/): %w", explain(err))
	}
	path := filepath.Join(dir, "bin", "cortex")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/cortex")
	cmd.Dir = string(bytes.TrimSpace(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/cortex: %w: %s", err, out)
	}
	return path, nil
}

// buildCaddy builds it once for a user: that takes a minute or two.
func buildCaddy(ctx context.Context, _ string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(cache, "cortex-bench")
	cmd := exec.CommandContext(ctx, "go", "install", caddyVersion)
	cmd.Env = append(os.Environ(), "GOBIN="+bin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: go install %s: %w: %s", errMissing, caddyVersion, err, bytes.TrimSpace(out))
	}
	return filepath.Join(bin, "caddy"), nil
}

func installed(program string) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) {
		path, err := exec.LookPath(program)
		if err != nil {
			path, err = exec.LookPath("/usr/sbin/" + program) // not on everyone's PATH
		}
		if err != nil {
			return "", fmt.Errorf("%w: apt-get install %s", errMissing, program)
		}
		return path, nil
	}
}

func explain(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// serve puts a subject in front of the upstream.
func (s subject) serve(ctx context.Context, p place, w where, program string) (*child, error) {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, err
	}
	if s.config != "" {
		if err := os.WriteFile(w.file(), []byte(w.fill(s.config)), 0o600); err != nil {
			return nil, err
		}
	}
	return start(ctx, p, w.dir, s.name, w.listen, program, s.args(w)...)
}

// The configurations. What is not in them has the program's default.

// fill puts values in the place of $NAME.
func (w where) fill(text string) string {
	user := "# workers run as whoever runs this"
	if os.Getuid() == 0 {
		user = "user root;"
	}
	return strings.NewReplacer("$DIR", w.dir, "$LISTEN", w.listen, "$ADMIN", w.admin, "$UPSTREAM", w.upstream,
		"$ACCESS_LOG", w.accessLog(), "$KEPT", fmt.Sprint(keptConns), "$USER", user).Replace(text)
}

const cortexConfig = `listen: $LISTEN
admin:
  listen: $ADMIN
access_log: {path: $ACCESS_LOG, sample: 1, errors: 1}
targets:
  upstream:
    endpoints: ["http://$UPSTREAM"]
    transport:
      max_idle_per_host: $KEPT
routes:
  - path: /
    target: upstream
    priority:
      header: X-Priority
`

const caddyConfig = `{
  "admin": {"disabled": true, "config": {"persist": false}},
  "apps": {"http": {"servers": {"bench": {
    "listen": ["$LISTEN"],
    "routes": [{"handle": [{
      "handler": "reverse_proxy",
      "upstreams": [{"dial": "$UPSTREAM"}],
      "transport": {
        "protocol": "http",
        "compression": false,
        "keep_alive": {"enabled": true, "max_idle_conns_per_host": $KEPT, "idle_timeout": "90s"}
      }
    }]}]
  }}}}
}
`

const nginxConfig = `$USER
daemon off;
worker_processes 1;
pid $DIR/pid;
error_log stderr;
events { worker_connections 10000; }
http {
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path $DIR/body;
  proxy_temp_path $DIR/proxy;
  fastcgi_temp_path $DIR/fastcgi;
  uwsgi_temp_path $DIR/uwsgi;
  scgi_temp_path $DIR/scgi;
  upstream bench {
    server $UPSTREAM;
    keepalive $KEPT;
    keepalive_requests 1000000000;
  }
  server {
    listen $LISTEN backlog=$KEPT;
    location / {
      proxy_pass http://bench;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Forwarded-Proto $scheme;
    }
  }
}
`

const haproxyConfig = `global
  nbthread 1
  maxconn 5000
defaults
  mode http
  timeout connect 5s
  timeout client 2m
  timeout server 2m
frontend bench
  bind $LISTEN
  option forwardfor
  http-request set-header X-Forwarded-Host %[req.hdr(host)]
  http-request set-header X-Forwarded-Proto http
  default_backend upstream
backend upstream
  server upstream $UPSTREAM
`
