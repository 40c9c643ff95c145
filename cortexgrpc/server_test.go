package cortexgrpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

func healthPasses(t *testing.T) {
	in, out := opened(t), opened(t)
	l := listen(t, func(s *grpc.Server) {
		healthpb.RegisterHealthServer(s, health.NewServer())
		reflection.Register(s)
	}, server(t, cortexgrpc.ServerConfig{Engine: in})...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cc := client(t, out, l)
	h := healthpb.NewHealthClient(cc)
	if r, err := h.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("check: %v, %v", r, err)
	}
	w, err := h.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := w.Recv(); err != nil {
		t.Errorf("watch: %v, %v", r, err)
	}
	r, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if a, err := r.Recv(); err != nil || len(a.GetListServicesResponse().GetService()) == 0 {
		t.Errorf("reflection: %v, %v", a, err)
	}
	r.CloseSend()
	if a, b := in.Stats(), out.Stats(); a.Calls != 0 || b.Calls != 0 {
		t.Errorf("counted: %+v, %+v", a, b)
	}
}
