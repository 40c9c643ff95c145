package cortexgrpc_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
)

func TestUnaryGoodAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n + 1, nil }}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s))
		var header, trailer metadata.MD
		n, err := call(t.Context(), cc, methodDo, 41, grpc.Header(&header), grpc.Trailer(&trailer))
		if n != 42 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if header.Get("content-type") == nil {
			t.Errorf("the caller's own header option got %v", header)
		}
		if ok, bad, neutral := counts(e); ok != 1 || bad != 0 || neutral != 0 {
			t.Errorf("%d good, %d bad, %d neutral", ok, bad, neutral)
		}
		idle(t, e)
	})
}

// The status of the last attempt comes through as it is, with its details, and the guard's error beside it.
func TestUnaryRetriesWhatMayBeRepeated(t *testing.T) {
	for _, c := range []struct {
		name    string
		method  string
		err     error
		calls   int64
		reason  cortex.Reason
		wrapped bool
	}{
		{"unavailable, repeatable", methodGet, unavailable(), 4, cortex.ReasonMaxRetries, true},
		{"unavailable, not repeatable", methodDo, unavailable(), 1, cortex.ReasonNotRetryable, true},
		{"internal", methodGet, status.Error(codes.Internal, "broken"), 1, cortex.ReasonNotRetryable, true},
		{"no status", methodGet, errors.New("oh"), 1, cortex.ReasonNotRetryable, true},
		{"throttled", methodGet, status.Error(codes.ResourceExhausted, "slow down"), 4, cortex.ReasonMaxRetries, true},
		{"timed out there", methodGet, status.Error(codes.DeadlineExceeded, "late"), 4, cortex.ReasonMaxRetries, true},
		{"not found", methodGet, status.Error(codes.NotFound, "no such"), 1, 0, false},
		{"canceled there", methodGet, status.Error(codes.Canceled, "gone"), 1, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &service{unary: func(context.Context, int64) (int64, error) { return 0, c.err }}
				e := engine(t, cortex.Config{Name: "test"})
				_, err := call(t.Context(), client(t, e, serve(t, s)), c.method, 1)
				want := status.Convert(c.err)
				if got, ok := status.FromError(err); !ok || got.Code() != want.Code() || got.Message() != want.Message() {
					t.Errorf("%v", err)
				}
				var failed *cortex.CallError
				if errors.As(err, &failed) != c.wrapped {
					t.Errorf("a *cortex.CallError: %v", !c.wrapped)
				}
				if c.wrapped && (failed.Reason != c.reason || failed.Attempts != int(c.calls)) {
					t.Errorf("%v", err)
				}
				if n := s.calls.Load(); n != c.calls {
					t.Errorf("%d attempts", n)
				}
				idle(t, e)
			})
		})
	}
}

// Our own cut is a timeout, whatever gRPC calls it; a call that takes longer than its caller waits is the caller's.
func TestUnaryAttemptTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		e := engine(t, cortex.Config{Name: "test", DisableRetries: true})
		began := time.Now()
		_, err := call(t.Context(), client(t, e, serve(t, s)), methodDo, 1)
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		if status.Code(err) != codes.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if n := e.Stats().Timeouts; n != 1 {
			t.Errorf("%d timeouts", n)
		}
		idle(t, e)
	})
}
