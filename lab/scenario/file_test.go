package scenario_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// The file of the suite's page, and everything that the page does not show.
const (
	brownout = `name: brownout
duration: 120s
deadline: 3s
seeds: 10
arrivals:                       # a step function of time
  - { from: 0s, rate: 416.7 }   # calls a second, Poisson
priorities: { 9: 0.10, 7: 0.30, 5: 0.40, 2: 0.20 }
client: { timeout: 345ms, max_retries: 3, base_delay: 100ms }
downstream:
  workers: 14
  service: { distribution: lognormal, mean: 20ms, sigma: 0.8 }
  queue: 2000
  cancels: false
faults:
  - { from: 20s, to: 60s, kind: slow, factor: 3 }
`
	everything = `name: "2nd"
title: "all: of it"
duration: 1h30m
deadline: 2.5s
seeds: 3
hops: 3
mark: true
callers: { count: 1000, think: 2380ms }
priorities: { 0: 1, 10: 3 }
client: { timeout: adaptive, max_retries: 0, base_delay: 50ms }
downstream:
  workers: 7
  service: { distribution: pareto, mean: 1.5ms, alpha: 2.5 }
  queue: 1
  cancels: true
faults:
  - { from: 0, to: 10s, kind: hang, latency: 7s }
  - { from: 1s, to: 10s, kind: slow, factor: 3, onset: 5s }
  - { from: 1s, to: 10s, kind: capacity, fraction: 0 }
  - { from: 1s, to: 10s, kind: error, probability: 0.3, latency: 1s }
  - { from: 1s, to: 10s, kind: throttle, limit: 300, retry_after: 1s }
  - { from: 1s, to: 10s, kind: crash }
`
	least = `name: least
duration: 60s
arrivals: [{ from: 0s, rate: 10 }]
downstream: { workers: 1, service: { distribution: constant, mean: 20ms } }
`
)

func parse(t *testing.T, text string) *scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse([]byte(text), "testdata/s.yaml")
	if err != nil {
		t.Fatalf("%v\nin\n%s", err, text)
	}
	return s
}

func TestParse(t *testing.T) {
	want, err := scenario.Find("S2")
	if err != nil {
		t.Fatal(err)
	}
	want.Name, want.Title = "brownout", ""
	if got := parse(t, brownout); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}

	all := &scenario.Scenario{
		Name: "2nd", Title: "all: of it", Duration: 90 * time.Minute, Deadline: 2500 * time.Millisecond, Seeds: 3, Hops: 3, Mark: true,
		Arrivals:   scenario.Arrivals{Scale: 1},
		Callers:    scenario.Callers{Count: 1000, Think: 2380 * time.Millisecond},
		Priorities: []scenario.Share{{Priority: 10, Share: 0.75}, {Priority: 0, Share: 0.25}},
		Client:     scenario.Client{BaseDelay: 50 * time.Millisecond},
		Downstream: scenario.Downstream{Workers: 7, Queue: 1, Cancels: true,
			Service: scenario.Service{Distribution: scenario.Pareto, Mean: 1500 * time.Microsecond, Alpha: 2.5}},
		Faults: []scenario.Fault{
			{To: 10 * time.Second, Kind: scenario.Hang, Latency: 7 * time.Second},
			{From: time.Second, To: 10 * time.Second, Kind: scenario.Slow, Factor: 3, Onset: 5 * time.Second},
			{From: time.Second, To: 10 * time.Second, Kind: scenario.Capacity},
			{From: time.Second, To: 10 * time.Second, Kind: scenario.Error, Probability: 0.3, Latency: time.Second},
			{From: time.Second, To: 10 * time.Second, Kind: scenario.Throttle, Limit: 300, RetryAfter: time.Second},
			{From: time.Second, To: 10 * time.Second, Kind: scenario.Crash},
		},
	}
	if got := parse(t, everything); !reflect.DeepEqual(got, all) {
		t.Errorf("%+v\nwant\n%+v", got, all)
	}

	s := parse(t, least)
	if s.Deadline != 3*time.Second || s.Seeds != 10 || s.Client != (scenario.Client{MaxRetries: 3, BaseDelay: 100 * time.Millisecond}) ||
		s.Downstream.Queue != 2000 || len(s.Priorities) != 1 || s.Priorities[0] != (scenario.Share{Priority: 5, Share: 1}) {
		t.Errorf("the defaults are %+v", s)
	}
}

func TestTrace(t *testing.T) {
	s := parse(t, strings.Replace(least, "[{ from: 0s, rate: 10 }]", "{ trace: trace.txt, scale: 2, process: constant }", 1))
	want := scenario.Arrivals{Trace: []float64{100, 250.5, 0, 400}, File: "trace.txt", Scale: 2, Process: scenario.Constant}
	if !reflect.DeepEqual(s.Arrivals, want) {
		t.Errorf("%+v, want %+v", s.Arrivals, want)
	}
	if again := parse(t, string(s.YAML())); !reflect.DeepEqual(again, s) {
		t.Errorf("%s\nis %+v", s.YAML(), again)
	}
	// Without its file it is written out.
	s.Arrivals.File = ""
	again := parse(t, string(s.YAML()))
	for at := time.Duration(0); at < 6*time.Second; at += 500 * time.Millisecond {
		if again.Rate(at) != s.Rate(at) {
			t.Errorf("%v at %v, want %v in\n%s", again.Rate(at), at, s.Rate(at), s.YAML())
		}
	}
}

// A trace from a spreadsheet may begin with a byte order mark, as a scenario may.
func TestTraceWithAByteOrderMark(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "t.txt"), []byte("\ufeff7\r\n8\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(least, "[{ from: 0s, rate: 10 }]", "{ trace: t.txt }", 1)
	s, err := scenario.Parse([]byte(text), filepath.Join(dir, "s.yaml"))
	if err != nil || !slices.Equal(s.Arrivals.Trace, []float64{7, 8}) {
		t.Errorf("%v", err)
	}
}

func TestTraceThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ content, says string }{
		"word":  {"1\n\n# two\ntwo\n", "word:4: two: want the number of calls"},
		"minus": {"-1\n", "minus:1: -1: want"},
		"nan":   {"NaN\n", "nan:1: NaN: want"},
		"many":  {"1\n600000\n", "many:2: 600000: want at most 1000000 calls a second after scale 2"},
		"empty": {"# nothing\n", "empty:1: no counts"},
		"large": {strings.Repeat("1\n", scenario.MaxTraceFile/2+1), "s.yaml:3:13: arrivals.trace: read "},
		"none":  {"", "s.yaml:3:13: arrivals.trace: "},
	} {
		if c.content != "" {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text := strings.Replace(least, "[{ from: 0s, rate: 10 }]", "{ trace: "+name+", scale: 2 }", 1)
		if _, err := scenario.Parse([]byte(text), filepath.Join(dir, "s.yaml")); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q in it", name, err, c.says)
		}
	}
}

// A pipe or a device may have no end: opening one would hang the command.
func TestOnlyRegularFilesAreRead(t *testing.T) {
	if _, err := scenario.Load("/dev/zero"); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Error(err)
	}
	if _, err := scenario.Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "regular") {
		t.Error(err)
	}
	if _, err := scenario.Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, []byte(strings.Repeat("#\n", scenario.MaxFile/2+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := scenario.Load(path); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Error(err)
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct{ old, new, says string }{
		{"name: least", "nam: least", "s.yaml:1:1: nam: unknown key: did you mean name?"},
		{"name: least", "nam: least", "s.yaml:1:1: name: missing: want a name"},
		{"name: least", "name: ../x", "s.yaml:1:1: name: ../x: want a name of up to 64 letters"},
		{"name: least", "name: [a]", "s.yaml:1:1: name: a list: want a name"},
		{"name: least", "name:", "s.yaml:1:1: name: no value: want a name"},
		{"name: least", "name: a\nname: b", "s.yaml:2:1: name: given twice: first on line 1"},
		{"name: least", "name: a\ntitle: \"a\\nb\"", `title: "a\nb": want one line`},
		{"duration: 60s", "duration: 60", "s.yaml:2:1: duration: 60: missing unit: want a duration such as"},
		{"duration: 60s", "duration: 0", "s.yaml:2:1: duration: 0: want a duration above 0"},
		{"duration: 60s", "duration: -1s", "duration: -1s: want a duration above 0"},
		{"duration: 60s", "duration: 1d", "duration: 1d: not a duration"},
		{"duration: 60s", "duration: 999999999h", "duration: 999999999h: not a duration"},
		{"duration: 60s", "duration: 10ms", "s.yaml:2:1: duration: 10ms: want from 1s to 744h"},
		{"duration: 60s", "", "s.yaml:1:1: duration: missing: want how long"},
		{"duration: 60s", "duration: 60s\nseeds: 0", "s.yaml:3:1: seeds: 0: want a whole number above 0"},
		{"duration: 60s", "duration: 60s\nseeds: 1.5", "seeds: 1.5: want a whole number"},
		{"duration: 60s", "duration: 60s\nseeds: \"10\"", `seeds: "10": want a whole number`},
		{"duration: 60s", "duration: 60s\nseeds: 1e9", "seeds: 1e9: want a whole number"},
		{"duration: 60s", "duration: 60s\nseeds: 99999999999999999999", "seeds: 99999999999999999999: too large"},
		{"duration: 60s", "duration: 60s\nseeds: 20000", "seeds: 20000: want from 1 to 10000"},
		{"duration: 60s", "duration: 60s\nmark: yes", "mark: yes: want true or false"},
		{"duration: 60s", "duration: 60s\nhops: 9", "s.yaml:3:1: hops: 9: want from 1 to 8"},
		{"arrivals: [{ from: 0s, rate: 10 }]", "", "arrivals: missing: want steps of {from, rate}, or {trace: FILE}, or callers"},
		{"duration: 60s", "duration: 60s\ncallers: { count: 1, think: 1s }", "s.yaml:3:1: callers: arrivals stand above: want one of them"},
		{"rate: 10", "rate: fast", "s.yaml:3:24: arrivals[0].rate: fast: want a number"},
		{"rate: 10", "rate: .inf", "arrivals[0].rate: .inf: want a number"},
		{"rate: 10", "rate: 1e999", "arrivals[0].rate: 1e999: too large"},
		{"rate: 10", "rate: -1", "arrivals[0].rate: -1: want a number above 0"},
		{"rate: 10", "rate: 1e7", "s.yaml:3:24: arrivals[0].rate: 10000000: want from 0 to 1e+06 a second"},
		{"rate: 10", "rat: 10", "arrivals[0].rat: unknown key: did you mean rate?"},
		{"rate: 10", "rat: 10", "s.yaml:3:12: arrivals[0].rate: missing: want calls a second"},
		{"rate: 10 }", "rate: 10 }, { from: 0s, rate: 1 }", "s.yaml:3:38: arrivals[1].from: 0s: want later than the step before"},
		{"rate: 10 }", "rate: 10 }, { from: 1s, rate: 1, process: constant }",
			"arrivals[1].process: constant: the steps before are poisson: want one process for all"},
		{"rate: 10", "rate: 10, process: poison", "arrivals[0].process: poison: unknown: did you mean poisson?"},
		{"[{ from: 0s, rate: 10 }]", "[]", "arrivals: an empty list: want a list of {from, rate}"},
		{"[{ from: 0s, rate: 10 }]", "10", "arrivals: 10: want a list of {from, rate}, or {trace: FILE}"},
		{"[{ from: 0s, rate: 10 }]", "{ from: 0s, rate: 10 }", "arrivals.trace: missing"},
		{"duration: 60s", "duration: 60s\npriorities: {}", "priorities: a block of keys: want priorities and their shares"},
		{"duration: 60s", "duration: 60s\npriorities: { high: 1 }", "s.yaml:3:15: priorities.high: want a priority, a whole number"},
		{"duration: 60s", "duration: 60s\npriorities: { 5000: 1 }", "priorities: 5000: want priorities from 0 to"},
		{"duration: 60s", "duration: 60s\npriorities: { 9: 0 }", "priorities.9: 0: want a number above 0"},
		{"duration: 60s", "duration: 60s\npriorities: { 9: 1, 9: 1 }", "priorities.9: given twice"},
		{"duration: 60s", "duration: 60s\nclient: { timeout: adaptiv }", "client.timeout: adaptiv: want a duration such as 345ms, or adaptive"},
		{"duration: 60s", "duration: 60s\nclient: { timeout: 0 }", "client.timeout: 0: want a duration such as 345ms, or adaptive"},
		{"duration: 60s", "duration: 60s\nclient: { timeout: 345 }", "client.timeout: 345: missing unit"},
		{"duration: 60s", "duration: 60s\nclient: { retries: 3 }", "client.retries: unknown key: did you mean max_retries?"},
		{"workers: 1", "workers: 0", "downstream.workers: 0: want a whole number above 0"},
		{"workers: 1, ", "", "s.yaml:4:1: downstream.workers: missing: want the number of workers"},
		{"workers: 1", "workers: 1, queue: 0", "downstream.queue: 0: want a whole number above 0"},
		{"distribution: constant", "distribution: normal", "downstream.service.distribution: normal: unknown: did you mean lognormal?"},
		{"distribution: constant", "distribution: lognormal", "downstream.service.sigma: missing"},
		{"mean: 20ms", "mean: 20ms, sigma: 1", "downstream.service.sigma: belongs to lognormal, not to constant"},
		{"mean: 20ms", "mean: 1ns", "downstream.service.mean: 1ns: want from 1µs to 1h"},
		{"duration: 60s", "duration: 60s\nfaults: { from: 0s }", "faults: a block of keys: want a list of {from, to, kind"},
		{"duration: 60s", "duration: 60s\nfaults: [{ from: 0s, to: 1s }]", "s.yaml:3:10: faults[0].kind: missing: want one of hang, slow"},
		{"duration: 60s", "duration: 60s\nfaults: [{ from: 0s, to: 1s, kind: slo }]", "faults[0].kind: slo: unknown: did you mean slow?"},
		{"duration: 60s", "duration: 60s\nfaults: [{ from: 0s, to: 1s, kind: slow }]", "faults[0].factor: missing"},
		{"duration: 60s", "duration: 60s\nfaults: [{ from: 0s, to: 1s, kind: hang, factor: 3 }]",
			"s.yaml:3:42: faults[0].factor: belongs to kind slow: kind hang takes latency"},
		{"duration: 60s", "duration: 60s\nfaults: [{ latency: 1s, kind: crash, from: 0s, to: 1s }]",
			"faults[0].latency: belongs to kind hang: kind crash takes no more than from and to"},
		{"duration: 60s", "duration: 60s\nfaults: [{ from: 2s, to: 1s, kind: crash }]", "s.yaml:3:22: faults[0].to: 1s: want later than from, 2s"},
		{"duration: 60s", "duration: 60s\nfaults: [{ from: 0s, to: 2s, kind: crash }, { from: 1s, to: 3s, kind: crash }]",
			"s.yaml:3:47: faults[1].from: 1s: want no overlap with faults[0], which is a crash too"},
		{"name: least", "name: &a least\ntitle: *a", "title: aliases are not supported"},
		{"name: least", "name: *a", "s.yaml:1: aliases are not supported"},
		{"name: least", "<<: { name: a }", "<<: merge keys (<<) are not supported"},
		{"name: least", "name: !!str least", "name: tags are not supported"},
		{"name: least", "name: least\n\tx: 1", "s.yaml:2: not YAML"},
		{"name: least", "name: \"\x00\"", "s.yaml:1:8: control character U+0000"},
		{"name: least", "name: \xff", "s.yaml:1:7: not UTF-8"},
		{"name: least", "x: " + strings.Repeat("[", 30) + strings.Repeat("]", 30) + "\nname: least", "nested too deeply"},
		{least, "", "s.yaml:1:1: the file is empty"},
		{least, "[1]", "s.yaml:1:1: a list: want a block of keys: name, "},
		{least, least + "---\n" + least, "s.yaml:1:1: 2 scenarios: want one"},
	} {
		text := strings.Replace(least, c.old, c.new, 1)
		_, err := scenario.Parse([]byte(text), "s.yaml")
		var found config.Errors
		if !errors.As(err, &found) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v\nwant\n%s\nin\n%s", err, c.says, text)
		}
	}
}

// What is wrong comes all at once, in the order of the file.
func TestAllProblemsAtOnce(t *testing.T) {
	_, err := scenario.Parse([]byte("name: least\nduration: 60\narrivals: [{ from: 0s, rat: 10 }]\ndownstream: { workers: x }\n"), "s.yaml")
	want := `s.yaml:2:1: duration: 60: missing unit: want a duration such as 20ms or 3s
s.yaml:3:12: arrivals[0].rate: missing: want calls a second
s.yaml:3:24: arrivals[0].rat: unknown key: did you mean rate?
s.yaml:4:1: downstream.service: missing: want the time that a worker takes, such as { distribution: exponential, mean: 20ms }
s.yaml:4:15: downstream.workers: x: want a whole number`
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant\n%v", err, want)
	}
}

func TestYAMLIsWhatPeopleWrite(t *testing.T) {
	s, _ := scenario.Find("s2")
	want := `name: S2
title: "brownout: service time × 3"
duration: 120s
deadline: 3s
seeds: 10
arrivals:
  - { from: 0s, rate: 416.7 }
priorities: { 9: 0.1, 7: 0.3, 5: 0.4, 2: 0.2 }
client: { timeout: 345ms, max_retries: 3, base_delay: 100ms }
downstream:
  workers: 14
  service: { distribution: lognormal, mean: 20ms, sigma: 0.8 }
  queue: 2000
  cancels: false
faults:
  - { from: 20s, to: 60s, kind: slow, factor: 3 }
`
	if got := string(s.YAML()); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	s, _ = scenario.Find("s9")
	for _, want := range []string{"duration: 24h\n", "rate: 0.05 }"} {
		if !strings.Contains(string(s.YAML()), want) {
			t.Errorf("%q is not in\n%s", want, s.YAML())
		}
	}
}

func TestBuiltinsRoundTrip(t *testing.T) {
	var file []byte
	all := append(scenario.Builtin(), scenario.Extra()...)
	for _, s := range all {
		if again := parse(t, string(s.YAML())); !reflect.DeepEqual(again, s) {
			t.Errorf("%s\nis\n%+v\nwant\n%+v", s.YAML(), again, s)
		}
		file = append(append(file, "---\n"...), s.YAML()...)
	}
	path := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := scenario.LoadAll(path); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%d scenarios, %v", len(got), err)
	}
	if _, err := scenario.Load(path); err == nil {
		t.Error("a file of many is not one scenario")
	}
}

// Shares that come to 1 but for rounding are not divided again: they would change by a bit whenever they are printed and read.
func TestSharesSurvivePrinting(t *testing.T) {
	s := parse(t, strings.Replace(least, "duration", "priorities: { 9: 3, 8: 7, 7: 11, 6: 0.1, 5: 13 }\nduration", 1))
	for range 5 {
		again := parse(t, string(s.YAML()))
		if !reflect.DeepEqual(again, s) {
			t.Fatalf("%v, want %v", again.Priorities, s.Priorities)
		}
	}
}

func ExampleParse() {
	_, err := scenario.Parse([]byte(`name: mine
duration: 60s
arrivals: [{ from: 0s, rate: 100 }]
downstream: { workers: 4, service: { distribution: exponential, mean: 20 } }
faults: [{ from: 20s, to: 40s, kind: hang, factor: 3 }]
`), "mine.yaml")
	fmt.Println(err)
	// Output:
	// mine.yaml:4:65: downstream.service.mean: 20: missing unit: want a duration such as 20ms or 3s
	// mine.yaml:5:44: faults[0].factor: belongs to kind slow: kind hang takes latency
}

// Whatever the bytes: no panic; problems that say where, or a scenario that prints as itself.
func FuzzParse(f *testing.F) {
	for _, text := range []string{brownout, everything, least, strings.Replace(least, "[{ from: 0s, rate: 10 }]", "{ trace: trace.txt, scale: 2 }", 1)} {
		f.Add([]byte(text))
	}
	for _, s := range append(scenario.Builtin(), scenario.Extra()...) {
		f.Add(s.YAML())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := scenario.Parse(data, "testdata/f")
		if err != nil {
			var found config.Errors
			if !errors.As(err, &found) || len(found) == 0 || s != nil {
				t.Fatalf("%v with %v", err, s)
			}
			for _, p := range found {
				if p.Line < 1 || p.Message == "" || strings.ContainsAny(p.String(), "\n\r\x00\x1b") {
					t.Fatalf("%q", p.String())
				}
			}
			return
		}
		again, err := scenario.Parse(s.YAML(), "testdata/f")
		if err != nil {
			t.Fatalf("%v\nin\n%s\nof\n%s", err, s.YAML(), data)
		}
		if !reflect.DeepEqual(again, s) {
			t.Fatalf("%+v\nprints as\n%s\nwhich is\n%+v", s, s.YAML(), again)
		}
	})
}
