package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-a29ca62a/cortex/strictyaml"
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
		d.Problem(at, "%s: want a block of keys: %s", d.Describe(n), strings.Join(keysOf(entries), ", "))
		return
	}
	d.Mark(at)
	for key, value := range strictyaml.Pairs(n) {
		here := at.Child(strictyaml.Show(key.Value), key)
		j := slices.IndexFunc(entries, func(e entry) bool { return e.key == key.Value })
		if j < 0 {
			d.Problem(here, "unknown key: %s", strictyaml.Suggest(key.Value, keysOf(entries)))
			continue
		}
		d.Mark(here)
		entries[j].read(value, here)
	}
	for _, e := range entries {
		here := at.Child(e.key, n)
		if !d.Given(here.Key) && e.must != "" {
			d.Problem(d.At(here.Key), "missing: want %s", e.must)
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
	case n.Kind != yaml.SequenceNode:
		d.Problem(at, "%s: want %s", d.Describe(n), instead)
	case len(n.Content) == 0:
		d.Problem(at, "an empty list: want %s", instead)
	case len(n.Content) > most:
		d.Problem(at, "%d items: want at most %d", len(n.Content), most)
	default:
		for i, c := range n.Content {
			here := at.Item(i, c)
			d.Mark(here)
			read(i, c, here)
		}
	}
}

var (
	plainZero = regexp.MustCompile(`^[-+]?0+(\.0*)?$`)
)

// Whether a value may be 0. Where it may not, 0 in a [Scenario] is the default, which is not what a 0 in a file means.
const (
	orZero = true
	noZero = false
)

func (d *decoder) duration(p *time.Duration, zero bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.Scalar(n, at, "a duration such as 20ms or 3s")
		if !ok {
			return
		}
		if strictyaml.IsNumber(s) && !plainZero.MatchString(s) {
			d.Problem(at, "%s: missing unit: want a duration such as 20ms or 3s", strictyaml.Show(s))
			return
		}
		t, err := time.ParseDuration(s)
		if plainZero.MatchString(s) {
			t, err = 0, nil
		}
		switch {
		case err != nil:
			d.Problem(at, "%s: not a duration: want one such as 20ms, 1.5s or 1h30m", strictyaml.Show(s))
		case t < 0 || t == 0 && !zero:
			d.Problem(at, "%s: want a duration above 0", strictyaml.Show(s))
		default:
			*p = t
		}
	}
}

func (d *decoder) number(p *float64, zero bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.Scalar(n, at, "a number")
		if !ok {
			return
		}
		if strictyaml.Quoted(n) || !strictyaml.IsNumber(s) {
			d.Problem(at, "%s: want a number", d.AsWritten(n))
			return
		}
		f, err := strconv.ParseFloat(s, 64)
		switch {
		case err != nil:
			d.Problem(at, "%s: too large", strictyaml.Show(s))
		case f < 0 || f == 0 && !zero:
			d.Problem(at, "%s: want a number above 0", strictyaml.Show(s))
		default:
			*p = f + 0 // no −0
		}
	}
}

func (d *decoder) count(p *int, zero bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.Scalar(n, at, "a whole number")
		if !ok {
			return
		}
		i, err := strconv.Atoi(s)
		switch {
		case strictyaml.Quoted(n) || !strictyaml.IsNumber(s) || !strictyaml.IsWhole(s):
			d.Problem(at, "%s: want a whole number", d.AsWritten(n))
		case err != nil:
			d.Problem(at, "%s: too large", strictyaml.Show(s))
		case i < 0 || i == 0 && !zero:
			d.Problem(at, "%s: want a whole number above 0", strictyaml.Show(s))
		default:
			*p = i
		}
	}
}

func (d *decoder) toggle(p *bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.Scalar(n, at, "true or false")
		if ok && (strictyaml.Quoted(n) || s != "true" && s != "false") {
			d.Problem(at, "%s: want true or false", d.AsWritten(n))
			return
		}
		*p = s == "true"
	}
}

// text reads text of one line that good accepts.
func (d *decoder) text(p *string, want string, good func(string) bool) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.Scalar(n, at, want)
		if ok && !good(s) {
			d.Problem(at, "%s: want %s", strictyaml.Show(s), want)
			return
		}
		*p = s
	}
}

func choice[T ~uint8](d *decoder, p *T, names []string) reader {
	return func(n *yaml.Node, at place) {
		s, ok := d.Scalar(n, at, "one of "+strings.Join(names, ", "))
		if !ok {
			return
		}
		i := slices.Index(names, s)
		if i < 0 {
			d.Problem(at, "%s: unknown: %s", strictyaml.Show(s), strictyaml.Suggest(s, names))
			return
		}
		*p = T(i)
	}
}

// formatDuration writes 120s for what Duration.String writes as 2m0s, and 24h for its 24h0m0s.
func formatDuration(t time.Duration) string {
	if t < 10*time.Minute && t%time.Second == 0 {
		return fmt.Sprintf("%ds", t/time.Second)
	}
	return strictyaml.FormatDuration(t)
}

func formatNumber(f float64) string {
	if f != 0 && (f < 1e-6 || f >= 1e15) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}
