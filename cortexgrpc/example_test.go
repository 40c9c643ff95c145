package cortexgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

// A connection under the guard. Methods whose proto declares them NO_SIDE_EFFECTS or IDEMPOTENT are retried; all others only
// where nothing of the call was processed, as here, where nothing listens.
func ExampleClient() {
	ledger, err := cortex.New(cortex.Config{Name: "ledger", MaxRetries: 1})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: ledger, SendPriority: true})
	if err != nil {
		log.Fatal(err)
	}
	cc, err := grpc.NewClient("passthrough:///127.0.0.1:1",
		append(guard.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		log.Fatal(err)
	}
	defer cc.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ctx = cortexgrpc.WithPriority(ctx, 9)
	err = cc.Invoke(ctx, "/bank.Ledger/Commit", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	if call, ok := errors.AsType[*cortex.CallError](err); ok {
		fmt.Println(status.Code(err), "after", call.Attempts, "attempts:", call.Reason)
	}
	// Output: Unavailable after 2 attempts: MAX_RETRIES_EXCEEDED
}

// A server that sheds by priority on its own pressure. Here a pool of its own is full.
func ExampleServer() {
	inbound, err := cortex.New(cortex.Config{
		Name:    "wallet",
		Profile: cortex.Article, // sheds by the score alone, which makes a short example
		Weights: cortex.Weights{F: 0.1, L: 0.1, Q: 0.72, B: 0.08},
		Queue:   func() (current, capacity float64) { return 30, 30 },
	})
	if err != nil {
		log.Fatal(err)
	}
	guard, err := cortexgrpc.NewServer(cortexgrpc.ServerConfig{
		Engine: inbound,
		Priority: func(_ context.Context, method string) cortex.Priority {
			if method == "/bank.Wallet/Settle" {
				return 9
			}
			return 0
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(guard.ServerOptions()...)
	healthpb.RegisterHealthServer(server, health.NewServer()) // never shed
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "bank.Wallet", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Report", ServerStreams: true,
			Handler: func(any, grpc.ServerStream) error { return nil }}}}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(l)
	defer server.Stop()

	cc, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer cc.Close()
	r, err := healthpb.NewHealthClient(cc).Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(r.GetStatus(), status.Code(err))
	err = cc.Invoke(context.Background(), "/bank.Wallet/Report", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	fmt.Println(status.Code(err), status.Code(err) == codes.ResourceExhausted)
	// Output:
	// SERVING OK
	// ResourceExhausted true
}
