// Package decisions_test runs the snippets against a decision service, and against none.
package decisions_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/decision"
)

// service is a decision service, quick to retry.
func service(t *testing.T) (url string, r *cortex.Registry) {
	t.Helper()
	r = cortex.NewRegistry(func(string) cortex.Config {
		return cortex.Config{Backoff: backoff.Config{Base: 5 * time.Millisecond, Max: 20 * time.Millisecond}}
	}, 10)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := decision.NewServer(decision.New(decision.Config{Others: r}), nil)
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String(), r
}

func gone(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return "http://" + l.Addr().String()
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" && name != "java" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// upstream answers with each of the statuses in turn, and with 200 afterwards.
func upstream(t *testing.T, statuses ...int) (url string, calls *atomic.Int64) {
	calls = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n := int(calls.Add(1)); n <= len(statuses) {
			w.WriteHeader(statuses[n-1])
			return
		}
		fmt.Fprint(w, "good")
	}))
	t.Cleanup(s.Close)
	return s.URL, calls
}

func TestPython(t *testing.T) {
	t.Run("retries as it is told", func(t *testing.T) {
		guard, r := service(t)
		url, calls := upstream(t, 503, 429)
		out := run(t, "python3", "send.py", guard, "whatsapp", "5", url)
		e, _ := r.Engine("whatsapp")
		s := e.Stats()
		if !strings.HasPrefix(out, "sent after 2 retries: 4 bytes") || calls.Load() != 3 || s.Successes != 1 || s.Failures != 1 || s.Throttled != 1 || s.Retries != 2 {
			t.Errorf("%s%d calls, %+v", out, calls.Load(), s)
		}
		if n := e.Pressure().InFlight; n != 0 {
			t.Errorf("%d attempts are still in flight", n)
		}
	})
	t.Run("does not retry what is no use", func(t *testing.T) {
		guard, _ := service(t)
		url, calls := upstream(t, 400)
		if out := run(t, "python3", "send.py", guard, "whatsapp", "5", url); !strings.Contains(out, "NOT_RETRYABLE") || calls.Load() != 1 {
			t.Errorf("%s%d calls", out, calls.Load())
		}
	})
	t.Run("makes no call against the word of the guard", func(t *testing.T) {
		guard, r := service(t)
		e, _ := r.Engine("whatsapp")
		e.Force(breaker.ForcedOpen)
		url, calls := upstream(t)
		if out := run(t, "python3", "send.py", guard, "whatsapp", "5", url); !strings.Contains(out, "refused: CIRCUIT_OPEN, ask again in 10.0 s") || calls.Load() != 0 {
			t.Errorf("%s%d calls", out, calls.Load())
		}
	})
	t.Run("goes on by itself where there is no service", func(t *testing.T) {
		url, calls := upstream(t, 503)
		if out := run(t, "python3", "send.py", gone(t), "whatsapp", "5", url); !strings.HasPrefix(out, "sent after 1 retries") || calls.Load() != 2 {
			t.Errorf("%s%d calls", out, calls.Load())
		}
	})
	t.Run("without the service does not retry what must not be made twice", func(t *testing.T) {
		out := run(t, "python3", "-c", `
import cortex
guard = cortex.Guard("`+gone(t)+`")
for error in ({"http_status": 404}, {"http_status": 501}, {"http_status": 508}, {"grpc_code": 3}, {"class": "neutral"}, {"http_status": 503, "retryable": False},
              {"http_status": 429}, {"grpc_code": 14}, {"message": "timed out"}):
    print(guard.decide("whatsapp", 5, 0, error, 0.1).retry)
`)
		if got := strings.Fields(out); strings.Join(got, " ") != "False False False False False False True True True" {
			t.Error(got)
		}
	})
	t.Run("without the service retries the statuses that the library does", func(t *testing.T) {
		out := run(t, "python3", "-c", `
import cortex
guard = cortex.Guard("`+gone(t)+`")
print([s for s in range(400, 600) if guard.decide("whatsapp", 5, 0, {"http_status": s}, 0.1).retry])
`)
		var want []int
		for s := 400; s < 600; s++ {
			if cortexhttp.ClassOf(&http.Response{StatusCode: s, Header: http.Header{}}, time.Now()).Retryable {
				want = append(want, s)
			}
		}
		if got := strings.ReplaceAll(strings.TrimSpace(out), ",", ""); got != fmt.Sprint(want) {
			t.Errorf("%s, want %v", got, want)
		}
	})
	t.Run("without the service takes no Retry-After for a number that is none", func(t *testing.T) {
		out := run(t, "python3", "-c", `
import cortex
guard = cortex.Guard("`+gone(t)+`", base=0.0)
for said in ("2", "\u00b2", "9" * 5000, "-1", "soon"):
    print(guard.decide("whatsapp", 5, 0, {"http_status": 503}, 0.1, retry_after=said).delay)
`)
		if got := strings.Fields(out); strings.Join(got, " ") != "2.0 0.0 0.0 0.0 0.0" {
			t.Error(got)
		}
	})
	t.Run("tells of an error whatever its target wrote", func(t *testing.T) {
		guard, r := service(t)
		out := run(t, "python3", "-c", `
import cortex
print(cortex.Guard("`+guard+`").decide("whatsapp", 5, 0, {"message": "€" * 5000}, 0.1, retry_after="soon" * 500).retry)
print(cortex.Guard("`+guard+`").decide("whatsapp", 5, 0, {"message": "cut off: \ud83d"}, 0.1).retry)
print(cortex.Guard("`+guard+`").decide("whatsapp", 5, 0, {"http_status": 302}, 0.1).retry)
`)
		e, _ := r.Engine("whatsapp")
		if s := e.Stats(); strings.Join(strings.Fields(out), " ") != "True True False" || s.Failures != 2 || s.Neutral != 1 {
			t.Errorf("%s%+v", out, s)
		}
	})
	t.Run("tells of successes without a token", func(t *testing.T) {
		guard, r := service(t)
		run(t, "python3", "-c", `
import cortex
away = cortex.Guard("`+gone(t)+`").admit("whatsapp", 9, 1)
cortex.Guard("`+guard+`").report(away, "success", 0.1)
cortex.Guard("`+guard+`").report(cortex.Admission(False, 0.0), "success", 0.1)
`)
		e, _ := r.Engine("whatsapp")
		if s := e.Stats(); s.Successes != 1 || s.Calls != 0 {
			t.Errorf("%+v", s)
		}
	})
	t.Run("goes on by itself where an answer is cut off", func(t *testing.T) {
		cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.Write([]byte(`{"allowed":`))
		}))
		t.Cleanup(cut.Close)
		url, calls := upstream(t)
		if out := run(t, "python3", "send.py", cut.URL, "whatsapp", "5", url); !strings.HasPrefix(out, "sent after 0 retries") || calls.Load() != 1 {
			t.Errorf("%s%d calls", out, calls.Load())
		}
	})
	t.Run("goes on by itself where it is not let in, and says so", func(t *testing.T) {
		r := cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 10)
		s := httptest.NewServer(decision.New(decision.Config{Others: r, Token: func() string { return "0123456789abcdef" }}))
		defer s.Close()
		out := run(t, "python3", "-c", `
import cortex, warnings
with warnings.catch_warnings(record=True) as told:
    print(cortex.Guard("`+s.URL+`", token="another").admit("whatsapp", 5).allowed, *[w.message for w in told])
`)
		if !strings.HasPrefix(out, "True CORTEX does not let this program in") || r.Len() != 0 {
			t.Error(out)
		}
	})
	t.Run("says what it did wrong", func(t *testing.T) {
		guard, _ := service(t)
		out := run(t, "python3", "-c", `
import cortex
try:
    cortex.Guard("`+guard+`").admit("no such name", 5)
except cortex.Refused as e:
    print(e)
`)
		if !strings.Contains(out, "target:") || !strings.Contains(out, "not a name") {
			t.Error(out)
		}
	})
}

func TestJava(t *testing.T) {
	guard, _ := service(t)
	if out := run(t, "java", "Decide.java", guard, "whatsapp", "5"); !strings.HasPrefix(out, "again in ") {
		t.Error(out)
	}
	for status, want := range map[string]string{"425": "again in ", "501": "not again"} {
		if out := run(t, "java", "Decide.java", gone(t), "whatsapp", "5", status); !strings.HasPrefix(out, want) {
			t.Errorf("%s: %s", status, out)
		}
	}
}

func TestCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
			t.Fatal("curl is not installed")
		}
		t.Skip("curl is not installed")
	}
	guard, r := service(t)
	out := run(t, "sh", "curl.sh", guard)
	e, _ := r.Engine("whatsapp")
	if s := e.Stats(); s.Successes != 1 || s.Throttled != 1 || strings.Count(out, "\n") != 4 || !strings.Contains(out, `"in_flight":`) {
		t.Errorf("%s%+v", out, s)
	}
}
