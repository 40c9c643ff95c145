package cortexgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

// F18: answers that find fault with the request prove the target alive.
func TestClientFaultsDoNotOpenTheCircuit(t *testing.T) {
	opens := map[codes.Code]bool{codes.Unavailable: true, codes.Unknown: true, codes.Internal: true, codes.DataLoss: true,
		codes.DeadlineExceeded: true}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &service{unary: func(context.Context, int64) (int64, error) { return 0, status.Error(code, "as told") }}
				e := engine(t, cortex.Config{Name: "test"})
				cc := client(t, e, serve(t, s))
				shed := 0
				for range 200 {
					_, err := call(t.Context(), cc, methodDo, 1)
					if errors.Is(err, cortex.ErrShed) {
						shed++
					}
					time.Sleep(10 * time.Millisecond)
				}
				if got := e.Pressure().Circuit != breaker.Closed; got != opens[code] {
					t.Errorf("open: %v, %+v", got, e.Pressure())
				}
				if shed > 0 && code != codes.ResourceExhausted && !opens[code] {
					t.Errorf("%d shed", shed)
				}
				idle(t, e)
			})
		})
	}
}

// A message that is too large has the code of an exhausted quota, and is not one.
func TestTooLargeIsNotThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
		d := serve(t, s, grpc.MaxRecvMsgSize(4))
		for name, opt := range map[string]grpc.CallOption{
			"sending": grpc.MaxCallSendMsgSize(2), "answer": grpc.MaxCallRecvMsgSize(2), "there": grpc.WaitForReady(false)} {
			e := engine(t, cortex.Config{Name: "test"})
			_, err := call(t.Context(), client(t, e, d), methodGet, 1<<40, opt)
			if status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %v", name, err)
			}
			if st := e.Stats(); st.Neutral != 1 || st.Retries != 0 {
				t.Errorf("%s: %v: %+v", name, err, st)
			}
		}
	})
}

// F20: an open circuit is refused at once, is not retried by a layer above, and says what it is in both languages.
func TestOpenCircuitIsNotRetried(t *testing.T) {
	check := func(t *testing.T, err error, began time.Time) {
		t.Helper()
		if time.Since(began) > 0 {
			t.Errorf("after %v", time.Since(began))
		}
		st, ok := status.FromError(err)
		if !ok || st.Code() != codes.Unavailable {
			t.Fatalf("%v", err)
		}
		reason, wait := "", time.Duration(0)
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.ErrorInfo:
				if d.Domain == cortexgrpc.ErrorDomain {
					reason = d.Reason
				}
			case *errdetails.RetryInfo:
				wait = d.RetryDelay.AsDuration()
			}
		}
		if reason != "CIRCUIT_OPEN" || wait <= 0 {
			t.Errorf("reason %q, %v", reason, wait)
		}
	}
	s := &service{unary: func(context.Context, int64) (int64, error) { return 0, nil }}
	s.stream = func(grpc.ServerStream) error { return nil }
	t.Run("in process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			above, below := engine(t, cortex.Config{Name: "above"}), opened(t)
			outer, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: above, Repeatable: func(string) bool { return true }})
			if err != nil {
				t.Fatal(err)
			}
			inner, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: below})
			if err != nil {
				t.Fatal(err)
			}
			cc := dial(t, append(append(outer.DialOptions(), inner.DialOptions()...), serve(t, s))...)
			began := time.Now()
			_, err = call(t.Context(), cc, methodGet, 1)
			check(t, err, began)
			if r, ok := errors.AsType[*cortex.Rejection](err); !ok || r.Target != "below" || !errors.Is(err, cortex.ErrOpen) {
				t.Errorf("%v", err)
			}
			_, err = cc.NewStream(t.Context(), streamDown, methodDown)
			check(t, err, began)
			if st := above.Stats(); st.Attempts != 2 || st.Neutral != 2 || st.Retries != 0 {
				t.Errorf("%+v", st)
			}
			if s.calls.Load() != 0 {
				t.Error("the target was called")
			}
		})
	})
	t.Run("over the wire", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			above := engine(t, cortex.Config{Name: "above"})
			cc := client(t, above, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: opened(t)})...))
			began := time.Now()
			var trailer metadata.MD
			_, err := call(t.Context(), cc, methodGet, 1, grpc.Trailer(&trailer))
			check(t, err, began)
			if v := trailer["grpc-retry-pushback-ms"]; len(v) != 1 || v[0] != "-1" {
				t.Errorf("%v", trailer)
			}
			st, err := down(t.Context(), cc, 1)
			if err != nil {
				t.Fatal(err)
			}
			_, err = recvAll(st)
			check(t, err, began)
			if st := above.Stats(); st.Attempts != 2 || st.Neutral != 2 || st.Retries != 0 || above.Pressure().Circuit != breaker.Closed {
				t.Errorf("%+v", st)
			}
			if s.calls.Load() != 0 {
				t.Error("the target was called")
			}
		})
	})
	// The service in the middle has a guard in front of its own target, and returns what that says.
	t.Run("through a service", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			inner := client(t, opened(t), serve(t, s))
			middle := engine(t, cortex.Config{Name: "middle"})
			m := &service{unary: func(ctx context.Context, n int64) (int64, error) { return call(ctx, inner, methodGet, n) }}
			above := engine(t, cortex.Config{Name: "above"})
			cc := client(t, above, serve(t, m, server(t, cortexgrpc.ServerConfig{Engine: middle})...))
			began := time.Now()
			_, err := call(t.Context(), cc, methodGet, 1)
			check(t, err, began)
			if st := above.Stats(); st.Attempts != 1 || st.Neutral != 1 || m.calls.Load() != 1 {
				t.Errorf("%+v, %d calls", st, m.calls.Load())
			}
			if st := middle.Stats(); st.Neutral != 1 {
				t.Errorf("the middle: %+v", st)
			}
		})
	})
}

// A target that is not believed cannot keep its circuit closed by naming its failures a guard's.
func TestDistrustedRefusalIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) { return 0, nil }}
		e := engine(t, cortex.Config{Name: "test", DistrustRemote: true})
		cc := client(t, e, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: opened(t)})...))
		call(t.Context(), cc, methodDo, 1)
		if st := e.Stats(); st.Failures != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// F69: three services, each of which retries three times, send four calls to the one at the bottom and not 64.
func TestNestedLayersDoNotMultiply(t *testing.T) {
	type layer struct {
		e *cortex.Engine
		s *service
	}
	build := func(t *testing.T, guarded bool) (top *grpc.ClientConn, bottom *service, layers []layer) {
		bottom = &service{unary: func(context.Context, int64) (int64, error) { return 0, unavailable() }}
		s := bottom
		for i := range 3 {
			e := engine(t, cortex.Config{Name: fmt.Sprint("to ", 3-i), Limit: limitOff})
			var opts []grpc.ServerOption
			if guarded {
				opts = server(t, cortexgrpc.ServerConfig{Engine: engine(t, cortex.Config{Name: "in", Limit: limitOff})})
			}
			top = client(t, e, serve(t, s, opts...))
			layers = append(layers, layer{e, s})
			next := top
			s = &service{unary: func(ctx context.Context, n int64) (int64, error) { return call(ctx, next, methodGet, n) }}
		}
		return top, bottom, layers
	}
	t.Run("over the wire", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			top, bottom, layers := build(t, true)
			_, err := call(t.Context(), top, methodGet, 1)
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%v", err)
			}
			if n := bottom.calls.Load(); n != 4 {
				t.Errorf("%d calls at the bottom", n)
			}
			for i, l := range layers[:2] {
				if l.e.Stats().Retries != 0 {
					t.Errorf("layer %d retried %d times", i, l.e.Stats().Retries)
				}
			}
		})
	})
	t.Run("in process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bottom := &service{unary: func(context.Context, int64) (int64, error) { return 0, unavailable() }}
			bottom.stream = func(grpc.ServerStream) error { return unavailable() }
			var opts []grpc.DialOption
			for i := range 3 {
				c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: engine(t, cortex.Config{Name: fmt.Sprint(i)}),
					Repeatable: func(string) bool { return true }})
				if err != nil {
					t.Fatal(err)
				}
				opts = append(opts, c.DialOptions()...)
			}
			cc := dial(t, append(opts, serve(t, bottom))...)
			if _, err := call(t.Context(), cc, methodGet, 1); status.Code(err) != codes.Unavailable {
				t.Errorf("%v", err)
			}
			if n := bottom.calls.Load(); n != 4 {
				t.Errorf("%d calls at the bottom", n)
			}
			st, err := down(t.Context(), cc, 1)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := recvAll(st); status.Code(err) != codes.Unavailable {
				t.Errorf("%v", err)
			}
			if n := bottom.calls.Load(); n != 8 {
				t.Errorf("%d calls at the bottom by streams", n-4)
			}
		})
	})
	t.Run("1,000 calls", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			top, bottom, _ := build(t, true)
			done := make(chan struct{})
			for range 1000 {
				go func() {
					call(t.Context(), top, methodGet, 1)
					done <- struct{}{}
				}()
			}
			for range 1000 {
				<-done
			}
			if n := bottom.calls.Load(); n > 1200 {
				t.Errorf("%d calls at the bottom", n)
			}
		})
	})
	// A layer that did retry forbids it to those above, in A6's own words: they need not be ours.
	t.Run("do not retry, from below", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			bottom := &service{unary: func(context.Context, int64) (int64, error) { return 0, unavailable() }}
			inner := client(t, engine(t, cortex.Config{Name: "inner"}), serve(t, bottom))
			m := &service{unary: func(ctx context.Context, n int64) (int64, error) { return call(ctx, inner, methodGet, n) }}
			d := serve(t, m, server(t, cortexgrpc.ServerConfig{Engine: engine(t, cortex.Config{Name: "in"})})...)
			policy := `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.1s","maxBackoff":"1s",` +
				`"backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
			_, err := call(t.Context(), dial(t, d, grpc.WithDefaultServiceConfig(policy)), methodGet, 1)
			if status.Code(err) != codes.Unavailable || m.calls.Load() != 1 || bottom.calls.Load() != 4 {
				t.Errorf("%v, %d calls in the middle, %d at the bottom", err, m.calls.Load(), bottom.calls.Load())
			}
		})
	})
}

// Each of several clients above one another hears its own of what gRPC does, once.
func TestStackedClientsCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
		s.stream = func(ss grpc.ServerStream) error { return send(ss, 1) }
		var opts []grpc.DialOption
		var engines []*cortex.Engine
		for range 3 {
			e := engine(t, cortex.Config{})
			c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: e})
			if err != nil {
				t.Fatal(err)
			}
			opts, engines = append(opts, c.DialOptions()...), append(engines, e)
		}
		cc := dial(t, append(opts, serve(t, s))...)
		if _, err := call(t.Context(), cc, methodDo, 1); err != nil {
			t.Error(err)
		}
		st, err := down(t.Context(), cc, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := recvAll(st); !equal(got, 1) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		for _, e := range engines {
			if st := e.Stats(); st.Attempts != 2 || st.Successes != 2 || st.Retries != 0 {
				t.Errorf("%+v", st)
			}
		}
	})
}

// F65: health and reflection pass under a guard that lets nothing through, on both sides, and are not counted.
func TestHealthPassesAnOpenCircuit(t *testing.T) {
	for _, m := range []string{"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/List",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"} {
		if !cortexgrpc.IsHealthCheck(m) {
			t.Error(m)
		}
	}
	for _, m := range []string{"", "/", "grpc.health.v1.Health/Check", "/grpc.health.v1.Healthy/Check", "/grpc.health.v1.Health",
		"/grpc.health.v1.Health/../pay", "/x/grpc.health.v1.Health/Check", "/grpc.other/Check"} {
		if cortexgrpc.IsHealthCheck(m) {
			t.Error(m)
		}
	}
	synctest.Test(t, func(t *testing.T) { healthPasses(t) })
}

// The service config's retries are off, and its time-out is one of the target's.
func TestServiceConfigRetriesAreOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) { return 0, unavailable() }}
		policy := `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.1s","maxBackoff":"1s",` +
			`"backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
		c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: engine(t, cortex.Config{})})
		if err != nil {
			t.Fatal(err)
		}
		cc := dial(t, append(c.DialOptions(), serve(t, s), grpc.WithDefaultServiceConfig(policy))...)
		if _, err := call(t.Context(), cc, methodDo, 1); status.Code(err) != codes.Unavailable || s.calls.Load() != 1 {
			t.Errorf("%v, %d attempts", err, s.calls.Load())
		}
	})
}

// grpc-retry-pushback-ms and RetryInfo.
func TestServerSaysWhen(t *testing.T) {
	for _, c := range []struct {
		name     string
		trailer  []string
		info     time.Duration
		attempts int64
		atLeast  time.Duration
	}{
		{"no word", nil, 0, 2, 0},
		{"at once", []string{"0"}, 0, 2, 0},
		{"7 s", []string{"7000"}, 0, 2, 7 * time.Second},
		{"negative", []string{"-1"}, 0, 1, 0},
		{"junk", []string{"soon"}, 0, 1, 0},
		{"fraction", []string{"1.5"}, 0, 1, 0},
		{"plus", []string{"+7"}, 0, 1, 0},
		{"empty", []string{""}, 0, 1, 0},
		{"two", []string{"1", "2"}, 0, 1, 0},
		{"beyond an int", []string{"99999999999999999999999999"}, 0, 2, 30 * time.Second}, // Backoff.Max
		{"RetryInfo", nil, 3 * time.Second, 2, 3 * time.Second},
		{"RetryInfo, negative", nil, -3 * time.Second, 2, 0},
		{"pushback before RetryInfo", []string{"7000"}, 20 * time.Second, 2, 7 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &service{}
				s.unary = func(ctx context.Context, n int64) (int64, error) {
					if s.calls.Load() > 1 {
						return n, nil
					}
					if c.trailer != nil {
						grpc.SetTrailer(ctx, metadata.MD{"grpc-retry-pushback-ms": c.trailer})
					}
					st := status.New(codes.Unavailable, "later")
					if c.info != 0 {
						st, _ = st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(c.info)})
					}
					return 0, st.Err()
				}
				e := engine(t, cortex.Config{Name: "test"})
				began := time.Now()
				_, err := call(t.Context(), client(t, e, serve(t, s)), methodGet, 1)
				if n := s.calls.Load(); n != c.attempts || (err == nil) != (n == 2) {
					t.Errorf("%d attempts, %v", n, err)
				}
				if e, ok := errors.AsType[*cortex.CallError](err); ok && e.Reason != cortex.ReasonDoNotRetry {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took < c.atLeast || took > max(2*c.atLeast, 2*time.Second) {
					t.Errorf("after %v", took)
				}
			})
		})
	}
}

// A guard below that says not to try again is heard, whatever its spelling.
func TestServerForbidsRetries(t *testing.T) {
	for value, attempts := range map[string]int64{"no": 1, "No": 1, "yes": 2, "": 2} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{}
			s.unary = func(ctx context.Context, n int64) (int64, error) {
				if s.calls.Load() > 1 {
					return n, nil
				}
				grpc.SetTrailer(ctx, metadata.Pairs("cortex-retry", value))
				return 0, unavailable()
			}
			_, err := call(t.Context(), client(t, engine(t, cortex.Config{}), serve(t, s)), methodGet, 1)
			if n := s.calls.Load(); n != attempts {
				t.Errorf("%q: %d attempts", value, n)
			}
			if e, ok := errors.AsType[*cortex.CallError](err); attempts == 1 && (!ok || e.Reason != cortex.ReasonDoNotRetry) {
				t.Errorf("%q: %v", value, err)
			}
		})
	}
}

// What travels with an attempt.
func TestMetadataOfAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []metadata.MD
		s := &service{}
		s.unary = func(ctx context.Context, n int64) (int64, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			got = append(got, md)
			return 0, unavailable()
		}
		e := engine(t, cortex.Config{Name: "test", MaxRetries: 2, Levels: 5})
		d := serve(t, s)
		cc := client(t, e, d, func(c *cortexgrpc.ClientConfig) { c.SendPriority = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ctx = cortexgrpc.WithPriority(ctx, 17)
		// What came in with the call that this one is made for is not what goes out with it.
		ctx = metadata.AppendToOutgoingContext(ctx, "cortex-attempt", "9;retries=9", "cortex-timeout-ms", "1", "x-priority", "2",
			"grpc-previous-rpc-attempts", "8", "mine", "a", "mine", "b")
		before, _ := metadata.FromOutgoingContext(ctx)
		call(ctx, cc, methodGet, 1)
		if len(got) != 3 {
			t.Fatalf("%d attempts", len(got))
		}
		if after, _ := metadata.FromOutgoingContext(ctx); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the caller's metadata became %v", after)
		}
		for i, md := range got {
			want := map[string][]string{"cortex-attempt": {fmt.Sprintf("%d;retries=2", i)}, "x-priority": {"5"}, "mine": {"a", "b"},
				"grpc-previous-rpc-attempts": {fmt.Sprint(i)}}
			if i == 0 {
				want["cortex-timeout-ms"], want["grpc-previous-rpc-attempts"] = []string{"60000"}, nil
			}
			for k, v := range want {
				if fmt.Sprint(md[k]) != fmt.Sprint(v) {
					t.Errorf("attempt %d: %s is %q", i, k, md[k])
				}
			}
		}
		got = nil
		call(t.Context(), client(t, engine(t, cortex.Config{MaxRetries: 1}), d, func(c *cortexgrpc.ClientConfig) { c.DisableMark = true }), methodGet, 1)
		for i, md := range got {
			if md["cortex-attempt"] != nil || md["cortex-timeout-ms"] != nil || md["x-priority"] != nil {
				t.Errorf("attempt %d, no mark: %v", i, md)
			}
		}
	})
}
