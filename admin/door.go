package admin

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/door"
)

// keepOut answers a request that is not let in.
func keepOut(w http.ResponseWriter, r *http.Request, f *door.Refusal) {
	if f.Challenge != "" {
		w.Header().Set("WWW-Authenticate", f.Challenge)
	}
	w.Header().Set("Connection", "close") // whoever guesses is to connect anew each time
	cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: f.Status, Detail: f.Detail})
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

// refuses says why a request is not let in; nil: it is. The page has a form for the token.
func (a *admin) refuses(r *http.Request) *door.Refusal {
	if public(r) {
		return nil
	}
	return a.door.Refuses(r, isPage(r))
}

// report logs a request that was not let in and would have changed nothing.
func (a *admin) report(r *http.Request, f *door.Refusal) {
	if log, missed := a.kept.Refused(a.Now(), f.Cause); log {
		a.log(slog.LevelWarn, "admin: refused", append(who(r), slog.String("cause", f.Cause), slog.Uint64("unlogged_before", missed))...)
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
	if s := door.Subject(r); s != "" {
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
