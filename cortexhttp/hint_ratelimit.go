package cortexhttp

import (
	"math"
	"net/http"
	"net/textproto"
	"strings"
	"time"
)

// maxHintField bounds the text of a hint that is parsed: longer ones are none.
const maxHintField = 4 << 10

// rateLimitReset reads the first draft's RateLimit-Reset, in seconds, unless RateLimit-Remaining is above 0: what was
// refused was then refused for something else.
func rateLimitReset(h http.Header, _ time.Time) (wait time.Duration, ok bool) {
	if remains(h["Ratelimit-Remaining"]) {
		return 0, false
	}
	for _, v := range h["Ratelimit-Reset"] {
		if d, valid := seconds(textproto.TrimString(v)); valid {
			wait, ok = max(wait, d), true
		}
	}
	return wait, ok
}

// xRateLimitReset reads X-RateLimit-Reset, which has no specification: seconds to wait, or the Unix time of the reset in
// seconds or milliseconds, with or without a fraction. A number of seconds as large as a Unix time would be decades.
func xRateLimitReset(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	const unixSeconds, unixMillis = 1_000_000_000, 100_000_000_000
	if remains(h["X-Ratelimit-Remaining"]) {
		return 0, false
	}
	for _, v := range h["X-Ratelimit-Reset"] {
		whole, fraction, dotted := strings.Cut(textproto.TrimString(v), ".")
		n, valid := saturatedNumber(whole)
		if !valid || dotted && (fraction == "" || digits(fraction) != len(fraction)) {
			continue
		}
		if strings.Trim(fraction, "0") != "" && n < math.MaxInt64 {
			n++ // rounded up
		}
		var d time.Duration
		switch {
		case n >= unixMillis:
			d = max(time.UnixMilli(n).Sub(now), 0)
		case n >= unixSeconds:
			d = untilDate(time.Unix(n, 0), now)
		default:
			d = saturate(n, time.Second)
		}
		wait, ok = max(wait, d), true
	}
	return wait, ok
}

// remains reports whether a Remaining field says that the quota is not used up.
func remains(values []string) bool {
	for _, v := range values {
		if n, ok := saturatedNumber(textproto.TrimString(v)); ok && n > 0 {
			return true
		}
	}
	return false
}

// rateLimitList reads RateLimit in the forms of its drafts: a list of policies with what remains and the seconds until it
// is full again ("default";r=0;t=30), or a dictionary (limit=100, remaining=0, reset=30). A policy with something remaining
// did not refuse the request.
func rateLimitList(h http.Header, _ time.Time) (wait time.Duration, ok bool) {
	for _, line := range h["Ratelimit"] {
		if len(line) > maxHintField {
			continue
		}
		d, valid := parseRateLimit(line)
		if valid {
			wait, ok = max(wait, d), true
		}
	}
	return wait, ok
}

func parseRateLimit(line string) (wait time.Duration, ok bool) {
	dictionary := quota{}
	for rest := line; rest != ""; {
		var member string
		member, rest = cutUnquoted(rest, ',')
		name, parameters := cutUnquoted(member, ';')
		if key, value, assigned := strings.Cut(textproto.TrimString(name), "="); assigned && !strings.HasPrefix(key, `"`) {
			dictionary.set(key, value)
			continue
		}
		item := quota{}
		for parameters != "" {
			var p string
			p, parameters = cutUnquoted(parameters, ';')
			key, value, _ := strings.Cut(textproto.TrimString(p), "=")
			item.set(key, value)
		}
		if d, used := item.exhausted(); used {
			wait, ok = max(wait, d), true
		}
	}
	if d, used := dictionary.exhausted(); used {
		wait, ok = max(wait, d), true
	}
	return wait, ok
}

// quota is what one policy says of itself.
type quota struct {
	reset     time.Duration
	known     bool // reset was given
	remaining bool
}

func (q *quota) set(key, value string) {
	n, ok := saturatedNumber(value)
	if !ok {
		return
	}
	switch key {
	case "t", "reset":
		q.reset, q.known = saturate(n, time.Second), true
	case "r", "remaining":
		q.remaining = n > 0
	}
}

func (q *quota) exhausted() (time.Duration, bool) { return q.reset, q.known && !q.remaining }

// cutUnquoted cuts s at the first sep outside a quoted string.
func cutUnquoted(s string, sep byte) (before, after string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == sep && !quoted:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}
