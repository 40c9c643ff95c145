package cortexgrpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexgrpc"
)

// ends counts what a call's OnFinish is told.
type ends struct {
	mu   sync.Mutex
	errs []error
}

func (f *ends) option() grpc.CallOption {
	return grpc.OnFinish(func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.errs = append(f.errs, err)
	})
}

// once fails the test unless it was told of this, and of nothing else.
func (f *ends) once(t *testing.T, want error) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.errs) != 1 || f.errs[0] != want {
		t.Errorf("OnFinish was told %q, want once %v", f.errs, want)
	}
}

// fails serves n failures, then 1, 2.
func fails(n int64) *service {
	s := &service{}
	s.unary = func(context.Context, int64) (int64, error) {
		if s.calls.Load() <= n {
			return 0, unavailable()
		}
		return 1, nil
	}
	s.stream = func(ss grpc.ServerStream) error {
		if s.calls.Load() <= n {
			return unavailable()
		}
		return send(ss, 1, 2)
	}
	return s
}

// OnFinish was run at the end of each attempt: three times for a call with two retries, the first two with errors that the call did not have.
func TestOnFinishRanForEachAttempt(t *testing.T) {
	const many = 1 << 30
	t.Run("unary", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for failures, code := range map[int64]codes.Code{0: codes.OK, 2: codes.OK, many: codes.Unavailable} {
				var f, g ends
				cc := client(t, engine(t, cortex.Config{Name: "test", Limit: limitOff}), serve(t, fails(failures)))
				_, err := call(t.Context(), cc, methodGet, 1, f.option(), grpc.WaitForReady(true), g.option(), grpc.OnFinish(nil))
				if status.Code(err) != code {
					t.Errorf("%d failures: %v", failures, err)
				}
				f.once(t, err)
				g.once(t, err)
			}
		})
	})
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var f, g ends
			cc := client(t, opened(t), serve(t, fails(0)))
			_, err := call(t.Context(), cc, methodGet, 1, f.option())
			if !errors.Is(err, cortex.ErrOpen) {
				t.Errorf("%v", err)
			}
			f.once(t, err)
			_, err = cc.NewStream(t.Context(), streamDown, methodDown, g.option())
			g.once(t, err)
		})
	})
	t.Run("no engine by an error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var f, g ends
			cc := client(t, nil, serve(t, fails(0)), func(c *cortexgrpc.ClientConfig) {
				c.Select = func(context.Context, string) (*cortex.Engine, error) { return nil, errors.New("no class") }
			})
			_, err := call(t.Context(), cc, methodGet, 1, f.option())
			f.once(t, err)
			_, err = cc.NewStream(t.Context(), streamDown, methodDown, g.option())
			g.once(t, err)
		})
	})
	t.Run("unguarded", func(t *testing.T) { // the options pass as they are
		synctest.Test(t, func(t *testing.T) {
			c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: opened(t), Exempt: func(string) bool { return true }})
			if err != nil {
				t.Fatal(err)
			}
			var f ends
			opts := []grpc.CallOption{f.option(), grpc.Header(new(metadata.MD))}
			passed := func(got []grpc.CallOption) {
				if len(got) != 2 || &got[0] != &opts[0] {
					t.Errorf("%v", got)
				}
			}
			c.UnaryInterceptor(t.Context(), methodGet, nil, nil, nil, func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, o ...grpc.CallOption) error {
				passed(o)
				return nil
			}, opts...)
			c.StreamInterceptor(t.Context(), streamDown, nil, methodDown, func(_ context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, o ...grpc.CallOption) (grpc.ClientStream, error) {
				passed(o)
				return nil, nil
			}, opts...)
			if len(f.errs) > 0 {
				t.Errorf("told %v by the guard", f.errs)
			}
		})
	})
	t.Run("panic", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var f ends
			cc := client(t, engine(t, cortex.Config{Name: "test"}), serve(t, fails(many)), func(c *cortexgrpc.ClientConfig) {
				c.Outcome = func(string, *status.Status, metadata.MD) (cortex.Class, bool) { panic("rule") }
			})
			func() {
				defer func() { recover() }()
				call(t.Context(), cc, methodGet, 1, f.option())
			}()
			if len(f.errs) != 1 || f.errs[0] == nil {
				t.Errorf("told %v", f.errs)
			}
		})
	})
	t.Run("stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for failures, code := range map[int64]codes.Code{0: codes.OK, 2: codes.OK, many: codes.Unavailable} {
				var f ends
				cc := client(t, engine(t, cortex.Config{Name: "test", Limit: limitOff}), serve(t, fails(failures)))
				st, err := cc.NewStream(t.Context(), streamDown, methodDown, f.option())
				if err != nil {
					t.Fatal(err)
				}
				st.SendMsg(wrapperspb.Int64(1))
				_, err = recvAll(st)
				if status.Code(err) != code {
					t.Errorf("%d failures: %v", failures, err)
				}
				f.once(t, err)
				recvAll(st) // after the end
				f.once(t, err)
			}
		})
	})
	t.Run("stream, by its header", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var f ends
			cc := client(t, engine(t, cortex.Config{Name: "test", Limit: limitOff}), serve(t, fails(many)))
			st, err := cc.NewStream(t.Context(), streamDown, methodDown, f.option())
			if err != nil {
				t.Fatal(err)
			}
			st.SendMsg(wrapperspb.Int64(1))
			st.Header() // makes the retries, too
			synctest.Wait()
			told := len(f.errs)
			_, err = recvAll(st)
			if f.once(t, err); told != 1 {
				t.Errorf("told %d times when Header came back", told)
			}
		})
	})
	t.Run("stream that is sent nonsense", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var f ends
			cc := client(t, engine(t, cortex.Config{Name: "test"}), serve(t, fails(0)))
			st, err := cc.NewStream(t.Context(), streamBoth, methodBoth, f.option())
			if err != nil {
				t.Fatal(err)
			}
			err = st.SendMsg("no message")
			if err == nil || err == io.EOF {
				t.Errorf("%v", err)
			}
			f.once(t, err)
		})
	})
	t.Run("client's stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var f ends
			s := fails(0)
			s.stream = func(ss grpc.ServerStream) error {
				if s.calls.Load() <= 2 {
					return unavailable()
				}
				for ss.RecvMsg(new(wrapperspb.Int64Value)) == nil {
				}
				return send(ss, 1)
			}
			cc := client(t, engine(t, cortex.Config{Name: "test", Limit: limitOff}), serve(t, s))
			st, err := cc.NewStream(t.Context(), streamUp, methodUp, f.option())
			if err != nil {
				t.Fatal(err)
			}
			st.SendMsg(wrapperspb.Int64(1))
			st.CloseSend()
			if err := st.RecvMsg(new(wrapperspb.Int64Value)); err != nil {
				t.Errorf("%v", err)
			}
			f.once(t, nil)
		})
	})
}

// A stream that nobody reads any more ends with its caller's context or its connection, wherever it is.
func TestOnFinishOfAStreamThatIsLeft(t *testing.T) {
	waits := func(ss grpc.ServerStream) error {
		<-ss.Context().Done()
		return ss.Context().Err()
	}
	begins := func(ss grpc.ServerStream) error {
		send(ss, 1)
		return waits(ss)
	}
	for _, c := range []struct {
		name   string
		stream func(grpc.ServerStream) error
		reads  int
		after  time.Duration
		closes bool
	}{
		{"before its answer", waits, 0, time.Millisecond, false},
		{"in the middle of its answer", begins, 1, time.Millisecond, false},
		{"with an answer that is not read", begins, 0, time.Millisecond, false},
		{"after the attempt's timeout", waits, 0, time.Minute, false},
		{"after an error that is not read", func(grpc.ServerStream) error { return unavailable() }, 0, time.Minute, false},
		{"by closing the connection", waits, 0, time.Millisecond, true},
		{"by closing the connection in the middle", begins, 1, time.Millisecond, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := fails(0)
				s.stream = c.stream
				e := engine(t, cortex.Config{Name: "test"})
				cc := client(t, e, serve(t, s))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var f ends
				st, err := cc.NewStream(ctx, streamBoth, methodBoth, f.option())
				if err != nil {
					t.Fatal(err)
				}
				if err := st.SendMsg(wrapperspb.Int64(1)); err != nil {
					t.Fatal(err)
				}
				st.CloseSend()
				for range c.reads {
					if err := st.RecvMsg(new(wrapperspb.Int64Value)); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(c.after)
				if len(f.errs) > 0 {
					t.Fatalf("told %v although it may be read yet", f.errs)
				}
				if c.closes {
					cc.Close()
				} else {
					cancel()
				}
				synctest.Wait()
				told := slices.Clone(f.errs)
				_, err = recvAll(st)
				if len(told) != 1 || status.Code(told[0]) != codes.Canceled {
					t.Errorf("told %v, want once that it was cancelled", told)
				}
				f.once(t, err)
				idle(t, e)
			})
		})
	}
}

// Header, trailer and peer of an attempt stayed where another took its place that met no server.
func TestHeaderOfAnAttemptThatDoesNotCount(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, reached := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s := &service{}
				answer := func(set func(header, trailer metadata.MD)) error {
					if s.calls.Load() == 1 {
						set(nil, metadata.Pairs("trailer", "first", "trailer-first", "x"))
						return unavailable()
					}
					set(metadata.Pairs("header", "second"), metadata.Pairs("trailer", "second"))
					return nil
				}
				s.unary = func(ctx context.Context, _ int64) (int64, error) {
					return 1, answer(func(h, tr metadata.MD) {
						grpc.SetHeader(ctx, h)
						grpc.SetTrailer(ctx, tr)
					})
				}
				s.stream = func(ss grpc.ServerStream) error {
					return answer(func(h, tr metadata.MD) {
						ss.SetHeader(h)
						ss.SetTrailer(tr)
					})
				}
				c, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: engine(t, cortex.Config{Name: "test", MaxRetries: 1, Limit: limitOff}),
					Repeatable: func(string) bool { return true }})
				if err != nil {
					t.Fatal(err)
				}
				attempts := 0
				lost := func() bool { attempts++; return attempts > 1 && !reached }
				cc := dial(t, append(c.DialOptions(), serve(t, s),
					grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
						if lost() {
							return status.Error(codes.Unavailable, "no connection")
						}
						return next(ctx, method, req, reply, cc, o...)
					}),
					grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
						if lost() {
							return nil, status.Error(codes.Unavailable, "no connection")
						}
						return next(ctx, desc, cc, method, o...)
					}))...)
				var header, trailer metadata.MD
				var who peer.Peer
				opts := []grpc.CallOption{grpc.Header(&header), grpc.Trailer(&trailer), grpc.Peer(&who)}
				if stream {
					st, err := cc.NewStream(t.Context(), streamDown, methodDown, opts...)
					if err != nil {
						t.Fatal(err)
					}
					st.SendMsg(wrapperspb.Int64(1))
					_, err = recvAll(st)
					if (err == nil) != reached {
						t.Errorf("%v", err)
					}
				} else if _, err := call(t.Context(), cc, methodGet, 1, opts...); (err == nil) != reached {
					t.Errorf("%v", err)
				}
				if attempts != 2 {
					t.Fatalf("%d attempts", attempts)
				}
				if !reached {
					if len(header) > 0 || len(trailer) > 0 || who.Addr != nil {
						t.Errorf("header %v, trailer %v, peer %v of the attempt before", header, trailer, who.Addr)
					}
					return
				}
				if h := header["header"]; !slices.Equal(h, []string{"second"}) || !slices.Equal(trailer["trailer"], []string{"second"}) ||
					trailer["trailer-first"] != nil || who.Addr == nil {
					t.Errorf("header %v, trailer %v, peer %v", header, trailer, who.Addr)
				}
			})
		}
	}
}

// A call with WaitForReady does not wait as long as its caller would: the attempt's timeout cuts it. docs/grpc.md says what to do instead.
func TestWaitForReadyWaitsNoLongerThanAnAttempt(t *testing.T) {
	for _, how := range []string{"as it is", "connected before", "no timeout"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				dialer := serveFrom(t, fails(0), began.Add(time.Minute))
				cc := client(t, engine(t, cortex.Config{Name: "test", Limit: limitOff, DisableTimeout: how == "no timeout"}), dialer)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if how == "connected before" {
					cc.Connect()
					for s := cc.GetState(); s != connectivity.Ready && cc.WaitForStateChange(ctx, s); s = cc.GetState() {
					}
				}
				_, err := call(ctx, cc, methodDo, 1, grpc.WaitForReady(true))
				took := time.Since(began)
				if how != "as it is" {
					if err != nil || took < time.Minute {
						t.Errorf("%v after %v", err, took)
					}
					return
				}
				e, ok := errors.AsType[*cortex.CallError](err)
				if !ok || status.Code(err) != codes.DeadlineExceeded || e.Attempts < 2 || took > time.Minute {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

// serveFrom serves over memory; nobody gets a connection before at.
func serveFrom(t *testing.T, s *service, at time.Time) grpc.DialOption {
	t.Helper()
	l := listener(t, func(g *grpc.Server) { g.RegisterService(s.desc(), s) })
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		if time.Now().Before(at) {
			return nil, errors.New("nobody is there")
		}
		return l.DialContext(ctx)
	})
}
