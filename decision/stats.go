package decision

import (
	"context"
	"net/http"
	"sync/atomic"

	"connectrpc.com/connect"

	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
	"github.com/seed-a29ca62a/cortex/door"
)

// Methods are those of the service, in the order of [Stats].Requests.
var Methods = func() (names []string) {
	all := pb.File_cortex_v1_decision_proto.Services().Get(0).Methods()
	for i := range all.Len() {
		names = append(names, string(all.Get(i).Name()))
	}
	return names
}()

// Results are what can become of a request, in the order of [Stats].Requests: the codes of the errors that the service gives, "malformed" for
// what was no request of its method at all, and "other".
var Results = [...]string{"ok", "malformed", "invalid_argument", "not_found", "resource_exhausted", "unavailable", "canceled", "internal", "other"}

const (
	resultMalformed = 1
	resultOther     = len(Results) - 1
)

// Stats counts what a service did since it was made.
type Stats struct {
	Requests [][len(Results)]uint64   // that were let in and are over, by method and result
	Refused  [len(door.Causes)]uint64 // requests that were not let in, by cause
	Tokens   int                      // attempts that are admitted and not yet reported
	Expired  uint64                   // tokens that were not reported in their time
	Full     uint64                   // attempts that were admitted without a token, for there were too many
	Watches  int                      // streams of Watch that are open
}

// StatsOf tells what a handler that [New] returned did; false: it is none of these.
func StatsOf(h http.Handler) (Stats, bool) {
	s, ok := h.(*service)
	if !ok {
		return Stats{}, false
	}
	out := Stats{Requests: make([][len(Results)]uint64, len(Methods)), Refused: s.kept.Counts(), Watches: int(s.watches.Load())}
	for i := range s.calls {
		for j := range s.calls[i] {
			out.Requests[i][j] = s.calls[i][j].Load()
		}
	}
	s.tokens.expire(s.Now())
	s.tokens.mu.Lock()
	defer s.tokens.mu.Unlock()
	out.Tokens, out.Expired, out.Full = len(s.tokens.byID), s.tokens.expired, s.tokens.full
	return out, true
}

// calls counts requests by method and result.
type calls [][len(Results)]atomic.Uint64

// underWay is a request to a method. The interceptor leaves the result in it for the handler: a body that cannot be read never gets as far
// as the former.
type underWay struct {
	w      http.ResponseWriter
	result int
}

type underWayKey struct{}

// serve serves a request to a method and counts it.
func (c calls) serve(method int, h http.Handler, w http.ResponseWriter, r *http.Request) {
	u := &underWay{w, resultMalformed}
	defer func() { c[method][u.result].Add(1) }()
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), underWayKey{}, u)))
}

// ended leaves the result of a request.
func ended(ctx context.Context, err error) {
	u, ok := ctx.Value(underWayKey{}).(*underWay)
	if !ok {
		return
	}
	if u.result = 0; err == nil {
		return
	}
	u.result = resultOther
	code := connect.CodeOf(err)
	if ctx.Err() != nil { // whatever it says, nobody is there any more
		code = connect.CodeCanceled
	}
	for i, name := range Results {
		if name == code.String() {
			u.result = i
		}
	}
}

// counting is the interceptor.
type counting struct{}

func (counting) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		out, err := next(ctx, r)
		ended(ctx, err)
		return out, err
	}
}

func (counting) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		ended(ctx, err)
		return err
	}
}

func (counting) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
