package strictyaml_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex/strictyaml"
)

// read is a format of nothing but form: it returns the keys that a file has, and what is wrong with it.
func read(d *strictyaml.Decoder, text string) (keys []string) {
	for doc := range d.Documents([]byte(text)) {
		d.Form(doc.Content[0])
		for key := range strictyaml.Pairs(doc.Content[0]) {
			keys = append(keys, key.Value)
		}
	}
	return keys
}

func TestFormReportsAllThatIsWrongAndPairsPassesOverIt(t *testing.T) {
	for _, c := range []struct{ text, keys, want string }{
		{"", "", ""},
		{"\ufeffa: 1\n---\nb: 2\n", "a b", ""},
		{"[a, b]", "", ""},
		{"a: 1\na: 2\nb: 3\na: 4\n", "a b", "f:2:1: a: given twice: first on line 1\nf:4:1: a: given twice: first on line 1"},
		{"a: !!str {b: 1, b: 2}\nc: !x d\n", "a c",
			"f:1:1: a: tags are not supported: !!str: write the value alone\nf:1:17: a.b: given twice: first on line 1\n" +
				"f:2:1: c: tags are not supported: !x: write the value alone"},
		{"a: &x [1]\nb: [*x, 2]\n*x : 3\n<<: *x\n? [k]\n: v\n", "a b",
			"f:2:5: b[0]: aliases are not supported: write the value out\nf:3:1: aliases are not supported: write the value out\n" +
				"f:4:1: <<: merge keys (<<) are not supported: write the keys out\nf:5:3: a key must be plain text"},
		{"a: 1\nb: *x\n", "", "f:2: aliases are not supported: write the value out"},
		{"a: 1\nb: [\n", "", "…f:3: not YAML: "},
		{"a: é\x01", "", "f:1:5: control character U+0001: delete it"},
		{"a: é\xff", "", "f:1:5: not UTF-8: want a file saved as UTF-8"},
		{"a:\n\tb: 1\n", "", "…: indent with spaces, not tabs"},
		{strings.Repeat("[", 30) + strings.Repeat("]", 30), "", "…: nested too deeply"},
	} {
		d := &strictyaml.Decoder{File: "f"}
		keys := strings.Join(read(d, c.text), " ")
		got := d.Errors().Error()
		part, some := strings.CutPrefix(c.want, "…") // the rest is the parser's
		if keys != c.keys || !some && got != c.want || some && !strings.Contains(got, part) {
			t.Errorf("%q: keys %q, want %q;\n%s\nwant\n%s", c.text, keys, c.keys, got, c.want)
		}
	}
}

// What may be a secret is hidden wherever a value can get into a message, also in those that the parser makes.
func TestHiddenValuesAreInNoMessage(t *testing.T) {
	for _, text := range []string{"secret: 1\nsecret: 2", "a: !secret 1", "a: 1\n? secret: {b: 1, b: 2}", "<<: 1\nsecret: {<<: 2}"} {
		d := &strictyaml.Decoder{Hide: func(s string) string { return strings.ReplaceAll(s, "secret", "…") }}
		for doc := range d.Documents([]byte(text)) {
			d.Form(doc.Content[0])
			for key := range strictyaml.Pairs(doc.Content[0]) {
				d.Problem(strictyaml.Place{}, "%s %s", d.Describe(key), d.AsWritten(key))
			}
		}
		if got := d.Errors().Error(); len(got) == 0 || strings.Contains(got, "secret") {
			t.Errorf("%q: %s", text, got)
		}
	}
}

func TestAtIsTheNearestBlockThatIsGiven(t *testing.T) {
	var d strictyaml.Decoder
	d.Mark(strictyaml.Place{Line: 1, Column: 1})
	d.Mark(strictyaml.Place{Key: "routes", Line: 5, Column: 1})
	d.Mark(strictyaml.Place{Key: "routes[1]", Line: 7, Column: 3})
	for key, line := range map[string]int{"": 1, "log.level": 1, "routes": 5, "routes[0].path": 5, "routes[1].path": 7, "routes[1].a.b": 7} {
		if at := d.At(key); at.Key != key || at.Line != line {
			t.Errorf("%q is at %+v, want line %d", key, at, line)
		}
	}
	if d.Given("log") || !d.Given("routes[1]") {
		t.Error("given is not what is marked")
	}
}

func TestErrorsAreSortedAndNotEndless(t *testing.T) {
	var d strictyaml.Decoder
	for i := 250; i > 0; i-- {
		d.Problem(strictyaml.Place{Key: "k", Line: i, Column: 2}, "wrong")
	}
	got := d.Errors()
	if !slices.IsSortedFunc(got, func(a, b strictyaml.Problem) int { return a.Line - b.Line }) {
		t.Error("not sorted")
	}
	if last := got[len(got)-1]; len(got) != 101 || last.Message != "and 150 more problems from here on" || last.Line != 100 {
		t.Errorf("%d problems, the last is %v", len(got), last)
	}
}

func TestSuggest(t *testing.T) {
	names := []string{"max_retries", "timeout", "kind", "F"}
	for got, want := range map[string]string{
		"max_retrys": "max_retries", "Max-Retries": "max_retries", "retries": "max_retries", "timeuot": "timeout", "knid": "kind",
		"f": "F", "colour": "", strings.Repeat("timeout", 20): "",
	} {
		say := "want one of max_retries, timeout, kind, F"
		if want != "" {
			say = "did you mean " + want + "?"
		}
		if s := strictyaml.Suggest(got, names); s != say {
			t.Errorf("%q: %s, want: %s", got, s, say)
		}
	}
}
