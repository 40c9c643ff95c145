package cortexgrpc_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
	"github.com/seed-a29ca62a/cortex/timeout"
)

// calm is a configuration that does not cut calls because the machine has other things to do.
var calm = cortex.Config{Timeout: timeout.Config{Min: 10 * time.Second, Max: 10 * time.Second, Bootstrap: 10 * time.Second}}

// What the guard costs beside a bare client and server, over loopback:
//
//	go test -run xxx -bench Unary -benchmem ./cortexgrpc
func BenchmarkUnary(b *testing.B) {
	benchPairs(b, func(b *testing.B, cc *grpc.ClientConn) {
		b.RunParallel(func(pb *testing.PB) {
			in, out := wrapperspb.Int64(1), new(wrapperspb.Int64Value)
			for pb.Next() {
				if err := cc.Invoke(b.Context(), methodDo, in, out); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// One stream, one message each way per operation.
func BenchmarkStreamMessage(b *testing.B) {
	benchPairs(b, func(b *testing.B, cc *grpc.ClientConn) {
		st, err := cc.NewStream(b.Context(), streamBoth, methodBoth)
		if err != nil {
			b.Fatal(err)
		}
		in, out := wrapperspb.Int64(1), new(wrapperspb.Int64Value)
		for b.Loop() {
			if err := st.SendMsg(in); err != nil {
				b.Fatal(err)
			}
			if err := st.RecvMsg(out); err != nil {
				b.Fatal(err)
			}
		}
		st.CloseSend()
		if err := st.RecvMsg(out); err != io.EOF {
			b.Fatal(err)
		}
	})
}

func benchPairs(b *testing.B, run func(b *testing.B, cc *grpc.ClientConn)) {
	for _, c := range []struct {
		name           string
		client, server bool
	}{{"bare", false, false}, {"client", true, false}, {"server", false, true}, {"both", true, true}} {
		b.Run(c.name, func(b *testing.B) {
			s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
			s.stream = func(ss grpc.ServerStream) error {
				m := new(wrapperspb.Int64Value)
				for {
					if err := ss.RecvMsg(m); err != nil {
						return nil
					}
					if err := ss.SendMsg(m); err != nil {
						return err
					}
				}
			}
			var opts []grpc.ServerOption
			if c.server {
				opts = server(b, cortexgrpc.ServerConfig{Engine: engine(b, calm)})
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			g := grpc.NewServer(opts...)
			g.RegisterService(s.desc(), s)
			go g.Serve(l)
			defer g.Stop()
			dials := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
			if c.client {
				cl, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: engine(b, calm)})
				if err != nil {
					b.Fatal(err)
				}
				dials = append(dials, cl.DialOptions()...)
			}
			cc, err := grpc.NewClient("passthrough:///"+l.Addr().String(), dials...)
			if err != nil {
				b.Fatal(err)
			}
			defer cc.Close()
			b.ReportAllocs()
			b.ResetTimer()
			run(b, cc)
		})
	}
}
