package admin

import (
	"github.com/seed-a29ca62a/cortex/cluster"
	"github.com/seed-a29ca62a/cortex/decision"
	"github.com/seed-a29ca62a/cortex/door"
)

// sharing is how a target fares in its fleet. Durations are milliseconds.
type sharing struct {
	Mode      cluster.Mode      `json:"mode"`
	SinceMS   float64           `json:"since_ms"`
	Instances uint64            `json:"instances"` // that are seen, this one included; 0 while alone
	ViewAgeMS float64           `json:"view_age_ms"`
	Epoch     uint64            `json:"epoch"`
	Owner     string            `json:"owner"` // instance that opened or closed the circuit last
	Prober    bool              `json:"prober"`
	Leased    float64           `json:"leased_tokens"` // in all
	Pool      float64           `json:"pool_tokens"`
	Window    *window           `json:"window,omitempty"` // in mode exact
	Exchanges map[string]uint64 `json:"exchanges"`        // by result
	Junk      uint64            `json:"junk"`
	Dropped   uint64            `json:"dropped"`
	Error     string            `json:"error,omitempty"`
}

type window struct {
	OK     uint64 `json:"ok"`
	Failed uint64 `json:"failed"`
}

func sharingOf(s *cluster.TargetStatus) *sharing {
	if s == nil {
		return nil
	}
	v := &sharing{Mode: s.Mode, SinceMS: ms(s.Since), Instances: s.Seen, ViewAgeMS: ms(s.ViewAge), Epoch: s.Epoch, Owner: s.Owner, Prober: s.Prober,
		Leased: finite(s.Lease), Pool: finite(s.Pool), Junk: s.Exchange.Junk, Dropped: s.Exchange.Dropped, Error: s.Error, Exchanges: map[string]uint64{}}
	for _, r := range exchanges {
		v.Exchanges[r.name] = r.count(&s.Exchange)
	}
	if s.WindowOK > 0 || s.WindowFailed > 0 {
		v.Window = &window{s.WindowOK, s.WindowFailed}
	}
	return v
}

// fleet is this instance in its fleet.
type fleet struct {
	Instance string       `json:"instance"`
	Mode     cluster.Mode `json:"mode"` // that of every target, else alone
	Targets  int          `json:"targets"`
	Alone    int          `json:"alone"` // of the targets
	Syncs    uint64       `json:"syncs"`
	Reloads  uint64       `json:"script_reloads"`
}

func fleetOf(s *cluster.Status) *fleet {
	if s == nil {
		return nil
	}
	v := &fleet{Instance: s.Instance, Mode: s.Mode, Targets: len(s.Targets), Syncs: s.Syncs, Reloads: s.Reloads}
	for i := range s.Targets {
		if s.Targets[i].Mode == cluster.Alone {
			v.Alone++
		}
	}
	return v
}

// service is the decision service.
type service struct {
	Targets    int                          `json:"targets"` // that were made
	Evicted    uint64                       `json:"evicted"`
	Overflowed uint64                       `json:"overflowed"`
	Tokens     int                          `json:"open_tokens"`
	Expired    uint64                       `json:"expired_tokens"`
	Full       uint64                       `json:"admitted_without_token"`
	Watches    int                          `json:"watches"`
	Requests   map[string]map[string]uint64 `json:"requests"` // by method and result
	Refused    map[string]uint64            `json:"refused"`  // by cause
}

func serviceOf(s *Decisions) *service {
	if s == nil {
		return nil
	}
	v := &service{Targets: s.Targets, Evicted: s.Evicted, Overflowed: s.Overflowed, Tokens: s.Tokens, Expired: s.Expired, Full: s.Full, Watches: s.Watches,
		Requests: make(map[string]map[string]uint64, len(s.Requests)), Refused: make(map[string]uint64, len(door.Causes))}
	for i, counts := range s.Requests {
		of := make(map[string]uint64, len(counts))
		for j, n := range counts {
			of[decision.Results[j]] = n
		}
		v.Requests[decision.Methods[i]] = of
	}
	for i, n := range s.Refused {
		v.Refused[door.Causes[i]] = n
	}
	return v
}

var (
	exchanges = []struct {
		name  string
		count func(*cluster.Exchange) uint64
	}{
		{"ok", func(x *cluster.Exchange) uint64 { return x.OK }},
		{"failed", func(x *cluster.Exchange) uint64 { return x.Failed }},
		{"skipped", func(x *cluster.Exchange) uint64 { return x.Skipped }},
	}
	modes       = []cluster.Mode{cluster.Fleet, cluster.Alone}
	clusterRows = []struct {
		name, kind, help string
		value            func(*cluster.TargetStatus) float64
	}{
		{"cluster_instances", "gauge", "Instances of the fleet in the newest view, this one included; 0 while alone.", func(s *cluster.TargetStatus) float64 { return float64(s.Seen) }},
		{"cluster_view_age_seconds", "gauge", "Time since the end of what the newest view of the fleet covers; 0 when there was none.", func(s *cluster.TargetStatus) float64 { return s.ViewAge.Seconds() }},
		{"cluster_prober", "gauge", "1 while this instance has the fleet's right to probe.", func(s *cluster.TargetStatus) float64 { return one(s.Prober) }},
		{"cluster_epoch", "gauge", "Transitions of the fleet's circuit; odd is open.", func(s *cluster.TargetStatus) float64 { return float64(s.Epoch) }},
		{"cluster_lease_tokens_total", "counter", "Tokens of the fleet's retry budget that were leased.", func(s *cluster.TargetStatus) float64 { return s.Lease }},
		{"cluster_pool_tokens", "gauge", "Tokens left in the fleet's retry budget.", func(s *cluster.TargetStatus) float64 { return s.Pool }},
		{"cluster_junk_total", "counter", "Fields, keys and answers of Redis that were none of ours.", func(s *cluster.TargetStatus) float64 { return float64(s.Exchange.Junk) }},
		{"cluster_dropped_total", "counter", "Calls that mode exact had no room for.", func(s *cluster.TargetStatus) float64 { return float64(s.Exchange.Dropped) }},
	}
)

// exposeFleet writes the families of targets that share.
func exposeFleet(e *exposition, rs []reading) {
	each := func(do func(r *reading, s *cluster.TargetStatus)) {
		for i := range rs {
			if s := rs[i].Fleet; s != nil {
				do(&rs[i], s)
			}
		}
	}
	e.begin(prefix+"cluster_mode", "gauge", "1 for whether the target's guard acts with its fleet or alone.")
	each(func(r *reading, s *cluster.TargetStatus) {
		for _, m := range modes {
			e.sample(one(s.Mode == m), "target", r.Name, "mode", string(m))
		}
	})
	e.begin(prefix+"cluster_syncs_total", "counter", "Exchanges of a target with its fleet, by result.")
	each(func(r *reading, s *cluster.TargetStatus) {
		for _, x := range exchanges {
			e.sample(float64(x.count(&s.Exchange)), "target", r.Name, "result", x.name)
		}
	})
	for _, f := range clusterRows {
		e.begin(prefix+f.name, f.kind, f.help)
		each(func(r *reading, s *cluster.TargetStatus) { e.sample(finite(f.value(s)), "target", r.Name) })
	}
}

// expose writes the families of the decision service.
func (s *Decisions) expose(e *exposition) {
	scalar := func(name, kind, help string, value float64) {
		e.begin(prefix+name, kind, help)
		e.sample(value)
	}
	e.begin(prefix+"decision_requests_total", "counter", "Requests to the decision service that were let in and are over, by method and result.")
	for i, counts := range s.Requests {
		for j, n := range counts {
			e.sample(float64(n), "method", decision.Methods[i], "result", decision.Results[j])
		}
	}
	e.begin(prefix+"decision_refused_total", "counter", "Requests to the decision service that were not let in, by cause.")
	for i, n := range s.Refused {
		e.sample(float64(n), "cause", door.Causes[i])
	}
	scalar("decision_open_tokens", "gauge", "Attempts that were admitted and not yet reported.", float64(s.Tokens))
	scalar("decision_expired_tokens_total", "counter", "Attempts that were admitted and not reported in time.", float64(s.Expired))
	scalar("decision_tokenless_admissions_total", "counter", "Attempts that were admitted without a token, for there were too many.", float64(s.Full))
	scalar("decision_watches", "gauge", "Streams of pressure changes that are open.", float64(s.Watches))
	scalar("decision_targets", "gauge", "Targets that were made when they were asked for.", float64(s.Targets))
	scalar("decision_evicted_targets_total", "counter", "Targets that made room for others.", float64(s.Evicted))
	scalar("decision_overflows_total", "counter", "Requests whose target had to share one engine with others, for there was no room.", float64(s.Overflowed))
}
