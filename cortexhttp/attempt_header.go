package cortexhttp

import (
	"net/http"
	"strconv"
)

// maxAttempts bounds what [HeaderAttempt] may carry: more retries than any configuration allows is a forgery or a fault.
const maxAttempts = 1000

const retriesParameter = ";retries="

// FormatAttempt is the value of [HeaderAttempt] for an attempt of that number, 0 the original, of a call that may have that
// many retries: "1;retries=3". Numbers outside 0 to 1000 become the nearer end.
func FormatAttempt(attempt, retries int) string {
	b := make([]byte, 0, len("1000")+len(retriesParameter)+len("1000"))
	b = strconv.AppendInt(b, int64(min(max(attempt, 0), maxAttempts)), 10)
	b = append(b, retriesParameter...)
	b = strconv.AppendInt(b, int64(min(max(retries, 0), maxAttempts)), 10)
	return string(b)
}

// ParseAttempt reads a value of [HeaderAttempt]. Both numbers are from 0 to 1000 in plain decimal digits; without the
// parameter retries is 0. Anything else is not ok: what comes from the network is taken literally or not at all.
func ParseAttempt(value string) (attempt, retries int, ok bool) {
	number := digits(value)
	if attempt, ok = boundedInt(value[:number], maxAttempts); !ok {
		return 0, 0, false
	}
	rest := value[number:]
	if rest == "" {
		return attempt, 0, true
	}
	if len(rest) <= len(retriesParameter) || rest[:len(retriesParameter)] != retriesParameter {
		return 0, 0, false
	}
	if retries, ok = boundedInt(rest[len(retriesParameter):], maxAttempts); !ok {
		return 0, 0, false
	}
	return attempt, retries, true
}

// digits is how many decimal digits s starts with.
func digits(s string) int {
	n := 0
	for n < len(s) && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	return n
}

// plainNumber tells whether s is a whole number in the one way to write it: digits only, no sign, no spare zero in front.
func plainNumber(s string) bool {
	return s != "" && digits(s) == len(s) && (s[0] != '0' || len(s) == 1)
}

// boundedInt reads a plain whole number from 0 to limit, which is at most math.MaxInt32, however long the text.
func boundedInt(s string, limit int) (int, bool) {
	if !plainNumber(s) {
		return 0, false
	}
	n := int64(0)
	for _, d := range []byte(s) {
		if n = 10*n + int64(d-'0'); n > int64(limit) {
			return 0, false
		}
	}
	return int(n), true
}

// single returns the value of a field that was sent exactly once. Two lines of one of our fields are a forgery or a fault
// of something between, and which of them is right cannot be known. key is in canonical form.
func single(h http.Header, key string) (string, bool) {
	v := h[key]
	if len(v) != 1 {
		return "", false
	}
	return v[0], true
}
