package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// gRPC as it is on the wire: no more of it than messages with their length, and a status in the trailer.

func writeMessage(w io.Writer, text string) error {
	b := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
	_, err := w.Write(b)
	if rw, ok := w.(http.ResponseWriter); ok && err == nil {
		err = http.NewResponseController(rw).Flush()
	}
	return err
}

func readMessage(r io.Reader) (string, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, b)
	return string(b), err
}

// grpcService is a target. The path of a call says what becomes of it.
type grpcService struct {
	calls atomic.Int64
}

func (s *grpcService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.calls.Add(1)
	end := func(status int) { w.Header().Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(status)) }
	h := w.Header()
	h.Set("Content-Type", "application/grpc+proto")
	if v := r.Header.Get("Te"); v != "trailers" {
		h.Set("Grpc-Status", "3")
		h.Set("Grpc-Message", "te: "+v)
		return
	}
	begin := func() {
		w.WriteHeader(200)
		http.NewResponseController(w).Flush()
	}
	echo := func() {
		text, err := readMessage(r.Body)
		if err != nil {
			panic(err)
		}
		begin()
		writeMessage(w, text)
	}
	switch kind, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/svc/"), "-"); kind {
	case "unary":
		echo()
		end(0)
	case "only": // a status without a message, in the header or in the trailer, the first time
		if n%2 == 0 {
			echo()
			end(0)
			return
		}
		io.Copy(io.Discard, r.Body)
		status, _ := strconv.Atoi(rest)
		h.Set("Grpc-Status", strconv.Itoa(status))
	case "trailer":
		if n%2 == 0 {
			echo()
			end(0)
			return
		}
		io.Copy(io.Discard, r.Body)
		begin()
		status, _ := strconv.Atoi(rest)
		end(status)
	case "after": // a message, then a status
		status, _ := strconv.Atoi(rest)
		echo()
		end(status)
	case "reset":
		echo()
		panic(http.ErrAbortHandler)
	case "bidi":
		begin()
		for {
			text, err := readMessage(r.Body)
			if err == io.EOF {
				end(0)
				return
			}
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if err := writeMessage(w, text); err != nil {
				return
			}
		}
	case "count":
		n, _ := io.Copy(io.Discard, r.Body)
		begin()
		writeMessage(w, strconv.FormatInt(n, 10))
		end(0)
	}
}

// grpcCall begins a call; what goes into send is the client's stream.
func grpcCall(ctx context.Context, c *http.Client, url string, body io.Reader, header ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", url, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/grpc+proto")
	r.Header.Set("Te", "trailers")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return c.Do(r)
}

// unary makes a call with one message; status is -1 where there is none.
func unary(t *testing.T, c *http.Client, url string, header ...string) (message string, status int, attempts string, err error) {
	t.Helper()
	var b strings.Builder
	writeMessage(&b, "hello")
	res, err := grpcCall(t.Context(), c, url, strings.NewReader(b.String()), header...)
	if err != nil {
		return "", -1, "", err
	}
	defer res.Body.Close()
	message, err = readMessage(res.Body)
	if err == nil {
		_, err = io.ReadAll(res.Body)
	} else if err == io.EOF {
		err = nil
	}
	v := res.Trailer.Get("Grpc-Status")
	if v == "" {
		v = res.Header.Get("Grpc-Status")
	}
	if v == "" {
		v = "-1"
	}
	status, _ = strconv.Atoi(v)
	return message, status, res.Header.Get("Cortex-Attempts"), err
}

func TestGRPCPasses(t *testing.T) {
	p := newPKI(t)
	for _, up := range []string{"h2c", "h2"} {
		svc := new(grpcService)
		spec := realUpstream(t, p, up, svc) + "retry: {base_delay: 1ms, non_idempotent: true}\nbudget: {capacity: 100}\n"
		plain, secure := realGateway(t, target(spec, "")), realGateway(t, frontTLS(p)+target(spec, ""))
		for _, client := range []string{"h2c", "h2"} {
			s := plain
			if client == "h2" {
				s = secure
			}
			t.Run(client+" to "+up, func(t *testing.T) {
				c, base := realClient(t, p, client, s)
				for _, q := range []struct {
					path, message string
					status        int
					attempts      string
					broken        bool
				}{
					{"unary", "hello", 0, "1", false},
					{"only-14", "hello", 0, "2", false}, {"trailer-14", "hello", 0, "2", false}, // F54b
					{"only-5", "", 5, "1", false}, {"trailer-13", "", 13, "1", false},
					{"after-0", "hello", 0, "1", false}, {"after-14", "hello", 14, "1", false}, // F54c
					{"reset", "hello", -1, "1", true},
				} {
					svc.calls.Store(0)
					stats := s.Gateway().Targets()[0].Engine.Stats()
					message, status, attempts, err := unary(t, c, base+"/svc/"+q.path)
					if message != q.message || status != q.status || attempts != q.attempts || (err != nil) != q.broken {
						t.Errorf("%s: %q, status %d, %s attempts, %v", q.path, message, status, attempts, err)
					}
					if n := svc.calls.Load(); strconv.FormatInt(n, 10) != q.attempts {
						t.Errorf("%s: %d calls at the target", q.path, n)
					}
					idle(t, s)
					after := s.Gateway().Targets()[0].Engine.Stats()
					failed := after.Failures - stats.Failures
					want := uint64(0)
					switch q.path {
					case "only-14", "trailer-14", "trailer-13", "after-14", "reset": // the outcome rule sees what the HTTP status does not say
						want = 1
					}
					if failed != want {
						t.Errorf("%s: %d failures, want %d", q.path, failed, want)
					}
				}
			})
		}
	}
}

// A call of gRPC is a POST, which the target may have carried out: without leave there is no retry, and the status passes.
func TestGRPCIsNotRetriedWithoutLeave(t *testing.T) {
	p := newPKI(t)
	svc := new(grpcService)
	s := realGateway(t, target(realUpstream(t, p, "h2c", svc)+retrying, "fallback: {static: {status: 200}}"))
	c, base := realClient(t, p, "h2c", s)
	for _, kind := range []string{"only-14", "trailer-14"} {
		svc.calls.Store(0)
		if _, status, attempts, err := unary(t, c, base+"/svc/"+kind); status != 14 || attempts != "1" || err != nil {
			t.Errorf("%s: status %d, %s attempts, %v", kind, status, attempts, err)
		}
		svc.calls.Store(0)
		if message, status, attempts, err := unary(t, c, base+"/svc/"+kind, "Idempotency-Key", "k"); message != "hello" || status != 0 || attempts != "2" || err != nil {
			t.Errorf("%s with a key: %q, status %d, %s attempts, %v", kind, message, status, attempts, err)
		}
	}
}

// h2 is a client and a target of HTTP/2 in a world.
func (w *world) h2Client(host string) *http.Client {
	c := w.client(host)
	tr := c.Transport.(*http.Transport)
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetUnencryptedHTTP2(true)
	return c
}

func (w *world) h2Serve(addr string, h http.Handler) {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	w.serveBy(addr, s)
}

const impatient = "server: {body_timeout: 1s, min_body_rate: 1KiB, max_body_bytes: 10KiB, idle_timeout: 1s, read_header_timeout: 1s, write_timeout: 1s}\n"

// F63c and more: a stream lives through the silence of either side, whatever the limits of bodies and the timeouts of attempts are.
func TestSilentGRPCStreamsLive(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		svc := new(grpcService)
		w.h2Serve("up.test:80", svc)
		s, end, done := w.server(impatient + strings.Replace(one("timeout: {min: 10ms, max: 100ms, bootstrap: 50ms}\ntransport: {idle_timeout: 1s}", ""), "http://up", "h2c://up", 1))
		c := w.h2Client(stranger)
		pr, pw := io.Pipe()
		res, err := grpcCall(t.Context(), c, "http://gateway.test:80/svc/bidi", pr) // the header comes before the client has said anything
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		for _, silence := range []time.Duration{0, 3 * time.Second, time.Hour} {
			time.Sleep(silence)
			began := time.Now()
			if err := writeMessage(pw, "ping"); err != nil {
				t.Fatal(err)
			}
			if text, err := readMessage(res.Body); text != "ping" || err != nil || time.Since(began) > time.Millisecond {
				t.Fatalf("after %v: %q, %v, in %v", silence, text, err, time.Since(began))
			}
		}
		pw.Close()
		if b, err := io.ReadAll(res.Body); len(b) > 0 || err != nil || res.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("end %q, %v, %v", b, err, res.Trailer)
		}
		synctest.Wait()
		st := s.Gateway().Targets()[0].Engine.Stats()
		if st.Attempts != 1 || st.Successes != 1 || svc.calls.Load() != 1 {
			t.Errorf("%+v", st)
		}
		c.CloseIdleConnections()
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A stream of gRPC is bounded message by message at its target: it has no length. All else has.
func TestGRPCIsExemptFromLimitsOfBodies(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.h2Serve("up.test:80", new(grpcService))
		w.server(impatient + strings.Replace(one("", ""), "http://up", "h2c://up", 1))
		c := w.h2Client(stranger)
		long := strings.Repeat("x", 100<<10)
		res, err := grpcCall(t.Context(), c, "http://gateway.test:80/svc/count", strings.NewReader(long))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := readMessage(res.Body); text != strconv.Itoa(len(long)) || err != nil {
			t.Errorf("%d %q, %v", res.StatusCode, text, err)
		}
		res.Body.Close()
		if a := w.do(c, "POST", "http://gateway.test:80/svc/count", long); a.status != 413 {
			t.Errorf("no gRPC: %+v", a)
		}
		c.CloseIdleConnections()
	})
}

// A client that leaves its stream takes the target's with it, and says nothing against it.
func TestGRPCClientThatLeaves(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var gone atomic.Int64
		svc := new(grpcService)
		w.h2Serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if r.Context().Err() != nil {
					gone.Add(1)
				}
			}()
			svc.ServeHTTP(w, r)
		}))
		s, _, _ := w.server(strings.Replace(one("", ""), "http://up", "h2c://up", 1))
		c := w.h2Client(stranger)
		ctx, cancel := context.WithCancel(t.Context())
		pr, pw := io.Pipe()
		defer pw.Close()
		res, err := grpcCall(ctx, c, "http://gateway.test:80/svc/bidi", pr)
		if err != nil {
			t.Fatal(err)
		}
		writeMessage(pw, "ping")
		if text, err := readMessage(res.Body); text != "ping" || err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		cancel()
		pw.CloseWithError(context.Canceled) // net/http's client minds its context when it has read of the body
		if _, err := io.ReadAll(res.Body); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		tg := s.Gateway().Targets()[0]
		st := tg.Engine.Stats()
		if gone.Load() != 1 || st.Neutral != 1 || st.Failures+st.Successes+st.Timeouts != 0 || tg.calls.Load() != 0 {
			t.Errorf("gone %d, %+v, %d calls", gone.Load(), st, tg.calls.Load())
		}
		if tr := s.Gateway().trafficOf(tg); tr.ClientAborts != 1 || tr.BrokenAnswers != 0 {
			t.Errorf("%+v", tr)
		}
		c.CloseIdleConnections()
	})
}
