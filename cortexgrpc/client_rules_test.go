package cortexgrpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

// A rule of the user's own comes first, where it has something to say.
func TestOutcomeRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{}
		s.unary = func(ctx context.Context, n int64) (int64, error) {
			grpc.SetTrailer(ctx, metadata.Pairs("kind", "busy"))
			return 0, status.Error(codes.Code(n), "as told")
		}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s), func(c *cortexgrpc.ClientConfig) {
			c.Outcome = func(method string, st *status.Status, trailer metadata.MD) (cortex.Class, bool) {
				if method != methodGet || len(trailer["kind"]) != 1 || trailer["kind"][0] != "busy" {
					t.Errorf("%s, %v", method, trailer)
				}
				return cortex.Class{Outcome: cortex.Throttled, Retryable: true}, st.Code() == codes.FailedPrecondition
			}
		})
		call(t.Context(), cc, methodGet, int64(codes.FailedPrecondition))
		if st := e.Stats(); s.calls.Load() != 4 || st.Throttled != 4 {
			t.Errorf("%d attempts, %+v", s.calls.Load(), st)
		}
		call(t.Context(), cc, methodGet, int64(codes.NotFound))
		if st := e.Stats(); st.Neutral != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// What an interceptor below answers in the target's stead is judged by Config.Classify.
func TestErrorOfAnInterceptorBelow(t *testing.T) {
	oh := errors.New("oh")
	for _, c := range []struct {
		err      error
		attempts int
		reason   cortex.Reason
	}{
		{oh, 4, cortex.ReasonMaxRetries},
		{cortex.Permanent(oh), 1, 0},
		{&cortex.CallError{Err: unavailable(), Attempts: 3, Reason: cortex.ReasonMaxRetries}, 1, cortex.ReasonDoNotRetry},
		{&cortex.CallError{Err: unavailable(), Attempts: 1, Reason: cortex.ReasonRetriedAbove}, 4, cortex.ReasonMaxRetries},
		{&cortex.Rejection{Reason: cortex.ReasonCircuitOpen}, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			cl, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: engine(t, cortex.Config{}), Repeatable: func(string) bool { return true }})
			if err != nil {
				t.Fatal(err)
			}
			attempts := 0
			err = cl.UnaryInterceptor(t.Context(), methodGet, nil, nil, nil,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					attempts++
					return c.err
				})
			if attempts != c.attempts || !errors.Is(err, c.err) {
				t.Errorf("%v: %d attempts, %v", c.err, attempts, err)
			}
			if e, ok := errors.AsType[*cortex.CallError](err); c.reason != 0 && (!ok || e.Reason != c.reason) {
				t.Errorf("%v: %v", c.err, err)
			}
		})
	}
}

// The circuit opens while a retry waits: the call has failed with what it met, and says why it was not tried again.
func TestRetryRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, cortex.Config{Name: "test"})
		s := &service{unary: func(context.Context, int64) (int64, error) {
			time.AfterFunc(time.Millisecond, func() { e.Force(breaker.ForcedOpen) })
			return 0, unavailable()
		}}
		d := serve(t, s)
		tokens := e.Pressure().Tokens
		_, err := call(t.Context(), client(t, e, d), methodGet, 1)
		failed, ok := errors.AsType[*cortex.CallError](err)
		if !ok || failed.Refusal == nil || failed.Attempts != 1 || !errors.Is(err, cortex.ErrOpen) {
			t.Errorf("%v", err)
		}
		if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != "try later" {
			t.Errorf("%v", st)
		}
		if got := e.Pressure().Tokens; got < tokens {
			t.Errorf("%v tokens of %v: a retry that was not made was charged", got, tokens)
		}
		idle(t, e)
	})
}

// The caller leaves while a retry waits.
func TestCallerLeavesDuringTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
			grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", "20000"))
			return 0, unavailable()
		}}
		s.stream = func(ss grpc.ServerStream) error {
			ss.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", "20000"))
			return unavailable()
		}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s))
		tokens := e.Pressure().Tokens
		check := func(err error, began time.Time) {
			t.Helper()
			failed, ok := errors.AsType[*cortex.CallError](err)
			if !ok || failed.Reason != cortex.ReasonCancelled || status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			if took := time.Since(began); took != time.Second {
				t.Errorf("after %v", took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := call(ctx, cc, methodGet, 1)
		check(err, began)
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began = time.Now()
		st, err := down(ctx, cc, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, err = recvAll(st)
		check(err, began)
		if got := e.Pressure().Tokens; got < tokens {
			t.Errorf("%v tokens of %v", got, tokens)
		}
		idle(t, e)
	})
}

// A caller that has left before it begins is not counted.
func TestCallerLeftBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, cortex.Config{Name: "test"})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := call(ctx, client(t, e, serve(t, &service{})), methodGet, 1); status.Code(err) != codes.Canceled {
			t.Errorf("%v", err)
		}
		if st := e.Stats(); st.Calls != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestRejectionStatus(t *testing.T) {
	for reason, code := range map[cortex.Reason]codes.Code{cortex.ReasonShed: codes.ResourceExhausted,
		cortex.ReasonCircuitOpen: codes.Unavailable, cortex.ReasonCircuitEmergency: codes.Unavailable, cortex.ReasonDeadline: codes.DeadlineExceeded} {
		rej := &cortex.Rejection{Target: "t", Reason: reason, Priority: 3, RetryAfter: time.Second}
		st := cortexgrpc.RejectionStatus(rej)
		if st.Code() != code || !strings.Contains(st.Message(), reason.String()) || len(st.Details()) != 2 {
			t.Errorf("%v: %v", reason, st)
		}
	}
	if st := cortexgrpc.RejectionStatus(&cortex.Rejection{Target: "\xff", Reason: cortex.ReasonShed}); st.Code() != codes.ResourceExhausted {
		t.Errorf("a name that is not UTF-8: %v", st)
	}
}

func TestServerConfigErrors(t *testing.T) {
	e := engine(t, cortex.Config{})
	for _, cfg := range []cortexgrpc.ServerConfig{{},
		{Engine: e, Select: func(context.Context, string) (*cortex.Engine, error) { return e, nil }}} {
		if _, err := cortexgrpc.NewServer(cfg); err == nil {
			t.Errorf("%+v", cfg)
		} else if _, ok := errors.AsType[*cortex.ConfigError](err); !ok {
			t.Errorf("%T", err)
		}
	}
}
