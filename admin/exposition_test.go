package admin

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// family is one family as the strict reader below saw it: the value of every series.
type family struct {
	kind   string
	series map[string]float64
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelPair  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"`)
)

// parse reads the text format strictly: HELP and TYPE once before the samples of a family, families in one piece, no series
// twice, labels well formed, histograms cumulative, names by the conventions.
func parse(text string) (map[string]*family, error) {
	if !strings.HasSuffix(text, "\n") {
		return nil, fmt.Errorf("no line end at the end")
	}
	families := map[string]*family{}
	var name, helped string
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("line %d %q: %s", i+1, line, fmt.Sprintf(format, args...))
		}
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			n, help, ok := strings.Cut(rest, " ")
			if !ok || help == "" || !metricName.MatchString(n) {
				return nil, fail("malformed HELP")
			}
			helped = n
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			n, kind, _ := strings.Cut(rest, " ")
			if n != helped {
				return nil, fail("TYPE without its HELP")
			}
			if families[n] != nil {
				return nil, fail("family twice")
			}
			if kind != "counter" && kind != "gauge" && kind != "histogram" {
				return nil, fail("unknown type")
			}
			if (kind == "counter") != strings.HasSuffix(n, "_total") {
				return nil, fail("_total is for counters and for all of them")
			}
			name, families[n] = n, &family{kind: kind, series: map[string]float64{}}
			continue
		}
		head, value, ok := cutLast(line, " ")
		if !ok {
			return nil, fail("no value")
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fail("value: %v", err)
		}
		f := families[name]
		if f == nil {
			return nil, fail("sample before TYPE")
		}
		base, labels, _ := strings.Cut(head, "{")
		if labels != "" {
			rest := strings.TrimSuffix(labels, "}")
			if rest == labels {
				return nil, fail("labels do not end")
			}
			seen := map[string]bool{}
			for rest != "" {
				m := labelPair.FindStringSubmatchIndex(rest)
				if m == nil || m[0] != 0 {
					return nil, fail("malformed label")
				}
				if l := rest[m[2]:m[3]]; seen[l] {
					return nil, fail("label twice")
				} else {
					seen[l] = true
				}
				rest = rest[m[1]:]
				if rest != "" {
					if rest[0] != ',' {
						return nil, fail("labels not separated")
					}
					rest = rest[1:]
				}
			}
		}
		switch suffix := strings.TrimPrefix(base, name); {
		case suffix == base && base != name:
			return nil, fail("sample of another family than %s", name)
		case f.kind == "histogram" && suffix != "_bucket" && suffix != "_sum" && suffix != "_count":
			return nil, fail("no sample of a histogram")
		case f.kind != "histogram" && suffix != "":
			return nil, fail("suffix")
		}
		if _, twice := f.series[head]; twice {
			return nil, fail("series twice")
		}
		if f.kind != "gauge" && (v < 0 || math.IsNaN(v)) {
			return nil, fail("a count below 0")
		}
		f.series[head] = v
	}
	return families, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func TestExpositionEscapes(t *testing.T) {
	var e exposition
	e.begin("x", "gauge", "back\\slash and\nline")
	e.sample(1, "target", "a\"b\\c\nd\xff")
	want := "# HELP x back\\\\slash and\\nline\n# TYPE x gauge\nx{target=\"a\\\"b\\\\c\\nd\uFFFD\"} 1\n"
	if got := string(e.b); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if _, err := parse(string(e.b)); err != nil {
		t.Error(err)
	}
}

func TestExpositionNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1", 0.25: "0.25", 1e21: "1e+21", math.Inf(1): "+Inf", math.Inf(-1): "-Inf"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
	if got := number(math.NaN()); got != "NaN" {
		t.Errorf("NaN is %q", got)
	}
}

func TestExpositionHistogramIsCumulative(t *testing.T) {
	var e exposition
	e.begin("h", "histogram", "H.")
	e.histogram([]float64{0.1, 1}, []uint64{3, 0, 2}, 4.5, "target", "a")
	f, err := parse(string(e.b))
	if err != nil {
		t.Fatal(err)
	}
	for series, want := range map[string]float64{`h_bucket{target="a",le="0.1"}`: 3, `h_bucket{target="a",le="1"}`: 3,
		`h_bucket{target="a",le="+Inf"}`: 5, `h_sum{target="a"}`: 4.5, `h_count{target="a"}`: 5} {
		if got, ok := f["h"].series[series]; !ok || got != want {
			t.Errorf("%s = %v, %v; want %v", series, got, ok, want)
		}
	}
}

// The reader must be able to find fault, or it proves nothing.
func TestStrictReaderRefuses(t *testing.T) {
	head := "# HELP a A.\n# TYPE a gauge\n"
	for name, text := range map[string]string{
		"no end":            head + "a 1",
		"no type":           "a 1\n",
		"twice":             head + "a 1\na 1\n",
		"family twice":      head + "a 1\n" + head,
		"foreign sample":    head + "b 1\n",
		"value":             head + "a one\n",
		"open label":        head + "a{x=\"1\" 1\n",
		"label twice":       head + "a{x=\"1\",x=\"2\"} 1\n",
		"raw quote":         head + "a{x=\"1\"2\"} 1\n",
		"counter name":      "# HELP a A.\n# TYPE a counter\na 1\n",
		"gauge named total": "# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n",
		"negative count":    "# HELP a_total A.\n# TYPE a_total counter\na_total -1\n",
	} {
		if _, err := parse(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
