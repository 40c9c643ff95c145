package cortexgrpc

import (
	"context"

	"google.golang.org/grpc/stats"
)

type attemptKey struct{}

// statsHandler tells attempts what becomes of them on the wire.
type statsHandler struct{}

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

func (statsHandler) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	if a == nil {
		return ctx
	}
	if a.method != info.FullMethodName {
		return &attemptContext{ctx, nil}
	}
	a.seen.Store(true)
	return ctx
}

func (statsHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader:
		if a, _ := ctx.Value(attemptKey{}).(*attempt); a != nil {
			a.sent.Add(1)
		}
	case *stats.InHeader: // not of an answer that is a trailer alone
		if a, _ := ctx.Value(attemptKey{}).(*attempt); a != nil {
			a.headerCame()
		}
	case *stats.InTrailer:
		if a, _ := ctx.Value(attemptKey{}).(*attempt); a != nil {
			a.told.Store(true)
		}
	}
}

func (statsHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (statsHandler) HandleConn(context.Context, stats.ConnStats)                       {}
