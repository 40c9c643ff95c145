package cortexhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/h1"
)

func uploadRequest(t *testing.T, ctx context.Context, body io.Reader, length int64) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, "PUT", "http://target/", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = length
	return req
}

// A client on a slow line was cut by the attempt timeout in the middle of its upload, every time, and the circuit of a
// target that answered at once opened for it.
func TestSlowUploadIsNoTimeoutOfTheTarget(t *testing.T) {
	for proto, set := range protocols {
		for _, length := range []int64{-1, 6000} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, clientEngine(t, attemptsCutAfter(50*time.Millisecond), withCircuit), func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Errorf("%s: %v", proto, err)
					}
					w.Write(body)
				}, set)
				for range 20 {
					pr, pw := io.Pipe()
					go func() {
						for range 6 {
							time.Sleep(500 * time.Millisecond)
							if n := w.engine.Pressure().InFlight; n != 0 {
								t.Errorf("%s: %d in flight while the client uploads", proto, n)
							}
							pw.Write(make([]byte, 1000))
						}
						pw.Close()
					}()
					var rep Report
					resp, err := w.client.Do(uploadRequest(t, WithReport(t.Context(), &rep), pr, length))
					if status, body := finish(t, resp, err); status != 200 || len(body) != 6000 || rep != (Report{Attempts: 1}) {
						t.Errorf("%s, length %d: %d, %d bytes, %+v", proto, length, status, len(body), rep)
					}
				}
				s, p := w.engine.Stats(), w.engine.Pressure()
				if s.Successes != 20 || s.Timeouts+s.Failures+s.Neutral != 0 || p.P99 > 10*time.Millisecond || p.InFlight != 0 {
					t.Errorf("%s, length %d: %+v, %+v", proto, length, s, p)
				}
			})
		}
	}
}

// The other side of it: from the end of the body on the time is the target's again.
func TestTargetThatHangsAfterTheUploadIsCut(t *testing.T) {
	for proto, set := range protocols {
		for _, length := range []int64{-1, 1000} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, clientEngine(t, attemptsCutAfter(50*time.Millisecond), noRetries), func(_ http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					<-r.Context().Done()
				}, set)
				pr, pw := io.Pipe()
				var sent time.Time
				go func() {
					time.Sleep(time.Second)
					pw.Write(make([]byte, 1000))
					sent = time.Now()
					pw.Close()
					time.Sleep(20 * time.Millisecond)
					if n := w.engine.Pressure().InFlight; n != 1 {
						t.Errorf("%s: %d in flight while the target has the request", proto, n)
					}
				}()
				var rep Report
				_, err := w.client.Do(uploadRequest(t, WithReport(t.Context(), &rep), pr, length))
				synctest.Wait()
				if took := time.Since(sent); err == nil || !rep.TimedOut || took < 50*time.Millisecond || took > 60*time.Millisecond {
					t.Errorf("%s, length %d: cut %v after the upload: %v, %+v", proto, length, took, err, rep)
				}
				w.wantOutcomes(cortex.TimedOut)
			})
		}
	}
}

// What comes before the body is the target's time as well, and so is that in which it takes none of it.
func TestTargetThatTakesNoBodyIsCut(t *testing.T) {
	for proto, set := range protocols {
		synctest.Test(t, func(t *testing.T) {
			end := make(chan struct{})
			w := newWorld(t, clientEngine(t, attemptsCutAfter(50*time.Millisecond), noRetries), func(http.ResponseWriter, *http.Request) {
				<-end // a server does not see its client leave before it has read the body
			}, set)
			began := time.Now()
			var rep Report
			body := struct{ io.Reader }{bytes.NewReader(make([]byte, 10<<20))}
			_, err := w.client.Do(uploadRequest(t, WithReport(t.Context(), &rep), body, 10<<20))
			if took := time.Since(began); err == nil || !rep.TimedOut || took < uploadStall || took > uploadStall+time.Second {
				t.Errorf("%s: cut after %v: %v, %+v", proto, took, err, rep)
			}
			w.wantOutcomes(cortex.TimedOut)
			close(end)
			time.Sleep(time.Second) // the server lingers
		})
	}
	synctest.Test(t, func(t *testing.T) {
		e := clientEngine(t, attemptsCutAfter(50*time.Millisecond), noRetries)
		tr, err := NewTransport(TransportConfig{Engine: e, Base: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				time.Sleep(time.Second) // net/http lets it go on without the call
				return nil, errRefused
			}}})
		if err != nil {
			t.Fatal(err)
		}
		pr, _ := io.Pipe()
		began := time.Now()
		_, err = tr.RoundTrip(uploadRequest(t, t.Context(), pr, -1))
		if took := time.Since(began); err == nil || took > 60*time.Millisecond || e.Stats().Timeouts != 1 {
			t.Errorf("a dial that hangs: %v after %v, %+v", err, took, e.Stats())
		}
		time.Sleep(time.Second)
	})
}

// net/http's transport waits for a body for ever, past the end of its request's context: forty clients that had stopped
// sending kept forty calls in flight, and a healthy target's were shed.
func TestStalledUploadEndsWithItsCall(t *testing.T) {
	for proto, set := range protocols {
		for _, whose := range []string{"context", "cancelled", "engine"} {
			synctest.Test(t, func(t *testing.T) {
				e := clientEngine(t, attemptsCutAfter(50*time.Millisecond), func(c *cortex.Config) {
					if whose == "engine" {
						c.Deadline = time.Second
					}
				})
				w := newWorld(t, e, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, set)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				want := cortex.ReasonDeadline
				switch whose {
				case "context":
					ctx, cancel = context.WithTimeout(ctx, time.Second)
					defer cancel()
				case "cancelled":
					want = cortex.ReasonCancelled
					time.AfterFunc(time.Second, cancel)
				}
				pr, pw := io.Pipe()
				went := make(chan error, 1)
				go func() {
					pw.Write([]byte("abc"))
					time.Sleep(time.Minute) // a stall that nothing ends
					_, err := pw.Write([]byte("def"))
					went <- err
				}()
				began := time.Now()
				var rep Report
				_, err := w.client.Do(uploadRequest(t, WithReport(ctx, &rep), pr, -1))
				if took := time.Since(began); err == nil || took < time.Second || took > 1100*time.Millisecond {
					t.Errorf("%s, %s: %v after %v", proto, whose, err, took)
				}
				if rep.Reason != want || rep.TimedOut || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, cortex.ErrDeadline) != (want == cortex.ReasonDeadline) {
					t.Errorf("%s, %s: %v, %+v", proto, whose, err, rep)
				}
				w.wantOutcomes(cortex.Neutral)
				if s := e.Stats(); s.Neutral != 1 || s.Timeouts+s.Failures != 0 || e.Pressure().InFlight != 0 {
					t.Errorf("%s, %s: %+v", proto, whose, s)
				}
				if err := <-went; err != io.ErrClosedPipe {
					t.Errorf("%s, %s: the body was not closed: %v", proto, whose, err)
				}
			})
		}
	}
}

// An answer that does not wait for the body ends the attempt; the body that comes later must not start its timeout.
func TestEarlyAnswerDuringAnUpload(t *testing.T) {
	for _, status := range []int{200, 413, 503} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, clientEngine(t, attemptsCutAfter(50*time.Millisecond), noRetries), func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				w.(http.Flusher).Flush()
				n := int64(100)
				if status == 200 { // net/http's HTTP/2 sends no more of the body after another
					n, _ = io.Copy(io.Discard, r.Body)
				}
				time.Sleep(time.Second)
				w.Write(make([]byte, n))
			}, overHTTP2)
			pr, pw := io.Pipe()
			resp, err := w.client.Do(uploadRequest(t, t.Context(), pr, -1))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(time.Second)
				pw.Write(make([]byte, 100))
				time.Sleep(time.Second)
				pw.Close()
			}()
			if got, body := finish(t, resp, err); got != status || len(body) != 100 {
				t.Errorf("%d: %d, %d bytes", status, got, len(body))
			}
			want := map[int]cortex.Outcome{200: cortex.Success, 413: cortex.Neutral, 503: cortex.Failed}[status]
			w.wantOutcomes(want)
			if s := w.engine.Stats(); s.Timeouts != 0 || w.engine.Pressure().InFlight != 0 {
				t.Errorf("%d: %+v", status, s)
			}
			time.Sleep(time.Minute)
		})
	}
}

// An attempt that breaks while the caller is being waited for, whose slowness may be what the target was tired of, does not
// speak against the target.
func TestFailureWhileTheCallerIsWaitedForIsNeutral(t *testing.T) {
	for _, waiting := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			e := clientEngine(t, noRetries)
			tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Body.Read(make([]byte, 3))
				if waiting {
					go func() {
						r.Body.Read(make([]byte, 3))
						r.Body.Close()
					}()
					synctest.Wait()
				} else {
					r.Body.Close()
				}
				return nil, io.ErrUnexpectedEOF
			})})
			if err != nil {
				t.Fatal(err)
			}
			pr, pw := io.Pipe()
			go func() {
				pw.Write([]byte("abc"))
				time.Sleep(time.Second)
				pw.Close()
			}()
			if _, err := tr.RoundTrip(uploadRequest(t, t.Context(), pr, -1)); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Error(err)
			}
			if s := e.Stats(); waiting && (s.Neutral != 1 || s.Failures != 0) || !waiting && s.Failures != 1 {
				t.Errorf("waiting %v: %+v", waiting, s)
			}
			time.Sleep(time.Minute)
		})
	}
}

// A target that sends no 100 timed out at every request that waits for one, as the base waits longer for it than the timeout is: clients
// could open its circuit. How long that takes is no latency either.
func TestTargetThatSendsNo100(t *testing.T) {
	for name, base := range map[string]func(dial func(ctx context.Context, network, addr string) (net.Conn, error)) http.RoundTripper{
		"net/http": func(dial func(ctx context.Context, network, addr string) (net.Conn, error)) http.RoundTripper {
			return &http.Transport{DialContext: dial, ExpectContinueTimeout: time.Second}
		},
		"h1": func(dial func(ctx context.Context, network, addr string) (net.Conn, error)) http.RoundTripper {
			tr, err := h1.New(h1.Config{Dial: dial})
			if err != nil {
				t.Fatal(err)
			}
			return tr
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			silent := func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					defer there.Close()
					b := bufio.NewReader(there)
					for line := ""; line != "\r\n"; {
						var err error
						if line, err = b.ReadString('\n'); err != nil {
							return
						}
					}
					if _, err := io.CopyN(io.Discard, b, 3); err == nil {
						io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
					}
				}()
				return here, nil
			}
			e := clientEngine(t, attemptsCutAfter(50*time.Millisecond), withCircuit)
			tr, err := NewTransport(TransportConfig{Engine: e, Base: base(silent)})
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				var rep Report
				r := uploadRequest(t, WithReport(t.Context(), &rep), io.MultiReader(strings.NewReader("abc")), 3)
				r.Header.Set("Expect", "100-continue")
				resp, err := tr.RoundTrip(r)
				if status, _ := finish(t, resp, err); status != 200 || rep != (Report{Attempts: 1}) {
					t.Fatalf("%s: %d, %v, %+v", name, status, err, rep)
				}
			}
			if s, p := e.Stats(), e.Pressure(); s.Successes != 20 || s.Timeouts+s.Failures+s.Neutral != 0 || p.P99 > 10*time.Millisecond || p.InFlight != 0 {
				t.Errorf("%s: %+v, %+v", name, s, p)
			}
		})
	}
}
