package cortexhttp

import (
	"context"
	"errors"
	"io"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// plainInteger is the number that s writes in the one way there is, however large; an oracle of another kind than the parsers.
func plainInteger(s string) (*big.Int, bool) {
	n, ok := new(big.Int).SetString(s, 10)
	return n, ok && n.String() == strings.Replace(s, "-0", "0", 1) // their minus is no part of the number
}

func FuzzParsePriority(f *testing.F) {
	for _, s := range []string{"0", "10", "-1", "-0", "+1", "007", "1_000", "9223372036854775808", " 1", "1\x00", "٣"} {
		f.Add(s, 10)
	}
	f.Add("1", -1)
	f.Fuzz(func(t *testing.T, s string, levels int) {
		got, ok := ParsePriority(s, levels)
		n, want := plainInteger(s)
		if ok != want {
			t.Fatalf("%q: ok is %t", s, ok)
		}
		if !ok {
			n = new(big.Int)
		}
		most := big.NewInt(int64(min(max(levels, 0), math.MaxInt32)))
		if n.Cmp(most) > 0 {
			n = most
		}
		if n.Sign() < 0 {
			n = new(big.Int)
		}
		if levels <= math.MaxInt32 && int64(got) != n.Int64() {
			t.Fatalf("%q of %d levels: %d, want %v", s, levels, got, n)
		}
	})
}

func FuzzCallerTimeout(f *testing.F) {
	for _, s := range []string{"0", "250", "-1", "1.5", "2147483648", "99999999999999999999", "1e3", "", "00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := CallerTimeout(http.Header{HeaderTimeout: {s}})
		n, want := plainInteger(s)
		if ok != want {
			t.Fatalf("%q: ok is %t", s, ok)
		}
		if !ok || n.Sign() < 0 {
			n = new(big.Int)
		}
		if most := big.NewInt(math.MaxInt32); n.Cmp(most) > 0 {
			n = most
		}
		if got != time.Duration(n.Int64())*time.Millisecond {
			t.Fatalf("%q: %v, want %v ms", s, got, n)
		}
		if _, ok := CallerTimeout(http.Header{HeaderTimeout: {s, s}}); ok {
			t.Fatalf("%q, twice", s)
		}
	})
}

// Whatever a target answers, a call ends, within its attempts, and leaves nothing behind.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "", "", "", "", "", "")
	f.Add(503, "CIRCUIT_OPEN", "no", "static", "14", "120", "0.9;q=0.9;shed=0.9;state=EMERGENCY")
	f.Add(200, "SHED_LOW_PRIORITY", "NO ", "cache;age=-1", "99999999999", "Sun, 06 Nov 1994 08:49:37 GMT", "1")
	f.Add(429, "\x00", "yes", "", "-1", "-1", "\xff")
	f.Add(101, "", "", "", "0", "", "")
	f.Add(-1, "", "", "", "", "9223372036854775808", "")
	f.Fuzz(func(t *testing.T, status int, reason, retry, fallback, grpcStatus, after, pressure string) {
		header := http.Header{}
		for key, v := range map[string]string{HeaderReason: reason, HeaderRetry: retry, HeaderFallback: fallback, "Grpc-Status": grpcStatus,
			"Retry-After": after, HeaderPressure: pressure} {
			if v != "" {
				header[key] = []string{v}
			}
		}
		if grpcStatus != "" {
			header["Content-Type"] = []string{"application/grpc"}
		}
		answer := func() *http.Response {
			return &http.Response{StatusCode: status, Header: header.Clone(), Body: io.NopCloser(strings.NewReader("body"))}
		}
		c := ClassOf(answer(), hintNow)
		if c.RetryAfter < 0 || strings.Contains(c.Outcome.String(), "(") {
			t.Fatalf("%+v", c)
		}
		told := 0
		e := clientEngine(t, func(c *cortex.Config) { c.MaxRetries = 2 })
		tr, err := NewTransport(TransportConfig{Engine: e, Base: roundTripper(func(*http.Request) (*http.Response, error) { return answer(), nil }),
			OnAttempt: func(AttemptResult) { told++ }, Now: func() time.Time { return hintNow }})
		if err != nil {
			t.Fatal(err)
		}
		var rep Report
		ctx := WithReport(t.Context(), &rep)
		if after != "" { // a hint may be long: no call waits for it that has no time
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
		}
		resp, err := tr.RoundTrip(httptest.NewRequestWithContext(ctx, "GET", "http://target/", nil))
		if _, dropped := errors.AsType[*StatusError](err); dropped && errors.Is(err, cortex.ErrShed) {
			return // the pressure that was reported refused the retry that the answer was dropped for
		}
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "body" && !bodyless("GET", resp) || resp.StatusCode != status {
			t.Fatalf("%d %q, %v", resp.StatusCode, body, err)
		}
		resp.Body.Close()
		if rep.Attempts < 1 || rep.Attempts > 3 || told != rep.Attempts || e.Pressure().InFlight != 0 {
			t.Fatalf("%+v, told of %d, %d in flight", rep, told, e.Pressure().InFlight)
		}
		if rep.Attempts > 1 && strings.EqualFold(strings.TrimSpace(retry), "no") {
			t.Fatalf("tried again against %s", HeaderRetry)
		}
	})
}
