package accesslog

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxText bounds each text of an entry, in bytes. What is longer is cut there.
const maxText = 256

// StatusClientGone is the status of a call whose client did not wait for the answer.
const StatusClientGone = 499

// An Entry is one call. Its texts may come from anywhere: they are cut after 256 bytes, and whatever they contain, the line is one
// line of valid JSON. Empty texts are left out, and so are numbers where they say nothing.
type Entry struct {
	Time      time.Time // of the request's arrival; written in UTC, to the millisecond
	RequestID string
	TraceID   string // of W3C's traceparent

	Client   string // address, with or without its port
	Protocol string // "HTTP/1.1"
	Method   string
	Host     string // as the client named it; what stands before an @ is left out
	Path     string // of the URL, without the query: what follows a ? is left out

	Route    string // the pattern
	Target   string
	Endpoint string // of the last attempt
	Priority int    // written where there is a target
	Attempts int    // at the target; likewise
	CPS      float64

	Unguarded bool // no guard had to do with it: Priority, Attempts and CPS are not written

	Reason   string // why the guard refused the call or tried no further
	Fallback string // what answered in the target's stead: "cache", "static"
	Shadow   string // what the guard would have done
	Error    string // the class of what went wrong

	Status   int   // that the client got
	BytesIn  int64 // of the request's body
	BytesOut int64 // of the answer's
	Duration time.Duration
	Upstream time.Duration // of it, until the target's answer was there; 0 = it was not asked
}

// Good reports whether a call was answered well: by the target itself, whole, and by no error of the server's side (5xx). An
// answer 4xx of the target's is one. A call that a guard refused or would have refused or tried again, an answer of a fallback
// and a client that did not wait are none.
func (e *Entry) Good() bool {
	return e.Status < 500 && e.Status != StatusClientGone && e.Error == "" && e.Reason == "" && e.Fallback == "" && e.Shadow == ""
}

// append adds the entry's line to b.
func (e *Entry) append(b []byte) []byte {
	b = append(b, `{"time":"`...)
	b = e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, '"')
	b = appendText(b, `,"request_id":`, e.RequestID)
	b = appendText(b, `,"trace_id":`, e.TraceID)
	b = appendText(b, `,"client":`, e.Client)
	b = appendText(b, `,"protocol":`, e.Protocol)
	b = appendText(b, `,"method":`, e.Method)
	_, host, found := cutLast(e.Host, '@')
	if !found {
		host = e.Host
	}
	b = appendText(b, `,"host":`, host)
	path, _, _ := strings.Cut(e.Path, "?")
	b = appendText(b, `,"path":`, path)
	b = appendText(b, `,"route":`, e.Route)
	b = appendText(b, `,"target":`, e.Target)
	b = appendText(b, `,"endpoint":`, e.Endpoint)
	if e.Target != "" && !e.Unguarded {
		b = strconv.AppendInt(append(b, `,"priority":`...), int64(e.Priority), 10)
		b = strconv.AppendInt(append(b, `,"attempts":`...), int64(e.Attempts), 10)
		b = appendFixed(append(b, `,"cps":`...), places(e.CPS), 4)
	}
	b = appendText(b, `,"reason":`, e.Reason)
	b = appendText(b, `,"fallback":`, e.Fallback)
	b = appendText(b, `,"shadow":`, e.Shadow)
	b = appendText(b, `,"error":`, e.Error)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(e.Status), 10)
	b = strconv.AppendInt(append(b, `,"bytes_in":`...), e.BytesIn, 10)
	b = strconv.AppendInt(append(b, `,"bytes_out":`...), e.BytesOut, 10)
	b = appendFixed(append(b, `,"duration_ms":`...), e.Duration.Microseconds(), 3)
	if e.Upstream > 0 {
		b = appendFixed(append(b, `,"upstream_ms":`...), e.Upstream.Microseconds(), 3)
	}
	return append(b, '}', '\n')
}

func cutLast(s string, sep byte) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, sep); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

// places is a score of [0,1] in units of 1e-4.
func places(v float64) int64 {
	if !(v > 0) {
		return 0
	}
	return int64(math.Round(min(v, 1) * 1e4))
}

// appendFixed writes n, which is in units of 10 to the -digits, 0 if it is negative.
func appendFixed(b []byte, n int64, digits int) []byte {
	n = max(n, 0)
	unit := int64(1)
	for range digits {
		unit *= 10
	}
	b = append(strconv.AppendInt(b, n/unit, 10), '.')
	for n %= unit; unit > 1; n %= unit {
		unit /= 10
		b = append(b, byte('0'+n/unit))
	}
	return b
}

const hex = "0123456789abcdef"

// appendText writes a member whose value is a text, unless that is empty. Bytes that are no UTF-8 become U+FFFD.
func appendText(b []byte, key, s string) []byte {
	if s == "" {
		return b
	}
	if len(s) > maxText {
		end := maxText
		for end > maxText-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		s = s[:end]
	}
	b = append(append(b, key...), '"')
	plain := 0 // from here on nothing had to be escaped
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		size := 1
		var r rune
		if c >= utf8.RuneSelf {
			if r, size = utf8.DecodeRuneInString(s[i:]); (r != utf8.RuneError || size > 1) && !breaks(r) {
				i += size
				continue
			}
		}
		b = append(b, s[plain:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < utf8.RuneSelf:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		}
		i += size
		plain = i
	}
	return append(append(b, s[plain:]...), '"')
}

// breaks reports whether a rune beyond ASCII ends a line for some readers, or moves their cursor.
func breaks(r rune) bool { return r >= 0x80 && r < 0xa0 || r == 0x2028 || r == 0x2029 }
