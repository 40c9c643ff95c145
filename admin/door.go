package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// refusal is why a request is not let in.
type refusal struct {
	cause  string // for logs and metrics: one of refusalCauses
	status int
	detail string
}

// refusalCauses are all there are; their order is that of door.counts.
var refusalCauses = [...]string{"token", "host", "origin"}

var (
	noToken = &refusal{"token", http.StatusUnauthorized,
		"This port wants a token, in a header such as Authorization: Bearer <token>."}
	wrongToken  = &refusal{"token", http.StatusUnauthorized, "The token is not the right one."}
	foreignHost = &refusal{"host", http.StatusForbidden,
		"Without a token this port answers for localhost and addresses only: ask for http://127.0.0.1 and its port, or set admin.token_file."}
	foreignOrigin = &refusal{"origin", http.StatusForbidden, "The browser says that this comes from the page of another origin."}
)

func (f *refusal) answer(w http.ResponseWriter, r *http.Request) {
	if f.status == http.StatusUnauthorized {
		challenge := `Bearer realm="cortex admin"`
		if f == wrongToken {
			challenge += `, error="invalid_token"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
	}
	w.Header().Set("Connection", "close") // whoever guesses is to connect anew each time
	cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: f.status, Detail: f.detail})
}

// public reports whether a request is answered whoever asks.
func public(r *http.Request) bool {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	switch r.URL.Path {
	case "/healthz", "/livez", "/readyz":
		return true
	}
	return false
}

// refuses says why a request is not let in; nil: it is.
func (a *admin) refuses(r *http.Request) *refusal {
	if public(r) {
		return nil
	}
	// Certificates, like an open port, are what a browser brings along whatever page asks it to.
	if a.origin.Check(r) != nil {
		return foreignOrigin
	}
	switch {
	case subject(r) != "":
		return nil
	case a.Token == nil:
		if !ownHost(r.Host) {
			return foreignHost
		}
		return nil
	case isPage(r): // with a form for the token
		return nil
	}
	return rightToken(r.Header["Authorization"], a.Token())
}

// rightToken compares in a time that does not depend on how much of the token is right.
func rightToken(authorization []string, want string) *refusal {
	if len(authorization) == 0 {
		return noToken
	}
	scheme, got, _ := strings.Cut(authorization[0], " ")
	if len(authorization) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return noToken
	}
	g, w := sha256.Sum256([]byte(strings.Trim(got, " "))), sha256.Sum256([]byte(want))
	if subtle.ConstantTimeCompare(g[:], w[:]) != 1 || want == "" {
		return wrongToken
	}
	return nil
}

// ownHost reports whether a Host is one that no page of another site can have: DNS cannot make it point here.
func ownHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.EqualFold(host, "localhost") { // no browser leaves it out
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

// subject is that of the verified certificate of a client, or "".
func subject(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
		return ""
	}
	c := r.TLS.VerifiedChains[0][0]
	if s := c.Subject.String(); s != "" {
		return s
	}
	return "serial " + c.SerialNumber.String()
}

// door counts and bounds what is logged of requests that were not let in: a flood of them is not to become one of the disk.
type door struct {
	mu     sync.Mutex
	counts [len(refusalCauses)]uint64
	lines  int           // that may be logged yet
	last   time.Duration // when the last of them was added
	missed uint64        // since the last line
	begun  bool
}

const (
	doorBurst = 10 // lines at once
	doorEvery = time.Second
)

// refused counts one and reports whether it is to be logged, and how many before it were not.
func (d *door) refused(now time.Duration, cause string) (log bool, missed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range refusalCauses {
		if c == cause {
			d.counts[i]++
		}
	}
	switch n := (now - d.last) / doorEvery; {
	case !d.begun:
		d.begun, d.lines, d.last = true, doorBurst, now
	case n > 0:
		d.lines = int(min(doorBurst, time.Duration(d.lines)+n))
		d.last += n * doorEvery
	}
	if d.lines == 0 {
		d.missed++
		return false, 0
	}
	d.lines--
	missed, d.missed = d.missed, 0
	return true, missed
}

func (d *door) now() [len(refusalCauses)]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// report logs a request that was not let in and would have changed nothing.
func (a *admin) report(r *http.Request, f *refusal) {
	if log, missed := a.door.refused(a.Now(), f.cause); log {
		a.log(slog.LevelWarn, "admin: refused", append(who(r), slog.String("cause", f.cause), slog.Uint64("unlogged_before", missed))...)
	}
}

// log writes a line whatever the level of the log: else the first thing to do would be to set it to error.
func (a *admin) log(level slog.Level, msg string, attrs ...slog.Attr) {
	line := slog.NewRecord(time.Now(), level, msg, 0)
	line.AddAttrs(attrs...)
	_ = a.Log.Handler().Handle(context.Background(), line) // there is nobody else to tell
}

// who asks for what. What a client wrote is cut.
func who(r *http.Request) []slog.Attr {
	attrs := []slog.Attr{slog.String("remote", r.RemoteAddr), slog.String("method", cut(r.Method)), slog.String("path", cut(r.URL.Path))}
	if s := subject(r); s != "" {
		attrs = append(attrs, slog.String("subject", cut(s)))
	}
	return attrs
}

func cut(s string) string {
	const most = 200
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
