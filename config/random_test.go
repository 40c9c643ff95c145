package config

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-a29ca62a/cortex"
)

// randomText is a value that v takes, as YAML; false where only a hand can write one.
func randomText(r *rand.Rand, v value) (string, bool) {
	// Small values as often as large ones.
	between := func(lo, hi float64) float64 {
		if r.IntN(8) == 0 {
			return lo
		}
		least := max(lo, hi*1e-9)
		return least * math.Pow(hi/least, r.Float64())
	}
	switch v := v.(type) {
	case duration:
		if v.orZero && r.IntN(4) == 0 {
			return "0s", true
		}
		t := v.lo + (v.hi-v.lo)>>r.IntN(40)
		if v.whole {
			t = t.Truncate(time.Millisecond)
		}
		return formatDuration(t), true
	case size:
		return formatSize(v.lo + (v.hi-v.lo)>>r.IntN(30)), true
	case count:
		return strconv.Itoa(int(between(float64(v.lo), float64(v.hi)))), true
	case number:
		f := between(v.lo, v.hi)
		if v.above && f <= v.lo {
			f = v.hi / 2
		}
		text := strconv.FormatFloat(f, 'g', 1+r.IntN(17), 64)
		if rounded, _ := strconv.ParseFloat(text, 64); v.below && rounded >= v.hi {
			text = formatNumber(v.hi / 2)
		}
		return text, true
	case orNone[int]:
		return randomText(r, v.value)
	case orNone[float64]:
		return randomText(r, v.value)
	case toggle:
		return strconv.FormatBool(r.IntN(2) == 0), true
	case interface{ names() []string }:
		return v.names()[r.IntN(len(v.names()))], true
	case weights:
		return presets[r.IntN(len(presets))], true
	}
	return "", false
}

// randomBlock writes a random subset of the keys of a block, in flow style.
func randomBlock(r *rand.Rand, b block, always ...string) string {
	keys := always
	for _, e := range b {
		if r.IntN(3) == 0 {
			continue
		}
		if inner, ok := e.value.(block); ok {
			keys = append(keys, e.key+": "+randomBlock(r, inner))
		} else if text, ok := randomText(r, e.value); ok {
			keys = append(keys, e.key+": "+text)
		}
	}
	return "{" + strings.Join(keys, ", ") + "}"
}

// randomEndpoints is the list of one to four, some with a weight.
func randomEndpoints(r *rand.Rand) string {
	var items []string
	for i := range 1 + r.IntN(4) {
		item := fmt.Sprintf("%s://192.0.2.%d", []string{"http", "https", "h2c"}[r.IntN(3)], i)
		if r.IntN(2) == 0 {
			item = fmt.Sprintf("{url: %s, weight: %d}", item, 1+r.IntN(1000))
		}
		items = append(items, item)
	}
	return "endpoints: [" + strings.Join(items, ", ") + "]"
}

// For random files of values in range: what is accepted prints as what parses to the same, and makes engines; what is not is
// refused by how values go together, and by nothing else.
func TestRandomFilesPrintAsThemselves(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 9))
	odd := []rune(" \t\r\n\x00\x1b\x7f\u0085\u00a0\u2028\ufeff\ufffd#:-?'\"\\%@`|>&*!{}[],aé漢😀0")
	good := 0
	for range 500 {
		var body strings.Builder
		for range r.IntN(12) {
			body.WriteRune(odd[r.IntN(len(odd))])
		}
		text := strings.TrimSuffix(randomBlock(r, newFile().block()), "}") +
			", tls: " + randomBlock(r, (&TLS{}).block(), "cert: a.pem, key: /b.key") +
			", access_log: " + randomBlock(r, (&AccessLog{}).block()) +
			", decisions: " + randomBlock(r, newDecisions().block(), "template: "+randomBlock(r, engineBlock(new(cortex.Config), nil))) +
			", cluster: " + randomBlock(r, newCluster().block()[1:], "redis: {url: redis://h, timeout: 7ms}") +
			", targets: {a: " + strings.Replace(randomBlock(r, (&Target{}).block(), randomEndpoints(r)),
			"balance: {", "balance: {check: "+randomBlock(r, (&Check{}).block(), "path: /up")+", ", 1) + "}" +
			", routes: [{path: /, fallback: {cache: " + randomBlock(r, (&Cache{}).block()) +
			", static: {status: " + strconv.Itoa(206+r.IntN(98)) + ", body: " + yamlQuote(body.String()) + "}}}]}"
		text = strings.ReplaceAll(strings.ReplaceAll(text, "{, ", "{"), ", }", "}")
		f, err := Parse("", []byte(text))
		if err != nil {
			for _, p := range err.(Errors) {
				if !strings.Contains(p.Message, "want at least base_") && !strings.Contains(p.Message, "want at most interval") && !strings.Contains(p.Message, "is above max") &&
					!strings.Contains(p.Message, "below min") && !strings.Contains(p.Message, "at confidence") {
					t.Fatalf("%v\nof\n%s", p, text)
				}
			}
			continue
		}
		good++
		if got := f.Routes[0].Fallback.Static.Body; got != body.String() {
			t.Fatalf("body %q, want %q", got, body.String())
		}
		printed, err := f.Effective()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("", printed)
		if err != nil || !reflect.DeepEqual(f, again) {
			t.Fatalf("%v: %+v\nprints as\n%s\nwhich is\n%+v\nof\n%s", err, f, printed, again, text)
		}
		if _, err := cortex.New(f.Targets[0].Engine); err != nil {
			t.Fatalf("%v\nof\n%s", err, text)
		}
	}
	if good < 50 {
		t.Errorf("only %d files were good", good)
	}
}

func yamlQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		fmt.Fprintf(&b, `\U%08x`, c)
	}
	b.WriteByte('"')
	return b.String()
}
