package admin

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/seed-a29ca62a/cortex/door"
)

// operation is what an audited request did, as its handler tells.
type operation struct {
	name          string // of the operation
	target        string
	before, after string
	problem       string // why not
	status        int
}

type operationKey struct{}

// operationOf is the operation of an audited request; its handler fills it in.
func operationOf(r *http.Request) *operation {
	if o, _ := r.Context().Value(operationKey{}).(*operation); o != nil {
		return o
	}
	return new(operation) // of a request that only reads
}

// audited prepares a request for the log; done writes its line, also when the handler panics. It is nil where a flood of requests that
// were not let in is not logged.
func (a *admin) audited(w http.ResponseWriter, r *http.Request, refused *door.Refusal) (http.ResponseWriter, *http.Request, func()) {
	o := &operation{}
	missed := uint64(0)
	if refused != nil {
		log := false
		if log, missed = a.kept.Refused(a.Now(), refused.Cause); !log {
			return w, r, nil
		}
		o.problem = "not let in: " + refused.Cause
	}
	attrs := who(r)
	return &statusWriter{w, o}, r.WithContext(context.WithValue(r.Context(), operationKey{}, o)), func() {
		level, result := slog.LevelWarn, "refused"
		switch {
		case o.status == 0:
			result = "panicked"
		case o.status < 300:
			level, result = slog.LevelInfo, "done"
		case o.status >= 500 || o.status == http.StatusUnprocessableEntity:
			result = "failed"
		}
		for _, f := range []struct{ key, value string }{
			{"operation", o.name}, {"target", o.target}, {"before", o.before}, {"after", o.after}, {"problem", cut(o.problem)},
		} {
			if f.value != "" {
				attrs = append(attrs, slog.String(f.key, f.value))
			}
		}
		attrs = append(attrs, slog.Int("status", o.status), slog.String("result", result))
		if missed > 0 {
			attrs = append(attrs, slog.Uint64("unlogged_before", missed))
		}
		a.log(level, "admin: operation", attrs...)
	}
}

// statusWriter tells the operation what status its request was answered with.
type statusWriter struct {
	http.ResponseWriter
	o *operation
}

func (w *statusWriter) WriteHeader(status int) {
	if w.o.status == 0 {
		w.o.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(b []byte) (int, error) {
	if w.o.status == 0 {
		w.o.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for [http.ResponseController].
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
