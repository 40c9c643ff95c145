package decision

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/seed-a29ca62a/cortex"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

var batches = []struct {
	body  string
	usual bool
}{
	{`{"reports":[{"target":"a","outcome":"success","latency_ms":12.5}]}`, true},
	{` { "reports" : [ { "token" : "00pmzHfHRWfA1QDRLA91sw", "outcome" : "timeout" } , {"target":"b","priority":0,"attempt":-3,"latency_ms":-0.0,"outcome":"?"}]}` + "\r\n\t", true},
	{`{"reports":[{"target":"a"},{"target":""},{"target":"a"}]}`, true},
	{`{"reports":[{"priority":2147483647,"attempt":-2147483648}]}`, true},
	{`{"reports":[{"outcome":"{{{"}]}`, true},
	{`{"reports":[` + strings.Repeat(`{"target":"a"},`, 999) + `{"target":"b"}]}`, true},
	{`{"reports":[` + strings.Repeat(`{"target":"a"},`, 1000) + `{"target":"b"}]}`, false},
	{`{"reports":[]}`, false},
	{`{"reports":[{}]}`, false},
	{`{"reports":null}`, false},
	{`{}`, false},
	{``, false},
	{`{"reports":[{"target":"a"}]}{}`, false},
	{`{"reports":[{"target":"a"}],"reports":[{"target":"a"}]}`, false},
	{`{"reports":[{"target":"a","target":"a"}]}`, false},
	{`{"reports":[{"target":"a"},]}`, false},
	{`{"reports":[{"target":"a",}]}`, false},
	{`{"reports":[{"target":"a"}`, false},
	{`{"reports":[{"target":"\u0061"}]}`, false},
	{`{"reports":[{"target":"ä"}]}`, false},
	{`{"reports":[{"target":"` + "\x01" + `"}]}`, false},
	{`{"reports":[{"target":null}]}`, false},
	{`{"reports":[{"latencyMs":1}]}`, false},
	{`{"reports":[{"latency_ms":"1"}]}`, false},
	{`{"reports":[{"latency_ms":1e3}]}`, false},
	{`{"reports":[{"latency_ms":01}]}`, false},
	{`{"reports":[{"latency_ms":1.}]}`, false},
	{`{"reports":[{"latency_ms":.1}]}`, false},
	{`{"reports":[{"latency_ms":-}]}`, false},
	{`{"reports":[{"latency_ms":NaN}]}`, false},
	{`{"reports":[{"priority":1.0}]}`, false},
	{`{"reports":[{"priority":2147483648}]}`, false},
	{`{"reports":[{"latency":1}]}`, false},
}

// What is read without the package for JSON is what that would read.
func agree(t *testing.T, body string) (usual bool) {
	t.Helper()
	var got, want pb.ReportBatchRequest
	usual = readReports([]byte(body), &got)
	if err := protojson.Unmarshal([]byte(body), &want); usual && (err != nil || !proto.Equal(&got, &want)) {
		t.Errorf("%q: read as %v, want %v, %v", body, &got, &want, err)
	}
	return usual
}

func TestBatchesAreReadAsJSONIs(t *testing.T) {
	for _, c := range batches {
		if usual := agree(t, c.body); usual != c.usual {
			t.Errorf("%.100q: usual: %v", c.body, usual)
		}
	}
}

func FuzzBatch(f *testing.F) {
	for _, c := range batches {
		f.Add(c.body)
	}
	f.Fuzz(func(t *testing.T, body string) { agree(t, body) })
}

func TestResultsAreWrittenAsJSONIs(t *testing.T) {
	for _, m := range []*pb.ReportBatchResponse{
		{},
		{Counted: 2, Results: []*pb.ReportResponse{{Counted: true}, {Reason: stale}, {Reason: tokenUnknown}, {Counted: true}}},
	} {
		b, ok := appendResults([]byte("x"), m)
		var got pb.ReportBatchResponse
		if err := protojson.Unmarshal(b[1:], &got); err != nil || !ok || b[0] != 'x' || !proto.Equal(&got, m) {
			t.Errorf("%v: %s, %v", m, b, err)
		}
	}
	if b, ok := appendResults(nil, &pb.ReportBatchResponse{Results: []*pb.ReportResponse{{Reason: `"`}}}); ok || len(b) > 0 {
		t.Errorf("another reason: %q", b)
	}
}

// A target that a batch makes stays: the text of the whole batch must not stay with it.
func TestBatchReadDoesNotKeepItsBody(t *testing.T) {
	body := []byte(`{"reports":[{"target":"abc"},{"target":"abc"}]}`)
	var m pb.ReportBatchRequest
	if !readReports(body, &m) {
		t.Fatal("unusual")
	}
	clear(body)
	if m.Reports[0].GetTarget() != "abc" || m.Reports[1].GetTarget() != "abc" {
		t.Errorf("%v", &m)
	}
}

func TestTargetNames(t *testing.T) {
	for name, want := range map[string]bool{"a": true, "0": true, "A-z_9.x": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, ".a": false, "_a": false, "a b": false, "ä": false, "a\x00": false, "a/": false, strings.Repeat("a", 64): false} {
		if isTargetName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// A reload brought the target of a report between the two looks at it: there was neither an answer nor an error.
func TestBatchWhoseTargetComesMeanwhile(t *testing.T) {
	looks := 0
	w := newWorld(t, func(c *Config) {
		e, err := cortex.New(cortex.Config{Now: c.Now, Stripes: 1})
		if err != nil {
			t.Fatal(err)
		}
		c.Others = nil
		c.All = func() iter.Seq[*cortex.Engine] { return slices.Values([]*cortex.Engine{e}) }
		c.Known = func(string) *cortex.Engine {
			if looks++; looks == 1 {
				return nil
			}
			return e
		}
	})
	if code, got := w.post("ReportBatch", `{"reports":[{"target":"a","outcome":"success","latency_ms":1}]}`); code != 200 || got["counted"] != 1.0 {
		t.Errorf("%d %v", code, got)
	}
}
