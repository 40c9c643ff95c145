package cortex

import "context"

// RetryMark says that a layer above makes retries already, so that stacked layers do not multiply: three layers of three
// tries each would send 27 calls to a target that is just recovering.
type RetryMark struct {
	Attempt int // of the layer above; 0 is the original
	Retries int // that the layer above may make; 0 = unknown
}

type markKey struct{}

// WithRetryMark returns a context under which [Do] and the HTTP and gRPC integrations make no retries of their own: the
// outermost layer does. Do sets it for the function it guards; integrations carry it over the network.
func WithRetryMark(ctx context.Context, m RetryMark) context.Context {
	return context.WithValue(ctx, markKey{}, m)
}

// RetryMarkFrom returns the mark of the nearest layer above, if any.
func RetryMarkFrom(ctx context.Context) (RetryMark, bool) {
	m, ok := ctx.Value(markKey{}).(RetryMark)
	return m, ok
}
