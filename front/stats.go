package front

import (
	"strings"
	"sync/atomic"
)

// Stats counts since the start what was accepted, and what was refused or cut and why.
type Stats struct {
	Accepted     uint64 // connections that were served
	Full         uint64 // times that accepting had to wait for MaxConnections, and requests of HTTP/2 answered 503 for it
	AcceptErrors uint64 // errors of accept that passed: no file descriptor, for one

	ClientReset uint64 // connections reset: more than twice ConnectionsPerClient
	Client429   uint64 // requests answered 429: ConnectionsPerClient, of connections and of requests of HTTP/2
	NoHTTP2     uint64 // requests answered 505: HTTP/2 where there is none
	URL414      uint64 // requests answered 414: MaxURLBytes
	Header431   uint64 // requests answered 431: MaxHeaderFields, and MaxHeaderBytes on HTTP/1 without TLS

	Malformed uint64 // requests answered 400: that net/http lets pass, and that have no single meaning in HTTP/1

	SlowHeaders uint64 // connections closed, without TLS with a 408: ReadHeaderTimeout
	SlowReaders uint64 // connections cut: WriteTimeout
	SlowStreams uint64 // HTTP/2 streams reset: WriteTimeout; those whose handler had ended are not counted
	RapidResets uint64 // HTTP/2 connections cut: streams cancelled as fast as they were opened
	LostPings   uint64 // HTTP/2 connections closed: no answer to a PING
	HTTP2Errors uint64 // errors of the protocol in HTTP/2, of all connections and streams
}

type counters struct {
	accepted, full, acceptErrors                       atomic.Uint64
	clientReset, client429, noHTTP2, url414, header431 atomic.Uint64
	slowHeaders, slowReaders, slowStreams, rapidResets atomic.Uint64
	malformed                                          atomic.Uint64
	lostPings, http2Errors                             atomic.Uint64
}

// http2Error is told of by net/http.
func (c *counters) http2Error(what string) {
	switch {
	case what == "conn_close_lost_ping":
		c.lostPings.Add(1)
	case strings.HasSuffix(what, "_too_many_early_resets"):
		c.rapidResets.Add(1)
	default:
		c.http2Errors.Add(1)
	}
}

// Stats returns what was counted until now.
func (s *Server) Stats() Stats {
	c := &s.stats
	return Stats{
		Accepted: c.accepted.Load(), Full: c.full.Load(), AcceptErrors: c.acceptErrors.Load(),
		ClientReset: c.clientReset.Load(), Client429: c.client429.Load(), NoHTTP2: c.noHTTP2.Load(),
		URL414: c.url414.Load(), Header431: c.header431.Load(), Malformed: c.malformed.Load(),
		SlowHeaders: c.slowHeaders.Load(), SlowReaders: c.slowReaders.Load(), SlowStreams: c.slowStreams.Load(),
		RapidResets: c.rapidResets.Load(), LostPings: c.lostPings.Load(), HTTP2Errors: c.http2Errors.Load(),
	}
}

// Connections is the number of connections that are open, hijacked ones too.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// Clients is the number of clients (IPv4 addresses, IPv6 /64s) that have connections.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}
