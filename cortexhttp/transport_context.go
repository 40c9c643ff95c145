package cortexhttp

import (
	"context"
	"net/http/httptrace"

	"github.com/seed-a29ca62a/cortex"
)

// attemptContext is the context of an attempt, in one piece with it. It carries the trace hooks and the retry mark.
//
// httptrace.WithClientTrace and cortex.WithRetryMark would do, at the price of an allocation each on every call, and of a
// walk by reflection through all hooks where the caller has a trace of its own, as httputil.ReverseProxy always has.
type attemptContext struct {
	context.Context
	trace  *httptrace.ClientTrace
	of     *attempt
	mark   cortex.RetryMark
	marked bool
}

func (c *attemptContext) Value(key any) any {
	switch {
	case key == traceKey:
		return c.trace
	case key == attemptKey{}:
		return c.of
	case c.marked && key == markKey:
		return c.mark
	}
	return c.Context.Value(key)
}

// The keys are not exported, but their owners ask any context for them.
var (
	traceKey = keyOf(func(ctx context.Context) { httptrace.ContextClientTrace(ctx) })
	markKey  = keyOf(func(ctx context.Context) { cortex.RetryMarkFrom(ctx) })
)

func keyOf(lookup func(context.Context)) any {
	c := &askedContext{Context: context.Background()}
	lookup(c)
	return c.key
}

// askedContext remembers what it was asked for.
type askedContext struct {
	context.Context
	key any
}

func (c *askedContext) Value(key any) any {
	c.key = key
	return nil
}

// hooks sets the trace of an attempt: that of the caller, with what this transport wants to know in front of it.
func (a *attempt) hooks(wantWrites bool) {
	if outer := httptrace.ContextClientTrace(a.call); outer != nil {
		a.trace, a.outer = *outer, outer
	}
	a.trace.GetConn = a.getConn
	a.trace.GotConn = a.gotConn
	if wantWrites {
		a.trace.WroteHeaders = a.wroteHeaders
	}
}

func (a *attempt) getConn(addr string) {
	a.asked.Add(1)
	if a.outer != nil && a.outer.GetConn != nil {
		a.outer.GetConn(addr)
	}
}

func (a *attempt) gotConn(info httptrace.GotConnInfo) {
	a.got.Add(1)
	a.reused.Store(info.Reused)
	if a.outer != nil && a.outer.GotConn != nil {
		a.outer.GotConn(info)
	}
}

func (a *attempt) wroteHeaders() {
	a.wrote.Add(1)
	if a.outer != nil && a.outer.WroteHeaders != nil {
		a.outer.WroteHeaders()
	}
}
