package decision

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// Reasons for which a report does not count.
const (
	tokenUnknown = "TOKEN_UNKNOWN"
	stale        = "STALE"
)

// Admit asks for one attempt.
func (s *service) Admit(ctx context.Context, r *pb.AdmitRequest) (*pb.AdmitResponse, error) {
	p, err := priority("priority", r.Priority)
	if err != nil {
		return nil, err
	}
	n, err := within("attempt", r.Attempt, 0, maxAttempt)
	if err != nil {
		return nil, err
	}
	deadline, err := millis("deadline_ms", r.DeadlineMs, 1)
	if err != nil {
		return nil, err
	}
	e, err := s.engine("target", r.Target)
	if err != nil {
		return nil, err
	}
	if deadline > 0 && n == 0 {
		e.ObserveDeadline(deadline)
	}
	s.tokens.expire(s.Now()) // before, for what is forgotten must not have this one refused
	a := &attempt{target: *r.Target}
	if s.Others != nil && s.Others.Lookup(a.target) == e {
		a.engine = e
	}
	// Not under the request's context: that ends with the answer, long before the attempt.
	if a.permit, err = e.AdmitRetry(context.Background(), p, n); err != nil {
		rej, ok := err.(*cortex.Rejection)
		if !ok {
			return nil, err
		}
		return &pb.AdmitResponse{Reason: rej.Reason.String(), Floor: int32(rej.Floor), Cps: places4(rej.CPS), RetryAfterMs: toMS(rej.RetryAfter),
			Circuit: rej.Circuit.String()}, nil
	}
	seen := e.Pressure()
	timeout := a.permit.Timeout()
	if deadline > 0 && (timeout == 0 || deadline < timeout) {
		timeout = deadline
	}
	out := &pb.AdmitResponse{Allowed: true, Floor: int32(seen.Floor), Cps: places4(seen.CPS), TimeoutMs: toMS(timeout), Circuit: seen.Circuit.String()}
	life := e.Config().PermitLife
	switch {
	case ctx.Err() != nil: // nobody will make it
		a.permit.Release()
		return nil, ctx.Err()
	case !s.tokens.add(a, s.Now(), timeout, life):
		a.permit.Release() // it is reported by target, if at all
	default:
		out.Token, out.TokenLifeMs = a.id.String(), toMS(life)
	}
	return out, nil
}

// A report is one that was found good.
type report struct {
	id       tokenID
	engine   *cortex.Engine // nil: by the token
	priority cortex.Priority
	attempt  int
	outcome  cortex.Outcome
	latency  time.Duration
	measured bool // the latency was given
}

// Report tells of one outcome.
func (s *service) Report(_ context.Context, r *pb.ReportRequest) (*pb.ReportResponse, error) {
	good, err := s.check("", r)
	if err != nil {
		return nil, err
	}
	out := new(pb.ReportResponse)
	out.Counted, out.Reason = s.book(good)
	return out, nil
}

// ReportBatch tells of many.
func (s *service) ReportBatch(_ context.Context, r *pb.ReportBatchRequest) (*pb.ReportBatchResponse, error) {
	if n := len(r.Reports); n == 0 || n > maxReports {
		return nil, invalid("reports", "%d of them: want from 1 to %d", n, maxReports)
	}
	good := make([]report, len(r.Reports))
	for i, one := range r.Reports {
		var err error
		if good[i], err = s.check("", one); err == nil {
			continue
		}
		// The names are for the message only: once more, with them. By now a reload may have brought the target.
		if good[i], err = s.check(fmt.Sprintf("reports[%d].", i), one); err != nil {
			return nil, err
		}
	}
	out := &pb.ReportBatchResponse{Results: make([]*pb.ReportResponse, len(good))}
	results := make([]pb.ReportResponse, len(good)) // at once
	for i := range good {
		out.Results[i] = &results[i]
		if results[i].Counted, results[i].Reason = s.book(good[i]); results[i].Counted {
			out.Counted++
		}
	}
	return out, nil
}

// check reads a report; in is what the names of its fields begin with.
func (s *service) check(in string, r *pb.ReportRequest) (out report, err error) {
	if r == nil {
		return out, invalid(strings.TrimSuffix(in, "."), "missing: want a report")
	}
	if out.outcome, err = outcome(in+"outcome", r.Outcome, outcomes); err != nil {
		return out, err
	}
	if out.latency, out.measured, err = latency(in+"latency_ms", r.LatencyMs); err != nil {
		return out, err
	}
	switch {
	case r.Token != nil && r.Target != nil:
		return out, invalid(in+"target", "given together with token: want one of them")
	case r.Token != nil && (r.Priority != nil || r.Attempt != nil):
		return out, invalid(in+"priority", "or attempt given together with token, which knows them: want them with target only")
	case r.Token != nil:
		out.id, err = token(in+"token", *r.Token)
		return out, err
	case r.Target == nil:
		return out, invalid(in+"token", "missing: want a token of Admit's, or the target of an attempt that was made without asking")
	case !out.measured:
		return out, invalid(in+"latency_ms", "missing: want how long the attempt took")
	}
	if out.attempt, err = within(in+"attempt", r.Attempt, 0, maxAttempt); err != nil {
		return out, err
	}
	p := cortex.Priority(-1)
	if r.Priority != nil {
		if p, err = priority(in+"priority", r.Priority); err != nil {
			return out, err
		}
	}
	if out.engine, err = s.engine(in+"target", r.Target); err != nil {
		return out, err
	}
	if out.priority = p; p < 0 {
		out.priority = cortex.Priority(out.engine.Config().Levels / 2)
	}
	return out, nil
}

// book takes in a report, and tells whether it counted and if not, why.
func (s *service) book(r report) (counted bool, reason string) {
	if r.engine != nil {
		counted = r.engine.Observe(r.priority, r.attempt, r.outcome, r.latency)
	} else {
		a := s.tokens.take(r.id, s.Now())
		if a == nil {
			return false, tokenUnknown
		}
		if r.measured {
			counted = a.permit.RecordTook(r.outcome, r.latency)
		} else {
			counted = a.permit.Record(r.outcome)
		}
	}
	if !counted {
		return false, stale
	}
	return true, ""
}

// Decide runs the five checks on a failed attempt, after it has recorded it.
func (s *service) Decide(_ context.Context, r *pb.DecideRequest) (*pb.DecideResponse, error) {
	f, err := failure(r)
	if err != nil {
		return nil, err
	}
	took, measured, err := latency("latency_ms", r.LatencyMs)
	if err != nil {
		return nil, err
	}
	if !measured && r.Token == nil && !r.GetRecorded() {
		return nil, invalid("latency_ms", "missing: want how long the attempt took, for the failure is recorded with it")
	}
	failed := report{outcome: f.Class.Outcome, priority: f.Priority, attempt: f.Attempt, latency: took, measured: measured}
	if r.Token != nil {
		if r.GetRecorded() {
			return nil, invalid("recorded", "given together with token: want one of them; a token that was reported is harmless")
		}
		if failed.id, err = token("token", *r.Token); err != nil {
			return nil, err
		}
	}
	e, err := s.engine("target", r.Target)
	if err != nil {
		return nil, err
	}
	counted := false
	switch {
	case r.GetRecorded():
	case r.Token != nil:
		if a := s.tokens.find(failed.id); a != nil && a.target != *r.Target {
			return nil, invalid("token", "of another target: want the target that the attempt was admitted for")
		}
		counted, _ = s.book(failed)
	default:
		failed.engine = e
		counted, _ = s.book(failed)
	}
	d := e.Decide(f)
	return &pb.DecideResponse{Retry: d.Retry, DelayMs: toMS(d.Delay), Reason: d.Reason.String(), Cps: places4(d.CPS), Signals: signals(d.Signals),
		Evidence: places4(d.Evidence), State: d.State.String(), Circuit: d.Circuit.String(), Floor: int32(d.Floor), Tokens: places4(d.Tokens),
		Price: places4(d.Price), Counted: counted, Outcome: f.Class.Outcome.String()}, nil
}

// failure is what the engine is asked about.
func failure(r *pb.DecideRequest) (f cortex.Failure, err error) {
	if f.Priority, err = priority("priority", r.Priority); err != nil {
		return f, err
	}
	if r.Attempt == nil {
		return f, invalid("attempt", "missing: want the number of the attempt that failed; 0 is the original")
	}
	if f.Attempt, err = within("attempt", r.Attempt, 0, maxAttempt); err != nil {
		return f, err
	}
	if f.Class, err = classOf(r.Error); err != nil {
		return f, err
	}
	hint, err := millis("retry_after_ms", r.RetryAfterMs, 0)
	if err != nil {
		return f, err
	}
	f.Class.RetryAfter = hint
	if r.RetryAfter != nil && len(*r.RetryAfter) <= maxRetryAfter { // the target wrote it, and not the client: what is too long is no mistake of its
		said, _ := cortexhttp.RetryAfter(http.Header{"Retry-After": {*r.RetryAfter}}, time.Now())
		f.Class.RetryAfter = max(hint, said)
	}
	if f.Deadline, err = millis("deadline_ms", r.DeadlineMs, 1); err != nil {
		return f, err
	}
	if f.Previous, err = millis("previous_delay_ms", r.PreviousDelayMs, 0); err != nil {
		return f, err
	}
	if f.MaxRetries, err = within("max_retries", r.MaxRetries, 0, maxAttempt); err != nil {
		return f, err
	}
	f.NoRetries = r.MaxRetries != nil && *r.MaxRetries == 0
	return f, nil
}

// classOf is what an error says, by the rules of the integrations for HTTP and gRPC.
func classOf(e *pb.Error) (c cortex.Class, err error) {
	if e == nil {
		return c, invalid("error", "missing: want what the attempt failed with, such as {\"http_status\": 503}")
	}
	given := 0
	for _, there := range [...]bool{e.HttpStatus != nil, e.GrpcCode != nil, e.Class != nil} {
		if there {
			given++
		}
	}
	if err := text("error.message", e.GetMessage(), 4096); err != nil {
		return c, err
	}
	switch {
	case given > 1:
		return c, invalid("error", "more than one of http_status, grpc_code and class: want one")
	case e.HttpStatus != nil:
		status, err := within("error.http_status", e.HttpStatus, 400, 599)
		if err != nil {
			return c, err
		}
		c = cortexhttp.ClassOf(&http.Response{StatusCode: status}, time.Time{})
	case e.GrpcCode != nil:
		code, err := within("error.grpc_code", e.GrpcCode, 1, 16)
		if err != nil {
			return c, err
		}
		c = cortexhttp.ClassOf(&http.Response{StatusCode: http.StatusOK, Header: http.Header{
			"Content-Type": {"application/grpc"}, "Grpc-Status": {strconv.Itoa(code)}}}, time.Time{})
	case e.Class != nil:
		if c.Outcome, err = outcome("error.class", e.Class, outcomes[1:]); err != nil {
			return c, err
		}
		c.Retryable = c.Outcome != cortex.Neutral
	case e.Message != nil:
		c = cortex.Class{Outcome: cortex.Failed, Retryable: true}
		said := strings.ToLower(*e.Message)
		for _, words := range [...]string{"timeout", "timed out", "deadline exceeded"} {
			if strings.Contains(said, words) {
				c.Outcome = cortex.TimedOut
			}
		}
	default:
		return c, invalid("error", "nothing in it: want one of http_status, grpc_code, class and message")
	}
	c.Retryable = c.Retryable && (e.Retryable == nil || *e.Retryable)
	return c, nil
}
