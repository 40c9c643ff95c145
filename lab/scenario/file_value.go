package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// A reader takes what stands at a place.
type reader func(n *yaml.Node, at place)

// An entry is a key of a block. One that must be there says what is wanted.
type entry struct {
	key  string
	must string
	read reader
}

// block reads a mapping of known keys.
func (d *decoder) block(n *yaml.Node, at place, entries ...entry) {
	if n.Kind != yaml.MappingNode {
		d.problem(at, "%s: want a block of keys: %s", describe(n), strings.Join(keysOf(entries), ", "))
		return
	}
	d.places[at.key] = at
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		here := at.child(show(key.Value), key)
		j := slices.IndexFunc(entries, func(e entry) bool { return e.key == key.Value })
		if j < 0 {
			d.problem(here, "unknown key: %s", suggest(key.Value, keysOf(entries)))
			continue
		}
		d.places[here.key] = here
		entries[j].read(n.Content[i+1], here)
	}
	for _, e := range entries {
		here := at.child(e.key, n)
		if _, given := d.places[here.key]; !given && e.must != "" {
			d.problem(d.at(here.key), "missing: want %s", e.must)
		}
	}
}

func keysOf(entries []entry) []string {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.key
	}
	return keys
}

// items reads a list.
func (d *decoder) items(n *yaml.Node, at place, most int, instead string, read func(i int, n *yaml.Node, at place)) {
	switch {
	case n.Kind != yaml.SequenceNode || len(n.Content) == 0:
		d.problem(at, "%s: want %s", describe(n), instead)
	case len(n.Content) > most:
		d.problem(at, "%d items: want at most %d", len(n.Content), most)
	default:
		for i, c := range n.Content {
			here := at.item(i, c)
			d.places[here.key] = here
			read(i, c, here)
		}
	}
}

// scalar returns the text of a value, or reports that it is none.
func (d *decoder) scalar(n *yaml.Node, at place, want string) (string, bool) {
	switch {
	case isNull(n):
		d.problem(at, "no value: want %s", want)
		return "", false
	case n.Kind != yaml.ScalarNode:
		d.problem(at, "%s: want %s", describe(n), want)
		return "", false
	}
	return n.Value, true
}

var (
	plainNumber = regexp.MustCompile(`^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$`)
	wholeNumber = regexp.MustCompile(`^-?(0|[1-9]\d*)$`)
	plainZero   = regexp.MustCompile(`^[-+]?0+(\.0*)?$`)
)

// Whether a value may be 0. Where it may not, 0 in a [Scenario] is the default, which is not what a 0 in a file means.
const (
	orZero = true
	noZero = false
)

func (d *decoder) duration(p *time.Duration, zero bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.scalar(n, at, "a duration such as 20ms or 3s")
		if !ok {
			return
		}
		if plainNumber.MatchString(s) && !plainZero.MatchString(s) {
			d.problem(at, "%s: missing unit: want a duration such as 20ms or 3s", show(s))
			return
		}
		t, err := time.ParseDuration(s)
		if plainZero.MatchString(s) {
			t, err = 0, nil
		}
		switch {
		case err != nil:
			d.problem(at, "%s: not a duration: want one such as 20ms, 1.5s or 1h30m", show(s))
		case t < 0 || t == 0 && !zero:
			d.problem(at, "%s: want a duration above 0", show(s))
		default:
			*p = t
		}
	}
}

func (d *decoder) number(p *float64, zero bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.scalar(n, at, "a number")
		if !ok {
			return
		}
		// The pattern keeps out what Go and YAML take for numbers and no one means: NaN, infinity, hexadecimal, underscores.
		if quoted(n) || !plainNumber.MatchString(s) {
			d.problem(at, "%s: want a number", asWritten(n))
			return
		}
		f, err := strconv.ParseFloat(s, 64)
		switch {
		case err != nil:
			d.problem(at, "%s: too large", show(s))
		case f < 0 || f == 0 && !zero:
			d.problem(at, "%s: want a number above 0", show(s))
		default:
			*p = f + 0 // no −0
		}
	}
}

func (d *decoder) count(p *int, zero bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.scalar(n, at, "a whole number")
		if !ok {
			return
		}
		i, err := strconv.Atoi(s)
		switch {
		case quoted(n) || !plainNumber.MatchString(s) || !wholeNumber.MatchString(s):
			d.problem(at, "%s: want a whole number", asWritten(n))
		case err != nil:
			d.problem(at, "%s: too large", show(s))
		case i < 0 || i == 0 && !zero:
			d.problem(at, "%s: want a whole number above 0", show(s))
		default:
			*p = i
		}
	}
}

func (d *decoder) toggle(p *bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.scalar(n, at, "true or false")
		if ok && (quoted(n) || s != "true" && s != "false") {
			d.problem(at, "%s: want true or false", asWritten(n))
			return
		}
		*p = s == "true"
	}
}

// text reads text of one line that good accepts.
func (d *decoder) text(p *string, want string, good func(string) bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.scalar(n, at, want)
		if ok && !good(s) {
			d.problem(at, "%s: want %s", show(s), want)
			return
		}
		*p = s
	}
}

func choice[T ~uint8](d *decoder, p *T, names []string) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.scalar(n, at, "one of "+strings.Join(names, ", "))
		if !ok {
			return
		}
		i := slices.Index(names, s)
		if i < 0 {
			d.problem(at, "%s: unknown: %s", show(s), suggest(s, names))
			return
		}
		*p = T(i)
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// quoted reports whether a scalar is text whatever it looks like.
func quoted(n *yaml.Node) bool {
	return n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
}

func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a block of keys"
	case n.Kind == yaml.SequenceNode && len(n.Content) == 0:
		return "an empty list"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "no value"
	}
	return show(n.Value)
}

func asWritten(n *yaml.Node) string {
	if quoted(n) {
		return strconv.Quote(show(n.Value))
	}
	return show(n.Value)
}

// show makes a value of the file fit for a message: one line, not too long.
func show(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	if s == "" || s != strings.TrimSpace(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// suggest is what to say of a name that does not exist.
func suggest(got string, names []string) string {
	best, least := "", 0
	for _, name := range names {
		d := distance(got, name)
		// A short name is close to anything; a part of a name (retries for max_retries) is far from it by count.
		part := min(len(got), len(name)) >= 4 && (strings.Contains(name, got) || strings.Contains(got, name))
		if (d <= max(1, min(len(got), len(name))/3) || part) && (best == "" || d < least) {
			best, least = name, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	return "want one of " + strings.Join(names, ", ")
}

// distance is the number of letters to insert, delete or replace to make b of a, upper or lower case, - or _.
func distance(a, b string) int {
	const longest = 64 // no name is as long
	if len(a) > longest {
		return len(a)
	}
	a, b = strings.ToLower(strings.ReplaceAll(a, "-", "_")), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// formatDuration writes 120s for what Duration.String writes as 2m0s, and 24h for its 24h0m0s.
func formatDuration(t time.Duration) string {
	if t < 10*time.Minute && t%time.Second == 0 {
		return fmt.Sprintf("%ds", t/time.Second)
	}
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func formatNumber(f float64) string {
	if f != 0 && (f < 1e-6 || f >= 1e15) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}
