package config

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

// A value is a place in a File that a key of the YAML fills: it knows how it is read, written and described.
type value interface {
	read(d *decoder, n *yaml.Node, at place)
	write() *yaml.Node // nil = leave the key out
	kind() string      // what is wanted, with its range
}

// Values of one key. Bounds are inclusive unless said otherwise.
type (
	duration struct {
		p      *time.Duration
		lo, hi time.Duration
		orZero bool // 0 is taken too
		whole  bool // milliseconds only
	}
	size struct {
		p      *int64
		lo, hi int64
	}
	count struct {
		p      *int
		lo, hi int
	}
	number struct {
		p            *float64
		lo, hi       float64
		above, below bool // lo, hi are themselves outside
	}
	toggle struct {
		p      *bool
		invert bool // *p says the opposite of the key
	}
	// text is a string that parse makes a T of; a problem is what parse says about a value that it refuses.
	text[T any] struct {
		p     *T
		want  string
		parse func(string) (v T, problem string)
		show  func(T) string
		bare  bool // what looks like a number is text too
		unset bool // empty is what it is without its key, which is then left out
	}
	choice[T comparable] struct {
		p    *T
		all  []T
		name func(T) string
	}
)

// A day bounds what is waited for: longer is a unit mixed up.
const day = 24 * time.Hour

var sizeText = regexp.MustCompile(`^(\d{1,15})(B|KiB|MiB|GiB)$`)

func (v duration) kind() string {
	bounds := fmt.Sprintf("a duration from %s to %s", formatDuration(v.lo), formatDuration(v.hi))
	if v.whole {
		bounds += " in whole milliseconds"
	}
	if v.orZero {
		return "0s, or " + bounds
	}
	return bounds
}

func (v duration) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.kind())
	if !ok {
		return
	}
	// A bare number is nanoseconds to one program and milliseconds to the next; 0 has to say what it is none of.
	if strictyaml.IsNumber(s) {
		d.Problem(at, "%s: missing unit: want a duration such as 5s or 100ms", show(s))
		return
	}
	t, err := time.ParseDuration(s)
	switch {
	case err != nil:
		d.Problem(at, "%s: not a duration: want one such as 5s, 100ms or 1h30m (units ms, s, m, h)", show(s))
	case (t < v.lo || t > v.hi) && !(v.orZero && t == 0):
		d.Problem(at, "%s: out of range: want %s", show(s), v.kind())
	case v.whole && t%time.Millisecond != 0:
		d.Problem(at, "%s: a part of a millisecond: want %s", show(s), v.kind())
	default:
		*v.p = t
	}
}

func (v duration) write() *yaml.Node { return scalarNode(formatDuration(*v.p)) }

func formatDuration(t time.Duration) string { return strictyaml.FormatDuration(t) }

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

func (v size) kind() string {
	return fmt.Sprintf("a size from %s to %s", formatSize(v.lo), formatSize(v.hi))
}

func (v size) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.kind())
	if !ok {
		return
	}
	if strictyaml.IsNumber(s) {
		d.Problem(at, "%s: missing unit: want a size such as 64KiB or 512B", show(s))
		return
	}
	m := sizeText.FindStringSubmatch(s)
	if m == nil {
		d.Problem(at, "%s: not a size: want a whole number and a unit, such as 64KiB (units B, KiB, MiB, GiB)", show(s))
		return
	}
	number, _ := strconv.ParseInt(m[1], 10, 64)
	for _, u := range sizeUnits {
		if u.name != m[2] {
			continue
		}
		if number > v.hi/u.bytes || number*u.bytes < v.lo {
			d.Problem(at, "%s: out of range: want %s", show(s), v.kind())
			return
		}
		*v.p = number * u.bytes
	}
}

func (v size) write() *yaml.Node { return scalarNode(formatSize(*v.p)) }

func formatSize(bytes int64) string {
	for _, u := range sizeUnits {
		if bytes >= u.bytes && bytes%u.bytes == 0 {
			return strconv.FormatInt(bytes/u.bytes, 10) + u.name
		}
	}
	return "0B"
}

func (v count) kind() string {
	return fmt.Sprintf("a whole number from %d to %d", v.lo, v.hi)
}

func (v count) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.kind())
	if !ok {
		return
	}
	if strictyaml.Quoted(n) || !strictyaml.IsNumber(s) {
		d.Problem(at, "%s: not a number: want %s", d.AsWritten(n), v.kind())
		return
	}
	if !strictyaml.IsWhole(s) {
		d.Problem(at, "%s: not a whole number: want %s", show(s), v.kind())
		return
	}
	i, err := strconv.ParseInt(s, 10, 64)
	if err != nil || i < int64(v.lo) || i > int64(v.hi) {
		d.Problem(at, "%s: out of range: want %s", show(s), v.kind())
		return
	}
	*v.p = int(i)
}

func (v count) write() *yaml.Node { return scalarNode(strconv.Itoa(*v.p)) }

func (v number) kind() string {
	lo, hi := formatNumber(v.lo), formatNumber(v.hi)
	switch {
	case v.above && v.below:
		return fmt.Sprintf("a number above %s and below %s", lo, hi)
	case v.above:
		return fmt.Sprintf("a number above %s and at most %s", lo, hi)
	case v.below:
		return fmt.Sprintf("a number from %s to below %s", lo, hi)
	}
	return fmt.Sprintf("a number from %s to %s", lo, hi)
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func (v number) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.kind())
	if !ok {
		return
	}
	f, err := strconv.ParseFloat(s, 64)
	if strictyaml.Quoted(n) || !strictyaml.IsNumber(s) {
		d.Problem(at, "%s: not a number: want %s", d.AsWritten(n), v.kind())
		return
	}
	if err != nil || f < v.lo || v.above && f == v.lo || f > v.hi || v.below && f == v.hi {
		d.Problem(at, "%s: out of range: want %s", show(s), v.kind())
		return
	}
	*v.p = f
}

func (v number) write() *yaml.Node { return scalarNode(formatNumber(*v.p)) }

// orNone is a number whose 0 means that there is none of it, where the 0 of the field means its default: *p becomes then, and
// flag is set.
type orNone[T int | float64] struct {
	value
	p    *T
	then T
	flag *bool
}

func (v orNone[T]) read(d *decoder, n *yaml.Node, at place) {
	before := *v.p
	*v.p = -1
	v.value.read(d, n, at)
	switch *v.p {
	case 0:
		*v.p = v.then
		if v.flag != nil {
			*v.flag = true
		}
	case -1:
		*v.p = before
	}
}

func (v orNone[T]) write() *yaml.Node {
	if *v.p <= 0 {
		return scalarNode("0")
	}
	return v.value.write()
}

func (v toggle) kind() string { return "true or false" }

func (v toggle) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.kind())
	if !ok {
		return
	}
	if strictyaml.Quoted(n) || s != "true" && s != "false" {
		d.Problem(at, "%s: want %s", d.AsWritten(n), v.kind())
		return
	}
	*v.p = (s == "true") != v.invert
}

func (v toggle) write() *yaml.Node { return scalarNode(strconv.FormatBool(*v.p != v.invert)) }

func (v text[T]) kind() string { return v.want }

func (v text[T]) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.want)
	if !ok {
		return
	}
	t, problem := v.parse(s)
	if problem == "" && n.Tag != "!!str" && !v.bare && !strictyaml.Quoted(n) {
		problem = "want " + v.want + ", in quotes if this is it"
	}
	if problem != "" {
		d.Problem(at, "%s: %s", show(s), problem)
		return
	}
	*v.p = t
}

func (v text[T]) write() *yaml.Node {
	s := v.show(*v.p)
	if v.unset && s == "" {
		return nil
	}
	return textNode(s)
}

func (v choice[T]) names() []string {
	names := make([]string, len(v.all))
	for i, t := range v.all {
		names[i] = v.name(t)
	}
	return names
}

func (v choice[T]) kind() string { return "one of " + strings.Join(v.names(), ", ") }

func (v choice[T]) read(d *decoder, n *yaml.Node, at place) {
	s, ok := d.scalar(n, at, v.kind())
	if !ok {
		return
	}
	i := slices.Index(v.names(), s)
	if i < 0 {
		hint := ""
		if near := strictyaml.Nearest(s, v.names()); near != "" {
			hint = "did you mean " + near + "? "
		}
		d.Problem(at, "%s: unknown: %swant %s", show(s), hint, v.kind())
		return
	}
	*v.p = v.all[i]
}

func (v choice[T]) write() *yaml.Node { return scalarNode(v.name(*v.p)) }

// An entry is one key of a block.
type entry struct {
	key   string
	value value
	// field is the path, in cortex.Config, of what the value fills: the engine's own check names it by that.
	field string
	// note stands beside the key where the whole configuration is written out.
	note string
}

// A block is a mapping of known keys.
type block []entry

func (b block) kind() string { return "a block of keys" }

func (b block) read(d *decoder, n *yaml.Node, at place) {
	d.pairs(n, at, func(key, value *yaml.Node) {
		here := at.Child(show(key.Value), key)
		i := slices.IndexFunc(b, func(e entry) bool { return e.key == key.Value })
		if i < 0 {
			d.Problem(here, "unknown key: %s", strictyaml.Suggest(key.Value, b.keys()))
			return
		}
		d.Mark(here)
		b[i].value.read(d, value, here)
	})
}

func (b block) keys() []string {
	keys := make([]string, len(b))
	for i, e := range b {
		keys[i] = e.key
	}
	return keys
}

func (b block) write() *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, e := range b {
		if n := e.value.write(); n != nil {
			key := textNode(e.key)
			n.LineComment = e.note
			m.Content = append(m.Content, key, n)
		}
	}
	return m
}

// optional is a block that is off unless its key is given.
type optional[T any] struct {
	p     **T
	fresh func() *T // with its defaults
	block func(*T) block
}

func (v optional[T]) kind() string { return "a block of keys" }

func (v optional[T]) read(d *decoder, n *yaml.Node, at place) {
	*v.p = v.fresh()
	v.block(*v.p).read(d, n, at)
}

func (v optional[T]) write() *yaml.Node {
	if *v.p == nil {
		return nil
	}
	return v.block(*v.p).write()
}

// list is a sequence of at most that many items, at least one.
type list[T any] struct {
	p    *[]T
	most int
	what string // the items, in the plural
	item func(*T) value
	// fresh, if set, is an item with its defaults.
	fresh func() T
}

func (v list[T]) kind() string { return fmt.Sprintf("a list of 1 to %d %s", v.most, v.what) }

func (v list[T]) read(d *decoder, n *yaml.Node, at place) {
	switch {
	case n.Kind == yaml.AliasNode:
		return
	case n.Kind != yaml.SequenceNode:
		d.Problem(at, "%s: want %s", d.Describe(n), v.kind())
		return
	case len(n.Content) == 0:
		d.Problem(at, "an empty list: want %s, or leave the key out", v.kind())
		return
	case len(n.Content) > v.most:
		d.Problem(at, "%d %s: want at most %d", len(n.Content), v.what, v.most)
		return
	}
	*v.p = make([]T, len(n.Content))
	for i, c := range n.Content {
		if v.fresh != nil {
			(*v.p)[i] = v.fresh()
		}
		here := at.Item(i, c)
		d.Mark(here)
		v.item(&(*v.p)[i]).read(d, c, here)
	}
}

func (v list[T]) write() *yaml.Node {
	if len(*v.p) == 0 {
		return nil
	}
	s := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for i := range *v.p {
		s.Content = append(s.Content, v.item(&(*v.p)[i]).write())
	}
	return s
}

func scalarNode(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

var simpleText = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_/.+-]*$|^(https?|h2c)://[A-Za-z0-9./:_-]*[A-Za-z0-9/]$|^[A-Za-z0-9.]+:\d+$|^[0-9./]+$|^/[A-Za-z0-9/_-]*$`)

// textNode writes text in double quotes unless nothing in it could be taken for anything else.
func textNode(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if !simpleText.MatchString(s) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
