// Package suite runs scenarios under policies over seeds, side by side, and sums up what the runs measured.
package suite

import (
	"time"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// A Row is what the runs of one scenario under one policy measured: means over the seeds. Shares are in [0,1].
type Row struct {
	Scenario  string `json:"scenario"`
	Policy    string `json:"policy"`
	Instances int    `json:"instances,omitempty"` // of a fleet; 0 = one guard
	Share     string `json:"share,omitempty"`     // what they know of each other
	Seeds     int    `json:"seeds"`

	Offered           float64            `json:"offered"` // calls a run
	Goodput           float64            `json:"goodput"`
	GoodputSD         float64            `json:"goodput_sd"` // standard deviation over the seeds
	GoodputByPriority map[string]float64 `json:"goodput_by_priority"`
	Oracle            float64            `json:"oracle"`
	OracleByPriority  map[string]float64 `json:"oracle_by_priority"`
	Efficiency        float64            `json:"efficiency"`
	EfficiencyWorst   float64            `json:"efficiency_worst"` // of the seeds

	Amplification        float64  `json:"amplification"`          // attempts at the downstream a call offered
	AmplificationInFault float64  `json:"amplification_in_fault"` // the same within the incidents; 0 without one
	TTR                  *float64 `json:"ttr_s"`                  // nil: never in at least one seed
	NeverRecovered       int      `json:"never_recovered"`        // seeds
	TTD                  *float64 `json:"ttd_s"`                  // nil: no full outage, or never in at least one seed
	WastedServerS        float64  `json:"wasted_server_s"`
	P99ServedMS          float64  `json:"p99_served_ms"`
	FalseRejections      float64  `json:"false_rejections"` // share of the calls offered while the downstream was healthy
	Inversions           float64  `json:"inversions"`       // calls a run
	Overshoot            float64  `json:"overshoot"`        // peak of attempts a second after recovery ÷ capacity
	Transitions          float64  `json:"transitions"`      // of circuits, a run and guard
	TransitionsPerMinute float64  `json:"transitions_per_minute"`
	AdmittedCV           float64  `json:"admitted_cv"` // coefficient of variation of the attempts a second within the incidents

	Rejections map[string]float64 `json:"rejections"` // a run, by reason
}

// Options say what to run.
type Options struct {
	Scenarios []*scenario.Scenario // validated
	Policies  []string             // see Policies
	Seeds     int                  // runs of each; 0 = the scenario's own
	Seed      uint64               // of the first run; the next ones count up
	Instances int                  // guards that share the load; 0 or 1 = one
	Share     string               // "none", "door", or the delay of shared counts, such as "250ms"; "" = none
	Parallel  int                  // runs at a time; 0 = processors
	Progress  func(done, total int)
}

// A Timeline is one run over time, for plots: at most a few hundred samples whatever its length.
type Timeline struct {
	Scenario, Policy string
	Incidents        []scenario.Interval
	Priorities       []int // order of Goodput
	Samples          []TimeSample
}

// A TimeSample covers the time since the sample before.
type TimeSample struct {
	At                  time.Duration
	Offered, Attempts   float64   // a second
	Calls               []float64 // by priority: calls that arrived in it
	Goodput             []float64 // by priority: share of Calls that was answered in the end; NaN without calls
	CPS, F, L, Q, B, C  float64   // at its end; 0 for policies without a score
	Evidence            float64
	Shed, Limit, Flight float64
	Circuit             string // state of the first guard's circuit: closed, half-open, open; "" = has none
}
