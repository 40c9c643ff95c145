package decision

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/seed-a29ca62a/cortex"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
	"github.com/seed-a29ca62a/cortex/limit"
)

// Bounds of requests.
const (
	maxBody    = 1 << 20
	maxReports = 1000
	maxTargets = 1000
	maxAttempt = 1000
	maxMS      = 24 * 60 * 60 * 1000 // a day
	// maxRetryAfter is the length of a header Retry-After that is looked at: a date has 29 bytes.
	maxRetryAfter = 100
)

// isTargetName says whether a name is as those of targets in a configuration are, too: ^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$.
func isTargetName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return s != "" && len(s) <= 63
}

// invalid is the error of a request with a field that cannot be used.
func invalid(field, format string, args ...any) error {
	problem := fmt.Sprintf(format, args...)
	err := connect.NewError(connect.CodeInvalidArgument, errors.New(field+": "+problem))
	if d, e := connect.NewErrorDetail(&pb.FieldViolation{Field: field, Problem: problem}); e == nil {
		err.AddDetail(d)
	}
	return err
}

// show makes what a client wrote fit for a message.
func show(s string) string {
	const most = 70
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// engine is that of a target, made if need be.
func (s *service) engine(field string, target *string) (*cortex.Engine, error) {
	if target == nil {
		return nil, invalid(field, "missing: want the name of a target")
	}
	if !isTargetName(*target) {
		return nil, invalid(field, "%s: not a name: want up to 63 letters, digits and -_. with a letter or digit first", show(*target))
	}
	if s.Known != nil {
		if e := s.Known(*target); e != nil {
			return e, nil
		}
	}
	if s.Others == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("%s: %q: no such target: this service answers for those of its configuration only", field, *target))
	}
	e, err := s.Others.Engine(*target)
	if err != nil { // of the template; the client can do nothing about it
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("%s: no guard for %q: the service's template for targets cannot be used", field, *target))
	}
	return e, nil
}

// priority is a required one.
func priority(field string, p *int32) (cortex.Priority, error) {
	if p == nil {
		return 0, invalid(field, "missing: want a number from 0, which is shed first, to %d", limit.MaxLevels)
	}
	n, err := within(field, p, 0, limit.MaxLevels)
	return cortex.Priority(n), err
}

// within is a number, 0 where it is not given.
func within(field string, n *int32, least, most int32) (int, error) {
	switch {
	case n == nil:
		return 0, nil
	case *n < least || *n > most:
		return 0, invalid(field, "%d: out of range: want from %d to %d", *n, least, most)
	}
	return int(*n), nil
}

// millis is a duration in whole ms, 0 where it is not given.
func millis(field string, n *int32, least int32) (time.Duration, error) {
	ms, err := within(field, n, least, maxMS)
	return time.Duration(ms) * time.Millisecond, err
}

// latency is a duration in ms with a fraction; given says whether it is there.
func latency(field string, ms *float64) (d time.Duration, given bool, err error) {
	switch {
	case ms == nil:
		return 0, false, nil
	case !(*ms >= 0 && *ms <= maxMS):
		return 0, false, invalid(field, "%v: out of range: want from 0 to %d ms", *ms, maxMS)
	}
	return time.Duration(*ms * float64(time.Millisecond)), true, nil
}

var outcomes = []cortex.Outcome{cortex.Success, cortex.Failed, cortex.TimedOut, cortex.Throttled, cortex.Neutral}

// outcome is one of the words for those from the first on.
func outcome(field string, word *string, among []cortex.Outcome) (cortex.Outcome, error) {
	if word != nil {
		for _, o := range among {
			if *word == o.String() {
				return o, nil
			}
		}
	}
	names := make([]string, len(among))
	for i, o := range among {
		names[i] = o.String()
	}
	want := "want one of " + strings.Join(names, ", ")
	if word == nil {
		return 0, invalid(field, "missing: %s", want)
	}
	return 0, invalid(field, "%s: %s", show(*word), want)
}

// token is one that could have been given by a service such as this.
func token(field, s string) (tokenID, error) {
	id, ok := parseToken(s)
	if !ok {
		return id, invalid(field, "not a token: want what Admit gave, as it is")
	}
	return id, nil
}

// toMS rounds up to whole ms: a wait must not end before its time.
func toMS(d time.Duration) int32 {
	if d <= 0 {
		return 0
	}
	return int32(min((d-1)/time.Millisecond+1, math.MaxInt32))
}

// places4 leaves four places: more of them say nothing. What is no number is 0.
func places4(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return math.Round(v*1e4) / 1e4
}

func signals(s cortex.Signals) *pb.Signals {
	return &pb.Signals{F: places4(s.F), L: places4(s.L), Q: places4(s.Q), B: places4(s.B), C: places4(s.C)}
}

// text is a string of a client's that is only looked at.
func text(field, s string, most int) error {
	if len(s) > most || !utf8.ValidString(s) {
		return invalid(field, "too long: want at most %d bytes of UTF-8", most)
	}
	return nil
}
