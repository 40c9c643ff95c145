package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/cluster"
	"github.com/seed-a29ca62a/cortex/decision"
	"github.com/seed-a29ca62a/cortex/door"
)

// shared is a desk of an instance in a fleet, with a decision service beside it.
func shared(t *testing.T) *desk {
	t.Helper()
	of := &cluster.TargetStatus{Target: "stock", Mode: cluster.Fleet, Since: time.Minute, Seen: 3, ViewAge: 250 * time.Millisecond, Epoch: 5, Owner: "i2",
		Prober: true, Lease: 12.5, Pool: 3, Exchange: cluster.Exchange{OK: 100, Failed: 2, Skipped: 1, Junk: 4, Dropped: 6}, Error: "i/o timeout"}
	stats := decision.Stats{Requests: make([][len(decision.Results)]uint64, len(decision.Methods)), Refused: [len(door.Causes)]uint64{7, 8, 9},
		Tokens: 11, Expired: 12, Full: 13, Watches: 14}
	stats.Requests[0][0], stats.Requests[1][1] = 20, 21
	d := newDesk(t, "", func(c *Config) {
		c.Server = func() Server {
			return Server{Fleet: &cluster.Status{Instance: "i1", Mode: cluster.Alone, Syncs: 101, Reloads: 1,
				Targets: []cluster.TargetStatus{*of, {Target: "mails", Mode: cluster.Alone}}},
				Decisions: &Decisions{Stats: stats, Targets: 1, Evicted: 15, Overflowed: 16}}
		}
	})
	d.targets[0].Fleet = of
	d.targets = append(d.targets, Target{Name: "mails", Engine: engine(t, "mails", d.clock), Made: true, Fleet: &cluster.TargetStatus{Target: "mails", Mode: cluster.Alone}},
		Target{Name: "own", Engine: engine(t, "own", d.clock)})
	return d
}

func TestMetricsOfFleetAndDecisions(t *testing.T) {
	_, body := get(t, shared(t), "GET", "/metrics")
	fs, err := parse(body)
	if err != nil {
		t.Fatal(err)
	}
	for series, want := range map[string]float64{
		`cluster_mode{target="stock",mode="fleet"}`:                           1,
		`cluster_mode{target="stock",mode="alone"}`:                           0,
		`cluster_instances{target="stock"}`:                                   3,
		`cluster_view_age_seconds{target="stock"}`:                            0.25,
		`cluster_prober{target="stock"}`:                                      1,
		`cluster_epoch{target="stock"}`:                                       5,
		`cluster_lease_tokens_total{target="stock"}`:                          12.5,
		`cluster_pool_tokens{target="stock"}`:                                 3,
		`cluster_junk_total{target="stock"}`:                                  4,
		`cluster_dropped_total{target="stock"}`:                               6,
		`cluster_syncs_total{target="stock",result="ok"}`:                     100,
		`cluster_syncs_total{target="stock",result="failed"}`:                 2,
		`cluster_syncs_total{target="stock",result="skipped"}`:                1,
		`cluster_round_trips_total`:                                           101,
		`cluster_script_reloads_total`:                                        1,
		`decision_requests_total{method="Admit",result="ok"}`:                 20,
		`decision_requests_total{method="Report",result="malformed"}`:         21,
		`decision_requests_total{method="Watch",result="resource_exhausted"}`: 0,
		`decision_refused_total{cause="host"}`:                                8,
		`decision_open_tokens`:                                                11,
		`decision_expired_tokens_total`:                                       12,
		`decision_tokenless_admissions_total`:                                 13,
		`decision_watches`:                                                    14,
		`decision_targets`:                                                    1,
		`decision_evicted_targets_total`:                                      15,
		`decision_overflows_total`:                                            16,
	} {
		name, _, _ := strings.Cut(prefix+series, "{")
		if fs[name] == nil {
			t.Errorf("no family %s", name)
		} else if v, ok := fs[name].series[prefix+series]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", series, v, ok, want)
		}
	}
	// What clients name is no series, and who shares nothing has none of these.
	if strings.Contains(body, "mails") || strings.Contains(body, `cluster_mode{target="own"`) {
		t.Error("series that should not be")
	}
	if _, body := get(t, newDesk(t, ""), "GET", "/metrics"); strings.Contains(body, "cluster_") || strings.Contains(body, "decision_") {
		t.Error("families of what is not there")
	}
}

func TestListOfMadeTargetsIsBounded(t *testing.T) {
	d := newDesk(t, "")
	for range mostMade + 7 {
		d.targets = append(d.targets, Target{Name: "made", Engine: d.targets[0].Engine, Made: true})
	}
	_, body := get(t, d, "GET", "/api/v1/targets")
	var list struct {
		Targets []struct{ Name string }
		Omitted int
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Targets) != mostMade+1 || list.Omitted != 7 {
		t.Errorf("%v: %d targets, %d omitted", err, len(list.Targets), list.Omitted)
	}
}

func TestFleetAndDecisionsInFull(t *testing.T) {
	d := shared(t)
	ask := func(path string, to any) {
		t.Helper()
		res, body := get(t, d, "GET", path)
		if err := json.Unmarshal([]byte(body), to); err != nil || res.StatusCode != 200 {
			t.Fatalf("%s: %d %v: %s", path, res.StatusCode, err, body)
		}
	}
	var s struct {
		Cluster   fleet
		Decisions service
	}
	ask("/api/v1/server", &s)
	if s.Cluster != (fleet{Instance: "i1", Mode: cluster.Alone, Targets: 2, Alone: 1, Syncs: 101, Reloads: 1}) {
		t.Errorf("%+v", s.Cluster)
	}
	if c := s.Decisions; c.Targets != 1 || c.Tokens != 11 || c.Requests["Admit"]["ok"] != 20 || c.Requests["Report"]["malformed"] != 21 || c.Refused["origin"] != 9 {
		t.Errorf("%+v", c)
	}
	var one struct {
		Made    bool
		Cluster *sharing
	}
	ask("/api/v1/targets/stock", &one)
	if c := one.Cluster; c == nil || c.Mode != cluster.Fleet || c.Instances != 3 || c.ViewAgeMS != 250 || c.Error != "i/o timeout" || c.Exchanges["failed"] != 2 ||
		c.Leased != 12.5 || c.Owner != "i2" || c.Window != nil || one.Made {
		t.Errorf("%+v", one)
	}
	one.Cluster = nil
	ask("/api/v1/targets/mails", &one)
	if !one.Made || one.Cluster == nil || one.Cluster.Mode != cluster.Alone {
		t.Errorf("%+v", one)
	}
	var list struct {
		Targets []struct {
			Name, Cluster string
			Made          bool
		}
	}
	ask("/api/v1/targets", &list)
	if l := list.Targets; len(l) != 3 || l[0].Cluster != "fleet" || l[1].Cluster != "alone" || !l[1].Made || l[2].Cluster != "" {
		t.Errorf("%+v", l)
	}
}
