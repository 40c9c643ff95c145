package cortexgrpc

import (
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
)

// endings are what a caller wants done at the end of a call: its grpc.OnFinish options. They are taken out of what the attempts are made
// with, for gRPC would run them at the end of each. nil: there are none.
type endings struct {
	over  atomic.Bool
	hooks []func(error)
}

// takeEndings parts the endings from the other options, which stay as they are where there are none.
func takeEndings(opts []grpc.CallOption) ([]grpc.CallOption, *endings) {
	n := 0
	for _, o := range opts {
		if _, ok := o.(grpc.OnFinishCallOption); ok {
			n++
		}
	}
	if n == 0 {
		return opts, nil
	}
	e := &endings{hooks: make([]func(error), 0, n)}
	rest := make([]grpc.CallOption, 0, len(opts)-n)
	for _, o := range opts {
		switch f, ok := o.(grpc.OnFinishCallOption); {
		case !ok:
			rest = append(rest, o)
		case f.OnFinish != nil:
			e.hooks = append(e.hooks, f.OnFinish)
		}
	}
	return rest, e
}

// run runs them, the first time it is called. No lock is held, and none is needed to call it.
func (e *endings) run(err error) {
	if e == nil || e.over.Swap(true) {
		return
	}
	for _, f := range e.hooks {
		f(err)
	}
}

// forget clears what grpc.Header, Trailer and Peer have of an attempt that another one takes the place of. gRPC fills them in where the
// attempt had a stream, and leaves them alone where it met no connection: they would be those of a server that did not give the answer.
func forget(opts []grpc.CallOption) {
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.HeaderCallOption:
			if o.HeaderAddr != nil {
				*o.HeaderAddr = nil
			}
		case grpc.TrailerCallOption:
			if o.TrailerAddr != nil {
				*o.TrailerAddr = nil
			}
		case grpc.PeerCallOption:
			if o.PeerAddr != nil {
				*o.PeerAddr = peer.Peer{}
			}
		}
	}
}
