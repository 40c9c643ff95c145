// Package cortexhttp puts the guard on net/http: an [http.RoundTripper] for clients and a middleware for servers.
package cortexhttp

// Header fields by which guards talk to each other. What arrives in them from the network is untrusted: it is parsed
// strictly, bounded, and ignored where it is malformed.
const (
	// HeaderAttempt travels with a request: the number of the attempt, 0 the original, with the retries that the sender may
	// make as a parameter: "1;retries=3". A layer that receives it with retries above 0 makes none itself.
	HeaderAttempt = "Cortex-Attempt"
	// HeaderTimeout travels with a request: the time its sender still waits, in whole milliseconds.
	HeaderTimeout = "Cortex-Timeout-Ms"
	// HeaderPriority travels with a request where a client is told to send its priority: an integer.
	HeaderPriority = "X-Priority"

	// HeaderReason is set on an answer that a guard gave in the target's stead, or that it did not try to better: the
	// [cortex.Reason]. It tells a guard's own 503 from the target's.
	HeaderReason = "Cortex-Reason"
	// HeaderAttempts is set on answers that passed a gateway: how many attempts were made at the target.
	HeaderAttempts = "Cortex-Attempts"
	// HeaderRetry with the value "no" forbids the layer above to retry: retries were made here already, or must not be made.
	HeaderRetry = "Cortex-Retry"
	// HeaderPressure reports the pressure of the guard that answers: the CPS, with the queue pressure, the shed fraction and the state
	// as parameters: "0.4213;q=0.6100;shed=0.1200;state=ELEVATED".
	HeaderPressure = "Cortex-Pressure"
	// HeaderFallback marks an answer that a fallback gave: "cache;age=12" (seconds) or "static".
	HeaderFallback = "Cortex-Fallback"

	// HeaderExplain with the value "1" asks for the numbers behind what was done with the request, in a field of the same name on the
	// answer; see [FormatExplain].
	HeaderExplain = "Cortex-Explain"
)
