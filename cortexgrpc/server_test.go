package cortexgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-a29ca62a/cortex"
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

// overloaded is a configuration with a full queue: the article's law sheds priorities below 7 with certainty, at a CPS of 0.70.
var overloaded = cortex.Config{
	Name: "api", Profile: cortex.Article, Weights: cortex.Weights{F: 0.1, Q: 0.7, B: 0.1, C: 0.1},
	Queue: func() (float64, float64) { return 10, 10 },
}

func trusting(*peer.Peer) bool { return true }

func TestServerShedsByPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(ctx context.Context, n int64) (int64, error) {
			p, _ := cortexgrpc.PriorityFrom(ctx)
			return int64(p), nil
		}}
		s.stream = func(ss grpc.ServerStream) error { return send(ss, 1) }
		e := engine(t, overloaded)
		cc := dial(t, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: e, TrustPeer: trusting})...))
		for _, c := range []struct {
			priority []string
			passes   bool
			admitted int64
		}{
			{[]string{"7"}, true, 7}, {[]string{"9"}, true, 9}, {[]string{"99"}, true, 10}, {[]string{"6"}, false, 0},
			{[]string{"-1"}, false, 0}, {nil, false, 0}, {[]string{"9", "9"}, false, 0}, {[]string{"9.5"}, false, 0}, {[]string{" 9"}, false, 0},
		} {
			ctx := t.Context()
			for _, p := range c.priority {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-priority", p)
			}
			var trailer metadata.MD
			n, err := call(ctx, cc, methodDo, 1, grpc.Trailer(&trailer))
			if v := trailer["cortex-pressure"]; len(v) != 1 || !strings.HasPrefix(v[0], "0.7000;q=1.0000;") {
				t.Errorf("%q: pressure %q", c.priority, v)
			}
			if c.passes {
				if err != nil || n != c.admitted {
					t.Errorf("%q: %d, %v", c.priority, n, err)
				}
				continue
			}
			checkShed(t, err, trailer)
			st, err := cc.NewStream(ctx, streamDown, methodDown)
			if err != nil {
				t.Fatal(err)
			}
			st.CloseSend()
			_, err = recvAll(st)
			checkShed(t, err, st.Trailer())
		}
		if st := e.Stats(); st.Attempts != 3 || st.Successes != 3 {
			t.Errorf("%+v", st)
		}
		idle(t, e)
	})
}

func checkShed(t *testing.T, err error, trailer metadata.MD) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != codes.ResourceExhausted || len(st.Details()) != 2 {
		t.Errorf("%v", err)
		return
	}
	info, _ := st.Details()[0].(*errdetails.ErrorInfo)
	retry, _ := st.Details()[1].(*errdetails.RetryInfo)
	if info.GetReason() != "SHED_LOW_PRIORITY" || info.GetMetadata()["floor"] != "7" || info.GetMetadata()["target"] != "api" ||
		retry.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("%v", st.Details())
	}
	ms := trailer["grpc-retry-pushback-ms"]
	if len(ms) != 1 || trailer["cortex-reason"][0] != "SHED_LOW_PRIORITY" {
		t.Errorf("%v", trailer)
		return
	}
	if n, err := strconv.Atoi(ms[0]); err != nil || n < 1 {
		t.Errorf("%v", trailer)
	}
}

// A peer that is not trusted has no say in what is shed.
func TestServerTrust(t *testing.T) {
	for _, c := range []struct {
		cfg  cortexgrpc.ServerConfig
		want int64
	}{
		{cortexgrpc.ServerConfig{}, 5}, // the test's network has no addresses
		{cortexgrpc.ServerConfig{TrustPeer: trusting}, 9},
		{cortexgrpc.ServerConfig{TrustPeer: trusting, Trust: []netip.Prefix{}}, 9},
		{cortexgrpc.ServerConfig{Default: new(cortex.Priority(2))}, 2},
		{cortexgrpc.ServerConfig{Priority: func(context.Context, string) cortex.Priority { return 3 }}, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.cfg.Engine = engine(t, cortex.Config{})
			if got := admittedPriority(t, dial(t, serve(t, priorities(), server(t, c.cfg)...))); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
	for addr, want := range map[string]int64{"127.0.0.1:0": 9, "[::1]:0": 9} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Log(err)
			continue
		}
		s := priorities()
		g := grpc.NewServer(server(t, cortexgrpc.ServerConfig{Engine: engine(t, cortex.Config{})})...)
		g.RegisterService(s.desc(), s)
		go g.Serve(l)
		t.Cleanup(g.Stop)
		if got := admittedPriority(t, dialReal(t, l.Addr().String(), insecure.NewCredentials())); got != want {
			t.Errorf("%s: %d", addr, got)
		}
	}
	for _, p := range []netip.Prefix{{}, netip.MustParsePrefix("::ffff:10.0.0.0/104")} {
		if _, err := cortexgrpc.NewServer(cortexgrpc.ServerConfig{Engine: engine(t, cortex.Config{}), Trust: []netip.Prefix{p}}); err == nil {
			t.Errorf("%v", p)
		}
	}
}

func priorities() *service {
	return &service{unary: func(ctx context.Context, _ int64) (int64, error) {
		p, ok := cortexgrpc.PriorityFrom(ctx)
		if !ok {
			return -1, nil
		}
		return int64(p), nil
	}}
}

func admittedPriority(t *testing.T, cc *grpc.ClientConn) int64 {
	t.Helper()
	n, err := call(metadata.AppendToOutgoingContext(t.Context(), "x-priority", "9"), cc, methodDo, 1)
	if err != nil {
		t.Error(err)
	}
	return n
}

// What the error of a handler says of its process.
func TestHandlerOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want cortex.Outcome
	}{
		{nil, cortex.Success},
		{errors.New("oh"), cortex.Failed},
		{context.Canceled, cortex.Neutral},
		{context.DeadlineExceeded, cortex.TimedOut},
		{status.Error(codes.NotFound, ""), cortex.Success},
		{status.Error(codes.InvalidArgument, ""), cortex.Success},
		{status.Error(codes.Unimplemented, ""), cortex.Success},
		{status.Error(codes.Unavailable, ""), cortex.Failed},
		{status.Error(codes.Internal, ""), cortex.Failed},
		{status.Error(codes.DataLoss, ""), cortex.Failed},
		{status.Error(codes.Unknown, ""), cortex.Failed},
		{status.Error(codes.ResourceExhausted, ""), cortex.Throttled},
		{status.Error(codes.DeadlineExceeded, ""), cortex.TimedOut},
		{status.Error(codes.Canceled, ""), cortex.Neutral},
		{status.Error(99, ""), cortex.Failed},
		{fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "")), cortex.Success},
	} {
		if got := cortexgrpc.HandlerOutcome(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

func TestServerOutcomes(t *testing.T) {
	type stats struct{ success, failed, timeouts, neutral uint64 }
	hang := func(ctx context.Context, _ int64) (int64, error) { // and does not mind its context
		time.Sleep(10 * time.Second)
		return 0, nil
	}
	for _, c := range []struct {
		name  string
		trust bool
		wait  time.Duration // of the caller; 0 = for ever
		leave bool          // by cancelling
		do    func(ctx context.Context, n int64) (int64, error)
		want  stats
		after time.Duration // when that is known
	}{
		{"good", false, 0, false, func(context.Context, int64) (int64, error) { return 0, nil }, stats{success: 1}, 0},
		{"not found", false, 0, false, func(context.Context, int64) (int64, error) { return 0, status.Error(codes.NotFound, "") }, stats{success: 1}, 0},
		{"failed", false, 0, false, func(context.Context, int64) (int64, error) { return 0, errors.New("oh") }, stats{failed: 1}, 0},
		{"a trusted caller's deadline", true, 3 * time.Second, false, hang, stats{timeouts: 1}, 3 * time.Second},
		{"anybody's deadline", false, 3 * time.Second, false, hang, stats{neutral: 1}, 10 * time.Second},
		{"the caller left", true, 3 * time.Second, true, hang, stats{neutral: 1}, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := engine(t, cortex.Config{Name: "api"})
				cc := dial(t, serve(t, &service{unary: c.do}, server(t, cortexgrpc.ServerConfig{Engine: e,
					TrustPeer: func(*peer.Peer) bool { return c.trust }})...))
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				switch {
				case c.leave:
					ctx, cancel = context.WithCancel(ctx)
					time.AfterFunc(c.wait, cancel)
				case c.wait > 0:
					ctx, cancel = context.WithTimeout(ctx, c.wait)
				}
				defer cancel()
				began := time.Now()
				call(ctx, cc, methodDo, 1)
				time.Sleep(c.after - time.Since(began) + time.Millisecond)
				s := e.Stats()
				if got := (stats{s.Successes, s.Failures, s.Timeouts, s.Neutral}); got != c.want {
					t.Errorf("%+v", got)
				}
				if n := e.Pressure().InFlight; c.after == 3*time.Second && n != 1 {
					t.Errorf("%d in flight while the handler hangs", n)
				}
				time.Sleep(10 * time.Second)
				idle(t, e)
			})
		})
	}
}

// A caller that has given up is not worked for.
func TestServerCallerGaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left time.Duration
		s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
			d, ok := ctx.Deadline()
			if left = -1; ok {
				left = time.Until(d)
			}
			return 0, nil
		}}
		e := engine(t, cortex.Config{Name: "api"})
		cc := dial(t, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: e})...))
		for _, c := range []struct {
			ms   string
			want time.Duration // -1 = no deadline
			code codes.Code
		}{
			{"0", 0, codes.DeadlineExceeded}, {"-5", 0, codes.DeadlineExceeded}, {"250", 250 * time.Millisecond, codes.OK},
			{"junk", -1, codes.OK}, {"99999999999999999999", math.MaxInt32 * time.Millisecond, codes.OK},
		} {
			s.calls.Store(0)
			_, err := call(metadata.AppendToOutgoingContext(t.Context(), "cortex-timeout-ms", c.ms), cc, methodDo, 1)
			if status.Code(err) != c.code || (s.calls.Load() == 1) != (c.code == codes.OK) {
				t.Errorf("%q: %v, %d calls", c.ms, err, s.calls.Load())
			}
			if c.code == codes.OK && left != c.want {
				t.Errorf("%q: %v", c.ms, left)
			}
		}
		// gRPC's own is nearer.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		call(metadata.AppendToOutgoingContext(ctx, "cortex-timeout-ms", "5000"), cc, methodDo, 1)
		if left != time.Second {
			t.Errorf("%v", left)
		}
		if n := e.Stats().Attempts; n != 4 {
			t.Errorf("%d attempts", n)
		}
	})
}

// Calls made for a call whose sender retries are not retried.
func TestServerCarriesTheRetryMark(t *testing.T) {
	for _, c := range []struct {
		md   []string
		mark bool
	}{
		{nil, false},
		{[]string{"cortex-attempt", "0;retries=3"}, true},
		{[]string{"cortex-attempt", "0;retries=0"}, false},
		{[]string{"cortex-attempt", "junk"}, false},
		{[]string{"grpc-previous-rpc-attempts", "2"}, true},
		{[]string{"grpc-previous-rpc-attempts", "0"}, false},
		{[]string{"grpc-previous-rpc-attempts", "-2"}, false},
		{[]string{"grpc-previous-rpc-attempts", "2;retries=3"}, false},
		{[]string{"cortex-attempt", "0;retries=0", "grpc-previous-rpc-attempts", "2"}, false}, // it says that it does not
	} {
		synctest.Test(t, func(t *testing.T) {
			marked := false
			s := &service{unary: func(ctx context.Context, _ int64) (int64, error) {
				_, marked = cortex.RetryMarkFrom(ctx)
				return 0, nil
			}}
			cc := dial(t, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: engine(t, cortex.Config{})})...))
			call(metadata.AppendToOutgoingContext(t.Context(), c.md...), cc, methodDo, 1)
			if marked != c.mark {
				t.Errorf("%q: %v", c.md, marked)
			}
		})
	}
}

// A panic in a handler is a failure, passes through, and leaves nothing in flight. gRPC's own server does not survive one: the
// interceptor in front stands for those that recover.
func TestServerPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) { panic("handler") }}
		s.stream = func(grpc.ServerStream) error { panic("handler") }
		e := engine(t, cortex.Config{Name: "api"})
		recovered := 0
		rescue := func() { recovered++; recover() }
		opts := append([]grpc.ServerOption{
			grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				defer rescue()
				return h(ctx, req)
			}),
			grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				defer rescue()
				return h(srv, ss)
			})}, server(t, cortexgrpc.ServerConfig{Engine: e})...)
		cc := dial(t, serve(t, s, opts...))
		call(t.Context(), cc, methodDo, 1)
		st, err := down(t.Context(), cc, 1)
		if err != nil {
			t.Fatal(err)
		}
		recvAll(st)
		if recovered != 2 || e.Stats().Failures != 2 {
			t.Errorf("%d panics, %+v", recovered, e.Stats())
		}
		idle(t, e)
	})
}

// A stream is in flight until its answer begins, and not while its handler waits for its client.
func TestServerStreamInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, cortex.Config{Name: "api"})
		s := &service{stream: func(ss grpc.ServerStream) error {
			for {
				m := new(wrapperspb.Int64Value)
				if err := ss.RecvMsg(m); err != nil {
					return nil
				}
				time.Sleep(time.Second)
				if m.Value > 1 {
					if err := ss.SendMsg(m); err != nil {
						return err
					}
				}
			}
		}}
		st, err := dial(t, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: e})...)).NewStream(t.Context(), streamBoth, methodBoth)
		if err != nil {
			t.Fatal(err)
		}
		check := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if n := int64(e.Pressure().InFlight); n != want {
				t.Errorf("%s: %d in flight", when, n)
			}
		}
		time.Sleep(time.Hour)
		check("the client thinks", 0)
		st.SendMsg(wrapperspb.Int64(1))
		check("the handler works", 1)
		time.Sleep(2 * time.Second)
		check("it waits again", 0)
		st.SendMsg(wrapperspb.Int64(2))
		check("it works again", 1)
		st.RecvMsg(new(wrapperspb.Int64Value))
		st.SendMsg(wrapperspb.Int64(3))
		check("the answer has begun", 0)
		st.CloseSend()
		recvAll(st)
		check("at the end", 0)
		if s := e.Stats(); s.Successes != 1 || e.Pressure().P99 > 2*time.Second {
			t.Errorf("%+v, P99 %v", s, e.Pressure().P99)
		}
	})
}

// Strangers are told when to ask again, and no numbers.
func TestServerHidesPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(context.Context, int64) (int64, error) { return 0, nil }}
		cc := dial(t, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: engine(t, overloaded), HidePressure: true})...))
		var trailer metadata.MD
		_, err := call(t.Context(), cc, methodDo, 1, grpc.Trailer(&trailer))
		if trailer["cortex-pressure"] != nil || strings.Contains(status.Convert(err).Message(), "api") {
			t.Errorf("%v, %v", trailer, err)
		}
		if info, ok := status.Convert(err).Details()[0].(*errdetails.ErrorInfo); !ok || len(info.Metadata) != 0 {
			t.Errorf("%v", status.Convert(err).Details())
		}
	})
}

// The client follows what the server says of its pressure.
func TestClientHearsThePressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, cortex.Config{Name: "test"})
		s := &service{unary: func(ctx context.Context, n int64) (int64, error) {
			grpc.SetTrailer(ctx, metadata.Pairs("cortex-pressure", "0.9000;q=1.0000;shed=1.0000;state=EMERGENCY"))
			return n, nil
		}}
		cc := client(t, e, serve(t, s))
		shed := false
		for range 1000 {
			_, err := call(cortexgrpc.WithPriority(t.Context(), 0), cc, methodDo, 1)
			shed = shed || errors.Is(err, cortex.ErrShed)
			time.Sleep(time.Millisecond)
		}
		if !shed {
			t.Errorf("%+v", e.Pressure())
		}
	})
}

func TestServerSelect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine(t, cortex.Config{Name: "gets"})
		s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
		s.stream = func(ss grpc.ServerStream) error { return send(ss, 1) }
		cc := dial(t, serve(t, s, server(t, cortexgrpc.ServerConfig{Select: func(_ context.Context, m string) (*cortex.Engine, error) {
			switch m {
			case methodGet:
				return e, nil
			case methodDown:
				return nil, errors.New("no")
			}
			return nil, nil
		}})...))
		for m, want := range map[string]int{methodGet: 1, methodDo: 0} {
			var trailer metadata.MD
			if _, err := call(t.Context(), cc, m, 1, grpc.Trailer(&trailer)); err != nil || len(trailer["cortex-pressure"]) != want {
				t.Errorf("%s: %v, %v", m, err, trailer)
			}
		}
		st, _ := down(t.Context(), cc, 1)
		if _, err := recvAll(st); status.Code(err) != codes.Internal {
			t.Errorf("%v", err)
		}
		if e.Stats().Successes != 1 {
			t.Errorf("%+v", e.Stats())
		}
	})
}

// A refusal by a guard further below is no load of the server that passes it on: its client must not hold calls back that have
// nothing to do with what is refused, let alone critical ones.
func TestRefusalFromFurtherBelowIsNeutral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bottom := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
		inner := dial(t, serve(t, bottom, server(t, cortexgrpc.ServerConfig{Engine: engine(t, overloaded)})...))
		m := &service{unary: func(ctx context.Context, n int64) (int64, error) { return call(ctx, inner, methodDo, n) }}
		in, out := engine(t, cortex.Config{Name: "middle"}), engine(t, cortex.Config{Name: "above"})
		cc := client(t, out, serve(t, m, server(t, cortexgrpc.ServerConfig{Engine: in})...))
		for range 100 {
			if _, err := call(t.Context(), cc, methodDo, 1); status.Code(err) != codes.ResourceExhausted {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if a, b := in.Stats(), out.Stats(); a.Neutral != 100 || b.Neutral != 100 || out.Pressure().Shed > 0 {
			t.Errorf("%+v, %+v, %+v", a, b, out.Pressure())
		}
	})
}

// What the server sheds itself is throttling.
func TestOwnShedIsThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{unary: func(_ context.Context, n int64) (int64, error) { return n, nil }}
		e := engine(t, cortex.Config{Name: "above"})
		call(t.Context(), client(t, e, serve(t, s, server(t, cortexgrpc.ServerConfig{Engine: engine(t, overloaded)})...)), methodDo, 1)
		if st := e.Stats(); st.Throttled != 1 {
			t.Errorf("%+v", st)
		}
	})
}
