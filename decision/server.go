package decision

import (
	"crypto/tls"
	"net/http"
	"time"
)

// NewServer returns a server for the handler with the protocols and bounds that the service wants: HTTP/1.1 and HTTP/2, in plain text (h2c)
// where t is nil and over TLS else. t is used as it is; client certificates are its business. A request is to be there
// within 10 s, and its answer to be taken within 10 s from its header on; watches are given more by the handler.
func NewServer(h http.Handler, t *tls.Config) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(t != nil)
	p.SetUnencryptedHTTP2(t == nil)
	if t != nil {
		t = t.Clone()
	}
	return &http.Server{Handler: h, TLSConfig: t, Protocols: p, ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 250, MaxReceiveBufferPerConnection: 4 << 20, WriteByteTimeout: 30 * time.Second}}
}
