package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
)

// server runs a server with its admin port in a world; the result of Run comes on the channel.
func (w *world) server(yaml string) (s *Server, stop context.CancelFunc, done <-chan error) {
	w.t.Helper()
	f, err := config.Parse("test.yaml", []byte(yaml))
	if err != nil {
		w.t.Fatal(err)
	}
	s, err = newServer(f, Options{Dial: w.dialFrom("gateway.test"), Lookup: noAddress}, w.listen("gateway.test:80"), w.listen("admin.test:80"))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.t.Context())
	c := make(chan error, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		c <- s.Run(ctx)
	}()
	w.t.Cleanup(func() {
		s.Close()
		<-over // a bubble must not end before what is in it
	})
	return s, stop, c
}

const draining = "drain: {delay: 5s, timeout: 10s}\n"

func TestStopSaysNotReadyFirst(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(8 * time.Second) // virtual: longer than the delay, shorter than what remains of the drain
			io.WriteString(w, "whole")
		}))
		_, stop, done := w.server(draining + one("timeout: {enabled: false}", ""))
		ops, c := w.client(trusted), w.client(stranger)
		ready := func() int { return w.get(ops, "http://admin.test:80/readyz").status }
		if ready() != 200 {
			t.Fatal("not ready")
		}
		answers := make(chan answer)
		call := func() { answers <- w.get(c, "http://gateway.test:80/") }
		go call()
		synctest.Wait()

		began := time.Now()
		stop()
		synctest.Wait()
		if s := ready(); s != 503 {
			t.Fatalf("/readyz after the order to stop: %d", s)
		}
		if s := w.get(ops, "http://admin.test:80/healthz").status; s != 200 {
			t.Errorf("/healthz while draining: %d", s)
		}
		time.Sleep(4 * time.Second)
		go call() // still accepted: balancers have not looked away yet
		synctest.Wait()
		time.Sleep(2 * time.Second) // the delay is over
		if a := w.get(w.client(stranger), "http://gateway.test:80/"); a.err == nil {
			t.Errorf("accepted after the delay: %+v", a)
		}
		if s := ready(); s != 503 {
			t.Errorf("/readyz in the drain: %d", s)
		}
		for range 2 {
			if a := <-answers; a.status != 200 || a.body != "whole" {
				t.Errorf("a request in flight: %+v", a)
			}
		}
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d < 12*time.Second || d > 13*time.Second { // the second call ends at 4 s + 8 s
			t.Errorf("stopped after %v", d)
		}
		if a := w.get(w.client(trusted), "http://admin.test:80/readyz"); a.err == nil {
			t.Errorf("the admin port is still there: %+v", a)
		}
	})
}

func TestStopCutsWhatDoesNotEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", hang)
		_, stop, done := w.server(draining + one("timeout: {enabled: false}", ""))
		answers := make(chan answer)
		go func() { answers <- w.get(w.client(stranger), "http://gateway.test:80/") }()
		synctest.Wait()
		began := time.Now()
		stop()
		if err := <-done; !errors.Is(err, ErrCut) {
			t.Errorf("Run: %v", err)
		}
		if d := time.Since(began); d != 15*time.Second {
			t.Errorf("stopped after %v", d)
		}
		if a := <-answers; a.status == 200 {
			t.Errorf("a request that was cut: %+v", a)
		}
	})
}

func TestStopWaitsForUpgradedConnections(t *testing.T) {
	for _, ends := range []bool{true, false} {
		inWorld(t, func(t *testing.T, w *world) {
			end := make(chan struct{})
			w.serve("up.test:80", echo(end))
			_, stop, done := w.server(draining + one("", ""))
			c, br, res := upgrade(t, w)
			defer c.Close()
			if res.StatusCode != 101 {
				t.Fatalf("answer %+v", res)
			}
			began := time.Now()
			stop()
			time.Sleep(7 * time.Second) // the listener is closed, the connection is not
			io.WriteString(c, "still here")
			if _, err := io.ReadFull(br, make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			if ends {
				close(end)
			} else {
				defer close(end)
			}
			err, took := <-done, time.Since(began)
			if ends && (err != nil || took > 8*time.Second) {
				t.Errorf("a connection that ended: %v after %v", err, took)
			}
			if !ends && (!errors.Is(err, ErrCut) || took != 15*time.Second) {
				t.Errorf("a connection that did not end: %v after %v", err, took)
			}
			if _, err := br.ReadByte(); err == nil {
				t.Error("the connection is still there")
			}
		})
	}
}

// A second SIGTERM was as nothing: an operator who would not wait for a stream of hours had only SIGKILL.
func TestHurryEndsTheDrain(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 7 * time.Second} { // in the delay and in the drain
		inWorld(t, func(t *testing.T, w *world) {
			w.serve("up.test:80", hang)
			path := filepath.Join(t.TempDir(), "access.log")
			s, stop, done := w.server("access_log: {path: " + path + "}\n" + draining + one("timeout: {enabled: false}", ""))
			go w.get(w.client(stranger), "http://gateway.test:80/")
			synctest.Wait()
			stop()
			time.Sleep(after)
			began := time.Now()
			s.Hurry()
			s.Hurry()
			if err := <-done; !errors.Is(err, ErrCut) || time.Since(began) > 0 {
				t.Errorf("Run: %v after %v", err, time.Since(began))
			}
			// It was not the client who went.
			for _, l := range logLines(t, path) {
				if l["error"] != "cut off" || l["reason"] != nil {
					t.Errorf("%v", l)
				}
			}
			if n := s.gateway.trafficOf(s.gateway.Targets()[0]).ClientAborts; n != 0 {
				t.Errorf("%d aborts of clients", n)
			}
		})
	}
}

func TestIdleServerStopsAtOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.serve("up.test:80", status(200))
		_, stop, done := w.server("drain: {timeout: 0s}\n" + one("", ""))
		w.get(w.client(stranger), "http://gateway.test:80/")
		synctest.Wait() // the connection is idle
		began := time.Now()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("stopped after %v", d)
		}
	})
}

func TestFailedPortEndsRun(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		s, stop, done := w.server(one("", ""))
		defer stop()
		synctest.Wait()
		s.frontPort.Close()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "gateway:") {
			t.Errorf("Run: %v", err)
		}
		if s.Ready() {
			t.Error("ready without a port")
		}
	})
}

// Real ports: what the system says of them, and that nothing is left open.
func TestListenOnRealPorts(t *testing.T) {
	f, err := config.Upstream("http://127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Listen(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	get := func(url string) int {
		t.Helper()
		res, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if code := get("http://" + s.AdminAddr().String() + "/readyz"); code != 200 {
		t.Errorf("/readyz %d", code)
	}
	if code := get("http://" + s.Addr().String() + "/"); code != 502 {
		t.Errorf("no upstream: %d", code)
	}

	taken := *f
	taken.Listen = s.Addr().String()
	if _, err := Listen(&taken, Options{}); err == nil || !strings.Contains(err.Error(), "listen: ") {
		t.Errorf("a port that is taken: %v", err)
	}
	taken = *f
	taken.Admin.Listen = s.Addr().String()
	if _, err := Listen(&taken, Options{}); err == nil || !strings.Contains(err.Error(), "admin.listen: ") {
		t.Errorf("an admin port that is taken: %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	taken = *f
	taken.Listen, taken.Admin.Listen = s.Addr().String(), s.AdminAddr().String()
	again, err := Listen(&taken, Options{})
	if err != nil {
		t.Fatalf("the ports are not free: %v", err)
	}
	again.Close()
	http.DefaultClient.CloseIdleConnections()
}

func TestNoAdminPort(t *testing.T) {
	f, err := config.Upstream("http://127.0.0.1:1", "127.0.0.1:0", "")
	if err != nil {
		t.Fatal(err)
	}
	f.Admin.Enabled = false
	s, err := Listen(f, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.AdminAddr() != nil {
		t.Errorf("admin port at %v", s.AdminAddr())
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestPanicIsLoggedAsAFault(t *testing.T) {
	var text bytes.Buffer
	w := faultWriter{slog.New(slog.NewTextHandler(&text, nil))}
	w.Write([]byte("http: TLS handshake error from 192.0.2.1:1: EOF\n"))
	if text.Len() != 0 {
		t.Errorf("a client's fault in the log: %s", text.String())
	}
	w.Write([]byte("http: panic serving 192.0.2.1:1: boom\ngoroutine 1\n"))
	if !strings.Contains(text.String(), "level=ERROR") || !strings.Contains(text.String(), "boom") {
		t.Errorf("a panic is not in the log: %s", text.String())
	}
}
