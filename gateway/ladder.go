package gateway

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/fallback"
)

// maxStored bounds the body of an answer that is kept as the last good one, in bytes.
const maxStored = 1 << 20

// cache keeps last good answers.
type cache = fallback.Cache[*stored]

// ladder is what a route answers in the target's stead: the last good answer, else the static one, else nothing.
type ladder struct {
	cache       *cache // nil = none
	maxAge      time.Duration
	credentials []string // beside those that are known
	static      *stored  // nil = none
}

// stored is a whole answer. It is shared between requests and must not be changed.
type stored struct {
	status int
	header http.Header
	body   []byte
	public bool // may also be served to a request with credentials
}

// newLadder makes the ladder of a route. before is the same route in the configuration before, or nil: what it has kept stays, as long
// as the bounds of the cache do.
func (g *Gateway) newLadder(c config.Fallback, before *route) (ladder, error) {
	var l ladder
	if s := c.Static; s != nil {
		h := http.Header{}
		if s.ContentType != "" {
			h.Set("Content-Type", s.ContentType)
		}
		h.Set("Cache-Control", "no-store") // it says nothing that holds for longer than the trouble does
		l.static = &stored{status: s.Status, header: h, body: []byte(s.Body)}
	}
	k := c.Cache
	if k == nil {
		return l, nil
	}
	l.maxAge, l.credentials = k.MaxAge, k.Credentials
	if before != nil && before.fallback.cache != nil {
		// With other credentials it may hold what is not for everybody.
		if old := before.config.Fallback.Cache; old.MaxEntries == k.MaxEntries && old.MaxBytes == k.MaxBytes && slices.Equal(old.Credentials, k.Credentials) {
			l.cache = before.fallback.cache
			return l, nil
		}
	}
	var err error
	l.cache, err = fallback.NewCache(fallback.CacheConfig[*stored]{MaxEntries: k.MaxEntries, MaxBytes: k.MaxBytes,
		Size: (*stored).size, Memory: g.memory, Now: g.options.Now})
	return l, err
}

// size is about what an answer takes in memory.
func (s *stored) size() int64 {
	n := int64(len(s.body)) + 512
	for key, values := range s.header {
		n += int64(len(key)) + 64
		for _, v := range values {
			n += int64(len(v)) + 16
		}
	}
	return n
}

// answer returns what the client of r gets instead of the target's answer. r is the request as it came in.
func (l *ladder) answer(r *http.Request, cause error) (fallback.Result[*stored], bool) {
	var steps fallback.Ladder[*stored]
	if l.cache != nil && readable(r) {
		cached := fallback.Cached(l.cache, storeKey(r), l.maxAge)
		private := l.hasCredentials(r.Header)
		steps = append(steps, func(ctx context.Context, cause error) (fallback.Result[*stored], bool) {
			a, ok := cached(ctx, cause)
			return a, ok && (a.Value.public || !private)
		})
	}
	if l.static != nil {
		steps = append(steps, fallback.Static(l.static))
	}
	return steps.Answer(r.Context(), cause)
}

// readable reports whether a stored answer could be one to this request: it reads, and its key says all that it asks.
func readable(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength == 0
}

// storeKey tells requests apart that may have different answers. Answers that vary by anything else are not stored.
func storeKey(r *http.Request) string {
	u := r.URL
	return strings.ToLower(r.Host) + "\n" + u.EscapedPath() + "?" + u.RawQuery + "\n" + strings.Join(r.Header["Accept-Encoding"], ",")
}

// stores reports whether the answer to r may become the last good one, and whether for everybody. It keeps to what RFC 9111
// forbids a shared cache: a fallback may be older than the target would like, it must not be somebody else's.
func (l *ladder) stores(r *http.Request, res *http.Response) (ok, public bool) {
	if l.cache == nil || r.Method != http.MethodGet || !readable(r) || res.StatusCode != http.StatusOK ||
		res.ContentLength > maxStored || len(res.Trailer) > 0 {
		return false, false
	}
	if hasDirective(r.Header, "no-store") || len(res.Header["Set-Cookie"]) > 0 || variesWidely(res.Header) ||
		len(res.Header[cortexhttp.HeaderFallback]) > 0 { // of a gateway below: not a good answer
		return false, false
	}
	for _, d := range [...]string{"no-store", "private", "no-cache", "must-revalidate", "proxy-revalidate"} {
		if hasDirective(res.Header, d) {
			return false, false
		}
	}
	public = hasDirective(res.Header, "public")
	return public || !l.hasCredentials(r.Header), public
}

// hasDirective reports whether Cache-Control has a directive of that name, with or without a value.
func hasDirective(h http.Header, name string) bool {
	for _, line := range h["Cache-Control"] {
		for line != "" {
			var d string
			d, line = cutList(line)
			d, _, _ = strings.Cut(d, "=")
			if strings.EqualFold(strings.TrimSpace(d), name) {
				return true
			}
		}
	}
	return false
}

// cutList cuts the first element off a comma-separated list; a comma within quotes is none.
func cutList(s string) (element, rest string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '\\' && quoted:
			i++
		case s[i] == ',' && !quoted:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// variesWidely reports whether an answer depends on more of the request than its key holds.
func variesWidely(h http.Header) bool {
	for _, line := range h["Vary"] {
		for line != "" {
			var field string
			field, line = cutList(line)
			if field = strings.TrimSpace(field); field != "" && !strings.EqualFold(field, "Accept-Encoding") {
				return true
			}
		}
	}
	return false
}

// put makes a whole answer the last good one.
func (l *ladder) put(key string, h http.Header, body []byte, public bool) {
	h = h.Clone()
	for key := range h {
		if own(key) {
			delete(h, key)
		}
	}
	delete(h, "Content-Length")
	delete(h, headerRequestID)
	if cap(body) > len(body)+len(body)/8 { // what it grew to is not accounted for
		body = slices.Clone(body)
	}
	l.cache.Put(key, &stored{status: http.StatusOK, header: h, body: body, public: public})
}

// fill sets h to the header of a fallback.
func fill(h http.Header, a fallback.Result[*stored]) {
	closing, closes := h["Connection"] // the client's connection may have to be closed, whatever the answer
	clear(h)
	maps.Copy(h, a.Value.header)
	if closes {
		h["Connection"] = closing
	}
	if bodyAllowed(a.Value.status) {
		h["Content-Length"] = []string{strconv.Itoa(len(a.Value.body))}
	}
	if a.Source != fallback.FromCache {
		h[cortexhttp.HeaderFallback] = []string{"static"}
		return
	}
	age := int64(a.Age / time.Second)
	h[cortexhttp.HeaderFallback] = []string{"cache;age=" + strconv.FormatInt(age, 10)}
	if before, err := strconv.ParseUint(h.Get("Age"), 10, 31); err == nil { // it was not fresh when it came
		age += int64(before)
	}
	h["Age"] = []string{strconv.FormatInt(age, 10)}
}

// bodyAllowed reports whether an answer with that status may have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// substitute puts a fallback in the place of the target's own answer, which nobody will read.
func substitute(r *http.Request, res *http.Response, a fallback.Result[*stored]) {
	res.Body.Close()
	fill(res.Header, a)
	res.StatusCode, res.Status = a.Value.status, ""
	res.Trailer = nil
	res.ContentLength = 0
	res.Body = http.NoBody
	if r.Method != http.MethodHead && bodyAllowed(a.Value.status) {
		res.ContentLength = int64(len(a.Value.body))
		res.Body = io.NopCloser(bytes.NewReader(a.Value.body))
	}
}
