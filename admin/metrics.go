package admin

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cortexhttp"
	"github.com/seed-a29ca62a/cortex/door"
)

// prefix of every metric; plain cortex_ belongs to another well-known program.
const prefix = "cortex_guard_"

// reading is a target with what its engine and its traffic said at one moment.
type reading struct {
	Target
	p       cortex.Pressure
	s       cortex.Stats
	traffic Traffic
	members []Endpoint
}

func read(targets []Target) []reading {
	rs := make([]reading, 0, len(targets))
	for _, t := range targets {
		if t.Made {
			continue
		}
		r := reading{Target: t, p: t.Engine.Pressure(), s: t.Engine.Stats()}
		if t.Traffic != nil {
			r.traffic = t.Traffic()
		}
		if t.Members != nil {
			r.members = t.Members()
		}
		rs = append(rs, r)
	}
	return rs
}

// scalars are the families with one series a target.
var scalars = []struct {
	name, kind, help string
	value            func(*reading) float64
}{
	{"calls_total", "counter", "Calls offered, refused ones included.", func(r *reading) float64 { return float64(r.s.Calls) }},
	{"attempts_total", "counter", "Attempts let through to the target, retries included.", func(r *reading) float64 { return float64(r.s.Attempts) }},
	{"retries_total", "counter", "Retries decided on.", func(r *reading) float64 { return float64(r.s.Retries) }},
	{"stale_results_total", "counter", "Results that came after the circuit had changed and were not counted as outcomes.", func(r *reading) float64 { return float64(r.s.Stale) }},
	{"lost_attempts_total", "counter", "Attempts that never ended within the life of their permit.", func(r *reading) float64 { return float64(r.s.Lost) }},
	{"bad_inputs_total", "counter", "Gauge readings and reports of other guards that were not numbers.", func(r *reading) float64 { return float64(r.s.BadInput) }},
	{"dropped_events_total", "counter", "Events that a blocked listener missed.", func(r *reading) float64 { return float64(r.s.Dropped) }},
	{"circuit_transitions_total", "counter", "Transitions of the circuit, without the probes of one outage.", func(r *reading) float64 { return float64(r.s.Transitions) }},
	{"circuit_orders_total", "counter", "Orders of operators to the circuit.", func(r *reading) float64 { return float64(r.s.Orders) }},
	{"shadow_calls_total", "counter", "Calls of routes in shadow mode.", func(r *reading) float64 { return float64(r.traffic.Shadow.Calls) }},
	{"shadow_retries_total", "counter", "Calls in shadow mode that would have been tried again.", func(r *reading) float64 { return float64(r.traffic.Shadow.Retried) }},
	{"shadow_cuts_total", "counter", "Calls in shadow mode that would have been cut by their attempt timeout.", func(r *reading) float64 { return float64(r.traffic.Shadow.Cut) }},
	{"cache_fallbacks_total", "counter", "Calls answered with the last good answer.", func(r *reading) float64 { return float64(r.traffic.CacheFallbacks) }},
	{"static_fallbacks_total", "counter", "Calls answered with the static answer of their route.", func(r *reading) float64 { return float64(r.traffic.StaticFallbacks) }},
	{"client_aborts_total", "counter", "Calls whose client went away before it had its whole answer.", func(r *reading) float64 { return float64(r.traffic.ClientAborts) }},
	{"broken_answers_total", "counter", "Answers that the target broke off after they had begun, so that the client's transfer was aborted.", func(r *reading) float64 { return float64(r.traffic.BrokenAnswers) }},

	{"pressure", "gauge", "Composite pressure score, 0 to 1.", func(r *reading) float64 { return r.p.CPS }},
	{"evidence", "gauge", "The score without the circuit's own state, 0 to 1.", func(r *reading) float64 { return r.p.Evidence }},
	{"signal_failure_rate", "gauge", "Signal F: failures as a share of outcomes, 0 to 1.", func(r *reading) float64 { return r.p.Signals.F }},
	{"signal_latency_deviation", "gauge", "Signal L: deviation of latency from its baseline, 0 to 1.", func(r *reading) float64 { return r.p.Signals.L }},
	{"signal_queue_pressure", "gauge", "Signal Q: attempts in flight against the limit, 0 to 1.", func(r *reading) float64 { return r.p.Signals.Q }},
	{"signal_budget_burn", "gauge", "Signal B: share of the retry tokens that was spent, 0 to 1.", func(r *reading) float64 { return r.p.Signals.B }},
	{"signal_circuit", "gauge", "Signal C: 0 closed, 0.5 half-open, 1 open.", func(r *reading) float64 { return r.p.Signals.C }},
	{"floor_priority", "gauge", "Calls of a priority below it are shed.", func(r *reading) float64 { return float64(r.p.Floor) }},
	{"shed_ratio", "gauge", "Share of the offered calls that is shed, lowest priority first, 0 to 1.", func(r *reading) float64 { return r.p.Shed }},
	{"next_probe_seconds", "gauge", "Time until the open circuit admits a probe; 0 when closed, and when forced open, where none will be.", func(r *reading) float64 { return r.p.NextProbe.Seconds() }},
	{"in_flight_attempts", "gauge", "Attempts in flight.", func(r *reading) float64 { return float64(r.p.InFlight) }},
	{"in_flight_limit", "gauge", "Attempts in flight at which the queue pressure is 1.", func(r *reading) float64 { return r.p.Limit }},
	{"capacity_per_second", "gauge", "Estimated successes a second the target can give; 0 when not known.", func(r *reading) float64 { return r.p.Capacity }},
	{"retry_tokens", "gauge", "Tokens in the retry budget.", func(r *reading) float64 { return r.p.Tokens }},
	{"retry_price", "gauge", "Tokens that a retry costs now.", func(r *reading) float64 { return r.p.Price }},
	{"attempt_timeout_seconds", "gauge", "Attempt timeout in force; 0 when attempts are not cut.", func(r *reading) float64 { return r.p.Timeout.Seconds() }},
	{"latency_p99_seconds", "gauge", "99th percentile of attempt latency in the window in use.", func(r *reading) float64 { return r.p.P99.Seconds() }},
	{"baseline_p99_seconds", "gauge", "Learned latency that signal L compares with.", func(r *reading) float64 { return r.p.BaselineP99.Seconds() }},
	{"baseline_sojourn_seconds", "gauge", "Learned mean time of an attempt at the target.", func(r *reading) float64 { return r.p.BaselineSojourn.Seconds() }},
	{"fallback_cache_bytes", "gauge", "Bytes of last good answers held.", func(r *reading) float64 { return float64(r.traffic.CacheBytes) }},
	{"fallback_cache_entries", "gauge", "Last good answers held.", func(r *reading) float64 { return float64(r.traffic.CacheEntries) }},
}

var (
	states   = []EndpointState{EndpointUp, EndpointSlow, EndpointEjected, EndpointCheckedOut}
	circuits = []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open}
	healths  = []cortex.State{cortex.Healthy, cortex.Elevated, cortex.Pressured, cortex.Emergency}
	outcomes = []struct {
		name  string
		count func(cortex.Stats) uint64
	}{
		{cortex.Neutral.String(), func(s cortex.Stats) uint64 { return s.Neutral }},
		{cortex.Success.String(), func(s cortex.Stats) uint64 { return s.Successes }},
		{cortex.Failed.String(), func(s cortex.Stats) uint64 { return s.Failures }},
		{cortex.TimedOut.String(), func(s cortex.Stats) uint64 { return s.Timeouts }},
		{cortex.Throttled.String(), func(s cortex.Stats) uint64 { return s.Throttled }},
	}
)

// metrics writes every family. All series of a target exist from the start: their number depends on the configuration, and on the
// addresses of the hosts in it, never on what clients send, and a rate over them has no first sample missing.
func (a *admin) metrics(w http.ResponseWriter, _ *http.Request) {
	rs := read(a.Targets())
	var e exposition
	for _, f := range scalars {
		e.begin(prefix+f.name, f.kind, f.help)
		for i := range rs {
			e.sample(f.value(&rs[i]), "target", rs[i].Name)
		}
	}
	e.begin(prefix+"outcomes_total", "counter", "Attempts by what they said of the target's health.")
	for _, r := range rs {
		for _, o := range outcomes {
			e.sample(float64(o.count(r.s)), "target", r.Name, "outcome", o.name)
		}
	}
	e.begin(prefix+"rejections_total", "counter", "Calls and retries refused, by reason.")
	for _, r := range rs {
		for _, reason := range cortex.Reasons() {
			e.sample(float64(r.s.Rejected(reason)), "target", r.Name, "reason", reason.String())
		}
	}
	e.begin(prefix+"replays_skipped_total", "counter", "Failed calls not tried again because their body could not be sent again, by reason.")
	for _, r := range rs {
		for i, n := range r.traffic.ReplaysSkipped {
			e.sample(float64(n), "target", r.Name, "reason", cortexhttp.ReplaySkip(i+1).String())
		}
	}
	e.begin(prefix+"answers_total", "counter", "Answers to clients by class of their status, fallbacks and refusals included.")
	for _, r := range rs {
		for class, n := range r.traffic.Answers {
			if class > 0 {
				e.sample(float64(n), "target", r.Name, "code_class", strconv.Itoa(class)+"xx")
			}
		}
	}
	e.begin(prefix+"circuit_state", "gauge", "1 for the state the circuit is in.")
	for _, r := range rs {
		for _, s := range circuits {
			e.sample(one(r.p.Circuit == s), "target", r.Name, "state", s.String())
		}
	}
	e.begin(prefix+"circuit_forced", "gauge", "1 for what an operator has forced the circuit to be; auto is not forced.")
	for _, r := range rs {
		for _, f := range forcings {
			e.sample(one(r.p.Forcing == f), "target", r.Name, "state", f.String())
		}
	}
	e.begin(prefix+"shadow_refusals_total", "counter", "Calls in shadow mode that would have been refused, by reason.")
	for _, r := range rs {
		for _, reason := range ShadowReasons {
			e.sample(float64(r.traffic.Shadow.Refused[reason]), "target", r.Name, "reason", reason.String())
		}
	}
	e.begin(prefix+"health_state", "gauge", "1 for the health state of the target.")
	for _, r := range rs {
		for _, s := range healths {
			e.sample(one(r.p.State == s), "target", r.Name, "state", s.String())
		}
	}
	e.begin(prefix+"call_duration_seconds", "histogram", "Time from a call's arrival to the end of its answer, waits and retries included.")
	for i := range rs {
		d := &rs[i].traffic.Durations
		e.histogram(durationBounds[:], d.Counts[:], d.Sum.Seconds(), "target", rs[i].Name)
	}
	e.begin(prefix+"ready", "gauge", "1 while the daemon takes traffic, 0 while it drains.")
	e.sample(one(a.Ready()))
	endpoints(&e, rs)
	if slices.ContainsFunc(rs, func(r reading) bool { return r.Fleet != nil }) {
		exposeFleet(&e, rs)
	}
	if a.Server != nil {
		a.Server().expose(&e)
	}
	e.begin(prefix+"admin_refused_total", "counter", "Requests to the admin port that were not let in, by cause.")
	for i, n := range a.kept.Counts() {
		e.sample(float64(n), "cause", door.Causes[i])
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(e.b)
}

// memberScalars are the families with one series for each address of an endpoint.
var memberScalars = []struct {
	name, kind, help string
	value            func(*Endpoint) float64
}{
	{"endpoint_in_flight_attempts", "gauge", "Attempts in flight at an endpoint.", func(e *Endpoint) float64 { return float64(e.InFlight) }},
	{"endpoint_attempts_total", "counter", "Attempts sent to an endpoint.", func(e *Endpoint) float64 { return float64(e.Attempts) }},
	{"endpoint_failures_total", "counter", "Attempts that failed at an endpoint.", func(e *Endpoint) float64 { return float64(e.Failures) }},
	{"endpoint_ejections_total", "counter", "Times that an endpoint was ejected.", func(e *Endpoint) float64 { return float64(e.Ejections) }},
}

func endpoints(e *exposition, rs []reading) {
	for _, f := range memberScalars {
		e.begin(prefix+f.name, f.kind, f.help)
		for _, r := range rs {
			for i := range r.members {
				m := &r.members[i]
				e.sample(f.value(m), "target", r.Name, "endpoint", m.URL, "address", m.Address)
			}
		}
	}
	e.begin(prefix+"endpoint_state", "gauge", "1 for the state that an endpoint is in.")
	for _, r := range rs {
		for _, m := range r.members {
			for _, s := range states {
				e.sample(one(m.State == s), "target", r.Name, "endpoint", m.URL, "address", m.Address, "state", s.String())
			}
		}
	}
}

// expose writes the families of the daemon as a whole.
func (s Server) expose(e *exposition) {
	scalar := func(name, kind, help string, value float64) {
		e.begin(prefix+name, kind, help)
		e.sample(value)
	}
	causes := func(name, help string, counts []Count) {
		e.begin(prefix+name, "counter", help)
		for _, c := range counts {
			e.sample(float64(c.N), "cause", c.Cause)
		}
	}
	e.begin(prefix+"reloads_total", "counter", "Reloads of the configuration, by result.")
	e.sample(float64(s.Reloads.OK), "result", "ok")
	e.sample(float64(s.Reloads.Failed), "result", "failed")
	last := 0.0
	if !s.Reloads.Last.IsZero() {
		last = float64(s.Reloads.Last.UnixMilli()) / 1000
	}
	scalar("last_reload_timestamp_seconds", "gauge", "Time of the last reload since 1970, good or not; 0 when there was none.", last)
	scalar("last_reload_ok", "gauge", "0 while the last reload has failed and the configuration before it is in force.", one(len(s.Reloads.Problems) == 0))
	scalar("connections", "gauge", "Connections of clients that are open.", float64(s.Connections.Open))
	causes("connections_refused_total", "Connections of clients that were refused, by cause.", s.Connections.Refused)
	causes("connections_cut_total", "Connections of clients that were cut, by cause.", s.Connections.Cut)
	scalar("memory_used_bytes", "gauge", "Bytes of request bodies for retries and of cached answers held.", float64(s.Memory.Used))
	scalar("memory_limit_bytes", "gauge", "Bytes of request bodies for retries and of cached answers that may be held.", float64(s.Memory.Limit))
	scalar("access_log_dropped_lines_total", "counter", "Lines of the access log that the disk did not take, or not in time.", float64(s.AccessLogDropped))
	e.begin(prefix+"limit_answers_total", "counter", "Answers to clients that were over a limit, by status.")
	for i, status := range LimitStatuses {
		e.sample(float64(s.LimitAnswers[i]), "code", statusLabel(status))
	}
	if f := s.Fleet; f != nil {
		scalar("cluster_round_trips_total", "counter", "Round trips to Redis.", float64(f.Syncs))
		scalar("cluster_script_reloads_total", "counter", "Times that Redis did not know the script and was sent it.", float64(f.Reloads))
	}
	if s.Decisions != nil {
		s.Decisions.expose(e)
	}
}

func statusLabel(status int) string { return strconv.Itoa(status) }

// durationBounds are the bounds of [Durations] in seconds.
var durationBounds = func() (s [len(DurationBounds)]float64) {
	for i, d := range DurationBounds {
		s[i] = d.Seconds()
	}
	return s
}()

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
