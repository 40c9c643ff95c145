package cortexgrpc

import (
	"context"

	"google.golang.org/grpc/stats"
)

type attemptKey struct{}

// statsHandler tells the attempts of one client what becomes of them on the wire. A connection may have several clients, one above
// the other, each with its handler.
type statsHandler struct{ c *Client }

// of is the attempt that an event is about, nil for none of this client's.
func (h statsHandler) of(ctx context.Context) *attempt {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	for a != nil && a.client != h.c {
		a = a.outer
	}
	return a
}

// attemptContext is the context of an attempt.
type attemptContext struct {
	context.Context
	a *attempt // nil hides those above: what is called within another call is not that call
}

func (c *attemptContext) Value(key any) any {
	if _, ok := key.(attemptKey); ok {
		return c.a
	}
	return c.Context.Value(key)
}

func (h statsHandler) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	a := h.of(ctx)
	if a == nil {
		return ctx
	}
	if a.method != info.FullMethodName {
		return &attemptContext{ctx, nil}
	}
	a.seen.Store(true)
	return ctx
}

func (h statsHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader:
		if a := h.of(ctx); a != nil {
			a.sent.Add(1)
		}
	case *stats.InHeader: // not of an answer that is a trailer alone
		if a := h.of(ctx); a != nil {
			a.headerCame()
		}
	case *stats.InTrailer:
		if a := h.of(ctx); a != nil {
			a.told.Store(true)
		}
	}
}

func (statsHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (statsHandler) HandleConn(context.Context, stats.ConnStats)                       {}
