//go:build linux

package main

import (
	"flag"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// serveBare serves the reverse proxy of the standard library as it is, or with a pool for its buffers. Its connections have the
// gateway's limits, and as many are kept as by all others: of its own accord the transport keeps two, and would measure dialling.
func serveBare(args []string) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	address := flags.String("listen", "", "host:port")
	upstream := flags.String("upstream", "", "host:port")
	if err := flags.Parse(args[1:]); err != nil {
		return flag.ErrHelp
	}
	target := &url.URL{Scheme: "http", Host: *upstream}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.SetXForwarded()
		},
		Transport: &http.Transport{
			DisableCompression:  true,
			MaxIdleConnsPerHost: keptConns,
			IdleConnTimeout:     90 * time.Second,
		},
	}
	if args[0] == "bare+pool" {
		proxy.BufferPool = new(buffers)
	}
	s := &http.Server{Addr: *address, Handler: proxy, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	return s.ListenAndServe()
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
