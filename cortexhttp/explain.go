package cortexhttp

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
)

// Explanation is what [FormatExplain] tells of one call.
type Explanation struct {
	Pressure cortex.Pressure // of the engine, when the call was decided on or answered
	Priority cortex.Priority // of the call
	Report   *Report         // what was done; nil = not known, or nothing
}

// maxExplain is the room for a value; the longest there can be is shorter.
const maxExplain = 640

// FormatExplain is the value of [HeaderExplain] on an answer: a structured field dictionary (RFC 9651) of bounded length (under
// 640 bytes), for people and their tools:
//
//	cps, evidence      the score, and without the circuit's own part, 0 to 1
//	f, l, q, b, c      the five signals, 0 to 1
//	state, circuit     ELEVATED, half-open
//	forced             what an operator has forced the circuit to be; absent = nothing
//	priority, floor    of the call; calls of a priority below the floor are shed
//	shed               the share of the offered calls that is shed
//	in-flight, limit   attempts in flight, and how many of them make q 1
//	timeout-ms         the attempt timeout; absent = none
//	tokens             in the retry budget
//	attempts, hidden   made at the target; how many of them net/http made by itself
//	reason             why there was no further attempt; absent for a good answer
//	replay-skipped     why the body could not be sent again
//	shadow             the engine was only asked; what it would have done:
//	would-refuse       the reason of the refusal
//	would-cut          the attempt had exceeded its timeout
//	would-retry-ms     it would have been tried again after that time
//	would-reason       why not
//
// Fractions have up to three places, numbers too large for the grammar become the largest. A refusal that is in the report gives
// the scores, signals, circuit and floor it was made with, in place of those of the pressure.
func FormatExplain(x Explanation) string {
	p, r := x.Pressure, x.Report
	state := p.State
	if r != nil {
		seen := r.Rejection
		if r.WouldRefuse != nil {
			seen = r.WouldRefuse
		}
		if seen != nil {
			p.CPS, p.Evidence, p.Signals, p.Floor, p.Circuit = seen.CPS, seen.Evidence, seen.Signals, seen.Floor, seen.Circuit
			state = cortex.StateOf(seen.CPS)
		}
	}
	d := dictionary(make([]byte, 0, maxExplain))
	d.decimal("cps", p.CPS)
	d.decimal("evidence", p.Evidence)
	d.decimal("f", p.Signals.F)
	d.decimal("l", p.Signals.L)
	d.decimal("q", p.Signals.Q)
	d.decimal("b", p.Signals.B)
	d.decimal("c", p.Signals.C)
	d.token("state", min(state, cortex.Emergency).String())
	d.token("circuit", p.Circuit.String())
	if p.Forcing != breaker.Automatic {
		d.token("forced", p.Forcing.String())
	}
	d.integer("priority", int64(x.Priority))
	d.integer("floor", int64(p.Floor))
	d.decimal("shed", p.Shed)
	d.integer("in-flight", int64(p.InFlight))
	d.decimal("limit", p.Limit)
	if p.Timeout > 0 {
		d.integer("timeout-ms", roundUp(p.Timeout, time.Millisecond))
	}
	d.decimal("tokens", p.Tokens)
	if r == nil {
		return string(d)
	}
	d.integer("attempts", int64(r.Attempts))
	if r.Hidden > 0 {
		d.integer("hidden", int64(r.Hidden))
	}
	d.token("reason", r.Reason.String())
	d.token("replay-skipped", r.ReplaySkipped.String())
	if !r.Shadow {
		return string(d)
	}
	d.key("shadow")
	if r.WouldRefuse != nil {
		d.token("would-refuse", r.WouldRefuse.Reason.String())
	}
	if r.WouldCut {
		d.key("would-cut")
	}
	if r.WouldRetry {
		d.integer("would-retry-ms", roundUp(r.WouldDelay, time.Millisecond))
	}
	d.token("would-reason", r.WouldReason.String())
	return string(d)
}

// AsksToExplain reports whether a request asks for [HeaderExplain] on its answer. It does not say whether its sender may know.
func AsksToExplain(h http.Header) bool {
	v, ok := single(h, HeaderExplain)
	return ok && v == "1"
}

// dictionary is a structured field dictionary that is being written. Keys are the caller's to get right.
type dictionary []byte

// key adds a key; without a value it is true.
func (d *dictionary) key(k string) {
	if len(*d) > 0 {
		*d = append(*d, ", "...)
	}
	*d = append(*d, k...)
}

func (d *dictionary) integer(k string, n int64) {
	const most = 999_999_999_999_999 // RFC 9651, 3.3.1
	d.key(k)
	*d = strconv.AppendInt(append(*d, '='), min(max(n, -most), most), 10)
}

// decimal writes up to three places, at least one; what is not a number is 0.
func (d *dictionary) decimal(k string, v float64) {
	const most = 999_999_999_999 // RFC 9651, 3.3.2
	if math.IsNaN(v) {
		v = 0
	}
	n := int64(math.Round(min(max(v, -most), most) * 1000))
	d.key(k)
	*d = append(*d, '=')
	if n < 0 {
		*d, n = append(*d, '-'), -n
	}
	*d = append(strconv.AppendInt(*d, n/1000, 10), '.', byte('0'+n/100%10))
	if n%100 != 0 {
		*d = append(*d, byte('0'+n/10%10))
	}
	if n%10 != 0 {
		*d = append(*d, byte('0'+n%10))
	}
}

// token leaves out one that is empty, and puts _ for what no token may contain: a number out of range names itself with brackets.
func (d *dictionary) token(k, v string) {
	if v == "" {
		return
	}
	d.key(k)
	*d = append(*d, '=')
	for i := range len(v) {
		b := v[i]
		switch {
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', i > 0 && ('0' <= b && b <= '9' || b == '-' || b == '_'):
		default:
			b = '_'
		}
		if i == 0 && b == '_' {
			b = 'x'
		}
		*d = append(*d, b)
	}
}
