package cortexhttp

import (
	"math"
	"net/http"
	"net/netip"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// PeerTrusted reports whether the peer of a request's connection is in one of the networks. It looks at RemoteAddr alone,
// which the server sets to address and port: what a client may write into X-Forwarded-For and the like says nothing here. An
// IPv4 address in IPv6 form is taken as IPv4, a zone is left out. A peer that has no address, as on a Unix socket, or none
// with a port, as where some middleware wrote a header's text over RemoteAddr, is not trusted.
func PeerTrusted(r *http.Request, trust []netip.Prefix) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	ip := peer.Addr().Unmap().WithZone("")
	for _, p := range trust {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// ParsePriority reads a value of [HeaderPriority] for a guard with that many levels: a plain whole number, where one outside
// [0, levels] becomes the nearer end, however large it is. Anything else is not ok.
func ParsePriority(value string, levels int) (cortex.Priority, bool) {
	levels = max(levels, 0)
	if value != "" && value[0] == '-' {
		return 0, plainNumber(value[1:])
	}
	n, ok := saturatedInt(value, levels)
	return cortex.Priority(n), ok
}

// saturatedInt reads a plain whole number; one beyond limit is limit.
func saturatedInt(s string, limit int) (int, bool) {
	if !plainNumber(s) {
		return 0, false
	}
	if n, ok := boundedInt(s, limit); ok {
		return n, true
	}
	return limit, true
}

// CallerTimeout is what [HeaderTimeout] says: the time the sender still waits, from 0, where it has given up, to about 24 days,
// however much more it says. It is not ok where the field is missing, malformed, or there more than once.
func CallerTimeout(h http.Header) (time.Duration, bool) {
	value, ok := single(h, HeaderTimeout)
	if !ok {
		return 0, false
	}
	if value != "" && value[0] == '-' {
		return 0, plainNumber(value[1:])
	}
	ms, ok := saturatedInt(value, math.MaxInt32) // 24 days; no overflow as a Duration
	return time.Duration(ms) * time.Millisecond, ok
}

// IsHealthCheck reports whether a request asks for health and not for work: /healthz, /readyz, /livez, /health, gRPC's
// health and reflection services. A guard that refuses these gets its process restarted or taken out of service, which is an
// outage made of protection. It is the default of HandlerConfig.Exempt.
func IsHealthCheck(r *http.Request) bool {
	switch r.URL.Path { // whole paths: a prefix would let /healthz/../pay through
	case "/healthz", "/readyz", "/livez", "/health",
		"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":
		return true
	}
	return false
}
