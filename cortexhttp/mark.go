package cortexhttp

import (
	"context"
	"maps"
	"net/http"
	"strconv"

	"github.com/seed-a29ca62a/cortex"
)

type priorityKey struct{}

// WithPriority returns a context whose call has that priority, where TransportConfig.Priority does not say otherwise.
func WithPriority(ctx context.Context, p cortex.Priority) context.Context {
	return context.WithValue(ctx, priorityKey{}, p)
}

// fields are the values of the header fields that travel with a request, in one piece with the attempt.
type fields [3]string

// stamp returns the header of the attempt's request: the caller's, which must not be written to, and what this guard tells
// the next one.
func (c *call) stamp(a *attempt, h http.Header, own bool) http.Header {
	var value string
	set := func(key string, i int) {
		if !own {
			own = true
			if h = maps.Clone(h); h == nil {
				h = make(http.Header)
			}
		}
		a.fields[i] = value
		h[key] = a.fields[i : i+1 : i+1]
	}
	if !c.t.cfg.DisableMark {
		if value = c.markValue(); value != "" {
			set(HeaderAttempt, 0)
		}
	}
	if left, ok := untilDeadline(c.ctx); ok && !c.stranger && !c.t.cfg.DisableMark {
		value = strconv.FormatInt(max(left.Milliseconds(), 1), 10)
		set(HeaderTimeout, 1)
	}
	if c.t.cfg.SendPriority {
		value = strconv.Itoa(min(max(int(c.priority), 0), c.set.levels))
		set(HeaderPriority, 2)
	}
	return h
}

// markValue is the value of HeaderAttempt: what this layer is going to do about a failure, or the layer above; "" leaves
// what stands in the request already.
func (c *call) markValue() string {
	switch {
	case c.above && c.mark.Retries > 0:
		return FormatAttempt(c.mark.Attempt, c.mark.Retries)
	case c.above:
		// How many the layer above may make stands in the request where it came over the network. Else it matters only that
		// there are some.
		if v, ok := single(c.req.Header, HeaderAttempt); ok {
			if _, retries, ok := ParseAttempt(v); ok && retries > 0 {
				return ""
			}
		}
		return FormatAttempt(c.mark.Attempt, max(c.set.retries, 1))
	case c.attempt == 0 && c.retries == 0:
		return "0;retries=0"
	case c.attempt == 0 && c.retries == cortex.DefaultMaxRetries:
		return "0;retries=3"
	}
	return FormatAttempt(c.attempt, c.retries)
}
