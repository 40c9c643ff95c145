package cortexgrpc_test

import (
	"context"
	"errors"
	"io"
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

// down opens a server stream with one request.
func down(ctx context.Context, cc *grpc.ClientConn, n int64) (grpc.ClientStream, error) {
	st, err := cc.NewStream(ctx, streamDown, methodDown)
	if err != nil {
		return nil, err
	}
	if err := st.SendMsg(wrapperspb.Int64(n)); err != nil {
		return nil, err
	}
	return st, st.CloseSend()
}

func recvAll(st grpc.ClientStream) (got []int64, err error) {
	for {
		m := new(wrapperspb.Int64Value)
		if err := st.RecvMsg(m); err != nil {
			if err == io.EOF {
				err = nil
			}
			return got, err
		}
		got = append(got, m.Value)
	}
}

func send(s grpc.ServerStream, ns ...int64) error {
	for _, n := range ns {
		if err := s.SendMsg(wrapperspb.Int64(n)); err != nil {
			return err
		}
	}
	return nil
}

func equal(a []int64, b ...int64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// F63: what was delivered is never delivered twice; a healthy stream outlives the attempt timeout.
func TestStreamRetriedOnlyBeforeItsFirstMessage(t *testing.T) {
	type result struct {
		got   []int64
		code  codes.Code
		calls int64
	}
	for _, stats := range []bool{true, false} {
		for _, c := range []struct {
			name   string
			serve  func(s grpc.ServerStream, call int64) error
			want   result
			failed uint64
		}{
			{"a: messages, then unavailable", func(s grpc.ServerStream, _ int64) error {
				send(s, 1, 2, 3)
				return unavailable()
			}, result{[]int64{1, 2, 3}, codes.Unavailable, 1}, 1},
			{"b: unavailable before the first message", func(s grpc.ServerStream, call int64) error {
				if call == 1 {
					return unavailable()
				}
				return send(s, 1, 2, 3)
			}, result{[]int64{1, 2, 3}, codes.OK, 2}, 1},
			{"c: a message a second", func(s grpc.ServerStream, _ int64) error {
				for n := range 10 {
					send(s, int64(n))
					time.Sleep(time.Second)
				}
				return nil
			}, result{[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, codes.OK, 1}, 0},
			{"d: a header, then unavailable", func(s grpc.ServerStream, _ int64) error {
				s.SendHeader(metadata.Pairs("a", "b"))
				return unavailable()
			}, result{nil, codes.Unavailable, 1}, 1},
			{"never anything", func(s grpc.ServerStream, call int64) error {
				if call == 1 {
					<-s.Context().Done()
					return s.Context().Err()
				}
				return send(s, 7)
			}, result{[]int64{7}, codes.OK, 2}, 1},
			{"no messages at all", func(grpc.ServerStream, int64) error { return nil }, result{nil, codes.OK, 1}, 0},
		} {
			name := c.name
			if !stats {
				name += ", no stats handler"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &service{}
					s.stream = func(ss grpc.ServerStream) error {
						m := new(wrapperspb.Int64Value)
						if err := ss.RecvMsg(m); err != nil || m.Value != 5 {
							t.Errorf("the request: %v, %v", m, err)
						}
						return c.serve(ss, s.calls.Load())
					}
					e := engine(t, cortex.Config{Name: "test"})
					var cc *grpc.ClientConn
					if stats {
						cc = client(t, e, serve(t, s))
					} else {
						cl, err := cortexgrpc.NewClient(cortexgrpc.ClientConfig{Engine: e, Repeatable: func(string) bool { return true }})
						if err != nil {
							t.Fatal(err)
						}
						cc = dial(t, serve(t, s), grpc.WithStreamInterceptor(cl.StreamInterceptor))
					}
					st, err := down(t.Context(), cc, 5)
					if err != nil {
						t.Fatal(err)
					}
					got, err := recvAll(st)
					if !equal(got, c.want.got...) || status.Code(err) != c.want.code || s.calls.Load() != c.want.calls {
						t.Errorf("%v, %v, %d attempts", got, err, s.calls.Load())
					}
					if _, again := recvAll(st); status.Code(again) != c.want.code {
						t.Errorf("asked again: %v", again)
					}
					if _, failed, _ := counts(e); failed != c.failed {
						t.Errorf("%d failures", failed)
					}
					idle(t, e)
				})
			})
		}
	}
}

// F21: what is booked is the end of a stream, not its beginning.
func TestStreamThatBreaksOffHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{stream: func(ss grpc.ServerStream) error {
			send(ss, 1)
			return unavailable()
		}}
		e := engine(t, cortex.Config{Name: "test"})
		cc := client(t, e, serve(t, s))
		opened := false
		for range 100 {
			st, err := down(t.Context(), cc, 1)
			if errors.Is(err, cortex.ErrOpen) {
				opened = true
				break
			}
			if got, err := recvAll(st); !equal(got, 1) || status.Code(err) != codes.Unavailable {
				t.Fatalf("%v, %v", got, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !opened {
			t.Errorf("the circuit stays closed: %+v", e.Pressure())
		}
		if n := s.calls.Load(); uint64(n) != e.Stats().Failures {
			t.Errorf("%d calls, %d failures", n, e.Stats().Failures)
		}
		idle(t, e)
	})
}

// A caller that leaves a stream frees its permit, before the first message and after, and says nothing of the target.
func TestStreamAbandoned(t *testing.T) {
	for _, first := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{stream: func(ss grpc.ServerStream) error {
				if first {
					send(ss, 1)
				}
				<-ss.Context().Done()
				return nil
			}}
			e := engine(t, cortex.Config{Name: "test"})
			ctx, cancel := context.WithCancel(t.Context())
			st, err := down(ctx, client(t, e, serve(t, s)), 1)
			if err != nil {
				t.Fatal(err)
			}
			if first {
				st.RecvMsg(new(wrapperspb.Int64Value))
			}
			synctest.Wait()
			cancel()
			synctest.Wait()
			idle(t, e)
			if ok, failed, neutral := counts(e); ok != 0 || failed != 0 || neutral != 1 {
				t.Errorf("first message %v: %d, %d, %d", first, ok, failed, neutral)
			}
			if _, err := recvAll(st); status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// echo answers each message; it fails the first attempt once it has read as many as fail says.
func echo(fail int64) *service {
	s := &service{}
	s.stream = func(ss grpc.ServerStream) error {
		call := s.calls.Load()
		for n := int64(0); ; n++ {
			if call == 1 && n == fail {
				return unavailable()
			}
			m := new(wrapperspb.Int64Value)
			if err := ss.RecvMsg(m); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if call == 1 {
				continue
			}
			if err := ss.SendMsg(m); err != nil {
				return err
			}
		}
	}
	return s
}

// What was sent is sent again, in order, with what comes meanwhile, and with the end of it.
func TestStreamReplaysWhatWasSent(t *testing.T) {
	for _, fail := range []int64{0, 1, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			s := echo(fail)
			e := engine(t, cortex.Config{Name: "test"})
			st, err := client(t, e, serve(t, s)).NewStream(t.Context(), streamBoth, methodBoth)
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			done := make(chan error)
			go func() {
				var err error
				got, err = recvAll(st)
				done <- err
			}()
			for n := range 5 {
				if err := st.SendMsg(wrapperspb.Int64(int64(n))); err != nil {
					t.Errorf("fails after %d: send %d: %v", fail, n, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			if fail == 5 { // it waits for a message after the fifth
				st.SendMsg(wrapperspb.Int64(5))
			}
			st.CloseSend()
			err = <-done
			want := []int64{0, 1, 2, 3, 4}
			if fail == 5 {
				want = append(want, 5)
			}
			if err != nil || !equal(got, want...) || s.calls.Load() != 2 {
				t.Errorf("fails after %d: %v, %v, %d attempts", fail, got, err, s.calls.Load())
			}
			idle(t, e)
		})
	}
}

// Nobody reads while the client streams: what it sends is kept, and sent again when it asks for the answer.
func TestClientStreamReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{}
		s.stream = func(ss grpc.ServerStream) error {
			if s.calls.Load() == 1 {
				return unavailable()
			}
			sum := int64(0)
			for {
				m := new(wrapperspb.Int64Value)
				if err := ss.RecvMsg(m); err == io.EOF {
					return send(ss, sum)
				} else if err != nil {
					return err
				}
				sum += m.Value
			}
		}
		e := engine(t, cortex.Config{Name: "test"})
		st, err := client(t, e, serve(t, s)).NewStream(t.Context(), streamUp, methodUp)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 10 {
			if err := st.SendMsg(wrapperspb.Int64(int64(n))); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		st.CloseSend()
		m := new(wrapperspb.Int64Value)
		if err := st.RecvMsg(m); err != nil || m.Value != 45 || s.calls.Load() != 2 {
			t.Errorf("%v, %v, %d attempts", m, err, s.calls.Load())
		}
		if ok, failed, _ := counts(e); ok != 1 || failed != 1 {
			t.Errorf("%d good, %d failed", ok, failed)
		}
		idle(t, e)
	})
}

// More than may be kept is not kept, and its stream not retried: never a part of it.
func TestStreamTooLargeForReplay(t *testing.T) {
	for _, limit := range []int{-1, 300} {
		synctest.Test(t, func(t *testing.T) {
			s := echo(20)
			e := engine(t, cortex.Config{Name: "test"})
			cc := client(t, e, serve(t, s), func(c *cortexgrpc.ClientConfig) { c.MaxReplayBytes = limit })
			st, err := cc.NewStream(t.Context(), streamBoth, methodBoth)
			if err != nil {
				t.Fatal(err)
			}
			for n := range 40 {
				if err = st.SendMsg(wrapperspb.Int64(int64(n))); err != nil {
					break
				}
				synctest.Wait()
			}
			if err != io.EOF {
				t.Errorf("sending to a dead stream that is not replayed: %v", err)
			}
			if _, err := recvAll(st); status.Code(err) != codes.Unavailable || s.calls.Load() != 1 {
				t.Errorf("%v, %d attempts", err, s.calls.Load())
			}
			idle(t, e)
		})
	}
}

// A client that takes its time to stream is not cut, nor is it held against the target.
func TestSlowUploadIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{stream: func(ss grpc.ServerStream) error {
			n := int64(0)
			for ss.RecvMsg(new(wrapperspb.Int64Value)) == nil {
				n++
			}
			return send(ss, n)
		}}
		e := engine(t, cortex.Config{Name: "test"})
		st, err := client(t, e, serve(t, s)).NewStream(t.Context(), streamUp, methodUp)
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(time.Minute)
			if n := e.Pressure().InFlight; n != 0 {
				t.Errorf("%d in flight while the client thinks", n)
			}
			if err := st.SendMsg(wrapperspb.Int64(1)); err != nil {
				t.Fatal(err)
			}
		}
		st.CloseSend()
		m := new(wrapperspb.Int64Value)
		if err := st.RecvMsg(m); err != nil || m.Value != 10 {
			t.Errorf("%v, %v", m, err)
		}
		if p := e.Pressure(); p.P99 > time.Second {
			t.Errorf("a latency of %v", p.P99)
		}
		idle(t, e)
	})
}

// Once all is sent, the timeout counts.
func TestUploadWithoutAnswerIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended atomic.Bool
		s := &service{stream: func(ss grpc.ServerStream) error {
			<-ss.Context().Done()
			ended.Store(true)
			return nil
		}}
		e := engine(t, cortex.Config{Name: "test", DisableRetries: true})
		st, err := client(t, e, serve(t, s)).NewStream(t.Context(), streamUp, methodUp)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		st.SendMsg(wrapperspb.Int64(1))
		st.CloseSend()
		began := time.Now()
		err = st.RecvMsg(new(wrapperspb.Int64Value))
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took > 2*time.Second {
			t.Errorf("%v after %v", err, took)
		}
		synctest.Wait()
		if !ended.Load() {
			t.Error("the server's stream goes on")
		}
		idle(t, e)
	})
}

// Header waits for the attempt that has one.
func TestStreamHeaderAcrossAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{}
		s.stream = func(ss grpc.ServerStream) error {
			if s.calls.Load() < 3 {
				return unavailable()
			}
			ss.SendHeader(metadata.Pairs("which", "third"))
			return send(ss, 1)
		}
		e := engine(t, cortex.Config{Name: "test"})
		st, err := down(t.Context(), client(t, e, serve(t, s)), 1)
		if err != nil {
			t.Fatal(err)
		}
		if md, err := st.Header(); err != nil || len(md["which"]) != 1 {
			t.Errorf("%v, %v", md, err)
		}
		if got, err := recvAll(st); !equal(got, 1) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
		idle(t, e)
	})
}

// Where there is none to come, Header says nothing and RecvMsg why.
func TestStreamHeaderOfAFailedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{stream: func(ss grpc.ServerStream) error { return status.Error(codes.NotFound, "no such") }}
		e := engine(t, cortex.Config{Name: "test"})
		st, err := down(t.Context(), client(t, e, serve(t, s)), 1)
		if err != nil {
			t.Fatal(err)
		}
		if md, err := st.Header(); md != nil || err != nil {
			t.Errorf("%v, %v", md, err)
		}
		if _, err := recvAll(st); status.Code(err) != codes.NotFound {
			t.Errorf("%v", err)
		}
		if s.calls.Load() != 1 {
			t.Errorf("%d attempts", s.calls.Load())
		}
	})
}

// A server that says at once that it has begun may take its time for the first message.
func TestHeaderEndsTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{stream: func(ss grpc.ServerStream) error {
			if err := ss.SendHeader(nil); err != nil {
				return err
			}
			time.Sleep(time.Hour)
			return send(ss, 1)
		}}
		e := engine(t, cortex.Config{Name: "test"})
		st, err := down(t.Context(), client(t, e, serve(t, s)), 1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		idle(t, e)
		if got, err := recvAll(st); !equal(got, 1) || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// After Context there is no retry, as in gRPC: whoever has asked for it holds on to one attempt.
func TestContextCommitsAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{stream: func(grpc.ServerStream) error { return unavailable() }}
		st, err := down(t.Context(), client(t, engine(t, cortex.Config{}), serve(t, s)), 1)
		if err != nil {
			t.Fatal(err)
		}
		if st.Context() == nil {
			t.Error("no context")
		}
		if _, err := recvAll(st); status.Code(err) != codes.Unavailable || s.calls.Load() != 1 {
			t.Errorf("%v, %d attempts", err, s.calls.Load())
		}
	})
}
