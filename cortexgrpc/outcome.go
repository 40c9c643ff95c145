package cortexgrpc

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
)

// ClassOf is what the default rule makes of the status of a call and the trailer that came with it:
//
//   - OK is a success;
//   - UNAVAILABLE is a failure, DEADLINE_EXCEEDED a timeout, RESOURCE_EXHAUSTED throttled; all are retryable;
//   - UNKNOWN, INTERNAL and DATA_LOSS are failures, not retryable;
//   - all others find fault with the request, or say that its caller left: neutral, not retryable. So does RESOURCE_EXHAUSTED for
//     a message that is larger than one of the sides takes;
//   - where a guard below refused the call (its google.rpc.ErrorInfo, or [MetadataReason]), shedding is retryable, and an open
//     circuit is not: failing fast is the point of opening. Both are neutral, but that a server sheds itself, which it says in
//     [MetadataReason], is throttled: the refusal of a guard behind it, which it has passed on, says nothing of its own load.
//
// The hint is that of grpc-retry-pushback-ms, else of a google.rpc.RetryInfo. A pushback that is negative or malformed makes what
// is retryable not so.
func ClassOf(st *status.Status, trailer metadata.MD) cortex.Class {
	c := classOf(st, trailer, true)
	if _, _, forbidden := pushback(trailer); forbidden {
		c.Retryable = false
	}
	return c
}

// classOf is ClassOf, but for a pushback that forbids the retry; trusted says that a guard below is believed.
func classOf(st *status.Status, trailer metadata.MD, trusted bool) cortex.Class {
	var c cortex.Class
	switch st.Code() {
	case codes.OK:
		return cortex.Class{Outcome: cortex.Success}
	case codes.Unavailable:
		c = cortex.Class{Outcome: cortex.Failed, Retryable: true}
	case codes.DeadlineExceeded:
		c = cortex.Class{Outcome: cortex.TimedOut, Retryable: true}
	case codes.ResourceExhausted:
		if tooLarge(st.Message()) {
			return cortex.Class{Outcome: cortex.Neutral}
		}
		c = cortex.Class{Outcome: cortex.Throttled, Retryable: true}
	case codes.Unknown, codes.Internal, codes.DataLoss:
		return cortex.Class{Outcome: cortex.Failed}
	default:
		if st.Code() > codes.Unauthenticated { // no code there is: as Unknown
			return cortex.Class{Outcome: cortex.Failed}
		}
		return cortex.Class{Outcome: cortex.Neutral}
	}
	d := detailsOf(st, trailer)
	if trusted && st.Code() != codes.DeadlineExceeded {
		switch d.refused {
		case cortex.ReasonShed:
			c.Outcome = cortex.Throttled
			if !d.own { // the server has room; what is behind it has not, and holding calls back here is for the guard in between
				c.Outcome = cortex.Neutral
			}
		case cortex.ReasonCircuitOpen, cortex.ReasonCircuitEmergency:
			return cortex.Class{Outcome: cortex.Neutral, RetryAfter: max(0, d.wait)}
		}
	}
	var there bool
	if c.RetryAfter, there, _ = pushback(trailer); !there {
		c.RetryAfter = max(0, d.wait)
	}
	return c
}

// Classify is a Config.Classify for engines whose [cortex.Do] makes calls of connections without a [Client]: [ClassOf] for errors
// that have a status, as far as it is known without a trailer, else [cortex.Classify], which also knows errors that carry a class
// and refusals of guards below.
func Classify(err error) cortex.Class {
	c := cortex.Classify(err)
	if c != (cortex.Class{Outcome: cortex.Failed, Retryable: true}) { // what it makes of errors of which it knows nothing
		return c
	}
	if st, ok := status.FromError(err); ok {
		return ClassOf(st, nil)
	}
	return c
}

// tooLarge knows grpc-go's texts for a message beyond a limit on its size. It has the code of an exhausted quota, and says
// nothing of the load.
func tooLarge(text string) bool {
	return strings.Contains(text, "larger than max") &&
		(strings.HasPrefix(text, "grpc: ") || strings.HasPrefix(text, "trying to send message"))
}

// Texts of grpc-go's own errors, which come without a trailer.
const (
	refusedStream = "stream terminated by RST_STREAM with error code: REFUSED_STREAM"
	goneAway      = "the stream is rejected because server is draining the connection"
	draining      = "the connection is draining"
	handshake     = "authentication handshake failed: "
)

// ownClass is what an error says that grpc-go made itself, without a word from the target; sent says whether anything of the call was
// put on a connection, as far as that is known. ok is false where [ClassOf] serves.
func ownClass(st *status.Status, sent, known bool) (c cortex.Class, untouched, ok bool) {
	text := st.Message()
	switch st.Code() {
	case codes.Unavailable:
		if known && !sent {
			// No connection, or none in time. That of a peer whose certificate is not accepted, or that does not accept ours, is
			// not mended by another attempt.
			_, why, shook := strings.Cut(text, handshake)
			return cortex.Class{Outcome: cortex.Failed, Retryable: !shook || !distrusted(why)}, true, true
		}
		switch text {
		case refusedStream:
			return cortex.Class{Outcome: cortex.Failed, Retryable: true}, true, true
		case goneAway, draining:
			return cortex.Class{Outcome: cortex.Neutral, Retryable: true}, true, true
		}
	case codes.Internal:
		if known && !sent || strings.HasPrefix(text, "grpc: error while marshaling") {
			return cortex.Class{Outcome: cortex.Neutral}, true, true // metadata or a message that cannot be sent
		}
	}
	return cortex.Class{}, known && !sent, false
}

func distrusted(why string) bool {
	return strings.HasPrefix(why, "tls: failed to verify") || strings.HasPrefix(why, "x509: ") ||
		strings.HasPrefix(why, "remote error: ") && strings.Contains(why, "certificate")
}
