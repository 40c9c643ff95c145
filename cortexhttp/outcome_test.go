package cortexhttp

import (
	"net/http"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

var (
	neutral   = cortex.Class{Outcome: cortex.Neutral}
	good      = cortex.Class{Outcome: cortex.Success}
	failed    = cortex.Class{Outcome: cortex.Failed, Retryable: true}
	slow      = cortex.Class{Outcome: cortex.TimedOut, Retryable: true}
	throttled = cortex.Class{Outcome: cortex.Throttled, Retryable: true}
)

func hinted(c cortex.Class, d time.Duration) cortex.Class {
	c.RetryAfter = d
	return c
}

func TestClassOf(t *testing.T) {
	again := cortex.Class{Retryable: true}
	for _, c := range []struct {
		status int
		lines  []string
		want   cortex.Class
	}{
		{101, nil, good}, {200, nil, good}, {204, nil, good}, {206, nil, good}, {299, nil, good}, {301, nil, good}, {304, nil, good},
		{307, nil, good},
		{400, nil, neutral}, {401, nil, neutral}, {403, nil, neutral}, {404, nil, neutral}, {409, nil, neutral}, {410, nil, neutral},
		{421, nil, neutral}, {422, nil, neutral}, {499, nil, neutral},
		{404, []string{"Retry-After: 5"}, neutral},
		{408, nil, again}, {425, nil, again}, {408, []string{"Retry-After: 5"}, hinted(again, 5*time.Second)},
		{429, nil, throttled},
		{429, []string{"Retry-After: 5"}, hinted(throttled, 5*time.Second)},
		{429, []string{"RateLimit-Reset: 5"}, hinted(throttled, 5*time.Second)},
		{500, nil, failed}, {502, nil, failed}, {503, nil, failed}, {507, nil, failed}, {520, nil, failed}, {529, nil, failed},
		{599, nil, failed}, {504, nil, slow},
		{500, []string{"Retry-After: 5"}, hinted(failed, 5*time.Second)},
		{500, []string{"RateLimit-Reset: 5"}, failed}, // full quota is what refuses, not what breaks
		{503, []string{"RateLimit-Reset: 5"}, hinted(failed, 5*time.Second)},
		{501, nil, neutral}, {505, nil, neutral}, {506, nil, neutral}, {508, nil, neutral}, {510, nil, neutral},
		{0, nil, failed}, {-1, nil, failed}, {99, nil, failed}, {199, nil, failed}, {600, nil, failed}, {1000, nil, failed},
		// A guard below refuses.
		{503, []string{"Cortex-Reason: SHED_LOW_PRIORITY", "Retry-After: 2"}, hinted(throttled, 2*time.Second)},
		{503, []string{"Cortex-Reason: CIRCUIT_OPEN", "Retry-After: 2"}, cortex.Class{Outcome: cortex.Neutral, RetryAfter: 2 * time.Second}},
		{503, []string{"Cortex-Reason: CIRCUIT_OPEN_EMERGENCY"}, cortex.Class{Outcome: cortex.Neutral}},
		// It passes on what its target answered, or what it says is no reason.
		{503, []string{"Cortex-Reason: MAX_RETRIES_EXCEEDED"}, failed},
		{502, []string{"Cortex-Reason: CIRCUIT_OPEN"}, failed},
		{503, []string{"Cortex-Reason: circuit_open"}, failed},
		{503, []string{"Cortex-Reason: CIRCUIT_OPEN", "Cortex-Reason: CIRCUIT_OPEN"}, failed},
	} {
		got := ClassOf(&http.Response{StatusCode: c.status, Header: hdr(c.lines...)}, hintNow)
		if got != c.want {
			t.Errorf("%d %q: %+v, want %+v", c.status, c.lines, got, c.want)
		}
	}
}

// F18, gRPC: an answer about the request is not one about the target.
func TestClassOfGRPC(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  cortex.Class
	}{
		{[]string{"Grpc-Status: 0"}, good},
		{nil, good}, // the status is in the trailer
		{[]string{"Grpc-Status: 14"}, failed},
		{[]string{"Grpc-Status: 4"}, slow},
		{[]string{"Grpc-Status: 8"}, throttled},
		{[]string{"Grpc-Status: 2"}, cortex.Class{Outcome: cortex.Failed}},
		{[]string{"Grpc-Status: 13"}, cortex.Class{Outcome: cortex.Failed}},
		{[]string{"Grpc-Status: 15"}, cortex.Class{Outcome: cortex.Failed}},
		{[]string{"Grpc-Status: 1"}, neutral},
		{[]string{"Grpc-Status: 3"}, neutral},
		{[]string{"Grpc-Status: 5"}, neutral},
		{[]string{"Grpc-Status: 6"}, neutral},
		{[]string{"Grpc-Status: 11"}, neutral},
		{[]string{"Grpc-Status: 12"}, neutral},
		{[]string{"Grpc-Status: 999"}, neutral},
		{[]string{"Grpc-Status: 14", "Grpc-Retry-Pushback-Ms: 250"}, hinted(failed, 250*time.Millisecond)},
		{[]string{"Grpc-Status: 14", "Grpc-Retry-Pushback-Ms: -1"}, cortex.Class{Outcome: cortex.Failed}},
		{[]string{"Grpc-Status: 14", "Grpc-Retry-Pushback-Ms: x"}, cortex.Class{Outcome: cortex.Failed}},
		{[]string{"Grpc-Status: 14", "Grpc-Retry-Pushback-Ms: 99999999999999999999"}, hinted(failed, forever)},
	} {
		h := hdr(c.lines...)
		h.Set("Content-Type", "application/grpc+proto")
		if got := ClassOf(&http.Response{StatusCode: 200, Header: h}, hintNow); got != c.want {
			t.Errorf("%q: %+v, want %+v", c.lines, got, c.want)
		}
	}
	h := hdr("Content-Type: application/grpc", "Grpc-Status: 0")
	if got := ClassOf(&http.Response{StatusCode: 503, Header: h}, hintNow); got != failed {
		t.Errorf("HTTP status 503: %+v", got)
	}
}
