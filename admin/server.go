package admin

import (
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex/door"
)

// serverDetail is the daemon as a whole.
type serverDetail struct {
	Ready            bool              `json:"ready"`
	LogLevel         string            `json:"log_level,omitempty"`
	Reloads          reloads           `json:"reloads"`
	Connections      connections       `json:"connections"`
	Memory           memory            `json:"memory"`
	LimitAnswers     map[string]uint64 `json:"limit_answers"` // by status
	AccessLogDropped uint64            `json:"access_log_dropped"`
	AdminRefused     map[string]uint64 `json:"admin_refused"` // requests to this port that were not let in, by cause
	Cluster          *fleet            `json:"cluster,omitempty"`
	Decisions        *service          `json:"decisions,omitempty"`
}

type reloads struct {
	OK       uint64     `json:"ok"`
	Failed   uint64     `json:"failed"`
	Last     *time.Time `json:"last"`     // null = there was none
	Problems []string   `json:"problems"` // of the last, if it failed
}

type connections struct {
	Open    int               `json:"open"`
	Refused map[string]uint64 `json:"refused"` // by cause
	Cut     map[string]uint64 `json:"cut"`
}

type memory struct {
	UsedBytes  int64 `json:"used_bytes"`
	LimitBytes int64 `json:"limit_bytes"`
}

// server is GET /api/v1/server.
func (a *admin) server(w http.ResponseWriter, r *http.Request) {
	if a.Server == nil {
		missing(w, r)
		return
	}
	s := a.Server()
	d := serverDetail{
		Ready:   a.Ready(),
		Reloads: reloads{OK: s.Reloads.OK, Failed: s.Reloads.Failed, Problems: s.Reloads.Problems},
		Connections: connections{Open: s.Connections.Open, Refused: byCause(s.Connections.Refused),
			Cut: byCause(s.Connections.Cut)},
		Memory: memory{UsedBytes: s.Memory.Used, LimitBytes: s.Memory.Limit}, AccessLogDropped: s.AccessLogDropped,
		LimitAnswers: make(map[string]uint64, len(LimitStatuses)), AdminRefused: make(map[string]uint64, len(door.Causes)),
		Cluster: fleetOf(s.Fleet), Decisions: serviceOf(s.Decisions),
	}
	if a.Control.Level != nil {
		d.LogLevel = levelName(a.Control.Level())
	}
	if t := s.Reloads.Last; !t.IsZero() {
		d.Reloads.Last = &t
	}
	if d.Reloads.Problems == nil {
		d.Reloads.Problems = []string{}
	}
	for i, status := range LimitStatuses {
		d.LimitAnswers[statusLabel(status)] = s.LimitAnswers[i]
	}
	for i, n := range a.kept.Counts() {
		d.AdminRefused[door.Causes[i]] = n
	}
	writeJSON(w, http.StatusOK, d)
}

func byCause(counts []Count) map[string]uint64 {
	m := make(map[string]uint64, len(counts))
	for _, c := range counts {
		m[c.Cause] = c.N
	}
	return m
}
