// Package cortexgrpc puts the guard on google.golang.org/grpc: interceptors for clients and for servers, unary and streaming.
package cortexgrpc

import (
	"context"
	"math"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// Metadata by which guards talk to each other: the header fields of [cortexhttp], under the names that gRPC gives them, and
// those of gRPC's own retry design (gRFC A6). What arrives in them is untrusted: it is parsed strictly, bounded, and ignored where
// it is malformed.
const (
	// MetadataAttempt travels with a call: the number of the attempt and the retries that its sender may make, "1;retries=3".
	MetadataAttempt = "cortex-attempt"
	// MetadataTimeout travels with a call: the time its caller still waits, in whole milliseconds. gRPC's own deadline says the
	// same to servers; gateways read this one.
	MetadataTimeout = "cortex-timeout-ms"
	// MetadataPriority travels with a call where a client is told to send its priority: an integer.
	MetadataPriority = "x-priority"

	// MetadataReason is in the trailer of a call that a guard refused: the [cortex.Reason].
	MetadataReason = "cortex-reason"
	// MetadataRetry with the value "no", in a trailer, forbids the layer above to retry.
	MetadataRetry = "cortex-retry"
	// MetadataPressure is in the trailer of every call that a guarded server answered: see [cortexhttp.HeaderPressure].
	MetadataPressure = "cortex-pressure"

	// metadataPushback is in a trailer, by A6: a whole number of milliseconds to wait before the next attempt; anything else
	// forbids it.
	metadataPushback = "grpc-retry-pushback-ms"
	// metadataPrevious travels with an attempt, by A6: how many were made before it, none where there were none.
	metadataPrevious = "grpc-previous-rpc-attempts"
)

// WithPriority returns a context whose call has that priority, where ClientConfig.Priority does not say otherwise. It is the
// same as [cortexhttp.WithPriority]: a priority holds for calls over either protocol.
func WithPriority(ctx context.Context, p cortex.Priority) context.Context {
	return cortexhttp.WithPriority(ctx, p)
}

// PriorityFrom is the priority of the call that a context belongs to: in a handler behind [Server], the one that it was admitted
// with.
func PriorityFrom(ctx context.Context) (cortex.Priority, bool) { return cortexhttp.PriorityFrom(ctx) }

// IsHealthCheck reports whether a method asks for health or for what a server serves, and not for work: those of gRPC's health and
// reflection services. A guard that refuses these gets its instance taken out of service, which is an outage made of
// protection. It is the default of Exempt, on both sides.
func IsHealthCheck(method string) bool {
	if !strings.HasPrefix(method, "/grpc.") {
		return false
	}
	switch service, _ := splitMethod(method); service {
	case "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection":
		return true
	}
	return false
}

// splitMethod takes /package.Service/Method apart; what has another form is no method: service is empty.
func splitMethod(full string) (service, method string) {
	if full == "" || full[0] != '/' {
		return "", ""
	}
	service, method, ok := strings.Cut(full[1:], "/")
	if !ok || strings.Contains(method, "/") {
		return "", ""
	}
	return service, method
}

// single returns the value of a key that was sent exactly once. Two of one of our keys are a forgery or a fault of something
// between, and which of them is right cannot be known.
func single(md metadata.MD, key string) (string, bool) {
	v := md[key]
	if len(v) != 1 {
		return "", false
	}
	return v[0], true
}

// pushback is what a trailer says of the next attempt: when to make it (there), or never (forbidden). As in A6, a number that is
// negative or malformed, or there more than once, is a never.
func pushback(md metadata.MD) (wait time.Duration, there, forbidden bool) {
	v := md[metadataPushback]
	switch {
	case len(v) == 0:
		return 0, false, false
	case len(v) > 1:
		return 0, false, true
	}
	if wait, there = milliseconds(v[0]); !there {
		return 0, false, true
	}
	return wait, true, false
}

// milliseconds reads a number of decimal digits; what does not fit a Duration is the longest.
func milliseconds(s string) (time.Duration, bool) {
	const limit = math.MaxInt64 / int64(time.Millisecond)
	n := int64(0)
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return 0, false
		}
		if n = 10*n + int64(d); n > limit {
			n = limit // its next digit cannot overflow: the limit is a millionth of what fits
		}
	}
	return time.Duration(n) * time.Millisecond, s != ""
}

// forbidsRetry reports whether a guard below says not to try again.
func forbidsRetry(md metadata.MD) bool {
	for _, v := range md[MetadataRetry] {
		if strings.EqualFold(strings.TrimSpace(v), "no") {
			return true
		}
	}
	return false
}

// callerTimeout is what MetadataTimeout says.
func callerTimeout(ctx context.Context) (time.Duration, bool) {
	v := metadata.ValueFromIncomingContext(ctx, MetadataTimeout)
	if len(v) == 0 {
		return 0, false
	}
	return cortexhttp.CallerTimeout(http.Header{cortexhttp.HeaderTimeout: v})
}
