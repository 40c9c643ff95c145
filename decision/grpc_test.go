package decision

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// The gRPC of the port is that of other people's clients.
func TestGRPCGo(t *testing.T) {
	stop := make(chan struct{})
	w := newWorld(t, func(c *Config) { c.Token, c.Stop = func() string { return secret }, stop })
	conn, err := grpc.NewClient(strings.TrimPrefix(w.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const service = "/cortex.v1.DecisionService/"
	in := &pb.AdmitRequest{Target: ptr("a"), Priority: ptr(int32(5))}
	var a pb.AdmitResponse
	if err := conn.Invoke(background, service+"Admit", in, &a); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(background, "authorization", "Bearer "+secret)
	if err := conn.Invoke(ctx, service+"Admit", in, &a); err != nil || !a.Allowed || a.TimeoutMs != 1000 {
		t.Fatalf("%v %v", &a, err)
	}
	var d pb.DecideResponse
	err = conn.Invoke(ctx, service+"Decide", &pb.DecideRequest{Target: ptr("a"), Priority: ptr(int32(5)), Attempt: ptr(int32(0)), Token: &a.Token,
		Error: &pb.Error{GrpcCode: ptr(int32(codes.Unavailable))}}, &d)
	if err != nil || !d.Retry || !d.Counted || d.Outcome != "failure" {
		t.Errorf("%v %v", &d, err)
	}
	err = conn.Invoke(ctx, service+"Admit", &pb.AdmitRequest{Target: ptr("a")}, &a)
	details := status.Convert(err).Details()
	if v, ok := append(details, nil)[0].(*pb.FieldViolation); status.Code(err) != codes.InvalidArgument || !ok || v.Field != "priority" {
		t.Errorf("%v %v", err, details)
	}
	if err := conn.Invoke(ctx, service+"Admire", in, &a); status.Code(err) != codes.Unimplemented {
		t.Errorf("no such method: %v", err)
	}

	w.add(time.Second) // so that what a watch knows is old
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, service+"Watch")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(&pb.WatchRequest{}); err != nil {
		t.Fatal(err)
	}
	s.CloseSend()
	var m pb.WatchResponse
	if err := s.RecvMsg(&m); err != nil || len(m.Changes) != 1 || m.Changes[0].Target != "a" {
		t.Errorf("%v %v", &m, err)
	}
	close(stop)
	if err := s.RecvMsg(&m); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}
