package admin

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// busy is a desk of which there is something to be told of everything.
func busy(t *testing.T) *desk {
	t.Helper()
	d := newDesk(t, "", func(c *Config) {
		c.Server = func() Server {
			return Server{
				Reloads: Reloads{OK: 3, Failed: 1, Last: time.Unix(1_000_000_000, 500_000_000), Problems: []string{"a.yaml:1:1: x"}},
				Connections: Connections{Open: 7, Refused: []Count{{"client_limit", 4}, {"full", 0}},
					Cut: []Count{{"slow_body", 5}}},
				Memory:           Memory{Used: 1 << 20, Limit: 1 << 28},
				LimitAnswers:     [len(LimitStatuses)]uint64{1, 2, 3, 4, 5},
				AccessLogDropped: 6,
			}
		}
	})
	d.targets[0].Endpoints = []string{"http://stock.internal:9000"}
	d.targets[0].Members = func() []Endpoint {
		return []Endpoint{
			{URL: "http://stock.internal:9000", Address: "10.0.0.1", Weight: 1, InFlight: 2, Attempts: 10},
			{URL: "http://stock.internal:9000", Address: "fd00::2", Weight: 1, State: EndpointEjected, Attempts: 9, Failures: 8, Ejections: 1},
			{URL: "http://127.0.0.1:9001", Weight: 3, State: EndpointSlow},
		}
	}
	d.targets[0].Traffic = func() Traffic {
		var s Shadow
		s.Calls, s.Retried, s.Cut = 100, 20, 30
		s.Refused[cortex.ReasonShed] = 11
		return Traffic{Shadow: s}
	}
	return d
}

func TestMetricsOfEndpointsShadowAndServer(t *testing.T) {
	d := busy(t)
	_, body := get(t, d, "GET", "/metrics")
	fs, err := parse(body)
	if err != nil {
		t.Fatal(err)
	}
	first := `target="stock",endpoint="http://stock.internal:9000",address="10.0.0.1"`
	second := `target="stock",endpoint="http://stock.internal:9000",address="fd00::2"`
	third := `target="stock",endpoint="http://127.0.0.1:9001",address=""`
	for series, want := range map[string]float64{
		`endpoint_in_flight_attempts{` + first + `}`:                       2,
		`endpoint_attempts_total{` + first + `}`:                           10,
		`endpoint_failures_total{` + second + `}`:                          8,
		`endpoint_ejections_total{` + second + `}`:                         1,
		`endpoint_state{` + first + `,state="up"}`:                         1,
		`endpoint_state{` + first + `,state="ejected"}`:                    0,
		`endpoint_state{` + second + `,state="ejected"}`:                   1,
		`endpoint_state{` + third + `,state="slow-start"}`:                 1,
		`endpoint_state{` + third + `,state="checked-out"}`:                0,
		`circuit_forced{target="stock",state="auto"}`:                      1,
		`circuit_forced{target="stock",state="open"}`:                      0,
		`circuit_orders_total{target="stock"}`:                             0,
		`shadow_calls_total{target="stock"}`:                               100,
		`shadow_retries_total{target="stock"}`:                             20,
		`shadow_cuts_total{target="stock"}`:                                30,
		`shadow_refusals_total{target="stock",reason="CIRCUIT_OPEN"}`:      0,
		`shadow_refusals_total{target="stock",reason="SHED_LOW_PRIORITY"}`: 11,
		`reloads_total{result="ok"}`:                                       3,
		`reloads_total{result="failed"}`:                                   1,
		`last_reload_timestamp_seconds`:                                    1_000_000_000.5,
		`last_reload_ok`:                                                   0,
		`connections`:                                                      7,
		`connections_refused_total{cause="client_limit"}`:                  4,
		`connections_refused_total{cause="full"}`:                          0,
		`connections_cut_total{cause="slow_body"}`:                         5,
		`memory_used_bytes`:                                                1 << 20,
		`memory_limit_bytes`:                                               1 << 28,
		`access_log_dropped_lines_total`:                                   6,
		`limit_answers_total{code="408"}`:                                  1,
		`limit_answers_total{code="413"}`:                                  2,
		`limit_answers_total{code="414"}`:                                  3,
		`limit_answers_total{code="429"}`:                                  4,
		`limit_answers_total{code="431"}`:                                  5,
		`admin_refused_total{cause="token"}`:                               0,
		`admin_refused_total{cause="host"}`:                                0,
	} {
		name, _, _ := strings.Cut(prefix+series, "{")
		if fs[name] == nil {
			t.Errorf("no family %s", name)
		} else if v, ok := fs[name].series[prefix+series]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", series, v, ok, want)
		}
	}
}

// Without a server and endpoints to tell of, the families that are left are whole ones.
func TestMetricsWithoutServer(t *testing.T) {
	d := newDesk(t, "")
	_, body := get(t, d, "GET", "/metrics")
	if _, err := parse(body); err != nil {
		t.Error(err)
	}
	if strings.Contains(body, "memory_limit_bytes") {
		t.Error("a memory limit that nobody knows")
	}
}

func TestServerInFull(t *testing.T) {
	d := busy(t)
	d.ask("GET", "/metrics", "", "Host: evil.example")
	res, body := get(t, d, "GET", "/api/v1/server")
	var s struct {
		Ready    bool
		LogLevel string `json:"log_level"`
		Reloads  struct {
			OK, Failed uint64
			Last       time.Time
			Problems   []string
		}
		Connections struct {
			Open         int
			Refused, Cut map[string]uint64
		}
		Memory struct {
			Used  int64 `json:"used_bytes"`
			Limit int64 `json:"limit_bytes"`
		}
		LimitAnswers     map[string]uint64 `json:"limit_answers"`
		AccessLogDropped uint64            `json:"access_log_dropped"`
		AdminRefused     map[string]uint64 `json:"admin_refused"`
	}
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil || res.StatusCode != 200 {
		t.Fatalf("%v: %d %s", err, res.StatusCode, body)
	}
	if !s.Ready || s.LogLevel != "info" || s.Reloads.OK != 3 || s.Reloads.Failed != 1 || s.Reloads.Last.Unix() != 1_000_000_000 ||
		!slices.Equal(s.Reloads.Problems, []string{"a.yaml:1:1: x"}) || s.Connections.Open != 7 || s.Connections.Refused["client_limit"] != 4 ||
		s.Connections.Cut["slow_body"] != 5 || s.Memory.Used != 1<<20 || s.Memory.Limit != 1<<28 || s.LimitAnswers["431"] != 5 ||
		len(s.LimitAnswers) != len(LimitStatuses) || s.AccessLogDropped != 6 || s.AdminRefused["host"] != 1 {
		t.Errorf("%+v", s)
	}

	d = newDesk(t, "", func(c *Config) { c.Server = func() Server { return Server{} } })
	_, body = get(t, d, "GET", "/api/v1/server")
	if strings.Contains(body, "null") && !strings.Contains(body, `"last": null`) || !strings.Contains(body, `"problems": []`) {
		t.Errorf("%s", body)
	}
}

func TestEndpointsAndShadowInTargets(t *testing.T) {
	d := busy(t)
	type member struct {
		Endpoint, Address, State      string
		Weight                        int
		InFlight                      int64 `json:"in_flight"`
		Attempts, Failures, Ejections uint64
	}
	var full struct {
		Endpoints []string
		Members   []member
		Shadow    struct {
			Calls, Retried, Cut uint64
			Refused             map[string]uint64
		}
	}
	_, body := get(t, d, "GET", "/api/v1/targets/stock")
	if err := json.Unmarshal([]byte(body), &full); err != nil {
		t.Fatal(err)
	}
	want := []member{
		{Endpoint: "http://stock.internal:9000", Address: "10.0.0.1", State: "up", Weight: 1, InFlight: 2, Attempts: 10},
		{Endpoint: "http://stock.internal:9000", Address: "fd00::2", State: "ejected", Weight: 1, Attempts: 9, Failures: 8, Ejections: 1},
		{Endpoint: "http://127.0.0.1:9001", State: "slow-start", Weight: 3},
	}
	if !slices.Equal(full.Members, want) || len(full.Endpoints) != 1 {
		t.Errorf("%+v", full)
	}
	if s := full.Shadow; s.Calls != 100 || s.Retried != 20 || s.Cut != 30 || s.Refused["SHED_LOW_PRIORITY"] != 11 || len(s.Refused) != len(ShadowReasons) {
		t.Errorf("%+v", s)
	}
	var list struct{ Targets []struct{ Members []member } }
	_, body = get(t, d, "GET", "/api/v1/targets")
	if err := json.Unmarshal([]byte(body), &list); err != nil || !slices.Equal(list.Targets[0].Members, want) {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestEndpointStateWords(t *testing.T) {
	for s, word := range map[EndpointState]string{EndpointUp: "up", EndpointSlow: "slow-start", EndpointEjected: "ejected",
		EndpointCheckedOut: "checked-out", 77: "unknown"} {
		if s.String() != word {
			t.Errorf("%d: %q, want %q", s, s.String(), word)
		}
	}
	if int(endpointStates) != len(states) {
		t.Error("a state has no metric")
	}
}

// The statuses and reasons are labels: none may be there twice.
func TestLabelsAreDistinct(t *testing.T) {
	seen := map[int]bool{}
	for _, s := range LimitStatuses {
		if seen[s] || s < 400 || s > 499 || http.StatusText(s) == "" {
			t.Errorf("status %d", s)
		}
		seen[s] = true
	}
}
