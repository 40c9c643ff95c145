package main

import (
	"context"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A method of a service takes an amount and returns one. The services are described by hand, so that nothing needs to be
// generated.
type method func(ctx context.Context, amount int64) (int64, error)

// serve starts a service on a free port of loopback.
func serve(name string, methods map[string]method, opts ...grpc.ServerOption) (addr string, stop func(), err error) {
	desc := &grpc.ServiceDesc{ServiceName: name, HandlerType: (*any)(nil)}
	for m, f := range methods {
		full := "/" + name + "/" + m
		handle := func(ctx context.Context, req any) (any, error) {
			n, err := f(ctx, req.(*wrapperspb.Int64Value).Value)
			return wrapperspb.Int64(n), err
		}
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: m, Handler: func(srv any, ctx context.Context,
			decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			req := new(wrapperspb.Int64Value)
			if err := decode(req); err != nil {
				return nil, err
			}
			if interceptor == nil {
				return handle(ctx, req)
			}
			return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: full}, handle)
		}})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := grpc.NewServer(opts...)
	s.RegisterService(desc, nil)
	go s.Serve(l)
	return l.Addr().String(), s.Stop, nil
}

func dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
}

// call is one call of a method, "wallet.Settle".
func call(ctx context.Context, cc *grpc.ClientConn, name string, amount int64) (int64, error) {
	out := new(wrapperspb.Int64Value)
	err := cc.Invoke(ctx, "/"+strings.Replace(name, ".", "/", 1), wrapperspb.Int64(amount), out)
	return out.Value, err
}

// slots is a bounded number of something: workers, connections to a database.
type slots chan struct{}

func (s slots) take(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) leave() { <-s }

// workers has every call of a server hold one of its workers.
func (s slots) workers(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	return handle(ctx, req)
}
