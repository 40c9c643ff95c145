package cortexgrpc_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
	"github.com/seed-a29ca62a/cortex/limit"
)

// Methods of the service that the tests call; messages are wrapperspb.Int64Value.
const (
	methodDo   = "/cortex.test.Test/Do"   // unary
	methodGet  = "/cortex.test.Test/Get"  // unary, repeatable
	methodDown = "/cortex.test.Test/Down" // the server streams
	methodUp   = "/cortex.test.Test/Up"   // the client streams
	methodBoth = "/cortex.test.Test/Both" // both do
)

var (
	streamDown = &grpc.StreamDesc{StreamName: "Down", ServerStreams: true}
	streamUp   = &grpc.StreamDesc{StreamName: "Up", ClientStreams: true}
	streamBoth = &grpc.StreamDesc{StreamName: "Both", ClientStreams: true, ServerStreams: true}
)

// service is a server of the tests.
type service struct {
	unary  func(ctx context.Context, n int64) (int64, error)
	stream func(s grpc.ServerStream) error
	calls  atomic.Int64 // that reached a handler
}

func (s *service) desc() *grpc.ServiceDesc {
	unary := func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.Int64Value)
		if err := dec(in); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, req any) (any, error) {
			s.calls.Add(1)
			out, err := s.unary(ctx, req.(*wrapperspb.Int64Value).Value)
			return wrapperspb.Int64(out), err
		}
		if interceptor == nil {
			return handle(ctx, in)
		}
		method, _ := grpc.Method(ctx)
		return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: s, FullMethod: method}, handle)
	}
	stream := func(_ any, ss grpc.ServerStream) error {
		s.calls.Add(1)
		return s.stream(ss)
	}
	d := &grpc.ServiceDesc{ServiceName: "cortex.test.Test", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: unary}, {MethodName: "Get", Handler: unary}}}
	for _, sd := range []*grpc.StreamDesc{streamDown, streamUp, streamBoth} {
		sd := *sd
		sd.Handler = stream
		d.Streams = append(d.Streams, sd)
	}
	return d
}

// serve runs a service over memory and returns what dials it. It works in a synctest bubble.
func serve(t testing.TB, s *service, opts ...grpc.ServerOption) grpc.DialOption {
	t.Helper()
	return listen(t, func(g *grpc.Server) { g.RegisterService(s.desc(), s) }, opts...)
}

func listen(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) grpc.DialOption {
	t.Helper()
	l := listener(t, register, opts...)
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })
}

func listener(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) *bufconn.Listener {
	t.Helper()
	l := bufconn.Listen(64 << 10)
	server := grpc.NewServer(append(opts, grpc.WaitForHandlers(true))...)
	register(server)
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return l
}

func dial(t testing.TB, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///test", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func engine(t testing.TB, cfg cortex.Config) *cortex.Engine {
	t.Helper()
	e, err := cortex.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// client is a guarded connection; Get and the streams are repeatable.
func client(t testing.TB, e *cortex.Engine, d grpc.DialOption, change ...func(*cortexgrpc.ClientConfig)) *grpc.ClientConn {
	t.Helper()
	cfg := cortexgrpc.ClientConfig{Engine: e, Repeatable: func(m string) bool { return m != methodDo }}
	for _, c := range change {
		c(&cfg)
	}
	c, err := cortexgrpc.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return dial(t, append(c.DialOptions(), d)...)
}

func server(t testing.TB, cfg cortexgrpc.ServerConfig) []grpc.ServerOption {
	t.Helper()
	s, err := cortexgrpc.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s.ServerOptions()
}

func call(ctx context.Context, cc *grpc.ClientConn, method string, n int64, opts ...grpc.CallOption) (int64, error) {
	out := new(wrapperspb.Int64Value)
	err := cc.Invoke(ctx, method, wrapperspb.Int64(n), out, opts...)
	return out.Value, err
}

// counts are the outcomes that an engine has recorded.
func counts(e *cortex.Engine) (success, failed, neutral uint64) {
	s := e.Stats()
	return s.Successes, s.Failures + s.Timeouts, s.Neutral
}

func idle(t testing.TB, e *cortex.Engine) {
	t.Helper()
	if n := e.Pressure().InFlight; n != 0 {
		t.Errorf("%d permits are not free", n)
	}
}

func unavailable() error { return status.Error(codes.Unavailable, "try later") }

// limitOff leaves only what counts failures: no circuit.
var limitOff = limit.Config{Off: limit.Circuit}

// opened is an engine whose circuit is open.
func opened(t testing.TB) *cortex.Engine {
	t.Helper()
	e := engine(t, cortex.Config{Name: "below"})
	if e.Force(breaker.ForcedOpen) != breaker.Automatic {
		t.Fatal("not opened")
	}
	return e
}
