package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// slowGRPC is a target that takes 20 ms, but for callers that have less: those get what kind says, early before that.
func slowGRPC(kind string, early time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		work := 20 * time.Millisecond
		if v := r.Header.Get("Grpc-Timeout"); v != "" {
			left, ok := parseGRPCTimeout(v)
			if !ok {
				h.Set("Grpc-Status", "13")
				return
			}
			if left -= early; left < work && kind != "deaf" {
				if kind == "stream" || kind == "said" {
					w.WriteHeader(200)
					http.NewResponseController(w).Flush()
				}
				if kind == "said" {
					writeMessage(w, "first")
				}
				time.Sleep(left)
				switch kind {
				case "status":
					h.Set("Grpc-Status", "4")
				case "stream", "said":
					h.Set(http.TrailerPrefix+"Grpc-Status", "4")
				case "504":
					w.WriteHeader(504)
				case "reset":
					panic(http.ErrAbortHandler)
				}
				return
			}
		}
		time.Sleep(work)
		h.Set("Grpc-Status", "0")
	})
}

// A stranger's grpc-timeout was forwarded, and what the target made of it counted against the target: 90 calls with 2 ms had it shed
// what others asked.
func TestStrangersGRPCTimeoutsSayNothingOfTheTarget(t *testing.T) {
	for _, q := range []struct {
		kind    string
		early   time.Duration
		timeout string
	}{
		{"status", 0, "2m"}, {"status", 0, "5m"}, {"status", time.Hour, "2m"}, {"status", time.Millisecond, "19999u"},
		{"stream", time.Millisecond, "5m"}, {"said", time.Millisecond, "5m"}, {"said", 3 * time.Millisecond, "5m"}, {"504", time.Millisecond, "5m"}, {"reset", 0, "2m"}, {"reset", time.Millisecond, "5m"}, {"reset", time.Millisecond, "15m"},
		{"deaf", 0, "2m"}, {"deaf", 0, "19m"}, {"deaf", 0, "0S"}, {"deaf", 0, "x"},
	} {
		t.Run(q.kind+" "+q.timeout, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.h2Serve("up.test:80", slowGRPC(q.kind, q.early))
				s, _, _ := w.server(strings.Replace(one("retry: {non_idempotent: true}", ""), "http://up", "h2c://up", 1))
				c := w.h2Client(stranger)
				call := func(header ...string) int {
					_, status, _, _ := unary(t, c, "http://gateway.test:80/svc/x", header...)
					return status
				}
				for range 40 {
					if status := call(); status != 0 {
						t.Fatalf("status %d", status)
					}
				}
				for range 90 {
					if status := call("Grpc-Timeout", q.timeout); status == 0 {
						t.Fatal("the deadline did not hold")
					}
				}
				synctest.Wait()
				tg := s.Gateway().Targets()[0]
				if st := tg.Engine.Stats(); st.Timeouts+st.Failures > 0 {
					t.Errorf("%+v", st)
				}
				if p := tg.Engine.Pressure(); p.Evidence > 0.2 || p.Shed > 0 || p.Circuit != breaker.Closed {
					t.Errorf("%+v", p)
				}
				if m := tg.pool.Snapshot()[0]; m.Failed+m.TimedOut > 0 {
					t.Errorf("the endpoint: %+v", m)
				}
				for range 20 {
					if status := call(); status != 0 {
						t.Fatalf("others get status %d", status)
					}
				}
				c.CloseIdleConnections()
			})
		})
	}
}

// Nor does the time that a stranger takes to send what the target waits for.
func TestStrangersSlowGRPCRequestsSayNothingOfTheTarget(t *testing.T) {
	for _, ends := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			w.h2Serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				left, _ := parseGRPCTimeout(r.Header.Get("Grpc-Timeout"))
				time.AfterFunc(left-10*time.Millisecond, func() { r.Body.Close() })
				began := time.Now()
				io.Copy(io.Discard, r.Body)
				time.Sleep(left - 10*time.Millisecond - time.Since(began))
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Status", "4")
			}))
			s, _, _ := w.server(strings.Replace(one("", ""), "http://up", "h2c://up", 1))
			c := w.h2Client(stranger)
			pr, pw := io.Pipe()
			go func() {
				writeMessage(pw, "hello")
				time.Sleep(29900 * time.Millisecond)
				if ends {
					pw.Close()
				}
			}()
			res, err := grpcCall(t.Context(), c, "http://gateway.test:80/svc/x", pr, "Grpc-Timeout", "30S")
			if err != nil || res.Header.Get("Grpc-Status") != "4" {
				t.Fatalf("%v, %v", res, err)
			}
			res.Body.Close()
			pw.Close()
			synctest.Wait()
			if st := s.Gateway().Targets()[0].Engine.Stats(); st.Timeouts+st.Failures > 0 || st.Neutral != 1 {
				t.Errorf("ends %v: %+v", ends, st)
			}
			c.CloseIdleConnections()
		})
	}
}

// What a stranger leaves to wait is no excuse for a target that hangs: the attempt's own timeout ends it.
func TestHangBehindLongGRPCTimeoutCounts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.h2Serve("up.test:80", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		s, _, _ := w.server(strings.Replace(one("", ""), "http://up", "h2c://up", 1))
		c := w.h2Client(stranger)
		if _, status, _, err := unary(t, c, "http://gateway.test:80/svc/x", "Grpc-Timeout", "1M"); status != 4 || err != nil {
			t.Errorf("status %d, %v", status, err)
		}
		synctest.Wait()
		if st := s.Gateway().Targets()[0].Engine.Stats(); st.Timeouts != 1 {
			t.Errorf("%+v", st)
		}
		c.CloseIdleConnections()
	})
}

// The target is told what is left of the time, each attempt less; nobody else's deadline is told it as the gateway's.
func TestGRPCTimeoutOfAttempts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var told, own []string
		w.h2Serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			told, own = append(told, r.Header.Get("Grpc-Timeout")), append(own, r.Header.Get("Cortex-Timeout-Ms"))
			io.Copy(io.Discard, r.Body)
			time.Sleep(100 * time.Millisecond)
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Grpc-Status", []string{"14", "14", "0"}[len(told)-1])
		}))
		w.server(strings.Replace(one("retry: {non_idempotent: true, base_delay: 10ms}", ""), "http://up", "h2c://up", 1))
		c := w.h2Client(stranger)
		if _, status, attempts, err := unary(t, c, "http://gateway.test:80/svc/x", "Grpc-Timeout", "2S"); status != 0 || attempts != "3" || err != nil {
			t.Fatalf("status %d, %s attempts, %v", status, attempts, err)
		}
		before := 2*time.Second + 1
		for i, v := range told {
			d, ok := parseGRPCTimeout(v)
			if !ok || d >= before || d < time.Second || own[i] != "" {
				t.Errorf("attempt %d: %q, %q", i, v, own[i])
			}
			before = d - 100*time.Millisecond
		}
		c.CloseIdleConnections()
	})
}

// The engine learns what time callers have: a stranger must not be able to tell it 2 ms.
func TestStrangersGRPCTimeoutsDoNotLowerTheLimit(t *testing.T) {
	limit := func(header ...string) (l float64) {
		inWorld(t, func(t *testing.T, w *world) {
			w.h2Serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				time.Sleep(2 * time.Millisecond)
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Status", "0")
			}))
			s, _, _ := w.server(strings.Replace(one("", ""), "http://up", "h2c://up", 1))
			c := w.h2Client(stranger)
			for range 3000 {
				unary(t, c, "http://gateway.test:80/svc/x", header...)
			}
			l = s.Gateway().Targets()[0].Engine.Pressure().Limit
			c.CloseIdleConnections()
		})
		return l
	}
	if a, b := limit(), limit("Grpc-Timeout", "3m"); b < 0.9*a {
		t.Errorf("limit %v, with short deadlines %v", a, b)
	}
}

func FuzzParseGRPCTimeout(f *testing.F) {
	for _, s := range []string{"", "1", "S", "1S", "99999999H", "100000000n", "0n", "+1S", "-1m", " 1m", "1 m", "1s", "1h", "01u", "1.5S", "٣S", "1SS"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := parseGRPCTimeout(s)
		valid := len(s) >= 2 && len(s) <= 9 && strings.Trim(s[:len(s)-1], "0123456789") == "" && strings.IndexByte("HMSmun", s[len(s)-1]) >= 0
		if ok != valid || d < 0 || d > maxGRPCTimeout {
			t.Fatalf("%q: %v, %v", s, d, ok)
		}
		if !ok {
			return
		}
		again, ok := parseGRPCTimeout(formatGRPCTimeout(d))
		if !ok || again < d || again-d > d/1e6+1 {
			t.Fatalf("%q: %v, sent as %q", s, d, formatGRPCTimeout(d))
		}
	})
}

func TestGRPCStatusOfProblems(t *testing.T) {
	for _, q := range []struct {
		p              cortexhttp.Problem
		retry          string
		code, pushback string
	}{
		{cortexhttp.RejectionProblem(&cortex.Rejection{Reason: cortex.ReasonShed, RetryAfter: 1500 * time.Millisecond}), "", "8", "1500"},
		{cortexhttp.RejectionProblem(&cortex.Rejection{Reason: cortex.ReasonCircuitOpen, RetryAfter: time.Second}), "", "14", "-1"},
		{cortexhttp.RejectionProblem(&cortex.Rejection{Reason: cortex.ReasonCircuitEmergency, RetryAfter: time.Second}), "", "14", "-1"},
		{cortexhttp.RejectionProblem(&cortex.Rejection{Reason: cortex.ReasonShed, RetryAfter: time.Second}), "no", "8", "-1"},
		{cortexhttp.Problem{Status: 502}, "", "14", ""}, {cortexhttp.Problem{Status: 502, Reason: "MAX_RETRIES_EXCEEDED"}, "no", "14", "-1"},
		{cortexhttp.Problem{Status: 504}, "", "4", ""}, {cortexhttp.Problem{Status: 408}, "", "4", ""}, {cortexhttp.Problem{Status: 413}, "", "8", ""},
		{cortexhttp.Problem{Status: 404}, "", "12", ""}, {cortexhttp.Problem{Status: 405}, "", "12", ""}, {cortexhttp.Problem{Status: 400}, "", "13", ""},
		{cortexhttp.Problem{Status: 508}, "no", "13", "-1"}, {cortexhttp.Problem{Status: 414}, "", "8", ""}, {cortexhttp.Problem{Status: 431}, "", "8", ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/svc/m", nil)
		r.ProtoMajor = 2
		r.Header.Set("Content-Type", "application/grpc+proto")
		if q.retry != "" {
			w.Header().Set("Cortex-Retry", q.retry)
		}
		q.p.Detail += "100 % ü\n"
		writeProblem(w, r, q.p)
		h := w.Header()
		if w.Code != 200 || w.Body.Len() > 0 || h.Get("Content-Type") != "application/grpc" || h.Get("Grpc-Status") != q.code ||
			h.Get("Grpc-Retry-Pushback-Ms") != q.pushback || h.Get("Cortex-Reason") != q.p.Reason || !strings.HasSuffix(h.Get("Grpc-Message"), "100 %25 %C3%BC%0A") {
			t.Errorf("%+v: %d %v", q.p, w.Code, h)
		}
	}
}

// Those who do not read gRPC get HTTP.
func TestOnlyGRPCCallersGetGRPCStatuses(t *testing.T) {
	for _, q := range []struct {
		major   int
		content string
		grpc    bool
	}{{2, "application/grpc", true}, {2, "application/grpc;x=y", true}, {1, "application/grpc", false}, {2, "application/grpc-web+proto", false}, {2, "application/json", false}} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/svc/m", nil)
		r.ProtoMajor = q.major
		r.Header.Set("Content-Type", q.content)
		writeProblem(w, r, cortexhttp.Problem{Status: 404})
		if (w.Code == 200) != q.grpc || (w.Header().Get("Grpc-Status") != "") != q.grpc {
			t.Errorf("%+v: %d %v", q, w.Code, w.Header())
		}
	}
}

// grpcGo is a server of grpc-go, as a target. The method of a call says what becomes of it.
type grpcGo struct {
	calls atomic.Int64
	left  atomic.Int64 // the deadline that it saw
}

func (g *grpcGo) handle(_ any, s grpc.ServerStream) error {
	n := g.calls.Add(1)
	if d, ok := s.Context().Deadline(); ok {
		g.left.Store(int64(time.Until(d)))
	}
	method, _ := grpc.MethodFromServerStream(s)
	in := new(wrapperspb.StringValue)
	switch strings.TrimPrefix(method, "/svc/") {
	case "unary":
		if err := s.RecvMsg(in); err != nil {
			return err
		}
		s.SetTrailer(metadata.Pairs("t", "tee"))
		return s.SendMsg(in)
	case "flaky":
		if n%2 == 1 {
			return grpcstatus.Error(codes.Unavailable, "not yet")
		}
		s.RecvMsg(in)
		return s.SendMsg(in)
	case "down":
		return grpcstatus.Error(codes.Unavailable, "never")
	case "notfound":
		return grpcstatus.Error(codes.NotFound, "none 100 %")
	case "hang":
		<-s.Context().Done()
		return s.Context().Err()
	case "stream":
		for {
			if err := s.RecvMsg(in); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := s.SendMsg(in); err != nil {
				return err
			}
		}
	case "deaf": // a stream that does not mind its deadline
		s.SendMsg(wrapperspb.String("first"))
		<-s.Context().Done()
		return nil
	}
	return grpcstatus.Error(codes.Unimplemented, method)
}

// serveGRPC serves it and returns the address.
func (g *grpcGo) serve(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(g.handle))
	hs := health.NewServer()
	healthpb.RegisterHealthServer(s, hs)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(ln)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return ln.Addr().String()
}

func dialGRPC(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(s.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func one1(md metadata.MD, key string) string { return strings.Join(md.Get(key), ",") }

// gRPC callers got problem+json, of which their libraries make a status of their own: 504 was Unavailable, which is safe to try again.
func TestGRPCGoThroughTheGateway(t *testing.T) {
	up := new(grpcGo)
	s := realGateway(t, "targets:\n  up:\n    endpoints: [h2c://"+up.serve(t)+"]\n    retry: {base_delay: 1ms, max_retries: 1, non_idempotent: true}\n    budget: {capacity: 100}\n"+
		"  none:\n    endpoints: [h2c://127.0.0.1:1]\n    retry: {max_retries: 0}\n"+
		"  open:\n    endpoints: [h2c://127.0.0.1:1]\n"+
		"  slow:\n    endpoints: [h2c://"+up.serve(t)+"]\n    timeout: {min: 10ms, max: 50ms, bootstrap: 20ms}\n    retry: {max_retries: 0}\n"+
		"routes:\n  - {path: /svc, target: up}\n  - {path: /grpc.health.v1.Health, target: up}\n  - {path: /none, target: none, fallback: {static: {status: 200, content_type: application/json, body: \"{}\"}}}\n"+
		"  - {path: /open, target: open}\n  - {path: /svc/hang, target: slow}\n"+
		"  - {path: /static, target: none, fallback: {static: {status: 200, content_type: application/grpc, body: \"\\0\\0\\0\\0\\0\"}}}\n")
	for _, tg := range s.Gateway().Targets() {
		if tg.Name == "open" {
			tg.Engine.Force(breaker.ForcedOpen)
		}
	}
	c := dialGRPC(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), slowness)
	defer cancel()
	for _, q := range []struct {
		method                                  string
		code                                    codes.Code
		attempts, reason, retry, pushback, text string
	}{
		{"/svc/unary", codes.OK, "1", "", "", "", ""},
		{"/svc/flaky", codes.OK, "2", "", "", "", ""},
		{"/svc/down", codes.Unavailable, "2", "MAX_RETRIES_EXCEEDED", "no", "-1", "never"},
		{"/svc/notfound", codes.NotFound, "1", "", "", "", "none 100 %"},
		{"/svc/hang", codes.DeadlineExceeded, "1", "NOT_RETRYABLE", "", "", "did not answer in time"},
		{"/none/x", codes.Unavailable, "1", "MAX_RETRIES_EXCEEDED", "", "", "no connection"},
		{"/static/x", codes.OK, "1", "MAX_RETRIES_EXCEEDED", "", "", ""},
		{"/open/x", codes.Unavailable, "0", "CIRCUIT_OPEN", "", "-1", "forced the circuit open"},
		{"/nowhere/x", codes.Unimplemented, "", "", "", "", "No route"},
	} {
		up.calls.Store(0)
		var header, trailer metadata.MD
		out := new(wrapperspb.StringValue)
		err := c.Invoke(ctx, q.method, wrapperspb.String("hello"), out, grpc.Header(&header), grpc.Trailer(&trailer))
		st := grpcstatus.Convert(err)
		all := metadata.Join(header, trailer)
		if st.Code() != q.code || !strings.Contains(st.Message(), q.text) || one1(all, "cortex-attempts") != q.attempts || one1(all, "cortex-reason") != q.reason ||
			one1(all, "cortex-retry") != q.retry || one1(all, "grpc-retry-pushback-ms") != q.pushback || one1(all, "x-request-id") == "" {
			t.Errorf("%s: %v, %v", q.method, err, all)
		}
		if q.code == codes.OK && q.method != "/static/x" && out.Value != "hello" || q.method == "/svc/unary" && one1(trailer, "t") != "tee" {
			t.Errorf("%s: %q, %v", q.method, out.Value, trailer)
		}
	}

	// Deadlines.
	short, stop := context.WithTimeout(ctx, 10*time.Second)
	if err := c.Invoke(short, "/svc/unary", wrapperspb.String("hello"), new(wrapperspb.StringValue)); err != nil {
		t.Error(err)
	}
	stop()
	if left := time.Duration(up.left.Load()); left <= 0 || left > 10*time.Second {
		t.Errorf("the target saw a deadline of %v", left)
	}

	// Streams.
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/svc/stream")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		in, out := wrapperspb.String(strconv.Itoa(i)), new(wrapperspb.StringValue)
		if err := stream.SendMsg(in); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(out); err != nil || out.Value != in.Value {
			t.Fatalf("%q, %v", out.Value, err)
		}
	}
	stream.CloseSend()
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		t.Errorf("end: %v", err)
	}

	// Health.
	hc := healthpb.NewHealthClient(c)
	if res, err := hc.Check(ctx, new(healthpb.HealthCheckRequest)); err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", res, err)
	}
	watching, leave := context.WithCancel(ctx)
	defer leave()
	if w, err := hc.Watch(watching, new(healthpb.HealthCheckRequest)); err != nil {
		t.Error(err)
	} else if res, err := w.Recv(); err != nil || res.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", res, err)
	}
}

// A stream that its caller's deadline cuts off ends with the status for that, and the caller need not have noticed by itself. It says
// nothing of the target, whoever of the two is first.
func TestGRPCStreamEndsWithItsDeadline(t *testing.T) {
	for _, first := range []string{"gateway", "target"} {
		t.Run(first, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.h2Serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/grpc")
					w.WriteHeader(200)
					writeMessage(w, "first")
					if first == "target" {
						time.Sleep(3*time.Second - time.Millisecond)
						w.Header().Set(http.TrailerPrefix+"Grpc-Status", "4")
						return
					}
					<-r.Context().Done()
				}))
				s, _, _ := w.server(strings.Replace(one("", ""), "http://up", "h2c://up", 1))
				c := w.h2Client(stranger)
				began := time.Now()
				message, status, _, err := unary(t, c, "http://gateway.test:80/svc/x", "Grpc-Timeout", "3S")
				if message != "first" || status != 4 || err != nil || time.Since(began).Round(10*time.Millisecond) != 3*time.Second {
					t.Errorf("%q, %d, %v after %v", message, status, err, time.Since(began))
				}
				synctest.Wait()
				tg := s.Gateway().Targets()[0]
				if st := tg.Engine.Stats(); st.Neutral != 1 || st.Failures+st.Timeouts > 0 {
					t.Errorf("%+v", st)
				}
				if tr := s.Gateway().trafficOf(tg); tr.BrokenAnswers+tr.ClientAborts != 0 {
					t.Errorf("%+v", tr)
				}
				c.CloseIdleConnections()
			})
		})
	}
}

// An open circuit of a gateway below fails fast, and is no failure of it: also in gRPC's words.
func TestOpenCircuitOfGatewayBelowInGRPC(t *testing.T) {
	below := realGateway(t, target("endpoints: [h2c://127.0.0.1:1]", ""))
	below.Gateway().Targets()[0].Engine.Force(breaker.ForcedOpen)
	s := realGateway(t, target("endpoints: [h2c://"+below.Addr().String()+"]\nretry: {non_idempotent: true, base_delay: 1ms}", ""))
	var trailer metadata.MD
	err := dialGRPC(t, s).Invoke(t.Context(), "/svc/x", wrapperspb.String("hello"), new(wrapperspb.StringValue), grpc.Trailer(&trailer))
	if grpcstatus.Code(err) != codes.Unavailable || one1(trailer, "cortex-reason") != "CIRCUIT_OPEN" || one1(trailer, "cortex-attempts") != "1" || one1(trailer, "grpc-retry-pushback-ms") != "-1" {
		t.Errorf("%v, %v", err, trailer)
	}
	idle(t, s)
	if st := s.Gateway().Targets()[0].Engine.Stats(); st.Neutral != 1 || st.Failures > 0 {
		t.Errorf("%+v", st)
	}
}
