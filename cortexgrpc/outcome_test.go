package cortexgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		want cortex.Class
	}{
		{nil, cortex.Class{Outcome: cortex.Success}},
		{errors.New("oh"), cortex.Class{Outcome: cortex.Failed, Retryable: true}},
		{context.Canceled, cortex.Class{}},
		{context.DeadlineExceeded, cortex.Class{Outcome: cortex.TimedOut, Retryable: true}},
		{&cortex.Rejection{Reason: cortex.ReasonCircuitOpen}, cortex.Class{}},
		{cortex.Permanent(status.Error(codes.Unavailable, "")), cortex.Class{}},
		{status.Error(codes.Unavailable, ""), cortex.Class{Outcome: cortex.Failed, Retryable: true}},
		{fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "")), cortex.Class{}},
		{status.Error(codes.Internal, ""), cortex.Class{Outcome: cortex.Failed}},
		{status.Error(codes.ResourceExhausted, ""), cortex.Class{Outcome: cortex.Throttled, Retryable: true}},
		{status.Error(codes.DeadlineExceeded, ""), cortex.Class{Outcome: cortex.TimedOut, Retryable: true}},
	} {
		if got := cortexgrpc.Classify(c.err); got != c.want {
			t.Errorf("%v: %+v", c.err, got)
		}
	}
}

func TestServiceConfigRepeatable(t *testing.T) {
	retried, err := cortexgrpc.ServiceConfigRepeatable(`{"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [
		{"name": [{"service": "a.A"}, {"service": "b.B", "method": "Get"}], "retryPolicy": {"maxAttempts": 3}},
		{"name": [{"service": "a.A", "method": "Pay"}], "timeout": "1s"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range map[string]bool{"/a.A/Get": true, "/a.A/Pay": false, "/b.B/Get": true, "/b.B/Put": false, "/c.C/Get": false,
		"": false, "a.A/Get": false, "/a.A": false} {
		if retried(m) != want {
			t.Errorf("%q", m)
		}
	}
	all, err := cortexgrpc.ServiceConfigRepeatable(`{"methodConfig":[{"name":[{}],"retryPolicy":{}},{"name":[{"service":"a.A"}]}]}`)
	if err != nil || !all("/c.C/Get") || all("/a.A/Get") {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "{", `{"methodConfig":[{"name":[{"method":"Get"}]}]}`, `{"methodConfig":1}`,
		`{"methodConfig":[{"name":[{"service":"a"}]},{"name":[{"service":"a"}]}]}`} {
		if _, err := cortexgrpc.ServiceConfigRepeatable(bad); err == nil {
			t.Errorf("%q", bad)
		}
	}
}
