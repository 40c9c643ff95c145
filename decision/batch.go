package decision

import (
	"bytes"
	"strconv"

	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// A batch of 1,000 in JSON is by far the longest piece of work that a client can give the service, and what the package for JSON makes of it
// takes most of that: the decisions of others wait for it. So batches as programs write them are read and answered here, and in no
// more than a few allocations. What is unusual in any way is left to the package, mistakes too, so that there is one judge of what is
// valid and one set of words.

// readReports fills a batch that is empty; false: the body is not as usual, and what is in the batch is of no use.
func readReports(body []byte, batch *pb.ReportBatchRequest) bool {
	s := scanner{b: body}
	if !s.eat('{') || !s.key("reports") || !s.eat('[') {
		return false
	}
	// Each with room for what its fields point to.
	type place struct {
		pb.ReportRequest
		token, target, outcome string
		latency                float64
		priority, attempt      int32
	}
	most := min(bytes.Count(body, []byte{'{'})-1, maxReports)
	places := make([]place, most)
	batch.Reports = make([]*pb.ReportRequest, 0, most)
	target := ""
	for {
		if len(batch.Reports) == most || !s.eat('{') {
			return false
		}
		p := &places[len(batch.Reports)]
		r := &p.ReportRequest
		for {
			name, ok := s.text()
			if !ok || !s.eat(':') {
				return false
			}
			var twice bool
			switch string(name) {
			case "token":
				twice, r.Token = r.Token != nil, &p.token
				p.token, ok = s.string("")
			case "target":
				twice, r.Target = r.Target != nil, &p.target
				p.target, ok = s.string(target)
				target = p.target
			case "outcome":
				twice, r.Outcome = r.Outcome != nil, &p.outcome
				p.outcome, ok = s.outcome()
			case "latency_ms":
				twice, r.LatencyMs = r.LatencyMs != nil, &p.latency
				p.latency, ok = s.float()
			case "priority":
				twice, r.Priority = r.Priority != nil, &p.priority
				p.priority, ok = s.int()
			case "attempt":
				twice, r.Attempt = r.Attempt != nil, &p.attempt
				p.attempt, ok = s.int()
			default:
				return false
			}
			if !ok || twice {
				return false
			}
			if !s.eat(',') {
				break
			}
		}
		if !s.eat('}') {
			return false
		}
		batch.Reports = append(batch.Reports, r)
		if !s.eat(',') {
			break
		}
	}
	return s.eat(']') && s.eat('}') && s.end()
}

// appendResults writes the answer to a batch; false: something in it is not as usual, and nothing was written.
func appendResults(b []byte, m *pb.ReportBatchResponse) ([]byte, bool) {
	for _, r := range m.Results {
		if r == nil || r.Reason != "" && r.Reason != stale && r.Reason != tokenUnknown {
			return b, false
		}
	}
	b = strconv.AppendInt(append(b, `{"counted":`...), int64(m.Counted), 10)
	b = append(b, `,"results":[`...)
	for i, r := range m.Results {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendBool(append(b, `{"counted":`...), r.Counted)
		b = append(append(append(b, `,"reason":"`...), r.Reason...), `"}`...)
	}
	return append(b, ']', '}'), true
}

// A scanner reads JSON as programs write it: texts of ASCII without escapes, whole numbers without an exponent.
type scanner struct {
	b []byte // what is left
}

func (s *scanner) space() {
	for len(s.b) > 0 && (s.b[0] == ' ' || s.b[0] == '\n' || s.b[0] == '\t' || s.b[0] == '\r') {
		s.b = s.b[1:]
	}
}

func (s *scanner) end() bool {
	s.space()
	return len(s.b) == 0
}

// eat takes one character, if it is the next.
func (s *scanner) eat(c byte) bool {
	s.space()
	if len(s.b) == 0 || s.b[0] != c {
		return false
	}
	s.b = s.b[1:]
	return true
}

// key takes the name of a field and the colon behind it.
func (s *scanner) key(name string) bool {
	got, ok := s.text()
	return ok && string(got) == name && s.eat(':')
}

// text is valid until the body is used again.
func (s *scanner) text() ([]byte, bool) {
	if !s.eat('"') {
		return nil, false
	}
	for i, c := range s.b {
		switch {
		case c == '"':
			t := s.b[:i]
			s.b = s.b[i+1:]
			return t, true
		case c < ' ' || c > '~' || c == '\\':
			return nil, false
		}
	}
	return nil, false
}

// string is a text of its own. usual is one that it probably is.
func (s *scanner) string(usual string) (string, bool) {
	t, ok := s.text()
	if string(t) == usual {
		return usual, ok
	}
	return string(t), ok
}

func (s *scanner) outcome() (string, bool) {
	t, ok := s.text()
	for _, o := range outcomes {
		if string(t) == o.String() {
			return o.String(), ok
		}
	}
	return string(t), ok
}

// digits takes as many as there are; false: none.
func (s *scanner) digits() bool {
	n := 0
	for n < len(s.b) && s.b[n] >= '0' && s.b[n] <= '9' {
		n++
	}
	s.b = s.b[n:]
	return n > 0
}

// number takes a number of JSON, such as -12.5, without an exponent.
func (s *scanner) number() ([]byte, bool) {
	s.space()
	from := s.b
	if len(s.b) > 0 && s.b[0] == '-' {
		s.b = s.b[1:]
	}
	zero := len(s.b) > 0 && s.b[0] == '0'
	before := len(s.b)
	if !s.digits() || zero && before-len(s.b) > 1 {
		return nil, false
	}
	if len(s.b) > 0 && s.b[0] == '.' {
		if s.b = s.b[1:]; !s.digits() {
			return nil, false
		}
	}
	return from[:len(from)-len(s.b)], true
}

func (s *scanner) float() (float64, bool) {
	n, ok := s.number()
	if !ok || len(n) > 30 {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(n), 64)
	return f, err == nil
}

func (s *scanner) int() (int32, bool) {
	n, ok := s.number()
	if !ok || len(n) > 11 {
		return 0, false
	}
	i, err := strconv.ParseInt(string(n), 10, 32)
	return int32(i), err == nil
}
