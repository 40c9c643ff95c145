package cortexgrpc_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

// F17: who ended the call decides.
func TestCallerThatLeavesIsNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) {
			time.Sleep(200 * time.Millisecond)
			return 1, nil
		}}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s))
		for range 100 {
			ctx, cancel := context.WithCancelCause(t.Context())
			mine := errors.New("the user went away")
			time.AfterFunc(time.Millisecond, func() { cancel(mine) })
			_, err := call(ctx, cc, methodGet, 1)
			if status.Code(err) != codes.Canceled || !errors.Is(err, mine) {
				t.Fatalf("%v", err)
			}
		}
		if ok, failed, neutral := counts(e); ok != 0 || failed != 0 || neutral != 100 {
			t.Errorf("%d, %d, %d", ok, failed, neutral)
		}
		idle(t, e)
	})
}

// A caller's deadline ends the call, its wait for another attempt too, and no attempt is begun that has no time.
func TestCallerDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("no deadline there")
			}
			return 0, unavailable()
		}}
		e := engine(t, cortex.Config{Name: "test", MaxRetries: 1000})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err := call(ctx, client(t, e, serve(t, s)), methodGet, 1)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%v", took)
		}
		if c := status.Code(err); c != codes.Unavailable && c != codes.DeadlineExceeded {
			t.Errorf("%v", err)
		}
		idle(t, e)
	})
}

// Config.Deadline is that of calls whose context has none.
func TestEngineDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}}
		e := engine(t, cortex.Config{Name: "test", Deadline: 300 * time.Millisecond})
		began := time.Now()
		_, err := call(t.Context(), client(t, e, serve(t, s)), methodGet, 1)
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took != 300*time.Millisecond {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// A panic passes through and leaves nothing behind, wherever it is.
func TestPanicsFreeThePermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) { return 0, unavailable() }}
		s.stream = func(grpc.ServerStream) error { return unavailable() }
		e := engine(t, cortex.Config{Name: "test"})
		d := serve(t, s)
		panics := func(name string, f func()) {
			t.Helper()
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}
		rule := func(c *cortexgrpc.ClientConfig) {
			c.Outcome = func(string, *status.Status, metadata.MD) (cortex.Class, bool) { panic("rule") }
		}
		panics("rule", func() { call(t.Context(), client(t, e, d, rule), methodGet, 1) })
		panics("priority", func() {
			call(t.Context(), client(t, e, d, func(c *cortexgrpc.ClientConfig) {
				c.Priority = func(context.Context, string) cortex.Priority { panic("priority") }
			}), methodGet, 1)
		})
		c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: e})
		if err != nil {
			t.Fatal(err)
		}
		panics("unary", func() {
			c.UnaryInterceptor(t.Context(), methodGet, nil, nil, nil,
				func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { panic("below") })
		})
		panics("stream", func() {
			c.StreamInterceptor(t.Context(), streamDown, nil, methodDown,
				func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
					panic("below")
				})
		})
		synctest.Wait()
		idle(t, e)
	})
}

// An engine picked by method; none lets the call pass.
func TestSelect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
		s.stream = func(ss grpc.ServerStream) error { return send(ss, 1) }
		gets, streams := engine(t, cortex.Config{Name: "gets"}), engine(t, cortex.Config{Name: "streams"})
		c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Select: func(_ context.Context, m string) (*cortex.Engine, error) {
			switch m {
			case methodGet:
				return gets, nil
			case methodDown:
				return streams, nil
			case methodUp:
				return nil, errors.New("no such class")
			}
			return nil, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		cc := dial(t, append(c.DialOptions(), serve(t, s))...)
		for _, m := range []string{methodGet, methodDo} {
			if _, err := call(t.Context(), cc, m, 1); err != nil {
				t.Errorf("%s: %v", m, err)
			}
		}
		st, err := down(t.Context(), cc, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := recvAll(st); !equal(got, 1) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		if _, err := cc.NewStream(t.Context(), streamUp, methodUp); err == nil {
			t.Error("a stream without a guard")
		}
		if gets.Stats().Successes != 1 || streams.Stats().Successes != 1 {
			t.Errorf("%+v, %+v", gets.Stats(), streams.Stats())
		}
	})
}

func TestClientConfigErrors(t *testing.T) {
	e := engine(t, cortex.Config{})
	for _, cfg := range []cortexgrpc.ClientConfig{{},
		{Engine: e, Select: func(context.Context, string) (*cortex.Engine, error) { return e, nil }}} {
		if _, err := cortexgrpc.NewClient(cfg); err == nil {
			t.Errorf("%+v", cfg)
		} else if _, ok := errors.AsType[*cortex.ConfigError](err); !ok {
			t.Errorf("%T", err)
		}
	}
}

// Everything at once, for the race detector: what is sent comes back once and in order, or the call fails; nothing stays in flight.
func TestStreamHammer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{}
		s.stream = func(ss grpc.ServerStream) error {
			if rand.IntN(3) == 0 {
				return unavailable()
			}
			for n := 0; ; n++ {
				m := new(wrapperspb.Int64Value)
				if err := ss.RecvMsg(m); err != nil {
					return nil
				}
				if rand.IntN(20) == 0 {
					return unavailable()
				}
				if err := ss.SendMsg(m); err != nil {
					return err
				}
			}
		}
		e := engine(t, cortex.Config{Name: "test", Limit: limitOff})
		cc := client(t, e, serve(t, s))
		began := time.Now()
		var wg sync.WaitGroup
		var good atomic.Int64
		for range 200 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				st, err := cc.NewStream(ctx, streamBoth, methodBoth)
				if err != nil {
					return
				}
				leaves := rand.IntN(4) == 0
				wg.Go(func() {
					for n := range 10 {
						if st.SendMsg(wrapperspb.Int64(int64(n))) != nil {
							return
						}
						if leaves && n == 5 {
							cancel()
						}
						time.Sleep(time.Millisecond)
					}
					st.CloseSend()
				})
				if rand.IntN(2) == 0 {
					wg.Go(func() { st.Header() })
				}
				got, err := recvAll(st)
				for i, n := range got {
					if n != int64(i) {
						t.Errorf("%v", got)
						break
					}
				}
				if err == nil && len(got) == 10 {
					good.Add(1)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		// A caller that is told that sending is over stops, and does not close: an attempt made after that waited for ever.
		if took := time.Since(began); took > 10*time.Minute {
			t.Errorf("a stream hung for %v", took)
		}
		if good.Load() == 0 {
			t.Error("no stream came to its end")
		}
		idle(t, e)
		if st := e.Stats(); st.Attempts != st.Successes+st.Failures+st.Timeouts+st.Neutral+st.Throttled+st.Stale {
			t.Errorf("%+v", st)
		}
	})
}

// A caller that hardly waits says nothing of the target by its deadline.
func TestShortDeadlineIsNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) {
			time.Sleep(200 * time.Millisecond)
			return 1, nil
		}}
		s.stream = func(ss grpc.ServerStream) error {
			time.Sleep(200 * time.Millisecond)
			return send(ss, 1)
		}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s))
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := call(ctx, cc, methodGet, 1); status.Code(err) != codes.DeadlineExceeded || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%v", err)
			}
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
			if st, err := down(ctx, cc, 1); err == nil {
				recvAll(st)
			}
			cancel()
		}
		if ok, failed, neutral := counts(e); ok != 0 || failed != 0 || neutral != 100 {
			t.Errorf("%d, %d, %d: %+v", ok, failed, neutral, e.Stats())
		}
		idle(t, e)
	})
}

// A target that is told of a deadline and gives up before it, as it cannot keep it, says nothing of itself: the caller left it no time.
func TestHurriedTargetIsNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
			if d, ok := ctx.Deadline(); ok && time.Until(d) < 100*time.Millisecond {
				return 0, status.Error(codes.DeadlineExceeded, "not in that time")
			}
			return 0, status.Error(codes.DeadlineExceeded, "a query took too long")
		}}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := call(ctx, cc, methodDo, 1); status.Convert(err).Message() != "not in that time" {
			t.Errorf("%v", err)
		}
		if _, failed, neutral := counts(e); failed != 0 || neutral != 1 {
			t.Errorf("%d failed, %d neutral", failed, neutral)
		}
		call(t.Context(), cc, methodDo, 1)
		if _, failed, _ := counts(e); failed != 1 {
			t.Errorf("its own: %d failed", failed)
		}
	})
}
