package cortexhttp

import (
	"math"
	"net/http"
	"net/textproto"
	"time"
)

// RetryAfter is how long a server asks its client to wait, as it says in the header of a 429 or 503: a lower bound for the
// delay before the next attempt. ok is false where there is no hint, or none that is well formed. From
//
//   - Retry-After (RFC 9110, 10.2.3): whole seconds, or an HTTP-date in any of its three forms, which is compared with now,
//     rounded up to a second and 0 if it is past; of several lines the largest;
//   - else the largest of the fields by which APIs tell when a quota is full again: RateLimit (its list and dictionary
//     drafts), RateLimit-Reset, X-RateLimit-Reset (seconds, or a Unix time in seconds or milliseconds, told apart by
//     size), each unless it says that something remains, and Meta's X-Business-Use-Case-Usage (minutes).
//
// Numbers too large saturate: the caller caps them (the engine does, by its maximum delay).
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	if wait, ok = retryAfterField(h, now); ok {
		return wait, true
	}
	for _, quota := range [...]func(http.Header, time.Time) (time.Duration, bool){
		rateLimitList, rateLimitReset, xRateLimitReset, metaUsage} {
		if d, there := quota(h, now); there {
			wait, ok = max(wait, d), true
		}
	}
	return wait, ok
}

func retryAfterField(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	for _, v := range h["Retry-After"] {
		v = textproto.TrimString(v)
		d, valid := seconds(v)
		if !valid {
			var at time.Time
			if at, valid = httpDate(v, now); valid {
				d = untilDate(at, now)
			}
		}
		if valid {
			wait, ok = max(wait, d), true
		}
	}
	return wait, ok
}

// seconds reads 1*DIGIT as seconds; what does not fit a Duration saturates. No sign, fraction or unit: 120junk is not 120.
func seconds(s string) (time.Duration, bool) {
	n, ok := saturatedNumber(s)
	return saturate(n, time.Second), ok
}

// saturatedNumber reads 1*DIGIT; beyond int64 it is the largest.
func saturatedNumber(s string) (n int64, ok bool) {
	if s == "" || digits(s) != len(s) {
		return 0, false
	}
	for i := range len(s) {
		d := int64(s[i] - '0')
		if n > (math.MaxInt64-d)/10 {
			return math.MaxInt64, true
		}
		n = 10*n + d
	}
	return n, true
}

// saturate is n units, the longest Duration if that is too many; n ≥ 0.
func saturate(n int64, unit time.Duration) time.Duration {
	if n > math.MaxInt64/int64(unit) {
		return math.MaxInt64
	}
	return time.Duration(n) * unit
}

// untilDate is the time from now to at, which is given in whole seconds: rounded up, so that the wait is not cut short by a
// part of one; 0 if it is past. Time.Sub saturates.
func untilDate(at, now time.Time) time.Duration {
	d := max(at.Sub(now), 0)
	if rest := d % time.Second; rest > 0 && d < math.MaxInt64-time.Second {
		d += time.Second - rest
	}
	return d
}

// httpDate reads an HTTP-date (RFC 9110, 5.6.7). time.Parse takes more than the grammar: fractions of a second, zones other
// than GMT, and two-digit years by a rule of its own.
func httpDate(s string, now time.Time) (time.Time, bool) {
	const rfc850Tail = "02-Jan-06 15:04:05 GMT"
	switch {
	case len(s) == len(http.TimeFormat): // IMF-fixdate
		t, err := time.Parse(http.TimeFormat, s)
		return t, err == nil
	case len(s) == len(time.ANSIC):
		t, err := time.Parse(time.ANSIC, s)
		return t, err == nil
	case len(s) <= len("Wednesday, ")+len(rfc850Tail) && len(s) > len(rfc850Tail):
		t, err := time.Parse("Monday, "+rfc850Tail, s)
		if err != nil {
			return time.Time{}, false
		}
		return nearCentury(t, now), true
	}
	return time.Time{}, false
}

// nearCentury gives a date with a two-digit year its century: one that appears to be more than 50 years in the future is in
// the past.
func nearCentury(t, now time.Time) time.Time {
	now = now.UTC()
	year := now.Year() - now.Year()%100 + t.Year()%100
	at := func(year int) time.Time {
		return time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	}
	d := at(year)
	switch {
	case d.After(now.AddDate(50, 0, 0)):
		return at(year - 100)
	case d.Before(now.AddDate(-50, 0, 0)):
		return at(year + 100)
	}
	return d
}
