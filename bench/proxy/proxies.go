package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
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
	target := &url.URL{Scheme: "http", Host: *upstream}
	var handler http.Handler
	switch args[0] {
	case "bare":
		handler = newBare(target, transport(*conns))
	case "bare+pool":
		p := newBare(target, transport(*conns))
		p.BufferPool = new(buffers)
		handler = p
	case "cortex":
		var err error
		if handler, err = newCortex(target, transport(*conns)); err != nil {
			return err
		}
	}
	l, err := listen(*life)
	if err != nil {
		return err
	}
	return (&http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}

// transport is the same for all: enough idle connections that none is made twice.
func transport(conns int) *http.Transport {
	return &http.Transport{MaxIdleConns: 2 * conns, MaxIdleConnsPerHost: 2 * conns, IdleConnTimeout: 90 * time.Second, DisableCompression: true}
}

func newBare(target *url.URL, t http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, Transport: t}
}

// newCortex is the gateway with retries, breaker, shedding and adaptive timeout, all of them the defaults.
func newCortex(target *url.URL, t *http.Transport) (http.Handler, error) {
	engine, err := cortex.New(cortex.Config{Name: "upstream"})
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	guarded, err := cortexhttp.NewTransport(cortexhttp.TransportConfig{Engine: engine, Base: t})
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	return newBare(target, guarded), nil
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
