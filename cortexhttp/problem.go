package cortexhttp

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// ProblemTypes is the base of the URIs that say what kind a problem is: the reason follows in lower case, "circuit-open".
const ProblemTypes = "https://github.com/seed-a29ca62a/cortex#"

// Problem is the body of an answer that a guard gives in the target's stead, in the form of RFC 9457
// (application/problem+json). The members beyond the RFC's are CORTEX's own.
type Problem struct {
	Type     string `json:"type"`               // URI of the kind of problem; empty = by Reason under ProblemTypes, else about:blank
	Title    string `json:"title"`              // the kind in words; empty = by Reason, else the status's
	Status   int    `json:"status"`             // the HTTP status, 400 to 599; anything else means 500
	Detail   string `json:"detail,omitempty"`   // this occurrence in words
	Instance string `json:"instance,omitempty"` // URI of this occurrence

	Reason       string `json:"reason,omitempty"`         // name of the cortex.Reason
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"` // when it is worth asking again; 0 = nothing said
	Attempts     int    `json:"attempts,omitempty"`       // made at the target; 0 = none, or not told

	// Readings are what the guard saw, as members of the problem itself; nil leaves them out.
	*Readings
}

// Readings are the numbers behind a refusal. Scores and signals are in [0,1], to four places.
type Readings struct {
	Target   string          `json:"target,omitempty"`
	Priority cortex.Priority `json:"priority"`
	Floor    cortex.Priority `json:"floor"` // calls of a priority below it are shed
	CPS      float64         `json:"cps"`
	Evidence float64         `json:"evidence"` // the score without the circuit's own part
	State    string          `json:"state"`    // name of the cortex.State
	Circuit  string          `json:"circuit"`  // closed, half-open or open
	Signals  cortex.Signals  `json:"signals"`
}

// RejectionProblem is the problem that a refusal is answered with: 503, with the reason, the score and the signals.
func RejectionProblem(rej *cortex.Rejection) Problem {
	if rej == nil {
		return Problem{Status: http.StatusServiceUnavailable, RetryAfterMS: 1}
	}
	return Problem{
		Status:       http.StatusServiceUnavailable,
		Detail:       rejectionDetail(rej),
		Reason:       rej.Reason.String(),
		RetryAfterMS: max(1, roundUp(rej.RetryAfter, time.Millisecond)),
		Readings: &Readings{
			Target: rej.Target, Priority: rej.Priority, Floor: rej.Floor, CPS: rej.CPS, Evidence: rej.Evidence,
			State: cortex.StateOf(rej.CPS).String(), Circuit: rej.Circuit.String(),
			Signals: rej.Signals,
		},
	}
}

func rejectionDetail(rej *cortex.Rejection) string {
	switch {
	case rej.Reason == cortex.ReasonShed && rej.Priority < rej.Floor:
		return fmt.Sprintf("Calls of a priority below %d are shed at the moment; this one has %d.", rej.Floor, rej.Priority)
	case rej.Reason == cortex.ReasonShed:
		return fmt.Sprintf("A part of the calls of priority %d is shed at the moment.", rej.Priority)
	case rej.Reason == cortex.ReasonCircuitOpen && rej.Forced:
		return "An operator has forced the circuit open."
	case rej.Reason == cortex.ReasonCircuitOpen:
		return "Nothing but probes is let through until one of them succeeds."
	case rej.Reason == cortex.ReasonCircuitEmergency:
		return fmt.Sprintf("The pressure of %.4f opened the circuit.", rej.CPS)
	}
	return ""
}

// WriteRejection answers a request that a guard refused: 503 with the problem of [RejectionProblem], Retry-After in whole
// seconds rounded up, at least 1, and [HeaderReason], which tells this 503 from one of the target. The answer must not be
// stored. Nothing is read of the request's body, so that a client that asked with Expect: 100-continue need not send it.
func WriteRejection(w http.ResponseWriter, r *http.Request, rej *cortex.Rejection) {
	WriteProblem(w, r, RejectionProblem(rej))
}

// WriteProblem answers a request with a problem, on which HeaderReason and Retry-After are set where it has a reason and a
// time. HEAD gets the same header without the body. What was set of Content-Encoding, Content-Range, ETag and Last-Modified,
// which described another body, is taken back.
func WriteProblem(w http.ResponseWriter, r *http.Request, p Problem) {
	problemAnswer(p).write(w, r)
}

// answer is a problem ready to be sent.
type answer struct {
	status     int
	reason     string
	retryAfter string
	length     string
	body       []byte
}

func problemAnswer(p Problem) *answer {
	if p.Status < 400 || p.Status > 599 {
		p.Status = http.StatusInternalServerError
	}
	if p.Type == "" {
		p.Type = problemType(ProblemTypes, p.Reason)
	}
	if p.Title == "" {
		p.Title = problemTitle(p.Reason, p.Status)
	}
	if p.Readings != nil {
		seen := *p.Readings
		seen.CPS, seen.Evidence = places4(seen.CPS), places4(seen.Evidence)
		s := &seen.Signals
		s.F, s.L, s.Q, s.B, s.C = places4(s.F), places4(s.L), places4(s.Q), places4(s.B), places4(s.C)
		p.Readings = &seen
	}
	a := &answer{status: p.Status, reason: p.Reason}
	if p.RetryAfterMS > 0 {
		a.retryAfter = strconv.FormatInt((p.RetryAfterMS-1)/1000+1, 10)
	}
	body, err := json.Marshal(p)
	if err != nil { // not with numbers made finite above; the status alone says enough to be acted on
		body = []byte("{}")
	}
	a.body = append(body, '\n')
	a.length = strconv.Itoa(len(a.body))
	return a
}

func (a *answer) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	for _, key := range [...]string{"Content-Encoding", "Content-Range", "Etag", "Last-Modified"} {
		delete(h, key)
	}
	lines := [...]struct{ key, value string }{
		{"Content-Type", "application/problem+json"}, {"Content-Length", a.length}, {"Cache-Control", "no-store"},
		{"X-Content-Type-Options", "nosniff"}, {HeaderReason, a.reason}, {"Retry-After", a.retryAfter},
	}
	values := make([]string, len(lines)) // in one piece: a storm of refusals must be cheap
	for i, l := range lines {
		if l.value != "" {
			values[i] = l.value
			h[l.key] = values[i : i+1 : i+1]
		}
	}
	w.WriteHeader(a.status)
	if r == nil || r.Method != http.MethodHead {
		w.Write(a.body) // the client may be gone; there is nobody else to tell
	}
}

func problemType(base, reason string) string {
	if reason == "" {
		return "about:blank" // RFC 9457, 4.2.1: no more than the status says
	}
	return base + strings.ToLower(strings.ReplaceAll(reason, "_", "-"))
}

var titles = map[string]string{
	cortex.ReasonNotRetryable.String():     "The call failed and a retry cannot mend it",
	cortex.ReasonRetriedAbove.String():     "The call failed and a layer above retries it",
	cortex.ReasonDoNotRetry.String():       "The call failed and must not be retried",
	cortex.ReasonMaxRetries.String():       "The call failed as often as it may be tried",
	cortex.ReasonCircuitEmergency.String(): "The circuit was opened by pressure",
	cortex.ReasonCircuitOpen.String():      "The circuit is open",
	cortex.ReasonShed.String():             "Shed under pressure",
	cortex.ReasonBudget.String():           "The call failed and the retry budget is spent",
	cortex.ReasonDeadline.String():         "Too late for the caller's deadline",
	cortex.ReasonCancelled.String():        "The caller gave up",
}

func problemTitle(reason string, status int) string {
	if t, ok := titles[reason]; ok {
		return t
	}
	if t := http.StatusText(status); t != "" {
		return t
	}
	return "Error"
}

// places4 makes v a finite number of [0,1] with four places: more of them say nothing.
func places4(v float64) float64 { return math.Round(share(v)*1e4) / 1e4 }

// roundUp is d in whole units, rounded up; 0 for what is not positive.
func roundUp(d, unit time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/unit) + 1
}
