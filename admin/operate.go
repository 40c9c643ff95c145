package admin

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// fail answers with a problem and tells the log.
func fail(w http.ResponseWriter, r *http.Request, status int, format string, args ...any) {
	detail := fmt.Sprintf(format, args...)
	operationOf(r).problem = detail
	cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: status, Detail: detail})
}

// missing answers for an operation that this daemon does not have.
func missing(w http.ResponseWriter, r *http.Request) {
	fail(w, r, http.StatusNotImplemented, "This daemon cannot do that.")
}

// words reads the body of an operation: each key is wanted, with one of its values, or none at all. It has answered where it returns false.
func words(w http.ResponseWriter, r *http.Request, key string, values ...string) (value string, ok bool) {
	body, status, err := readJSON(w, r)
	if err == nil {
		status = http.StatusBadRequest
		value, err = parseWord(body, key, values)
	}
	if err != nil {
		if status == http.StatusUnsupportedMediaType {
			w.Header().Set("Accept", "application/json")
		}
		fail(w, r, status, "%v", err)
		return "", false
	}
	return value, true
}

var forcings = [...]breaker.Forcing{breaker.ForcedOpen, breaker.ForcedClosed, breaker.Automatic}

// force is POST /api/v1/targets/{name}/circuit.
func (a *admin) force(w http.ResponseWriter, r *http.Request) {
	o, name := operationOf(r), r.PathValue("name")
	o.name, o.target = "circuit", cut(name)
	t := a.target(name)
	if t == nil {
		o.problem = "there is no such target"
		unknown(w, r, name)
		return
	}
	state, ok := words(w, r, "state", forcings[0].String(), forcings[1].String(), forcings[2].String())
	if !ok {
		return
	}
	for _, f := range forcings {
		if f.String() == state {
			o.before, o.after = t.Engine.Force(f).String(), state
		}
	}
	p := t.Engine.Pressure()
	writeJSON(w, http.StatusOK, struct {
		Name    string          `json:"name"`
		Before  string          `json:"before"`
		Forcing breaker.Forcing `json:"forcing"`
		State   string          `json:"state"`
	}{name, o.before, p.Forcing, p.Circuit.String()})
}

// drain is POST /api/v1/drain.
func (a *admin) drain(w http.ResponseWriter, r *http.Request) {
	o := operationOf(r)
	o.name = "drain"
	if a.Control.Drain == nil {
		missing(w, r)
		return
	}
	if _, ok := words(w, r, ""); !ok {
		return
	}
	o.before, o.after = "ready", "draining"
	if !a.Ready() {
		o.before = o.after
	}
	a.Control.Drain()
	writeJSON(w, http.StatusAccepted, struct {
		Draining bool `json:"draining"`
	}{true})
}

// reload is POST /api/v1/reload.
func (a *admin) reload(w http.ResponseWriter, r *http.Request) {
	o := operationOf(r)
	o.name = "reload"
	if a.Control.Reload == nil {
		missing(w, r)
		return
	}
	if _, ok := words(w, r, ""); !ok {
		return
	}
	if err := a.Control.Reload(r.Context()); err != nil {
		problems := lines(err)
		o.problem = problems[0]
		if more := len(problems) - 1; more > 0 {
			o.problem = fmt.Sprintf("%s (and %d more)", cut(problems[0]), more)
		}
		refuse(w, problems)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Reloaded bool `json:"reloaded"`
	}{true})
}

// refuse answers for a configuration that cannot be used.
func refuse(w http.ResponseWriter, problems []string) {
	const status = http.StatusUnprocessableEntity
	b, err := json.Marshal(struct {
		cortexhttp.Problem
		Problems []string `json:"problems"`
	}{cortexhttp.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status,
		Detail: "The configuration cannot be used; the one before stays in force."}, problems})
	if err != nil { // not of strings
		b = []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// lines are the problems that an error tells of.
func lines(err error) []string {
	var ls []string
	for l := range strings.Lines(err.Error()) {
		if l = strings.TrimSpace(l); l != "" {
			ls = append(ls, l)
		}
	}
	if len(ls) == 0 {
		return []string{"it failed without a reason"}
	}
	return ls
}

var levels = [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

func levelName(l slog.Level) string { return strings.ToLower(l.String()) }

type logLevel struct {
	Level string `json:"level"`
}

// level is GET /api/v1/log.
func (a *admin) level(w http.ResponseWriter, r *http.Request) {
	if a.Control.Level == nil {
		missing(w, r)
		return
	}
	writeJSON(w, http.StatusOK, logLevel{levelName(a.Control.Level())})
}

// setLevel is PUT or POST /api/v1/log.
func (a *admin) setLevel(w http.ResponseWriter, r *http.Request) {
	o := operationOf(r)
	o.name = "log"
	if a.Control.Level == nil || a.Control.SetLevel == nil {
		missing(w, r)
		return
	}
	names := make([]string, len(levels))
	for i, l := range levels {
		names[i] = levelName(l)
	}
	name, ok := words(w, r, "level", names...)
	if !ok {
		return
	}
	o.before = levelName(a.Control.Level())
	for i, l := range levels {
		if names[i] == name {
			a.Control.SetLevel(l)
		}
	}
	o.after = name
	writeJSON(w, http.StatusOK, logLevel{name})
}

// config is GET /api/v1/config.
func (a *admin) config(w http.ResponseWriter, r *http.Request) {
	if a.Control.ConfigYAML == nil {
		missing(w, r)
		return
	}
	b, err := a.Control.ConfigYAML()
	if err != nil {
		fail(w, r, http.StatusInternalServerError, "The configuration cannot be shown: %v", err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/yaml")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.Write(b)
}
