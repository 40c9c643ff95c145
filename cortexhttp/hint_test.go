package cortexhttp

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hintNow is a moment with a fraction of a second.
var hintNow = time.Date(2026, time.March, 4, 5, 6, 7, 700_000_000, time.UTC)

const forever = time.Duration(math.MaxInt64)

// hdr makes a header of "Name: value" lines.
func hdr(lines ...string) http.Header {
	h := http.Header{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		h.Add(name, value)
	}
	return h
}

// F40: dates were ignored, -5 became an immediate retry, 120junk was read as 120. F39: large numbers overflowed.
func TestRetryAfterTakesTheGrammarAndNothingElse(t *testing.T) {
	at := hintNow.Add(30 * time.Second)
	for _, c := range []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"120", 120 * time.Second, true},
		{"0", 0, true},
		{"007", 7 * time.Second, true},
		{" 120\t", 120 * time.Second, true},
		{"3600", time.Hour, true},
		{"9999999999", forever, true},
		{"9223372036", 9223372036 * time.Second, true},
		{"9223372037", forever, true},
		{strings.Repeat("9", 25), forever, true},
		{strings.Repeat("9", 1<<20), forever, true},
		{"-5", 0, false},
		{"+3", 0, false},
		{"1.5", 0, false},
		{"1e3", 0, false},
		{"0x10", 0, false},
		{"120junk", 0, false},
		{"120, 60", 0, false},
		{"१२०", 0, false},
		{"", 0, false},
		{"soon", 0, false},
		// The date is 30 s ahead of a moment 0.7 s after the full second: 29.3 s, and never early.
		{at.Format(http.TimeFormat), 30 * time.Second, true},
		{at.Format("Monday, 02-Jan-06 15:04:05 GMT"), 30 * time.Second, true},
		{at.Format(time.ANSIC), 30 * time.Second, true},
		{"Sun, 06 Nov 1994 08:49:37 GMT", 0, true},
		{"Sunday, 06-Nov-94 08:49:37 GMT", 0, true},
		{"Sun Nov  6 08:49:37 1994", 0, true},
		{"Thu, 01 Jan 2099 00:00:00 GMT", untilDate(time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC), hintNow), true},
		{"Fri, 31 Dec 9999 23:59:59 GMT", forever, true},
		// Time.Parse would take these.
		{"Wed, 04 Mar 2026 05:06:37.9 GMT", 0, false},
		{"Wed, 04 Mar 2026 05:06:37 PST", 0, false},
		{"Wednesday, 04-Mar-26 05:06:37 PST", 0, false},
		{"Wednesday, 04-Mar-26 05:06:37.5 GMT", 0, false},
		{"Wed, 04 Mar 26 05:06:37 GMT", 0, false},
		{"Wed, 04 Mar 2026 05:06:37 +0000", 0, false},
		{"2026-03-04T05:06:37Z", 0, false},
		{"Wed, 31 Feb 2026 05:06:37 GMT", 0, false},
	} {
		got, ok := RetryAfter(http.Header{"Retry-After": {c.value}}, hintNow)
		if got != c.want || ok != c.ok {
			t.Errorf("%.50q: %v, %v; want %v, %v", c.value, got, ok, c.want, c.ok)
		}
	}
}

// F40: of two lines the larger counts, and one that is none does not spoil the other.
func TestRetryAfterTakesTheLargestOfSeveralLines(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  time.Duration
		ok    bool
	}{
		{[]string{"5", "20"}, 20 * time.Second, true},
		{[]string{"20", "5"}, 20 * time.Second, true},
		{[]string{"junk", "5"}, 5 * time.Second, true},
		{[]string{"5", hintNow.Add(time.Minute).Format(http.TimeFormat)}, time.Minute, true},
		{[]string{"junk", "-1"}, 0, false},
		{nil, 0, false},
	} {
		if got, ok := RetryAfter(http.Header{"Retry-After": c.lines}, hintNow); got != c.want || ok != c.ok {
			t.Errorf("%q: %v, %v; want %v, %v", c.lines, got, ok, c.want, c.ok)
		}
	}
}

// RFC 9110, 5.6.7: a two-digit year that appears to be more than 50 years in the future is the most recent one in the past.
// time.Parse has 1969 as its first year instead, whenever it is asked.
func TestTwoDigitYearsGoByTheReadersClock(t *testing.T) {
	for _, c := range []struct {
		now  int
		yy   string
		want int
	}{{2026, "69", 2069}, {2026, "76", 2076}, {2026, "77", 1977}, {2026, "99", 1999}, {2026, "26", 2026}, {1999, "01", 2001},
		{1999, "69", 1969}, {2080, "01", 2101}, {2080, "69", 2069}} {
		now := time.Date(c.now, time.January, 1, 0, 0, 0, 0, time.UTC)
		got, ok := httpDate("Monday, 01-Jan-"+c.yy+" 00:00:00 GMT", now)
		if !ok || got.Year() != c.want {
			t.Errorf("in %d, %s is %v, want %d", c.now, c.yy, got, c.want)
		}
	}
}

func TestQuotaHints(t *testing.T) {
	unix := hintNow.Add(30 * time.Second).Unix() // 29.3 s ahead
	for _, c := range []struct {
		name  string
		lines []string
		want  time.Duration
		ok    bool
	}{
		{"Retry-After goes first", []string{"Retry-After: 3", "RateLimit-Reset: 60", "X-RateLimit-Reset: 90"}, 3 * time.Second, true},
		{"unless it is none", []string{"Retry-After: soon", "RateLimit-Reset: 60"}, time.Minute, true},
		{"the largest of the others", []string{"RateLimit-Reset: 60", "X-RateLimit-Reset: 90"}, 90 * time.Second, true},

		{"delta", []string{"RateLimit-Reset: 30"}, 30 * time.Second, true},
		{"delta, nothing left", []string{"RateLimit-Reset: 30", "RateLimit-Remaining: 0"}, 30 * time.Second, true},
		{"delta, something left", []string{"RateLimit-Reset: 30", "RateLimit-Remaining: 7"}, 0, false},
		{"delta, negative", []string{"RateLimit-Reset: -30"}, 0, false},
		{"delta, fraction", []string{"RateLimit-Reset: 1.5"}, 0, false},

		{"list", []string{`RateLimit: "default";r=0;t=30`}, 30 * time.Second, true},
		{"list, nothing said of what remains", []string{`RateLimit: "default";t=30`}, 30 * time.Second, true},
		{"list, something left", []string{`RateLimit: "default";r=50;t=30`}, 0, false},
		{"list of two", []string{`RateLimit: "burst";r=0;t=5, "daily";r=900;t=4000`}, 5 * time.Second, true},
		{"list of two, both used up", []string{`RateLimit: "burst";r=0;t=5, "daily";r=0;t=4000`}, 4000 * time.Second, true},
		{"two lines", []string{`RateLimit: "burst";r=0;t=5`, `RateLimit: "daily";r=0;t=40`}, 40 * time.Second, true},
		{"list, spaces", []string{`RateLimit: "a" ; r=0 ;  t=30`}, 30 * time.Second, true},
		{"list, separators in the name", []string{`RateLimit: "a,b;t=9\";";r=0;t=30`}, 30 * time.Second, true},
		{"list, unclosed name", []string{`RateLimit: "a;r=0;t=30`}, 0, false},
		{"list, malformed", []string{`RateLimit: "a";r=0;t=x`}, 0, false},
		{"list, negative", []string{`RateLimit: "a";r=0;t=-3`}, 0, false},
		{"list, huge", []string{`RateLimit: "a";r=0;t=99999999999999999999`}, forever, true},
		{"dictionary", []string{"RateLimit: limit=100, remaining=0, reset=50"}, 50 * time.Second, true},
		{"dictionary, something left", []string{"RateLimit: limit=100, remaining=3, reset=50"}, 0, false},
		{"too long", []string{"RateLimit: " + strings.Repeat(`"a";r=0;t=1,`, 1000)}, 0, false},

		{"X, delta", []string{"X-RateLimit-Reset: 45"}, 45 * time.Second, true},
		{"X, Unix seconds", []string{"X-RateLimit-Reset: " + strconv.FormatInt(unix, 10)}, 30 * time.Second, true},
		{"X, Unix milliseconds", []string{"X-RateLimit-Reset: " + strconv.FormatInt(hintNow.Add(1500*time.Millisecond).UnixMilli(), 10)}, 1500 * time.Millisecond, true},
		{"X, Unix seconds with a fraction", []string{"X-RateLimit-Reset: " + strconv.FormatInt(unix-1, 10) + ".25"}, 30 * time.Second, true},
		{"X, past", []string{"X-RateLimit-Reset: 1500000000"}, 0, true},
		{"X, something left", []string{"X-RateLimit-Reset: 45", "X-RateLimit-Remaining: 1"}, 0, false},
		{"X, nothing left", []string{"X-RateLimit-Reset: 45", "X-RateLimit-Remaining: 0"}, 45 * time.Second, true},
		{"X, negative", []string{"X-RateLimit-Reset: -45"}, 0, false},
		{"X, no digits", []string{"X-RateLimit-Reset: ."}, 0, false},
		{"X, half a fraction", []string{"X-RateLimit-Reset: 4."}, 0, false},
		{"X, twice a fraction", []string{"X-RateLimit-Reset: 4.5.6"}, 0, false},
		{"X, huge", []string{"X-RateLimit-Reset: " + strings.Repeat("9", 40)}, forever, true},
		{"X, huge with a fraction", []string{"X-RateLimit-Reset: " + strings.Repeat("9", 40) + ".9"}, forever, true},

		{"Meta", []string{`X-Business-Use-Case-Usage: {"1":[{"type":"messages","call_count":100,"estimated_time_to_regain_access":5}]}`},
			5 * time.Minute, true},
		{"Meta, the largest", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":5},{"estimated_time_to_regain_access":9}],` +
			`"2":[{"estimated_time_to_regain_access":7}]}`}, 9 * time.Minute, true},
		{"Meta, access not lost", []string{`X-Business-Use-Case-Usage: {"1":[{"call_count":28,"estimated_time_to_regain_access":0}]}`}, 0, false},
		{"Meta, a fraction", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":0.51}]}`}, 31 * time.Second, true},
		{"Meta, negative", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":-5}]}`}, 0, false},
		{"Meta, huge", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":1e300}]}`}, forever, true},
		{"Meta, beyond a float", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":1e999}]}`}, 0, false},
		{"Meta, no number", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain_access":{}}]}`}, 0, false},
		{"Meta, another shape", []string{`X-Business-Use-Case-Usage: [1,2]`}, 0, false},
		{"Meta, cut off", []string{`X-Business-Use-Case-Usage: {"1":[{"estimated_time_to_regain`}, 0, false},
		{"Meta, too long", []string{`X-Business-Use-Case-Usage: {"1":[{"x":"` + strings.Repeat("x", maxMetaField) + `","estimated_time_to_regain_access":5}]}`}, 0, false},
		{"Meta, deep", []string{`X-Business-Use-Case-Usage: ` + strings.Repeat("[", 10_000)}, 0, false},
	} {
		if got, ok := RetryAfter(hdr(c.lines...), hintNow); got != c.want || ok != c.ok {
			t.Errorf("%s: %v, %v; want %v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"120", "-5", "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
		"99999999999999999999", "Mon, 29-Feb-00 00:00:60 GMT"} {
		f.Add(s, int64(1_772_600_767))
	}
	f.Fuzz(func(t *testing.T, s string, unix int64) {
		d, ok := RetryAfter(http.Header{"Retry-After": {s}}, time.Unix(unix, 0))
		if d < 0 || !ok && d != 0 {
			t.Fatalf("%q at %d: %v, %v", s, unix, d, ok)
		}
		if v := strings.Trim(s, " \t\r\n"); v != "" && strings.Trim(v, "0123456789") == "" && !ok {
			t.Fatalf("%q is a number of seconds", s)
		}
	})
}

func FuzzQuotaHints(f *testing.F) {
	for _, s := range []string{`"default";r=0;t=30`, "limit=1, remaining=0, reset=5", `"a\";;,`, "1700000000.5", "-1",
		`{"1":[{"estimated_time_to_regain_access":5}]}`, `{"1":[{"estimated_time_to_regain_access":"5"}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, name := range []string{"Ratelimit", "Ratelimit-Reset", "Ratelimit-Remaining", "X-Ratelimit-Reset", "X-Ratelimit-Remaining",
			"X-Business-Use-Case-Usage"} {
			if d, ok := RetryAfter(http.Header{name: {s}}, hintNow); d < 0 || !ok && d != 0 {
				t.Fatalf("%s: %q: %v, %v", name, s, d, ok)
			}
		}
	})
}
