package main

import (
	"context"
	"flag"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
)

// serveProxy serves the subject that args name.
func serveProxy(args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	life := flags.Duration("life", time.Minute, "time to live")
	upstream := flags.String("upstream", "", "host:port")
	conns := flags.Int("conns", 64, "connections to keep to the upstream")
	if err := flags.Parse(args[1:]); err != nil {
		return flag.ErrHelp
	}
	f, err := config.Upstream("http://"+*upstream, "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		return err
	}
	f.Targets[0].Transport.MaxIdlePerHost = 2 * *conns // none is made twice
	if args[0] == "cortex" {
		return serveCortex(f, *life)
	}
	bare := newBare(*upstream, f.Targets[0].Transport)
	if args[0] == "bare+pool" {
		bare.BufferPool = new(buffers)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	announce(l.Addr(), *life)
	s := &http.Server{Handler: bare, ReadHeaderTimeout: f.Server.ReadHeaderTimeout, IdleTimeout: f.Server.IdleTimeout}
	return s.Serve(l)
}

// newBare is the reverse proxy of the standard library, with the gateway's settings for connections and its X-Forwarded
// headers.
func newBare(upstream string, c config.Transport) *httputil.ReverseProxy {
	target := &url.URL{Scheme: "http", Host: upstream}
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: c.DialTimeout}).DialContext,
			DisableCompression:  true,
			MaxIdleConnsPerHost: c.MaxIdlePerHost,
			IdleConnTimeout:     c.IdleTimeout,
		},
	}
}

// serveCortex serves what cortex serve --upstream does: retries, breaker, shedding and adaptive timeout are on, all of them
// with their defaults, and the admin port is there.
func serveCortex(f *config.File, life time.Duration) error {
	s, err := gateway.Listen(f, gateway.Options{})
	if err != nil {
		return err
	}
	announce(s.Addr(), life)
	return s.Run(context.Background())
}

// buffers is what ReverseProxy copies bodies through.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10 // what ReverseProxy makes for each request without a pool

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

func (b *buffers) Put(p []byte) {
	if len(p) == bufferSize {
		b.pool.Put((*[bufferSize]byte)(p))
	}
}
