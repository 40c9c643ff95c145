package front

import (
	"net/http"
	"strconv"
	"time"
)

// serveHTTP is what net/http's server calls.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(connKey{}).(*conn)
	limits := s.limits.Load()
	if c != nil {
		c.phase.Store(phaseHandler)
	}
	if r.Method == "PRI" { // net/http's server hands on the preface of HTTP/2 where it does not speak it; no handler should see it
		s.stats.noHTTP2.Add(1)
		s.refuse(w, r, http.StatusHTTPVersionNotSupported, "This port speaks HTTP/1.1.", true)
		return
	}
	switch {
	case c != nil && c.over:
		s.stats.client429.Add(1)
		w.Header().Set("Retry-After", "1")
		s.refuse(w, r, http.StatusTooManyRequests, "There are too many connections from this address.", true)
	case limits.MaxURLBytes > 0 && len(r.RequestURI) > limits.MaxURLBytes:
		s.stats.url414.Add(1)
		s.refuse(w, r, http.StatusRequestURITooLong, "The request's target is longer than "+strconv.Itoa(limits.MaxURLBytes)+" bytes.", false)
	case limits.MaxHeaderFields > 0 && fields(r.Header) > limits.MaxHeaderFields:
		s.stats.header431.Add(1)
		s.refuse(w, r, http.StatusRequestHeaderFieldsTooLarge,
			"The request's header has more than "+strconv.Itoa(limits.MaxHeaderFields)+" lines.", false)
	case r.ProtoMajor == 2 && c != nil:
		s.serveStream(c, w, r, limits.WriteTimeout)
	default:
		s.config.Handler.ServeHTTP(w, r)
	}
}

// refuse answers a request. The connection is closed, that of HTTP/2 only if hangUp is set.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, detail string, hangUp bool) {
	if hangUp || r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close") // net/http makes a GOAWAY of it on HTTP/2
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
func (s *Server) serveStream(c *conn, w http.ResponseWriter, r *http.Request, patience time.Duration) {
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
	if patience <= 0 {
		s.config.Handler.ServeHTTP(w, r)
		return
	}
	st := newStream(s, w, patience)
	defer st.end()
	s.config.Handler.ServeHTTP(st, r)
}
