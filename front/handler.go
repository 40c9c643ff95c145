package front

import (
	"net/http"
	"strconv"
	"time"
)

// lingerBody is how long a refused client of HTTP/1 may still send its body, so that its answer is not lost in a reset.
const lingerBody = time.Second

// serveHTTP is what net/http's server calls.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*conn)
	if c == nil { // a handler before us has changed the context: there is none
		s.config.Handler.ServeHTTP(w, r)
		return
	}
	limits := s.limits.Load()
	if _, http1 := w.(http.Hijacker); !http1 { // the preface of HTTP/2 looks like a request of HTTP/2 where that is not spoken
		s.serveStream(c, w, r, limits)
		return
	}
	c.phase.Store(phaseHandler)
	if r.Method == "PRI" { // net/http's server hands it on; no handler should see it
		s.stats.noHTTP2.Add(1)
		s.refuse(w, r, http.StatusHTTPVersionNotSupported, "This port speaks HTTP/1.1.")
		return
	}
	if c.doubtful(r) {
		w.Header().Set("Connection", "close")
	}
	s.serveRequest(c, w, r, limits)
}

// serveRequest refuses a request or hands it to the handler.
func (s *Server) serveRequest(c *conn, w http.ResponseWriter, r *http.Request, limits *Limits) {
	switch {
	case c.over:
		s.stats.client429.Add(1)
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Connection", "close") // net/http makes a GOAWAY of it on HTTP/2
		s.refuse(w, r, http.StatusTooManyRequests, "There are too many connections from this address.")
	case limits.MaxURLBytes > 0 && len(r.RequestURI) > limits.MaxURLBytes:
		s.stats.url414.Add(1)
		s.refuse(w, r, http.StatusRequestURITooLong, "The request's target is longer than "+strconv.Itoa(limits.MaxURLBytes)+" bytes.")
	case limits.MaxHeaderFields > 0 && fields(r.Header) > limits.MaxHeaderFields:
		s.stats.header431.Add(1)
		s.refuse(w, r, http.StatusRequestHeaderFieldsTooLarge,
			"The request's header has more than "+strconv.Itoa(limits.MaxHeaderFields)+" lines.")
	default:
		if what := malformed(r); what != "" {
			s.stats.malformed.Add(1)
			s.refuse(w, r, http.StatusBadRequest, what)
			return
		}
		s.config.Handler.ServeHTTP(w, r)
	}
}

// refuse answers a request; a connection of HTTP/1 is closed.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, detail string) {
	if _, http1 := w.(http.Hijacker); http1 {
		w.Header().Set("Connection", "close")
		if r.Body != nil && r.Body != http.NoBody {
			// net/http would read the body first, for as long as the client likes to take.
			conn := http.NewResponseController(w)
			conn.EnableFullDuplex()
			conn.SetReadDeadline(time.Now().Add(lingerBody))
		}
	}
	s.config.Problem(w, r, status, detail)
}

// fields counts the lines of a header, but for Host, which net/http has taken out.
func fields(h http.Header) int {
	n := 0
	for _, v := range h {
		n += len(v)
	}
	return n
}

// serveStream serves a request of HTTP/2.
func (s *Server) serveStream(c *conn, w http.ResponseWriter, r *http.Request, limits *Limits) {
	c.http2.Store(true)
	began := time.Now()
	defer func() {
		now := time.Now()
		if c.streams.ended(now, now.Sub(began) < rightAway && r.Context().Err() != nil) {
			s.stats.rapidResets.Add(1)
			c.cut()
		}
	}()
	if r.Context().Err() != nil {
		return // cancelled before it began
	}
	if limits.WriteTimeout > 0 {
		st := &stream{ResponseWriter: w, server: s, over: r.Context(), patience: limits.WriteTimeout}
		defer st.end()
		w = st
	}
	all := s.streaming.Add(1)
	defer s.streaming.Add(-1)
	its := int64(0)
	if c.client != nil {
		its = c.client.streaming.Add(1)
		defer c.client.streaming.Add(-1)
	}
	switch {
	case limits.ConnectionsPerClient > 0 && its > int64(limits.ConnectionsPerClient):
		s.stats.client429.Add(1)
		w.Header().Set("Retry-After", "1")
		s.refuse(w, r, http.StatusTooManyRequests, "There are too many requests under way from this address.")
	case limits.MaxConnections > 0 && all > int64(limits.MaxConnections):
		s.stats.full.Add(1)
		w.Header().Set("Retry-After", "1")
		s.refuse(w, r, http.StatusServiceUnavailable, "There are too many requests under way.")
	default:
		s.serveRequest(c, w, r, limits)
	}
}
