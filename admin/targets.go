package admin

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
)

// brief is a target in the list.
type brief struct {
	Name      string          `json:"name"`
	Endpoints []string        `json:"endpoints"`
	Profile   cortex.Profile  `json:"profile"`
	State     cortex.State    `json:"state"`
	CPS       float64         `json:"cps"`
	Floor     cortex.Priority `json:"floor"`
	Signals   five            `json:"signals"`
	Circuit   string          `json:"circuit"`
	Forcing   breaker.Forcing `json:"forcing"` // "auto", or what an operator has forced the circuit to be
	InFlight  int             `json:"in_flight"`
	Limit     float64         `json:"limit"`
	Calls     uint64          `json:"calls"`
	Refused   uint64          `json:"refused"` // of the calls, at the door
	Members   []member        `json:"members"`
	Made      bool            `json:"made,omitempty"` // when a client asked for it; it is in no configuration
	Cluster   string          `json:"cluster,omitempty"`
}

// member is one address of an endpoint.
type member struct {
	Endpoint  string        `json:"endpoint"` // URL
	Address   string        `json:"address,omitempty"`
	Weight    int           `json:"weight"`
	State     EndpointState `json:"state"`
	InFlight  int64         `json:"in_flight"`
	Attempts  uint64        `json:"attempts"`
	Failures  uint64        `json:"failures"`
	Ejections uint64        `json:"ejections"`
}

// detail is one target. Durations are milliseconds, ratios are from 0 to 1, counts are since the engine was made.
type detail struct {
	Name      string         `json:"name"`
	Endpoints []string       `json:"endpoints"`
	Profile   cortex.Profile `json:"profile"`

	State    cortex.State    `json:"state"`
	CPS      float64         `json:"cps"`
	Evidence float64         `json:"evidence"`
	Floor    cortex.Priority `json:"floor"`
	Levels   int             `json:"levels"`
	Shed     float64         `json:"shed"`
	Signals  five            `json:"signals"`
	Weights  five            `json:"weights"`
	Circuit  circuit         `json:"circuit"`

	Calls      uint64            `json:"calls"`
	Attempts   uint64            `json:"attempts"`
	Retries    uint64            `json:"retries"`
	Outcomes   map[string]uint64 `json:"outcomes"`
	Rejections map[string]uint64 `json:"rejections"`
	Stale      uint64            `json:"stale"`
	Lost       uint64            `json:"lost"`
	BadInput   uint64            `json:"bad_input"`
	Fallbacks  fallbacks         `json:"fallbacks"`
	Shadow     shadow            `json:"shadow"`
	Members    []member          `json:"members"`

	InFlight  int      `json:"in_flight"`
	Limit     float64  `json:"limit"`
	Capacity  float64  `json:"capacity_per_second"`
	Tokens    float64  `json:"tokens"`
	Price     float64  `json:"price"`
	TimeoutMS float64  `json:"timeout_ms"`
	P99MS     float64  `json:"p99_ms"`
	Samples   uint64   `json:"samples"`
	WindowMS  float64  `json:"window_ms"`
	Baseline  baseline `json:"baseline"`
	Made      bool     `json:"made,omitempty"`
	Cluster   *sharing `json:"cluster,omitempty"` // how it fares in its fleet
}

type five struct {
	F, L, Q, B, C float64
}

type circuit struct {
	State       string          `json:"state"`
	Forcing     breaker.Forcing `json:"forcing"`
	NextProbeMS float64         `json:"next_probe_ms"` // 0 also where it is forced open: there is none
	Generation  uint32          `json:"generation"`
	Transitions uint64          `json:"transitions"`
	Orders      uint64          `json:"orders"` // of operators
}

// shadow is what was decided for calls in shadow mode and not done.
type shadow struct {
	Calls   uint64            `json:"calls"`
	Refused map[string]uint64 `json:"refused"`
	Retried uint64            `json:"retried"`
	Cut     uint64            `json:"cut"`
}

type fallbacks struct {
	Cache  uint64 `json:"cache"`
	Static uint64 `json:"static"`
}

type baseline struct {
	Learned   bool    `json:"learned"` // false while the cold start lasts
	P99MS     float64 `json:"p99_ms"`
	SojournMS float64 `json:"sojourn_ms"`
	InFlight  float64 `json:"in_flight"`
}

// mostMade bounds the targets in the list that were made when a client asked for them. Each can be asked for by its name.
const mostMade = 1000

func (a *admin) list(w http.ResponseWriter, _ *http.Request) {
	bs := []brief{}
	made, omitted := 0, 0
	for _, t := range a.Targets() {
		if t.Made {
			if made++; made > mostMade {
				omitted++
				continue
			}
		}
		p, s := t.Engine.Pressure(), t.Engine.Stats()
		b := brief{Name: t.Name, Endpoints: t.endpoints(), Profile: t.Engine.Config().Profile, State: p.State, CPS: p.CPS,
			Floor: p.Floor, Signals: five(p.Signals), Circuit: p.Circuit.String(), Forcing: p.Forcing, InFlight: p.InFlight,
			Limit: finite(p.Limit), Calls: s.Calls, Members: t.members(), Made: t.Made}
		if t.Fleet != nil {
			b.Cluster = string(t.Fleet.Mode)
		}
		for _, reason := range ShadowReasons {
			b.Refused += s.Rejected(reason)
		}
		bs = append(bs, b)
	}
	writeJSON(w, http.StatusOK, struct {
		Targets []brief `json:"targets"`
		Omitted int     `json:"omitted,omitempty"` // of those that were made
	}{bs, omitted})
}

func (a *admin) show(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	t := a.target(name)
	if t == nil {
		unknown(w, r, name)
		return
	}
	writeJSON(w, http.StatusOK, t.detail())
}

// target is the one of that name; nil: there is none.
func (a *admin) target(name string) *Target {
	ts := a.Targets()
	for i := range ts {
		if ts[i].Name == name {
			return &ts[i]
		}
	}
	return nil
}

func (t *Target) detail() detail {
	c, p, s := t.Engine.Config(), t.Engine.Pressure(), t.Engine.Stats()
	d := detail{
		Name: t.Name, Endpoints: t.endpoints(), Profile: c.Profile,
		State: p.State, CPS: p.CPS, Evidence: p.Evidence, Floor: p.Floor, Levels: c.Levels, Shed: p.Shed,
		Signals: five(p.Signals), Weights: five(c.Weights),
		Circuit: circuit{State: p.Circuit.String(), Forcing: p.Forcing, NextProbeMS: ms(p.NextProbe), Generation: p.Generation,
			Transitions: s.Transitions, Orders: s.Orders},
		Members: t.members(), Shadow: shadow{Refused: make(map[string]uint64, len(ShadowReasons))},
		Calls: s.Calls, Attempts: s.Attempts, Retries: s.Retries, Stale: s.Stale, Lost: s.Lost, BadInput: s.BadInput,
		Outcomes: make(map[string]uint64, len(outcomes)), Rejections: make(map[string]uint64),
		InFlight: p.InFlight, Limit: finite(p.Limit), Capacity: finite(p.Capacity), Tokens: finite(p.Tokens), Price: finite(p.Price),
		TimeoutMS: ms(p.Timeout), P99MS: ms(p.P99), Samples: p.Samples, WindowMS: ms(p.Window),
		Baseline: baseline{Learned: p.Warm, P99MS: ms(p.BaselineP99), SojournMS: ms(p.BaselineSojourn), InFlight: finite(p.BaselineInFlight)},
		Made:     t.Made, Cluster: sharingOf(t.Fleet),
	}
	for _, o := range outcomes {
		d.Outcomes[o.name] = o.count(s)
	}
	for _, reason := range cortex.Reasons() {
		d.Rejections[reason.String()] = s.Rejected(reason)
	}
	var traffic Traffic
	if t.Traffic != nil {
		traffic = t.Traffic()
	}
	d.Fallbacks = fallbacks{Cache: traffic.CacheFallbacks, Static: traffic.StaticFallbacks}
	d.Shadow.Calls, d.Shadow.Retried, d.Shadow.Cut = traffic.Shadow.Calls, traffic.Shadow.Retried, traffic.Shadow.Cut
	for _, reason := range ShadowReasons {
		d.Shadow.Refused[reason.String()] = traffic.Shadow.Refused[reason]
	}
	return d
}

func (t *Target) members() []member {
	ms := []member{}
	if t.Members == nil {
		return ms
	}
	for _, e := range t.Members() {
		ms = append(ms, member{Endpoint: e.URL, Address: e.Address, Weight: e.Weight, State: e.State, InFlight: e.InFlight,
			Attempts: e.Attempts, Failures: e.Failures, Ejections: e.Ejections})
	}
	return ms
}

func (t *Target) endpoints() []string {
	if t.Endpoints == nil {
		return []string{} // null is no list
	}
	return t.Endpoints
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// finite keeps what JSON cannot say out of it: a limit that is not bounded yet is the largest number there is.
func finite(v float64) float64 {
	switch {
	case math.IsNaN(v):
		return 0
	case math.IsInf(v, 1):
		return math.MaxFloat64
	case math.IsInf(v, -1):
		return -math.MaxFloat64
	}
	return v
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

func unknown(w http.ResponseWriter, r *http.Request, name string) {
	cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: http.StatusNotFound,
		Detail: fmt.Sprintf("There is no target %s: GET /api/v1/targets lists those there are.", show(name))})
}
