package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-a29ca62a/cortex/lab/plot"
)

// near reports whether got is what claims.md says, to the digits given there.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: %v, want %v ± %v", what, got, want, tolerance)
	}
}

func all(t *testing.T) map[string]Report {
	t.Helper()
	out := map[string]Report{}
	add := func(r Report, err error) {
		if err != nil {
			t.Fatal(err)
		}
		out[r.Model] = r
	}
	add(Amplification(DefaultAmplification()))
	add(Jitter(DefaultJitter()))
	add(Backoff(DefaultBackoff()))
	add(Timeout(DefaultTimeout()))
	add(Threshold(DefaultThreshold()))
	add(Breaker(DefaultBreaker()))
	add(LittlesLaw(DefaultLittlesLaw()))
	add(Floor(DefaultFloor()))
	return out
}

func TestReportsAreWhole(t *testing.T) {
	again := all(t)
	for name, r := range all(t) {
		if r.Claim == "" || len(r.Formula) == 0 || len(r.Inputs) == 0 || len(r.Tables) == 0 || r.Because == "" || len(r.Panels) == 0 {
			t.Errorf("%s lacks something: %+v", name, r)
		}
		if r.Verdict != Holds && r.Verdict != HoldsOnlyIf && r.Verdict != False {
			t.Errorf("%s: verdict %q", name, r.Verdict)
		}
		for _, tb := range r.Tables {
			for _, row := range tb.Rows {
				if len(row) != len(tb.Columns) {
					t.Errorf("%s: %s: %v has not the columns %v", name, tb.Title, row, tb.Columns)
				}
			}
		}
		if !reflect.DeepEqual(r.Tables, again[name].Tables) || r.Because != again[name].Because {
			t.Errorf("%s differs from one time to the next", name)
		}
		var text, picture bytes.Buffer
		if err := r.WriteText(&text); err != nil {
			t.Error(err)
		}
		for _, line := range strings.Split(text.String(), "\n") {
			if utf8.RuneCountInString(line) > 110 || strings.HasSuffix(line, " ") || strings.Contains(line, "%!") {
				t.Errorf("%s: %q", name, line)
			}
		}
		if !strings.Contains(text.String(), "\nverdict  "+string(r.Verdict)) {
			t.Errorf("%s: no verdict in\n%s", name, text.String())
		}
		raw, err := json.Marshal(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var back struct {
			Model, Claim, Verdict, Because string
			Formula                        []string
			Inputs                         []struct {
				Name  string
				Value any
			}
			Tables []struct {
				Title   string
				Columns []struct{ Name, Unit string }
				Rows    [][]any
			}
		}
		if err := json.Unmarshal(raw, &back); err != nil || back.Verdict == "" || len(back.Tables) != len(r.Tables) || back.Inputs[0].Value == nil {
			t.Errorf("%s: %v in %s", name, err, raw)
		}
		if err := plot.Write(&picture, "svg", r.Panels...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if picture.Len() > 150_000 {
			t.Errorf("%s: a picture of %d bytes", name, picture.Len())
		}
	}
}

func TestWhatIsNotFiniteIsNullInJSON(t *testing.T) {
	raw, err := json.Marshal(Table{Columns: []Column{{"a", "s"}}, Rows: [][]any{{math.NaN()}, {math.Inf(1)}, {1.5}, {Range{1, 2}}, {"x"}}})
	if err != nil || !strings.Contains(string(raw), `"rows":[[null],[null],[1.5],[{"from":1,"to":2}],["x"]]`) {
		t.Errorf("%s %v", raw, err)
	}
	raw, err = json.Marshal([]Input{{Name: "a", Value: 1500 * time.Millisecond}, {Name: "b", Value: []time.Duration{time.Second}}, {Name: "c", Value: math.Inf(1)}})
	if want := `[{"name":"a","value":"1.5s"},{"name":"b","value":["1s"]},{"name":"c","value":null}]`; err != nil || string(raw) != want {
		t.Errorf("%s %v", raw, err)
	}
	if raw, _ := json.Marshal(Table{}); !strings.Contains(string(raw), `"rows":[]`) {
		t.Errorf("%s", raw)
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1", 4: "4", 0.9090909: "0.9091", 1234.5: "1234", 20: "20", 7.736e-5: "7.736e-5", 1e-6: "1e-6", 123456: "123456",
		1e10: "1e10", -0.5: "-0.5", 99.95: "99.95", 0.01: "0.01", 9.9999: "10", 1e-86: "1e-86", math.Inf(1): "+Inf"} {
		if got := short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	for s, want := range map[float64]string{0: "0 s", 0.0995: "99.5 ms", 1.2: "1.2 s", 60: "60 s", 300: "5 min"} {
		if got := seconds(s); got != want {
			t.Errorf("%v: %q, want %q", s, got, want)
		}
	}
	for r, want := range map[Range]string{{0.1, 0.12}: "100–120 ms", {0, 2}: "0–2 s", {0.8, 1.6}: "800 ms–1.6 s", {30, 30}: "30 s"} {
		if got := r.String(); got != want {
			t.Errorf("%v: %q, want %q", r, got, want)
		}
	}
}

// Every field of every input, pushed to every extreme, is refused by name or gives a report; nothing panics or takes long.
func TestExtremesOfEveryInput(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	floats := []float64{nan, inf, -inf, -1, 0, 1e-300, 0.5, 1, 1e300, math.MaxFloat64}
	ints := []int{math.MinInt, -1, 0, 1, 20, math.MaxInt}
	durations := []time.Duration{math.MinInt64, -1, 0, 1, time.Millisecond, 24 * time.Hour, math.MaxInt64}
	tried := 0
	var push func(field reflect.Value, run func())
	push = func(field reflect.Value, run func()) {
		old := reflect.ValueOf(field.Interface())
		defer field.Set(old)
		switch v := field.Interface().(type) {
		case float64:
			for _, x := range floats {
				field.SetFloat(x)
				run()
			}
		case int:
			for _, x := range ints {
				field.SetInt(int64(x))
				run()
			}
		case time.Duration:
			for _, x := range durations {
				field.SetInt(int64(x))
				run()
			}
		case string:
			for _, x := range []string{"", "nonsense", "full=NaN", "full=-1,uniform=2", "full=0", "full=1e400", "=", "pressure", "decorrelated", "pareto", "constant", "two-sided", "share"} {
				field.SetString(x)
				run()
			}
		case []float64:
			for _, x := range append([][]float64{nil, make([]float64, 1000)}, [][]float64{{nan}, {inf}, {-1}, {0}, {1}, {1e300}}...) {
				field.Set(reflect.ValueOf(x))
				run()
			}
		case []int:
			for _, x := range [][]int{nil, make([]int, 1000), {math.MinInt}, {math.MaxInt}, {0}, {1}, {1000, 1}} {
				field.Set(reflect.ValueOf(x))
				run()
			}
		case []time.Duration:
			for _, x := range [][]time.Duration{nil, make([]time.Duration, 1000), {math.MinInt64}, {math.MaxInt64}, {1}, {time.Hour}} {
				field.Set(reflect.ValueOf(x))
				run()
			}
		case uint64:
			field.SetUint(math.MaxUint64)
			run()
		case Recovery:
			for i := range field.NumField() {
				push(field.Field(i), run)
			}
		default:
			t.Fatalf("%T is new: push it to its extremes", v)
		}
	}
	check := func(name string, in any, run func() (Report, error)) {
		v := reflect.ValueOf(in).Elem()
		for i := range v.NumField() {
			push(v.Field(i), func() {
				tried++
				r, err := run()
				var bad *InputError
				switch {
				case errors.As(err, &bad):
					if bad.Input == "" || bad.Want == "" || !strings.Contains(err.Error(), bad.Input) {
						t.Errorf("%s %+v: %v", name, v.Interface(), err)
					}
				case err != nil:
					t.Errorf("%s %+v: %v", name, v.Interface(), err)
				case r.Verdict == "" || r.WriteText(&bytes.Buffer{}) != nil:
					t.Errorf("%s %+v: no report", name, v.Interface())
				default:
					if err := plot.Write(&bytes.Buffer{}, "svg", r.Panels...); err != nil {
						t.Errorf("%s %+v: %v", name, v.Interface(), err)
					}
					if _, err := json.Marshal(r); err != nil {
						t.Errorf("%s %+v: %v", name, v.Interface(), err)
					}
				}
			})
		}
	}
	a := DefaultAmplification()
	check("amplification", &a, func() (Report, error) { return Amplification(a) })
	j := DefaultJitter()
	j.Clients, j.Runs = 50, 5 // to be quick
	check("jitter", &j, func() (Report, error) { return Jitter(j) })
	b := DefaultBackoff()
	b.Paths = 2 // to be quick
	check("backoff", &b, func() (Report, error) { return Backoff(b) })
	to := DefaultTimeout()
	check("timeout", &to, func() (Report, error) { return Timeout(to) })
	th := DefaultThreshold()
	check("threshold", &th, func() (Report, error) { return Threshold(th) })
	br := DefaultBreaker()
	check("breaker", &br, func() (Report, error) { return Breaker(br) })
	l := DefaultLittlesLaw()
	check("littles-law", &l, func() (Report, error) { return LittlesLaw(l) })
	f := DefaultFloor()
	check("floor", &f, func() (Report, error) { return Floor(f) })
	if tried < 300 {
		t.Errorf("only %d inputs were tried", tried)
	}
}
